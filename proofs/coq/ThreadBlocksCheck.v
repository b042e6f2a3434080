(** Deciding programs of thread blocks: functions that can be executed, and that they are right.

    The program is run once, sweep after sweep over its blocks: that decides whether all executions
    end (ThreadBlocksRuns.v, [one_run_decides]). The run carries along

    - for each block a *clock*: how many events of every block are done in every execution in which
      this one is as far ([sound]). What an event waits for, takes, or finds room by, brings the
      clock of who did that. An access to a chunk is compared with the earlier ones to it: the clock
      has to know of those that conflict;
    - for each chunk the set of input chunks in it, as a list in rising order, or [None] if one is in
      it twice, or if something is that never was an input: neither can get right again.

    [decide_right] and [decide_hangs], [decide_wrong] say what the answers mean. *)

From Coq Require Import List Arith NArith PArith FMapPositive Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics Tables ThreadBlocks ThreadBlocksRuns.
Import ListNotations.
Open Scope N_scope.

(** * What is computed with *)

(** Input chunks as numbers: [chunk * ranks + rank]. *)
Definition number_of (ranks r c : N) : N := c * ranks + r.

Definition value := option (list N).

(** Two rising lists as one; [None] where a number is in both. *)
Fixpoint merge (l : list N) : list N -> option (list N) :=
  match l with
  | [] => fun l' => Some l'
  | a :: r =>
      (fix from (l' : list N) : option (list N) :=
         match l' with
         | [] => Some (a :: r)
         | b :: r' =>
             match a ?= b with
             | Lt => option_map (cons a) (merge r (b :: r'))
             | Gt => option_map (cons b) (from r')
             | Eq => None
             end
         end)
  end.

Definition add_values (v v' : value) : value :=
  match v, v' with Some l, Some l' => merge l l' | _, _ => None end.

(** Block -> how many of its events are done. *)
Definition clock := PM.t N.

Definition known (k : clock) (b : N) : N := match find_at k b with Some n => n | None => 0 end.

Definition later (o o' : option N) : option N :=
  match o, o' with
  | Some n, Some n' => Some (N.max n n')
  | Some n, None | None, Some n => Some n
  | None, None => None
  end.

Definition join (k k' : clock) : clock := PM.map2 later k k'.

(** What has been raised, newest first: the clock of the first event that raised so far. *)
Fixpoint first_raise (v : N) (history : list (N * clock)) : option clock :=
  match history with
  | [] => None
  | (u, k) :: older =>
      match first_raise v older with
      | Some k' => Some k'
      | None => if v <=? u then Some k else None
      end
  end.

Record standing := Standing { rest : list event; done : N; knows : clock }.

(** What lies in a FIFO, with the clocks of who sent it; messages begun and received; clocks of the
    blocks that made room which nobody has used yet. *)
Record fifo := Fifo {
  content : list (value * clock); begun_here : N; received_here : N; freed : list clock }.

(** Who wrote a chunk last, and who has read it since, as (block, event). *)
Record touched := Touched { writer : option (N * N); readers : list (N * N) }.

Record run_state := RunState {
  standings : PM.t standing;
  cells : PM.t value;
  fifos : PM.t fifo;
  histories : PM.t (list (N * clock));
  touches : PM.t touched;
  raced : bool }.

Definition cell (s : run_state) (a : N) : value :=
  match find_at (cells s) a with Some v => v | None => None end.

Definition fifo_at (s : run_state) (f : N) : fifo :=
  match find_at (fifos s) f with Some x => x | None => Fifo [] 0 0 [] end.

Definition history_of (s : run_state) (c : N) : list (N * clock) :=
  match find_at (histories s) c with Some h => h | None => [] end.

Definition touch_at (s : PM.t touched) (a : N) : touched :=
  match find_at s a with Some x => x | None => Touched None [] end.

Section Run.
  Variables (size : N) (room : option N).

  Fixpoint after_waits (s : run_state) (ws : list (N * N)) (k : clock) : option clock :=
    match ws with
    | [] => Some k
    | (c, v) :: ws =>
        if v =? 0 then after_waits s ws k
        else match first_raise v (history_of s c) with
             | Some k' => after_waits s ws (join k k')
             | None => None
             end
    end.

  Definition after_message (s : run_state) (e : event) (k : clock) : option (clock * list value) :=
    match takes e with
    | None => Some (k, [])
    | Some f => match content (fifo_at s f) with
                | [] => None
                | (v, k') :: _ => Some (join k k', [v])
                end
    end.

  Definition after_room (s : run_state) (e : event) (k : clock) : option clock :=
    match puts e, room with
    | Some f, Some d =>
        let x := fifo_at s f in
        if opens size e then
          if begun_here x <? received_here x + d then
            if begun_here x <? d then Some k
            else match freed x with k' :: _ => Some (join k k') | [] => Some k end
          else None
        else Some k
    | _, _ => Some k
    end.

  Definition knows_of (k : clock) (p : N * N) : bool := snd p <? known k (fst p).

  Definition may_read (t : PM.t touched) (k : clock) (a : N) : bool :=
    match writer (touch_at t a) with None => true | Some p => knows_of k p end.

  Definition may_write (t : PM.t touched) (k : clock) (a : N) : bool :=
    may_read t k a && forallb (knows_of k) (readers (touch_at t a)).

  Definition read_by (p : N * N) (t : PM.t touched) (a : N) : PM.t touched :=
    let x := touch_at t a in add_at t a (Touched (writer x) (p :: readers x)).

  Definition written_by (p : N * N) (t : PM.t touched) (a : N) : PM.t touched :=
    add_at t a (Touched (Some p) []).

  Definition change_fifo (s : run_state) (f : N) (g : fifo -> fifo) (m : PM.t fifo) : PM.t fifo :=
    add_at m f (g (match find_at m f with Some x => x | None => Fifo [] 0 0 [] end)).

  Definition took (e : event) (k : clock) (x : fifo) : fifo :=
    let ended := closes size e in
    Fifo (tl (content x)) (begun_here x) (one_more ended (received_here x))
      (match room with Some _ => if ended then freed x ++ [k] else freed x | None => [] end).

  Definition sent (e : event) (v : value) (k : clock) (x : fifo) : fifo :=
    let begins := opens size e in
    Fifo (content x ++ [(v, k)]) (one_more begins (begun_here x)) (received_here x)
      (match room with
       | Some d => if begins && negb (begun_here x <? d) then tl (freed x) else freed x
       | None => []
       end).

  Definition fifos_after (s : run_state) (e : event) (v : value) (k : clock) : PM.t fifo :=
    let m := match takes e with
             | Some f => change_fifo s f (took e k) (fifos s)
             | None => fifos s
             end in
    match puts e with Some f => change_fifo s f (sent e v k) m | None => m end.

  Definition raise_one (k : clock) (h : PM.t (list (N * clock))) (r : N * N) :=
    add_at h (fst r)
      ((snd r, k) :: match find_at h (fst r) with Some l => l | None => [] end).

  (** One event of block [b]; [None] if it has to wait, or the block is at its end. *)
  Definition advance (s : run_state) (b : N) : option run_state :=
    match find_at (standings s) b with
    | None | Some (Standing [] _ _) => None
    | Some (Standing (e :: more) n k0) =>
        match after_waits s (awaits e) k0 with
        | None => None
        | Some k1 =>
            match after_message s e k1 with
            | None => None
            | Some (k2, incoming) =>
                match after_room s e k2 with
                | None => None
                | Some k3 =>
                    let k := add_at k3 b (n + 1) in
                    let v := fold_right add_values (Some []) (map (cell s) (reads e) ++ incoming) in
                    let fine := forallb (may_read (touches s) k3) (reads e) &&
                                forallb (may_write (touches s) k3) (writes e) in
                    Some (RunState
                      (add_at (standings s) b (Standing more (n + 1) k))
                      (fold_left (fun m a => add_at m a v) (writes e) (cells s))
                      (fifos_after s e v k)
                      (fold_left (raise_one k) (raises e) (histories s))
                      (fold_left (written_by (b, n)) (writes e)
                        (fold_left (read_by (b, n)) (reads e) (touches s)))
                      (raced s || negb fine))
                end
            end
        end
    end.
End Run.

(** * Clocks and values *)

Lemma known_join k k' b : known (join k k') b = N.max (known k b) (known k' b).
Proof.
  unfold known, join, find_at, clock in *.
  assert (There : forall (m : PM.t N) n, PM.find (N.succ_pos b) m = Some n -> PM.In (N.succ_pos b) m).
  { intros m n E. apply PM.find_2 in E. now exists n. }
  destruct (PM.find (N.succ_pos b) k) as [n|] eqn:E;
    destruct (PM.find (N.succ_pos b) k') as [n'|] eqn:E'.
  - rewrite PM.map2_1 by eauto. rewrite E, E'. reflexivity.
  - rewrite PM.map2_1 by eauto. rewrite E, E'. simpl. lia.
  - rewrite PM.map2_1 by eauto. rewrite E, E'. simpl. lia.
  - destruct (PM.find (N.succ_pos b) (PM.map2 later k k')) as [m|] eqn:M; [|reflexivity].
    apply There, PM.map2_2 in M. destruct M as [[y I]|[y I]]; apply PM.find_1 in I; congruence.
Qed.

Lemma known_add k b n c : known (add_at k b n) c = if c =? b then n else known k c.
Proof. unfold known. rewrite find_add. now destruct (c =? b). Qed.

Lemma merge_nil l : merge l [] = Some l.
Proof. destruct l; reflexivity. Qed.

Lemma merge_spec l : forall l', match merge l l' with
  | Some m => Permutation m (l ++ l')
  | None => exists a, In a l /\ In a l'
  end.
Proof.
  induction l as [|a r IH]; intros l'; simpl; [apply Permutation_refl|].
  induction l' as [|b r' IH']; [now rewrite app_nil_r|].
  destruct (N.compare_spec a b) as [->|L|L].
  - exists b. split; now left.
  - specialize (IH (b :: r')). destruct (merge r (b :: r')) as [m|]; simpl.
    + now constructor.
    + destruct IH as (x & Hx & Hy). exists x. split; auto.
  - match type of IH' with match ?e with _ => _ end => destruct e as [m|] end; simpl.
    + transitivity (b :: (a :: r) ++ r'); [now constructor|]. apply Permutation_middle.
    + destruct IH' as (x & Hx & Hy). exists x. split; [exact Hx|now right].
Qed.

(** What stands in a chunk: which input chunks, and what is no input. *)
Inductive origin := Input (r c : N) | Junk (a : N).

Definition clean (l : list origin) : Prop :=
  NoDup l /\ forall o, In o l -> exists r c, o = Input r c.

Lemma clean_app l l' : clean (l ++ l') -> clean l /\ clean l'.
Proof.
  intros (D & I). apply nodup_app in D as (D & D' & _).
  repeat split; auto; intros o Ho; apply I, in_or_app; auto.
Qed.

Section Values.
  Variable ranks : N.

  Definition origin_of (n : N) : origin := Input (n mod ranks) (n / ranks).

  Definition stands_for (v : value) (l : list origin) : Prop :=
    match v with Some ns => Permutation (map origin_of ns) l | None => ~ clean l end.

  Lemma add_stands v v' l l' : stands_for v l -> stands_for v' l' ->
    stands_for (add_values v v') (l ++ l').
  Proof.
    destruct v as [ns|]; simpl.
    2: { intros H _ C. apply clean_app in C. tauto. }
    destruct v' as [ns'|]; simpl.
    2: { intros _ H C. apply clean_app in C. tauto. }
    intros P P'. pose proof (merge_spec ns ns') as S. destruct (merge ns ns') as [m|]; simpl.
    - transitivity (map origin_of (ns ++ ns')); [now apply Permutation_map|].
      rewrite map_app. now apply Permutation_app.
    - intros (D & _). destruct S as (a & A & A').
      apply nodup_app in D as (_ & _ & D). apply (D (origin_of a)).
      + apply (Permutation_in _ P). now apply in_map.
      + apply (Permutation_in _ P'). now apply in_map.
  Qed.

  Lemma sum_stands vs ls : Forall2 stands_for vs ls ->
    stands_for (fold_right add_values (Some []) vs) (fold_right (@app origin) [] ls).
  Proof.
    induction 1 as [|v l vs ls H _ IH]; simpl; [constructor|]. now apply add_stands.
  Qed.
End Values.

Lemma skipn_cons {A} (l : list A) : forall n a r, skipn n l = a :: r ->
  nth_error l n = Some a /\ r = skipn (S n) l.
Proof.
  induction l as [|y l IH]; intros [|n] a r E; simpl in *; try discriminate.
  - injection E as -> ->. auto.
  - now apply IH.
Qed.

Lemma skipn_nil_length {A} (l : list A) n : skipn n l = [] -> (length l <= n)%nat.
Proof. intros E. apply (f_equal (@length _)) in E. rewrite skipn_length in E. simpl in E. lia. Qed.

(** * The run is an execution, and what it knows is so *)

Section Follows.
  Variables (ranks : N) (start : N -> list origin).
  Variables (blocks : list (list event)) (size : N) (room : option N).
  Variables (putter taker raiser : N -> N).

  Notation event_at := (event_at blocks).
  Notation ready := (ready blocks size room).
  Notation next := (next (@app origin) [] size).
  Notation reached := (reached (@app origin) [] start blocks size room).
  Notation counted := (counted blocks).
  Notation comes_first := (comes_first (@app origin) [] start blocks size room).

  Hypothesis one_putter : forall b i e f, event_at b i e -> puts e = Some f -> b = putter f.
  Hypothesis one_taker : forall b i e f, event_at b i e -> takes e = Some f -> b = taker f.
  Hypothesis one_raiser : forall b i e c v,
    event_at b i e -> In (c, v) (raises e) -> b = raiser c.

  Notation puts_to f := (fun e => is (puts e) f).
  Notation takes_from f := (fun e => is (takes e) f).
  Notation begins_in f := (fun e => is (puts e) f && opens size e).
  Notation ends_in f := (fun e => is (takes e) f && closes size e).

  (** Where the first [n] events of block [b] are done, so is what the clock says. *)
  Definition sound (b n : N) (k : clock) : Prop :=
    forall t, reached t -> n <= now t b -> forall c, known k c <= now t c.

  Lemma sound_later b n n' k : n <= n' -> sound b n k -> sound b n' k.
  Proof. intros L H t R L'. apply H; auto. lia. Qed.

  Record follows (x : run_state) (s : state (list origin)) : Prop := Follows {
    f_reached : reached s;
    f_standing : forall b st, find_at (standings x) b = Some st ->
      done st = now s b /\ rest st = skipn (N.to_nat (now s b)) (nth (N.to_nat b) blocks []) /\
      sound b (now s b) (knows st);
    f_all : forall b, find_at (standings x) b = None -> nth (N.to_nat b) blocks [] = [];
    f_cells : forall a, stands_for ranks (cell x a) (memory s a);
    f_counts : forall f, begun_here (fifo_at x f) = begun s f /\
      received_here (fifo_at x f) = received s f;
    f_content : forall f,
      Forall2 (fun v l => stands_for ranks (fst v) l) (content (fifo_at x f)) (queue s f);
    f_sent : forall f j v k, nth_error (content (fifo_at x f)) j = Some (v, k) ->
      exists i e, event_at (putter f) i e /\ is (puts e) f = true /\
        counted (puts_to f) (putter f) i =
          counted (takes_from f) (taker f) (now s (taker f)) + N.of_nat j /\
        sound (putter f) (i + 1) k;
    f_room : forall f d, room = Some d ->
      N.of_nat (length (freed (fifo_at x f))) + (begun s f - d) = received s f;
    f_freed : forall f d j k, room = Some d -> nth_error (freed (fifo_at x f)) j = Some k ->
      exists i e, event_at (taker f) i e /\ is (takes e) f && closes size e = true /\
        counted (ends_in f) (taker f) i = (begun s f - d) + N.of_nat j /\
        sound (taker f) (i + 1) k;
    f_history : forall c v, 0 < v -> match first_raise v (history_of x c) with
      | Some k => exists i e u, i < now s (raiser c) /\ event_at (raiser c) i e /\
          In (c, u) (raises e) /\ v <= u /\
          (forall i' e' u, i' < i -> event_at (raiser c) i' e' -> In (c, u) (raises e') -> u < v) /\
          sound (raiser c) (i + 1) k
      | None => forall i e u, i < now s (raiser c) -> event_at (raiser c) i e ->
          In (c, u) (raises e) -> u < v
      end;
    f_touched : raced x = false -> forall c j e a, j < now s c -> event_at c j e ->
      (In a (writes e) -> exists w, writer (touch_at (touches x) a) = Some w /\
         comes_first (c, j) w) /\
      (In a (reads e) -> In (c, j) (readers (touch_at (touches x) a)) \/
         exists w, writer (touch_at (touches x) a) = Some w /\ comes_first (c, j) w);
    f_ordered : raced x = false -> forall b i e c j e', i < now s b -> j < now s c ->
      event_at b i e -> event_at c j e' -> conflict e e' ->
      comes_first (b, i) (c, j) \/ comes_first (c, j) (b, i) }.

  (** ** What an event that is done says about others *)

  Lemma begun_bounded t f d : reached t -> room = Some d -> begun t f <= received t f + d.
  Proof.
    intros R E. induction R as [|t b e R IH H]; [simpl; lia|]. simpl. unfold one_more.
    destruct (is (puts e) f && opens size e) eqn:P.
    - apply andb_true_iff in P as [P O]. apply is_true in P.
      destruct H as (_ & _ & _ & Room). specialize (Room f d P O E).
      destruct (is (takes e) f && closes size e); lia.
    - destruct (is (takes e) f && closes size e); lia.
  Qed.

  Lemma not_yet (test : event -> bool) b i n e : event_at b i e -> test e = true ->
    counted test b i < counted test b n -> i < n.
  Proof.
    intros A T L. destruct (N.lt_ge_cases i n) as [|G]; auto.
    pose proof (count_mono blocks test _ _ _ G : counted test b n <= counted test b i). lia.
  Qed.

  Lemma done_counts (test : event -> bool) b i n e : event_at b i e -> test e = true -> i < n ->
    counted test b i + 1 <= counted test b n.
  Proof.
    intros A T L. pose proof (count_next blocks test b i e A) as C. rewrite T in C.
    rewrite <- C. apply count_mono. lia.
  Qed.

  Section OneStep.
    Variables (x : run_state) (s : state (list origin)) (b : N) (e : event).
    Variables (more : list event) (n : N) (k0 k1 k2 k3 : clock) (received_values : list value).
    Hypothesis F : follows x s.
    Hypothesis Stands : find_at (standings x) b = Some (Standing (e :: more) n k0).

    Let Here : n = now s b /\ event_at b (now s b) e /\
      more = skipn (N.to_nat (now s b + 1)) (nth (N.to_nat b) blocks []) /\ sound b (now s b) k0.
    Proof.
      destruct (f_standing x s F b _ Stands) as (D & R & K). simpl in *.
      symmetry in R. apply skipn_cons in R as (A & R).
      replace (N.to_nat (now s b + 1)) with (S (N.to_nat (now s b))) by lia. auto.
    Qed.

    (** If the event is done in an execution, what a clock says of before is so. *)
    Definition tells (k : clock) : Prop :=
      forall t, reached t -> now s b < now t b -> forall c, known k c <= now t c.

    Lemma tells_join k k' : tells k -> tells k' -> tells (join k k').
    Proof.
      intros H H' t R L c. rewrite known_join.
      specialize (H t R L c). specialize (H' t R L c). lia.
    Qed.

    Lemma tells_own : tells k0.
    Proof. intros t R L c. destruct Here as (_ & _ & _ & S). apply S; auto. lia. Qed.

    (** In an execution in which the event is done, it was ready before. *)
    Lemma was_done t : reached t -> now s b < now t b ->
      (forall c v, In (c, v) (awaits e) -> v <= level t c) /\
      (forall f, takes e = Some f ->
         counted (takes_from f) b (now s b) < counted (puts_to f) (putter f) (now t (putter f))) /\
      (forall f d, puts e = Some f -> opens size e = true -> room = Some d ->
         counted (begins_in f) b (now s b) < received t f + d).
    Proof.
      intros R. destruct Here as (_ & A & _).
      induction R as [|t c e' R IH H]; [simpl; lia|]. simpl now. intros L.
      destruct (N.lt_ge_cases (now s b) (now t b)) as [L'|G].
      - destruct (IH L') as (W & T & P). repeat split.
        + intros d v I. apply raised_spec. left. auto.
        + intros f E. specialize (T f E). pose proof (now_grows (@app origin) [] size t c e' (putter f)).
          pose proof (count_mono blocks (puts_to f) (putter f) _ _ H0). simpl now in *. lia.
        + intros f d E O D. specialize (P f d E O D). simpl received. unfold one_more.
          destruct (_ && _); lia.
      - destruct (N.eqb_spec b c) as [<-|Ne]; [|lia]. assert (E : now t b = now s b) by lia.
        pose proof H as (A' & W & T & P). rewrite E in A'.
        rewrite <- (event_same _ _ _ _ _ A A') in *. clear A' e'. repeat split.
        + intros d v I. apply raised_spec. left. auto.
        + intros f Ef. specialize (T f Ef).
          pose proof (in_flight _ _ _ _ _ _ _ _ one_putter one_taker t R f) as I.
          rewrite <- (one_taker _ _ _ _ A Ef), E in I.
          pose proof (now_grows (@app origin) [] size t b e (putter f)) as Gr.
          pose proof (count_mono blocks (puts_to f) (putter f) _ _ Gr). simpl now in *.
          destruct (queue t f); [congruence|]. simpl length in I. lia.
        + intros f d Ef O D. specialize (P f d Ef O D).
          rewrite (begun_counts _ _ _ _ _ _ _ one_putter t R f) in P.
          rewrite <- (one_putter _ _ _ _ A Ef), E in P. simpl received. unfold one_more.
          destruct (_ && _); lia.
    Qed.

    Lemma waits_tell ws : incl ws (awaits e) -> forall k k', tells k ->
      after_waits x ws k = Some k' -> tells k'.
    Proof.
      induction ws as [|(c, v) ws IH]; intros In_ k k' T H; simpl in H; [now injection H as <-|].
      assert (In_' : incl ws (awaits e)) by (intros y Hy; apply In_; now right).
      destruct (N.eqb_spec v 0) as [|Pos]; [eapply IH; eauto|].
      pose proof (f_history x s F c v ltac:(lia)) as Hist.
      destruct (first_raise v (history_of x c)) as [kc|]; [|discriminate].
      refine (IH In_' _ _ _ H). apply tells_join; auto.
      intros t R L d. destruct (was_done t R L) as (W & _).
      specialize (W c v (In_ _ (or_introl eq_refl))).
      apply (level_spec _ _ _ _ _ _ t R c v ltac:(lia)) in W as (b' & i' & e' & u & Li & A' & I & Le).
      destruct Hist as (i & e'' & u' & _ & A'' & _ & _ & Least & S).
      pose proof (one_raiser _ _ _ _ _ A' I) as ->.
      apply (S t R). destruct (N.lt_ge_cases i' i) as [Lt|]; [|lia].
      specialize (Least i' e' u Lt A' I). lia.
    Qed.

    Lemma message_tells k k' vs : tells k -> after_message x e k = Some (k', vs) ->
      tells k' /\ Forall2 (stands_for ranks) vs (incoming s e).
    Proof.
      unfold after_message, incoming. intros T H. destruct (takes e) as [f|] eqn:E.
      2: { injection H as <- <-. split; auto. }
      destruct (content (fifo_at x f)) as [|(v, kf) l] eqn:C; [discriminate|].
      injection H as <- <-. pose proof (f_content x s F f) as Q. rewrite C in Q.
      split.
      2: { inversion Q as [|? ? ? ? Hv _]; subst. simpl. constructor; [exact Hv|constructor]. }
      apply tells_join; auto. intros t R L c.
      destruct (f_sent x s F f 0%nat v kf) as (i & e' & A & P & Count & S); [now rewrite C|].
      destruct (was_done t R L) as (_ & W & _). specialize (W f E).
      destruct Here as (_ & Ab & _). pose proof (one_taker _ _ _ _ Ab E) as Eb.
      apply (S t R). assert (i < now t (putter f)); [|lia].
      apply (not_yet (puts_to f) _ _ _ e' A P). rewrite Count, <- Eb. simpl. lia.
    Qed.

    Lemma room_tells k k' : tells k -> after_room size room x e k = Some k' -> tells k'.
    Proof.
      unfold after_room. intros T H. destruct (puts e) as [f|] eqn:E; [|now injection H as <-].
      destruct room as [d|] eqn:D in H; [|now injection H as <-].
      destruct (opens size e) eqn:O; [|now injection H as <-].
      destruct (_ <? _ + _); [|discriminate]. destruct (f_counts x s F f) as (B & _).
      destruct (N.ltb_spec (begun_here (fifo_at x f)) d) as [|G];
        [now injection H as <-|].
      destruct (freed (fifo_at x f)) as [|kf l] eqn:Fr;
        [now injection H as <-|]. injection H as <-.
      apply tells_join; auto. intros t R L c.
      destruct (f_freed x s F f d 0%nat kf D) as (i & e' & A & P & Count & S); [now rewrite Fr|].
      destruct (was_done t R L) as (_ & _ & W). specialize (W f d E O D). apply (S t R). assert (i < now t (taker f)); [|lia].
      apply (not_yet (ends_in f) _ _ _ e' A P). rewrite Count.
      destruct Here as (_ & Ab & _).
      rewrite (received_counts _ _ _ _ _ _ _ one_taker t R f) in W.
      rewrite B in G. rewrite (begun_counts _ _ _ _ _ _ _ one_putter s (f_reached x s F) f) in *.
      rewrite <- (one_putter _ _ _ _ Ab E) in *. simpl. lia.
    Qed.

    Lemma waits_met ws k k' : after_waits x ws k = Some k' ->
      forall c v, In (c, v) ws -> v <= level s c.
    Proof.
      revert k. induction ws as [|(d, w) ws IH]; intros k H c v I; [destruct I|]. simpl in H.
      destruct (N.eqb_spec w 0) as [->|Pos].
      - destruct I as [I|I]; [injection I as <- <-; lia|eauto].
      - destruct (first_raise w (history_of x d)) as [kd|] eqn:R; [|discriminate].
        destruct I as [I|I]; [injection I as -> ->|eauto].
        pose proof (f_history x s F c v ltac:(lia)) as Hist. rewrite R in Hist.
        destruct Hist as (i & e' & u & L & A & I & Le & _).
        apply (level_spec _ _ _ _ _ _ s (f_reached x s F) c v ltac:(lia)).
        exists (raiser c), i, e', u. auto.
    Qed.

    Lemma waits_go_on ws k : (forall c v, In (c, v) ws -> v <= level s c) ->
      after_waits x ws k <> None.
    Proof.
      revert k. induction ws as [|(d, w) ws IH]; intros k H; simpl; [discriminate|].
      assert (H' : forall c v, In (c, v) ws -> v <= level s c) by (intros c v I; apply H; now right).
      destruct (N.eqb_spec w 0) as [->|Pos]; [now apply IH|].
      destruct (first_raise w (history_of x d)) as [kd|] eqn:R; [now apply IH|]. exfalso.
      pose proof (f_history x s F d w ltac:(lia)) as Hist. rewrite R in Hist.
      specialize (H d w (or_introl eq_refl)).
      apply (level_spec _ _ _ _ _ _ s (f_reached x s F) d w ltac:(lia)) in H
        as (b' & i & e' & u & L & A & I & Le).
      pose proof (one_raiser _ _ _ _ _ A I) as ->. specialize (Hist i e' u L A I). lia.
    Qed.

    Lemma same_emptiness f : content (fifo_at x f) = [] <-> queue s f = [].
    Proof.
      pose proof (f_content x s F f) as Q. split; intros E; rewrite E in Q; now inversion Q.
    Qed.

    (** What the run does is possible, and what is possible the run does. *)
    Lemma event_ready ka kb va kc : after_waits x (awaits e) k0 = Some ka ->
      after_message x e ka = Some (kb, va) -> after_room size room x e kb = Some kc ->
      ready s b e.
    Proof.
      intros W T P. destruct Here as (_ & A & _). repeat split; auto.
      - intros c v I. eapply waits_met; eauto.
      - intros f E Q. apply same_emptiness in Q. unfold after_message in T.
        rewrite E, Q in T. discriminate.
      - intros f d E O D. unfold after_room in P. rewrite E, D, O in P.
        destruct (f_counts x s F f) as (B & R). rewrite B, R in P.
        destruct (N.ltb_spec (begun s f) (received s f + d)) as [L|]; [exact L|discriminate].
    Qed.

    Lemma ready_goes : ready s b e -> advance size room x b <> None.
    Proof.
      intros (_ & W & T & P). unfold advance. rewrite Stands.
      destruct (after_waits x (awaits e) k0) as [ka|] eqn:Ea; [|now apply waits_go_on in Ea].
      destruct (after_message x e ka) as [(kb & va)|] eqn:Eb.
      2: { exfalso. unfold after_message in Eb. destruct (takes e) as [f|]; [|discriminate].
           destruct (content (fifo_at x f)) as [|(v & k) l] eqn:C; [|discriminate].
           apply same_emptiness in C. now apply (T f). }
      destruct (after_room size room x e kb) as [kc|] eqn:Ec; [discriminate|].
      exfalso. unfold after_room in Ec. destruct (puts e) as [f|]; [|discriminate].
      destruct room as [d|]; [|discriminate]. destruct (opens size e) eqn:O; [|discriminate].
      destruct (f_counts x s F f) as (B & R). rewrite B, R in Ec.
      specialize (P f d eq_refl eq_refl eq_refl).
      destruct (N.ltb_spec (begun s f) (received s f + d)) as [_|]; [|lia].
      destruct (begun s f <? d); [discriminate|].
      destruct (freed (fifo_at x f)); discriminate.
    Qed.
  End OneStep.

  (** ** What changes *)

  Lemma first_raise_after k v c l : forall h,
    first_raise v (match find_at (fold_left (raise_one k) l h) c with Some r => r | None => [] end) =
    match first_raise v (match find_at h c with Some r => r | None => [] end) with
    | Some k' => Some k'
    | None => if existsb (fun r => (fst r =? c) && (v <=? snd r)) l then Some k else None
    end.
  Proof.
    induction l as [|(d, u) l IH]; intros h; simpl.
    - now destruct (first_raise v _).
    - rewrite IH. unfold raise_one at 1. rewrite find_add. simpl fst. simpl snd.
      rewrite (N.eqb_sym d c). destruct (N.eqb_spec c d) as [->|Ne]; simpl; auto.
      destruct (first_raise v _); auto. destruct (v <=? u); simpl; auto.
  Qed.

  Lemma fifo_after x e v k f :
    match find_at (fifos_after size room x e v k) f with Some y => y | None => Fifo [] 0 0 [] end =
    (let y := if is (takes e) f then took size room e k (fifo_at x f) else fifo_at x f in
     if is (puts e) f then sent size room e v k y else y).
  Proof.
    unfold fifos_after, change_fifo, fifo_at.
    destruct (takes e) as [g|]; destruct (puts e) as [h|]; simpl; rewrite ?find_add;
      rewrite ?(N.eqb_sym f); repeat match goal with
      | |- context [?a =? ?b] => destruct (N.eqb_spec a b); subst; simpl
      end; rewrite ?find_add, ?N.eqb_refl; try reflexivity; try congruence.
    all: repeat match goal with
      | |- context [?a =? ?b] => destruct (N.eqb_spec a b); subst; simpl; try congruence
      end; reflexivity.
  Qed.

  Lemma cells_after (v : value) l a : forall m,
    match find_at (fold_left (fun m a => add_at m a v) l m) a with Some w => w | None => None end =
    if existsb (N.eqb a) l then v
    else match find_at m a with Some w => w | None => None end.
  Proof.
    induction l as [|a' l IH]; intros m; simpl; auto. rewrite IH, find_add.
    destruct (N.eqb_spec a a'); simpl; auto. now destruct (existsb _ l).
  Qed.

  Lemma reads_after (p : N * N) l a : forall t,
    writer (touch_at (fold_left (read_by p) l t) a) = writer (touch_at t a) /\
    incl (readers (touch_at t a)) (readers (touch_at (fold_left (read_by p) l t) a)) /\
    (In a l -> In p (readers (touch_at (fold_left (read_by p) l t) a))).
  Proof.
    induction l as [|a' l IH]; intros t; simpl; [split; [auto|split; [apply incl_refl|tauto]]|].
    destruct (IH (read_by p t a')) as (W & R & I).
    assert (E : touch_at (read_by p t a') a =
      if a =? a' then Touched (writer (touch_at t a')) (p :: readers (touch_at t a')) else touch_at t a).
    { unfold touch_at at 1, read_by. rewrite find_add. now destruct (a =? a'). }
    rewrite E in *. destruct (N.eqb_spec a a') as [->|Ne]; simpl in *.
    - split; [exact W|]. split; [|intros _; apply R; now left].
      intros y Hy. apply R. now right.
    - split; [exact W|]. split; [exact R|]. intros [H|H]; [congruence|auto].
  Qed.

  Lemma writes_after (p : N * N) l a : forall t,
    touch_at (fold_left (written_by p) l t) a =
    if existsb (N.eqb a) l then Touched (Some p) [] else touch_at t a.
  Proof.
    induction l as [|a' l IH]; intros t; simpl; auto. rewrite IH.
    unfold touch_at at 1 2, written_by. rewrite find_add.
    destruct (N.eqb_spec a a'); simpl; destruct (existsb _ l); auto.
  Qed.

  (** ** One event *)

  Section Step.
    Variables (x : run_state) (s : state (list origin)) (b : N) (e : event).
    Variables (more : list event) (n : N) (k0 k1 k2 k3 : clock) (vs : list value).
    Hypothesis F : follows x s.
    Hypothesis Stands : find_at (standings x) b = Some (Standing (e :: more) n k0).
    Hypothesis Waited : after_waits x (awaits e) k0 = Some k1.
    Hypothesis Took : after_message x e k1 = Some (k2, vs).
    Hypothesis Room : after_room size room x e k2 = Some k3.

    Let k := add_at k3 b (n + 1).
    Let v := fold_right add_values (Some []) (map (cell x) (reads e) ++ vs).

    Lemma step_ready : ready s b e.
    Proof. eapply event_ready; eauto. Qed.

    Lemma step_reached : reached (next s b e).
    Proof. constructor; [apply (f_reached x s F)|apply step_ready]. Qed.

    Lemma step_number : n = now s b.
    Proof. now destruct (f_standing x s F b _ Stands) as (D & _). Qed.

    Lemma step_event : event_at b (now s b) e.
    Proof. apply step_ready. Qed.

    Lemma step_tells : tells s b k3.
    Proof.
      apply (room_tells x s b e more n k0 F Stands k2); auto.
      apply (message_tells x s b e more n k0 F Stands k1 k2 vs); auto.
      apply (waits_tell x s b e more n k0 F Stands (awaits e) (incl_refl _) k0); auto.
      now apply (tells_own x s b e more n k0 F Stands).
    Qed.

    Lemma step_sound : sound b (now s b + 1) k.
    Proof.
      intros t R L c. unfold k. rewrite known_add, step_number.
      destruct (N.eqb_spec c b) as [->|]; [exact L|]. apply step_tells; auto. lia.
    Qed.

    Lemma step_value : stands_for ranks v (total (@app origin) [] s e).
    Proof.
      apply sum_stands. apply Forall2_app.
      - induction (reads e) as [|a l IH]; simpl; constructor; auto. apply (f_cells x s F).
      - apply (message_tells x s b e more n k0 F Stands k1 k2 vs); auto.
        apply (waits_tell x s b e more n k0 F Stands (awaits e) (incl_refl _) k0); auto.
        now apply (tells_own x s b e more n k0 F Stands).
    Qed.

    (** If the run had a clock for it, that access comes first. *)
    Lemma knows_first w : knows_of k3 w = true -> comes_first w (b, now s b).
    Proof.
      intros H t R L. unfold knows_of in H. apply N.ltb_lt in H. simpl in L.
      pose proof (step_tells t R L (fst w)). lia.
    Qed.

    Lemma first_itself p : comes_first p p.
    Proof. intros t _ L. exact L. Qed.

    Lemma first_trans p q r : comes_first p q -> comes_first q r -> comes_first p r.
    Proof. intros H H' t R L. auto. Qed.

    Let fine := forallb (may_read (touches x) k3) (reads e) &&
                forallb (may_write (touches x) k3) (writes e).

    Let touches' := fold_left (written_by (b, n)) (writes e)
                      (fold_left (read_by (b, n)) (reads e) (touches x)).

    (** What was done to a chunk before, which this event touches, comes first. *)
    Lemma step_conflicts : raced x = false -> fine = true ->
      forall c j e' a, j < now s c -> event_at c j e' ->
      (In a (writes e) -> In a (writes e') \/ In a (reads e') -> comes_first (c, j) (b, now s b)) /\
      (In a (reads e) -> In a (writes e') -> comes_first (c, j) (b, now s b)).
    Proof.
      intros Ok Fine c j e' a L A. apply andb_true_iff in Fine as [Fr Fw].
      rewrite forallb_forall in Fr, Fw.
      destruct (f_touched x s F Ok c j e' a L A) as (Wr & Rd).
      assert (ByWriter : may_read (touches x) k3 a = true ->
        (exists w, writer (touch_at (touches x) a) = Some w /\ comes_first (c, j) w) ->
        comes_first (c, j) (b, now s b)).
      { intros M (w & E & Fi). unfold may_read in M. rewrite E in M.
        apply first_trans with w; auto. now apply knows_first. }
      split.
      - intros I O. specialize (Fw a I). unfold may_write in Fw.
        apply andb_true_iff in Fw as [M Fo]. rewrite forallb_forall in Fo.
        destruct O as [O|O]; [auto|]. destruct (Rd O) as [Is|]; auto.
        now apply knows_first, Fo.
      - intros I O. specialize (Fr a I). auto.
    Qed.

    Lemma follows_step : follows
      (RunState
        (add_at (standings x) b (Standing more (n + 1) k))
        (fold_left (fun m a => add_at m a v) (writes e) (cells x))
        (fifos_after size room x e v k)
        (fold_left (raise_one k) (raises e) (histories x))
        touches'
        (raced x || negb fine)) (next s b e).
    Proof.
      pose proof step_event as A. pose proof step_number as En.
      pose proof step_reached as R'. pose proof (f_reached x s F) as R.
      pose proof (one_putter b (now s b) e) as Pe. pose proof (one_taker b (now s b) e) as Te.
      assert (Fifo : forall f, fifo_at (RunState
        (add_at (standings x) b (Standing more (n + 1) k))
        (fold_left (fun m a => add_at m a v) (writes e) (cells x))
        (fifos_after size room x e v k)
        (fold_left (raise_one k) (raises e) (histories x))
        touches' (raced x || negb fine)) f =
        (let y := if is (takes e) f then took size room e k (fifo_at x f) else fifo_at x f in
         if is (puts e) f then sent size room e v k y else y))
        by (intros f; apply fifo_after).
      constructor; simpl raced; simpl touches.
      - exact R'.
      - (* standing *)
        intros c st. simpl standings. rewrite find_add. simpl now.
        destruct (N.eqb_spec c b) as [->|Ne].
        + intros E. injection E as <-. simpl.
          destruct (f_standing x s F b _ Stands) as (_ & Re & _). simpl in Re. symmetry in Re.
          apply skipn_cons in Re as (_ & Re).
          split; [lia|]. split; [|apply step_sound].
          replace (N.to_nat (now s b + 1)) with (Datatypes.S (N.to_nat (now s b))) by lia. auto.
        + intros E. apply (f_standing x s F c st E).
      - (* all *)
        intros c. simpl standings. rewrite find_add.
        destruct (N.eqb_spec c b); [discriminate|]. apply (f_all x s F).
      - (* cells *)
        intros a. unfold cell. simpl cells. rewrite cells_after. simpl memory.
        destruct (existsb (N.eqb a) (writes e)); [apply step_value|apply (f_cells x s F)].
      - (* counts *)
        intros f. rewrite Fifo. destruct (f_counts x s F f) as (B & C). simpl begun. simpl received.
        unfold one_more. destruct (is (takes e) f), (is (puts e) f); simpl; rewrite ?B, ?C;
          unfold one_more; auto.
      - (* content *)
        intros f. rewrite Fifo. pose proof (f_content x s F f) as Q. simpl queue.
        assert (Q' : Forall2 (fun v l => stands_for ranks (fst v) l)
          (if is (takes e) f then tl (content (fifo_at x f)) else content (fifo_at x f))
          (if is (takes e) f then tl (queue s f) else queue s f)).
        { destruct (is (takes e) f); auto. inversion Q; simpl; auto. }
        destruct (is (takes e) f), (is (puts e) f); simpl; rewrite ?app_nil_r; auto.
        all: apply Forall2_app; auto; repeat constructor; apply step_value.
      - (* sent *)
        intros f j w kw. rewrite Fifo. intros H.
        set (before := if is (takes e) f then tl (content (fifo_at x f)) else content (fifo_at x f)).
        assert (H' : nth_error (before ++ if is (puts e) f then [(v, k)] else []) j = Some (w, kw)).
        { revert H. unfold before. destruct (is (takes e) f), (is (puts e) f); simpl;
            rewrite ?app_nil_r; auto. }
        assert (Count : counted (takes_from f) (taker f) (now (next s b e) (taker f)) =
          counted (takes_from f) (taker f) (now s (taker f)) + if is (takes e) f then 1 else 0).
        { apply (counts_next (@app origin) [] blocks size room (takes_from f)); [apply step_ready|].
          intros b' i e' A' T'. apply is_true in T'. eauto. }
        assert (Old : forall i w kw, nth_error before i = Some (w, kw) ->
          exists j, nth_error (content (fifo_at x f)) j = Some (w, kw) /\
            N.of_nat j = N.of_nat i + if is (takes e) f then 1 else 0).
        { unfold before. intros i w' kw' Hn. destruct (is (takes e) f).
          - exists (Datatypes.S i). split; [|lia].
            destruct (content (fifo_at x f)); [now destruct i|exact Hn].
          - exists i. split; [exact Hn|lia]. }
        destruct (le_lt_dec (length before) j) as [G|L].
        + rewrite nth_error_app2 in H' by exact G.
          destruct (is (puts e) f) eqn:P; [|now destruct (j - length before)%nat].
          assert (J : (j - length before = 0)%nat).
          { destruct (j - length before)%nat as [|m]; auto. now destruct m. }
          rewrite J in H'. simpl in H'. injection H' as <- <-.
          apply is_true in P. pose proof (Pe f A P) as Eb.
          exists (now s b), e. rewrite <- Eb. split; [exact A|]. split; [now apply is_true|].
          split; [|apply step_sound]. rewrite Count.
          pose proof (in_flight _ _ _ _ _ _ _ _ one_putter one_taker s R f) as In_.
          rewrite <- Eb in In_. rewrite <- In_.
          assert (Len : length (content (fifo_at x f)) = length (queue s f)).
          { pose proof (f_content x s F f) as Q. clear - Q. induction Q; simpl; auto. }
          assert (J' : j = length before) by lia. rewrite J'. unfold before.
          destruct (is (takes e) f) eqn:T; [|lia].
          assert (queue s f <> []) by (apply step_ready; now apply is_true).
          destruct (content (fifo_at x f)); simpl in Len |- *; [|lia].
          destruct (queue s f); [congruence|discriminate].
        + rewrite nth_error_app1 in H' by exact L.
          destruct (Old j w kw H') as (i & Hi & Ei).
          destruct (f_sent x s F f i w kw Hi) as (i' & e' & A' & P' & C' & So').
          exists i', e'. split; [exact A'|]. split; [exact P'|]. split; [|exact So'].
          rewrite C', Count. lia.
      - (* room *)
        intros f d D. rewrite Fifo. pose proof (f_room x s F f d D) as L.
        destruct (f_counts x s F f) as (B & C).
        simpl begun. simpl received. unfold one_more.
        assert (Have : is (puts e) f && opens size e = true -> begun s f < received s f + d).
        { intros P. apply andb_true_iff in P as [P O]. apply is_true in P.
          apply (proj2 (proj2 (proj2 step_ready)) f d P O D). }
        destruct (is (takes e) f) eqn:T, (is (puts e) f) eqn:P; simpl in *; rewrite ?D; simpl.
        + destruct (opens size e) eqn:O, (closes size e); simpl; rewrite ?B;
            try specialize (Have eq_refl);
            destruct (N.ltb_spec (begun s f) d); simpl; rewrite ?app_length; simpl length; try lia.
          all: destruct (freed (fifo_at x f)); cbn [length tl app] in *;
            rewrite ?app_length; cbn [length]; lia.
        + destruct (closes size e); rewrite ?app_length; simpl length; lia.
        + destruct (opens size e) eqn:O; simpl; rewrite ?B; try specialize (Have eq_refl);
            destruct (N.ltb_spec (begun s f) d); simpl; try lia.
          all: destruct (freed (fifo_at x f)); cbn [length tl] in *; lia.
        + exact L.
      - (* freed *)
        intros f d j kj D. rewrite Fifo. intros H.
        pose proof (f_room x s F f d D) as L. destruct (f_counts x s F f) as (B & C).
        set (before := if is (takes e) f && closes size e then freed (fifo_at x f) ++ [k]
                       else freed (fifo_at x f)).
        set (popped := is (puts e) f && opens size e && negb (begun s f <? d)).
        assert (Have : popped = true -> freed (fifo_at x f) <> []).
        { unfold popped. intros P. apply andb_true_iff in P as [P Le].
          apply andb_true_iff in P as [P O]. apply is_true in P.
          pose proof (proj2 (proj2 (proj2 step_ready)) f d P O D).
          destruct (N.ltb_spec (begun s f) d); [discriminate|].
          intros E. rewrite E in L. simpl in L. lia. }
        assert (H' : nth_error (if popped then tl before else before) j = Some kj).
        { revert H. unfold before, popped. clear Have.
          destruct (is (takes e) f), (is (puts e) f); simpl; rewrite ?D; simpl; rewrite ?B;
            destruct (closes size e), (opens size e); simpl; auto;
            destruct (begun s f <? d); simpl; auto. }
        assert (New : begun (next s b e) f - d =
          (begun s f - d) + if popped then 1 else 0).
        { simpl begun. unfold popped, one_more.
          destruct (is (puts e) f), (opens size e); simpl; try lia.
          destruct (N.ltb_spec (begun s f) d); simpl; lia. }
        assert (At : exists i, nth_error before i = Some kj /\
          N.of_nat i = N.of_nat j + if popped then 1 else 0).
        { destruct popped eqn:P.
          - exists (Datatypes.S j). split; [|lia]. specialize (Have eq_refl).
            destruct before; [now destruct j|exact H'].
          - exists j. split; [exact H'|lia]. }
        destruct At as (i & Hi & Ei). rewrite New.
        assert (Cases : nth_error (freed (fifo_at x f)) i = Some kj \/
          is (takes e) f && closes size e = true /\ kj = k /\ i = length (freed (fifo_at x f))).
        { unfold before in Hi. destruct (is (takes e) f && closes size e) eqn:T; [|now left].
          destruct (le_lt_dec (length (freed (fifo_at x f))) i) as [G|Lt].
          - rewrite nth_error_app2 in Hi by exact G.
            destruct (i - length (freed (fifo_at x f)))%nat as [|m] eqn:M.
            + simpl in Hi. injection Hi as <-. right. repeat split; auto. lia.
            + simpl in Hi. now destruct m.
          - left. now rewrite nth_error_app1 in Hi by exact Lt. }
        destruct Cases as [Old|(T & -> & Len)].
        + destruct (f_freed x s F f d i kj D Old) as (i' & e' & A' & P' & C' & So').
          exists i', e'. split; [exact A'|]. split; [exact P'|]. split; [|exact So'].
          rewrite C'. lia.
        + pose proof T as T'. apply andb_true_iff in T' as [T' _]. apply is_true in T'.
          pose proof (Te f A T') as Eb. exists (now s b), e. rewrite <- Eb.
          split; [exact A|]. split; [exact T|]. split; [|apply step_sound].
          pose proof (received_counts _ _ _ _ _ _ _ one_taker s R f) as Rc.
          rewrite <- Eb in Rc. rewrite <- Rc. lia.
      - (* history *)
        intros c w Pos. unfold history_of. simpl histories. rewrite first_raise_after.
        pose proof (f_history x s F c w Pos) as H. unfold history_of in H.
        destruct (first_raise w _) as [kw|].
        + destruct H as (i & e' & u & L & A' & I & Le & Least & So).
          exists i, e', u. split; [|auto]. pose proof (now_grows (@app origin) [] size s b e (raiser c)). lia.
        + destruct (existsb _ (raises e)) eqn:Ex.
          * apply existsb_exists in Ex as ((c' & u) & I & E). simpl in E.
            apply andb_true_iff in E as [E Le]. apply N.eqb_eq in E. subst c'. apply N.leb_le in Le.
            pose proof (one_raiser _ _ _ _ _ A I) as Eb. rewrite <- Eb in *.
            exists (now s b), e, u. split; [simpl; rewrite N.eqb_refl; lia|].
            split; [exact A|]. split; [exact I|]. split; [exact Le|].
            split; [|apply step_sound]. intros i' e' u' L A' I'. now apply (H i' e').
          * intros i e' u L A' I. simpl now in L.
            destruct (N.eqb_spec (raiser c) b) as [Eb|Ne]; [|now apply (H i e')].
            destruct (N.eq_dec i (now s b)) as [->|Ni].
            -- rewrite Eb in A'. rewrite (event_same _ _ _ _ _ A' A) in I.
               destruct (N.lt_ge_cases u w) as [|G]; auto. exfalso.
               assert (existsb (fun r => (fst r =? c) && (w <=? snd r)) (raises e) = true); [|congruence].
               apply existsb_exists. exists (c, u). split; auto. simpl.
               rewrite N.eqb_refl. now apply N.leb_le.
            -- apply (H i e'); auto. rewrite Eb. lia.
      - (* touched *)
        intros Ok c j e' a L A'. apply orb_false_iff in Ok as [Ok Fine].
        apply negb_false_iff in Fine.
        assert (Touch : touch_at touches' a =
          if existsb (N.eqb a) (writes e) then Touched (Some (b, n)) []
          else touch_at (fold_left (read_by (b, n)) (reads e) (touches x)) a)
          by apply writes_after.
        destruct (reads_after (b, n) (reads e) a (touches x)) as (Wr & Rd & Me).
        rewrite Touch. simpl now in L.
        assert (New : (c = b /\ j = now s b) \/ j < now s c).
        { destruct (N.eqb_spec c b) as [->|]; [|now right].
          destruct (N.eq_dec j (now s b)); [now left|right; lia]. }
        destruct New as [(-> & ->)|Before].
        + rewrite (event_same _ _ _ _ _ A' A). clear e' A'. split; intros I.
          * apply written in I. rewrite I. exists (b, n). split; auto. rewrite En. apply first_itself.
          * destruct (existsb (N.eqb a) (writes e)) eqn:W; [|left; rewrite <- En; apply Me, I].
            right. exists (b, n). split; auto. rewrite En. apply first_itself.
        + destruct (existsb (N.eqb a) (writes e)) eqn:W.
          * apply written in W. destruct (step_conflicts Ok Fine c j e' a Before A') as (C & _).
            split; intros I; [|right]; exists (b, n); (split; [auto|]); rewrite En; auto.
          * destruct (f_touched x s F Ok c j e' a Before A') as (Wr' & Rd'). rewrite Wr.
            split; intros I; [auto|]. destruct (Rd' I) as [|]; auto.
      - (* ordered *)
        intros Ok c i ec c' j ec' L L' A1 A2 C. apply orb_false_iff in Ok as [Ok Fine].
        apply negb_false_iff in Fine. simpl now in L, L'.
        assert (Split : forall c j, j < (if c =? b then now s b + 1 else now s c) ->
          (c = b /\ j = now s b) \/ j < now s c).
        { intros d m Hm. destruct (N.eqb_spec d b) as [->|]; [|now right].
          destruct (N.eq_dec m (now s b)); [now left|right; lia]. }
        apply Split in L, L'.
        destruct L as [(-> & ->)|L], L' as [(-> & ->)|L'].
        + left. apply first_itself.
        + right. rewrite (event_same _ _ _ _ _ A1 A) in C.
          destruct C as (a & [(Wa & [Wb|Rb])|(Wb & Ra)]);
            destruct (step_conflicts Ok Fine c' j ec' a L' A2) as (H1 & H2); auto.
        + left. rewrite (event_same _ _ _ _ _ A2 A) in C.
          destruct C as (a & [(Wa & [Wb|Rb])|(Wb & Ra)]);
            destruct (step_conflicts Ok Fine c i ec a L A1) as (H1 & H2); auto.
        + apply (f_ordered x s F Ok c i ec c' j ec' L L' A1 A2 C).
    Qed.
  End Step.

  Theorem advance_follows x s b x' : follows x s -> advance size room x b = Some x' ->
    exists e, ready s b e /\ follows x' (next s b e).
  Proof.
    intros F H. unfold advance in H.
    destruct (find_at (standings x) b) as [[[|e more] n k0]|] eqn:St; try discriminate.
    destruct (after_waits x (awaits e) k0) as [k1|] eqn:W; [|discriminate].
    destruct (after_message x e k1) as [(k2 & vs)|] eqn:T; [|discriminate].
    destruct (after_room size room x e k2) as [k3|] eqn:P; [|discriminate].
    injection H as <-. exists e. split.
    - now apply (step_ready x s b e more n k0 k1 k2 k3 vs).
    - now apply (follows_step x s b e more n k0 k1 k2 k3 vs).
  Qed.
End Follows.

(** * A whole run *)

Section WholeRun.
  Variables (size : N) (room : option N).

  (** Block [b] as far as it gets; [fuel] is as long as what is left of it. *)
  Fixpoint run_block (fuel : list event) (x : run_state) (b : N) : run_state :=
    match fuel with
    | [] => x
    | _ :: fuel =>
        match advance size room x b with Some x' => run_block fuel x' b | None => x end
    end.

  Definition rest_of (x : run_state) (b : N) : list event :=
    match find_at (standings x) b with Some st => rest st | None => [] end.

  Definition sweep (bs : list N) (x : run_state) : run_state :=
    fold_left (fun x b => run_block (rest_of x b) x b) bs x.

  Definition waits_here (x : run_state) (b : N) : bool :=
    match advance size room x b with Some _ => false | None => true end.

  Definition unfinished (x : run_state) (b : N) : bool :=
    match rest_of x b with [] => false | _ => true end.

  (** Sweeps over the blocks until none of them can go on. *)
  Fixpoint sweeps (fuel : list event) (bs : list N) (x : run_state) : run_state :=
    match fuel with
    | [] => x
    | _ :: fuel =>
        let x' := sweep bs x in
        let left := filter (unfinished x') bs in
        if forallb (waits_here x') left then x' else sweeps fuel left x'
    end.
End WholeRun.

(** The blocks in their order from number [i] on. *)
Fixpoint at_start (i : N) (bs : list (list event)) (m : PM.t standing) : PM.t standing :=
  match bs with
  | [] => m
  | l :: bs => at_start (i + 1) bs (add_at m i (Standing l 0 (PM.empty N)))
  end.

Definition input_cells (p : program) : PM.t value :=
  fold_right (fun row m => add_at m (fst row) (Some [number_of (ranks p) (fst (snd row)) (snd (snd row))]))
    (PM.empty value) (inputs p).

Definition start_of (p : program) : run_state :=
  RunState (at_start 0 (code p) (PM.empty standing)) (input_cells p)
    (PM.empty fifo) (PM.empty (list (N * clock))) (PM.empty touched) false.

Inductive outcome := Ended (x : run_state) | Halted | Unsure.

Definition blocks_of (p : program) : list N := range (N.of_nat (length (code p))).

Definition execute (p : program) (size : N) (room : option N) : outcome :=
  let code := code p in
  let bs := range (N.of_nat (length code)) in
  let x := sweeps size room (concat code) bs
             (RunState (at_start 0 code (PM.empty standing)) (input_cells p)
               (PM.empty fifo) (PM.empty (list (N * clock))) (PM.empty touched) false) in
  if forallb (fun b => negb (unfinished x b)) bs then Ended x
  else if forallb (waits_here size room x) bs then Halted else Unsure.

(** * What has to hold before anything runs *)

(** Block [b] is the one that has the keys [l]; [None] if another one has one of them. *)
Fixpoint own (b : N) (l : list N) (m : PM.t N) : option (PM.t N) :=
  match l with
  | [] => Some m
  | f :: l =>
      match find_at m f with
      | None => own b l (add_at m f b)
      | Some b' => if b' =? b then own b l m else None
      end
  end.

Fixpoint owners (i : N) (key : event -> list N) (bs : list (list event)) (m : PM.t N) : option (PM.t N) :=
  match bs with
  | [] => Some m
  | l :: bs => match own i (flat_map key l) m with
               | Some m' => owners (i + 1) key bs m'
               | None => None
               end
  end.

Definition owned (p : program) (key : event -> list N) : bool :=
  match owners 0 key (code p) (PM.empty N) with Some _ => true | None => false end.

Definition note_message (size : N) (key : event -> option N) (m : PM.t (list (bool * bool))) (e : event) :=
  match key e with
  | Some f => add_at m f ((opens size e, closes size e) ::
                          match find_at m f with Some l => l | None => [] end)
  | None => m
  end.

Definition all_messages (size : N) (key : event -> option N) (p : program) :=
  fold_left (note_message size key) (concat (code p)) (PM.empty (list (bool * bool))).

Definition same_flags (x y : bool * bool) : bool := eqb (fst x) (fst y) && eqb (snd x) (snd y).

Fixpoint same_list {A} (same : A -> A -> bool) (l l' : list A) : bool :=
  match l, l' with
  | [], [] => true
  | a :: l, a' :: l' => same a a' && same_list same l l'
  | _, _ => false
  end.

Definition messages_match (p : program) (size : N) : bool :=
  PM.equal (same_list same_flags) (all_messages size puts p) (all_messages size takes p).

Definition areas_apart (x : step) : bool :=
  forallb (fun t => forallb (fun a => (t =? a) || (t + count x <=? a) || (a + count x <=? t))
                      (sources x ++ targets x)) (targets x).

Definition want_formed (p : program) (w : want) : bool :=
  match w with Of_all _ => true | Of_one r _ => r <? ranks p end.

Definition formed (p : program) (sizes : list N) : bool :=
  forallb (fun row => fst (snd row) <? ranks p) (inputs p) &&
  forallb (forallb (fun row => want_formed p (snd row))) (demands p) &&
  forallb (forallb areas_apart) (steps p) &&
  owned p (fun e => listed (puts e)) &&
  owned p (fun e => listed (takes e)) &&
  owned p (fun e => map fst (raises e)) &&
  forallb (messages_match p) sizes.

(** * The decision *)

Definition numbers_wanted (p : program) (w : want) : list N :=
  match w with
  | Of_all c => map (fun r => number_of (ranks p) r c) (range (ranks p))
  | Of_one r c => [number_of (ranks p) r c]
  end.

Definition holds (p : program) (x : run_state) (row : N * want) : bool :=
  match cell x (fst row) with
  | Some l => same_list N.eqb l (numbers_wanted p (snd row))
  | None => false
  end.

(** Surely not what is wanted. *)
Definition fails (p : program) (x : run_state) (row : N * want) : bool :=
  match cell x (fst row) with
  | None => true
  | Some l =>
      let wanted := numbers_wanted p (snd row) in
      negb (length l =? length wanted)%nat ||
      existsb (fun n => negb (existsb (N.eqb n) l)) wanted
  end.

Definition good (p : program) (x : run_state) : bool :=
  negb (raced x) && existsb (forallb (holds p x)) (demands p).

Definition ends_well (p : program) (size : N) (room : option N) : bool :=
  match execute p size room with Ended x => good p x | _ => false end.

(** How a program ends: as far as this run shows, with something else than is wanted, or never. *)
Inductive ending := Ends | Ends_wrong | Hangs | Open.

Definition ending_of (p : program) (depth : option N) (size : N) : N * ending :=
  (size, match execute p size depth with
         | Ended x => if forallb (existsb (fails p x)) (demands p) then Ends_wrong else Ends
         | Halted => Hangs
         | Unsure => Open
         end).

(** [Right true]: only because FIFOs have no more room than was said. *)
Inductive answer := Right (by_slots : bool) | Hanging (size : N) | Wrong (size : N) | Unknown.

Definition more_slots (depth : option N) (extra : N) : option N :=
  option_map (fun d => d + extra) depth.

(** The chunks of a step as steps of their own, the last one first. *)
Definition last_chunk_first (x : step) : list step :=
  if count x <=? 1 then [x]
  else map (fun i =>
      Step 1 (map (N.add i) (sources x)) (map (N.add i) (targets x)) (receives x) (sends x)
        (if i + 1 =? count x then waits x else []) (if i =? 0 then signals x else []))
    (rev (range (count x))).

(** The program in which every step moves its last chunk first. *)
Definition backwards (p : program) : program :=
  Program (map (flat_map last_chunk_first) (steps p)) (ranks p) (inputs p) (demands p).

(** Messages of this size hold whatever step there is. *)
Definition whole_steps : N := 2 ^ 40.

(** Where chunks of a message may overtake each other: both ends have the same steps, and all goes
    well backwards, too. *)
Definition goes_backwards (p : program) : bool :=
  messages_match p whole_steps && formed (backwards p) [1] && ends_well (backwards p) 1 None.

(** A program, for messages of so many chunks, and FIFOs of [depth] up to [depth + extra] messages;
    [overtaking]: whether chunks of a message may overtake each other. *)
Definition decide (p : program) (sizes : list N) (depth : option N) (extra : N) (overtaking : bool)
    : answer :=
  if negb (formed p sizes) then Unknown
  else
    let endings := map (ending_of p depth) sizes in
    match find (fun e => match snd e with Hangs => true | _ => false end) endings with
    | Some (size, _) => Hanging size
    | None =>
        match find (fun e => match snd e with Ends_wrong => true | _ => false end) endings with
        | Some (size, _) => Wrong size
        | None =>
            if negb (forallb (fun e => match snd e with Ends => true | _ => false end) endings)
            then Unknown
            else if overtaking && negb (goes_backwards p) then Unknown
            else if ends_well p 1 None then Right false
            else if negb overtaking &&
                    forallb (fun size => ends_well p size (more_slots depth extra)) sizes
            then Right true
            else Unknown
        end
    end.

(** * Proofs *)

Lemma same_list_true {A} (same : A -> A -> bool) :
  (forall a b, same a b = true -> a = b) -> forall l l', same_list same l l' = true -> l = l'.
Proof.
  intros H. induction l as [|a l IH]; intros [|a' l'] E; simpl in E; try discriminate; auto.
  apply andb_true_iff in E as [E E']. f_equal; auto.
Qed.

Lemma same_flags_true x y : same_flags x y = true -> x = y.
Proof.
  destruct x, y. unfold same_flags. simpl. intros H. apply andb_true_iff in H as [A B].
  apply eqb_prop in A, B. congruence.
Qed.

Lemma own_spec b l : forall m m', own b l m = Some m' ->
  (forall f, In f l -> find_at m' f = Some b) /\
  (forall f c, find_at m f = Some c -> find_at m' f = Some c).
Proof.
  induction l as [|g l IH]; intros m m' H; simpl in H.
  - injection H as <-. split; auto. intros f [].
  - destruct (find_at m g) as [b'|] eqn:E.
    + destruct (N.eqb_spec b' b) as [->|]; [|discriminate]. destruct (IH _ _ H) as (I & K).
      split; auto. intros f [<-|Hf]; auto.
    + destruct (IH _ _ H) as (I & K). split.
      * intros f [<-|Hf]; auto. apply K. rewrite find_add. now rewrite N.eqb_refl.
      * intros f c Hf. apply K. rewrite find_add. destruct (N.eqb_spec f g); [congruence|auto].
Qed.

Lemma owners_spec key bs : forall i m m', owners i key bs m = Some m' ->
  (forall b l e f, nth_error bs b = Some l -> In e l -> In f (key e) ->
     find_at m' f = Some (i + N.of_nat b)) /\
  (forall f c, find_at m f = Some c -> find_at m' f = Some c).
Proof.
  induction bs as [|l bs IH]; intros i m m' H; simpl in H.
  - injection H as <-. split; auto. intros [|b]; discriminate.
  - destruct (own i (flat_map key l) m) as [m1|] eqn:E; [|discriminate].
    destruct (own_spec _ _ _ _ E) as (I & K), (IH _ _ _ H) as (I' & K'). split; [|auto].
    intros [|b] l' e f Hb He Hf; simpl in Hb.
    + injection Hb as ->. rewrite N.add_0_r. apply K', I, in_flat_map. eauto.
    + rewrite (I' b l' e f Hb He Hf). f_equal. lia.
Qed.

Lemma owned_spec p key : owned p key = true -> exists owner : N -> N,
  forall b i e f, event_at (code p) b i e -> In f (key e) -> b = owner f.
Proof.
  unfold owned. destruct (owners 0 key (code p) (PM.empty N)) as [m|] eqn:E; [|discriminate].
  intros _. exists (fun f => match find_at m f with Some b => b | None => 0 end).
  intros b i e f A I. unfold event_at in A.
  destruct (nth_error (code p) (N.to_nat b)) as [l|] eqn:B.
  - apply owners_spec in E as (H & _). rewrite (nth_error_nth _ _ _ B) in A.
    rewrite (H _ _ e f B); [lia| |exact I]. now apply nth_error_In in A.
  - apply nth_error_None in B. rewrite nth_overflow in A by exact B. now destruct (N.to_nat i).
Qed.

Lemma notes_spec size key f l : forall m,
  match find_at (fold_left (note_message size key) l m) f with Some r => r | None => [] end =
  rev (map (fun e => (opens size e, closes size e)) (filter (fun e => is (key e) f) l))
  ++ match find_at m f with Some r => r | None => [] end.
Proof.
  induction l as [|e l IH]; intros m; simpl; auto. rewrite IH. unfold note_message.
  destruct (key e) as [g|]; simpl; auto. rewrite find_add, N.eqb_sym.
  destruct (N.eqb_spec g f) as [->|]; simpl; auto. now rewrite <- app_assoc.
Qed.

Lemma messages_match_spec p size : messages_match p size = true -> forall f,
  messages size (fun e => is (puts e) f) p = messages size (fun e => is (takes e) f) p.
Proof.
  intros H f. unfold messages_match in H. apply PM.equal_2 in H. destruct H as (Keys & Same).
  assert (E : match find_at (all_messages size puts p) f with Some r => r | None => [] end =
              match find_at (all_messages size takes p) f with Some r => r | None => [] end).
  { specialize (Keys (N.succ_pos f)). unfold find_at.
    destruct (PM.find (N.succ_pos f) (all_messages size puts p)) as [r|] eqn:E.
    - destruct (PM.find (N.succ_pos f) (all_messages size takes p)) as [r'|] eqn:E'.
      + apply (same_list_true same_flags same_flags_true).
        apply (Same (N.succ_pos f)); now apply PM.find_2.
      + exfalso. assert (I : PM.In (N.succ_pos f) (all_messages size puts p))
          by (exists r; now apply PM.find_2).
        apply Keys in I as [r' I]. apply PM.find_1 in I. congruence.
    - destruct (PM.find (N.succ_pos f) (all_messages size takes p)) as [r'|] eqn:E'; auto.
      exfalso. assert (I : PM.In (N.succ_pos f) (all_messages size takes p))
        by (exists r'; now apply PM.find_2).
      apply Keys in I as [r I]. apply PM.find_1 in I. congruence. }
  unfold all_messages in E. rewrite !notes_spec, find_empty, !app_nil_r in E.
  apply (f_equal (@rev _)) in E. rewrite !rev_involutive in E. exact E.
Qed.

Lemma areas_apart_spec x : areas_apart x = true -> apart x.
Proof.
  unfold areas_apart, apart. rewrite forallb_forall. intros H t a Ht Ha. specialize (H t Ht).
  rewrite forallb_forall in H. specialize (H a Ha).
  rewrite !orb_true_iff, N.eqb_eq, !N.leb_le in H. tauto.
Qed.

Lemma at_start_spec bs : forall i m b, find_at (at_start i bs m) b =
  if (i <=? b) && (b <? i + N.of_nat (length bs))
  then Some (Standing (nth (N.to_nat (b - i)) bs []) 0 (PM.empty N)) else find_at m b.
Proof.
  induction bs as [|l bs IH]; intros i m b; simpl at_start; simpl length.
  - destruct (N.leb_spec i b), (N.ltb_spec b (i + N.of_nat 0)); simpl; auto. lia.
  - rewrite IH, find_add.
    destruct (N.leb_spec (i + 1) b), (N.ltb_spec b (i + 1 + N.of_nat (length bs))),
      (N.leb_spec i b), (N.ltb_spec b (i + N.of_nat (S (length bs)))); simpl; try lia;
      destruct (N.eqb_spec b i); try lia; auto.
    + replace (N.to_nat (b - i)) with (S (N.to_nat (b - (i + 1)))) by lia. reflexivity.
    + subst. now rewrite N.sub_diag.
Qed.

Lemma start_spec bs b : find_at (at_start 0 bs (PM.empty standing)) b =
  if b <? N.of_nat (length bs)
  then Some (Standing (nth (N.to_nat b) bs []) 0 (PM.empty N)) else None.
Proof.
  rewrite at_start_spec, find_empty, N.sub_0_r, N.add_0_l.
  destruct (N.leb_spec 0 b); [reflexivity|lia].
Qed.

Definition starts (p : program) (a : N) : list origin :=
  match input_at p a with Some (r, c) => [Input r c] | None => [Junk a] end.

Lemma number_origin ranks r c : r < ranks -> origin_of ranks (number_of ranks r c) = Input r c.
Proof.
  intros L. unfold origin_of, number_of. f_equal.
  - rewrite N.add_comm, N.mod_add by lia. now apply N.mod_small.
  - rewrite N.add_comm, N.div_add by lia. rewrite N.div_small by exact L. lia.
Qed.

Lemma input_cells_spec p a :
  forallb (fun row => fst (snd row) <? ranks p) (inputs p) = true ->
  stands_for (ranks p)
    (match find_at (input_cells p) a with Some v => v | None => None end) (starts p a).
Proof.
  unfold input_cells, starts, input_at. intros H.
  induction (inputs p) as [|[a' [r c]] l IH]; simpl.
  - rewrite find_empty. simpl. intros (_ & C). destruct (C (Junk a)) as (? & ? & ?); [now left|].
    discriminate.
  - simpl in H. apply andb_true_iff in H as [L H]. apply N.ltb_lt in L. rewrite find_add, N.eqb_sym.
    destruct (N.eqb_spec a' a) as [->|]; [|now apply IH].
    simpl. rewrite number_origin by exact L. apply Permutation_refl.
Qed.

Section Decided.
  Variables (p : program) (size : N) (room : option N) (putter taker raiser : N -> N).

  Notation reached := (reached (@app origin) [] (starts p) (code p) size room).
  Notation ready := (ready (code p) size room).
  Notation follows := (follows (ranks p) (starts p) (code p) size room putter taker raiser).

  Hypothesis one_putter : forall b i e f, event_at (code p) b i e -> puts e = Some f -> b = putter f.
  Hypothesis one_taker : forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f.
  Hypothesis one_raiser : forall b i e c v,
    event_at (code p) b i e -> In (c, v) (raises e) -> b = raiser c.
  Hypothesis inputs_formed : forallb (fun row => fst (snd row) <? ranks p) (inputs p) = true.

  Lemma follows_start : follows (start_of p) (initial (starts p)).
  Proof.
    constructor; simpl.
    - constructor.
    - intros b st. rewrite start_spec. destruct (b <? _); [|discriminate]. intros E. injection E as <-. simpl. split; auto.
      split; auto. intros t R _ c. unfold known. rewrite find_empty. lia.
    - intros b. rewrite start_spec.
      destruct (N.ltb_spec b (N.of_nat (length (code p)))); [discriminate|]. intros _.
      apply nth_overflow. lia.
    - intros a. now apply input_cells_spec.
    - intros f. unfold fifo_at. simpl. rewrite find_empty. auto.
    - intros f. unfold fifo_at. simpl. rewrite find_empty. constructor.
    - intros f j v k. unfold fifo_at. simpl. rewrite find_empty. simpl. now destruct j.
    - intros f d _. unfold fifo_at. simpl. rewrite find_empty. reflexivity.
    - intros f d j k _. unfold fifo_at. simpl. rewrite find_empty. simpl. now destruct j.
    - intros c v _. unfold history_of. simpl. rewrite find_empty. simpl. intros; lia.
    - intros; lia.
    - intros; lia.
  Qed.

  Lemma follows_advance x s b x' : follows x s -> advance size room x b = Some x' ->
    exists s', follows x' s'.
  Proof.
    intros F H. destruct (advance_follows _ _ _ _ _ _ _ _ one_putter one_taker one_raiser x s b x' F H)
      as (e & _ & F'). eauto.
  Qed.

  Lemma follows_block fuel b : forall x s, follows x s -> exists s', follows (run_block size room fuel x b) s'.
  Proof.
    induction fuel as [|e fuel IH]; intros x s F; simpl; eauto.
    destruct (advance size room x b) as [x'|] eqn:A; eauto.
    destruct (follows_advance x s b x' F A) as (s' & F'). eauto.
  Qed.

  Lemma follows_sweep bs : forall x s, follows x s -> exists s', follows (sweep size room bs x) s'.
  Proof.
    unfold sweep. induction bs as [|b bs IH]; intros x s F; simpl; eauto.
    destruct (follows_block (rest_of x b) b x s F) as (s' & F'). eauto.
  Qed.

  Lemma follows_sweeps fuel : forall bs x s, follows x s ->
    exists s', follows (sweeps size room fuel bs x) s'.
  Proof.
    induction fuel as [|e fuel IH]; intros bs x s F; simpl; eauto.
    destruct (follows_sweep bs x s F) as (s' & F').
    match goal with |- context [if ?waiting then _ else _] => destruct waiting end; [eauto|].
    now apply IH with s'.
  Qed.

  Lemma standing_there x s b : follows x s -> b < N.of_nat (length (code p)) ->
    find_at (standings x) b = None -> nth (N.to_nat b) (code p) [] = [].
  Proof. intros F _. apply (f_all _ _ _ _ _ _ _ _ x s F). Qed.

  Lemma finished_over x s : follows x s ->
    forallb (fun b => negb (unfinished x b)) (blocks_of p) = true -> over (code p) s.
  Proof.
    intros F H b. rewrite forallb_forall in H. unfold length_of.
    destruct (N.lt_ge_cases b (N.of_nat (length (code p)))) as [L|G].
    - specialize (H b (proj2 (in_range _ _) L)). unfold unfinished, rest_of in H.
      destruct (find_at (standings x) b) as [st|] eqn:E.
      + destruct (f_standing _ _ _ _ _ _ _ _ x s F b st E) as (_ & R & _).
        destruct (rest st); [|discriminate]. symmetry in R. apply skipn_nil_length in R. lia.
      + rewrite (f_all _ _ _ _ _ _ _ _ x s F b E). simpl. lia.
    - rewrite nth_overflow by lia. simpl. lia.
  Qed.

  Lemma unfinished_not_over x s b : follows x s -> unfinished x b = true -> ~ over (code p) s.
  Proof.
    intros F U O. specialize (O b). unfold unfinished, rest_of in U. unfold length_of in O.
    destruct (find_at (standings x) b) as [st|] eqn:E; [|discriminate].
    destruct (f_standing _ _ _ _ _ _ _ _ x s F b st E) as (_ & R & _).
    rewrite skipn_all2 in R by lia. now rewrite R in U.
  Qed.

  Lemma waiting_stuck x s : follows x s ->
    forallb (waits_here size room x) (blocks_of p) = true -> stuck (code p) size room s.
  Proof.
    intros F H b e R. rewrite forallb_forall in H. pose proof R as (A & _).
    assert (L : b < N.of_nat (length (code p))).
    { destruct (N.lt_ge_cases b (N.of_nat (length (code p)))) as [|G]; auto. exfalso.
      unfold event_at in A. rewrite nth_overflow in A by lia. now destruct (N.to_nat (now s b)). }
    specialize (H b (proj2 (in_range _ _) L)). unfold waits_here in H.
    destruct (find_at (standings x) b) as [st|] eqn:E.
    - destruct (f_standing _ _ _ _ _ _ _ _ x s F b st E) as (_ & Re & _).
      destruct st as [[|e' more] n k0]; simpl in Re.
      + symmetry in Re. apply skipn_nil_length in Re. apply event_here in A. unfold length_of in A. lia.
      + assert (e' = e) as ->.
        { symmetry in Re. apply skipn_cons in Re as (A' & _). unfold event_at in A. congruence. }
        pose proof (ready_goes _ _ _ _ _ _ _ _ one_raiser x s b e more n k0 F E R) as G.
        destruct (advance size room x b); [discriminate|congruence].
    - unfold event_at in A.
      rewrite (f_all _ _ _ _ _ _ _ _ x s F b E) in A. now destruct (N.to_nat (now s b)).
  Qed.

  Lemma execute_ended x : execute p size room = Ended x -> exists s, follows x s /\ over (code p) s.
  Proof.
    unfold execute. fold (start_of p). fold (blocks_of p).
    destruct (follows_sweeps (concat (code p)) (blocks_of p) _ _ follows_start) as (s & F).
    set (y := sweeps size room (concat (code p)) (blocks_of p) (start_of p)) in *.
    destruct (forallb (fun b => negb (unfinished y b)) (blocks_of p)) eqn:E.
    - intros H. injection H as <-. exists s. split; auto. now apply (finished_over _ s F).
    - now destruct (forallb (waits_here size room y) (blocks_of p)).
  Qed.

  Lemma execute_halted : execute p size room = Halted ->
    exists s, reached s /\ stuck (code p) size room s /\ ~ over (code p) s.
  Proof.
    unfold execute. fold (start_of p). fold (blocks_of p).
    destruct (follows_sweeps (concat (code p)) (blocks_of p) _ _ follows_start) as (s & F).
    set (x := sweeps size room (concat (code p)) (blocks_of p) (start_of p)) in *.
    destruct (forallb (fun b => negb (unfinished x b)) (blocks_of p)) eqn:E; [discriminate|].
    destruct (forallb (waits_here size room x) (blocks_of p)) eqn:W; [|discriminate]. intros _.
    exists s. split; [apply (f_reached _ _ _ _ _ _ _ _ x s F)|].
    split; [now apply (waiting_stuck x)|].
    destruct (existsb (unfinished x) (blocks_of p)) eqn:U.
    - apply existsb_exists in U as (b & _ & U). now apply (unfinished_not_over x s b).
    - exfalso. assert (forallb (fun b => negb (unfinished x b)) (blocks_of p) = true); [|congruence].
      apply forallb_forall. intros b Hb. apply negb_true_iff.
      destruct (unfinished x b) eqn:Ub; auto.
      assert (existsb (unfinished x) (blocks_of p) = true); [|congruence].
      apply existsb_exists. eauto.
  Qed.

  (** ** What a run without races that ended says about all executions *)

  Definition origins_wanted (w : want) : list origin :=
    match w with Of_all c => map (fun r => Input r c) (range (ranks p)) | Of_one r c => [Input r c] end.

  Lemma wanted_origins w : want_formed p w = true ->
    map (origin_of (ranks p)) (numbers_wanted p w) = origins_wanted w.
  Proof.
    destruct w as [c|r c]; simpl; intros L.
    - rewrite map_map. apply map_ext_in. intros r Hr. apply number_origin. now apply in_range.
    - f_equal. apply number_origin. now apply N.ltb_lt.
  Qed.

  Lemma no_race x s : follows x s -> over (code p) s -> raced x = false ->
    race_free (@app origin) [] (starts p) (code p) size room.
  Proof.
    intros F O Ok b i e c j e' Ne A A' C.
    apply (f_ordered _ _ _ _ _ _ _ _ x s F Ok b i e c j e'); auto.
    - apply event_here in A. specialize (O b). lia.
    - apply event_here in A'. specialize (O c). lia.
  Qed.

  Lemma same_memory x s t : follows x s -> over (code p) s -> raced x = false ->
    reached t -> over (code p) t -> forall a, stands_for (ranks p) (cell x a) (memory t a).
  Proof.
    intros F O Ok R Ot a.
    rewrite (one_result _ _ _ _ _ _ _ _ one_putter one_taker t s
      (no_race x s F O Ok) R (f_reached _ _ _ _ _ _ _ _ x s F) Ot O a).
    apply (f_cells _ _ _ _ _ _ _ _ x s F).
  Qed.

  Definition safe : Prop :=
    (forall t b e b' e', reached t -> b <> b' -> ready t b e -> ready t b' e' -> ~ conflict e e') /\
    exists demand, In demand (demands p) /\ forall t a w, reached t -> over (code p) t ->
      In (a, w) demand -> Permutation (memory t a) (origins_wanted w).

  Hypothesis demands_formed :
    forallb (forallb (fun row => want_formed p (snd row))) (demands p) = true.

  Lemma execute_safe x : execute p size room = Ended x -> good p x = true -> safe.
  Proof.
    intros E G. apply execute_ended in E as (s & F & O). apply andb_true_iff in G as [Ok Met].
    apply negb_true_iff in Ok. apply existsb_exists in Met as (demand & Hd & Met).
    rewrite forallb_forall in Met. split.
    - intros t b e c e' R Ne H H'.
      apply (never_both _ _ _ _ _ _ t b e c e' (no_race x s F O Ok) R Ne H H').
    - exists demand. split; auto. intros t a w R Ot I. specialize (Met (a, w) I).
      rewrite forallb_forall in demands_formed. specialize (demands_formed demand Hd).
      rewrite forallb_forall in demands_formed. specialize (demands_formed (a, w) I).
      unfold holds in Met. simpl in *. pose proof (same_memory x s t F O Ok R Ot a) as S.
      destruct (cell x a) as [l|]; [|discriminate].
      apply (same_list_true N.eqb (fun a b => proj1 (N.eqb_eq a b))) in Met. subst l. simpl in S.
      rewrite wanted_origins in S by assumption. now apply Permutation_sym.
  Qed.
End Decided.

(** ** From one number of slots, or size of messages, to others *)

Section Transfer.
  Variables (p : program) (size : N).

  Notation reached room := (reached (@app origin) [] (starts p) (code p) size room).

  (** Some execution ends. *)
  Definition has_end (room : option N) : Prop :=
    exists s, reached room s /\ over (code p) s.

  Lemma ready_alike room size' (s t : state (list origin)) b e : alike s t ->
    ready (code p) size room s b e -> ready (code p) size' None t b e.
  Proof.
    intros (N' & _ & Q & L) (A & W & T & _). unfold ready. rewrite <- N'. repeat split; auto.
    - intros c v I. rewrite <- L. auto.
    - intros f E. rewrite <- Q. auto.
    - discriminate.
  Qed.

  Lemma ready_more (s : state (list origin)) d d' b e : d <= d' -> ready (code p) size (Some d) s b e ->
    ready (code p) size (Some d') s b e.
  Proof.
    intros L (A & W & T & P). repeat split; auto. intros f g E O G. injection G as <-.
    specialize (P f d E O eq_refl). lia.
  Qed.

  Lemma safe_bounded room size' : safe p size' None -> safe p size room.
  Proof.
    intros (Apart & demand & Hd & Met). split.
    - intros t b e b' e' R Ne H H'. destruct (unbounded _ _ _ _ size room size' t R) as (u & Ru & E).
      apply (Apart u b e b' e' Ru Ne); eapply ready_alike; eauto.
    - exists demand. split; auto. intros t a w R O I.
      destruct (unbounded _ _ _ _ size room size' t R) as (u & Ru & (N' & M & _)).
      rewrite M. apply (Met u); auto. intros b. rewrite <- N'. apply O.
  Qed.

  Lemma safe_less d d' : d <= d' -> safe p size (Some d') -> safe p size (Some d).
  Proof.
    intros L (Apart & demand & Hd & Met). split.
    - intros t b e b' e' R Ne H H'. apply (Apart t b e b' e'); auto.
      + eapply more_room; eauto.
      + eapply ready_more; eauto.
      + eapply ready_more; eauto.
    - exists demand. split; auto. intros t a w R. apply Met. eapply more_room; eauto.
  Qed.

  Lemma end_unbounded room : has_end room -> has_end None.
  Proof.
    intros (s & R & O). destruct (unbounded _ _ _ _ size room size s R) as (t & Rt & (N' & _)).
    exists t. split; auto. intros b. rewrite <- N'. apply O.
  Qed.

  Lemma end_more d d' : d <= d' -> has_end (Some d) -> has_end (Some d').
  Proof. intros L (s & R & O). exists s. split; auto. eapply more_room; eauto. Qed.

  (** ** Data of any kind *)

  Section InMonoid.
    Variables (M : commutative_monoid) (x : N -> N -> M) (junk : N -> M).

    Definition data_of (o : origin) : M :=
      match o with Input r c => x r c | Junk a => junk a end.

    Lemma sum_one o : sum M data_of [o] = data_of o.
    Proof. simpl. now rewrite add_comm, add_zero. Qed.

    Lemma sum_starts a : sum M data_of (starts p a) = begins M p x junk a.
    Proof.
      unfold starts, begins. destruct (input_at p a) as [(r, c)|]; apply sum_one.
    Qed.

    Lemma sum_wanted w : sum M data_of (origins_wanted p w) = wanted M p x w.
    Proof.
      destruct w as [c|r c]; [|apply sum_one]. simpl.
      induction (range (ranks p)) as [|r l IH]; simpl; auto. now rewrite IH.
    Qed.

    Lemma execution_of room t :
      ThreadBlocks.reached (add M) (zero M) (begins M p x junk) (code p) size room t ->
      exists s, reached room s /\ image (sum M data_of) s t.
    Proof.
      apply reached_image; auto using sum_starts. intros a b. apply sum_app.
    Qed.

    Lemma execution_with room s : reached room s -> exists t,
      ThreadBlocks.reached (add M) (zero M) (begins M p x junk) (code p) size room t /\
      image (sum M data_of) s t.
    Proof.
      apply image_reached; auto using sum_starts. intros a b. apply sum_app.
    Qed.
  End InMonoid.
End Transfer.

Lemma listed_in o f : In f (listed o) <-> o = Some f.
Proof.
  destruct o as [g|]; simpl; split; try tauto; try congruence.
  - intros [->|[]]; auto.
  - intros E. injection E as ->. auto.
Qed.

Section Answers.
  Variables (p : program) (sizes : list N).
  Hypothesis Formed : formed p sizes = true.

  Lemma formed_parts :
    forallb (fun row => fst (snd row) <? ranks p) (inputs p) = true /\
    forallb (forallb (fun row => want_formed p (snd row))) (demands p) = true /\
    forallb (forallb areas_apart) (steps p) = true /\
    owned p (fun e => listed (puts e)) = true /\
    owned p (fun e => listed (takes e)) = true /\
    owned p (fun e => map fst (raises e)) = true /\
    forallb (messages_match p) sizes = true.
  Proof. unfold formed in Formed. rewrite !andb_true_iff in Formed. tauto. Qed.

  Lemma ends_known : exists putter taker raiser : N -> N,
    (forall b i e f, event_at (code p) b i e -> puts e = Some f -> b = putter f) /\
    (forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f) /\
    (forall b i e c v, event_at (code p) b i e -> In (c, v) (raises e) -> b = raiser c).
  Proof.
    destruct formed_parts as (_ & _ & _ & P & T & R & _).
    apply owned_spec in P as (putter & P), T as (taker & T), R as (raiser & R).
    exists putter, taker, raiser. repeat split.
    - intros b i e f A E. apply (P b i e f A). now apply listed_in.
    - intros b i e f A E. apply (T b i e f A). now apply listed_in.
    - intros b i e c v A I. apply (R b i e c A). apply in_map_iff. now exists (c, v).
  Qed.

  Lemma formed_connected size : In size sizes -> connected p size.
  Proof.
    intros I. destruct formed_parts as (_ & _ & _ & P & T & R & M). repeat split.
    - now apply owned_spec.
    - now apply owned_spec.
    - now apply owned_spec.
    - apply messages_match_spec. rewrite forallb_forall in M. auto.
  Qed.

  Lemma formed_apart block x : In block (steps p) -> In x block -> apart x.
  Proof.
    intros B X. destruct formed_parts as (_ & _ & A & _). rewrite forallb_forall in A.
    specialize (A block B). rewrite forallb_forall in A. now apply areas_apart_spec, A.
  Qed.

  Lemma ended_has_end size room x : execute p size room = Ended x -> has_end p size room.
  Proof.
    intros E. destruct formed_parts as (In_ & _), ends_known as (pu & ta & ra & P & T & R).
    apply (execute_ended p size room pu ta ra P T R In_) in E as (s & F & O).
    exists s. split; auto. apply (f_reached _ _ _ _ _ _ _ _ x s F).
  Qed.

  Lemma good_safe size room x : execute p size room = Ended x -> good p x = true -> safe p size room.
  Proof.
    intros E G. destruct formed_parts as (In_ & D & _), ends_known as (pu & ta & ra & P & T & R).
    now apply (execute_safe p size room pu ta ra P T R In_ D x).
  Qed.

  Theorem safe_right size room : In size sizes -> has_end p size room -> safe p size room ->
    right p size room.
  Proof.
    intros Is (s0 & R0 & O0) (Apart & demand & Hd & Met).
    destruct ends_known as (pu & ta & ra & P & T & R).
    split; [now apply formed_connected|]. split; [apply formed_apart|]. split.
    - intros M x junk t Rt. destruct (execution_of p size M x junk room t Rt) as (s & Rs & I).
      split.
      + destruct (one_ends_all_end _ _ _ _ _ _ pu ta P T s0 R0 O0 s Rs) as [O|(b & e & H)].
        * left. intros b. destruct I as (<- & _). apply O.
        * right. exists b, e. now apply (ready_image _ _ _ _ s t b e I).
      + intros b e b' e' Ne H H'. apply (Apart s b e b' e' Rs Ne);
          now apply (ready_image _ _ _ _ s t _ _ I).
    - exists demand. split; auto. intros M x junk t Rt Ot a w Iw.
      destruct (execution_of p size M x junk room t Rt) as (s & Rs & (N' & Mem & _)).
      rewrite <- Mem, <- (sum_wanted p M x junk w). apply sum_permutation.
      apply (Met s); auto. intros b. rewrite N'. apply Ot.
  Qed.

  (** A stuck execution: none ever ends, and the program is not right. *)
  Lemma halted_never_ends size room : execute p size room = Halted ->
    (forall (M : commutative_monoid) x junk t,
       ThreadBlocks.reached (add M) (zero M) (begins M p x junk) (code p) size room t ->
       ~ over (code p) t) /\ ~ right p size room.
  Proof.
    intros E. destruct formed_parts as (In_ & _), ends_known as (pu & ta & ra & P & T & R).
    apply (execute_halted p size room pu ta ra P T R In_) in E as (s & Rs & Stop & NotOver). split.
    - intros M x junk t Rt O. destruct (execution_of p size M x junk room t Rt) as (u & Ru & (N' & _)).
      apply (one_stuck_none_ends _ _ _ _ _ _ pu ta P T s Rs Stop NotOver u Ru).
      intros b. rewrite N'. apply O.
    - intros (_ & _ & Go & _).
      destruct (execution_with p size counting (fun _ _ => 0) (fun _ => 0) room s Rs) as (t & Rt & I).
      destruct (Go _ _ _ t Rt) as ([O|(b & e & H)] & _).
      + apply NotOver. intros b. destruct I as (-> & _). apply O.
      + apply (Stop b e). now apply (ready_image _ _ _ _ s t b e I).
  Qed.
End Answers.

(** How many messages a FIFO may hold for an answer to be about it. *)
Definition covers (by_slots : bool) (depth : option N) (extra : N) (room : option N) : Prop :=
  match depth, room with
  | None, None => True
  | Some d, Some d' => d <= d' /\ (by_slots = true -> d' <= d + extra)
  | Some _, None => by_slots = false
  | None, Some _ => False
  end.

(** What is accepted is right: at every size of messages, for FIFOs with [depth] messages of room,
    and with more (any number, or up to [extra] more where the order rests on the slots). *)
Theorem decide_right p sizes depth extra overtaking by_slots :
  decide p sizes depth extra overtaking = Right by_slots ->
  forall size room, In size sizes -> covers by_slots depth extra room -> right p size room.
Proof.
  unfold decide. destruct (formed p sizes) eqn:Formed; [simpl negb; cbv iota|discriminate].
  set (endings := map (ending_of p depth) sizes).
  destruct (find _ endings) as [[z _]|]; [discriminate|].
  destruct (find _ endings) as [[z _]|]; [discriminate|].
  destruct (forallb _ endings) eqn:All; simpl; [|discriminate].
  assert (Ending : forall size, In size sizes -> has_end p size depth).
  { intros size I. rewrite forallb_forall in All. specialize (All (ending_of p depth size)).
    unfold ending_of in All. simpl in All.
    destruct (execute p size depth) as [x| |] eqn:E;
      try (discriminate All; apply in_map_iff; exists size; split; [unfold ending_of; now rewrite E|auto]).
    now apply (ended_has_end p sizes Formed size depth x). }
  assert (Longer : forall size room, In size sizes -> covers by_slots depth extra room ->
    has_end p size room).
  { intros size room I C. specialize (Ending size I). unfold covers in C.
    destruct depth as [d|], room as [d'|]; try tauto.
    - apply end_more with d; tauto.
    - now apply end_unbounded with (Some d). }
  destruct (overtaking && negb (goes_backwards p)); [discriminate|].
  destruct (ends_well p 1 None) eqn:E.
  - intros H size room I C. apply (safe_right p sizes Formed); auto.
    apply safe_bounded with 1. unfold ends_well in E.
    destruct (execute p 1 None) as [x| |] eqn:Ex; try discriminate.
    now apply (good_safe p sizes Formed 1 None x).
  - destruct (negb overtaking); [simpl|discriminate].
    destruct (forallb _ sizes) eqn:Each; [|discriminate]. intros H. injection H as <-.
    intros size room I C. apply (safe_right p sizes Formed); auto.
    rewrite forallb_forall in Each. specialize (Each size I). unfold ends_well in Each.
    destruct (execute p size (more_slots depth extra)) as [y| |] eqn:Ey; try discriminate.
    apply (good_safe p sizes Formed) in Ey; auto. unfold more_slots, covers in *.
    destruct depth as [d|], room as [d'|]; simpl in Ey; try tauto; try discriminate.
    apply safe_less with (d + extra); auto. apply C. reflexivity.
Qed.

(** And where chunks of a message may overtake each other, it is right if every step moves its last
    chunk first, as well. *)
Theorem decide_backwards p sizes depth extra by_slots :
  decide p sizes depth extra true = Right by_slots ->
  right (backwards p) 1 None /\ forall f,
    messages whole_steps (fun e => is (puts e) f) p = messages whole_steps (fun e => is (takes e) f) p.
Proof.
  unfold decide. destruct (formed p sizes); [simpl negb; cbv iota|discriminate].
  destruct (find _ (map (ending_of p depth) sizes)) as [[z en]|]; [discriminate|].
  destruct (find _ (map (ending_of p depth) sizes)) as [[z en]|]; [discriminate|].
  destruct (forallb _ (map (ending_of p depth) sizes)); simpl; [|discriminate].
  destruct (goes_backwards p) eqn:Back; [|discriminate]. intros _.
  unfold goes_backwards in Back. apply andb_true_iff in Back as [Back Well].
  apply andb_true_iff in Back as [Same Formed]. split; [|now apply messages_match_spec].
  unfold ends_well in Well.
  destruct (execute (backwards p) 1 None) as [x| |] eqn:Ex; try discriminate.
  apply (safe_right (backwards p) [1] Formed); [now left| |].
  - now apply (ended_has_end (backwards p) [1] Formed 1 None x).
  - now apply (good_safe (backwards p) [1] Formed 1 None x).
Qed.

(** What is said to hang does, in every execution. *)
Theorem decide_hangs p sizes depth extra overtaking size :
  decide p sizes depth extra overtaking = Hanging size ->
  In size sizes /\ ~ right p size depth /\
  forall (M : commutative_monoid) x junk t,
    ThreadBlocks.reached (add M) (zero M) (begins M p x junk) (code p) size depth t ->
    ~ over (code p) t.
Proof.
  unfold decide. destruct (formed p sizes) eqn:Formed; [simpl negb; cbv iota|discriminate].
  set (endings := map (ending_of p depth) sizes).
  destruct (find (fun e => match snd e with Hangs => true | _ => false end) endings)
    as [[z en]|] eqn:Found.
  - intros H. injection H as E. subst z. apply find_some in Found as (I & H). simpl in H.
    apply in_map_iff in I as (y & E & I). unfold ending_of in E. injection E as Ey En.
    subst y. destruct (execute p size depth) as [x| |] eqn:Ex; subst en; try discriminate.
    + destruct (forallb _ _); discriminate.
    + destruct (halted_never_ends p sizes Formed size depth Ex) as (A & B). auto.
  - destruct (find (fun e => match snd e with Ends_wrong => true | _ => false end) endings)
      as [[z en]|]; [intros H; discriminate H|].
    destruct (forallb (fun e => match snd e with Ends => true | _ => false end) endings);
      simpl negb; cbv iota; [|intros H; discriminate H].
    destruct (overtaking && negb (goes_backwards p)); [intros H; discriminate H|].
    destruct (ends_well p 1 None); [intros H; discriminate H|].
    match goal with |- (if ?each then _ else _) = _ -> _ => destruct each end;
      intros H; discriminate H.
Qed.

(** ** Wrong values *)

Lemma origin_eq_dec (o o' : origin) : {o = o'} + {o <> o'}.
Proof. decide equality; apply N.eq_dec. Qed.

Definition one_if (o o' : origin) : N := if origin_eq_dec o o' then 1 else 0.

Lemma sum_counts o l : sum counting (one_if o) l = N.of_nat (count_occ origin_eq_dec l o).
Proof.
  induction l as [|a l IH]; [reflexivity|]. cbn [sum fold_right count_occ].
  change (fold_right _ _ l) with (sum counting (one_if o) l). rewrite IH. unfold one_if. simpl add.
  destruct (origin_eq_dec o a), (origin_eq_dec a o); try congruence; lia.
Qed.

Lemma unlike_counts l l' : ~ Permutation l l' ->
  exists o, count_occ origin_eq_dec l o <> count_occ origin_eq_dec l' o.
Proof.
  intros H.
  destruct (Forall_Exists_dec (fun o => count_occ origin_eq_dec l o = count_occ origin_eq_dec l' o)
    (fun o => Nat.eq_dec _ _) (l ++ l')) as [All|Some].
  - exfalso. apply H, (Permutation_count_occ origin_eq_dec). intros o.
    rewrite Forall_forall in All. destruct (in_dec origin_eq_dec o (l ++ l')) as [I|I]; auto.
    rewrite in_app_iff in I.
    rewrite (proj1 (count_occ_not_In origin_eq_dec l o)) by tauto.
    rewrite (proj1 (count_occ_not_In origin_eq_dec l' o)) by tauto. reflexivity.
  - apply Exists_exists in Some as (o & _ & Ne). now exists o.
Qed.

Lemma origin_injective ranks n n' : 0 < ranks -> origin_of ranks n = origin_of ranks n' -> n = n'.
Proof.
  intros L E. unfold origin_of in E. injection E as Em Ed.
  rewrite (N.div_mod n ranks), (N.div_mod n' ranks) by lia. now rewrite Em, Ed.
Qed.

Lemma wanted_clean p w : clean (origins_wanted p w).
Proof.
  destruct w as [c|r c]; simpl; split.
  - apply FinFun.Injective_map_NoDup; [intros a b E; congruence|apply range_nodup].
  - intros o I. apply in_map_iff in I as (r & <- & _). eauto.
  - repeat constructor. intros [].
  - intros o [<-|[]]. eauto.
Qed.

Lemma fails_unlike p x a w l : want_formed p w = true ->
  fails p x (a, w) = true -> stands_for (ranks p) (cell x a) l -> ~ Permutation l (origins_wanted p w).
Proof.
  intros Wf F S P. unfold fails in F. simpl in F. destruct (cell x a) as [ns|]; simpl in S.
  - rewrite <- (wanted_origins p w Wf) in P.
    assert (Q : Permutation (map (origin_of (ranks p)) ns)
                  (map (origin_of (ranks p)) (numbers_wanted p w))) by now transitivity l.
    apply orb_true_iff in F as [F|F].
    + apply Permutation_length in Q. rewrite !map_length in Q.
      now rewrite Q, Nat.eqb_refl in F.
    + apply existsb_exists in F as (n & I & F). apply negb_true_iff in F.
      assert (Pos : 0 < ranks p).
      { destruct w as [c|r c]; simpl in *.
        - apply in_map_iff in I as (r & _ & I). apply in_range in I. lia.
        - apply N.ltb_lt in Wf. lia. }
      assert (I' : In (origin_of (ranks p) n) (map (origin_of (ranks p)) ns)).
      { apply (Permutation_in _ (Permutation_sym Q)). now apply in_map. }
      apply in_map_iff in I' as (n' & E & I'). apply origin_injective in E; auto. subst n'.
      assert (existsb (N.eqb n) ns = true); [|congruence].
      apply existsb_exists. exists n. split; auto. apply N.eqb_refl.
  - apply S. destruct (wanted_clean p w) as (D & I). apply Permutation_sym in P. split.
    + now apply (Permutation_NoDup P).
    + intros o Ho. apply I. now apply (Permutation_in _ (Permutation_sym P)).
Qed.

(** What is said to be wrong can end with something else than is wanted. *)
Theorem decide_wrong p sizes depth extra overtaking size :
  decide p sizes depth extra overtaking = Wrong size ->
  In size sizes /\ ~ right p size depth.
Proof.
  unfold decide. destruct (formed p sizes) eqn:Formed; [simpl negb; cbv iota|discriminate].
  set (endings := map (ending_of p depth) sizes).
  destruct (find (fun e => match snd e with Hangs => true | _ => false end) endings)
    as [[z en]|]; [discriminate|].
  destruct (find (fun e => match snd e with Ends_wrong => true | _ => false end) endings)
    as [[z en]|] eqn:Found.
  2: { destruct (forallb (fun e => match snd e with Ends => true | _ => false end) endings);
         simpl negb; cbv iota; [|intros H; discriminate H].
       destruct (overtaking && negb (goes_backwards p)); [intros H; discriminate H|].
       destruct (ends_well p 1 None); [intros H; discriminate H|].
       match goal with |- (if ?each then _ else _) = _ -> _ => destruct each end;
         intros H; discriminate H. }
  intros H. injection H as E. subst z. apply find_some in Found as (I & H). simpl in H.
  apply in_map_iff in I as (y & E & I). unfold ending_of in E. injection E as Ey En. subst y.
  split; auto. intros (_ & _ & _ & demand & Hd & Met).
  destruct (execute p size depth) as [x| |] eqn:Ex; subst en; try discriminate.
  destruct (forallb (existsb (fails p x)) (demands p)) eqn:Fails; [clear H|discriminate].
  rewrite forallb_forall in Fails. specialize (Fails demand Hd).
  apply existsb_exists in Fails as ([a w] & Iw & Fw).
  destruct (formed_parts p sizes Formed) as (In_ & D & _).
  destruct (ends_known p sizes Formed) as (pu & ta & ra & P & T & R).
  rewrite forallb_forall in D. specialize (D demand Hd). rewrite forallb_forall in D.
  specialize (D (a, w) Iw). simpl in D.
  apply (execute_ended p size depth pu ta ra P T R In_) in Ex as (s & F & O).
  pose proof (f_reached _ _ _ _ _ _ _ _ x s F) as Rs.
  pose proof (f_cells _ _ _ _ _ _ _ _ x s F a) as St.
  pose proof (fails_unlike p x a w _ D Fw St) as Un.
  apply unlike_counts in Un as (o & Un). apply Un.
  set (inputs_ := fun r c => one_if o (Input r c)). set (junk_ := fun a => one_if o (Junk a)).
  destruct (execution_with p size counting inputs_ junk_ depth s Rs) as (t & Rt & (N' & Mem & _)).
  assert (Ot : over (code p) t) by (intros b; rewrite <- N'; apply O).
  specialize (Met counting inputs_ junk_ t Rt Ot a w Iw).
  rewrite <- Mem, <- (sum_wanted p counting inputs_ junk_ w) in Met.
  assert (Same : forall l, sum counting (data_of counting inputs_ junk_) l = sum counting (one_if o) l).
  { intros l. induction l as [|a' l IH]; simpl; auto. rewrite IH. now destruct a'. }
  rewrite !Same, !sum_counts in Met. lia.
Qed.
