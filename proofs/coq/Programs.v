(** Property 7 (verify/programs.py): ranks that run on their own, without a global clock.

    Every rank goes through the rounds in its own time. In a round it posts its sends and receives
    together, and goes on when all of them are complete; what it receives is put into its buffers
    in the order of the file. A send is a rendezvous: it completes when both ends have posted it.
    A transport may be more generous and let a receive be posted early (the runtime does), up to
    accepting a message as soon as it is sent. For every transport in between:

    - no deadlock: as long as some rank is not done, something can happen ([never_stuck]);
    - every execution ends, after a number of events that is known ([execution_ends]);
    - and it ends with what the rounds, run in lockstep, compute ([same_result]).

    The proof is that waiting is acyclic: a rank waits only for ranks that are in the same round or
    an earlier one. [Waiting.v] has the general case. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics Structure Volume.
Import ListNotations.
Open Scope nat_scope.

Section Asynchronous.
  Context {A : Type} (plus : A -> A -> A) (start : state A).
  Variables (n : N) (rs : list round).

  Definition round_at (t : nat) : round := nth t rs [].

  (** Transfer [i] of round [t]. *)
  Definition transfer_at (t i : nat) : option transfer := nth_error (round_at t) i.

  (** What an execution has reached: the round each rank is in, which transfers are complete, the
      values they carried, and each rank's buffers. *)
  Record situation := Situation {
    clock : N -> nat;
    complete : nat -> nat -> bool;
    carried : nat -> nat -> A;
    memory : state A }.

  Definition beginning : situation :=
    Situation (fun _ => 0) (fun _ _ => false) (fun t i => start 0%N 0%N) start.

  Inductive event := Completes (t i : nat) | GoesOn (r : N).

  Definition takes_part (r : N) (tr : transfer) : Prop := src tr = r \/ dst tr = r.

  (** The sender has posted it; the receiver has posted it ([rendezvous]) or may yet post it. *)
  Definition can_complete (receiver : nat -> nat -> Prop) (s : situation) (t i : nat) : Prop :=
    exists tr, transfer_at t i = Some tr /\ complete s t i = false /\
      clock s (src tr) = t /\ receiver (clock s (dst tr)) t.

  Definition can_go_on (s : situation) (r : N) : Prop :=
    (r < n)%N /\ clock s r < length rs /\
    forall i tr, transfer_at (clock s r) i = Some tr -> takes_part r tr ->
      complete s (clock s r) i = true.

  Definition rendezvous (s : situation) (e : event) : Prop :=
    match e with
    | Completes t i => can_complete eq s t i
    | GoesOn r => can_go_on s r
    end.

  Definition eager (s : situation) (e : event) : Prop :=
    match e with
    | Completes t i => can_complete le s t i
    | GoesOn r => can_go_on s r
    end.

  (** A rank puts in place what it received in a round, in the order of the file. *)
  Definition receive (r : N) (now : N -> A) (received : transfer * A) : N -> A :=
    let (tr, v) := received in
    fun c => if ((dst tr =? r) && (c =? chunk tr))%N
             then match op tr with Copy => v | Reduce => plus (now c) v end
             else now c.

  Definition received (s : situation) (t : nat) : list (transfer * A) :=
    combine (round_at t) (map (carried s t) (seq 0 (length (round_at t)))).

  Definition happen (s : situation) (e : event) : situation :=
    match e with
    | Completes t i =>
        let v := match transfer_at t i with
                 | Some tr => memory s (src tr) (chunk tr)
                 | None => carried s t i
                 end in
        let here t' i' := (t' =? t) && (i' =? i) in
        Situation (clock s)
          (fun t' i' => here t' i' || complete s t' i')
          (fun t' i' => if here t' i' then v else carried s t' i')
          (memory s)
    | GoesOn r =>
        Situation (fun r' => if (r' =? r)%N then S (clock s r) else clock s r')
          (complete s) (carried s)
          (fun r' => if (r' =? r)%N
                     then fold_left (receive r) (received s (clock s r)) (memory s r)
                     else memory s r')
    end.

  (** An execution by some transport: [may s e] says that event [e] may happen next. *)
  Inductive execution (may : situation -> event -> Prop) : list event -> situation -> Prop :=
  | Begin : execution may [] beginning
  | Next events s e : execution may events s -> may s e ->
      execution may (e :: events) (happen s e).

  Definition finished (s : situation) : Prop := forall r, (r < n)%N -> clock s r = length rs.

  Hypothesis ends_exist : forall t i tr, transfer_at t i = Some tr ->
    (src tr < n)%N /\ (dst tr < n)%N.

  (** ** What always holds *)

  (** The state after [t] rounds in lockstep. *)
  Definition lockstep (t : nat) : state A := run plus start (firstn t rs).

  Definition invariant (s : situation) : Prop :=
    (forall t i tr, transfer_at t i = Some tr -> complete s t i = true ->
       t <= clock s (src tr) /\ carried s t i = lockstep t (src tr) (chunk tr)) /\
    (forall t i tr, transfer_at t i = Some tr -> complete s t i = false ->
       clock s (src tr) <= t /\ clock s (dst tr) <= t) /\
    (forall r c, memory s r c = lockstep (clock s r) r c) /\
    (forall r, clock s r <= length rs).

  Lemma transfer_at_round t i tr : transfer_at t i = Some tr -> t < length rs.
  Proof.
    unfold transfer_at, round_at. intros H. destruct (le_lt_dec (length rs) t); auto.
    rewrite nth_overflow in H by auto. destruct i; discriminate.
  Qed.

  Lemma lockstep_succ t : t < length rs ->
    lockstep (S t) = run_round plus (lockstep t) (round_at t).
  Proof.
    unfold lockstep, round_at. intros H.
    assert (E : firstn (S t) rs = firstn t rs ++ [nth t rs []]).
    { clear - H. revert t H. induction rs as [|rd l IH]; simpl; intros t H; [lia|].
      destruct t; simpl; auto. rewrite <- IH by lia. auto. }
    rewrite E, run_app. reflexivity.
  Qed.

  (** What one rank does in a round is its part of the round in lockstep. *)
  Lemma receive_is_round r (before : state A) (rd : round) : forall (vs : list A),
    length vs = length rd ->
    (forall i tr v, nth_error rd i = Some tr -> nth_error vs i = Some v -> dst tr = r ->
       v = before (src tr) (chunk tr)) ->
    forall (now : N -> A) (cur : state A), (forall c, now c = cur r c) ->
    forall c, fold_left (receive r) (combine rd vs) now c
              = fold_left (deliver plus before) rd cur r c.
  Proof.
    induction rd as [|tr rd IH]; intros [|v vs] L V now cur E c;
      try discriminate; simpl; auto.
    apply IH; [simpl in L; lia| |].
    - intros i tr' v' Hi Hv. apply (V (S i)); auto.
    - intros c'. unfold deliver, put. simpl. rewrite (N.eqb_sym r).
      destruct (N.eqb_spec (dst tr) r) as [Hd|]; simpl; auto.
      destruct (N.eqb_spec c' (chunk tr)) as [->|]; auto.
      rewrite (V 0 tr v) by auto. now rewrite Hd, E.
  Qed.

  Lemma received_spec s t : exists vs, received s t = combine (round_at t) vs /\
    length vs = length (round_at t) /\
    forall i tr v, transfer_at t i = Some tr -> nth_error vs i = Some v -> v = carried s t i.
  Proof.
    exists (map (carried s t) (seq 0 (length (round_at t)))). split; [reflexivity|].
    split; [now rewrite map_length, seq_length|]. intros i tr v Hi Hv.
    assert (L : i < length (round_at t)) by (apply nth_error_Some; unfold transfer_at in Hi; congruence).
    assert (E : nth_error (seq 0 (length (round_at t))) i = Some i).
    { rewrite (nth_error_nth' _ 0) by (now rewrite seq_length). now rewrite seq_nth. }
    rewrite (map_nth_error _ _ _ E) in Hv. congruence.
  Qed.

  Lemma invariant_beginning : invariant beginning.
  Proof.
    repeat apply conj; simpl; auto; try discriminate; lia.
  Qed.

  Lemma invariant_happen s e : invariant s -> eager s e -> invariant (happen s e).
  Proof.
    intros (I1 & I2 & I3 & I4) H. destruct e as [t i|r]; simpl in H.
    - destruct H as (tr & Htr & Hopen & Hsrc & Hdst). repeat apply conj; simpl; auto.
      + intros t' i' tr' Htr'.
        destruct ((t' =? t) && (i' =? i)) eqn:Here; simpl.
        * apply andb_true_iff in Here as [Et Ei]. apply Nat.eqb_eq in Et, Ei. subst t' i'.
          intros _. assert (tr' = tr) by congruence. subst tr'. rewrite Htr.
          split; [lia|]. rewrite I3, Hsrc. reflexivity.
        * intros Hc. now apply I1.
      + intros t' i' tr' Htr' Hc. apply orb_false_iff in Hc as [_ Hc]. now apply (I2 t' i').
    - destruct H as (Hr & Hlt & Hall). repeat apply conj; simpl.
      + intros t i tr Htr Hc. destruct (I1 t i tr Htr Hc) as [Hs Hv]. split; auto.
        destruct (N.eqb_spec (src tr) r) as [E|]; auto. rewrite E in Hs. lia.
      + intros t i tr Htr Hc. destruct (I2 t i tr Htr Hc) as [Hs Hd].
        assert (Not : forall x, takes_part x tr -> clock s x <= t ->
                      (if (x =? r)%N then S (clock s r) else clock s x) <= t).
        { intros x Hx Hle. destruct (N.eqb_spec x r) as [->|]; auto.
          destruct (Nat.eq_dec (clock s r) t) as [E|]; [|lia]. exfalso.
          subst t. rewrite (Hall i tr Htr Hx) in Hc. discriminate. }
        split; apply Not; auto; [now left|now right].
      + intros r' c. destruct (N.eqb_spec r' r) as [->|]; auto.
        rewrite lockstep_succ by auto. unfold run_round.
        destruct (received_spec s (clock s r)) as (vs & -> & L & V).
        apply receive_is_round; auto. intros i tr v Hi Hv Hd.
        rewrite (V i tr v Hi Hv). apply I1; auto. apply (Hall i tr); auto. now right.
      + intros r'. destruct (N.eqb_spec r' r) as [->|]; auto.
  Qed.

  Lemma invariant_execution (may : situation -> event -> Prop) events s : (forall s e, may s e -> eager s e) ->
    execution may events s -> invariant s.
  Proof.
    intros H. induction 1; [apply invariant_beginning|]. apply invariant_happen; auto.
  Qed.

  (** ** No deadlock *)

  (** A rank that is not done and behind no other rank that is not done. *)
  Lemma last_rank s : ~ finished s -> exists r, (r < n)%N /\ clock s r <> length rs /\
    forall r', (r' < n)%N -> clock s r' = length rs \/ clock s r <= clock s r'.
  Proof.
    intros H.
    assert (G : forall l, (exists r, In r l /\ clock s r <> length rs) ->
      exists r, In r l /\ clock s r <> length rs /\
      forall r', In r' l -> clock s r' = length rs \/ clock s r <= clock s r').
    { induction l as [|a l IH]; [intros (r & [] & _)|]. intros (r & Hr & Nr).
      destruct (Exists_dec (fun r => clock s r <> length rs) l) as [X|X].
      { intros x. destruct (Nat.eq_dec (clock s x) (length rs)); [right|left]; tauto. }
      - apply Exists_exists in X. destruct (IH X) as (b & Hb & Nb & Min).
        destruct (Nat.eq_dec (clock s a) (length rs)) as [Ea|Na];
          [|destruct (le_lt_dec (clock s b) (clock s a))].
        + exists b. simpl. repeat split; auto. intros r' [<-|Hr']; auto.
        + exists b. simpl. repeat split; auto. intros r' [<-|Hr']; auto.
        + exists a. simpl. repeat split; auto. intros r' [<-|Hr']; auto.
          destruct (Min r' Hr'); auto. right. lia.
      - exists r. split; auto. split; auto. intros r' Hr'.
        assert (Only : forall x, In x l -> clock s x = length rs).
        { intros x Hx. destruct (Nat.eq_dec (clock s x) (length rs)); auto.
          exfalso. apply X, Exists_exists. eauto. }
        destruct Hr as [->|Hr]; [|exfalso; auto].
        destruct Hr' as [->|Hr']; auto. }
    destruct (G (range n)) as (r & Hr & Nr & Min).
    - destruct (Exists_dec (fun r => clock s r <> length rs) (range n)) as [X|X].
      { intros x. destruct (Nat.eq_dec (clock s x) (length rs)); [right|left]; tauto. }
      + now apply Exists_exists in X.
      + exfalso. apply H. intros r Hr. destruct (Nat.eq_dec (clock s r) (length rs)); auto.
        exfalso. apply X, Exists_exists. exists r. now rewrite in_range.
    - exists r. rewrite in_range in Hr. repeat split; auto.
      intros r' Hr'. apply Min. now apply in_range.
  Qed.

  Theorem never_stuck s : invariant s -> ~ finished s -> exists e, rendezvous s e.
  Proof.
    intros (I1 & I2 & I3 & I4) H.
    destruct (last_rank s H) as (r & Hr & Nr & Min).
    set (t := clock s r). assert (Ht : t < length rs) by (specialize (I4 r); unfold t; lia).
    (* some transfer of its round is open, or it can go on *)
    destruct (Exists_dec (fun i => exists tr, transfer_at t i = Some tr /\ takes_part r tr /\
                                    complete s t i = false)
                (seq 0 (length (round_at t)))) as [X|X].
    { intros i. destruct (transfer_at t i) as [tr|] eqn:E.
      - destruct (complete s t i) eqn:C; [right; intros (? & ? & ? & ?); congruence|].
        destruct (N.eq_dec (src tr) r); [left; exists tr; unfold takes_part; auto|].
        destruct (N.eq_dec (dst tr) r); [left; exists tr; unfold takes_part; auto|].
        right. intros (tr' & [= <-] & [?|?] & _); congruence.
      - right. intros (? & ? & _). discriminate. }
    - apply Exists_exists in X as (i & _ & tr & Htr & Hpart & Hopen).
      exists (Completes t i). exists tr.
      destruct (I2 t i tr Htr Hopen) as [Hs Hd]. destruct (ends_exist t i tr Htr) as [Es Ed].
      assert (Same : forall x, (x < n)%N -> clock s x <= t -> clock s x = t).
      { intros x Hx Hle. destruct (Min x Hx); unfold t in *; lia. }
      repeat split; auto.
    - exists (GoesOn r). split; [auto|]. split; [auto|]. fold t. intros i tr Htr Hpart.
      destruct (complete s t i) eqn:C; auto. exfalso. apply X, Exists_exists. exists i. split.
      + apply in_seq. split; [lia|]. apply nth_error_Some. unfold transfer_at in Htr. congruence.
      + exists tr. auto.
  Qed.

  (** ** Every execution ends *)

  Definition places : list (nat * nat) :=
    flat_map (fun t => map (pair t) (seq 0 (length (round_at t)))) (seq 0 (length rs)).

  Definition to_go (s : situation) : nat :=
    length (filter (fun p => negb (complete s (fst p) (snd p))) places)
    + total (fun r => length rs - clock s r) (range n).

  Lemma place_in t i tr : transfer_at t i = Some tr -> In (t, i) places.
  Proof.
    intros H. apply in_flat_map. exists t. split.
    - apply in_seq. pose proof (transfer_at_round t i tr H). lia.
    - apply in_map, in_seq. split; [lia|]. apply nth_error_Some. unfold transfer_at in H. congruence.
  Qed.

  Lemma filter_fewer {B} (p q : B -> bool) l x :
    (forall y, q y = true -> p y = true) -> In x l -> p x = true -> q x = false ->
    length (filter q l) < length (filter p l).
  Proof.
    intros Sub. assert (Le : forall l, length (filter q l) <= length (filter p l)).
    { induction l0 as [|a l0 IH]; simpl; auto.
      destruct (q a) eqn:Q; [rewrite (Sub a Q)|destruct (p a)]; simpl; lia. }
    intros Hin Hp Hq. induction l as [|a l IH]; simpl in *; [easy|].
    destruct Hin as [->|Hin].
    - rewrite Hp, Hq. simpl. specialize (Le l). lia.
    - specialize (IH Hin). destruct (q a) eqn:Q; [rewrite (Sub a Q)|destruct (p a)]; simpl; lia.
  Qed.

  Lemma total_fewer (f g : N -> nat) l x : In x l ->
    (forall y, In y l -> g y <= f y) -> g x < f x -> total g l < total f l.
  Proof.
    assert (Le : forall l, (forall y, In y l -> g y <= f y) -> total g l <= total f l).
    { induction l0 as [|a l0 IH]; simpl; intros H; auto.
      pose proof (H a (or_introl eq_refl)). specialize (IH (fun y Hy => H y (or_intror Hy))). lia. }
    induction l as [|a l IH]; simpl; intros Hin H Hx; [easy|].
    pose proof (H a (or_introl eq_refl)). destruct Hin as [->|Hin].
    - specialize (Le l (fun y Hy => H y (or_intror Hy))). lia.
    - specialize (IH Hin (fun y Hy => H y (or_intror Hy)) Hx). lia.
  Qed.

  Lemma to_go_happen s e : eager s e -> to_go (happen s e) < to_go s.
  Proof.
    unfold to_go. destruct e as [t i|r]; simpl.
    - intros (tr & Htr & Hopen & _). apply Nat.add_lt_mono_r.
      apply (filter_fewer _ _ _ (t, i)); simpl.
      + intros [t' i']. simpl. destruct (complete s t' i'); auto. now rewrite orb_true_r.
      + now apply (place_in t i tr).
      + now rewrite Hopen.
      + now rewrite !Nat.eqb_refl.
    - intros (Hr & Hlt & _). apply Nat.add_lt_mono_l.
      apply (total_fewer _ _ _ r); [now apply in_range| |rewrite N.eqb_refl; lia].
      intros y _. destruct (N.eqb_spec y r) as [->|]; lia.
  Qed.

  Theorem execution_ends (may : situation -> event -> Prop) events s : (forall s e, may s e -> eager s e) ->
    execution may events s -> length events + to_go s <= to_go beginning.
  Proof.
    intros H. induction 1 as [|events s e X IH Hmay]; simpl; [lia|].
    pose proof (to_go_happen s e (H s e Hmay)). lia.
  Qed.

  (** ** The main theorem *)

  (** Any transport between rendezvous and eager: an execution that can't go on is finished, with
      the values that the rounds in lockstep give. *)
  Theorem same_result (may : situation -> event -> Prop) events s :
    (forall s e, rendezvous s e -> may s e) -> (forall s e, may s e -> eager s e) ->
    execution may events s -> (forall e, ~ may s e) ->
    finished s /\ forall r c, (r < n)%N -> memory s r c = run plus start rs r c.
  Proof.
    intros Low High X Stop. pose proof (invariant_execution may events s High X) as I.
    assert (F : finished s).
    { assert (D : forall r, (r < n)%N -> {clock s r = length rs} + {clock s r <> length rs})
        by (intros; apply Nat.eq_dec).
      intros r Hr. destruct (Nat.eq_dec (clock s r) (length rs)); auto. exfalso.
      destruct (never_stuck s I) as (e & He); [intros F; auto|]. apply (Stop e); auto. }
    split; auto. intros r c Hr. destruct I as (_ & _ & I3 & _).
    rewrite I3, (F r Hr). unfold lockstep. now rewrite firstn_all.
  Qed.
End Asynchronous.

(** ** For well formed schedules *)

Lemma well_formed_ends s : well_formed s ->
  forall t i tr, transfer_at (all_rounds s) t i = Some tr ->
    (src tr < ranks s)%N /\ (dst tr < ranks s)%N.
Proof.
  intros (_ & _ & _ & _ & _ & H) t i tr Htr. unfold transfer_at, round_at in Htr.
  assert (Hin : In (nth t (all_rounds s) []) (all_rounds s)).
  { apply nth_In. pose proof (transfer_at_round (all_rounds s) t i tr Htr). auto. }
  destruct (H _ tr Hin (nth_error_In _ _ Htr)) as (? & ? & _). auto.
Qed.

(** What acceptance promises for ranks that run on their own: whatever the order of events, the
    execution ends, all ranks finish, and every buffer holds the sum over all ranks. *)
Theorem asynchronous_all_reduce s (M : commutative_monoid) (x : N -> N -> M)
  (may : situation -> event -> Prop) events now :
  well_formed s -> correct s ->
  (forall s' e, rendezvous (ranks s) (all_rounds s) s' e -> may s' e) ->
  (forall s' e, may s' e -> eager (ranks s) (all_rounds s) s' e) ->
  execution (add M) x (all_rounds s) may events now ->
  length events <= to_go (ranks s) (all_rounds s) (beginning x) /\
  ((forall e, ~ may now e) ->
   forall r c, (r < ranks s)%N -> (c < chunks s)%N ->
     memory now r c = sum M (fun i => x i c) (range (ranks s))).
Proof.
  intros W C Low High X. split.
  - pose proof (execution_ends (add M) x _ _ may events now High X). lia.
  - intros Stop r c Hr Hc. rewrite <- (C M x r c Hr Hc).
    apply (same_result (add M) x _ _ (well_formed_ends s W) may events now); auto.
Qed.
