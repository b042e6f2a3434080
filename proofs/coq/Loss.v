(** Whatever is lost (verify/loss, proofs/paper/loss.md): nothing is counted twice, if no copy takes anything
    away.

    Any set of transfers may be lost, in whatever rounds; a lost transfer never happens. If without
    loss every copy brings at least what it overwrites, then with losses every value is a part of what
    it is without, so of a right schedule no contribution is ever counted twice. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce.
Import ListNotations.
Open Scope nat_scope.

(** [rd'] is [rd] without some of its transfers. *)
Inductive kept : round -> round -> Prop :=
| Kept_nothing : kept [] []
| Arrived t rd rd' : kept rd rd' -> kept (t :: rd) (t :: rd')
| Lost t rd rd' : kept rd rd' -> kept (t :: rd) rd'.

Definition sources_in (l' l : list source) : Prop :=
  forall i, count_occ source_eq_dec l' i <= count_occ source_eq_dec l i.

Notation state := (Semantics.state (list source)).

Definition part_of (s' s : state) : Prop := forall r c, sources_in (s' r c) (s r c).

(** Every copy of a round brings at least what it overwrites. *)
Fixpoint copies_bring_in (start now : state) (rd : round) : Prop :=
  match rd with
  | [] => True
  | t :: rd =>
      (op t = Copy -> sources_in (now (dst t) (chunk t)) (start (src t) (chunk t))) /\
      copies_bring_in start (deliver (@app source) start now t) rd
  end.

Fixpoint copies_bring (s : state) (rs : list round) : Prop :=
  match rs with
  | [] => True
  | rd :: rs => copies_bring_in s s rd /\ copies_bring (run_round (@app source) s rd) rs
  end.

Lemma put_part (s' s : state) r c v' v : part_of s' s -> sources_in v' v ->
  part_of (put s' r c v') (put s r c v).
Proof. intros P V r0 c0. unfold put. destruct (_ && _); auto. Qed.

Lemma round_takes rd rd' : kept rd rd' -> forall start' start now' now,
  part_of start' start -> part_of now' now -> copies_bring_in start now rd ->
  part_of (fold_left (deliver (@app source) start') rd' now')
          (fold_left (deliver (@app source) start) rd now).
Proof.
  induction 1 as [|t rd rd' K IH|t rd rd' K IH]; simpl; auto;
    intros start' start now' now Start Now [Copies Later]; apply IH; auto; unfold deliver.
  - apply put_part; auto. destruct (op t); [apply Start|].
    intros i. rewrite !count_occ_app. specialize (Now (dst t) (chunk t) i).
    specialize (Start (src t) (chunk t) i). lia.
  - intros r c. unfold put. destruct ((r =? dst t)%N && (c =? chunk t)%N) eqn:E; [|apply Now].
    apply andb_true_iff in E as [Er Ec]. apply N.eqb_eq in Er, Ec. subst r c.
    intros i. pose proof (Now (dst t) (chunk t) i) as L. destruct (op t).
    + specialize (Copies eq_refl i). lia.
    + rewrite count_occ_app. lia.
Qed.

(** Losses only take away. *)
Theorem losses_only_take rs rs' : Forall2 kept rs rs' -> forall start' start,
  part_of start' start -> copies_bring start rs ->
  forall r c, sources_in (collect start' rs' r c) (collect start rs r c).
Proof.
  unfold collect. induction 1 as [|rd rd' rs rs' K F IH]; simpl; intros start' start Start Copies; auto.
  destruct Copies as [Here Later]. apply IH; auto. unfold run_round. now apply round_takes.
Qed.

(** Of a right schedule nothing is counted twice, whatever is lost. *)
Theorem never_twice s rs' : correct s -> copies_bring own_data (all_rounds s) ->
  Forall2 kept (all_rounds s) rs' ->
  forall r c i, (r < ranks s)%N -> (c < chunks s)%N ->
    count_occ source_eq_dec (collect own_data rs' r c) i <= 1.
Proof.
  intros Right Copies Kept r c i Hr Hc.
  pose proof (losses_only_take _ _ Kept own_data own_data) as L.
  specialize (L (fun _ _ _ => Nat.le_refl _) Copies r c i).
  apply correct_iff in Right. specialize (Right r c Hr Hc).
  rewrite (proj1 (Permutation_count_occ source_eq_dec _ _) Right i) in L.
  etransitivity; [exact L|]. apply NoDup_count_occ.
  apply FinFun.Injective_map_NoDup; [intros a b [=]; auto|apply range_nodup].
Qed.
