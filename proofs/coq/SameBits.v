(** Property 5 (verify/bits.py): all ranks end with the same bits, in floating point too.

    IEEE addition commutes but does not associate. Expression trees up to swapping the operands of
    an addition are the free such operation: two ranks hold equal values for every commutative
    operation and all data if and only if they hold equal trees. *)

From Coq Require Import List NArith Lia.
From Latecomer Require Import Ranges Schedule Semantics.
Import ListNotations.
Open Scope N_scope.

(** All ranks end with equal values, for every operation that commutes. *)
Definition same_bits (s : schedule) : Prop :=
  forall (A : Type) (plus : A -> A -> A), (forall a b, plus a b = plus b a) ->
  forall (x : N -> N -> A) r r' c, r < ranks s -> r' < ranks s -> c < chunks s ->
    run plus x (all_rounds s) r c = run plus x (all_rounds s) r' c.

(** * Trees *)

Inductive tree := Leaf (r : N) | Node (left right : tree).

Fixpoint tree_compare (a b : tree) : comparison :=
  match a, b with
  | Leaf r, Leaf r' => r ?= r'
  | Leaf _, Node _ _ => Lt
  | Node _ _, Leaf _ => Gt
  | Node a1 a2, Node b1 b2 =>
      match tree_compare a1 b1 with Eq => tree_compare a2 b2 | other => other end
  end.

Lemma tree_compare_eq a : forall b, tree_compare a b = Eq <-> a = b.
Proof.
  induction a as [r|a1 IH1 a2 IH2]; intros [r'|b1 b2]; simpl; try (split; congruence).
  - rewrite N.compare_eq_iff. split; congruence.
  - specialize (IH1 b1). specialize (IH2 b2).
    destruct (tree_compare a1 b1) eqn:E; split; intros H; try congruence.
    + f_equal; tauto.
    + injection H; tauto.
    + injection H as -> ->. destruct IH1 as [_ IH1]. discriminate (IH1 eq_refl).
    + injection H as -> ->. destruct IH1 as [_ IH1]. discriminate (IH1 eq_refl).
Qed.

Lemma tree_compare_swap a : forall b, tree_compare b a = CompOpp (tree_compare a b).
Proof.
  induction a as [r|a1 IH1 a2 IH2]; intros [r'|b1 b2]; simpl; auto.
  - apply N.compare_antisym.
  - rewrite IH1. destruct (tree_compare a1 b1); simpl; auto.
Qed.

(** The sum of two trees, with its operands in order: [a + b] and [b + a] are the same tree. *)
Definition join (a b : tree) : tree :=
  match tree_compare a b with Gt => Node b a | _ => Node a b end.

Lemma join_comm a b : join a b = join b a.
Proof.
  unfold join. rewrite (tree_compare_swap a b).
  destruct (tree_compare a b) eqn:E; simpl; auto. apply tree_compare_eq in E. congruence.
Qed.

(** The value of a tree for a commutative operation. *)
Fixpoint eval {A} (plus : A -> A -> A) (x : N -> A) (t : tree) : A :=
  match t with
  | Leaf r => x r
  | Node a b => plus (eval plus x a) (eval plus x b)
  end.

Lemma eval_join {A} (plus : A -> A -> A) x a b : (forall a b, plus a b = plus b a) ->
  eval plus x (join a b) = plus (eval plus x a) (eval plus x b).
Proof. intros H. unfold join. destruct (tree_compare a b); simpl; auto. Qed.

(** * The theorem *)

(** The tree that each (rank, chunk) ends with. *)
Definition final_trees (rs : list round) : state tree := run join (fun r _ => Leaf r) rs.

Lemma run_evaluates {A} (plus : A -> A -> A) (x : N -> N -> A) rs r c :
  (forall a b, plus a b = plus b a) ->
  run plus x rs r c = eval plus (fun i => x i c) (final_trees rs r c).
Proof.
  intros Comm. symmetry.
  refine (run_related join plus (fun c t a => eval plus (fun i => x i c) t = a)
            _ (fun _ => True) rs _ x _ _ r c I).
  - intros; subst. now apply eval_join.
  - apply Forall_forall; intros rd _. apply Forall_forall; auto.
  - intros r' c' _. reflexivity.
Qed.

Theorem same_bits_iff s :
  same_bits s <->
  forall r r' c, r < ranks s -> r' < ranks s -> c < chunks s ->
    final_trees (all_rounds s) r c = final_trees (all_rounds s) r' c.
Proof.
  split.
  - intros H r r' c. apply H. apply join_comm.
  - intros H A plus Comm x r r' c Hr Hr' Hc. rewrite !run_evaluates by assumption.
    now rewrite (H r r' c Hr Hr' Hc).
Qed.
