(** Pipelines that can't be shorter: what all right schedules of an instance have in common, in the
    terms of [PipelineCertificate.v], and that a certificate proves a lower bound on all makespans.

    Microbatches are alike. So [Action s F j] stands for the [j]-th forward that stage [s] runs,
    whichever microbatch it is of; I and W likewise, where a fused backward is an I and then a W. If
    every F of a stage is over before the F of the same microbatch at the next stage, then the [j]-th
    of the one is over before the [j]-th of the other ([nth_before]). *)

From Coq Require Import List Arith NArith ZArith Lia Bool Sorted Permutation.
From Latecomer Require Import Ranges Schedule Semantics Tables PipelineRun Pipeline PipelineCertificate.
Import ListNotations.
Open Scope N_scope.

Definition kind_eq_dec (a b : kind) : {a = b} + {a <> b}.
Proof. decide equality. Defined.

(** * What is asked *)

(** All of an instance; the rank of each stage with it. *)
Record question := Question {
  of_stages : N;
  of_microbatches : N;
  times : kind -> list N;            (** of F, I and W, one per stage *)
  ranks_of : list N;
  ways : list (N * N * N);           (** as [latencies] *)
  limits : option (list N) }.

Section Facts.
  Variable q : question.

  Definition time (s : N) (k : kind) : N := nth (N.to_nat s) (times q k) 0.

  Definition rank (s : N) : N := nth (N.to_nat s) (ranks_of q) 0.

  Definition lag (s s' : N) : N :=
    let r := rank s in let r' := rank s' in
    match find (fun l => (fst (fst l) =? N.min r r') && (snd (fst l) =? N.max r r')) (ways q) with
    | Some l => if r =? r' then 0 else snd l
    | None => 0
    end.

  Definition takes (a : action) : N := time (stage a) (does a).

  Definition there (a : action) : bool :=
    (stage a <? of_stages q) && (microbatch a <? of_microbatches q) &&
    match does a with B => false | _ => true end.

  Definition home (a : action) : option N := if there a then Some (rank (stage a)) else None.

  Definition travels (a b : action) : option N :=
    if there a && there b && (microbatch a =? microbatch b) then
      match does a, does b with
      | F, F => if stage b =? stage a + 1 then Some (lag (stage a) (stage b)) else None
      | I, I => if stage a =? stage b + 1 then Some (lag (stage a) (stage b)) else None
      | _, _ => None
      end
    else None.

  Definition alone (s : N) : bool :=
    forallb (fun s' => (s' =? s) || negb (rank s' =? rank s)) (range (of_stages q)).

  (** So many halves must have been given back before forward number [k] of stage [s]. *)
  Definition needed (s k halves : N) : bool :=
    match limits q with
    | None => false
    | Some l => match nth_error l (N.to_nat (rank s)) with
                | Some limit => (halves + limit <=? 2 * (k + 1)) && alone s
                | None => false
                end
    end.

  Definition surely (a b : action) : bool :=
    there a && there b && (stage a =? stage b) &&
    match does a, does b with
    | I, F => needed (stage a) (microbatch b) (2 * microbatch a + 1)
    | F, F | I, I | W, W => microbatch a <? microbatch b
    | F, I | F, W | I, W => microbatch a <=? microbatch b
    | _, _ => false
    end.

  Definition room (f x y : action) : bool :=
    there f && there x && there y && (stage f =? stage x) && (stage x =? stage y) &&
    match does f, does x, does y with
    | F, I, W => needed (stage f) (microbatch f) (microbatch x + microbatch y + 1)
    | _, _, _ => false
    end.

  (** Nothing is over before [span]. *)
  Definition refuted_below (span : N) (tree : case) : bool :=
    refutes (span - 1) takes home travels surely room nothing_known tree.
End Facts.

(** [p] is a right schedule for what is asked. *)
Record answers (q : question) (p : pipeline) (place : notes N) : Prop := {
  is_complete : complete p;
  is_placed : places p = Some place;
  within_limits : memory_respected p;
  same_stages : stages p = of_stages q;
  same_microbatches : microbatches p = of_microbatches q;
  same_forward : forward p = times q F;
  same_backward : backward p = times q I;
  same_weight : weight p = times q W;
  fused_no_faster : forall s, s < stages p -> time q s I + time q s W <= nth (N.to_nat s) (fused p) 0;
  same_ranks : forall s, s < stages p -> rank_of place s = rank q s;
  same_latencies : latencies p = ways q;
  same_limits : memory p = limits q }.

(** * Lists in order *)

Section Lists.
  Context {A : Type} (R : A -> A -> Prop).

  Lemma sorted_filter f l : StronglySorted R l -> StronglySorted R (filter f l).
  Proof.
    induction 1 as [|a l S IH H]; simpl; [constructor|]. destruct (f a); auto. constructor; auto.
    rewrite Forall_forall in *. intros b Hb. apply filter_In in Hb as [Hb _]. auto.
  Qed.

  Lemma sorted_nth l d : StronglySorted R l -> forall i j, (i < j < length l)%nat -> R (nth i l d) (nth j l d).
  Proof.
    induction 1 as [|a l S IH H]; simpl; intros i j L; [lia|]. destruct j as [|j]; [lia|].
    rewrite Forall_forall in H. destruct i as [|i]; [apply H, nth_In; lia|apply IH; lia].
  Qed.

  Lemma sorted_middle l1 a l2 b : StronglySorted R (l1 ++ a :: l2) -> In b l1 -> R b a.
  Proof.
    induction l1 as [|c l1 IH]; simpl; [easy|]. intros S Hb. inversion S as [|? ? S' H]; subst.
    destruct Hb as [->|Hb]; auto. rewrite Forall_forall in H. apply H, in_or_app. right. now left.
  Qed.

  Lemma sorted_either l a b : StronglySorted R l -> In a l -> In b l -> a <> b -> R a b \/ R b a.
  Proof.
    induction 1 as [|c l S IH H]; simpl; [easy|]. rewrite Forall_forall in H.
    intros [->|Ha] [->|Hb] Ne; auto; congruence.
  Qed.

  Lemma in_firstn_nth (l : list A) d n i : (i < n)%nat -> (i < length l)%nat -> In (nth i l d) (firstn n l).
  Proof.
    intros H L. rewrite <- (firstn_skipn n l) at 1. rewrite app_nth1; [apply nth_In|]; rewrite firstn_length; lia.
  Qed.

  Lemma firstn_is_nth (l : list A) d n b : In b (firstn n l) -> exists i, (i < n)%nat /\ (i < length l)%nat /\ nth i l d = b.
  Proof.
    intros H. apply (In_nth _ _ d) in H as (i & L & E). rewrite firstn_length in L. exists i.
    repeat split; try lia. rewrite <- E. rewrite <- (firstn_skipn n l) at 1. apply app_nth1.
    rewrite firstn_length. lia.
  Qed.

  Lemma nodup_map {C} (f : A -> C) l : NoDup l -> (forall a b, In a l -> In b l -> f a = f b -> a = b) ->
    NoDup (map f l).
  Proof.
    induction 1 as [|a l Out N IH]; simpl; intros Inj; constructor; auto.
    intros H. apply in_map_iff in H as (b & E & Hb). apply Out. rewrite <- (Inj b a); auto.
  Qed.

  Lemma nodup_firstn {C} (f : A -> C) n l : NoDup (map f l) -> NoDup (map f (firstn n l)).
  Proof.
    rewrite <- (firstn_skipn n l) at 1. rewrite map_app. intros H. now apply nodup_app in H.
  Qed.
End Lists.

(** What holds of each two of a kind holds of the [j]-th of both. *)
Lemma nth_before {A C} (name : A -> C) (f g : A -> N) xs ys d j :
  NoDup (map name xs) -> NoDup (map name ys) ->
  (forall b, In b ys -> exists a, In a xs /\ name a = name b /\ f a <= g b) ->
  (forall i i', (i <= i' < length xs)%nat -> f (nth i xs d) <= f (nth i' xs d)) ->
  (forall i i', (i <= i' < length ys)%nat -> g (nth i ys d) <= g (nth i' ys d)) ->
  (j < length xs)%nat -> (j < length ys)%nat -> f (nth j xs d) <= g (nth j ys d).
Proof.
  intros Nx Ny Each Fx Gy Lx Ly. destruct (N.le_gt_cases (f (nth j xs d)) (g (nth j ys d))) as [|Gt]; auto.
  exfalso. assert (Sub : incl (map name (firstn (S j) ys)) (map name (firstn j xs))).
  { intros c Hc. apply in_map_iff in Hc as (b & <- & Hb).
    apply (firstn_is_nth ys d) in Hb as (i & Hi & Li & <-).
    destruct (Each (nth i ys d)) as (a & Ha & <- & L); [now apply nth_In|].
    apply (In_nth _ _ d) in Ha as (i' & Li' & <-). apply in_map, in_firstn_nth; auto.
    destruct (le_lt_dec j i') as [Ge|]; auto. specialize (Fx j i' ltac:(lia)). specialize (Gy i j ltac:(lia)). lia. }
  apply NoDup_incl_length in Sub; [|now apply nodup_firstn].
  rewrite !map_length, !firstn_length in Sub. lia.
Qed.

(** * Every right schedule keeps to the facts *)

Section Holds.
  Variables (q : question) (p : pipeline) (place : notes N) (start : action -> N) (last : N).
  Hypothesis right : answers q p place.
  Hypothesis kept : keeps (duration p) (needs p place) (programs p) start.
  Hypothesis over : forall a, In a (actions p) -> start a + duration p a <= last.

  Let ends (a : action) : N := start a + duration p a.
  Let R (a b : action) : Prop := ends a <= start b.

  Definition program_of (s : N) : list action := nth (N.to_nat (rank_of place s)) (programs p) [].

  Definition serves (s : N) (k : kind) (a : action) : bool :=
    (stage a =? s) &&
    match k, does a with F, F | I, I | I, B | W, W | W, B => true | _, _ => false end.

  (** What stage [s] runs of one kind, in turn. *)
  Definition line (s : N) (k : kind) : list action := filter (serves s k) (program_of s).

  Definition chosen (a : action) : action :=
    nth (N.to_nat (microbatch a)) (line (stage a) (does a)) (Action 0 F 0).

  Definition shifted (k : kind) (c : action) : N :=
    match k, does c with W, B => start c + time q (stage c) I | _, _ => start c end.

  (** When the [j]-th of a kind starts. *)
  Definition start_of (a : action) : N := shifted (does a) (chosen a).

  Lemma waits a b lag : In a (actions p) -> In (b, lag) (needs p place a) -> ends b + lag <= start a.
  Proof.
    intros Ha Hb. unfold actions in Ha. apply in_concat in Ha as (program & Hp & Ha).
    destruct kept as [_ Needs]. now apply (Needs program).
  Qed.

  Lemma program_there s : s < stages p -> 0 < microbatches p -> nth_error (programs p) (N.to_nat (rank_of place s)) = Some (program_of s).
  Proof.
    intros Hs Hm. pose proof (runs_forward p (is_complete _ _ _ right) s 0 Hs Hm) as Ha.
    apply on_rank_actions in Ha as (r & Hr).
    assert (E : noted place (Action s F 0) = Some (N.of_nat r)).
    { apply (places_ok p place (is_placed _ _ _ right)). now rewrite Nat2N.id. }
    unfold program_of, rank_of. rewrite E, Nat2N.id. destruct Hr as (program & Hp & _).
    rewrite Hp. f_equal. symmetry. now apply nth_error_nth.
  Qed.

  Lemma in_program a : In a (actions p) -> In a (program_of (stage a)).
  Proof.
    intros Ha. destruct (runs_nothing_else p (is_complete _ _ _ right) a Ha) as [Hs Hm].
    pose proof (runs_forward p (is_complete _ _ _ right) (stage a) 0 Hs ltac:(lia)) as Hf.
    pose proof (program_there (stage a) Hs ltac:(lia)) as Hp.
    apply on_rank_actions in Ha as (r & Hr). apply on_rank_actions in Hf as (r' & Hr').
    assert (r' = r) by now apply (stage_on_one_rank p (is_complete _ _ _ right) r' r _ _ Hr' Hr). subst r'.
    assert (E : noted place (Action (stage a) F 0) = Some (N.of_nat r)).
    { apply (places_ok p place (is_placed _ _ _ right)). now rewrite Nat2N.id. }
    destruct Hr as (program & Hpr & Ha). unfold rank_of in Hp. rewrite E, Nat2N.id in Hp. congruence.
  Qed.

  Lemma program_in s a : In a (program_of s) -> In a (actions p).
  Proof.
    unfold program_of, actions. intros Ha. apply in_concat. exists (program_of s). split; auto.
    unfold program_of. destruct (nth_in_or_default (N.to_nat (rank_of place s)) (programs p) []) as [|E]; auto.
    rewrite E in Ha. easy.
  Qed.

  Lemma in_turn s : StronglySorted R (program_of s).
  Proof.
    assert (T : forall a b c, R a b -> R b c -> R a c) by (unfold R, ends; intros; lia).
    apply Sorted_StronglySorted; [exact T|]. unfold program_of.
    destruct (nth_in_or_default (N.to_nat (rank_of place s)) (programs p) []) as [Hin|E];
      [|rewrite E; constructor].
    destruct kept as [Order _].
    assert (G : forall l ran, In (ran ++ l) (programs p) -> Sorted R l).
    { induction l as [|a l IH]; intros ran Hl; constructor.
      - apply (IH (ran ++ [a])). now rewrite <- app_assoc.
      - destruct l as [|b l]; constructor. apply (Order ran a b l Hl). }
    now apply (G _ []).
  Qed.

  Lemma line_sorted s k : StronglySorted R (line s k).
  Proof. apply sorted_filter, in_turn. Qed.

  Lemma in_line s k a : In a (line s k) <-> In a (actions p) /\ serves s k a = true.
  Proof.
    unfold line. rewrite filter_In. split; intros [Ha Hs]; split; auto.
    - now apply (program_in s).
    - pose proof (in_program a Ha) as H. unfold serves in Hs. apply andb_true_iff in Hs as [E _].
      apply N.eqb_eq in E. congruence.
  Qed.

  Lemma serves_kind s k a : serves s k a = true ->
    stage a = s /\ (does a = k \/ does a = B /\ (k = I \/ k = W)).
  Proof.
    unfold serves. intros H. apply andb_true_iff in H as [E K]. apply N.eqb_eq in E. split; auto.
    destruct k, (does a); auto; discriminate.
  Qed.

  (** Of every microbatch one, and no more. *)
  Lemma line_has s k m : k <> B -> s < stages p -> m < microbatches p ->
    exists a, In a (line s k) /\ microbatch a = m.
  Proof.
    intros Hk Hs Hm. destruct k; [| | |congruence].
    - exists (Action s F m). split; auto. apply in_line. split; [now apply runs_forward; [apply right| |]|].
      unfold serves. simpl. now rewrite N.eqb_refl.
    - destruct (runs_backward p (is_complete _ _ _ right) s m Hs Hm) as [(H & _)|(_ & H & _)];
        eexists; (split; [apply in_line; split; [exact H|]|]); auto; unfold serves; simpl; now rewrite N.eqb_refl.
    - destruct (runs_backward p (is_complete _ _ _ right) s m Hs Hm) as [(H & _)|(_ & _ & H)];
        eexists; (split; [apply in_line; split; [exact H|]|]); auto; unfold serves; simpl; now rewrite N.eqb_refl.
  Qed.

  Lemma line_once s k a b : In a (line s k) -> In b (line s k) -> microbatch a = microbatch b -> a = b.
  Proof.
    intros Ha Hb E. apply in_line in Ha as [Ha Sa], Hb as [Hb Sb].
    destruct (runs_nothing_else p (is_complete _ _ _ right) a Ha) as [Hs Hm].
    apply serves_kind in Sa as [Es Ka], Sb as [Es' Kb].
    destruct (runs_backward p (is_complete _ _ _ right) (stage a) (microbatch a) Hs Hm) as [(X & Y & Z)|(X & Y & Z)];
      destruct a as [s1 k1 m1], b as [s2 k2 m2]; simpl in *; subst;
      intuition (subst; try congruence; try contradiction); subst; intuition discriminate.
  Qed.

  Lemma line_names s k : k <> B -> s < stages p -> NoDup (map microbatch (line s k)).
  Proof.
    intros Hk Hs. apply nodup_map; [|intros a b; apply line_once]. apply NoDup_filter.
    unfold program_of. destruct (nth_in_or_default (N.to_nat (rank_of place s)) (programs p) []) as [Hin|E];
      [|rewrite E; constructor].
    pose proof (runs_once p (is_complete _ _ _ right)) as Once. unfold actions in Once.
    apply in_split in Hin as (l1 & l2 & E). rewrite E in Once. rewrite concat_app in Once. simpl in Once.
    apply nodup_app in Once as (_ & Once & _). now apply nodup_app in Once.
  Qed.

  Lemma line_length s k : k <> B -> s < stages p -> length (line s k) = N.to_nat (microbatches p).
  Proof.
    intros Hk Hs. rewrite <- (map_length microbatch), <- (range_length (microbatches p)).
    apply Permutation_length, range_permutation; [now apply line_names|]. intros m. rewrite in_map_iff. split.
    - intros (a & <- & Ha). apply in_line in Ha as [Ha _]. now apply (runs_nothing_else p (is_complete _ _ _ right)).
    - intros Hm. destruct (line_has s k m Hk Hs Hm) as (a & Ha & E). eauto.
  Qed.

  (** ** What stands for an action *)

  Lemma there_ok a : there q a = true -> stage a < stages p /\ microbatch a < microbatches p /\ does a <> B.
  Proof.
    unfold there. rewrite !andb_true_iff, !N.ltb_lt, (same_stages _ _ _ right), (same_microbatches _ _ _ right).
    intros [[? ?] K]. repeat split; auto. intros E. now rewrite E in K.
  Qed.

  Lemma chosen_in a : there q a = true -> In (chosen a) (line (stage a) (does a)).
  Proof.
    intros H. apply there_ok in H as (Hs & Hm & Hk). apply nth_In. rewrite line_length by auto. lia.
  Qed.

  Lemma time_duration c : does c <> B -> duration p c = time q (stage c) (does c).
  Proof.
    unfold duration, time. rewrite (same_forward _ _ _ right), (same_backward _ _ _ right), (same_weight _ _ _ right).
    now destruct (does c).
  Qed.

  Lemma fused_duration c : does c = B -> stage c < stages p ->
    time q (stage c) I + time q (stage c) W <= duration p c.
  Proof. unfold duration. intros -> H. now apply (fused_no_faster _ _ _ right). Qed.

  Lemma shifted_inside s k c : k <> B -> In c (line s k) ->
    start c <= shifted k c /\ shifted k c + time q s k <= ends c.
  Proof.
    intros Hk Hc. apply in_line in Hc as [Hc Sc]. apply serves_kind in Sc as [<- K].
    destruct (runs_nothing_else p (is_complete _ _ _ right) c Hc) as [Hs _]. unfold ends.
    destruct (does c) eqn:D; destruct k; intuition try congruence; unfold shifted; rewrite ?D;
      try (rewrite (time_duration c) by congruence; rewrite D); try lia;
      pose proof (fused_duration c D Hs); lia.
  Qed.

  Lemma inside a : there q a = true -> start (chosen a) <= start_of a /\ start_of a + takes q a <= ends (chosen a).
  Proof. intros H. unfold start_of, takes. apply shifted_inside; [now apply there_ok|now apply chosen_in]. Qed.

  Lemma chosen_running a : there q a = true -> In (chosen a) (actions p) /\ stage (chosen a) = stage a.
  Proof.
    intros H. apply chosen_in, in_line in H as [H S]. split; auto. now apply serves_kind in S.
  Qed.

  Lemma from_order a b : there q a = true -> there q b = true -> R (chosen a) (chosen b) -> before (takes q) start_of a b.
  Proof.
    intros Ha Hb L. apply inside in Ha as [_ Ha], Hb as [Hb _]. unfold R in L. unfold before. lia.
  Qed.

  Lemma same_line a b : there q a = true -> there q b = true -> stage a = stage b -> does a = does b ->
    microbatch a < microbatch b -> before (takes q) start_of a b.
  Proof.
    intros Ha Hb Es Ek L. apply from_order; auto. unfold chosen. rewrite Es, Ek. apply sorted_nth.
    - apply line_sorted.
    - apply there_ok in Hb as (? & ? & ?). rewrite line_length by auto. lia.
  Qed.

  (** ** From line to line *)

  (** If what serves as one comes before what serves as the other, for each microbatch. *)
  Lemma lines_before s k s' k' j more : k <> B -> k' <> B -> s < stages p -> s' < stages p ->
    j < microbatches p ->
    (forall b, In b (line s' k') -> exists a, In a (line s k) /\ microbatch a = microbatch b /\
       shifted k a + time q s k + more <= shifted k' b) ->
    start_of (Action s k j) + time q s k + more <= start_of (Action s' k' j).
  Proof.
    intros Hk Hk' Hs Hs' Hj Each. unfold start_of, chosen. cbn [stage does microbatch].
    assert (Mono : forall s k i i', k <> B -> s < stages p -> (i <= i' < length (line s k))%nat ->
      shifted k (nth i (line s k) (Action 0 F 0)) <= shifted k (nth i' (line s k) (Action 0 F 0))).
    { clear s k s' k' Hk Hk' Hs Hs' Each. intros s k i i' Hk Hs L. destruct (Nat.eq_dec i i') as [->|]; [lia|].
      pose proof (sorted_nth R (line s k) (Action 0 F 0) (line_sorted s k) i i' ltac:(lia)) as H.
      destruct (shifted_inside s k (nth i (line s k) (Action 0 F 0)) Hk) as [_ X]; [apply nth_In; lia|].
      destruct (shifted_inside s k (nth i' (line s k) (Action 0 F 0)) Hk) as [Y _]; [apply nth_In; lia|].
      unfold R in H. lia. }
    apply (nth_before microbatch (fun a => shifted k a + time q s k + more) (shifted k'));
      try (now apply line_names); try (rewrite line_length by auto; lia); auto.
    intros i i' L. specialize (Mono s k i i' Hk Hs L). lia.
  Qed.

  Lemma way_lag s s' : s < stages p -> s' < stages p -> way p place s s' = lag q s s'.
  Proof.
    intros Hs Hs'. unfold way, latency, lag. rewrite (same_latencies _ _ _ right).
    now rewrite (same_ranks _ _ _ right s Hs), (same_ranks _ _ _ right s' Hs').
  Qed.

  Lemma forward_line s a : In a (line s F) -> a = Action s F (microbatch a) /\ In a (actions p).
  Proof.
    intros H. apply in_line in H as [H S]. split; auto. apply serves_kind in S as [E [K|(K & [? | ?])]]; try discriminate.
    destruct a. simpl in *. congruence.
  Qed.

  Lemma gradient_line s m : s < stages p -> m < microbatches p ->
    In (gradient place s m) (line s I) /\ microbatch (gradient place s m) = m.
  Proof.
    intros Hs Hm. unfold gradient. pose proof (runs_iff p place (Action s B m) (is_placed _ _ _ right)) as Hb.
    destruct (runs place (Action s B m)); (split; [|auto]); apply in_line; split.
    - now apply Hb.
    - unfold serves. simpl. now rewrite N.eqb_refl.
    - destruct (runs_backward p (is_complete _ _ _ right) s m Hs Hm) as [(X & _)|(_ & X & _)]; auto.
      apply Hb in X. discriminate.
    - unfold serves. simpl. now rewrite N.eqb_refl.
  Qed.

  Lemma forward_forward s j : s + 1 < stages p -> j < microbatches p ->
    start_of (Action s F j) + time q s F + lag q s (s + 1) <= start_of (Action (s + 1) F j).
  Proof.
    intros Hs Hj. apply lines_before; try discriminate; auto; try lia. intros b Hb.
    apply forward_line in Hb as [Eb Hb]. destruct (runs_nothing_else p (is_complete _ _ _ right) b Hb) as [_ Hm].
    exists (Action s F (microbatch b)). split; [|split; auto].
    - apply in_line. split; [apply runs_forward; [apply right|lia|auto]|]. unfold serves. simpl. now rewrite N.eqb_refl.
    - assert (Wt : ends (Action s F (microbatch b)) + way p place s (s + 1) <= start b).
      { apply waits; auto. assert (D : does b = F) by now rewrite Eb.
        assert (Sb : stage b = s + 1) by now rewrite Eb. unfold needs. rewrite D, Sb.
        replace (s + 1 =? 0) with false by (symmetry; apply N.eqb_neq; lia).
        left. f_equal; [f_equal; lia|f_equal; lia]. }
      rewrite way_lag in Wt by lia. unfold ends in Wt. rewrite (time_duration (Action s F _)) in Wt by discriminate.
      unfold shifted. simpl in *. lia.
  Qed.

  Lemma backward_line s b : In b (line s I) ->
    In b (actions p) /\ stage b = s /\ (does b = I \/ does b = B) /\
    In (Action s F (microbatch b), 0) (needs p place b) /\
    (s + 1 < stages p -> In (gradient place (s + 1) (microbatch b), way p place (s + 1) s) (needs p place b)).
  Proof.
    intros H. apply in_line in H as [H S]. apply serves_kind in S as [E K].
    assert (K' : does b = I \/ does b = B) by tauto. repeat split; auto.
    - unfold needs. rewrite E. destruct K' as [-> | ->]; now left.
    - intros L. unfold needs. rewrite E. apply N.ltb_lt in L. rewrite L. destruct K' as [-> | ->]; right; now left.
  Qed.

  Lemma backward_backward s j : s + 1 < stages p -> j < microbatches p ->
    start_of (Action (s + 1) I j) + time q (s + 1) I + lag q (s + 1) s <= start_of (Action s I j).
  Proof.
    intros Hs Hj. apply lines_before; try discriminate; auto; try lia. intros b Hb.
    apply backward_line in Hb as (Hb & Es & K & _ & N). specialize (N Hs).
    destruct (runs_nothing_else p (is_complete _ _ _ right) b Hb) as [_ Hm].
    destruct (gradient_line (s + 1) (microbatch b) Hs Hm) as [G Gm].
    exists (gradient place (s + 1) (microbatch b)). split; [|split]; auto.
    pose proof (waits _ _ _ Hb N) as W. rewrite way_lag in W by lia.
    destruct (shifted_inside (s + 1) I _ ltac:(discriminate) G) as [_ X]. unfold shifted at 2. lia.
  Qed.

  Lemma forward_backward s j : s < stages p -> j < microbatches p ->
    start_of (Action s F j) + time q s F + 0 <= start_of (Action s I j).
  Proof.
    intros Hs Hj. apply lines_before; try discriminate; auto. intros b Hb.
    apply backward_line in Hb as (Hb & Es & K & N & _).
    destruct (runs_nothing_else p (is_complete _ _ _ right) b Hb) as [_ Hm].
    exists (Action s F (microbatch b)). split; [|split; auto].
    - apply in_line. split; [now apply runs_forward; [apply right| |]|]. unfold serves. simpl. now rewrite N.eqb_refl.
    - pose proof (waits _ _ _ Hb N) as W. unfold ends in W. rewrite (time_duration (Action s F _)) in W by discriminate.
      unfold shifted. simpl in *. lia.
  Qed.

  Lemma backward_weight s j : s < stages p -> j < microbatches p ->
    start_of (Action s I j) + time q s I + 0 <= start_of (Action s W j).
  Proof.
    intros Hs Hj. apply lines_before; try discriminate; auto. intros b Hb.
    apply in_line in Hb as [Hb S]. apply serves_kind in S as [E K].
    destruct (runs_nothing_else p (is_complete _ _ _ right) b Hb) as [_ Hm].
    destruct K as [D|(D & _)].
    - exists (Action s I (microbatch b)).
      assert (Hi : In (Action s I (microbatch b)) (actions p)).
      { assert (Eb : b = Action s W (microbatch b)) by (destruct b; simpl in *; congruence).
        destruct (runs_backward p (is_complete _ _ _ right) s (microbatch b) Hs Hm) as [(_ & _ & X)|(_ & X & _)]; auto.
        rewrite Eb in Hb at 1. contradiction. }
      split; [|split; auto].
      + apply in_line. split; auto. unfold serves. simpl. now rewrite N.eqb_refl.
      + assert (X : ends (Action s I (microbatch b)) + 0 <= start b).
        { apply waits; auto. unfold needs. rewrite D, E. now left. }
        unfold ends in X. rewrite (time_duration (Action s I _)) in X by discriminate.
        unfold shifted. rewrite D. simpl in *. lia.
    - exists b. split; [|split; auto].
      + apply in_line. split; auto. unfold serves. rewrite D, E. now rewrite N.eqb_refl.
      + unfold shifted. rewrite D, E, N.add_0_r. apply N.le_refl.
  Qed.

  (** ** Memory *)

  Definition amount (s : N) (k : kind) (l : list action) : Z := Z.of_nat (length (filter (serves s k) l)).

  Lemma held_counts s l : (forall a, In a l -> stage a = s) ->
    held l = (2 * amount s F l - amount s I l - amount s W l)%Z.
  Proof.
    unfold amount. induction l as [|a l IH]; intros H; [reflexivity|]. cbn [held fold_right]. fold (held l). rewrite IH by (intros; apply H; now right).
    pose proof (H a (or_introl eq_refl)) as E. unfold holds_more.
    assert (Sv : forall k, serves s k a = match k, does a with F, F | I, I | I, B | W, W | W, B => true | _, _ => false end).
    { intros k. unfold serves. rewrite E, N.eqb_refl. reflexivity. }
    cbn [filter]. rewrite !Sv. destruct (does a); cbn [length]; lia.
  Qed.

  Lemma needed_ok s k halves i w : s < stages p -> k < microbatches p -> needed q s k halves = true ->
    i + w + 1 <= halves ->
    (i < microbatches p /\ R (chosen (Action s I i)) (chosen (Action s F k))) \/
    (w < microbatches p /\ R (chosen (Action s W w)) (chosen (Action s F k))).
  Proof.
    unfold needed. destruct (limits q) as [l|] eqn:El; [|discriminate].
    destruct (nth_error l (N.to_nat (rank q s))) as [limit|] eqn:En; [|discriminate].
    intros Hs Hk H Hiw. apply andb_true_iff in H as [H Al]. apply N.leb_le in H.
    pose proof (program_there s Hs ltac:(lia)) as Hp.
    set (f := chosen (Action s F k)).
    assert (Hf : In f (line s F)).
    { apply nth_In. rewrite line_length by (auto; discriminate). simpl. lia. }
    assert (Hfp : In f (program_of s)) by (unfold line in Hf; now apply filter_In in Hf).
    apply in_split in Hfp as (ran & todo & Ep).
    assert (All : forall a, In a (program_of s) -> stage a = s).
    { intros a Ha. pose proof (program_in s a Ha) as Hin.
      destruct (runs_nothing_else p (is_complete _ _ _ right) a Hin) as [Hsa Hma].
      unfold alone in Al. rewrite forallb_forall in Al. specialize (Al (stage a)).
      rewrite in_range, <- (same_stages _ _ _ right) in Al. specialize (Al Hsa).
      apply orb_true_iff in Al as [Z|Z]; [now apply N.eqb_eq|]. exfalso.
      apply negb_true_iff, N.eqb_neq in Z. apply Z.
      rewrite <- (same_ranks _ _ _ right s Hs), <- (same_ranks _ _ _ right _ Hsa).
      assert (Ha' : on_rank p (N.to_nat (rank_of place s)) a) by (exists (program_of s); auto).
      pose proof (runs_forward p (is_complete _ _ _ right) (stage a) 0 Hsa ltac:(lia)) as Hfa.
      apply on_rank_actions in Hfa as (r & Hr).
      assert (r = N.to_nat (rank_of place s)) by now apply (stage_on_one_rank p (is_complete _ _ _ right) r _ _ _ Hr Ha').
      assert (X : noted place (Action (stage a) F 0) = Some (N.of_nat r)).
      { apply (places_ok p place (is_placed _ _ _ right)). now rewrite Nat2N.id. }
      unfold rank_of at 1. rewrite X. lia. }
    assert (Held : (held (ran ++ [f]) <= Z.of_N limit)%Z).
    { pose proof (within_limits _ _ _ right) as M. unfold memory_respected in M.
      rewrite (same_limits _ _ _ right) in M. apply (M l El (N.to_nat (rank_of place s)) (program_of s) limit) with (todo := todo); auto.
      - now rewrite (same_ranks _ _ _ right s Hs).
      - now rewrite <- app_assoc. }
    rewrite (held_counts s) in Held.
    2:{ intros a Ha. apply All. rewrite Ep. apply in_app_iff in Ha as [Ha|[<-|[]]]; apply in_or_app; [now left|right; now left]. }
    assert (Lines : forall k', line s k' = filter (serves s k') ran ++ filter (serves s k') (f :: todo)).
    { intros k'. unfold line. rewrite Ep. apply filter_app. }
    assert (Sf : serves s F f = true) by (apply in_line in Hf; tauto).
    assert (Kf : does f = F).
    { apply serves_kind in Sf as [_ [?|(_ & [?|?])]]; congruence. }
    assert (Count : length (filter (serves s F) ran) = N.to_nat k).
    { pose proof (line_names s F ltac:(discriminate) Hs) as ND. apply NoDup_map_inv in ND.
      pose proof (line_length s F ltac:(discriminate) Hs) as LL.
      rewrite NoDup_nth with (d := Action 0 F 0) in ND. apply ND.
      - rewrite Lines, app_length. simpl. rewrite Sf. simpl. lia.
      - rewrite LL. lia.
      - change (nth (N.to_nat k) (line s F) (Action 0 F 0)) with f.
        rewrite Lines, app_nth2, Nat.sub_diag by lia. simpl. now rewrite Sf. }
    assert (Am : forall k', amount s k' (ran ++ [f]) = (amount s k' ran + match k' with F => 1 | _ => 0 end)%Z).
    { intros k'. unfold amount. rewrite filter_app, app_length. simpl.
      assert (E : serves s k' f = match k' with F => true | _ => false end).
      { apply serves_kind in Sf as [E _]. unfold serves. rewrite E, N.eqb_refl, Kf. now destruct k'. }
      rewrite E. destruct k'; simpl; lia. }
    rewrite !Am in Held. unfold amount in Held. rewrite Count in Held.
    assert (Before : forall k' j, k' <> B -> (N.to_nat j < length (filter (serves s k') ran))%nat ->
      j < microbatches p /\ R (chosen (Action s k' j)) f).
    { intros k' j Hk' L. split.
      - pose proof (line_length s k' Hk' Hs) as LL. rewrite Lines, app_length in LL. lia.
      - apply (sorted_middle R ran f todo); [rewrite <- Ep; apply in_turn|].
        unfold chosen. cbn [stage does microbatch]. rewrite Lines, app_nth1 by auto.
        pose proof (nth_In (filter (serves s k') ran) (Action 0 F 0) L) as X. now apply filter_In in X. }
    destruct (le_lt_dec (length (filter (serves s I) ran)) (N.to_nat i)) as [Li|Li].
    - right. apply Before; [discriminate|]. lia.
    - left. now apply Before; [discriminate|].
  Qed.

  (** ** All facts hold *)

  Lemma home_ok a h : home q a = Some h -> there q a = true /\ h = rank q (stage a).
  Proof. unfold home. destruct (there q a); [|discriminate]. intros [= <-]. auto. Qed.

  Lemma there_home a : there q a = true -> home q a <> None.
  Proof. unfold home. now intros ->. Qed.

  Lemma in_time a h : home q a = Some h -> start_of a + takes q a <= last.
  Proof.
    intros H. apply home_ok in H as [H _]. pose proof (inside a H) as [_ L].
    apply chosen_running in H as [H _]. apply over in H. unfold ends in L. lia.
  Qed.

  Lemma one_at_a_time a b h : home q a = Some h -> home q b = Some h -> a <> b ->
    before (takes q) start_of a b \/ before (takes q) start_of b a.
  Proof.
    intros Ha Hb Ne. apply home_ok in Ha as [Ha Ea], Hb as [Hb Eb].
    pose proof (chosen_running a Ha) as [Ca Sa]. pose proof (chosen_running b Hb) as [Cb Sb].
    pose proof (there_ok a Ha) as (Hsa & Hma & Ka). pose proof (there_ok b Hb) as (Hsb & Hmb & Kb).
    destruct (action_eq_dec (chosen a) (chosen b)) as [E|N].
    - (* one fused backward, or the same *)
      pose proof (chosen_in a Ha) as La. pose proof (chosen_in b Hb) as Lb.
      assert (Es : stage a = stage b) by congruence.
      destruct (kind_eq_dec (does a) (does b)) as [Ek|Nk].
      + exfalso. apply Ne. destruct a as [s k i], b as [s' k' j]. simpl in *. subst s' k'.
        pose proof (line_names s k Ka Hsa) as ND. apply NoDup_map_inv in ND.
        rewrite NoDup_nth with (d := Action 0 F 0) in ND.
        assert (N.to_nat i = N.to_nat j); [|f_equal; lia].
        apply ND; auto; rewrite line_length by auto; lia.
      + apply in_line in La as [_ La], Lb as [_ Lb]. apply serves_kind in La as [_ La], Lb as [_ Lb].
        rewrite <- E in Lb. unfold before, start_of, takes, shifted. rewrite <- E, Sa, <- Es.
        destruct La as [La|(La & [Ia|Wa])], Lb as [Lb|(Lb & [Ib|Wb])]; try congruence.
        * left. rewrite Ia, Wb, La. lia.
        * right. rewrite Ib, Wa, La. lia.
    - assert (Pa : In (chosen a) (program_of (stage a))) by (rewrite <- Sa; now apply in_program).
      assert (Pb : In (chosen b) (program_of (stage a))).
      { replace (program_of (stage a)) with (program_of (stage b)); [rewrite <- Sb; now apply in_program|].
        unfold program_of. rewrite (same_ranks _ _ _ right _ Hsa), (same_ranks _ _ _ right _ Hsb). congruence. }
      destruct (sorted_either R _ _ _ (in_turn (stage a)) Pa Pb N) as [L|L]; [left|right]; now apply from_order.
  Qed.

  Lemma travels_holds a b t : travels q a b = Some t ->
    home q a <> None /\ home q b <> None /\ start_of a + takes q a + t <= start_of b.
  Proof.
    unfold travels. destruct (there q a && there q b && (microbatch a =? microbatch b)) eqn:E; [|discriminate].
    rewrite !andb_true_iff, N.eqb_eq in E. destruct E as [[Ha Hb] Em]. intros H.
    split; [now apply there_home|]. split; [now apply there_home|].
    pose proof (there_ok a Ha) as (Hsa & Hma & _). pose proof (there_ok b Hb) as (Hsb & Hmb & _).
    destruct a as [s k i], b as [s' k' j]. unfold takes. cbn [stage does microbatch] in *. subst j.
    destruct k, k'; try discriminate.
    - destruct (N.eqb_spec s' (s + 1)) as [->|]; [|discriminate]. injection H as <-. now apply forward_forward.
    - destruct (N.eqb_spec s (s' + 1)) as [->|]; [|discriminate]. injection H as <-. now apply backward_backward.
  Qed.

  Lemma surely_holds a b : surely q a b = true ->
    home q a <> None /\ home q b <> None /\ before (takes q) start_of a b.
  Proof.
    unfold surely. rewrite !andb_true_iff, N.eqb_eq. intros [[[Ha Hb] Es] H].
    split; [now apply there_home|]. split; [now apply there_home|].
    pose proof (there_ok a Ha) as (Hsa & Hma & Ka). pose proof (there_ok b Hb) as (Hsb & Hmb & Kb).
    destruct a as [s k i], b as [s' k' j]. cbn [stage does microbatch] in *. subst s'.
    assert (T : forall k m, k <> B -> m < microbatches p -> there q (Action s k m) = true).
    { intros k0 m Hk0 Hm. unfold there. cbn [stage does microbatch].
      rewrite <- (same_stages _ _ _ right), <- (same_microbatches _ _ _ right).
      apply N.ltb_lt in Hsa, Hm. rewrite Hsa, Hm. now destruct k0. }
    assert (Chain : forall k, k <> B -> i <= j ->
      start_of (Action s k i) <= start_of (Action s k j)).
    { intros k0 Hk0 L. destruct (N.eq_dec i j) as [->|]; [lia|].
      pose proof (same_line (Action s k0 i) (Action s k0 j) (T k0 i Hk0 Hma) (T k0 j Hk0 Hmb) eq_refl eq_refl ltac:(simpl; lia)) as X.
      unfold before in X. lia. }
    pose proof (forward_backward s i Hsa Hma) as FI. pose proof (backward_weight s i Hsa Hma) as IW.
    unfold before, takes. cbn [stage does].
    destruct k, k'; try discriminate; rewrite ?N.ltb_lt, ?N.leb_le in H;
      try (exact (same_line _ _ Ha Hb eq_refl eq_refl H)).
    - specialize (Chain I ltac:(discriminate) H). lia.
    - specialize (Chain W ltac:(discriminate) H). lia.
    - (* memory: an I and no W, or a W and its I before *)
      destruct (needed_ok s j _ i i Hsa Hmb H ltac:(lia)) as [(_ & L)|(_ & L)].
      + exact (from_order _ _ Ha Hb L).
      + pose proof (from_order _ _ (T W i ltac:(discriminate) Hma) Hb L) as X.
        unfold before, takes in X. cbn [stage does] in X. lia.
    - specialize (Chain W ltac:(discriminate) H). lia.
  Qed.

  Lemma room_holds f x y : room q f x y = true ->
    home q f <> None /\ home q x <> None /\ home q y <> None /\
    (before (takes q) start_of x f \/ before (takes q) start_of y f).
  Proof.
    unfold room. rewrite !andb_true_iff, !N.eqb_eq. intros [[[[[Hf Hx] Hy] E1] E2] H].
    repeat (split; [now apply there_home|]).
    pose proof (there_ok f Hf) as (Hs & Hm & _).
    destruct f as [s k m], x as [s1 k1 i], y as [s2 k2 w]. cbn [stage does microbatch] in *. subst s1 s2.
    destruct k, k1, k2; try discriminate.
    destruct (needed_ok s m _ i w Hs Hm H ltac:(lia)) as [(_ & L)|(_ & L)]; [left|right]; now apply from_order.
  Qed.

  (** No right schedule is over before, whatever its order and its timing. *)
  Theorem refuted_below_holds span tree : refuted_below q span tree = true -> span <= last.
  Proof.
    intros H. destruct (N.le_gt_cases span last) as [|L]; auto. exfalso.
    apply (refutes_sound (span - 1) (takes q) (home q) (travels q) (surely q) (room q) start_of) with tree; auto.
    - intros a h Ha. pose proof (in_time a h Ha). lia.
    - apply one_at_a_time.
    - apply travels_holds.
    - apply surely_holds.
    - apply room_holds.
  Qed.
End Holds.

(** * Optimal schedules *)

(** The question that a schedule answers. *)
Definition asked (p : pipeline) (place : notes N) : question :=
  Question (stages p) (microbatches p)
    (fun k => match k with F => forward p | I => backward p | W => weight p | B => fused p end)
    (map (rank_of place) (range (stages p))) (latencies p) (memory p).

(** Split backwards take no longer than fused ones. *)
Definition fused_is_no_faster (p : pipeline) (q : question) : bool :=
  forallb (fun s => time q s I + time q s W <=? nth (N.to_nat s) (fused p) 0) (range (stages p)).

(** What the extracted program runs: the makespan, if it is the least there is. *)
Definition certified_makespan (p : pipeline) (tree : case) : option N :=
  match check_pipeline p, places p with
  | Runs true true span _, Some place =>
      let q := asked p place in
      if fused_is_no_faster p q && refuted_below q span tree then Some span else None
  | _, _ => None
  end.

(** ** The schedule is right and takes [span]; every other right one for the same instance, its
    fused backwards as long as these or longer, takes as long at least. *)
Theorem certified_makespan_sound p tree span : certified_makespan p tree = Some span ->
  exists place, answers (asked p place) p place /\
    (exists start, keeps (duration p) (needs p place) (programs p) start /\
       forall a, In a (actions p) -> start a + duration p a <= span) /\
    forall p' place' start last, answers (asked p place) p' place' ->
      keeps (duration p') (needs p' place') (programs p') start ->
      (forall a, In a (actions p') -> start a + duration p' a <= last) -> span <= last.
Proof.
  unfold certified_makespan. destruct (check_pipeline p) as [| | |order ok least peaks] eqn:C; try discriminate.
  destruct order, ok; try discriminate. destruct (places p) as [place|] eqn:P; [|discriminate].
  destruct (_ && _) eqn:E; [|discriminate]. intros [= <-]. apply andb_true_iff in E as [Fu Re].
  destruct (check_pipeline_sound p least peaks C) as (Co & _ & Me & place' & P' & _ & Timing & _).
  assert (place' = place) by congruence. subst place'. exists place.
  split; [|split; [exact Timing|]].
  - split; auto.
    + intros s Hs. unfold fused_is_no_faster in Fu. rewrite forallb_forall in Fu.
      apply N.leb_le, Fu, in_range, Hs.
    + intros s Hs. unfold rank, asked. simpl. symmetry.
      rewrite (nth_indep _ 0 (rank_of place 0)) by (rewrite map_length, range_length; lia).
      rewrite (map_nth (rank_of place)). f_equal. unfold range. change 0 with (N.of_nat 0).
      rewrite map_nth, seq_nth by lia. lia.
  - intros p' place' start last A K O. now apply (refuted_below_holds _ p' place' start last A K O least tree).
Qed.
