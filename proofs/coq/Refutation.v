(** Refutations: proofs that a formula in clauses has no solution, and a checker of them.

    A refutation is a list of steps. Each adds a clause that follows from the clauses before it by
    unit propagation, and names them, in the order in which they propagate (LRAT without its RAT
    steps and without deletions). The last step adds the empty clause. Steps are numbered after the
    clauses of the formula. Whoever searched for the proof is not trusted: [refutation_sound]. *)

From Coq Require Import List Bool PArith FMapPositive.
Import ListNotations.
Module PM := PositiveMap.

(** * Formulas *)

(** [(true, v)]: variable [v] holds; [(false, v)]: it does not. *)
Definition literal := (bool * positive)%type.
Definition clause := list literal.
Definition assignment := positive -> bool.

Definition literal_holds (m : assignment) (l : literal) : bool := Bool.eqb (m (snd l)) (fst l).
Definition clause_holds (m : assignment) (c : clause) : bool := existsb (literal_holds m) c.

Definition solves (m : assignment) (formula : list clause) : Prop :=
  forall c, In c formula -> clause_holds m c = true.

(** * The checker *)

(** The clauses so far, by number; what is assumed of some variables. *)
Definition clauses := PM.t clause.
Definition assumptions := PM.t bool.

Definition same_literal (a b : literal) : bool :=
  Bool.eqb (fst a) (fst b) && Pos.eqb (snd a) (snd b).

Inductive outcome :=
| Contradiction            (** all literals are assumed false *)
| Forced (l : literal)     (** all but [l] *)
| Nothing.                 (** something else *)

(** What a clause says under the assumptions; [open] is the literal found open so far. *)
Fixpoint examine (a : assumptions) (c : clause) (open : option literal) : outcome :=
  match c with
  | [] => match open with None => Contradiction | Some l => Forced l end
  | l :: c =>
      match PM.find (snd l) a with
      | Some b => if Bool.eqb b (fst l) then Nothing else examine a c open
      | None =>
          match open with
          | None => examine a c (Some l)
          | Some l' => if same_literal l l' then examine a c open else Nothing
          end
      end
  end.

(** Whether the named clauses, one after the other, force literals until one is contradicted. *)
Fixpoint propagates (d : clauses) (a : assumptions) (hints : list positive) : bool :=
  match hints with
  | [] => false
  | h :: hints =>
      match PM.find h d with
      | None => false
      | Some c =>
          match examine a c None with
          | Contradiction => true
          | Forced l => propagates d (PM.add (snd l) (fst l) a) hints
          | Nothing => false
          end
      end
  end.

Definition deny (c : clause) : assumptions :=
  fold_left (fun a l => PM.add (snd l) (negb (fst l)) a) c (PM.empty bool).

(** A clause to add, and the clauses that it follows from. *)
Definition step := (clause * list positive)%type.

(** [next] is the number of the next clause. *)
Fixpoint steps_refute (d : clauses) (next : positive) (proof : list step) : bool :=
  match proof with
  | [] => false
  | (c, hints) :: proof =>
      propagates d (deny c) hints &&
      match c with [] => true | _ => steps_refute (PM.add next c d) (Pos.succ next) proof end
  end.

Fixpoint numbered (d : clauses) (next : positive) (formula : list clause) : clauses * positive :=
  match formula with
  | [] => (d, next)
  | c :: formula => numbered (PM.add next c d) (Pos.succ next) formula
  end.

(** Whether [proof] refutes [formula], whose clauses are numbered 1, 2, ... *)
Definition refutation (formula : list clause) (proof : list step) : bool :=
  let (d, next) := numbered (PM.empty clause) 1 formula in steps_refute d next proof.

(** * Soundness *)

Definition agree (m : assignment) (a : assumptions) : Prop :=
  forall v b, PM.find v a = Some b -> m v = b.

Definition all_hold (m : assignment) (d : clauses) : Prop :=
  forall i c, PM.find i d = Some c -> clause_holds m c = true.

Lemma agree_add m a v b : agree m a -> m v = b -> agree m (PM.add v b a).
Proof.
  intros H E v' b' F. destruct (PM.E.eq_dec v v') as [->|N].
  - rewrite PM.gss in F. congruence.
  - rewrite PM.gso in F by congruence. auto.
Qed.

Lemma all_hold_add m d i c : all_hold m d -> clause_holds m c = true -> all_hold m (PM.add i c d).
Proof.
  intros H E i' c' F. destruct (PM.E.eq_dec i i') as [->|N].
  - rewrite PM.gss in F. congruence.
  - rewrite PM.gso in F by congruence. eauto.
Qed.

Lemma examine_ok m a c : agree m a -> forall open,
  match examine a c open with
  | Contradiction => open = None /\ clause_holds m c = false
  | Forced l =>
      clause_holds m c = true \/ (exists l', open = Some l' /\ literal_holds m l' = true) ->
      literal_holds m l = true
  | Nothing => True
  end.
Proof.
  intros A. unfold clause_holds. induction c as [|l c IH]; intros open; simpl.
  - destruct open; auto. intros [H|(l' & H & E)]; congruence.
  - destruct (PM.find (snd l) a) as [b|] eqn:E.
    + destruct (Bool.eqb b (fst l)) eqn:B; auto. specialize (IH open).
      assert (F : literal_holds m l = false) by (unfold literal_holds; now rewrite (A _ _ E)).
      rewrite F. exact IH.
    + destruct open as [l'|].
      * destruct (same_literal l l') eqn:B; auto. specialize (IH (Some l')).
        apply andb_true_iff in B as [B1 B2]. apply eqb_prop in B1. apply Pos.eqb_eq in B2.
        assert (l = l') by (destruct l, l'; simpl in *; congruence). subst l'.
        destruct (examine a c (Some l)); auto.
        -- destruct IH; congruence.
        -- intros [H|(x & H & Ex)]; apply IH; eauto. apply orb_true_iff in H as [H|H]; eauto.
      * specialize (IH (Some l)). destruct (examine a c (Some l)); auto.
        -- destruct IH; congruence.
        -- intros [H|(x & H & _)]; [|congruence]. apply IH. apply orb_true_iff in H as [H|H]; eauto.
Qed.

Lemma propagates_ok m d hints : forall a, all_hold m d -> agree m a ->
  propagates d a hints = true -> False.
Proof.
  induction hints as [|h hints IH]; simpl; intros a D A; [discriminate|].
  destruct (PM.find h d) as [c|] eqn:E; [|discriminate].
  pose proof (examine_ok m a c A None) as X. pose proof (D _ _ E) as C.
  destruct (examine a c None) as [|l|]; try discriminate.
  - destruct X; congruence.
  - apply IH; auto. apply agree_add; auto. apply eqb_prop, X. auto.
Qed.

Lemma deny_agrees m c : clause_holds m c = false -> agree m (deny c).
Proof.
  unfold deny, clause_holds. intros H.
  enough (G : forall a, agree m a ->
    agree m (fold_left (fun a l => PM.add (snd l) (negb (fst l)) a) c a)).
  { apply G. intros v b F. rewrite PM.gempty in F. discriminate. }
  induction c as [|l c IH]; simpl in *; auto. intros a A.
  apply orb_false_iff in H as [H1 H2]. apply IH; auto. apply agree_add; auto.
  unfold literal_holds in H1. destruct l as [s v]; simpl in *. destruct (m v), s; simpl in *; congruence.
Qed.

Lemma steps_refute_ok m proof : forall d next, all_hold m d -> steps_refute d next proof = true -> False.
Proof.
  induction proof as [|[c hints] proof IH]; simpl; intros d next D H; [discriminate|].
  apply andb_true_iff in H as [R H].
  assert (C : clause_holds m c = true).
  { destruct (clause_holds m c) eqn:E; auto. exfalso.
    now apply (propagates_ok m d hints (deny c) D (deny_agrees m c E)). }
  destruct c; [discriminate|]. eapply IH; [|exact H]. now apply all_hold_add.
Qed.

Lemma numbered_ok m formula : forall d next, solves m formula -> all_hold m d ->
  all_hold m (fst (numbered d next formula)).
Proof.
  induction formula as [|c formula IH]; simpl; auto. intros d next S D. apply IH.
  - intros c' H. apply S. now right.
  - apply all_hold_add; auto. apply S. now left.
Qed.

Theorem refutation_sound formula proof : refutation formula proof = true -> forall m, ~ solves m formula.
Proof.
  unfold refutation. intros H m S.
  pose proof (numbered_ok m formula (PM.empty clause) 1 S) as D.
  destruct (numbered (PM.empty clause) 1 formula) as [d next].
  apply (steps_refute_ok m proof d next); auto. apply D.
  intros i c E. rewrite PM.gempty in E. discriminate.
Qed.
