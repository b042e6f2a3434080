(** Property 8 (verify/core/bounds.py): lower bounds and optimality, for any schedule.

    The bound is on the completion: the rounds in which nobody is absent. It holds for every right
    schedule with the same other phases in the same order, with any number of late ranks.

    Optimal is more: nobody is absent again after its arrival, and no right schedule has fewer
    rounds, of all those in which every rank takes no part before it arrives, whatever their phases
    are. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Volume Spread.
Import ListNotations.
Open Scope N_scope.

(** * What verify computes *)

Definition count_rounds (ps : list phase) : N := N.of_nat (length (rounds_of ps)).

Definition completion_rounds (s : schedule) : N := count_rounds (filter nobody_absent (phases s)).

Definition somebody_absent (p : phase) : bool := negb (nobody_absent p).

Definition elsewhere (ps : list phase) : N := count_rounds (filter somebody_absent ps).

Definition is_absent (r : N) (p : phase) : bool := existsb (N.eqb r) (absent p).

(** The phases from the first one that a rank takes part in. *)
Fixpoint since_arrival (r : N) (ps : list phase) : list phase :=
  match ps with
  | [] => []
  | p :: later => if is_absent r p then since_arrival r later else ps
  end.

Definition on_time (s : schedule) : N :=
  match find (fun r => negb (existsb (N.eqb r) (late s))) (range (ranks s)) with
  | Some r => r
  | None => 0
  end.

Definition minimum (first : N) (others : list N) : N := fold_right N.min first others.

Definition lower_bound (s : schedule) : N :=
  let limit := port_limit (ports s) in
  let after_arrival r := elsewhere (since_arrival r (phases s)) in
  let own := N.max (knowledge_bound (ranks s) (chunks s) limit)
                   (spread_bound (ranks s) (chunks s) (ports s)) in
  N.max
    (own
     - minimum (after_arrival (on_time s)) (map after_arrival (late s)))
    (volume_bound (ranks s) (chunks s) limit - elsewhere (phases s)).

(** * The bound holds *)

Lemma count_rounds_cons p ps :
  count_rounds (p :: ps) = N.of_nat (length (rounds p)) + count_rounds ps.
Proof. unfold count_rounds, rounds_of. simpl. rewrite app_length. lia. Qed.

Lemma completion_and_elsewhere ps :
  count_rounds ps = count_rounds (filter nobody_absent ps) + elsewhere ps.
Proof.
  unfold elsewhere. induction ps as [|p ps IH]; auto.
  rewrite count_rounds_cons. simpl. unfold somebody_absent at 1.
  destruct (nobody_absent p); simpl; rewrite count_rounds_cons; lia.
Qed.

Lemma since_arrival_split r ps : exists before, ps = before ++ since_arrival r ps /\
  forall p, In p before -> In r (absent p).
Proof.
  induction ps as [|p ps (before & E & H)]; simpl; [exists []; split; auto; intros p []|].
  destruct (is_absent r p) eqn:A.
  - exists (p :: before). split; [simpl; congruence|]. intros q [<-|Hq]; auto.
    apply existsb_exists in A as (y & Hy & Ey). apply N.eqb_eq in Ey. now subst.
  - exists []. split; auto. intros q [].
Qed.

Lemma count_completion_app before later :
  count_rounds (filter nobody_absent later) <= count_rounds (filter nobody_absent (before ++ later)).
Proof.
  unfold count_rounds, rounds_of. rewrite filter_app, flat_map_app, app_length. lia.
Qed.

Lemma minimum_is_one_of (f : N -> N) a l : exists x, In x (a :: l) /\ minimum (f a) (map f l) = f x.
Proof.
  induction l as [|b l (x & Hx & E)]; simpl; [exists a; auto|].
  destruct (N.min_spec (f b) (minimum (f a) (map f l))) as [[_ M]|[_ M]]; rewrite M.
  - exists b. auto.
  - exists x. simpl in Hx. tauto.
Qed.

Section Holds.
  Variable s : schedule.
  Hypothesis two_ranks : 2 <= ranks s.
  Hypothesis formed : well_formed s.
  Hypothesis respects_ports : ports_respected s.
  Hypothesis respects_absence : absence_respected s.
  Hypothesis right : correct s.

  Let limit := port_limit (ports s).

  Lemma sends_respected : Forall (sends_within limit) (all_rounds s).
  Proof. apply Forall_forall. intros rd Hrd. now apply respects_ports. Qed.

  Lemma everybody_everywhere r i c : r < ranks s -> i < ranks s -> c < chunks s ->
    In (Rank i) (collect own_data (all_rounds s) r c).
  Proof.
    intros Hr Hi Hc. apply correct_iff in right.
    apply (Permutation_in (Rank i) (Permutation_sym (right r c Hr Hc))).
    now apply in_everybody.
  Qed.

  (** What a rank needs after rounds in which it takes no part. *)
  Lemma silence_bound r before after : r < ranks s -> all_rounds s = before ++ after ->
    (forall rd, In rd before -> silent r rd) ->
    N.max (knowledge_bound (ranks s) (chunks s) limit) (spread_bound (ranks s) (chunks s) (ports s))
    <= N.of_nat (length after).
  Proof.
    intros Hr Split Quiet. destruct formed as (_ & Hk & Hl & _ & _ & Ht). apply N.max_lub.
    - apply (knowledge_bound_holds (ranks s) (chunks s) limit r before after); auto.
      + intros rd t Hrd Ht'. now apply (Quiet rd).
      + pose proof sends_respected as F. rewrite Split in F. now apply Forall_app in F.
      + intros r' c Hr' Hc. rewrite <- Split.
        apply (holders_know c [Rank r] (all_rounds s) own_data) with (i := Rank r).
        * intros a i [<-|[]] [Ea|[]]. injection Ea as ->. now left.
        * now apply everybody_everywhere.
        * now left.
    - apply (spread_bound_holds (ranks s) (chunks s) (ports s) r before after); auto.
      + intros rd t Hrd. apply (Quiet rd Hrd).
      + intros rd t Hrd. apply Ht. rewrite Split. apply in_or_app. now right.
      + apply Forall_forall. intros rd Hrd. apply respects_ports. rewrite Split.
        apply in_or_app. now right.
      + intros a i c Ha Hi Hc. rewrite <- Split. now apply everybody_everywhere.
  Qed.

  Lemma after_arrival_bound r : r < ranks s ->
    N.max (knowledge_bound (ranks s) (chunks s) limit) (spread_bound (ranks s) (chunks s) (ports s))
    <= completion_rounds s + elsewhere (since_arrival r (phases s)).
  Proof.
    intros Hr. destruct (since_arrival_split r (phases s)) as (before & E & Habsent).
    transitivity (count_rounds (since_arrival r (phases s))).
    - apply (silence_bound r (rounds_of before)); auto.
      + unfold all_rounds, rounds_of. now rewrite E, flat_map_app at 1.
      + intros rd Hrd. apply in_flat_map in Hrd as (p & Hp & Hrd).
        apply (respects_absence p r rd); auto. rewrite E. apply in_or_app. now left.
    - rewrite completion_and_elsewhere. apply N.add_le_mono_r.
      unfold completion_rounds. rewrite E at 2. apply count_completion_app.
  Qed.

  Lemma on_time_exists : on_time s < ranks s.
  Proof.
    unfold on_time. destruct (find _ _) as [r|] eqn:E; [|lia].
    apply find_some in E as [Hr _]. now apply in_range.
  Qed.

  Lemma volume_bound_here :
    volume_bound (ranks s) (chunks s) limit <= count_rounds (phases s).
  Proof.
    destruct formed as (_ & _ & Hl & _).
    change (count_rounds (phases s)) with (N.of_nat (length (all_rounds s))).
    apply volume_bound_holds; auto using well_formed_ranks_exist, sends_respected.
    intros. now apply everybody_everywhere.
  Qed.

  Theorem lower_bound_holds : lower_bound s <= completion_rounds s.
  Proof.
    unfold lower_bound. fold limit. apply N.max_lub.
    - destruct (minimum_is_one_of (fun r => elsewhere (since_arrival r (phases s)))
                  (on_time s) (late s)) as (r & Hr & ->).
      assert (r < ranks s).
      { destruct Hr as [<-|Hr]; [apply on_time_exists|].
        destruct formed as (_ & _ & _ & L & _). auto. }
      pose proof (after_arrival_bound r). lia.
    - pose proof volume_bound_here as V.
      rewrite completion_and_elsewhere in V. unfold completion_rounds. lia.
  Qed.
End Holds.

(** All that has to hold for a schedule to be right. *)
Definition valid (s : schedule) : Prop :=
  well_formed s /\ ports_respected s /\ absence_respected s /\ correct s.

(** ** The bound is that of all schedules with the same other phases *)

(** The same ranks, chunks, ports and late ranks, and the same phases in the same order, but for the
    length of those in which nobody is absent. *)
Definition frame (p : phase) : list N * N :=
  (absent p, if nobody_absent p then 0 else N.of_nat (length (rounds p))).

Definition same_other_phases (s s' : schedule) : Prop :=
  ranks s = ranks s' /\ chunks s = chunks s' /\ late s = late s' /\ ports s = ports s' /\
  map frame (phases s) = map frame (phases s').

Lemma elsewhere_same ps : forall ps', map frame ps = map frame ps' -> elsewhere ps = elsewhere ps'.
Proof.
  unfold elsewhere. induction ps as [|p ps IH]; intros [|p' ps'] H; try discriminate; auto.
  injection H as Ha Hl H. specialize (IH ps' H). simpl.
  unfold somebody_absent, nobody_absent in *. rewrite Ha in *.
  destruct (absent p'); simpl; auto. rewrite !count_rounds_cons. lia.
Qed.

Lemma since_arrival_same r ps : forall ps', map frame ps = map frame ps' ->
  map frame (since_arrival r ps) = map frame (since_arrival r ps').
Proof.
  induction ps as [|p ps IH]; intros [|p' ps'] H; try discriminate; auto.
  pose proof H as H0. injection H0 as Ha _ Ht. simpl. unfold is_absent. rewrite Ha.
  destruct (existsb (N.eqb r) (absent p')); auto.
Qed.

Lemma lower_bound_same s s' : same_other_phases s s' -> lower_bound s = lower_bound s'.
Proof.
  intros (Hn & Hk & Hl & Hp & Hf). unfold lower_bound, on_time.
  rewrite Hn, Hk, Hl, Hp, (elsewhere_same _ _ Hf).
  assert (A : forall r, elsewhere (since_arrival r (phases s)) = elsewhere (since_arrival r (phases s'))).
  { intros r. apply elsewhere_same, since_arrival_same, Hf. }
  rewrite A. do 3 f_equal. apply map_ext. exact A.
Qed.

(** * Optimality *)

(** Rounds before a rank takes part: it arrives with the first phase that it is not absent from. *)
Fixpoint rounds_before (r : N) (ps : list phase) : N :=
  match ps with
  | [] => 0
  | p :: later => if is_absent r p then N.of_nat (length (rounds p)) + rounds_before r later else 0
  end.

Definition arrival_of (s : schedule) (r : N) : N := rounds_before r (phases s).

(** Who is absent from a phase is absent from the phase before it, too. *)
Fixpoint absences_fall (ps : list phase) : bool :=
  match ps with
  | p :: (q :: _) as later => forallb (fun r => is_absent r p) (absent q) && absences_fall later
  | _ => true
  end.

(** Nobody is absent again after its arrival. *)
Definition nobody_leaves (s : schedule) : bool := absences_fall (phases s).

(** [s'] is for as many ranks and chunks and for the same ports as [s], and in it no rank takes part
    before it arrives in [s]. What its phases are has no influence. *)
Definition same_situation (s s' : schedule) : Prop :=
  ranks s = ranks s' /\ chunks s = chunks s' /\ ports s = ports s' /\
  forall r t, t < arrival_of s r -> silent r (nth (N.to_nat t) (all_rounds s') []).

(** Since the arrivals are given, fewest rounds in all are fewest rounds after the last arrival. *)
Definition fewest_rounds (s : schedule) : Prop :=
  forall s', same_situation s s' -> valid s' -> count_rounds (phases s) <= count_rounds (phases s').

Definition optimal (s : schedule) : Prop :=
  valid s /\ nobody_leaves s = true /\ fewest_rounds s.

(** ** The completion begins with the last arrival, if nobody leaves *)

Lemma in_absent r p : In r (absent p) <-> is_absent r p = true.
Proof.
  unfold is_absent. rewrite existsb_exists. split.
  - intros H. exists r. split; auto. apply N.eqb_refl.
  - intros (y & H & E). apply N.eqb_eq in E. now subst.
Qed.

Lemma absent_somebody r p : In r (absent p) -> somebody_absent p = true.
Proof. unfold somebody_absent, nobody_absent. now destruct (absent p). Qed.

Lemma arrives_before_completion r ps : rounds_before r ps <= elsewhere ps.
Proof.
  unfold elsewhere. induction ps as [|p ps IH]; simpl; [unfold count_rounds; simpl; lia|].
  destruct (is_absent r p) eqn:A; [|lia].
  rewrite (absent_somebody r p) by now apply in_absent. rewrite count_rounds_cons. lia.
Qed.

Lemma absences_fall_tail p ps : absences_fall (p :: ps) = true -> absences_fall ps = true.
Proof. destruct ps as [|q ps]; simpl; auto. now rewrite andb_true_iff. Qed.

Lemma absences_fall_from p ps r q : absences_fall (p :: ps) = true ->
  In q ps -> In r (absent q) -> In r (absent p).
Proof.
  revert p. induction ps as [|a ps IH]; intros p F Hq Hr; [easy|].
  pose proof (absences_fall_tail _ _ F) as F'. simpl in F. apply andb_true_iff in F as [F _].
  rewrite forallb_forall in F. apply in_absent, F.
  destruct Hq as [<-|Hq]; [exact Hr|]. now apply (IH a).
Qed.

Lemma somebody_arrives_last ps : absences_fall ps = true -> 0 < elsewhere ps ->
  exists p r, In p ps /\ In r (absent p) /\ rounds_before r ps = elsewhere ps.
Proof.
  induction ps as [|p ps IH]; intros F Pos; [unfold elsewhere, count_rounds in Pos; simpl in Pos; lia|].
  pose proof (absences_fall_tail _ _ F) as F'.
  assert (Head : forall r, In r (absent p) ->
            rounds_before r (p :: ps) = N.of_nat (length (rounds p)) + rounds_before r ps /\
            elsewhere (p :: ps) = N.of_nat (length (rounds p)) + elsewhere ps).
  { intros r Hr. simpl. apply in_absent in Hr as A. rewrite A. split; auto.
    unfold elsewhere. simpl. rewrite (absent_somebody r p) by auto. apply count_rounds_cons. }
  destruct (N.eq_dec (elsewhere ps) 0) as [Z|Z].
  - destruct (absent p) as [|r l] eqn:A.
    + exfalso. unfold elsewhere in Pos, Z. simpl in Pos.
      assert (somebody_absent p = false) as B by (unfold somebody_absent, nobody_absent; now rewrite A).
      rewrite B in Pos. lia.
    + exists p, r. rewrite A. split; [now left|]. split; [now left|].
      destruct (Head r (or_introl eq_refl)) as [-> ->].
      pose proof (arrives_before_completion r ps). lia.
  - destruct (IH F') as (q & r & Hq & Hr & E); [lia|].
    pose proof (absences_fall_from p ps r q F Hq Hr) as Hp.
    exists p, r. split; [now left|]. split; auto.
    destruct (Head r Hp) as [-> ->]. lia.
Qed.

(** So the completion rounds are the rounds after the last arrival. *)
Theorem completion_since_last_arrival s : 1 <= ranks s -> well_formed s -> nobody_leaves s = true ->
  (forall r, arrival_of s r <= elsewhere (phases s)) /\
  exists r, r < ranks s /\ arrival_of s r = elsewhere (phases s).
Proof.
  intros Hn (_ & _ & _ & Hl & Ha & _) F. split; [intros r; apply arrives_before_completion|].
  destruct (N.eq_dec (elsewhere (phases s)) 0) as [Z|Z].
  - exists 0. split; [lia|]. pose proof (arrives_before_completion 0 (phases s)). unfold arrival_of. lia.
  - destruct (somebody_arrives_last (phases s) F) as (p & r & Hp & Hr & E); [lia|].
    exists r. split; auto. apply Hl. now apply (Ha p).
Qed.

(** ** At the bound *)

Lemma knowledge_bound_positive n k limit : 2 <= n -> 1 <= k -> 1 <= limit ->
  1 <= knowledge_bound n k limit.
Proof.
  intros Hn Hk Hl. unfold knowledge_bound.
  assert (1 <= ceil_div k limit).
  { unfold ceil_div. apply N.div_le_lower_bound; lia. }
  enough (log_ceil n (limit + 1) <> 0) by lia. intros Z.
  pose proof (log_ceil_reaches n (limit + 1)) as R. rewrite Z, N.pow_0_r in R. lia.
Qed.

(** A right schedule at the lower bound is optimal, if nobody is absent again after its arrival:
    verify's [optimal: true]. *)
Theorem at_the_bound_optimal s : 2 <= ranks s -> valid s -> nobody_leaves s = true ->
  completion_rounds s = lower_bound s -> optimal s.
Proof.
  intros Hn V Stay E. split; auto. split; auto. intros s' (En & Ek & Ep & Quiet) (F & P & A & C).
  assert (Hn' : 2 <= ranks s') by now rewrite <- En.
  destruct (completion_since_last_arrival s) as (_ & r & Hr & Last); auto; [lia|apply V|].
  set (wait := elsewhere (phases s)) in *.
  rewrite completion_and_elsewhere. change (count_rounds (filter nobody_absent (phases s)))
    with (completion_rounds s). rewrite E. fold wait.
  pose proof (volume_bound_here s' Hn' F P C) as Volume.
  assert (Own : N.max (knowledge_bound (ranks s') (chunks s') (port_limit (ports s')))
                      (spread_bound (ranks s') (chunks s') (ports s'))
                <= count_rounds (phases s') - wait).
  { set (before := firstn (N.to_nat wait) (all_rounds s')).
    set (after := skipn (N.to_nat wait) (all_rounds s')).
    replace (count_rounds (phases s') - wait) with (N.of_nat (length after)).
    2: { unfold after. rewrite skipn_length. unfold count_rounds, all_rounds. lia. }
    apply (silence_bound s' Hn' F P C r before); [now rewrite <- En| |].
    - symmetry. apply firstn_skipn.
    - intros rd Hrd. apply (In_nth _ _ ([] : round)) in Hrd as (i & Hi & <-).
      assert (Same : nth i before ([] : round) = nth i (all_rounds s') []).
      { rewrite <- (firstn_skipn (N.to_nat wait) (all_rounds s')). now rewrite app_nth1. }
      unfold before in Hi. rewrite firstn_length in Hi.
      rewrite Same. rewrite <- (Nat2N.id i). apply Quiet. lia. }
  destruct F as (_ & Hk & Hl & _).
  pose proof (knowledge_bound_positive (ranks s') (chunks s') (port_limit (ports s')) Hn' Hk Hl).
  unfold lower_bound. fold wait. rewrite En, Ek, Ep. lia.
Qed.

(** ** A completion round that moves nothing can be left out: verify's [optimal: false] *)

Definition moves_something (rd : round) : bool := match rd with [] => false | _ => true end.

Definition without_idle (p : phase) : phase :=
  if nobody_absent p then Phase (absent p) (filter moves_something (rounds p)) else p.

Definition drop_idle (s : schedule) : schedule :=
  Schedule (ranks s) (chunks s) (late s) (ports s) (map without_idle (phases s)).

Lemma without_idle_absent p : absent (without_idle p) = absent p.
Proof. unfold without_idle. now destruct (nobody_absent p). Qed.

Lemma without_idle_rounds p rd : In rd (rounds (without_idle p)) -> In rd (rounds p).
Proof.
  unfold without_idle. destruct (nobody_absent p); simpl; auto. now intros ?%filter_In.
Qed.

Lemma drop_idle_rounds s rd : In rd (all_rounds (drop_idle s)) -> In rd (all_rounds s).
Proof.
  unfold all_rounds, rounds_of. simpl. rewrite !in_flat_map.
  intros (p & Hp & Hrd). apply in_map_iff in Hp as (q & <- & Hq).
  exists q. auto using without_idle_rounds.
Qed.

Lemma run_without_idle {A} (plus : A -> A -> A) ps : forall s,
  run plus s (rounds_of (map without_idle ps)) = run plus s (rounds_of ps).
Proof.
  unfold rounds_of. induction ps as [|p ps IH]; simpl; intros s; auto.
  rewrite !run_app, IH. f_equal. unfold without_idle.
  destruct (nobody_absent p); simpl; auto. revert s.
  induction (rounds p) as [|rd rds IHr]; simpl; intros s; auto.
  destruct rd; simpl; auto.
Qed.

Lemma filter_length_lt {A} (p : A -> bool) l x : In x l -> p x = false ->
  (length (filter p l) < length l)%nat.
Proof.
  intros Hin Hx. induction l as [|a l IH]; simpl in *; [easy|].
  destruct Hin as [->|Hin].
  - rewrite Hx. pose proof (filter_length_le p l). lia.
  - specialize (IH Hin). destruct (p a); simpl; lia.
Qed.

Lemma drop_idle_valid s : valid s -> valid (drop_idle s).
Proof.
  intros ((Hn & Hk & Hp & Hl & Hd & Ht) & P & A & C). repeat apply conj; auto.
  - intros q r Hq Hr. apply in_map_iff in Hq as (p & <- & Hin).
    rewrite without_idle_absent in Hr. now apply (Hd p).
  - intros rd t Hrd. now apply Ht, drop_idle_rounds.
  - intros rd Hrd. now apply P, drop_idle_rounds.
  - intros q r rd Hq Hr Hrd. apply in_map_iff in Hq as (p & <- & Hin).
    rewrite without_idle_absent in Hr. apply without_idle_rounds in Hrd. now apply (A p r rd).
  - intros M x r c Hr Hc. unfold all_rounds. simpl phases.
    rewrite run_without_idle. now apply C.
Qed.

(** Silent before its arrival, in a right schedule. *)
Lemma silent_before r ps : (forall p rd, In p ps -> In r (absent p) -> In rd (rounds p) -> silent r rd) ->
  forall t, t < rounds_before r ps -> silent r (nth (N.to_nat t) (rounds_of ps) []).
Proof.
  induction ps as [|p ps IH]; simpl; intros H t Ht; [lia|]. unfold rounds_of. simpl.
  destruct (is_absent r p) eqn:A; [|lia].
  destruct (le_lt_dec (length (rounds p)) (N.to_nat t)) as [L|L].
  - rewrite app_nth2 by auto.
    replace (N.to_nat t - length (rounds p))%nat with (N.to_nat (t - N.of_nat (length (rounds p)))) by lia.
    apply IH; [|lia]. intros q rd Hq. apply H. auto.
  - rewrite app_nth1 by auto. apply (H p); auto.
    + now apply in_absent.
    + now apply nth_In.
Qed.

Lemma drop_idle_arrival s r : arrival_of (drop_idle s) r = arrival_of s r.
Proof.
  unfold arrival_of, drop_idle. simpl. induction (phases s) as [|p ps IH]; simpl; auto.
  unfold is_absent. rewrite without_idle_absent, IH.
  destruct (existsb (N.eqb r) (absent p)) eqn:A; auto.
  unfold without_idle, nobody_absent. destruct (absent p); [discriminate|auto].
Qed.

Lemma drop_idle_same s : valid s -> same_situation s (drop_idle s).
Proof.
  intros V. pose proof (drop_idle_valid s V) as (_ & _ & A & _). repeat apply conj; auto.
  intros r t Ht. rewrite <- drop_idle_arrival in Ht. apply silent_before; auto.
  intros p rd Hp Hr. now apply (A p r rd).
Qed.

Lemma without_idle_completion p : nobody_absent p = true ->
  rounds (without_idle p) = filter moves_something (rounds p).
Proof. unfold without_idle. now intros ->. Qed.

Theorem idle_round_not_optimal s : valid s -> In [] (completion s) -> ~ fewest_rounds s.
Proof.
  intros V Idle Fewest.
  pose proof (Fewest _ (drop_idle_same s V) (drop_idle_valid s V)) as Le.
  revert Le. apply N.lt_nge. unfold count_rounds. simpl phases.
  unfold completion, rounds_of in Idle. revert Idle.
  assert (Less : forall ps, (length (rounds_of (map without_idle ps)) <= length (rounds_of ps))%nat).
  { unfold rounds_of. induction ps as [|p ps IH]; simpl; auto. rewrite !app_length.
    enough (length (rounds (without_idle p)) <= length (rounds p))%nat by lia.
    unfold without_idle. destruct (nobody_absent p); simpl; auto using filter_length_le. }
  enough (G : forall ps, In [] (flat_map rounds (filter nobody_absent ps)) ->
              (length (rounds_of (map without_idle ps)) < length (rounds_of ps))%nat).
  { intros I. specialize (G (phases s) I). lia. }
  unfold rounds_of in *. induction ps as [|p ps IH]; simpl; [easy|].
  pose proof (Less [p]) as Here. simpl in Here. rewrite !app_nil_r in Here.
  specialize (Less ps). rewrite !app_length.
  destruct (nobody_absent p) eqn:E; simpl.
  - rewrite in_app_iff. intros [I|I].
    + rewrite without_idle_completion by auto.
      pose proof (filter_length_lt moves_something (rounds p) [] I eq_refl). lia.
    + specialize (IH I). lia.
  - intros I. specialize (IH I). lia.
Qed.
