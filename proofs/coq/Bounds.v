(** Property 8 (verify/bounds.py): lower bounds and optimality, for any schedule.

    The bound is on the completion: the rounds in which nobody is absent. It holds for every right
    schedule with the same other phases in the same order, with any number of late ranks. *)

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

  Lemma after_arrival_bound r : r < ranks s ->
    N.max (knowledge_bound (ranks s) (chunks s) limit) (spread_bound (ranks s) (chunks s) (ports s))
    <= completion_rounds s + elsewhere (since_arrival r (phases s)).
  Proof.
    intros Hr. destruct formed as (_ & Hk & Hl & _ & _ & Ht).
    destruct (since_arrival_split r (phases s)) as (before & E & Habsent).
    transitivity (count_rounds (since_arrival r (phases s))); [apply N.max_lub|].
    - apply (knowledge_bound_holds (ranks s) (chunks s) limit r
               (rounds_of before) (rounds_of (since_arrival r (phases s)))); auto.
      + intros rd t Hrd Ht'. apply in_flat_map in Hrd as (p & Hp & Hrd).
        apply (respects_absence p r rd); auto. rewrite E. apply in_or_app. now left.
      + pose proof sends_respected as F. unfold all_rounds, rounds_of in F.
        rewrite E, flat_map_app in F. now apply Forall_app in F.
      + intros r' c Hr' Hc. unfold rounds_of. rewrite <- flat_map_app, <- E.
        apply (holders_know c [Rank r] (all_rounds s) own_data) with (i := Rank r).
        * intros a i [<-|[]] [Ea|[]]. injection Ea as ->. now left.
        * now apply everybody_everywhere.
        * now left.
    - assert (Split : all_rounds s = rounds_of before ++ rounds_of (since_arrival r (phases s))).
      { unfold all_rounds, rounds_of. now rewrite E, flat_map_app at 1. }
      apply (spread_bound_holds (ranks s) (chunks s) (ports s) r (rounds_of before)
               (rounds_of (since_arrival r (phases s)))); auto.
      + intros rd t Hrd Ht'. apply in_flat_map in Hrd as (p & Hp & Hrd).
        apply (respects_absence p r rd); auto. rewrite E. apply in_or_app. now left.
      + intros rd t Hrd. apply Ht. rewrite Split. apply in_or_app. now right.
      + apply Forall_forall. intros rd Hrd. apply respects_ports. rewrite Split.
        apply in_or_app. now right.
      + intros a i c Ha Hi Hc. rewrite <- Split. now apply everybody_everywhere.
    - rewrite completion_and_elsewhere. apply N.add_le_mono_r.
      unfold completion_rounds. rewrite E at 2. apply count_completion_app.
  Qed.

  Lemma on_time_exists : on_time s < ranks s.
  Proof.
    unfold on_time. destruct (find _ _) as [r|] eqn:E; [|lia].
    apply find_some in E as [Hr _]. now apply in_range.
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
    - destruct formed as (_ & _ & Hl & _).
      assert (V : volume_bound (ranks s) (chunks s) limit <= N.of_nat (length (all_rounds s))).
      { apply volume_bound_holds; auto using well_formed_ranks_exist, sends_respected.
        intros. now apply everybody_everywhere. }
      change (N.of_nat (length (all_rounds s))) with (count_rounds (phases s)) in V.
      rewrite completion_and_elsewhere in V. unfold completion_rounds. lia.
  Qed.
End Holds.

(** * Optimality *)

(** The same ranks, chunks, ports and late ranks, and the same phases in the same order, but for the
    length of those in which nobody is absent. *)
Definition frame (p : phase) : list N * N :=
  (absent p, if nobody_absent p then 0 else N.of_nat (length (rounds p))).

Definition same_situation (s s' : schedule) : Prop :=
  ranks s = ranks s' /\ chunks s = chunks s' /\ late s = late s' /\ ports s = ports s' /\
  map frame (phases s) = map frame (phases s').

(** All that has to hold for a schedule to be right. *)
Definition valid (s : schedule) : Prop :=
  well_formed s /\ ports_respected s /\ absence_respected s /\ correct s.

Definition optimal (s : schedule) : Prop :=
  valid s /\ forall s', same_situation s s' -> valid s' -> completion_rounds s <= completion_rounds s'.

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

Lemma lower_bound_same s s' : same_situation s s' -> lower_bound s = lower_bound s'.
Proof.
  intros (Hn & Hk & Hl & Hp & Hf). unfold lower_bound, on_time.
  rewrite Hn, Hk, Hl, Hp, (elsewhere_same _ _ Hf).
  assert (A : forall r, elsewhere (since_arrival r (phases s)) = elsewhere (since_arrival r (phases s'))).
  { intros r. apply elsewhere_same, since_arrival_same, Hf. }
  rewrite A. do 3 f_equal. apply map_ext. exact A.
Qed.

(** A right schedule at the lower bound is optimal: verify's [optimal: true]. *)
Theorem at_the_bound_optimal s : 2 <= ranks s -> valid s ->
  completion_rounds s = lower_bound s -> optimal s.
Proof.
  intros Hn Hs E. split; auto. intros s' Same (F & P & A & C).
  rewrite E, (lower_bound_same s s' Same). apply lower_bound_holds; auto.
  destruct Same as (<- & _). auto.
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

Lemma drop_idle_same s : same_situation s (drop_idle s).
Proof.
  repeat apply conj; auto. simpl. rewrite map_map. apply map_ext. intros p.
  unfold frame. rewrite without_idle_absent. f_equal.
  unfold without_idle, nobody_absent. destruct (absent p) eqn:E; simpl; now rewrite ?E.
Qed.

Lemma without_idle_completion p : nobody_absent p = true ->
  rounds (without_idle p) = filter moves_something (rounds p).
Proof. unfold without_idle. now intros ->. Qed.

Theorem idle_round_not_optimal s : valid s -> In [] (completion s) -> ~ optimal s.
Proof.
  intros V Idle [_ Opt].
  pose proof (Opt _ (drop_idle_same s) (drop_idle_valid s V)) as Le.
  revert Le. apply N.lt_nge. unfold completion_rounds, count_rounds. simpl phases.
  unfold completion, rounds_of in Idle. revert Idle.
  assert (Each : forall p, nobody_absent (without_idle p) = nobody_absent p)
    by (intros p; unfold nobody_absent; now rewrite without_idle_absent).
  assert (Less : forall ps, (length (rounds_of (filter nobody_absent (map without_idle ps)))
                           <= length (rounds_of (filter nobody_absent ps)))%nat).
  { unfold rounds_of. induction ps as [|p ps IH]; simpl; auto. rewrite Each.
    destruct (nobody_absent p) eqn:E; auto. simpl.
    rewrite !app_length, without_idle_completion by auto.
    pose proof (filter_length_le moves_something (rounds p)). lia. }
  enough (G : forall ps, In [] (flat_map rounds (filter nobody_absent ps)) ->
              (length (rounds_of (filter nobody_absent (map without_idle ps)))
               < length (rounds_of (filter nobody_absent ps)))%nat).
  { intros I. specialize (G (phases s) I). lia. }
  unfold rounds_of in *. induction ps as [|p ps IH]; simpl; [easy|]. rewrite Each.
  specialize (Less ps).
  destruct (nobody_absent p) eqn:E; auto. simpl.
  rewrite !app_length, in_app_iff, without_idle_completion by auto. intros [I|I].
  - pose proof (filter_length_lt moves_something (rounds p) [] I eq_refl). lia.
  - specialize (IH I). pose proof (filter_length_le moves_something (rounds p)). lia.
Qed.
