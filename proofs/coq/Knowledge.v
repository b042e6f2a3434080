(** The knowledge bound (verify/bounds.py): how long a rank's own data needs to reach everybody.

    A rank must send each of its k chunks at least once, [limit] per round, so some chunk first
    leaves it in round ceil(k / limit) after its arrival, or later; who knows of that chunk can grow
    (limit + 1)-fold per round. For one late rank and duplex ports this is the StragglAR bound
    k + ceil(log2 n) - 1.

    Knowing is weaker than holding the right sum, so the bound holds for every right schedule,
    whoever owns what, with any number of late ranks, from any start. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure.
Import ListNotations.
Open Scope N_scope.

(** * Logarithms, rounded up *)

(** The least number from [from] on with property [p], among the next [tries]. *)
Fixpoint least (p : N -> bool) (from : N) (tries : nat) : N :=
  match tries with
  | O => from
  | S tries => if p from then from else least p (from + 1) tries
  end.

(** The least e with [base ^ e >= value], for a base of 2 or more. *)
Definition log_ceil (value base : N) : N :=
  least (fun e => value <=? base ^ e) 0 (N.to_nat (N.log2_up value)).

Lemma least_le p e tries : forall from, from <= e -> p e = true -> least p from tries <= e.
Proof.
  induction tries as [|tries IH]; simpl; auto. intros from Hle He.
  destruct (p from) eqn:E; auto. apply IH; auto.
  destruct (N.eq_dec from e); [congruence|lia].
Qed.

Lemma least_holds p tries : forall from,
  p (from + N.of_nat tries) = true -> p (least p from tries) = true.
Proof.
  induction tries as [|tries IH]; intros from H; simpl.
  - now rewrite N.add_0_r in H.
  - destruct (p from) eqn:E; auto. apply IH. rewrite <- H. f_equal. lia.
Qed.

Lemma log_ceil_le value base e : value <= base ^ e -> log_ceil value base <= e.
Proof. intros H. apply least_le; [lia|]. now apply N.leb_le. Qed.

Lemma log_ceil_reaches value base : 2 <= base -> value <= base ^ log_ceil value base.
Proof.
  intros Hb. apply N.leb_le, (least_holds (fun e => value <=? base ^ e)), N.leb_le.
  rewrite N2Nat.id, N.add_0_l.
  destruct (N.le_gt_cases value 1) as [H|H].
  - assert (1 <= base ^ N.log2_up value); [|lia].
    rewrite <- (N.pow_0_r base) at 1. apply N.pow_le_mono_r; lia.
  - pose proof (N.log2_up_spec value H). transitivity (2 ^ N.log2_up value); [lia|].
    apply N.pow_le_mono_l; lia.
Qed.

Lemma log_ceil_two n : 1 <= n -> log_ceil n 2 = N.log2_up n.
Proof.
  intros H. apply N.le_antisymm.
  - apply log_ceil_le. destruct (N.eq_dec n 1) as [->|]; [now compute|].
    apply N.log2_up_spec. lia.
  - rewrite <- (N.log2_up_pow2 (log_ceil n 2)) by lia.
    apply N.log2_up_le_mono. apply log_ceil_reaches. lia.
Qed.

Definition ceil_div (a b : N) : N := (a + b - 1) / b.

Lemma ceil_div_le a b q : 0 < b -> a <= b * q -> ceil_div a b <= q.
Proof.
  intros Hb H. unfold ceil_div. enough ((a + b - 1) / b < q + 1) by lia.
  apply N.div_lt_upper_bound; lia.
Qed.

Lemma ceil_div_lt a b q : 0 < b -> q < ceil_div a b -> b * q < a.
Proof.
  intros Hb H. destruct (N.le_gt_cases a (b * q)) as [L|L]; auto.
  pose proof (ceil_div_le a b q Hb L). lia.
Qed.

(** * Who knows of a chunk *)

Section Knowers.
  Variables (origin c : N).

  (** Ranks that may hold something of [origin]'s data in chunk [c] after a round, if at most
      [knowers] did before it. *)
  Definition tells (knowers : list N) (t : transfer) : bool :=
    (chunk t =? c) && existsb (N.eqb (src t)) knowers.

  Definition spread (knowers : list N) (rd : round) : list N :=
    map dst (filter (tells knowers) rd) ++ knowers.

  Definition spread_all (knowers : list N) (rs : list round) : list N :=
    fold_left spread rs knowers.

  Lemma tells_src knowers t : tells knowers t = true -> In (src t) knowers.
  Proof.
    unfold tells. rewrite andb_true_iff, existsb_exists. intros [_ (y & H & E)].
    apply N.eqb_eq in E. now subst.
  Qed.

  Lemma tells_intro knowers t : chunk t = c -> In (src t) knowers -> tells knowers t = true.
  Proof.
    intros Hc H. unfold tells. rewrite Hc, N.eqb_refl. simpl. apply existsb_exists.
    exists (src t). split; auto. apply N.eqb_refl.
  Qed.

  Lemma spread_all_app knowers rs rs' :
    spread_all knowers (rs ++ rs') = spread_all (spread_all knowers rs) rs'.
  Proof. apply fold_left_app. Qed.

  (** Who holds a contribution of [origin] is among the knowers. *)
  Lemma holders_know (origins : list source) rs : forall (start : N -> N -> list source) knowers,
    (forall r i, In i (start r c) -> In i origins -> In r knowers) ->
    forall r i, In i (collect start rs r c) -> In i origins -> In r (spread_all knowers rs).
  Proof.
    induction rs as [|rd rs IH]; simpl; intros start knowers H r i Hi Ho; [eauto|].
    refine (IH (run_round (@app source) start rd) (spread knowers rd) _ r i Hi Ho).
    clear r i Hi Ho. unfold run_round.
    assert (G : forall later now, incl later rd ->
      (forall r i, In i (now r c) -> In i origins -> In r (spread knowers rd)) ->
      forall r i, In i (fold_left (deliver (@app source) start) later now r c) ->
        In i origins -> In r (spread knowers rd)).
    { induction later as [|t later IHl]; simpl; intros now Hl Hnow; auto.
      apply IHl; [intros u Hu; apply Hl; now right|].
      intros r i Hi Ho. unfold deliver in Hi.
      destruct (N.eq_dec r (dst t)) as [->|Hr];
        [destruct (N.eq_dec c (chunk t)) as [Hc|Hc]|].
      2,3: rewrite put_other in Hi by auto; eauto.
      rewrite Hc, put_same, <- Hc in Hi.
      assert (T : In i (start (src t) c) -> In (dst t) (spread knowers rd)).
      { intros Hs. apply in_or_app. left. apply in_map, filter_In.
        split; [apply Hl; now left|]. apply tells_intro; eauto. }
      destruct (op t); auto. apply in_app_iff in Hi as [Hi|Hi]; eauto. }
    apply (G rd); [now intros ?|]. intros r i Hi Ho. apply in_or_app. right. eauto.
  Qed.

  (** They grow at most (limit + 1)-fold per round. *)
  Lemma spread_length limit knowers rd : sends_within limit rd ->
    (length (spread knowers rd) <= (1 + N.to_nat limit) * length knowers)%nat.
  Proof.
    intros H. unfold spread. rewrite app_length, map_length.
    enough (length (filter (tells knowers) rd) <= N.to_nat limit * length knowers)%nat by lia.
    rewrite <- (map_length src). apply crowd_length.
    - intros x Hx. apply in_map_iff in Hx as (t & <- & Ht).
      apply filter_In in Ht as [_ Ht]. now apply tells_src.
    - intros x. pose proof (occurrences_filter_map src (tells knowers) rd x).
      specialize (H x). lia.
  Qed.

  Lemma spread_all_length limit rs : forall knowers, Forall (sends_within limit) rs ->
    (length (spread_all knowers rs) <= (1 + N.to_nat limit) ^ length rs * length knowers)%nat.
  Proof.
    induction rs as [|rd rs IH]; intros knowers H; [simpl; lia|]. inversion H; subst.
    change (length (rd :: rs)) with (S (length rs)). rewrite Nat.pow_succ_r'.
    specialize (IH (spread knowers rd)). pose proof (spread_length limit knowers rd).
    etransitivity; [apply IH; auto|].
    rewrite (Nat.mul_comm (1 + _)), <- Nat.mul_assoc. apply Nat.mul_le_mono_l. auto.
  Qed.

  (** Nobody learns of a chunk that [origin] has not sent. *)
  Definition sends_chunk (t : transfer) : Prop := src t = origin /\ chunk t = c.

  Lemma spread_unsent rs : (forall rd t, In rd rs -> In t rd -> ~ sends_chunk t) ->
    spread_all [origin] rs = [origin].
  Proof.
    induction rs as [|rd rs IH]; simpl; intros H; auto.
    replace (spread [origin] rd) with [origin]; [apply IH; intros; eapply H; eauto|].
    unfold spread. destruct (filter (tells [origin]) rd) as [|t ts] eqn:E; auto.
    assert (Ht : In t (filter (tells [origin]) rd)) by (rewrite E; now left).
    apply filter_In in Ht as [Hin Ht]. exfalso. apply (H rd t); auto. split.
    - apply tells_src in Ht as [|[]]; auto.
    - apply andb_true_iff in Ht as [Hc _]. now apply N.eqb_eq.
  Qed.
End Knowers.

(** * The bound *)

Definition sent_by (r : N) (rd : round) : list transfer := filter (fun t => src t =? r) rd.

Lemma sent_by_length limit r rd : sends_within limit rd ->
  (length (sent_by r rd) <= N.to_nat limit)%nat.
Proof.
  intros H. unfold sent_by. rewrite <- (map_length src).
  replace (N.to_nat limit) with (N.to_nat limit * length [r])%nat by (simpl; lia).
  apply crowd_length.
  - intros x Hx. apply in_map_iff in Hx as (t & <- & Ht). apply filter_In in Ht as [_ Ht].
    apply N.eqb_eq in Ht. now left.
  - intros x. pose proof (occurrences_filter_map src (fun t => src t =? r) rd x).
    specialize (H x). lia.
Qed.

Lemma all_sent_length limit r rs : Forall (sends_within limit) rs ->
  (length (flat_map (fun rd => map chunk (sent_by r rd)) rs) <= N.to_nat limit * length rs)%nat.
Proof.
  induction 1 as [|rd rs H _ IH]; simpl; [lia|].
  rewrite app_length, map_length. pose proof (sent_by_length limit r rd H). lia.
Qed.

(** Rounds that the data of one rank needs to reach everybody, counted from its arrival. *)
Definition knowledge_bound (n k limit : N) : N := ceil_div k limit + log_ceil n (limit + 1) - 1.

(** [before]: rounds in which the rank does not send yet; [after]: from its arrival on. *)
Theorem knowledge_bound_holds n k limit origin (before after : list round) :
  2 <= n -> 1 <= k -> 1 <= limit ->
  (forall rd t, In rd before -> In t rd -> src t <> origin) ->
  Forall (sends_within limit) after ->
  (forall r c, r < n -> c < k -> In r (spread_all c [origin] (before ++ after))) ->
  knowledge_bound n k limit <= N.of_nat (length after).
Proof.
  intros Hn Hk Hl Hbefore Hafter Hall.
  set (m := ceil_div k limit - 1).
  assert (Hm : limit * m < k).
  { apply ceil_div_lt; [lia|]. unfold m.
    enough (0 < ceil_div k limit) by lia.
    unfold ceil_div. apply N.div_str_pos. lia. }
  set (early := firstn (N.to_nat m) after). set (rest := skipn (N.to_nat m) after).
  assert (Split : after = early ++ rest) by (symmetry; apply firstn_skipn).
  assert (He : Forall (sends_within limit) early /\ Forall (sends_within limit) rest).
  { apply Forall_app. now rewrite <- Split. }
  destruct He as [Hearly Hrest].
  destruct (left_out (flat_map (fun rd => map chunk (sent_by origin rd)) early) k)
    as (c & Hc & Hunsent).
  { pose proof (all_sent_length limit origin early Hearly).
    assert (length early <= N.to_nat m)%nat by (unfold early; rewrite firstn_length; lia).
    nia. }
  assert (K : spread_all c [origin] (before ++ early) = [origin]).
  { apply spread_unsent. intros rd t Hrd Ht [Hs Hch]. apply in_app_iff in Hrd as [Hrd|Hrd].
    - now apply (Hbefore rd t).
    - apply Hunsent. apply in_flat_map. exists rd. split; auto. rewrite <- Hch.
      apply in_map, filter_In. split; auto. now apply N.eqb_eq. }
  assert (Size : (N.to_nat n <= (1 + N.to_nat limit) ^ length rest)%nat).
  { etransitivity; [apply (covering_length (spread_all c [origin] (before ++ after)))|].
    - intros r Hr. now apply Hall.
    - rewrite Split, app_assoc, spread_all_app. rewrite K.
      pose proof (spread_all_length c limit rest [origin] Hrest) as L. simpl length in L. lia. }
  assert (Log : log_ceil n (limit + 1) <= N.of_nat (length rest)).
  { apply log_ceil_le.
    replace (limit + 1) with (N.of_nat (1 + N.to_nat limit)) by lia.
    rewrite <- Nat2N.inj_pow. lia. }
  assert (Pos : 1 <= log_ceil n (limit + 1)).
  { destruct (N.eq_dec (log_ceil n (limit + 1)) 0) as [Z|]; [|lia].
    pose proof (log_ceil_reaches n (limit + 1)) as R. rewrite Z, N.pow_0_r in R. lia. }
  unfold rest in *. rewrite skipn_length in Log.
  unfold knowledge_bound. fold m. unfold m in *. lia.
Qed.

(** * The StragglAR bound for a completion *)

Lemma in_everybody n i : i < n -> In (Rank i) (everybody n).
Proof. intros H. now apply in_map, in_range. Qed.

(** Every right completion, whoever owns which chunk, has at least k + ceil(log2 n) - 1 rounds. *)
Theorem completion_lower_bound n k late owner rs :
  2 <= n -> 1 <= k -> late < n ->
  Forall (sends_within 1) rs -> completes n k late owner rs ->
  k + N.log2_up n - 1 <= N.of_nat (length rs).
Proof.
  intros Hn Hk Hl Hports Hright. apply completes_iff in Hright.
  replace (k + N.log2_up n - 1) with (knowledge_bound n k 1).
  2: { unfold knowledge_bound, ceil_div. rewrite N.div_1_r, log_ceil_two by lia. lia. }
  apply (knowledge_bound_holds n k 1 late [] rs); auto; try lia.
  intros r c Hr Hc. simpl.
  apply (holders_know c [Rank late] rs (after_reduction n late owner)) with (i := Rank late).
  - intros r' i Hi [<-|[]]. unfold after_reduction in Hi.
    destruct (r' =? late) eqn:E; [apply N.eqb_eq in E; now left|].
    destruct (r' =? owner c); [|destruct Hi as [Hi|[]]; discriminate].
    apply in_map_iff in Hi as (j & Ej & Hj). injection Ej as ->.
    apply filter_In in Hj as [_ Hj]. rewrite N.eqb_refl in Hj. discriminate.
  - apply (Permutation_in (Rank late) (Permutation_sym (Hright r c Hr Hc))).
    now apply in_everybody.
  - now left.
Qed.
