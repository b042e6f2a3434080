(** How a pipeline schedule runs (verify/pipeline/graph.py): every rank works off its program.

    An action starts when the action before it in its rank's program is over and the data it needs
    is there; sends hold up nobody (buffered). Ranks go on in any order ([goes_on]): what can be said
    of all of them is

    - [never_stuck]: if one run ends, no run can get stuck, and each ends after as many steps;
    - [earliest]: no timing that keeps the programs and the needs is earlier anywhere;
    - [realised]: and the times of the run keep them. So its last time is the true makespan. *)

From Coq Require Import List NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics Tables.
Import ListNotations.
Open Scope N_scope.

(** * Actions, and what is noted of them *)

(** Forward; backward for the input, for the weights; both backwards at once. *)
Inductive kind := F | I | W | B.

Record action := Action { stage : N; does : kind; microbatch : N }.

Definition slot (a : action) : N :=
  4 * microbatch a + match does a with F => 0 | I => 1 | W => 2 | B => 3 end.

Lemma action_eq a b : stage a = stage b -> slot a = slot b -> a = b.
Proof.
  destruct a as [s k m], b as [s' k' m']. unfold slot. cbn [stage does microbatch]. intros <- H.
  assert (k = k') by (destruct k, k'; auto; exfalso; lia). subst. f_equal. lia.
Qed.

Definition action_eq_dec (a b : action) : {a = b} + {a <> b}.
Proof. decide equality; try apply N.eq_dec. decide equality. Defined.

Section Notes.
  Context {V : Type}.

  Definition notes := table (A := option V).
  Definition blank : notes := PM.empty _.
  Definition noted (t : notes) (a : action) : option V :=
    read (fun _ _ => None) t (slot a) (stage a).
  Definition note (t : notes) (a : action) (v : V) : notes := write t (slot a) (stage a) (Some v).

  Lemma noted_note t a v b : noted (note t a v) b = if action_eq_dec b a then Some v else noted t b.
  Proof.
    unfold noted, note. rewrite read_write. destruct (action_eq_dec b a) as [->|Ne].
    - apply put_same.
    - apply put_other. destruct (N.eq_dec (slot b) (slot a)); [right|now left].
      intros E. apply Ne. now apply action_eq.
  Qed.

  Lemma noted_blank a : noted blank a = None.
  Proof. unfold noted, read, row, blank. now rewrite !find_empty. Qed.
End Notes.
Arguments notes : clear implicits.

(** * Running *)

Section Run.
  Variable cost : action -> N.
  Variable needs : action -> list (action * N).   (** what it needs, and how long that travels *)

  (** When all of it is there; [None]: some of it has not run. *)
  Fixpoint ready_at (done : notes N) (l : list (action * N)) : option N :=
    match l with
    | [] => Some 0
    | (b, lag) :: l =>
        match noted done b, ready_at done l with
        | Some f, Some t => Some (N.max (f + lag) t)
        | _, _ => None
        end
    end.

  (** When each action that has run was over; of each rank the time and what is left to do. *)
  Definition standing := (notes N * list (N * list action))%type.

  Definition beginning (programs : list (list action)) : standing :=
    (blank, map (fun p => (0, p)) programs).

  Inductive goes_on : standing -> standing -> Prop :=
  | GoesOn done before now a todo after t :
      ready_at done (needs a) = Some t ->
      goes_on (done, before ++ (now, a :: todo) :: after)
              (note done a (N.max now t + cost a),
               before ++ (N.max now t + cost a, todo) :: after).

  Inductive reached (programs : list (list action)) : standing -> Prop :=
  | Begins : reached programs (beginning programs)
  | Continues s s' : reached programs s -> goes_on s s' -> reached programs s'.

  Definition finished (s : standing) : Prop := forall x, In x (snd s) -> snd x = [].

  Definition left_to_do (s : standing) : nat := length (concat (map snd (snd s))).

  Lemma ready_all done l : forall t, ready_at done l = Some t ->
    forall b lag, In (b, lag) l -> exists f, noted done b = Some f /\ f + lag <= t.
  Proof.
    induction l as [|[b lag] l IH]; simpl; [easy|]. intros t E b' lag' H.
    destruct (noted done b) as [f|] eqn:Fb; [|discriminate].
    destruct (ready_at done l) as [t'|]; [|discriminate]. injection E as <-.
    destruct H as [[= <- <-]|H].
    - exists f. split; auto. lia.
    - destruct (IH t' eq_refl b' lag' H) as (f' & ? & ?). exists f'. split; auto. lia.
  Qed.

  Lemma ready_if done l : (forall b lag, In (b, lag) l -> noted done b <> None) ->
    exists t, ready_at done l = Some t.
  Proof.
    induction l as [|[b lag] l IH]; simpl; [eauto|]. intros H.
    destruct (noted done b) as [f|] eqn:E; [|exfalso; eapply H; eauto].
    destruct IH as (t & ->); [|eauto]. intros b' lag' H'. eapply H. eauto.
  Qed.

  (** Every step does one action. *)
  Theorem step_by_step s s' : goes_on s s' -> left_to_do s = S (left_to_do s').
  Proof.
    intros [done before now a todo after t _]. unfold left_to_do. simpl.
    rewrite !map_app, !concat_app, !app_length. simpl. rewrite !app_length. simpl. lia.
  Qed.

  (** ** No deadlock *)

  (** [s'] has done at least what [s] has. *)
  Definition at_least (s s' : standing) : Prop :=
    Forall2 (fun x x' => exists more, snd x = more ++ snd x') (snd s) (snd s') /\
    (forall a, noted (fst s) a <> None -> noted (fst s') a <> None).

  Definition stuck (s : standing) : Prop := forall s', ~ goes_on s s'.

  (** What is done has been noted. *)
  Definition all_noted (programs : list (list action)) (s : standing) : Prop :=
    Forall2 (fun p x => exists ran, p = ran ++ snd x /\
               forall a, In a ran -> noted (fst s) a <> None) programs (snd s).

  Lemma forall2_middle {X Y} (P : X -> Y -> Prop) l before y after :
    Forall2 P l (before ++ y :: after) ->
    exists l1 x l2, l = l1 ++ x :: l2 /\ Forall2 P l1 before /\ P x y /\ Forall2 P l2 after.
  Proof.
    intros H. apply Forall2_app_inv_r in H as (l1 & l2 & H1 & H2 & ->).
    inversion H2; subst. eauto 8.
  Qed.

  Lemma same_length {X Y} (P : X -> Y -> Prop) l l' : Forall2 P l l' -> length l = length l'.
  Proof. induction 1; simpl; congruence. Qed.

  Lemma same_place {X} (l1 : list X) : forall x l2 l1' x' l2', length l1 = length l1' ->
    l1 ++ x :: l2 = l1' ++ x' :: l2' -> x = x'.
  Proof.
    induction l1 as [|a l1 IH]; intros x l2 [|a' l1'] x' l2' L E; try discriminate; simpl in *.
    - congruence.
    - injection E as _ E. injection L as L. eauto.
  Qed.

  Lemma noted_stays (done : notes N) a v b : noted done b <> None -> noted (note done a v) b <> None.
  Proof. intros H. rewrite noted_note. now destruct (action_eq_dec b a). Qed.

  Lemma reached_noted programs s : reached programs s -> all_noted programs s.
  Proof.
    unfold all_noted. induction 1 as [|s s' R IH G].
    - simpl. induction programs; simpl; constructor; auto. exists []. split; [reflexivity|intros ? []].
    - destruct G as [done before now a todo after t E]. simpl in *.
      apply forall2_middle in IH as (l1 & p & l2 & -> & H1 & (ran & -> & H) & H2).
      assert (Keep : forall l l', Forall2 (fun p x => exists ran, p = ran ++ snd x /\
                       forall b, In b ran -> noted done b <> None) l l' ->
                     Forall2 (fun p (x : N * list action) => exists ran, p = ran ++ snd x /\
                       forall b, In b ran -> noted (note done a (N.max now t + cost a)) b <> None) l l').
      { induction 1 as [|? ? ? ? (r & ? & N)]; constructor; auto. exists r. split; auto.
        intros b Hb. now apply noted_stays, N. }
      apply Forall2_app; [now apply Keep|]. constructor; [|now apply Keep].
      exists (ran ++ [a]). simpl. split; [now rewrite <- app_assoc|].
      intros b Hb. apply in_app_iff in Hb as [Hb|[<-|[]]]; [now apply noted_stays, H|].
      rewrite noted_note. now destruct (action_eq_dec a a).
  Qed.

  Lemma stuck_is_last programs s s' : reached programs s -> stuck s -> reached programs s' -> at_least s' s.
  Proof.
    intros R St. pose proof (reached_noted programs s R) as N.
    induction 1 as [|s1 s2 R1 IH G].
    - split; simpl; [|intros a H; now rewrite noted_blank in H].
      unfold all_noted in N. clear R St. induction N as [|p x l l' (ran & E & _)]; simpl; constructor; eauto.
    - destruct IH as [P D]. pose proof (reached_noted programs s1 R1) as N1.
      destruct G as [done before now a todo after t E]. simpl in *.
      destruct s as [sdone sranks]. simpl in *.
      apply Forall2_app_inv_l in P as (b' & r' & Pb & Pr & ->).
      inversion Pr as [|x y ? after' (more & Em) Pa]; subst. simpl in Em.
      destruct more as [|a' more].
      + exfalso. destruct y as [clock left]. simpl in Em. subst left.
        destruct (ready_if sdone (needs a)) as (u & U).
        { intros b lag Hb. apply D. destruct (ready_all _ _ _ E b lag Hb) as (f & Ef & _). congruence. }
        eapply St. apply GoesOn. exact U.
      + injection Em as <- Em. unfold at_least. simpl. split.
        * apply Forall2_app; auto. constructor; eauto.
        * intros b Hb. rewrite noted_note in Hb. destruct (action_eq_dec b a) as [->|]; auto.
          (* [a] has run in [s]: it is in the part of its rank's program that is no longer left *)
          unfold all_noted in N, N1. simpl in N, N1.
          apply forall2_middle in N1 as (p1 & p & p2 & -> & N1b & (ran1 & Ep & _) & _).
          apply forall2_middle in N as (q1 & q & q2 & Eq & Nb & (ran & Eran & Hran) & _).
          assert (L : length p1 = length q1).
          { apply same_length in N1b, Nb, Pb. congruence. }
          assert (p = q) by (eapply same_place; eauto). subst q.
          apply Hran. cbn [snd] in Ep. rewrite Em in Ep.
          assert (C : forall (l l' : list action) x m z, l ++ x :: m ++ z = l' ++ z -> In x l').
          { clear. intros l l' x m z E. rewrite app_comm_cons, app_assoc in E.
            apply app_inv_tail in E. subst. apply in_or_app. right. now left. }
          apply (C ran1 ran a more (snd y)). simpl in Ep. congruence.
  Qed.

  Definition head_ready (done : notes N) (x : N * list action) : bool :=
    match snd x with
    | [] => false
    | a :: _ => match ready_at done (needs a) with Some _ => true | None => false end
    end.

  Definition is_stuck (s : standing) : bool := negb (existsb (head_ready (fst s)) (snd s)).

  Definition is_finished (s : standing) : bool :=
    forallb (fun x => match snd x with [] => true | _ => false end) (snd s).

  Lemma is_finished_iff s : is_finished s = true <-> finished s.
  Proof.
    unfold is_finished, finished. rewrite forallb_forall. split; intros H x Hx; specialize (H x Hx).
    - now destruct (snd x).
    - now rewrite H.
  Qed.

  Lemma is_stuck_iff s : is_stuck s = true <-> stuck s.
  Proof.
    unfold is_stuck, stuck. rewrite negb_true_iff. split.
    - intros H s' G. destruct G as [done before now a todo after t E]. simpl in H.
      rewrite <- not_true_iff_false in H. apply H, existsb_exists. exists (now, a :: todo). split.
      + apply in_or_app. right. now left.
      + unfold head_ready. simpl. now rewrite E.
    - intros H. apply not_true_iff_false. rewrite existsb_exists. intros (x & Hx & R).
      destruct s as [done ranks], x as [now [|a todo]]; unfold head_ready in R; simpl in *;
        [discriminate|].
      destruct (ready_at done (needs a)) as [t|] eqn:E; [|discriminate].
      apply in_split in Hx as (before & after & ->). eapply H. now apply GoesOn with (t := t).
  Qed.

  (** If one run ends, every run ends, whatever the order in which ranks go on. *)
  Theorem never_stuck programs e s : reached programs e -> finished e -> reached programs s ->
    finished s \/ exists s', goes_on s s'.
  Proof.
    intros Re Fe Rs. destruct (is_stuck s) eqn:S.
    - left. apply is_stuck_iff in S. destruct (stuck_is_last programs s e Rs S Re) as [P _].
      intros x Hx. unfold finished in Fe.
      induction P as [|y z l l' (more & E) P IH]; [easy|]. destruct Hx as [->|Hx].
      + rewrite Fe in E by now left. symmetry in E. now apply app_eq_nil in E.
      + apply IH; auto. intros w Hw. apply Fe. now right.
    - right. unfold is_stuck in S. apply negb_false_iff, existsb_exists in S as (x & Hx & R).
      destruct s as [done ranks], x as [now [|a todo]]; unfold head_ready in R; simpl in *;
        [discriminate|].
      destruct (ready_at done (needs a)) as [t|] eqn:E; [|discriminate].
      apply in_split in Hx as (before & after & ->). eexists. now apply GoesOn with (t := t).
  Qed.

  (** ** Times *)

  (** A timing that keeps the order of every program and waits for what is needed. *)
  Definition keeps (programs : list (list action)) (start : action -> N) : Prop :=
    (forall ran a b todo, In (ran ++ a :: b :: todo) programs -> start a + cost a <= start b) /\
    (forall p a b lag, In p programs -> In a p -> In (b, lag) (needs a) ->
       start b + cost b + lag <= start a).

  Lemma ready_early done l start t :
    ready_at done l = Some t -> (forall a f, noted done a = Some f -> f <= start a + cost a) ->
    forall bound, (forall b lag, In (b, lag) l -> start b + cost b + lag <= bound) -> t <= bound.
  Proof.
    intros E D bound. revert t E. induction l as [|[b lag] l IH]; simpl; intros t E H.
    - injection E as <-. lia.
    - destruct (noted done b) as [f|] eqn:Fb; [|discriminate].
      destruct (ready_at done l) as [t'|]; [|discriminate]. injection E as <-.
      specialize (IH t' eq_refl ltac:(eauto)). pose proof (D b f Fb).
      specialize (H b lag (or_introl eq_refl)). lia.
  Qed.

  Theorem earliest programs start s : keeps programs start -> reached programs s ->
    forall a f, noted (fst s) a = Some f -> f <= start a + cost a.
  Proof.
    intros [Order Needs] R.
    enough (G : (forall a f, noted (fst s) a = Some f -> f <= start a + cost a) /\
      Forall2 (fun p (x : N * list action) => exists ran, p = ran ++ snd x /\
        match snd x with [] => True | a :: _ => fst x <= start a end) programs (snd s)) by apply G.
    induction R as [|s s' R [D P] G].
    - split; simpl; [intros a f; now rewrite noted_blank|]. clear.
      induction programs as [|p l IH]; simpl; constructor; auto. exists []. split; auto.
      simpl. destruct p; auto. lia.
    - destruct G as [done before now a todo after t E]. simpl in *.
      apply forall2_middle in P as (l1 & p & l2 & -> & H1 & (ran & Ep & H) & H2). simpl in Ep, H.
      assert (Hp : In p (l1 ++ p :: l2)) by (apply in_or_app; right; now left).
      assert (T : t <= start a).
      { apply (ready_early done (needs a) start t E D). intros b lag Hb. apply (Needs p); auto.
        rewrite Ep. apply in_or_app. right. now left. }
      split.
      + intros b f. rewrite noted_note. destruct (action_eq_dec b a) as [->|]; [|apply D].
        intros [= <-]. lia.
      + apply Forall2_app; auto. constructor; auto. exists (ran ++ [a]). simpl.
        split; [now rewrite <- app_assoc|]. destruct todo as [|b todo]; auto.
        assert (start a + cost a <= start b); [|lia]. apply (Order ran a b todo). now rewrite <- Ep.
  Qed.

  (** [ran] was worked off from time [c] to [c']. *)
  Fixpoint worked_off (done : notes N) (c : N) (ran : list action) (c' : N) : Prop :=
    match ran with
    | [] => c = c'
    | a :: ran => exists t, ready_at done (needs a) = Some t /\
    noted done a = Some (N.max c t + cost a) /\ worked_off done (N.max c t + cost a) ran c'
    end.

  Lemma ready_stays done l a v : noted done a = None -> forall t, ready_at done l = Some t ->
    ready_at (note done a v) l = Some t.
  Proof.
    intros Fresh. induction l as [|[b lag] l IH]; simpl; auto. intros t.
    destruct (noted done b) as [f|] eqn:Fb; [|discriminate].
    destruct (ready_at done l) as [t'|]; [|discriminate]. intros E.
    rewrite noted_note. destruct (action_eq_dec b a) as [->|]; [congruence|].
    now rewrite Fb, (IH t' eq_refl).
  Qed.

  Lemma worked_off_stays done a v ran : noted done a = None -> forall c c',
    worked_off done c ran c' -> worked_off (note done a v) c ran c'.
  Proof.
    intros Fresh. induction ran as [|b ran IH]; simpl; auto. intros c c' (t & E & Nb & Hw).
    exists t. split; [now apply ready_stays|]. split; auto. rewrite noted_note.
    destruct (action_eq_dec b a) as [->|]; [congruence|auto].
  Qed.

  Lemma worked_off_app done ran a t : forall c c', worked_off done c ran c' ->
    ready_at done (needs a) = Some t -> noted done a = Some (N.max c' t + cost a) ->
    worked_off done c (ran ++ [a]) (N.max c' t + cost a).
  Proof.
    induction ran as [|b ran IH]; simpl; intros c c' Hw E Na.
    - subst. eauto.
    - destruct Hw as (u & Eu & Nb & Hw). exists u. auto.
  Qed.

  (** What a run has noted: all of it happened as it says. *)
  Definition faithful (programs : list (list action)) (s : standing) : Prop :=
    Forall2 (fun p x => exists ran, p = ran ++ snd x /\ worked_off (fst s) 0 ran (fst x))
      programs (snd s) /\
    NoDup (concat (map snd (snd s))) /\
    (forall a, noted (fst s) a <> None -> ~ In a (concat (map snd (snd s)))) /\
    (forall a f, noted (fst s) a = Some f -> In a (concat programs) /\ cost a <= f).

  Lemma reached_faithful programs s : NoDup (concat programs) -> reached programs s ->
    faithful programs s.
  Proof.
    intros Once. induction 1 as [|s s' R (P & ND & Left & Has) G].
    - unfold beginning. repeat apply conj; simpl.
      + clear. induction programs; simpl; constructor; auto. exists []. split; reflexivity.
      + rewrite map_map. simpl. now rewrite map_id.
      + intros a H. now rewrite noted_blank in H.
      + intros a f H. now rewrite noted_blank in H.
    - destruct G as [done before now a todo after t E]. simpl in *.
      rewrite map_app, concat_app in ND, Left. simpl in ND, Left.
      assert (Fresh : noted done a = None).
      { destruct (noted done a) eqn:Na; auto. exfalso. apply (Left a); [congruence|].
        apply in_or_app. right. now left. }
      apply forall2_middle in P as (l1 & p & l2 & -> & H1 & (ran & Ep & Hw) & H2). simpl in Ep, Hw.
      assert (Stay : forall l l', Forall2 (fun p x => exists ran, p = ran ++ snd x /\
                       worked_off done 0 ran (fst x)) l l' ->
                     Forall2 (fun p (x : N * list action) => exists ran, p = ran ++ snd x /\
                       worked_off (note done a (N.max now t + cost a)) 0 ran (fst x)) l l').
      { induction 1 as [|? ? ? ? (r & ? & Hr)]; constructor; auto. exists r. split; auto.
        now apply worked_off_stays. }
      unfold faithful. simpl. rewrite map_app, concat_app. simpl. repeat apply conj.
      + apply Forall2_app; [now apply Stay|]. constructor; [|now apply Stay].
        exists (ran ++ [a]). simpl. split; [now rewrite <- app_assoc|].
        apply worked_off_app; [now apply worked_off_stays|now apply ready_stays|].
        rewrite noted_note. now destruct (action_eq_dec a a).
      + apply NoDup_remove_1 in ND. exact ND.
      + intros b. rewrite noted_note. destruct (action_eq_dec b a) as [->|].
        * intros _. now apply NoDup_remove_2 in ND.
        * intros Hb Hin. apply (Left b Hb). apply in_app_iff in Hin as [Hin|Hin];
            apply in_or_app; [now left|right; now right].
      + intros b f. rewrite noted_note. destruct (action_eq_dec b a) as [->|]; [|apply Has].
        intros [= <-]. split; [|lia]. rewrite concat_app. apply in_or_app. right. simpl.
        rewrite Ep. apply in_or_app. left. apply in_or_app. right. now left.
  Qed.

  (** When an action starts in a run. *)
  Definition start_in (s : standing) (a : action) : N :=
    match noted (fst s) a with Some f => f - cost a | None => 0 end.

  Definition makespan (s : standing) : N := fold_right N.max 0 (map fst (snd s)).

  Lemma worked_off_order done a b todo : forall ran c c',
    worked_off done c (ran ++ a :: b :: todo) c' ->
    exists f g, noted done a = Some f /\ noted done b = Some g /\ f + cost b <= g.
  Proof.
    induction ran as [|x ran IH]; simpl; intros c c'.
    - intros (t & _ & Na & u & _ & Nb & _). eexists _, _. split; [exact Na|]. split; [exact Nb|]. lia.
    - intros (t & _ & _ & H). eauto.
  Qed.

  Lemma worked_off_all done ran : forall c c' a, worked_off done c ran c' -> In a ran ->
    c <= c' /\ exists t f, ready_at done (needs a) = Some t /\ noted done a = Some f /\
    t + cost a <= f /\ f <= c'.
  Proof.
    induction ran as [|x ran IH]; simpl; intros c c' a H Ha; [easy|].
    destruct H as (t & E & Nx & H).
    assert (L : N.max c t + cost x <= c').
    { destruct ran as [|y ran]; [simpl in H; lia|]. destruct (IH _ _ y H (or_introl eq_refl)). lia. }
    destruct Ha as [->|Ha].
    - split; [lia|]. exists t, (N.max c t + cost a). repeat split; auto; lia.
    - destruct (IH _ _ a H Ha) as (? & Rest). split; auto. lia.
  Qed.

  Lemma worked_off_last done ran : forall c c', worked_off done c ran c' ->
    c' = c \/ exists a, noted done a = Some c'.
  Proof.
    induction ran as [|x ran IH]; simpl; intros c c' H; auto.
    destruct H as (t & _ & Nx & H). destruct (IH _ _ H) as [->|]; eauto.
  Qed.

  Lemma finished_program programs s : faithful programs s -> finished s ->
    forall p, In p programs -> exists c, worked_off (fst s) 0 p c /\ c <= makespan s.
  Proof.
    intros (P & _) Fin p Hp. unfold makespan, finished in *. revert Fin.
    induction P as [|q x l l' (ran & Eq & Hw) P IH]; simpl; [easy|]. intros Fin.
    destruct Hp as [->|Hp].
    - exists (fst x). rewrite Fin, app_nil_r in Eq by now left. subst. split; auto. lia.
    - destruct IH as (c & ? & ?); auto. exists c. split; auto. lia.
  Qed.

  (** The times of a run that has ended keep the programs and the needs. *)
  Theorem realised programs s : NoDup (concat programs) -> reached programs s -> finished s ->
    keeps programs (start_in s) /\
    forall a, In a (concat programs) -> start_in s a + cost a <= makespan s.
  Proof.
    intros Once R Fin. pose proof (reached_faithful programs s Once R) as Fa.
    pose proof Fa as (_ & _ & _ & Has). unfold start_in. split; [split|].
    - intros ran a b todo Hp. destruct (finished_program programs s Fa Fin _ Hp) as (c & Hw & _).
      apply worked_off_order in Hw as (f & g & Na & Nb & L). rewrite Na, Nb.
      destruct (Has a f Na). lia.
    - intros p a b lag Hp Ha Hb. destruct (finished_program programs s Fa Fin p Hp) as (c & Hw & _).
      destruct (worked_off_all _ _ _ _ a Hw Ha) as (_ & t & f & E & -> & L & _).
      destruct (ready_all _ _ _ E b lag Hb) as (g & Ng & L'). rewrite Ng.
      destruct (Has b g Ng). lia.
    - intros a Ha. apply in_concat in Ha as (p & Hp & Ha).
      destruct (finished_program programs s Fa Fin p Hp) as (c & Hw & Lc).
      destruct (worked_off_all _ _ _ _ a Hw Ha) as (_ & t & f & _ & -> & L & Lf). lia.
  Qed.

  (** And nothing that keeps them is over before. *)
  Theorem makespan_least programs s start last : NoDup (concat programs) ->
    reached programs s -> finished s ->
    keeps programs start -> (forall a, In a (concat programs) -> start a + cost a <= last) ->
    makespan s <= last.
  Proof.
    intros Once R Fin K H. pose proof (reached_faithful programs s Once R) as (P & _ & _ & Has).
    pose proof (earliest programs start s K R) as Early.
    assert (One : makespan s = 0 \/ exists a, noted (fst s) a = Some (makespan s)).
    { unfold makespan. clear - P. induction P as [|p x l l' (ran & _ & Hw) P IH]; simpl; auto.
      apply worked_off_last in Hw.
      destruct (N.max_spec (fst x) (fold_right N.max 0 (map fst l'))) as [[_ ->]|[_ ->]]; auto. }
    destruct One as [->|(a & Na)]; [lia|]. destruct (Has a _ Na) as [Hin _].
    specialize (Early a _ Na). specialize (H a Hin). lia.
  Qed.

  (** ** A run, computed *)

  (** One rank goes on as long as it can. *)
  Fixpoint advance (done : notes N) (now : N) (todo : list action) : notes N * (N * list action) :=
    match todo with
    | [] => (done, (now, []))
    | a :: rest =>
        match ready_at done (needs a) with
        | None => (done, (now, todo))
        | Some t => let f := N.max now t + cost a in advance (note done a f) f rest
        end
    end.

  (** Every rank in turn. *)
  Fixpoint sweep (done : notes N) (ranks : list (N * list action)) : standing :=
    match ranks with
    | [] => (done, [])
    | (now, todo) :: ranks =>
        let (done, x) := advance done now todo in
        let (done, ranks) := sweep done ranks in (done, x :: ranks)
    end.

  Fixpoint sweeps (most : nat) (s : standing) : standing :=
    match most with
    | O => s
    | S most => if is_stuck s then s else sweeps most (sweep (fst s) (snd s))
    end.

  Definition run_pipeline (programs : list (list action)) : standing :=
    sweeps (S (length (concat programs))) (beginning programs).

  Lemma advance_reached programs before after todo : forall done now,
    reached programs (done, before ++ (now, todo) :: after) ->
    reached programs (fst (advance done now todo), before ++ snd (advance done now todo) :: after).
  Proof.
    induction todo as [|a todo IH]; simpl; intros done now R; auto.
    destruct (ready_at done (needs a)) as [t|] eqn:E; auto. apply IH.
    eapply Continues; [exact R|]. now constructor.
  Qed.

  Lemma sweep_reached programs ranks : forall before done, reached programs (done, before ++ ranks) ->
    reached programs (fst (sweep done ranks), before ++ snd (sweep done ranks)).
  Proof.
    induction ranks as [|[now todo] ranks IH]; simpl; intros before done R; auto.
    apply advance_reached in R. destruct (advance done now todo) as [done' x]. simpl in R.
    specialize (IH (before ++ [x]) done'). rewrite <- app_assoc in IH. specialize (IH R).
    destruct (sweep done' ranks) as [done'' ranks']. simpl in *. now rewrite <- app_assoc in IH.
  Qed.

  Theorem run_pipeline_reached programs : reached programs (run_pipeline programs).
  Proof.
    unfold run_pipeline. generalize (S (length (concat programs))). intros most.
    assert (G : forall s, reached programs s -> reached programs (sweeps most s)).
    { induction most as [|most IH]; simpl; auto. intros s R. destruct (is_stuck s); auto.
      apply IH. destruct s as [done ranks]. simpl.
      pose proof (sweep_reached programs ranks [] done R) as R'. simpl in R'.
      now destruct (sweep done ranks). }
    apply G. constructor.
  Qed.

  (** ** It goes on until it is stuck *)

  (** What has been noted in [done] is noted in [done'], too. *)
  Definition more_done (done done' : notes N) : Prop :=
    forall a, noted done a <> None -> noted done' a <> None.

  Lemma ready_with_more done done' l : more_done done done' ->
    ready_at done l <> None -> ready_at done' l <> None.
  Proof.
    intros M H. destruct (ready_at done l) as [t|] eqn:E; [|contradiction].
    destruct (ready_if done' l) as (t' & ->); [|discriminate].
    intros b lag Hb. apply M. destruct (ready_all _ _ _ E b lag Hb) as (f & -> & _). discriminate.
  Qed.

  Lemma head_ready_with_more done done' x : more_done done done' ->
    head_ready done x = true -> head_ready done' x = true.
  Proof.
    intros M. unfold head_ready. destruct (snd x) as [|a todo]; auto.
    pose proof (ready_with_more done done' (needs a) M) as R.
    destruct (ready_at done (needs a)); [|discriminate]. intros _.
    destruct (ready_at done' (needs a)); auto. exfalso. now apply R.
  Qed.

  Lemma advance_progress todo : forall done now, let (done', x) := advance done now todo in
    more_done done done' /\ (length (snd x) <= length todo)%nat /\
    (head_ready done (now, todo) = true -> (length (snd x) < length todo)%nat).
  Proof.
    induction todo as [|a todo IH]; simpl; intros done now.
    - repeat split; [intros a H; exact H|auto|discriminate].
    - unfold head_ready. simpl. destruct (ready_at done (needs a)) as [t|].
      + specialize (IH (note done a (N.max now t + cost a)) (N.max now t + cost a)).
        destruct (advance _ _ todo) as [done' x]. destruct IH as (M & L & _).
        repeat split; [|lia|lia]. intros b Hb. now apply M, noted_stays.
      + repeat split; [intros b H; exact H|simpl; lia|discriminate].
  Qed.

  Lemma sweep_progress ranks : forall done, let s := sweep done ranks in
    (left_to_do s <= left_to_do (done, ranks))%nat /\
    (existsb (head_ready done) ranks = true -> left_to_do s < left_to_do (done, ranks))%nat.
  Proof.
    unfold left_to_do. induction ranks as [|[now todo] ranks IH]; simpl; intros done.
    - split; [lia|discriminate].
    - pose proof (advance_progress todo done now) as A.
      destruct (advance done now todo) as [done' x]. destruct A as (M & L & Less).
      specialize (IH done'). destruct (sweep done' ranks) as [done'' ranks']. simpl in *.
      rewrite !app_length. destruct IH as [Le Lt]. split; [lia|].
      intros H. apply orb_true_iff in H as [H|H]; [specialize (Less H); lia|].
      enough (length (concat (map snd ranks')) < length (concat (map snd ranks)))%nat by lia.
      apply Lt. apply existsb_exists in H as (y & Hy & H). apply existsb_exists. exists y.
      split; auto. now apply (head_ready_with_more done).
  Qed.

  Lemma sweeps_stuck most : forall s, (left_to_do s < most)%nat -> is_stuck (sweeps most s) = true.
  Proof.
    induction most as [|most IH]; intros s H; [lia|]. simpl.
    destruct (is_stuck s) eqn:S; auto. apply IH.
    destruct s as [done ranks]. unfold is_stuck in S. simpl in S. apply negb_false_iff in S.
    pose proof (sweep_progress ranks done) as [_ P]. specialize (P S). simpl. lia.
  Qed.

  (** The computed run does not end before it is finished or stuck. *)
  Theorem run_pipeline_stuck programs : stuck (run_pipeline programs).
  Proof.
    apply is_stuck_iff. unfold run_pipeline. apply sweeps_stuck.
    unfold left_to_do, beginning. simpl. rewrite map_map. simpl. rewrite map_id. lia.
  Qed.
End Run.
