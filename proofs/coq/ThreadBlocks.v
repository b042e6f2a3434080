(** Programs of thread blocks, chunk by chunk: what an execution is, and when a program is right.

    A program is a list of blocks, a block a list of steps that run in order (verify/asynchronous).
    A step waits for counters, adds up chunks (and a message), stores the sum, sends it on, and raises
    counters. What it moves goes chunk by chunk, so each chunk of a step is an *event* of its own: a
    receiver can use the first chunk of a message before the last one has been sent.

    The chunks of a step travel in messages of [size] chunks (the last one may be smaller); how many
    chunks a message has follows from the size of the buffer. A FIFO has room for a number of
    messages: the first chunk of a message waits until enough earlier messages have been received as
    a whole. [None]: there is always room.

    What the theorems are about is here; ThreadBlocksRuns.v has what holds of all executions, and
    ThreadBlocksCheck.v the functions that decide. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Semantics.
Import ListNotations.
Open Scope N_scope.

(** * Programs *)

(** [count] chunks; [sources] and [targets] are the first addresses of areas of so many chunks;
    [receives] and [sends] name FIFOs; [waits] and [signals] are (counter, value). *)
Record step := Step {
  count : N;
  sources : list N;
  targets : list N;
  receives : option N;
  sends : option N;
  waits : list (N * N);
  signals : list (N * N) }.

(** One chunk of a step: the [offset]-th; [final] if it is the last. *)
Record event := Event {
  offset : N;
  final : bool;
  reads : list N;
  writes : list N;
  takes : option N;
  puts : option N;
  awaits : list (N * N);
  raises : list (N * N) }.

Definition chunk_event (x : step) (i : N) : event :=
  let last := i + 1 =? count x in
  Event i last (map (N.add i) (sources x)) (map (N.add i) (targets x)) (receives x) (sends x)
    (if i =? 0 then waits x else []) (if last then signals x else []).

(** A step without chunks only waits and signals. *)
Definition events_of (x : step) : list event :=
  if count x =? 0 then [Event 0 true [] [] None None (waits x) (signals x)]
  else map (chunk_event x) (range (count x)).

Definition events (steps : list step) : list event := flat_map events_of steps.

(** Whether an event moves the first chunk of a message of [size] chunks, or the last one. *)
Definition opens (size : N) (e : event) : bool := offset e mod size =? 0.
Definition closes (size : N) (e : event) : bool := final e || ((offset e + 1) mod size =? 0).

Definition is (o : option N) (f : N) : bool := match o with Some g => g =? f | None => false end.
Definition one_more (test : bool) (n : N) : N := if test then n + 1 else n.

(** The highest value that an event raises a counter to, if that is more than [old]. *)
Definition raised (e : event) (c old : N) : N :=
  fold_left N.max (map snd (filter (fun r => fst r =? c) (raises e))) old.

(** * Executions *)

(** How many events of each block are done; memory; what lies in each FIFO; what each counter has
    reached; how many messages of each FIFO have been begun, and how many received as a whole. *)
Record state {V : Type} := State {
  now : N -> N;
  memory : N -> V;
  queue : N -> list V;
  level : N -> N;
  begun : N -> N;
  received : N -> N }.
Arguments state : clear implicits.

Section Machine.
  Context {V : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
  Variables (blocks : list (list event)) (size : N) (room : option N).

  Definition event_at (b i : N) (e : event) : Prop :=
    nth_error (nth (N.to_nat b) blocks []) (N.to_nat i) = Some e.

  Definition incoming (s : state V) (e : event) : list V :=
    match takes e with Some f => firstn 1 (queue s f) | None => [] end.

  (** What an event stores and sends: the sum of what it reads and of what it takes. *)
  Definition total (s : state V) (e : event) : V :=
    fold_right plus unit (map (memory s) (reads e) ++ incoming s e).

  Definition next (s : state V) (b : N) (e : event) : state V := State V
    (fun c => if c =? b then now s b + 1 else now s c)
    (fun a => if existsb (N.eqb a) (writes e) then total s e else memory s a)
    (fun f => (if is (takes e) f then tl (queue s f) else queue s f)
              ++ (if is (puts e) f then [total s e] else []))
    (fun c => raised e c (level s c))
    (fun f => one_more (is (puts e) f && opens size e) (begun s f))
    (fun f => one_more (is (takes e) f && closes size e) (received s f)).

  Definition ready (s : state V) (b : N) (e : event) : Prop :=
    event_at b (now s b) e /\
    (forall c v, In (c, v) (awaits e) -> v <= level s c) /\
    (forall f, takes e = Some f -> queue s f <> []) /\
    (forall f d, puts e = Some f -> opens size e = true -> room = Some d ->
       begun s f < received s f + d).

  Definition initial : state V :=
    State V (fun _ => 0) start (fun _ => []) (fun _ => 0) (fun _ => 0) (fun _ => 0).

  Inductive reached : state V -> Prop :=
  | Started : reached initial
  | Went s b e : reached s -> ready s b e -> reached (next s b e).

  Definition length_of (b : N) : N := N.of_nat (length (nth (N.to_nat b) blocks [])).

  (** Every block has come to its end. *)
  Definition over (s : state V) : Prop := forall b, length_of b <= now s b.

  (** Nobody can go on. *)
  Definition stuck (s : state V) : Prop := forall b e, ~ ready s b e.
End Machine.

(** Two events that touch one chunk, one of them writing. *)
Definition conflict (x y : event) : Prop :=
  exists a, In a (writes x) /\ (In a (writes y) \/ In a (reads y)) \/
            In a (writes y) /\ In a (reads x).

(** * What is wanted *)

(** Whose input chunk an address holds at the start; what one is to hold at the end: a chunk of one
    rank, or the sum of it over all ranks. *)
Inductive want := Of_all (chunk : N) | Of_one (rank chunk : N).

(** One instance: blocks of steps, ranks, inputs (address, (rank, chunk)), and demands, any one of
    which makes the result right; each is a list of addresses with what they are to hold. *)
Record program := Program {
  steps : list (list step);
  ranks : N;
  inputs : list (N * (N * N));
  demands : list (list (N * want)) }.

Definition code (p : program) : list (list event) := map events (steps p).

Definition input_at (p : program) (a : N) : option (N * N) :=
  match find (fun row => fst row =? a) (inputs p) with Some (_, input) => Some input | None => None end.

Section Wanted.
  Variables (M : commutative_monoid) (p : program).

  (** [x rank chunk] are the inputs; [junk] is what lies in memory that holds none. *)
  Variables (x : N -> N -> M) (junk : N -> M).

  Definition begins (a : N) : M :=
    match input_at p a with Some (r, c) => x r c | None => junk a end.

  Definition wanted (w : want) : M :=
    match w with
    | Of_all c => sum M (fun r => x r c) (range (ranks p))
    | Of_one r c => x r c
    end.

  Definition meets (memory : N -> M) (demand : list (N * want)) : Prop :=
    forall a w, In (a, w) demand -> memory a = wanted w.
End Wanted.

(** At every end of a FIFO stands one block; both see the same messages; a counter has one block
    that raises it. *)
Definition one_block (p : program) (key : event -> list N) : Prop :=
  exists owner : N -> N, forall b i e f,
    event_at (code p) b i e -> In f (key e) -> b = owner f.

Definition listed (o : option N) : list N := match o with Some f => [f] | None => [] end.

Definition messages (size : N) (test : event -> bool) (p : program) : list (bool * bool) :=
  map (fun e => (opens size e, closes size e)) (filter test (concat (code p))).

Definition connected (p : program) (size : N) : Prop :=
  one_block p (fun e => listed (puts e)) /\
  one_block p (fun e => listed (takes e)) /\
  one_block p (fun e => map fst (raises e)) /\
  forall f, messages size (fun e => is (puts e) f) p = messages size (fun e => is (takes e) f) p.

(** No step reads or writes a chunk that another chunk of it writes. *)
Definition apart (x : step) : Prop :=
  forall t a, In t (targets x) -> In a (sources x ++ targets x) ->
    t = a \/ t + count x <= a \/ a + count x <= t.

(** * The verdict *)

(** Right for messages of [size] chunks and FIFOs of [depth] messages: whatever data and however
    the blocks go on, nobody gets stuck before the end, two blocks never touch a chunk at the same
    time, and at the end everything that one of the demands wants is there. (Every event brings the
    end nearer: [ThreadBlocksRuns.ends].) *)
Definition right (p : program) (size : N) (depth : option N) : Prop :=
  connected p size /\
  (forall block x, In block (steps p) -> In x block -> apart x) /\
  (forall (M : commutative_monoid) x junk s,
    reached (add M) (zero M) (begins M p x junk) (code p) size depth s ->
    (over (code p) s \/ exists b e, ready (code p) size depth s b e) /\
    (forall b e b' e', b <> b' -> ready (code p) size depth s b e ->
       ready (code p) size depth s b' e' -> ~ conflict e e')) /\
  (exists demand, In demand (demands p) /\
    forall (M : commutative_monoid) x junk s,
      reached (add M) (zero M) (begins M p x junk) (code p) size depth s ->
      over (code p) s -> meets M p x (memory s) demand).
