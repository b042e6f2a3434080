(** Property 4 (verify/semantics.py): every contribution reaches every rank exactly once.

    A schedule is correct for every commutative monoid and all inputs if and only if the collecting
    run ends with every rank once, everywhere. If it does not, a concrete input shows the fault:
    counting, with 1 from a single source. The same holds from any start, in particular for a
    completion, where most buffers hold stale data of which nothing is known. *)

From Coq Require Import List NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics.
Import ListNotations.
Open Scope N_scope.

Definition everybody (n : N) : list source := map Rank (range n).

(** The rounds [rs] bring every rank's contribution everywhere once, from [start]. *)
Definition exactly_once_from (start : N -> N -> list source) (n k : N) (rs : list round) : Prop :=
  forall r c, r < n -> c < k -> Permutation (collect start rs r c) (everybody n).

Definition exactly_once (s : schedule) : Prop :=
  exactly_once_from own_data (ranks s) (chunks s) (all_rounds s).

(** * From any start *)

(** The run of [rs] on data [x] in [M], where (r, c) starts with the sum of the sources [start r c]. *)
Definition run_from (start : N -> N -> list source) (rs : list round)
  (M : commutative_monoid) (x : source -> N -> M) : state M :=
  run (add M) (fun r c => sum M (fun i => x i c) (start r c)) rs.

(** All ranks end with the sum of all ranks' data, whatever that is and whatever was stale. *)
Definition computes_sum_from (start : N -> N -> list source) (n k : N) (rs : list round) : Prop :=
  forall (M : commutative_monoid) (x : source -> N -> M) r c, r < n -> c < k ->
    run_from start rs M x r c = sum M (fun i => x (Rank i) c) (range n).

(** The same with one kind of data only: natural numbers, 1 from one source and 0 from the others.
    These are the inputs that exhibit a wrong schedule. *)
Definition counts_from (start : N -> N -> list source) (n k : N) (rs : list round) : Prop :=
  forall (i : source) r c, r < n -> c < k ->
    let x := fun j (_ : N) => if source_eq_dec j i then 1 else 0 in
    run_from start rs counting x r c = sum counting (fun i => x (Rank i) c) (range n).

Theorem exactly_once_sound start n k rs :
  exactly_once_from start n k rs -> computes_sum_from start n k rs.
Proof.
  intros H M x r c Hr Hc. unfold run_from. rewrite run_collects.
  rewrite (sum_permutation M _ _ _ (H r c Hr Hc)). apply sum_map.
Qed.

Theorem exactly_once_complete start n k rs :
  counts_from start n k rs -> exactly_once_from start n k rs.
Proof.
  intros H r c Hr Hc. apply (Permutation_count_occ source_eq_dec). intros i.
  specialize (H i r c Hr Hc). simpl in H. unfold run_from in H.
  rewrite (run_collects counting (fun j _ => if source_eq_dec j i then 1 else 0)) in H.
  rewrite sum_counting in H.
  rewrite <- (sum_map counting Rank (fun j => if source_eq_dec j i then 1 else 0)) in H.
  rewrite (sum_counting (map Rank (range n))) in H. unfold everybody. lia.
Qed.

Corollary exactly_once_iff start n k rs :
  exactly_once_from start n k rs <-> computes_sum_from start n k rs.
Proof.
  split; [apply exactly_once_sound|]. intros H. apply exactly_once_complete.
  intros i r c Hr Hc x. now rewrite H.
Qed.

(** * AllReduce: every rank starts with its own data *)

Lemma run_own_data rs (M : commutative_monoid) (x : source -> N -> M) r c :
  run_from own_data rs M x r c = run (add M) (fun r c => x (Rank r) c) rs r c.
Proof. apply run_ext. intros. apply sum_single. Qed.

Theorem all_reduce_iff n k rs : all_reduce n k rs <-> exactly_once_from own_data n k rs.
Proof.
  rewrite exactly_once_iff. split.
  - intros H M x r c Hr Hc. rewrite run_own_data. now apply H.
  - intros H M x r c Hr Hc.
    rewrite <- (H M (fun i c => match i with Rank r | Stale r => x r c end) r c Hr Hc).
    now rewrite run_own_data.
Qed.

(** Soundness and completeness for schedules. *)
Corollary correct_iff s : correct s <-> exactly_once s.
Proof. apply all_reduce_iff. Qed.

(** It is enough to count: whichever rank [i] brings 1 and all others 0, every rank ends with 1. *)
Theorem counting_suffices n k rs :
  ranks_exist n rs ->
  (forall i r c, i < n -> r < n -> c < k ->
     run N.add (fun j _ => if j =? i then 1 else 0) rs r c = 1) ->
  all_reduce n k rs.
Proof.
  intros Hex H. apply all_reduce_iff, exactly_once_complete. intros i r c Hr Hc x.
  assert (Inside : forall j, In j (collect own_data rs r c) -> exists i, j = Rank i /\ i < n).
  { refine (run_related (@app source) (@app source)
              (fun _ l _ => forall j, In j l -> exists i, j = Rank i /\ i < n)
              _ (fun r => r < n) rs _ own_data Hex _ r c Hr).
    - intros c' a _ a' _ Ha Ha' j Hj. apply in_app_iff in Hj as [Hj|Hj]; auto.
    - intros r' c' Hr' j [<-|[]]. exists r'. auto. }
  unfold run_from. rewrite run_collects. unfold x at 1. rewrite sum_counting.
  rewrite <- (sum_map counting Rank (fun j => x j c)). unfold x. rewrite sum_counting.
  destruct (in_dec source_eq_dec i (everybody n)) as [Hin|Hout].
  - apply in_map_iff in Hin as (i' & <- & Hi'). apply in_range in Hi'.
    assert (E : count_occ source_eq_dec (map Rank (range n)) (Rank i') = 1%nat).
    { apply NoDup_count_occ'.
      - apply FinFun.Injective_map_NoDup; [intros a b; congruence|apply range_nodup].
      - now apply in_map, in_range. }
    rewrite E. transitivity 1; [|reflexivity]. etransitivity; [|apply (H i' r c Hi' Hr Hc)].
    rewrite <- sum_counting.
    rewrite <- (run_collects counting (fun j _ => if source_eq_dec j (Rank i') then 1 else 0)).
    apply run_ext. intros a b. unfold own_data. rewrite sum_single.
    destruct (source_eq_dec (Rank a) (Rank i')), (N.eqb_spec a i'); congruence.
  - pose proof Hout as E. apply (count_occ_not_In source_eq_dec) in E. unfold everybody in E.
    rewrite E. f_equal. apply count_occ_not_In. intros Hin.
    destruct (Inside i Hin) as (j & -> & Hj). apply Hout. now apply in_map, in_range.
Qed.

(** * Completion: the others have already added up their data *)

(** The late rank has its own data; the owner of a chunk has the sum of all other ranks' data of
    it; every other buffer is stale. *)
Definition after_reduction (n late : N) (owner : N -> N) : N -> N -> list source :=
  fun r c =>
    if r =? late then [Rank late]
    else if r =? owner c then map Rank (filter (fun i => negb (i =? late)) (range n))
    else [Stale r].

Definition completes (n k late : N) (owner : N -> N) (rs : list round) : Prop :=
  forall (M : commutative_monoid) (x stale : N -> N -> M) r c, r < n -> c < k ->
    run (add M)
      (fun r c =>
         if r =? late then x late c
         else if r =? owner c
              then sum M (fun i => x i c) (filter (fun i => negb (i =? late)) (range n))
              else stale r c)
      rs r c
    = sum M (fun i => x i c) (range n).

Theorem completes_iff n k late owner rs :
  completes n k late owner rs <-> exactly_once_from (after_reduction n late owner) n k rs.
Proof.
  rewrite exactly_once_iff. split.
  - intros H M x r c Hr Hc.
    rewrite <- (H M (fun i c => x (Rank i) c) (fun r c => x (Stale r) c) r c Hr Hc).
    apply run_ext. intros r' c'. unfold after_reduction.
    destruct (r' =? late); [apply sum_single|].
    destruct (r' =? owner c'); [apply sum_map|apply sum_single].
  - intros H M x stale r c Hr Hc.
    specialize (H M (fun i c => match i with Rank r => x r c | Stale r => stale r c end) r c Hr Hc).
    rewrite <- H. apply run_ext. intros r' c'. unfold after_reduction.
    destruct (r' =? late); [symmetry; apply sum_single|].
    destruct (r' =? owner c'); [symmetry; apply sum_map|symmetry; apply sum_single].
Qed.
