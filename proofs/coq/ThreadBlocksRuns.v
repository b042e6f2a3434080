(** What holds of all executions of a program of thread blocks (ThreadBlocks.v).

    - One run decides: if one execution gets stuck, no execution gets further
      ([one_run_decides]); so if one ends, nobody ever gets stuck before the end, and if one gets
      stuck before the end, none ever ends.
    - If of two events that touch one chunk, one writing, one always comes first, all executions
      that end leave the same in memory ([same_end]).
    - Every event brings the end nearer ([ends]).
    - What an execution does with one size of messages and so many slots, it can do with any more
      slots, and with FIFOs without bound at any size of messages ([more_room], [unbounded]). *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Semantics ThreadBlocks.
Import ListNotations.
Open Scope N_scope.

Lemma is_true o f : is o f = true <-> o = Some f.
Proof.
  destruct o as [g|]; simpl; [rewrite N.eqb_eq|]; split; intros H; try congruence.
Qed.

(** How many of a list of events pass a test. *)
Definition number (test : event -> bool) (l : list event) : N := N.of_nat (length (filter test l)).

Lemma number_app test l l' : number test (l ++ l') = number test l + number test l'.
Proof. unfold number. rewrite filter_app, app_length. lia. Qed.

Lemma number_one test e : number test [e] = if test e then 1 else 0.
Proof. unfold number. simpl. now destruct (test e). Qed.

Lemma firstn_range i n : i <= n -> firstn (N.to_nat i) (range n) = range i.
Proof.
  intros L. unfold range. rewrite firstn_map. f_equal.
  replace (N.to_nat n) with (N.to_nat i + (N.to_nat n - N.to_nat i))%nat by lia.
  rewrite seq_app, firstn_app, seq_length, Nat.sub_diag. simpl.
  rewrite app_nil_r. apply firstn_all2. now rewrite seq_length.
Qed.

Lemma next_position size i : (i + 1) mod size = 0 \/ (i + 1) mod size = i mod size + 1.
Proof.
  destruct (N.eq_dec size 0) as [->|Z]; [now right; destruct i|].
  pose proof (N.div_mod i size Z). pose proof (N.mod_lt i size Z).
  destruct (N.eq_dec (i mod size + 1) size) as [E|Ne].
  - left. symmetry. apply N.mod_unique with (q := i / size + 1); lia.
  - right. symmetry. apply N.mod_unique with (q := i / size); lia.
Qed.

Section Counting.
  Variable blocks : list (list event).

  Definition counted (test : event -> bool) (b i : N) : N :=
    N.of_nat (length (filter test (firstn (N.to_nat i) (nth (N.to_nat b) blocks [])))).

  Lemma count_next (test : event -> bool) b i e : event_at blocks b i e ->
    counted test b (i + 1) = counted test b i + if test e then 1 else 0.
  Proof.
    unfold counted, event_at. replace (N.to_nat (i + 1)) with (S (N.to_nat i)) by lia.
    generalize (N.to_nat i) as n. generalize (nth (N.to_nat b) blocks []) as l.
    induction l as [|y l IH]; intros [|n] H; simpl in *; try discriminate.
    - injection H as ->. destruct (test e); simpl; lia.
    - specialize (IH n H). simpl in IH. destruct (test y); simpl length; lia.
  Qed.

  Lemma count_mono (test : event -> bool) b i j : i <= j -> counted test b i <= counted test b j.
  Proof.
    intros L. unfold counted. assert (L' : (N.to_nat i <= N.to_nat j)%nat) by lia. revert L'.
    generalize (N.to_nat i) as n, (N.to_nat j) as k. clear L i j.
    induction (nth (N.to_nat b) blocks []) as [|y l IH]; intros [|n] [|k] L; simpl; try lia.
    specialize (IH n k ltac:(lia)). destruct (test y); simpl length; lia.
  Qed.

  Lemma count_zero (test : event -> bool) b : counted test b 0 = 0.
  Proof. unfold counted. reflexivity. Qed.

  Lemma event_here b i e : event_at blocks b i e -> i < length_of blocks b.
  Proof.
    unfold event_at, length_of. intros H.
    assert (N.to_nat i < length (nth (N.to_nat b) blocks []))%nat; [|lia].
    apply nth_error_Some. congruence.
  Qed.

  Lemma event_same b i e e' : event_at blocks b i e -> event_at blocks b i e' -> e = e'.
  Proof. unfold event_at. congruence. Qed.
End Counting.

Section Runs.
  Context {V : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
  Variables (blocks : list (list event)) (size : N) (room : option N).
  Variables (putter taker raiser : N -> N).

  Notation event_at := (event_at blocks).
  Notation ready := (ready blocks size room).
  Notation next := (next plus unit size).
  Notation reached := (reached plus unit start blocks size room).
  Notation stuck := (stuck blocks size room).
  Notation over := (over blocks).
  Notation length_of := (length_of blocks).
  Notation counted := (counted blocks).

  Hypothesis one_putter : forall b i e f, event_at b i e -> puts e = Some f -> b = putter f.
  Hypothesis one_taker : forall b i e f, event_at b i e -> takes e = Some f -> b = taker f.
  Hypothesis one_raiser : forall b i e c v,
    event_at b i e -> In (c, v) (raises e) -> b = raiser c.

  Notation puts_to f := (fun e => is (puts e) f).
  Notation takes_from f := (fun e => is (takes e) f).
  Notation begins_in f := (fun e => is (puts e) f && opens size e).
  Notation ends_in f := (fun e => is (takes e) f && closes size e).

  Lemma now_next s b e c : now (next s b e) c = if c =? b then now s b + 1 else now s c.
  Proof. reflexivity. Qed.

  Lemma now_grows s b e c : now s c <= now (next s b e) c.
  Proof. simpl. destruct (N.eqb_spec c b) as [->|]; lia. Qed.

  (** ** What counts, as functions of where the blocks are *)

  (** A count of events that only one block has. *)
  Lemma counts_next (test : event -> bool) owner s b e : ready s b e ->
    (forall b' i e', event_at b' i e' -> test e' = true -> b' = owner) ->
    counted test owner (now (next s b e) owner) =
    counted test owner (now s owner) + if test e then 1 else 0.
  Proof.
    intros (A & _) Own. simpl. destruct (N.eqb_spec owner b) as [->|Ne].
    - now apply count_next.
    - destruct (test e) eqn:T; [|lia]. apply (Own _ _ _ A) in T. congruence.
  Qed.

  Lemma putter_only f b i e : event_at b i e -> is (puts e) f = true -> b = putter f.
  Proof. intros A H. apply is_true in H. eauto. Qed.

  Lemma taker_only f b i e : event_at b i e -> is (takes e) f = true -> b = taker f.
  Proof. intros A H. apply is_true in H. eauto. Qed.

  Lemma in_flight s : reached s -> forall f,
    N.of_nat (length (queue s f)) + counted (takes_from f) (taker f) (now s (taker f)) =
    counted (puts_to f) (putter f) (now s (putter f)).
  Proof.
    induction 1 as [|s b e R IH H]; intros f.
    - simpl. now rewrite !count_zero.
    - specialize (IH f).
      rewrite (counts_next (takes_from f) (taker f) s b e H) by (intros; eapply taker_only; eauto).
      rewrite (counts_next (puts_to f) (putter f) s b e H) by (intros; eapply putter_only; eauto).
      destruct H as (_ & _ & Got & _). simpl. rewrite app_length.
      destruct (is (takes e) f) eqn:T.
      + apply is_true in T. specialize (Got f T). destruct (queue s f) as [|v l]; [congruence|].
        simpl length in *. destruct (is (puts e) f); simpl length; lia.
      + destruct (is (puts e) f); simpl length; lia.
  Qed.

  Lemma begun_counts s : reached s -> forall f,
    begun s f = counted (begins_in f) (putter f) (now s (putter f)).
  Proof.
    induction 1 as [|s b e R IH H]; intros f; [simpl; now rewrite count_zero|].
    rewrite (counts_next (begins_in f) (putter f) s b e H).
    - simpl. rewrite IH. unfold one_more. destruct (_ && _); lia.
    - intros b' i e' A T. apply andb_true_iff in T as [T _]. eapply putter_only; eauto.
  Qed.

  Lemma received_counts s : reached s -> forall f,
    received s f = counted (ends_in f) (taker f) (now s (taker f)).
  Proof.
    induction 1 as [|s b e R IH H]; intros f; [simpl; now rewrite count_zero|].
    rewrite (counts_next (ends_in f) (taker f) s b e H).
    - simpl. rewrite IH. unfold one_more. destruct (_ && _); lia.
    - intros b' i e' A T. apply andb_true_iff in T as [T _]. eapply taker_only; eauto.
  Qed.

  Lemma raised_spec e c old v :
    v <= raised e c old <-> v <= old \/ exists u, In (c, u) (raises e) /\ v <= u.
  Proof.
    unfold raised.
    assert (G : forall l old, v <= fold_left N.max (map snd (filter (fun r => fst r =? c) l)) old <->
      v <= old \/ exists u, In (c, u) l /\ v <= u).
    { induction l as [|[d u] l IH]; intros o; simpl.
      - split; [now left|]. intros [H|(u & [] & _)]; auto.
      - destruct (N.eqb_spec d c) as [->|Ne]; simpl; rewrite IH; split.
        + intros [H|(w & I & L)]; [|right; exists w; auto].
          destruct (N.max_spec o u) as [[_ E]|[_ E]]; rewrite E in H; [right; exists u; auto|auto].
        + intros [H|(w & [I|I] & L)]; [left; lia| |right; eauto].
          injection I as ->. left. lia.
        + intros [H|(w & I & L)]; [auto|right; exists w; auto].
        + intros [H|(w & [I|I] & L)]; [auto|congruence|right; eauto]. }
    apply G.
  Qed.

  Lemma level_spec s : reached s -> forall c v, 0 < v -> v <= level s c <->
    exists b i e u, i < now s b /\ event_at b i e /\ In (c, u) (raises e) /\ v <= u.
  Proof.
    induction 1 as [|s b e R IH H]; intros c v P.
    - simpl. split; [lia|]. intros (b & i & e & u & L & _). lia.
    - simpl level. rewrite raised_spec, IH by exact P. split.
      + intros [(b' & i & e' & u & L & A & I & Le)|(u & I & Le)].
        * exists b', i, e', u. split; [|auto]. pose proof (now_grows s b e b'). lia.
        * exists b, (now s b), e, u. split; [simpl; rewrite N.eqb_refl; lia|].
          split; [apply H|auto].
      + intros (b' & i & e' & u & L & A & I & Le).
        simpl in L. destruct (N.eqb_spec b' b) as [->|Ne]; [|left; exists b', i, e', u; auto].
        destruct (N.eq_dec i (now s b)) as [->|Ni].
        * right. rewrite (event_same _ _ _ _ _ A (proj1 H)) in I. eauto.
        * left. exists b, i, e', u. repeat split; auto. lia.
  Qed.

  (** ** One run decides *)

  Lemma room_grows s t f d : reached s -> reached t ->
    now t (putter f) = now s (putter f) -> now t (taker f) <= now s (taker f) ->
    begun t f < received t f + d -> begun s f < received s f + d.
  Proof.
    intros Rs Rt E L H.
    rewrite (begun_counts s Rs f), (received_counts s Rs f).
    rewrite (begun_counts t Rt f), (received_counts t Rt f), E in H.
    pose proof (count_mono blocks (ends_in f) (taker f) _ _ L). lia.
  Qed.

  Theorem one_run_decides s : reached s -> stuck s -> forall t, reached t ->
    forall b, now t b <= now s b.
  Proof.
    intros Rs Stop t Rt. induction Rt as [|t b e Rt IH H]; intros c; [simpl; lia|].
    simpl. destruct (N.eqb_spec c b) as [->|]; auto.
    destruct (N.lt_ge_cases (now t b) (now s b)) as [L|G]; [lia|]. exfalso.
    assert (E : now t b = now s b) by (specialize (IH b); lia).
    apply (Stop b e). destruct H as (A & Fl & Got & Room). rewrite E in A. repeat split.
    - exact A.
    - intros d v I. destruct (N.eq_dec v 0) as [->|P]; [lia|].
      specialize (Fl d v I).
      apply (level_spec t Rt d v ltac:(lia)) in Fl as (b' & i & e' & u & Lt & A' & I' & Le).
      apply (level_spec s Rs d v ltac:(lia)). exists b', i, e', u. repeat split; auto.
      specialize (IH b'). lia.
    - intros f T. specialize (Got f T). pose proof (one_taker _ _ _ _ A T) as Eb.
      pose proof (in_flight t Rt f) as Ft. pose proof (in_flight s Rs f) as Fs.
      rewrite <- Eb in Ft, Fs. rewrite <- E in Fs.
      pose proof (count_mono blocks (puts_to f) (putter f) _ _ (IH (putter f))).
      destruct (queue t f) as [|v l]; [congruence|]. simpl length in Ft.
      destruct (queue s f); [simpl length in Fs; lia|discriminate].
    - intros f d P O D. pose proof (one_putter _ _ _ _ A P) as Eb.
      apply (room_grows s t f d Rs Rt); auto. now rewrite <- Eb.
  Qed.

  (** ** Who is ready can be found out *)

  Lemma waits_met_dec (s : state V) (l : list (N * N)) :
    {forall c v, In (c, v) l -> v <= level s c} + {~ forall c v, In (c, v) l -> v <= level s c}.
  Proof.
    destruct (Forall_dec (fun r => snd r <= level s (fst r))) with (l := l) as [F|F].
    - intros [c v]. simpl. destruct (v <=? level s c) eqn:E.
      + left. now apply N.leb_le.
      + right. apply N.leb_gt in E. lia.
    - left. intros c v I. rewrite Forall_forall in F. now apply (F (c, v)).
    - right. intros H. apply F, Forall_forall. intros [c v] I. now apply H.
  Qed.

  Lemma ready_dec (s : state V) b : (exists e, ready s b e) \/ (forall e, ~ ready s b e).
  Proof.
    unfold ThreadBlocks.ready, ThreadBlocks.event_at.
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
    assert (P : (forall f d, puts e = Some f -> opens size e = true -> room = Some d ->
                   begun s f < received s f + d) \/
                ~ (forall f d, puts e = Some f -> opens size e = true -> room = Some d ->
                   begun s f < received s f + d)).
    { destruct (puts e) as [f|]; [|left; discriminate].
      destruct (opens size e); [|left; discriminate]. destruct room as [d|]; [|left; discriminate].
      destruct (N.ltb_spec (begun s f) (received s f + d)) as [L|G].
      - left. intros g d' E _ E'. injection E as <-. injection E' as <-. exact L.
      - right. intros H. specialize (H f d eq_refl eq_refl eq_refl). lia. }
    destruct P as [P|P]; [|right; intros e' (A' & _ & _ & P'); injection A' as ->; auto].
    left. exists e. auto.
  Qed.

  Lemma far_block b : N.of_nat (length blocks) <= b -> nth (N.to_nat b) blocks [] = [].
  Proof. intros L. apply nth_overflow. lia. Qed.

  Lemma someone_ready (s : state V) : (exists b e, ready s b e) \/ stuck s.
  Proof.
    assert (G : forall n, (exists b e, ready s b e) \/
      (forall b, b < N.of_nat n -> forall e, ~ ready s b e)).
    { induction n as [|n [IH|IH]]; [right; lia|now left|].
      destruct (ready_dec s (N.of_nat n)) as [(e & H)|H]; [left; eauto|].
      right. intros b L. destruct (N.eq_dec b (N.of_nat n)) as [->|]; auto. apply IH. lia. }
    destruct (G (length blocks)) as [|H]; auto. right. intros b e R.
    destruct (N.lt_ge_cases b (N.of_nat (length blocks))) as [L|L]; [now apply (H b L e)|].
    destruct R as (A & _). apply event_here in A. unfold ThreadBlocks.length_of in A.
    rewrite (far_block b L) in A. simpl in A. lia.
  Qed.

  (** If one execution ends, nobody ever gets stuck before the end. *)
  Theorem one_ends_all_end s : reached s -> over s -> forall t, reached t ->
    over t \/ exists b e, ready t b e.
  Proof.
    intros Rs O t Rt. destruct (someone_ready t) as [|Stop]; auto. left. intros b.
    pose proof (one_run_decides t Rt Stop s Rs b). specialize (O b). lia.
  Qed.

  (** If one gets stuck before the end, none ever ends. *)
  Theorem one_stuck_none_ends s : reached s -> stuck s -> ~ over s -> forall t, reached t -> ~ over t.
  Proof.
    intros Rs Stop NotOver t Rt O. apply NotOver. intros b.
    pose proof (one_run_decides s Rs Stop t Rt b). specialize (O b). lia.
  Qed.

  (** Every event brings the end nearer. *)
  Theorem ends (s : state V) b e : ready s b e ->
    now s b < length_of b /\ now (next s b e) b = now s b + 1 /\
    forall c, c <> b -> now (next s b e) c = now s c.
  Proof.
    intros (A & _). split; [eapply event_here; eauto|]. simpl. rewrite N.eqb_refl. split; auto.
    intros c Ne. now apply N.eqb_neq in Ne as ->.
  Qed.

  (** ** What always comes first *)

  (** In every execution, event [i] of block [b] is done when event [j] of block [c] is. *)
  Definition comes_first (p q : N * N) : Prop := forall t, reached t ->
    snd q < now t (fst q) -> snd p < now t (fst p).

  Definition race_free : Prop := forall b i e c j e', b <> c ->
    event_at b i e -> event_at c j e' -> conflict e e' ->
    comes_first (b, i) (c, j) \/ comes_first (c, j) (b, i).

  Lemma not_both s b e c e' : reached s -> b <> c -> ready s b e -> ready s c e' ->
    ~ comes_first (b, now s b) (c, now s c).
  Proof.
    intros R Ne H H' F.
    specialize (F (next s c e') (Went _ _ _ _ _ _ _ _ _ R H')). simpl in F.
    rewrite N.eqb_refl in F. apply N.eqb_neq in Ne. rewrite Ne in F. lia.
  Qed.

  (** Two blocks never touch a chunk at the same time. *)
  Definition calm : Prop := forall s b e c e', reached s -> b <> c ->
    ready s b e -> ready s c e' -> ~ conflict e e'.

  Lemma conflict_sym e e' : conflict e e' -> conflict e' e.
  Proof. intros (a & [(? & [?|?])|(? & ?)]); exists a; tauto. Qed.

  Theorem never_both s b e c e' : race_free -> reached s -> b <> c ->
    ready s b e -> ready s c e' -> ~ conflict e e'.
  Proof.
    intros RF R Ne H H' C.
    destruct (RF b (now s b) e c (now s c) e' Ne (proj1 H) (proj1 H') C) as [F|F].
    - now apply (not_both s b e c e').
    - now apply (not_both s c e' b e R (not_eq_sym Ne)).
  Qed.

  Lemma race_free_calm : race_free -> calm.
  Proof. intros RF s b e c e'. now apply never_both. Qed.

  (** ** Without races all executions end alike *)

  Definition same (s t : state V) : Prop :=
    (forall b, now s b = now t b) /\ (forall a, memory s a = memory t a) /\
    (forall f, queue s f = queue t f) /\ (forall c, level s c = level t c) /\
    (forall f, begun s f = begun t f) /\ (forall f, received s f = received t f).

  Lemma same_refl s : same s s.
  Proof. repeat split. Qed.

  Lemma same_sym s t : same s t -> same t s.
  Proof. intros (A & B & C & D & E & F). repeat split; intros; symmetry; auto. Qed.

  Lemma same_trans s t u : same s t -> same t u -> same s u.
  Proof.
    intros (A & B & C & D & E & F) (A' & B' & C' & D' & E' & F').
    repeat split; intros; etransitivity; eauto.
  Qed.

  Lemma ready_same s t b e : same s t -> ready s b e -> ready t b e.
  Proof.
    intros (N' & _ & Q & L & B & C) (A & Fl & Got & Room). unfold ThreadBlocks.ready.
    rewrite <- N'. repeat split; auto.
    - intros c v I. rewrite <- L. auto.
    - intros f E. rewrite <- Q. auto.
    - intros f d E O D. rewrite <- B, <- C. auto.
  Qed.

  Lemma total_same s t e : (forall a, In a (reads e) -> memory s a = memory t a) ->
    incoming s e = incoming t e -> total plus unit s e = total plus unit t e.
  Proof.
    intros M I. unfold total. rewrite I. do 2 f_equal. now apply map_ext_in.
  Qed.

  Lemma next_same s t b e : same s t -> same (next s b e) (next t b e).
  Proof.
    intros (N' & M & Q & L & B & C).
    assert (T : total plus unit s e = total plus unit t e).
    { apply total_same; auto. unfold incoming. destruct (takes e); auto. now rewrite Q. }
    unfold same, ThreadBlocks.next; simpl. repeat split; intros.
    - now rewrite !N'.
    - now rewrite T, M.
    - now rewrite T, Q.
    - now rewrite L.
    - now rewrite B.
    - now rewrite C.
  Qed.

  (** What is ready stays ready, and finds the same, whatever another block does. *)
  Lemma stays_ready s b e c e' : b <> c -> ready s b e -> ready s c e' -> ready (next s b e) c e'.
  Proof.
    intros Ne (A & _ & _ & _) (A' & Fl & Got & Room).
    assert (Nc : now (next s b e) c = now s c)
      by (simpl; destruct (N.eqb_spec c b); congruence).
    unfold ThreadBlocks.ready. rewrite Nc. split; [exact A'|]. split; [|split].
    - intros d v I. simpl. apply raised_spec. left. auto.
    - intros f E. simpl. specialize (Got f E).
      assert (is (takes e) f = false) as ->.
      { destruct (is (takes e) f) eqn:T; auto. apply is_true in T.
        pose proof (one_taker _ _ _ _ A T). pose proof (one_taker _ _ _ _ A' E). congruence. }
      intros X. apply app_eq_nil in X as [X _]. auto.
    - intros f d E O D. simpl. specialize (Room f d E O D).
      assert (is (puts e) f = false) as ->.
      { destruct (is (puts e) f) eqn:T; auto. apply is_true in T.
        pose proof (one_putter _ _ _ _ A T). pose proof (one_putter _ _ _ _ A' E). congruence. }
      simpl. unfold one_more. destruct (_ && _); lia.
  Qed.

  Lemma same_incoming s b e c e' : b <> c -> ready s b e -> ready s c e' ->
    incoming (next s b e) e' = incoming s e'.
  Proof.
    intros Ne (A & _) (A' & _ & Got & _). unfold incoming.
    destruct (takes e') as [f|] eqn:E; auto. specialize (Got f eq_refl). simpl.
    assert (is (takes e) f = false) as ->.
    { destruct (is (takes e) f) eqn:T; auto. apply is_true in T.
      pose proof (one_taker _ _ _ _ A T). pose proof (one_taker _ _ _ _ A' E). congruence. }
    destruct (queue s f) as [|v l]; [congruence|]. reflexivity.
  Qed.

  Lemma written e a : existsb (N.eqb a) (writes e) = true <-> In a (writes e).
  Proof.
    rewrite existsb_exists. split; [intros (x & I & E); apply N.eqb_eq in E; now subst|].
    intros I. exists a. split; auto. apply N.eqb_refl.
  Qed.

  Lemma same_total s b e c e' : b <> c -> ready s b e -> ready s c e' -> ~ conflict e e' ->
    total plus unit (next s b e) e' = total plus unit s e'.
  Proof.
    intros Ne H H' Apart. apply total_same; [|now apply same_incoming with c].
    intros a I. simpl. destruct (existsb (N.eqb a) (writes e)) eqn:W; auto.
    apply written in W. exfalso. apply Apart. exists a. auto.
  Qed.

  Lemma raised_twice e e' c old : raised e' c (raised e c old) = raised e c (raised e' c old).
  Proof.
    assert (Le : forall v, v <= raised e' c (raised e c old) <-> v <= raised e c (raised e' c old)).
    { intros v. rewrite !raised_spec. tauto. }
    apply N.le_antisymm; [now apply Le|now apply Le].
  Qed.

  Lemma diamond s b e c e' : b <> c -> ready s b e -> ready s c e' -> ~ conflict e e' ->
    same (next (next s b e) c e') (next (next s c e') b e).
  Proof.
    intros Ne H H' Apart.
    pose proof (same_total s b e c e' Ne H H' Apart) as T'.
    assert (T : total plus unit (next s c e') e = total plus unit s e).
    { apply (same_total s c e' b e); auto. intros C. now apply Apart, conflict_sym. }
    assert (Takes : forall f, is (takes e) f = true -> is (takes e') f = true -> False).
    { intros f Q Q'. apply is_true in Q, Q'. destruct H as (A & _), H' as (A' & _).
      pose proof (one_taker _ _ _ _ A Q). pose proof (one_taker _ _ _ _ A' Q'). congruence. }
    assert (Puts : forall f, is (puts e) f = true -> is (puts e') f = true -> False).
    { intros f Q Q'. apply is_true in Q, Q'. destruct H as (A & _), H' as (A' & _).
      pose proof (one_putter _ _ _ _ A Q). pose proof (one_putter _ _ _ _ A' Q'). congruence. }
    repeat split.
    - intros d. simpl. destruct (N.eqb_spec d c), (N.eqb_spec d b); subst; try congruence.
      + destruct (N.eqb_spec c b); congruence.
      + destruct (N.eqb_spec b c); congruence.
    - intros a. change (memory (next (next s b e) c e') a) with
        (if existsb (N.eqb a) (writes e') then total plus unit (next s b e) e'
         else memory (next s b e) a).
      change (memory (next (next s c e') b e) a) with
        (if existsb (N.eqb a) (writes e) then total plus unit (next s c e') e
         else memory (next s c e') a).
      rewrite T, T'. simpl.
      destruct (existsb (N.eqb a) (writes e)) eqn:W, (existsb (N.eqb a) (writes e')) eqn:W'; auto.
      apply written in W, W'. exfalso. apply Apart. exists a. auto.
    - intros f. change (queue (next (next s b e) c e') f) with
        ((if is (takes e') f then tl (queue (next s b e) f) else queue (next s b e) f)
         ++ (if is (puts e') f then [total plus unit (next s b e) e'] else [])).
      change (queue (next (next s c e') b e) f) with
        ((if is (takes e) f then tl (queue (next s c e') f) else queue (next s c e') f)
         ++ (if is (puts e) f then [total plus unit (next s c e') e] else [])).
      rewrite T, T'. simpl. specialize (Takes f). specialize (Puts f).
      assert (G : is (takes e) f = true -> queue s f <> [])
        by (intros Q; apply H, is_true, Q).
      assert (G' : is (takes e') f = true -> queue s f <> [])
        by (intros Q; apply H', is_true, Q).
      destruct (is (takes e) f), (is (takes e') f), (is (puts e) f), (is (puts e') f);
        try (destruct (Takes eq_refl eq_refl)); try (destruct (Puts eq_refl eq_refl));
        rewrite ?app_nil_r; try reflexivity.
      all: destruct (queue s f); [|reflexivity].
      all: first [now destruct (G eq_refl)|now destruct (G' eq_refl)].
    - intros d. simpl. apply raised_twice.
    - intros f. simpl. unfold one_more. specialize (Puts f).
      destruct (is (puts e) f), (is (puts e') f); simpl;
        try (destruct (Puts eq_refl eq_refl)); auto.
    - intros f. simpl. unfold one_more. specialize (Takes f).
      destruct (is (takes e) f), (is (takes e') f); simpl;
        try (destruct (Takes eq_refl eq_refl)); auto.
  Qed.

  Inductive run : state V -> nat -> state V -> Prop :=
  | Here s : run s 0 s
  | Then s b e n t : ready s b e -> run (next s b e) n t -> run s (S n) t.

  Lemma run_reached s n t : run s n t -> reached s -> reached t.
  Proof. induction 1 as [|s b e n t H X IH]; auto. intros R. apply IH. now apply Went. Qed.

  Lemma run_same s n t : run s n t -> forall s', same s s' -> exists t', run s' n t' /\ same t t'.
  Proof.
    induction 1 as [|s b e n t H X IH]; intros s' E; [exists s'; split; auto; constructor|].
    destruct (IH (next s' b e)) as (t' & X' & E').
    - now apply next_same.
    - exists t'. split; auto. econstructor; eauto. eapply ready_same; eauto.
  Qed.

  Lemma stuck_same s t : same s t -> stuck s -> stuck t.
  Proof. intros E H b e Hx. apply (H b e). eapply ready_same; eauto. now apply same_sym. Qed.

  Lemma ready_one (s : state V) b e e' : ready s b e -> ready s b e' -> e = e'.
  Proof. intros (A & _) (A' & _). eapply event_same; eauto. Qed.

  (** Whatever happens first, the end is the same, and as far away. *)
  Lemma one_step_aside : calm -> forall n s t, reached s -> run s n t -> stuck t ->
    forall b e, ready s b e -> exists m t', n = S m /\ run (next s b e) m t' /\ same t t'.
  Proof.
    intros Calm. induction n as [|n IH]; intros s t R X Stop b e H; inversion X; subst.
    - exfalso. eapply Stop. eauto.
    - match goal with H : ready s ?d ?z |- _ =>
        rename d into c; rename z into e'; rename H into H' end.
      match goal with H : run (next s c e') n t |- _ => rename H into X' end.
      destruct (N.eq_dec b c) as [->|Ne].
      + rewrite (ready_one s c e e') by auto. exists n, t. repeat split; auto.
      + assert (Apart : ~ conflict e e') by (eapply Calm; eauto).
        assert (Hx : ready (next s c e') b e) by (apply stays_ready; auto).
        assert (Hy : ready (next s b e) c e') by (apply stays_ready; auto).
        destruct (IH _ _ (Went _ _ _ _ _ _ _ _ _ R H') X' Stop b e Hx)
          as (m & t' & -> & X'' & E).
        destruct (run_same _ _ _ X'' (next (next s b e) c e')) as (t'' & Y & E').
        { apply same_sym. now apply diamond. }
        exists (S m), t''. repeat split; try (eapply same_trans; eauto).
        all: try (econstructor; eauto).
        all: destruct E as (? & ? & ? & ? & ? & ?), E' as (? & ? & ? & ? & ? & ?);
          intros; etransitivity; eauto.
  Qed.

  Theorem calm_end : calm -> forall m n s t u, reached s ->
    run s n t -> stuck t -> run s m u -> stuck u -> n = m /\ same t u.
  Proof.
    intros Calm. induction m as [|m IH]; intros n s t u R X Stop Y Stop'; inversion Y; subst.
    - inversion X; subst; [split; auto; apply same_refl|]. exfalso. eapply Stop'. eauto.
    - match goal with H : ready s ?d ?z |- _ =>
        rename d into b; rename z into e; rename H into H' end.
      destruct (one_step_aside Calm n s t R X Stop b e H') as (k & t' & -> & X' & E).
      destruct (IH k _ t' u (Went _ _ _ _ _ _ _ _ _ R H') X') as (-> & E'); auto.
      + eapply stuck_same; eauto.
      + split; auto. eapply same_trans; eauto.
  Qed.

  Theorem same_end : race_free -> forall m n s t u, reached s ->
    run s n t -> stuck t -> run s m u -> stuck u -> n = m /\ same t u.
  Proof. intros RF. exact (calm_end (race_free_calm RF)). Qed.

  Lemma reached_run s : reached s -> exists n, run (initial start) n s.
  Proof.
    induction 1 as [|s b e R (n & IH) H]; [exists O; constructor|].
    exists (n + 1)%nat. clear R. induction IH as [s|s c e' n t H' X IH].
    - econstructor; eauto. constructor.
    - simpl. econstructor; eauto.
  Qed.

  Lemma over_stuck (s : state V) : over s -> stuck s.
  Proof. intros O b e (A & _). apply event_here in A. specialize (O b). lia. Qed.

  (** All executions that end leave the same in memory. *)
  Theorem calm_result s t : calm -> reached s -> reached t -> over s -> over t ->
    forall a, memory s a = memory t a.
  Proof.
    intros Calm Rs Rt Os Ot a.
    destruct (reached_run s Rs) as (n & X), (reached_run t Rt) as (m & Y).
    destruct (calm_end Calm m n (initial start) s t) as (_ & E); auto using over_stuck.
    - constructor.
    - apply E.
  Qed.

  Theorem one_result s t : race_free -> reached s -> reached t -> over s -> over t ->
    forall a, memory s a = memory t a.
  Proof. intros RF. exact (calm_result s t (race_free_calm RF)). Qed.
End Runs.

(** * Other sizes of messages, and more slots *)

Section Compared.
  Context {V : Type} (plus : V -> V -> V) (unit : V) (start : N -> V) (blocks : list (list event)).

  Theorem more_room size d d' s : d <= d' ->
    reached plus unit start blocks size (Some d) s -> reached plus unit start blocks size (Some d') s.
  Proof.
    intros L. induction 1 as [|s b e R IH (A & Fl & Got & Room)]; constructor; auto.
    repeat split; auto. intros f g P O E. injection E as <-. specialize (Room f d P O eq_refl). lia.
  Qed.

  (** The same but for the messages that are counted. *)
  Definition alike (s t : state V) : Prop :=
    (forall b, now s b = now t b) /\ (forall a, memory s a = memory t a) /\
    (forall f, queue s f = queue t f) /\ (forall c, level s c = level t c).

  Theorem unbounded size room size' s : reached plus unit start blocks size room s ->
    exists t, reached plus unit start blocks size' None t /\ alike s t.
  Proof.
    induction 1 as [|s b e R (t & Rt & E) H].
    - exists (initial start). split; [constructor|]. repeat split.
    - destruct E as (N' & M & Q & L). exists (next plus unit size' t b e). split.
      + constructor; auto. destruct H as (A & Fl & Got & _). unfold ready.
        rewrite <- N'. repeat split; auto.
        * intros c v I. rewrite <- L. auto.
        * intros f T. rewrite <- Q. auto.
        * discriminate.
      + assert (T : total plus unit s e = total plus unit t e).
        { unfold total, incoming. f_equal. f_equal; [now apply map_ext|].
          destruct (takes e); auto. now rewrite Q. }
        unfold alike; simpl. repeat split; intros.
        * now rewrite !N'.
        * now rewrite T, M.
        * now rewrite T, Q.
        * now rewrite L.
  Qed.
End Compared.

(** * Reaching the end *)

Section End.
  Context {V : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
  Variables (blocks : list (list event)) (size : N) (room : option N).

  Notation reached := (reached plus unit start blocks size room).

  Definition still_to_do (s : state V) : N :=
    fold_right N.add 0 (map (fun b => length_of blocks b - now s b) (range (N.of_nat (length blocks)))).

  Lemma less_to_do (s : state V) b e : ready blocks size room s b e ->
    still_to_do (next plus unit size s b e) < still_to_do s.
  Proof.
    intros H. destruct (ends plus unit blocks size room s b e H) as (L & E & Others).
    assert (I : In b (range (N.of_nat (length blocks)))).
    { apply in_range. destruct (N.lt_ge_cases b (N.of_nat (length blocks))) as [|G]; auto.
      unfold length_of in L. rewrite far_block in L by exact G. simpl in L. lia. }
    unfold still_to_do.
    assert (G : forall l, (In b l ->
        fold_right N.add 0 (map (fun c => length_of blocks c - now (next plus unit size s b e) c) l) <
        fold_right N.add 0 (map (fun c => length_of blocks c - now s c) l)) /\
        fold_right N.add 0 (map (fun c => length_of blocks c - now (next plus unit size s b e) c) l) <=
        fold_right N.add 0 (map (fun c => length_of blocks c - now s c) l)).
    { induction l as [|c l (IH & IH')]; [split; [intros []|reflexivity]|].
      change (map ?g (c :: l)) with (g c :: map g l). cbn [fold_right].
      destruct (N.eq_dec c b) as [->|Ne].
      - rewrite E. split; [intros _|]; lia.
      - rewrite (Others c Ne). split; [intros [C|C]; [congruence|specialize (IH C)]|]; lia. }
    now apply G.
  Qed.

  (** If nobody gets stuck before the end, the end is reached. *)
  Theorem reaches_end : (forall s, reached s -> over blocks s \/ exists b e, ready blocks size room s b e) ->
    exists s, reached s /\ over blocks s.
  Proof.
    intros On.
    assert (G : forall n s, (N.to_nat (still_to_do s) < n)%nat -> reached s ->
              exists t, reached t /\ over blocks t).
    { induction n as [|n IH]; intros s L R; [lia|].
      destruct (On s R) as [O|(b & e & H)]; [eauto|].
      apply (IH (next plus unit size s b e)); [|now constructor].
      pose proof (less_to_do s b e H). lia. }
    apply (G _ (initial start) (Nat.lt_succ_diag_r _)). constructor.
  Qed.
End End.

(** * Data of any kind *)

Section Data.
  Context {V W : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
  Context (plus' : W -> W -> W) (unit' : W) (start' : N -> W) (h : V -> W).
  Variables (blocks : list (list event)) (size : N) (room : option N).
  Hypothesis h_plus : forall a b, h (plus a b) = plus' (h a) (h b).
  Hypothesis h_unit : h unit = unit'.
  Hypothesis h_start : forall a, h (start a) = start' a.

  Definition image (s : state V) (t : state W) : Prop :=
    (forall b, now s b = now t b) /\ (forall a, h (memory s a) = memory t a) /\
    (forall f, map h (queue s f) = queue t f) /\ (forall c, level s c = level t c) /\
    (forall f, begun s f = begun t f) /\ (forall f, received s f = received t f).

  Lemma ready_image s t b e : image s t -> ready blocks size room s b e <-> ready blocks size room t b e.
  Proof.
    intros (N' & _ & Q & L & B & C). unfold ready. rewrite N'.
    assert (G : forall f, queue s f <> [] <-> queue t f <> []).
    { intros f. rewrite <- Q. destruct (queue s f); simpl; split; congruence. }
    split; intros (A & Fl & Got & Room); (split; [exact A|split; [|split]]).
    - intros c v I. rewrite <- L. auto.
    - intros f T. apply G. auto.
    - intros f d P O D. rewrite <- B, <- C. auto.
    - intros c v I. rewrite L. auto.
    - intros f T. apply G. auto.
    - intros f d P O D. rewrite B, C. auto.
  Qed.

  Lemma total_image s t e : image s t -> h (total plus unit s e) = total plus' unit' t e.
  Proof.
    intros (_ & M & Q & _). unfold total.
    assert (E : map (memory t) (reads e) ++ incoming t e =
                map h (map (memory s) (reads e) ++ incoming s e)).
    { rewrite map_app, map_map. f_equal; [apply map_ext; auto|].
      unfold incoming. destruct (takes e) as [f|]; auto. rewrite <- Q.
      now destruct (queue s f). }
    rewrite E. clear E.
    induction (map (memory s) (reads e) ++ incoming s e) as [|v l IH]; simpl; auto.
    now rewrite h_plus, IH.
  Qed.

  Lemma next_image s t b e : image s t -> image (next plus unit size s b e) (next plus' unit' size t b e).
  Proof.
    intros I. pose proof (total_image s t e I) as T. destruct I as (N' & M & Q & L & B & C).
    unfold image, next; simpl. repeat split; intros.
    - now rewrite !N'.
    - rewrite <- T. now destruct (existsb _ _).
    - rewrite map_app, <- T, <- Q. f_equal; [|now destruct (is (puts e) f)].
      destruct (is (takes e) f); auto. now destruct (queue s f).
    - now rewrite L.
    - now rewrite B.
    - now rewrite C.
  Qed.

  (** Every execution on data is one on what stands for the data. *)
  Theorem reached_image t : reached plus' unit' start' blocks size room t ->
    exists s, reached plus unit start blocks size room s /\ image s t.
  Proof.
    induction 1 as [|t b e R (s & Rs & I) H].
    - exists (initial start). split; [constructor|]. repeat split; simpl; auto.
    - exists (next plus unit size s b e). split; [|now apply next_image].
      constructor; auto. now apply (ready_image s t b e I).
  Qed.

  Theorem image_reached s : reached plus unit start blocks size room s ->
    exists t, reached plus' unit' start' blocks size room t /\ image s t.
  Proof.
    induction 1 as [|s b e R (t & Rt & I) H].
    - exists (initial start'). split; [constructor|]. repeat split; simpl; auto.
    - exists (next plus' unit' size t b e). split; [|now apply next_image].
      constructor; auto. now apply (ready_image s t b e I).
  Qed.
End Data.
