(** Certificates that actions can't all be over by a deadline: a tree of cases, each closed.

    Known of every action are a lower and an upper bound on its start, and which actions of a rank
    come before which others. A step makes more known, by a message that travels, by the length of
    what has to come before or after an action, or because actions have no room beside each other.
    A case distinction asks which of two actions of a rank comes first. A case is closed where a set
    of actions of one rank is longer than the time that is left for it, or where of two actions each
    would be before the other. Whoever searched for the tree is not trusted: [refutes_sound].

    What is common to all schedules of a pipeline comes in as [home], [travels], [surely] and [room];
    [PipelineOptimal.v] says what they are and that they hold. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics Tables PipelineRun.
Import ListNotations.
Open Scope N_scope.

(** [howmany] actions of one stage and kind, from that of number [first] on. *)
Record run := Run { of_stage : N; of_kind : kind; first : N; howmany : N }.

Inductive deduction :=
| Later (a b : action)              (** [b] waits for [a]'s message: not before it is there *)
| Sooner (a b : action)             (** and [a] is early enough for that *)
| Raise (x : action) (s : list run) (** [x] comes after all of them *)
| Lower (x : action) (s : list run) (** [x] comes before all of them *)
| Order (a b : action)              (** [b] is too late to come before [a] *)
| Last (s : list run) (x : action)  (** they have no room with [x] anywhere but behind *)
| First (s : list run) (x : action) (** nor anywhere but in front *)
| Room (f x y : action).            (** memory for [f] is from [x] or [y], and not from [x] *)

Inductive case :=
| Overload (s : list run)
| Crossed (a b : action)
| Then (s : deduction) (p : case)
| Either (a b : action) (p q : case).

Section Certificate.
  Variable deadline : N.
  Variable cost : action -> N.
  Variable home : action -> option N.                   (** the rank of an action, if there is such *)
  Variable travels : action -> action -> option N.      (** from one to the other: for how long *)
  Variable surely : action -> action -> bool.           (** over before the other starts, always *)
  Variable room : action -> action -> action -> bool.   (** before the first, one of the two is over *)

  (** * What is known *)

  Record state := State { lows : notes N; highs : notes N; orders : notes (notes unit) }.

  Definition low (st : state) (a : action) : N :=
    match noted (lows st) a with Some t => t | None => 0 end.

  Definition high (st : state) (a : action) : N :=
    match noted (highs st) a with Some t => t | None => deadline - cost a end.

  Definition ordered (st : state) (a b : action) : bool :=
    match noted (orders st) a with
    | Some l => match noted l b with Some _ => true | None => false end
    | None => false
    end.

  Definition first_of (st : state) (a b : action) : bool := surely a b || ordered st a b.

  Definition at_least_from (st : state) (a : action) (t : N) : state :=
    State (note (lows st) a (N.max t (low st a))) (highs st) (orders st).

  Definition at_most_from (st : state) (a : action) (t : N) : state :=
    State (lows st) (note (highs st) a (N.min t (high st a))) (orders st).

  Definition comes_first (st : state) (a b : action) : state :=
    let l := match noted (orders st) a with Some l => l | None => blank end in
    State (lows st) (highs st) (note (orders st) a (note l b tt)).

  (** * Sets of actions of one rank *)

  Definition members (r : run) : list action :=
    map (fun i => Action (of_stage r) (of_kind r) (first r + i)) (range (howmany r)).

  Definition same_home (h : N) (a : action) : bool :=
    match home a with Some h' => h' =? h | None => false end.

  (** No member twice: runs in the order of their stages, then kinds, then numbers. *)
  Definition code (k : kind) : N := match k with F => 0 | I => 1 | W => 2 | B => 3 end.

  Definition precedes (a b : action) : bool :=
    (stage a <? stage b) ||
    ((stage a =? stage b) &&
     ((code (does a) <? code (does b)) ||
      ((code (does a) =? code (does b)) && (microbatch a <? microbatch b)))).

  Fixpoint ascends (a : action) (l : list action) : bool :=
    match l with [] => true | b :: l => precedes a b && ascends b l end.

  (** The actions, if they are different ones of one rank. *)
  Definition set_of (s : list run) : list action :=
    let l := flat_map members s in
    match l with
    | [] => []
    | a :: rest =>
        match home a with
        | Some h => if ascends a rest && forallb (same_home h) rest then l else []
        | None => []
        end
    end.

  Definition work (l : list action) : N := fold_right (fun a sum => cost a + sum) 0 l.

  Fixpoint earliest_of (st : state) (l : list action) : N :=
    match l with
    | [] => 0
    | [a] => low st a
    | a :: l => N.min (low st a) (earliest_of st l)
    end.

  Definition latest_end (st : state) (l : list action) : N :=
    fold_right (fun a most => N.max (high st a + cost a) most) 0 l.

  (** * Checking *)

  (** [x] is beside them on their rank. *)
  Definition beside (x : action) (l : list action) : bool :=
    match l with
    | [] => false
    | a :: _ => match home a with
                | Some h => same_home h x && forallb (fun b => negb (if action_eq_dec b x then true else false)) l
                | None => false
                end
    end.

  Definition take_step (st : state) (s : deduction) : option state :=
    match s with
    | Later a b =>
        match travels a b with
        | Some lag => Some (at_least_from st b (low st a + cost a + lag))
        | None => None
        end
    | Sooner a b =>
        match travels a b with
        | Some lag => Some (at_most_from st a (high st b - (cost a + lag)))
        | None => None
        end
    | Raise x s =>
        let l := set_of s in
        if forallb (fun b => first_of st b x) l
        then Some (at_least_from st x (earliest_of st l + work l)) else None
    | Lower x s =>
        let l := set_of s in
        if beside x l && forallb (fun b => first_of st x b) l
        then Some (at_most_from st x (latest_end st l - (work l + cost x))) else None
    | Order a b =>
        if beside b (set_of [Run (stage a) (does a) (microbatch a) 1]) && (high st a <? low st b + cost b)
        then Some (comes_first st a b) else None
    | Last s x =>
        let l := set_of s in
        if beside x l && (latest_end st l <? N.min (low st x) (earliest_of st l) + work l + cost x)
        then Some (fold_left (fun st b => comes_first st b x) l st) else None
    | First s x =>
        let l := set_of s in
        if beside x l && (N.max (high st x + cost x) (latest_end st l) <? earliest_of st l + work l + cost x)
        then Some (fold_left (fun st b => comes_first st x b) l st) else None
    | Room f x y =>
        if (room f x y || room f y x) && first_of st f x && (1 <=? cost f)
        then Some (comes_first st y f) else None
    end.

  Fixpoint refutes (st : state) (p : case) : bool :=
    match p with
    | Overload s => let l := set_of s in latest_end st l <? earliest_of st l + work l
    | Crossed a b => first_of st a b && first_of st b a && (1 <=? cost a)
    | Then s p => match take_step st s with Some st => refutes st p | None => false end
    | Either a b p q =>
        beside b (set_of [Run (stage a) (does a) (microbatch a) 1]) &&
        refutes (comes_first st a b) p && refutes (comes_first st b a) q
    end.

  Definition nothing_known : state := State blank blank blank.

  (** * Soundness *)

  Variable start : action -> N.

  Definition before (a b : action) : Prop := start a + cost a <= start b.

  Hypothesis in_time : forall a h, home a = Some h -> start a + cost a <= deadline.
  Hypothesis one_at_a_time : forall a b h, home a = Some h -> home b = Some h -> a <> b ->
    before a b \/ before b a.
  Hypothesis travels_holds : forall a b lag, travels a b = Some lag ->
    home a <> None /\ home b <> None /\ start a + cost a + lag <= start b.
  Hypothesis surely_holds : forall a b, surely a b = true -> home a <> None /\ home b <> None /\ before a b.
  Hypothesis room_holds : forall f x y, room f x y = true ->
    home f <> None /\ home x <> None /\ home y <> None /\ (before x f \/ before y f).

  Record holds (st : state) : Prop := {
    low_holds : forall a t, noted (lows st) a = Some t -> t <= start a;
    high_holds : forall a t, noted (highs st) a = Some t -> start a <= t;
    order_holds : forall a b, ordered st a b = true -> before a b }.

  Lemma low_ok st a : holds st -> low st a <= start a.
  Proof.
    intros H. unfold low. destruct (noted (lows st) a) eqn:E; [|lia]. now apply (low_holds st H).
  Qed.

  Lemma high_ok st a : holds st -> home a <> None -> start a <= high st a.
  Proof.
    intros H Ha. unfold high. destruct (noted (highs st) a) eqn:E; [now apply (high_holds st H)|].
    destruct (home a) as [h|] eqn:Hh; [|congruence]. pose proof (in_time a h Hh). lia.
  Qed.

  Lemma first_of_ok st a b : holds st -> first_of st a b = true -> before a b.
  Proof.
    intros H E. apply orb_true_iff in E as [E|E]; [now apply surely_holds|now apply (order_holds st H)].
  Qed.

  Lemma at_least_ok st a t : holds st -> t <= start a -> holds (at_least_from st a t).
  Proof.
    intros H L. split; simpl; try apply H. intros b t'. rewrite noted_note.
    destruct (action_eq_dec b a) as [->|]; [|apply H]. intros [= <-]. pose proof (low_ok st a H). lia.
  Qed.

  Lemma at_most_ok st a t : holds st -> home a <> None -> start a <= t -> holds (at_most_from st a t).
  Proof.
    intros H Ha L. split; simpl; try apply H. intros b t'. rewrite noted_note.
    destruct (action_eq_dec b a) as [->|]; [|apply H]. intros [= <-]. pose proof (high_ok st a H Ha). lia.
  Qed.

  Lemma comes_first_ok st a b : holds st -> before a b -> holds (comes_first st a b).
  Proof.
    intros H L. split; simpl; try apply H. intros x y. unfold ordered. simpl. rewrite noted_note.
    destruct (action_eq_dec x a) as [->|]; [|apply H]. rewrite noted_note.
    destruct (action_eq_dec y b) as [->|]; auto. intros E. apply (order_holds st H). unfold ordered.
    destruct (noted (orders st) a); [exact E|]. now rewrite noted_blank in E.
  Qed.

  Lemma all_first_ok (edge : action -> action * action) l : forall st, holds st ->
    (forall b, In b l -> before (fst (edge b)) (snd (edge b))) ->
    holds (fold_left (fun st b => comes_first st (fst (edge b)) (snd (edge b))) l st).
  Proof.
    induction l as [|b l IH]; simpl; auto. intros st H L. apply IH; auto. apply comes_first_ok; auto.
  Qed.

  (** ** Sets *)

  Definition apart (l : list action) : Prop :=
    NoDup l /\ exists h, forall a, In a l -> home a = Some h.

  Lemma precedes_trans a b c : precedes a b = true -> precedes b c = true -> precedes a c = true.
  Proof.
    unfold precedes. rewrite !orb_true_iff, !andb_true_iff, !orb_true_iff, !andb_true_iff,
      !N.ltb_lt, !N.eqb_eq. lia.
  Qed.

  Lemma precedes_not a : precedes a a = false.
  Proof. unfold precedes. now rewrite !N.ltb_irrefl, !N.eqb_refl. Qed.

  Lemma ascends_all l : forall a b, ascends a l = true -> In b l -> precedes a b = true.
  Proof.
    induction l as [|c l IH]; simpl; [easy|]. intros a b H Hb. apply andb_true_iff in H as [H1 H2].
    destruct Hb as [->|Hb]; auto. apply (precedes_trans a c); auto.
  Qed.

  Lemma ascends_nodup l : forall a, ascends a l = true -> NoDup (a :: l).
  Proof.
    induction l as [|b l IH]; intros a H; constructor; try easy; [constructor| |].
    - intros Ha. pose proof (ascends_all (b :: l) a a H Ha) as E. now rewrite precedes_not in E.
    - apply IH. simpl in H. now apply andb_true_iff in H.
  Qed.

  Lemma same_home_iff h a : same_home h a = true <-> home a = Some h.
  Proof.
    unfold same_home. destruct (home a); [rewrite N.eqb_eq|]; split; congruence.
  Qed.

  Lemma set_apart s : apart (set_of s).
  Proof.
    unfold set_of. assert (Z : apart []) by (split; [constructor|exists 0; easy]).
    destruct (flat_map members s) as [|a l]; auto. destruct (home a) as [h|] eqn:Ha; auto.
    destruct (ascends a l && forallb (same_home h) l) eqn:E; auto.
    apply andb_true_iff in E as [E1 E2]. split; [now apply ascends_nodup|]. exists h.
    rewrite forallb_forall in E2. intros b [<-|Hb]; auto. now apply same_home_iff, E2.
  Qed.

  Lemma apart_home l a : apart l -> In a l -> home a <> None.
  Proof. intros (_ & h & H) Ha. rewrite (H a Ha). congruence. Qed.

  Lemma apart_sub l l' : apart l -> NoDup l' -> incl l' l -> apart l'.
  Proof. intros (_ & h & H) N Sub. split; auto. exists h. auto. Qed.

  Lemma work_filter f l : work l = work (filter f l) + work (filter (fun a => negb (f a)) l).
  Proof. induction l as [|a l IH]; simpl; auto. destruct (f a); simpl; lia. Qed.

  (** Actions of one rank that start at [from] or later and are over by [until]. *)
  Lemma work_fits n : forall l from until, (length l <= n)%nat -> apart l -> from <= until ->
    (forall a, In a l -> from <= start a /\ start a + cost a <= until) -> from + work l <= until.
  Proof.
    induction n as [|n IH]; intros [|a l] from until Len A Le H; simpl in *; try lia.
    destruct (H a (or_introl eq_refl)) as [Ha1 Ha2].
    set (early := fun b => start b + cost b <=? start a).
    destruct A as (Once & h & Hh). apply NoDup_cons_iff in Once as [Out Rest].
    assert (Al : apart l).
    { split; [exact Rest|]. exists h. intros b Hb. apply Hh. now right. }
    assert (E : from + work (filter early l) <= start a).
    { apply IH; auto.
      - pose proof (filter_length_le early l). lia.
      - apply (apart_sub l); auto using NoDup_filter. intros b Hb. now apply filter_In in Hb.
      - intros b Hb. apply filter_In in Hb as [Hb E]. apply N.leb_le in E. split; auto.
        now apply H; right. }
    assert (L : start a + cost a + work (filter (fun b => negb (early b)) l) <= until).
    { apply IH; auto.
      - pose proof (filter_length_le (fun b => negb (early b)) l). lia.
      - apply (apart_sub l); auto using NoDup_filter. intros b Hb. now apply filter_In in Hb.
      - intros b Hb. apply filter_In in Hb as [Hb Z]. unfold early in Z.
        apply negb_true_iff, N.leb_gt in Z. split; [|now apply H; right].
        assert (a <> b) by (intros ->; contradiction).
        destruct (one_at_a_time a b h) as [C|C]; auto; [apply Hh; now left|apply Hh; now right|]. unfold before in C. lia. }
    rewrite (work_filter early l). lia.
  Qed.

  Lemma work_within l from until : apart l -> from <= until ->
    (forall a, In a l -> from <= start a /\ start a + cost a <= until) -> from + work l <= until.
  Proof. apply (work_fits (length l)). lia. Qed.

  Lemma earliest_ok st l : holds st -> forall a, In a l -> earliest_of st l <= start a.
  Proof.
    intros H. induction l as [|b l IH]; [easy|]. intros a Ha.
    assert (E : earliest_of st (b :: l) <= low st b /\ (l <> [] -> earliest_of st (b :: l) <= earliest_of st l)).
    { simpl. destruct l; [split; [lia|congruence]|]. split; [|intros _]; lia. }
    destruct E as [E1 E2]. destruct Ha as [<-|Ha].
    - pose proof (low_ok st b H). lia.
    - assert (l <> []) by (intros ->; easy). specialize (IH a Ha). specialize (E2 ltac:(auto)). lia.
  Qed.

  Lemma latest_ok st l : holds st -> apart l -> forall a, In a l -> start a + cost a <= latest_end st l.
  Proof.
    intros H A a Ha. assert (G : high st a + cost a <= latest_end st l).
    { clear A. induction l as [|b l IH]; simpl in *; [easy|]. destruct Ha as [<-|Ha]; [lia|].
      specialize (IH Ha). lia. }
    pose proof (high_ok st a H (apart_home l a A Ha)). lia.
  Qed.

  Lemma earliest_latest st l : holds st -> apart l -> l <> [] -> earliest_of st l <= latest_end st l.
  Proof.
    intros H A Ne. destruct l as [|a l]; [congruence|].
    pose proof (earliest_ok st (a :: l) H a (or_introl eq_refl)).
    pose proof (latest_ok st (a :: l) H A a (or_introl eq_refl)). lia.
  Qed.

  Lemma beside_ok x l : apart l -> beside x l = true ->
    l <> [] /\ apart (x :: l) /\ forall b, In b l -> before b x \/ before x b.
  Proof.
    intros A. destruct l as [|a l]; [easy|]. unfold beside. destruct (home a) as [h|] eqn:Ha; [|easy].
    intros E. apply andb_true_iff in E as [E1 E2]. apply same_home_iff in E1. rewrite forallb_forall in E2.
    assert (Ne : forall b, In b (a :: l) -> b <> x).
    { intros b Hb. specialize (E2 b Hb). now destruct (action_eq_dec b x). }
    assert (Hh : forall b, In b (a :: l) -> home b = Some h).
    { destruct A as (_ & h' & H). intros b Hb. rewrite (H b Hb), <- (H a (or_introl eq_refl)). auto. }
    split; [discriminate|]. split; [split|].
    - constructor; [|apply A]. intros Hx. now apply (Ne x).
    - exists h. intros b [<-|Hb]; auto.
    - intros b Hb. apply (one_at_a_time b x h); auto.
  Qed.

  Lemma one_ok a b : beside b (set_of [Run (stage a) (does a) (microbatch a) 1]) = true ->
    before a b \/ before b a.
  Proof.
    intros E. set (s := [Run (stage a) (does a) (microbatch a) 1]) in *.
    destruct (beside_ok b _ (set_apart s) E) as (Ne & _ & H). apply H.
    assert (M : flat_map members s = [a]).
    { unfold s, members. simpl. rewrite N.add_0_r. now destruct a. }
    unfold set_of in *. rewrite M in *. destruct (home a); [|congruence].
    simpl in *. now left.
  Qed.

  Lemma one_home a b : beside b (set_of [Run (stage a) (does a) (microbatch a) 1]) = true ->
    home a <> None.
  Proof.
    set (s := [Run (stage a) (does a) (microbatch a) 1]). intros E.
    assert (M : flat_map members s = [a]).
    { unfold s, members. simpl. rewrite N.add_0_r. now destruct a. }
    unfold set_of in E. rewrite M in E. destruct (home a); [congruence|discriminate E].
  Qed.

  Lemma some_or_none (l : list action) : l = [] \/ exists a, In a l.
  Proof. destruct l as [|a l]; [now left|right; exists a; now left]. Qed.

  (** ** Steps and trees *)

  Lemma take_step_ok st s st' : holds st -> take_step st s = Some st' -> holds st'.
  Proof.
    intros H. destruct s as [a b|a b|x s|x s|a b|s x|s x|f x y]; simpl.
    - destruct (travels a b) as [lag|] eqn:E; [|discriminate]. intros [= <-].
      apply travels_holds in E as (_ & _ & E). apply at_least_ok; auto. pose proof (low_ok st a H). lia.
    - destruct (travels a b) as [lag|] eqn:E; [|discriminate]. intros [= <-].
      apply travels_holds in E as (Ha & Hb & E). apply at_most_ok; auto. pose proof (high_ok st b H Hb). lia.
    - pose proof (set_apart s) as A. destruct (forallb _ _) eqn:E; [|discriminate]. intros [= <-].
      rewrite forallb_forall in E. apply at_least_ok; auto. destruct (some_or_none (set_of s)) as [Z|(c & Hc)].
      + rewrite Z. simpl. lia.
      + apply work_within; auto.
        * pose proof (earliest_ok st (set_of s) H c Hc). pose proof (first_of_ok st c x H (E c Hc)) as Y.
          unfold before in Y. lia.
        * intros b Hb. split; [now apply earliest_ok|]. apply (first_of_ok st b x); auto.
    - pose proof (set_apart s) as A. destruct (_ && _) eqn:E; [|discriminate]. intros [= <-].
      apply andb_true_iff in E as [E1 E2]. rewrite forallb_forall in E2.
      destruct (beside_ok x _ A E1) as (Ne & Ax & _).
      assert (Bx : forall b, In b (set_of s) -> before x b) by (intros; apply (first_of_ok st); auto).
      assert (L : start x + cost x + work (set_of s) <= latest_end st (set_of s)).
      { apply work_within; auto.
        - destruct (some_or_none (set_of s)) as [Z|(c & Hc)]; [congruence|].
          pose proof (Bx c Hc). pose proof (latest_ok st _ H A c Hc). unfold before in *. lia.
        - intros b Hb. split; [now apply Bx|now apply latest_ok]. }
      apply at_most_ok; auto; [|lia]. apply (apart_home (x :: set_of s)); auto. now left.
    - destruct (_ && _) eqn:E; [|discriminate]. intros [= <-]. apply andb_true_iff in E as [E1 E2].
      apply comes_first_ok; auto. apply N.ltb_lt in E2. destruct (one_ok a b E1) as [|C]; auto. exfalso.
      pose proof (one_home a b E1). pose proof (high_ok st a H). pose proof (low_ok st b H).
      unfold before in C. intuition lia.
    - pose proof (set_apart s) as A. destruct (_ && _) eqn:E; [|discriminate]. intros [= <-].
      apply andb_true_iff in E as [E1 E2]. apply N.ltb_lt in E2.
      destruct (beside_ok x _ A E1) as (Ne & Ax & Side).
      apply (all_first_ok (fun b => (b, x))); auto. intros b Hb. destruct (Side b Hb) as [|C]; auto.
      exfalso. (* then the last of all is one of the set *)
      assert (X : N.min (low st x) (earliest_of st (set_of s)) + work (x :: set_of s)
                  <= latest_end st (set_of s)); [|simpl in X; lia].
      assert (Lb : start b + cost b <= latest_end st (set_of s)) by (apply latest_ok; auto).
      pose proof (low_ok st x H). pose proof (earliest_latest st _ H A Ne). unfold before in C.
      apply work_within; auto; [lia|]. intros a [<-|Ha]; [lia|].
      pose proof (earliest_ok st _ H a Ha). pose proof (latest_ok st _ H A a Ha). lia.
    - pose proof (set_apart s) as A. destruct (_ && _) eqn:E; [|discriminate]. intros [= <-].
      apply andb_true_iff in E as [E1 E2]. apply N.ltb_lt in E2.
      destruct (beside_ok x _ A E1) as (Ne & Ax & Side).
      apply (all_first_ok (fun b => (x, b))); auto. intros b Hb. destruct (Side b Hb) as [C|]; auto.
      exfalso.
      assert (X : earliest_of st (set_of s) + work (x :: set_of s)
                  <= N.max (high st x + cost x) (latest_end st (set_of s))); [|simpl in X; lia].
      pose proof (earliest_ok st _ H b Hb). pose proof (earliest_latest st _ H A Ne).
      pose proof (high_ok st x H (apart_home _ x Ax (or_introl eq_refl))). unfold before in C.
      apply work_within; auto; [lia|]. intros a [<-|Ha]; [lia|].
      pose proof (earliest_ok st _ H a Ha). pose proof (latest_ok st _ H A a Ha). lia.
    - destruct (_ && _) eqn:E; [|discriminate]. intros [= <-].
      rewrite !andb_true_iff, orb_true_iff, N.leb_le in E. destruct E as [[E1 E2] E3].
      apply comes_first_ok; auto. apply (first_of_ok st) in E2; auto.
      assert (Two : before x f \/ before y f).
      { destruct E1 as [E1|E1]; apply room_holds in E1; tauto. }
      destruct Two as [C|]; auto. unfold before in *. lia.
  Qed.

  Theorem refutes_holds p : forall st, holds st -> refutes st p = true -> False.
  Proof.
    induction p as [s|a b|s p IH|a b p IHp q IHq]; simpl; intros st H R.
    - pose proof (set_apart s) as A. apply N.ltb_lt in R.
      assert (Ne : set_of s <> []) by (intros Z; rewrite Z in R; simpl in R; lia).
      pose proof (work_within (set_of s) (earliest_of st (set_of s)) (latest_end st (set_of s)) A) as X.
      pose proof (earliest_latest st _ H A Ne).
      assert (earliest_of st (set_of s) + work (set_of s) <= latest_end st (set_of s)); [|lia].
      apply X; auto. intros a Ha. split; [now apply earliest_ok|now apply latest_ok].
    - rewrite !andb_true_iff, N.leb_le in R. destruct R as [[R1 R2] R3].
      apply (first_of_ok st) in R1, R2; auto. unfold before in *. lia.
    - destruct (take_step st s) as [st'|] eqn:E; [|discriminate].
      apply (IH st'); auto. now apply (take_step_ok st s).
    - rewrite !andb_true_iff in R. destruct R as [[E Rp] Rq].
      destruct (one_ok a b E); [apply (IHp (comes_first st a b))|apply (IHq (comes_first st b a))];
        auto using comes_first_ok.
  Qed.

  (** There is no such [start]. *)
  Theorem refutes_sound p : refutes nothing_known p = true -> False.
  Proof.
    apply refutes_holds. split; simpl.
    - intros a t. now rewrite noted_blank.
    - intros a t. now rewrite noted_blank.
    - intros a b. unfold ordered. simpl. now rewrite noted_blank.
  Qed.
End Certificate.
