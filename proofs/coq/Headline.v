(** The claim of the README, as one theorem: for every number of ranks, every number of chunks and
    whichever rank is late, there is a right schedule with k + ceil(log2 n) - 1 rounds after its
    arrival, and no right schedule has fewer, whatever is done in the wait and however long it is.

    The schedule is [ClosedForm.v] under other names of ranks; the bound is [Knowledge.v]. That memory
    beside the buffer and parts of chunks don't help either is in [AnyMemory.v]. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Bounds Check
  ClosedForm Renaming.
Import ListNotations.
Open Scope N_scope.

(** Ranks [a] and [b] change their names. *)
Definition swapped (a b r : N) : N := if r =? a then b else if r =? b then a else r.

(** The schedule that [synth] ships, with rank [r] late instead of the last one. *)
Definition schedule_for (n k r : N) : schedule := renamed (swapped (n - 1) r) (closed_form n k).

(** * Proofs *)

Lemma swapped_twice a b r : swapped a b (swapped a b r) = r.
Proof.
  unfold swapped. destruct (N.eqb_spec r a) as [->|Ha].
  - destruct (N.eqb_spec b a) as [->|Hb]; auto. now rewrite N.eqb_refl.
  - destruct (N.eqb_spec r b) as [->|Hb]; [now rewrite N.eqb_refl|].
    destruct (N.eqb_spec r a); [contradiction|]. now destruct (N.eqb_spec r b).
Qed.

Lemma swapped_rank n a b r : a < n -> b < n -> r < n <-> swapped a b r < n.
Proof. unfold swapped. intros Ha Hb. destruct (N.eqb_spec r a), (N.eqb_spec r b); subst; lia. Qed.

Lemma swapped_renames n a b : a < n -> b < n -> renaming (swapped a b) (swapped a b) n.
Proof.
  intros Ha Hb. split; [|split]; intros r; try apply swapped_twice. now apply swapped_rank.
Qed.

(** [before]: the wait, in which [r] sends nothing, and whatever else is done. *)
Lemma no_fewer_rounds n k r (before after : list round) :
  2 <= n -> 1 <= k -> r < n ->
  (forall rd, In rd before -> silent r rd) -> Forall (fits_ports Duplex) after ->
  all_reduce n k (before ++ after) ->
  k + N.log2_up n - 1 <= N.of_nat (length after).
Proof.
  intros Hn Hk Hr Quiet Fits Right. apply all_reduce_iff in Right.
  replace (k + N.log2_up n - 1) with (knowledge_bound n k 1).
  2: { unfold knowledge_bound, ceil_div. rewrite N.div_1_r, log_ceil_two by lia. lia. }
  apply (knowledge_bound_holds n k 1 r before after); auto; try lia.
  - intros rd t Hrd Ht. now apply (Quiet rd).
  - eapply Forall_impl; [|exact Fits]. intros rd F. apply F.
  - intros q c Hq Hc. apply (holders_know c [Rank r] (before ++ after) own_data) with (i := Rank r).
    + intros a i [<-|[]] [[= ->]|[]]. now left.
    + apply (Permutation_in (Rank r) (Permutation_sym (Right q c Hq Hc))). now apply in_everybody.
    + now left.
Qed.

(** * The headline *)

(** For any late rank: a right schedule with so many rounds after its arrival; and whatever the others
    do before the late rank takes part, for however many rounds, no rounds after it are fewer. *)
Theorem one_late_rank n k r : 2 <= n -> 1 <= k -> r < n ->
  (exists wait completion,
     Check.right (schedule_for n k r) /\
     ranks (schedule_for n k r) = n /\ chunks (schedule_for n k r) = k /\
     late (schedule_for n k r) = [r] /\ ports (schedule_for n k r) = Duplex /\
     all_rounds (schedule_for n k r) = wait ++ completion /\
     (forall rd, In rd wait -> silent r rd) /\
     N.of_nat (length completion) = k + N.log2_up n - 1 /\
     N.of_nat (length wait) <= k + 2 * N.log2_up n - 2) /\
  (forall before after : list round,
     (forall rd, In rd before -> silent r rd) -> Forall (fits_ports Duplex) after ->
     all_reduce n k (before ++ after) ->
     k + N.log2_up n - 1 <= N.of_nat (length after)).
Proof.
  intros Hn Hk Hr. split; [|intros before after; now apply no_fewer_rounds].
  assert (Last : n - 1 < n) by lia. pose proof (swapped_renames n (n - 1) r Last Hr) as Names.
  set (new := swapped (n - 1) r) in *.
  exists (map (map (renamed_transfer new)) (waiting n k)),
         (map (map (renamed_transfer new)) (completion n k)).
  split; [apply (renamed_right new new (closed_form n k) Names); now apply right|].
  do 2 (split; [reflexivity|]). split.
  { unfold schedule_for. simpl. unfold Broadcast.root, swapped. now rewrite N.eqb_refl. }
  split; [reflexivity|]. split.
  { unfold schedule_for. fold new. rewrite (renamed_rounds new (closed_form n k)).
    rewrite all_rounds_closed by auto. apply map_app. }
  split; [|split].
  - intros rd Hrd t Ht. apply in_map_iff in Hrd as (rd' & <- & Hrd).
    apply in_map_iff in Ht as (t' & <- & Ht).
    destruct (waiting_proper n k Hn Hk rd' Hrd) as [_ Quiet]. destruct (Quiet t' Ht) as [Qs Qd].
    assert (Mine : forall x, new x = r -> x = Broadcast.root n).
    { intros x E. unfold new in E. rewrite <- (swapped_twice (n - 1) r x), E. unfold swapped.
      destruct (N.eqb_spec r (n - 1)); [auto|]. now rewrite N.eqb_refl. }
    simpl. split; intros E; apply Mine in E; contradiction.
  - rewrite map_length. now apply completion_length.
  - rewrite map_length. pose proof (waiting_length n k Hn Hk).
    pose proof (N.log2_up_le_mono 2 n Hn) as L. change (N.log2_up 2) with 1 in L. etransitivity; [exact H|lia].
Qed.
