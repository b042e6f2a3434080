(** Transpose AllReduce (synth/transpose, synth/standard.py [direct]), for every number of ranks.

    Chunk c belongs to rank c. First every rank sends each chunk straight to its owner, which adds
    it; then every owner sends the sum straight to everybody. It does not matter how the transfers
    of a stage are cut into rounds: one round, rotations, tournaments, any incast.

    [what_arrives_decides] says what the result is when only some of the transfers arrive; from it
    follow correctness ([transpose_correct]) and the two theorems about one loss. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits Structure Volume Bounds Check
  NobodyLate.
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

(** Every rank but the owner sends once, and every rank but the owner is told once. *)
Definition all_sent (n : N) (rs : list round) : Prop :=
  Forall to_owner (concat rs) /\
  forall c, c < n -> Permutation (c :: senders c rs) (range n).

Definition all_told (n : N) (rs : list round) : Prop :=
  Forall from_owner (concat rs) /\
  NoDup (map (fun t => (dst t, chunk t)) (concat rs)) /\
  forall r c, r < n -> c < n -> r <> c -> told r c rs = true.

Theorem transpose_correct n scatter gather :
  all_sent n scatter -> all_told n gather -> all_reduce n n (scatter ++ gather).
Proof.
  intros [Hs Sent] (Hg & _ & Told) M x r c Hr Hc. rewrite what_arrives_decides by auto.
  replace ((r =? c) || told r c gather) with true.
  - unfold owners_sum. rewrite <- (sum_cons M (fun i => x i c)). now apply sum_permutation, Sent.
  - destruct (N.eqb_spec r c); auto. now rewrite Told.
Qed.

(** All ranks end with copies of the owner's sum: the same bits, whatever the operation. *)
Theorem transpose_same_bits n scatter gather {A} (plus : A -> A -> A) x r r' c :
  all_told n gather -> r < n -> r' < n -> c < n ->
  run plus x (scatter ++ gather) r c = run plus x (scatter ++ gather) r' c.
Proof.
  intros (Hg & _ & Told) Hr Hr' Hc. rewrite run_app.
  rewrite (gather_result plus gather Hg _ r), (gather_result plus gather Hg _ r').
  assert (E : forall a, a < n ->
    (if told a c gather then run plus x scatter c c else run plus x scatter a c)
    = run plus x scatter c c).
  { intros a Ha. destruct (N.eq_dec a c) as [->|]; [now destruct (told c c gather)|].
    now rewrite Told. }
  now rewrite (E r Hr), (E r' Hr').
Qed.

(** * One loss *)

(** Rounds [rs'] are [rs] with one transfer lost, in whatever round; nothing else is. *)
Inductive loses (lost : transfer) : list round -> list round -> Prop :=
  Loses before first rest after :
    loses lost (before ++ (first ++ lost :: rest) :: after) (before ++ (first ++ rest) :: after).

Lemma loses_permutation lost rs rs' : loses lost rs rs' ->
  Permutation (concat rs) (lost :: concat rs').
Proof.
  intros [before first rest after]. rewrite !concat_app. simpl. rewrite <- !app_assoc, !app_assoc.
  simpl. rewrite <- !app_assoc, <- !app_comm_cons.
  rewrite (app_assoc (concat before) first), (app_assoc (concat before) first).
  symmetry. apply Permutation_middle.
Qed.

Lemma loses_split lost rs rs' rest : loses lost (rs ++ rs') rest ->
  (exists delivered, loses lost rs delivered /\ rest = delivered ++ rs') \/
  (exists delivered, loses lost rs' delivered /\ rest = rs ++ delivered).
Proof.
  intros H. inversion H as [before first tail after E E']; subst. clear H.
  apply app_eq_app in E as (l & [[-> E]|[-> E]]).
  - right. exists (l ++ (first ++ tail) :: after). rewrite E, <- app_assoc. split; [constructor|auto].
  - destruct l as [|rd l]; simpl in E.
    + right. exists ((first ++ tail) :: after). subst. rewrite app_nil_r.
      split; [apply (Loses lost [])|auto].
    + left. injection E as <- ->. exists (before ++ (first ++ tail) :: l). rewrite <- app_assoc.
      split; [constructor|auto].
Qed.

Lemma lost_to_owner n scatter delivered gather i c0 :
  all_sent n scatter -> all_told n gather ->
  Permutation (concat scatter) (Transfer i c0 c0 Reduce :: concat delivered) ->
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x (delivered ++ gather) r c
    = sum M (fun i => x i c) (if c =? c0 then remove N.eq_dec i (range n) else range n).
Proof.
  intros [Hs Sent] (Hg & _ & Told) P M x r c Hr Hc.
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

Lemma lost_from_owner n scatter gather delivered r0 c0 :
  all_sent n scatter -> all_told n gather -> c0 <> r0 ->
  Permutation (concat gather) (Transfer c0 r0 c0 Copy :: concat delivered) ->
  told r0 c0 delivered = false ->
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x (scatter ++ delivered) r c
    = if (r =? r0) && (c =? c0) then x r0 c0 else sum M (fun i => x i c) (range n).
Proof.
  intros [Hs Sent] (Hg & _ & Told) Hne P Lost M x r c Hr Hc.
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

(** A transfer to an owner is lost, nothing else: the contribution of its sender is missing in its
    chunk, at all ranks alike; everything else is as it should be. *)
Theorem one_loss_to_owner n scatter gather lost delivered :
  all_sent n scatter -> all_told n gather -> loses lost scatter delivered ->
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x (delivered ++ gather) r c
    = sum M (fun i => x i c)
        (if c =? chunk lost then remove N.eq_dec (src lost) (range n) else range n).
Proof.
  intros Sent Told L. apply loses_permutation in L as P.
  pose proof (Permutation_Forall P (proj1 Sent)) as All. inversion All as [|? ? (Ho & Hc & _) _]; subst.
  destruct lost as [i d c0 o]. simpl in *. subst o d. now apply lost_to_owner with (scatter := scatter).
Qed.

(** A transfer from an owner is lost, nothing else: its receiver keeps its own data in its chunk and
    has not the sum; everything else is as it should be. *)
Theorem one_loss_from_owner n scatter gather lost delivered :
  all_sent n scatter -> all_told n gather -> loses lost gather delivered ->
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x (scatter ++ delivered) r c
    = if (r =? dst lost) && (c =? chunk lost) then x r c else sum M (fun i => x i c) (range n).
Proof.
  intros Sent Told L M x r c Hr Hc. apply loses_permutation in L as P.
  pose proof Told as (From & Once & _).
  pose proof (Permutation_Forall P From) as All. inversion All as [|? ? (Ho & Hch & Ne) _]; subst.
  destruct lost as [c0 r0 c1 o]. simpl in *. subst o c1.
  rewrite (lost_from_owner n scatter gather delivered r0 c0); auto.
  - destruct (N.eqb_spec r r0) as [->|], (N.eqb_spec c c0) as [->|]; auto.
  - apply not_true_iff_false. unfold told. rewrite existsb_exists. intros (t & Ht & E).
    apply andb_true_iff in E as [Ed Ec]. apply N.eqb_eq in Ed, Ec.
    apply (Permutation_map (fun t => (dst t, chunk t))), Permutation_sym in P.
    apply (Permutation_NoDup (Permutation_sym P)) in Once. inversion Once as [|? ? No _]; subst.
    apply No. simpl. apply in_map_iff. exists t. auto.
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

  (** Different distances, different receivers. *)
  Lemma gather_targets l : NoDup l -> (forall s, In s l -> s < n) ->
    NoDup (map (fun t => (dst t, chunk t)) (flat_map (gather_by n) l)).
  Proof.
    intros Hl Hs.
    assert (E : map (fun t => (dst t, chunk t)) (flat_map (gather_by n) l)
                = map (fun p => ((snd p + fst p) mod n, snd p)) (list_prod l (range n))).
    { clear. induction l as [|s l IH]; simpl; auto. rewrite !map_app, IH. f_equal.
      unfold gather_by. now rewrite !map_map. }
    rewrite E. apply nodup_map_on; [|apply nodup_prod; auto using range_nodup].
    intros [s r] [s' r'] H H'. apply in_prod_iff in H as [H Hr], H' as [H' _].
    apply Hs in H, H'. apply in_range in Hr. simpl. intros [= F <-]. f_equal.
    rewrite !mod_add in F by lia. by_cases.
  Qed.

  Lemma rotations_told : all_told n (map (flat_map (gather_by n)) blocks).
  Proof.
    split; [|split; [rewrite concat_flat_map; apply gather_targets; auto;
                     intros s Hs; now apply distances|]].
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

(** * The transposes that synth makes: so many rotations in a round *)

(** A list in pieces of [most], the last of what is left. *)
Fixpoint cut (tries most : nat) (l : list N) : list (list N) :=
  match tries, l with
  | O, _ | _, [] => []
  | S tries, _ => firstn most l :: cut tries most (skipn most l)
  end.

Definition blocks_of (n incast : N) : list (list N) :=
  cut (N.to_nat n) (N.to_nat incast) (tl (range n)).

Definition transpose (n incast : N) : schedule :=
  nobody_late n n (Incast incast)
    [map (flat_map (scatter_by n)) (blocks_of n incast);
     map (flat_map (gather_by n)) (blocks_of n incast)].

Lemma cut_whole most : (1 <= most)%nat -> forall tries l, (length l <= tries)%nat ->
  concat (cut tries most l) = l.
Proof.
  intros Hm. induction tries as [|tries IH]; intros [|a l] H; auto; [simpl in H; lia|].
  cbn [cut concat]. rewrite IH by (rewrite skipn_length; cbn [length] in *; lia). apply firstn_skipn.
Qed.

Lemma cut_pieces most tries : forall l b, In b (cut tries most l) -> (length b <= most)%nat.
Proof.
  induction tries as [|tries IH]; intros [|a l] b H; cbn [cut] in H; try easy.
  destruct H as [<-|H]; [rewrite firstn_length; lia|eauto].
Qed.

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

Lemma blocks_whole n incast : 1 <= incast -> concat (blocks_of n incast) = tl (range n).
Proof.
  intros H. apply cut_whole; [lia|]. pose proof (range_length n).
  destruct (range n); simpl in *; lia.
Qed.

Lemma blocks_nodup {A} (ll : list (list A)) : NoDup (concat ll) -> forall l, In l ll -> NoDup l.
Proof.
  induction ll as [|l0 ll IH]; simpl; [easy|]. rewrite nodup_app. intros (H0 & H & _) l [<-|Hl]; auto.
Qed.

Section Transpose.
  Variables n incast : N.
  Hypothesis two_ranks : 2 <= n.
  Hypothesis some_port : 1 <= incast.

  Lemma distances s : In s (concat (blocks_of n incast)) <-> 1 <= s < n.
  Proof. rewrite blocks_whole by auto. apply tl_range. Qed.

  Lemma distances_once : NoDup (concat (blocks_of n incast)).
  Proof. rewrite blocks_whole by auto. apply tl_range_nodup. Qed.

  Lemma transpose_sent : all_sent n (map (flat_map (scatter_by n)) (blocks_of n incast)).
  Proof. apply rotations_sent; auto using distances, distances_once. Qed.

  Lemma transpose_told : all_told n (map (flat_map (gather_by n)) (blocks_of n incast)).
  Proof. apply rotations_told; auto using distances, distances_once. Qed.

  Lemma block_distances b s : In b (blocks_of n incast) -> In s b -> 1 <= s < n.
  Proof. intros Hb Hs. apply distances, in_concat. eauto. Qed.

  (** Rotations in which each rank has one message leave it within its ports. *)
  Lemma rotations_within (f : transfer -> N) (by_ : N -> round) b r :
    In b (blocks_of n incast) -> (forall s, 1 <= s < n -> NoDup (map f (by_ s))) ->
    (occurrences (map f (flat_map by_ b)) r <= N.to_nat incast)%nat.
  Proof.
    intros Hb Once. transitivity (length b); [|now apply (cut_pieces _ _ _ _ Hb)].
    assert (D : forall s, In s b -> 1 <= s < n) by (intros s; now apply block_distances).
    clear Hb. induction b as [|s b IH]; simpl; auto.
    rewrite map_app, count_occ_app. specialize (IH (fun s Hs => D s (or_intror Hs))).
    pose proof (proj1 (NoDup_count_occ N.eq_dec _) (Once s (D s (or_introl eq_refl))) r). lia.
  Qed.

  Lemma rotated_once s : 1 <= s < n -> NoDup (map (fun r => (r + s) mod n) (range n)).
  Proof.
    intros Hs. apply nodup_map_on; [|apply range_nodup]. intros a b Ha Hb E.
    apply in_range in Ha, Hb. rewrite !mod_add in E by lia. by_cases.
  Qed.

  Theorem transpose_right : right (transpose n incast).
  Proof.
    apply nobody_late_right; try lia; simpl; rewrite ?app_nil_r.
    - simpl. lia.
    - assert (Ends : forall s r, 1 <= s < n -> r < n -> (r + s) mod n < n /\ r <> (r + s) mod n).
      { intros s r Hs Hr. split; [apply N.mod_lt; lia|]. rewrite mod_add by lia. by_cases. }
      assert (Fits : forall by_ b, In b (blocks_of n incast) ->
        (forall s, 1 <= s < n -> NoDup (map src (by_ s)) /\ NoDup (map dst (by_ s))) ->
        fits_ports (Incast incast) (flat_map by_ b)).
      { intros by_ b Hb Once. repeat split; try discriminate; intros r;
          apply rotations_within; auto; intros s Hs; now apply Once. }
      intros rd Hrd. apply in_app_iff in Hrd as [Hrd|Hrd];
        apply in_map_iff in Hrd as (b & <- & Hb); split; [|split| |split].
      + intros t Ht. apply in_flat_map in Ht as (s & Hs & Ht).
        apply in_map_iff in Ht as (r & <- & Hr). apply in_range in Hr.
        destruct (Ends s r (block_distances b s Hb Hs) Hr). repeat split; simpl; auto.
      + apply Fits; auto. intros s Hs. unfold scatter_by. rewrite !map_map. simpl.
        rewrite map_id. split; [apply range_nodup|now apply rotated_once].
      + assert (R : Forall (fun t => op t = Reduce) (flat_map (scatter_by n) b)).
        { apply Forall_forall. intros t Ht. apply in_flat_map in Ht as (s & _ & Ht).
          now apply in_map_iff in Ht as (r & <- & _). }
        unfold hazard_free_round. induction R as [|t l Ht R IH]; constructor; auto.
        apply Forall_forall. intros u Hu _. rewrite Forall_forall in R. simpl. auto.
      + intros t Ht. apply in_flat_map in Ht as (s & Hs & Ht).
        apply in_map_iff in Ht as (r & <- & Hr). apply in_range in Hr.
        destruct (Ends s r (block_distances b s Hb Hs) Hr). repeat split; simpl; auto.
      + apply Fits; auto. intros s Hs. unfold gather_by. rewrite !map_map. simpl.
        rewrite map_id. split; [apply range_nodup|now apply rotated_once].
      + apply distinct_targets_hazard_free, gather_targets.
        * apply (blocks_nodup (blocks_of n incast)); auto using distances_once.
        * intros s Hs. now apply (block_distances b).
    - apply transpose_correct; [apply transpose_sent|apply transpose_told].
    - intros A plus x r r' c Hr Hr' Hc. apply (transpose_same_bits n); auto using transpose_told.
  Qed.

  (** One transfer is lost on its way, in whatever round, and nothing else: to an owner, then all
      ranks lack its sender's contribution to its chunk; from an owner, then its receiver keeps its
      own data in its chunk. Everything else is as it should be. *)
  Theorem transpose_one_loss lost rs : loses lost (all_rounds (transpose n incast)) rs ->
    forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < n ->
    run (add M) x rs r c =
    match op lost with
    | Reduce => sum M (fun i => x i c)
                  (if c =? chunk lost then remove N.eq_dec (src lost) (range n) else range n)
    | Copy => if (r =? dst lost) && (c =? chunk lost) then x r c else sum M (fun i => x i c) (range n)
    end.
  Proof.
    unfold transpose. rewrite nobody_late_rounds. simpl. rewrite app_nil_r. intros L.
    assert (Kind : forall (P : transfer -> Prop) l l', Forall P (concat l) -> loses lost l l' -> P lost).
    { intros P l l' All H.
      pose proof (Permutation_Forall (loses_permutation _ _ _ H) All) as F. now inversion F. }
    apply loses_split in L as [(delivered & L & ->)|(delivered & L & ->)].
    - destruct (Kind to_owner _ _ (proj1 transpose_sent) L) as (-> & _).
      now apply one_loss_to_owner with (scatter := map (flat_map (scatter_by n)) (blocks_of n incast));
        [apply transpose_sent|apply transpose_told|].
    - destruct (Kind from_owner _ _ (proj1 transpose_told) L) as (-> & _).
      now apply one_loss_from_owner with (gather := map (flat_map (gather_by n)) (blocks_of n incast));
        [apply transpose_sent|apply transpose_told|].
  Qed.
End Transpose.

(** A stage has ceil((n - 1) / incast) rounds. *)
Lemma cut_length most : (1 <= most)%nat -> forall tries l, (length l <= tries)%nat ->
  (most * length (cut tries most l) < length l + most)%nat /\
  (length l <= most * length (cut tries most l))%nat.
Proof.
  intros Hm. induction tries as [|tries IH]; intros [|a l] H; try (simpl in *; lia).
  cbn [cut]. specialize (IH (skipn most (a :: l))). rewrite skipn_length in IH. cbn [length] in *.
  destruct (le_lt_dec (S (length l)) most) as [L|L].
  - rewrite skipn_all2 in * by (simpl; lia).
    assert (E : cut tries most [] = []) by now destruct tries. rewrite E in *. simpl. lia.
  - rewrite Nat.mul_succ_r. lia.
Qed.

Theorem transpose_rounds n incast : 2 <= n -> 1 <= incast ->
  N.of_nat (length (all_rounds (transpose n incast))) = 2 * Knowledge.ceil_div (n - 1) incast.
Proof.
  intros Hn Hi. unfold transpose. rewrite nobody_late_rounds. cbn [concat].
  rewrite app_nil_r, app_length, !map_length. unfold blocks_of.
  assert (L : length (tl (range n)) = (N.to_nat n - 1)%nat).
  { rewrite <- range_length. destruct (range n); simpl; lia. }
  destruct (cut_length (N.to_nat incast) ltac:(lia) (N.to_nat n) (tl (range n))) as [Hi1 Hi2];
    [rewrite L; lia|]. rewrite L in *.
  set (m := length (cut (N.to_nat n) (N.to_nat incast) (tl (range n)))) in *.
  enough (E : Knowledge.ceil_div (n - 1) incast = N.of_nat m) by (rewrite E; lia).
  unfold Knowledge.ceil_div. symmetry.
  apply (N.div_unique _ _ _ (n - 1 + incast - 1 - incast * N.of_nat m)); nia.
Qed.

(** Nobody has fewer, where [incast] divides n - 1. *)
Theorem transpose_optimal n incast q : 2 <= n -> 1 <= incast -> n - 1 = incast * q ->
  optimal (transpose n incast).
Proof.
  intros Hn Hi E. apply nobody_late_optimal; auto; [now apply transpose_right|].
  rewrite <- nobody_late_rounds with (n := n) (k := n) (p := Incast incast).
  fold (transpose n incast). rewrite transpose_rounds by auto. simpl port_limit.
  assert (C : Knowledge.ceil_div (n - 1) incast <= q) by (apply Knowledge.ceil_div_le; lia).
  unfold volume_bound, Knowledge.ceil_div at 1. fold (Knowledge.ceil_div (n - 1) incast).
  transitivity (2 * q); [lia|]. unfold Knowledge.ceil_div. apply N.div_le_lower_bound; nia.
Qed.
