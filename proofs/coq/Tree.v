(** A binomial tree: the ranks 0 .. h-1 reduce a single chunk to rank 0 (the waiting phase of
    synth/straggler/closed_form.py for one chunk).

    In round j the odd multiples of 2^j send to the even ones just below them, and then a multiple of
    2^(j+1) has the sum of the 2^(j+1) ranks from it on, as far as there are so many. *)

From Coq Require Import List NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics.
Import ListNotations.
Open Scope N_scope.

Section Tree.
  Variable h : N.

  Definition sends (j r : N) : bool := (r <? h) && (r mod (2 * 2 ^ j) =? 2 ^ j).

  (** The transfers of those senders that are among [ends]. *)
  Definition tree_round (ends : list N) (j : N) : round :=
    map (fun r => Transfer r (r - 2 ^ j) 0 Reduce) (filter (sends j) ends).

  Definition tree : list round := map (tree_round (range h)) (range (N.log2_up h)).

  (** What rank [r] does of it; its rounds are those of the tree, empty ones too. *)
  Definition tree_of (r : N) : list round :=
    map (fun j => tree_round [r; r + 2 ^ j] j) (range (N.log2_up h)).
End Tree.

(** * Proofs *)

Section Proofs.
  Variable h : N.

  Lemma power_some j : 1 <= 2 ^ j.
  Proof. pose proof (N.pow_nonzero 2 j). lia. Qed.

  Lemma sends_spec j r : sends h j r = true <-> r < h /\ exists q, r = 2 * 2 ^ j * q + 2 ^ j.
  Proof.
    unfold sends. rewrite andb_true_iff, N.ltb_lt, N.eqb_eq. pose proof (power_some j).
    split; intros [L E]; split; auto.
    - exists (r / (2 * 2 ^ j)). pose proof (N.div_mod r (2 * 2 ^ j) ltac:(lia)) as D.
      now rewrite E in D.
    - destruct E as (q & E). symmetry. apply (N.mod_unique _ _ q); [lia|exact E].
  Qed.

  Lemma in_tree_round ends j y : In y (tree_round h ends j) <->
    exists r, In r ends /\ sends h j r = true /\ y = Transfer r (r - 2 ^ j) 0 Reduce.
  Proof.
    unfold tree_round. rewrite in_map_iff. split.
    - intros (r & <- & H). apply filter_In in H as [H S]. eauto.
    - intros (r & H & S & ->). exists r. rewrite filter_In. auto.
  Qed.

  Lemma in_tree rd : In rd (tree h) -> exists j, rd = tree_round h (range h) j.
  Proof. unfold tree. rewrite in_map_iff. intros (j & <- & _). eauto. Qed.

  Lemma tree_sends_once j : NoDup (map src (tree_round h (range h) j)).
  Proof.
    unfold tree_round. rewrite map_map. simpl. apply nodup_filter_map. rewrite map_id.
    apply range_nodup.
  Qed.

  Lemma tree_receives_once j : NoDup (map dst (tree_round h (range h) j)).
  Proof.
    unfold tree_round. rewrite map_map. simpl. apply nodup_map_on; [|apply NoDup_filter, range_nodup].
    intros a b Ha Hb. apply filter_In in Ha as [_ Ha], Hb as [_ Hb].
    apply sends_spec in Ha as (_ & qa & Ea), Hb as (_ & qb & Eb). lia.
  Qed.

  Lemma tree_inside j y : In y (tree_round h (range h) j) ->
    src y < h /\ dst y < h /\ chunk y = 0 /\ src y <> dst y.
  Proof.
    intros Hy. apply in_tree_round in Hy as (r & _ & S & ->). simpl.
    apply sends_spec in S as (L & q & E). pose proof (power_some j). repeat split; auto; lia.
  Qed.

  (** Nobody sends and receives in one round: senders are odd multiples, receivers even ones. *)
  Lemma tree_apart j y z : In y (tree_round h (range h) j) -> In z (tree_round h (range h) j) ->
    src y <> dst z.
  Proof.
    intros Hy Hz E. apply in_tree_round in Hy as (a & _ & A & ->), Hz as (b & _ & B & ->). simpl in E.
    apply sends_spec in A as (_ & qa & Ea), B as (_ & qb & Eb). pose proof (power_some j).
    assert (X : 2 ^ j * (2 * qa + 1) = 2 ^ j * (2 * qb)) by lia.
    apply N.mul_cancel_l in X; lia.
  Qed.

  Lemma tree_length : length (tree h) = N.to_nat (N.log2_up h).
  Proof. unfold tree. now rewrite map_length, range_length. Qed.

  Lemma own_tree_round r j y : In y (tree_round h [r; r + 2 ^ j] j) <->
    In y (tree_round h (range h) j) /\ (src y = r \/ dst y = r).
  Proof.
    rewrite !in_tree_round. split.
    - intros (u & U & S & ->). simpl. pose proof S as S'. apply sends_spec in S' as (L & q & E).
      split; [exists u; rewrite in_range; auto|]. destruct U as [<-|[<-|[]]]; [auto|right; lia].
    - intros [(u & _ & S & ->) U]. simpl in U. exists u. split; [|auto].
      apply sends_spec in S as (L & q & E). simpl. destruct U as [U|U]; [auto|right; left; lia].
  Qed.

  (** ** Rank 0 ends with the sum *)

  Section Sums.
    Variable M : commutative_monoid.
    Variable x : state M.

    (** The 2^j ranks from [r] on, as far as there are so many. *)
    Definition span (j r : N) : list N :=
      filter (fun i => (r <=? i) && (i <? r + 2 ^ j)) (range h).

    Lemma in_span j r i : In i (span j r) <-> i < h /\ r <= i < r + 2 ^ j.
    Proof. unfold span. now rewrite filter_In, in_range, andb_true_iff, N.leb_le, N.ltb_lt. Qed.

    Lemma span_nodup j r : NoDup (span j r).
    Proof. apply NoDup_filter, range_nodup. Qed.

    Lemma double j : 2 ^ (j + 1) = 2 * 2 ^ j.
    Proof. rewrite N.add_1_r. apply N.pow_succ_r'. Qed.

    Lemma span_double j r : Permutation (span (j + 1) r) (span j r ++ span j (r + 2 ^ j)).
    Proof.
      apply NoDup_Permutation; [apply span_nodup| |].
      - apply nodup_app. split; [apply span_nodup|]. split; [apply span_nodup|].
        intros i. rewrite !in_span. lia.
      - intros i. rewrite in_app_iff, !in_span, double. lia.
    Qed.

    Definition summed (j : N) (s : state M) : Prop :=
      forall q, 2 ^ j * q < h -> s (2 ^ j * q) 0 = sum M (fun i => x i 0) (span j (2 ^ j * q)).

    Lemma summed_start : summed 0 x.
    Proof.
      intros q L. rewrite N.pow_0_r, N.mul_1_l in *. rewrite <- (sum_single M (fun i => x i 0) q).
      apply sum_permutation, NoDup_Permutation.
      - repeat constructor. auto.
      - apply span_nodup.
      - intros i. rewrite in_span, N.pow_0_r. simpl. lia.
    Qed.

    Lemma summed_step j s :
      summed j s -> summed (j + 1) (run_round (add M) s (tree_round h (range h) j)).
    Proof.
      intros H q L. rewrite double in *. pose proof (power_some j) as P.
      assert (Here := H (2 * q)). assert (There := H (2 * q + 1)).
      replace (2 ^ j * (2 * q)) with (2 * 2 ^ j * q) in Here by lia.
      replace (2 ^ j * (2 * q + 1)) with (2 * 2 ^ j * q + 2 ^ j) in There by lia.
      set (r := 2 * 2 ^ j * q) in *.
      rewrite (sum_permutation M _ _ _ (span_double j r)), sum_app.
      destruct (N.lt_ge_cases (r + 2 ^ j) h) as [B|B].
      - assert (Hy : In (Transfer (r + 2 ^ j) r 0 Reduce) (tree_round h (range h) j)).
        { apply in_tree_round. exists (r + 2 ^ j). rewrite in_range, sends_spec. split; [exact B|].
          split; [split; [exact B|now exists q]|]. f_equal. lia. }
        apply (run_round_receives (add M) s _ _ (tree_receives_once j)) in Hy. simpl in Hy.
        now rewrite Hy, Here, There.
      - assert (E : span j (r + 2 ^ j) = []).
        { apply incl_l_nil. intros i Hi. apply in_span in Hi. lia. }
        rewrite E. simpl. rewrite add_comm, add_zero, <- Here by exact L.
        apply run_round_quiet. intros y Hy D. exfalso.
        apply in_tree_round in Hy as (u & _ & S & ->). simpl in D.
        apply sends_spec in S as (Lu & qu & Eu). lia.
    Qed.

    Theorem tree_gathers : 1 <= h ->
      run (add M) x (tree h) 0 0 = sum M (fun i => x i 0) (range h).
    Proof.
      intros Some. unfold tree.
      pose proof (run_invariant (add M) summed x (tree_round h (range h)) (N.log2_up h) summed_start)
        as G.
      specialize (G ltac:(intros; now apply summed_step) 0).
      rewrite N.mul_0_r in G. rewrite G by lia. apply sum_permutation, NoDup_Permutation.
      - apply span_nodup.
      - apply range_nodup.
      - intros i. rewrite in_span, in_range.
        assert (h <= 2 ^ N.log2_up h) by (apply N.log2_up_le_pow2; lia). lia.
    Qed.
  End Sums.
End Proofs.
