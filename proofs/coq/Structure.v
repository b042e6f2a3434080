(** Properties 1, 2, 3 and 6 (verify/structure.py): what can be seen without following any data. *)

From Coq Require Import List NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics.
Import ListNotations.
Open Scope N_scope.

(** * The properties *)

(** Property 1: every index exists, nobody sends to itself, absent ranks are declared late. *)
Definition transfer_well_formed (n k : N) (t : transfer) : Prop :=
  src t < n /\ dst t < n /\ chunk t < k /\ src t <> dst t.

Definition well_formed (s : schedule) : Prop :=
  1 <= ranks s /\ 1 <= chunks s /\ 1 <= port_limit (ports s) /\
  (forall r, In r (late s) -> r < ranks s) /\
  (forall p r, In p (phases s) -> In r (absent p) -> In r (late s)) /\
  (forall rd t, In rd (all_rounds s) -> In t rd -> transfer_well_formed (ranks s) (chunks s) t).

(** Property 2: a round asks no more of a rank than its ports allow. *)
Definition sends_within (limit : N) (rd : round) : Prop :=
  forall r, (occurrences (map src rd) r <= N.to_nat limit)%nat.

Definition receives_within (limit : N) (rd : round) : Prop :=
  forall r, (occurrences (map dst rd) r <= N.to_nat limit)%nat.

(** Who receives from somebody and sends, sends to that same rank. *)
Definition disjoint_pairs (rd : round) : Prop :=
  forall t u, In t rd -> In u rd -> src u = dst t -> dst u = src t.

Definition fits_ports (p : port_model) (rd : round) : Prop :=
  sends_within (port_limit p) rd /\ receives_within (port_limit p) rd /\
  (p = Matching -> disjoint_pairs rd).

Definition ports_respected (s : schedule) : Prop :=
  forall rd, In rd (all_rounds s) -> fits_ports (ports s) rd.

(** Property 3: an absent rank takes no part. *)
Definition silent (r : N) (rd : round) : Prop := forall t, In t rd -> src t <> r /\ dst t <> r.

Definition absence_respected (s : schedule) : Prop :=
  forall p r rd, In p (phases s) -> In r (absent p) -> In rd (rounds p) -> silent r rd.

(** Property 6: no two transfers of a round fight for one buffer. Several reduces may meet under
    incast, and no others. *)
Definition same_target (t u : transfer) : Prop := dst t = dst u /\ chunk t = chunk u.

Definition compatible (summing_allowed : bool) (t u : transfer) : Prop :=
  same_target t u -> summing_allowed = true /\ op t = Reduce /\ op u = Reduce.

Definition hazard_free_round (summing_allowed : bool) (rd : round) : Prop :=
  ForallOrdPairs (compatible summing_allowed) rd.

Definition summing_allowed (p : port_model) : bool :=
  match p with Incast _ => true | _ => false end.

Definition hazard_free (s : schedule) : Prop :=
  forall rd, In rd (all_rounds s) -> hazard_free_round (summing_allowed (ports s)) rd.

(** * What they are good for *)

Lemma well_formed_ranks_exist s : well_formed s -> ranks_exist (ranks s) (all_rounds s).
Proof.
  intros (_ & _ & _ & _ & _ & H). apply Forall_forall. intros rd Hrd.
  apply Forall_forall. intros t Ht. now apply (H rd t).
Qed.

(** Without hazards the order in which a round lists its transfers has no influence, on data that
    can be added in any order. *)
Section Order.
  Variable M : commutative_monoid.

  Definition states_equal (s s' : state M) := forall r c, s r c = s' r c.

  Lemma deliver_equal start now now' t :
    states_equal now now' -> states_equal (deliver (add M) start now t) (deliver (add M) start now' t).
  Proof.
    intros H r c. unfold deliver, put. destruct ((r =? dst t) && (c =? chunk t)); auto.
    destruct (op t); now rewrite ?H.
  Qed.

  Lemma fold_equal start rd : forall now now', states_equal now now' ->
    states_equal (fold_left (deliver (add M) start) rd now) (fold_left (deliver (add M) start) rd now').
  Proof.
    induction rd as [|t rd IH]; simpl; auto. intros now now' H.
    apply IH. now apply deliver_equal.
  Qed.

  Lemma deliver_swap allowed start now t u : compatible allowed t u ->
    states_equal (deliver (add M) start (deliver (add M) start now t) u)
                 (deliver (add M) start (deliver (add M) start now u) t).
  Proof.
    intros H r c. destruct t as [s d k o], u as [s' d' k' o']. unfold deliver; simpl.
    destruct (N.eq_dec d d') as [<-|Hd]; [destruct (N.eq_dec k k') as [<-|Hk]|].
    - destruct H as (_ & Ht & Hu); [now split|]. simpl in Ht, Hu. subst o o'.
      rewrite !put_same. unfold put. destruct ((r =? d) && (c =? k)); auto.
      rewrite <- !add_assoc. f_equal. apply add_comm.
    - rewrite (put_other now d k _ d k'), (put_other now d k' _ d k) by auto.
      unfold put. destruct (N.eqb_spec c k), (N.eqb_spec c k'); subst; try congruence;
        now rewrite ?andb_false_r, ?andb_true_r.
    - rewrite (put_other now d k _ d' k'), (put_other now d' k' _ d k) by auto.
      unfold put. destruct (N.eqb_spec r d), (N.eqb_spec r d'); subst; try congruence; auto.
  Qed.

  Lemma fold_permuted allowed start rd rd' : Permutation rd rd' ->
    hazard_free_round allowed rd ->
    hazard_free_round allowed rd' /\ forall now now', states_equal now now' ->
    states_equal (fold_left (deliver (add M) start) rd now)
                 (fold_left (deliver (add M) start) rd' now').
  Proof.
    induction 1 as [|t rd rd' P IH|t u rd|rd rd' rd'' P IH P' IH']; intros H.
    - split; auto.
    - inversion H as [|? ? Ht Hrd]; subst. destruct (IH Hrd) as [Hrd' E]. split.
      + constructor; auto. apply Forall_forall. intros u Hu. rewrite Forall_forall in Ht.
        apply Ht. eapply Permutation_in; [apply Permutation_sym|]; eauto.
      + intros now now' Hn. simpl. apply E. now apply deliver_equal.
    - inversion H as [|? ? Hu Hrest]; subst. inversion Hrest as [|? ? Ht Hrd]; subst.
      inversion Hu as [|? ? Hut Hu']; subst. split.
      + constructor; [constructor; auto|constructor; auto].
        intros [E1 E2]. destruct Hut as (? & ? & ?); [now split|]. auto.
      + intros now now' Hn. simpl. apply fold_equal. intros r c.
        rewrite (deliver_swap allowed start now u t Hut r c).
        apply deliver_equal. now apply deliver_equal.
    - destruct (IH H) as [H' E]. destruct (IH' H') as [H'' E']. split; auto.
      intros now now' Hn r c. rewrite (E now now' Hn r c). now apply E'.
  Qed.

  Theorem hazard_free_order_irrelevant allowed rd rd' s :
    hazard_free_round allowed rd -> Permutation rd rd' ->
    forall r c, run_round (add M) s rd r c = run_round (add M) s rd' r c.
  Proof. intros H P. apply (fold_permuted allowed); auto. intros r c. reflexivity. Qed.
End Order.
