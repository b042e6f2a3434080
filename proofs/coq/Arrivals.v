(** Optimal for given arrivals: the bounds of synth/arrivals/instance.py, and schedules at them.

    [arrivals_bound] is the greatest of the dissemination bound and, for every round in which ranks
    arrive, the bandwidth bound ([Bandwidth.v]). It holds for every right schedule in which ranks take
    no part before they arrive, through duplex or matching ports ([arrivals_bound_holds]); so a right
    schedule at it is optimal ([optimal_for_arrivals_sound]). *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Spread Bounds
  Check Formula Impossible Bandwidth.
Import ListNotations.
Open Scope N_scope.

(** * The bound for a question *)

Section Question.
  Variable q : question.

  Let n := of_ranks q.
  Let k := of_chunks q.

  Definition last_arrival : N := fold_right N.max 0 (map (arrives q) (range n)).

  (** A rank that is there from the first round on. *)
  Definition first_there : N :=
    match find (fun r => arrives q r =? 0) (range n) with Some r => r | None => 0 end.

  Definition late_from (a r : N) : bool := (a <=? arrives q r) && negb (r =? first_there).

  (** Rounds after the last arrival, because of those that arrive in round [a] or later. *)
  Definition bandwidth_bound (a : N) : N :=
    filled n (arrives q) (late_from a) last_arrival (N.to_nat (last_arrival + 2 * k * n)) a 0
      (k * (n + count n (late_from a) - 1))
    - last_arrival.

  Definition arrivals_bound : N :=
    fold_right N.max (knowledge_bound n k 1)
      (map bandwidth_bound (nodup N.eq_dec (map (arrives q) (range n)))).

  Lemma last_arrival_least r : r < n -> arrives q r <= last_arrival.
  Proof.
    intros Hr. apply in_range in Hr. unfold last_arrival.
    induction (range n) as [|a l IH]; simpl in *; [easy|]. destruct Hr as [->|Hr]; [lia|].
    specialize (IH Hr). lia.
  Qed.

  Lemma somebody_last : 0 < last_arrival -> exists r, r < n /\ arrives q r = last_arrival.
  Proof.
    unfold last_arrival. intros H.
    assert (E : exists r, In r (range n) /\
              arrives q r = fold_right N.max 0 (map (arrives q) (range n))).
    { revert H. induction (range n) as [|a l IH]; simpl; intros H; [lia|].
      destruct (N.max_spec (arrives q a) (fold_right N.max 0 (map (arrives q) l))) as [[L E]|[L E]];
        rewrite E in *.
      - destruct IH as (r & Hr & Er); [lia|]. exists r. auto.
      - exists a. auto. }
    destruct E as (r & Hr & Er). exists r. split; auto. now apply in_range.
  Qed.

  Hypothesis two_ranks : 2 <= n.
  Hypothesis some_chunk : 1 <= k.

  Lemma arrivals_bound_positive : 1 <= arrivals_bound.
  Proof.
    unfold arrivals_bound. transitivity (knowledge_bound n k 1).
    - apply knowledge_bound_positive; auto. lia.
    - induction (map bandwidth_bound _) as [|b l IH]; simpl; lia.
  Qed.

  Hypothesis somebody_there : exists r, r < n /\ arrives q r = 0.

  Lemma first_there_is : first_there < n /\ arrives q first_there = 0.
  Proof.
    unfold first_there. destruct (find _ _) as [r|] eqn:E.
    - apply find_some in E as [Hr E]. rewrite in_range in Hr. apply N.eqb_eq in E. auto.
    - destruct somebody_there as (r & Hr & Z). apply in_range in Hr.
      apply (find_none _ _ E) in Hr. apply N.eqb_neq in Hr. contradiction.
  Qed.

  Lemma newest_exists a : a <= last_arrival -> exists r, r < n /\ late_from a r = true /\
    arrives q r = last_arrival.
  Proof.
    intros Ha. destruct first_there_is as [Hf Zf]. unfold late_from.
    assert (G : forall r, r < n -> r <> first_there -> arrives q r = last_arrival ->
      (a <=? arrives q r) && negb (r =? first_there) = true).
    { intros r Hr Ne E. rewrite E, andb_true_iff, negb_true_iff, N.eqb_neq, N.leb_le. auto. }
    destruct (N.eq_dec last_arrival 0) as [Z|Z].
    - assert (H : exists r, r < n /\ r <> first_there).
      { destruct (N.eq_dec first_there 0); [exists 1|exists 0]; lia. }
      destruct H as (r & Hr & Ne). exists r.
      assert (arrives q r = last_arrival) by (pose proof (last_arrival_least r Hr); lia). auto.
    - destruct somebody_last as (r & Hr & E); [lia|]. exists r.
      assert (r <> first_there) by (intros ->; lia). auto.
  Qed.

  Variable rs : list round.
  Hypothesis answered : answers q rs.

  Lemma everywhere r i c : r < n -> i < n -> c < k -> In (Rank i) (collect own_data rs r c).
  Proof.
    intros Hr Hi Hc. destruct answered as [_ _ _ _ Right]. apply all_reduce_iff in Right.
    apply (Permutation_in (Rank i) (Permutation_sym (Right r c Hr Hc))). now apply in_everybody.
  Qed.

  Lemma ports_of_answer rd : In rd rs -> sends_within 1 rd /\ receives_within 1 rd.
  Proof.
    intros Hrd. destruct answered as [_ _ Fits _ _]. specialize (Fits rd Hrd).
    destruct (in_pairs q), Fits as (S & R & _); auto.
  Qed.

  Theorem bandwidth_bound_holds a : a <= last_arrival ->
    bandwidth_bound a <= N.of_nat (length rs) - last_arrival.
  Proof.
    intros Ha. unfold bandwidth_bound. apply N.sub_le_mono_r.
    destruct (newest_exists a Ha) as (newest & Newest). destruct first_there_is as [Hf Zf].
    apply filled_in_time with (other := first_there) (newest := newest); auto.
    - split; auto. unfold late_from. now rewrite N.eqb_refl, andb_false_r.
    - intros r L. apply andb_true_iff in L as [L _]. now apply N.leb_le.
    - intros i r Hi. destruct answered as [_ _ _ Absent _]. simpl in Hi.
      rewrite <- (Nat2N.id i). now apply Absent.
    - apply Forall_forall. intros rd Hrd. destruct (ports_of_answer rd Hrd) as [S R].
      repeat split; try (now apply nodup_occurrences);
        destruct answered as [_ Formed _ _ _]; now destruct (Formed rd x Hrd H) as (? & ? & ? & ?).
    - apply everywhere.
  Qed.

  Theorem arrivals_bound_holds : arrivals_bound <= N.of_nat (length rs) - last_arrival.
  Proof.
    unfold arrivals_bound.
    assert (D : knowledge_bound n k 1 <= N.of_nat (length rs) - last_arrival).
    { destruct (newest_exists 0 ltac:(lia)) as (newest & Hn & _ & E).
      set (before := firstn (N.to_nat last_arrival) rs).
      set (after := skipn (N.to_nat last_arrival) rs).
      replace (N.of_nat (length rs) - last_arrival) with (N.of_nat (length after))
        by (unfold after; rewrite skipn_length; lia).
      apply (knowledge_bound_holds n k 1 newest before after); auto; [lia| | |].
      - intros rd t Hrd Ht. destruct answered as [_ _ _ Absent _].
        apply (In_nth _ _ []) in Hrd as (i & Hi & <-). unfold before in *.
        assert (Len : (i < length rs /\ i < N.to_nat last_arrival)%nat)
          by (rewrite firstn_length in Hi; lia).
        assert (Same : nth i rs [] = nth i (firstn (N.to_nat last_arrival) rs) []).
        { rewrite <- (firstn_skipn (N.to_nat last_arrival) rs) at 1. now rewrite app_nth1. }
        change (In t (nth i (firstn (N.to_nat last_arrival) rs) [])) in Ht.
        rewrite <- Same in Ht. pose proof (Absent (N.of_nat i) newest ltac:(lia)) as Quiet.
        rewrite Nat2N.id in Quiet. now apply Quiet.
      - apply Forall_forall. intros rd Hrd. apply ports_of_answer. unfold after in Hrd.
        rewrite <- (firstn_skipn (N.to_nat last_arrival) rs). apply in_or_app. now right.
      - intros r c Hr Hc. unfold before, after. rewrite firstn_skipn.
        apply (holders_know c [Rank newest] rs own_data) with (i := Rank newest).
        + intros x i [<-|[]] [[= ->]|[]]. now left.
        + now apply everywhere.
        + now left. }
    assert (G : forall l, (forall a, In a l -> a <= last_arrival) ->
      fold_right N.max (knowledge_bound n k 1) (map bandwidth_bound l)
      <= N.of_nat (length rs) - last_arrival).
    { induction l as [|a l IH]; simpl; intros H; auto. apply N.max_lub; auto.
      apply bandwidth_bound_holds. auto. }
    apply G. intros a Ha. apply nodup_In, in_map_iff in Ha as (r & <- & Hr).
    now apply last_arrival_least, in_range.
  Qed.
End Question.

(** * Optimal schedules *)

(** Right, at the bound, and nobody is absent after the last arrival: what is extracted. *)
Definition optimal_for_arrivals (s : schedule) : bool :=
  let q := shorter s in
  accepted (check s) && nobody_leaves s && one_port s && (2 <=? ranks s) &&
  existsb (fun r => arrives q r =? 0) (range (ranks s)) &&
  (last_arrival q =? elsewhere (phases s)) && (completion_rounds s =? arrivals_bound q).

(** No right schedule for these arrivals has fewer rounds after the last. *)
Theorem optimal_for_arrivals_sound s : optimal_for_arrivals s = true -> right s /\ optimal s.
Proof.
  unfold optimal_for_arrivals.
  rewrite !andb_true_iff, N.leb_le, !N.eqb_eq, existsb_exists.
  intros ((((((A & Stay) & One) & Two) & (r & Hr & Z)) & Last) & Least). apply accepted_iff in A.
  split; auto. pose proof A as (V & _). split; auto. split; auto. intros s' Same V'.
  pose proof (valid_answers s s' (count_rounds (phases s')) One Same V' (N.le_refl _)) as An.
  destruct V as (Formed & _). pose proof Formed as (_ & Some & _).
  pose proof (arrivals_bound_positive (shorter s) Two Some) as Positive.
  apply arrivals_bound_holds in An; simpl; auto.
  - change (arrivals_bound (question_of s (count_rounds (phases s')))) with
      (arrivals_bound (shorter s)) in An.
    change (last_arrival (question_of s (count_rounds (phases s')))) with (last_arrival (shorter s)) in *.
    change (N.of_nat (length (all_rounds s'))) with (count_rounds (phases s')) in *.
    rewrite completion_and_elsewhere. unfold completion_rounds in Least. lia.
  - exists r. split; [now apply in_range|]. apply N.eqb_eq. exact Z.
Qed.
