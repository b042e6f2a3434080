(** Transpose AllReduce (synth/transpose, synth/standard.py [direct]), for every number of ranks.

    Chunk c belongs to rank c. First every rank sends each chunk straight to its owner, which adds
    it; then every owner sends the sum straight to everybody. It does not matter how the transfers
    of a stage are cut into rounds: one round, rotations, tournaments, any incast.

    [what_arrives_decides] says what the result is when only some of the transfers arrive; from it
    follow correctness ([transpose_correct]) and the two theorems about one loss. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits.
Import ListNotations.
Open Scope N_scope.

(** To the owner, and from it. *)
Definition to_owner (t : transfer) : Prop := op t = Reduce /\ chunk t = dst t /\ src t <> dst t.
Definition from_owner (t : transfer) : Prop := op t = Copy /\ chunk t = src t /\ src t <> dst t.

(** Whose contributions to chunk [c] arrive, and who receives the sum. *)
Definition senders (c : N) (rs : list round) : list N :=
  map src (filter (fun t => dst t =? c) (concat rs)).

Definition told (r c : N) (rs : list round) : bool :=
  existsb (fun t => (dst t =? r) && (chunk t =? c)) (concat rs).

(** * The two stages *)

Lemma scatter_round (s : state (list source)) rd : Forall to_owner rd ->
  (forall r c, r <> c -> s r c = [Rank r]) ->
  forall r c, run_round (@app source) s rd r c
  = if r =? c then s c c ++ map Rank (map src (filter (fun t => dst t =? c) rd)) else [Rank r].
Proof.
  intros Hrd Hs. unfold run_round.
  assert (G : forall now, (forall r c, r <> c -> now r c = [Rank r]) ->
    forall r c, fold_left (deliver (@app source) s) rd now r c
    = if r =? c then now c c ++ map Rank (map src (filter (fun t => dst t =? c) rd))
      else [Rank r]).
  { induction Hrd as [|t rd (Ho & Hc & Hne) Hrd IH]; simpl; intros now Hnow r c.
    - destruct (N.eqb_spec r c) as [->|]; [now rewrite app_nil_r|auto].
    - rewrite IH.
      + unfold deliver. rewrite Ho, Hc.
        destruct (N.eqb_spec r c) as [->|]; auto. destruct (N.eqb_spec (dst t) c) as [<-|Hd].
        * rewrite put_same, Hs by auto. simpl. now rewrite <- app_assoc.
        * now rewrite put_other by auto.
      + intros r' c' Hr'. unfold deliver. rewrite Hc. rewrite put_other; auto.
        destruct (N.eq_dec r' (dst t)); [right; congruence|now left]. }
  now apply G.
Qed.

Lemma scatter_result rs : Forall to_owner (concat rs) ->
  forall r c, collect own_data rs r c
  = if r =? c then Rank c :: map Rank (senders c rs) else [Rank r].
Proof.
  induction rs as [|rd rs IH] using rev_ind; intros H r c.
  - destruct (N.eqb_spec r c) as [->|]; reflexivity.
  - rewrite concat_app in H. apply Forall_app in H as [H Hrd]. simpl in Hrd.
    rewrite app_nil_r in Hrd. specialize (IH H).
    unfold collect in *. rewrite run_app. simpl. rewrite scatter_round; auto.
    + destruct (r =? c); auto. rewrite IH, N.eqb_refl. unfold senders.
      rewrite concat_app, filter_app, !map_app. simpl. now rewrite app_nil_r.
    + intros r' c' Hne. rewrite IH. destruct (N.eqb_spec r' c'); congruence.
Qed.

Lemma gather_round {A} (plus : A -> A -> A) (s : state A) rd : Forall from_owner rd ->
  forall r c, run_round plus s rd r c
  = if existsb (fun t => (dst t =? r) && (chunk t =? c)) rd then s c c else s r c.
Proof.
  intros Hrd r c. unfold run_round.
  assert (G : forall now, fold_left (deliver plus s) rd now r c
    = if existsb (fun t => (dst t =? r) && (chunk t =? c)) rd then s c c else now r c).
  { induction Hrd as [|t rd (Ho & Hc & Hne) Hrd IH]; simpl; intros now; auto.
    rewrite IH. destruct (existsb _ rd); [now rewrite orb_true_r|].
    rewrite orb_false_r. unfold deliver. rewrite Ho.
    destruct (N.eqb_spec (dst t) r) as [<-|], (N.eqb_spec (chunk t) c) as [<-|]; simpl.
    - now rewrite put_same, Hc.
    - now rewrite put_other by auto.
    - now rewrite put_other by auto.
    - now rewrite put_other by auto. }
  now rewrite G.
Qed.

Lemma gather_result {A} (plus : A -> A -> A) rs : Forall from_owner (concat rs) ->
  forall (s : state A) r c, run plus s rs r c = if told r c rs then s c c else s r c.
Proof.
  induction rs as [|rd rs IH]; simpl; intros H s r c; auto.
  apply Forall_app in H as [Hrd H]. rewrite IH by auto.
  unfold told. simpl. rewrite existsb_app, !gather_round by auto.
  assert (Own : existsb (fun t => (dst t =? c) && (chunk t =? c)) rd = false).
  { apply not_true_iff_false. rewrite existsb_exists. intros (t & Ht & E).
    rewrite Forall_forall in Hrd. destruct (Hrd t Ht) as (_ & Hc & Hne).
    apply andb_true_iff in E as [E1 E2]. apply N.eqb_eq in E1, E2. congruence. }
  rewrite Own. destruct (existsb _ (concat rs)).
  - now rewrite orb_true_r.
  - now rewrite orb_false_r.
Qed.

(** * What arrives decides *)

(** The sum that the owner of [c] makes of what arrives. *)
Definition owners_sum (M : commutative_monoid) (x : N -> N -> M) (scatter : list round) (c : N) : M :=
  add M (x c c) (sum M (fun i => x i c) (senders c scatter)).

Theorem what_arrives_decides (M : commutative_monoid) (x : N -> N -> M) scatter gather r c :
  Forall to_owner (concat scatter) -> Forall from_owner (concat gather) ->
  run (add M) x (scatter ++ gather) r c
  = if (r =? c) || told r c gather then owners_sum M x scatter c else x r c.
Proof.
  intros Hs Hg. rewrite run_app, gather_result by auto.
  assert (First : forall r, run (add M) x scatter r c
                  = if r =? c then owners_sum M x scatter c else x r c).
  { intros r'.
    pose proof (run_own_data scatter M
      (fun i c => match i with Rank i => x i c | Stale i => x i c end) r' c) as E.
    unfold run_from in E. rewrite run_collects, scatter_result in E by auto.
    etransitivity; [symmetry; exact E|].
    destruct (r' =? c); [|apply sum_single]. rewrite sum_cons, sum_map. reflexivity. }
  rewrite !First, N.eqb_refl. destruct (told r c gather), (r =? c); auto.
Qed.

(** * Nothing lost *)

(** Every rank but the owner sends once, and every rank but the owner is told. *)
Definition all_sent (n : N) (rs : list round) : Prop :=
  Forall to_owner (concat rs) /\
  forall c, c < n -> Permutation (c :: senders c rs) (range n).

Definition all_told (n : N) (rs : list round) : Prop :=
  Forall from_owner (concat rs) /\
  forall r c, r < n -> c < n -> r <> c -> told r c rs = true.

Theorem transpose_correct n scatter gather :
  all_sent n scatter -> all_told n gather -> all_reduce n n (scatter ++ gather).
Proof.
  intros [Hs Sent] [Hg Told] M x r c Hr Hc. rewrite what_arrives_decides by auto.
  replace ((r =? c) || told r c gather) with true.
  - unfold owners_sum. rewrite <- (sum_cons M (fun i => x i c)). now apply sum_permutation, Sent.
  - destruct (N.eqb_spec r c); auto. now rewrite Told.
Qed.

(** All ranks end with copies of the owner's sum: the same bits, whatever the operation. *)
Theorem transpose_same_bits n scatter gather {A} (plus : A -> A -> A) x r r' c :
  all_told n gather -> r < n -> r' < n -> c < n ->
  run plus x (scatter ++ gather) r c = run plus x (scatter ++ gather) r' c.
Proof.
  intros [Hg Told] Hr Hr' Hc. rewrite run_app.
  rewrite (gather_result plus gather Hg _ r), (gather_result plus gather Hg _ r').
  assert (E : forall a, a < n ->
    (if told a c gather then run plus x scatter c c else run plus x scatter a c)
    = run plus x scatter c c).
  { intros a Ha. destruct (N.eq_dec a c) as [->|]; [now destruct (told c c gather)|].
    now rewrite Told. }
  now rewrite (E r Hr), (E r' Hr').
Qed.

(** * One loss *)

(** A transfer to an owner is lost: this one contribution is missing in this one chunk, at all
    ranks alike; everything else is as it should be. *)
Theorem one_loss_to_owner n scatter delivered gather i c0 :
  all_sent n scatter -> all_told n gather ->
  Permutation (concat scatter) (Transfer i c0 c0 Reduce :: concat delivered) ->
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x (delivered ++ gather) r c
    = sum M (fun i => x i c) (if c =? c0 then remove N.eq_dec i (range n) else range n).
Proof.
  intros [Hs Sent] [Hg Told] P M x r c Hr Hc.
  pose proof (Permutation_Forall P Hs) as Hall.
  assert (Hd : Forall to_owner (concat delivered)) by now inversion Hall.
  rewrite what_arrives_decides by auto.
  replace ((r =? c) || told r c gather) with true
    by (destruct (N.eqb_spec r c); auto; now rewrite Told).
  unfold owners_sum. rewrite <- (sum_cons M (fun i => x i c)). apply sum_permutation.
  assert (Q : Permutation (c :: senders c scatter)
                (if c =? c0 then i :: c :: senders c delivered else c :: senders c delivered)).
  { unfold senders at 1.
    assert (F : Permutation (filter (fun t => dst t =? c) (concat scatter))
                  (filter (fun t => dst t =? c) (Transfer i c0 c0 Reduce :: concat delivered))).
    { clear - P. induction P as [|t l l' P IH|t u l|l l' l'' P IH P' IH']; simpl; auto.
      - destruct (dst t =? c); auto.
      - destruct (dst t =? c), (dst u =? c); auto. constructor.
      - now transitivity (filter (fun t => dst t =? c) l'). }
    simpl in F. rewrite (N.eqb_sym c0 c) in F. apply (Permutation_map src) in F.
    destruct (c =? c0); simpl in F.
    - apply perm_trans with (c :: i :: senders c delivered); [now constructor|constructor].
    - now constructor. }
  specialize (Sent c Hc). apply (Permutation_trans (Permutation_sym Q)) in Sent.
  destruct (c =? c0); auto.
  assert (Hi : Permutation (i :: c :: senders c delivered) (i :: remove N.eq_dec i (range n))).
  { apply (Permutation_trans Sent). assert (Hin : In i (range n)).
    { apply (Permutation_in i Sent). now left. }
    apply NoDup_Permutation; [apply range_nodup| |].
    - constructor; [apply remove_In|]. 
      clear - n. pose proof (range_nodup n) as N. revert N. generalize (range n) as l.
      induction l as [|a l IH]; simpl; intros N; [constructor|]. inversion N; subst.
      destruct (N.eq_dec i a); auto. constructor; auto. intros Hin. now apply in_remove in Hin.
    - intros y. simpl. destruct (N.eq_dec i y) as [<-|Hne].
      + tauto.
      + split; [intros Hy; right; apply in_in_remove; auto|].
        intros [|Hy]; [congruence|]. now apply in_remove in Hy. }
  now apply Permutation_cons_inv in Hi.
Qed.

(** A transfer from an owner is lost: one chunk at one rank is not the sum but that rank's own
    data; everything else is as it should be. *)
Theorem one_loss_from_owner n scatter gather delivered r0 c0 :
  all_sent n scatter -> all_told n gather -> c0 <> r0 ->
  Permutation (concat gather) (Transfer c0 r0 c0 Copy :: concat delivered) ->
  told r0 c0 delivered = false ->
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x (scatter ++ delivered) r c
    = if (r =? r0) && (c =? c0) then x r0 c0 else sum M (fun i => x i c) (range n).
Proof.
  intros [Hs Sent] [Hg Told] Hne P Lost M x r c Hr Hc.
  pose proof (Permutation_Forall P Hg) as Hall.
  assert (Hd : Forall from_owner (concat delivered)) by now inversion Hall.
  rewrite what_arrives_decides by auto.
  destruct ((r =? r0) && (c =? c0)) eqn:Here.
  - apply andb_true_iff in Here as [Er Ec]. apply N.eqb_eq in Er, Ec. subst r c.
    rewrite Lost, orb_false_r. destruct (N.eqb_spec r0 c0); congruence.
  - replace ((r =? c) || told r c delivered) with true.
    + unfold owners_sum. rewrite <- (sum_cons M (fun i => x i c)). now apply sum_permutation, Sent.
    + destruct (N.eqb_spec r c) as [|Hrc]; auto. symmetry.
      specialize (Told r c Hr Hc Hrc). unfold told in *. apply existsb_exists in Told as (t & Ht & E).
      apply (Permutation_in t P) in Ht. apply existsb_exists. exists t. split; auto.
      destruct Ht as [<-|Ht]; auto. exfalso. simpl in E.
      rewrite (N.eqb_sym r0), (N.eqb_sym c0) in E. congruence.
Qed.

(** * The schedules that synth makes: rotations, some of them in each round *)

Definition scatter_by (n s : N) : round :=
  map (fun r => Transfer r ((r + s) mod n) ((r + s) mod n) Reduce) (range n).

Definition gather_by (n s : N) : round :=
  map (fun r => Transfer r ((r + s) mod n) r Copy) (range n).

(** [blocks]: by how many places messages go in each round of a stage. *)
Definition rotations (n : N) (blocks : list (list N)) : list round :=
  map (flat_map (scatter_by n)) blocks ++ map (flat_map (gather_by n)) blocks.

Lemma place_back n r s c : s < n -> r < n -> c < n ->
  (r + s) mod n = c <-> r = (c + (n - s)) mod n.
Proof.
  intros Hs Hr Hc. rewrite mod_add by lia.
  destruct (N.eq_dec s 0) as [->|].
  - rewrite N.sub_0_r. replace ((c + n) mod n) with c.
    + by_cases.
    + symmetry. rewrite <- (N.mul_1_l n) at 1. rewrite N.mod_add by lia. now apply N.mod_small.
  - rewrite (mod_add c (n - s)) by lia.
    by_cases.
Qed.

Lemma concat_flat_map {A B} (f : A -> list B) ll :
  concat (map (flat_map f) ll) = flat_map f (concat ll).
Proof.
  induction ll as [|l ll IH]; simpl; auto. rewrite IH.
  now rewrite !flat_map_concat_map, <- concat_app, <- map_app.
Qed.

Section Rotations.
  Variables (n : N) (blocks : list (list N)).
  (** Every distance but 0, each once. *)
  Hypothesis distances : forall s, In s (concat blocks) <-> 1 <= s < n.
  Hypothesis once : NoDup (concat blocks).

  Lemma senders_of_shift c s : c < n -> s < n ->
    map src (filter (fun t => dst t =? c) (scatter_by n s)) = [(c + (n - s)) mod n].
  Proof.
    intros Hc Hs. unfold scatter_by.
    assert (E : forall l, map src (filter (fun t => dst t =? c)
                  (map (fun r => Transfer r ((r + s) mod n) ((r + s) mod n) Reduce) l))
                = filter (fun r => (r + s) mod n =? c) l).
    { induction l as [|a l IH]; simpl; auto.
      destruct ((a + s) mod n =? c); simpl; now rewrite IH. }
    rewrite E. apply filter_unique; [apply range_nodup| |].
    - apply in_range, N.mod_lt. lia.
    - intros r Hr. apply in_range in Hr. rewrite N.eqb_eq. now apply place_back.
  Qed.

  Lemma senders_rotations c : c < n ->
    senders c (map (flat_map (scatter_by n)) blocks)
    = map (fun s => (c + (n - s)) mod n) (concat blocks).
  Proof.
    intros Hc. unfold senders. rewrite concat_flat_map.
    assert (H : forall s, In s (concat blocks) -> s < n) by (intros s Hs; now apply distances).
    revert H. clear distances once. induction (concat blocks) as [|s l IH]; simpl; intros H; auto.
    rewrite filter_app, map_app, senders_of_shift, IH; simpl; auto.
  Qed.

  Lemma rotations_sent : all_sent n (map (flat_map (scatter_by n)) blocks).
  Proof.
    split.
    - rewrite concat_flat_map. apply Forall_forall. intros t Ht.
      apply in_flat_map in Ht as (s & Hs & Ht). apply distances in Hs.
      apply in_map_iff in Ht as (r & <- & Hr). apply in_range in Hr.
      repeat split. simpl. rewrite mod_add by lia. by_cases.
    - intros c Hc. rewrite senders_rotations by auto.
      apply NoDup_Permutation; [|apply range_nodup|].
      + constructor.
        * rewrite in_map_iff. intros (s & E & Hs). apply distances in Hs.
          symmetry in E. apply place_back in E; try lia.
          rewrite mod_add in E by lia. by_cases.
        * apply nodup_map_on; auto. intros s s' Hs Hs' E. apply distances in Hs, Hs'.
          rewrite !mod_add in E by lia.
          by_cases.
      + intros y. rewrite in_range. simpl. rewrite in_map_iff. split.
        * intros [<-|(s & <- & Hs)]; auto. apply N.mod_lt. lia.
        * intros Hy. destruct (N.eq_dec c y) as [|Hne]; [now left|right].
          exists (if y <? c then c - y else c + n - y). rewrite mod_add, distances.
          -- by_cases.
          -- auto.
          -- by_cases.
  Qed.

  Lemma rotations_told : all_told n (map (flat_map (gather_by n)) blocks).
  Proof.
    split.
    - rewrite concat_flat_map. apply Forall_forall. intros t Ht.
      apply in_flat_map in Ht as (s & Hs & Ht). apply distances in Hs.
      apply in_map_iff in Ht as (r & <- & Hr). apply in_range in Hr.
      repeat split. simpl. rewrite mod_add by lia. by_cases.
    - intros r c Hr Hc Hne. unfold told. rewrite concat_flat_map. apply existsb_exists.
      exists (Transfer c r c Copy). split; [|simpl; now rewrite !N.eqb_refl].
      apply in_flat_map. exists (if c <? r then r - c else r + n - c). split.
      + apply distances. by_cases.
      + apply in_map_iff. exists c. split; [|now apply in_range]. f_equal.
        rewrite mod_add; [|lia|by_cases].
        by_cases.
  Qed.

  Theorem rotations_correct : all_reduce n n (rotations n blocks).
  Proof. apply transpose_correct; [apply rotations_sent|apply rotations_told]. Qed.
End Rotations.

(** One round per stage, and one rotation per round, for every n. *)
Definition direct (n : N) : list round := rotations n [tl (range n)].

Definition one_by_one (n : N) : list round := rotations n (map (fun s => [s]) (tl (range n))).

Lemma tl_range s n : In s (tl (range n)) <-> 1 <= s < n.
Proof.
  unfold range. destruct (N.to_nat n) as [|m] eqn:E; simpl; [split; [easy|lia]|].
  rewrite in_map_iff. split.
  - intros (x & <- & Hx). apply in_seq in Hx. lia.
  - intros H. exists (N.to_nat s). split; [lia|]. apply in_seq. lia.
Qed.

Lemma tl_range_nodup n : NoDup (tl (range n)).
Proof.
  pose proof (range_nodup n) as H. destruct (range n); simpl; [constructor|].
  now inversion H.
Qed.

Lemma concat_singletons {A} (l : list A) : concat (map (fun x => [x]) l) = l.
Proof. induction l; simpl; congruence. Qed.

Theorem direct_correct n : all_reduce n n (direct n).
Proof.
  apply rotations_correct; simpl; rewrite app_nil_r; [intros; apply tl_range|apply tl_range_nodup].
Qed.

Theorem one_by_one_correct n : all_reduce n n (one_by_one n).
Proof.
  apply rotations_correct; rewrite concat_singletons;
    [intros; apply tl_range|apply tl_range_nodup].
Qed.

Theorem one_by_one_rounds n : 1 <= n ->
  N.of_nat (length (one_by_one n)) = 2 * (n - 1).
Proof.
  intros H. unfold one_by_one, rotations. rewrite app_length, !map_length.
  assert (L : length (tl (range n)) = (N.to_nat n - 1)%nat).
  { rewrite <- range_length. destruct (range n); simpl; lia. }
  lia.
Qed.
