(** Chunks that travel in pieces.

    A chunk that is larger than a slot makes the executor run the whole program once for each piece
    of the chunk, piece after piece. Blocks do not wait for each other in between: one may be some
    pieces ahead of another. FIFOs and counters go on; what is signalled and waited for in a piece is
    above what was signalled in the piece before it. Each piece has memory of its own.

    [repeated] is this program of [pieces] pieces. If the program is right, the repeated one is
    ([pieces_right]):

    - Seen from one piece, a block stands before it, in it, or after it. What is reached with the
      repeated program is, seen so, reached with the program itself ([one_piece]): at both ends of
      a FIFO a piece has as many chunks and messages.
    - Pieces one after another are one execution of the repeated program ([all_pieces]). One run
      decides that nobody gets stuck, and what is in memory at the end. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Semantics ThreadBlocks ThreadBlocksRuns ThreadBlocksMessages.
Import ListNotations.
Open Scope N_scope.

(** * The repeated program *)

Section Repeated.
  (** So many pieces; the memory of a piece has [area] addresses; a piece signals [flags] at most. *)
  Variables (pieces area flags : N).

  Definition in_piece (j a : N) : N := j * area + a.

  (** Waiting for 0 is no waiting, in no piece. *)
  Definition flag_in_piece (j v : N) : N := if v =? 0 then 0 else j * flags + v.

  Definition flags_in_piece (j : N) (l : list (N * N)) : list (N * N) :=
    map (fun r => (fst r, flag_in_piece j (snd r))) l.

  Definition step_in_piece (j : N) (x : step) : step :=
    Step (count x) (map (in_piece j) (sources x)) (map (in_piece j) (targets x))
      (receives x) (sends x) (flags_in_piece j (waits x)) (flags_in_piece j (signals x)).

  (** Piece [j] of chunk [c] is a chunk of its own. *)
  Definition chunk_in_piece (j c : N) : N := c * pieces + j.

  Definition want_in_piece (j : N) (w : want) : want :=
    match w with
    | Of_all c => Of_all (chunk_in_piece j c)
    | Of_one r c => Of_one r (chunk_in_piece j c)
    end.

  Definition for_pieces {T} (f : N -> list T) : list T := flat_map f (range pieces).

  Definition repeated (p : program) : program := Program
    (map (fun block => for_pieces (fun j => map (step_in_piece j) block)) (steps p))
    (ranks p)
    (for_pieces (fun j =>
       map (fun row => (in_piece j (fst row), (fst (snd row), chunk_in_piece j (snd (snd row)))))
         (inputs p)))
    (map (fun demand => for_pieces (fun j =>
       map (fun row => (in_piece j (fst row), want_in_piece j (snd row))) demand)) (demands p)).
End Repeated.

(** All addresses of a program are below [area]. *)
Definition fits (area : N) (p : program) : Prop :=
  (forall block x a, In block (steps p) -> In x block -> In a (sources x ++ targets x) ->
     a + count x <= area) /\
  (forall row, In row (inputs p) -> fst row < area) /\
  (forall demand row, In demand (demands p) -> In row demand -> fst row < area).

(** No step signals more than [flags]. *)
Definition signals_below (flags : N) (p : program) : Prop :=
  forall block x c v, In block (steps p) -> In x block -> In (c, v) (signals x) -> v <= flags.

(** * Events in pieces *)

Section Pieces.
  Variables (pieces area flags : N).

  Notation at_piece := (in_piece area).
  Notation flag := (flag_in_piece flags).
  Notation shown := (flags_in_piece flags).

  Definition event_in_piece (j : N) (e : event) : event :=
    Event (offset e) (final e) (map (at_piece j) (reads e)) (map (at_piece j) (writes e))
      (takes e) (puts e) (shown j (awaits e)) (shown j (raises e)).

  Notation shifted := event_in_piece.

  Lemma events_in_piece j l :
    events (map (step_in_piece area flags j) l) = map (shifted j) (events l).
  Proof.
    induction l as [|x l IH]; auto. unfold events in *. simpl. rewrite map_app, <- IH. f_equal.
    unfold events_of. simpl. destruct (count x =? 0); auto.
    rewrite map_map. apply map_ext. intros i. unfold chunk_event, shifted. simpl.
    rewrite !map_map. unfold in_piece. f_equal.
    - apply map_ext. intros a. lia.
    - apply map_ext. intros a. lia.
    - now destruct (i =? 0).
    - now destruct (i + 1 =? count x).
  Qed.

  Definition many (n : N) (l : list event) : list event :=
    flat_map (fun j => map (shifted j) l) (range n).

  Lemma many_succ n l : many (n + 1) l = many n l ++ map (shifted n) l.
  Proof. unfold many. rewrite range_succ, flat_map_app. simpl. now rewrite app_nil_r. Qed.

  Lemma many_length n l : N.of_nat (length (many n l)) = n * N.of_nat (length l).
  Proof.
    induction n as [|n IH] using N.peano_ind; auto.
    rewrite <- N.add_1_r, many_succ, app_length, map_length. lia.
  Qed.

  Lemma many_split n j l : j < n -> exists rest, many n l = many j l ++ map (shifted j) l ++ rest.
  Proof.
    induction n as [|n IH] using N.peano_ind; [lia|]. intros L. rewrite <- N.add_1_r, many_succ.
    destruct (N.eq_dec j n) as [->|Ne].
    - exists []. now rewrite app_nil_r.
    - destruct (IH ltac:(lia)) as (rest & ->). exists (rest ++ map (shifted n) l).
      now rewrite <- !app_assoc.
  Qed.

  Lemma nth_many n j k l e : j < n -> nth_error l k = Some e ->
    nth_error (many n l) (N.to_nat (j * N.of_nat (length l) + N.of_nat k)) = Some (shifted j e).
  Proof.
    intros L E. destruct (many_split n j l L) as (rest & ->).
    assert (k < length l)%nat by (apply nth_error_Some; congruence).
    pose proof (many_length j l).
    rewrite nth_error_app2 by lia. rewrite nth_error_app1 by (rewrite map_length; lia).
    rewrite nth_error_map. replace (_ - _)%nat with k by lia. now rewrite E.
  Qed.

  Lemma code_repeated p : code (repeated pieces area flags p) = map (many pieces) (code p).
  Proof.
    unfold code. simpl. rewrite !map_map. apply map_ext. intros block.
    unfold for_pieces, many. induction (range pieces) as [|j l IH]; auto. simpl.
    unfold events in *. rewrite flat_map_app, IH. f_equal. apply events_in_piece.
  Qed.

  Section Blocks.
    Variable blocks : list (list event).

    Notation again := (map (many pieces) blocks).
    Notation len := (length_of blocks).

    Lemma block_again b : nth (N.to_nat b) again [] = many pieces (nth (N.to_nat b) blocks []).
    Proof.
      assert (E : many pieces [] = []).
      { unfold many. induction (range pieces); auto. }
      rewrite <- E at 1. apply (map_nth (many pieces)).
    Qed.

    Lemma event_again b k e j : j < pieces -> event_at blocks b k e ->
      event_at again b (j * len b + k) (shifted j e).
    Proof.
      intros L A. unfold event_at. rewrite block_again.
      pose proof (nth_many pieces j (N.to_nat k) _ e L A) as H. now rewrite N2Nat.id in H.
    Qed.

    Lemma again_length b : length_of again b = pieces * len b.
    Proof. unfold length_of. rewrite block_again. apply many_length. Qed.

    Lemma event_once b i e' : event_at again b i e' -> exists j k e, j < pieces /\ k < len b /\
      i = j * len b + k /\ event_at blocks b k e /\ e' = shifted j e.
    Proof.
      intros A. pose proof (event_here _ _ _ _ A) as L. rewrite again_length in L.
      assert (Z : len b <> 0) by lia.
      assert (Lj : i / len b < pieces) by (apply N.div_lt_upper_bound; lia).
      assert (Lk : i mod len b < len b) by now apply N.mod_lt.
      assert (Ei : i = i / len b * len b + i mod len b) by (rewrite (N.div_mod i (len b) Z) at 1; lia).
      destruct (nth_error (nth (N.to_nat b) blocks []) (N.to_nat (i mod len b))) as [e|] eqn:E.
      2: { apply nth_error_None in E. unfold length_of in Lk, E. lia. }
      exists (i / len b), (i mod len b), e. repeat split; auto.
      pose proof (event_again b (i mod len b) e (i / len b) Lj E) as A'.
      rewrite <- Ei in A'. eapply event_same; eauto.
    Qed.

    Section Counts.
      Variable test : event -> bool.
      Hypothesis same_test : forall j e, test (shifted j e) = test e.

      Lemma number_shifted j l : number test (map (shifted j) l) = number test l.
      Proof.
        unfold number. induction l as [|e l IH]; auto. simpl. rewrite same_test.
        destruct (test e); simpl; lia.
      Qed.

      Lemma number_many n l : number test (many n l) = n * number test l.
      Proof.
        induction n as [|n IH] using N.peano_ind; auto.
        rewrite <- N.add_1_r, many_succ, number_app, number_shifted. lia.
      Qed.

      Notation whole b := (counted blocks test b (len b)).

      Lemma counted_again b j k : j < pieces -> k <= len b ->
        counted again test b (j * len b + k) = j * whole b + counted blocks test b k.
      Proof.
        intros L Lk. rewrite whole_number. unfold counted. rewrite block_again.
        destruct (many_split pieces j (nth (N.to_nat b) blocks []) L) as (rest & ->).
        pose proof (many_length j (nth (N.to_nat b) blocks [])) as Len.
        unfold length_of in *. rewrite firstn_app, filter_app, app_length, firstn_all2 by lia.
        rewrite firstn_app, map_length.
        replace (_ - _ - length _)%nat with O by lia. simpl (firstn 0 rest). rewrite app_nil_r.
        rewrite firstn_map. rewrite Nat2N.inj_add.
        change (number test (many j (nth (N.to_nat b) blocks [])) + number test (map (shifted j)
          (firstn (N.to_nat (j * N.of_nat (length (nth (N.to_nat b) blocks [])) + k) -
             length (many j (nth (N.to_nat b) blocks []))) (nth (N.to_nat b) blocks []))) =
          j * number test (nth (N.to_nat b) blocks []) +
          number test (firstn (N.to_nat k) (nth (N.to_nat b) blocks []))).
        rewrite number_shifted, number_many. do 3 f_equal. lia.
      Qed.

      (** Where a block stands, seen from piece [j]. *)
      Definition seen (j b n : N) : N := N.min (n - j * len b) (len b).

      Lemma counted_seen b j n : j < pieces ->
        counted blocks test b (seen j b n) = N.min (counted again test b n - j * whole b) (whole b).
      Proof.
        intros L. unfold seen.
        pose proof (count_zero blocks test b) as Zero.
        pose proof (counted_again b j 0 L ltac:(lia)) as First.
        pose proof (counted_again b j (len b) L ltac:(lia)) as Last.
        rewrite Zero, N.add_0_r in First. rewrite N.add_0_r in First.
        destruct (N.le_gt_cases n (j * len b)) as [Le|G].
        - replace (n - j * len b) with 0 by lia. rewrite N.min_0_l, Zero.
          pose proof (count_mono again test b _ _ Le). lia.
        - destruct (N.le_gt_cases (len b) (n - j * len b)) as [Le|G'].
          + rewrite N.min_r by exact Le.
            pose proof (count_mono again test b (j * len b + len b) n ltac:(lia)). lia.
          + rewrite N.min_l by lia.
            pose proof (counted_again b j (n - j * len b) L ltac:(lia)) as Mid.
            replace (j * len b + (n - j * len b)) with n in Mid by lia.
            pose proof (count_mono blocks test b (n - j * len b) (len b) ltac:(lia)). lia.
      Qed.
    End Counts.

    (** * One piece of an execution *)

    Section Executions.
      Context {V : Type} (plus : V -> V -> V) (unit : V).
      Variables (size : N) (room : option N).
      Variables (putter taker raiser : N -> N).
      Hypothesis one_putter : forall b i e f, event_at blocks b i e -> puts e = Some f -> b = putter f.
      Hypothesis one_taker : forall b i e f, event_at blocks b i e -> takes e = Some f -> b = taker f.
      Hypothesis one_raiser : forall b i e c v,
        event_at blocks b i e -> In (c, v) (raises e) -> b = raiser c.

      Lemma putter_again b i e f : event_at again b i e -> puts e = Some f -> b = putter f.
      Proof.
        intros A P. apply event_once in A as (j & k & e' & _ & _ & _ & A & ->). eauto.
      Qed.

      Lemma taker_again b i e f : event_at again b i e -> takes e = Some f -> b = taker f.
      Proof.
        intros A P. apply event_once in A as (j & k & e' & _ & _ & _ & A & ->). eauto.
      Qed.

      Lemma shown_in j c v l : In (c, v) (shown j l) ->
        exists u, In (c, u) l /\ v = flag j u.
      Proof.
        intros I. apply in_map_iff in I as ((d & u) & E & I). injection E as <- <-. eauto.
      Qed.

      Lemma in_shown j c v l : In (c, v) l -> In (c, flag j v) (shown j l).
      Proof. intros I. apply in_map_iff. now exists (c, v). Qed.

      Lemma raiser_again b i e c v : event_at again b i e -> In (c, v) (raises e) -> b = raiser c.
      Proof.
        intros A I. apply event_once in A as (j & k & e' & _ & _ & _ & A & ->).
        apply shown_in in I as (u & I & _). eauto.
      Qed.

      (** At both ends of a FIFO a piece has as many chunks, and messages. *)
      Notation whole test b := (counted blocks test b (len b)).
      Hypothesis same_chunks : forall f,
        whole (fun e => is (puts e) f) (putter f) = whole (fun e => is (takes e) f) (taker f).
      Hypothesis same_messages : forall f,
        whole (fun e => is (puts e) f && opens size e) (putter f) =
        whole (fun e => is (takes e) f && closes size e) (taker f).

      (** What is waited for is signalled, and no signal is above [flags]. *)
      Hypothesis signalled : forall b k e c v, event_at blocks b k e -> In (c, v) (awaits e) -> 0 < v ->
        exists b' k' e' u, event_at blocks b' k' e' /\ In (c, u) (raises e') /\ v <= u.
      Hypothesis below : forall b k e c v, event_at blocks b k e -> In (c, v) (raises e) -> v <= flags.

      Variables (start start' : N -> V).
      Notation reached_again := (reached plus unit start again size room).
      Notation reached_once := (reached plus unit start' blocks size room).

      Lemma ready_piece s t j b k e : reached_again s -> reached_once t ->
        (forall c, now t c = seen j c (now s c)) ->
        j < pieces -> k < len b -> now s b = j * len b + k -> event_at blocks b k e ->
        ready again size room s b (shifted j e) -> ready blocks size room t b e.
      Proof.
        intros Rs Rt Now Lj Lk Ns A (_ & Fl & Got & Room).
        assert (Nt : now t b = k) by (rewrite Now, Ns; unfold seen; lia).
        unfold ready. rewrite Nt. split; [exact A|]. split; [|split].
        - intros c v I. destruct (N.eq_dec v 0) as [->|P]; [lia|].
          assert (Fv : flag j v = j * flags + v).
          { unfold flag_in_piece. now apply N.eqb_neq in P as ->. }
          pose proof (Fl c (flag j v) (in_shown j c v _ I)) as Le. rewrite Fv in Le.
          apply (level_spec plus unit start again size room s Rs) in Le
            as (b' & i & e' & u & Li & A' & I' & Le); [|lia].
          apply event_once in A' as (j' & k' & e1 & Lj' & Lk' & -> & A1 & ->).
          apply shown_in in I' as (u1 & I1 & ->).
          pose proof (below _ _ _ _ _ A1 I1) as Low.
          unfold flag_in_piece in Le. destruct (N.eqb_spec u1 0) as [Z|Z]; [lia|].
          apply (level_spec plus unit start' blocks size room t Rt); [lia|].
          destruct (N.eq_dec j' j) as [->|Ne].
          + exists b', k', e1, u1. repeat split; auto; [|lia]. rewrite Now. unfold seen. lia.
          + assert (Lt : j < j').
            { destruct (N.lt_ge_cases j j') as [|G]; auto. exfalso.
              assert (j' + 1 <= j) by lia. assert ((j' + 1) * flags <= j * flags)
                by now apply N.mul_le_mono_r. lia. }
            destruct (signalled b k e c v A I ltac:(lia)) as (b2 & k2 & e2 & u2 & A2 & I2 & L2).
            exists b2, k2, e2, u2. repeat split; auto.
            assert (b2 = b') as -> by (rewrite (one_raiser _ _ _ _ _ A2 I2); symmetry; eauto).
            pose proof (event_here _ _ _ _ A2) as H2. rewrite Now. unfold seen.
            assert ((j + 1) * len b' <= j' * len b') by (apply N.mul_le_mono_r; lia). lia.
        - intros f T Empty.
          pose proof (Got f T) as Full. pose proof (one_taker _ _ _ _ A T) as Eb.
          pose proof (in_flight plus unit start again size room putter taker putter_again taker_again
                        s Rs f) as Fs.
          pose proof (in_flight plus unit start' blocks size room putter taker one_putter one_taker
                        t Rt f) as Ft.
          rewrite Empty in Ft. simpl length in Ft. rewrite <- Eb, Nt in Ft. rewrite <- Eb, Ns in Fs.
          rewrite counted_again in Fs by (auto; lia).
          rewrite Now, counted_seen in Ft by auto.
          rewrite same_chunks, <- Eb in Ft.
          pose proof (count_next blocks (fun e => is (takes e) f) b k e A) as Nx.
          cbv beta in Nx. apply is_true in T. rewrite T in Nx.
          pose proof (count_mono blocks (fun e => is (takes e) f) b (k + 1) (len b) ltac:(lia)).
          destruct (queue s f); [congruence|]. simpl length in Fs. lia.
        - intros f d P O E. specialize (Room f d P O E). pose proof (one_putter _ _ _ _ A P) as Eb.
          rewrite (begun_counts plus unit start again size room putter putter_again s Rs f) in Room.
          rewrite (received_counts plus unit start again size room taker taker_again s Rs f) in Room.
          rewrite (begun_counts plus unit start' blocks size room putter one_putter t Rt f).
          rewrite (received_counts plus unit start' blocks size room taker one_taker t Rt f).
          rewrite <- Eb, Nt. rewrite <- Eb, Ns in Room.
          rewrite counted_again in Room by (auto; lia).
          rewrite Now, counted_seen by auto. specialize (same_messages f). rewrite <- Eb in same_messages.
          pose proof (count_next blocks (fun e => is (puts e) f && opens size e) b k e A) as Nx.
          cbv beta in Nx. apply is_true in P. rewrite P, O in Nx. simpl in Nx.
          pose proof (count_mono blocks (fun e => is (puts e) f && opens size e) b (k + 1) (len b)
                        ltac:(lia)).
          lia.
      Qed.

      (** Seen from one piece, an execution of the repeated program is one of the program. *)
      Theorem one_piece s j : j < pieces -> reached_again s ->
        exists t, reached_once t /\ forall c, now t c = seen j c (now s c).
      Proof.
        intros Lj. induction 1 as [|s b e' Rs (t & Rt & Now) H].
        - exists (initial start'). split; [constructor|]. intros c. simpl. unfold seen. lia.
        - pose proof H as (A & _). apply event_once in A as (i & k & e & Li & Lk & Ns & A & ->).
          assert (Same : i <> j -> forall c, now t c = seen j c (now (next plus unit size s b (shifted i e)) c)).
          { intros Ne c. simpl. rewrite Now. destruct (N.eqb_spec c b) as [->|]; auto.
            rewrite Ns. unfold seen.
            destruct (N.lt_ge_cases i j) as [L|G].
            - assert ((i + 1) * len b <= j * len b) by (apply N.mul_le_mono_r; lia). lia.
            - assert ((j + 1) * len b <= i * len b) by (apply N.mul_le_mono_r; lia). lia. }
          destruct (N.eq_dec i j) as [->|Ne]; [|eauto].
          exists (next plus unit size t b e). split.
          + constructor; auto. now apply (ready_piece s t j b k e).
          + intros c. simpl. destruct (N.eqb_spec c b) as [->|]; auto.
            rewrite Now, Ns. unfold seen. lia.
      Qed.

      (** * Pieces one after another *)

      Hypothesis inside : forall b k e a, event_at blocks b k e -> In a (reads e ++ writes e) -> a < area.

      Lemma other_piece j j' a a' : a < area -> a' < area -> at_piece j a = at_piece j' a' ->
        j = j' /\ a = a'.
      Proof.
        unfold in_piece. intros L L' E.
        assert (j = j') as ->; [|split; lia].
        destruct (N.lt_trichotomy j j') as [C|[C|C]]; auto; exfalso.
        - assert ((j + 1) * area <= j' * area) by (apply N.mul_le_mono_r; lia). lia.
        - assert ((j' + 1) * area <= j * area) by (apply N.mul_le_mono_r; lia). lia.
      Qed.

      Lemma written_in_piece j j' b k e a : event_at blocks b k e -> a < area ->
        existsb (N.eqb (at_piece j' a)) (writes (shifted j e)) = (j' =? j) && existsb (N.eqb a) (writes e).
      Proof.
        intros A L. apply eq_true_iff_eq. rewrite written, andb_true_iff, written, N.eqb_eq. simpl.
        rewrite in_map_iff. split.
        - intros (y & E & I). apply other_piece in E as (-> & ->); auto.
          apply (inside b k e y A). apply in_or_app. now right.
        - intros (-> & I). eauto.
      Qed.

      (** From where all blocks are at the start of piece [j], they can do what they do in the
          program itself. *)
      Lemma next_piece s0 j t : j < pieces -> reached_again s0 ->
        (forall b, now s0 b = j * len b) -> (forall a, a < area -> memory s0 (at_piece j a) = start' a) ->
        reached_once t ->
        exists s, reached_again s /\ (forall b, now s b = j * len b + now t b) /\
          (forall f, queue s f = queue t f) /\
          (forall a, a < area -> memory s (at_piece j a) = memory t a) /\
          (forall i a, i <> j -> a < area -> memory s (at_piece i a) = memory s0 (at_piece i a)).
      Proof.
        intros Lj R0 Now0 Mem0.
        induction 1 as [|t b e Rt (s & Rs & Now & Q & Mem & Rest) H].
        - exists s0. split; [exact R0|]. split; [intros b; rewrite Now0; simpl; lia|].
          split; [|split; auto]. intros f. simpl.
          pose proof (in_flight plus unit start again size room putter taker putter_again taker_again
                        s0 R0 f) as Fs.
          rewrite !Now0 in Fs.
          pose proof (counted_again (fun e => is (takes e) f) ltac:(reflexivity) (taker f) j 0 Lj ltac:(lia)) as Ct.
          pose proof (counted_again (fun e => is (puts e) f) ltac:(reflexivity) (putter f) j 0 Lj ltac:(lia)) as Cp.
          rewrite count_zero, !N.add_0_r in Ct, Cp. rewrite Ct, Cp, same_chunks in Fs.
          destruct (queue s0 f); auto. simpl length in Fs. lia.
        - pose proof H as (A & Fl & Got & Room). pose proof (event_here _ _ _ _ A) as Lk.
          assert (Hs : ready again size room s b (shifted j e)).
          { unfold ready. rewrite Now. split; [now apply event_again|]. split; [|split].
            - intros c v' I. apply shown_in in I as (v & I & ->). specialize (Fl c v I).
              unfold flag_in_piece. destruct (N.eqb_spec v 0) as [->|P]; [lia|].
              apply (level_spec plus unit start' blocks size room t Rt) in Fl
                as (b' & i & e' & u & Li & A' & I' & Le); [|lia].
              apply (level_spec plus unit start again size room s Rs); [lia|].
              exists b', (j * len b' + i), (shifted j e'), (flag j u). repeat split.
              + rewrite Now. lia.
              + now apply event_again.
              + now apply in_shown.
              + unfold flag_in_piece. destruct (N.eqb_spec u 0); lia.
            - intros f T. rewrite Q. auto.
            - intros f d P O E. specialize (Room f d P O E).
              rewrite (begun_counts plus unit start again size room putter putter_again s Rs f).
              rewrite (received_counts plus unit start again size room taker taker_again s Rs f).
              rewrite (begun_counts plus unit start' blocks size room putter one_putter t Rt f) in Room.
              rewrite (received_counts plus unit start' blocks size room taker one_taker t Rt f) in Room.
              rewrite !Now.
              assert (Far : forall c, now t c <= len c).
              { clear - Rt. intros c. induction Rt as [|t b e Rt IH H]; simpl; [lia|].
                destruct (N.eqb_spec c b) as [->|]; auto.
                destruct H as (A & _). apply event_here in A. lia. }
              rewrite !counted_again by auto. rewrite same_messages. lia. }
          assert (T : total plus unit s (shifted j e) = total plus unit t e).
          { unfold total, incoming. simpl. rewrite map_map. do 2 f_equal.
            - apply map_ext_in. intros a I. apply Mem. apply (inside b (now t b) e a A).
              apply in_or_app. now left.
            - destruct (takes e); auto. now rewrite Q. }
          exists (next plus unit size s b (shifted j e)). split; [now constructor|].
          split; [|split; [|split]].
          + intros c. simpl. rewrite Now. destruct (N.eqb_spec c b) as [->|]; rewrite ?Now; lia.
          + intros f. simpl. now rewrite T, Q.
          + intros a L. cbn [memory next]. rewrite (written_in_piece j j b (now t b) e a A L), N.eqb_refl.
            simpl. now rewrite T, Mem.
          + intros i a Ne L. cbn [memory next]. rewrite (written_in_piece j i b (now t b) e a A L).
            apply N.eqb_neq in Ne as E. rewrite E. simpl. auto.
      Qed.
    End Executions.

    (** All pieces, one after another: an execution that ends, and what is in memory then. *)
    Theorem all_pieces {V} (plus : V -> V -> V) unit size room putter taker (start : N -> V)
      (one_putter : forall b i e f, event_at blocks b i e -> puts e = Some f -> b = putter f)
      (one_taker : forall b i e f, event_at blocks b i e -> takes e = Some f -> b = taker f)
      (same_chunks : forall f, counted blocks (fun e => is (puts e) f) (putter f) (len (putter f)) =
         counted blocks (fun e => is (takes e) f) (taker f) (len (taker f)))
      (same_messages : forall f,
         counted blocks (fun e => is (puts e) f && opens size e) (putter f) (len (putter f)) =
         counted blocks (fun e => is (takes e) f && closes size e) (taker f) (len (taker f)))
      (inside : forall b k e a, event_at blocks b k e -> In a (reads e ++ writes e) -> a < area)
      (start_of : N -> N -> V)
      (agree : forall j a, j < pieces -> a < area -> start (at_piece j a) = start_of j a)
      (ending : N -> state V) :
      (forall j, j < pieces ->
         reached plus unit (start_of j) blocks size room (ending j) /\ over blocks (ending j)) ->
      exists s, reached plus unit start again size room s /\ over again s /\
        forall j a, j < pieces -> a < area -> memory s (at_piece j a) = memory (ending j) a.
    Proof.
      intros Ends.
      assert (G : forall n, n <= pieces -> exists s, reached plus unit start again size room s /\
        (forall b, now s b = n * len b) /\
        (forall j a, a < area -> memory s (at_piece j a) =
           if j <? n then memory (ending j) a else start (at_piece j a))).
      { induction n as [|n IH] using N.peano_ind; intros L.
        - exists (initial start). split; [constructor|]. split; auto.
          intros j a _. now destruct j.
        - rewrite <- N.add_1_r in *. destruct (IH ltac:(lia)) as (s0 & R0 & Now0 & Mem0).
          destruct (Ends n ltac:(lia)) as (Rt & O).
          destruct (next_piece plus unit size room putter taker one_putter one_taker
                      same_chunks same_messages start (start_of n) inside s0 n
                      (ending n) ltac:(lia) R0 Now0) as (s & Rs & Now & _ & Mem & Rest); auto.
          { intros a La. rewrite Mem0 by exact La. rewrite N.ltb_irrefl. apply agree; auto; lia. }
          exists s. split; [exact Rs|]. split.
          + intros b. rewrite Now.
            assert (Far : now (ending n) b <= len b).
            { clear - Rt. revert b. induction Rt as [|t b e Rt IH H]; intros c; simpl; [lia|].
              destruct (N.eqb_spec c b) as [->|]; auto.
              destruct H as (A & _). apply event_here in A. lia. }
            specialize (O b). lia.
          + intros j a La. destruct (N.eq_dec j n) as [->|Ne].
            * rewrite Mem by exact La. replace (n <? n + 1) with true; auto.
              symmetry. apply N.ltb_lt. lia.
            * rewrite Rest, Mem0 by auto. destruct (N.ltb_spec j n), (N.ltb_spec j (n + 1)); auto; lia. }
      destruct (G pieces ltac:(lia)) as (s & Rs & Now & Mem). exists s. split; [exact Rs|]. split.
      - intros b. rewrite again_length, Now. lia.
      - intros j a Lj La. rewrite Mem by exact La. now apply N.ltb_lt in Lj as ->.
    Qed.
  End Blocks.
End Pieces.

(** * The verdict *)

(** What has been waited for has been signalled. *)
Lemma waited_for {V} (plus : V -> V -> V) unit start blocks size room (s : state V) :
  reached plus unit start blocks size room s -> forall b i e c v,
  event_at blocks b i e -> i < now s b -> In (c, v) (awaits e) -> v <= level s c.
Proof.
  induction 1 as [|s b e R IH H]; intros b' i e' c v A L I; [simpl in L; lia|].
  simpl. apply raised_spec. left. simpl in L. destruct (N.eqb_spec b' b) as [->|]; [|eauto].
  destruct (N.eq_dec i (now s b)) as [->|Ne]; [|apply (IH b i e'); auto; lia].
  destruct H as (A' & Fl & _). rewrite (event_same _ _ _ _ _ A A') in I. auto.
Qed.

Lemma find_in_pieces area pieces j a (f : N * (N * N) -> N * N) (rows : list (N * (N * N))) l :
  (forall row, In row rows -> fst row < area) -> a < area ->
  find (fun row => fst row =? in_piece area j a)
    (flat_map (fun i => map (fun row => (in_piece area i (fst row),
                               (fst (snd row), chunk_in_piece pieces i (snd (snd row))))) rows) l) =
  if existsb (N.eqb j) l then
    match find (fun row => fst row =? a) rows with
    | Some row => Some (in_piece area j (fst row), (fst (snd row), chunk_in_piece pieces j (snd (snd row))))
    | None => None
    end
  else None.
Proof.
  intros Low La. induction l as [|i l IH]; auto. simpl.
  assert (App : forall l1 l2 : list (N * (N * N)), forall test, find test (l1 ++ l2) =
    match find test l1 with Some y => Some y | None => find test l2 end).
  { induction l1 as [|y l1 IHl]; intros l2 test; simpl; auto. now destruct (test y). }
  rewrite App, IH. clear IH App.
  assert (Here : find (fun row => fst row =? in_piece area j a)
      (map (fun row => (in_piece area i (fst row),
              (fst (snd row), chunk_in_piece pieces i (snd (snd row))))) rows) =
    if j =? i then match find (fun row => fst row =? a) rows with
      | Some row => Some (in_piece area j (fst row), (fst (snd row), chunk_in_piece pieces j (snd (snd row))))
      | None => None
      end else None).
  { induction rows as [|row rows IHr]; simpl; [now destruct (j =? i)|].
    rewrite IHr by (intros; apply Low; now right). clear IHr.
    specialize (Low row ltac:(now left)).
    destruct (N.eqb_spec (in_piece area i (fst row)) (in_piece area j a)) as [E|E].
    - apply other_piece in E as (-> & E); auto. rewrite N.eqb_refl. apply N.eqb_eq in E as ->. auto.
    - destruct (N.eqb_spec j i) as [->|]; auto.
      destruct (N.eqb_spec (fst row) a) as [Er|]; auto. destruct E. now rewrite Er. }
  rewrite Here. destruct (j =? i); simpl; auto.
  destruct (find _ rows); auto. now destruct (existsb _ l).
Qed.

Lemma begins_in_piece (M : commutative_monoid) area pieces flags p x junk j a :
  fits area p -> j < pieces -> a < area ->
  begins M (repeated pieces area flags p) x junk (in_piece area j a) =
  begins M p (fun r c => x r (chunk_in_piece pieces j c)) (fun b => junk (in_piece area j b)) a.
Proof.
  intros (_ & Low & _) Lj La. unfold begins, input_at, repeated, for_pieces. cbn [inputs].
  rewrite (find_in_pieces area pieces j a snd) by auto.
  replace (existsb (N.eqb j) (range pieces)) with true.
  2: { symmetry. apply existsb_exists. exists j. split; [now apply in_range|apply N.eqb_refl]. }
  destruct (find _ (inputs p)) as [(b & r & c)|]; auto.
Qed.

Lemma inside_area area p b k e a : fits area p -> event_at (code p) b k e ->
  In a (reads e ++ writes e) -> a < area.
Proof.
  intros (Low & _) A I. apply event_of_step in A as (block & x & Ib & Ix & Ie).
  unfold events_of in Ie. destruct (N.eqb_spec (count x) 0).
  - destruct Ie as [<-|[]]. destruct I.
  - apply in_map_iff in Ie as (i & <- & Ii). apply in_range in Ii.
    simpl in I. rewrite <- map_app in I. apply in_map_iff in I as (y & <- & Iy).
    specialize (Low block x y Ib Ix Iy). lia.
Qed.

Lemma raises_below flags p b k e c v : signals_below flags p -> event_at (code p) b k e ->
  In (c, v) (raises e) -> v <= flags.
Proof.
  intros Low A I. apply event_of_step in A as (block & x & Ib & Ix & Ie).
  assert (In (c, v) (signals x)); [|eauto].
  unfold events_of in Ie. destruct (count x =? 0).
  - now destruct Ie as [<-|[]].
  - apply in_map_iff in Ie as (i & <- & _). simpl in I. destruct (i + 1 =? count x); auto. destruct I.
Qed.

Lemma flags_many area flags size (test : event -> bool) n l :
  (forall j e, test (event_in_piece area flags j e) = test e) ->
  map (fun e => (opens size e, closes size e)) (filter test (many area flags n l)) =
  flat_map (fun _ => map (fun e => (opens size e, closes size e)) (filter test l)) (range n).
Proof.
  intros T. unfold many. induction (range n) as [|j r IH]; auto. simpl.
  rewrite filter_app, map_app, IH. f_equal. clear IH.
  induction l as [|e l IH]; auto. simpl. rewrite T. destruct (test e); simpl; auto.
  now rewrite IH.
Qed.

(** If a program is right, it is right piece after piece. *)
Theorem pieces_right pieces area flags p size depth :
  right p size depth -> fits area p -> signals_below flags p ->
  right (repeated pieces area flags p) size depth.
Proof.
  intros (Joined & Areas & Ends & demand & Id & Holds) Fits Below.
  destruct (both_ends p size Joined) as (putter & taker & raiser & Pu & Ta & Ra & Same).
  pose proof (fun f => proj1 (as_much p size putter taker f (Same f))) as Chunks.
  pose proof (fun f => proj2 (as_much p size putter taker f (Same f))) as Messages.
  pose proof (fun b k e a => inside_area area p b k e a Fits) as Inside.
  pose proof (fun b k e c v => raises_below flags p b k e c v Below) as Low.
  assert (Signalled : forall b k e c v, event_at (code p) b k e -> In (c, v) (awaits e) -> 0 < v ->
    exists b' k' e' u, event_at (code p) b' k' e' /\ In (c, u) (raises e') /\ v <= u).
  { intros b k e c v A I P.
    destruct (reaches_end (add counting) (zero counting) (begins counting p (fun _ _ => 0) (fun _ => 0))
                (code p) size depth) as (s & Rs & O).
    { intros s Rs. now apply (Ends counting (fun _ _ => 0) (fun _ => 0)). }
    pose proof (event_here _ _ _ _ A) as L. specialize (O b).
    pose proof (waited_for _ _ _ _ _ _ s Rs b k e c v A ltac:(lia) I) as Le.
    apply (level_spec _ _ _ _ _ _ s Rs c v P) in Le as (b' & i & e' & u & _ & A' & I' & Le).
    eauto 8. }
  set (q := repeated pieces area flags p).
  assert (Code : code q = map (many area flags pieces) (code p)) by apply code_repeated.
  pose proof (putter_again pieces area flags (code p) putter Pu) as Pu'.
  pose proof (taker_again pieces area flags (code p) taker Ta) as Ta'.
  pose proof (raiser_again pieces area flags (code p) raiser Ra) as Ra'.
  rewrite <- Code in Pu', Ta', Ra'.
  (* One execution, and what it leaves. *)
  assert (One : forall (M : commutative_monoid) x junk, exists s,
    reached (add M) (zero M) (begins M q x junk) (code q) size depth s /\ over (code q) s /\
    meets M q x (memory s) (for_pieces pieces (fun j =>
       map (fun row => (in_piece area j (fst row), want_in_piece pieces j (snd row))) demand))).
  { intros M x junk.
    set (x_of := fun j r c => x r (chunk_in_piece pieces j c)).
    set (junk_of := fun j b => junk (in_piece area j b)).
    assert (Whole : forall j, exists t,
      reached (add M) (zero M) (begins M p (x_of j) (junk_of j)) (code p) size depth t /\
      over (code p) t).
    { intros j. apply reaches_end. intros t Rt. now apply (Ends M (x_of j) (junk_of j)). }
    assert (Choice : forall n, exists ending : N -> state M, forall j, j < n ->
      reached (add M) (zero M) (begins M p (x_of j) (junk_of j)) (code p) size depth (ending j) /\
      over (code p) (ending j)).
    { induction n as [|n (g & H)] using N.peano_ind.
      - exists (fun _ => initial (fun _ => zero M)). lia.
      - destruct (Whole n) as (t & Ht). exists (fun j => if j =? n then t else g j).
        intros j L. destruct (N.eqb_spec j n) as [->|Ne]; auto. apply H. lia. }
    destruct (Choice pieces) as (ending & Ending).
    destruct (all_pieces pieces area flags (code p) (add M) (zero M) size depth putter taker
                (begins M q x junk) Pu Ta Chunks Messages Inside
                (fun j => begins M p (x_of j) (junk_of j))) with (ending := ending)
      as (s & Rs & O & Mem); auto.
    { intros j a Lj La. now apply begins_in_piece. }
    rewrite <- Code in Rs, O. exists s. split; [exact Rs|]. split; [exact O|].
    intros a w I. unfold for_pieces in I. apply in_flat_map in I as (j & Ij & I).
    apply in_range in Ij. apply in_map_iff in I as ((b & v) & E & I). injection E as <- <-.
    assert (b < area) by (apply (proj2 (proj2 Fits) demand (b, v)); auto).
    destruct (Ending j Ij) as (Rt & Ot).
    rewrite Mem by auto. rewrite (Holds M (x_of j) (junk_of j) (ending j) Rt Ot b v I).
    now destruct v. }
  assert (Calm : forall (M : commutative_monoid) x junk,
    calm (add M) (zero M) (begins M q x junk) (code q) size depth).
  { intros M x junk s b e b' e' Rs Ne H H' (a & C).
    pose proof H as (A & _). pose proof H' as (A' & _). rewrite Code in A, A', Rs, H, H'.
    apply event_once in A as (j & k & e1 & Lj & Lk & Nb & A & ->).
    apply event_once in A' as (j' & k' & e1' & Lj' & Lk' & Nb' & A' & ->).
    assert (Apart : j = j' /\ conflict e1 e1').
    { simpl in C. rewrite !in_map_iff in C.
      assert (In1 : forall y, In y (reads e1) \/ In y (writes e1) -> y < area).
      { intros y I. apply (Inside b k e1 y A), in_or_app. tauto. }
      assert (In2 : forall y, In y (reads e1') \/ In y (writes e1') -> y < area).
      { intros y I. apply (Inside b' k' e1' y A'), in_or_app. tauto. }
      unfold conflict.
      destruct C as [((y & Ey & I) & [(z & E & I')|(z & E & I')])|((y & Ey & I) & (z & E & I'))];
        rewrite <- Ey in E; apply other_piece in E as (Ej & Ez); auto; subst z;
        (split; [congruence|exists y; tauto]). }
    destruct Apart as (<- & Apart).
    destruct (one_piece pieces area flags (code p) (add M) (zero M) size depth putter taker raiser
                Pu Ta Ra Chunks Messages Signalled Low (begins M q x junk) (begins M p x junk) s j Lj Rs)
      as (t & Rt & Now).
    refine (proj2 (Ends M x junk t Rt) b e1 b' e1' Ne _ _ Apart).
    - apply (ready_piece pieces area flags (code p) (add M) (zero M) size depth putter taker raiser
               Pu Ta Ra Chunks Messages Signalled Low (begins M q x junk) (begins M p x junk)
               s t j b k e1); auto.
    - apply (ready_piece pieces area flags (code p) (add M) (zero M) size depth putter taker raiser
               Pu Ta Ra Chunks Messages Signalled Low (begins M q x junk) (begins M p x junk)
               s t j b' k' e1'); auto. }
  split; [|split; [|split]].
  - (* connected *)
    split; [|split; [|split]].
    + exists putter. intros b i e f A I. destruct (puts e) as [g|] eqn:P; [|destruct I].
      destruct I as [<-|[]]. eauto.
    + exists taker. intros b i e f A I. destruct (takes e) as [g|] eqn:P; [|destruct I].
      destruct I as [<-|[]]. eauto.
    + exists raiser. intros b i e f A I. apply in_map_iff in I as ((c & v) & <- & I). eauto.
    + intros f. unfold messages.
      rewrite (only_block (fun e => is (puts e) f) (putter f)).
      2: intros b i e A T; apply is_true in T; eauto.
      rewrite (only_block (fun e => is (takes e) f) (taker f)).
      2: intros b i e A T; apply is_true in T; eauto.
      rewrite Code, !block_again.
      rewrite !flags_many by reflexivity. now rewrite Same.
  - (* apart *)
    intros block x Ib Ix. unfold q, repeated in Ib. cbn [steps] in Ib.
    apply in_map_iff in Ib as (old & <- & Io). unfold for_pieces in Ix.
    apply in_flat_map in Ix as (j & Ij & Ix). apply in_map_iff in Ix as (y & <- & Iy).
    specialize (Areas old y Io Iy). intros t a It Ia. simpl in *.
    rewrite <- map_app in Ia.
    apply in_map_iff in It as (t' & <- & It). apply in_map_iff in Ia as (a' & <- & Ia).
    specialize (Areas t' a' It Ia). unfold in_piece. lia.
  - intros M x junk s Rs. split.
    + destruct (One M x junk) as (t & Rt & O & _).
      apply (one_ends_all_end (add M) (zero M) (begins M q x junk) (code q) size depth
               putter taker Pu' Ta' t Rt O s Rs).
    + intros b e b' e' Ne H H'. now apply (Calm M x junk s b e b' e' Rs Ne).
  - eexists. split.
    + unfold q, repeated. cbn [demands]. apply in_map_iff. exists demand. split; [reflexivity|exact Id].
    + intros M x junk s Rs O. destruct (One M x junk) as (t & Rt & Ot & Meets).
      intros a w I. rewrite <- (Meets a w I).
      apply (calm_result (add M) (zero M) (begins M q x junk) (code q) size depth
               putter taker); auto.
Qed.
