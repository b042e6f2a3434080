(** Larger messages: what does not get stuck with messages of [m] chunks does not get stuck with
    messages of [M >= m] chunks, with as many slots ([larger_messages]; without bound on slots the size
    does not matter at all: [ThreadBlocksRuns.unbounded]).

    Call messages of [M] chunks coarse, of [m] fine. Each coarse message goes to the fine message
    that holds its first chunk, and all of its chunks to the first chunk of that ([head]). Where an
    execution with fine messages has done that chunk, every execution with coarse messages that can't
    go on has done the whole coarse message ([done_too]), even if messages are received only when all
    of them has been sent ([whole_messages]):

    - Coarse messages that follow each other go to fine ones that follow each other, so [d] coarse
      messages apart are at least [d] fine ones apart ([as_far_apart]), and a slot that is free for
      the fine message is free for the coarse one.
    - At both ends of a FIFO messages are the same, so heads are, too ([partner]). *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Semantics ThreadBlocks ThreadBlocksRuns ThreadBlocksMessages
  ThreadBlocksSlices.
Import ListNotations.
Open Scope N_scope.

(** * Steps in a block *)

(** Before a chunk that is not the first of its step stands the one before it. *)
Lemma one_back p b i e : event_at (code p) b i e -> offset e <> 0 ->
  0 < i /\ exists e', event_at (code p) b (i - 1) e' /\ offset e' + 1 = offset e /\
    takes e' = takes e /\ puts e' = puts e.
Proof.
  unfold event_at. rewrite block_events.
  assert (G : forall l k e, nth_error (events l) k = Some e -> offset e <> 0 ->
    exists k' e', k = S k' /\ nth_error (events l) k' = Some e' /\ offset e' + 1 = offset e /\
      takes e' = takes e /\ puts e' = puts e).
  { clear. induction l as [|x l IH]; intros k e E O; [destruct k; discriminate|].
    unfold events in *. simpl in *.
    destruct (Nat.lt_ge_cases k (length (events_of x))) as [L|L].
    - rewrite nth_error_app1 in E by exact L. unfold events_of in *.
      destruct (N.eqb_spec (count x) 0) as [Z|Z].
      + destruct k as [|k]; [|destruct k; discriminate]. injection E as <-. now destruct O.
      + rewrite nth_error_map in E. rewrite map_length, range_length in L.
        assert (R : forall k, (k < N.to_nat (count x))%nat ->
                    nth_error (range (count x)) k = Some (N.of_nat k)).
        { intros k' L'. unfold range. rewrite nth_error_map, nth_error_nth' with (d := 0%nat).
          - simpl. now rewrite seq_nth.
          - now rewrite seq_length. }
        rewrite R in E by exact L. injection E as <-. simpl in O. destruct k as [|k]; [lia|].
        exists k, (chunk_event x (N.of_nat k)). split; auto. split.
        * rewrite nth_error_app1 by (rewrite map_length, range_length; lia).
          rewrite nth_error_map, R by lia. reflexivity.
        * simpl. repeat split; lia.
    - rewrite nth_error_app2 in E by exact L.
      apply IH in E as (k' & e' & Ek & E & Rest); auto.
      exists (length (events_of x) + k')%nat, e'. split; [lia|]. split; auto.
      rewrite nth_error_app2 by lia. now replace (_ + k' - _)%nat with k' by lia. }
  intros E O. apply G in E as (k & e' & Ek & E & Rest); auto.
  split; [lia|]. exists e'. replace (N.to_nat (i - 1)) with k by lia. auto.
Qed.

Lemma back p b i e x : event_at (code p) b i e -> x <= offset e ->
  x <= i /\ exists e', event_at (code p) b (i - x) e' /\ offset e' = offset e - x /\
    takes e' = takes e /\ puts e' = puts e.
Proof.
  intros A. induction x as [|x IH] using N.peano_ind; intros L.
  - split; [lia|]. exists e. rewrite !N.sub_0_r. auto.
  - rewrite <- N.add_1_r in *. destruct (IH ltac:(lia)) as (Li & e' & A' & O & T & P).
    destruct (one_back p b (i - x) e' A') as (Pos & e2 & A2 & O2 & T2 & P2); [lia|].
    split; [lia|]. exists e2. replace (i - (x + 1)) with (i - x - 1) by lia.
    repeat split; auto; try congruence; lia.
Qed.

(** Only the first chunk of a step waits for counters. *)
Lemma waits_first p b i e c v : event_at (code p) b i e -> In (c, v) (awaits e) -> offset e = 0.
Proof.
  intros A I. apply event_of_step in A as (block & x & _ & _ & Ie).
  unfold events_of in Ie. destruct (count x =? 0).
  - now destruct Ie as [<-|[]].
  - apply in_map_iff in Ie as (o & <- & _). simpl in I.
    simpl. destruct (N.eqb_spec o 0); auto. destruct I.
Qed.

(** * Numbering what passes a test *)

Section Numbered.
  Variables (blocks : list (list event)) (test : event -> bool).

  Notation passing b := (filter test (nth (N.to_nat b) blocks [])).

  Lemma number_of_event b i e : event_at blocks b i e -> test e = true ->
    nth_error (passing b) (N.to_nat (counted blocks test b i)) = Some e.
  Proof.
    unfold event_at, counted. rewrite Nat2N.id. generalize (N.to_nat i) as k.
    induction (nth (N.to_nat b) blocks []) as [|y l IH]; intros [|k] E T; simpl in *; try discriminate.
    - injection E as ->. now rewrite T.
    - destruct (test y); simpl; auto.
  Qed.

  Lemma event_of_number b n e : nth_error (passing b) (N.to_nat n) = Some e ->
    exists i, event_at blocks b i e /\ test e = true /\ counted blocks test b i = n.
  Proof.
    unfold event_at, counted.
    assert (G : forall l k, nth_error (filter test l) k = Some e -> exists i,
      nth_error l i = Some e /\ test e = true /\ length (filter test (firstn i l)) = k).
    { induction l as [|y l IH]; intros k E; simpl in *; [destruct k; discriminate|].
      destruct (test y) eqn:T.
      - destruct k as [|k]; simpl in E.
        + injection E as <-. exists O. auto.
        + apply IH in E as (i & E & Te & C). exists (S i). simpl. rewrite T. simpl. auto.
      - apply IH in E as (i & E & Te & C). exists (S i). simpl. rewrite T. auto. }
    intros E. apply G in E as (i & E & T & C). exists (N.of_nat i). rewrite Nat2N.id. repeat split; auto.
    lia.
  Qed.

  Lemma numbered b n : n < counted blocks test b (length_of blocks b) ->
    exists i e, event_at blocks b i e /\ test e = true /\ counted blocks test b i = n.
  Proof.
    rewrite whole_number. unfold number. intros L.
    destruct (nth_error (passing b) (N.to_nat n)) as [e|] eqn:E.
    - apply event_of_number in E as (i & E). eauto.
    - apply nth_error_None in E. lia.
  Qed.

  Lemma counted_past b i e j : event_at blocks b i e -> test e = true -> i < j ->
    counted blocks test b i + 1 <= counted blocks test b j.
  Proof.
    intros A T L. pose proof (count_next blocks test b i e A) as Nx. rewrite T in Nx.
    pose proof (count_mono blocks test b (i + 1) j ltac:(lia)). lia.
  Qed.

  Lemma counted_more (more : event -> bool) b i :
    counted blocks (fun e => test e && more e) b i =
    number more (firstn (N.to_nat (counted blocks test b i)) (passing b)).
  Proof.
    unfold counted. rewrite Nat2N.id.
    change (number (fun e => test e && more e) (firstn (N.to_nat i) (nth (N.to_nat b) blocks [])) =
      number more (firstn (length (filter test (firstn (N.to_nat i) (nth (N.to_nat b) blocks []))))
        (passing b))).
    rewrite number_filter. f_equal. generalize (N.to_nat i) as k.
    induction (nth (N.to_nat b) blocks []) as [|y l IH]; intros [|k]; simpl; auto.
    destruct (test y); simpl; [f_equal|]; auto.
  Qed.
End Numbered.

(** * Heads *)

Section Heads.
  Variables m M : N.
  Hypothesis positive : 0 < m.
  Hypothesis coarser : m <= M.

  (** The first chunk, within its step, of the coarse message of a chunk; of the fine message of that. *)
  Definition coarse_head (o : N) : N := o - o mod M.
  Definition fine_head (o : N) : N := coarse_head o - coarse_head o mod m.

  Lemma heads_below o : fine_head o <= coarse_head o /\ coarse_head o <= o /\
    coarse_head o < fine_head o + m.
  Proof.
    unfold fine_head, coarse_head.
    pose proof (N.mod_le o M ltac:(lia)). pose proof (N.mod_le (o - o mod M) m ltac:(lia)).
    pose proof (N.mod_lt (o - o mod M) m ltac:(lia)).
    generalize dependent ((o - o mod M) mod m). generalize dependent (o mod M). intros. lia.
  Qed.

  Lemma heads_differ o : o - coarse_head o = o mod M /\
    coarse_head o - fine_head o = coarse_head o mod m.
  Proof.
    assert (G : forall a b, b <= a -> a - (a - b) = b) by (intros; lia).
    split; apply G; apply N.mod_le; lia.
  Qed.

  Lemma coarse_div o : coarse_head o = M * (o / M).
  Proof. unfold coarse_head. apply N.add_sub_eq_r. symmetry. apply N.div_mod. lia. Qed.

  Lemma heads_rise o o' : o' < coarse_head o -> fine_head o' < fine_head o.
  Proof.
    intros L. pose proof (heads_below o). pose proof (heads_below o').
    assert (coarse_head o' + M <= coarse_head o); [|lia].
    rewrite coarse_div in L. rewrite !coarse_div.
    assert (o' / M < o / M) by (apply N.div_lt_upper_bound; lia).
    assert (Up : M * (o' / M + 1) <= M * (o / M)) by (apply N.mul_le_mono_l; lia).
    rewrite N.mul_add_distr_l, N.mul_1_r in Up. exact Up.
  Qed.

  Lemma heads_same o o' : coarse_head o <= o' -> o' <= o ->
    coarse_head o' = coarse_head o /\ fine_head o' = fine_head o.
  Proof.
    intros L L'. assert (E : coarse_head o' = coarse_head o).
    { rewrite !coarse_div in *. f_equal. apply N.le_antisymm.
      - apply N.div_le_mono; lia.
      - apply N.div_le_lower_bound; lia. }
    split; auto. unfold fine_head. now rewrite E.
  Qed.

  Lemma fine_head_opens o : fine_head o mod m = 0.
  Proof.
    replace (fine_head o) with (coarse_head o / m * m); [apply N.mod_mul; lia|].
    unfold fine_head. symmetry. apply N.add_sub_eq_r.
    rewrite N.mul_comm. symmetry. apply N.div_mod. lia.
  Qed.

  Lemma coarse_head_opens o : o mod M = 0 -> coarse_head o = o.
  Proof. unfold coarse_head. intros ->. apply N.sub_0_r. Qed.

  Variable p : program.

  Definition head (i : N) (e : event) : N := i - (offset e - fine_head (offset e)).

  Lemma head_event b i e : event_at (code p) b i e ->
    offset e - fine_head (offset e) <= i /\
    exists e', event_at (code p) b (head i e) e' /\ offset e' = fine_head (offset e) /\
      takes e' = takes e /\ puts e' = puts e.
  Proof.
    intros A. pose proof (heads_below (offset e)).
    destruct (back p b i e (offset e - fine_head (offset e)) A ltac:(lia)) as (L & e' & A' & O & R).
    split; auto. exists e'. repeat split; try tauto. lia.
  Qed.

  (** The heads of coarse messages rise. *)
  Lemma head_rises b i e i' e' : event_at (code p) b i e -> event_at (code p) b i' e' ->
    i' < i - (offset e - coarse_head (offset e)) -> head i' e' < head i e.
  Proof.
    intros A A' L. pose proof (heads_below (offset e)). pose proof (heads_below (offset e')).
    destruct (back p b i e (offset e) A ltac:(lia)) as (Lo & _).
    destruct (back p b i' e' (offset e') A' ltac:(lia)) as (Lo' & _).
    destruct (N.lt_ge_cases i' (i - offset e)) as [Before|Within].
    - unfold head. lia.
    - destruct (back p b i e (i - i') A ltac:(lia)) as (_ & e2 & A2 & O2 & _).
      replace (i - (i - i')) with i' in A2 by lia.
      pose proof (event_same _ _ _ _ _ A' A2) as ->.
      pose proof (heads_rise (offset e) (offset e2) ltac:(lia)). unfold head. lia.
  Qed.
End Heads.

(** * The two ends of a FIFO *)

Section Ends.
  Variables (p : program) (putter taker : N -> N) (f : N).

  Notation puts_to := (fun e => is (puts e) f).
  Notation takes_from := (fun e => is (takes e) f).
  Notation sent b i := (counted (code p) puts_to b i).
  Notation got b i := (counted (code p) takes_from b i).

  Definition same_messages (size : N) : Prop :=
    map (fun e => (opens size e, closes size e))
      (filter puts_to (nth (N.to_nat (putter f)) (code p) [])) =
    map (fun e => (opens size e, closes size e))
      (filter takes_from (nth (N.to_nat (taker f)) (code p) [])).

  Lemma same_opens size i1 e1 i2 e2 : same_messages size ->
    event_at (code p) (putter f) i1 e1 -> puts e1 = Some f ->
    event_at (code p) (taker f) i2 e2 -> takes e2 = Some f ->
    sent (putter f) i1 = got (taker f) i2 -> opens size e1 = opens size e2.
  Proof.
    intros Same A1 P A2 T E. apply is_true in P, T.
    pose proof (number_of_event (code p) puts_to _ _ _ A1 P) as N1.
    pose proof (number_of_event (code p) takes_from _ _ _ A2 T) as N2.
    apply (map_nth_error (fun e => (opens size e, closes size e))) in N1, N2.
    unfold same_messages in Same. rewrite Same, E, N2 in N1. congruence.
  Qed.

  (** Chunks with one number are equally far from the start of their message. *)
  Lemma same_residue size : same_messages size -> forall n i1 e1 i2 e2,
    event_at (code p) (putter f) i1 e1 -> puts e1 = Some f -> sent (putter f) i1 = n ->
    event_at (code p) (taker f) i2 e2 -> takes e2 = Some f -> got (taker f) i2 = n ->
    offset e1 mod size = offset e2 mod size.
  Proof.
    intros Same. induction n as [|n IH] using N.peano_ind; intros i1 e1 i2 e2 A1 P E1 A2 T E2.
    all: pose proof (same_opens size i1 e1 i2 e2 Same A1 P A2 T ltac:(congruence)) as Op.
    all: unfold opens in Op.
    all: destruct (N.eqb_spec (offset e1 mod size) 0) as [Z1|Z1],
           (N.eqb_spec (offset e2 mod size) 0) as [Z2|Z2]; try discriminate; [congruence|].
    all: assert (O1 : offset e1 <> 0) by (intros H; rewrite H in Z1; now destruct Z1).
    all: assert (O2 : offset e2 <> 0) by (intros H; rewrite H in Z2; now destruct Z2).
    all: destruct (one_back p _ _ _ A1 O1) as (L1 & e1' & A1' & F1 & _ & P1).
    all: destruct (one_back p _ _ _ A2 O2) as (L2 & e2' & A2' & F2 & T2 & _).
    all: rewrite P in P1; rewrite T in T2.
    all: pose proof (count_next (code p) puts_to _ _ _ A1') as C1.
    all: pose proof (count_next (code p) takes_from _ _ _ A2') as C2.
    all: replace (i1 - 1 + 1) with i1 in C1 by lia.
    all: replace (i2 - 1 + 1) with i2 in C2 by lia.
    all: cbv beta in C1, C2; apply is_true in P1 as P1', T2 as T2'; rewrite P1' in C1; rewrite T2' in C2.
    - lia.
    - pose proof (IH (i1 - 1) e1' (i2 - 1) e2' A1' P1 ltac:(lia) A2' T2 ltac:(lia)) as Res.
      rewrite <- F1 in *. rewrite <- F2 in *.
      destruct (next_position size (offset e1')), (next_position size (offset e2')); congruence.
  Qed.

  (** As many messages have been begun when as many chunks have passed. *)
  Lemma same_begun size i1 i2 : same_messages size -> sent (putter f) i1 = got (taker f) i2 ->
    counted (code p) (fun e => is (puts e) f && opens size e) (putter f) i1 =
    counted (code p) (fun e => is (takes e) f && opens size e) (taker f) i2.
  Proof.
    intros Same E. rewrite (counted_more (code p) puts_to), (counted_more (code p) takes_from), E.
    apply (number_flags size). rewrite <- !firstn_map. f_equal. exact Same.
  Qed.

  Variables m M : N.
  Hypothesis positive : 0 < m.
  Hypothesis coarser : m <= M.
  Hypothesis fine_same : same_messages m.
  Hypothesis coarse_same : same_messages M.

  Notation head := (head m M).

  (** What is received has been sent, and its head by the head. *)
  Lemma partner i2 e2 : event_at (code p) (taker f) i2 e2 -> takes e2 = Some f ->
    exists i1 e1, event_at (code p) (putter f) i1 e1 /\ puts e1 = Some f /\
      sent (putter f) i1 = got (taker f) i2 /\ opens M e1 = opens M e2 /\
      sent (putter f) (head i1 e1) = got (taker f) (head i2 e2).
  Proof.
    intros A2 T. pose proof T as T'. apply is_true in T'.
    pose proof (number_of_event (code p) takes_from _ _ _ A2 T') as N2.
    destruct (nth_error (filter puts_to (nth (N.to_nat (putter f)) (code p) []))
                (N.to_nat (got (taker f) i2))) as [e1|] eqn:N1.
    2: { apply nth_error_None in N1.
         assert (Len : length (filter puts_to (nth (N.to_nat (putter f)) (code p) [])) =
                 length (filter takes_from (nth (N.to_nat (taker f)) (code p) []))).
         { rewrite <- (map_length (fun e => (opens m e, closes m e))).
           rewrite <- (map_length (fun e => (opens m e, closes m e)) (filter takes_from _)).
           f_equal. exact fine_same. }
         rewrite Len in N1. apply nth_error_None in N1. congruence. }
    apply event_of_number in N1 as (i1 & A1 & P & E). apply is_true in P.
    exists i1, e1. repeat split; auto.
    - apply (same_opens M i1 e1 i2 e2); auto.
    - pose proof (same_residue M coarse_same _ i1 e1 i2 e2 A1 P E A2 T eq_refl) as Res.
      assert (Walk : forall b i e x test, event_at (code p) b i e -> x <= offset e ->
        test e = true -> (forall e', takes e' = takes e -> puts e' = puts e -> test e' = true) ->
        counted (code p) test b (i - x) + x = counted (code p) test b i).
      { clear. intros b i e x test A L Te Tx. induction x as [|x IH] using N.peano_ind.
        - now rewrite N.sub_0_r, N.add_0_r.
        - rewrite <- N.add_1_r in *. specialize (IH ltac:(lia)).
          destruct (back p b i e (x + 1) A L) as (Li & e' & A' & _ & Ta & Pu).
          pose proof (count_next (code p) test b (i - (x + 1)) e' A') as C.
          rewrite (Tx e' Ta Pu) in C. replace (i - (x + 1) + 1) with (i - x) in C by lia. lia. }
      assert (Wp : forall x, x <= offset e1 -> sent (putter f) (i1 - x) + x = sent (putter f) i1).
      { intros x L. apply (Walk _ _ e1); auto; [now apply is_true|].
        intros e' _ H. apply is_true. congruence. }
      assert (Wt : forall x, x <= offset e2 -> got (taker f) (i2 - x) + x = got (taker f) i2).
      { intros x L. apply (Walk _ _ e2); auto. intros e' H _. apply is_true. congruence. }
      pose proof (heads_below m M positive coarser (offset e1)) as H1.
      pose proof (heads_below m M positive coarser (offset e2)) as H2.
      destruct (heads_differ m M positive coarser (offset e1)) as (R1 & F1).
      destruct (heads_differ m M positive coarser (offset e2)) as (R2 & F2).
      destruct (back p _ _ _ (offset e1 mod M) A1 ltac:(lia)) as (L1 & h1 & B1 & O1 & _ & P1).
      destruct (back p _ _ _ (offset e2 mod M) A2 ltac:(lia)) as (L2 & h2 & B2 & O2 & T2 & _).
      rewrite P in P1. rewrite T in T2.
      pose proof (Wp (offset e1 mod M) ltac:(lia)) as C1.
      pose proof (Wt (offset e2 mod M) ltac:(lia)) as C2.
      pose proof (same_residue m fine_same _ _ _ _ _ B1 P1 eq_refl B2 T2 ltac:(lia)) as Res'.
      assert (X1 : offset h1 = coarse_head M (offset e1)) by (rewrite O1; reflexivity).
      assert (X2 : offset h2 = coarse_head M (offset e2)) by (rewrite O2; reflexivity).
      rewrite X1, X2 in Res'.
      unfold ThreadBlocksSizes.head.
      pose proof (Wp (offset e1 - fine_head m M (offset e1)) ltac:(lia)).
      pose proof (Wt (offset e2 - fine_head m M (offset e2)) ltac:(lia)).
      assert (offset e1 - fine_head m M (offset e1) = offset e2 - fine_head m M (offset e2)) by lia.
      lia.
  Qed.
End Ends.

(** * Messages that begin and end *)

Section Messages.
  Variables (p : program) (side : event -> bool) (side_of : step -> bool).
  Hypothesis all_or_none : forall x i, side (chunk_event x i) = side_of x.
  Hypothesis no_chunk : forall ws ss, side (Event 0 true [] [] None None ws ss) = false.

  (** All messages that were begun before the first chunk of a message have ended. *)
  Lemma begun_ended size b i e : event_at (code p) b i e -> side e = true -> offset e mod size = 0 ->
    counted (code p) (fun e => side e && opens size e) b i =
    counted (code p) (fun e => side e && closes size e) b i.
  Proof.
    unfold event_at, counted. rewrite block_events. generalize (N.to_nat i) as k. intros k A S O.
    change (number (beginning size side) (firstn k (events (nth (N.to_nat b) (steps p) []))) =
            number (ending size side) (firstn k (events (nth (N.to_nat b) (steps p) [])))).
    revert k A. induction (nth (N.to_nat b) (steps p) []) as [|x l IH]; intros k A;
      [destruct k; discriminate|].
    unfold events in *. simpl in *. rewrite firstn_app, !number_app.
    destruct (Nat.lt_ge_cases k (length (events_of x))) as [L|L].
    - rewrite nth_error_app1 in A by exact L.
      replace (k - length (events_of x))%nat with 0%nat by lia. simpl (firstn 0 _).
      unfold number at 2 4. simpl. rewrite !N.add_0_r.
      unfold events_of in *. destruct (N.eqb_spec (count x) 0) as [Z|Z].
      + destruct k as [|k]; [reflexivity|destruct k; discriminate].
      + rewrite map_length, range_length in L.
        assert (E : e = chunk_event x (N.of_nat k)).
        { rewrite nth_error_map in A. unfold range in A.
          rewrite nth_error_map, nth_error_nth' with (d := 0%nat) in A by now rewrite seq_length.
          rewrite seq_nth in A by exact L. simpl in A. now injection A as <-. }
        subst e. simpl in O. rewrite firstn_map.
        pose proof (firstn_range (N.of_nat k) (count x) ltac:(lia)) as Fr. rewrite Nat2N.id in Fr.
        rewrite Fr, (messages_in_step size side side_of all_or_none) by lia.
        rewrite O. simpl. rewrite andb_false_r. lia.
    - rewrite nth_error_app2 in A by exact L.
      rewrite (IH _ A). f_equal. rewrite firstn_all2 by exact L.
      pose proof (messages_in_block size side side_of all_or_none no_chunk [x]) as H.
      unfold events in H. simpl in H. rewrite app_nil_r in H. exact H.
  Qed.
End Messages.

(** Of the chunks of a message, only the first begins it. *)
Lemma begun_within p f M r : forall b i e, event_at (code p) b i e -> takes e = Some f ->
  offset e mod M = r ->
  one_more (opens M e) (counted (code p) (fun e => is (takes e) f && opens M e) b i) <=
  counted (code p) (fun e => is (takes e) f && opens M e) b (i - r) + 1.
Proof.
  induction r as [|r IH] using N.peano_ind; intros b i e A T R; unfold one_more in *.
  - rewrite N.sub_0_r. destruct (opens M e); lia.
  - assert (Z : offset e <> 0).
    { intros Z. rewrite Z in R. assert (0 mod M = 0) by now destruct M. lia. }
    assert (Op : opens M e = false) by (unfold opens; apply N.eqb_neq; lia). rewrite Op.
    destruct (one_back p b i e A Z) as (L & e' & A' & F & T' & _). rewrite T in T'.
    rewrite <- F in R. destruct (next_position M (offset e')) as [E|E]; [lia|].
    specialize (IH b (i - 1) e' A' T' ltac:(lia)).
    pose proof (count_next (code p) (fun e => is (takes e) f && opens M e) b (i - 1) e' A') as C.
    cbv beta in C. apply is_true in T'. rewrite T' in C. cbn [andb] in C.
    replace (i - 1 + 1) with i in C by lia. replace (i - N.succ r) with (i - 1 - r) by lia.
    destruct (opens M e'); lia.
Qed.

(** * An execution with fine messages, and one with coarse messages that cannot go on *)

Section Sizes.
  Variables (p : program) (putter taker raiser : N -> N) (m M d : N).
  Hypothesis positive : 0 < m.
  Hypothesis coarser : m <= M.
  Hypothesis one_putter :
    forall b i e f, event_at (code p) b i e -> puts e = Some f -> b = putter f.
  Hypothesis one_taker :
    forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f.
  Hypothesis fine_same : forall f, same_messages p putter taker f m.
  Hypothesis coarse_same : forall f, same_messages p putter taker f M.

  Notation head := (head m M).
  Notation begins_in f size := (fun e => is (puts e) f && opens size e).
  Notation begun_at f size b i :=
    (counted (code p) (fun e => is (puts e) f && opens size e) b i).

  Lemma as_far_apart f n : forall b i1 e1 i2 e2,
    event_at (code p) b i1 e1 -> is (puts e1) f && opens M e1 = true ->
    event_at (code p) b i2 e2 -> is (puts e2) f && opens M e2 = true ->
    begun_at f M b i2 = begun_at f M b i1 + n ->
    begun_at f m b (head i1 e1) + n <= begun_at f m b (head i2 e2).
  Proof.
    induction n as [|n IH] using N.peano_ind; intros b i1 e1 i2 e2 A1 T1 A2 T2 E.
    - assert (i1 = i2) as ->.
      { destruct (N.lt_trichotomy i1 i2) as [L|[L|L]]; auto; exfalso.
        - pose proof (counted_past (code p) (begins_in f M) b i1 e1 i2 A1 T1 L). lia.
        - pose proof (counted_past (code p) (begins_in f M) b i2 e2 i1 A2 T2 L). lia. }
      rewrite (event_same _ _ _ _ _ A1 A2). lia.
    - rewrite <- N.add_1_r in *.
      pose proof (event_here _ _ _ _ A2) as L2.
      pose proof (counted_past (code p) (begins_in f M) b i2 e2 _ A2 T2 L2) as Total.
      destruct (numbered (code p) (fun e => is (puts e) f && opens M e) b (begun_at f M b i1 + n))
        as (g & eg & Ag & Tg & Eg); [lia|].
      specialize (IH b i1 e1 g eg A1 T1 Ag Tg Eg).
      assert (Lg : g < i2).
      { destruct (N.lt_ge_cases g i2) as [|G]; auto.
        pose proof (count_mono (code p) (fun e => is (puts e) f && opens M e) b i2 g G). lia. }
      assert (Rise : head g eg < head i2 e2).
      { apply (head_rises m M positive coarser p b); auto.
        apply andb_true_iff in T2 as (_ & O2). apply N.eqb_eq in O2.
        rewrite (coarse_head_opens M _ O2). lia. }
      destruct (head_event m M positive coarser p b g eg Ag) as (_ & h & Ah & Oh & _ & Ph).
      assert (Th : is (puts h) f && opens m h = true).
      { apply andb_true_iff in Tg as (Pg & _). rewrite Ph, Pg. unfold opens. rewrite Oh.
        rewrite (fine_head_opens m M) by auto. reflexivity. }
      pose proof (counted_past (code p) (begins_in f m) b (head g eg) h _ Ah Th Rise). lia.
  Qed.

  Context {V W : Type} (plus : V -> V -> V) (unit : V) (start : N -> V).
  Context (plus' : W -> W -> W) (unit' : W) (start' : N -> W).

  Notation fine := (reached plus unit start (code p) m (Some d)).
  (** The coarse execution may have more room: it matters only that it can't go on. *)
  Variable room : option N.
  Notation coarse := (reached plus' unit' start' (code p) M room).

  (** In a state of the coarse execution: the message whose chunk is received has been sent whole. *)
  Definition sent_whole (t : state W) (b : N) (e : event) : Prop :=
    forall f, takes e = Some f ->
      one_more (opens M e) (counted (code p) (fun e => is (takes e) f && opens M e) b (now t b)) <=
      counted (code p) (fun e => is (puts e) f && closes M e) (putter f) (now t (putter f)).

  Lemma done_too s : fine s -> forall t, coarse t ->
    (forall b e, ready (code p) M (Some d) t b e -> ~ sent_whole t b e) ->
    forall b i e, event_at (code p) b i e -> head i e < now s b -> i < now t b.
  Proof.
    intros Rs t Rt Stop. induction Rs as [|s b e0 Rs IH H]; intros b' i e A L; [simpl in L; lia|].
    simpl in L. destruct (N.eqb_spec b' b) as [->|Ne]; [|eauto].
    destruct (N.lt_ge_cases (head i e) (now s b)) as [Before|Now]; [eauto|].
    assert (Hi : head i e = now s b) by lia. clear L Now.
    destruct (N.lt_ge_cases i (now t b)) as [|Late]; auto. exfalso.
    (* the event at which the block stands in [t] is of the same coarse message *)
    set (i' := now t b) in *.
    pose proof (event_here _ _ _ _ A) as Li.
    destruct (nth_error (nth (N.to_nat b) (code p) []) (N.to_nat i')) as [e'|] eqn:A'.
    2: { apply nth_error_None in A'. unfold length_of in Li. lia. }
    change (event_at (code p) b i' e') in A'.
    pose proof (heads_below m M positive coarser (offset e)) as Hb.
    destruct (back p b i e (offset e) A ltac:(lia)) as (Lo & _).
    assert (Same : i - (offset e - coarse_head M (offset e)) <= i').
    { destruct (N.lt_ge_cases i' (i - (offset e - coarse_head M (offset e)))) as [B|]; auto. exfalso.
      pose proof (head_rises m M positive coarser p b i e i' e' A A' B).
      assert (i' < now t b) by (apply (IH b i' e'); auto; lia). unfold i' in *. lia. }
    destruct (back p b i e (i - i') A ltac:(lia)) as (_ & e2 & A2 & O2 & T2 & P2).
    replace (i - (i - i')) with i' in A2 by lia.
    rewrite <- (event_same _ _ _ _ _ A' A2) in O2, T2, P2. clear e2 A2.
    destruct (heads_same m M positive coarser (offset e) (offset e') ltac:(lia) ltac:(lia)) as (Ch & Fh).
    assert (Hh : head i' e' = now s b).
    { rewrite <- Hi. unfold ThreadBlocksSizes.head. rewrite Fh. lia. }
    clear dependent e. clear i Late Li. rename e' into e. rename A' into A.
    destruct (head_event m M positive coarser p b i' e A) as (Far & h & Ah & Oh & Th & Ph).
    rewrite Hh in Ah. pose proof H as (A0 & Fl & Got & Room).
    pose proof (event_same _ _ _ _ _ Ah A0) as ->. clear Ah.
    assert (Whole : sent_whole t b e).
    { intros f T. fold i'. rewrite T in Th. pose proof (one_taker _ _ _ _ A T) as Eb.
      destruct (N.le_gt_cases
        (one_more (opens M e) (counted (code p) (fun e => is (takes e) f && opens M e) b i'))
        (counted (code p) (fun e => is (puts e) f && closes M e) (putter f) (now t (putter f))))
        as [|Part]; auto. exfalso.
      (* the first chunk of the message, at both ends *)
      destruct (heads_differ m M positive coarser (offset e)) as (Diff & _).
      pose proof (heads_below m M positive coarser (offset e)) as Hb2.
      pose proof (back p b i' e (offset e) A ltac:(lia)) as (Lx & _).
      destruct (back p b i' e (offset e mod M) A ltac:(lia)) as (L2 & g & Ag & Og & Tg & _).
      rewrite T in Tg.
      assert (Og' : offset g = coarse_head M (offset e)) by (rewrite Og; reflexivity).
      destruct (heads_same m M positive coarser (offset e) (offset g) ltac:(lia) ltac:(lia))
        as (Cg & Fg).
      assert (Hg : head (i' - offset e mod M) g = now s b).
      { rewrite <- Hh. unfold ThreadBlocksSizes.head. rewrite Fg, Og', <- Diff. lia. }
      assert (Zg : offset g mod M = 0).
      { rewrite Og', (coarse_div m M positive coarser). rewrite N.mul_comm. apply N.mod_mul. lia. }
      pose proof (begun_within p f M _ b i' e A T eq_refl) as First.
      rewrite Eb in Ag.
      destruct (partner p putter taker f m M positive coarser (fine_same f) (coarse_same f) _ g Ag Tg)
        as (i3 & e3 & A3 & P3 & E3 & O3 & Eh).
      rewrite Hg in Eh.
      pose proof (same_begun p putter taker f M _ _ (coarse_same f) E3) as Coarse.
      assert (Op3 : opens M e3 = true) by (rewrite O3; unfold opens; now rewrite Zg).
      assert (T3 : is (puts e3) f && opens M e3 = true).
      { apply is_true in P3. now rewrite P3, Op3. }
      pose proof (counted_past (code p) (begins_in f M) _ i3 e3 _ A3 T3 (event_here _ _ _ _ A3)) as Total.
      (* a message that is not sent whole *)
      assert (Ended : counted (code p) (begins_in f M) (putter f) (length_of (code p) (putter f)) =
        counted (code p) (fun e => is (puts e) f && closes M e) (putter f)
          (length_of (code p) (putter f))).
      { rewrite !whole_number, block_events.
        now apply (messages_in_block M (fun e => is (puts e) f) (fun x => is (sends x) f)). }
      rewrite <- Eb in Coarse.
      destruct (numbered (code p) (fun e => is (puts e) f && closes M e) (putter f)
                  (counted (code p) (fun e => is (puts e) f && closes M e) (putter f)
                     (now t (putter f)))) as (i1 & e1 & A1 & T1 & E1); [lia|].
      assert (Wait : now t (putter f) <= i1).
      { destruct (N.le_gt_cases (now t (putter f)) i1) as [|G]; auto. exfalso.
        pose proof (counted_past (code p) (fun e => is (puts e) f && closes M e) (putter f) i1 e1 _
                      A1 T1 G). lia. }
      assert (Wait' : now s (putter f) <= head i1 e1).
      { destruct (N.le_gt_cases (now s (putter f)) (head i1 e1)) as [|G]; auto. exfalso.
        pose proof (IH _ _ _ A1 G). lia. }
      apply andb_true_iff in T1 as (S1 & _).
      destruct (heads_differ m M positive coarser (offset e1)) as (Diff1 & _).
      pose proof (heads_below m M positive coarser (offset e1)) as Hb1.
      pose proof (back p _ _ _ (offset e1) A1 ltac:(lia)) as (Lx1 & _).
      destruct (back p _ _ _ (offset e1 mod M) A1 ltac:(lia)) as (L1 & g1 & Ag1 & Og1 & _ & Pg1).
      assert (Og1' : offset g1 = coarse_head M (offset e1)) by (rewrite Og1; reflexivity).
      destruct (heads_same m M positive coarser (offset e1) (offset g1) ltac:(lia) ltac:(lia))
        as (Cg1 & Fg1).
      assert (Hg1 : head (i1 - offset e1 mod M) g1 = head i1 e1).
      { unfold ThreadBlocksSizes.head. rewrite Fg1, Og1', <- Diff1. lia. }
      assert (Zg1 : offset g1 mod M = 0).
      { rewrite Og1', (coarse_div m M positive coarser). rewrite N.mul_comm. apply N.mod_mul. lia. }
      assert (Sg1 : is (puts g1) f = true) by now rewrite Pg1.
      pose proof (begun_ended p (fun e => is (puts e) f) (fun x => is (sends x) f)
                 ltac:(reflexivity) ltac:(reflexivity) M _ _ g1 Ag1 Sg1 Zg1) as Both.
      pose proof (count_mono (code p) (fun e => is (puts e) f && closes M e) (putter f)
                    (i1 - offset e1 mod M) i1 ltac:(lia)) as Before.
      assert (Order : head i1 e1 <= head i3 e3).
      { rewrite <- Hg1. destruct (N.lt_trichotomy (i1 - offset e1 mod M) i3) as [L|[E|L]].
        - apply N.lt_le_incl. apply (head_rises m M positive coarser p (putter f)); auto.
          unfold opens in Op3. apply N.eqb_eq in Op3. rewrite (coarse_head_opens M _ Op3). lia.
        - rewrite E in Ag1 |- *. now rewrite (event_same _ _ _ _ _ Ag1 A3).
        - pose proof (counted_past (code p) (begins_in f M) _ i3 e3 _ A3 T3 L). lia. }
      pose proof (count_mono (code p) (fun e => is (puts e) f) (putter f) (now s (putter f))
                    (head i3 e3) ltac:(lia)) as Le.
      pose proof (in_flight plus unit start (code p) m (Some d) putter taker one_putter one_taker
                    s Rs f) as Fs.
      rewrite <- Eb in Fs, Eh. rewrite Eh in Le. specialize (Got f Th).
      destruct (queue s f); [congruence|]. simpl length in Fs. lia. }
    refine (Stop b e _ Whole). unfold ready. fold i'. split; [exact A|]. split; [|split].
    - intros c v I. pose proof (waits_first p b i' e c v A I) as Z.
      assert (Hz : head i' e = i').
      { unfold ThreadBlocksSizes.head. rewrite Z. lia. }
      rewrite Hz in Hh. rewrite <- Hh in A0. rewrite (event_same _ _ _ _ _ A A0) in I.
      specialize (Fl c v I). destruct (N.eq_dec v 0) as [->|Pv]; [lia|].
      apply (level_spec plus unit start (code p) m (Some d) s Rs) in Fl
        as (b1 & i1 & e1 & u & L1 & A1 & I1 & Le); [|lia].
      apply (level_spec plus' unit' start' (code p) M room t Rt); [lia|].
      exists b1, i1, e1, u. repeat split; auto. apply (IH b1 i1 e1); auto.
      unfold ThreadBlocksSizes.head. lia.
    - intros f T Empty. rewrite T in Th. pose proof (one_taker _ _ _ _ A T) as Eb.
      pose proof (in_flight plus unit start (code p) m (Some d) putter taker one_putter one_taker
                    s Rs f) as Fs.
      pose proof (in_flight plus' unit' start' (code p) M room putter taker one_putter one_taker
                    t Rt f) as Ft.
      rewrite Empty in Ft. simpl length in Ft. rewrite <- Eb in Fs, Ft. fold i' in Ft.
      rewrite Eb in A, Hh, Fs, Ft.
      destruct (partner p putter taker f m M positive coarser (fine_same f) (coarse_same f) i' e A T)
        as (i1 & e1 & A1 & P1 & E1 & _ & Eh).
      assert (Wait : now t (putter f) <= i1).
      { destruct (N.le_gt_cases (now t (putter f)) i1) as [|G]; auto. exfalso.
        apply is_true in P1.
        pose proof (counted_past (code p) (fun e => is (puts e) f) (putter f) i1 e1 _ A1 P1 G). lia. }
      assert (Wait' : now s (putter f) <= head i1 e1).
      { destruct (N.le_gt_cases (now s (putter f)) (head i1 e1)) as [|G]; auto. exfalso.
        pose proof (IH _ _ _ A1 G). lia. }
      pose proof (count_mono (code p) (fun e => is (puts e) f) (putter f) _ _ Wait') as Le.
      rewrite Eh, Hh in Le. specialize (Got f Th).
      destruct (queue s f); [congruence|]. simpl length in Fs. lia.
    - intros f d' P O E. injection E as <-. rewrite P in Ph. pose proof (one_putter _ _ _ _ A P) as Eb.
      destruct (N.lt_ge_cases (begun t f) (received t f + d)) as [|Full]; auto. exfalso.
      rewrite (begun_counts plus' unit' start' (code p) M room putter one_putter t Rt f) in Full.
      rewrite (received_counts plus' unit' start' (code p) M room taker one_taker t Rt f) in Full.
      rewrite <- Eb in Full. fold i' in Full.
      assert (T0 : is (puts e) f && opens M e = true).
      { apply is_true in P. now rewrite P, O. }
      pose proof (event_here _ _ _ _ A) as Li.
      pose proof (counted_past (code p) (begins_in f M) b i' e _ A T0 Li) as Total.
      destruct (as_much p M putter taker f (coarse_same f)) as (_ & Much). rewrite <- Eb in Much.
      (* the message that keeps the slot, and where its first chunk is *)
      destruct (numbered (code p) (fun e => is (takes e) f && closes M e) (taker f)
                  (counted (code p) (fun e => is (takes e) f && closes M e) (taker f)
                     (now t (taker f)))) as (i2 & e2 & A2 & T2 & E2); [lia|].
      assert (Wait : now t (taker f) <= i2).
      { destruct (N.le_gt_cases (now t (taker f)) i2) as [|G]; auto. exfalso.
        pose proof (counted_past (code p) (fun e => is (takes e) f && closes M e) (taker f) i2 e2 _ A2 T2 G).
        lia. }
      assert (Wait' : now s (taker f) <= head i2 e2).
      { destruct (N.le_gt_cases (now s (taker f)) (head i2 e2)) as [|G]; auto. exfalso.
        pose proof (IH _ _ _ A2 G). lia. }
      apply andb_true_iff in T2 as (T2 & _). apply is_true in T2.
      destruct (heads_differ m M positive coarser (offset e2)) as (Diff & _).
      pose proof (heads_below m M positive coarser (offset e2)) as Hb2.
      destruct (back p _ _ _ (offset e2 mod M) A2 ltac:(lia)) as (L2 & g & Ag & Og & Tg & _).
      rewrite T2 in Tg.
      assert (Og' : offset g = coarse_head M (offset e2)) by (rewrite Og; reflexivity).
      destruct (heads_same m M positive coarser (offset e2) (offset g) ltac:(lia) ltac:(lia))
        as (Cg & Fg).
      assert (Hg : head (i2 - offset e2 mod M) g = head i2 e2).
      { unfold ThreadBlocksSizes.head. rewrite Fg, Og', <- Diff.
        pose proof (back p _ _ _ (offset e2) A2 ltac:(lia)) as (Lx & _). lia. }
      assert (Zg : offset g mod M = 0).
      { rewrite Og', (coarse_div m M positive coarser). rewrite N.mul_comm. apply N.mod_mul. lia. }
      destruct (partner p putter taker f m M positive coarser (fine_same f) (coarse_same f) _ g Ag Tg)
        as (i1 & e1 & A1 & P1 & E1 & O1 & Eh).
      rewrite Hg in Eh.
      pose proof (same_begun p putter taker f M _ _ (coarse_same f) E1) as Coarse.
      pose proof (same_begun p putter taker f m _ _ (fine_same f) Eh) as Fine.
      assert (Sg : is (takes g) f = true) by now apply is_true.
      rewrite (begun_ended p (fun e => is (takes e) f) (fun x => is (receives x) f)
                 ltac:(reflexivity) ltac:(reflexivity) M _ _ g Ag Sg Zg) in Coarse.
      pose proof (count_mono (code p) (fun e => is (takes e) f && closes M e) (taker f)
                    (i2 - offset e2 mod M) i2 ltac:(lia)) as Before.
      rewrite <- Eb in *.
      assert (T1 : is (puts e1) f && opens M e1 = true).
      { apply is_true in P1. rewrite P1, O1. unfold opens. now rewrite Zg. }
      pose proof (as_far_apart f (begun_at f M b i' - begun_at f M b i1) b i1 e1 i' e A1 T1 A T0
                    ltac:(lia)) as Apart.
      rewrite Hh in Apart.
      (* and what the fine execution says of it *)
      assert (Op : opens m e0 = true).
      { unfold opens. rewrite Oh. now rewrite (fine_head_opens m M) by auto. }
      specialize (Room f d Ph Op eq_refl).
      rewrite (begun_counts plus unit start (code p) m (Some d) putter one_putter s Rs f) in Room.
      rewrite (received_counts plus unit start (code p) m (Some d) taker one_taker s Rs f) in Room.
      rewrite <- Eb in Room.
      pose proof (count_mono (code p) (fun e => is (takes e) f && closes m e) (taker f) _ _ Wait') as Le.
      destruct (head_event m M positive coarser p _ _ _ A2) as (_ & h & Ah & Ohh & Thh & _).
      assert (Sh : is (takes h) f = true) by (apply is_true; congruence).
      rewrite <- (begun_ended p (fun e => is (takes e) f) (fun x => is (receives x) f)
                 ltac:(reflexivity) ltac:(reflexivity) m _ _ h Ah Sh
                 ltac:(rewrite Ohh; now apply fine_head_opens)) in Le.
      lia.
  Qed.
End Sizes.

(** * The verdicts *)

(** An event waits for a slot for its message, and for the whole message that it receives from. *)
Definition whole_rule {V} (p : program) (size d : N) (s : state V) (e : event) : Prop :=
  (forall f, puts e = Some f -> opens size e = true -> begun s f < received s f + d) /\
  (forall f, takes e = Some f ->
     one_more (opens size e) (so_far (code p) (fun x => is (takes x) f && opens size x) s) <=
     so_far (code p) (fun x => is (puts x) f && closes size x) s).

Lemma any_room {V} (plus : V -> V -> V) unit start blocks size rule s :
  reached_by plus unit start blocks size rule s -> reached plus unit start blocks size None s.
Proof.
  induction 1 as [|s b e R IH (A & Fl & Got & _)]; constructor; auto.
  repeat split; auto. discriminate.
Qed.

(** If an execution with messages of [m] chunks ends, nobody ever gets stuck before the end with
    messages of [M >= m] chunks and as many slots, as long as events do not wait for more than whole
    messages: not if messages are received only as a whole, nor if slices of them are. *)
Theorem whole_messages {V W : Type} (plus : V -> V -> V) unit start
  (plus' : W -> W -> W) unit' start' p m M d (rule : state W -> event -> Prop) :
  0 < m -> m <= M -> connected p m -> connected p M ->
  (exists s, reached plus unit start (code p) m (Some d) s /\ over (code p) s) ->
  (forall t e, whole_rule p M d t e -> rule t e) ->
  forall t, reached_by plus' unit' start' (code p) M rule t ->
  (forall b e, ~ ready_by (code p) rule t b e) -> over (code p) t.
Proof.
  intros Pos Le Jm (_ & _ & _ & Same) (s & Rs & O) No_more t Bt Stop.
  pose proof (any_room plus' unit' start' (code p) M rule t Bt) as Rt.
  destruct (both_ends p m Jm) as (putter & taker & raiser & Pu & Ta & Ra & Fine).
  assert (Coarse : forall f, same_messages p putter taker f M).
  { intros f. specialize (Same f). unfold messages in Same.
    rewrite (only_block (fun e => is (puts e) f) (putter f)) in Same.
    2: intros b i e A T; apply is_true in T; eauto.
    rewrite (only_block (fun e => is (takes e) f) (taker f)) in Same; auto.
    intros b i e A T; apply is_true in T; eauto. }
  intros b. destruct (N.le_gt_cases (length_of (code p) b) (now t b)) as [|L]; auto. exfalso.
  destruct (nth_error (nth (N.to_nat b) (code p) []) (N.to_nat (now t b))) as [e|] eqn:A.
  2: { apply nth_error_None in A. unfold length_of in L. lia. }
  specialize (O b).
  assert (now t b < now t b); [|lia].
  apply (done_too p putter taker m M d Pos Le Pu Ta Fine Coarse plus unit start plus' unit' start'
           None s Rs t Rt) with (b := b) (i := now t b) (e := e); [|exact A|unfold head; lia].
  clear b L e A O. intros b e (A & Fl & Got & Room) Whole. apply (Stop b e).
  repeat split; auto. apply No_more. split; [intros f P Op; now apply Room|].
  intros f T. specialize (Whole f T). pose proof (Ta _ _ _ _ A T) as Eb.
  rewrite (so_far_owner (code p) _ b), (so_far_owner (code p) _ (putter f)).
  - exact Whole.
  - intros b' i e' A' T'. apply andb_true_iff in T' as (T' & _). apply is_true in T'. eauto.
  - intros b' i e' A' T'. apply andb_true_iff in T' as (T' & _). apply is_true in T'.
    rewrite Eb. eauto.
Qed.

(** The same for messages that are received chunk by chunk: what is free of deadlock at one size of
    the buffer is so at all smaller ones, where a message holds more chunks. *)
Theorem larger_messages {V W : Type} (plus : V -> V -> V) unit start
  (plus' : W -> W -> W) unit' start' p m M d :
  0 < m -> m <= M -> connected p m -> connected p M ->
  (exists s, reached plus unit start (code p) m (Some d) s /\ over (code p) s) ->
  forall t, reached plus' unit' start' (code p) M (Some d) t ->
  over (code p) t \/ exists b e, ready (code p) M (Some d) t b e.
Proof.
  intros Pos Le Jm JM Fine t Rt.
  destruct (someone_ready (code p) M (Some d) t) as [|Stop]; auto. left.
  set (rule := fun (t : state W) (e : event) =>
    forall f, puts e = Some f -> opens M e = true -> begun t f < received t f + d).
  assert (By : reached_by plus' unit' start' (code p) M rule t).
  { clear Stop. induction Rt as [|t b e Rt IH (A & Fl & Got & Room)]; constructor; auto.
    repeat split; auto. intros f P O. auto. }
  apply (whole_messages plus unit start plus' unit' start' p m M d rule Pos Le Jm JM Fine); auto.
  - intros u e (Room & _). exact Room.
  - intros b e (A & Fl & Got & Room). apply (Stop b e). repeat split; auto.
    intros f d' P O E. injection E as <-. auto.
Qed.
