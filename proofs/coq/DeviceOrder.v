(** Kernels that put into each other's staging and raise flags, operation after operation
    (verify/device).

    In every operation a rank runs a list of actions; ranks go on at their own pace, and operations
    are numbered by epochs. An action stores into a slot of a peer's staging, raises the flag of a
    slot to the epoch, waits until the own flag of a slot has reached it, or takes what lies in an
    own slot. Epoch e uses the staging set [e mod sets], and each set has flags of its own, which
    are never reset. Flags have 32 bits and are compared by the sign of the difference. Shown here:

    - if every take comes before each later store into its place ([ordered]), a wait ends exactly
      when its own raise has been done ([waits_for_its_own]), and every take finds what was stored
      for it ([takes_what_was_put]); so all executions find the same data at the same places
      ([one_result]). Sequences of different programs may share the staging;
    - two sets are enough for any sequence of programs in which every rank hears from every rank
      ([two_sets_enough]);
    - for one program that is repeated, [sets + 1] operations, unrolled, decide for any number of
      them ([unrolled_enough], [repeated_ordered]);
    - if no operation has a cycle, no execution of any number of operations gets stuck
      ([never_stuck]);
    - a closed cut is reached by some execution ([cut_reached]): so a store within a cut that lacks
      the take before it, which is what [verify] prints, is a fault that can happen. *)

From Coq Require Import List Arith Lia Bool ZArith Relations.
Import ListNotations.
Open Scope nat_scope.

(** ** Numbers that wrap around *)

Definition wrap (z : Z) : Z := (z mod 2 ^ 32)%Z.

(** The difference of two 32-bit numbers, read as signed, is not negative. *)
Definition passes (flag epoch : Z) : Prop := ((flag - epoch) mod 2 ^ 32 < 2 ^ 31)%Z.

Lemma passes_wrapped a b : (- 2 ^ 31 <= a - b < 2 ^ 31)%Z ->
  (passes (wrap a) (wrap b) <-> (b <= a)%Z).
Proof.
  intros H. unfold passes, wrap. rewrite <- Zminus_mod.
  destruct (Z.le_gt_cases b a) as [L|L].
  - rewrite Z.mod_small by lia. lia.
  - rewrite <- (Z.mod_unique (a - b) (2 ^ 32) (-1) (a - b + 2 ^ 32)) by lia. lia.
Qed.

Section Device.
  Variables V D : Type.

  Inductive action :=
  | Store (peer slot : nat) (read : D -> V)
  | Raise (peer slot : nat)
  | Wait (slot : nat)
  | Take (slot : nat) (write : D -> V -> D).

  (** What each rank runs in each epoch; the first epoch's number on the device. *)
  Variables (rows : nat -> nat -> list action) (sets : nat) (first : Z).

  (** What a rank holds at first; what the caller makes of a result before the next operation. *)
  Variables (start : nat -> D) (input : nat -> nat -> D -> D).

  Definition act (e r i : nat) : option action := nth_error (rows e r) i.
  Definition len (e r : nat) : nat := length (rows e r).

  (** In an epoch, each slot that is used has one putter, and one place for each kind of action. *)
  Variables (used : nat -> nat -> nat -> Prop) (by_ st ra wa ta : nat -> nat -> nat -> nat).

  Definition matched : Prop := forall e,
    (forall r i q x f, act e r i = Some (Store q x f) ->
      used e q x /\ r = by_ e q x /\ i = st e q x) /\
    (forall r i q x, act e r i = Some (Raise q x) ->
      used e q x /\ r = by_ e q x /\ i = ra e q x) /\
    (forall q i x, act e q i = Some (Wait x) -> used e q x /\ i = wa e q x) /\
    (forall q i x g, act e q i = Some (Take x g) -> used e q x /\ i = ta e q x) /\
    (forall q x, used e q x ->
      (exists f, act e (by_ e q x) (st e q x) = Some (Store q x f)) /\
      act e (by_ e q x) (ra e q x) = Some (Raise q x) /\ st e q x < ra e q x /\
      act e q (wa e q x) = Some (Wait x) /\
      (exists g, act e q (ta e q x) = Some (Take x g)) /\ wa e q x < ta e q x).

  Hypothesis matching : matched.
  Hypothesis some_set : 0 < sets.

  Lemma act_len e r i a : act e r i = Some a -> i < len e r.
  Proof. intros H. apply nth_error_Some. unfold act in H. congruence. Qed.

  Lemma places e q x : used e q x -> st e q x < ra e q x /\ wa e q x < ta e q x /\
    ra e q x < len e (by_ e q x) /\ ta e q x < len e q.
  Proof.
    intros U. destruct (matching e) as (_ & _ & _ & _ & H).
    destruct (H q x U) as ((f & A) & B & ? & C & (g & E) & ?).
    apply act_len in B, E. auto.
  Qed.

  (** ** What comes before what *)

  Definition event : Type := nat * nat * nat.  (* rank, epoch, place *)
  Definition epoch (x : event) : nat := snd (fst x).

  Inductive edge : event -> event -> Prop :=
  | In_order r e i e' i' : e < e' \/ e = e' /\ i < i' -> i < len e r -> i' < len e' r ->
      edge (r, e, i) (r, e', i')
  | By_flag q x e : used e q x -> edge (by_ e q x, e, ra e q x) (q, e, wa e q x).

  Definition path : event -> event -> Prop := clos_trans _ edge.

  (** Of two uses of a place of the staging, the first is over before the second begins. *)
  Definition ordered : Prop := forall e e' q x, e < e' -> e mod sets = e' mod sets ->
    used e q x -> used e' q x -> path (q, e, ta e q x) (by_ e' q x, e', st e' q x).

  Lemma same_set_far e e' : e < e' -> e mod sets = e' mod sets -> e + sets <= e'.
  Proof.
    intros L E. pose proof (Nat.div_mod e sets ltac:(lia)).
    pose proof (Nat.div_mod e' sets ltac:(lia)). rewrite E in *.
    destruct (le_lt_dec (e' / sets) (e / sets)) as [M|M].
    - pose proof (Nat.mul_le_mono_l _ _ sets M). lia.
    - pose proof (Nat.mul_le_mono_l _ _ sets M). rewrite Nat.mul_succ_r in *. lia.
  Qed.

  (** In an epoch, every rank has heard from every rank before it ends. *)
  Definition all_heard (ranks e : nat) : Prop := forall q p, q < ranks -> p < ranks -> q <> p ->
    exists i j, i < len e q /\ j < len e p /\ path (q, e, i) (p, e, j).

  (** Then every action of an epoch comes before every action of the epoch after the next, so it
      does not matter how a set is divided into slots. *)
  Theorem all_before ranks q p e e' i j : all_heard ranks (S e) -> q < ranks -> p < ranks ->
    S e < e' -> i < len e q -> j < len e' p -> path (q, e, i) (p, e', j).
  Proof.
    intros H Lq Lp L Li Lj. destruct (Nat.eq_dec q p) as [->|Ne].
    - apply t_step, In_order; auto; lia.
    - destruct (H q p Lq Lp Ne) as (i' & j' & Li' & Lj' & P).
      apply t_trans with (q, S e, i'); [apply t_step, In_order; auto; lia|].
      apply t_trans with (p, S e, j'); [exact P|]. apply t_step, In_order; auto; lia.
  Qed.

  (** Whatever programs follow each other, and whoever puts into a slot in which of them. *)
  Theorem two_sets_enough ranks :
    (forall e, all_heard ranks e) -> 2 <= sets ->
    (forall e q x, used e q x -> q < ranks /\ by_ e q x < ranks) -> ordered.
  Proof.
    intros H L In e e' q x Lt Same U U'.
    pose proof (same_set_far e e' Lt Same).
    destruct (places e q x U) as (_ & _ & _ & ?), (places e' q x U') as (? & _ & ? & _).
    destruct (In e q x U) as (Lq & _), (In e' q x U') as (_ & Lp).
    apply (all_before ranks); auto; lia.
  Qed.

  Lemma edge_later x y : edge x y -> epoch x <= epoch y.
  Proof. destruct 1; unfold epoch; simpl; lia. Qed.

  Lemma path_later x y : path x y -> epoch x <= epoch y.
  Proof. induction 1 as [x y H|]; [now apply edge_later|lia]. Qed.

  (** A slot is used again before half of all numbers have gone by. *)
  Definition often : Prop := forall e q x, used e q x -> (Z.of_nat e < 2 ^ 31)%Z \/
    exists e', e' < e /\ e' mod sets = e mod sets /\ used e' q x /\
      (Z.of_nat e - Z.of_nat e' <= 2 ^ 31)%Z.

  (** So it is where every slot is used in every operation: those of a program that is repeated, and
      all slots where owners raise the flags that nobody else does, a put to itself. *)
  Theorem refreshed_often : (forall e q x, used e q x -> sets <= e -> used (e - sets) q x) ->
    (Z.of_nat sets <= 2 ^ 31)%Z -> often.
  Proof.
    intros H B e q x U. destruct (Z.lt_ge_cases (Z.of_nat e) (2 ^ 31)) as [|G]; auto. right.
    exists (e - sets). repeat split; try lia.
    - rewrite <- (Nat.mod_add (e - sets) 1 sets) by lia. f_equal. lia.
    - apply H; auto. lia.
  Qed.

  (** ** One program, over and over *)

  Section Repeated.
    Hypothesis same_rows : forall e, rows e = rows 0.
    Hypothesis same_used : forall e q x, used e q x <-> used 0 q x.
    Hypothesis same_places : forall e q x, by_ e q x = by_ 0 q x /\ st e q x = st 0 q x /\
      ra e q x = ra 0 q x /\ wa e q x = wa 0 q x /\ ta e q x = ta 0 q x.

    (** What comes before what in so many operations, unrolled: this is what [verify] computes. *)
    Definition path_within (operations : nat) : event -> event -> Prop :=
      clos_trans _ (fun x y => edge x y /\ epoch x < operations /\ epoch y < operations).

    Lemma same_len e r : len e r = len 0 r.
    Proof. unfold len. now rewrite same_rows. Qed.

    Lemma by_flag_at q x e e' : used e' q x ->
      edge (by_ e' q x, e, ra e' q x) (q, e, wa e' q x).
    Proof.
      intros U. destruct (same_places e q x) as (E1 & _ & E2 & E3 & _).
      destruct (same_places e' q x) as (F1 & _ & F2 & F3 & _).
      rewrite F1, F2, F3, <- E1, <- E2, <- E3. apply By_flag.
      apply same_used. now apply same_used in U.
    Qed.

    Lemma within_more k m x y : k <= m -> path_within k x y -> path_within m x y.
    Proof.
      intros L. induction 1 as [x y (H & ? & ?)|x y z ? IH ? IH'].
      - apply t_step. repeat split; auto; lia.
      - eapply t_trans; eauto.
    Qed.

    Lemma within_path k x y : path_within k x y -> path x y.
    Proof.
      induction 1 as [x y (H & _)|x y z ? IH ? IH']; [now apply t_step|eapply t_trans; eauto].
    Qed.

    Definition later (c : nat) (x : event) : event := (fst (fst x), epoch x + c, snd x).
    Definition sooner (c : nat) (x : event) : event := (fst (fst x), epoch x - c, snd x).

    Lemma path_shift c x y : path x y -> path (later c x) (later c y).
    Proof.
      induction 1 as [x y H|x y z ? IH ? IH']; [|eapply t_trans; eauto]. apply t_step.
      destruct H as [r e i e' i' ? L L'|q x e U]; unfold later, epoch; simpl.
      - rewrite same_len in L, L'. apply In_order; rewrite ?same_len; auto; lia.
      - now apply by_flag_at.
    Qed.

    Lemma path_back x y : path x y -> forall c, c <= epoch x ->
      path_within (S (epoch y - c)) (sooner c x) (sooner c y).
    Proof.
      induction 1 as [x y H|x y z H IH H' IH']; intros c L.
      - apply t_step. destruct H as [r e i e' i' ? K K'|q s e U]; unfold sooner, epoch in *;
          simpl in *; (split; [|split; simpl; lia]).
        + rewrite same_len in K, K'. apply In_order; rewrite ?same_len; auto; lia.
        + now apply by_flag_at.
      - pose proof (path_later _ _ H). pose proof (path_later _ _ H').
        apply t_trans with (sooner c y).
        + apply (within_more (S (epoch y - c))); [lia|]. auto.
        + apply IH'. lia.
    Qed.

    (** [k + 1] operations, unrolled, decide what comes before what [k] operations later. *)
    Theorem unrolled_enough q i p j k e :
      path (q, e, i) (p, e + k, j) <-> path_within (S k) (q, 0, i) (p, k, j).
    Proof.
      split; intros H.
      - apply path_back with (c := e) in H; [|unfold epoch; simpl; lia].
        unfold sooner, epoch in H. simpl in H. rewrite Nat.sub_diag in H.
        replace (e + k - e) with k in H by lia. auto.
      - apply within_path, (path_shift e) in H. unfold later, epoch in H. simpl in H.
        now rewrite Nat.add_comm.
    Qed.

    (** So [sets + 1] operations decide whether places are ordered in any number of them. *)
    Theorem repeated_ordered :
      (forall q x, used 0 q x ->
        path_within (S sets) (q, 0, ta 0 q x) (by_ 0 q x, sets, st 0 q x)) <-> ordered.
    Proof.
      assert (P : forall q x e, ta e q x = ta 0 q x /\ st e q x = st 0 q x /\ by_ e q x = by_ 0 q x)
        by (intros q x e; destruct (same_places e q x) as (? & ? & ? & ? & ?); auto).
      split.
      - intros H e e' q x L E U U'. pose proof (same_set_far e e' L E) as Far.
        apply same_used in U. specialize (H q x U). apply (unrolled_enough _ _ _ _ sets e) in H.
        destruct (P q x e) as (-> & _ & _), (P q x e') as (_ & -> & ->).
        destruct (Nat.eq_dec (e + sets) e') as [<-|Ne]; auto.
        apply t_trans with (by_ 0 q x, e + sets, st 0 q x); auto.
        destruct (places 0 q x U) as (? & _ & ? & _).
        apply t_step, In_order; rewrite ?same_len; lia.
      - intros H q x U. apply (unrolled_enough _ _ _ _ sets 0). simpl.
        destruct (P q x sets) as (_ & E & E').
        rewrite <- E, <- E'. apply H; auto.
        + rewrite Nat.mod_same, Nat.mod_small; lia.
        + now apply same_used.
    Qed.
  End Repeated.

  (** ** Executions of [operations] in sequence *)

  Variable operations : nat.

  Record state := State {
    ep : nat -> nat; pos : nat -> nat;
    flag : nat -> nat -> nat -> Z; cell : nat -> nat -> nat -> V; own : nat -> D }.

  Definition upd {A} (f : nat -> A) (r : nat) (v : A) (x : nat) : A := if x =? r then v else f x.

  (** In a memory by rank, set and slot. *)
  Definition put {A} (f : nat -> nat -> nat -> A) (q k x : nat) (v : A) : nat -> nat -> nat -> A :=
    upd f q (upd (f q) k (upd (f q k) x v)).

  Definition number (s : state) (r : nat) : Z := wrap (first + Z.of_nat (ep s r)).
  Definition set (s : state) (r : nat) : nat := ep s r mod sets.

  Definition enabled (s : state) (r : nat) (a : action) : Prop :=
    match a with Wait x => passes (flag s r (set s r) x) (number s r) | _ => True end.

  Definition does (s : state) (r : nat) (a : action) : state := State
    (ep s) (upd (pos s) r (S (pos s r)))
    (match a with Raise q x => put (flag s) q (set s r) x (number s r) | _ => flag s end)
    (match a with Store q x f => put (cell s) q (set s r) x (f (own s r)) | _ => cell s end)
    (match a with
     | Take x g => upd (own s) r (g (own s r) (cell s r (set s r) x))
     | _ => own s end).

  Definition again (s : state) (r : nat) : state := State
    (upd (ep s) r (S (ep s r))) (upd (pos s) r 0) (flag s) (cell s)
    (upd (own s) r (input r (ep s r) (own s r))).

  Inductive goes : state -> state -> Prop :=
  | Does s r a : ep s r < operations -> act (ep s r) r (pos s r) = Some a -> enabled s r a ->
      goes s (does s r a)
  | Again s r : ep s r < operations -> pos s r = len (ep s r) r -> goes s (again s r).

  Variable junk : nat -> nat -> nat -> V.

  Definition initial : state :=
    State (fun _ => 0) (fun _ => 0) (fun _ _ _ => wrap (first - 1)) junk start.

  Inductive reached : state -> Prop :=
  | Started : reached initial
  | Went s t : reached s -> goes s t -> reached t.

  Definition done (s : state) (r e i : nat) : Prop := e < ep s r \/ e = ep s r /\ i < pos s r.
  Definition executed (s : state) (x : event) : Prop := done s (fst (fst x)) (epoch x) (snd x).

  (** What a rank holds before its action [i] of epoch [e], told without any interleaving. *)
  Inductive has : nat -> nat -> nat -> D -> Prop :=
  | Starts r : has r 0 0 (start r)
  | Begins r e d : has r e (len e r) d -> has r (S e) 0 (input r e d)
  | Keeps r e i d a : has r e i d -> act e r i = Some a ->
      (forall x g, a <> Take x g) -> has r e (S i) d
  | Takes q e i x g f d d' : act e q i = Some (Take x g) -> has q e i d ->
      act e (by_ e q x) (st e q x) = Some (Store q x f) -> has (by_ e q x) e (st e q x) d' ->
      has q e (S i) (g d (f d')).

  Lemma has_one r e i d : has r e i d -> forall d', has r e i d' -> d = d'.
  Proof.
    induction 1 as [r|r e d H IH|r e i d a H IH A N|q e i x g f d d1 A H IH S H1 IH1];
      intros d' H'; inversion H'; subst; auto.
    - f_equal. auto.
    - exfalso. match goal with H : act e r i = Some (Take _ _) |- _ => rewrite H in A end.
      injection A as <-. eapply N. reflexivity.
    - exfalso. match goal with H : act e q i = Some _, N : forall _ _, _ <> _ |- _ =>
        rewrite H in A; injection A as ->; eapply N; reflexivity end.
    - match goal with H : act e q i = Some (Take ?y ?h) |- _ =>
        rewrite H in A; injection A as -> -> end.
      match goal with H : act e (by_ e q x) (st e q x) = Some (Store q x ?h) |- _ =>
        rewrite H in S; injection S as -> end.
      f_equal; [|f_equal]; auto.
  Qed.

  (** A flag holds [l]: the last epoch of its set for which it has been raised, or -1. *)
  Definition last_raise (s : state) (q k x : nat) (l : Z) : Prop :=
    flag s q k x = wrap (first + l) /\
    (forall e, e mod sets = k -> used e q x -> done s (by_ e q x) e (ra e q x) ->
      (Z.of_nat e <= l)%Z) /\
    (l = (-1)%Z \/ exists e, l = Z.of_nat e /\ e mod sets = k /\ used e q x /\
      done s (by_ e q x) e (ra e q x)).

  Definition counted (s : state) : Prop := forall q k x, exists l, last_raise s q k x l.

  Definition waited (s : state) : Prop := forall q x e, used e q x ->
    done s q e (wa e q x) -> done s (by_ e q x) e (ra e q x).

  (** What holds in every reached state. *)
  Record invariant (s : state) : Prop := {
    within : forall r, pos s r <= len (ep s r) r;
    flags : counted s;
    waits : waited s;
    cells : forall q x e f, used e q x -> done s (by_ e q x) e (st e q x) ->
      ~ done s q e (ta e q x) -> act e (by_ e q x) (st e q x) = Some (Store q x f) ->
      exists d, has (by_ e q x) e (st e q x) d /\ cell s q (e mod sets) x = f d;
    owns : forall r, has r (ep s r) (pos s r) (own s r) }.

  Lemma path_closed s x y : waited s -> path y x -> executed s x -> executed s y.
  Proof.
    intros I H. induction H as [y x H|y z x ? IH ? IH']; [|auto]. intros E.
    destruct H as [r e i e' i' L ? ?|q x e U]; unfold executed, epoch in *; simpl in *.
    - unfold done in *. lia.
    - now apply I.
  Qed.

  Lemma taken_before s q x e e' : ordered -> waited s -> e < e' -> e mod sets = e' mod sets ->
    used e q x -> used e' q x -> done s (by_ e' q x) e' (st e' q x) -> done s q e (ta e q x).
  Proof.
    intros O I L E U U' H. exact (path_closed s _ _ I (O e e' q x L E U U') H).
  Qed.

  Lemma done_sooner s r e i j : i <= j -> done s r e j -> done s r e i.
  Proof. unfold done. lia. Qed.

  (** Who waits finds its own raise, or an older one, from not too long ago. *)
  Lemma passes_iff s q x : ordered -> often -> counted s -> waited s ->
    used (ep s q) q x -> pos s q = wa (ep s q) q x ->
    (passes (flag s q (set s q) x) (number s q) <->
     done s (by_ (ep s q) q x) (ep s q) (ra (ep s q) q x)).
  Proof.
    intros O Of C I U P. destruct (C q (set s q) x) as (l & F & Most & Some_).
    destruct (places _ _ _ U) as (_ & Lw & _).
    assert (Up : (l <= Z.of_nat (ep s q))%Z).
    { destruct Some_ as [->|(e & -> & E & Ue & De)]; [lia|].
      destruct (le_lt_dec e (ep s q)) as [|G]; [lia|]. exfalso.
      destruct (places _ _ _ Ue) as (Ls & _).
      assert (T : done s q (ep s q) (ta (ep s q) q x)).
      { apply (taken_before s q x (ep s q) e); auto. eapply done_sooner; [|exact De]. lia. }
      unfold done in T. lia. }
    assert (Low : (Z.of_nat (ep s q) - 2 ^ 31 <= l)%Z).
    { destruct (Of _ _ _ U) as [Few|(e & Le & E & Ue & Near)].
      - destruct Some_ as [->|(e & -> & _)]; lia.
      - assert (D' : done s (by_ e q x) e (ra e q x)) by (apply I; auto; left; lia).
        specialize (Most e E Ue D'). lia. }
    rewrite F. unfold number. rewrite passes_wrapped by lia. split; intros H.
    - destruct Some_ as [->|(e & -> & _ & _ & De)]; [lia|].
      assert (e = ep s q) as E by lia. now rewrite E in De.
    - specialize (Most _ eq_refl U H). lia.
  Qed.

  Lemma upd_same {A} (f : nat -> A) r v : upd f r v r = v.
  Proof. unfold upd. now rewrite Nat.eqb_refl. Qed.

  Lemma upd_other {A} (f : nat -> A) r v x : x <> r -> upd f r v x = f x.
  Proof. unfold upd. intros H. destruct (Nat.eqb_spec x r); congruence. Qed.

  Lemma put_same {A} (f : nat -> nat -> nat -> A) q k x v : put f q k x v q k x = v.
  Proof. unfold put. now rewrite !upd_same. Qed.

  Lemma put_other {A} (f : nat -> nat -> nat -> A) q k x v q' k' x' :
    ~ (q' = q /\ k' = k /\ x' = x) -> put f q k x v q' k' x' = f q' k' x'.
  Proof.
    intros N. unfold put, upd. destruct (Nat.eqb_spec q' q) as [->|]; auto.
    destruct (Nat.eqb_spec k' k) as [->|]; auto. destruct (Nat.eqb_spec x' x) as [->|]; auto. tauto.
  Qed.

  (** What an action changes of what has been done: itself. *)
  Lemma done_does s r a q e i :
    done (does s r a) q e i <-> done s q e i \/ q = r /\ e = ep s r /\ i = pos s r.
  Proof.
    unfold done. simpl. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; lia.
  Qed.

  Lemma done_again s r q e i : pos s r = len (ep s r) r -> i < len e q ->
    (done (again s r) q e i <-> done s q e i).
  Proof.
    intros E L. unfold done. simpl. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [|lia].
    destruct (Nat.eq_dec e (ep s r)) as [->|]; lia.
  Qed.

  Lemma initial_flags : counted initial.
  Proof.
    intros q k x. exists (-1)%Z. split; [reflexivity|]. split; [|now left].
    intros e _ _ H. unfold done in H. simpl in H. lia.
  Qed.

  Lemma again_flags s r : counted s -> pos s r = len (ep s r) r -> counted (again s r).
  Proof.
    intros F E q k x. destruct (F q k x) as (l & Fl & Most & Some_). exists l.
    split; [exact Fl|]. split.
    - intros e K U H. apply Most; auto. destruct (places e q x U) as (_ & _ & ? & _).
      now apply done_again in H.
    - destruct Some_ as [|(e & ? & ? & U & H)]; auto. right. exists e. repeat split; auto.
      destruct (places e q x U) as (_ & _ & ? & _). now apply done_again.
  Qed.

  (** A flag is not raised after one of its later epochs has been. *)
  Definition raised_in_turn (s : state) (q x : nat) (e : nat) : Prop := forall e',
    e < e' -> e mod sets = e' mod sets -> used e' q x -> done s (by_ e' q x) e' (ra e' q x) ->
    done s (by_ e q x) e (ra e q x).

  Lemma does_flags s r a : counted s -> act (ep s r) r (pos s r) = Some a ->
    (forall q x, a = Raise q x -> raised_in_turn s q x (ep s r)) -> counted (does s r a).
  Proof.
    intros F A Turn q k x. destruct (matching (ep s r)) as (_ & Mr & _ & _ & Mu).
    destruct (F q k x) as (l & Fl & Most & Some_).
    assert (Dec : (a = Raise q x /\ k = set s r) \/ ~ (a = Raise q x /\ k = set s r)).
    { destruct (Nat.eq_dec k (set s r)) as [Ek|]; [|right; tauto].
      destruct a as [| q' x'| |]; try (right; intros (? & _); discriminate).
      destruct (Nat.eq_dec q' q) as [->|]; [|right; intros (Eq & _); congruence].
      destruct (Nat.eq_dec x' x) as [->|]; [now left|right; intros (Eq & _); congruence]. }
    destruct Dec as [(-> & ->)|Ne].
    - destruct (Mr _ _ _ _ A) as (U & Er & P). exists (Z.of_nat (ep s r)).
      split; [simpl; now rewrite put_same|]. split.
      + intros e K Ue H. destruct (le_lt_dec e (ep s r)) as [|G]; [lia|]. exfalso.
        apply done_does in H as [H|(_ & -> & _)]; [|lia].
        pose proof (Turn q x eq_refl e G (eq_sym K) Ue H) as T.
        rewrite <- Er, <- P in T. unfold done in T. lia.
      + right. exists (ep s r). repeat split; auto. apply done_does. right. now rewrite <- Er, <- P.
    - exists l. split; [|split].
      + rewrite <- Fl. destruct a as [| q' x'| |]; auto. simpl. apply put_other.
        intros (-> & -> & ->). now apply Ne.
      + intros e K U H. apply done_does in H as [H|(Eb & -> & Ep)]; [now apply Most|].
        exfalso. apply Ne. destruct (Mu q x U) as (_ & Ra & _). rewrite Eb, Ep, A in Ra.
        injection Ra as ->. split; auto.
      + destruct Some_ as [|(e & ? & ? & ? & ?)]; auto. right. exists e. repeat split; auto.
        apply done_does. now left.
  Qed.

  Lemma initial_invariant : invariant initial.
  Proof.
    constructor; try apply initial_flags; simpl.
    - lia.
    - intros q x e U H. unfold done in H. simpl in H. lia.
    - intros q x e f U H. unfold done in H. simpl in H. lia.
    - constructor.
  Qed.

  Lemma again_invariant s r : invariant s -> pos s r = len (ep s r) r -> invariant (again s r).
  Proof.
    intros I E. constructor.
    - intros q. simpl. unfold upd. destruct (q =? r) eqn:Q; [lia|apply (within s I)].
    - apply again_flags; auto. exact (flags s I).
    - intros q x e U. destruct (places e q x U) as (? & ? & ? & ?).
      rewrite !done_again by (auto; lia). now apply (waits s I).
    - intros q x e f U. destruct (places e q x U) as (? & ? & ? & ?).
      rewrite !done_again by (auto; lia). now apply (cells s I).
    - intros q. simpl. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [|apply (owns s I)].
      apply Begins. rewrite <- E. apply (owns s I).
  Qed.

  Lemma in_turn s q x e : ordered -> waited s -> used e q x -> raised_in_turn s q x e.
  Proof.
    intros O I U e' L E U' H. destruct (places e' q x U') as (? & _).
    destruct (places e q x U) as (_ & ? & _).
    apply I; auto. apply (done_sooner s q e (wa e q x) (ta e q x)); [lia|].
    apply (taken_before s q x e e'); auto. eapply done_sooner; [|exact H]. lia.
  Qed.

  Lemma does_invariant s r a : ordered -> often -> invariant s ->
    act (ep s r) r (pos s r) = Some a -> enabled s r a -> invariant (does s r a).
  Proof.
    intros O Of I A En. destruct (matching (ep s r)) as (Ms & Mr & Mw & Mt & Mu).
    assert (W : waited (does s r a)).
    { intros q x e U. rewrite !done_does.
      intros [H|(-> & -> & P)]; [left; now apply (waits s I)|].
      destruct (Mu r x U) as (_ & _ & _ & Wa & _). rewrite P, A in Wa. injection Wa as ->. left.
      apply passes_iff; auto; [apply (flags s I)|apply (waits s I)]. }
    constructor; auto.
    - intros q. simpl. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [|apply (within s I)].
      apply act_len in A. lia.
    - apply does_flags; auto; [exact (flags s I)|].
      intros q x ->. destruct (Mr _ _ _ _ A) as (U & _). apply in_turn; auto. exact (waits s I).
    - intros q x e f U H N F.
      assert (N' : ~ done s q e (ta e q x)) by (intros X; apply N, done_does; now left).
      apply done_does in H as [H|(Er & Ee & P)].
      + destruct (cells s I q x e f U H N' F) as (d & Hd & E). exists d. split; auto.
        rewrite <- E. destruct a as [q' x' f'| | |]; auto. simpl. apply put_other.
        intros (-> & Ek & ->). unfold set in Ek. destruct (Ms _ _ _ _ _ A) as (U' & Er & P).
        destruct (Nat.lt_total e (ep s r)) as [L|[->|L]].
        * apply N, (taken_before _ q' x' e (ep s r)); auto. rewrite <- Er, <- P.
          apply done_does. now right.
        * rewrite <- Er, <- P in H. unfold done in H. lia.
        * assert (T : done s q' (ep s r) (ta (ep s r) q' x'))
            by (apply (taken_before s q' x' (ep s r) e); auto; exact (waits s I)).
          destruct (places _ _ _ U') as (? & ? & _).
          assert (X : done s (by_ (ep s r) q' x') (ep s r) (ra (ep s r) q' x')).
          { apply (waits s I); auto. eapply done_sooner; [|exact T]. lia. }
          rewrite <- Er in X. unfold done in X. lia.
      + subst e. rewrite Er, P, A in F. injection F as ->. simpl. unfold set. rewrite put_same.
        exists (own s r). split; auto. rewrite Er, P. apply (owns s I).
    - intros q. simpl. unfold upd at 1. destruct (Nat.eqb_spec q r) as [->|Ne].
      + destruct a as [q x f|q x|x|x g];
          try (apply (Keeps _ _ _ _ _ (owns s I r) A); discriminate).
        rewrite upd_same. destruct (Mt _ _ _ _ A) as (U & P).
        destruct (Mu r x U) as ((f & Sa) & _). destruct (places _ r x U) as (Ls & Lw & _).
        assert (Wt : done s r (ep s r) (wa (ep s r) r x)) by (right; lia).
        apply (waits s I) in Wt; auto.
        destruct (cells s I r x (ep s r) f U) as (d & H & E); auto.
        { eapply done_sooner; [|exact Wt]. lia. }
        { unfold done. lia. }
        unfold set. rewrite E. apply Takes with x; auto. apply (owns s I).
      + destruct a; try rewrite upd_other by auto; apply (owns s I).
  Qed.

  Lemma reached_invariant s : ordered -> often -> reached s -> invariant s.
  Proof.
    intros O Of. induction 1 as [|s t R IH G]; [|destruct G as [s r a L A En|s r L E]].
    - apply initial_invariant.
    - now apply does_invariant.
    - now apply again_invariant.
  Qed.

  (** No operation has a cycle. *)
  Definition acyclic : Prop := exists (level : nat -> nat -> nat -> nat) (most : nat), forall e,
    (forall r i, i < len e r -> level e r i < most) /\
    (forall r i j, i < j -> j < len e r -> level e r i < level e r j) /\
    (forall q x, used e q x -> level e (by_ e q x) (ra e q x) < level e q (wa e q x)).

  Lemma level_mono (level : nat -> nat -> nat) (n : nat -> nat) r :
    (forall i j, i < j -> j < n r -> level r i < level r j) ->
    forall i j, i <= j -> j < n r -> level r i <= level r j.
  Proof.
    intros H i j L Lj. destruct (Nat.eq_dec i j) as [->|]; auto.
    apply Nat.lt_le_incl, H; auto; lia.
  Qed.

  (** ** A cut that is closed is reached, whether places are ordered or not *)

  Section Cut.
    Variables (ranks longest : nat) (cut_ep cut_pos : nat -> nat).

    Definition inside (r e i : nat) : Prop := e < cut_ep r \/ e = cut_ep r /\ i < cut_pos r.

    Hypothesis one_putter : forall e e' q x, used e q x -> used e' q x -> by_ e q x = by_ e' q x.
    Hypothesis no_longer : forall e r, len e r <= longest.
    Hypothesis nobody_else : forall r, ranks <= r -> cut_ep r = 0 /\ cut_pos r = 0.
    Hypothesis in_rows : forall r, cut_pos r <= len (cut_ep r) r.
    Hypothesis enough : forall r, cut_ep r < operations.
    Hypothesis no_wrap : forall r, (Z.of_nat (cut_ep r) < 2 ^ 31)%Z.
    Hypothesis closed : forall q x e, used e q x -> inside q e (wa e q x) ->
      inside (by_ e q x) e (ra e q x).

    Definition at_cut (s : state) (r : nat) : Prop := ep s r = cut_ep r /\ pos s r = cut_pos r.

    Definition below (s : state) : Prop := counted s /\ forall r, pos s r <= len (ep s r) r /\
      (ep s r < cut_ep r \/ ep s r = cut_ep r /\ pos s r <= cut_pos r).

    Definition missing (s : state) (r : nat) : nat :=
      cut_ep r * S longest + cut_pos r - (ep s r * S longest + pos s r).

    Definition all_missing (s : state) : nat :=
      fold_right (fun r n => missing s r + n) 0 (seq 0 ranks).

    Lemma fewer s t r : r < ranks -> missing t r < missing s r ->
      (forall q, q <> r -> missing t q = missing s q) -> all_missing t < all_missing s.
    Proof.
      intros L M Same. unfold all_missing.
      assert (I : In r (seq 0 ranks)) by (apply in_seq; lia).
      pose proof (seq_NoDup ranks 0) as N. revert I N.
      induction (seq 0 ranks) as [|q l IH]; intros I N; [destruct I|]. simpl.
      inversion N as [|? ? Out N']; subst. destruct I as [->|I].
      - assert (E : fold_right (fun r n => missing t r + n) 0 l =
                    fold_right (fun r n => missing s r + n) 0 l); [|lia].
        clear IH N N'. induction l as [|q l IH]; simpl; auto.
        rewrite Same by (intros ->; apply Out; simpl; auto).
        rewrite IH; auto. intros X. apply Out. simpl. auto.
      - specialize (IH I N'). rewrite Same; [lia|]. intros ->. contradiction.
    Qed.

    Lemma nearer s r : acyclic -> below s -> ~ at_cut s r ->
      exists t, goes s t /\ below t /\ all_missing t < all_missing s.
    Proof.
      unfold at_cut. intros (level & most & Levels) (F & B).
      assert (Small : forall q, ~ at_cut s q -> q < ranks).
      { intros q N. unfold at_cut in N. destruct (le_lt_dec ranks q) as [L|]; auto.
        destruct (nobody_else q L), (B q). lia. }
      unfold at_cut in Small.
      assert (End : forall q, ~ at_cut s q -> pos s q = len (ep s q) q ->
        exists t, goes s t /\ below t /\ all_missing t < all_missing s).
      { intros q N E. unfold at_cut in N. destruct (B q) as (_ & Bq).
        assert (Lt : ep s q < cut_ep q).
        { destruct Bq as [|(Eq & Le)]; auto. pose proof (in_rows q). rewrite Eq in E. lia. }
        specialize (enough q).
        exists (again s q). split; [apply Again; auto; lia|]. split; [split|].
        - now apply again_flags.
        - intros r'. simpl. unfold upd. destruct (Nat.eqb_spec r' q) as [->|]; [lia|apply B].
        - apply (fewer _ _ q); auto; unfold missing; simpl; unfold upd.
          + rewrite Nat.eqb_refl. pose proof (no_longer (ep s q) q).
            pose proof (Nat.mul_le_mono_r (S (ep s q)) (cut_ep q) (S longest) Lt).
            simpl in *. lia.
          + intros r' Ne. destruct (Nat.eqb_spec r' q); congruence. }
      assert (Step : forall q a, ~ at_cut s q ->
        act (ep s q) q (pos s q) = Some a -> enabled s q a ->
        exists t, goes s t /\ below t /\ all_missing t < all_missing s).
      { intros q a N A En. unfold at_cut in N. destruct (B q) as (_ & Bq).
        pose proof (act_len _ _ _ _ A). specialize (enough q).
        exists (does s q a). split; [apply Does; auto; lia|]. split; [split|].
        - apply does_flags; auto. intros q' x -> e' L E U' H'.
          destruct (matching (ep s q)) as (_ & Mr & _). destruct (Mr _ _ _ _ A) as (U & Er & P).
          rewrite (one_putter e' (ep s q) q' x U' U), <- Er in H'. unfold done in H'. lia.
        - intros r'. simpl. unfold upd. destruct (Nat.eqb_spec r' q) as [->|]; [lia|apply B].
        - apply (fewer _ _ q); auto; unfold missing; simpl; unfold upd.
          + rewrite Nat.eqb_refl. pose proof (no_longer (ep s q) q).
            destruct Bq as [Lt|(Eq & ?)]; [|rewrite Eq; lia].
            pose proof (Nat.mul_le_mono_r (S (ep s q)) (cut_ep q) (S longest) Lt).
            simpl in *. lia.
          + intros r' Ne. destruct (Nat.eqb_spec r' q); congruence. }
      assert (G : forall n q, ~ at_cut s q -> pos s q < len (ep s q) q ->
        ep s q * most + level (ep s q) q (pos s q) <= n ->
        exists t, goes s t /\ below t /\ all_missing t < all_missing s).
      { induction n as [|n IH]; intros q N L Le.
        all: destruct (act (ep s q) q (pos s q)) as [a|] eqn:A;
          [|exfalso; apply nth_error_None in A; unfold len in L; lia].
        all: assert (W : (forall x, a <> Wait x) \/ exists x, a = Wait x)
          by (destruct a; try (left; discriminate); right; eauto).
        all: destruct W as [W|(x & ->)];
          [apply (Step q a); auto; destruct a; simpl; auto; now destruct (W slot)|].
        all: destruct (matching (ep s q)) as (_ & _ & Mw & _); destruct (Mw _ _ _ A) as (U & P).
        all: destruct (Levels (ep s q)) as (_ & Up & Over).
        all: pose proof (Over q x U) as Below; rewrite <- P in Below.
        { exfalso. lia. }
        set (p := by_ (ep s q) q x) in *. set (j := ra (ep s q) q x) in *.
        assert (D' : done s p (ep s q) j \/
          ep s p < ep s q \/ ep s p = ep s q /\ pos s p <= j) by (unfold done; lia).
        destruct D' as [D'|D'].
        { apply (Step q (Wait x)); auto. simpl.
          destruct (F q (set s q) x) as (l & Fl & Most & Last).
          specialize (Most _ eq_refl U D'). rewrite Fl. unfold number.
          assert (Z.of_nat (ep s q) <= l < 2 ^ 31)%Z; [|rewrite passes_wrapped; lia].
          split; auto. destruct Last as [->|(e & -> & _ & Ue & De)]; [lia|].
          pose proof (no_wrap (by_ e q x)). destruct (B (by_ e q x)) as (_ & Be).
          unfold done in De. lia. }
        destruct (places _ q x U) as (_ & _ & Lr & _). fold p j in Lr.
        assert (In : inside p (ep s q) j).
        { apply closed; auto. unfold inside. rewrite <- P. destruct (B q) as (_ & Bq).
          unfold at_cut in N. lia. }
        assert (N' : ~ at_cut s p) by (unfold inside in In; unfold at_cut; lia).
        destruct (Nat.eq_dec (pos s p) (len (ep s p) p)) as [E|]; [now apply (End p)|].
        destruct (B p) as (Bl & _).
        apply (IH p); auto; [lia|]. destruct (Levels (ep s p)) as (Most & _).
        pose proof (Most p (pos s p) ltac:(lia)).
        destruct D' as [Lt|(-> & D')]; [nia|].
        pose proof (level_mono (level (ep s q)) (len (ep s q)) p (Up p) _ _ D' Lr). lia. }
      intros N. destruct (B r) as (Lr & _).
      destruct (Nat.eq_dec (pos s r) (len (ep s r) r)) as [E|]; [now apply (End r)|].
      apply (G (ep s r * most + level (ep s r) r (pos s r)) r); auto; lia.
    Qed.

    Theorem cut_reached : acyclic -> exists s, reached s /\ forall r, at_cut s r.
    Proof.
      intros Ac.
      assert (Dec : forall s r, at_cut s r \/ ~ at_cut s r) by (intros; unfold at_cut; lia).
      assert (All : forall s, below s -> (exists r, ~ at_cut s r) \/ forall r, at_cut s r).
      { intros s (_ & B).
        destruct (Exists_dec (fun r => ~ at_cut s r) (seq 0 ranks)) as [X|X].
        - intros r. unfold at_cut. destruct (Nat.eq_dec (ep s r) (cut_ep r)),
            (Nat.eq_dec (pos s r) (cut_pos r)); (right; lia) || (left; lia).
        - apply Exists_exists in X as (r & _ & N). left. now exists r.
        - right. intros r. destruct (le_lt_dec ranks r) as [L|L].
          + destruct (nobody_else r L), (B r). unfold at_cut. lia.
          + destruct (Dec s r) as [|N]; auto. exfalso. apply X, Exists_exists. exists r.
            rewrite in_seq. split; [lia|auto]. }
      assert (H : forall n s, all_missing s <= n -> reached s -> below s ->
        exists t, reached t /\ forall r, at_cut t r).
      { induction n as [|n IH]; intros s M R B; (destruct (All s B) as [(r & N)|]; [|now exists s]);
          destruct (nearer s r Ac B N) as (t & G & Bt & Lt); try lia.
        apply (IH t); auto; [lia|]. now apply Went with s. }
      apply (H _ initial (le_n _)); [constructor|]. split; [apply initial_flags|].
      intros r. simpl. lia.
    Qed.
  End Cut.

  (** ** Right, and without a deadlock *)

  Hypothesis in_order : ordered.
  Hypothesis soon : often.

  (** A wait ends exactly when the flag has been raised for its own epoch: no older raise will do,
      and none is missed, however often numbers have wrapped around. *)
  Theorem waits_for_its_own s q x : reached s -> act (ep s q) q (pos s q) = Some (Wait x) ->
    (passes (flag s q (set s q) x) (number s q) <->
     done s (by_ (ep s q) q x) (ep s q) (ra (ep s q) q x)).
  Proof.
    intros R A. pose proof (reached_invariant s in_order soon R) as I.
    destruct (matching (ep s q)) as (_ & _ & Mw & _). destruct (Mw _ _ _ A) as (U & P).
    apply passes_iff; auto; apply I.
  Qed.

  (** Who takes finds what was stored for the very same epoch, and it has not been overwritten. *)
  Theorem takes_what_was_put s q x g : reached s -> act (ep s q) q (pos s q) = Some (Take x g) ->
    exists f d, act (ep s q) (by_ (ep s q) q x) (st (ep s q) q x) = Some (Store q x f) /\
      has (by_ (ep s q) q x) (ep s q) (st (ep s q) q x) d /\ cell s q (set s q) x = f d.
  Proof.
    intros R A. pose proof (reached_invariant s in_order soon R) as I.
    destruct (matching (ep s q)) as (_ & _ & _ & Mt & Mu).
    destruct (Mt _ _ _ _ A) as (U & P). destruct (Mu q x U) as ((f & Sa) & _).
    destruct (places _ q x U) as (Ls & Lw & _).
    assert (W : done s q (ep s q) (wa (ep s q) q x)) by (right; lia).
    apply (waits s I) in W; auto.
    destruct (cells s I q x (ep s q) f U) as (d & H & E); auto.
    { eapply done_sooner; [|exact W]. lia. }
    { unfold done. lia. }
    exists f, d. auto.
  Qed.

  (** A place is stored into again only after it has been taken. *)
  Theorem stored_after_taken s q x e e' : reached s -> e < e' -> e mod sets = e' mod sets ->
    used e q x -> used e' q x -> done s (by_ e' q x) e' (st e' q x) -> done s q e (ta e q x).
  Proof.
    intros R. apply taken_before; auto. exact (waits s (reached_invariant s in_order soon R)).
  Qed.

  (** All executions hold the same at the same place. *)
  Theorem one_result s t r : reached s -> reached t -> ep s r = ep t r -> pos s r = pos t r ->
    own s r = own t r.
  Proof.
    intros R R' E P. apply (has_one r (ep s r) (pos s r)).
    - apply reached_invariant; auto.
    - rewrite E, P. apply reached_invariant; auto.
  Qed.

  (** As long as some rank has not done all operations, some rank can go on. *)
  Theorem never_stuck s r : acyclic -> reached s -> ep s r < operations ->
    exists t, goes s t.
  Proof.
    intros (level & most & Levels) R. pose proof (reached_invariant s in_order soon R) as I.
    assert (G : forall n q, ep s q < operations -> pos s q < len (ep s q) q ->
      ep s q * most + level (ep s q) q (pos s q) <= n -> exists t, goes s t).
    { induction n as [|n IH]; intros q Lo L Le.
      all: destruct (act (ep s q) q (pos s q)) as [a|] eqn:A;
        [|exfalso; apply nth_error_None in A; unfold len in L; lia].
      all: assert (W : (forall x, a <> Wait x) \/ exists x, a = Wait x)
        by (destruct a; try (left; discriminate); right; eauto).
      all: destruct W as [W|(x & ->)];
        [eexists; apply Does; eauto; destruct a; simpl; auto; now destruct (W slot)|].
      all: destruct (matching (ep s q)) as (_ & _ & Mw & _); destruct (Mw _ _ _ A) as (U & P).
      all: pose proof (waits_for_its_own s q x R A) as Passes.
      all: destruct (Levels (ep s q)) as (_ & Up & Over).
      all: pose proof (Over q x U) as Below; rewrite <- P in Below.
      { exfalso. lia. }
      set (p := by_ (ep s q) q x) in *. set (j := ra (ep s q) q x) in *.
      assert (B : done s p (ep s q) j \/
        ep s p < ep s q \/ ep s p = ep s q /\ pos s p <= j) by (unfold done; lia).
      destruct B as [B|B]; [eexists; apply Does; eauto; simpl; now apply Passes|].
      destruct (places _ q x U) as (_ & _ & Lr & _). fold p j in Lr.
      pose proof (within s I p).
      destruct (Nat.eq_dec (pos s p) (len (ep s p) p)) as [End|].
      { exists (again s p). apply Again; auto. lia. }
      apply (IH p); [lia|lia|]. destruct (Levels (ep s p)) as (Most & _).
      pose proof (Most p (pos s p) ltac:(lia)).
      destruct B as [B|(-> & B)]; [nia|].
      pose proof (level_mono (level (ep s q)) (len (ep s q)) p (Up p) _ _ B Lr). lia. }
    intros L. pose proof (within s I r).
    destruct (Nat.eq_dec (pos s r) (len (ep s r) r)) as [E|].
    { exists (again s r). now apply Again. }
    apply (G (ep s r * most + level (ep s r) r (pos s r)) r); auto; lia.
  Qed.
End Device.
