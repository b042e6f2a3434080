(** A lower bound on the makespan of a pipeline (verify/pipeline/bounds.py, in its simple form).

    A stage begins when a first forward has come through all stages before it, [head]; then it has
    all its own work to do. After its last gradient that gradient still goes back through all stages
    before it, [tail]. So every timing takes at least as long as the busiest stage says. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics Tables PipelineRun Pipeline.
Import ListNotations.
Open Scope N_scope.

Section Bound.
  Variables (p : pipeline) (place : notes N).

  Definition takes (s : N) (k : kind) : N := duration p (Action s k 0).

  (** Time before a stage can begin, and after its last gradient. *)
  Fixpoint head (s : nat) : N :=
    match s with
    | O => 0
    | S j => head j + takes (N.of_nat j) F + way p place (N.of_nat j) (N.of_nat j + 1)
    end.

  Definition gradient_takes (s : N) : N := N.min (takes s I) (takes s B).

  Fixpoint tail (s : nat) : N :=
    match s with
    | O => 0
    | S j => way p place (N.of_nat j + 1) (N.of_nat j) + gradient_takes (N.of_nat j) + tail j
    end.

  Definition work (s : N) : N := takes s F + N.min (takes s B) (takes s I + takes s W).

  Definition stage_bound (s : N) : N :=
    N.max (head (N.to_nat s) + microbatches p * work s)
          (head (N.to_nat s) + microbatches p * (takes s F + gradient_takes s) + tail (N.to_nat s)).

  Definition makespan_bound : N := fold_right N.max 0 (map stage_bound (range (stages p))).

  Variable start : action -> N.
  Variable last : N.
  Hypothesis placed : places p = Some place.
  Hypothesis right : complete p.
  Hypothesis something : 1 <= microbatches p.
  Hypothesis kept : keeps (duration p) (needs p place) (programs p) start.
  Hypothesis over : forall a, In a (actions p) -> start a + duration p a <= last.

  Let ends (a : action) : N := start a + duration p a.

  Lemma waits a b lag : In a (actions p) -> In (b, lag) (needs p place a) -> ends b + lag <= start a.
  Proof.
    intros Ha Hb. unfold actions in Ha. apply in_concat in Ha as (program & Hp & Ha).
    destruct kept as [_ Needs]. now apply (Needs program).
  Qed.

  Lemma gradient_runs s m : s < stages p -> m < microbatches p ->
    In (gradient place s m) (actions p) /\ gradient_takes s <= duration p (gradient place s m).
  Proof.
    intros Hs Hm. unfold gradient, gradient_takes, takes, duration.
    pose proof (runs_iff p place (Action s B m) placed) as R.
    destruct (runs place (Action s B m)); simpl.
    - split; [tauto|lia].
    - split; [|lia]. destruct (runs_backward p right s m Hs Hm) as [(Hb & _)|(_ & Hi & _)]; auto.
      apply R in Hb. discriminate.
  Qed.

  Lemma forward_after s m : N.of_nat s < stages p -> m < microbatches p ->
    head s <= start (Action (N.of_nat s) F m).
  Proof.
    intros Hs Hm. induction s as [|s IH]; [simpl; lia|].
    assert (L : N.of_nat s < stages p) by lia. specialize (IH L).
    assert (H : ends (Action (N.of_nat s) F m) + way p place (N.of_nat s) (N.of_nat s + 1)
                <= start (Action (N.of_nat (S s)) F m)).
    { apply waits; [now apply (runs_forward p right)|]. unfold needs. cbn [does stage microbatch].
      replace (N.of_nat (S s) =? 0) with false by (symmetry; apply N.eqb_neq; lia).
      left. f_equal; [f_equal; lia|]. f_equal; lia. }
    cbn [head]. unfold ends in H. unfold takes.
    change (duration p (Action (N.of_nat s) F m)) with (duration p (Action (N.of_nat s) F 0)) in H. lia.
  Qed.

  Lemma gradient_before s m : N.of_nat s < stages p -> m < microbatches p ->
    ends (gradient place (N.of_nat s) m) + tail s <= last.
  Proof.
    intros Hs Hm. induction s as [|s IH].
    - simpl. rewrite N.add_0_r. apply over. now apply gradient_runs.
    - assert (L : N.of_nat s < stages p) by lia. specialize (IH L).
      destruct (gradient_runs (N.of_nat s) m L Hm) as [G T].
      assert (H : ends (gradient place (N.of_nat (S s)) m) + way p place (N.of_nat s + 1) (N.of_nat s)
                  <= start (gradient place (N.of_nat s) m)).
      { apply waits; auto. unfold gradient at 2.
        destruct (runs place (Action (N.of_nat s) B m)); unfold needs; cbn [does stage microbatch];
          replace (N.of_nat s + 1 <? stages p) with true by (symmetry; apply N.ltb_lt; lia);
          right; left; f_equal; f_equal; lia. }
      cbn [tail]. unfold ends in *. lia.
  Qed.

  Lemma stage_after a : In a (actions p) -> head (N.to_nat (stage a)) <= start a.
  Proof.
    intros Ha. destruct (runs_nothing_else p right a Ha) as [Hs Hm].
    assert (Fwd : head (N.to_nat (stage a)) <= start (Action (stage a) F (microbatch a))).
    { rewrite <- (N2Nat.id (stage a)) at 2. apply forward_after; auto. now rewrite N2Nat.id. }
    destruct a as [s k m]. cbn [stage microbatch] in *. destruct k; auto.
    - assert (H : ends (Action s F m) + 0 <= start (Action s I m)) by (apply waits; auto; now left).
      unfold ends in H. lia.
    - assert (H : ends (Action s I m) + 0 <= start (Action s W m)) by (apply waits; auto; now left).
      assert (Hi : In (Action s I m) (actions p)).
      { destruct (runs_backward p right s m Hs Hm) as [(_ & _ & Hw)|(_ & Hi & _)]; tauto. }
      assert (H' : ends (Action s F m) + 0 <= start (Action s I m)) by (apply waits; auto; now left).
      unfold ends in *. lia.
    - assert (H : ends (Action s F m) + 0 <= start (Action s B m)) by (apply waits; auto; now left).
      unfold ends in H. lia.
  Qed.

  (** ** One thing after the other *)

  Definition total_time (l : list action) : N := fold_right (fun a sum => duration p a + sum) 0 l.

  Lemma later program : (forall ran a b todo, program = ran ++ a :: b :: todo -> ends a <= start b) ->
    forall a rest, program = a :: rest -> forall b, In b rest -> ends a <= start b.
  Proof.
    intros Order. assert (G : forall rest ran a, program = ran ++ a :: rest ->
      forall b, In b rest -> ends a <= start b).
    { induction rest as [|x rest IH]; simpl; [easy|]. intros ran a E b Hb.
      pose proof (Order ran a x rest E) as H. destruct Hb as [->|Hb]; auto.
      specialize (IH (ran ++ [a]) x). rewrite <- app_assoc in IH. specialize (IH E b Hb).
      unfold ends in *. lia. }
    intros a rest E. now apply (G rest [] a).
  Qed.

  Lemma one_after_the_other (some : action -> bool) until program : forall from,
    (forall ran a b todo, program = ran ++ a :: b :: todo -> ends a <= start b) -> from <= until ->
    (forall a, In a program -> some a = true -> from <= start a /\ ends a <= until) ->
    from + total_time (filter some program) <= until.
  Proof.
    induction program as [|a program IH]; simpl; intros from Order Le H; [lia|].
    assert (Order' : forall ran x b todo, program = ran ++ x :: b :: todo -> ends x <= start b).
    { intros ran x b todo E. apply (Order (a :: ran) x b todo). simpl. congruence. }
    destruct (some a) eqn:Sa; [|apply IH; auto].
    destruct (H a (or_introl eq_refl) Sa) as [Ha Ea]. simpl. rewrite N.add_assoc.
    apply IH; auto; [unfold ends in Ea; lia|]. intros b Hb Sb. split; [|now apply H; auto].
    pose proof (later (a :: program) Order a program eq_refl b Hb) as L. unfold ends in L. lia.
  Qed.

  Lemma total_time_app l l' : total_time (l ++ l') = total_time l + total_time l'.
  Proof. induction l; simpl; lia. Qed.

  Lemma total_time_incl l : forall l', NoDup l -> incl l l' -> total_time l <= total_time l'.
  Proof.
    induction l as [|a l IH]; simpl; intros l' ND Sub; [lia|]. inversion ND; subst.
    assert (Ha : In a l') by (apply Sub; now left). apply in_split in Ha as (l1 & l2 & ->).
    assert (G : total_time l <= total_time (l1 ++ l2)).
    { apply IH; auto. intros b Hb. assert (X : In b (l1 ++ a :: l2)) by (apply Sub; now right).
      apply in_app_iff in X as [X|[->|X]]; [apply in_or_app; now left|contradiction|].
      apply in_or_app. now right. }
    rewrite total_time_app in *. simpl. lia.
  Qed.

  (** The work of a stage: of each microbatch, distinct actions [each m] that take [amount]. *)
  Lemma stage_busy s (each : N -> list action) amount from until : s < stages p -> from <= until ->
    (forall m, m < microbatches p -> NoDup (each m) /\ amount <= total_time (each m) /\
       forall a, In a (each m) -> In a (actions p) /\ stage a = s /\ microbatch a = m /\
         from <= start a /\ ends a <= until) ->
    from + microbatches p * amount <= until.
  Proof.
    intros Hs Le Each.
    pose proof (runs_forward p right s 0 Hs ltac:(lia)) as Home.
    apply on_rank_actions in Home as (r & program & Hp & Hin).
    set (all := flat_map each (range (microbatches p))).
    assert (All : forall a, In a all -> In a program /\ from <= start a /\ ends a <= until).
    { intros a Ha. apply in_flat_map in Ha as (m & Hm & Ha). apply in_range in Hm.
      destruct (Each m Hm) as (_ & _ & H). destruct (H a Ha) as (Hact & Es & _ & ? & ?). split; auto.
      apply on_rank_actions in Hact as (r' & program' & Hp' & Ha').
      assert (r' = r) as ->.
      { apply (stage_on_one_rank p right r' r a (Action s F 0)); auto; [now exists program'|now exists program]. }
      congruence. }
    assert (ND : NoDup all).
    { unfold all. assert (G : forall l, NoDup l -> (forall m, In m l -> m < microbatches p) ->
        NoDup (flat_map each l)).
      { induction l as [|m l IH]; simpl; intros Nl Hl; [constructor|]. inversion Nl; subst.
        apply nodup_app. repeat split; auto; [now apply Each; auto|].
        intros a Ha Ha'. apply in_flat_map in Ha' as (m' & Hm' & Ha').
        destruct (Each m (Hl m (or_introl eq_refl))) as (_ & _ & Hone).
        destruct (Each m' (Hl m' (or_intror Hm'))) as (_ & _ & Htwo).
        destruct (Hone a Ha) as (_ & _ & E1 & _), (Htwo a Ha') as (_ & _ & E2 & _). congruence. }
      apply G; [apply range_nodup|]. intros m. apply in_range. }
    assert (Amount : microbatches p * amount <= total_time all).
    { unfold all. clear All ND. assert (G : forall k, k <= microbatches p ->
        k * amount <= total_time (flat_map each (range k))).
      { induction k as [|k IH] using N.peano_ind; [lia|]. intros Hk. rewrite <- N.add_1_r, range_succ.
        rewrite flat_map_app, total_time_app. simpl. rewrite app_nil_r.
        destruct (Each k ltac:(lia)) as (_ & T & _). specialize (IH ltac:(lia)). lia. }
      apply G. lia. }
    set (some := fun a => if in_dec action_eq_dec a all then true else false).
    assert (Sub : total_time all <= total_time (filter some program)).
    { apply total_time_incl; auto. intros a Ha. apply filter_In. split; [now apply All|].
      unfold some. now destruct (in_dec action_eq_dec a all). }
    assert (Long : from + total_time (filter some program) <= until).
    { apply one_after_the_other; auto.
      - intros ran a b todo ->. destruct kept as [Order _]. apply (Order ran a b todo).
        now apply nth_error_In in Hp.
      - intros a _ Sa. unfold some in Sa. destruct (in_dec action_eq_dec a all); [|discriminate].
        now apply All. }
    lia.
  Qed.

  Lemma stage_bound_holds s : s < stages p -> stage_bound s <= last.
  Proof.
    intros Hs. assert (Early : forall m k, m < microbatches p -> In (Action s k m) (actions p) ->
      head (N.to_nat s) <= start (Action s k m)) by (intros m k _ H; now apply (stage_after _ H)).
    assert (Gs : forall m, exists k, (k = I \/ k = B) /\ gradient place s m = Action s k m).
    { intros m. unfold gradient. destruct (runs place _); eauto. }
    assert (Late : forall m, m < microbatches p -> ends (gradient place s m) + tail (N.to_nat s) <= last).
    { intros m Hm. rewrite <- (N2Nat.id s) at 1. apply gradient_before; auto. now rewrite N2Nat.id. }
    assert (After : forall m, m < microbatches p ->
      ends (Action s F m) <= start (gradient place s m)).
    { intros m Hm. destruct (gradient_runs s m Hs Hm) as [G _].
      assert (H : ends (Action s F m) + 0 <= start (gradient place s m)); [|lia].
      apply waits; auto. destruct (Gs m) as (k & [-> | ->] & E); rewrite E; now left. }
    assert (Begun : head (N.to_nat s) + tail (N.to_nat s) <= last).
    { pose proof (runs_forward p right s 0 Hs ltac:(lia)) as Ha.
      pose proof (Early 0 F ltac:(lia) Ha). specialize (Late 0 ltac:(lia)).
      specialize (After 0 ltac:(lia)). unfold ends in *. lia. }
    unfold stage_bound. apply N.max_lub.
    - (* all the work *)
      set (each := fun m => if runs place (Action s B m) then [Action s F m; Action s B m]
                            else [Action s F m; Action s I m; Action s W m]).
      apply (stage_busy s each); auto; [lia|]. intros m Hm.
      pose proof (runs_forward p right s m Hs Hm) as Hf.
      pose proof (runs_iff p place (Action s B m) placed) as R. unfold each, work, takes.
      destruct (runs place (Action s B m)).
      + assert (Hb : In (Action s B m) (actions p)) by now apply R. split; [|split].
        * repeat constructor; simpl; intuition discriminate.
        * simpl. change (duration p (Action s F m)) with (duration p (Action s F 0)).
          change (duration p (Action s B m)) with (duration p (Action s B 0)). lia.
        * intros a [<-|[<-|[]]]; repeat split; auto; now apply over.
      + destruct (runs_backward p right s m Hs Hm) as [(Hb & _)|(_ & Hi & Hw)].
        { apply R in Hb. discriminate. }
        split; [|split].
        * repeat constructor; simpl; intuition discriminate.
        * simpl. change (duration p (Action s F m)) with (duration p (Action s F 0)).
          change (duration p (Action s I m)) with (duration p (Action s I 0)).
          change (duration p (Action s W m)) with (duration p (Action s W 0)). lia.
        * intros a [<-|[<-|[<-|[]]]]; repeat split; auto; now apply over.
    - (* forwards and gradients, and then the way back *)
      assert (H : head (N.to_nat s) + microbatches p * (takes s F + gradient_takes s)
                  <= last - tail (N.to_nat s)); [|lia].
      apply (stage_busy s (fun m => [Action s F m; gradient place s m])); auto; [lia|]. intros m Hm.
      pose proof (runs_forward p right s m Hs Hm) as Hf.
      destruct (gradient_runs s m Hs Hm) as [Hg Tg]. specialize (Late m Hm). specialize (After m Hm).
      destruct (Gs m) as (k & Kinds & E). rewrite E in *. split; [|split].
      + repeat constructor; simpl; destruct Kinds as [-> | ->]; intuition discriminate.
      + simpl. unfold takes at 1. change (duration p (Action s F m)) with (duration p (Action s F 0)). lia.
      + intros a [<-|[<-|[]]]; (repeat split; auto); unfold ends in *; lia.
  Qed.

  (** Whatever the order and the timing. *)
  Theorem makespan_bound_holds : makespan_bound <= last.
  Proof.
    unfold makespan_bound. assert (G : forall l, (forall s, In s l -> s < stages p) ->
      fold_right N.max 0 (map stage_bound l) <= last).
    { induction l as [|s l IH]; simpl; intros H; [lia|]. apply N.max_lub; auto using stage_bound_holds. }
    apply G. intros s. apply in_range.
  Qed.
End Bound.
