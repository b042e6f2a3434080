(** There is none: refuted questions, and schedules that are optimal because of one.

    [refuted_question] numbers the variables of [Formula.v] and checks a refutation of its clauses.
    By [refuted_question_sound] no right schedule answers the question; by [refuted_shorter_optimal] a
    right schedule in which nobody leaves is optimal if the question for one round less is refuted. *)

From Coq Require Import List Arith NArith PArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Bounds Check
  Refutation Formula.
Import ListNotations.
Open Scope N_scope.

(** * Numbers for variables *)

Section Numbers.
  Variables (n k rounds : N).

  Definition pack (kind s d c t : N) : positive :=
    N.succ_pos (kind + 6 * (t + (rounds + 1) * (c + k * (d + n * s)))).

  Definition number (v : variable) : positive :=
    match v with
    | Sends s d t => pack 0 s d 0 t
    | Picks s c t => pack 1 s 0 c t
    | Moves s d c t => pack 2 s d c t
    | Overwrites d c t => pack 3 0 d c t
    | Holds i r c t => pack 4 i r c t
    | Spoilt r c t => pack 5 0 r c t
    end.

  Definition variable_of (p : positive) : variable :=
    let x := Pos.pred_N p in
    let kind := x mod 6 in let x := x / 6 in
    let t := x mod (rounds + 1) in let x := x / (rounds + 1) in
    let c := x mod k in let x := x / k in
    let d := x mod n in let s := x / n in
    match kind with
    | 0 => Sends s d t
    | 1 => Picks s c t
    | 2 => Moves s d c t
    | 3 => Overwrites d c t
    | 4 => Holds s d c t
    | _ => Spoilt d c t
    end.
End Numbers.

Definition same_variable (v w : variable) : bool :=
  match v, w with
  | Sends a b c, Sends a' b' c' | Picks a b c, Picks a' b' c'
  | Overwrites a b c, Overwrites a' b' c' | Spoilt a b c, Spoilt a' b' c' =>
      (a =? a') && (b =? b') && (c =? c')
  | Moves a b c d, Moves a' b' c' d' | Holds a b c d, Holds a' b' c' d' =>
      (a =? a') && (b =? b') && (c =? c') && (d =? d')
  | _, _ => false
  end.

Lemma same_variable_eq v w : same_variable v w = true -> v = w.
Proof.
  destruct v, w; simpl; try discriminate; rewrite !andb_true_iff, !N.eqb_eq; intuition congruence.
Qed.

Definition number_in (q : question) : variable -> positive :=
  number (of_ranks q) (of_chunks q) (in_rounds q).

Definition variable_in (q : question) : positive -> variable :=
  variable_of (of_ranks q) (of_chunks q) (in_rounds q).

(** Each variable of the formula can be told from its number. *)
Definition numbers_differ (q : question) (formula : list (list (bool * variable))) : bool :=
  forallb (forallb (fun l => same_variable (variable_in q (number_in q (snd l))) (snd l))) formula.

Definition numbered_clauses (q : question) (formula : list (list (bool * variable))) : list clause :=
  map (map (fun l => (fst l, number_in q (snd l)))) formula.

(** What a solver is given: the clauses of a question. *)
Definition formula_of (q : question) : list clause := numbered_clauses q (clauses_of q).

Definition refuted_question (q : question) (proof : list step) : bool :=
  let formula := clauses_of q in
  numbers_differ q formula && refutation (numbered_clauses q formula) proof.

(** * No schedule *)

(** [rs] is a right schedule for the situation, in time. *)
Record answers (q : question) (rs : list round) : Prop := {
  in_time : N.of_nat (length rs) <= in_rounds q;
  formed : forall rd t, In rd rs -> In t rd -> transfer_well_formed (of_ranks q) (of_chunks q) t;
  fits : forall rd, In rd rs -> fits_ports (if in_pairs q then Matching else Duplex) rd;
  absent_silent : forall t r, t < arrives q r -> silent r (nth (N.to_nat t) rs []);
  sums_right : all_reduce (of_ranks q) (of_chunks q) rs }.

Lemma idle_rounds_do_nothing {A} (plus : A -> A -> A) s m : run plus s (repeat [] m) = s.
Proof. unfold run. revert s. induction m as [|m IH]; intros s; simpl; auto. Qed.

Lemma nth_idle rs m t : nth t (rs ++ repeat [] m) [] = nth t rs ([] : round).
Proof.
  destruct (le_lt_dec (length rs) t) as [H|H].
  - rewrite app_nth2, (nth_overflow rs) by auto.
    destruct (le_lt_dec m (t - length rs)).
    + apply nth_overflow. now rewrite repeat_length.
    + now rewrite nth_repeat.
  - now rewrite app_nth1.
Qed.

Lemma idle_fits p : fits_ports p [].
Proof.
  split; [|split]; [intros r; simpl; lia..|]. intros _ t u [].
Qed.

Theorem refuted_question_sound q proof : refuted_question q proof = true -> forall rs, ~ answers q rs.
Proof.
  unfold refuted_question. intros H rs [Time Formed Fits Absent Right].
  apply andb_true_iff in H as [Differ Refuted].
  set (idle := repeat ([] : round) (N.to_nat (in_rounds q) - length rs)).
  assert (Idle : forall rd, In rd (rs ++ idle) -> In rd rs \/ rd = []).
  { intros rd Hrd. apply in_app_iff in Hrd as [Hrd|Hrd]; auto. right. now apply repeat_spec in Hrd. }
  set (m := fun p => value_of q (rs ++ idle) (variable_in q p)).
  apply (refutation_sound _ _ Refuted m). intros c Hc.
  apply in_map_iff in Hc as (cl & <- & Hcl).
  destruct (clause_holds m _) eqn:E; auto. exfalso.
  apply (schedule_solves q (rs ++ idle)) with cl; auto.
  - unfold idle. rewrite app_length, repeat_length. lia.
  - intros rd t Hrd Ht. destruct (Idle rd Hrd) as [Hr| ->]; [eauto|easy].
  - intros rd Hrd. destruct (Idle rd Hrd) as [Hr| ->]; auto using idle_fits.
  - intros t r Ht. unfold idle. rewrite nth_idle. auto.
  - intros M x r c Hr Hc. unfold idle. rewrite run_app, idle_rounds_do_nothing. now apply Right.
  - unfold falsified. rewrite Forall_forall. intros l Hl.
    unfold numbers_differ in Differ. rewrite forallb_forall in Differ. specialize (Differ cl Hcl).
    rewrite forallb_forall in Differ. specialize (Differ l Hl). apply same_variable_eq in Differ.
    unfold clause_holds in E. rewrite <- not_true_iff_false, existsb_exists in E.
    destruct (Bool.eqb (value_of q (rs ++ idle) (snd l)) (fst l)) eqn:B.
    + exfalso. apply E. exists (fst l, number_in q (snd l)). split.
      * apply (in_map (fun l => (fst l, number_in q (snd l)))). auto.
      * unfold literal_holds, m. simpl. now rewrite Differ.
    + now destruct (value_of q (rs ++ idle) (snd l)), (fst l).
Qed.

(** * Optimal schedules *)

(** The question whether the same can be done in so many rounds. *)
Definition question_of (s : schedule) (most : N) : question :=
  Question (ranks s) (chunks s)
    (map (arrival_of s) (range (ranks s)))
    most
    (match ports s with Matching => true | _ => false end).

(** And whether with one round less. *)
Definition shorter (s : schedule) : question := question_of s (count_rounds (phases s) - 1).

Definition one_port (s : schedule) : bool :=
  match ports s with Incast _ => false | _ => true end.

(** Every right schedule for the same situation answers it. *)
Lemma valid_answers s s' most : one_port s = true -> same_situation s s' -> valid s' ->
  count_rounds (phases s') <= most -> answers (question_of s most) (all_rounds s').
Proof.
  intros One (Hn & Hk & Hp & Quiet) (F & P & A & C) Time. split; simpl; auto.
  - rewrite Hn, Hk. apply F.
  - intros rd Hrd. specialize (P rd Hrd). rewrite <- Hp in P. unfold one_port in One.
    destruct (ports s); auto. discriminate.
  - intros t r Ht. unfold arrives in Ht. simpl in Ht.
    destruct (N.lt_ge_cases r (ranks s)) as [Hr|Hr].
    + rewrite (nth_indep _ 0 (arrival_of s 0)) in Ht by (rewrite map_length, range_length; lia).
      rewrite map_nth, nth_range in Ht by auto. now apply Quiet.
    + rewrite nth_overflow in Ht by (rewrite map_length, range_length; lia). lia.
  - rewrite Hn, Hk. exact C.
Qed.

(** A right schedule is optimal if no right schedule has one round less. *)
Theorem refuted_shorter_optimal s proof :
  valid s -> nobody_leaves s = true -> 1 <= count_rounds (phases s) -> one_port s = true ->
  refuted_question (shorter s) proof = true -> optimal s.
Proof.
  intros V Stay Some One R. split; auto. split; auto. intros s' Same V'.
  destruct (N.le_gt_cases (count_rounds (phases s)) (count_rounds (phases s'))) as [|Less]; auto.
  exfalso. apply (refuted_question_sound _ _ R (all_rounds s')), valid_answers; auto. lia.
Qed.

(** What the extracted program runs. *)
Definition certified_optimal (s : schedule) (proof : list step) : bool :=
  accepted (check s) && nobody_leaves s && (1 <=? count_rounds (phases s)) && one_port s &&
  refuted_question (shorter s) proof.

Theorem certified_optimal_sound s proof : certified_optimal s proof = true -> right s /\ optimal s.
Proof.
  unfold certified_optimal. rewrite !andb_true_iff, N.leb_le. intros ((((A & Stay) & Some) & One) & R).
  apply accepted_iff in A. split; auto. apply (refuted_shorter_optimal s proof); auto. apply A.
Qed.
