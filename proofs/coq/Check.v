(** All properties of a schedule, decided and proved (verify/check.py).

    [check] is the program that is extracted, and what certificates are computed with. What it
    says is exactly what holds: [check_sound] and [check_complete]. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits Structure
  Knowledge Volume Bounds Tables Values Decide.
Import ListNotations.
Open Scope N_scope.

(** * Deciding *)

Definition for_all_cells (n k : N) (p : N -> N -> bool) : bool :=
  let rs := range n in forallb (fun c => forallb (fun r => p r c) rs) (range k).

Definition decide_exactly_once (s : schedule) (final : N -> N -> value) : bool :=
  for_all_cells (ranks s) (chunks s) (fun r c => is_total (ranks s) (final r c)).

Definition same_tree (a b : value) : bool :=
  match a, b with
  | Some (_, t), Some (_, t') => match tree_compare t t' with Eq => true | _ => false end
  | _, _ => false
  end.

Definition decide_same_bits (s : schedule) (final : N -> N -> value) : bool :=
  for_all_cells (ranks s) (chunks s) (fun r c => same_tree (final 0 c) (final r c)).

Definition has_idle_round (s : schedule) : bool :=
  existsb (fun rd => negb (moves_something rd)) (completion s).

(** [true] at the lower bound, if nobody is absent again after its arrival; [false] where a completion
    round moves nothing; else unknown. *)
Definition decide_optimal (s : schedule) : option bool :=
  if nobody_leaves s && (completion_rounds s =? lower_bound s) then Some true
  else if has_idle_round s then Some false
  else None.

(** [None]: unknown. *)
Record report := Report {
  is_well_formed : bool;
  fits_its_ports : option bool;
  respects_absence : option bool;
  is_exactly_once : option bool;
  has_same_bits : option bool;      (* unknown where some sum is wrong *)
  is_hazard_free : option bool;
  rounds_to_complete : N;
  bound : N;
  is_optimal : option bool }.

Definition accepted (r : report) : bool :=
  is_well_formed r &&
  match fits_its_ports r, respects_absence r, is_exactly_once r, has_same_bits r,
        is_hazard_free r with
  | Some a, Some b, Some c, Some d, Some e => a && b && c && d && e
  | _, _, _, _, _ => false
  end.

Definition check (s : schedule) : report :=
  if decide_well_formed s then
    let values := final_values (all_rounds s) in   (* computed once *)
    let final r c := read (fun r _ => own_value r) values r c in
    let sums := decide_exactly_once s final in
    let bits := if sums then Some (decide_same_bits s final) else None in
    let fits := decide_ports s in
    let absence := decide_absence s in
    let hazards := decide_hazard_free s in
    let fine := fits && absence && hazards && sums &&
                match bits with Some b => b | None => false end in
    Report true (Some fits) (Some absence) (Some sums) bits (Some hazards)
      (completion_rounds s) (lower_bound s) (if fine then decide_optimal s else Some false)
  else Report false None None None None None (completion_rounds s) 0 (Some false).

(** * What the answers mean *)

Lemma for_all_cells_iff n k p :
  for_all_cells n k p = true <-> forall r c, r < n -> c < k -> p r c = true.
Proof.
  unfold for_all_cells. rewrite forallb_forall. split.
  - intros H r c Hr Hc. apply in_range in Hr, Hc. specialize (H c Hc).
    rewrite forallb_forall in H. auto.
  - intros H c Hc. apply forallb_forall. intros r Hr. apply in_range in Hr, Hc. auto.
Qed.

Theorem exactly_once_decided s :
  decide_exactly_once s (final_value (all_rounds s)) = true <-> correct s.
Proof.
  rewrite correct_iff. unfold decide_exactly_once, exactly_once, exactly_once_from.
  rewrite for_all_cells_iff.
  split; intros H r c Hr Hc; specialize (H r c Hr Hc);
    now apply (is_total_iff _ _ _ (final_value_stands (all_rounds s) r c)).
Qed.

Theorem same_bits_decided s : correct s ->
  decide_same_bits s (final_value (all_rounds s)) = true <-> same_bits s.
Proof.
  intros C. rewrite same_bits_iff. unfold decide_same_bits. rewrite for_all_cells_iff.
  assert (T : forall r c, r < ranks s -> c < chunks s ->
    exists set, final_value (all_rounds s) r c = Some (set, final_trees (all_rounds s) r c)).
  { intros r c Hr Hc. apply exactly_once_decided in C. unfold decide_exactly_once in C.
    rewrite for_all_cells_iff in C. specialize (C r c Hr Hc).
    pose proof (final_value_tree (all_rounds s) r c) as F.
    destruct (final_value (all_rounds s) r c) as [[set t]|]; [|discriminate].
    exists set. now rewrite F. }
  assert (Same : forall a r c, a < ranks s -> r < ranks s -> c < chunks s ->
    same_tree (final_value (all_rounds s) a c) (final_value (all_rounds s) r c) = true <->
    final_trees (all_rounds s) a c = final_trees (all_rounds s) r c).
  { intros a r c Ha Hr Hc. destruct (T a c Ha Hc) as [x ->], (T r c Hr Hc) as [y ->]. simpl.
    rewrite <- tree_compare_eq. destruct (tree_compare _ _); intuition discriminate. }
  split.
  - intros H r r' c Hr Hr' Hc. assert (Z : 0 < ranks s) by lia.
    transitivity (final_trees (all_rounds s) 0 c); [symmetry|]; apply Same; auto.
  - intros H r c Hr Hc. assert (Z : 0 < ranks s) by lia. apply Same; auto.
Qed.

(** Everything that acceptance promises. *)
Definition right (s : schedule) : Prop := valid s /\ same_bits s /\ hazard_free s.

Lemma accepted_iff s : accepted (check s) = true <-> right s.
Proof.
  unfold check, right, valid. rewrite <- well_formed_iff, <- ports_iff, <- absence_iff, <- hazard_free_iff.
  destruct (decide_well_formed s) eqn:W; simpl.
  2: { split; [discriminate|]. intros ((? & _) & _). discriminate. }
  unfold accepted. simpl.
  pose proof (exactly_once_decided s) as E. pose proof (same_bits_decided s) as B.
  destruct (decide_exactly_once s _).
  - assert (C : correct s) by tauto. specialize (B C). rewrite <- B.
    rewrite !andb_true_iff. tauto.
  - split; [discriminate|]. intros ((_ & _ & _ & C) & _). apply E in C. discriminate.
Qed.

(** ** Soundness: what is accepted is right, whatever the data. *)
Theorem check_sound s : accepted (check s) = true ->
  correct s /\ same_bits s /\ well_formed s /\ ports_respected s /\ absence_respected s /\
  hazard_free s.
Proof. intros H. apply accepted_iff in H. unfold right, valid in H. tauto. Qed.

(** ** Completeness: what is rejected is wrong. Where a sum is wrong, counting exhibits it. *)
Theorem check_complete s : accepted (check s) = false -> ~ right s.
Proof. intros H R. apply accepted_iff in R. congruence. Qed.

Lemma forallb_exhibits {A} (p : A -> bool) l : forallb p l = false ->
  exists x, In x l /\ p x = false.
Proof.
  induction l as [|a l IH]; simpl; [discriminate|]. destruct (p a) eqn:E; simpl.
  - intros H. destruct (IH H) as (x & Hx & ?). eauto.
  - intros _. exists a. auto.
Qed.

Theorem check_exhibits s : is_exactly_once (check s) = Some false ->
  exists i r c, i < ranks s /\ r < ranks s /\ c < chunks s /\
    run N.add (fun j _ => if j =? i then 1 else 0) (all_rounds s) r c <> 1.
Proof.
  unfold check. destruct (decide_well_formed s) eqn:W; simpl; [|discriminate].
  intros [= E]. apply well_formed_iff in W.
  set (one := fun i r c =>
    run N.add (fun j _ => if j =? i then 1 else 0) (all_rounds s) r c =? 1).
  destruct (forallb (fun i => for_all_cells (ranks s) (chunks s) (one i)) (range (ranks s)))
    eqn:A.
  - exfalso. assert (C : correct s).
    { apply counting_suffices; [now apply well_formed_ranks_exist|].
      intros i r c Hi Hr Hc. rewrite forallb_forall in A. apply in_range in Hi.
      specialize (A i Hi). rewrite for_all_cells_iff in A. apply N.eqb_eq. now apply A. }
    apply exactly_once_decided in C.
    change (decide_exactly_once s (final_value (all_rounds s)) = false) in E. congruence.
  - apply forallb_exhibits in A as (i & Hi & A).
    apply forallb_exhibits in A as (c & Hc & A).
    apply forallb_exhibits in A as (r & Hr & A).
    apply in_range in Hi, Hc, Hr. apply N.eqb_neq in A. eauto 8.
Qed.

(** ** Optimality *)
Theorem check_optimal s : 2 <= ranks s -> accepted (check s) = true ->
  match is_optimal (check s) with
  | Some true => optimal s
  | Some false => ~ fewest_rounds s
  | None => True
  end.
Proof.
  intros Hn A. pose proof A as R. apply accepted_iff in R. destruct R as (V & _ & _).
  unfold check, accepted in *. destruct (decide_well_formed s); simpl in *; [|discriminate].
  destruct (decide_exactly_once s _); simpl in *; [|rewrite ?andb_false_r in A; discriminate].
  rewrite !andb_true_iff in A. destruct A as ((((-> & ->) & _) & ->) & ->). simpl.
  unfold decide_optimal.
  destruct (nobody_leaves s && (completion_rounds s =? lower_bound s)) eqn:B.
  - apply andb_true_iff in B as [Stay B]. apply N.eqb_eq in B. now apply at_the_bound_optimal.
  - destruct (has_idle_round s) eqn:I; auto. apply idle_round_not_optimal; auto.
    apply existsb_exists in I as (rd & Hrd & E). destruct rd; [auto|discriminate].
Qed.

(** The bound that the report gives holds for every right schedule with the same other phases. *)
Theorem check_bound s : 2 <= ranks s -> well_formed s ->
  forall s', same_other_phases s s' -> valid s' -> bound (check s) <= completion_rounds s'.
Proof.
  intros Hn W s' Same (F & P & A & C). unfold check.
  apply well_formed_iff in W. rewrite W. simpl.
  rewrite (lower_bound_same s s' Same). apply lower_bound_holds; auto.
  destruct Same as (<- & _). auto.
Qed.
