(** Schedules in which nobody is late, and what there is to prove for them to be right. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics SameBits Structure Volume Spread Bounds Check.
Import ListNotations.
Open Scope N_scope.

Definition nobody_late (n k : N) (p : port_model) (stages : list (list round)) : schedule :=
  Schedule n k [] p (map (Phase []) stages).

Lemma nobody_late_rounds n k p stages : all_rounds (nobody_late n k p stages) = concat stages.
Proof.
  unfold all_rounds, rounds_of, nobody_late. simpl.
  induction stages as [|rs stages IH]; simpl; congruence.
Qed.

(** Ranks, chunks and ports are there; each round is right by itself; all of them compute the sum,
    with the same bits. *)
Theorem nobody_late_right n k p stages :
  1 <= n -> 1 <= k -> 1 <= port_limit p ->
  (forall rd, In rd (concat stages) ->
     (forall t, In t rd -> transfer_well_formed n k t) /\ fits_ports p rd /\
     hazard_free_round (summing_allowed p) rd) ->
  all_reduce n k (concat stages) ->
  (forall (A : Type) (plus : A -> A -> A) x r r' c, r < n -> r' < n -> c < k ->
     run plus x (concat stages) r c = run plus x (concat stages) r' c) ->
  right (nobody_late n k p stages).
Proof.
  intros Hn Hk Hp Each Sum Bits.
  assert (Absent : forall q r, In q (phases (nobody_late n k p stages)) -> ~ In r (absent q)).
  { intros q r Hq. apply in_map_iff in Hq as (rs & <- & _). easy. }
  assert (V : valid (nobody_late n k p stages)).
  { repeat split; simpl; auto; try easy.
    1,2,3,4: rewrite nobody_late_rounds in *; apply Each in H as (T & _); now apply T.
    1,2,3: rewrite nobody_late_rounds in *; apply Each in H as (_ & F & _); apply F.
    1,2: exfalso; eapply Absent; eauto.
    unfold correct. rewrite nobody_late_rounds. exact Sum. }
  split; auto. split.
  - intros A plus _ x r r' c. rewrite nobody_late_rounds. apply Bits.
  - intros rd Hrd. rewrite nobody_late_rounds in Hrd. now apply Each.
Qed.

(** Who has no more rounds than the bandwidth bound asks for has the fewest. *)
Theorem nobody_late_optimal n k p stages : 2 <= n -> right (nobody_late n k p stages) ->
  N.of_nat (length (concat stages)) <= volume_bound n k (port_limit p) ->
  optimal (nobody_late n k p stages).
Proof.
  intros Hn (V & _) Few.
  assert (Here : filter nobody_absent (phases (nobody_late n k p stages))
                 = phases (nobody_late n k p stages)).
  { simpl. clear. induction stages as [|rs l IH]; simpl; congruence. }
  assert (None : elsewhere (phases (nobody_late n k p stages)) = 0).
  { simpl. unfold elsewhere, count_rounds. clear. induction stages; simpl; auto. }
  assert (Stay : nobody_leaves (nobody_late n k p stages) = true).
  { unfold nobody_leaves. simpl. clear. induction stages as [|rs [|rs' l] IH]; simpl in *; auto. }
  apply at_the_bound_optimal; auto. apply N.le_antisymm.
  - unfold completion_rounds. rewrite Here. unfold count_rounds.
    change (rounds_of (phases ?s)) with (all_rounds s). rewrite nobody_late_rounds.
    unfold lower_bound. rewrite None. simpl ranks. simpl chunks. simpl ports. lia.
  - destruct V as (F & P & A & C). now apply lower_bound_holds.
Qed.

(** * Rounds in which every rank sends once and receives once *)

Lemma once_fits rd : NoDup (map src rd) -> NoDup (map dst rd) -> fits_ports Duplex rd.
Proof.
  intros S D. repeat split; try discriminate;
    intros r; simpl; apply (NoDup_count_occ N.eq_dec); auto.
Qed.

(** Nothing is written twice. *)
Lemma distinct_targets_hazard_free allowed rd :
  NoDup (map (fun t => (dst t, chunk t)) rd) -> hazard_free_round allowed rd.
Proof.
  unfold hazard_free_round. induction rd as [|t rd IH]; simpl; intros H; constructor.
  - apply Forall_forall. intros u Hu [Ed Ec]. exfalso. inversion H as [|? ? No _]; subst.
    apply No. rewrite Ed, Ec. apply (in_map (fun t => (dst t, chunk t))), Hu.
  - apply IH. now inversion H.
Qed.

Lemma once_hazard_free allowed rd : NoDup (map dst rd) -> hazard_free_round allowed rd.
Proof.
  intros D. apply distinct_targets_hazard_free.
  apply (NoDup_map_inv fst). now rewrite map_map.
Qed.
