(** The schedule at the lower bound for every number of ranks and chunks, as synth ships it
    (synth/straggler/closed_form.py).

    The late rank, n-1, broadcasts ([Broadcast.v]): chunk t leaves it in round t, full. The helpers'
    sum of chunk t + 1 comes to it in round t, from the helper beside its receiver, whose port to
    send is idle. Chunk 0 it gives raw to the helper that has its sum, and receives it back later.
    The waiting phase is the broadcast backwards, every move a reduction from receiver to sender;
    what would go to the late rank goes straight to the owner. A single chunk has a single owner,
    helper 0, and is reduced to it along a binomial tree ([Tree.v]). *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits Structure Knowledge
  Bounds Check Corners Broadcast Tree.
Import ListNotations.
Open Scope N_scope.

Section ClosedForm.
  Variables n k : N.

  Local Notation late := (root n).
  Local Notation moves := (moves n k).
  Local Notation receiver := (receiver n k).
  Local Notation beside := (beside n k).

  Definition last : N := k - 1.

  (** ** The completion *)

  Definition owner (c : N) : N := if c =? 0 then receiver 0 else beside (c - 1).

  (** Helper [h] has chunk 0 before round [t], and sends nothing in it. *)
  Definition can_return (h t : N) : bool :=
    existsb (fun u => existsb (fun m => (dst m =? h) && (chunk m =? 0)) (moves_of n k h u)) (range t)
    && forallb (fun m => negb (src m =? h)) (moves_of n k h t).

  (** When, and from whom, the late rank receives chunk 0 back. *)
  Definition way_back : N * N :=
    if k =? 1 then (0, receiver 0)
    else match find (fun t => can_return (beside t) t) (rounds_in last (broadcast_rounds n k)) with
         | Some t => (t, beside t)
         | None => (0, receiver 0)   (* never: [way_back_found] *)
         end.

  (** Of all moves of the broadcast, or of some rank's. *)
  Definition completion_round (moves : N -> list transfer) (back : N * N) (t : N) : round :=
    let op := if t =? 0 then Reduce else Copy in
    map (fun m => Transfer (src m) (dst m) (chunk m) op) (moves t)
    ++ (if t + 1 <? k then [Transfer (beside t) late (t + 1) Reduce] else [])
    ++ (if t =? fst back then [Transfer (snd back) late 0 op] else []).

  Definition completion : list round :=
    let back := way_back in map (completion_round moves back) (range (broadcast_rounds n k)).

  (** ** The waiting phase *)

  Definition reversed (m : transfer) : transfer :=
    Transfer (dst m) (src m) ((chunk m + 1) mod k) Reduce.

  Definition straight (t : N) : bool := (t <? last) && negb (receiver t =? beside t).

  Definition last_moves (t : N) : bool := (t =? 0) && negb (receiver last =? receiver 0).

  Definition waiting_round (moves : N -> list transfer) (t : N) : round :=
    map reversed (filter (fun m => negb (src m =? late)) (moves t))
    ++ (if straight t then [Transfer (receiver t) (beside t) (t + 1) Copy] else [])
    ++ (if last_moves t then [Transfer (receiver last) (receiver 0) 0 Copy] else []).

  (** Of all ranks, or of the one whose transfers [pick] picks. *)
  Definition waiting_rounds (moves : N -> list transfer) (pick : round -> round) t : list round :=
    (if (0 <? t) || straight t || last_moves t then [pick (waiting_round moves t)] else [])
    ++ (if (last <? t) && (t <? outside_rounds n k)
        then [pick [Transfer (receiver t) (receiver last) 0 Reduce]] else []).

  Definition waiting_with (moves : N -> list transfer) (pick : round -> round) : list round :=
    flat_map (waiting_rounds moves pick) (rev (range (broadcast_rounds n k))).

  Definition one_owner : bool := (k =? 1) || (n =? 2).

  Definition waiting : list round :=
    if one_owner then tree late else waiting_with moves (fun rd => rd).

  Definition closed_form : schedule :=
    Schedule n k [late] Duplex ((if n =? 2 then [] else [Phase [late] waiting]) ++ [Phase [] completion]).

  (** ** One rank's own program: from its own corner, and its partners' *)

  Definition completion_of (r : N) : list round :=
    let back := way_back in
    map (fun t => filter (takes_part r) (completion_round (moves_of n k r) back t))
      (range (broadcast_rounds n k)).

  Definition waiting_of (r : N) : list round :=
    if one_owner then tree_of late r else waiting_with (moves_of n k r) (filter (takes_part r)).
End ClosedForm.

(** Round by round, the transfers of rank [r] and no others. *)
Definition part_of (r : N) (own whole : list round) : Prop :=
  Forall2 (fun rd rd' => forall y, In y rd <-> In y rd' /\ takes_part r y = true) own whole.

(** * Proofs *)

Lemma way_back_special : can_return 3 2 (beside 3 2 2) 2 = true.
Proof. now vm_compute. Qed.

Section Right.
  Variables n k : N.

  Local Notation late := (root n).
  Local Notation moves := (moves n k).
  Local Notation receiver := (receiver n k).
  Local Notation beside := (beside n k).
  Local Notation last := (last k).
  Local Notation owner := (owner n k).
  Local Notation can_return := (can_return n k).
  Local Notation way_back := (way_back n k).
  Local Notation completion := (completion n k).
  Local Notation completion_round := (completion_round n k).
  Local Notation waiting := (waiting n k).
  Local Notation waiting_round := (waiting_round n k).
  Local Notation waiting_rounds := (waiting_rounds n k).
  Local Notation reversed := (reversed k).
  Local Notation straight := (straight n k).
  Local Notation last_moves := (last_moves n k).
  Local Notation closed_form := (closed_form n k).

  Hypothesis two_ranks : 2 <= n.
  Hypothesis some_chunk : 1 <= k.

  Local Notation got := (got n k).

  (** ** The way back *)

  Lemma rounds_enough : k <= broadcast_rounds n k.
  Proof.
    unfold broadcast_rounds, outside_rounds. pose proof (dimensions_some n two_ranks). lia.
  Qed.

  Lemma can_return_spec h t : h < n ->
    can_return h t = true <-> got h t 0 /\ forall m, In m (moves t) -> src m <> h.
  Proof.
    intros Hh. unfold can_return. rewrite andb_true_iff, existsb_exists, forallb_forall. split.
    - intros [(u & Hu & X) S]. apply in_range in Hu. apply existsb_exists in X as (m & Hm & E).
      apply andb_true_iff in E as [E1 E2]. apply N.eqb_eq in E1, E2. split.
      + exists u, m. apply moves_of_rank in Hm as [Hm _]; auto.
      + intros m' Hm' E. specialize (S m'). rewrite moves_of_rank in S by auto.
        rewrite E, N.eqb_refl in S. discriminate S. auto.
    - intros [(u & m & L & Hm & D & C) S]. split.
      + exists u. split; [now apply in_range|]. apply existsb_exists. exists m.
        rewrite moves_of_rank by auto. rewrite D, C, !N.eqb_refl. auto.
      + intros m' Hm'. apply moves_of_rank in Hm' as [Hm' _]; auto.
        apply negb_true_iff, N.eqb_neq. auto.
  Qed.

  Lemma root_rank r : r < late -> r < n.
  Proof. unfold root. lia. Qed.

  Lemma way_back_found : 2 <= k ->
    exists t, In t (rounds_in last (broadcast_rounds n k)) /\ can_return (beside t) t = true.
  Proof.
    intros Hk. pose proof (dimensions_some n two_ranks) as Hd.
    assert (Special : (n = 3 /\ k = 2) \/ ~ (n = 3 /\ k = 2)) by lia.
    destruct Special as [[E3 E2]|Special].
    { exists 2. rewrite E3, E2. split; [|apply way_back_special]. apply in_map_iff. exists 1.
      split; [auto|]. apply in_range. now vm_compute. }
    destruct (residue_in_window (dimensions n) k Hd some_chunk 0 last) as (t & Ht & E); [lia|].
    unfold last in Ht. exists t. split.
    { apply in_rounds. unfold broadcast_rounds, outside_rounds, last. lia. }
    pose proof (beside_helper n k two_ranks some_chunk t) as Hb.
    apply can_return_spec; [now apply root_rank|]. split.
    - unfold beside in Hb |- *. pose proof (beside_root_here n k two_ranks some_chunk t) as Here.
      pose proof (across_root n t) as Across.
      replace (beside_root (dimensions n) t) with 1 in * by (unfold beside_root; now rewrite E).
      destruct (fine_acting n k two_ranks some_chunk 1 t Here) as (_ & _ & B & _).
      apply B. pose proof (first_chunk n k two_ranks some_chunk) as First. split.
      + exists 0. split; [lia|exact First].
      + unfold acting, going. rewrite Across. change (coming n k 0 t) with (@None N). simpl.
        replace t with (t - 1 + 1) by lia. rewrite state_succ. unfold step. simpl.
        destruct (pair n 1) eqn:P; [|discriminate]. intros C.
        assert (T : t - 1 = 0).
        { apply (comes_once (dimensions n) k Hd some_chunk 1 0); auto. }
        assert (t = 1) by lia. assert (k = 2) by lia. subst t k.
        assert (D : dimensions n = 1).
        { destruct (N.lt_ge_cases 1 (dimensions n)) as [L|L]; [|lia].
          now rewrite N.mod_small in E. }
        pose proof (corners_ranks n _ two_ranks some_chunk) as R. unfold corners in R. rewrite D in R.
        unfold pair, second_member, corners in P. rewrite D in P. simpl in P, R.
        apply N.ltb_lt in P. unfold root in P. lia.
    - intros m Hm. apply beside_silent; auto. unfold outside_rounds. lia.
  Qed.

  Lemma way_back_spec : last <= fst way_back < broadcast_rounds n k /\ snd way_back < late /\
    (k = 1 -> way_back = (0, receiver 0)) /\
    (2 <= k -> got (snd way_back) (fst way_back) 0 /\
               forall m, In m (moves (fst way_back)) -> src m <> snd way_back).
  Proof.
    unfold way_back. pose proof rounds_enough. destruct (N.eqb_spec k 1) as [E|Hne].
    - simpl. split; [unfold last; lia|]. split; [now apply receiver_helper|].
      split; [auto|lia].
    - destruct (find _ _) as [t|] eqn:E.
      + apply find_some in E as [Ht C]. apply in_rounds in Ht. simpl.
        pose proof (beside_helper n k two_ranks some_chunk t) as Hb.
        apply can_return_spec in C; [|now apply root_rank]. repeat split; try tauto; try lia.
      + exfalso. destruct way_back_found as (t & Ht & C); [lia|].
        apply (find_none _ _ E) in Ht. congruence.
  Qed.

  Lemma owner_helper c : owner c < late.
  Proof. unfold owner. destruct (c =? 0); [now apply receiver_helper|now apply beside_helper]. Qed.

  (** ** The rounds of the completion *)

  Local Notation round_at := (completion_round moves way_back).

  Definition op_at (t : N) : operation := if t =? 0 then Reduce else Copy.

  Lemma in_completion t x : In x (round_at t) <->
    (exists m, In m (moves t) /\ x = Transfer (src m) (dst m) (chunk m) (op_at t)) \/
    (t + 1 < k /\ x = Transfer (beside t) late (t + 1) Reduce) \/
    (t = fst way_back /\ x = Transfer (snd way_back) late 0 (op_at t)).
  Proof.
    unfold completion_round. fold (op_at t). rewrite !in_app_iff, in_map_iff. split.
    - intros [(m & <- & Hm)|[H|H]]; [left; eauto| |]; right.
      + destruct (N.ltb_spec (t + 1) k); [|easy]. destruct H as [<-|[]]. auto.
      + destruct (N.eqb_spec t (fst way_back)); [|easy]. destruct H as [<-|[]]. auto.
    - intros [(m & Hm & ->)|[[L ->]|[E ->]]]; [left; eauto| |]; right.
      + left. destruct (N.ltb_spec (t + 1) k); [now left|lia].
      + right. destruct (N.eqb_spec t (fst way_back)); [now left|lia].
  Qed.

  Lemma received_once t : NoDup (map dst (round_at t)).
  Proof.
    destruct way_back_spec as ([W _] & _).
    unfold completion_round. rewrite map_app, map_map. simpl. apply nodup_app. split.
    { apply receives_once; auto. }
    assert (Not : ~ In late (map dst (moves t))).
    { rewrite in_map_iff. intros (m & E & Hm). apply move_range in Hm; auto. lia. }
    unfold last in W.
    destruct (N.ltb_spec (t + 1) k), (N.eqb_spec t (fst way_back)); simpl; try lia;
      (split; [repeat constructor; auto|]); intros r Hr; try tauto; intros [<-|[]]; auto.
  Qed.

  Lemma sent_once t : NoDup (map src (round_at t)).
  Proof.
    destruct way_back_spec as ([W _] & Helper & One & Many). unfold last in W.
    unfold completion_round. rewrite map_app, map_map. simpl. apply nodup_app. split.
    { apply sends_once; auto. }
    destruct (N.ltb_spec (t + 1) k), (N.eqb_spec t (fst way_back)); simpl; try lia;
      (split; [repeat constructor; auto|]); intros r Hr; try tauto; intros [<-|[]];
      apply in_map_iff in Hr as (m & E' & Hm).
    - revert E'. apply beside_silent; auto. unfold outside_rounds.
      pose proof (dimensions_some n two_ranks). lia.
    - destruct (N.eq_dec k 1) as [K|K].
      + rewrite (One K) in *. simpl in *. subst t.
        destruct (N.eq_dec (src m) late) as [R|R]; [lia|].
        apply moves_from in Hm as (u & _ & L & _); auto. lia.
      + subst t. now apply Many in Hm; [|lia].
  Qed.

  Section Sums.
    Context {A : Type} (plus : A -> A -> A).
    Hypothesis plus_comm : forall a b, plus a b = plus b a.
    Variable start : Semantics.state A.

    (** The late rank's part of a chunk and the owner's. *)
    Definition both (c : N) : A := plus (start late c) (start (owner c) c).

    Definition reached (t : N) (s : Semantics.state A) : Prop :=
      (forall r c, got r t c -> s r c = both c) /\
      (forall c, c < k -> s late c =
         if (if c =? 0 then fst way_back <? t else c <=? t) then both c else start late c) /\
      (forall c, c < k -> t < c \/ t = 0 -> s (owner c) c = start (owner c) c).

    Lemma reached_start : reached 0 start.
    Proof.
      split; [|split]; auto.
      - intros r c (t & _ & L & _). lia.
      - intros c Hc. destruct (N.eqb_spec c 0).
        + destruct (N.ltb_spec (fst way_back) 0); [lia|auto].
        + destruct (N.leb_spec c 0); [lia|auto].
    Qed.

    Lemma reached_step t s : reached t s -> reached (t + 1) (run_round plus s (round_at t)).
    Proof.
      intros (Full & Late & Own). destruct way_back_spec as ([W _] & Helper & One & Many).
      unfold last in W. pose proof (received_once t) as Once.
      assert (Receives : forall x, In x (round_at t) ->
        run_round plus s (round_at t) (dst x) (chunk x)
        = match op x with
          | Copy => s (src x) (chunk x)
          | Reduce => plus (s (dst x) (chunk x)) (s (src x) (chunk x))
          end) by (intros x; now apply run_round_receives).
      split; [|split].
      - intros r c G. apply got_succ in G as [G|(m & Hm & <- & <-)]; auto.
        + rewrite run_round_quiet; auto. intros x Hx D C.
          assert (Hr : r < late).
          { destruct G as (u & m & _ & Hm & <- & _). apply move_range in Hm; auto. tauto. }
          apply in_completion in Hx as [(m & Hm & ->)|[[_ ->]|[_ ->]]]; simpl in *; try lia.
          apply moves_once in Hm; auto. subst. tauto.
        + assert (Hx : In (Transfer (src m) (dst m) (chunk m) (op_at t)) (round_at t)).
          { apply in_completion. left. eauto. }
          apply Receives in Hx. simpl in Hx. rewrite Hx. clear Hx. unfold op_at.
          destruct (N.eq_dec (src m) late) as [R|R].
          * pose proof (conj Hm R) as Root. apply root_sends in Root as [L ->]; auto. simpl.
            destruct (N.eqb_spec t 0) as [->|T].
            -- replace (N.min 0 (k - 1)) with 0 by lia.
               pose proof (Own 0 ltac:(lia) ltac:(auto)) as O. unfold owner in O. simpl in O.
               rewrite O, (Late 0) by lia. simpl.
               destruct (N.ltb_spec (fst way_back) 0); [lia|].
               unfold both. unfold owner. simpl. apply plus_comm.
            -- rewrite Late by lia. destruct (N.eqb_spec (N.min t (k - 1)) 0) as [Z|Z].
               ++ rewrite Z. assert (k = 1) by lia. rewrite (One H). simpl.
                  destruct (N.ltb_spec 0 t); [auto|lia].
               ++ destruct (N.leb_spec (N.min t (k - 1)) t); [auto|lia].
          * pose proof (moves_from n k two_ranks some_chunk t m Hm R) as G.
            destruct (N.eqb_spec t 0) as [->|T]; [destruct G as (u & _ & L & _); lia|auto].
      - intros c Hc.
        destruct (N.eq_dec c 0) as [->|Hne]; [destruct (N.eq_dec t (fst way_back)) as [T|T]|].
        + assert (Hx : In (Transfer (snd way_back) late 0 (op_at t)) (round_at t)).
          { apply in_completion. right. right. auto. }
          apply Receives in Hx. simpl in Hx. rewrite Hx. simpl. clear Hx.
          destruct (N.ltb_spec (fst way_back) (t + 1)); [|lia]. unfold op_at.
          destruct (N.eqb_spec t 0) as [Z|Z].
          * assert (K : k = 1) by lia. rewrite (One K). simpl. unfold both.
            pose proof (Own 0 ltac:(lia) ltac:(auto)) as O. unfold owner in O |- *. simpl in O |- *.
            rewrite O, (Late 0) by lia. simpl. destruct (N.ltb_spec (fst way_back) t); [lia|auto].
          * apply Full. rewrite T. apply Many. destruct (N.eq_dec k 1) as [K|K]; [|lia].
            rewrite (One K) in T. simpl in T. lia.
        + rewrite run_round_quiet.
          * rewrite (Late 0) by lia. simpl.
            destruct (N.ltb_spec (fst way_back) t), (N.ltb_spec (fst way_back) (t + 1)); auto; lia.
          * intros x Hx D. apply in_completion in Hx as [(m & Hm & ->)|[[_ ->]|[E ->]]]; simpl in *;
              try lia. apply move_range in Hm; auto. lia.
        + destruct (N.eqb_spec c 0); [lia|].
          destruct (N.eq_dec c (t + 1)) as [->|Hne'].
          * assert (Hx : In (Transfer (beside t) late (t + 1) Reduce) (round_at t)).
            { apply in_completion. right. left. auto. }
            apply Receives in Hx. simpl in Hx. rewrite Hx. clear Hx.
            destruct (N.leb_spec (t + 1) (t + 1)); [|lia]. unfold both.
            pose proof (Own (t + 1) Hc ltac:(lia)) as O. unfold owner in O |- *.
            destruct (N.eqb_spec (t + 1) 0); [lia|]. replace (t + 1 - 1) with t in * by lia.
            rewrite O, Late by lia. destruct (N.eqb_spec (t + 1) 0); [lia|].
            destruct (N.leb_spec (t + 1) t); [lia|auto].
          * rewrite run_round_quiet.
            -- rewrite Late by lia. destruct (N.eqb_spec c 0); [lia|].
               destruct (N.leb_spec c t), (N.leb_spec c (t + 1)); auto; lia.
            -- intros x Hx D. apply in_completion in Hx as [(m & Hm & ->)|[[_ ->]|[E ->]]];
                 simpl in *; try lia. apply move_range in Hm; auto. lia.
      - intros c Hc L. pose proof (owner_helper c) as Ho. rewrite run_round_quiet.
        + apply Own; auto. lia.
        + intros x Hx D E. apply in_completion in Hx as [(m & Hm & ->)|[[_ ->]|[_ ->]]];
            simpl in *; try lia.
          assert (G : got (dst m) (t + 1) (chunk m)) by (apply got_succ; auto; right; exists m; auto).
          apply got_late in G; auto. lia.
    Qed.

    (** Everything ends with what the late rank and the owner had, added. *)
    Theorem completion_adds r c : r < n -> c < k -> run plus start completion r c = both c.
    Proof.
      intros Hr Hc. unfold completion.
      destruct (run_invariant plus reached start round_at (broadcast_rounds n k)) as (Full & Late & _).
      - apply reached_start.
      - intros t s _. apply reached_step.
      - destruct (N.eq_dec r late) as [->|Hne].
        + rewrite Late by auto. destruct way_back_spec as ([_ W] & _). pose proof rounds_enough.
          destruct (N.eqb_spec c 0).
          * destruct (N.ltb_spec (fst way_back) (broadcast_rounds n k)); [auto|lia].
          * destruct (N.leb_spec c (broadcast_rounds n k)); [auto|lia].
        + apply Full, moves_all; auto. unfold root in *. lia.
    Qed.
  End Sums.

  (** ** The theorems on the completion *)

  Lemma late_rank : late < n /\ late + 1 = n.
  Proof. unfold root. lia. Qed.

  Lemma range_helpers : range n = range late ++ [late].
  Proof. rewrite <- range_succ. f_equal. symmetry. apply late_rank. Qed.

  Lemma helpers_only : filter (fun i => negb (i =? late)) (range n) = range late.
  Proof.
    rewrite range_helpers, filter_app. simpl. rewrite N.eqb_refl. simpl. rewrite app_nil_r.
    assert (H : forall l, (forall i, In i l -> i < late) ->
                  filter (fun i => negb (i =? late)) l = l).
    { induction l as [|i l IH]; simpl; auto. intros H.
      pose proof (H i (or_introl eq_refl)). destruct (N.eqb_spec i late); [lia|]. simpl.
      f_equal. apply IH. intros j Hj. apply H. now right. }
    apply H. intros i. apply in_range.
  Qed.

  Lemma sum_everybody (M : commutative_monoid) (f : N -> M) :
    add M (f late) (sum M f (range late)) = sum M f (range n).
  Proof. rewrite range_helpers, sum_app, sum_single. apply add_comm. Qed.

  (** Right after every reduction to the owners, whatever stale buffers hold. *)
  Theorem completion_completes : completes n k late owner completion.
  Proof.
    intros M x stale r c Hr Hc. rewrite completion_adds; auto; [|apply add_comm].
    unfold both. rewrite !N.eqb_refl. pose proof (owner_helper c).
    destruct (N.eqb_spec (owner c) late); [lia|]. rewrite helpers_only.
    apply (sum_everybody M (fun i => x i c)).
  Qed.

  Theorem completion_length : N.of_nat (length completion) = k + N.log2_up n - 1.
  Proof.
    unfold ClosedForm.completion. rewrite map_length, range_length, N2Nat.id.
    unfold broadcast_rounds, outside_rounds, dimensions, corners.
    pose proof (N.log2_log2_up_exact n ltac:(lia)) as X.
    pose proof (N.le_log2_log2_up n). pose proof (N.le_log2_up_succ_log2 n).
    destruct (N.eqb_spec n (2 ^ N.log2 n)) as [E|E].
    - assert (N.log2 n = N.log2_up n) by (apply X; eauto). lia.
    - assert (N.log2 n <> N.log2_up n); [|lia].
      intros Y. apply X in Y as (b & Y). apply E. rewrite Y at 2. rewrite N.log2_pow2 by lia. auto.
  Qed.

  Lemma occurrences_once l : NoDup l -> forall x : N, (occurrences l x <= 1)%nat.
  Proof. intros H. now apply NoDup_count_occ. Qed.

  Lemma fits_duplex rd : NoDup (map src rd) -> NoDup (map dst rd) -> fits_ports Duplex rd.
  Proof. intros S D. repeat split; try discriminate; intros r; now apply occurrences_once. Qed.

  Theorem completion_ports : Forall (fits_ports Duplex) completion.
  Proof.
    apply Forall_forall. intros rd H. apply in_map_iff in H as (t & <- & _).
    apply fits_duplex; [apply sent_once|apply received_once].
  Qed.

  (** No right completion, whoever owns what, has fewer rounds. *)
  Theorem completion_optimal owner' rs :
    Forall (sends_within 1) rs -> completes n k late owner' rs ->
    (length completion <= length rs)%nat.
  Proof.
    intros P C. pose proof late_rank.
    pose proof (completion_lower_bound n k late owner' rs two_ranks some_chunk ltac:(tauto) P C) as L.
    rewrite <- completion_length in L. lia.
  Qed.

  (** ** The waiting phase *)

  Local Notation again := (ClosedForm.waiting_round n k moves).

  Definition name_of (b : N) : N := (b + 1) mod k.

  Lemma name_spec b : b < k -> name_of b = if b =? last then 0 else b + 1.
  Proof.
    intros Hb. unfold name_of, ClosedForm.last. destruct (N.eqb_spec b (k - 1)) as [->|Hne].
    - replace (k - 1 + 1) with k by lia. apply N.mod_same. lia.
    - apply N.mod_small. lia.
  Qed.

  Lemma name_once b b' : b < k -> b' < k -> name_of b = name_of b' -> b = b'.
  Proof.
    intros H H'. rewrite !name_spec by auto.
    destruct (N.eqb_spec b last), (N.eqb_spec b' last); lia.
  Qed.

  Lemma one_owner_spec : reflect (k = 1 \/ n = 2) (one_owner n k).
  Proof.
    unfold one_owner. destruct (N.eqb_spec k 1), (N.eqb_spec n 2); constructor; tauto.
  Qed.

  Lemma receiver_first : receiver 0 = 0.
  Proof.
    unfold Broadcast.receiver, acting, Broadcast.state. pose proof (dimensions_some n two_ranks).
    unfold beside_root. rewrite N.mod_0_l by lia. unfold turned. simpl.
    now destruct (going n k 1 0).
  Qed.

  Lemma two_alone : n = 2 -> tree late = [].
  Proof. intros E. unfold root. now rewrite E. Qed.

  Lemma in_again t x : In x (again t) <->
    (exists m, In m (moves t) /\ src m <> late /\ x = reversed m) \/
    (straight t = true /\ x = Transfer (receiver t) (beside t) (t + 1) Copy) \/
    (last_moves t = true /\ x = Transfer (receiver last) (receiver 0) 0 Copy).
  Proof.
    unfold ClosedForm.waiting_round. rewrite !in_app_iff, in_map_iff. split.
    - intros [(m & <- & Hm)|[H|H]].
      + apply filter_In in Hm as [Hm S]. apply negb_true_iff, N.eqb_neq in S. left. eauto.
      + destruct (straight t); [|easy]. destruct H as [<-|[]]. auto.
      + destruct (last_moves t); [|easy]. destruct H as [<-|[]]. auto.
    - intros [(m & Hm & S & ->)|[[-> ->]|[-> ->]]]; [left|right; left; now left|right; right; now left].
      exists m. split; auto. apply filter_In. split; auto. now apply negb_true_iff, N.eqb_neq.
  Qed.

  Lemma straight_spec t : straight t = true <-> t < last /\ receiver t <> beside t.
  Proof.
    unfold ClosedForm.straight. now rewrite andb_true_iff, N.ltb_lt, negb_true_iff, N.eqb_neq.
  Qed.

  Lemma last_moves_spec t : last_moves t = true <-> t = 0 /\ receiver last <> receiver 0.
  Proof.
    unfold ClosedForm.last_moves. now rewrite andb_true_iff, N.eqb_eq, negb_true_iff, N.eqb_neq.
  Qed.

  Lemma given t : t < outside_rounds n k ->
    In (Transfer late (receiver t) (N.min t (k - 1)) Copy) (moves t).
  Proof.
    intros L. apply (root_sends n k two_ranks some_chunk t). auto.
  Qed.

  Lemma outside_enough t : t < k -> t < outside_rounds n k.
  Proof. unfold outside_rounds. pose proof (dimensions_some n two_ranks). lia. Qed.

  (** Who receives from the late rank receives from nobody else. *)
  Lemma only_late t m : t < outside_rounds n k -> In m (moves t) -> dst m = receiver t -> src m = late.
  Proof.
    intros L Hm E. pose proof (given t L) as G.
    rewrite (same_receiver n k two_ranks some_chunk t m _ Hm G E). reflexivity.
  Qed.

  Lemma first_round m : In m (moves 0) -> src m = late.
  Proof.
    intros Hm. destruct (N.eq_dec (src m) late) as [|R]; auto.
    apply moves_from in Hm as (u & _ & L & _); auto. lia.
  Qed.

  Lemma again_sends t : NoDup (map src (again t)).
  Proof.
    unfold ClosedForm.waiting_round. rewrite map_app, map_map. simpl. apply nodup_app. split.
    { apply nodup_filter_map, receives_once; auto. }
    assert (D : straight t = true -> ~ In (receiver t)
              (map dst (filter (fun m => negb (src m =? late)) (moves t)))).
    { intros D. apply straight_spec in D as [L _]. unfold ClosedForm.last in L.
      rewrite in_map_iff. intros (m & E & Hm).
      apply filter_In in Hm as [Hm S]. apply negb_true_iff, N.eqb_neq in S. apply S.
      apply (only_late t); auto. apply outside_enough. lia. }
    assert (B : last_moves t = true -> filter (fun m => negb (src m =? late)) (moves t) = []).
    { intros B. apply last_moves_spec in B as [-> _]. apply incl_l_nil. intros m Hm.
      apply filter_In in Hm as [Hm S]. apply first_round in Hm. rewrite Hm, N.eqb_refl in S.
      discriminate. }
    destruct (straight t) eqn:Ed, (last_moves t) eqn:Eb; simpl.
    - apply last_moves_spec in Eb as [-> Eb]. rewrite B by auto. simpl. split.
      + repeat constructor; simpl; intuition congruence.
      + intros r [].
    - split; [repeat constructor; auto|]. intros r Hr [<-|[]]. now apply D.
    - rewrite B by auto. split; [repeat constructor; auto|]. intros r [].
    - split; [constructor|]. auto.
  Qed.

  Lemma again_receives t : NoDup (map dst (again t)).
  Proof.
    unfold ClosedForm.waiting_round. rewrite map_app, map_map. simpl. apply nodup_app. split.
    { apply nodup_filter_map, sends_once; auto. }
    assert (D : straight t = true -> ~ In (beside t)
              (map src (filter (fun m => negb (src m =? late)) (moves t)))).
    { intros D. apply straight_spec in D as [L _]. unfold ClosedForm.last in L.
      rewrite in_map_iff. intros (m & E & Hm). apply filter_In in Hm as [Hm _].
      revert E. apply beside_silent; auto. apply outside_enough. lia. }
    assert (B : last_moves t = true -> filter (fun m => negb (src m =? late)) (moves t) = []).
    { intros B. apply last_moves_spec in B as [-> _]. apply incl_l_nil. intros m Hm.
      apply filter_In in Hm as [Hm S]. apply first_round in Hm. rewrite Hm, N.eqb_refl in S.
      discriminate. }
    destruct (straight t) eqn:Ed, (last_moves t) eqn:Eb; simpl.
    - apply last_moves_spec in Eb as [-> Eb]. apply straight_spec in Ed as [_ Ed].
      rewrite B by auto. simpl. split.
      + repeat constructor; simpl; intuition congruence.
      + intros r [].
    - split; [repeat constructor; auto|]. intros r Hr [<-|[]]. now apply D.
    - rewrite B by auto. split; [repeat constructor; auto|]. intros r [].
    - split; [constructor|]. auto.
  Qed.

  (** ** Who has a chunk, as a list *)

  Definition moved (b : N) (ms : list transfer) : list N :=
    map dst (filter (fun m => chunk m =? b) ms).

  Definition holders (t b : N) : list N := moved b (flat_map moves (range t)).

  Lemma in_moved b ms r : In r (moved b ms) <-> exists m, In m ms /\ dst m = r /\ chunk m = b.
  Proof.
    unfold moved. rewrite in_map_iff. split; intros (m & H).
    - destruct H as [D H]. apply filter_In in H as [H C]. apply N.eqb_eq in C. eauto.
    - exists m. rewrite filter_In, N.eqb_eq. tauto.
  Qed.

  Lemma holders_succ t b : holders (t + 1) b = holders t b ++ moved b (moves t).
  Proof.
    unfold holders. rewrite range_succ, flat_map_app. simpl. rewrite app_nil_r.
    unfold moved. now rewrite filter_app, map_app.
  Qed.

  Lemma in_holders t b r : In r (holders t b) <-> got r t b.
  Proof.
    unfold holders. rewrite in_moved. split.
    - intros (m & Hm & D & C). apply in_flat_map in Hm as (u & Hu & Hm). apply in_range in Hu.
      exists u, m. auto.
    - intros (u & m & L & Hm & D & C). exists m. split; auto. apply in_flat_map.
      exists u. rewrite in_range. auto.
  Qed.

  Lemma moved_once b t : NoDup (moved b (moves t)).
  Proof. apply nodup_filter_map, receives_once; auto. Qed.

  Lemma holders_once t b : NoDup (holders t b).
  Proof.
    induction t as [|t IH] using N.peano_ind; [constructor|].
    rewrite <- N.add_1_r, holders_succ. apply nodup_app. split; auto.
    split; [apply moved_once|]. intros r Hr Hr'. apply in_holders in Hr.
    apply in_moved in Hr' as (m & Hm & <- & <-). now apply moves_once in Hm.
  Qed.

  Lemma holders_all b : b < k -> Permutation (holders (broadcast_rounds n k) b) (range late).
  Proof.
    intros Hb. apply range_permutation; [apply holders_once|]. intros r. rewrite in_holders. split.
    - intros (u & m & _ & Hm & <- & _). apply move_range in Hm; auto. tauto.
    - intros Hr. now apply moves_all.
  Qed.

  (** Chunk t has one holder after round t. *)
  Lemma first_holder t : t < k -> Permutation (holders (t + 1) t) [receiver t].
  Proof.
    intros Ht. pose proof (outside_enough t Ht) as L.
    apply NoDup_Permutation; [apply holders_once|repeat constructor; auto|].
    intros r. rewrite in_holders. split.
    - intros (u & m & Lu & Hm & <- & C). destruct (N.eq_dec (src m) late) as [R|R].
      + pose proof (conj Hm R) as X. apply root_sends in X as [_ ->]; auto. simpl in *.
        assert (u = t) by lia. subst u. now left.
      + exfalso. apply moves_from in Hm; auto. apply got_late in Hm; auto. lia.
    - intros [<-|[]]. exists t, (Transfer late (receiver t) (N.min t (k - 1)) Copy).
      split; [lia|]. split; [now apply given|]. simpl. split; auto. lia.
  Qed.

  (** ** Sums *)

  Section Gathering.
    Variable M : commutative_monoid.

    Lemma sum_same {I} (f g : I -> M) l : (forall i, In i l -> f i = g i) -> sum M f l = sum M g l.
    Proof.
      induction l as [|i l IH]; simpl; auto. intros H. rewrite IH, H; auto.
    Qed.

    Lemma sum_put (s : Semantics.state M) r c v l : NoDup l -> In r l ->
      sum M (fun i => put s r c (add M (s r c) v) i c) l = add M (sum M (fun i => s i c) l) v.
    Proof.
      induction l as [|i l IH]; simpl; [easy|]. intros D H. inversion D as [|? ? Hi Hl]; subst.
      destruct (N.eq_dec i r) as [->|Hne].
      - rewrite put_same. rewrite (sum_same _ (fun i => s i c)).
        + rewrite <- !add_assoc. f_equal. apply add_comm.
        + intros j Hj. apply put_other. left. intros ->. auto.
      - destruct H as [H|H]; [congruence|]. rewrite IH, put_other by auto. apply add_assoc.
    Qed.

    (** Reversed moves of chunk [b] bring what their receivers have to holders of it. *)
    Lemma gather (s : Semantics.state M) b l ms : b < k -> NoDup l ->
      (forall m, In m ms -> chunk m < k /\ (chunk m = b -> In (src m) l)) -> forall now,
      sum M (fun r => fold_left (deliver (add M) s) (map reversed ms) now r (name_of b)) l
      = add M (sum M (fun r => now r (name_of b)) l)
              (sum M (fun r => s r (name_of b)) (moved b ms)).
    Proof.
      intros Hb D. induction ms as [|m ms IH]; intros H now.
      - simpl. now rewrite add_comm, add_zero.
      - simpl fold_left. rewrite IH by (intros; apply H; now right).
        destruct (H m (or_introl eq_refl)) as [Hm Hin]. unfold deliver. simpl.
        fold (name_of (chunk m)). unfold moved. simpl.
        destruct (N.eqb_spec (chunk m) b) as [E|E].
        + rewrite E. rewrite sum_put by auto. simpl. now rewrite <- add_assoc.
        + f_equal. apply sum_same. intros r _. apply put_other. right.
          intros X. apply name_once in X; auto.
    Qed.

    Lemma moved_split (f : N -> M) b ms :
      sum M f (moved b ms)
      = add M (sum M f (moved b (filter (fun m => negb (src m =? late)) ms)))
              (sum M f (moved b (filter (fun m => src m =? late) ms))).
    Proof.
      induction ms as [|m ms IH]; [simpl; now rewrite add_zero|].
      unfold moved in *. simpl. destruct (src m =? late), (chunk m =? b) eqn:E; simpl;
        rewrite ?E; simpl; rewrite ?IH; auto.
      - rewrite !add_assoc. f_equal. apply add_comm.
      - now rewrite add_assoc.
    Qed.

    Lemma given_alone t : filter (fun m => src m =? late) (moves t)
      = if t <? outside_rounds n k then [Transfer late (receiver t) (N.min t (k - 1)) Copy] else [].
    Proof.
      assert (D : NoDup (moves t)) by (apply (NoDup_map_inv dst), receives_once; auto).
      destruct (N.ltb_spec t (outside_rounds n k)) as [L|L].
      - apply filter_unique; auto; [now apply given|]. intros m Hm. rewrite N.eqb_eq. split.
        + intros R. pose proof (conj Hm R) as X. now apply root_sends in X.
        + now intros ->.
      - apply incl_l_nil. intros m Hm. apply filter_In in Hm as [Hm R]. apply N.eqb_eq in R.
        pose proof (conj Hm R) as X. apply root_sends in X as [X _]; auto. lia.
    Qed.

    Variable x : Semantics.state M.

    Definition total (c : N) : M := sum M (fun i => x i c) (range late).

    (** Where the whole sum of chunk [b] waits, once no round below [t] is to come. *)
    Definition place (t b : N) : N :=
      if b <? last then beside b else if t =? 0 then receiver 0 else receiver last.

    Definition gathered (t : N) (s : Semantics.state M) : Prop := forall b, b < k ->
      (b < t -> sum M (fun r => s r (name_of b)) (holders t b) = total (name_of b)) /\
      (t <= b -> s (place t b) (name_of b) = total (name_of b)).

    Lemma gathered_start : gathered (broadcast_rounds n k) x.
    Proof.
      intros b Hb. pose proof rounds_enough. split; [|lia]. intros _.
      apply sum_permutation, holders_all. exact Hb.
    Qed.

    (** The round as it is, without what is said of empty ones. *)
    Lemma run_waiting_rounds s t :
      run (add M) s (waiting_rounds moves (fun rd => rd) t)
      = (let s' := run_round (add M) s (again t) in
         if (last <? t) && (t <? outside_rounds n k)
         then run_round (add M) s' [Transfer (receiver t) (receiver last) 0 Reduce] else s').
    Proof.
      unfold ClosedForm.waiting_rounds. rewrite run_app.
      assert (E : run (add M) s (if (0 <? t) || straight t || last_moves t then [again t] else [])
                  = run_round (add M) s (again t)).
      { destruct ((0 <? t) || straight t || last_moves t) eqn:E; auto.
        apply orb_false_iff in E as [E B]. apply orb_false_iff in E as [Z D].
        apply N.ltb_ge in Z. assert (again t = []) as ->; auto.
        apply incl_l_nil. intros y Hy. apply in_again in Hy as [(m & Hm & R & _)|[[? _]|[? _]]];
          try congruence. assert (t = 0) by lia. subst t. now apply first_round in Hm. }
      rewrite E. cbv zeta. destruct ((last <? t) && (t <? outside_rounds n k)); reflexivity.
    Qed.

    (** What a round leaves alone. *)
    Lemma again_quiet s t r b : b < k ->
      (forall m, In m (moves t) -> src m <> late -> src m = r -> chunk m <> b) ->
      (straight t = true -> t <> b) ->
      (last_moves t = true -> b = last -> r <> receiver 0) ->
      run_round (add M) s (again t) r (name_of b) = s r (name_of b).
    Proof.
      intros Hb H1 H2 H3. apply run_round_quiet. intros y Hy D E.
      apply in_again in Hy as [(m & Hm & R & ->)|[[S ->]|[S ->]]]; simpl in *.
      - fold (name_of (chunk m)) in E. apply name_once in E; auto; [now apply (H1 m)|].
        apply move_range in Hm; auto. tauto.
      - specialize (H2 S). apply straight_spec in S as [L _]. unfold ClosedForm.last in *.
        rewrite name_spec in E by auto. unfold ClosedForm.last in E.
        destruct (N.eqb_spec b (k - 1)); lia.
      - rewrite name_spec in E by auto. destruct (N.eqb_spec b last) as [->|]; [|lia].
        now apply H3.
    Qed.

    Lemma gathered_step t s : t < broadcast_rounds n k -> gathered (t + 1) s ->
      gathered t (run (add M) s (waiting_rounds moves (fun rd => rd) t)).
    Proof.
      intros Ht G b Hb. rewrite run_waiting_rounds. cbv zeta.
      set (s1 := run_round (add M) s (again t)).
      destruct (G b Hb) as [Sum Wait]. split.
      - (* still under way *)
        intros L. specialize (Sum ltac:(lia)). rewrite holders_succ, sum_app, moved_split in Sum.
        set (l := holders t b) in *.
        assert (S1 : sum M (fun r => s1 r (name_of b)) l
          = add M (sum M (fun r => s r (name_of b)) l)
              (sum M (fun r => s r (name_of b))
                 (moved b (filter (fun m => negb (src m =? late)) (moves t))))).
        { unfold s1, run_round, ClosedForm.waiting_round. rewrite fold_left_app.
          rewrite <- (gather s b l _ Hb (holders_once t b)).
          - apply sum_same. intros r _.
            assert (Q : forall now, fold_left (deliver (add M) s)
                ((if straight t then [Transfer (receiver t) (beside t) (t + 1) Copy] else [])
                 ++ (if last_moves t then [Transfer (receiver last) (receiver 0) 0 Copy] else []))
                now r (name_of b) = now r (name_of b)); [|apply Q].
            intros now. rewrite name_spec by auto.
            destruct (straight t) eqn:D, (last_moves t) eqn:B; simpl;
              try (apply last_moves_spec in B; lia); auto.
            unfold deliver. simpl. apply put_other. right. apply straight_spec in D as [D _].
            destruct (N.eqb_spec b last); lia.
          - intros m Hm. apply filter_In in Hm as [Hm R]. apply negb_true_iff, N.eqb_neq in R.
            pose proof (move_range n k two_ranks some_chunk t m Hm) as X. split; [tauto|].
            intros <-. apply in_holders. now apply moves_from. }
        rewrite given_alone in Sum. rewrite add_assoc, <- S1 in Sum.
        destruct (N.ltb_spec t (outside_rounds n k)) as [Lo|Lo].
        + unfold moved at 1 in Sum. simpl in Sum.
          destruct (N.ltb_spec last t) as [La|La]; simpl.
          * destruct (N.eqb_spec (N.min t (k - 1)) b) as [E|E]; simpl in Sum.
            -- assert (Eb : b = last) by (unfold ClosedForm.last in *; lia).
               pose proof (gather s1 b l [Transfer (receiver last) (receiver t) b Copy] Hb
                             (holders_once t b)) as Gt.
               specialize (Gt ltac:(intros m [<-|[]]; simpl; split; [exact Hb|];
                 intros _; apply in_holders; exists last, (Transfer late (receiver last) b Copy);
                 simpl; repeat split; auto; rewrite Eb;
                 replace (Transfer late (receiver last) last Copy) with
                   (Transfer late (receiver last) (N.min last (k - 1)) Copy)
                   by (unfold ClosedForm.last; now rewrite N.min_id);
                 apply given, outside_enough; unfold ClosedForm.last; lia)).
               specialize (Gt s1). unfold moved in Gt. simpl in Gt. rewrite N.eqb_refl in Gt.
               simpl in Gt. unfold ClosedForm.reversed in Gt. simpl in Gt.
               fold (name_of b) in Gt.
               assert (Z : name_of b = 0).
               { rewrite name_spec by auto. now destruct (N.eqb_spec b last). }
               unfold run_round. simpl. rewrite Z in *. rewrite Gt, <- Sum. f_equal.
               f_equal. rewrite <- Z. unfold s1. apply again_quiet; auto.
               ++ intros m Hm R Es C. apply moves_from in Hm; auto. rewrite Es, C in Hm.
                  pose proof (given t Lo) as X. apply moves_once in X; auto. simpl in X.
                  rewrite E in X. contradiction.
               ++ intros D. apply straight_spec in D as [D _]. lia.
               ++ intros B. apply last_moves_spec in B as [-> _]. lia.
            -- rewrite add_comm, add_zero in Sum. rewrite <- Sum. apply sum_same. intros r _.
               unfold run_round. simpl. unfold deliver. simpl. apply put_other. right.
               rewrite name_spec by auto. unfold ClosedForm.last in *.
               destruct (N.eqb_spec b (k - 1)); lia.
          * destruct (N.eqb_spec (N.min t (k - 1)) b) as [E|E]; simpl in Sum.
            -- unfold ClosedForm.last in *. lia.
            -- now rewrite add_comm, add_zero in Sum.
        + simpl in Sum. rewrite add_comm, add_zero in Sum. rewrite andb_false_r. exact Sum.
      - (* at its place *)
        intros L. assert (Lk : t < k) by lia. pose proof (outside_enough t Lk) as Lo.
        assert (La : t <= last) by (unfold ClosedForm.last; lia).
        destruct (N.ltb_spec last t); [lia|]. simpl.
        destruct (N.eq_dec b t) as [->|Hne].
        + specialize (Sum ltac:(lia)). rewrite (sum_permutation M _ _ _ (first_holder t Lk)) in Sum.
          rewrite sum_single in Sum.
          assert (Mine : forall r m, In m (moves t) -> src m <> late -> src m = r -> chunk m <> t).
          { intros r m Hm R _ C. apply moves_from in Hm; auto. apply got_late in Hm; auto. lia. }
          unfold place. destruct (N.ltb_spec t last) as [Ll|Ll].
          * destruct (N.eq_dec (receiver t) (beside t)) as [E|E].
            -- rewrite <- E, <- Sum. apply again_quiet; auto.
               ++ apply Mine.
               ++ intros D. apply straight_spec in D as [_ D]. now rewrite E in D.
               ++ lia.
            -- rewrite name_spec in * by auto. destruct (N.eqb_spec t last); [lia|].
               rewrite <- Sum. unfold s1.
               assert (Hx : In (Transfer (receiver t) (beside t) (t + 1) Copy) (again t)).
               { apply in_again. right. left. split; auto. now apply straight_spec. }
               apply (run_round_receives (add M) s _ _ (again_receives t)) in Hx. exact Hx.
          * assert (E : t = last) by lia.
            replace (if t =? 0 then receiver 0 else receiver last) with (receiver t).
            2: { destruct (N.eqb_spec t 0); congruence. }
            rewrite <- Sum. apply again_quiet; auto.
            -- apply Mine.
            -- intros D. apply straight_spec in D. lia.
            -- intros B. apply last_moves_spec in B as [Z B]. congruence.
        + specialize (Wait ltac:(lia)).
          assert (Mine : forall r m, In m (moves t) -> src m <> late -> src m = r -> chunk m <> b).
          { intros r m Hm R _ C. apply moves_from in Hm; auto. apply got_late in Hm; auto. lia. }
          unfold place in *. destruct (N.ltb_spec b last) as [Ll|Ll].
          * rewrite <- Wait. apply again_quiet; auto; [apply Mine|]. lia.
          * assert (E : b = last) by (unfold ClosedForm.last in *; lia).
            destruct (N.eqb_spec (t + 1) 0); [lia|]. rewrite <- Wait.
            destruct (N.eqb_spec t 0) as [T|T].
            -- destruct (N.eq_dec (receiver last) (receiver 0)) as [R|R].
               ++ rewrite <- R. apply again_quiet; auto; [apply Mine|].
                  intros B. apply last_moves_spec in B. tauto.
               ++ rewrite name_spec by auto. destruct (N.eqb_spec b last); [|lia].
                  assert (Hx : In (Transfer (receiver last) (receiver 0) 0 Copy) (again t)).
                  { apply in_again. right. right. split; auto. now apply last_moves_spec. }
                  apply (run_round_receives (add M) s _ _ (again_receives t)) in Hx. exact Hx.
            -- apply again_quiet; auto; [apply Mine|]. intros B. apply last_moves_spec in B. lia.
    Qed.

    Lemma gathered_end s m : m <= broadcast_rounds n k -> gathered m s ->
      gathered 0 (run (add M) s (flat_map (waiting_rounds moves (fun rd => rd)) (rev (range m)))).
    Proof.
      revert s. induction m as [|m IH] using N.peano_ind; intros s Hm G; auto.
      rewrite <- N.add_1_r, range_succ, rev_app_distr in *. simpl. rewrite run_app.
      apply IH; [lia|]. apply gathered_step; auto. lia.
    Qed.

    (** Every owner ends with the sum of the helpers. *)
    Theorem waiting_gathers c : c < k -> run (add M) x waiting (owner c) c = total c.
    Proof.
      intros Hc. unfold ClosedForm.waiting. destruct one_owner_spec as [E|E].
      - destruct (N.eq_dec k 1) as [K|K].
        + assert (c = 0) by lia. subst c. unfold ClosedForm.owner. simpl. rewrite receiver_first.
          apply tree_gathers. unfold root. lia.
        + assert (n = 2) by lia. pose proof (owner_helper c) as Ho. unfold total.
          rewrite two_alone by auto. replace late with 1 in * by (unfold root; lia).
          assert (O : owner c = 0) by lia. rewrite O. simpl. now rewrite add_comm, add_zero.
      - pose proof (gathered_end x (broadcast_rounds n k) ltac:(lia) gathered_start) as G.
        unfold ClosedForm.owner. destruct (N.eqb_spec c 0) as [->|Hne].
        + destruct (G last) as [_ W]; [unfold ClosedForm.last; lia|].
          rewrite name_spec in W by (unfold ClosedForm.last; lia). rewrite N.eqb_refl in W.
          unfold place in W. rewrite N.ltb_irrefl in W. simpl in W. apply W. lia.
        + destruct (G (c - 1)) as [_ W]; [lia|].
          rewrite name_spec in W by lia. unfold place in W.
          assert (c - 1 < last) by (unfold ClosedForm.last; lia).
          destruct (N.eqb_spec (c - 1) last); [lia|].
          destruct (N.ltb_spec (c - 1) last); [|lia].
          replace (c - 1 + 1) with c in W by lia. apply W. lia.
    Qed.
  End Gathering.

  (** ** All of it is right *)

  Definition proper (rd : round) : Prop :=
    NoDup (map src rd) /\ NoDup (map dst rd) /\ forall y, In y rd -> transfer_well_formed n k y.

  Lemma completion_proper rd : In rd completion -> proper rd.
  Proof.
    intros H. apply in_map_iff in H as (t & <- & _). split; [apply sent_once|].
    split; [apply received_once|]. pose proof late_rank as [Hl _]. intros y Hy.
    apply in_completion in Hy as [(m & Hm & ->)|[[L ->]|[_ ->]]]; unfold transfer_well_formed; simpl.
    - pose proof (move_range n k two_ranks some_chunk t m Hm). repeat split; try tauto; lia.
    - pose proof (beside_helper n k two_ranks some_chunk t). repeat split; lia.
    - destruct way_back_spec as (_ & H & _). repeat split; lia.
  Qed.

  Lemma in_waiting rd : In rd waiting -> exists t,
    rd = tree_round late (range late) t \/ rd = again t \/
    (last < t < outside_rounds n k /\ rd = [Transfer (receiver t) (receiver last) 0 Reduce]).
  Proof.
    unfold ClosedForm.waiting. destruct (one_owner n k).
    { intros H. apply in_tree in H as (t & ->). eauto. }
    unfold waiting_with. rewrite in_flat_map. intros (t & _ & H). exists t.
    unfold ClosedForm.waiting_rounds in H.
    apply in_app_iff in H as [H|H].
    - destruct ((0 <? t) || straight t || last_moves t); [|easy]. destruct H as [<-|[]]. auto.
    - destruct ((last <? t) && (t <? outside_rounds n k)) eqn:E; [|easy].
      apply andb_true_iff in E as [E1 E2]. apply N.ltb_lt in E1, E2. destruct H as [<-|[]]. auto.
  Qed.

  Lemma receivers_apart t : last < t < outside_rounds n k -> receiver t <> receiver last.
  Proof.
    unfold ClosedForm.last. intros H E. pose proof (given t (proj2 H)) as Now.
    apply moves_once in Now; auto. apply Now. simpl. rewrite E.
    exists (k - 1), (Transfer late (receiver (k - 1)) (N.min (k - 1) (k - 1)) Copy).
    split; [tauto|]. split; [apply given; lia|]. simpl. split; auto. lia.
  Qed.

  Lemma waiting_proper rd : In rd waiting -> proper rd /\ silent late rd.
  Proof.
    intros H. apply in_waiting in H as (t & [->|[->|[L ->]]]).
    - split; [split; [apply tree_sends_once|split; [apply tree_receives_once|]]|];
        intros y Hy; apply tree_inside in Hy as (S & D & C & Apart); [|lia].
      pose proof late_rank as [Hl _]. repeat split; auto; lia.
    - assert (Each : forall y, In y (again t) -> transfer_well_formed n k y /\ src y < late /\ dst y < late).
      { intros y Hy. pose proof late_rank as [Hl _]. pose proof (beside_helper n k two_ranks some_chunk t).
        pose proof (receiver_helper n k two_ranks some_chunk) as R.
        pose proof (R t). pose proof (R 0). pose proof (R last). unfold transfer_well_formed.
        apply in_again in Hy as [(m & Hm & S & ->)|[[D ->]|[D ->]]]; simpl.
        - pose proof (move_range n k two_ranks some_chunk t m Hm) as (X1 & X2 & X3 & X4 & _).
          pose proof (N.mod_lt (chunk m + 1) k ltac:(lia)). unfold root in *. repeat split; lia.
        - apply straight_spec in D as [D1 D2]. unfold ClosedForm.last in *. repeat split; auto; lia.
        - apply last_moves_spec in D as [D1 D2]. repeat split; auto; lia. }
      split; [|intros y Hy; apply Each in Hy; lia].
      split; [apply again_sends|]. split; [apply again_receives|]. intros y Hy. now apply Each.
    - pose proof (receivers_apart t L). pose proof late_rank as [Hl _].
      pose proof (receiver_helper n k two_ranks some_chunk) as R. pose proof (R t). pose proof (R last).
      split; [|intros y [<-|[]]; simpl; lia].
      split; [repeat constructor; auto|]. split; [repeat constructor; auto|].
      intros y [<-|[]]. repeat split; simpl; auto; lia.
  Qed.

  Lemma all_rounds_closed : all_rounds closed_form = waiting ++ completion.
  Proof.
    unfold all_rounds, rounds_of, ClosedForm.closed_form. simpl.
    destruct (N.eqb_spec n 2) as [E|E]; simpl; rewrite app_nil_r; auto.
    unfold ClosedForm.waiting. destruct one_owner_spec; [|lia]. now rewrite two_alone.
  Qed.

  Lemma all_proper rd : In rd (all_rounds closed_form) -> proper rd.
  Proof.
    rewrite all_rounds_closed, in_app_iff. intros [H|H].
    - now apply waiting_proper.
    - now apply completion_proper.
  Qed.

  Lemma waiting_leaves {A} (plus : A -> A -> A) c : forall rs s,
    (forall rd, In rd rs -> silent late rd) -> run plus s rs late c = s late c.
  Proof.
    induction rs as [|rd rs IH]; simpl; intros s H; auto. rewrite IH by auto.
    apply run_round_quiet. intros y Hy D. exfalso. now apply (H rd (or_introl eq_refl) y).
  Qed.

  Lemma closed_form_correct : correct closed_form.
  Proof.
    intros M x r c Hr Hc. rewrite all_rounds_closed, run_app.
    rewrite completion_adds; auto; [|apply add_comm]. unfold both.
    rewrite waiting_gathers by exact Hc.
    rewrite waiting_leaves by (intros rd Hrd; now apply waiting_proper).
    apply (sum_everybody M (fun i => x i c)).
  Qed.

  Lemma closed_form_same_bits : same_bits closed_form.
  Proof.
    intros A plus Comm x r r' c Hr Hr' Hc. rewrite all_rounds_closed, !run_app.
    now rewrite !completion_adds.
  Qed.

  Lemma hazard_free_once b rd : NoDup (map dst rd) -> hazard_free_round b rd.
  Proof.
    induction rd as [|y rd IH]; simpl; intros D; [constructor|]. inversion D; subst.
    constructor; [|now apply IH]. apply Forall_forall. intros z Hz [E _]. exfalso.
    match goal with Hn : ~ In _ _ |- _ => apply Hn end. rewrite E. now apply in_map.
  Qed.

  Lemma closed_form_phases p : In p (phases closed_form) ->
    p = Phase [] completion \/ p = Phase [late] waiting.
  Proof.
    unfold ClosedForm.closed_form. simpl. rewrite in_app_iff.
    destruct (n =? 2); simpl; intuition.
  Qed.

  Lemma closed_form_valid : valid closed_form.
  Proof.
    pose proof late_rank as [Hl _]. split; [|split; [|split]].
    - refine (conj _ (conj some_chunk (conj _ (conj _ (conj _ _))))); simpl; [lia|lia| | |].
      + intros r [<-|[]]. exact Hl.
      + intros p r Hp Hr. apply closed_form_phases in Hp as [->| ->]; [easy|exact Hr].
      + intros rd y Hrd Hy. now apply (all_proper rd Hrd).
    - intros rd Hrd. apply all_proper in Hrd as (S & D & _). now apply fits_duplex.
    - intros p r rd Hp Hr Hrd. apply closed_form_phases in Hp as [->| ->]; simpl in *; [easy|].
      destruct Hr as [<-|[]]. now apply waiting_proper.
    - apply closed_form_correct.
  Qed.

  (** Every contribution once for every commutative monoid, the same bits, ports, absence, hazards:
      both phases. *)
  Theorem right : Check.right closed_form.
  Proof.
    split; [apply closed_form_valid|]. split; [apply closed_form_same_bits|].
    intros rd Hrd. apply hazard_free_once. apply all_proper in Hrd. apply Hrd.
  Qed.

  Lemma closed_form_rounds : completion_rounds closed_form = k + N.log2_up n - 1.
  Proof.
    rewrite <- completion_length. unfold completion_rounds, count_rounds, rounds_of, ClosedForm.closed_form.
    simpl phases. destruct (n =? 2); simpl; now rewrite app_nil_r.
  Qed.

  Lemma closed_form_bound : k + N.log2_up n - 1 <= lower_bound closed_form.
  Proof.
    unfold lower_bound. cbv zeta. change (Schedule.late closed_form) with [late].
    change (ranks closed_form) with n. change (chunks closed_form) with k.
    change (port_limit (ports closed_form)) with 1.
    assert (Z : elsewhere (since_arrival late (phases closed_form)) = 0).
    { unfold ClosedForm.closed_form. simpl. destruct (n =? 2); simpl; auto.
      unfold is_absent. simpl. now rewrite N.eqb_refl. }
    unfold minimum. cbn [map fold_right]. rewrite Z.
    assert (E : knowledge_bound n k 1 = k + N.log2_up n - 1).
    { unfold knowledge_bound, ceil_div. rewrite N.div_1_r, log_ceil_two by lia. lia. }
    rewrite E. lia.
  Qed.

  (** It has k + ceil(log2 n) - 1 completion rounds, and no right schedule for the same arrival
      has fewer after it. For whichever wait, and whoever is late: [Headline.v]. *)
  Theorem optimal : Bounds.optimal closed_form /\ completion_rounds closed_form = k + N.log2_up n - 1.
  Proof.
    split; [|apply closed_form_rounds]. apply at_the_bound_optimal; auto.
    - apply closed_form_valid.
    - unfold nobody_leaves, ClosedForm.closed_form. simpl. now destruct (n =? 2).
    - destruct closed_form_valid as (F & P & A & C). pose proof (lower_bound_holds closed_form two_ranks F P A C).
      pose proof closed_form_bound. rewrite closed_form_rounds in *. lia.
  Qed.

  (** The wait takes few rounds more than the completion. *)
  Theorem waiting_length : N.of_nat (length waiting) <= (k + N.log2_up n - 1) + (N.log2_up n - 1).
  Proof.
    unfold ClosedForm.waiting. destruct (one_owner n k).
    { rewrite tree_length, N2Nat.id. pose proof (N.log2_up_le_mono late n). unfold root in *. lia. }
    rewrite <- completion_length. unfold ClosedForm.completion. rewrite map_length, range_length, N2Nat.id.
    unfold waiting_with.
    assert (G : forall m, N.of_nat (length (flat_map (waiting_rounds moves (fun rd => rd)) (rev (range m))))
                  <= m + (N.min m (outside_rounds n k) - (last + 1))).
    { induction m as [|m IH] using N.peano_ind; [simpl; lia|].
      rewrite <- N.add_1_r, range_succ, rev_app_distr. simpl. rewrite app_length.
      unfold ClosedForm.waiting_rounds at 1. rewrite app_length.
      destruct ((0 <? m) || straight m || last_moves m), (N.ltb_spec last m),
        (N.ltb_spec m (outside_rounds n k)); simpl; lia. }
    specialize (G (broadcast_rounds n k)). pose proof (N.le_log2_log2_up n).
    unfold outside_rounds, ClosedForm.last, dimensions in *. lia.
  Qed.

  (** ** One rank's own program *)

  Lemma own_moves r t m : r < n ->
    In m (moves_of n k r t) <-> In m (moves t) /\ takes_part r m = true.
  Proof. intros Hr. rewrite mine. now apply moves_of_rank. Qed.

  Lemma own_completion r : r < n -> part_of r (completion_of n k r) completion.
  Proof.
    intros Hr. unfold completion_of, ClosedForm.completion, part_of.
    induction (range (broadcast_rounds n k)) as [|t l IH]; simpl; constructor; auto.
    intros y. rewrite filter_In. unfold ClosedForm.completion_round. rewrite !in_app_iff, !in_map_iff.
    split; intros [[(m & <- & Hm)|H] T]; split; auto; left; exists m; split; auto;
      apply own_moves in Hm || apply own_moves; tauto.
  Qed.

  Lemma own_waiting r : r < n -> part_of r (waiting_of n k r) waiting.
  Proof.
    intros Hr. unfold waiting_of, ClosedForm.waiting, waiting_with, part_of.
    destruct (one_owner n k).
    { unfold tree_of, tree. induction (range (N.log2_up late)); constructor; auto.
      intros y. rewrite mine. apply own_tree_round. }
    induction (rev (range (broadcast_rounds n k))) as [|t l IH]; simpl; [constructor|].
    apply Forall2_app; auto. unfold ClosedForm.waiting_rounds. apply Forall2_app.
    - destruct ((0 <? t) || straight t || last_moves t); constructor; [|constructor].
      intros y. rewrite filter_In. unfold ClosedForm.waiting_round. rewrite !in_app_iff, !in_map_iff.
      assert (Rev : forall m, takes_part r (reversed m) = takes_part r m)
        by (intros m; apply orb_comm).
      split; intros [[(m & <- & Hm)|H] T]; split; auto; left; exists m; split; auto;
        apply filter_In in Hm as [Hm S]; apply filter_In; split; auto; rewrite Rev in T;
        [apply own_moves in Hm; tauto|apply own_moves; auto].
    - destruct ((last <? t) && (t <? outside_rounds n k)); constructor; [|constructor].
      intros y. apply filter_In.
  Qed.

  (** What a rank makes from its own corner and its partners' is its part of the whole. *)
  Theorem own_program r : r < n ->
    part_of r (waiting_of n k r) waiting /\ part_of r (completion_of n k r) completion.
  Proof. intros Hr. split; [now apply own_waiting|now apply own_completion]. Qed.

  (** The programs of all ranks together are the schedule. *)
  Theorem programs_together i y :
    (In y (nth i waiting []) <-> exists r, r < n /\ In y (nth i (waiting_of n k r) [])) /\
    (In y (nth i completion []) <-> exists r, r < n /\ In y (nth i (completion_of n k r) [])).
  Proof.
    assert (At : forall r own whole, part_of r own whole ->
              In y (nth i own []) <-> In y (nth i whole []) /\ takes_part r y = true).
    { intros r own whole H. revert i. induction H; intros [|i]; simpl; auto; tauto. }
    assert (G : forall own whole, (forall rd, In rd whole -> proper rd) ->
              (forall r, r < n -> part_of r (own r) whole) ->
              In y (nth i whole []) <-> exists r, r < n /\ In y (nth i (own r) [])).
    { intros own whole P H. split.
      - intros Hy. exists (src y). assert (L : src y < n).
        { destruct (nth_in_or_default i whole []) as [X|X]; [|now rewrite X in Hy].
          now apply (P _ X). }
        split; auto. apply (At _ _ _ (H _ L)). split; auto. unfold takes_part. now rewrite N.eqb_refl.
      - intros (r & L & Hy). now apply (At _ _ _ (H r L)) in Hy. }
    split; apply G.
    - intros rd Hrd. now apply waiting_proper.
    - apply own_waiting.
    - apply completion_proper.
    - apply own_completion.
  Qed.

  (** ** Disjoint pairs, where the number of ranks is a power of two *)

  Section Pairs.
    Hypothesis full_cube : n = corners (dimensions n).

    Lemma nobody_paired v : v < corners (dimensions n) -> pair n v = false.
    Proof.
      intros Hv. unfold pair, second_member, root. rewrite <- full_cube in *.
      destruct (N.ltb_spec 0 v); auto. destruct (N.ltb_spec (v + n - 2) (n - 1)); auto. lia.
    Qed.

    Lemma alone v t : v < corners (dimensions n) -> front (acting n k v t) = first_member n v /\
      back (acting n k v t) = first_member n v.
    Proof.
      intros Hv. pose proof (members_acting n k v t) as M. unfold members in M.
      rewrite nobody_paired in M by exact Hv. tauto.
    Qed.

    Lemma receiver_beside t : beside t = receiver t.
    Proof.
      pose proof (beside_root_here n k two_ranks some_chunk t).
      unfold Broadcast.beside, Broadcast.receiver. destruct (alone (beside_root (dimensions n) t) t) as [-> ->]; tauto.
    Qed.

    (** The partner of a rank in a round. *)
    Definition facing (r t : N) : N := first_member n (across n (corner_of n r) t).

    Definition faces (t : N) (y : transfer) : Prop := src y = facing (dst y) t /\ dst y = facing (src y) t.

    Lemma move_faces t m : In m (moves t) -> faces t m.
    Proof.
      intros Hm. apply in_moves in Hm as (v & Hv & Hm); auto.
      pose proof (move_dst n k two_ranks some_chunk t v m Hv Hm) as [C _].
      destruct (move_src n k two_ranks some_chunk t v m Hv Hm) as [(_ & P & _)|(S & _ & C' & D)].
      - rewrite nobody_paired in P by tauto. discriminate.
      - pose proof (across_corner n k two_ranks some_chunk v t (proj2 Hv)) as U.
        unfold faces, facing. rewrite C, C', across_twice, S, D.
        destruct (alone v t) as [-> _]; [tauto|]. destruct (alone (across n v t) t U) as [_ ->]. auto.
    Qed.

    Lemma root_faces t c o : faces t (Transfer (receiver t) late c o).
    Proof.
      assert (E : beside_root (dimensions n) t < corners (dimensions n))
        by apply (beside_root_here n k two_ranks some_chunk t).
      assert (R : receiver t = first_member n (beside_root (dimensions n) t)).
      { unfold Broadcast.receiver. now destruct (alone (beside_root (dimensions n) t) t) as [-> _]. }
      assert (Z : corner_of n late = 0) by (unfold corner_of; now rewrite N.eqb_refl).
      unfold faces, facing. simpl. rewrite Z, R, (corner_of_first n k two_ranks some_chunk) by exact E. split.
      - f_equal.
      - now rewrite across_root.
    Qed.

    Lemma faces_pairs t rd : (forall y, In y rd -> faces t y) -> disjoint_pairs rd.
    Proof. intros F y z Hy Hz E. destruct (F y Hy), (F z Hz). congruence. Qed.

    Lemma lone_pair y : src y <> dst y -> disjoint_pairs [y].
    Proof. intros H u z [<-|[]] [<-|[]] E. congruence. Qed.

    Theorem in_pairs : Forall (fits_ports Matching) (all_rounds closed_form).
    Proof.
      apply Forall_forall. intros rd Hrd. pose proof (all_proper rd Hrd) as (S & D & F).
      destruct (fits_duplex rd S D) as (P & R & _). split; [exact P|]. split; [exact R|]. intros _.
      rewrite all_rounds_closed, in_app_iff in Hrd. destruct Hrd as [H|H].
      - apply in_waiting in H as (t & [->|[->|[_ ->]]]).
        + intros y z Hy Hz E. now apply (tree_apart late t z y) in E.
        + destruct (last_moves t) eqn:B.
          * pose proof B as B'. apply last_moves_spec in B' as [-> B']. intros y z Hy Hz E.
            assert (One : forall y, In y (again 0) -> y = Transfer (receiver last) (receiver 0) 0 Copy).
            { intros w Hw. apply in_again in Hw as [(m & Hm & X & _)|[[X _]|[_ ->]]]; auto.
              - now apply first_round in Hm.
              - apply straight_spec in X as [_ X]. now rewrite receiver_beside in X. }
            apply One in Hy, Hz. subst. simpl in *. congruence.
          * apply (faces_pairs t). intros y Hy.
            apply in_again in Hy as [(m & Hm & X & ->)|[[X _]|[X _]]]; [|exfalso|congruence].
            -- apply move_faces in Hm as [F1 F2]. split; auto.
            -- apply straight_spec in X as [_ X]. now rewrite receiver_beside in X.
        + apply lone_pair. apply (F _ (or_introl eq_refl)).
      - apply in_map_iff in H as (t & <- & _). apply (faces_pairs t). intros y Hy.
        apply in_completion in Hy as [(m & Hm & ->)|[[_ ->]|[T ->]]].
        + apply move_faces in Hm as [F1 F2]. split; auto.
        + rewrite receiver_beside. apply root_faces.
        + assert (B : snd way_back = receiver t).
          { rewrite T. unfold ClosedForm.way_back. destruct (k =? 1); auto.
            destruct (find _ _); simpl; [apply receiver_beside|reflexivity]. }
          rewrite B. apply root_faces.
    Qed.
  End Pairs.
End Right.
