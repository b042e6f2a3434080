(** Pipeline schedules (verify/pipeline): what one is, when it is right, and a checker.

    The model is that of schedules without SEND and RECV ("compute only"), over links with latency:
    any number of messages may be under way, a send holds up nobody. Times are in ticks, memory in
    half activations. [check_pipeline] is extracted; [check_pipeline_sound] says what it proves. *)

From Coq Require Import List Arith NArith ZArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics Tables PipelineRun.
Import ListNotations.
Open Scope N_scope.

Record pipeline := Pipeline {
  stages : N;
  microbatches : N;
  forward : list N;                (** durations of F, I, W and B, one per stage *)
  backward : list N;
  weight : list N;
  fused : list N;
  latencies : list (N * N * N);    (** lower rank, higher rank, latency; other links take no time *)
  memory : option (list N);        (** the most each rank can hold *)
  programs : list (list action) }. (** what each rank does, in order *)

Definition actions (p : pipeline) : list action := concat (programs p).

(** Rank [r] does [a]. *)
Definition on_rank (p : pipeline) (r : nat) (a : action) : Prop :=
  exists program, nth_error (programs p) r = Some program /\ In a program.

(** * What is right *)

(** Each stage is on one rank and does, of every microbatch, one F and one backward. *)
Record complete (p : pipeline) : Prop := {
  runs_once : NoDup (actions p);
  runs_nothing_else : forall a, In a (actions p) -> stage a < stages p /\ microbatch a < microbatches p;
  runs_forward : forall s m, s < stages p -> m < microbatches p -> In (Action s F m) (actions p);
  runs_backward : forall s m, s < stages p -> m < microbatches p ->
    (In (Action s B m) (actions p) /\ ~ In (Action s I m) (actions p) /\ ~ In (Action s W m) (actions p))
    \/ (~ In (Action s B m) (actions p) /\ In (Action s I m) (actions p) /\ In (Action s W m) (actions p));
  stage_on_one_rank : forall r r' a b, on_rank p r a -> on_rank p r' b -> stage a = stage b -> r = r';
  nobody_idle : forall program, In program (programs p) -> program <> [] }.

Definition is_loss (p : pipeline) (a : action) : bool :=
  (stage a =? stages p - 1) && match does a with F => true | _ => false end.

(** The last stage computes its losses in the order of the microbatches. *)
Definition losses_in_order (p : pipeline) : Prop :=
  filter (is_loss p) (actions p) = map (Action (stages p - 1) F) (range (microbatches p)).

Definition holds_more (a : action) : Z :=
  match does a with F => 2 | I => -1 | W => -1 | B => -2 end.

(** Half activations that a rank holds when it has done [ran]. *)
Definition held (ran : list action) : Z := fold_right (fun a sum => holds_more a + sum)%Z 0%Z ran.

Definition memory_respected (p : pipeline) : Prop :=
  forall limits, memory p = Some limits ->
  forall r program limit, nth_error (programs p) r = Some program -> nth_error limits r = Some limit ->
  forall ran todo, program = ran ++ todo -> (held ran <= Z.of_N limit)%Z.

(** * What an action needs *)

Definition duration (p : pipeline) (a : action) : N :=
  nth (N.to_nat (stage a))
    match does a with F => forward p | I => backward p | W => weight p | B => fused p end 0.

Definition latency (p : pipeline) (r r' : N) : N :=
  match find (fun l => (fst (fst l) =? N.min r r') && (snd (fst l) =? N.max r r')) (latencies p) with
  | Some l => if r =? r' then 0 else snd l
  | None => 0
  end.

(** The rank of every action, where each is there once. *)
Fixpoint place_program (t : notes N) (r : N) (program : list action) : option (notes N) :=
  match program with
  | [] => Some t
  | a :: program =>
      match noted t a with Some _ => None | None => place_program (note t a r) r program end
  end.

Fixpoint place_all (t : notes N) (r : N) (programs : list (list action)) : option (notes N) :=
  match programs with
  | [] => Some t
  | program :: programs =>
      match place_program t r program with
      | Some t => place_all t (r + 1) programs
      | None => None
      end
  end.

Definition places (p : pipeline) : option (notes N) := place_all blank 0 (programs p).

Section Needs.
  Variables (p : pipeline) (place : notes N).

  Definition runs (a : action) : bool := match noted place a with Some _ => true | None => false end.

  Definition rank_of (s : N) : N := match noted place (Action s F 0) with Some r => r | None => 0 end.

  Definition way (s s' : N) : N := latency p (rank_of s) (rank_of s').

  (** The backward that makes the gradient for the input: fused or not. *)
  Definition gradient (s m : N) : action :=
    if runs (Action s B m) then Action s B m else Action s I m.

  Definition needs (a : action) : list (action * N) :=
    let s := stage a in let m := microbatch a in
    match does a with
    | F => if s =? 0 then [] else [(Action (s - 1) F m, way (s - 1) s)]
    | I | B => (Action s F m, 0) ::
               (if s + 1 <? stages p then [(gradient (s + 1) m, way (s + 1) s)] else [])
    | W => [(Action s I m, 0)]
    end.
End Needs.

(** * Deciding *)

Definition decide_complete (p : pipeline) (place : notes N) : bool :=
  (1 <=? microbatches p) &&
  forallb (fun s => forallb (fun m =>
      runs place (Action s F m) &&
      (let fused := runs place (Action s B m) in
       eqb (runs place (Action s I m)) (negb fused) && eqb (runs place (Action s W m)) (negb fused)))
    (range (microbatches p))) (range (stages p)) &&
  forallb (fun a => (stage a <? stages p) && (microbatch a <? microbatches p) &&
                    match noted place a with
                    | Some r => r =? rank_of place (stage a)
                    | None => false
                    end) (actions p) &&
  forallb (fun program => match program with [] => false | _ => true end) (programs p).

Definition same_action (a b : action) : bool := if action_eq_dec a b then true else false.

Fixpoint same_actions (l l' : list action) : bool :=
  match l, l' with
  | [], [] => true
  | a :: l, b :: l' => same_action a b && same_actions l l'
  | _, _ => false
  end.

Definition decide_losses (p : pipeline) : bool :=
  same_actions (filter (is_loss p) (actions p)) (map (Action (stages p - 1) F) (range (microbatches p))).

Fixpoint within_memory (limit now : Z) (program : list action) : bool :=
  (now <=? limit)%Z &&
  match program with
  | [] => true
  | a :: program => within_memory limit (now + holds_more a) program
  end.

Definition decide_memory (p : pipeline) : bool :=
  match memory p with
  | None => true
  | Some limits =>
      forallb (fun x => within_memory (Z.of_N (snd x)) 0 (fst x)) (combine (programs p) limits)
  end.

Fixpoint most_held (now : Z) (program : list action) : Z :=
  Z.max now match program with [] => now | a :: program => most_held (now + holds_more a) program end.

Inductive pipeline_report :=
| NotComplete
| Deadlock
| Runs (order memory : bool) (makespan : N) (peaks : list Z).

Definition check_pipeline (p : pipeline) : pipeline_report :=
  match places p with
  | None => NotComplete
  | Some place =>
      if decide_complete p place then
        let last := run_pipeline (duration p) (needs p place) (programs p) in
        if is_finished last then
          Runs (decide_losses p) (decide_memory p) (makespan last) (map (most_held 0) (programs p))
        else Deadlock
      else NotComplete
  end.

(** * What the answers mean *)

Lemma place_program_ok program : forall t r t', place_program t r program = Some t' ->
  NoDup program /\ (forall a, In a program -> noted t a = None) /\
  (forall a, noted t' a = if in_dec action_eq_dec a program then Some r else noted t a).
Proof.
  induction program as [|a program IH]; simpl; intros t r t' E.
  - injection E as <-. split; [apply NoDup_nil|split; [easy|auto]].
  - destruct (noted t a) eqn:Na; [discriminate|].
    destruct (IH _ _ _ E) as (ND & Fresh & Same). split; [|split].
    + constructor; auto. intros Ha. specialize (Fresh a Ha). rewrite noted_note in Fresh.
      now destruct (action_eq_dec a a).
    + intros b [<-|Hb]; auto. specialize (Fresh b Hb). rewrite noted_note in Fresh.
      now destruct (action_eq_dec b a).
    + intros b. rewrite Same, noted_note.
      destruct (in_dec action_eq_dec b program), (action_eq_dec b a), (action_eq_dec a b);
        subst; try congruence; auto.
Qed.

Lemma place_all_ok ps : forall t r t', place_all t r ps = Some t' ->
  NoDup (concat ps) /\ (forall a, In a (concat ps) -> noted t a = None) /\
  (forall a q, noted t' a = Some q <->
     noted t a = Some q \/
     exists i program, nth_error ps i = Some program /\ In a program /\ q = r + N.of_nat i).
Proof.
  induction ps as [|program ps IH]; simpl; intros t r t' E.
  - injection E as <-. split; [apply NoDup_nil|split; [easy|]]. intros a q. split; auto.
    intros [|([|i] & program & H & _)]; auto; discriminate.
  - destruct (place_program t r program) as [t1|] eqn:E1; [|discriminate].
    destruct (place_program_ok _ _ _ _ E1) as (ND1 & Fresh1 & Same1).
    destruct (IH _ _ _ E) as (ND & Fresh & Same). split; [|split].
    + apply nodup_app. repeat split; auto. intros a Ha Ha'. specialize (Fresh a Ha').
      rewrite Same1 in Fresh. now destruct (in_dec action_eq_dec a program).
    + intros a Ha. apply in_app_iff in Ha as [Ha|Ha]; auto. specialize (Fresh a Ha).
      rewrite Same1 in Fresh. now destruct (in_dec action_eq_dec a program).
    + intros a q. rewrite Same, Same1. split.
      * intros [H|(i & pr & H & Ha & ->)].
        -- destruct (in_dec action_eq_dec a program); auto. injection H as <-. right.
           exists 0%nat, program. repeat split; auto. lia.
        -- right. exists (S i), pr. repeat split; auto. lia.
      * intros [H|([|i] & pr & H & Ha & ->)].
        -- left. destruct (in_dec action_eq_dec a program) as [Hin|]; auto.
           rewrite Fresh1 in H by auto. discriminate.
        -- left. injection H as ->. destruct (in_dec action_eq_dec a pr); [f_equal; lia|contradiction].
        -- right. exists i, pr. repeat split; auto. lia.
Qed.

Lemma place_program_some program : forall t r, NoDup program ->
  (forall a, In a program -> noted t a = None) -> place_program t r program <> None.
Proof.
  induction program as [|a program IH]; simpl; [congruence|]. intros t r ND Fresh.
  rewrite Fresh by now left. inversion ND; subst. apply IH; auto. intros b Hb.
  rewrite noted_note. destruct (action_eq_dec b a); [subst; contradiction|]. apply Fresh. now right.
Qed.

Lemma place_all_some ps : forall t r, NoDup (concat ps) ->
  (forall a, In a (concat ps) -> noted t a = None) -> place_all t r ps <> None.
Proof.
  induction ps as [|program ps IH]; simpl; [congruence|]. intros t r ND Fresh.
  apply nodup_app in ND as (ND1 & ND2 & Apart).
  destruct (place_program t r program) as [t'|] eqn:P.
  - apply IH; auto. intros a Ha. destruct (place_program_ok _ _ _ _ P) as (_ & _ & Same).
    rewrite Same. destruct (in_dec action_eq_dec a program) as [Hin|]; [now apply Apart in Hin|].
    apply Fresh, in_or_app. now right.
  - exfalso. apply (place_program_some program t r); auto. intros a Ha.
    apply Fresh, in_or_app. now left.
Qed.

Lemma places_ok p place : places p = Some place ->
  NoDup (actions p) /\ forall a r, noted place a = Some r <-> on_rank p (N.to_nat r) a.
Proof.
  intros E. apply place_all_ok in E as (ND & _ & Same). split; auto. intros a r.
  rewrite Same, noted_blank. unfold on_rank. split.
  - intros [H|(i & pr & H & Ha & ->)]; [discriminate|]. exists pr. split; auto.
    now rewrite N.add_0_l, Nat2N.id.
  - intros (pr & H & Ha). right. exists (N.to_nat r), pr. repeat split; auto. lia.
Qed.

Lemma on_rank_actions p a : (exists r, on_rank p r a) <-> In a (actions p).
Proof.
  unfold on_rank, actions. rewrite in_concat. split.
  - intros (r & pr & H & Ha). exists pr. split; auto. now apply nth_error_In in H.
  - intros (pr & H & Ha). apply In_nth_error in H as (r & H). eauto.
Qed.

Lemma runs_iff p place a : places p = Some place -> runs place a = true <-> In a (actions p).
Proof.
  intros E. apply places_ok in E as [_ Same]. rewrite <- on_rank_actions. unfold runs.
  destruct (noted place a) as [r|] eqn:N.
  - split; auto. intros _. exists (N.to_nat r). now apply Same.
  - split; [discriminate|]. intros (r & H). exfalso.
    assert (X : noted place a = Some (N.of_nat r)) by (apply Same; now rewrite Nat2N.id). congruence.
Qed.

Lemma decide_complete_iff p place : places p = Some place -> 1 <= microbatches p ->
  decide_complete p place = true <-> complete p.
Proof.
  intros E Hm. pose proof (places_ok p place E) as [ND Same].
  assert (R : forall a, runs place a = true <-> In a (actions p)) by (intros; now apply runs_iff).
  assert (R' : forall a, runs place a = false <-> ~ In a (actions p)).
  { intros a. rewrite <- R. destruct (runs place a); split; congruence. }
  unfold decide_complete. rewrite !andb_true_iff, !forallb_forall, N.leb_le. split.
  - intros (((_ & Cells) & Each) & Busy). split; auto.
    + intros a Ha. specialize (Each a Ha). rewrite !andb_true_iff, !N.ltb_lt in Each. tauto.
    + intros s m Hs Hm'. apply in_range in Hs, Hm'. specialize (Cells s Hs).
      rewrite forallb_forall in Cells. specialize (Cells m Hm'). apply andb_true_iff in Cells as [H _].
      now apply R.
    + intros s m Hs Hm'. apply in_range in Hs, Hm'. specialize (Cells s Hs).
      rewrite forallb_forall in Cells. specialize (Cells m Hm').
      rewrite !andb_true_iff, !eqb_true_iff in Cells. destruct Cells as (_ & HI & HW).
      destruct (runs place (Action s B m)) eqn:Fu; simpl in HI, HW.
      * left. rewrite R in Fu. rewrite R' in HI, HW. auto.
      * right. rewrite R' in Fu. rewrite R in HI, HW. auto.
    + assert (Home : forall r a, on_rank p r a -> N.of_nat r = rank_of place (stage a)).
      { intros r a Ha. assert (Hin : In a (actions p)) by (apply on_rank_actions; eauto).
        specialize (Each a Hin). apply andb_true_iff in Each as [_ Each].
        assert (X : noted place a = Some (N.of_nat r)) by (apply Same; now rewrite Nat2N.id).
        rewrite X in Each. now apply N.eqb_eq. }
      intros r r' a b Ha Hb Es. apply Nat2N.inj. rewrite (Home r a Ha), (Home r' b Hb). congruence.
    + intros program Hp Z. specialize (Busy program Hp). now subst.
  - intros [_ Else Fwd Bwd One Busy]. repeat split; auto.
    + intros s Hs. apply forallb_forall. intros m Hm'. apply in_range in Hs, Hm'.
      assert (Hf : runs place (Action s F m) = true) by now apply R, Fwd. rewrite Hf. simpl.
      destruct (Bwd s m Hs Hm') as [(Hb & Hi & Hw)|(Hb & Hi & Hw)].
      * apply R in Hb. apply R' in Hi, Hw. now rewrite Hb, Hi, Hw.
      * apply R' in Hb. apply R in Hi, Hw. now rewrite Hb, Hi, Hw.
    + intros a Ha. destruct (Else a Ha) as [Hs Hm']. apply N.ltb_lt in Hs, Hm'. rewrite Hs, Hm'. simpl.
      apply N.ltb_lt in Hs. pose proof (Fwd (stage a) 0 Hs ltac:(lia)) as Hf.
      apply on_rank_actions in Ha as (r & Hr), Hf as (r' & Hr').
      assert (r' = r) by now apply (One r' r _ _ Hr' Hr). subst r'.
      unfold rank_of.
      assert (X : noted place a = Some (N.of_nat r)) by (apply Same; now rewrite Nat2N.id).
      assert (Y : noted place (Action (stage a) F 0) = Some (N.of_nat r))
        by (apply Same; now rewrite Nat2N.id).
      rewrite X, Y. apply N.eqb_refl.
    + intros program Hp. specialize (Busy program Hp). now destruct program.
Qed.

Lemma same_actions_iff l : forall l', same_actions l l' = true <-> l = l'.
Proof.
  induction l as [|a l IH]; intros [|b l']; simpl; try (split; congruence).
  rewrite andb_true_iff, IH. unfold same_action. destruct (action_eq_dec a b); split; try easy.
  - intros [_ ->]. congruence.
  - intros [= _ ->]. auto.
  - intros [= ? _]. congruence.
Qed.

Lemma within_memory_iff limit program : forall now,
  within_memory limit now program = true <->
  forall ran todo, program = ran ++ todo -> (now + held ran <= limit)%Z.
Proof.
  induction program as [|a program IH]; intros now; simpl; rewrite andb_true_iff, Z.leb_le.
  - split.
    + intros [H _] ran todo E. symmetry in E. apply app_eq_nil in E as [-> _]. simpl. lia.
    + intros H. split; auto. specialize (H [] [] eq_refl). simpl in H. lia.
  - rewrite IH. split.
    + intros [H Rest] [|b ran] todo E; simpl; [lia|]. injection E as <- E.
      specialize (Rest ran todo E). lia.
    + intros H. split; [specialize (H [] (a :: program) eq_refl); simpl in H; lia|].
      intros ran todo ->. specialize (H (a :: ran) todo eq_refl). simpl in H. lia.
Qed.

Lemma in_combine_nth {X Y} (l : list X) : forall (l' : list Y) x y,
  In (x, y) (combine l l') <-> exists i, nth_error l i = Some x /\ nth_error l' i = Some y.
Proof.
  induction l as [|a l IH]; intros [|b l'] x y; simpl.
  - split; [easy|]. intros ([|i] & H & _); discriminate.
  - split; [easy|]. intros ([|i] & H & _); discriminate.
  - split; [easy|]. intros ([|i] & _ & H); discriminate.
  - rewrite IH. split.
    + intros [[= -> ->]|(i & H & H')]; [exists 0%nat; auto|exists (S i); auto].
    + intros ([|i] & H & H'); [left; simpl in *; congruence|right; eauto].
Qed.

Lemma decide_memory_iff p : decide_memory p = true <-> memory_respected p.
Proof.
  unfold decide_memory, memory_respected. destruct (memory p) as [limits|].
  - rewrite forallb_forall. split.
    + intros H l [= <-] r program limit Hp Hl ran todo E.
      specialize (H (program, limit)). simpl in H. rewrite <- (Z.add_0_l (held ran)).
      apply (within_memory_iff (Z.of_N limit) program 0) with (todo := todo); auto.
      apply H, in_combine_nth. eauto.
    + intros H [program limit] Hin. apply in_combine_nth in Hin as (r & Hp & Hl). simpl.
      apply within_memory_iff. intros ran todo E. rewrite Z.add_0_l. eapply H; eauto.
  - split; auto. intros _ l [=].
Qed.

(** The run of a pipeline: what an action needs, with the ranks where its programs put it. *)
Definition reaches (p : pipeline) (place : notes N) : standing -> Prop :=
  reached (duration p) (needs p place) (programs p).

(** ** Soundness: what is accepted is complete, in order, within its memory, and cannot get stuck;
    and its makespan is the true one. *)
Theorem check_pipeline_sound p span peaks : check_pipeline p = Runs true true span peaks ->
  complete p /\ losses_in_order p /\ memory_respected p /\
  exists place, places p = Some place /\
    (forall s, reaches p place s -> finished s \/ exists s', goes_on (duration p) (needs p place) s s') /\
    (exists start, keeps (duration p) (needs p place) (programs p) start /\
       forall a, In a (actions p) -> start a + duration p a <= span) /\
    (forall start last, keeps (duration p) (needs p place) (programs p) start ->
       (forall a, In a (actions p) -> start a + duration p a <= last) -> span <= last).
Proof.
  unfold check_pipeline. destruct (places p) as [place|] eqn:E; [|discriminate].
  destruct (decide_complete p place) eqn:C; [|discriminate].
  set (last := run_pipeline (duration p) (needs p place) (programs p)).
  destruct (is_finished last) eqn:Fin; [|discriminate].
  intros [= L M <- _]. apply is_finished_iff in Fin.
  assert (Hm : 1 <= microbatches p).
  { unfold decide_complete in C. rewrite !andb_true_iff, N.leb_le in C. tauto. }
  apply (decide_complete_iff p place E Hm) in C.
  pose proof (run_pipeline_reached (duration p) (needs p place) (programs p)) as R. fold last in R.
  pose proof (runs_once p C) as Once.
  repeat apply conj; auto.
  - now apply same_actions_iff.
  - now apply decide_memory_iff.
  - exists place. repeat apply conj; auto.
    + intros s Hs. now apply (never_stuck _ _ (programs p) last s R Fin).
    + exists (start_in (duration p) last). now apply realised.
    + intros start l K H. now apply (makespan_least _ _ (programs p) last start l Once R Fin K).
Qed.

(** ** The peaks that are reported are the most that each rank ever holds. *)
Definition is_peak (program : list action) (peak : Z) : Prop :=
  (forall ran todo, program = ran ++ todo -> (held ran <= peak)%Z) /\
  exists ran todo, program = ran ++ todo /\ held ran = peak.

Lemma most_held_is_peak program : forall now,
  (forall ran todo, program = ran ++ todo -> (now + held ran <= most_held now program)%Z) /\
  exists ran todo, program = ran ++ todo /\ (now + held ran = most_held now program)%Z.
Proof.
  induction program as [|a program IH]; intros now; simpl.
  - split.
    + intros ran todo E. symmetry in E. apply app_eq_nil in E as [-> _]. simpl. lia.
    + exists [], []. split; auto. simpl. lia.
  - destruct (IH (now + holds_more a)%Z) as [Most (ran & todo & E & Here)]. split.
    + intros [|b ran'] todo' E'; simpl; [lia|]. injection E' as <- E'.
      specialize (Most ran' todo' E'). lia.
    + destruct (Z.max_spec now (most_held (now + holds_more a) program)) as [[_ M]|[_ M]]; rewrite M.
      * exists (a :: ran), todo. split; [now rewrite E|simpl; lia].
      * exists [], (a :: program). split; auto. simpl. lia.
Qed.

Theorem check_pipeline_peaks p order memory span peaks :
  check_pipeline p = Runs order memory span peaks -> Forall2 is_peak (programs p) peaks.
Proof.
  unfold check_pipeline. destruct (places p) as [place|]; [|discriminate].
  destruct (decide_complete p place); [|discriminate].
  destruct (is_finished _); [|discriminate]. intros [= _ _ _ <-].
  induction (programs p) as [|program ps IH]; simpl; constructor; auto.
  destruct (most_held_is_peak program 0%Z) as [Most (ran & todo & E & Here)]. split.
  - intros ran' todo' E'. specialize (Most ran' todo' E'). lia.
  - exists ran, todo. split; auto.
Qed.

(** ** Completeness: what is rejected is wrong. *)
Theorem check_pipeline_complete p : 1 <= microbatches p ->
  match check_pipeline p with
  | NotComplete => ~ complete p
  | Deadlock => exists place s, places p = Some place /\ reaches p place s /\ ~ finished s /\
                  stuck (duration p) (needs p place) s
  | Runs order memory _ _ => (order = false -> ~ losses_in_order p) /\
                             (memory = false -> ~ memory_respected p)
  end.
Proof.
  intros Hm. unfold check_pipeline. destruct (places p) as [place|] eqn:E.
  - destruct (decide_complete p place) eqn:C.
    + set (last := run_pipeline (duration p) (needs p place) (programs p)).
      destruct (is_finished last) eqn:Fin.
      * split; intros Z.
        -- intros H. apply same_actions_iff in H. unfold decide_losses in Z. congruence.
        -- intros H. apply decide_memory_iff in H. congruence.
      * exists place, last. repeat apply conj; auto.
        -- apply run_pipeline_reached.
        -- intros H. apply is_finished_iff in H. congruence.
        -- apply run_pipeline_stuck.
    + intros H. apply (decide_complete_iff p place E Hm) in H. congruence.
  - intros H. apply (place_all_some (programs p) blank 0); auto using noted_blank.
    apply (runs_once p H).
Qed.
