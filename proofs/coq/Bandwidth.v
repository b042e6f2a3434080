(** The bandwidth bound for given arrivals (synth/arrivals/instance.py, proofs/paper/arrivals.md), counted.

    Rank r takes no part before round [arrival r]; ports are duplex. Let L be ranks that arrive in
    round a or later ([late]). Before it nobody else knows of their data; call what all others know
    of a chunk their one common source. From round a on a chunk needs as many transfers with an end in
    L as L has ranks, until some rank first knows of all sources, and then each other rank needs one
    that completes its knowledge. What of this fits into a round is bounded by who is present and,
    when completing is possible, by how many ranks know anything of L's ([useful]). So there is no
    schedule of fewer rounds than it takes until these add up ([filled]). *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Volume Spread
  Check.
Import ListNotations.
Open Scope N_scope.

(** * The bound *)

Section Numbers.
  Variables (n : N) (arrival : N -> N) (late : N -> bool).

  Definition count (p : N -> bool) : N := N.of_nat (length (filter p (range n))).

  Definition present (t : N) : N := count (fun r => arrival r <=? t).
  Definition here (t : N) : N := count (fun r => late r && (arrival r <=? t)).
  Definition coming (t : N) : N := count (fun r => late r && (arrival r =? t)).

  (** The most ranks that know anything of L's in round t, if [informed] did in the round before. *)
  Definition informed_in (t informed : N) : N := N.min (present t) (2 * informed) + coming t.

  (** The most transfers of round t that count; [last]: the last arrival. *)
  Definition useful (last t informed : N) : N :=
    N.min (if t <? last then 2 * here t else informed + here t)
          (if 1 <? present t then present t else 0).

  (** The round in which [missing] transfers that count are done, from round [t] on. *)
  Fixpoint filled (last : N) (tries : nat) (t informed missing : N) : N :=
    match tries with
    | O => t
    | S tries =>
        if missing =? 0 then t else
        let informed := informed_in t informed in
        filled last tries (t + 1) informed (missing - useful last t informed)
    end.
End Numbers.

(** * Its proof *)

Section Counting.
  Variable n : N.

  Lemma count_le p q : (forall r, r < n -> p r = true -> q r = true) -> count n p <= count n q.
  Proof.
    intros H. enough (length (filter p (range n)) <= length (filter q (range n)))%nat
      by (unfold count; lia).
    apply NoDup_incl_length; [apply NoDup_filter, range_nodup|].
    intros r Hr. apply filter_In in Hr as [Hr Pr]. apply filter_In. split; auto.
    apply H; auto. now apply in_range.
  Qed.

  Lemma count_or p q : count n (fun r => p r || q r) <= count n p + count n q.
  Proof.
    unfold count. induction (range n) as [|a l IH]; [simpl; lia|].
    cbn [filter]. destruct (p a), (q a); cbn [orb length]; lia.
  Qed.

  (** Different ranks with property [p]. *)
  Lemma ends_counted (f : transfer -> N) p rd : NoDup (map f rd) -> (forall x, In x rd -> f x < n) ->
    N.of_nat (length (filter (fun x => p (f x)) rd)) <= count n p.
  Proof.
    intros ND Hn. enough (length (filter (fun x => p (f x)) rd) <= length (filter p (range n)))%nat
      by (unfold count; lia).
    rewrite <- (map_length f). apply NoDup_incl_length; [now apply nodup_filter_map|].
    intros r Hr. apply in_map_iff in Hr as (x & <- & Hx). apply filter_In in Hx as [Hx Px].
    apply filter_In. split; auto. now apply in_range, Hn.
  Qed.

  Lemma all_counted p l : NoDup l -> (forall r, In r l -> r < n /\ p r = true) ->
    N.of_nat (length l) <= count n p.
  Proof.
    intros ND H. enough (length l <= length (filter p (range n)))%nat by (unfold count; lia).
    apply NoDup_incl_length; auto. intros r Hr. destruct (H r Hr).
    apply filter_In. split; auto. now apply in_range.
  Qed.
End Counting.

Lemma filter_implies {A} (p q : A -> bool) l : (forall x, In x l -> p x = true -> q x = true) ->
  (length (filter p l) <= length (filter q l))%nat.
Proof.
  induction l as [|a l IH]; simpl; intros H; auto.
  specialize (IH (fun x Hx => H x (or_intror Hx))). specialize (H a (or_introl eq_refl)).
  destruct (p a); [rewrite H by auto; simpl; lia|]. destruct (q a); simpl; lia.
Qed.

Lemma filter_or {A} (p q : A -> bool) l :
  (length (filter (fun x => p x || q x) l) <= length (filter p l) + length (filter q l))%nat.
Proof. induction l as [|a l IH]; simpl; auto. destruct (p a), (q a); simpl; lia. Qed.

Lemma filter_nested {A} (p q : A -> bool) l : filter p (filter q l) = filter (fun x => q x && p x) l.
Proof. induction l as [|a l IH]; simpl; auto. destruct (q a); simpl; rewrite <- IH; auto. Qed.

Section Proof.
  Variables (n : N) (arrival : N -> N) (late : N -> bool) (a last other newest : N).
  Hypothesis other_not_late : other < n /\ late other = false.
  Hypothesis newest_late : newest < n /\ late newest = true /\ arrival newest = last.
  Hypothesis late_arrives : forall r, late r = true -> a <= arrival r.

  (** Rounds from round [t] on, in which nobody takes part too early. *)
  Definition punctual (t : N) (rs : list round) : Prop :=
    forall i r, t + N.of_nat i < arrival r -> silent r (nth i rs []).

  Definition one_port_round (rd : round) : Prop :=
    (forall x, In x rd -> src x < n /\ dst x < n /\ src x <> dst x) /\
    NoDup (map src rd) /\ NoDup (map dst rd).

  Lemma punctual_tail t rd rs : punctual t (rd :: rs) -> punctual (t + 1) rs.
  Proof. intros H i r Hr. apply (H (S i)). lia. Qed.

  Lemma punctual_head t rd rs x : punctual t (rd :: rs) -> In x rd ->
    arrival (src x) <= t /\ arrival (dst x) <= t.
  Proof.
    intros H Hx. split; apply N.le_ngt; intros L.
    - destruct (H 0%nat (src x)) with (t := x); auto. simpl. lia.
    - destruct (H 0%nat (dst x)) with (t := x); auto. simpl. lia.
  Qed.

  (** ** The transfers that count *)

  Definition touches (x : transfer) : bool := late (src x) || late (dst x).

  Definition counts (t : N) (informed : N -> bool) (x : transfer) : bool :=
    if t <? last then touches x else informed (src x) || late (dst x).

  (** Who knows anything of L's: those of L once they are there, and whom they tell. *)
  Definition arriving (t : N) (informed : N -> bool) (r : N) : bool :=
    informed r || (late r && (arrival r =? t)).

  Definition telling (rd : round) (informed : N -> bool) (r : N) : bool :=
    informed r || existsb (fun x => (dst x =? r) && informed (src x)) rd.

  Fixpoint counted (rs : list round) (t : N) (informed : N -> bool) : list transfer :=
    match rs with
    | [] => []
    | rd :: rs =>
        let informed := arriving t informed in
        filter (counts t informed) rd ++ counted rs (t + 1) (telling rd informed)
    end.

  Fixpoint informed_after (rs : list round) (t : N) (informed : N -> bool) : N -> bool :=
    match rs with
    | [] => informed
    | rd :: rs => informed_after rs (t + 1) (telling rd (arriving t informed))
    end.

  Lemma counted_app rs rs' : forall t informed, counted (rs ++ rs') t informed
    = counted rs t informed
      ++ counted rs' (t + N.of_nat (length rs)) (informed_after rs t informed).
  Proof.
    induction rs as [|rd rs IH]; intros t informed; simpl.
    - now rewrite N.add_0_r.
    - rewrite IH, <- app_assoc. do 3 f_equal. lia.
  Qed.

  (** ** How many fit *)

  Fixpoint carried (m : nat) (t informed : N) : N :=
    match m with
    | O => 0
    | S m => let informed := informed_in n arrival late t informed in
             useful n arrival late last t informed + carried m (t + 1) informed
    end.

  Lemma filled_le tries : forall m t informed missing, missing <= carried m t informed ->
    filled n arrival late last tries t informed missing <= t + N.of_nat m.
  Proof.
    induction tries as [|tries IH]; simpl; intros m t informed missing H; [lia|].
    destruct (N.eqb_spec missing 0); [lia|]. destruct m as [|m]; simpl in H; [lia|].
    etransitivity; [apply (IH m)|]; lia.
  Qed.

  Lemma telling_count rd informed : one_port_round rd ->
    count n (telling rd informed) <= 2 * count n informed.
  Proof.
    intros (Ends & S & _). unfold telling.
    pose proof (count_or n informed
      (fun r => existsb (fun x => (dst x =? r) && informed (src x)) rd)) as O.
    enough (count n (fun r => existsb (fun x => (dst x =? r) && informed (src x)) rd)
            <= count n informed) by lia.
    etransitivity; [|apply (ends_counted n src informed rd S); intros x Hx; now apply Ends].
    unfold count. enough (length (filter
      (fun r => existsb (fun x => (dst x =? r)%N && informed (src x)) rd) (range n))
      <= length (map dst (filter (fun x => informed (src x)) rd)))%nat by (rewrite map_length in *; lia).
    apply NoDup_incl_length; [apply NoDup_filter, range_nodup|].
    intros r Hr. apply filter_In in Hr as [_ Hr]. apply existsb_exists in Hr as (x & Hx & E).
    apply andb_true_iff in E as [E I]. apply N.eqb_eq in E. rewrite <- E.
    now apply in_map, filter_In.
  Qed.

  Lemma round_useful t rd rs informed bound : punctual t (rd :: rs) -> one_port_round rd ->
    count n informed <= bound ->
    N.of_nat (length (filter (counts t informed) rd)) <= useful n arrival late last t bound.
  Proof.
    intros Time (Ends & S & D) Le.
    assert (There : forall x, In x rd -> arrival (src x) <= t /\ arrival (dst x) <= t)
      by (intros x; now apply (punctual_head t rd rs)).
    assert (Sends : forall p, N.of_nat (length (filter (fun x => p (src x)) rd)) <= count n p)
      by (intros p; apply ends_counted; auto; intros x Hx; now apply Ends).
    assert (Receives : N.of_nat (length (filter (fun x => late (dst x)) rd)) <= here n arrival late t).
    { etransitivity; [|apply (ends_counted n dst (fun r => late r && (arrival r <=? t)) rd D)].
      - enough (length (filter (fun x => late (dst x)) rd)
                <= length (filter (fun x => late (dst x) && (arrival (dst x) <=? t)%N) rd))%nat by lia.
        apply filter_implies. intros x Hx ->. apply N.leb_le, There, Hx.
      - intros x Hx. now apply Ends. }
    unfold useful. apply N.min_glb.
    - unfold counts, touches. destruct (t <? last).
      + pose proof (filter_or (fun x => late (src x)) (fun x => late (dst x)) rd) as Or.
        assert (N.of_nat (length (filter (fun x => late (src x)) rd)) <= here n arrival late t); [|lia].
        etransitivity; [|apply (Sends (fun r => late r && (arrival r <=? t)))].
        enough (length (filter (fun x => late (src x)) rd)
                <= length (filter (fun x => late (src x) && (arrival (src x) <=? t)%N) rd))%nat by lia.
        apply filter_implies. intros x Hx ->. apply N.leb_le, There, Hx.
      + pose proof (filter_or (fun x => informed (src x)) (fun x => late (dst x)) rd).
        specialize (Sends informed). lia.
    - assert (All : N.of_nat (length rd) <= present n arrival t).
      { rewrite <- (map_length src). apply all_counted; auto. intros r Hr.
        apply in_map_iff in Hr as (x & <- & Hx). split; [now apply Ends|].
        apply N.leb_le, There, Hx. }
      pose proof (filter_length_le (counts t informed) rd).
      destruct (N.ltb_spec 1 (present n arrival t)); [lia|].
      destruct rd as [|x rd]; [simpl; lia|]. exfalso.
      destruct (Ends x (or_introl eq_refl)) as (Hs & Hd & Ne).
      destruct (There x (or_introl eq_refl)) as [Ts Td].
      assert (Two : N.of_nat (length [src x; dst x]) <= present n arrival t); [|simpl in Two; lia].
      apply all_counted.
      + constructor; [|constructor; [easy|constructor]]. intros [|[]]; congruence.
      + intros r [<-|[<-|[]]]; (split; [auto|now apply N.leb_le]).
  Qed.

  Lemma counted_length rs : forall t informed before, punctual t rs -> Forall one_port_round rs ->
    (forall r, informed r = true -> arrival r <= t) ->
    count n informed <= 2 * before ->
    N.of_nat (length (counted rs t informed)) <= carried (length rs) t before.
  Proof.
    induction rs as [|rd rs IH]; simpl; intros t informed before Time Ports There Le; [lia|].
    inversion Ports as [|? ? Port Ports']; subst. rewrite app_length.
    assert (Now : count n (arriving t informed) <= informed_in n arrival late t before).
    { unfold arriving, informed_in.
      etransitivity; [apply (count_or n informed (fun r => late r && (arrival r =? t)))|].
      apply N.add_le_mono_r, N.min_glb; auto.
      apply count_le. intros r _ Hr. now apply N.leb_le, There. }
    pose proof (round_useful t rd rs _ _ Time Port Now).
    specialize (IH (t + 1) (telling rd (arriving t informed)) (informed_in n arrival late t before)).
    pose proof (telling_count rd (arriving t informed) Port).
    enough (N.of_nat (length (counted rs (t + 1) (telling rd (arriving t informed))))
            <= carried (length rs) (t + 1) (informed_in n arrival late t before)) by lia.
    apply IH; auto; [now apply punctual_tail in Time| |lia].
    intros r. unfold telling, arriving. rewrite !orb_true_iff, andb_true_iff, N.eqb_eq, existsb_exists.
    intros [[Hr|[_ Hr]]|(x & Hx & E)]; [specialize (There r Hr); lia|lia|].
    apply andb_true_iff in E as [E _]. apply N.eqb_eq in E. subst r.
    destruct (punctual_head t rd rs x Time Hx). lia.
  Qed.

  (** ** What a chunk needs *)

  Section Chunk.
    Variable c : N.

    (** The source of a rank's data, and what every rank knows of. *)
    Definition node (r : N) : N := if late r then r else other.
    Definition sources : list N := other :: filter late (range n).

    Definition knowledge := N -> N -> bool.

    Definition at_first : knowledge := fun r s => node r =? s.

    Definition learn (known : knowledge) (rd : round) : knowledge := fun r s =>
      known r s || existsb (fun x => (chunk x =? c) && (dst x =? r) && known (src x) s) rd.

    Definition learn_all (rs : list round) (known : knowledge) : knowledge := fold_left learn rs known.

    Definition knows_all (known : knowledge) (r : N) : bool := forallb (known r) sources.

    Lemma learn_iff known rd r s : learn known rd r s = true <-> known r s = true \/
      exists x, In x rd /\ chunk x = c /\ dst x = r /\ known (src x) s = true.
    Proof.
      unfold learn. rewrite orb_true_iff, existsb_exists. split.
      - intros [H|(x & Hx & E)]; auto. rewrite !andb_true_iff, !N.eqb_eq in E. right. exists x. tauto.
      - intros [H|(x & Hx & <- & <- & E)]; auto. right. exists x. split; auto. now rewrite !N.eqb_refl.
    Qed.

    Lemma learn_all_more rs : forall known r s, known r s = true -> learn_all rs known r s = true.
    Proof.
      induction rs as [|rd rs IH]; simpl; auto. intros known r s H.
      apply IH, learn_iff. now left.
    Qed.

    Lemma sources_iff s : In s sources <-> s = other \/ s < n /\ late s = true.
    Proof.
      unfold sources. simpl. rewrite filter_In, in_range. intuition.
    Qed.

    Lemma node_source r : r < n -> In (node r) sources.
    Proof.
      intros Hr. apply sources_iff. unfold node. destruct (late r) eqn:E; [right|left]; auto.
    Qed.

    Lemma node_node r : node (node r) = node r.
    Proof.
      unfold node. destruct (late r) eqn:E; [now rewrite E|].
      destruct other_not_late as [_ ->]. auto.
    Qed.

    Lemma knows_all_iff known r :
      knows_all known r = true <-> forall s, In s sources -> known r s = true.
    Proof. unfold knows_all. apply forallb_forall. Qed.

    (** What a rank holds, it knows of. *)
    Lemma held_known (s : state (list source)) known rd :
      (forall r i, In (Rank i) (s r c) -> known r (node i) = true) ->
      forall r i, In (Rank i) (run_round (@app source) s rd r c) -> learn known rd r (node i) = true.
    Proof.
      intros H. unfold run_round.
      assert (G : forall later now, incl later rd ->
        (forall r i, In (Rank i) (now r c) -> learn known rd r (node i) = true) ->
        forall r i, In (Rank i) (fold_left (deliver (@app source) s) later now r c) ->
          learn known rd r (node i) = true).
      { induction later as [|x later IH]; simpl; intros now Hl Hnow; auto.
        apply IH; [intros u Hu; apply Hl; now right|].
        intros r i Hi. unfold deliver in Hi.
        destruct (N.eq_dec r (dst x)) as [->|Hr];
          [destruct (N.eq_dec c (chunk x)) as [Hc|Hc]|].
        2,3: rewrite put_other in Hi by auto; auto.
        rewrite Hc, put_same, <- Hc in Hi.
        assert (T : In (Rank i) (s (src x) c) -> learn known rd (dst x) (node i) = true).
        { intros Hs. apply learn_iff. right. exists x. repeat split; auto.
          apply Hl. now left. }
        destruct (op x); auto. apply in_app_iff in Hi as [Hi|Hi]; auto. }
      apply (G rd); [now intros ?|]. intros r i Hi. apply learn_iff. left. auto.
    Qed.

    Lemma all_held_known rs : forall (s : state (list source)) known,
      (forall r i, In (Rank i) (s r c) -> known r (node i) = true) ->
      forall r i, In (Rank i) (run (@app source) s rs r c) -> learn_all rs known r (node i) = true.
    Proof.
      induction rs as [|rd rs IH]; simpl; intros s known H; auto.
      apply IH. now apply held_known.
    Qed.

    (** As long as L is silent, nothing leaves a source. *)
    Lemma nothing_leaves rs : (forall rd r, In rd rs -> late r = true -> silent r rd) ->
      forall r i, In (Rank i) (run (@app source) own_data rs r c) -> at_first r (node i) = true.
    Proof.
      intros Quiet.
      assert (G : forall (s : state (list source)),
        (forall r i, In (Rank i) (s r c) -> at_first r (node i) = true) ->
        forall r i, In (Rank i) (run (@app source) s rs r c) -> at_first r (node i) = true).
      { induction rs as [|rd rs IH]; simpl; auto. intros s H.
        refine (IH (fun rd' q Hrd => Quiet rd' q (or_intror Hrd)) (run_round (@app source) s rd) _).
        intros r i Hi.
        apply (held_known s at_first rd H) in Hi. apply learn_iff in Hi as [|(x & Hx & _ & Hd & Hi)]; auto. subst r.
        assert (Apart : node (dst x) = node (src x)).
        { unfold node.
          destruct (late (dst x)) eqn:D; [now destruct (Quiet rd (dst x) (or_introl eq_refl) D x Hx)|].
          destruct (late (src x)) eqn:S; [now destruct (Quiet rd (src x) (or_introl eq_refl) S x Hx)|].
          auto. }
        unfold at_first in *. now rewrite Apart. }
      apply G. intros r i [[= ->]|[]]. apply N.eqb_refl.
    Qed.

    Lemma nobody_at_first r : knows_all at_first r = false.
    Proof.
      apply not_true_iff_false. rewrite knows_all_iff. intros H.
      destruct newest_late as (Hn & Hl & _), other_not_late as [_ Ho].
      pose proof (H other) as A. pose proof (H newest) as B. unfold at_first in A, B.
      rewrite N.eqb_eq in A, B. rewrite A in B by (now left).
      rewrite B in Ho; [congruence|]. apply sources_iff. auto.
    Qed.

    (** The first round after which somebody knows all. *)
    Lemma first_to_know rs : (exists r, r < n /\ knows_all (learn_all rs at_first) r = true) ->
      exists early rd later q, rs = early ++ rd :: later /\ q < n /\
        (forall r', r' < n -> knows_all (learn_all early at_first) r' = false) /\
        knows_all (learn_all (early ++ [rd]) at_first) q = true.
    Proof.
      induction rs as [|rd rs IH] using rev_ind; intros (r & Hr & H).
      - simpl in H. rewrite nobody_at_first in H. discriminate.
      - destruct (existsb (knows_all (learn_all rs at_first)) (range n)) eqn:E.
        + apply existsb_exists in E as (r' & Hr' & E). apply in_range in Hr'.
          destruct IH as (early & rd' & later & r'' & -> & Rest); [eauto|].
          exists early, rd', (later ++ [rd]), r''. now rewrite <- app_assoc.
        + exists rs, rd, [], r. repeat split; auto. intros r' Hr'.
          apply not_true_iff_false. intros K. rewrite <- not_true_iff_false in E. apply E.
          apply existsb_exists. exists r'. split; auto. now apply in_range.
    Qed.

    (** Nobody does before the last arrival. *)
    Lemma newest_secret t rs : punctual t rs -> t + N.of_nat (length rs) <= last ->
      forall known : knowledge, (forall r s, (r = newest \/ s = newest) -> known r s = at_first r s) ->
      forall r s, (r = newest \/ s = newest) -> learn_all rs known r s = at_first r s.
    Proof.
      revert t. induction rs as [|rd rs IH]; simpl; auto. intros t Time L known H.
      apply (IH (t + 1)); [now apply punctual_tail in Time|lia|]. intros r s Hrs.
      assert (Quiet : forall x, In x rd -> src x <> newest /\ dst x <> newest).
      { destruct newest_late as (_ & _ & E). apply (Time 0%nat newest). simpl. lia. }
      rewrite <- (H r s Hrs). unfold learn. rewrite orb_comm.
      replace (existsb _ rd) with false; auto. symmetry. apply not_true_iff_false.
      rewrite existsb_exists. intros (x & Hx & E). rewrite !andb_true_iff, !N.eqb_eq in E.
      destruct E as [[_ E] K]. destruct (Quiet x Hx) as [Qs Qd].
      destruct Hrs as [->| ->]; [now apply Qd|]. rewrite H in K by auto.
      unfold at_first in K. apply N.eqb_eq in K. unfold node in K.
      destruct newest_late as (_ & Nl & _), other_not_late as [_ Ol].
      destruct (late (src x)); congruence.
    Qed.

    Lemma not_before_last t rs r : punctual t rs -> t + N.of_nat (length rs) <= last ->
      knows_all (learn_all rs at_first) r = false.
    Proof.
      intros Time L. apply not_true_iff_false. rewrite knows_all_iff. intros H.
      pose proof (newest_secret t rs Time L at_first (fun r s _ => eq_refl)) as Secret.
      destruct newest_late as (Hn & Nl & _), other_not_late as [_ Ol].
      assert (A : node r = newest).
      { apply N.eqb_eq. change (at_first r newest = true). rewrite <- (Secret r newest) by auto. apply H, sources_iff. auto. }
      assert (r = newest) by (unfold node in A; destruct (late r); congruence). subst r.
      assert (B : node newest = other).
      { apply N.eqb_eq. change (at_first newest other = true). rewrite <- (Secret newest other) by auto. apply H. now left. }
      unfold node in B. rewrite Nl in B. congruence.
    Qed.

    (** *** Joining *)

    Definition joining (x : transfer) : bool := moves_chunk c x && touches x.

    Definition joined (ts : list transfer) (label : N -> N) : N -> N :=
      fold_left (label_of_joined c) ts label.

    Lemma joined_together ts x label : In x ts -> chunk x = c ->
      joined ts label (src x) = joined ts label (dst x).
    Proof.
      intros Hx Hc. apply in_split in Hx as (l & l' & ->). unfold joined.
      rewrite fold_left_app. simpl. apply joined_all_coarser. symmetry. now apply joins.
    Qed.

    (** Who knows of a source has its label. *)
    Lemma known_labelled rs : forall known label,
      (forall r s, known r s = true -> label s = label r) ->
      forall r s, learn_all rs known r s = true -> joined (concat rs) label s = joined (concat rs) label r.
    Proof.
      induction rs as [|rd rs IH]; simpl; intros known label H; auto. unfold joined in *.
      rewrite fold_left_app. apply IH. intros r s K.
      apply learn_iff in K as [K|(x & Hx & Hc & Hd & K)]; [|subst r].
      - apply joined_all_coarser. auto.
      - pose proof (joined_together rd x label Hx Hc) as T. unfold joined in T. rewrite <- T.
        apply joined_all_coarser. auto.
    Qed.

    Lemma joining_classes ts : forall label,
      (forall r r', late r = false -> late r' = false -> label r = label r') ->
      (length (classes n label) <= length (filter joining ts) + length (classes n (joined ts label)))%nat.
    Proof.
      unfold joined. induction ts as [|x ts IH]; simpl; intros label One; auto.
      assert (One' : forall r r', late r = false -> late r' = false ->
                label_of_joined c label x r = label_of_joined c label x r').
      { intros r r' Hr Hr'. apply joined_coarser. auto. }
      specialize (IH _ One'). pose proof (joined_classes n c label x) as J. unfold joining.
      destruct (moves_chunk c x) eqn:M; simpl in *; [|unfold joining in IH; lia].
      destruct (touches x) eqn:T; simpl; [unfold joining in IH; lia|].
      assert (E : classes n (label_of_joined c label x) = classes n label).
      { unfold classes. f_equal. apply map_ext. intros r. unfold label_of_joined. rewrite M.
        apply orb_false_iff in T as [S D]. rewrite (One (src x) (dst x) S D).
        destruct (N.eqb_spec (label r) (label (dst x))); auto. }
      rewrite <- E. unfold joining in IH. lia.
    Qed.

    Lemma first_classes : (1 + length (filter late (range n)) <= length (classes n node))%nat.
    Proof.
      change (1 + length (filter late (range n)))%nat with (length sources).
      destruct other_not_late as [Hn Ho]. apply NoDup_incl_length.
      - constructor; [|apply NoDup_filter, range_nodup]. rewrite filter_In. intros [_ H]. congruence.
      - intros s Hs. apply nodup_In, in_map_iff. apply sources_iff in Hs as [->|[Hs Ls]].
        + exists other. split; [unfold node; now rewrite Ho|now apply in_range].
        + exists s. split; [unfold node; now rewrite Ls|now apply in_range].
    Qed.

    (** Until a rank knows all sources, L has been touched as often as it has ranks. *)
    Lemma joins_needed rs r : knows_all (learn_all rs at_first) r = true ->
      (length (filter late (range n)) <= length (filter joining (concat rs)))%nat.
    Proof.
      intros K. rewrite knows_all_iff in K.
      pose proof (joining_classes (concat rs) node) as J. pose proof first_classes.
      assert (One : (length (classes n (joined (concat rs) node)) <= 1)%nat).
      { change 1%nat with (length [joined (concat rs) node r]).
        apply NoDup_incl_length; [apply NoDup_nodup|]. intros y Hy.
        apply nodup_In, in_map_iff in Hy as (i & <- & Hi). apply in_range in Hi. left.
        rewrite <- (known_labelled rs at_first node) with (s := node i).
        - apply joined_all_coarser. apply node_node.
        - intros q s E. unfold at_first in E. apply N.eqb_eq in E. subst s. apply node_node.
        - now apply K, node_source. }
      assert (length (classes n node) <= length (filter joining (concat rs))
                + length (classes n (joined (concat rs) node)))%nat; [|lia].
      apply J. intros q q' Hq Hq'. unfold node. now rewrite Hq, Hq'.
    Qed.

    (** *** What is known of L's, and who is informed *)

    Definition invariant (t : N) (known : knowledge) (informed : N -> bool) : Prop :=
      (forall r s, known r s = true -> late s = true ->
         informed r = true \/ (late r = true /\ t <= arrival r)) /\
      (forall r, late r = true -> arrival r < t -> informed r = true) /\
      (forall r, known r (node r) = true).

    Lemma invariant_start : invariant a at_first (fun _ => false).
    Proof.
      repeat split.
      - intros r s E L. right. unfold at_first in E. apply N.eqb_eq in E. unfold node in E.
        destruct (late r) eqn:Lr; [now split; [|apply late_arrives]|].
        destruct other_not_late as [_ Ol]. congruence.
      - intros r L. pose proof (late_arrives r L). lia.
      - intros r. apply N.eqb_refl.
    Qed.

    Lemma informed_now t rd rs known informed x s : punctual t (rd :: rs) -> invariant t known informed ->
      In x rd -> known (src x) s = true -> late s = true -> arriving t informed (src x) = true.
    Proof.
      intros Time (I & _) Hx K L. unfold arriving. apply orb_true_iff.
      destruct (I _ _ K L) as [|[Ls Le]]; auto. right. rewrite Ls.
      destruct (punctual_head t rd rs x Time Hx). apply N.eqb_eq. lia.
    Qed.

    Lemma invariant_step t rd rs known informed : punctual t (rd :: rs) -> invariant t known informed ->
      invariant (t + 1) (learn known rd) (telling rd (arriving t informed)).
    Proof.
      intros Time V. pose proof V as (I & Old & Own). repeat split.
      - intros r s K L. apply learn_iff in K as [K|(x & Hx & Hc & Hd & K)]; [|subst r].
        + unfold telling, arriving. destruct (I _ _ K L) as [->|[Lr Le]]; auto.
          destruct (N.eqb_spec (arrival r) t) as [->|]; [left|right; split; auto; lia].
          rewrite Lr. now rewrite orb_true_r.
        + left. unfold telling. apply orb_true_iff. right. apply existsb_exists. exists x.
          split; auto. rewrite N.eqb_refl. simpl. now apply (informed_now t rd rs known informed x s).
      - intros r L Le. unfold telling, arriving.
        destruct (N.eqb_spec (arrival r) t); [now rewrite L, orb_true_r|].
        rewrite (Old r L) by lia. auto.
      - intros r. apply learn_iff. auto.
    Qed.

    Lemma invariant_after rs : forall t known informed, punctual t rs -> invariant t known informed ->
      invariant (t + N.of_nat (length rs)) (learn_all rs known) (informed_after rs t informed).
    Proof.
      induction rs as [|rd rs IH]; simpl; intros t known informed Time V.
      - now rewrite N.add_0_r.
      - replace (t + N.pos (Pos.of_succ_nat (length rs))) with (t + 1 + N.of_nat (length rs)) by lia.
        apply IH; [now apply punctual_tail in Time|]. now apply (invariant_step t rd rs).
    Qed.

    Lemma touching_counts t rd rs known informed x : punctual t (rd :: rs) ->
      invariant t known informed -> In x rd -> touches x = true ->
      counts t (arriving t informed) x = true.
    Proof.
      intros Time (_ & Old & _) Hx T. unfold counts. destruct (N.ltb_spec t last); auto.
      apply orb_true_iff in T as [T|T]; apply orb_true_iff; auto. left. unfold arriving.
      destruct (N.eqb_spec (arrival (src x)) t); [now rewrite T, orb_true_r|].
      destruct (punctual_head t rd rs x Time Hx). rewrite Old; auto. lia.
    Qed.

    Lemma joins_counted rs : forall t known informed, punctual t rs -> invariant t known informed ->
      (length (filter joining (concat rs)) <= length (filter (moves_chunk c) (counted rs t informed)))%nat.
    Proof.
      induction rs as [|rd rs IH]; simpl; intros t known informed Time V; auto.
      rewrite !filter_app, !app_length.
      specialize (IH (t + 1) (learn known rd) (telling rd (arriving t informed))).
      assert (length (filter joining rd)
              <= length (filter (moves_chunk c) (filter (counts t (arriving t informed)) rd)))%nat.
      { rewrite filter_nested. apply filter_implies. intros x Hx J. unfold joining in J.
        apply andb_true_iff in J as [-> T]. rewrite andb_true_r.
        now apply (touching_counts t rd rs known). }
      enough (length (filter joining (concat rs)) <= length (filter (moves_chunk c)
                (counted rs (t + 1) (telling rd (arriving t informed)))))%nat by lia.
      apply IH; [now apply punctual_tail in Time|now apply (invariant_step t rd rs)].
    Qed.

    (** *** Completing *)

    Lemma completed rs : forall t known informed r, punctual t rs -> invariant t known informed ->
      last <= t -> knows_all known r = false -> knows_all (learn_all rs known) r = true ->
      exists x, In x (counted rs t informed) /\ chunk x = c /\ dst x = r.
    Proof.
      induction rs as [|rd rs IH]; simpl; intros t known informed r Time V Late No Yes; [congruence|].
      destruct (knows_all (learn known rd) r) eqn:Here.
      - clear IH Yes. rewrite knows_all_iff in Here.
        assert (S : exists s, In s sources /\ known r s = false).
        { unfold knows_all in No. apply forallb_exhibits in No. exact No. }
        destruct S as (s & Hs & Ks). specialize (Here s Hs).
        apply learn_iff in Here as [|(x & Hx & Hc & Hd & K)]; [congruence|]. subst r.
        exists x. repeat split; auto. apply in_or_app. left. apply filter_In. split; auto.
        unfold counts. destruct (N.ltb_spec t last); [lia|]. apply orb_true_iff.
        destruct (late (dst x)) eqn:D; auto. left.
        apply (informed_now t rd rs known informed x s); auto.
        apply sources_iff in Hs as [->|[_ Hs]]; auto. exfalso.
        destruct V as (_ & _ & Own). specialize (Own (dst x)). unfold node in Own.
        rewrite D in Own. congruence.
      - destruct (IH (t + 1) (learn known rd) (telling rd (arriving t informed)) r) as (x & Hx & ?);
          auto; [now apply punctual_tail in Time|now apply (invariant_step t rd rs)|lia|].
        exists x. split; auto. apply in_or_app. now right.
    Qed.

    Theorem chunk_counted rs : punctual a rs ->
      (forall r, r < n -> knows_all (learn_all rs at_first) r = true) ->
      (N.to_nat n + length (filter late (range n)) - 1
       <= length (filter (moves_chunk c) (counted rs a (fun _ => false))))%nat.
    Proof.
      intros Time All. assert (Some : exists r, r < n /\ knows_all (learn_all rs at_first) r = true).
      { exists other. destruct other_not_late. auto. }
      apply first_to_know in Some as (early & rd & later & r & -> & Hr & Before & First).
      set (t := a + N.of_nat (length early)).
      assert (TimeE : punctual a early).
      { intros i q Hq. specialize (Time i q Hq). destruct (le_lt_dec (length early) i).
        - rewrite nth_overflow by auto. intros x [].
        - now rewrite app_nth1 in Time. }
      assert (TimeL : punctual t (rd :: later)).
      { intros i q Hq. replace (nth i (rd :: later) []) with
          (nth (length early + i) (early ++ rd :: later) []) by (rewrite app_nth2_plus; auto).
        apply Time. unfold t in Hq. lia. }
      pose proof (invariant_after early a at_first (fun _ => false) TimeE invariant_start) as V.
      fold t in V. set (known := learn_all early at_first) in *.
      set (informed := informed_after early a (fun _ => false)) in *.
      assert (Late : last <= t).
      { apply N.nlt_ge. intros L. rewrite (not_before_last a (early ++ [rd]) r) in First; [discriminate| |].
        - intros i q Hq. specialize (Time i q Hq). destruct (le_lt_dec (length early) i).
          + rewrite app_nth2 in * by auto. destruct (i - length early)%nat as [|j]; [exact Time|].
            simpl. destruct j; intros x [].
          + rewrite app_nth1 in * by auto. exact Time.
        - rewrite app_length. simpl. unfold t in L. lia. }
      set (incoming := filter (fun x => dst x =? r) rd).
      assert (J : (length (filter late (range n))
                   <= length (filter joining (concat early)) + length (filter joining incoming))%nat).
      { rewrite <- app_length, <- filter_app.
        replace (concat early ++ incoming) with (concat (early ++ [incoming]))
          by (rewrite concat_app; simpl; now rewrite app_nil_r).
        apply (joins_needed _ r). rewrite knows_all_iff in *. intros s Hs. specialize (First s Hs).
        unfold learn_all in *. rewrite fold_left_app in *. simpl in *.
        apply learn_iff in First as [K|(x & Hx & Hc & Hd & K)]; apply learn_iff; auto.
        right. exists x. repeat split; auto. apply filter_In. split; auto. now apply N.eqb_eq. }
      rewrite counted_app, filter_app, app_length. fold t informed.
      pose proof (joins_counted early a at_first (fun _ => false) TimeE invariant_start) as JE.
      set (rest := counted (rd :: later) t informed).
      rewrite (filter_split (fun x => dst x =? r) (moves_chunk c) rest).
      assert (JI : (length (filter joining incoming)
                    <= length (filter (moves_chunk c) (filter (fun x => (dst x =? r)%N) rest)))%nat).
      { unfold rest. simpl. rewrite filter_app, filter_app, app_length.
        enough (length (filter joining incoming) <= length (filter (moves_chunk c)
          (filter (fun x => (dst x =? r)%N) (filter (counts t (arriving t informed)) rd))))%nat by lia.
        unfold incoming. rewrite !filter_nested. apply filter_implies. intros x Hx E.
        unfold joining in E. rewrite !andb_true_iff in *. destruct E as (-> & -> & T).
        repeat split; auto. now apply (touching_counts t rd later known). }
      assert (CO : (N.to_nat n
                    <= 1 + length (filter (moves_chunk c) (filter (fun x => negb (dst x =? r)%N) rest)))%nat).
      { change (1 + length ?l)%nat with (S (length l)). rewrite <- (map_length dst).
        apply (covering_length (r :: map dst (filter (moves_chunk c)
                 (filter (fun x => negb (dst x =? r)) rest)))).
        intros q Hq. destruct (N.eq_dec r q) as [->|Ne]; [now left|right].
        destruct (completed (rd :: later) t known informed q TimeL V Late (Before q Hq))
          as (x & Hx & Hc & Hd).
        { specialize (All q Hq). unfold learn_all in *. now rewrite fold_left_app in All. }
        rewrite <- Hd. apply in_map, filter_In. split; [|unfold moves_chunk; now apply N.eqb_eq].
        apply filter_In. split; auto. apply negb_true_iff, N.eqb_neq. congruence. }
      lia.
    Qed.
  End Chunk.

  (** ** All chunks *)

  Variables (k : N) (rs : list round).
  Hypothesis nobody_early : punctual 0 rs.
  Hypothesis one_port_rounds : Forall one_port_round rs.
  Hypothesis everything_everywhere :
    forall r i c, r < n -> i < n -> c < k -> In (Rank i) (collect own_data rs r c).

  Let before := firstn (N.to_nat a) rs.
  Let after := skipn (N.to_nat a) rs.

  Lemma everybody_knows c : c < k -> forall r, r < n -> knows_all (learn_all c after at_first) r = true.
  Proof.
    intros Hc r Hr. apply knows_all_iff. intros s Hs.
    assert (E : exists i, i < n /\ node i = s).
    { apply sources_iff in Hs as [->|[Hs Ls]].
      - exists other. destruct other_not_late as [Hn Ho]. split; auto. unfold node. now rewrite Ho.
      - exists s. split; auto. unfold node. now rewrite Ls. }
    destruct E as (i & Hi & <-).
    apply (all_held_known c after (run (@app source) own_data before)).
    - apply nothing_leaves. intros rd q Hrd Lq x Hx. unfold before in Hrd.
      apply (In_nth _ _ []) in Hrd as (j & Hj & <-). rewrite firstn_length in Hj.
      assert (Q : silent q (nth j rs [])).
      { apply nobody_early. pose proof (late_arrives q Lq). lia. }
      apply Q. rewrite <- (firstn_skipn (N.to_nat a) rs), app_nth1; auto.
      rewrite firstn_length. lia.
    - rewrite <- run_app. unfold before, after. rewrite firstn_skipn.
      now apply everything_everywhere.
  Qed.

  Theorem filled_in_time tries : 1 <= k ->
    filled n arrival late last tries a 0 (k * (n + count n late - 1)) <= N.of_nat (length rs).
  Proof.
    intros Hk. assert (Long : (N.to_nat a <= length rs)%nat).
    { destruct (le_lt_dec (N.to_nat a) (length rs)) as [|L]; auto. exfalso.
      pose proof (everybody_knows 0 ltac:(lia) other) as K. unfold after in K.
      rewrite skipn_all2 in K by lia. simpl in K. rewrite nobody_at_first in K.
      discriminate K. apply other_not_late. }
    assert (Time : punctual a after).
    { intros i r Hr. unfold after. replace (nth i (skipn (N.to_nat a) rs) [])
        with (nth (N.to_nat a + i) rs []).
      - apply nobody_early. lia.
      - rewrite <- (firstn_skipn (N.to_nat a) rs) at 1.
        rewrite app_nth2; rewrite firstn_length; [f_equal; lia|lia]. }
    assert (Ports : Forall one_port_round after).
    { apply Forall_forall. intros rd Hrd. rewrite Forall_forall in one_port_rounds.
      apply one_port_rounds. rewrite <- (firstn_skipn (N.to_nat a) rs). apply in_or_app. now right. }
    set (all := counted after a (fun _ => false)).
    assert (Low : (N.to_nat k * (N.to_nat n + length (filter late (range n)) - 1) <= length all)%nat).
    { etransitivity; [|apply (moves_disjoint (range k)), range_nodup].
      rewrite <- (range_length k) at 1. apply many_each. intros c Hc. apply in_range in Hc.
      apply chunk_counted; auto. now apply everybody_knows. }
    assert (High : N.of_nat (length all) <= carried (length after) a 0).
    { apply counted_length; auto; [discriminate|].
      unfold count. replace (filter (fun _ => false) (range n)) with (@nil N); [simpl; lia|].
      clear. induction (range n); simpl; auto. }
    etransitivity; [apply (filled_le tries (length after))|].
    - unfold count. nia.
    - unfold after. rewrite skipn_length. lia.
  Qed.
End Proof.
