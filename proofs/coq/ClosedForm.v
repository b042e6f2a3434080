(** The schedule at the lower bound for every number of ranks and chunks, as synth ships it
    (synth/straggler/closed_form.py).

    The late rank, n-1, broadcasts ([Broadcast.v]): chunk t leaves it in round t, full. The helpers'
    sum of chunk t + 1 comes to it in round t, from the helper beside its receiver, whose port to
    send is idle. Chunk 0 it gives raw to the helper that has its sum, and receives it back later.
    The waiting phase is the broadcast backwards, every move a reduction from receiver to sender;
    what would go to the late rank goes straight to the owner. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits Structure Knowledge
  Bounds Check Corners Broadcast.
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
         | None => (0, 0)   (* never: [way_back_found] *)
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
  Definition waiting_rounds (moves : N -> list transfer) (pick : round -> round) (t : N)
    : list round :=
    (if (0 <? t) || straight t || last_moves t then [pick (waiting_round moves t)] else [])
    ++ (if (last <? t) && (t <? outside_rounds n k)
        then [pick [Transfer (receiver t) (receiver last) 0 Reduce]] else []).

  Definition waiting_with (moves : N -> list transfer) (pick : round -> round) : list round :=
    if n =? 2 then []
    else flat_map (waiting_rounds moves pick) (rev (range (broadcast_rounds n k))).

  Definition waiting : list round := waiting_with moves (fun rd => rd).

  Definition closed_form : schedule :=
    Schedule n k [late] Duplex
      ((if n =? 2 then [] else [Phase [late] waiting]) ++ [Phase [] completion]).

  (** ** One rank's own program: from its own corner, and its partners' *)

  Definition completion_of (r : N) : list round :=
    let back := way_back in
    map (fun t => filter (takes_part r) (completion_round (moves_of n k r) back t))
      (range (broadcast_rounds n k)).

  Definition waiting_of (r : N) : list round :=
    waiting_with (moves_of n k r) (filter (takes_part r)).
End ClosedForm.

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
End Right.
