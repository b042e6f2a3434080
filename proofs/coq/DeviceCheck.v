(** Device programs, decided (verify/device/check.py): what [decide_device] says is proved.

    A device program is the table of rows that a kernel reads: put a chunk into a slot of a peer, or
    wait for an own slot and add it to the own chunk, or copy it there. [decide_device] takes the rows of
    all ranks, and the rounds of the schedule that they claim to carry out.

    - It finds an order in which one operation ends ([order_of]); who finds it need not be believed,
      for the order is walked through again ([walk]).
    - Walking through [sets + 1] operations, it keeps for each rank what is known to have been done
      by all ranks ([tick]: vector clocks), and looks whether the take of the first operation is
      known to the store of the last one into the same slot.
    - Walking through one operation, it adds up values ([carry]), and compares them with those of
      the schedule's rounds.

    What is accepted neither gets stuck nor takes anything but what was put, in any number of
    operations, and leaves what the schedule says on all ranks: where ranks take turns in one memory
    ([decide_sound]), and in memory with release and acquire, whoever is stopped
    ([decide_sound_in_memory]). What is refuted is wrong: a deadlock that no execution avoids
    ([refuted_deadlock]), a slot that some execution overwrites before it is taken
    ([refuted_race]), or another sum than the schedule's ([refuted_sums]). That slots match is no
    more than what [slots_match] says: without it the machines here do not say what a program does. *)

From Coq Require Import List Arith NArith ZArith Lia Bool Relations Permutation FMapPositive.
From Latecomer Require Import Ranges Schedule Semantics SameBits Tables Values Check.
From Latecomer Require DeviceOrder DeviceMemory.
Import ListNotations.
Open Scope N_scope.

(** * Programs *)

Inductive row_kind := Puts | Adds | Copies.

(** The slot is the receiver's: the peer's where a row puts, else the rank's own. *)
Record row := Row { row_does : row_kind; row_peer : N; row_chunk : N; row_slot : N }.

Record program := Program {
  device_ranks : N;
  device_chunks : N;
  device_sets : N;
  device_slots : N;
  device_rows : list (list row) }.

Definition receives (w : row) : bool := match row_does w with Puts => false | _ => true end.

Definition rows_of (p : program) (r : N) : list row := nth (N.to_nat r) (device_rows p) [].

Definition row_of (p : program) (r i : N) : option row := nth_error (rows_of p r) (N.to_nat i).

(** What a row is to [DeviceOrder]: a put is a store and a raise, a receive a wait and a take. *)
Section Meaning.
  Context {A : Type} (plus : A -> A -> A).

  Definition actions (w : row) : list (DeviceOrder.action A (N -> A)) :=
    let x := N.to_nat (row_slot w) in
    match row_does w with
    | Puts =>
        let q := N.to_nat (row_peer w) in
        [DeviceOrder.Store _ _ q x (fun own => own (row_chunk w)); DeviceOrder.Raise _ _ q x]
    | Adds =>
        [DeviceOrder.Wait _ _ x; DeviceOrder.Take _ _ x (fun own v c =>
           if c =? row_chunk w then plus (own c) v else own c)]
    | Copies =>
        [DeviceOrder.Wait _ _ x; DeviceOrder.Take _ _ x (fun own v c =>
           if c =? row_chunk w then v else own c)]
    end.

  (** The same in every operation. *)
  Definition runs (p : program) (_ r : nat) : list (DeviceOrder.action A (N -> A)) :=
    flat_map actions (rows_of p (N.of_nat r)).
End Meaning.

(** * Tables *)

Definition look {A} (t : PM.t (PM.t A)) (a b : N) : option A :=
  match find_at t a with Some m => find_at m b | None => None end.

Definition note {A} (t : PM.t (PM.t A)) (a b : N) (v : A) : PM.t (PM.t A) :=
  add_at t a (add_at (match find_at t a with Some m => m | None => PM.empty A end) b v).

Fixpoint numbered_from {A} (i : N) (l : list A) (m : PM.t A) : PM.t A :=
  match l with [] => m | x :: l' => numbered_from (i + 1) l' (add_at m i x) end.

Definition numbered {A} (l : list A) : PM.t A := numbered_from 0 l (PM.empty A).

Fixpoint for_all_from {A} (f : N -> A -> bool) (i : N) (l : list A) : bool :=
  match l with [] => true | x :: l' => f i x && for_all_from f (i + 1) l' end.

(** By holder and slot: which row of whom puts, and which row of the holder receives. *)
Record tables := Of_program {
  row_at : PM.t (PM.t row);
  put_at : PM.t (PM.t (N * N));
  receive_at : PM.t (PM.t N) }.

Fixpoint noted (r i : N) (l : list row) (t : tables) : tables :=
  match l with
  | [] => t
  | w :: l' => noted r (i + 1) l'
      (if receives w then Of_program (row_at t) (put_at t) (note (receive_at t) r (row_slot w) i)
       else Of_program (row_at t) (note (put_at t) (row_peer w) (row_slot w) (r, i)) (receive_at t))
  end.

Fixpoint all_noted (r : N) (l : list (list row)) (t : tables) : tables :=
  match l with [] => t | rows :: l' => all_noted (r + 1) l' (noted r 0 rows t) end.

Definition tables_of (p : program) : tables :=
  all_noted 0 (device_rows p) (Of_program (numbered (map numbered (device_rows p))) (PM.empty _) (PM.empty _)).

(** * Slots: one put and one receive, which agree *)

Definition same_place (a : option (N * N)) (r i : N) : bool :=
  match a with Some (q, j) => (q =? r) && (j =? i) | None => false end.

Definition row_fits (p : program) (t : tables) (received r i : N) (w : row) : bool :=
  (row_peer w <? device_ranks p) && negb (row_peer w =? r) && (row_chunk w <? device_chunks p) &&
  (row_slot w <? device_slots p) &&
  if receives w then
    (* the owner raises the flags of all other slots, from the number of receives on *)
    (row_slot w <? received) &&
    match look (receive_at t) r (row_slot w) with Some j => j =? i | None => false end &&
    match look (put_at t) r (row_slot w) with
    | Some (q, j) => (q =? row_peer w) &&
        match look (row_at t) q j with
        | Some v => negb (receives v) && (row_peer v =? r) && (row_slot v =? row_slot w) &&
            (row_chunk v =? row_chunk w)
        | None => false
        end
    | None => false
    end
  else
    same_place (look (put_at t) (row_peer w) (row_slot w)) r i &&
    match look (receive_at t) (row_peer w) (row_slot w) with
    | Some j =>
        match look (row_at t) (row_peer w) j with
        | Some v => receives v && (row_slot v =? row_slot w)
        | None => false
        end
    | None => false
    end.

Definition receipts (l : list row) : N := N.of_nat (length (filter receives l)).

Definition slots_match (p : program) (t : tables) : bool :=
  (device_ranks p =? N.of_nat (length (device_rows p))) && (1 <=? device_sets p) &&
  for_all_from (fun r l => for_all_from (row_fits p t (receipts l) r) 0 l) 0 (device_rows p).

(** * Walking through an operation *)

Definition at_row (pos : PM.t N) (r : N) : N :=
  match find_at pos r with Some i => i | None => 0 end.

(** Who receives goes on when the put has been done. *)
Definition ready (t : tables) (pos : PM.t N) (r : N) (w : row) : bool :=
  if receives w then
    match look (put_at t) r (row_slot w) with Some (q, j) => j <? at_row pos q | None => false end
  else true.

(** The order names the rank that does its next row. [None]: it can't. *)
Fixpoint walk {S} (t : tables) (f : S -> N -> N -> row -> S) (order : list N) (pos : PM.t N)
    (s : S) : option (PM.t N * S) :=
  match order with
  | [] => Some (pos, s)
  | r :: order' =>
      let i := at_row pos r in
      match look (row_at t) r i with
      | Some w =>
          if ready t pos r w then walk t f order' (add_at pos r (i + 1)) (f s r i w) else None
      | None => None
      end
  end.

Definition all_over (p : program) (pos : PM.t N) : bool :=
  for_all_from (fun r l => at_row pos r =? N.of_nat (length l)) 0 (device_rows p).

(** *** An order, as far as it goes: rank after rank goes on while it can, again and again. *)

Fixpoint go_on (t : tables) (r : N) (l : list row) (pos : PM.t N) (done : list N) :
    list row * PM.t N * list N :=
  match l with
  | [] => ([], pos, done)
  | w :: l' =>
      if ready t pos r w then go_on t r l' (add_at pos r (at_row pos r + 1)) (r :: done)
      else (l, pos, done)
  end.

Fixpoint sweep (t : tables) (left : list (N * list row)) (pos : PM.t N) (done : list N) :
    list (N * list row) * PM.t N * list N :=
  match left with
  | [] => ([], pos, done)
  | (r, l) :: left' =>
      let '(rest, pos', done') := go_on t r l pos done in
      let '(lefts, pos'', done'') := sweep t left' pos' done' in
      (match rest with [] => lefts | _ => (r, rest) :: lefts end, pos'', done'')
  end.

Fixpoint sweeps (t : tables) (fuel : list row) (left : list (N * list row)) (pos : PM.t N)
    (done : list N) : list N :=
  match fuel, left with
  | _ :: fuel', _ :: _ =>
      let '(left', pos', done') := sweep t left pos done in sweeps t fuel' left' pos' done'
  | _, _ => done
  end.

Fixpoint with_ranks (r : N) (l : list (list row)) : list (N * list row) :=
  match l with [] => [] | rows :: l' => (r, rows) :: with_ranks (r + 1) l' end.

Definition order_of (p : program) (t : tables) : list N :=
  rev (sweeps t (concat (device_rows p)) (with_ranks 0 (device_rows p)) (PM.empty N) []).

(** * Clocks: of each rank, up to which epoch and action it is known to have come *)

Definition clock := PM.t (N * N).

Definition entry (k : clock) (q : N) : N * N :=
  match find_at k q with Some x => x | None => (0, 0) end.

Definition before (x y : N * N) : bool :=
  (fst x <? fst y) || ((fst x =? fst y) && (snd x <? snd y)).

Definition later_of (x y : N * N) : N * N := if before x y then y else x.

Definition join_clocks (k l : clock) : clock :=
  PM.map2 (fun a b => match a, b with
    | Some x, Some y => Some (later_of x y)
    | Some x, None => Some x
    | None, _ => b
    end) k l.

Record clocks := Clocks {
  known : PM.t clock;             (* by rank *)
  staged : PM.t (PM.t clock);     (* by holder and slot: with the last put *)
  race : option (N * N * clock) } (* a put that comes too early, and what comes before it *).

Definition clock_of (c : clocks) (r : N) : clock :=
  match find_at (known c) r with Some k => k | None => PM.empty _ end.

Definition staged_at (c : clocks) (r x : N) : clock :=
  match look (staged c) r x with Some k => k | None => PM.empty _ end.

(** A put of the epoch [sets] comes after the take of epoch 0 from its slot. *)
Definition too_early (p : program) (t : tables) (e : N) (k : clock) (w : row) : bool :=
  (e =? device_sets p) &&
  match look (receive_at t) (row_peer w) (row_slot w) with
  | Some j => negb (before (0, 2 * j + 1) (entry k (row_peer w)))
  | None => true
  end.

Definition tick (p : program) (t : tables) (e : N) (c : clocks) (r i : N) (w : row) : clocks :=
  let k := clock_of c r in
  if receives w then
    let mine := add_at (join_clocks k (staged_at c r (row_slot w))) r (e, 2 * i + 2) in
    Clocks (add_at (known c) r mine) (staged c) (race c)
  else
    let mine := add_at k r (e, 2 * i + 2) in
    Clocks (add_at (known c) r mine) (note (staged c) (row_peer w) (row_slot w) mine)
      match race c with
      | Some _ => race c
      | None => if too_early p t e k w then Some (r, i, k) else None
      end.

Fixpoint ticks (p : program) (t : tables) (order epochs : list N) (c : clocks) : option clocks :=
  match epochs with
  | [] => Some c
  | e :: epochs' =>
      match walk t (tick p t e) order (PM.empty N) c with
      | Some (_, c') => ticks p t order epochs' c'
      | None => None
      end
  end.

Definition nothing_known : clocks := Clocks (PM.empty _) (PM.empty _) None.

(** Before a rank ends the first operation, it knows that every rank has begun it. *)
Definition heard (p : program) (t : tables) (c : clocks) : bool :=
  let rs := range (device_ranks p) in
  forallb (fun r => let k := clock_of c r in
    forallb (fun q => (q =? r) || (before (0, 0) (entry k q) &&
      match look (row_at t) q 0 with Some _ => true | None => false end)) rs) rs.

(** * Values *)

Record held := Held { own : @table value; in_slots : PM.t (PM.t value) }.

Definition own_at (h : held) (r c : N) : value := read (fun r _ => own_value r) (own h) r c.

Definition carry (h : held) (r i : N) (w : row) : held :=
  let mine := own_at h r (row_chunk w) in
  let there := match look (in_slots h) r (row_slot w) with Some v => v | None => None end in
  match row_does w with
  | Puts => Held (own h) (note (in_slots h) (row_peer w) (row_slot w) mine)
  | Adds => Held (write (own h) r (row_chunk w) (add_values mine there)) (in_slots h)
  | Copies => Held (write (own h) r (row_chunk w) there) (in_slots h)
  end.

Definition same_value (a b : value) : bool :=
  match a, b with
  | Some (_, t), Some (_, u) => match tree_compare t u with Eq => true | _ => false end
  | _, _ => false
  end.

(** What the rounds leave, everywhere; unknown where that itself can be no part of a right result. *)
Definition same_sums (p : program) (s : schedule) (h : held) : option bool :=
  if negb ((device_ranks p =? ranks s) && (device_chunks p =? chunks s)) then Some false
  else
    let wanted := final_values (all_rounds s) in
    let wanted_at r c := read (fun r _ => own_value r) wanted r c in
    if for_all_cells (ranks s) (chunks s) (fun r c => same_value (own_at h r c) (wanted_at r c))
    then Some true
    else if for_all_cells (ranks s) (chunks s)
      (fun r c => match wanted_at r c with Some _ => true | None => false end)
    then Some false else None.

(** * The decision *)

(** [None]: unknown. *)
Record verdicts := Verdicts {
  slots_do_match : bool;
  is_deadlock_free : option bool;
  is_race_free : option bool;
  all_are_heard : option bool;
  has_same_sums : option bool }.

Definition nothing_decided (matching : bool) : verdicts := Verdicts matching None None None None.

(** Nobody can go on: who is not at the end waits for a row of somebody who has not come to it. *)
Definition all_wait (p : program) (t : tables) (pos : PM.t N) : bool :=
  for_all_from (fun r l =>
    match look (row_at t) r (at_row pos r) with
    | Some w => negb (ready t pos r w)
    | None => at_row pos r =? N.of_nat (length l)
    end) 0 (device_rows p).

Definition decide_device (p : program) (s : schedule) : verdicts :=
  let t := tables_of p in
  if negb (slots_match p t) then nothing_decided false
  else
    let order := order_of p t in
    match walk t carry order (PM.empty N) (Held (PM.empty _) (PM.empty _)) with
    | None => nothing_decided true
    | Some (pos, h) =>
        if all_over p pos then
          match ticks p t order [0] nothing_known with
          | None => nothing_decided true
          | Some one =>
              match ticks p t order (map (N.add 1) (range (device_sets p))) one with
              | None => nothing_decided true
              | Some c =>
                  let free := match race c with None => true | Some _ => false end in
                  Verdicts true (Some true) (Some free) (Some (heard p t one))
                    (if free then same_sums p s h else None)
              end
          end
        else Verdicts true (if all_wait p t pos then Some false else None) None None None
    end.

Definition device_accepted (v : verdicts) : bool :=
  match slots_do_match v, is_deadlock_free v, is_race_free v, all_are_heard v, has_same_sums v with
  | true, Some true, Some true, Some true, Some true => true
  | _, _, _, _, _ => false
  end.

(** * Proofs *)

(** ** Tables *)

Lemma look_note {A} (t : PM.t (PM.t A)) a b v a' b' :
  look (note t a b v) a' b' = if (a' =? a) && (b' =? b) then Some v else look t a' b'.
Proof.
  unfold look, note. rewrite find_add. destruct (N.eqb_spec a' a) as [->|]; simpl; auto.
  rewrite find_add. destruct (b' =? b); auto. destruct (find_at t a); auto. now rewrite find_empty.
Qed.

Lemma numbered_from_at {A} (l : list A) : forall i m j,
  find_at (numbered_from i l m) j =
  if (i <=? j) && (j <? i + N.of_nat (length l)) then nth_error l (N.to_nat (j - i))
  else find_at m j.
Proof.
  induction l as [|x l IH]; intros i m j; simpl numbered_from; cbn [length].
  - replace ((i <=? j) && (j <? i + N.of_nat 0)) with false; auto.
    symmetry. apply andb_false_iff. rewrite N.leb_gt, N.ltb_ge. lia.
  - rewrite IH, find_add. destruct (N.eqb_spec j i) as [->|Ne].
    + replace (i + 1 <=? i) with false by (symmetry; apply N.leb_gt; lia).
      replace (i <=? i) with true by (symmetry; apply N.leb_le; lia).
      replace (i <? i + N.of_nat (S (length l))) with true by (symmetry; apply N.ltb_lt; lia).
      now rewrite N.sub_diag.
    + replace (i + 1 <=? j) with (i <=? j)
        by (apply eq_true_iff_eq; rewrite !N.leb_le; lia).
      replace (i + 1 + N.of_nat (length l)) with (i + N.of_nat (S (length l))) by lia.
      destruct ((i <=? j) && (j <? i + N.of_nat (S (length l)))) eqn:E; auto.
      apply andb_true_iff in E as (E & _). apply N.leb_le in E.
      replace (N.to_nat (j - i)) with (S (N.to_nat (j - (i + 1)))) by lia. reflexivity.
Qed.

Lemma numbered_at {A} (l : list A) i : find_at (numbered l) i = nth_error l (N.to_nat i).
Proof.
  unfold numbered. rewrite numbered_from_at, N.sub_0_r.
  destruct ((0 <=? i) && (i <? 0 + N.of_nat (length l))) eqn:E; auto.
  rewrite find_empty. symmetry. apply nth_error_None.
  apply andb_false_iff in E. rewrite N.leb_gt, N.ltb_ge in E. lia.
Qed.

Lemma for_all_from_spec {A} (f : N -> A -> bool) l : forall i, for_all_from f i l = true ->
  forall j x, nth_error l (N.to_nat j) = Some x -> f (i + j) x = true.
Proof.
  induction l as [|y l IH]; intros i H j x E; [destruct (N.to_nat j); discriminate|].
  simpl in H. apply andb_true_iff in H as (Hy & H).
  destruct (N.to_nat j) as [|k] eqn:J; simpl in E.
  - injection E as ->. replace (i + j) with i by lia. auto.
  - replace (i + j) with (i + 1 + N.of_nat k) by lia. apply (IH (i + 1) H).
    now rewrite Nat2N.id.
Qed.

Lemma noted_rows l : forall r i t, row_at (noted r i l t) = row_at t.
Proof.
  induction l as [|w l IH]; simpl; auto. intros r i t. rewrite IH. now destruct (receives w).
Qed.

Lemma all_noted_rows l : forall r t, row_at (all_noted r l t) = row_at t.
Proof. induction l as [|x l IH]; simpl; auto. intros r t. now rewrite IH, noted_rows. Qed.

Lemma row_found p r i : look (row_at (tables_of p)) r i = row_of p r i.
Proof.
  unfold tables_of, look, row_of, rows_of. rewrite all_noted_rows. cbn [row_at].
  rewrite numbered_at, nth_error_map.
  destruct (nth_error (device_rows p) (N.to_nat r)) as [l|] eqn:E; cbn.
  - rewrite (nth_error_nth _ _ _ E). apply numbered_at.
  - apply nth_error_None in E. rewrite nth_overflow by auto. now destruct (N.to_nat i).
Qed.

Lemma row_within p r i w : row_of p r i = Some w ->
  i < N.of_nat (length (rows_of p r)) /\ r < N.of_nat (length (device_rows p)).
Proof.
  intros E. assert (L : (N.to_nat i < length (rows_of p r))%nat).
  { apply nth_error_Some. unfold row_of in E. congruence. }
  split; [lia|]. destruct (le_lt_dec (length (device_rows p)) (N.to_nat r)) as [G|]; [|lia].
  unfold rows_of in L. rewrite nth_overflow in L by auto. simpl in L. lia.
Qed.

Lemma rows_listed p r : r < N.of_nat (length (device_rows p)) ->
  nth_error (device_rows p) (N.to_nat r) = Some (rows_of p r).
Proof. intros L. apply nth_error_nth'. lia. Qed.

(** ** Slots that match *)

Section Matching.
  Variable p : program.
  Let t := tables_of p.
  Hypothesis fits : slots_match p t = true.

  Lemma sizes : device_ranks p = N.of_nat (length (device_rows p)) /\ 1 <= device_sets p.
  Proof.
    unfold slots_match in fits. rewrite !andb_true_iff, N.eqb_eq, N.leb_le in fits. tauto.
  Qed.

  Lemma row_does_fit r i w : row_of p r i = Some w ->
    row_fits p t (receipts (rows_of p r)) r i w = true.
  Proof.
    intros E. unfold slots_match in fits. rewrite !andb_true_iff in fits. destruct fits as (_ & F).
    pose proof (row_within p r i w E) as (_ & L).
    pose proof (for_all_from_spec _ _ 0 F r _ (rows_listed p r L)) as G. cbv beta in G.
    pose proof (for_all_from_spec _ _ 0 G i w E) as H. cbv beta in H. now rewrite !N.add_0_l in H.
  Qed.

  (** Of who receives: who puts, and what. *)
  Lemma receive_fits q i w : row_of p q i = Some w -> receives w = true ->
    row_peer w < device_ranks p /\ row_slot w < receipts (rows_of p q) /\
    look (receive_at t) q (row_slot w) = Some i /\
    exists j v, look (put_at t) q (row_slot w) = Some (row_peer w, j) /\ row_of p (row_peer w) j = Some v /\
      receives v = false /\ row_peer v = q /\ row_slot v = row_slot w /\ row_chunk v = row_chunk w.
  Proof.
    intros E R. pose proof (row_does_fit q i w E) as F. unfold row_fits in F. rewrite R in F.
    rewrite !andb_true_iff in F. destruct F as ((((P & _) & _) & _) & ((S & T) & H)).
    apply N.ltb_lt in P, S. split; [|split]; auto.
    destruct (look (receive_at t) q (row_slot w)) as [j'|]; [|discriminate]. apply N.eqb_eq in T.
    subst j'. split; auto.
    destruct (look (put_at t) q (row_slot w)) as [(q' & j)|]; [|discriminate].
    apply andb_true_iff in H as (Q & H). apply N.eqb_eq in Q. subst q'.
    unfold t in H. rewrite row_found in H. destruct (row_of p (row_peer w) j) as [v|] eqn:V; [|discriminate].
    rewrite !andb_true_iff, !N.eqb_eq, negb_true_iff in H. exists j, v. tauto.
  Qed.

  Lemma put_fits r i w : row_of p r i = Some w -> receives w = false ->
    look (put_at t) (row_peer w) (row_slot w) = Some (r, i) /\
    exists j v, look (receive_at t) (row_peer w) (row_slot w) = Some j /\ row_of p (row_peer w) j = Some v /\
      receives v = true /\ row_slot v = row_slot w.
  Proof.
    intros E R. pose proof (row_does_fit r i w E) as F. unfold row_fits in F. rewrite R in F.
    rewrite !andb_true_iff in F. destruct F as (_ & (S & H)). unfold same_place in S.
    destruct (look (put_at t) (row_peer w) (row_slot w)) as [(q' & j')|]; [|discriminate].
    apply andb_true_iff in S as (S & S'). apply N.eqb_eq in S, S'. subst. split; auto.
    destruct (look (receive_at t) (row_peer w) (row_slot w)) as [j|]; [|discriminate].
    unfold t in H. rewrite row_found in H. destruct (row_of p (row_peer w) j) as [v|] eqn:V; [|discriminate].
    rewrite andb_true_iff, N.eqb_eq in H. exists j, v. tauto.
  Qed.

  (** *** As DeviceOrder wants it *)

  Definition putter (q x : nat) : N * N :=
    match look (put_at t) (N.of_nat q) (N.of_nat x) with Some a => a | None => (0, 0) end.

  Definition receipt (q x : nat) : N :=
    match look (receive_at t) (N.of_nat q) (N.of_nat x) with Some i => i | None => 0 end.

  Definition by_ (_ q x : nat) : nat := N.to_nat (fst (putter q x)).
  Definition st (_ q x : nat) : nat := N.to_nat (2 * snd (putter q x)).
  Definition ra (_ q x : nat) : nat := N.to_nat (2 * snd (putter q x) + 1).
  Definition wa (_ q x : nat) : nat := N.to_nat (2 * receipt q x).
  Definition ta (_ q x : nat) : nat := N.to_nat (2 * receipt q x + 1).

  Definition used (_ q x : nat) : Prop := exists i w,
    row_of p (N.of_nat q) i = Some w /\ receives w = true /\ row_slot w = N.of_nat x.

  Context {A : Type} (plus : A -> A -> A).

  Notation act := (DeviceOrder.act _ _ (runs plus p)).
  Notation len := (DeviceOrder.len _ _ (runs plus p)).

  Lemma flat_pairs {X Y} (f : X -> list Y) (l : list X) : (forall x, length (f x) = 2%nat) ->
    length (flat_map f l) = (2 * length l)%nat /\
    forall i b, (b < 2)%nat -> nth_error (flat_map f l) (2 * i + b) =
      match nth_error l i with Some x => nth_error (f x) b | None => None end.
  Proof.
    intros Two. induction l as [|x l (IL & IN)]; cbn [flat_map length].
    - split; auto. intros i b _. destruct i, b; auto.
    - split; [rewrite app_length, Two, IL; lia|]. intros i b L. destruct i as [|i].
      + rewrite nth_error_app1 by (rewrite Two; lia). reflexivity.
      + rewrite nth_error_app2 by (rewrite Two; lia). rewrite Two.
        replace (2 * S i + b - 2)%nat with (2 * i + b)%nat by lia. rewrite IN by auto. reflexivity.
  Qed.

  Lemma two_actions w : length (actions plus w) = 2%nat.
  Proof. unfold actions. now destruct (row_does w). Qed.

  Lemma len_is e r : len e r = (2 * length (rows_of p (N.of_nat r)))%nat.
  Proof. apply (flat_pairs (actions plus) (rows_of p (N.of_nat r)) two_actions). Qed.

  Lemma act_is e r i b : (b < 2)%nat -> act e r (2 * i + b) =
    match row_of p (N.of_nat r) (N.of_nat i) with
    | Some w => nth_error (actions plus w) b
    | None => None
    end.
  Proof.
    intros L. unfold DeviceOrder.act, runs, row_of. rewrite Nat2N.id.
    apply (proj2 (flat_pairs (actions plus) (rows_of p (N.of_nat r)) two_actions)); auto.
  Qed.

  Lemma act_inv e r a x : act e r a = Some x -> exists i w b, a = (2 * i + b)%nat /\ (b < 2)%nat /\
    row_of p (N.of_nat r) (N.of_nat i) = Some w /\ nth_error (actions plus w) b = Some x.
  Proof.
    intros E. exists (a / 2)%nat. pose proof (Nat.div_mod a 2 ltac:(lia)) as D.
    pose proof (Nat.mod_upper_bound a 2 ltac:(lia)) as M. rewrite D in E.
    rewrite act_is in E by lia.
    destruct (row_of p (N.of_nat r) (N.of_nat (a / 2))) as [w|]; [|discriminate].
    exists w, (a mod 2)%nat. auto.
  Qed.

  Lemma act_at e r i b w : (b < 2)%nat -> row_of p r i = Some w ->
    act e (N.to_nat r) (N.to_nat (2 * i) + b) = nth_error (actions plus w) b.
  Proof.
    intros L E. replace (N.to_nat (2 * i)) with (2 * N.to_nat i)%nat by lia.
    rewrite act_is by auto. rewrite !N2Nat.id, E. reflexivity.
  Qed.

  Lemma used_putter q i w : row_of p q i = Some w -> receives w = true ->
    let x := N.to_nat (row_slot w) in
    used 0 (N.to_nat q) x /\ receipt (N.to_nat q) x = i /\
    exists j v, putter (N.to_nat q) x = (row_peer w, j) /\ row_of p (row_peer w) j = Some v /\
      receives v = false /\ row_peer v = q /\ row_slot v = row_slot w /\ row_chunk v = row_chunk w.
  Proof.
    intros E R x. destruct (receive_fits q i w E R) as (_ & _ & T & j & v & P & H).
    split; [|split].
    - exists i, w. unfold x. now rewrite !N2Nat.id.
    - unfold receipt, x. now rewrite !N2Nat.id, T.
    - exists j, v. unfold putter, x. now rewrite !N2Nat.id, P.
  Qed.

  Lemma matches : DeviceOrder.matched _ _ (runs plus p) used by_ st ra wa ta.
  Proof.
    intros e.
    assert (Puts_ : forall r i w, row_of p (N.of_nat r) i = Some w -> receives w = false ->
      let q := N.to_nat (row_peer w) in let x := N.to_nat (row_slot w) in
      used e q x /\ r = by_ e q x /\
      N.to_nat (2 * i) = st e q x /\ N.to_nat (2 * i + 1) = ra e q x).
    { intros r i w E R q x. destruct (put_fits _ _ _ E R) as (P & j & v & _ & V & Rv & Sv).
      unfold by_, st, ra, putter, q, x. rewrite !N2Nat.id, P. cbn [fst snd]. rewrite Nat2N.id.
      split; [|auto]. exists j, v. rewrite !N2Nat.id. auto. }
    split; [|split; [|split; [|split]]].
    - intros r a q x f E. apply act_inv in E as (i & w & b & -> & L & E & X).
      destruct (row_does w) eqn:K; unfold actions in X; rewrite K in X;
        (destruct b as [|[|b]]; [| |lia]); try discriminate.
      injection X as <- <- <-. assert (R : receives w = false) by (unfold receives; now rewrite K).
      destruct (Puts_ r _ w E R) as (U & B & S & _). split; auto. split; auto.
      rewrite <- S. lia.
    - intros r a q x E. apply act_inv in E as (i & w & b & -> & L & E & X).
      destruct (row_does w) eqn:K; unfold actions in X; rewrite K in X;
        (destruct b as [|[|b]]; [| |lia]); try discriminate.
      injection X as <- <-. assert (R : receives w = false) by (unfold receives; now rewrite K).
      destruct (Puts_ r _ w E R) as (U & B & _ & S). split; auto. split; auto.
      rewrite <- S. lia.
    - intros q a x E. apply act_inv in E as (i & w & b & -> & L & E & X).
      assert (R : receives w = true /\ b = 0%nat /\ N.to_nat (row_slot w) = x).
      { unfold receives. destruct (row_does w) eqn:K; unfold actions in X; rewrite K in X;
          (destruct b as [|[|b]]; [| |lia]); try discriminate; injection X as <-; auto. }
      destruct R as (R & -> & <-). destruct (used_putter _ _ _ E R) as (U & T & _).
      rewrite Nat2N.id in U, T. split; auto. unfold wa. rewrite T. lia.
    - intros q a x g E. apply act_inv in E as (i & w & b & -> & L & E & X).
      assert (R : receives w = true /\ b = 1%nat /\ N.to_nat (row_slot w) = x).
      { unfold receives. destruct (row_does w) eqn:K; unfold actions in X; rewrite K in X;
          (destruct b as [|[|b]]; [| |lia]); try discriminate; injection X as <- _; auto. }
      destruct R as (R & -> & <-). destruct (used_putter _ _ _ E R) as (U & T & _).
      rewrite Nat2N.id in U, T. split; auto. unfold ta. rewrite T. lia.
    - intros q x (i & w & E & R & S). destruct (used_putter _ _ _ E R) as (_ & T & j & v & P & V & Rv & Pv & Sv & _).
      rewrite S, !Nat2N.id in T, P. unfold by_, st, ra, wa, ta. rewrite P, T. cbn [fst snd].
      pose proof (act_at e (row_peer w) j 0 v ltac:(lia) V) as A0.
      pose proof (act_at e (row_peer w) j 1 v ltac:(lia) V) as A1.
      pose proof (act_at e (N.of_nat q) i 0 w ltac:(lia) E) as B0.
      pose proof (act_at e (N.of_nat q) i 1 w ltac:(lia) E) as B1.
      rewrite Nat2N.id in B0, B1. rewrite Nat.add_0_r in A0, B0.
      replace (N.to_nat (2 * j) + 1)%nat with (N.to_nat (2 * j + 1)) in A1 by lia.
      replace (N.to_nat (2 * i) + 1)%nat with (N.to_nat (2 * i + 1)) in B1 by lia.
      rewrite A0, A1, B0, B1. clear A0 A1 B0 B1.
      unfold receives in R, Rv. unfold actions.
      destruct (row_does v); try discriminate. rewrite Pv, Sv, S, !Nat2N.id.
      destruct (row_does w); try discriminate; cbn [nth_error];
        repeat split; eauto; lia.
  Qed.

  (** ** Walking *)

  Lemma walk_keeps {S} (P : PM.t N -> S -> Prop) (f : S -> N -> N -> row -> S) order :
    (forall pos s r w, P pos s -> row_of p r (at_row pos r) = Some w -> ready t pos r w = true ->
      P (add_at pos r (at_row pos r + 1)) (f s r (at_row pos r) w)) ->
    forall pos s pos' s', walk t f order pos s = Some (pos', s') -> P pos s -> P pos' s'.
  Proof.
    intros Step. induction order as [|r order IH]; intros pos s pos' s' W H; simpl in W.
    - now injection W as <- <-.
    - unfold t in W. rewrite row_found in W. fold t in W.
      destruct (row_of p r (at_row pos r)) as [w|] eqn:E; [|discriminate].
      destruct (ready t pos r w) eqn:R; [|discriminate]. now apply (IH _ _ _ _ W), Step.
  Qed.

  Lemma walk_any {S S'} (f : S -> N -> N -> row -> S) (g : S' -> N -> N -> row -> S') order :
    forall pos s pos' s' u, walk t f order pos s = Some (pos', s') ->
    exists u', walk t g order pos u = Some (pos', u').
  Proof.
    induction order as [|r order IH]; intros pos s pos' s' u W; simpl in *.
    - injection W as <- <-. eauto.
    - destruct (look (row_at t) r (at_row pos r)) as [w|]; [|discriminate].
      destruct (ready t pos r w); [|discriminate]. eapply IH, W.
  Qed.

  Lemma at_row_add pos r i q : at_row (add_at pos r i) q = if q =? r then i else at_row pos q.
  Proof. unfold at_row. rewrite find_add. now destruct (q =? r). Qed.

  Lemma ready_put pos r w : receives w = true -> ready t pos r w = true ->
    forall i, row_of p r i = Some w -> exists j, putter (N.to_nat r) (N.to_nat (row_slot w)) = (row_peer w, j) /\
      j < at_row pos (row_peer w).
  Proof.
    intros R H i E. unfold ready in H. rewrite R in H.
    destruct (receive_fits r i w E R) as (_ & _ & _ & j & v & P & _). rewrite P in H.
    exists j. unfold putter. rewrite !N2Nat.id, P. split; auto. now apply N.ltb_lt.
  Qed.

  (** The rows that are done have levels. *)
  Definition levelled (pos : PM.t N) (n : nat) : Prop := exists level : N -> N -> nat,
    (forall r i, i < at_row pos r -> (level r i < n)%nat) /\
    (forall r i j, i < j -> j < at_row pos r -> (level r i < level r j)%nat) /\
    (forall r i w j, row_of p r i = Some w -> receives w = true -> i < at_row pos r ->
      putter (N.to_nat r) (N.to_nat (row_slot w)) = (row_peer w, j) ->
      j < at_row pos (row_peer w) /\ (level (row_peer w) j < level r i)%nat).

  Lemma walk_levels order pos n :
    walk t (fun n _ _ _ => S n) order (PM.empty N) 0%nat = Some (pos, n) -> levelled pos n.
  Proof.
    intros W. refine (walk_keeps levelled _ order _ _ _ _ _ W _).
    - clear pos n W. intros pos n r w (level & Less & Up & Over) E R.
      exists (fun q i => if (q =? r) && (i =? at_row pos r) then n else level q i).
      split; [|split].
      + intros q i L. rewrite at_row_add in L. destruct (N.eqb_spec q r) as [->|]; simpl.
        * destruct (N.eqb_spec i (at_row pos r)) as [->|]; [lia|]. apply Nat.lt_lt_succ_r, Less. lia.
        * apply Nat.lt_lt_succ_r, Less. lia.
      + intros q i j L Lj. rewrite at_row_add in Lj. destruct (N.eqb_spec q r) as [->|]; simpl.
        * replace (i =? at_row pos r) with false by (symmetry; apply N.eqb_neq; lia).
          destruct (N.eqb_spec j (at_row pos r)) as [->|]; [apply Less|apply Up]; lia.
        * now apply Up.
      + intros q i v j Ev Rv L P. rewrite at_row_add in *.
        destruct (N.eqb_spec q r) as [->|Ne]; simpl.
        * destruct (N.eqb_spec i (at_row pos r)) as [->|Ni].
          -- rewrite E in Ev. injection Ev as <-.
             destruct (ready_put pos r w Rv R _ E) as (j' & P' & L').
             rewrite P in P'. injection P' as <-.
             destruct (N.eqb_spec (row_peer w) r) as [Q|Nq]; simpl.
             ++ rewrite Q in *. split; [lia|].
                replace (j =? at_row pos r) with false by (symmetry; apply N.eqb_neq; lia).
                apply Less. lia.
             ++ split; auto.
          -- destruct (Over r i v j Ev Rv ltac:(lia) P) as (A1 & A2).
             destruct (N.eqb_spec (row_peer v) r) as [Q|Nq]; simpl; auto.
             rewrite Q in *. split; [lia|].
             replace (j =? at_row pos r) with false by (symmetry; apply N.eqb_neq; lia). auto.
        * destruct (Over q i v j Ev Rv L P) as (A1 & A2).
          destruct (N.eqb_spec (row_peer v) r) as [Q|Nq]; simpl; auto.
          rewrite Q in *. split; [lia|].
          replace (j =? at_row pos r) with false by (symmetry; apply N.eqb_neq; lia). auto.
    - exists (fun _ _ => 0%nat). unfold at_row. setoid_rewrite find_empty.
      split; [|split]; intros; lia.
  Qed.

  Definition complete (pos : PM.t N) : Prop := forall r, r < device_ranks p ->
    at_row pos r = N.of_nat (length (rows_of p r)).

  Lemma over_complete pos : all_over p pos = true -> complete pos.
  Proof.
    intros H r L. rewrite (proj1 sizes) in L.
    pose proof (for_all_from_spec _ _ 0 H r _ (rows_listed p r L)) as E.
    now apply N.eqb_eq in E.
  Qed.

  Lemma row_exists r i : i < N.of_nat (length (rows_of p r)) -> exists w, row_of p r i = Some w.
  Proof.
    intros L. destruct (row_of p r i) as [w|] eqn:E; eauto. apply nth_error_None in E. lia.
  Qed.

  Lemma walked_acyclic order pos n : complete pos ->
    walk t (fun n _ _ _ => S n) order (PM.empty N) 0%nat = Some (pos, n) ->
    DeviceOrder.acyclic _ _ (runs plus p) used by_ ra wa.
  Proof.
    intros C W. apply walk_levels in W as (level & Less & Up & Over).
    exists (fun _ r a => (2 * level (N.of_nat r) (N.of_nat (a / 2)) + a mod 2)%nat), (2 * n)%nat.
    assert (Row : forall e r a, (a < len e r)%nat ->
      N.of_nat (a / 2) < at_row pos (N.of_nat r) /\ (a = 2 * (a / 2) + a mod 2)%nat /\ (a mod 2 < 2)%nat).
    { intros e r a L. rewrite len_is in L. pose proof (Nat.div_mod a 2 ltac:(lia)).
      pose proof (Nat.mod_upper_bound a 2 ltac:(lia)). split; [|auto].
      destruct (row_exists (N.of_nat r) (N.of_nat (a / 2)) ltac:(lia)) as (w & E).
      pose proof (row_within p _ _ w E) as (? & ?). rewrite C; [auto|]. rewrite (proj1 sizes). auto. }
    intros e. split; [|split].
    - intros r a L. destruct (Row e r a L) as (L' & _ & M). pose proof (Less _ _ L'). lia.
    - intros r a b L Lb. destruct (Row e r a ltac:(lia)) as (_ & Ea & Ma), (Row e r b Lb) as (L' & Eb & Mb).
      destruct (Nat.eq_dec (a / 2) (b / 2)) as [D|D]; [rewrite D in *; lia|].
      pose proof (Up (N.of_nat r) (N.of_nat (a / 2)) (N.of_nat (b / 2)) ltac:(lia) L'). lia.
    - intros q x U. destruct (matches e) as (_ & _ & _ & _ & M). destruct (M q x U) as (_ & _ & _ & _ & _ & _).
      destruct U as (i & w & E & R & S). destruct (used_putter _ _ _ E R) as (_ & T & j & v & P & _).
      rewrite S, !Nat2N.id in T, P. unfold by_, ra, wa. rewrite P, T. cbn [fst snd].
      pose proof (row_within p _ _ w E) as (Li & Lq).
      destruct (Over (N.of_nat q) i w j E R) as (_ & L).
      { rewrite C; auto. rewrite (proj1 sizes). auto. }
      { now rewrite Nat2N.id, S, Nat2N.id. }
      replace (N.to_nat (2 * j + 1)) with (1 + N.to_nat j * 2)%nat by lia.
      replace (N.to_nat (2 * i)) with (0 + N.to_nat i * 2)%nat by lia.
      rewrite !Nat.div_add, !Nat.mod_add by lia.
      change (1 / 2)%nat with 0%nat. change (1 mod 2)%nat with 1%nat.
      change (0 / 2)%nat with 0%nat. change (0 mod 2)%nat with 0%nat.
      rewrite !Nat.add_0_l, !N2Nat.id. lia.
  Qed.

  (** ** Clocks *)

  Lemma before_iff x y : before x y = true <-> fst x < fst y \/ fst x = fst y /\ snd x < snd y.
  Proof.
    unfold before. now rewrite orb_true_iff, andb_true_iff, !N.ltb_lt, N.eqb_eq.
  Qed.

  Lemma before_later z x y : before z (later_of x y) = true <->
    before z x = true \/ before z y = true.
  Proof.
    unfold later_of. destruct (before x y) eqn:B.
    - split; auto. intros [H|]; auto. rewrite before_iff in *. lia.
    - split; auto. intros [|H]; auto. destruct (before z x) eqn:C; auto.
      assert (~ before x y = true) by congruence. assert (~ before z x = true) by congruence.
      rewrite before_iff in *. lia.
  Qed.

  Lemma entry_add k r v q : entry (add_at k r v) q = if q =? r then v else entry k q.
  Proof. unfold entry. rewrite find_add. now destruct (q =? r). Qed.

  Lemma entry_join k l q : entry (join_clocks k l) q = later_of (entry k q) (entry l q).
  Proof.
    unfold entry, join_clocks, find_at.
    set (f := fun a b : option (N * N) => match a, b with
      | Some x, Some y => Some (later_of x y) | Some x, None => Some x | None, _ => b end).
    set (i := N.succ_pos q).
    assert (Zero : forall x : N * N, later_of x (0, 0) = x /\ later_of (0, 0) x = x).
    { intros (x & y). unfold later_of, before. cbn [fst snd].
      destruct (N.ltb_spec x 0); [lia|]. destruct (N.ltb_spec y 0); [lia|]. rewrite andb_false_r.
      split; auto. destruct (N.ltb_spec 0 x); auto. destruct (N.eqb_spec 0 x) as [<-|].
      - destruct (N.ltb_spec 0 y); simpl; auto. f_equal. lia.
      - exfalso. lia. }
    assert (Found : PM.find i (PM.map2 f k l) = f (PM.find i k) (PM.find i l)).
    { destruct (PM.find i k) as [x|] eqn:K; [|destruct (PM.find i l) as [y|] eqn:L].
      - rewrite PM.map2_1, K; auto. left. exists x. now apply PM.find_2.
      - rewrite PM.map2_1, K, L; auto. right. exists y. now apply PM.find_2.
      - destruct (PM.find i (PM.map2 f k l)) as [z|] eqn:M; auto. exfalso.
        assert (In : PM.In i (PM.map2 f k l)) by (exists z; now apply PM.find_2).
        apply PM.map2_2 in In as [(x & In)|(x & In)]; apply PM.find_1 in In; congruence. }
    rewrite Found. unfold f. destruct (PM.find i k), (PM.find i l); auto; symmetry; apply Zero.
  Qed.

  Definition size (r : N) : N := 2 * N.of_nat (length (rows_of p r)).

  Definition event (r e a : N) : DeviceOrder.event := (N.to_nat r, N.to_nat e, N.to_nat a).

  Notation path := (DeviceOrder.path _ _ (runs plus p) used by_ ra wa).

  Lemma len_size e r : len e (N.to_nat r) = N.to_nat (size r).
  Proof. rewrite len_is, N2Nat.id. unfold size. lia. Qed.

  Lemma row_size r i w : row_of p r i = Some w -> 2 * i + 1 < size r.
  Proof. intros E. apply row_within in E as (L & _). unfold size. lia. Qed.

  Lemma order_path r e a e' a' : e < e' \/ e = e' /\ a < a' -> a < size r -> a' < size r ->
    path (event r e a) (event r e' a').
  Proof.
    intros L La La'. apply t_step, DeviceOrder.In_order; rewrite ?len_size; lia.
  Qed.

  Lemma flag_path q i w e j : row_of p q i = Some w -> receives w = true ->
    putter (N.to_nat q) (N.to_nat (row_slot w)) = (row_peer w, j) ->
    path (event (row_peer w) e (2 * j + 1)) (event q e (2 * i)).
  Proof.
    intros E R P. destruct (used_putter _ _ _ E R) as (U & T & _). apply t_step.
    pose proof (DeviceOrder.By_flag _ _ (runs plus p) used by_ ra wa (N.to_nat q) (N.to_nat (row_slot w))
      (N.to_nat e) U) as F.
    unfold by_, ra, wa in F. rewrite T, P in F. exact F.
  Qed.

  Definition not_done (e : N) (pos : PM.t N) (r e' b : N) : Prop :=
    e < e' \/ e = e' /\ 2 * at_row pos r <= b.

  (** What a clock says has been done comes before all that its rank has not done yet. *)
  Definition sound (e : N) (pos : PM.t N) (c : clocks) : Prop :=
    (forall r q e' a, before (e', a) (entry (clock_of c r) q) = true -> a < size q ->
      forall e'' b, b < size r -> not_done e pos r e'' b -> path (event q e' a) (event r e'' b)) /\
    (forall r i w, row_of p r i = Some w -> receives w = false -> i < at_row pos r ->
      forall q e' a, before (e', a) (entry (staged_at c (row_peer w) (row_slot w)) q) = true -> a < size q ->
      path (event q e' a) (event r e (2 * i + 1)) \/ (q, e', a) = (r, e, 2 * i + 1)) /\
    (race c = None -> e = device_sets p -> forall r i w j, row_of p r i = Some w -> receives w = false ->
      i < at_row pos r -> look (receive_at t) (row_peer w) (row_slot w) = Some j ->
      path (event (row_peer w) 0 (2 * j + 1)) (event r e (2 * i))).

  Lemma clock_of_add ks r k st_ x q :
    clock_of (Clocks (add_at ks r k) st_ x) q = if q =? r then k else
      match find_at ks q with Some k => k | None => PM.empty _ end.
  Proof. unfold clock_of. cbn [known]. rewrite find_add. now destruct (q =? r). Qed.

  Lemma one_put r i w r' i' w' : row_of p r i = Some w -> receives w = false ->
    row_of p r' i' = Some w' -> receives w' = false -> row_peer w' = row_peer w -> row_slot w' = row_slot w ->
    r' = r /\ i' = i.
  Proof.
    intros E R E' R' P S. destruct (put_fits r i w E R) as (L & _), (put_fits r' i' w' E' R') as (L' & _).
    rewrite P, S, L in L'. injection L'. auto.
  Qed.

  Lemma tick_sound e pos c r w : sound e pos c -> row_of p r (at_row pos r) = Some w ->
    ready t pos r w = true ->
    sound e (add_at pos r (at_row pos r + 1)) (tick p t e c r (at_row pos r) w).
  Proof.
    intros (K & M & F) E Rd. set (i := at_row pos r) in *. pose proof (row_size r i w E) as Size.
    assert (Weaker : forall r' e' b, not_done e (add_at pos r (i + 1)) r' e' b -> not_done e pos r' e' b).
    { unfold not_done. intros r' e' b. rewrite at_row_add. destruct (N.eqb_spec r' r) as [->|]; lia. }
    assert (Own : forall e' a e'' b, before (e', a) (e, 2 * i + 2) = true -> a < size r ->
      b < size r -> not_done e (add_at pos r (i + 1)) r e'' b -> path (event r e' a) (event r e'' b)).
    { intros e' a e'' b B La Lb N. apply order_path; auto. rewrite before_iff in B. cbn [fst snd] in B.
      unfold not_done in N. rewrite at_row_add, N.eqb_refl in N. lia. }
    unfold tick. destruct (receives w) eqn:R.
    - split; [|split].
      + intros r' q e' a B La e'' b Lb N. rewrite clock_of_add in B.
        destruct (N.eqb_spec r' r) as [->|Ne]; [|apply K; auto].
        rewrite entry_add in B. destruct (N.eqb_spec q r) as [->|]; [now apply Own|].
        rewrite entry_join, before_later in B. destruct B as [B|B]; [apply K; auto|].
        destruct (ready_put pos r w R Rd i E) as (j & P & Lj).
        destruct (used_putter r i w E R) as (_ & _ & j' & v & P' & V & Rv & Pv & Sv & _).
        rewrite P in P'. injection P' as <-.
        assert (Then : path (event (row_peer w) e (2 * j + 1)) (event r e'' b)).
        { apply t_trans with (event r e (2 * i)); [now apply flag_path|].
          apply order_path; auto; [|lia]. unfold not_done in N.
          rewrite at_row_add, N.eqb_refl in N. lia. }
        rewrite <- Pv, <- Sv in B.
        destruct (M (row_peer w) j v V Rv Lj q e' a B La) as [H|H].
        * eapply t_trans; eauto.
        * injection H as -> -> ->. auto.
      + intros r' i' v V Rv L. apply (M r' i' v V Rv). rewrite at_row_add in L.
        destruct (N.eqb_spec r' r) as [->|]; auto.
        assert (i' <> i) by (intros ->; rewrite E in V; congruence). unfold i in *. lia.
      + cbn [race]. intros No Se r' i' v j V Rv L. apply (F No Se r' i' v j V Rv).
        rewrite at_row_add in L. destruct (N.eqb_spec r' r) as [->|]; auto.
        assert (i' <> i) by (intros ->; rewrite E in V; congruence). unfold i in *. lia.
    - assert (Mine : forall q e' a, a < size q ->
        before (e', a) (entry (add_at (clock_of c r) r (e, 2 * i + 2)) q) = true ->
        path (event q e' a) (event r e (2 * i + 1)) \/ (q, e', a) = (r, e, 2 * i + 1)).
      { intros q e' a La B. rewrite entry_add in B. destruct (N.eqb_spec q r) as [->|].
        - rewrite before_iff in B. cbn [fst snd] in B.
          destruct (N.eq_dec e' e) as [->|]; [destruct (N.eq_dec a (2 * i + 1)) as [->|]; auto|];
            left; apply order_path; auto; lia.
        - left. apply K; auto. right. fold i. lia. }
      split; [|split].
      + intros r' q e' a B La e'' b Lb N. rewrite clock_of_add in B.
        destruct (N.eqb_spec r' r) as [->|Ne]; [|apply K; auto].
        rewrite entry_add in B. destruct (N.eqb_spec q r) as [->|]; [now apply Own|apply K; auto].
      + intros r' i' v V Rv L q e' a B La. unfold staged_at in B. cbn [staged] in B.
        rewrite look_note in B.
        destruct ((row_peer v =? row_peer w) && (row_slot v =? row_slot w)) eqn:Same.
        * apply andb_true_iff in Same as (P & S). apply N.eqb_eq in P, S.
          destruct (one_put r i w r' i' v E R V Rv P S) as (-> & ->). now apply Mine.
        * apply (M r' i' v V Rv); auto. rewrite at_row_add in L.
          destruct (N.eqb_spec r' r) as [->|]; auto.
          assert (i' <> i); [|unfold i in *; lia]. intros ->. rewrite E in V. injection V as ->.
          now rewrite !N.eqb_refl in Same.
      + cbn [race]. destruct (race c) as [x|] eqn:Rc; [discriminate|].
        destruct (too_early p t e (clock_of c r) w) eqn:Too; [discriminate|].
        intros _ Se r' i' v j V Rv L J. rewrite at_row_add in L.
        destruct (N.eq_dec r' r) as [->|Ne].
        * rewrite N.eqb_refl in L. destruct (N.eq_dec i' i) as [->|].
          -- rewrite E in V. injection V as <-. unfold too_early in Too.
             rewrite Se, N.eqb_refl, J in Too. simpl in Too. apply negb_false_iff in Too.
             destruct (put_fits r i w E R) as (_ & j' & v & J' & V & _).
             rewrite J in J'. injection J' as <-. apply K; auto.
             ++ apply (row_size _ _ _ V).
             ++ lia.
             ++ right. split; auto. fold i. lia.
          -- apply (F eq_refl Se r i' v j V Rv); auto. unfold i in *. lia.
        * replace (r' =? r) with false in L by (symmetry; now apply N.eqb_neq).
          apply (F eq_refl Se r' i' v j V Rv); auto.
  Qed.

  Lemma walk_sound e order c pos c' : sound e (PM.empty N) c ->
    walk t (tick p t e) order (PM.empty N) c = Some (pos, c') -> sound e pos c'.
  Proof.
    intros H W. refine (walk_keeps (sound e) _ order _ _ _ _ _ W H).
    intros. now apply tick_sound.
  Qed.

  Lemma at_start r : at_row (PM.empty N) r = 0.
  Proof. unfold at_row. now rewrite find_empty. Qed.

  Lemma next_sound e pos c : sound e pos c -> sound (e + 1) (PM.empty N) c.
  Proof.
    intros (K & _ & _). split; [|split].
    - intros r q e' a B La e'' b Lb N. apply K; auto. unfold not_done in *. lia.
    - intros r i w _ _ L. rewrite at_start in L. lia.
    - intros _ _ r i w j _ _ L. rewrite at_start in L. lia.
  Qed.

  Lemma nothing_sound : sound 0 (PM.empty N) nothing_known.
  Proof.
    split; [|split].
    - intros r q e' a B. unfold clock_of, nothing_known, entry in B. cbn [known] in B.
      rewrite find_empty in B. cbv iota in B. rewrite find_empty in B. cbv iota in B.
      apply before_iff in B. cbn [fst snd] in B. lia.
    - intros r i w _ _ L. rewrite at_start in L. lia.
    - intros _ _ r i w j _ _ L. rewrite at_start in L. lia.
  Qed.

  (** After so many operations, the last of which is [e]. *)
  Lemma ticks_sound order done : (exists n, walk t (fun n _ _ _ => S n) order (PM.empty N) 0%nat = Some (done, n)) ->
    forall n e c c', sound e (PM.empty N) c ->
    ticks p t order (map N.of_nat (seq (N.to_nat e) (S n))) c = Some c' ->
    sound (e + N.of_nat n) done c'.
  Proof.
    intros (m & W). induction n as [|n IH]; intros e c c' H T; cbn [seq map ticks] in T.
    - rewrite N2Nat.id in T. destruct (walk t (tick p t e) order (PM.empty N) c) as [(pos & d)|] eqn:Wt; [|discriminate].
      injection T as <-. destruct (walk_any _ (fun n _ _ _ => S n) order _ _ _ _ 0%nat Wt) as (u & Wu).
      rewrite W in Wu. injection Wu as <- _. rewrite N.add_0_r. now apply (walk_sound e order c).
    - rewrite N2Nat.id in T. destruct (walk t (tick p t e) order (PM.empty N) c) as [(pos & d)|] eqn:Wt; [|discriminate].
      replace (e + N.of_nat (S n)) with ((e + 1) + N.of_nat n) by lia. apply (IH (e + 1) d).
      + apply (next_sound e pos). now apply (walk_sound e order c).
      + replace (N.to_nat (e + 1)) with (S (N.to_nat e)) by lia. exact T.
  Qed.

  Lemma used_row e q x : used e q x -> exists i w, row_of p (N.of_nat q) i = Some w /\
    receives w = true /\ row_slot w = N.of_nat x.
  Proof. auto. Qed.

  Lemma some_set : (0 < N.to_nat (device_sets p))%nat.
  Proof. pose proof (proj2 sizes). lia. Qed.

  Lemma sound_ordered c pos : complete pos -> sound (device_sets p) pos c -> race c = None ->
    DeviceOrder.ordered _ _ (runs plus p) (N.to_nat (device_sets p)) used by_ st ra wa ta.
  Proof.
    intros C (_ & _ & F) No.
    assert (Same : forall e, runs plus p e = runs plus p 0%nat) by reflexivity.
    assert (Places : forall e q x, by_ e q x = by_ 0 q x /\ st e q x = st 0 q x /\
      ra e q x = ra 0 q x /\ wa e q x = wa 0 q x /\ ta e q x = ta 0 q x) by (repeat split).
    assert (Used : forall e q x, used e q x <-> used 0 q x) by (intros; reflexivity).
    apply (DeviceOrder.repeated_ordered _ _ _ _ _ _ _ _ _ _ matches some_set Same Used Places).
    intros q x U.
    apply (DeviceOrder.unrolled_enough _ _ _ _ _ _ _ _ _ _ some_set Same Used Places q (ta 0 q x) (by_ 0 q x) (st 0 q x)
      (N.to_nat (device_sets p)) 0).
    destruct U as (i & w & E & R & S). destruct (used_putter _ _ _ E R) as (_ & T & j & v & P & V & Rv & Pv & Sv & _).
    rewrite S, !Nat2N.id in T, P.
    assert (L : j < at_row pos (row_peer w)).
    { pose proof (row_within p _ _ v V) as (Lj & Lp). rewrite C; auto. rewrite (proj1 sizes). auto. }
    destruct (put_fits _ _ v V Rv) as (_ & i' & _ & J & _).
    pose proof (F No eq_refl (row_peer w) j v i' V Rv L J) as H.
    assert (Ei : i' = receipt q x).
    { unfold receipt. rewrite Pv, Sv, S in J. now rewrite J. }
    unfold by_, st, ta. rewrite P. cbn [fst snd]. rewrite <- Ei.
    unfold event in H. rewrite Pv, Nat2N.id in H. exact H.
  Qed.

  Lemma is_often : (Z.of_N (device_sets p) <= 2 ^ 31)%Z ->
    DeviceOrder.often (N.to_nat (device_sets p)) used.
  Proof.
    intros L. apply DeviceOrder.refreshed_often; [apply some_set| |lia]. intros e q x U _. exact U.
  Qed.

  (** Who knows of another rank has waited for it, in the same operation. *)
  Definition hears (pos : PM.t N) (c : clocks) : Prop := sound 0 pos c /\
    forall r q a, q <> r -> before (0, a) (entry (clock_of c r) q) = true -> a < size q ->
      exists b, b < size r /\ path (event q 0 a) (event r 0 b).

  Lemma walk_hears order pos c : walk t (tick p t 0) order (PM.empty N) nothing_known = Some (pos, c) ->
    hears pos c.
  Proof.
    intros W. refine (walk_keeps hears _ order _ _ _ _ _ W _).
    - clear pos c W. intros pos c r w (S & H) E Rd. split; [now apply tick_sound|].
      intros r' q a Ne B La. unfold tick in B. destruct (receives w) eqn:R.
      + rewrite clock_of_add in B. destruct (N.eqb_spec r' r) as [->|]; [|now apply H].
        rewrite entry_add in B. replace (q =? r) with false in B by (symmetry; now apply N.eqb_neq).
        rewrite entry_join, before_later in B. destruct B as [B|B]; [now apply H|].
        destruct (ready_put pos r w R Rd _ E) as (j & P & Lj).
        destruct (used_putter r _ w E R) as (_ & _ & j' & v & P' & V & Rv & Pv & Sv & _).
        rewrite P in P'. injection P' as <-. rewrite <- Pv, <- Sv in B.
        pose proof (flag_path r _ w 0 j E R P) as Fl.
        exists (2 * at_row pos r). split; [pose proof (row_size _ _ _ E); lia|].
        destruct S as (_ & M & _). destruct (M _ _ _ V Rv Lj q 0 a B La) as [G|G].
        * eapply t_trans; eauto.
        * now injection G as -> ->.
      + rewrite clock_of_add in B. destruct (N.eqb_spec r' r) as [->|]; [|now apply H].
        rewrite entry_add in B. replace (q =? r) with false in B by (symmetry; now apply N.eqb_neq).
        now apply H.
    - split; [apply nothing_sound|]. intros r q a _ B. unfold clock_of, nothing_known, entry in B.
      cbn [known] in B. rewrite find_empty in B. cbv iota in B. rewrite find_empty in B.
      cbv iota in B. apply before_iff in B. cbn [fst snd] in B. lia.
  Qed.

  Lemma heard_all pos c : hears pos c -> heard p t c = true ->
    forall e, DeviceOrder.all_heard _ _ (runs plus p) used by_ ra wa (N.to_nat (device_ranks p)) e.
  Proof.
    intros (_ & K) H e q r Lq Lr Ne. unfold heard in H. rewrite forallb_forall in H.
    specialize (H (N.of_nat r)). cbv beta in H. rewrite in_range, forallb_forall in H.
    specialize (H ltac:(lia) (N.of_nat q)).
    rewrite in_range, orb_true_iff, andb_true_iff, N.eqb_eq in H.
    destruct (H ltac:(lia)) as [?|(B & Row)]; [lia|]. clear H. unfold t in Row. rewrite row_found in Row.
    destruct (row_of p (N.of_nat q) 0) as [w|] eqn:E; [|discriminate].
    pose proof (row_size _ _ _ E) as Size.
    destruct (K (N.of_nat r) (N.of_nat q) 0) as (b & Lb & P); auto; try lia.
    exists 0%nat, (N.to_nat b). rewrite !len_is. unfold size in *. split; [lia|]. split; [lia|].
    assert (Same : forall e, runs plus p e = runs plus p 0%nat) by reflexivity.
    assert (Places : forall e q x, by_ e q x = by_ 0 q x /\ st e q x = st 0 q x /\
      ra e q x = ra 0 q x /\ wa e q x = wa 0 q x /\ ta e q x = ta 0 q x) by (repeat split).
    assert (Used : forall e q x, used e q x <-> used 0 q x) by (intros; reflexivity).
    pose proof (DeviceOrder.path_shift _ _ _ _ _ _ _ _ _ _ some_set Same Used Places e _ _ P) as G.
    unfold event, DeviceOrder.later, DeviceOrder.epoch in G. cbn [fst snd] in G.
    rewrite !Nat2N.id in G. exact G.
  Qed.

  (** ** Values *)

  Section Values.
    Variable x : nat -> N -> N -> A.

    (** What a value says of what is held, where ranks bring [x]. *)
    Variable stands : nat -> value -> N -> A -> Prop.
    Hypothesis stands_own : forall e r c, stands e (own_value r) c (x e r c).
    Hypothesis stands_add : forall e a b c u v, stands e a c u -> stands e b c v ->
      stands e (add_values a b) c (plus u v).

    Definition brought (r : nat) : N -> A := x 0 (N.of_nat r).
    Definition next (r e : nat) (_ : N -> A) : N -> A := x (S e) (N.of_nat r).

    Notation has := (DeviceOrder.has _ _ (runs plus p) brought next by_ st).

    Definition slot_value (h : held) (r s : N) : value :=
      match look (in_slots h) r s with Some v => v | None => None end.

    Definition valued (e : nat) (pos : PM.t N) (h : held) : Prop :=
      (forall r, exists d, has (N.to_nat r) e (N.to_nat (2 * at_row pos r)) d /\
        forall c, stands e (own_at h r c) c (d c)) /\
      (forall r i w, row_of p r i = Some w -> receives w = false -> i < at_row pos r ->
        exists d, has (N.to_nat r) e (N.to_nat (2 * i)) d /\
          stands e (slot_value h (row_peer w) (row_slot w)) (row_chunk w) (d (row_chunk w))).

    Lemma own_write h r c v sl r' c' : own_at (Held (write (own h) r c v) sl) r' c' =
      if (r' =? r) && (c' =? c) then v else own_at h r' c'.
    Proof. unfold own_at. cbn [own]. apply read_write. Qed.

    Lemma carry_valued e pos h r w : valued e pos h -> row_of p r (at_row pos r) = Some w ->
      ready t pos r w = true ->
      valued e (add_at pos r (at_row pos r + 1)) (carry h r (at_row pos r) w).
    Proof.
      intros (O & M) E Rd. set (i := at_row pos r) in *.
      destruct (O r) as (d & H & Hd). fold i in H.
      pose proof (act_at e r i 0 w ltac:(lia) E) as A0.
      pose proof (act_at e r i 1 w ltac:(lia) E) as A1. rewrite Nat.add_0_r in A0.
      assert (First : forall a, nth_error (actions plus w) 0 = Some a ->
        (forall s g, a <> DeviceOrder.Take _ _ s g) -> has (N.to_nat r) e (N.to_nat (2 * i) + 1) d).
      { intros a Ea N. rewrite Nat.add_1_r. eapply DeviceOrder.Keeps; eauto. now rewrite A0. }
      assert (Old : forall r' i' v, row_of p r' i' = Some v -> receives v = false ->
        i' < at_row (add_at pos r (i + 1)) r' -> receives w = true \/ (r', i') <> (r, i) ->
        i' < at_row pos r').
      { intros r' i' v V Rv L N. rewrite at_row_add in L. destruct (N.eqb_spec r' r) as [->|]; auto.
        assert (i' <> i); [|unfold i in *; lia]. intros ->. destruct N as [N|N]; [|now apply N].
        rewrite E in V. congruence. }
      unfold carry. destruct (row_does w) eqn:K.
      - assert (R : receives w = false) by (unfold receives; now rewrite K).
        split.
        + intros q. rewrite at_row_add. destruct (N.eqb_spec q r) as [->|]; [|apply O].
          exists d. split; auto. replace (N.to_nat (2 * (i + 1))) with (S (N.to_nat (2 * i) + 1)) by lia.
          unfold actions in A1. rewrite K in A1. cbn [nth_error] in A1.
          eapply DeviceOrder.Keeps; [|exact A1|discriminate].
          eapply First; [unfold actions; rewrite K; reflexivity|discriminate].
        + intros r' i' v V Rv L. unfold slot_value. cbn [in_slots]. rewrite look_note.
          destruct ((row_peer v =? row_peer w) && (row_slot v =? row_slot w)) eqn:Same.
          * apply andb_true_iff in Same as (P & S). apply N.eqb_eq in P, S.
            destruct (one_put r i w r' i' v E R V Rv P S) as (-> & ->).
            rewrite E in V. injection V as <-. exists d. split; auto.
          * apply M; auto. apply (Old r' i' v); auto. right. intros [= -> ->].
            rewrite E in V. injection V as <-. now rewrite !N.eqb_refl in Same.
      - assert (R : receives w = true) by (unfold receives; now rewrite K).
        destruct (ready_put pos r w R Rd i E) as (j & P & Lj).
        destruct (used_putter r i w E R) as (_ & _ & j' & v & P' & V & Rv & Pv & Sv & Cv).
        rewrite P in P'. injection P' as <-.
        destruct (M (row_peer w) j v V Rv Lj) as (d' & H' & Hd'). rewrite Pv, Sv, Cv in Hd'.
        split.
        + intros q. rewrite at_row_add. destruct (N.eqb_spec q r) as [->|Ne].
          * eexists. split.
            -- replace (N.to_nat (2 * (i + 1))) with (S (N.to_nat (2 * i) + 1)) by lia.
               eapply DeviceOrder.Takes with (x := N.to_nat (row_slot w)) (d' := d').
               ++ rewrite A1. unfold actions. rewrite K. reflexivity.
               ++ eapply First; [unfold actions; rewrite K; reflexivity|discriminate].
               ++ unfold by_, st. rewrite P. cbn [fst snd].
                  pose proof (act_at e (row_peer w) j 0 v ltac:(lia) V) as B0. rewrite Nat.add_0_r in B0.
                  rewrite B0. unfold receives in Rv. unfold actions. destruct (row_does v); try discriminate.
                  cbn [nth_error]. now rewrite Pv, Sv, Cv.
               ++ unfold by_, st. rewrite P. exact H'.
            -- intros c. rewrite own_write, N.eqb_refl. simpl andb.
               destruct (N.eqb_spec c (row_chunk w)) as [->|]; [apply stands_add|]; auto.
          * destruct (O q) as (dq & Hq & Hdq). exists dq. split; auto. intros c. rewrite own_write.
            rewrite (proj2 (N.eqb_neq q r) Ne). apply Hdq.
        + intros r' i' v' V' Rv' L. apply M; auto. eapply Old; eauto.
      - assert (R : receives w = true) by (unfold receives; now rewrite K).
        destruct (ready_put pos r w R Rd i E) as (j & P & Lj).
        destruct (used_putter r i w E R) as (_ & _ & j' & v & P' & V & Rv & Pv & Sv & Cv).
        rewrite P in P'. injection P' as <-.
        destruct (M (row_peer w) j v V Rv Lj) as (d' & H' & Hd'). rewrite Pv, Sv, Cv in Hd'.
        split.
        + intros q. rewrite at_row_add. destruct (N.eqb_spec q r) as [->|Ne].
          * eexists. split.
            -- replace (N.to_nat (2 * (i + 1))) with (S (N.to_nat (2 * i) + 1)) by lia.
               eapply DeviceOrder.Takes with (x := N.to_nat (row_slot w)) (d' := d').
               ++ rewrite A1. unfold actions. rewrite K. reflexivity.
               ++ eapply First; [unfold actions; rewrite K; reflexivity|discriminate].
               ++ unfold by_, st. rewrite P. cbn [fst snd].
                  pose proof (act_at e (row_peer w) j 0 v ltac:(lia) V) as B0. rewrite Nat.add_0_r in B0.
                  rewrite B0. unfold receives in Rv. unfold actions. destruct (row_does v); try discriminate.
                  cbn [nth_error]. now rewrite Pv, Sv, Cv.
               ++ unfold by_, st. rewrite P. exact H'.
            -- intros c. rewrite own_write, N.eqb_refl. simpl andb.
               destruct (N.eqb_spec c (row_chunk w)) as [->|]; auto.
          * destruct (O q) as (dq & Hq & Hdq). exists dq. split; auto. intros c. rewrite own_write.
            rewrite (proj2 (N.eqb_neq q r) Ne). apply Hdq.
        + intros r' i' v' V' Rv' L. apply M; auto. eapply Old; eauto.
    Qed.

    Definition nothing_held : held := Held (PM.empty _) (PM.empty _).

    Lemma start_valued e : (forall r, has r e 0 (x e (N.of_nat r))) -> valued e (PM.empty N) nothing_held.
    Proof.
      intros H. split.
      - intros r. rewrite at_start. exists (x e r). split.
        + specialize (H (N.to_nat r)). now rewrite N2Nat.id in H.
        + intros c. unfold own_at, read, Tables.row, nothing_held. cbn [own].
          rewrite find_empty. rewrite find_empty. apply stands_own.
      - intros r i w _ _ L. rewrite at_start in L. lia.
    Qed.

    Lemma ends_valued order pos h : complete pos ->
      walk t carry order (PM.empty N) nothing_held = Some (pos, h) ->
      forall e r, exists d, has r e (len e r) d /\ forall c, stands e (own_at h (N.of_nat r) c) c (d c).
    Proof.
      intros C W.
      assert (G : forall e, (forall r, has r e 0 (x e (N.of_nat r))) ->
        forall r, exists d, has r e (len e r) d /\ forall c, stands e (own_at h (N.of_nat r) c) c (d c)).
      { intros e H r.
        assert (V : valued e pos h).
        { refine (walk_keeps (valued e) _ order _ _ _ _ _ W (start_valued e H)).
          intros. now apply carry_valued. }
        destruct V as (V & _). destruct (V (N.of_nat r)) as (d & Hd & Sd). exists d. split; auto.
        rewrite Nat2N.id in Hd. replace (len e r) with (N.to_nat (2 * at_row pos (N.of_nat r))); auto.
        rewrite len_is. destruct (N.lt_ge_cases (N.of_nat r) (device_ranks p)) as [L|L].
        - rewrite C by auto. lia.
        - assert (Z : rows_of p (N.of_nat r) = []).
          { unfold rows_of. apply nth_overflow. rewrite (proj1 sizes) in L. lia. }
          rewrite Z. cbn [length].
          destruct (N.eq_dec (at_row pos (N.of_nat r)) 0) as [->|Ne]; auto.
          exfalso. assert (K : forall q, at_row pos q <= N.of_nat (length (rows_of p q))).
          { refine (walk_keeps (fun pos _ => forall q, at_row pos q <= N.of_nat (length (rows_of p q)))
              _ order _ _ _ _ _ W _).
            - intros pos' s' r' w' I E' _ q. rewrite at_row_add.
              destruct (N.eqb_spec q r') as [->|]; auto. apply row_within in E'. lia.
            - intros q. rewrite at_start. lia. }
          specialize (K (N.of_nat r)). rewrite Z in K. simpl in K. lia. }
      assert (B : forall e r, has r e 0 (x e (N.of_nat r))).
      { induction e as [|e IH]; intros r; [apply (DeviceOrder.Starts _ _ (runs plus p) brought next by_ st)|].
        destruct (G e IH r) as (d & Hd & _).
        apply (DeviceOrder.Begins _ _ (runs plus p) brought next by_ st r e d Hd). }
      auto.
    Qed.
  End Values.
End Matching.

(** ** What is accepted *)

Lemma accepted_inv p s :
  device_accepted (decide_device p s) = true ->
  let t := tables_of p in
  slots_match p t = true /\ exists order pos h one c,
    complete p pos /\ walk t carry order (PM.empty N) nothing_held = Some (pos, h) /\
    ticks p t order [0] nothing_known = Some one /\
    ticks p t order (map (N.add 1) (range (device_sets p))) one = Some c /\
    heard p t one = true /\ race c = None /\ same_sums p s h = Some true.
Proof.
  intros H t. unfold decide_device in H. fold t in H.
  destruct (slots_match p t) eqn:F; [|discriminate]. split; auto. simpl negb in H. cbv iota in H.
  set (order := order_of p t) in *. fold nothing_held in H.
  destruct (walk t carry order (PM.empty N) nothing_held) as [(pos & h)|] eqn:W; [|discriminate].
  destruct (all_over p pos) eqn:Ov; [|now destruct (all_wait p t pos)].
  destruct (ticks p t order [0] nothing_known) as [one|] eqn:One; [|discriminate].
  destruct (ticks p t order (map (N.add 1) (range (device_sets p))) one) as [c|] eqn:T; [|discriminate].
  exists order, pos, h, one, c. unfold device_accepted in H. cbn [slots_do_match is_deadlock_free is_race_free all_are_heard has_same_sums] in H.
  destruct (race c) eqn:Rc; [discriminate|]. destruct (heard p t one) eqn:Hd; [|discriminate].
  destruct (same_sums p s h) as [[|]|] eqn:Sm; try discriminate.
  split; [now apply over_complete|]. tauto.
Qed.

Section Accepted.
  Variables (p : program) (s : schedule).
  Hypothesis ok : device_accepted (decide_device p s) = true.
  Hypothesis few_sets : (Z.of_N (device_sets p) <= 2 ^ 31)%Z.
  Context {A : Type} (plus : A -> A -> A).

  Notation rows := (runs plus p).
  Notation sets := (N.to_nat (device_sets p)).

  (** What the theorems of [DeviceOrder] ask for. *)
  Theorem accepted_ordered :
    DeviceOrder.matched _ _ rows (used p) (by_ p) (st p) (ra p) (wa p) (ta p) /\
    (0 < sets)%nat /\
    DeviceOrder.ordered _ _ rows sets (used p) (by_ p) (st p) (ra p) (wa p) (ta p) /\
    DeviceOrder.often sets (used p) /\
    DeviceOrder.acyclic _ _ rows (used p) (by_ p) (ra p) (wa p) /\
    forall e, DeviceOrder.all_heard _ _ rows (used p) (by_ p) (ra p) (wa p) (N.to_nat (device_ranks p)) e.
  Proof.
    destruct (accepted_inv p s ok) as (F & order & pos & h & one & c & C & W & One & T & Hd & No & _).
    destruct (walk_any p _ (fun n _ _ _ => S n) order _ _ _ _ 0%nat W) as (n & Wn).
    cbn [ticks] in One.
    destruct (walk (tables_of p) (tick p (tables_of p) 0) order (PM.empty N) nothing_known)
      as [(pos1 & one1)|] eqn:W1; [|discriminate].
    injection One as ->.
    destruct (walk_any p _ (fun n _ _ _ => S n) order _ _ _ _ 0%nat W1) as (n' & Wn').
    rewrite Wn in Wn'. injection Wn' as <- <-.
    pose proof (walk_hears p F plus order pos one W1) as Hears.
    split; [now apply matches|]. split; [now apply some_set|]. split; [|split; [|split]].
    - apply sound_ordered with c pos; auto.
      pose proof (proj2 (sizes p F)) as Some_set.
      assert (E : map (N.add 1) (range (device_sets p)) =
                  map N.of_nat (seq (N.to_nat 1) (S (N.to_nat (device_sets p - 1))))).
      { replace (S (N.to_nat (device_sets p - 1))) with (N.to_nat (device_sets p)) by lia.
        unfold range. rewrite map_map. change (N.to_nat 1) with 1%nat. rewrite <- seq_shift, map_map.
        apply map_ext. intros a. lia. }
      rewrite E in T.
      assert (Start : sound p plus 1 (PM.empty N) one).
      { apply (next_sound p plus 0 pos). apply Hears. }
      pose proof (ticks_sound p F plus order pos (ex_intro _ n Wn) _ _ _ _ Start T) as G.
      replace (1 + N.of_nat (N.to_nat (device_sets p - 1))) with (device_sets p) in G by lia. exact G.
    - now apply is_often.
    - now apply walked_acyclic with order pos n.
    - now apply (heard_all p F plus pos one).
  Qed.

  Variable x : nat -> N -> N -> A.
  Hypothesis plus_comm : forall a b, plus a b = plus b a.

  Definition evaluates (e : nat) (v : value) (c : N) (a : A) : Prop :=
    match v with Some (_, u) => a = eval plus (fun i => x e i c) u | None => True end.

  Lemma evaluates_add e a b c u v : evaluates e a c u -> evaluates e b c v ->
    evaluates e (add_values a b) c (plus u v).
  Proof.
    unfold evaluates, add_values. destruct a as [[m t1]|], b as [[m' t2]|]; auto.
    intros -> ->. destruct (_ =? 0); auto. now rewrite eval_join.
  Qed.

  (** What ranks hold at the end of an operation, told without any interleaving. *)
  Theorem accepted_values e r c d :
    DeviceOrder.has _ _ rows (brought x) (next x) (by_ p) (st p) r e
      (DeviceOrder.len _ _ rows e r) d ->
    N.of_nat r < device_ranks p -> c < device_chunks p ->
    d c = run plus (x e) (all_rounds s) (N.of_nat r) c.
  Proof.
    intros H Lr Lc.
    destruct (accepted_inv p s ok) as (F & order & pos & h & one & cl & C & W & _ & _ & _ & _ & Sm).
    destruct (ends_valued p F plus x evaluates ltac:(reflexivity) evaluates_add order pos h C W e r) as (d' & H' & V).
    rewrite (DeviceOrder.has_one _ _ _ _ _ _ _ _ _ _ _ H _ H').
    unfold same_sums in Sm.
    destruct ((device_ranks p =? ranks s) && (device_chunks p =? chunks s)) eqn:Sizes; [|discriminate].
    apply andb_true_iff in Sizes as (Er & Ec). apply N.eqb_eq in Er, Ec. simpl negb in Sm. cbv iota in Sm.
    match type of Sm with (if ?b then _ else _) = _ => destruct b eqn:B end;
      [|match type of Sm with (if ?b then _ else _) = _ => destruct b end; discriminate].
    rewrite for_all_cells_iff in B. specialize (B (N.of_nat r) c ltac:(lia) ltac:(lia)).
    specialize (V c). unfold evaluates, same_value in *.
    fold (final_value (all_rounds s) (N.of_nat r) c) in B.
    pose proof (final_value_tree (all_rounds s) (N.of_nat r) c) as Tree. unfold has_tree in Tree.
    destruct (own_at h (N.of_nat r) c) as [(m & u)|]; [|discriminate].
    destruct (final_value (all_rounds s) (N.of_nat r) c) as [(m' & u')|]; [|discriminate].
    destruct (tree_compare u u') eqn:Cmp; try discriminate. apply tree_compare_eq in Cmp. subst.
    now rewrite run_evaluates.
  Qed.
End Accepted.

(** Accepted: in every execution of any number of operations, of any numbers on the device, some
    rank can go on until all have done all; and who has done an operation's rows holds what the
    schedule's rounds make of what the ranks brought to it, for every operation that commutes (so
    in floating point, too). *)
Theorem decide_sound p s :
  device_accepted (decide_device p s) = true -> (Z.of_N (device_sets p) <= 2 ^ 31)%Z ->
  forall (A : Type) (plus : A -> A -> A), (forall a b, plus a b = plus b a) ->
  forall (x : nat -> N -> N -> A) first operations junk now,
  DeviceOrder.reached _ _ (runs plus p) (N.to_nat (device_sets p)) first (brought x) (next x)
    operations junk now ->
  (forall r, (DeviceOrder.ep _ _ now r < operations)%nat ->
    exists after, DeviceOrder.goes _ _ (runs plus p) (N.to_nat (device_sets p)) first (next x)
      operations now after) /\
  (forall r c, N.of_nat r < device_ranks p -> c < device_chunks p ->
    DeviceOrder.pos _ _ now r = length (runs plus p (DeviceOrder.ep _ _ now r) r) ->
    DeviceOrder.own _ _ now r c =
      run plus (x (DeviceOrder.ep _ _ now r)) (all_rounds s) (N.of_nat r) c).
Proof.
  intros Ok Few A plus Comm x first operations junk now R.
  destruct (accepted_ordered p s Ok Few plus) as (M & Some_ & O & Of & Ac & _). split.
  - intros r L. eapply DeviceOrder.never_stuck; eauto.
  - intros r c Lr Lc E.
    pose proof (DeviceOrder.reached_invariant _ _ _ _ _ _ _ _ _ _ _ _ _ M Some_ _ _ _ O Of R) as I.
    pose proof (DeviceOrder.owns _ _ _ _ _ _ _ _ _ _ _ _ _ _ I r) as H. rewrite E in H.
    now apply (accepted_values p s Ok plus x Comm _ r c _ H).
Qed.

(** With a schedule that is accepted, too: the sum over all ranks, in every commutative monoid. *)
Theorem decide_sums p s :
  device_accepted (decide_device p s) = true -> Check.accepted (check s) = true -> (Z.of_N (device_sets p) <= 2 ^ 31)%Z ->
  forall (M : commutative_monoid) (x : nat -> N -> N -> M) first operations junk now,
  DeviceOrder.reached _ _ (runs (Semantics.add M) p) (N.to_nat (device_sets p)) first (brought x) (next x)
    operations junk now ->
  forall r c, N.of_nat r < device_ranks p -> c < device_chunks p ->
    DeviceOrder.pos _ _ now r = length (runs (Semantics.add M) p (DeviceOrder.ep _ _ now r) r) ->
    DeviceOrder.own _ _ now r c =
      sum M (fun i => x (DeviceOrder.ep _ _ now r) i c) (range (device_ranks p)).
Proof.
  intros Ok Right Few M x first operations junk now R r c Lr Lc E.
  destruct (decide_sound p s Ok Few M (Semantics.add M) (add_comm M) x first operations junk now R)
    as (_ & H).
  rewrite (H r c Lr Lc E). destruct (check_sound s Right) as (Correct & _).
  assert (Sizes : device_ranks p = ranks s /\ device_chunks p = chunks s).
  { destruct (accepted_inv p s Ok) as (_ & ? & ? & ? & ? & ? & _ & _ & _ & _ & _ & _ & Sm).
    unfold same_sums in Sm.
    destruct ((device_ranks p =? ranks s) && (device_chunks p =? chunks s)) eqn:B; [|discriminate].
    now rewrite andb_true_iff, !N.eqb_eq in B. }
  destruct Sizes as (Er & Ec). rewrite Er in *. apply Correct; lia.
Qed.

(** ** In memory with release and acquire *)

(** The flags that owners refresh: of the slots that nobody fills. *)
Definition refreshes (p : program) (_ q x : nat) : bool :=
  (receipts (rows_of p (N.of_nat q)) <=? N.of_nat x) && (N.of_nat x <? device_slots p).

Lemma refreshes_unused p : slots_match p (tables_of p) = true ->
  forall e e' q x, refreshes p e q x = true -> ~ used p e' q x.
Proof.
  intros F e e' q x I (i & w & E & R & S). apply andb_true_iff in I as (I & _). apply N.leb_le in I.
  destruct (receive_fits p F _ i w E R) as (_ & L & _). lia.
Qed.

(** The same in weak memory, whoever stops at whatever moment: who has done an operation's rows holds
    what the schedule's rounds make of what the ranks brought; and if nobody stops, somebody can go on. *)
Theorem decide_sound_in_memory p s :
  device_accepted (decide_device p s) = true -> (Z.of_N (device_sets p) <= 2 ^ 31)%Z ->
  forall (A : Type) (plus : A -> A -> A), (forall a b, plus a b = plus b a) ->
  forall (x : nat -> N -> N -> A) first operations junk now,
  DeviceMemory.occurs _ _ (runs plus p) (N.to_nat (device_sets p)) first (brought x) (next x)
    (refreshes p) operations junk now ->
  (forall r c, N.of_nat r < device_ranks p -> c < device_chunks p ->
    DeviceMemory.mpos _ _ now r = length (runs plus p (DeviceMemory.mep _ _ now r) r) ->
    DeviceMemory.mown _ _ now r c =
      run plus (x (DeviceMemory.mep _ _ now r)) (all_rounds s) (N.of_nat r) c) /\
  ((forall q, DeviceMemory.stopped _ _ now q = false) ->
    forall r, (DeviceMemory.mep _ _ now r < operations)%nat ->
    exists after, DeviceMemory.goes_on _ _ (runs plus p) (N.to_nat (device_sets p)) first (next x)
      (refreshes p) operations now after).
Proof.
  intros Ok Few A plus Comm x first operations junk now R.
  destruct (accepted_ordered p s Ok Few plus) as (M & Some_ & O & Of & Ac & _).
  destruct (accepted_inv p s Ok) as (F & _).
  pose proof (fun e => refreshes_unused p F e e) as Unused.
  assert (Before : forall e e' q x, refreshes p e q x = true -> used p e' q x -> (e < e')%nat ->
    (e mod N.to_nat (device_sets p) = e' mod N.to_nat (device_sets p))%nat ->
    exists e1 i1, (e <= e1)%nat /\ (i1 < DeviceOrder.len _ _ (runs plus p) e1 q)%nat /\
      DeviceOrder.path _ _ (runs plus p) (used p) (by_ p) (ra p) (wa p) (q, e1, i1)
        (by_ p e' q x, e', st p e' q x)).
  { intros e e' q y I U. exfalso. now apply (refreshes_unused p F e e' q y). }
  assert (Soon : forall e q x, used p e q x -> (Z.of_nat e < 2 ^ 31)%Z \/ exists e', (e' < e)%nat /\
    (e' mod N.to_nat (device_sets p) = e mod N.to_nat (device_sets p))%nat /\
    (used p e' q x \/ refreshes p e' q x = true) /\ (Z.of_nat e - Z.of_nat e' <= 2 ^ 31)%Z).
  { intros e q y U. destruct (Of e q y U) as [|(e' & L & E & U' & N)]; auto. right. exists e'. auto. }
  split.
  - intros r c Lr Lc E. apply (accepted_values p s Ok plus x Comm _ r c _); auto.
    unfold DeviceOrder.len. rewrite <- E. eapply DeviceMemory.holds_the_same; eauto.
  - intros Going r L. eapply DeviceMemory.never_stuck_in_memory; eauto.
Qed.

(** Kernels take the set by the number of the operation, in 32 bits: for a power of two it is that
    of the epoch, also where numbers wrap around. (Of three sets it would not be.) *)
Theorem numbers_choose_sets sets first e e' : (0 < sets)%Z -> (2 ^ 32 mod sets = 0)%Z ->
  ((DeviceOrder.wrap (first + e)) mod sets = (DeviceOrder.wrap (first + e')) mod sets <->
   e mod sets = e' mod sets)%Z.
Proof.
  intros Pos Divides. unfold DeviceOrder.wrap.
  assert (W : forall z, ((z mod 2 ^ 32) mod sets = z mod sets)%Z).
  { intros z. apply Z.mod_divide in Divides as (k & K); [|lia].
    rewrite (Z.mod_eq z (2 ^ 32)) by lia. rewrite K.
    replace (z - k * sets * (z / (k * sets)))%Z with (z + (- k * (z / (k * sets))) * sets)%Z by ring.
    now rewrite Z.mod_add by lia. }
  rewrite !W. split; intros H.
  - replace e with ((first + e) - first)%Z by ring. replace e' with ((first + e') - first)%Z by ring.
    rewrite Zminus_mod, H, <- Zminus_mod. reflexivity.
  - rewrite Zplus_mod, H, <- Zplus_mod. reflexivity.
Qed.

(** ** What is refuted *)

(** A deadlock: there are ranks that end the first operation in no execution. *)
Theorem refuted_deadlock p s : is_deadlock_free (decide_device p s) = Some false ->
  exists r, (r < N.to_nat (device_ranks p))%nat /\
  forall (A : Type) (plus : A -> A -> A) start input first operations junk now,
  DeviceOrder.reached _ _ (runs plus p) (N.to_nat (device_sets p)) first start input
    operations junk now -> DeviceOrder.ep _ _ now r = 0%nat.
Proof.
  intros H. unfold decide_device in H. set (t := tables_of p) in *.
  destruct (slots_match p t) eqn:F; [|discriminate]. simpl negb in H. cbv iota in H.
  set (order := order_of p t) in *. fold nothing_held in H.
  destruct (walk t carry order (PM.empty N) nothing_held) as [(pos & h)|] eqn:W; [|discriminate].
  destruct (all_over p pos) eqn:Over.
  { destruct (ticks p t order [0] nothing_known) as [one|]; [|discriminate].
    destruct (ticks p t order _ one); discriminate. }
  destruct (all_wait p t pos) eqn:Wait_; [|discriminate]. clear H.
  assert (Stuck : forall r, r < device_ranks p -> at_row pos r <> N.of_nat (length (rows_of p r)) ->
    exists w j, row_of p r (at_row pos r) = Some w /\ receives w = true /\
      putter p (N.to_nat r) (N.to_nat (row_slot w)) = (row_peer w, j) /\ at_row pos (row_peer w) <= j).
  { intros r L Ne. rewrite (proj1 (sizes p F)) in L.
    pose proof (for_all_from_spec _ _ 0 Wait_ r _ (rows_listed p r L)) as G. cbv beta in G.
    rewrite N.add_0_l in G. unfold t in G. rewrite row_found in G. fold t in G.
    destruct (row_of p r (at_row pos r)) as [w|] eqn:E; [|apply N.eqb_eq in G; congruence].
    apply negb_true_iff in G. unfold ready in G. destruct (receives w) eqn:R; [|discriminate].
    destruct (used_putter p F r _ w E R) as (_ & _ & j & v & P & _).
    destruct (receive_fits p F r _ w E R) as (_ & _ & _ & j' & v' & P' & _).
    fold t in P'. rewrite P' in G. exists w, j. split; auto. split; auto. split; auto.
    unfold putter in P. rewrite !N2Nat.id in P. fold t in P. rewrite P' in P. injection P as ->.
    now apply N.ltb_ge. }
  assert (Within : forall r, at_row pos r <= N.of_nat (length (rows_of p r))).
  { refine (walk_keeps p (fun pos _ => forall q, at_row pos q <= N.of_nat (length (rows_of p q)))
      _ order _ _ _ _ _ W _).
    - intros pos' s' r' w' I E' _ q. rewrite at_row_add.
      destruct (N.eqb_spec q r') as [->|]; auto. apply row_within in E'. lia.
    - intros q. rewrite at_start. lia. }
  assert (Some_ : exists r, r < device_ranks p /\ at_row pos r <> N.of_nat (length (rows_of p r))).
  { assert (X : forall (l : list (list row)) i, for_all_from (fun r l => at_row pos r =? N.of_nat (length l)) i l = false ->
      exists j x, nth_error l j = Some x /\ at_row pos (i + N.of_nat j) <> N.of_nat (length x)).
    { induction l as [|x l IH]; intros i X; [discriminate|]. simpl in X.
      apply andb_false_iff in X as [X|X].
      - exists 0%nat, x. apply N.eqb_neq in X. now rewrite N.add_0_r.
      - destruct (IH (i + 1) X) as (j & y & E & Ne). exists (Datatypes.S j), y. split; auto.
        now replace (i + N.of_nat (Datatypes.S j)) with (i + 1 + N.of_nat j) by lia. }
    destruct (X _ 0 Over) as (j & x & E & Ne). exists (N.of_nat j).
    assert (L : (j < length (device_rows p))%nat) by (apply nth_error_Some; congruence).
    rewrite (proj1 (sizes p F)). split; [lia|]. rewrite N.add_0_l in Ne.
    unfold rows_of. rewrite Nat2N.id. now rewrite (nth_error_nth _ _ _ E). }
  destruct Some_ as (r0 & L0 & Ne0). exists (N.to_nat r0). split; [lia|].
  intros A plus start input first operations junk now R.
  pose (stuck := fun r => r < device_ranks p /\ at_row pos r <> N.of_nat (length (rows_of p r))).
  assert (I : (forall r, stuck r -> DeviceOrder.ep _ _ now (N.to_nat r) = 0%nat /\
      (DeviceOrder.pos _ _ now (N.to_nat r) <= N.to_nat (2 * at_row pos r))%nat) /\
    (forall q x, used p 0 q x -> at_row pos (fst (putter p q x)) <= snd (putter p q x) ->
      forall k, DeviceOrder.flag _ _ now q k x = DeviceOrder.wrap (first - 1))).
  2: { apply (proj1 I r0). split; auto. }
  induction R as [|now next_ R IH G]; [split; [intros; cbn; lia|auto]|].
  destruct IH as (Ip & If).
  destruct G as [now r a Lo Act En|now r Lo End].
  - split.
    + intros r' St. destruct (Ip r' St) as (E0 & Le).
      cbn [DeviceOrder.does DeviceOrder.again DeviceOrder.ep DeviceOrder.pos DeviceOrder.flag]. split; auto. unfold DeviceOrder.upd.
      destruct (Nat.eqb_spec (N.to_nat r') r) as [Er|]; auto. subst r.
      destruct (Nat.eq_dec (DeviceOrder.pos _ _ now (N.to_nat r')) (N.to_nat (2 * at_row pos r'))) as [Eq|]; [|lia].
      exfalso. destruct St as (Lr & Ne). destruct (Stuck r' Lr Ne) as (w & j & E & Rw & P & Lj).
      pose proof (act_at p plus (DeviceOrder.ep _ _ now (N.to_nat r')) r' (at_row pos r') 0 w
        ltac:(auto) E) as Act'.
      rewrite Nat.add_0_r, <- Eq, Act in Act'.
      assert (a = DeviceOrder.Wait _ _ (N.to_nat (row_slot w))) as ->.
      { unfold actions in Act'. unfold receives in Rw. destruct (row_does w); try discriminate;
          cbn [nth_error] in Act'; congruence. }
      cbn in En. destruct (used_putter p F r' _ w E Rw) as (U & _).
      rewrite (If _ _ U) in En by (rewrite P; exact Lj).
      unfold DeviceOrder.number in En. rewrite E0 in En.
      apply DeviceOrder.passes_wrapped in En; lia.
    + intros q x U Lj k. cbn [DeviceOrder.does DeviceOrder.again DeviceOrder.ep DeviceOrder.pos DeviceOrder.flag].
      destruct a as [q' x' f|q' x'|x'|x' g]; auto.
      destruct (matches p F plus (DeviceOrder.ep _ _ now r)) as (_ & Mr & _).
      destruct (Mr _ _ _ _ Act) as (U' & By & Ra).
      rewrite (DeviceOrder.put_other A (N -> A)); auto. intros (-> & _ & ->).
      set (b := fst (putter p q' x')) in *. set (j := snd (putter p q' x')) in *.
      assert (Eb : r = N.to_nat b) by (exact By). assert (Ej : DeviceOrder.pos _ _ now r = N.to_nat (2 * j + 1)) by (exact Ra).
      destruct U as (i & w & E & Rw & Sw). destruct (used_putter p F _ _ w E Rw) as (_ & _ & j' & v & P & V & _).
      rewrite Sw, !Nat2N.id in P. assert (b = row_peer w /\ j = j') as (Eb' & Ej').
      { unfold b, j. rewrite P. auto. }
      rewrite <- Eb', <- Ej' in V. pose proof (row_within p _ _ v V) as (Lv & Lb).
      assert (St : stuck b).
      { split; [now rewrite (proj1 (sizes p F))|]. lia. }
      destruct (Ip b St) as (_ & Le). rewrite <- Eb, Ej in Le. lia.
  - split.
    + intros r' St. destruct (Ip r' St) as (E0 & Le).
      cbn [DeviceOrder.does DeviceOrder.again DeviceOrder.ep DeviceOrder.pos DeviceOrder.flag]. unfold DeviceOrder.upd.
      destruct (Nat.eqb_spec (N.to_nat r') r) as [Er|]; auto. subst r. exfalso.
      rewrite len_is, N2Nat.id in End. destruct St as (_ & Ne). specialize (Within r'). lia.
    + intros q x U Lj k. now apply If.
Qed.

(** *** A race: the clock of a put that comes too early is a cut that is reached. *)

Section Cuts.
  Variable p : program.
  Let t := tables_of p.
  Hypothesis fits : slots_match p t = true.

  Definition inside (k : clock) (q e a : N) : Prop := before (e, a) (entry k q) = true.

  Definition closed_cut (k : clock) : Prop := forall q i w e j, row_of p q i = Some w ->
    receives w = true -> putter p (N.to_nat q) (N.to_nat (row_slot w)) = (row_peer w, j) ->
    inside k q e (2 * i) -> inside k (row_peer w) e (2 * j + 1).

  Definition bounded (e : N) (k : clock) : Prop := forall q, entry k q = (0, 0) \/
    q < device_ranks p /\ fst (entry k q) <= e /\ snd (entry k q) <= size p q.

  Definition has_done (e : N) (pos : PM.t N) (q e' a : N) : Prop :=
    e' < e \/ e' = e /\ a < 2 * at_row pos q.

  Definition only_done (e : N) (pos : PM.t N) (k : clock) : Prop := forall q e' a,
    a < size p q -> inside k q e' a -> has_done e pos q e' a.

  Definition early (r i : N) (k : clock) : Prop := exists w, row_of p r i = Some w /\
    receives w = false /\ closed_cut k /\ bounded (device_sets p) k /\
    (forall e a, a < size p r ->
      (inside k r e a <-> e < device_sets p \/ e = device_sets p /\ a < 2 * i)) /\
    forall j, look (receive_at t) (row_peer w) (row_slot w) = Some j ->
      ~ inside k (row_peer w) 0 (2 * j + 1).

  Definition whole (e : N) (pos : PM.t N) (c : clocks) : Prop :=
    (forall r, closed_cut (clock_of c r) /\ bounded e (clock_of c r) /\
      only_done e pos (clock_of c r) /\
      forall e' a, a < size p r -> has_done e pos r e' a -> inside (clock_of c r) r e' a) /\
    (forall r i w, row_of p r i = Some w -> receives w = false -> i < at_row pos r ->
      let k := staged_at c (row_peer w) (row_slot w) in
      closed_cut k /\ bounded e k /\ only_done e pos k /\ inside k r e (2 * i + 1)) /\
    (forall r i k, race c = Some (r, i, k) -> early r i k).

  Lemma has_done_more e pos r q e' a : has_done e pos q e' a ->
    has_done e (add_at pos r (at_row pos r + 1)) q e' a.
  Proof.
    unfold has_done. rewrite at_row_add. destruct (N.eqb_spec q r) as [->|]; lia.
  Qed.

  (** A clock that goes on by a row of its rank. *)
  Lemma extended e pos r w own_ k : row_of p r (at_row pos r) = Some w ->
    closed_cut k -> bounded e k -> only_done e pos k ->
    closed_cut own_ -> (forall q e' a, inside own_ q e' a -> inside k q e' a) ->
    (forall e' a, a < size p r -> has_done e pos r e' a -> inside own_ r e' a) ->
    (forall j, receives w = true ->
      putter p (N.to_nat r) (N.to_nat (row_slot w)) = (row_peer w, j) ->
      inside k (row_peer w) e (2 * j + 1)) ->
    let mine := add_at k r (e, 2 * at_row pos r + 2) in
    let pos' := add_at pos r (at_row pos r + 1) in
    closed_cut mine /\ bounded e mine /\ only_done e pos' mine /\
    (forall e' a, a < size p r -> has_done e pos' r e' a -> inside mine r e' a).
  Proof.
    intros E Ck Bk Ok Co Sub Full Put mine pos'. set (i := at_row pos r) in *.
    pose proof (row_size p r i w E) as Size. pose proof (row_within p r i w E) as (_ & Lr).
    assert (Er : forall e' a, inside mine r e' a <-> e' < e \/ e' = e /\ a < 2 * i + 2).
    { intros e' a. unfold inside, mine. rewrite entry_add, N.eqb_refl, before_iff. reflexivity. }
    assert (Eq : forall q e' a, q <> r -> (inside mine q e' a <-> inside k q e' a)).
    { intros q e' a Ne. unfold inside, mine. rewrite entry_add, (proj2 (N.eqb_neq q r) Ne). reflexivity. }
    assert (Mono : forall q e' a, a < size p q -> inside k q e' a -> inside mine q e' a).
    { intros q e' a La H. destruct (N.eq_dec q r) as [->|Ne]; [|now apply Eq].
      apply Er. pose proof (Ok r e' a La H) as D. unfold has_done in D. fold i in D. lia. }
    split; [|split; [|split]].
    - intros q i' v e' j V Rv P H.
      destruct (used_putter p fits q i' v V Rv) as (_ & _ & j' & v' & P' & V' & _).
      rewrite P in P'. injection P' as <-. pose proof (row_size p _ _ _ V') as Lj.
      apply Mono; [lia|]. pose proof (row_size p _ _ _ V) as Li.
      destruct (N.eq_dec q r) as [->|Ne]; [|apply Eq in H; auto; now apply (Ck q i' v)].
      apply Er in H. destruct (N.eq_dec i' i) as [->|Ni].
      + rewrite E in V. injection V as <-.
        destruct (N.eq_dec e' e) as [->|Nee]; [now apply Put|].
        apply Sub, (Co r i w e' j E Rv P), Full; [lia|]. left. lia.
      + apply Sub, (Co r i' v e' j V Rv P), Full; [lia|]. unfold has_done. fold i. lia.
    - intros q. unfold mine. rewrite entry_add. destruct (N.eqb_spec q r) as [->|]; [|apply Bk].
      right. cbn [fst snd]. rewrite (proj1 (sizes p fits)). unfold size in *. lia.
    - intros q e' a La H. destruct (N.eq_dec q r) as [->|Ne].
      + apply Er in H. unfold has_done, pos'. rewrite at_row_add, N.eqb_refl. lia.
      + apply has_done_more, Ok; auto. now apply Eq.
    - intros e' a La H. apply Er. unfold has_done, pos' in H. rewrite at_row_add, N.eqb_refl in H. lia.
  Qed.

  Lemma only_done_more e pos r k : only_done e pos k ->
    only_done e (add_at pos r (at_row pos r + 1)) k.
  Proof. intros H q e' a La I. now apply has_done_more, H. Qed.

  Lemma tick_whole e pos c r w : whole e pos c -> row_of p r (at_row pos r) = Some w ->
    ready t pos r w = true -> whole e (add_at pos r (at_row pos r + 1)) (tick p t e c r (at_row pos r) w).
  Proof.
    intros (K & M & Ra) E Rd. set (i := at_row pos r) in *.
    destruct (K r) as (Ck & Bk & Ok & Full).
    assert (Others : forall q, q <> r -> let k := clock_of c q in
      closed_cut k /\ bounded e k /\ only_done e (add_at pos r (i + 1)) k /\
      forall e' a, a < size p q -> has_done e (add_at pos r (i + 1)) q e' a -> inside k q e' a).
    { intros q Ne k. destruct (K q) as (H1 & H2 & H3 & H4). repeat split; auto.
      - now apply only_done_more.
      - intros e' a La H. apply H4; auto. unfold has_done in *. rewrite at_row_add in H.
        now rewrite (proj2 (N.eqb_neq q r) Ne) in H. }
    assert (Old : forall r' i' v, row_of p r' i' = Some v -> receives v = false ->
      i' < at_row (add_at pos r (i + 1)) r' -> receives w = true \/ (r', i') <> (r, i) ->
      i' < at_row pos r').
    { intros r' i' v V Rv L N. rewrite at_row_add in L. destruct (N.eqb_spec r' r) as [->|]; auto.
      assert (i' <> i); [|unfold i in *; lia]. intros ->. destruct N as [N|N]; [|now apply N].
      rewrite E in V. congruence. }
    unfold tick. destruct (receives w) eqn:R.
    - destruct (ready_put p fits pos r w R Rd i E) as (j & P & Lj).
      destruct (used_putter p fits r i w E R) as (_ & _ & j' & v & P' & V & Rv & Pv & Sv & _).
      rewrite P in P'. injection P' as <-.
      destruct (M (row_peer w) j v V Rv Lj) as (Cm & Bm & Om & Im). rewrite Pv, Sv in Cm, Bm, Om, Im.
      set (m := staged_at c r (row_slot w)) in *. set (k := clock_of c r) in *.
      assert (J : forall q e' a, inside (join_clocks k m) q e' a <-> inside k q e' a \/ inside m q e' a).
      { intros. unfold inside. rewrite entry_join. apply before_later. }
      assert (X : let mine := add_at (join_clocks k m) r (e, 2 * i + 2) in
        closed_cut mine /\ bounded e mine /\ only_done e (add_at pos r (i + 1)) mine /\
        (forall e' a, a < size p r -> has_done e (add_at pos r (i + 1)) r e' a -> inside mine r e' a)).
      { apply (extended e pos r w k); auto.
        - intros q i' v' e' j' V' Rv' P' H. apply J in H as [H|H]; apply J; [left|right].
          + now apply (Ck q i' v').
          + now apply (Cm q i' v').
        - intros q. rewrite entry_join. unfold later_of. destruct (before _ _); auto.
        - intros q e' a La H. apply J in H as [H|H]; auto.
        - intros q e' a H. apply J. auto.
        - intros j' _ P'. rewrite P in P'. injection P' as <-. apply J. auto. }
      split; [|split].
      + intros q. rewrite clock_of_add. destruct (N.eqb_spec q r) as [->|Ne]; [exact X|now apply Others].
      + intros r' i' v' V' Rv' L. destruct (M r' i' v' V' Rv') as (H1 & H2 & H3 & H4).
        { eapply Old; eauto. }
        repeat split; auto. now apply only_done_more.
      + exact Ra.
    - set (k := clock_of c r) in *.
      assert (X : let mine := add_at k r (e, 2 * i + 2) in
        closed_cut mine /\ bounded e mine /\ only_done e (add_at pos r (i + 1)) mine /\
        (forall e' a, a < size p r -> has_done e (add_at pos r (i + 1)) r e' a -> inside mine r e' a)).
      { apply (extended e pos r w k); auto. intros j H. congruence. }
      split; [|split].
      + intros q. rewrite clock_of_add. destruct (N.eqb_spec q r) as [->|Ne]; [exact X|now apply Others].
      + intros r' i' v V Rv L. unfold staged_at. cbn [staged]. rewrite look_note.
        destruct ((row_peer v =? row_peer w) && (row_slot v =? row_slot w)) eqn:Same.
        * apply andb_true_iff in Same as (P & S). apply N.eqb_eq in P, S.
          destruct (one_put p fits r i w r' i' v E R V Rv P S) as (-> & ->).
          destruct X as (X1 & X2 & X3 & X4). repeat split; auto. apply X4.
          -- apply (row_size p r i w E).
          -- right. rewrite at_row_add, N.eqb_refl. lia.
        * destruct (M r' i' v V Rv) as (H1 & H2 & H3 & H4).
          { apply (Old r' i' v); auto. right. intros [= -> ->]. rewrite E in V. injection V as <-.
            now rewrite !N.eqb_refl in Same. }
          repeat split; auto. now apply only_done_more.
      + cbn [race]. destruct (race c) as [old|] eqn:Rc; [intros r' i' k' H; now apply Ra|].
        destruct (too_early p t e k w) eqn:Too; [|discriminate]. intros r' i' k' [= <- <- <-].
        unfold too_early in Too. apply andb_true_iff in Too as (Ee & Too). apply N.eqb_eq in Ee. subst e.
        exists w. split; auto. split; auto. split; auto. split; auto. split.
        * intros e' a La. split; [intros H; exact (Ok r e' a La H)|intros H; now apply Full].
        * intros j J. rewrite J in Too. apply negb_true_iff in Too. unfold inside. congruence.
  Qed.

  Lemma next_whole e pos c : complete p pos -> whole e pos c -> whole (e + 1) (PM.empty N) c.
  Proof.
    intros C (K & _ & Ra).
    assert (Over : forall q e' a, a < size p q -> e' < e + 1 -> has_done e pos q e' a).
    { intros q e' a La L. destruct (N.eq_dec e' e) as [->|]; [right|left; lia]. split; auto.
      destruct (row_exists p q (a / 2)) as (w & E).
      - unfold size in La. apply N.div_lt_upper_bound; lia.
      - pose proof (row_within p q _ w E) as (_ & Lq). rewrite C; [unfold size in La; lia|].
        now rewrite (proj1 (sizes p fits)). }
    split; [|split; [|exact Ra]].
    - intros r. destruct (K r) as (H1 & H2 & H3 & H4). repeat split; auto.
      + intros q. destruct (H2 q) as [|(? & ? & ?)]; auto. right. repeat split; auto. lia.
      + intros q e' a La H. left. destruct (H3 q e' a La H); lia.
      + intros e' a La H. apply H4; auto. apply Over; auto.
        destruct H as [|(_ & H)]; auto. rewrite at_start in H. lia.
    - intros r i w _ _ L. rewrite at_start in L. lia.
  Qed.

  Lemma nothing_whole : whole 0 (PM.empty N) nothing_known.
  Proof.
    assert (N0 : forall r q e a, ~ inside (clock_of nothing_known r) q e a).
    { intros r q e a B. unfold inside, clock_of, nothing_known, entry in B. cbn [known] in B.
      rewrite find_empty in B. cbv iota in B. rewrite find_empty in B. cbv iota in B.
      apply before_iff in B. cbn [fst snd] in B. lia. }
    split; [|split; [|discriminate]].
    - intros r. split; [|split; [|split]].
      + intros q i w e j _ _ _ H. now apply N0 in H.
      + intros q. left. unfold entry, clock_of, nothing_known. cbn [known]. rewrite find_empty.
        cbv iota. now rewrite find_empty.
      + intros q e a _ H. now apply N0 in H.
      + intros e a _ [H|(_ & H)]; [lia|]. rewrite at_start in H. lia.
    - intros r i w _ _ L. rewrite at_start in L. lia.
  Qed.

  Lemma ticks_whole order : forall n e c c', whole e (PM.empty N) c ->
    (forall pos u, walk t carry order (PM.empty N) nothing_held = Some (pos, u) -> complete p pos) ->
    ticks p t order (map N.of_nat (seq (N.to_nat e) n)) c = Some c' ->
    whole (e + N.of_nat n) (PM.empty N) c'.
  Proof.
    induction n as [|n IH]; intros e c c' H C T; cbn [seq map ticks] in T.
    - injection T as <-. now rewrite N.add_0_r.
    - rewrite N2Nat.id in T.
      destruct (walk t (tick p t e) order (PM.empty N) c) as [(pos & d)|] eqn:Wt; [|discriminate].
      replace (e + N.of_nat (Datatypes.S n)) with ((e + 1) + N.of_nat n) by lia. apply (IH (e + 1) d).
      + apply (next_whole e pos).
        * destruct (walk_any p _ carry order _ _ _ _ nothing_held Wt) as (u & Wu). now apply (C pos u).
        * refine (walk_keeps p (whole e) _ order _ _ _ _ _ Wt H). intros. now apply tick_whole.
      + exact C.
      + replace (N.to_nat (e + 1)) with (Datatypes.S (N.to_nat e)) by lia. exact T.
  Qed.
End Cuts.

(** There is an execution in which a slot is stored into before the take of [sets] operations ago. *)
Theorem refuted_race p s : is_race_free (decide_device p s) = Some false ->
  (Z.of_N (device_sets p) < 2 ^ 31)%Z ->
  exists q x, used p 0 q x /\
  forall (A : Type) (plus : A -> A -> A) start input first junk, exists now,
  DeviceOrder.reached _ _ (runs plus p) (N.to_nat (device_sets p)) first start input
    (Datatypes.S (N.to_nat (device_sets p))) junk now /\
  DeviceOrder.done _ _ now (by_ p 0 q x) (N.to_nat (device_sets p)) (st p 0 q x) /\
  ~ DeviceOrder.done _ _ now q 0 (ta p 0 q x).
Proof.
  intros H Few. unfold decide_device in H. set (t := tables_of p) in *.
  destruct (slots_match p t) eqn:F; [|discriminate]. simpl negb in H. cbv iota in H.
  set (order := order_of p t) in *. fold nothing_held in H.
  destruct (walk t carry order (PM.empty N) nothing_held) as [(pos & h)|] eqn:W; [|discriminate].
  destruct (all_over p pos) eqn:Over; [|now destruct (all_wait p t pos)].
  destruct (ticks p t order [0] nothing_known) as [one|] eqn:One; [|discriminate].
  destruct (ticks p t order (map (N.add 1) (range (device_sets p))) one) as [c|] eqn:T; [|discriminate].
  destruct (race c) as [((r & i) & k)|] eqn:Rc; [|discriminate]. clear H.
  pose proof (over_complete p F pos Over) as C.
  assert (Wh : whole p (device_sets p + 1) (PM.empty N) c).
  { assert (C' : forall pos' u, walk t carry order (PM.empty N) nothing_held = Some (pos', u) -> complete p pos').
    { intros pos' u W'. rewrite W in W'. now injection W' as <- _. }
    pose proof (ticks_whole p F order 1 0 _ _ (nothing_whole p) C' One) as W1.
    assert (E : map (N.add 1) (range (device_sets p)) =
                map N.of_nat (seq (N.to_nat 1) (N.to_nat (device_sets p)))).
    { unfold range. rewrite map_map. change (N.to_nat 1) with 1%nat. rewrite <- seq_shift, map_map.
      apply map_ext. intros a. lia. }
    rewrite E in T. pose proof (ticks_whole p F order _ _ _ _ W1 C' T) as W2.
    replace (device_sets p + 1) with (0 + N.of_nat 1 + N.of_nat (N.to_nat (device_sets p))) by lia. exact W2. }
  destruct Wh as (_ & _ & Ra). destruct (Ra r i k Rc) as (w & E & R & Ck & Bk & Own & Late). clear Ra.
  destruct (put_fits p F r i w E R) as (Pa & j & v & J & V & Rv & Sv). fold t in Pa, J.
  pose proof (row_size p r i w E) as Size. pose proof (row_within p r i w E) as (_ & Lr).
  set (q := N.to_nat (row_peer w)). set (x := N.to_nat (row_slot w)).
  assert (Px : putter p q x = (r, i)).
  { unfold putter, q, x. rewrite !N2Nat.id. fold t. now rewrite Pa. }
  assert (Tx : receipt p q x = j).
  { unfold receipt, q, x. rewrite !N2Nat.id. fold t. now rewrite J. }
  exists q, x. split; [exists j, v; unfold q, x; now rewrite !N2Nat.id|].
  intros A plus start input first junk.
  pose (cut := fun q => if q =? r then (device_sets p, 2 * i + 1) else entry k q).
  destruct (walk_any p _ (fun n _ _ _ => Datatypes.S n) order _ _ _ _ 0%nat W) as (n & Wn).
  pose proof (walked_acyclic p F plus order pos n C Wn) as Ac.
  assert (Cut : forall y, cut y = (0, 0) \/ y < device_ranks p /\ fst (cut y) <= device_sets p /\ snd (cut y) <= size p y).
  { intros y. unfold cut. destruct (N.eqb_spec y r) as [->|]; [|apply Bk]. right. cbn [fst snd].
    rewrite (proj1 (sizes p F)). lia. }
  assert (Mono : forall y e a, a < size p y -> inside k y e a ->
    e < fst (cut y) \/ e = fst (cut y) /\ a < snd (cut y)).
  { intros y e a La I. unfold cut. destruct (N.eqb_spec y r) as [->|]; [|now apply before_iff in I].
    apply Own in I; auto. cbn [fst snd]. lia. }
  destruct (DeviceOrder.cut_reached _ _ (runs plus p) (N.to_nat (device_sets p)) first start input
    (used p) (by_ p) (st p) (ra p) (wa p) (ta p) (matches p F plus) (some_set p F)
    (Datatypes.S (N.to_nat (device_sets p))) junk (N.to_nat (device_ranks p))
    (2 * list_max (map (@length row) (device_rows p)))%nat
    (fun y => N.to_nat (fst (cut (N.of_nat y)))) (fun y => N.to_nat (snd (cut (N.of_nat y)))))
    as (now & Re & At); auto.
  - intros e y. rewrite len_is. apply Nat.mul_le_mono_l. unfold rows_of. rewrite Nat2N.id.
    destruct (le_lt_dec (length (device_rows p)) y) as [L|L]; [rewrite nth_overflow by auto; simpl; lia|].
    apply (proj1 (Forall_forall _ _) (proj1 (list_max_le _ _) (le_n (list_max (map (@length row) (device_rows p)))))).
    now apply in_map, nth_In.
  - intros y L. destruct (Cut (N.of_nat y)) as [->|(? & _)]; [auto|lia].
  - intros y. rewrite len_is. destruct (Cut (N.of_nat y)) as [->|(_ & _ & L)]; [simpl; lia|].
    unfold size in L. lia.
  - intros y. destruct (Cut (N.of_nat y)) as [->|(_ & L & _)]; [simpl; lia|]. lia.
  - intros y. destruct (Cut (N.of_nat y)) as [->|(_ & L & _)]; [simpl; lia|]. lia.
  - intros y z e U I. unfold DeviceOrder.inside in *.
    destruct U as (i' & v' & E' & R' & S').
    destruct (used_putter p F _ _ v' E' R') as (_ & T' & j' & u & P' & V' & _).
    rewrite S', !Nat2N.id in T', P'. unfold wa, by_, ra in *. rewrite T' in I. rewrite P'. cbn [fst snd].
    pose proof (row_size p _ _ _ V') as Lj. pose proof (row_size p _ _ _ E') as Li.
    assert (G : inside k (row_peer v') (N.of_nat e) (2 * j' + 1)).
    { apply (Ck (N.of_nat y) i' v' (N.of_nat e) j' E' R'); [now rewrite Nat2N.id, S', Nat2N.id|].
      unfold cut in I. destruct (N.eqb_spec (N.of_nat y) r) as [Ey|Ne].
      - cbn [fst snd] in I. rewrite Ey in *. apply Own; [lia|].
        assert (i' <> i) by (intros ->; rewrite E in E'; congruence). lia.
      - unfold inside. rewrite before_iff. cbn [fst snd]. lia. }
    apply Mono in G; [|lia]. rewrite N2Nat.id. lia.
  - exists now. split; [exact Re|]. unfold by_, st, ta. rewrite Px, Tx. cbn [fst snd].
    unfold DeviceOrder.at_cut in At. split.
    + destruct (At (N.to_nat r)) as (Ae & Ap). unfold DeviceOrder.done. rewrite Ae, Ap, N2Nat.id.
      unfold cut. rewrite N.eqb_refl. cbn [fst snd]. right. lia.
    + destruct (At q) as (Ae & Ap). unfold DeviceOrder.done. rewrite Ae, Ap. unfold q. rewrite N2Nat.id.
      intros D. apply (Late j J). unfold cut in D. destruct (N.eqb_spec (row_peer w) r) as [Eq|Ne].
      * exfalso. pose proof (row_does_fit p F r i w E) as Fit. unfold row_fits in Fit.
        rewrite !andb_true_iff, negb_true_iff in Fit. destruct Fit as ((((_ & Fit) & _) & _) & _).
        rewrite Eq, N.eqb_refl in Fit. discriminate.
      * unfold inside. rewrite before_iff. cbn [fst snd]. lia.
Qed.

(** *** Wrong sums: on trees, which are the data of an operation that commutes and no more. *)

Fixpoint leaves (u : tree) : list source :=
  match u with Leaf r => [Rank r] | Node a b => leaves a ++ leaves b end.

Definition is_tree (v : value) (u : tree) : Prop := has_tree v u /\ stands_for v (leaves u).

Lemma stands_swapped v l l' : stands_for v (l ++ l') -> stands_for v (l' ++ l).
Proof.
  pose proof (Permutation_app_comm l l') as P. pose proof (Permutation_sym P) as P'.
  unfold stands_for. destruct v as [(m & u)|].
  - intros (C & B). split; [now apply (clean_permutation _ _ P)|]. intros r. rewrite (B r).
    split; apply Permutation_in; auto.
  - intros N C. apply N. now apply (clean_permutation _ _ P').
Qed.

Lemma is_tree_add a b u v : is_tree a u -> is_tree b v -> is_tree (add_values a b) (join u v).
Proof.
  intros (H & S) (H' & S'). split; [now apply add_has_tree|]. pose proof (add_stands _ _ _ _ S S') as G.
  unfold join. destruct (tree_compare u v); auto. now apply stands_swapped.
Qed.

Lemma final_is_tree rs r c : is_tree (final_value rs r c) (final_trees rs r c).
Proof.
  unfold final_value, final_values. rewrite run_table_ok.
  refine (run_related add_values join (fun _ => is_tree) _ (fun _ => True)
            rs _ (fun r _ => Leaf r) _ _ r c I).
  - intros _ a b a' b'. apply is_tree_add.
  - apply Forall_forall; intros rd _. apply Forall_forall; auto.
  - intros r' c' _. split; [reflexivity|apply own_stands].
Qed.

(** If sums are refuted, the program is for other sizes, or there is a chunk on a rank that ends with
    another tree than the schedule's, in every operation. *)
Theorem refuted_sums p s : has_same_sums (decide_device p s) = Some false ->
  device_ranks p <> ranks s \/ device_chunks p <> chunks s \/
  exists r c, r < ranks s /\ c < chunks s /\ forall e d,
    DeviceOrder.has _ _ (runs join p) (brought (fun _ r _ => Leaf r)) (next (fun _ r _ => Leaf r))
      (by_ p) (st p) (N.to_nat r) e (DeviceOrder.len _ _ (runs join p) e (N.to_nat r)) d ->
    d c <> run join (fun r _ => Leaf r) (all_rounds s) r c.
Proof.
  intros H. unfold decide_device in H. set (t := tables_of p) in *.
  destruct (slots_match p t) eqn:F; [|discriminate]. simpl negb in H. cbv iota in H.
  set (order := order_of p t) in *. fold nothing_held in H.
  destruct (walk t carry order (PM.empty N) nothing_held) as [(pos & h)|] eqn:W; [|discriminate].
  destruct (all_over p pos) eqn:Over; [|now destruct (all_wait p t pos)].
  destruct (ticks p t order [0] nothing_known) as [one|] eqn:One; [|discriminate].
  destruct (ticks p t order (map (N.add 1) (range (device_sets p))) one) as [c|] eqn:T; [|discriminate].
  cbn [has_same_sums] in H. destruct (race c); [discriminate|]. unfold same_sums in H.
  destruct ((device_ranks p =? ranks s) && (device_chunks p =? chunks s)) eqn:Sizes.
  2: { apply andb_false_iff in Sizes as [E|E]; apply N.eqb_neq in E; auto. }
  right; right. simpl negb in H. cbv iota in H.
  match type of H with (if ?b then _ else _) = _ => destruct b eqn:B; [discriminate|] end.
  match type of H with (if ?b then _ else _) = _ => destruct b eqn:Known; [|discriminate] end. clear H.
  rewrite for_all_cells_iff in Known.
  unfold for_all_cells in B. apply forallb_exhibits in B as (ch & Lc & B).
  apply forallb_exhibits in B as (r & Lr & B). apply in_range in Lc, Lr.
  exists r, ch. split; auto. split; auto. intros e d Hd Eq.
  specialize (Known r ch Lr Lc).
  fold (final_value (all_rounds s) r ch) in B, Known.
  destruct (final_is_tree (all_rounds s) r ch) as (Tree & Clean). unfold final_trees in Tree, Clean.
  rewrite <- Eq in Tree, Clean.
  destruct (ends_valued p F join (fun _ r _ => Leaf r) (fun _ v _ u => is_tree v u)
    ltac:(intros; split; [reflexivity|apply own_stands]) ltac:(intros; now apply is_tree_add)
    order pos h (over_complete p F pos Over) W e (N.to_nat r)) as (d' & H' & V).
  rewrite (DeviceOrder.has_one _ _ _ _ _ _ _ _ _ _ _ Hd _ H') in *.
  destruct (V ch) as (Tr & Sd). rewrite N2Nat.id in Tr, Sd. unfold has_tree in Tr, Tree.
  destruct (final_value (all_rounds s) r ch) as [(m' & u')|]; [|discriminate].
  unfold same_value in B. destruct (own_at h r ch) as [(m & u)|].
  - rewrite Tr, Tree in B. rewrite (proj2 (tree_compare_eq _ _) eq_refl) in B. discriminate.
  - apply Sd. apply Clean.
Qed.
