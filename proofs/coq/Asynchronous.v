(** Programs of blocks that send through bounded FIFOs and wait for flags (verify/asynchronous).

    A block is a list of steps. A step waits until flags have been raised, until the FIFO that it
    receives from has a message, and until the one that it sends to has a free slot; then it reads
    and writes memory, takes the message and sends one. A FIFO has one block at each end, and each
    flag is raised by a known step: so what a step waits for is known before anything runs
    ([waits_for]; verify/asynchronous/order.py). Here is shown what the verdicts rest on:

    - if nothing waits for itself, no execution gets stuck ([acyclic_never_stuck]);
    - if something does, no execution ever ends ([cycle_never_ends]);
    - if conflicting steps of different blocks are always ordered by waits, all executions that
      can't go on end in the same state ([same_end]), after the same number of events. *)

From Coq Require Import List Arith Lia Bool Relations.
Import ListNotations.
Open Scope nat_scope.

Section Asynchronous.
  Variable V : Type.

  Definition memory := nat -> V.

  (** [stores m v a] is what a step leaves at address [a] if it writes there, [puts m v] what it
      sends, when it finds memory [m] and has taken message [v]. *)
  Record step := Step {
    receives : option nat; sends : option nat; flags : list (nat * nat);
    reads : nat -> bool; writes : nat -> bool;
    stores : memory -> option V -> nat -> V; puts : memory -> option V -> V }.

  Variables (blocks : nat) (program : nat -> list step) (depth : nat -> nat).
  Variables (sender receiver : nat -> nat).

  Definition place : Type := nat * nat.
  Definition at_place (p : place) (x : step) : Prop :=
    fst p < blocks /\ nth_error (program (fst p)) (snd p) = Some x.

  Hypothesis one_sender : forall p x f, at_place p x -> sends x = Some f -> fst p = sender f.
  Hypothesis one_receiver : forall p x f, at_place p x -> receives x = Some f -> fst p = receiver f.
  Hypothesis frame : forall p x, at_place p x -> forall m m' v,
    (forall a, reads x a = true -> m a = m' a) ->
    (forall a, stores x m v a = stores x m' v a) /\ puts x m v = puts x m' v.

  Definition is (o : option nat) (f : nat) : bool :=
    match o with Some g => g =? f | None => false end.

  Lemma is_true o f : is o f = true <-> o = Some f.
  Proof.
    destruct o as [g|]; simpl; [rewrite Nat.eqb_eq|]; split; intros H; try congruence.
  Qed.

  (** How many of the first [i] steps of a block send to, or receive from, a FIFO. *)
  Definition sent (b f i : nat) : nat :=
    length (filter (fun x => is (sends x) f) (firstn i (program b))).
  Definition taken (b f i : nat) : nat :=
    length (filter (fun x => is (receives x) f) (firstn i (program b))).

  Inductive waits_for : place -> place -> Prop :=
  | In_order b i j : j < i -> waits_for (b, i) (b, j)
  | For_message b i x c j y f : at_place (b, i) x -> receives x = Some f ->
      at_place (c, j) y -> sends y = Some f -> sent c f j = taken b f i ->
      waits_for (b, i) (c, j)
  | For_slot b i x c j y f : at_place (b, i) x -> sends x = Some f ->
      at_place (c, j) y -> receives y = Some f -> taken c f j + depth f = sent b f i ->
      waits_for (b, i) (c, j)
  | For_flag b i x c j : at_place (b, i) x -> In (c, j) (flags x) -> waits_for (b, i) (c, j).

  (** As many messages are received as sent, and all flags that are waited for are raised. *)
  Definition matched : Prop :=
    (forall f, sender f < blocks /\ receiver f < blocks) /\
    (forall f, sent (sender f) f (length (program (sender f))) =
               taken (receiver f) f (length (program (receiver f)))) /\
    (forall p x c j, at_place p x -> In (c, j) (flags x) -> exists y, at_place (c, j) y).

  (** ** Executions *)

  Record state := State { now : nat -> nat; mem : memory; fifo : nat -> list V }.

  Definition incoming (s : state) (x : step) : option V :=
    match receives x with Some f => hd_error (fifo s f) | None => None end.

  Definition rest (s : state) (x : step) (f : nat) : list V :=
    if is (receives x) f then tl (fifo s f) else fifo s f.

  Definition next (s : state) (b : nat) (x : step) : state := State
    (fun c => if c =? b then S (now s b) else now s c)
    (fun a => if writes x a then stores x (mem s) (incoming s x) a else mem s a)
    (fun f => if is (sends x) f then rest s x f ++ [puts x (mem s) (incoming s x)]
              else rest s x f).

  Definition ready (s : state) (b : nat) (x : step) : Prop :=
    at_place (b, now s b) x /\
    (forall c j, In (c, j) (flags x) -> j < now s c) /\
    (forall f, receives x = Some f -> fifo s f <> []) /\
    (forall f, sends x = Some f -> length (fifo s f) < depth f).

  Variable start : memory.

  Inductive reached : state -> Prop :=
  | Started : reached (State (fun _ => 0) start (fun _ => []))
  | Went s b x : reached s -> ready s b x -> reached (next s b x).

  Definition over (s : state) : Prop := forall b, b < blocks -> length (program b) <= now s b.
  Definition executed (s : state) (p : place) : Prop := snd p < now s (fst p).

  Lemma count_next (test : step -> bool) l i x : nth_error l i = Some x ->
    length (filter test (firstn (S i) l)) =
    length (filter test (firstn i l)) + if test x then 1 else 0.
  Proof.
    revert i. induction l as [|y l IH]; intros [|i] H; simpl in *; try discriminate.
    - injection H as ->. now destruct (test x).
    - specialize (IH i H). simpl in IH. destruct (test y); simpl; rewrite IH; lia.
  Qed.

  Lemma count_mono (test : step -> bool) l i j : i <= j ->
    length (filter test (firstn i l)) <= length (filter test (firstn j l)).
  Proof.
    revert i j. induction l as [|y l IH]; intros [|i] [|j] H; simpl; try lia.
    specialize (IH i j ltac:(lia)). destruct (test y); simpl; lia.
  Qed.

  (** The steps that are counted have all numbers below the count. *)
  Lemma numbered (test : step -> bool) l n k : k < length (filter test (firstn n l)) ->
    exists j y, j < n /\ nth_error l j = Some y /\ test y = true /\
      length (filter test (firstn j l)) = k.
  Proof.
    revert n k. induction l as [|y l IH]; intros [|n] k H; simpl in *; try lia.
    destruct (test y) eqn:T; simpl in H.
    - destruct k as [|k].
      + exists 0, y. simpl. repeat split; auto. lia.
      + destruct (IH n k ltac:(lia)) as (j & z & ? & ? & ? & ?).
        exists (S j), z. simpl. rewrite T. simpl. repeat split; auto; lia.
    - destruct (IH n k H) as (j & z & ? & ? & ? & ?).
      exists (S j), z. simpl. rewrite T. repeat split; auto; lia.
  Qed.

  (** What lies in a FIFO has been sent and not taken. *)
  Lemma in_flight s : reached s -> forall f,
    length (fifo s f) + taken (receiver f) f (now s (receiver f)) =
    sent (sender f) f (now s (sender f)).
  Proof.
    induction 1 as [|s b x R IH (A & _ & Got & _)]; intros f.
    - simpl. unfold taken, sent. reflexivity.
    - specialize (IH f). pose proof A as (_ & Nth). simpl in Nth.
      assert (T : taken (receiver f) f (now (next s b x) (receiver f)) =
        taken (receiver f) f (now s (receiver f)) + if is (receives x) f then 1 else 0).
      { simpl. destruct (Nat.eqb_spec (receiver f) b) as [->|Ne].
        - unfold taken. now apply (count_next (fun z => is (receives z) f)).
        - destruct (is (receives x) f) eqn:E; [|lia].
          apply is_true in E. apply (one_receiver _ _ _ A) in E. simpl in E. congruence. }
      assert (U : sent (sender f) f (now (next s b x) (sender f)) =
        sent (sender f) f (now s (sender f)) + if is (sends x) f then 1 else 0).
      { simpl. destruct (Nat.eqb_spec (sender f) b) as [->|Ne].
        - unfold sent. now apply (count_next (fun z => is (sends z) f)).
        - destruct (is (sends x) f) eqn:E; [|lia].
          apply is_true in E. apply (one_sender _ _ _ A) in E. simpl in E. congruence. }
      rewrite T, U. simpl. unfold rest.
      destruct (is (receives x) f) eqn:E.
      + apply is_true in E. specialize (Got f E).
        destruct (fifo s f) as [|v l]; [congruence|]. simpl in IH.
        destruct (is (sends x) f); simpl; try rewrite app_length; simpl; lia.
      + destruct (is (sends x) f); try rewrite app_length; simpl; lia.
  Qed.

  (** A step that is ready has nothing to wait for that has not been done. *)
  Lemma ready_waited s b x : reached s -> ready s b x ->
    forall q, waits_for (b, now s b) q -> executed s q.
  Proof.
    intros R (A & Fl & Got & Room) q W.
    remember (b, now s b) as p eqn:Ep.
    destruct W as [b' i j L|b' i x' c j y f A' Rx Ay Sy K|b' i x' c j y f A' Sx Ay Ry K
                  |b' i x' c j A' I]; injection Ep as -> ->; unfold executed; simpl.
    - auto.
    - assert (x' = x) as -> by (destruct A as (_ & N), A' as (_ & N'); simpl in *; congruence).
      pose proof (one_sender _ _ _ Ay Sy) as Ec. pose proof (one_receiver _ _ _ A Rx) as Eb.
      simpl in *. subst c. pose proof (in_flight s R f) as F. rewrite <- Eb, <- K in F.
      specialize (Got f Rx). destruct (fifo s f) as [|v l]; [congruence|]. simpl in F.
      destruct (le_lt_dec (now s (sender f)) j) as [Le|]; auto. exfalso.
      pose proof (count_mono (fun z => is (sends z) f) (program (sender f)) _ _ Le) as M.
      fold (sent (sender f) f (now s (sender f))) (sent (sender f) f j) in M. lia.
    - assert (x' = x) as -> by (destruct A as (_ & N), A' as (_ & N'); simpl in *; congruence).
      pose proof (one_receiver _ _ _ Ay Ry) as Ec. pose proof (one_sender _ _ _ A Sx) as Eb.
      simpl in *. subst c. pose proof (in_flight s R f) as F. rewrite <- Eb, <- K in F.
      specialize (Room f Sx).
      destruct (le_lt_dec (now s (receiver f)) j) as [Le|]; auto. exfalso.
      pose proof (count_mono (fun z => is (receives z) f) (program (receiver f)) _ _ Le) as M.
      fold (taken (receiver f) f (now s (receiver f))) (taken (receiver f) f j) in M. lia.
    - assert (x' = x) as -> by (destruct A as (_ & N), A' as (_ & N'); simpl in *; congruence).
      auto.
  Qed.

  Lemma executed_next s b x p : executed (next s b x) p <-> executed s p \/ p = (b, now s b).
  Proof.
    destruct p as [c j]. unfold executed. simpl. destruct (Nat.eqb_spec c b) as [->|Ne].
    - split.
      + intros H. destruct (Nat.eq_dec j (now s b)) as [->|]; [now right|left; lia].
      + intros [H|H]; [lia|injection H as ->; lia].
    - split; auto. intros [H|H]; auto. congruence.
  Qed.

  (** Whatever has been done, all that it waited for has been. *)
  Lemma waited s : reached s -> forall p q, executed s p -> waits_for p q -> executed s q.
  Proof.
    induction 1 as [|s b x R IH H]; intros p q E W; [unfold executed in E; simpl in E; lia|].
    apply executed_next. left. apply executed_next in E as [E| ->]; [eauto|].
    eapply ready_waited; eauto.
  Qed.

  Lemma waited_far s : reached s -> forall p q, clos_trans _ waits_for p q ->
    executed s p -> executed s q.
  Proof. intros R p q C. induction C; eauto using waited. Qed.

  (** ** A cycle is a deadlock, in every execution *)

  Lemma nothing_circular s : reached s -> forall p, executed s p -> ~ clos_trans _ waits_for p p.
  Proof.
    induction 1 as [|s b x R IH H]; intros p E C; [unfold executed in E; simpl in E; lia|].
    apply executed_next in E as [E| ->]; [eapply IH; eauto|].
    assert (F : executed s (b, now s b)).
    { apply clos_trans_t1n in C. inversion C as [q W|q r W C' Eq]; subst.
      - eapply ready_waited; eauto.
      - apply clos_t1n_trans in C'. eapply waited_far; eauto. eapply ready_waited; eauto. }
    unfold executed in F. simpl in F. lia.
  Qed.

  Theorem cycle_never_ends p x : at_place p x -> clos_trans _ waits_for p p ->
    forall s, reached s -> ~ over s.
  Proof.
    intros (Hb & Nth) C s R O. apply (nothing_circular s R p); auto.
    unfold executed. apply (Nat.lt_le_trans _ (length (program (fst p)))); auto.
    apply nth_error_Some. congruence.
  Qed.

  (** ** Without a cycle nobody gets stuck *)

  Definition acyclic : Prop :=
    exists level : place -> nat, forall p q, waits_for p q -> level q < level p.

  (** A block that is not at its end is ready, or waits for a step that has not been done. *)
  Lemma ready_or_waits s b : matched -> reached s -> b < blocks -> now s b < length (program b) ->
    (exists x, ready s b x) \/
    exists q y, at_place q y /\ ~ executed s q /\ waits_for (b, now s b) q.
  Proof.
    intros (Ends & Equal & Raised) R Hb L.
    destruct (nth_error (program b) (now s b)) as [x|] eqn:Nth;
      [|apply nth_error_None in Nth; lia].
    assert (A : at_place (b, now s b) x) by (split; auto).
    (* a flag that is not raised *)
    destruct (Exists_dec (fun q => now s (fst q) <= snd q) (flags x)) as [X|X].
    { intros q. apply le_dec. }
    { apply Exists_exists in X as ((c & j) & I & Le). simpl in Le. right.
      destruct (Raised _ _ _ _ A I) as (y & Ay). exists (c, j), y. repeat split; try apply Ay.
      - unfold executed. simpl. lia.
      - eapply For_flag; eauto. }
    assert (Fl : forall c j, In (c, j) (flags x) -> j < now s c).
    { intros c j I. destruct (le_lt_dec (now s c) j); auto. exfalso.
      apply X, Exists_exists. now exists (c, j). }
    (* no message *)
    assert (M : (forall f, receives x = Some f -> fifo s f <> []) \/
      exists q y, at_place q y /\ ~ executed s q /\ waits_for (b, now s b) q).
    { destruct (receives x) as [f|] eqn:Rx; [|left; discriminate].
      destruct (fifo s f) as [|v l] eqn:F; [|left; intros g G; injection G as <-; congruence].
      right. pose proof (in_flight s R f) as In_f. rewrite F in In_f. simpl in In_f.
      pose proof (one_receiver _ _ _ A Rx) as Eb. simpl in Eb. rewrite <- Eb in *.
      assert (K : taken b f (now s b) < sent (sender f) f (length (program (sender f)))).
      { specialize (Equal f). rewrite <- Eb in Equal. rewrite Equal.
        apply (Nat.lt_le_trans _ (taken b f (S (now s b)))).
        - unfold taken. rewrite (count_next (fun z => is (receives z) f) _ _ _ Nth).
          cbv beta. assert (is (receives x) f = true) as -> by now apply is_true. lia.
        - unfold taken. apply count_mono. lia. }
      unfold sent in K. apply numbered in K as (j & y & Lj & Ny & Ty & Cy).
      apply is_true in Ty. exists (sender f, j), y.
      assert (Ay : at_place (sender f, j) y) by (split; auto; apply Ends).
      repeat split; try apply Ay.
      - unfold executed. simpl. intros Lt.
        assert (S (taken b f (now s b)) <= sent (sender f) f (now s (sender f))); [|lia].
        rewrite <- Cy. unfold sent.
        pose proof (count_next (fun z => is (sends z) f) _ _ _ Ny) as C1.
        cbv beta in C1. assert (is (sends y) f = true) as E1 by now apply is_true.
        rewrite E1 in C1.
        pose proof (count_mono (fun z => is (sends z) f) (program (sender f)) _ _ Lt). lia.
      - eapply For_message; eauto. }
    destruct M as [Got|]; [|now right].
    (* no slot *)
    assert (M : (forall f, sends x = Some f -> length (fifo s f) < depth f) \/
      exists q y, at_place q y /\ ~ executed s q /\ waits_for (b, now s b) q).
    { destruct (sends x) as [f|] eqn:Sx; [|left; discriminate].
      destruct (le_lt_dec (depth f) (length (fifo s f))) as [Full|];
        [|left; intros g G; injection G as <-; auto].
      right. pose proof (in_flight s R f) as In_f.
      pose proof (one_sender _ _ _ A Sx) as Eb. simpl in Eb. rewrite <- Eb in *.
      pose proof (Equal f) as Eq. rewrite <- Eb in Eq.
      assert (K : sent b f (now s b) - depth f <
                  taken (receiver f) f (length (program (receiver f)))).
      { rewrite <- Eq. apply (Nat.le_lt_trans _ (sent b f (now s b))); [lia|].
        apply (Nat.lt_le_trans _ (sent b f (S (now s b)))).
        - unfold sent. rewrite (count_next (fun z => is (sends z) f) _ _ _ Nth).
          cbv beta. assert (is (sends x) f = true) as -> by now apply is_true. lia.
        - unfold sent. apply count_mono. lia. }
      unfold taken in K. apply numbered in K as (j & y & Lj & Ny & Ty & Cy).
      apply is_true in Ty. exists (receiver f, j), y.
      assert (Ay : at_place (receiver f, j) y) by (split; auto; apply Ends).
      fold (taken (receiver f) f j) in Cy.
      repeat split; try apply Ay.
      - unfold executed. simpl. intros Lt.
        pose proof (count_next (fun z => is (receives z) f) _ _ _ Ny) as C1.
        cbv beta in C1. assert (is (receives y) f = true) as E1 by now apply is_true.
        rewrite E1 in C1.
        pose proof (count_mono (fun z => is (receives z) f) (program (receiver f)) _ _ Lt) as C2.
        fold (taken (receiver f) f (S j)) (taken (receiver f) f j) in C1.
        fold (taken (receiver f) f (S j)) (taken (receiver f) f (now s (receiver f))) in C2. lia.
      - eapply For_slot; eauto. lia. }
    destruct M as [Room|]; [|now right].
    left. exists x. repeat split; auto.
  Qed.

  Theorem acyclic_never_stuck : matched -> acyclic -> forall s, reached s -> ~ over s ->
    exists b x, ready s b x.
  Proof.
    intros M (level & Falls) s R NotOver.
    assert (G : forall n b, b < blocks -> now s b < length (program b) ->
                level (b, now s b) <= n -> exists c x, ready s c x).
    { induction n as [|n IH]; intros b Hb L Le.
      - destruct (ready_or_waits s b M R Hb L) as [(x & H)|((c & j) & y & A & U & W)]; [eauto|].
        specialize (Falls _ _ W). lia.
      - destruct (ready_or_waits s b M R Hb L) as [(x & H)|((c & j) & y & (Hc & Nth) & U & W)];
          [eauto|].
        simpl in *. unfold executed in U. simpl in U. specialize (Falls _ _ W) as Below.
        assert (j < length (program c)) by (apply nth_error_Some; congruence).
        apply (IH c); auto; [lia|].
        destruct (Nat.eq_dec (now s c) j) as [->|Ne]; [lia|].
        specialize (Falls (c, j) (c, now s c) ltac:(constructor; lia)). lia. }
    destruct (Exists_dec (fun b => now s b < length (program b)) (seq 0 blocks)) as [X|X].
    { intros b. apply lt_dec. }
    - apply Exists_exists in X as (b & I & L). apply in_seq in I. apply (G (level (b, now s b)) b);
        auto; lia.
    - exfalso. apply NotOver. intros b Hb.
      destruct (le_lt_dec (length (program b)) (now s b)); auto. exfalso.
      apply X, Exists_exists. exists b. rewrite in_seq. split; [lia|auto].
  Qed.

  (** ** Without races all executions end alike *)

  Definition conflict (x y : step) : Prop :=
    exists a, (writes x a = true /\ (writes y a = true \/ reads y a = true)) \/
              (writes y a = true /\ reads x a = true).

  Definition race_free : Prop := forall p q x y, at_place p x -> at_place q y ->
    fst p <> fst q -> conflict x y -> clos_trans _ waits_for p q \/ clos_trans _ waits_for q p.

  Definition same (s t : state) : Prop :=
    (forall b, now s b = now t b) /\ (forall a, mem s a = mem t a) /\
    (forall f, fifo s f = fifo t f).

  Lemma ready_same s t b x : same s t -> ready s b x -> ready t b x.
  Proof.
    intros (N & _ & F) (A & Fl & Got & Room). unfold ready. rewrite <- N. repeat split.
    - apply A.
    - apply A.
    - intros c j I. rewrite <- N. auto.
    - intros f E. rewrite <- F. auto.
    - intros f E. rewrite <- F. auto.
  Qed.

  Lemma next_same s t b x : same s t -> ready s b x -> same (next s b x) (next t b x).
  Proof.
    intros (N & M & F) (A & _).
    assert (I : incoming s x = incoming t x)
      by (unfold incoming; destruct (receives x); auto; now rewrite F).
    destruct (frame _ _ A (mem s) (mem t) (incoming s x)) as (St & Pu); [auto|].
    unfold same, next, rest; simpl. repeat split.
    - intros c. rewrite !N. auto.
    - intros a. rewrite <- I, M, St. auto.
    - intros f. rewrite <- I, F, Pu. auto.
  Qed.

  Lemma ready_one s b x y : ready s b x -> ready s b y -> x = y.
  Proof. intros ((_ & H) & _) ((_ & H') & _). simpl in *. congruence. Qed.

  Lemma both_ready_apart s b x c y : race_free -> reached s -> b <> c ->
    ready s b x -> ready s c y -> ~ conflict x y.
  Proof.
    intros RF R Ne Hx Hy C.
    assert (Not : forall d z e w, ready s d z -> ready s e w ->
      ~ clos_trans _ waits_for (d, now s d) (e, now s e)).
    { intros d z e w Hz Hw T. apply clos_trans_t1n in T.
      assert (E : executed s (e, now s e)).
      { inversion T as [q W|q r W T' Eq]; subst.
        - apply (ready_waited s d z R Hz). auto.
        - apply clos_t1n_trans in T'. apply (waited_far s R _ _ T').
          apply (ready_waited s d z R Hz). auto. }
      unfold executed in E. simpl in E. lia. }
    destruct (RF (b, now s b) (c, now s c) x y (proj1 Hx) (proj1 Hy) Ne C) as [T|T].
    - now apply (Not b x c y).
    - now apply (Not c y b x).
  Qed.

  (** What is ready stays ready, and finds the same, whatever another block does. *)
  Lemma stays_ready s b x c y : b <> c -> ready s b x -> ready s c y -> ready (next s b x) c y.
  Proof.
    intros Ne (A & _ & _ & _) (Ay & Fl & Got & Room).
    assert (Nc : now (next s b x) c = now s c)
      by (simpl; destruct (Nat.eqb_spec c b); congruence).
    split; [now rewrite Nc|]. split; [|split].
    - intros d j I. simpl. specialize (Fl d j I). destruct (Nat.eqb_spec d b) as [->|]; lia.
    - intros f E. simpl. unfold rest. specialize (Got f E).
      assert (is (receives x) f = false) as ->.
      { destruct (is (receives x) f) eqn:Q; auto. apply is_true in Q.
        pose proof (one_receiver _ _ _ A Q). pose proof (one_receiver _ _ _ Ay E).
        simpl in *. congruence. }
      destruct (is (sends x) f); auto. intros Q. now apply app_eq_nil in Q.
    - intros f E. simpl. unfold rest. specialize (Room f E).
      assert (is (sends x) f = false) as ->.
      { destruct (is (sends x) f) eqn:Q; auto. apply is_true in Q.
        pose proof (one_sender _ _ _ A Q). pose proof (one_sender _ _ _ Ay E).
        simpl in *. congruence. }
      destruct (is (receives x) f); auto. destruct (fifo s f); simpl in *; lia.
  Qed.

  Lemma same_incoming s b x c y : b <> c -> ready s b x -> ready s c y ->
    incoming (next s b x) y = incoming s y.
  Proof.
    intros Ne (A & _) (Ay & _ & Got & _). unfold incoming.
    destruct (receives y) as [f|] eqn:E; auto. specialize (Got f eq_refl). simpl. unfold rest.
    assert (is (receives x) f = false) as ->.
    { destruct (is (receives x) f) eqn:Q; auto. apply is_true in Q.
      pose proof (one_receiver _ _ _ A Q). pose proof (one_receiver _ _ _ Ay E).
      simpl in *. congruence. }
    destruct (is (sends x) f); auto. destruct (fifo s f); [congruence|]. reflexivity.
  Qed.

  Lemma same_finding s b x c y : b <> c -> ready s b x -> ready s c y -> ~ conflict x y ->
    (forall a, stores y (mem (next s b x)) (incoming (next s b x) y) a =
               stores y (mem s) (incoming s y) a) /\
    puts y (mem (next s b x)) (incoming (next s b x) y) = puts y (mem s) (incoming s y).
  Proof.
    intros Ne Hx Hy Apart. rewrite (same_incoming s b x c y) by auto.
    destruct Hy as (Ay & _). apply (frame _ _ Ay). intros a Ra. simpl.
    destruct (writes x a) eqn:W; auto. exfalso. apply Apart. exists a. auto.
  Qed.

  Lemma conflict_sym x y : conflict x y -> conflict y x.
  Proof. intros (a & [(? & [?|?])|(? & ?)]); exists a; tauto. Qed.

  Lemma diamond s b x c y : b <> c -> ready s b x -> ready s c y -> ~ conflict x y ->
    same (next (next s b x) c y) (next (next s c y) b x).
  Proof.
    intros Ne Hx Hy Apart.
    destruct (same_finding s b x c y Ne Hx Hy Apart) as (Sy & Py).
    destruct (same_finding s c y b x) as (Sx & Px); auto.
    { intros C. apply Apart, conflict_sym, C. }
    assert (One : forall o o' f, (o = receives x /\ o' = receives y) \/
                                 (o = sends x /\ o' = sends y) ->
                  is o f = true -> is o' f = true -> False).
    { destruct Hx as (A & _), Hy as (Ay & _).
      intros o o' f [(-> & ->)|(-> & ->)] Q Q'; apply is_true in Q, Q'.
      - pose proof (one_receiver _ _ _ A Q). pose proof (one_receiver _ _ _ Ay Q').
        simpl in *. congruence.
      - pose proof (one_sender _ _ _ A Q). pose proof (one_sender _ _ _ Ay Q').
        simpl in *. congruence. }
    repeat split.
    - intros d. simpl. destruct (Nat.eqb_spec d c), (Nat.eqb_spec d b); subst; try congruence.
      + destruct (Nat.eqb_spec c b); congruence.
      + destruct (Nat.eqb_spec b c); congruence.
    - intros a. change (mem (next (next s b x) c y) a) with
        (if writes y a then stores y (mem (next s b x)) (incoming (next s b x) y) a
         else mem (next s b x) a).
      change (mem (next (next s c y) b x) a) with
        (if writes x a then stores x (mem (next s c y)) (incoming (next s c y) x) a
         else mem (next s c y) a).
      rewrite Sy, Sx. simpl. destruct (writes y a) eqn:Wy, (writes x a) eqn:Wx; auto.
      exfalso. apply Apart. exists a. auto.
    - intros f.
      change (fifo (next (next s b x) c y) f) with
        (if is (sends y) f
         then rest (next s b x) y f ++ [puts y (mem (next s b x)) (incoming (next s b x) y)]
         else rest (next s b x) y f).
      change (fifo (next (next s c y) b x) f) with
        (if is (sends x) f
         then rest (next s c y) x f ++ [puts x (mem (next s c y)) (incoming (next s c y) x)]
         else rest (next s c y) x f).
      rewrite Py, Px. unfold rest. simpl. unfold rest.
      destruct Hx as (_ & _ & Gx & _), Hy as (_ & _ & Gy & _).
      assert (NR : is (receives x) f = true -> is (receives y) f = true -> False)
        by (apply One; auto).
      assert (NS : is (sends x) f = true -> is (sends y) f = true -> False)
        by (apply One; auto).
      assert (Fx : is (receives x) f = true -> fifo s f <> [])
        by (intros Q; apply Gx, is_true, Q).
      assert (Fy : is (receives y) f = true -> fifo s f <> [])
        by (intros Q; apply Gy, is_true, Q).
      clear One Gx Gy. revert NR NS Fx Fy.
      destruct (is (receives x) f), (is (receives y) f), (is (sends x) f), (is (sends y) f);
        intros NR NS Fx Fy; try (destruct (NR eq_refl eq_refl));
        try (destruct (NS eq_refl eq_refl)); try reflexivity.
      all: destruct (fifo s f); [|reflexivity].
      all: first [now destruct (Fx eq_refl)|now destruct (Fy eq_refl)].
  Qed.

  Inductive run : state -> nat -> state -> Prop :=
  | Here s : run s 0 s
  | Then s b x n t : ready s b x -> run (next s b x) n t -> run s (S n) t.

  Definition stuck (s : state) : Prop := forall b x, ~ ready s b x.

  Lemma same_sym s t : same s t -> same t s.
  Proof. intros (? & ? & ?). repeat split; auto. Qed.

  Lemma same_trans s t u : same s t -> same t u -> same s u.
  Proof.
    intros (A & B & C) (A' & B' & C'). repeat split; intros; [rewrite A|rewrite B|rewrite C]; auto.
  Qed.

  Lemma run_same s n t : run s n t -> forall s', same s s' -> exists t', run s' n t' /\ same t t'.
  Proof.
    induction 1 as [s|s b x n t H X IH]; intros s' E; [exists s'; split; auto; constructor|].
    destruct (IH (next s' b x)) as (t' & X' & E').
    - now apply next_same.
    - exists t'. split; auto. econstructor; eauto. eapply ready_same; eauto.
  Qed.

  Lemma stuck_same s t : same s t -> stuck s -> stuck t.
  Proof. intros E H b x Hx. apply (H b x). eapply ready_same; eauto. now apply same_sym. Qed.

  (** Whatever happens first, the end is the same, and as far away. *)
  Lemma one_step_aside : race_free -> forall n s t, reached s -> run s n t -> stuck t ->
    forall b x, ready s b x -> exists m t', n = S m /\ run (next s b x) m t' /\ same t t'.
  Proof.
    intros RF. induction n as [|n IH]; intros s t R X Stop b x Hx; inversion X; subst.
    - exfalso. eapply Stop. eauto.
    - match goal with H : ready s ?d ?z |- _ =>
        rename d into c; rename z into y; rename H into Hy end.
      match goal with H : run (next s c y) n t |- _ => rename H into X' end.
      destruct (Nat.eq_dec b c) as [->|Ne].
      + rewrite (ready_one s c x y) by auto. exists n, t. repeat split; auto.
      + assert (Apart : ~ conflict x y) by (eapply both_ready_apart; eauto).
        assert (Hx' : ready (next s c y) b x) by (apply stays_ready; auto).
        assert (Hy' : ready (next s b x) c y) by (apply stays_ready; auto).
        destruct (IH _ _ (Went _ _ _ R Hy) X' Stop b x Hx') as (m & t' & -> & X'' & E).
        destruct (run_same _ _ _ X'' (next (next s b x) c y)) as (t'' & Y & E').
        { apply same_sym. now apply diamond. }
        exists (S m), t''. repeat split; try (eapply same_trans; eauto).
        econstructor; eauto.
  Qed.

  Theorem same_end : race_free -> forall m n s t u, reached s ->
    run s n t -> stuck t -> run s m u -> stuck u -> n = m /\ same t u.
  Proof.
    intros RF. induction m as [|m IH]; intros n s t u R X Stop Y Stop'; inversion Y; subst.
    - inversion X; subst; [repeat split; auto|]. exfalso. eapply Stop'. eauto.
    - match goal with H : ready s ?d ?z |- _ =>
        rename d into b; rename z into x; rename H into Hx end.
      destruct (one_step_aside RF n s t R X Stop b x Hx) as (k & t' & -> & X' & E).
      destruct (IH k _ t' u (Went _ _ _ R Hx) X') as (-> & E'); auto.
      + eapply stuck_same; eauto.
      + split; auto. eapply same_trans; eauto.
  Qed.

  (** Every event brings the end nearer. *)
  Theorem ends s b x : ready s b x ->
    fold_right (fun c n => length (program c) - now (next s b x) c + n) 0 (seq 0 blocks) <
    fold_right (fun c n => length (program c) - now s c + n) 0 (seq 0 blocks).
  Proof.
    intros ((Hb & Nth) & _). simpl in *.
    assert (L : now s b < length (program b)) by (apply nth_error_Some; congruence).
    assert (I : In b (seq 0 blocks)) by (apply in_seq; lia).
    assert (Le : forall l, fold_right (fun c n => length (program c) -
        (if c =? b then S (now s b) else now s c) + n) 0 l <=
      fold_right (fun c n => length (program c) - now s c + n) 0 l).
    { induction l as [|c l IH]; simpl; auto. destruct (Nat.eqb_spec c b) as [->|]; lia. }
    induction (seq 0 blocks) as [|c l IH]; [destruct I|]. simpl.
    specialize (Le l). destruct I as [->|I].
    - rewrite Nat.eqb_refl. lia.
    - specialize (IH I). destruct (Nat.eqb_spec c b) as [->|]; lia.
  Qed.
End Asynchronous.
