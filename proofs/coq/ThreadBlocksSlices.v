(** Messages that travel in slices.

    In some protocols a message is several slices, which are waited for one by one: slice [j] of
    message [k] waits for slice [j] of message [k - d], so a slot can be used again while its later
    slices are still to be received. [slice] says to which slice the chunk at a position of a message
    belongs; it may cut messages anywhere between chunks. (Cuts inside chunks need no other theory:
    split each chunk into as many equal cells as the finest cut asks for, and call the cells chunks.
    A message then holds so many times more chunks, and what a block does is the same cell by cell.)

    - Whatever is done with slices and [d] slots can be done without slices and with [d + 1] slots
      ([slices_within]).
    - With slices nobody stops earlier than without, with the same [d] slots ([slices_get_further]).
    - So a program that is right with [d] slots and with [d + 1] is right with slices and [d] slots
      ([right_with_slices]).

    The first two hold for every rule that lies between those of [d] and [d + 1] slots ([Rule]), so
    also where a message that is not full waits for slices that it does not have. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Semantics ThreadBlocks ThreadBlocksRuns.
Import ListNotations.
Open Scope N_scope.

(** * Events that have been done *)

Section SoFar.
  Variable blocks : list (list event).

  (** How many of the events that have been done pass a test. *)
  Definition so_far {V} (test : event -> bool) (s : state V) : N :=
    fold_right N.add 0
      (map (fun b => counted blocks test b (now s b)) (range (N.of_nat (length blocks)))).

  Lemma counted_none (test : event -> bool) b n :
    (forall i e, event_at blocks b i e -> test e = false) -> counted blocks test b n = 0.
  Proof.
    intros H. unfold counted. replace (filter test _) with (@nil event); auto.
    assert (G : forall l : list event, (forall e, In e l -> test e = false) -> filter test l = []).
    { induction l as [|y l IH]; intros Hl; simpl; auto. rewrite (Hl y) by now left.
      apply IH. intros e I. apply Hl. now right. }
    symmetry. apply G. intros e I.
    assert (I' : In e (nth (N.to_nat b) blocks [])).
    { rewrite <- (firstn_skipn (N.to_nat n)). apply in_or_app. now left. }
    apply In_nth_error in I' as (i & E). apply (H (N.of_nat i) e). unfold event_at.
    now rewrite Nat2N.id.
  Qed.

  Lemma so_far_owner {V} test owner (s : state V) :
    (forall b i e, event_at blocks b i e -> test e = true -> b = owner) ->
    so_far test s = counted blocks test owner (now s owner).
  Proof.
    intros Own. unfold so_far.
    assert (Zero : forall b, b <> owner -> counted blocks test b (now s b) = 0).
    { intros b Ne. apply counted_none. intros i e A. destruct (test e) eqn:T; auto.
      destruct Ne. eauto. }
    assert (Sum : forall l, NoDup l ->
      fold_right N.add 0 (map (fun b => counted blocks test b (now s b)) l) =
      if existsb (N.eqb owner) l then counted blocks test owner (now s owner) else 0).
    { induction 1 as [|b l Out D IH]; simpl; auto.
      rewrite IH. destruct (N.eqb_spec owner b) as [<-|Ne]; simpl.
      - replace (existsb (N.eqb owner) l) with false; [lia|].
        symmetry. apply not_true_is_false. intros H. apply existsb_exists in H as (y & I & E).
        apply N.eqb_eq in E. congruence.
      - rewrite Zero by auto. lia. }
    rewrite (Sum _ (range_nodup _)). destruct (existsb _ _) eqn:E; auto.
    symmetry. apply counted_none. intros i e A. exfalso.
    apply not_true_iff_false in E. apply E. apply existsb_exists. exists owner.
    split; [|apply N.eqb_refl]. apply in_range. apply event_here in A. unfold length_of in A.
    destruct (N.lt_ge_cases owner (N.of_nat (length blocks))) as [L|L]; auto.
    rewrite nth_overflow in A by lia. simpl in A. lia.
  Qed.
End SoFar.

(** * Any rule between [d] and [d + 1] slots *)

Section Rule.
  Context {V : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
  Variables (blocks : list (list event)) (size : N) (d : N).

  (** What an event waits for besides the event before it, counters and what it receives. *)
  Variable rule : state V -> event -> Prop.

  Definition ready_by (s : state V) (b : N) (e : event) : Prop :=
    event_at blocks b (now s b) e /\
    (forall c v, In (c, v) (awaits e) -> v <= level s c) /\
    (forall f, takes e = Some f -> queue s f <> []) /\
    rule s e.

  Inductive reached_by : state V -> Prop :=
  | Started_by : reached_by (initial start)
  | Went_by s b e : reached_by s -> ready_by s b e -> reached_by (next plus unit size s b e).

  Notation reached d := (reached plus unit start blocks size (Some d)).
  Notation ready d := (ready blocks size (Some d)).

  Hypothesis waits_enough : forall s b e, reached (d + 1) s -> event_at blocks b (now s b) e ->
    rule s e -> forall f, puts e = Some f -> opens size e = true ->
    begun s f < received s f + (d + 1).

  Theorem within s : reached_by s -> reached (d + 1) s.
  Proof.
    induction 1 as [|s b e R IH (A & Fl & Got & Hr)]; constructor; auto.
    repeat split; auto. intros f d' P O E. injection E as <-. eauto.
  Qed.

  Lemma ready_within s b e : reached_by s -> ready_by s b e -> ready (d + 1) s b e.
  Proof.
    intros R (A & Fl & Got & Hr). repeat split; auto.
    intros f d' P O E. injection E as <-. apply within in R. eauto.
  Qed.

  Variables (putter taker : N -> N).
  Hypothesis one_putter : forall b i e f, event_at blocks b i e -> puts e = Some f -> b = putter f.
  Hypothesis one_taker : forall b i e f, event_at blocks b i e -> takes e = Some f -> b = taker f.

  Hypothesis waits_no_more : forall s t b e, reached (d + 1) s -> reached d t -> ready d t b e ->
    now s b = now t b -> (forall c, now t c <= now s c) -> rule s e.

  Theorem further s : reached_by s -> (forall b e, ~ ready_by s b e) ->
    forall t, reached d t -> forall b, now t b <= now s b.
  Proof.
    intros Bs Stop t Rt. pose proof (within s Bs) as Rs.
    induction Rt as [|t b e Rt IH H]; intros c; [simpl; lia|].
    simpl. destruct (N.eqb_spec c b) as [->|]; auto.
    destruct (N.lt_ge_cases (now t b) (now s b)) as [L|G]; [lia|]. exfalso.
    assert (E : now t b = now s b) by (specialize (IH b); lia).
    apply (Stop b e). pose proof H as (A & Fl & Got & _). rewrite E in A. repeat split.
    - exact A.
    - intros z v I. destruct (N.eq_dec v 0) as [->|P]; [lia|].
      specialize (Fl z v I).
      apply (level_spec plus unit start blocks size (Some d) t Rt z v ltac:(lia))
        in Fl as (b' & i & e' & u & Lt & A' & I' & Le).
      apply (level_spec plus unit start blocks size (Some (d + 1)) s Rs z v ltac:(lia)).
      exists b', i, e', u. repeat split; auto. specialize (IH b'). lia.
    - intros f T. specialize (Got f T). pose proof (one_taker _ _ _ _ A T) as Eb.
      pose proof (in_flight plus unit start blocks size (Some d) putter taker one_putter one_taker
                    t Rt f) as Ft.
      pose proof (in_flight plus unit start blocks size (Some (d + 1)) putter taker one_putter
                    one_taker s Rs f) as Fs.
      rewrite <- Eb in Ft, Fs. rewrite <- E in Fs.
      pose proof (count_mono blocks (fun e => is (puts e) f) (putter f) _ _ (IH (putter f))).
      destruct (queue t f) as [|v l]; [congruence|]. simpl length in Ft.
      destruct (queue s f); [simpl length in Fs; lia|discriminate].
    - eapply waits_no_more; eauto.
  Qed.
End Rule.

(** Who is ready can be found out, if the rule can. *)
Section Found.
  Context {V : Type} (blocks : list (list event)) (rule : state V -> event -> Prop).
  Hypothesis rule_dec : forall s e, rule s e \/ ~ rule s e.

  Lemma ready_by_dec s b :
    (exists e, ready_by blocks rule s b e) \/ (forall e, ~ ready_by blocks rule s b e).
  Proof.
    unfold ready_by, event_at.
    destruct (nth_error (nth (N.to_nat b) blocks []) (N.to_nat (now s b))) as [e|] eqn:A.
    2: right; intros e (A' & _); discriminate.
    destruct (waits_met_dec s (awaits e)) as [W|W].
    2: right; intros e' (A' & W' & _); injection A' as ->; auto.
    assert (T : (forall f, takes e = Some f -> queue s f <> []) \/
                ~ (forall f, takes e = Some f -> queue s f <> [])).
    { destruct (takes e) as [f|]; [|left; discriminate].
      destruct (queue s f) as [|v l] eqn:Q.
      - right. intros H. now apply (H f).
      - left. intros g E. injection E as <-. congruence. }
    destruct T as [T|T]; [|right; intros e' (A' & _ & T' & _); injection A' as ->; auto].
    destruct (rule_dec s e) as [R|R]; [|right; intros e' (A' & _ & _ & R'); injection A' as ->; auto].
    left. exists e. auto.
  Qed.

  Lemma someone_ready_by s :
    (exists b e, ready_by blocks rule s b e) \/ (forall b e, ~ ready_by blocks rule s b e).
  Proof.
    assert (G : forall n, (exists b e, ready_by blocks rule s b e) \/
      (forall b, b < N.of_nat n -> forall e, ~ ready_by blocks rule s b e)).
    { induction n as [|n [IH|IH]]; [right; lia|now left|].
      destruct (ready_by_dec s (N.of_nat n)) as [(e & H)|H]; [left; eauto|].
      right. intros b L. destruct (N.eq_dec b (N.of_nat n)) as [->|]; auto. apply IH. lia. }
    destruct (G (length blocks)) as [|H]; auto. right. intros b e R.
    destruct (N.lt_ge_cases b (N.of_nat (length blocks))) as [L|L]; [now apply (H b L e)|].
    destruct R as (A & _). apply event_here in A. unfold length_of in A.
    rewrite far_block in A by exact L. simpl in A. lia.
  Qed.
End Found.

(** * Slices *)

Section Slices.
  Variables (size : N) (slice : N -> N).
  Hypothesis rising : forall q, slice q <= slice (q + 1).
  Hypothesis first_slice : slice 0 = 0.

  (** Where in its message the chunk of an event is. *)
  Definition position (e : event) : N := offset e mod size.

  Definition first_of_slice (e : event) : bool :=
    opens size e || (slice (position e - 1) <? slice (position e)).

  (** Whether with this event slice [j] of its message, and those before it, are received. *)
  Definition closes_slice (j : N) (e : event) : bool :=
    (slice (position e) <=? j) && (closes size e || (j <? slice (position e + 1))).

  Definition closes_from (f : N) (e : event) : bool := is (takes e) f && closes size e.
  Definition closes_slice_from (f j : N) (e : event) : bool := is (takes e) f && closes_slice j e.

  (** Of so many messages of a FIFO slice [j] has been received. *)
  Definition received_slice {V} (blocks : list (list event)) (s : state V) (f j : N) : N :=
    so_far blocks (closes_slice_from f j) s.

  (** The first chunk of a slice waits: of all messages begun, this one included, that slice is
      received but for the last [d]. *)
  Definition slice_rule {V} (blocks : list (list event)) (d : N) (s : state V) (e : event) : Prop :=
    forall f, puts e = Some f -> first_of_slice e = true ->
      one_more (opens size e) (begun s f) <= received_slice blocks s f (slice (position e)) + d.

  (** ** How many messages, and how many of their slices, a block has received *)

  Lemma in_a_step x f j i : receives x = Some f -> i <= count x ->
    number (closes_slice_from f j) (map (chunk_event x) (range i)) =
    number (closes_from f) (map (chunk_event x) (range i)) +
    if (i <? count x) && negb (i mod size =? 0) && (j <? slice (i mod size)) then 1 else 0.
  Proof.
    intros Rx. induction i as [|i IH] using N.peano_ind; intros L.
    - replace (0 mod size =? 0) with true by reflexivity. now rewrite andb_false_r.
    - specialize (IH ltac:(lia)). rewrite <- N.add_1_r in *.
      rewrite range_succ, map_app, !number_app, IH. clear IH. simpl map. rewrite !number_one.
      unfold closes_slice_from, closes_from, closes_slice, closes, position.
      cbn [takes offset final chunk_event]. rewrite Rx. cbn [is]. rewrite N.eqb_refl. cbn [andb].
      replace (i <? count x) with true by (symmetry; apply N.ltb_lt; lia). cbn [andb].
      pose proof (rising (i mod size)) as Up.
      destruct (next_position size i) as [Z|S]; [rewrite Z, N.eqb_refl|rewrite S].
      all: match goal with |- context [number ?t ?l + _] => generalize (number t l); intros m end.
      + rewrite orb_true_r, andb_false_r. cbn [orb andb]. rewrite andb_true_r.
        destruct (N.eqb_spec (i mod size) 0) as [E|E]; cbn [negb andb].
        * rewrite E, first_slice. destruct (N.leb_spec 0 j); lia.
        * destruct (N.ltb_spec j (slice (i mod size))), (N.leb_spec (slice (i mod size)) j);
            lia.
      + replace (i mod size + 1 =? 0) with false by now destruct (i mod size).
        rewrite orb_false_r. cbn [negb]. rewrite andb_true_r.
        replace (negb (i mod size =? 0) && (j <? slice (i mod size))) with (j <? slice (i mod size)).
        2: { destruct (N.eqb_spec (i mod size) 0) as [E|E]; auto. rewrite E, first_slice.
             simpl. apply N.ltb_ge. lia. }
        destruct (N.eqb_spec (i + 1) (count x)) as [E|E].
        * replace (i + 1 <? count x) with false by (symmetry; apply N.ltb_ge; lia). simpl.
          destruct (N.ltb_spec j (slice (i mod size))), (N.leb_spec (slice (i mod size)) j);
            simpl; lia.
        * replace (i + 1 <? count x) with true by (symmetry; apply N.ltb_lt; lia). simpl.
          destruct (N.ltb_spec j (slice (i mod size))), (N.leb_spec (slice (i mod size)) j),
            (N.ltb_spec j (slice (i mod size + 1))); simpl; lia.
  Qed.

  Lemma in_no_step x f test n : count x = 0 \/ receives x <> Some f ->
    number (fun e => is (takes e) f && test e) (firstn n (events_of x)) = 0.
  Proof.
    intros Ne.
    assert (G : forall l : list event, (forall e, In e l -> is (takes e) f = false) ->
      number (fun e => is (takes e) f && test e) l = 0).
    { induction l as [|y l IH]; intros H; auto. unfold number in *. simpl.
      rewrite (H y) by now left. simpl. apply IH. intros. apply H. now right. }
    apply G. intros e I.
    assert (I' : In e (events_of x)).
    { rewrite <- (firstn_skipn n). apply in_or_app. now left. }
    unfold events_of in I'. destruct (N.eqb_spec (count x) 0).
    - destruct I' as [<-|[]]. reflexivity.
    - apply in_map_iff in I' as (i & <- & _). simpl. apply not_true_iff_false.
      rewrite is_true. tauto.
  Qed.

  Lemma in_one_step x f j n :
    number (closes_from f) (firstn n (events_of x)) <=
      number (closes_slice_from f j) (firstn n (events_of x)) <=
      number (closes_from f) (firstn n (events_of x)) + 1 /\
    ((length (events_of x) <= n)%nat ->
     number (closes_slice_from f j) (firstn n (events_of x)) =
     number (closes_from f) (firstn n (events_of x))).
  Proof.
    destruct (N.eq_dec (count x) 0) as [Z|Z].
    { unfold closes_from, closes_slice_from. rewrite !in_no_step by auto. lia. }
    assert (D : receives x = Some f \/ receives x <> Some f).
    { destruct (receives x) as [g|]; [|now right]. destruct (N.eq_dec g f) as [->|]; [now left|].
      right. congruence. }
    destruct D as [D|D].
    2: { unfold closes_from, closes_slice_from. rewrite !in_no_step by auto. lia. }
    unfold events_of. apply N.eqb_neq in Z as ->. rewrite map_length, range_length.
    assert (E : firstn n (map (chunk_event x) (range (count x))) =
                map (chunk_event x) (range (N.min (N.of_nat n) (count x)))).
    { rewrite <- (firstn_range (N.min (N.of_nat n) (count x)) (count x)), <- firstn_map by lia.
      destruct (N.min_spec (N.of_nat n) (count x)) as [[L ->]|[L ->]].
      - now rewrite Nat2N.id.
      - rewrite !firstn_all2; auto; rewrite map_length, range_length; lia. }
    rewrite E, (in_a_step x f j) by (auto; lia). split.
    - destruct (_ && _); lia.
    - intros L. replace (N.min (N.of_nat n) (count x)) with (count x) by lia.
      rewrite N.ltb_irrefl. simpl. lia.
  Qed.

  Lemma in_a_block steps f j n :
    number (closes_from f) (firstn n (events steps)) <=
      number (closes_slice_from f j) (firstn n (events steps)) <=
      number (closes_from f) (firstn n (events steps)) + 1.
  Proof.
    revert n. induction steps as [|x l IH]; intros n.
    - unfold events. simpl. rewrite firstn_nil. unfold number. simpl. lia.
    - unfold events in *. simpl. rewrite firstn_app, !number_app.
      destruct (in_one_step x f j n) as (B & Full).
      destruct (Nat.le_gt_cases (length (events_of x)) n) as [L|L].
      + rewrite (Full L). specialize (IH (n - length (events_of x))%nat). lia.
      + replace (n - length (events_of x))%nat with O by lia.
        unfold number at 2 4 6. simpl. lia.
  Qed.

  Section Executions.
    Context {V : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
    Variables (p : program) (d : N).

    Notation reached d := (reached plus unit start (code p) size (Some d)).
    Notation sliced := (slice_rule (code p) d).

    Hypothesis joined : connected p size.

    Lemma block_of b : nth (N.to_nat b) (code p) [] = events (nth (N.to_nat b) (steps p) []).
    Proof. exact (map_nth events (steps p) [] (N.to_nat b)). Qed.

    Lemma received_slices s f j room : ThreadBlocks.reached plus unit start (code p) size room s ->
      received s f <= received_slice (code p) s f j <= received s f + 1.
    Proof.
      intros R. destruct joined as (_ & (taker & Own) & _).
      assert (One : forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f).
      { intros b i e g A T. apply (Own b i e g A). rewrite T. now left. }
      rewrite (received_counts plus unit start (code p) size room taker One s R f).
      unfold received_slice. rewrite (so_far_owner _ _ (taker f)).
      - unfold counted. rewrite block_of. apply in_a_block.
      - intros b i e A T. apply andb_true_iff in T as (T & _). apply is_true in T. eauto.
    Qed.

    Lemma begun_bounded s f slots : reached slots s -> begun s f <= received s f + slots.
    Proof.
      induction 1 as [|s b e R IH (A & _ & _ & Room)]; simpl; [lia|]. unfold one_more.
      destruct (is (puts e) f && opens size e) eqn:P.
      - apply andb_true_iff in P as (P & O). apply is_true in P.
        specialize (Room f slots P O eq_refl). destruct (is (takes e) f && closes size e); lia.
      - destruct (is (takes e) f && closes size e); lia.
    Qed.

    Lemma slices_wait s b e : reached (d + 1) s -> event_at (code p) b (now s b) e -> sliced s e ->
      forall f, puts e = Some f -> opens size e = true -> begun s f < received s f + (d + 1).
    Proof.
      intros R A H f P O. specialize (H f P).
      unfold first_of_slice in H. rewrite O in H. specialize (H eq_refl).
      pose proof (received_slices s f (slice (position e)) _ R). unfold one_more in H. lia.
    Qed.

    (** Whatever is done with slices can be done with whole messages and one more slot. *)
    Theorem slices_within s : reached_by plus unit start (code p) size sliced s -> reached (d + 1) s.
    Proof.
      apply within. exact slices_wait.
    Qed.

    Lemma slice_ready_within s b e : reached_by plus unit start (code p) size sliced s ->
      ready_by (code p) sliced s b e -> ready (code p) size (Some (d + 1)) s b e.
    Proof. apply ready_within, slices_wait. Qed.

    (** With slices nobody stops earlier than with whole messages and as many slots. *)
    Theorem slices_get_further s : reached_by plus unit start (code p) size sliced s ->
      (forall b e, ~ ready_by (code p) sliced s b e) ->
      forall t, reached d t -> forall b, now t b <= now s b.
    Proof.
      intros Bs Stop. destruct joined as ((putter & Po) & (taker & Ta) & _).
      assert (One : forall b i e f, event_at (code p) b i e -> puts e = Some f -> b = putter f).
      { intros b i e g A T. apply (Po b i e g A). rewrite T. now left. }
      assert (One' : forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f).
      { intros b i e g A T. apply (Ta b i e g A). rewrite T. now left. }
      apply (further plus unit start (code p) size d sliced) with (putter := putter) (taker := taker);
        auto.
      - exact slices_wait.
      - intros s' t b e Rs Rt H E Le f P _.
        pose proof (received_slices s' f (slice (position e)) _ Rs) as (Rec & _).
        assert (Begun : begun s' f = begun t f).
        { destruct H as (A & _). pose proof (One _ _ _ _ A P) as Eb.
          rewrite (begun_counts plus unit start (code p) size _ putter One s' Rs f).
          rewrite (begun_counts plus unit start (code p) size _ putter One t Rt f).
          now rewrite <- Eb, E. }
        assert (Received : received t f <= received s' f).
        { rewrite (received_counts plus unit start (code p) size _ taker One' s' Rs f).
          rewrite (received_counts plus unit start (code p) size _ taker One' t Rt f).
          apply count_mono, Le. }
        pose proof (begun_bounded t f d Rt) as Held. rewrite Begun. unfold one_more.
        destruct (opens size e) eqn:O; [|lia].
        destruct H as (_ & _ & _ & Room). specialize (Room f d P O eq_refl). lia.
    Qed.
  End Executions.
End Slices.

(** * The verdict *)

(** [ThreadBlocks.right], for messages that travel in slices. *)
Definition right_sliced (p : program) (size d : N) (slice : N -> N) : Prop :=
  connected p size /\
  (forall block x, In block (steps p) -> In x block -> apart x) /\
  (forall (M : commutative_monoid) x junk s,
    let rule := slice_rule size slice (code p) d in
    reached_by (add M) (zero M) (begins M p x junk) (code p) size rule s ->
    (over (code p) s \/ exists b e, ready_by (code p) rule s b e) /\
    (forall b e b' e', b <> b' -> ready_by (code p) rule s b e -> ready_by (code p) rule s b' e' ->
       ~ conflict e e')) /\
  (exists demand, In demand (demands p) /\
    forall (M : commutative_monoid) x junk s,
      reached_by (add M) (zero M) (begins M p x junk) (code p) size
        (slice_rule size slice (code p) d) s ->
      over (code p) s -> meets M p x (memory s) demand).

Lemma slice_rule_dec {V} size slice blocks d (s : state V) e :
  slice_rule size slice blocks d s e \/ ~ slice_rule size slice blocks d s e.
Proof.
  unfold slice_rule. destruct (puts e) as [f|]; [|left; discriminate].
  destruct (first_of_slice size slice e); [|left; discriminate].
  destruct (N.le_gt_cases (one_more (opens size e) (begun s f))
              (received_slice size slice blocks s f (slice (position size e)) + d)) as [L|L].
  - left. intros g E _. now injection E as <-.
  - right. intros H. specialize (H f eq_refl eq_refl). lia.
Qed.

(** Right with [d] slots and with [d + 1]: right with slices and [d] slots. *)
Theorem right_with_slices p size d slice :
  (forall q, slice q <= slice (q + 1)) -> slice 0 = 0 ->
  right p size (Some d) -> right p size (Some (d + 1)) -> right_sliced p size d slice.
Proof.
  intros Up Zero (Joined & Areas & Ends & _) (_ & _ & Free & demand & I & Holds).
  split; [exact Joined|]. split; [exact Areas|]. split.
  - intros M x junk s rule R.
    pose proof (slices_within size slice Up Zero _ _ _ p d Joined s R) as Rs. split.
    + destruct (someone_ready_by (code p) rule (slice_rule_dec size slice (code p) d) s) as [|Stop];
        auto. left.
      destruct (reaches_end (add M) (zero M) (begins M p x junk) (code p) size (Some d)) as (t & Rt & O).
      { intros t Rt. now apply (Ends M x junk). }
      pose proof (slices_get_further size slice Up Zero _ _ _ p d Joined s R Stop t Rt) as Far.
      intros b. specialize (Far b). specialize (O b). lia.
    + intros b e b' e' Ne H H'.
      apply (proj2 (Free M x junk s Rs) b e b' e' Ne);
        eapply slice_ready_within; eauto.
  - exists demand. split; [exact I|]. intros M x junk s R O.
    apply (Holds M x junk s); auto. eapply slices_within; eauto.
Qed.
