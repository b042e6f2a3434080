(** Device programs in weak memory: every execution takes what an interleaving takes.

    [DeviceOrder] lets ranks take turns in one memory. GPUs do not: a load may find an old value
    long after a new one was stored. The machine here is the usual operational one of release and
    acquire. Each location has *messages*, ordered by times; each rank has a *view*, for each location
    the oldest message that it may still read. A load finds any message that is not older; a store
    makes one at any free time that is later than the view. So a store may be put before others that
    nobody here has seen, and a wait may go on to read old flags. A flag is raised by a release: its
    message shows all that its rank has seen and stored. It is read by an acquire: who reads takes
    over what the message shows. Data are loaded and stored plainly, and show nothing.

    Of PTX's memory model this is: coherence of each location (views and times), and causality by
    the order of a thread's steps and by a release at system scope that an acquire at system scope
    reads. Of a rank one block is looked at ([DeviceBlocks]), and its threads are one: this takes
    for granted that the barriers that the kernel has before each release, after each acquire and
    after each receive order the steps of a block's threads, as [bar.sync] does. A slot is one
    location here; for the elements of a slot nothing else would be said. Left out, since nothing
    depends on them: fences, order by mixed sizes, and stores that a load sees before they are
    made (no value here depends on a load that is not ordered, as is shown).

    The machine also has:
    - *refresh*: at the beginning of an operation a rank stores the epoch into its own flags of slots
      that the program does not fill ([idle]), plainly;
    - *launches* and whatever else makes others' stores visible: a view may grow at any time
      ([Learns]). That a kernel sees what the kernel before it on the same stream has seen, is that
      views are kept from operation to operation;
    - *stops*: a rank may stop at any moment, for good ([Stops]): it then stores nothing any more, and
      delivers nothing.

    If every take comes before each later store into its place, then in every execution, whoever
    stops: a take can find one message only, the one that was put for it ([reads_what_was_put]);
    a wait ends with its own raise and no other ([ends_with_its_own]); and ranks hold what they hold
    in every interleaving ([same_as_interleaved]). If no operation has a cycle and nobody stops, some
    rank can go on, by reading a message that is there ([never_stuck_in_memory]). That it will,
    takes for granted that stores become visible, that all blocks are on the device together, and
    that each is given time. *)

From Coq Require Import List Arith Lia Bool ZArith Relations.
From Latecomer Require Import DeviceOrder.
Import ListNotations.
Open Scope nat_scope.

Section Memory.
  Variables V D : Type.
  Variables (rows : nat -> nat -> list (action V D)) (sets : nat) (first : Z).
  Variables (start : nat -> D) (input : nat -> nat -> D -> D).
  Variables (used : nat -> nat -> nat -> Prop) (by_ st ra wa ta : nat -> nat -> nat -> nat).

  (** In an epoch: which flags of its own a rank refreshes. *)
  Variable idle : nat -> nat -> nat -> bool.

  Variables (operations : nat) (junk : nat -> nat -> nat -> V).

  Notation act := (act V D rows).
  Notation len := (len V D rows).
  Notation edge := (edge V D rows used by_ ra wa).
  Notation path := (path V D rows used by_ ra wa).
  Notation has := (has V D rows start input by_ st).

  (** ** The machine *)

  Inductive location := Cell (rank set slot : nat) | Flag (rank set slot : nat).

  Inductive content := Data (v : V) | Number (z : Z).

  (** [origin] and [releases] are for the proofs alone: no step looks at them. *)
  Record message := Message {
    at_ : location;
    time : nat;
    holds : content;
    shows : location -> nat;
    origin : option event;
    releases : bool }.

  Record memory := Memory {
    mep : nat -> nat;
    mpos : nat -> nat;
    view : nat -> location -> nat;
    messages : message -> Prop;
    mown : nat -> D;
    stopped : nat -> bool }.

  Definition location_eq_dec (a b : location) : {a = b} + {a <> b}.
  Proof. decide equality; apply Nat.eq_dec. Defined.

  Definition blind : location -> nat := fun _ => 0.

  Definition sees (v : location -> nat) (l : location) (t : nat) : location -> nat :=
    fun l' => if location_eq_dec l' l then Nat.max (v l') t else v l'.

  Definition joined (v w : location -> nat) : location -> nat := fun l => Nat.max (v l) (w l).

  Definition mnumber (s : memory) (r : nat) : Z := wrap (first + Z.of_nat (mep s r)).
  Definition mset (s : memory) (r : nat) : nat := mep s r mod sets.

  (** A store may go to any free time that its rank has not seen yet. *)
  Definition free (s : memory) (r : nat) (l : location) (t : nat) : Prop :=
    view s r l < t /\ forall m, messages s m -> at_ m = l -> time m <> t.

  Definition readable (s : memory) (r : nat) (l : location) (m : message) : Prop :=
    messages s m /\ at_ m = l /\ view s r l <= time m.

  (** Rank [r] has done its next action: what it has seen, what it has stored, what it holds. *)
  Definition on (s : memory) (r : nat) (v : location -> nat) (new : message -> Prop) (d : D) : memory :=
    Memory (mep s) (upd (mpos s) r (S (mpos s r))) (upd (view s) r v)
      (fun m => new m \/ messages s m) (upd (mown s) r d) (stopped s).

  (** The flags that a rank refreshes when it begins an epoch. *)
  Definition refreshed (r e : nat) (times : nat -> nat) (m : message) : Prop :=
    exists x, idle e r x = true /\
      m = Message (Flag r (e mod sets) x) (times x) (Number (wrap (first + Z.of_nat e))) blind
            (Some (r, e, 0)) false.

  Definition has_refreshed (r e : nat) (times : nat -> nat) (v : location -> nat) : location -> nat :=
    fun l => match l with
      | Flag q k x => if (q =? r) && (k =? e mod sets) && idle e r x then Nat.max (v l) (times x) else v l
      | _ => v l
      end.

  Inductive moves : memory -> memory -> Prop :=
  | Stores s r q x f t : mep s r < operations -> stopped s r = false ->
      act (mep s r) r (mpos s r) = Some (Store V D q x f) ->
      let l := Cell q (mset s r) x in free s r l t ->
      moves s (on s r (sees (view s r) l t)
        (eq (Message l t (Data (f (mown s r))) blind (Some (r, mep s r, mpos s r)) false)) (mown s r))
  | Raises s r q x t : mep s r < operations -> stopped s r = false ->
      act (mep s r) r (mpos s r) = Some (Raise V D q x) ->
      let l := Flag q (mset s r) x in free s r l t ->
      moves s (on s r (sees (view s r) l t)
        (eq (Message l t (Number (mnumber s r)) (sees (view s r) l t) (Some (r, mep s r, mpos s r)) true))
        (mown s r))
  | Waits s r x m z : mep s r < operations -> stopped s r = false ->
      act (mep s r) r (mpos s r) = Some (Wait V D x) ->
      let l := Flag r (mset s r) x in readable s r l m ->
      holds m = Number z -> passes z (mnumber s r) ->
      moves s (on s r (joined (sees (view s r) l (time m)) (shows m)) (fun _ => False) (mown s r))
  | Spins s r x m z : mep s r < operations -> stopped s r = false ->
      act (mep s r) r (mpos s r) = Some (Wait V D x) ->
      let l := Flag r (mset s r) x in readable s r l m ->
      holds m = Number z -> ~ passes z (mnumber s r) ->
      moves s (Memory (mep s) (mpos s)
        (upd (view s) r (joined (sees (view s r) l (time m)) (shows m)))
        (messages s) (mown s) (stopped s))
  | Takes_it s r x g m v : mep s r < operations -> stopped s r = false ->
      act (mep s r) r (mpos s r) = Some (Take V D x g) ->
      let l := Cell r (mset s r) x in readable s r l m -> holds m = Data v ->
      moves s (on s r (sees (view s r) l (time m)) (fun _ => False) (g (mown s r) v))
  | Begins_next s r times : mep s r < operations -> stopped s r = false ->
      mpos s r = len (mep s r) r ->
      (forall x, idle (S (mep s r)) r x = true ->
        free s r (Flag r (S (mep s r) mod sets) x) (times x)) ->
      moves s (Memory (upd (mep s) r (S (mep s r))) (upd (mpos s) r 0)
        (upd (view s) r (has_refreshed r (S (mep s r)) times (view s r)))
        (fun m => refreshed r (S (mep s r)) times m \/ messages s m)
        (upd (mown s) r (input r (mep s r) (mown s r))) (stopped s))
  | Learns s r v : (forall l, view s r l <= v l) ->
      (forall l, exists m, messages s m /\ at_ m = l /\ time m = v l) ->
      moves s (Memory (mep s) (mpos s) (upd (view s) r v) (messages s) (mown s) (stopped s))
  | Stops s r :
      moves s (Memory (mep s) (mpos s) (view s) (messages s) (mown s) (upd (stopped s) r true)).

  (** At first each location holds what nobody put there; flags of the first operation that are
      refreshed are so already. *)
  Definition first_level (l : location) : Z :=
    match l with
    | Flag q k x => if (k =? 0 mod sets) && idle 0 q x then 0%Z else (-1)%Z
    | Cell _ _ _ => (-1)%Z
    end.

  Definition was_there (m : message) : Prop :=
    m = Message (at_ m) 0
      (match at_ m with
       | Cell q k x => Data (junk q k x)
       | Flag q k x => Number (wrap (first + first_level (at_ m)))
       end) blind None false.

  Definition at_first : memory :=
    Memory (fun _ => 0) (fun _ => 0) (fun _ => blind) was_there start (fun _ => false).

  Inductive occurs : memory -> Prop :=
  | Occurs_first : occurs at_first
  | Occurs_next s s' : occurs s -> moves s s' -> occurs s'.

  (** ** What is taken for granted of the program *)

  Hypothesis matching : matched V D rows used by_ st ra wa ta.
  Hypothesis some_set : 0 < sets.
  Hypothesis in_order : ordered V D rows sets used by_ st ra wa ta.

  (** A flag is refreshed by its owner only where nobody else raises it in that epoch, and whoever
      raises it later comes after that. *)
  Hypothesis idle_unused : forall e q x, idle e q x = true -> ~ used e q x.
  Hypothesis idle_before : forall e e' q x, idle e q x = true -> used e' q x -> e < e' ->
    e mod sets = e' mod sets ->
    exists e1 i1, e <= e1 /\ i1 < len e1 q /\ path (q, e1, i1) (by_ e' q x, e', st e' q x).

  (** No flag is left alone for half of all numbers. *)
  Hypothesis soon : forall e q x, used e q x -> (Z.of_nat e < 2 ^ 31)%Z \/
    exists e', e' < e /\ e' mod sets = e mod sets /\ (used e' q x \/ idle e' q x = true) /\
      (Z.of_nat e - Z.of_nat e' <= 2 ^ 31)%Z.

  (** * Proofs *)

  Definition mdone (s : memory) (r e i : nat) : Prop := e < mep s r \/ e = mep s r /\ i < mpos s r.
  Definition mexecuted (s : memory) (x : event) : Prop := mdone s (fst (fst x)) (epoch x) (snd x).

  (** Whatever a rank does from this event on, and whatever comes after that. *)
  Definition after (o y : event) : Prop := exists e i,
    (epoch o < e \/ epoch o = e /\ snd o <= i) /\ i < len e (fst (fst o)) /\
    ((fst (fst o), e, i) = y \/ path (fst (fst o), e, i) y).

  Definition stored (s : memory) (m : message) : Prop := exists r e i q x f d,
    origin m = Some (r, e, i) /\ act e r i = Some (Store V D q x f) /\
    at_ m = Cell q (e mod sets) x /\ mdone s r e i /\ has r e i d /\ holds m = Data (f d).

  Definition raised (s : memory) (m : message) : Prop := exists r e i q x,
    origin m = Some (r, e, i) /\ act e r i = Some (Raise V D q x) /\
    at_ m = Flag q (e mod sets) x /\ mdone s r e i /\
    holds m = Number (wrap (first + Z.of_nat e)) /\ releases m = true.

  Definition kept_fresh (s : memory) (m : message) : Prop := exists q e x,
    origin m = Some (q, e, 0) /\ idle e q x = true /\ at_ m = Flag q (e mod sets) x /\
    e <= mep s q /\ holds m = Number (wrap (first + Z.of_nat e)) /\ releases m = false.

  Definition level (m : message) : Z :=
    match origin m with Some o => Z.of_nat (epoch o) | None => first_level (at_ m) end.

  Record sane (s : memory) : Prop := {
    m_within : forall r, mpos s r <= len (mep s r) r;
    m_kinds : forall m, messages s m -> was_there m \/ stored s m \/ raised s m \/ kept_fresh s m;
    m_first : forall m, was_there m -> messages s m;
    m_writer : forall m o, messages s m -> origin m = Some o -> time m <= view s (fst (fst o)) (at_ m);
    m_known : forall m o y, messages s m -> origin m = Some o -> mexecuted s y -> after o y ->
      time m <= view s (fst (fst y)) (at_ m);
    m_shown : forall m o m' o', messages s m -> origin m = Some o -> messages s m' ->
      origin m' = Some o' -> releases m' = true -> after o o' -> time m <= shows m' (at_ m);
    m_views : forall r l, exists m, messages s m /\ at_ m = l /\ time m = view s r l;
    m_shows : forall m' l, messages s m' -> exists m, messages s m /\ at_ m = l /\ time m = shows m' l;
    m_times : forall m m', messages s m -> messages s m' -> at_ m = at_ m' ->
      (level m < level m')%Z -> time m < time m';
    m_stored : forall r e i q x f, act e r i = Some (Store V D q x f) -> mdone s r e i ->
      exists m, messages s m /\ at_ m = Cell q (e mod sets) x /\ origin m = Some (r, e, i);
    m_raised : forall r e i q x, act e r i = Some (Raise V D q x) -> mdone s r e i ->
      exists m, messages s m /\ at_ m = Flag q (e mod sets) x /\ origin m = Some (r, e, i) /\
        releases m = true /\ holds m = Number (wrap (first + Z.of_nat e));
    m_idle : forall q e x, idle e q x = true -> e <= mep s q -> exists m, messages s m /\
      at_ m = Flag q (e mod sets) x /\ level m = Z.of_nat e /\ time m <= view s q (at_ m);
    m_waits : forall q x e, used e q x -> mdone s q e (wa e q x) -> mdone s (by_ e q x) e (ra e q x);
    m_owns : forall r, has r (mep s r) (mpos s r) (mown s r) }.

  Lemma mplaces e q x : used e q x -> st e q x < ra e q x /\ wa e q x < ta e q x /\
    ra e q x < len e (by_ e q x) /\ ta e q x < len e q.
  Proof. apply places with (1 := matching). Qed.

  (** As a state of [DeviceOrder], as far as done events go. *)
  Definition standing (s : memory) : state V D :=
    State V D (mep s) (mpos s) (fun _ _ _ => 0%Z) junk (mown s).

  Lemma closed s x y : sane s -> path y x -> mexecuted s x -> mexecuted s y.
  Proof.
    intros S. apply (path_closed V D rows sets used by_ ra wa some_set (standing s)).
    exact (m_waits s S).
  Qed.

  (** *** Chains within an operation *)

  Lemma order_edge r e i e' i' : e < e' \/ e = e' /\ i < i' -> i < len e r -> i' < len e' r ->
    path (r, e, i) (r, e', i').
  Proof. intros. now apply t_step, In_order. Qed.

  Lemma raise_to_take e q x : used e q x -> path (by_ e q x, e, ra e q x) (q, e, ta e q x).
  Proof.
    intros U. destruct (mplaces e q x U) as (_ & ? & _ & ?).
    apply t_trans with (q, e, wa e q x); [now apply t_step, By_flag|]. apply order_edge; lia.
  Qed.

  Lemma store_to_take e q x : used e q x -> path (by_ e q x, e, st e q x) (q, e, ta e q x).
  Proof.
    intros U. destruct (mplaces e q x U) as (? & _ & ? & _).
    apply t_trans with (by_ e q x, e, ra e q x); [apply order_edge; lia|]. now apply raise_to_take.
  Qed.

  Lemma after_itself r e i : i < len e r -> after (r, e, i) (r, e, i).
  Proof. intros L. exists e, i. unfold epoch. cbn. split; [lia|]. auto. Qed.

  Lemma path_after r e i y : i < len e r -> path (r, e, i) y -> after (r, e, i) y.
  Proof. intros L P. exists e, i. unfold epoch. cbn. split; [lia|]. auto. Qed.

  Lemma after_path o y z : after o y -> path y z -> after o z.
  Proof.
    intros (e & i & L & Li & H) P. exists e, i. split; auto. split; auto. right.
    destruct H as [->|H]; auto. eapply t_trans; eauto.
  Qed.

  (** Who is after an event is it, or another one of the same rank, or is led to by an edge. *)
  Lemma after_last o y : after o y ->
    fst (fst o) = fst (fst y) \/ exists u, after o u /\ edge u y.
  Proof.
    intros (e & i & L & Li & [<-|H]); auto. right. apply clos_trans_tn1 in H.
    destruct H as [y H|y z H H'].
    - exists (fst (fst o), e, i). split; auto. exists e, i. auto.
    - exists y. split; auto. exists e, i. split; auto. split; auto. right. now apply clos_tn1_trans.
  Qed.

  (** What leads to the next event of a rank. *)
  Lemma edge_to s r u : sane s -> edge u (r, mep s r, mpos s r) ->
    fst (fst u) = r /\ mexecuted s u \/
    exists x, act (mep s r) r (mpos s r) = Some (Wait V D x) /\
      u = (by_ (mep s r) r x, mep s r, ra (mep s r) r x) /\ used (mep s r) r x.
  Proof.
    intros S H. inversion H as [r' e i e' i' L Li Li'|q x e U]; subst.
    - left. unfold mexecuted, mdone, epoch. cbn. auto.
    - right. destruct (matching (mep s r)) as (_ & _ & _ & _ & M).
      destruct (M r x U) as (_ & _ & _ & W & _). exists x. auto.
  Qed.

  (** What a rank knows when it does something else than wait. *)
  Lemma known_to_next s r m o : sane s -> messages s m -> origin m = Some o ->
    (forall x, act (mep s r) r (mpos s r) <> Some (Wait V D x)) ->
    after o (r, mep s r, mpos s r) -> time m <= view s r (at_ m).
  Proof.
    intros S M O N A. apply after_last in A as [E|(u & A & Ed)].
    - cbn in E. pose proof (m_writer s S m o M O). now rewrite E in *.
    - apply (edge_to s r u S) in Ed as [(E & X)|(x & W & _)]; [|now destruct (N x)].
      pose proof (m_known s S m o u M O X A). now rewrite E in *.
  Qed.

  (** ... and what it knows when it has waited. *)
  Lemma known_to_waiter s r x m o mr : sane s -> messages s m -> origin m = Some o ->
    act (mep s r) r (mpos s r) = Some (Wait V D x) ->
    messages s mr -> origin mr = Some (by_ (mep s r) r x, mep s r, ra (mep s r) r x) ->
    releases mr = true ->
    after o (r, mep s r, mpos s r) -> time m <= Nat.max (view s r (at_ m)) (shows mr (at_ m)).
  Proof.
    intros S M O W Mr Or Rr A. apply after_last in A as [E|(u & A & Ed)].
    - cbn in E. pose proof (m_writer s S m o M O). rewrite E in *. lia.
    - apply (edge_to s r u S) in Ed as [(E & X)|(x' & W' & -> & _)].
      + pose proof (m_known s S m o u M O X A). rewrite E in *. lia.
      + rewrite W in W'. injection W' as <-. pose proof (m_shown s S m o mr _ M O Mr Or Rr A). lia.
  Qed.

  (** Nothing that has been done comes after what has not. *)
  Lemma nothing_after s r e i y : sane s -> mep s r < e \/ mep s r = e /\ mpos s r <= i ->
    mexecuted s y -> ~ after (r, e, i) y.
  Proof.
    intros S N X (e' & i' & L & Li & H). unfold epoch in L. cbn in L, Li, H.
    assert (X' : mexecuted s (r, e', i')).
    { destruct H as [<-|H]; auto. now apply (closed s y). }
    unfold mexecuted, mdone, epoch in X'. cbn in X'. lia.
  Qed.

  Lemma mdone_on s r v new d q e i :
    mdone (on s r v new d) q e i <-> mdone s q e i \/ q = r /\ e = mep s r /\ i = mpos s r.
  Proof.
    unfold mdone, on. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; lia.
  Qed.

  Lemma upd_at {X} (f : nat -> X) r v : upd f r v r = v.
  Proof. apply upd_same. Qed.

  Lemma on_sane s r a v (new : message -> Prop) d :
    let z := (r, mep s r, mpos s r) in let s' := on s r v new d in
    sane s -> act (mep s r) r (mpos s r) = Some a ->
    (forall l, view s r l <= v l) ->
    (forall x, a = Wait V D x -> mdone s (by_ (mep s r) r x) (mep s r) (ra (mep s r) r x) /\
      exists mr, messages s mr /\ origin mr = Some (by_ (mep s r) r x, mep s r, ra (mep s r) r x) /\
        releases mr = true /\ forall l, shows mr l <= v l) ->
    (forall l, exists m, (new m \/ messages s m) /\ at_ m = l /\ time m = v l) ->
    (forall m, new m -> origin m = Some z /\ time m <= v (at_ m) /\
      (releases m = true -> shows m = v) /\ (shows m = v \/ shows m = blind) /\
      (stored s' m \/ raised s' m) /\
      forall m1, messages s m1 -> at_ m1 = at_ m -> time m1 < time m /\ (level m1 < level m)%Z) ->
    (forall m m', new m -> new m' -> m = m') ->
    (forall q x f, a = Store V D q x f -> exists m, new m /\ at_ m = Cell q (mset s r) x) ->
    (forall q x, a = Raise V D q x -> exists m, new m /\ at_ m = Flag q (mset s r) x /\
      releases m = true /\ holds m = Number (mnumber s r)) ->
    has r (mep s r) (S (mpos s r)) d ->
    sane s'.
  Proof.
    intros z s' S A Grow Wt Seen New One St Ra Own.
    assert (Dn : forall q e i, mdone s q e i -> mdone s' q e i) by (intros; apply mdone_on; auto).
    assert (Lz : mpos s r < len (mep s r) r) by (apply (act_len _ _ _ _ _ _ _ A)).
    assert (View : forall q l, view s q l <= view s' q l).
    { intros q l. unfold s', on. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; auto. }
    assert (Vr : view s' r = v) by (unfold s', on; cbn; apply upd_at).
    assert (KnowsZ : forall m o, messages s m -> origin m = Some o -> after o z -> time m <= v (at_ m)).
    { intros m o M O Af.
      assert (K : (exists x, a = Wait V D x) \/ forall x, act (mep s r) r (mpos s r) <> Some (Wait V D x)).
      { rewrite A. destruct a; try (right; discriminate). left. eauto. }
      destruct K as [(x & ->)|K].
      { destruct (Wt x eq_refl) as (_ & mr & Mr & Or & Rr & Sh).
           pose proof (known_to_waiter s r x m o mr S M O A Mr Or Rr Af).
           specialize (Grow (at_ m)). specialize (Sh (at_ m)). lia. }
      pose proof (known_to_next s r m o S M O K Af). specialize (Grow (at_ m)). lia. }
    assert (Ex : forall y, mexecuted s' y -> mexecuted s y \/ y = z).
    { intros ((q & e) & i) X. unfold mexecuted, epoch in *. cbn in *. apply mdone_on in X.
      destruct X as [X|(-> & -> & ->)]; auto. }
    assert (Nz : forall y, mexecuted s y -> ~ after z y).
    { intros y X. apply (nothing_after s); auto. }
    constructor.
    - intros q. unfold s', on. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [lia|apply S].
    - intros m [M|M].
      + destruct (New m M) as (_ & _ & _ & _ & [K|K] & _); auto.
      + destruct (m_kinds s S m M) as [K|[K|[K|K]]]; auto.
        * destruct K as (r' & e & i & q & x & f & d' & H1 & H2 & H3 & H4 & H5 & H6).
          right; left. exists r', e, i, q, x, f, d'. repeat split; auto.
        * destruct K as (r' & e & i & q & x & H1 & H2 & H3 & H4 & H5 & H6).
          right; right; left. exists r', e, i, q, x. repeat split; auto.
    - intros m M. right. now apply S.
    - intros m o [M|M] O.
      + destruct (New m M) as (Oz & T & _). rewrite O in Oz. injection Oz as ->. change (time m <= view s' r (at_ m)). now rewrite Vr.
      + eapply Nat.le_trans; [apply (m_writer s S m o M O)|apply View].
    - intros m o y [M|M] O X Af.
      + destruct (New m M) as (Oz & T & _). rewrite O in Oz. injection Oz as ->.
        apply Ex in X as [X| ->]; [destruct (Nz y X Af)|]. change (time m <= view s' r (at_ m)). now rewrite Vr.
      + apply Ex in X as [X| ->].
        * eapply Nat.le_trans; [apply (m_known s S m o y M O X Af)|apply View].
        * change (time m <= view s' r (at_ m)). rewrite Vr. now apply (KnowsZ m o).
    - intros m o m' o' [M|M] O [M'|M'] O' R' Af.
      + rewrite (One m m' M M') in *. destruct (New m' M') as (_ & T & Sh & _). now rewrite (Sh R').
      + destruct (New m M) as (Oz & _). rewrite O in Oz. injection Oz as ->. exfalso.
        apply (Nz o'); auto. destruct (m_kinds s S m' M') as [K|[K|[K|K]]].
        * rewrite K in O'. discriminate.
        * destruct K as (r1 & e1 & i1 & _ & _ & _ & _ & H1 & _ & _ & H4 & _).
          rewrite O' in H1. injection H1 as ->. exact H4.
        * destruct K as (r1 & e1 & i1 & _ & _ & H1 & _ & _ & H4 & _).
          rewrite O' in H1. injection H1 as ->. exact H4.
        * destruct K as (q1 & e1 & x1 & _ & _ & _ & _ & _ & H). congruence.
      + destruct (New m' M') as (Oz & _ & Sh & _). rewrite O' in Oz. injection Oz as ->.
        rewrite (Sh R'). now apply (KnowsZ m o).
      + now apply (m_shown s S m o m' o').
    - intros q l. unfold s', on. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [apply Seen|].
      destruct (m_views s S q l) as (m & M & H). exists m. auto.
    - intros m' l [M'|M'].
      + destruct (New m' M') as (_ & _ & _ & [->| ->] & _); [apply Seen|].
        exists (Message l 0 (match l with Cell q k x => Data (junk q k x)
          | Flag q k x => Number (wrap (first + first_level l)) end) blind None false).
        split; [right; apply S; reflexivity|auto].
      + destruct (m_shows s S m' l M') as (m & M & H). exists m. split; auto. now right.
    - intros m m' [M|M] [M'|M'] L H.
      + rewrite (One m m' M M') in H. lia.
      + destruct (New m M) as (_ & _ & _ & _ & _ & N). destruct (N m' M' (eq_sym L)). lia.
      + destruct (New m' M') as (_ & _ & _ & _ & _ & N). now destruct (N m M L).
      + now apply (m_times s S).
    - intros q e i p x f Ac Dne. apply mdone_on in Dne as [Dne|(-> & -> & ->)].
      + destruct (m_stored s S q e i p x f Ac Dne) as (m & M & H). exists m. split; auto. now right.
      + rewrite A in Ac. injection Ac as ->. destruct (St p x f eq_refl) as (m & M & L).
        exists m. split; [now left|]. split; auto. now destruct (New m M).
    - intros q e i p x Ac Dne. apply mdone_on in Dne as [Dne|(-> & -> & ->)].
      + destruct (m_raised s S q e i p x Ac Dne) as (m & M & H). exists m. split; auto. now right.
      + rewrite A in Ac. injection Ac as ->. destruct (Ra p x eq_refl) as (m & M & L & R & H).
        exists m. split; [now left|]. split; auto. split; [now destruct (New m M)|auto].
    - intros q e x I L. destruct (m_idle s S q e x I L) as (m & M & H1 & H2 & H3).
      exists m. split; [now right|]. split; auto. split; auto. eapply Nat.le_trans; [exact H3|apply View].
    - intros q x e U X. apply mdone_on in X as [X|(-> & -> & X)].
      + apply Dn. now apply (m_waits s S).
      + destruct (matching (mep s r)) as (_ & _ & _ & _ & M). destruct (M r x U) as (_ & _ & _ & W & _).
        rewrite X, A in W. injection W as ->. apply Dn. now apply (Wt x).
    - intros q. unfold s', on. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [auto|apply S].
  Qed.

  (** *** What lies at a place already when somebody stores into it *)

  Lemma not_executed s r y : sane s -> mexecuted s y -> ~ path (r, mep s r, mpos s r) y.
  Proof.
    intros S X P. assert (X' : mexecuted s (r, mep s r, mpos s r)) by now apply (closed s y).
    unfold mexecuted, mdone, epoch in X'. cbn in X'. lia.
  Qed.

  Lemma earlier_data s r q x f m : sane s -> act (mep s r) r (mpos s r) = Some (Store V D q x f) ->
    messages s m -> at_ m = Cell q (mset s r) x ->
    time m <= view s r (at_ m) /\ (level m < Z.of_nat (mep s r))%Z.
  Proof.
    intros S A M L. destruct (matching (mep s r)) as (Ms & _). destruct (Ms _ _ _ _ _ A) as (U & Er & Ei).
    assert (N : forall y, act (mep s r) r (mpos s r) <> Some (Wait V D y)) by (intros y; rewrite A; discriminate).
    destruct (m_kinds s S m M) as [K|[K|[K|K]]].
    - rewrite K. cbn [time at_]. unfold level. cbn [origin at_]. rewrite L. cbn. lia.
    - destruct K as (r1 & e1 & i1 & q1 & x1 & f1 & d1 & O & A1 & L1 & Dn & _).
      rewrite L in L1. injection L1 as <- E <-. destruct (matching e1) as (Ms1 & _).
      destruct (Ms1 _ _ _ _ _ A1) as (U1 & Er1 & Ei1). unfold mset in E.
      unfold level. rewrite O. unfold epoch. cbn [fst snd].
      destruct (Nat.lt_trichotomy e1 (mep s r)) as [Lt|[->|Gt]].
      + split; [|lia]. apply (known_to_next s r m _ S M O N). rewrite Er1, Ei1.
        destruct (mplaces e1 q x U1) as (? & _ & ? & _). apply path_after; [lia|].
        rewrite Er at 1. rewrite Ei.
        apply t_trans with (q, e1, ta e1 q x); [now apply store_to_take|].
        apply in_order; auto.
      + exfalso. unfold mdone in Dn. rewrite Er1, <- Er in Dn. lia.
      + exfalso. pose proof (in_order (mep s r) e1 q x Gt E U U1) as P.
        apply (not_executed s r (r1, e1, i1) S); [exact Dn|].
        rewrite Er at 1. rewrite Ei, Er1, Ei1.
        apply t_trans with (q, mep s r, ta (mep s r) q x); auto. now apply store_to_take.
    - destruct K as (? & ? & ? & ? & ? & _ & _ & L1 & _). congruence.
    - destruct K as (? & ? & ? & _ & _ & L1 & _). congruence.
  Qed.

  Lemma earlier_flag s r q x m : sane s -> act (mep s r) r (mpos s r) = Some (Raise V D q x) ->
    messages s m -> at_ m = Flag q (mset s r) x ->
    time m <= view s r (at_ m) /\ (level m < Z.of_nat (mep s r))%Z.
  Proof.
    intros S A M L. destruct (matching (mep s r)) as (_ & Mr & _). destruct (Mr _ _ _ _ A) as (U & Er & Ei).
    assert (N : forall y, act (mep s r) r (mpos s r) <> Some (Wait V D y)) by (intros y; rewrite A; discriminate).
    destruct (mplaces (mep s r) q x U) as (Lst & _ & Lra & _).
    assert (ToRaise : path (by_ (mep s r) q x, mep s r, st (mep s r) q x) (r, mep s r, mpos s r)).
    { rewrite Er at 4. rewrite Ei. apply order_edge; lia. }
    destruct (m_kinds s S m M) as [K|[K|[K|K]]].
    - rewrite K. cbn [time at_]. split; [lia|]. unfold level. cbn [origin at_]. rewrite L. cbn.
      destruct ((mset s r =? 0 mod sets) && idle 0 q x) eqn:B; [|lia].
      apply andb_true_iff in B as (_ & I). apply idle_unused in I.
      destruct (mep s r); [now destruct I|lia].
    - destruct K as (? & ? & ? & ? & ? & ? & ? & _ & _ & L1 & _). congruence.
    - destruct K as (r1 & e1 & i1 & q1 & x1 & O & A1 & L1 & Dn & _).
      rewrite L in L1. injection L1 as <- E <-. destruct (matching e1) as (_ & Mr1 & _).
      destruct (Mr1 _ _ _ _ A1) as (U1 & Er1 & Ei1). unfold mset in E.
      unfold level. rewrite O. unfold epoch. cbn [fst snd].
      destruct (mplaces e1 q x U1) as (Lst1 & _ & Lra1 & _).
      destruct (Nat.lt_trichotomy e1 (mep s r)) as [Lt|[->|Gt]].
      + split; [|lia]. apply (known_to_next s r m _ S M O N). rewrite Er1, Ei1.
        apply path_after; [lia|].
        apply t_trans with (q, e1, ta e1 q x); [now apply raise_to_take|].
        eapply t_trans; [|exact ToRaise]. apply in_order; auto.
      + exfalso. unfold mdone in Dn. rewrite Er1, <- Er in Dn. lia.
      + exfalso. pose proof (in_order (mep s r) e1 q x Gt E U U1) as P.
        apply (not_executed s r (r1, e1, i1) S); [exact Dn|].
        rewrite Er at 1. rewrite Ei, Er1, Ei1.
        apply t_trans with (q, mep s r, ta (mep s r) q x); [now apply raise_to_take|].
        eapply t_trans; [exact P|]. apply order_edge; lia.
    - destruct K as (q1 & e1 & x1 & O & I & L1 & Le & _).
      rewrite L in L1. injection L1 as <- E <-. unfold mset in E.
      unfold level. rewrite O. unfold epoch. cbn [fst snd].
      destruct (Nat.lt_trichotomy e1 (mep s r)) as [Lt|[->|Gt]].
      + split; [|lia]. apply (known_to_next s r m _ S M O N).
        destruct (idle_before e1 (mep s r) q x I U Lt (eq_sym E)) as (e2 & i2 & L2 & L2' & P).
        exists e2, i2. unfold epoch. cbn [fst snd]. split; [lia|]. split; auto. right.
        eapply t_trans; [exact P|exact ToRaise].
      + exfalso. now apply (idle_unused _ _ _ I).
      + exfalso. assert (W : mdone s q (mep s r) (wa (mep s r) q x)).
        { left. lia. }
        apply (m_waits s S) in W; auto. unfold mdone in W. rewrite <- Er in W. lia.
  Qed.

  (** *** What can be read *)

  Lemma puts_data e q x : used e q x -> exists f, act e (by_ e q x) (st e q x) = Some (Store V D q x f).
  Proof. intros U. destruct (matching e) as (_ & _ & _ & _ & M). now destruct (M q x U). Qed.

  (** Only what was put for it. *)
  Lemma read_by_take s q x g m : sane s -> act (mep s q) q (mpos s q) = Some (Take V D x g) ->
    readable s q (Cell q (mset s q) x) m ->
    origin m = Some (by_ (mep s q) q x, mep s q, st (mep s q) q x) /\
    exists f d, act (mep s q) (by_ (mep s q) q x) (st (mep s q) q x) = Some (Store V D q x f) /\
      has (by_ (mep s q) q x) (mep s q) (st (mep s q) q x) d /\ holds m = Data (f d).
  Proof.
    intros S A (M & L & Old). set (e := mep s q) in *.
    destruct (matching e) as (_ & _ & _ & Mt & _). destruct (Mt _ _ _ _ A) as (U & P).
    destruct (mplaces e q x U) as (Lst & Lwa & Lra & Lta).
    assert (W : mdone s q e (wa e q x)) by (right; fold e; lia).
    pose proof (m_waits s S q x e U W) as R.
    assert (Sd : mdone s (by_ e q x) e (st e q x)) by (unfold mdone in *; lia).
    destruct (puts_data e q x U) as (f & Af).
    destruct (m_stored s S _ _ _ _ _ _ Af Sd) as (m0 & M0 & L0 & O0).
    assert (Seen : time m0 <= time m).
    { pose proof (m_known s S m0 _ (q, e, wa e q x) M0 O0 W) as Kn. cbn [fst] in Kn.
      rewrite L0 in Kn. eapply Nat.le_trans; [|exact Old]. apply Kn.
      apply path_after; [lia|]. apply t_trans with (by_ e q x, e, ra e q x); [apply order_edge; lia|].
      now apply t_step, By_flag. }
    assert (Lv0 : level m0 = Z.of_nat e) by (unfold level; now rewrite O0).
    assert (Same : at_ m = at_ m0) by (rewrite L, L0; reflexivity).
    assert (NotOlder : ~ (level m < Z.of_nat e)%Z).
    { intros Lt. rewrite <- Lv0 in Lt. pose proof (m_times s S m m0 M M0 Same Lt). lia. }
    destruct (m_kinds s S m M) as [K|[K|[K|K]]].
    - exfalso. apply NotOlder. rewrite K. unfold level. cbn [origin at_]. rewrite L. cbn. lia.
    - destruct K as (r1 & e1 & i1 & q1 & x1 & f1 & d1 & O & A1 & L1 & Dn & H1 & V1).
      rewrite L in L1. injection L1 as <- E <-. destruct (matching e1) as (Ms1 & _).
      destruct (Ms1 _ _ _ _ _ A1) as (U1 & Er1 & Ei1). unfold mset in E. fold e in E.
      unfold level in NotOlder. rewrite O in NotOlder. unfold epoch in NotOlder. cbn [fst snd] in NotOlder.
      destruct (Nat.lt_trichotomy e1 e) as [Lt|[->|Gt]]; [lia| |].
      + subst r1 i1. split; auto. exists f1, d1. auto.
      + exfalso. pose proof (in_order e e1 q x Gt E U U1) as Pt.
        apply (not_executed s q (r1, e1, i1) S); [exact Dn|]. fold e. rewrite P, Er1, Ei1. exact Pt.
    - destruct K as (? & ? & ? & ? & ? & _ & _ & L1 & _). congruence.
    - destruct K as (? & ? & ? & _ & _ & L1 & _). congruence.
  Qed.

  (** Of the flags that can be read, those that end a wait are its own raise; and if that has been
      done, none but it is left to be read in the end: nothing newer is there. *)
  Lemma read_by_wait s q x m z : sane s -> act (mep s q) q (mpos s q) = Some (Wait V D x) ->
    readable s q (Flag q (mset s q) x) m -> holds m = Number z ->
    (level m <= Z.of_nat (mep s q))%Z /\
    (passes z (mnumber s q) <-> raised s m /\
      origin m = Some (by_ (mep s q) q x, mep s q, ra (mep s q) q x)).
  Proof.
    intros S A (M & L & Old) Hz. set (e := mep s q) in *.
    destruct (matching e) as (_ & _ & Mw & _). destruct (Mw _ _ _ A) as (U & P).
    destruct (mplaces e q x U) as (Lst & Lwa & Lra & Lta).
    assert (Kind : holds m = Number (wrap (first + level m)) /\ (level m <= Z.of_nat e)%Z /\
      (level m = Z.of_nat e -> raised s m /\ origin m = Some (by_ e q x, e, ra e q x)) /\ (-1 <= level m)%Z).
    { destruct (m_kinds s S m M) as [K|[K|[K|K]]].
      - assert (O : origin m = None) by now rewrite K.
        assert (H : holds m = Number (wrap (first + level m))).
        { unfold level. rewrite O. pose proof (f_equal holds K) as H. cbn [holds] in H.
          rewrite L in H |- *. exact H. }
        split; auto. unfold level. rewrite O, L. cbn.
        destruct ((mset s q =? 0 mod sets) && idle 0 q x) eqn:B.
        + split; [lia|]. split; [|lia]. intros Ze. exfalso. apply andb_true_iff in B as (_ & I).
          apply (idle_unused _ _ _ I). now replace 0 with e by lia.
        + split; [lia|]. split; lia.
      - exfalso. destruct K as (? & ? & ? & ? & ? & ? & ? & _ & _ & L1 & _). congruence.
      - pose proof K as K'. destruct K as (r1 & e1 & i1 & q1 & x1 & O & A1 & L1 & Dn & H1 & _).
        rewrite L in L1. injection L1 as <- E <-. destruct (matching e1) as (_ & Mr1 & _).
        destruct (Mr1 _ _ _ _ A1) as (U1 & Er1 & Ei1). unfold mset in E. fold e in E.
        unfold level. rewrite O. unfold epoch. cbn [fst snd]. split; auto.
        split; [|split; [intros Ze; assert (e1 = e) as -> by lia; now rewrite Er1, Ei1|lia]].
        destruct (le_lt_dec e1 e) as [|Gt]; [lia|]. exfalso.
        destruct (mplaces e1 q x U1) as (Lst1 & _ & Lra1 & _).
        apply (not_executed s q (r1, e1, i1) S); [exact Dn|]. fold e. rewrite P, Er1, Ei1.
        apply t_trans with (q, e, ta e q x); [apply order_edge; lia|].
        apply t_trans with (by_ e1 q x, e1, st e1 q x); [now apply in_order|]. apply order_edge; lia.
      - destruct K as (q1 & e1 & x1 & O & I & L1 & Le & H1 & _).
        rewrite L in L1. injection L1 as <- E <-. fold e in Le.
        unfold level. rewrite O. unfold epoch. cbn [fst snd]. split; auto. split; [lia|]. split; [|lia].
        intros Ze. exfalso. apply (idle_unused _ _ _ I). now replace e1 with e by lia. }
    destruct Kind as (Hl & Up & Eq & Least). split; auto.
    assert (Low : (Z.of_nat e - 2 ^ 31 <= level m)%Z).
    { destruct (soon e q x U) as [Few|(e' & Lt & E & Src & Near)]; [lia|].
      assert (X : exists m0, messages s m0 /\ at_ m0 = Flag q (e' mod sets) x /\
        level m0 = Z.of_nat e' /\ time m0 <= view s q (at_ m0)).
      { destruct Src as [U'|I].
        - destruct (matching e') as (_ & _ & _ & _ & M'). destruct (M' q x U') as (_ & Ra' & _).
          destruct (mplaces e' q x U') as (_ & Lw' & Lr' & Lt').
          assert (W' : mdone s q e' (wa e' q x)) by (left; fold e; lia).
          pose proof (m_waits s S q x e' U' W') as R'.
          destruct (m_raised s S _ _ _ _ _ Ra' R') as (m0 & M0 & L0 & O0 & _).
          exists m0. split; auto. split; auto. split; [unfold level; now rewrite O0|].
          apply (m_known s S m0 _ (q, e', wa e' q x) M0 O0 W').
          apply path_after; auto. now apply t_step, By_flag.
        - apply (m_idle s S); auto. fold e. lia. }
      destruct X as (m0 & M0 & L0 & Lv & T0).
      destruct (Z.lt_ge_cases (level m) (level m0)) as [Lw|]; [|lia]. exfalso.
      assert (Same : at_ m = at_ m0) by (rewrite L, L0; unfold mset; fold e; now rewrite E).
      pose proof (m_times s S m m0 M M0 Same Lw). rewrite <- Same, L in T0. lia. }
    rewrite Hl in Hz. injection Hz as <-. unfold mnumber. fold e.
    rewrite passes_wrapped by lia. split; intros H; [apply Eq; lia|].
    destruct H as (_ & O). unfold level in *. rewrite O. unfold epoch. cbn. lia.
  Qed.

  (** *** Every step keeps this *)

  Lemma sees_more v l t l' : v l' <= sees v l t l'.
  Proof. unfold sees. destruct (location_eq_dec l' l); lia. Qed.

  Lemma sees_at v l t : t <= sees v l t l.
  Proof. unfold sees. destruct (location_eq_dec l l); [lia|congruence]. Qed.

  (** A view of messages that are there, grown by one. *)
  Lemma sees_there s r m : sane s -> messages s m -> forall l,
    exists m', messages s m' /\ at_ m' = l /\ time m' = sees (view s r) (at_ m) (time m) l.
  Proof.
    intros S M l. unfold sees. destruct (location_eq_dec l (at_ m)) as [->|]; [|apply S].
    destruct (Nat.max_spec (view s r (at_ m)) (time m)) as [(_ & ->)|(_ & ->)]; [eauto|apply S].
  Qed.

  Lemma joined_there s r m : sane s -> messages s m -> forall l, exists m', messages s m' /\
    at_ m' = l /\ time m' = joined (sees (view s r) (at_ m) (time m)) (shows m) l.
  Proof.
    intros S M l. unfold joined.
    destruct (Nat.max_spec (sees (view s r) (at_ m) (time m) l) (shows m l)) as [(_ & ->)|(_ & ->)];
      [now apply (m_shows s S)|now apply sees_there].
  Qed.

  Lemma sane_views s view' stopped' : sane s -> (forall q l, view s q l <= view' q l) ->
    (forall q l, exists m, messages s m /\ at_ m = l /\ time m = view' q l) ->
    sane (Memory (mep s) (mpos s) view' (messages s) (mown s) stopped').
  Proof.
    intros S Grow There. constructor; cbn; try apply S; auto.
    - intros m o M O. eapply Nat.le_trans; [apply (m_writer s S m o M O)|apply Grow].
    - intros m o y M O X A. eapply Nat.le_trans; [apply (m_known s S m o y M O X A)|apply Grow].
    - intros q e x I L. destruct (m_idle s S q e x I L) as (m & M & H1 & H2 & H3).
      exists m. repeat split; auto. eapply Nat.le_trans; [exact H3|apply Grow].
  Qed.

  Lemma after_valid o y : after o y -> snd y < len (epoch y) (fst (fst y)).
  Proof.
    intros (e & i & _ & L & [<-|P]); auto. apply clos_trans_tn1 in P.
    assert (E : exists u, edge u y) by (destruct P; eauto).
    destruct E as (u & E). inversion E as [r e1 i1 e2 i2 H1 H2 H3|q x e1 U]; subst; unfold epoch; cbn; auto.
    destruct (mplaces e1 q x U) as (_ & ? & _ & ?). lia.
  Qed.

  Lemma earlier_refresh s r x m : sane s -> mpos s r = len (mep s r) r ->
    idle (S (mep s r)) r x = true -> messages s m -> at_ m = Flag r (S (mep s r) mod sets) x ->
    time m <= view s r (at_ m) /\ (level m < Z.of_nat (S (mep s r)))%Z.
  Proof.
    intros S End I M L. destruct (m_kinds s S m M) as [K|[K|[K|K]]].
    - rewrite K. cbn [time at_]. split; [lia|]. unfold level. cbn [origin at_]. rewrite L. cbn.
      destruct (_ && _); lia.
    - destruct K as (? & ? & ? & ? & ? & ? & ? & _ & _ & L1 & _). congruence.
    - destruct K as (r1 & e1 & i1 & q1 & x1 & O & A1 & L1 & Dn & _).
      rewrite L in L1. injection L1 as <- E <-. destruct (matching e1) as (_ & Mr1 & _).
      destruct (Mr1 _ _ _ _ A1) as (U1 & Er1 & Ei1).
      unfold level. rewrite O. unfold epoch. cbn [fst snd].
      destruct (mplaces e1 r x U1) as (Lst1 & Lwa1 & Lra1 & Lta1).
      destruct (Nat.lt_trichotomy e1 (Datatypes.S (mep s r))) as [Lt|[->|Gt]].
      + split; [|lia].
        assert (W : mdone s r e1 (wa e1 r x)).
        { unfold mdone. destruct (Nat.eq_dec e1 (mep s r)) as [->|]; [right|left]; lia. }
        apply (m_known s S m _ (r, e1, wa e1 r x) M O W). rewrite Er1, Ei1.
        apply path_after; auto. now apply t_step, By_flag.
      + exfalso. now apply (idle_unused _ _ _ I).
      + exfalso. destruct (idle_before _ e1 r x I U1 Gt E) as (e2 & i2 & L2 & L2' & P).
        assert (X : mexecuted s (r, e2, i2)).
        { apply (closed s (r1, e1, i1)); [auto| |exact Dn]. rewrite Er1, Ei1.
          eapply t_trans; [exact P|]. apply order_edge; lia. }
        unfold mexecuted, mdone, epoch in X. cbn in X. lia.
    - destruct K as (q1 & e1 & x1 & O & _ & L1 & Le & _).
      pose proof (m_writer s S m _ M O) as T. cbn in T.
      rewrite L in L1. injection L1 as <- E <-. unfold level. rewrite O. unfold epoch. cbn [fst snd].
      split; [exact T|lia].
  Qed.

  Lemma first_sane : sane at_first.
  Proof.
    constructor; unfold at_first; cbn; auto; try lia.
    - intros m o ->. discriminate.
    - intros m o y ->. discriminate.
    - intros m o m' o' ->. discriminate.
    - intros r l. exists (Message l 0 (match l with Cell q k x => Data (junk q k x)
        | Flag q k x => Number (wrap (first + first_level l)) end) blind None false).
      split; [reflexivity|auto].
    - intros m' l ->. exists (Message l 0 (match l with Cell q k x => Data (junk q k x)
        | Flag q k x => Number (wrap (first + first_level l)) end) blind None false).
      split; [reflexivity|auto].
    - intros m m' H H' L Lv. exfalso. unfold level in Lv. rewrite H, H' in Lv. cbn in Lv.
      rewrite L in Lv. lia.
    - intros r e i q x f _ H. unfold mdone in H. cbn in H. lia.
    - intros r e i q x _ H. unfold mdone in H. cbn in H. lia.
    - intros q e x I L. assert (e = 0) as -> by lia.
      exists (Message (Flag q (0 mod sets) x) 0 (Number (wrap (first + first_level (Flag q (0 mod sets) x))))
        blind None false).
      split; [reflexivity|]. cbn [at_ time]. split; auto. split; [|lia].
      unfold level, first_level. cbn [origin at_]. now rewrite Nat.eqb_refl, I.
    - intros q x e _ H. unfold mdone in H. cbn in H. lia.
    - intros r. constructor.
  Qed.

  Lemma keeps_own s r a : sane s -> act (mep s r) r (mpos s r) = Some a ->
    (forall x g, a <> Take V D x g) -> has r (mep s r) (S (mpos s r)) (mown s r).
  Proof. intros S A N. apply Keeps with a; auto. apply S. Qed.

  Lemma begins_sane s r times : sane s -> mpos s r = len (mep s r) r ->
    (forall x, idle (S (mep s r)) r x = true -> free s r (Flag r (S (mep s r) mod sets) x) (times x)) ->
    sane (Memory (upd (mep s) r (S (mep s r))) (upd (mpos s) r 0)
        (upd (view s) r (has_refreshed r (S (mep s r)) times (view s r)))
        (fun m => refreshed r (S (mep s r)) times m \/ messages s m)
        (upd (mown s) r (input r (mep s r) (mown s r))) (stopped s)).
  Proof.
    intros S End Free. set (e' := Datatypes.S (mep s r)) in *.
    set (s' := Memory _ _ _ _ _ _).
    assert (Dn : forall q e i, mdone s q e i -> mdone s' q e i).
    { unfold mdone, s'. cbn. unfold upd. intros q e i. destruct (Nat.eqb_spec q r) as [->|]; try unfold e'; lia. }
    assert (Nd : forall q e i, i < len e q -> mdone s' q e i -> mdone s q e i).
    { unfold mdone, s'. cbn. unfold upd. intros q e i L.
      destruct (Nat.eqb_spec q r) as [->|]; [|lia]. unfold e'.
      destruct (Nat.eq_dec e (mep s r)) as [->|]; lia. }
    assert (Grow : forall q l, view s q l <= view s' q l).
    { intros q l. unfold s'. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; auto.
      unfold has_refreshed. destruct l as [|q k x]; auto. destruct (_ && _); lia. }
    assert (Nothing : forall y, mexecuted s y -> ~ after (r, e', 0) y).
    { intros y. apply nothing_after; [exact S|left; unfold e'; lia]. }
    assert (Old : forall y, mexecuted s' y -> after (r, e', 0) y -> False).
    { intros ((q & e) & i) X A. pose proof (after_valid _ _ A) as L. unfold epoch in L. cbn in L.
      exact (Nothing (q, e, i) (Nd q e i L X) A). }
    assert (Init : forall l, exists m, messages s' m /\ at_ m = l /\ time m = 0).
    { intros l. exists (Message l 0 (match l with Cell q k x => Data (junk q k x)
        | Flag q k x => Number (wrap (first + first_level l)) end) blind None false).
      split; [right; apply S; reflexivity|auto]. }
    constructor.
    - intros q. unfold s'. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [lia|apply S].
    - intros m [(x & I & ->)|M].
      + right; right; right. exists r, e', x. cbn. repeat split; auto. unfold upd. rewrite Nat.eqb_refl. auto.
      + destruct (m_kinds s S m M) as [K|[K|[K|K]]]; auto.
        * destruct K as (r' & e & i & q & x & f & d' & H1 & H2 & H3 & H4 & H5 & H6).
          right; left. exists r', e, i, q, x, f, d'. repeat split; auto.
        * destruct K as (r' & e & i & q & x & H1 & H2 & H3 & H4 & H5 & H6).
          right; right; left. exists r', e, i, q, x. repeat split; auto.
        * destruct K as (q & e & x & H1 & H2 & H3 & H4 & H5).
          right; right; right. exists q, e, x. repeat split; auto; try apply H5.
          unfold s'. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; auto. unfold e'. lia.
    - intros m M. right. now apply S.
    - intros m o [(x & I & ->)|M] O.
      + cbn in O. injection O as <-. unfold s'. cbn. unfold upd. rewrite Nat.eqb_refl. cbn.
        rewrite !Nat.eqb_refl, I. cbn. lia.
      + eapply Nat.le_trans; [apply (m_writer s S m o M O)|apply Grow].
    - intros m o y [(x & I & ->)|M] O X A.
      + cbn in O. injection O as <-. destruct (Old y X A).
      + pose proof (after_valid _ _ A) as L. destruct y as ((q & e) & i).
        eapply Nat.le_trans; [exact (m_known s S m o (q, e, i) M O (Nd q e i L X) A)|apply Grow].
    - intros m o m' o' [(x & I & ->)|M] O [(x' & I' & ->)|M'] O' R' A; try discriminate R'.
      + cbn in O. injection O as <-. exfalso. apply (Nothing o'); auto.
        destruct (m_kinds s S m' M') as [K|[K|[K|K]]].
        * rewrite K in O'. discriminate.
        * destruct K as (r1 & e1 & i1 & _ & _ & _ & _ & H1 & _ & _ & H4 & _).
          rewrite O' in H1. injection H1 as ->. exact H4.
        * destruct K as (r1 & e1 & i1 & _ & _ & H1 & _ & _ & H4 & _).
          rewrite O' in H1. injection H1 as ->. exact H4.
        * destruct K as (q1 & e1 & x1 & _ & _ & _ & _ & _ & H). congruence.
      + now apply (m_shown s S m o m' o').
    - intros q l. assert (Vs : view s' q l = upd (view s) r (has_refreshed r e' times (view s r)) q l)
        by reflexivity.
      rewrite Vs. unfold upd. destruct (Nat.eqb_spec q r) as [->|].
      + unfold has_refreshed. destruct (m_views s S r l) as (m & M & H).
        destruct l as [q k x|q k x]; [exists m; split; auto; now right|].
        destruct ((q =? r) && (k =? e' mod sets) && idle e' r x) eqn:B;
          [|exists m; split; auto; now right].
        rewrite !andb_true_iff, !Nat.eqb_eq in B. destruct B as ((-> & ->) & I).
        destruct (Free x I) as (Lt & _). rewrite Nat.max_r by lia.
        eexists. split; [left; exists x; split; [exact I|reflexivity]|]. auto.
      + destruct (m_views s S q l) as (m & M & H). exists m. split; auto. now right.
    - intros m' l [(x & I & ->)|M']; [apply Init|].
      destruct (m_shows s S m' l M') as (m & M & H). exists m. split; auto. now right.
    - intros m m' [(x & I & ->)|M] [(x' & I' & ->)|M'] L H.
      + cbn in L. injection L as <-. lia.
      + cbn [at_] in L. destruct (earlier_refresh s r x m' S End I M' (eq_sym L)).
        unfold level in H at 1. cbn in H. unfold epoch in H. cbn in H. unfold e' in H. lia.
      + cbn [at_] in L. destruct (earlier_refresh s r x' m S End I' M L) as (T & _).
        destruct (Free x' I') as (Lt & _). rewrite L in T. cbn [time].
        eapply Nat.le_lt_trans; [exact T|exact Lt].
      + now apply (m_times s S).
    - intros q e i p x f Ac X. pose proof (act_len _ _ _ _ _ _ _ Ac) as L.
      destruct (m_stored s S q e i p x f Ac (Nd _ _ _ L X)) as (m & M & H). exists m. split; auto. now right.
    - intros q e i p x Ac X. pose proof (act_len _ _ _ _ _ _ _ Ac) as L.
      destruct (m_raised s S q e i p x Ac (Nd _ _ _ L X)) as (m & M & H). exists m. split; auto. now right.
    - intros q e x I L. unfold s' in L. cbn in L. unfold upd in L.
      assert (C : (q = r /\ e = e') \/ e <= mep s q).
      { destruct (Nat.eqb_spec q r) as [->|]; [unfold e' in *; lia|auto]. }
      destruct C as [(-> & ->)|C].
      + eexists. split; [left; exists x; split; [exact I|reflexivity]|]. cbn [at_ time].
        split; auto. split; [reflexivity|]. unfold s'. cbn. unfold upd. rewrite Nat.eqb_refl. cbn.
        rewrite !Nat.eqb_refl, I. cbn. lia.
      + destruct (m_idle s S q e x I C) as (m & M & H1 & H2 & H3).
        exists m. split; [now right|]. split; auto. split; auto. eapply Nat.le_trans; [exact H3|apply Grow].
    - intros q x e U X. destruct (mplaces e q x U) as (? & ? & ? & ?).
      apply Dn, (m_waits s S); auto. apply Nd; auto. lia.
    - intros q. unfold s'. cbn. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [|apply S].
      apply Begins. rewrite <- End. apply S.
  Qed.

  Lemma moves_sane s s' : sane s -> moves s s' -> sane s'.
  Proof.
    intros S M. destruct M as [s r q x f t Lo Go A l F|s r q x t Lo Go A l F|s r x m z Lo Go A l R Hz P|
      s r x m z Lo Go A l R Hz P|s r x g m v Lo Go A l R Hv|s r times Lo Go End F|s r v G Th|s r].
    - destruct F as (Lt & _). eapply on_sane; eauto.
      + intros; apply sees_more.
      + discriminate.
      + intros l'. unfold sees. destruct (location_eq_dec l' l) as [->|].
        * eexists. split; [left; reflexivity|]. cbn. split; auto. lia.
        * destruct (m_views s S r l') as (m & M & H). exists m. auto.
      + intros m <-. cbn. split; auto. split; [apply sees_at|]. split; [discriminate|]. split; auto.
        split.
        * left. exists r, (mep s r), (mpos s r), q, x, f, (mown s r). cbn. repeat split; auto.
          -- apply mdone_on. auto.
          -- apply S.
        * intros m1 M1 L1. destruct (earlier_data s r q x f m1 S A M1 L1) as (T & Lv).
          rewrite L1 in T. split; [|exact Lv].
          eapply Nat.le_lt_trans; [exact T|exact Lt].
      + intros m m' <- <-. reflexivity.
      + intros q' x' f' [= <- <- <-]. eexists. split; [reflexivity|]. reflexivity.
      + discriminate.
      + eapply keeps_own; eauto. discriminate.
    - destruct F as (Lt & _). eapply on_sane; eauto.
      + intros; apply sees_more.
      + discriminate.
      + intros l'. unfold sees. destruct (location_eq_dec l' l) as [->|].
        * eexists. split; [left; reflexivity|]. cbn. split; auto. lia.
        * destruct (m_views s S r l') as (m & M & H). exists m. auto.
      + intros m <-. cbn. split; auto. split; [apply sees_at|]. split; auto. split; auto. split.
        * right. exists r, (mep s r), (mpos s r), q, x. cbn. repeat split; auto. apply mdone_on. auto.
        * intros m1 M1 L1. destruct (earlier_flag s r q x m1 S A M1 L1) as (T & Lv).
          rewrite L1 in T. split; [|exact Lv].
          eapply Nat.le_lt_trans; [exact T|exact Lt].
      + intros m m' <- <-. reflexivity.
      + discriminate.
      + intros q' x' [= <- <-]. eexists. split; [reflexivity|]. cbn. auto.
      + eapply keeps_own; eauto. discriminate.
    - pose proof R as (Mm & Lm & _).
      destruct (read_by_wait s r x m z S A R Hz) as (_ & W). apply W in P as (K & O).
      destruct K as (r1 & e1 & i1 & q1 & x1 & O1 & _ & _ & Dn & _ & Rel).
      rewrite O in O1. injection O1 as <- <- <-.
      eapply on_sane; eauto.
      + intros l'. unfold joined. pose proof (sees_more (view s r) l (time m) l'). lia.
      + intros y [= <-]. split; auto. exists m. repeat split; auto. intros l'. unfold joined. lia.
      + intros l'. subst l. rewrite <- Lm. destruct (joined_there s r m S Mm l') as (m' & M' & H).
        exists m'. auto.
      + intros m' [].
      + intros m' m'' [].
      + discriminate.
      + discriminate.
      + eapply keeps_own; eauto. discriminate.
    - pose proof R as (Mm & Lm & _). apply sane_views; auto.
      + intros q l'. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; auto.
        unfold joined. pose proof (sees_more (view s r) l (time m) l'). lia.
      + intros q l'. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [|apply S].
        subst l. rewrite <- Lm. now apply joined_there.
    - pose proof R as (Mm & Lm & _).
      destruct (read_by_take s r x g m S A R) as (_ & f & d & Af & Hd & Hv').
      rewrite Hv in Hv'. injection Hv' as ->. eapply on_sane; eauto.
      + intros; apply sees_more.
      + discriminate.
      + intros l'. subst l. rewrite <- Lm. destruct (sees_there s r m S Mm l') as (m' & M' & H).
        exists m'. auto.
      + intros m' [].
      + intros m' m'' [].
      + discriminate.
      + discriminate.
      + eapply Takes; eauto. apply S.
    - now apply begins_sane.
    - apply sane_views; auto.
      + intros q l. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; auto.
      + intros q l. unfold upd. destruct (Nat.eqb_spec q r) as [->|]; [apply Th|apply S].
    - apply sane_views; auto. intros q l. apply S.
  Qed.

  Lemma occurs_sane s : occurs s -> sane s.
  Proof. induction 1; [apply first_sane|eapply moves_sane; eauto]. Qed.

  (** ** What holds in every execution in this memory *)

  (** A take can find one message only, and that is the one that was put for it. *)
  Theorem reads_what_was_put s q x g m : occurs s ->
    act (mep s q) q (mpos s q) = Some (Take V D x g) -> readable s q (Cell q (mset s q) x) m ->
    origin m = Some (by_ (mep s q) q x, mep s q, st (mep s q) q x) /\
    exists f d, act (mep s q) (by_ (mep s q) q x) (st (mep s q) q x) = Some (Store V D q x f) /\
      has (by_ (mep s q) q x) (mep s q) (st (mep s q) q x) d /\ holds m = Data (f d).
  Proof. intros R. apply read_by_take. now apply occurs_sane. Qed.

  (** Whatever flag a wait reads, old or new, it ends by its own raise and by no other. *)
  Theorem ends_with_its_own s q x m z : occurs s ->
    act (mep s q) q (mpos s q) = Some (Wait V D x) -> readable s q (Flag q (mset s q) x) m ->
    holds m = Number z ->
    (passes z (mnumber s q) <->
     raised s m /\ origin m = Some (by_ (mep s q) q x, mep s q, ra (mep s q) q x)).
  Proof. intros R A Rd H. eapply read_by_wait; eauto. now apply occurs_sane. Qed.

  (** Whoever has stopped meanwhile: ranks hold what can be told without any interleaving. *)
  Theorem holds_the_same s r : occurs s -> has r (mep s r) (mpos s r) (mown s r).
  Proof. intros R. apply m_owns. now apply occurs_sane. Qed.

  (** So it is what they hold at the same place when ranks take turns in one memory. *)
  Theorem same_as_interleaved s t r : often sets used -> occurs s ->
    reached V D rows sets first start input operations junk t ->
    mep s r = ep V D t r -> mpos s r = pos V D t r -> mown s r = own V D t r.
  Proof.
    intros Of R R' E P. apply (has_one V D rows start input by_ st) with (1 := holds_the_same s r R).
    rewrite E, P.
    apply (owns V D rows sets first start input used by_ st ra wa ta).
    eapply reached_invariant; eauto.
  Qed.

  (** ** Somebody can go on *)

  Definition goes_on (s s' : memory) : Prop := moves s s' /\
    exists q, mep s' q <> mep s q \/ mpos s' q <> mpos s q.

  Lemma on_goes_on s r v new d : mpos (on s r v new d) r <> mpos s r.
  Proof. unfold on. cbn. rewrite upd_same. lia. Qed.

  (** The newest raise can be read. *)
  Lemma raise_can_be_read s q x : sane s -> act (mep s q) q (mpos s q) = Some (Wait V D x) ->
    used (mep s q) q x -> mdone s (by_ (mep s q) q x) (mep s q) (ra (mep s q) q x) ->
    exists m z, readable s q (Flag q (mset s q) x) m /\ holds m = Number z /\ passes z (mnumber s q).
  Proof.
    intros S A U R. destruct (matching (mep s q)) as (_ & _ & _ & _ & M).
    destruct (M q x U) as (_ & Ra & _).
    destruct (m_raised s S _ _ _ _ _ Ra R) as (m0 & M0 & L0 & O0 & R0 & H0).
    destruct (m_views s S q (Flag q (mset s q) x)) as (m1 & M1 & L1 & T1).
    assert (Rd1 : readable s q (Flag q (mset s q) x) m1) by (split; auto; split; auto; lia).
    assert (Number_ : exists z, holds m1 = Number z).
    { destruct (m_kinds s S m1 M1) as [K|[K|[K|K]]].
      - pose proof (f_equal holds K) as H. cbn [holds] in H. rewrite L1 in H. eauto.
      - destruct K as (? & ? & ? & ? & ? & ? & ? & _ & _ & L & _). congruence.
      - destruct K as (? & ? & ? & ? & ? & _ & _ & _ & _ & H & _). eauto.
      - destruct K as (? & ? & ? & _ & _ & _ & _ & H & _). eauto. }
    destruct Number_ as (z1 & H1).
    destruct (read_by_wait s q x m1 z1 S A Rd1 H1) as (Up & Iff).
    assert (Lv0 : level m0 = Z.of_nat (mep s q)) by (unfold level; now rewrite O0).
    assert (Rd0 : time m1 <= time m0 -> readable s q (Flag q (mset s q) x) m0).
    { intros T. split; auto. split; auto. lia. }
    destruct (Z.lt_ge_cases (level m1) (level m0)) as [Lt|Ge].
    - assert (Same : at_ m1 = at_ m0) by (rewrite L1, L0; reflexivity).
      pose proof (m_times s S m1 m0 M1 M0 Same Lt) as T.
      exists m0, (wrap (first + Z.of_nat (mep s q))). split; [apply Rd0; lia|]. split; auto.
      unfold mnumber. rewrite passes_wrapped by lia. lia.
    - exists m1, z1. split; auto. split; auto.
      assert (E : level m1 = Z.of_nat (mep s q)) by lia. clear Iff.
      assert (Hz : z1 = wrap (first + level m1)).
      { destruct (m_kinds s S m1 M1) as [K|[K|[K|K]]].
        - pose proof (f_equal holds K) as H. cbn [holds] in H. rewrite L1, H1 in H. injection H as ->.
          unfold level. rewrite K. cbn [origin at_]. now rewrite L1.
        - destruct K as (? & ? & ? & ? & ? & ? & ? & _ & _ & L & _). congruence.
        - destruct K as (? & ? & ? & ? & ? & O & _ & _ & _ & H & _). unfold level. rewrite O.
          rewrite H in H1. now injection H1 as <-.
        - destruct K as (? & ? & ? & O & _ & _ & _ & H & _). unfold level. rewrite O.
          rewrite H in H1. now injection H1 as <-. }
      rewrite Hz, E. unfold mnumber. rewrite passes_wrapped by lia. lia.
  Qed.

  (** As long as some rank has not done all operations and nobody has stopped, some rank can go on:
      a store finds a free time, and a load a message that lets it go on. *)
  Theorem never_stuck_in_memory s r : acyclic V D rows used by_ ra wa -> occurs s ->
    (forall q, stopped s q = false) -> mep s r < operations -> exists s', goes_on s s'.
  Proof.
    intros (lev & most & Levels) Oc Going. pose proof (occurs_sane s Oc) as S.
    assert (End : forall q, mep s q < operations -> mpos s q = len (mep s q) q -> exists s', goes_on s s').
    { intros q Lo E.
      pose (times := fun x => Datatypes.S (view s q (Flag q (Datatypes.S (mep s q) mod sets) x))).
      eexists. split.
      - apply (Begins_next s q times); auto. intros x I. split; [unfold times; lia|].
        intros m M L. destruct (earlier_refresh s q x m S E I M L) as (T & _). rewrite L in T.
        unfold times. lia.
      - exists q. left. cbn. rewrite upd_same. lia. }
    assert (G : forall n q, mep s q < operations -> mpos s q < len (mep s q) q ->
      mep s q * most + lev (mep s q) q (mpos s q) <= n -> exists s', goes_on s s').
    { induction n as [n IH] using lt_wf_ind. intros q Lo L Le.
      destruct (act (mep s q) q (mpos s q)) as [a|] eqn:A;
        [|exfalso; apply nth_error_None in A; unfold DeviceOrder.len in L; lia].
      destruct a as [p x f|p x|x|x g].
      - eexists. split; [|exists q; right; apply on_goes_on].
        apply (Stores s q p x f (Datatypes.S (view s q (Cell p (mset s q) x)))); auto.
        split; [lia|]. intros m M Lm. destruct (earlier_data s q p x f m S A M Lm) as (T & _).
        rewrite Lm in T. lia.
      - eexists. split; [|exists q; right; apply on_goes_on].
        apply (Raises s q p x (Datatypes.S (view s q (Flag p (mset s q) x)))); auto.
        split; [lia|]. intros m M Lm. destruct (earlier_flag s q p x m S A M Lm) as (T & _).
        rewrite Lm in T. lia.
      - destruct (matching (mep s q)) as (_ & _ & Mw & _). destruct (Mw _ _ _ A) as (U & P).
        set (b := by_ (mep s q) q x) in *. set (j := ra (mep s q) q x) in *.
        assert (C : mdone s b (mep s q) j \/
          mep s b < mep s q \/ mep s b = mep s q /\ mpos s b <= j) by (unfold mdone; lia).
        destruct C as [C|C].
        { destruct (raise_can_be_read s q x S A U C) as (m & z & Rd & Hz & Pz).
          eexists. split; [|exists q; right; apply on_goes_on]. now apply (Waits s q x m z). }
        destruct (Levels (mep s q)) as (_ & Up & Over).
        pose proof (Over q x U) as Below. fold b j in Below. rewrite <- P in Below.
        destruct (mplaces _ q x U) as (_ & _ & Lr & _). fold b j in Lr.
        pose proof (m_within s S b).
        destruct (Nat.eq_dec (mpos s b) (len (mep s b) b)) as [E|]; [apply (End b); auto; lia|].
        assert (Less : mep s b * most + lev (mep s b) b (mpos s b) <
                       mep s q * most + lev (mep s q) q (mpos s q)).
        { destruct (Levels (mep s b)) as (Most & _). pose proof (Most b (mpos s b) ltac:(lia)).
          destruct C as [C|(-> & C)]; [nia|].
          pose proof (level_mono sets some_set (lev (mep s q)) (len (mep s q)) b (Up b) _ _ C Lr). lia. }
        apply (IH (mep s b * most + lev (mep s b) b (mpos s b)) ltac:(lia) b); lia.
      - destruct (m_views s S q (Cell q (mset s q) x)) as (m & M & Lm & T).
        assert (Rd : readable s q (Cell q (mset s q) x) m) by (split; auto; split; auto; lia).
        destruct (read_by_take s q x g m S A Rd) as (_ & f & d & _ & _ & Hd).
        eexists. split; [|exists q; right; apply on_goes_on]. now apply (Takes_it s q x g m (f d)). }
    intros Lo. pose proof (m_within s S r).
    destruct (Nat.eq_dec (mpos s r) (len (mep s r) r)) as [E|]; [now apply (End r)|].
    apply (G _ r Lo ltac:(lia) (le_n _)).
  Qed.
End Memory.

(** Refreshed flags are never in the way of another program's, where every rank hears from every
    rank in every operation and there are two sets; that is [idle_before]. *)
Theorem heard_refreshes V D rows sets used by_ st ra wa ta ranks :
  matched V D rows used by_ st ra wa ta -> 2 <= sets ->
  (forall e, all_heard V D rows used by_ ra wa ranks e) ->
  (forall e q x, used e q x -> q < ranks /\ by_ e q x < ranks /\ by_ e q x <> q) ->
  forall e e' q x, used e' q x -> e < e' -> e mod sets = e' mod sets ->
  exists e1 i1, e <= e1 /\ i1 < len V D rows e1 q /\
    path V D rows used by_ ra wa (q, e1, i1) (by_ e' q x, e', st e' q x).
Proof.
  intros M Two Heard In e e' q x U Lt E. destruct (In e' q x U) as (Lq & Lp & Ne).
  pose proof (same_set_far sets ltac:(lia) e e' Lt E) as Far.
  destruct (Heard (S e) q (by_ e' q x) Lq Lp ltac:(congruence)) as (i & j & Li & Lj & P).
  exists (S e), i. split; [lia|]. split; auto.
  destruct (places V D rows used by_ st ra wa ta M e' q x U) as (Ls & _ & Lr & _).
  eapply t_trans; [exact P|]. apply t_step, In_order; auto; lia.
Qed.

(** So different programs may follow each other, if every slot that any of them fills is refreshed by
    its owner in every operation that does not fill it: in every execution, whoever stops, ranks hold
    what can be told without any interleaving. *)
Theorem programs_in_turn V D rows sets first start input used by_ st ra wa ta idle operations junk ranks :
  matched V D rows used by_ st ra wa ta -> 2 <= sets -> (Z.of_nat sets <= 2 ^ 31)%Z ->
  (forall e, all_heard V D rows used by_ ra wa ranks e) ->
  (forall e q x, used e q x -> q < ranks /\ by_ e q x < ranks /\ by_ e q x <> q) ->
  (forall e q x, idle e q x = true -> ~ used e q x) ->
  (forall e e' q x, used e q x -> used e' q x \/ idle e' q x = true) ->
  forall s r, occurs V D rows sets first start input idle operations junk s ->
  has V D rows start input by_ st r (mep V D s r) (mpos V D s r) (mown V D s r).
Proof.
  intros M Two Few Heard In Unused Each s r. apply (holds_the_same V D rows sets first start input
    used by_ st ra wa ta idle operations junk); auto; try lia.
  - apply (two_sets_enough V D rows sets used by_ st ra wa ta M ltac:(lia) ranks Heard Two).
    intros e q x U. destruct (In e q x U) as (? & ? & _). auto.
  - intros e e' q x _ U. now apply (heard_refreshes V D rows sets used by_ st ra wa ta ranks).
  - intros e q x U. destruct (le_lt_dec sets e) as [L|L]; [right|left; lia].
    exists (e - sets). split; [lia|]. split; [|split; [now apply Each with e|lia]].
    rewrite <- (Nat.mod_add (e - sets) 1 sets) by lia. f_equal. lia.
Qed.
