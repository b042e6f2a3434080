(** A question as a formula: is there a right schedule for these arrivals in so few rounds?

    The formula says what happens in each round and what every (rank, chunk) holds before it: whose
    contributions, and whether one of them is counted twice. A right schedule is a solution
    ([schedule_solves]), so where the formula is refuted there is none. Nothing is assumed of who
    owns what, of trees, or of symmetry. proofs/certificates/formula.py writes the same formula. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Refutation.
Import ListNotations.
Open Scope N_scope.

Inductive variable :=
| Sends (s d t : N)        (** in round t, rank s sends to rank d *)
| Picks (s c t : N)        (** in round t, rank s sends chunk c *)
| Moves (s d c t : N)      (** in round t, rank s sends chunk c to rank d *)
| Overwrites (d c t : N)   (** in round t, rank d receives a copy of chunk c *)
| Holds (i r c t : N)      (** before round t, rank r holds i's contribution to chunk c *)
| Spoilt (r c t : N).      (** before round t, rank r holds some contribution to c twice *)

Notation yes v := (true, v).
Notation no v := (false, v).

Record question := Question {
  of_ranks : N;
  of_chunks : N;
  arrival : list N;        (** for each rank the first round in which it can take part *)
  in_rounds : N;           (** rounds in all *)
  in_pairs : bool }.       (** matching ports; else duplex *)

Section Clauses.
  Variable q : question.
  Let n := of_ranks q.
  Let rounds := range (in_rounds q).
  Let all_ranks := range n.
  Let all_chunks := range (of_chunks q).

  Definition arrives (r : N) : N := nth (N.to_nat r) (arrival q) 0.

  Definition together (t s d : N) : bool :=
    negb (s =? d) && (arrives s <=? t) && (arrives d <=? t).

  (** One send and one receive per rank and round; who is not there takes no part. *)
  Definition ports_clauses (t s d : N) : list (list (bool * variable)) :=
    (if together t s d then [] else [[no (Sends s d t)]]) ++
    flat_map (fun e =>
      (if d <? e then [[no (Sends s d t); no (Sends s e t)];
                       [no (Sends d s t); no (Sends e s t)]] else []) ++
      (if in_pairs q && negb (e =? s) then [[no (Sends s d t); no (Sends d e t)]] else []))
      all_ranks.

  (** A rank sends one chunk in a round. *)
  Definition picks_clauses (t s c : N) : list (list (bool * variable)) :=
    flat_map (fun e => if c <? e then [[no (Picks s c t); no (Picks s e t)]] else []) all_chunks.

  Definition moves_clauses (t c s d : N) : list (list (bool * variable)) :=
    [[no (Moves s d c t); yes (Sends s d t)];
     [no (Moves s d c t); yes (Picks s c t)];
     [yes (Moves s d c t); no (Sends s d t); no (Picks s c t)]].

  (** What rank d holds of chunk c after round t. *)
  Definition effect_clauses (t c d : N) : list (list (bool * variable)) :=
    let received := map (fun s => yes (Moves s d c t)) all_ranks in
    [no (Overwrites d c t) :: received;
     [yes (Overwrites d c t); no (Spoilt d c t); yes (Spoilt d c (t + 1))]] ++
    map (fun s => [no (Moves s d c t); no (Spoilt s c t); yes (Spoilt d c (t + 1))]) all_ranks ++
    flat_map (fun i =>
      [[yes (Overwrites d c t); no (Holds i d c t); yes (Holds i d c (t + 1))];
       no (Holds i d c (t + 1)) :: yes (Holds i d c t) :: received] ++
      flat_map (fun s =>
        [[no (Moves s d c t); no (Holds i s c t); yes (Holds i d c (t + 1))];
         [no (Holds i d c (t + 1)); no (Moves s d c t); yes (Holds i s c t); yes (Holds i d c t)];
         [no (Holds i d c (t + 1)); no (Moves s d c t); yes (Holds i s c t); no (Overwrites d c t)];
         [no (Moves s d c t); yes (Overwrites d c t); no (Holds i d c t); no (Holds i s c t);
          yes (Spoilt d c (t + 1))]])
        all_ranks)
      all_ranks.

  (** At first a rank holds its own contribution, at the end everybody's, none of them twice. *)
  Definition ends_clauses (c r : N) : list (list (bool * variable)) :=
    flat_map (fun i => [[(i =? r, Holds i r c 0)]; [yes (Holds i r c (in_rounds q))]]) all_ranks ++
    [[no (Spoilt r c (in_rounds q))]].

  Definition clauses_of : list (list (bool * variable)) :=
    flat_map (fun t => flat_map (fun s => flat_map (ports_clauses t s) all_ranks) all_ranks) rounds ++
    flat_map (fun t => flat_map (fun s => flat_map (picks_clauses t s) all_chunks) all_ranks) rounds ++
    flat_map (fun t => flat_map (fun c =>
      flat_map (fun s => flat_map (moves_clauses t c s) all_ranks) all_ranks) all_chunks) rounds ++
    flat_map (fun t => flat_map (fun c => flat_map (effect_clauses t c) all_ranks) all_chunks) rounds ++
    flat_map (fun c => flat_map (ends_clauses c) all_ranks) all_chunks.

  (** * Right schedules are solutions *)

  (** [rs]: all rounds of a right schedule in time, idle rounds added at the end. *)
  Variable rs : list round.
  Hypothesis in_time : length rs = N.to_nat (in_rounds q).
  Hypothesis formed : forall rd t, In rd rs -> In t rd -> transfer_well_formed n (of_chunks q) t.
  Hypothesis respects_ports :
    forall rd, In rd rs -> fits_ports (if in_pairs q then Matching else Duplex) rd.
  Hypothesis absent_silent : forall t r, t < arrives r -> silent r (nth (N.to_nat t) rs []).
  Hypothesis right : all_reduce n (of_chunks q) rs.

  Definition round_at (t : N) : round := nth (N.to_nat t) rs [].

  (** What every (rank, chunk) holds before round t. *)
  Definition held (t : N) : state (list source) := collect own_data (firstn (N.to_nat t) rs).

  Definition times (l : list source) (i : N) : nat := count_occ source_eq_dec l (Rank i).

  Definition value_of (v : variable) : bool :=
    match v with
    | Sends s d t => existsb (fun x => (src x =? s) && (dst x =? d)) (round_at t)
    | Picks s c t => existsb (fun x => (src x =? s) && (chunk x =? c)) (round_at t)
    | Moves s d c t =>
        existsb (fun x => (src x =? s) && (dst x =? d) && (chunk x =? c)) (round_at t)
    | Overwrites d c t =>
        existsb (fun x => (dst x =? d) && (chunk x =? c) && same_operation (op x) Copy) (round_at t)
    | Holds i r c t => (1 <=? times (held t r c) i)%nat
    | Spoilt r c t => existsb (fun i => 2 <=? times (held t r c) i)%nat (range n)
    end.

  (** Every literal is false. *)
  Definition falsified (c : list (bool * variable)) : Prop :=
    Forall (fun l => value_of (snd l) = negb (fst l)) c.

  (** ** Rounds *)

  Lemma round_fits t :
    (forall x, In x (round_at t) -> transfer_well_formed n (of_chunks q) x) /\
    NoDup (map src (round_at t)) /\ NoDup (map dst (round_at t)) /\
    (in_pairs q = true -> disjoint_pairs (round_at t)).
  Proof.
    unfold round_at. destruct (le_lt_dec (length rs) (N.to_nat t)).
    - rewrite nth_overflow by auto. repeat split; simpl; try constructor; try easy.
    - assert (Hin : In (nth (N.to_nat t) rs []) rs) by now apply nth_In.
      destruct (respects_ports _ Hin) as (S & R & P).
      split; [intros x Hx; now apply (formed _ _ Hin)|].
      split; [|split].
      + apply (NoDup_count_occ N.eq_dec). intros x. specialize (S x). now destruct (in_pairs q).
      + apply (NoDup_count_occ N.eq_dec). intros x. specialize (R x). now destruct (in_pairs q).
      + intros E. rewrite E in P. auto.
  Qed.

  Lemma only_one {A} (f : transfer -> A) l x y : NoDup (map f l) -> In x l -> In y l -> f x = f y -> x = y.
  Proof.
    induction l as [|a l IH]; simpl; [easy|]. intros Once Hx Hy E. inversion Once; subst.
    destruct Hx as [->|Hx], Hy as [->|Hy]; auto; exfalso;
      match goal with H : ~ In _ _ |- _ => apply H end; [rewrite E|rewrite <- E]; now apply in_map.
  Qed.

  Lemma held_step t : t < in_rounds q ->
    held (t + 1) = run_round (@app source) (held t) (round_at t).
  Proof.
    intros H. unfold held, round_at, collect.
    replace (N.to_nat (t + 1)) with (S (N.to_nat t)) by lia.
    assert (L : (N.to_nat t < length rs)%nat) by lia.
    assert (E : forall m (l : list round), (m < length l)%nat ->
      firstn (S m) l = firstn m l ++ [nth m l []]).
    { induction m; intros [|a l]; simpl; try lia; auto. intros L'. f_equal. apply IHm. lia. }
    rewrite (E _ _ L), run_app. reflexivity.
  Qed.

  Ltac bools :=
    repeat match goal with
    | H : _ && _ = true |- _ => apply andb_true_iff in H as [? ?]
    | H : (_ =? _) = true |- _ => apply N.eqb_eq in H
    | H : existsb _ _ = true |- _ => apply existsb_exists in H as (? & ? & ?)
    | H : value_of _ = true |- _ => cbn [value_of] in H
    end.

  Lemma moves_of x t : In x (round_at t) -> value_of (Moves (src x) (dst x) (chunk x) t) = true.
  Proof. intros H. simpl. apply existsb_exists. exists x. now rewrite !N.eqb_refl. Qed.

  (** Either nothing comes in, or one transfer decides. *)
  Lemma step_cases t c d : t < in_rounds q ->
    ((forall s, value_of (Moves s d c t) = false) /\ value_of (Overwrites d c t) = false /\
     held (t + 1) d c = held t d c) \/
    (exists s, s < n /\ value_of (Moves s d c t) = true /\
       (forall s', value_of (Moves s' d c t) = true -> s' = s) /\
       (value_of (Overwrites d c t) = true /\ held (t + 1) d c = held t s c \/
        value_of (Overwrites d c t) = false /\ held (t + 1) d c = held t d c ++ held t s c)).
  Proof.
    intros Ht. rewrite held_step by auto. destruct (round_fits t) as (W & _ & D & _).
    destruct (existsb (fun x => (dst x =? d) && (chunk x =? c)) (round_at t)) eqn:E.
    - right. bools. subst. exists (src x). split; [now apply W|].
      split; [now apply moves_of|]. split.
      + intros s' H'. bools. subst. f_equal. now apply (only_one dst (round_at t)).
      + rewrite run_round_receives by auto. destruct (op x) eqn:O; [left|right]; split; auto.
        * simpl. apply existsb_exists. exists x. now rewrite O, !N.eqb_refl.
        * apply not_true_is_false. intros H'. bools. 
          assert (x0 = x) by now apply (only_one dst (round_at t)). subst. now rewrite O in *.
    - left. assert (No : forall x, In x (round_at t) -> dst x = d -> chunk x = c -> False).
      { intros x Hx Hd Hc. apply not_true_iff_false in E. apply E, existsb_exists. exists x.
        now rewrite Hd, Hc, !N.eqb_refl. }
      repeat split.
      + intros s. apply not_true_is_false. intros H. bools. eauto.
      + apply not_true_is_false. intros H. bools. eauto.
      + apply run_round_quiet. intros x Hx Hd Hc. eauto.
  Qed.

  (** ** Contents *)

  Lemma times_app l l' i : times (l ++ l') i = (times l i + times l' i)%nat.
  Proof. apply count_occ_app. Qed.

  Lemma holds_iff i r c t : value_of (Holds i r c t) = true <-> (1 <= times (held t r c) i)%nat.
  Proof. apply Nat.leb_le. Qed.

  Lemma spoilt_iff r c t :
    value_of (Spoilt r c t) = true <-> exists i, i < n /\ (2 <= times (held t r c) i)%nat.
  Proof.
    cbn [value_of]. rewrite existsb_exists. split; intros (i & Hi & H); exists i;
      rewrite in_range, Nat.leb_le in *; auto.
  Qed.

  Lemma holds_not i r c t : value_of (Holds i r c t) = false <-> (times (held t r c) i = 0)%nat.
  Proof. rewrite <- not_true_iff_false, holds_iff. lia. Qed.

  Lemma spoilt_not r c t :
    value_of (Spoilt r c t) = false <-> forall i, i < n -> (times (held t r c) i <= 1)%nat.
  Proof.
    rewrite <- not_true_iff_false, spoilt_iff. split.
    - intros H i Hi. destruct (le_lt_dec (times (held t r c) i) 1); auto. exfalso. apply H. eauto.
    - intros H (i & Hi & L). specialize (H i Hi). lia.
  Qed.

  (** ** The clauses hold *)

  (** The values of an all but empty list of literals, as hypotheses. *)
  Ltac values F :=
    unfold falsified in F;
    repeat match type of F with Forall _ (_ :: _) =>
      let H := fresh "V" in apply Forall_cons_iff in F as [H F]; cbn [fst snd negb] in H
    end.

  Lemma ports_hold t s d c : In c (ports_clauses t s d) -> ~ falsified c.
  Proof.
    destruct (round_fits t) as (W & S & D & P). intros H F.
    apply in_app_iff in H as [H|H].
    - destruct (together t s d) eqn:E; [easy|]. destruct H as [<-|[]]. values F.
      bools. subst. destruct (W x) as (_ & _ & _ & Ne); auto.
      unfold together in E. destruct (N.eqb_spec (src x) (dst x)); [contradiction|]. simpl in E.
      apply andb_false_iff in E as [E|E]; apply N.leb_gt in E;
        destruct (absent_silent t _ E x); auto.
    - apply in_flat_map in H as (e & _ & H). apply in_app_iff in H as [H|H].
      + destruct (d <? e) eqn:E; [|easy]. apply N.ltb_lt in E.
        destruct H as [<-|[<-|[]]]; values F; bools.
        * assert (x = x0) by (apply (only_one src (round_at t)); auto; congruence). subst. lia.
        * assert (x = x0) by (apply (only_one dst (round_at t)); auto; congruence). subst. lia.
      + destruct (in_pairs q && negb (e =? s)) eqn:E; [|easy].
        apply andb_true_iff in E as [Pairs Ne]. apply negb_true_iff, N.eqb_neq in Ne.
        destruct H as [<-|[]]. values F. bools.
        apply Ne. assert (dst x = src x0) by (apply (P Pairs x0 x); auto; congruence). congruence.
  Qed.

  Lemma picks_hold t s c cl : In cl (picks_clauses t s c) -> ~ falsified cl.
  Proof.
    destruct (round_fits t) as (_ & S & _). intros H F.
    apply in_flat_map in H as (e & _ & H). destruct (c <? e) eqn:E; [|easy]. apply N.ltb_lt in E.
    destruct H as [<-|[]]. values F. bools.
    assert (x = x0) by (apply (only_one src (round_at t)); auto; congruence). subst. lia.
  Qed.

  Lemma moves_hold t c s d cl : In cl (moves_clauses t c s d) -> ~ falsified cl.
  Proof.
    destruct (round_fits t) as (_ & S & _). intros H F. destruct H as [<-|[<-|[<-|[]]]]; values F.
    - bools. subst. apply not_true_iff_false in V0. apply V0. simpl. apply existsb_exists.
      exists x. now rewrite !N.eqb_refl.
    - bools. subst. apply not_true_iff_false in V0. apply V0. simpl. apply existsb_exists.
      exists x. now rewrite !N.eqb_refl.
    - bools. assert (x = x0) by (apply (only_one src (round_at t)); auto; congruence). subst.
      rewrite moves_of in V by auto. discriminate.
  Qed.

  Lemma nothing_received t c d : falsified (map (fun s => yes (Moves s d c t)) all_ranks) ->
    forall s, s < n -> value_of (Moves s d c t) = false.
  Proof.
    intros F s Hs. unfold falsified in F. rewrite Forall_map, Forall_forall in F. apply F.
    now apply in_range.
  Qed.

  Lemma effect_holds t c d cl : t < in_rounds q -> In cl (effect_clauses t c d) -> ~ falsified cl.
  Proof.
    intros Ht H F. unfold effect_clauses in H.
    assert (Same : forall s s', value_of (Moves s d c t) = true -> value_of (Moves s' d c t) = true ->
                   s' = s).
    { intros s s' M M'. destruct (step_cases t c d Ht) as [(No & _)|(x & _ & _ & One & _)].
      - rewrite No in M. discriminate.
      - rewrite (One s M), (One s' M'). auto. }
    destruct (step_cases t c d Ht) as [(No & O & E)|(s & Hs & M & One & Op)];
      repeat rewrite in_app_iff in H; destruct H as [[<-|[<-|[]]]|[H|H]].
    - values F. congruence.
    - values F. rewrite spoilt_iff in V0. rewrite spoilt_not, E in V1.
      destruct V0 as (i & Hi & L). specialize (V1 i Hi). lia.
    - apply in_map_iff in H as (s & <- & _). values F. rewrite No in V. discriminate.
    - apply in_flat_map in H as (i & _ & H). rewrite in_app_iff in H.
      destruct H as [[<-|[<-|[]]]|H].
      + values F. rewrite holds_iff in V0. rewrite holds_not, E in V1. lia.
      + values F. rewrite holds_iff, E in V. rewrite holds_not in V0. lia.
      + apply in_flat_map in H as (s & _ & H).
        destruct H as [<-|[<-|[<-|[<-|[]]]]]; values F; rewrite No in *; discriminate.
    - values F. pose proof (nothing_received t c d F s Hs). congruence.
    - values F. destruct Op as [(O & E)|(O & E)]; [congruence|].
      rewrite spoilt_iff in V0. rewrite spoilt_not, E in V1. destruct V0 as (i & Hi & L).
      specialize (V1 i Hi). rewrite times_app in V1. lia.
    - apply in_map_iff in H as (s' & <- & _). values F. apply One in V as ->.
      rewrite spoilt_iff in V0. rewrite spoilt_not in V1. destruct V0 as (i & Hi & L).
      specialize (V1 i Hi). destruct Op as [(O & E)|(O & E)]; rewrite E, ?times_app in V1; lia.
    - apply in_flat_map in H as (i & Hi & H). apply in_range in Hi. rewrite in_app_iff in H.
      destruct H as [[<-|[<-|[]]]|H].
      + values F. destruct Op as [(O & E)|(O & E)]; [congruence|].
        rewrite holds_iff in V0. rewrite holds_not, E, times_app in V1. lia.
      + values F. pose proof (nothing_received t c d F s Hs). congruence.
      + apply in_flat_map in H as (s' & _ & H).
        destruct H as [<-|[<-|[<-|[<-|[]]]]]; values F;
          match goal with V : value_of (Moves s' d c t) = true |- _ => apply One in V as -> end;
          rewrite ?holds_iff, ?holds_not, ?spoilt_not in *;
          destruct Op as [(O & E)|(O & E)]; rewrite ?E, ?times_app in *; try congruence; try lia.
        specialize (V3 i Hi). rewrite times_app in V3. lia.
  Qed.

  Lemma at_end : held (in_rounds q) = collect own_data rs.
  Proof. unfold held. rewrite <- in_time, firstn_all. reflexivity. Qed.

  Lemma everybody_once i : i < n -> count_occ source_eq_dec (everybody n) (Rank i) = 1%nat.
  Proof.
    intros Hi. apply NoDup_count_occ'.
    - apply FinFun.Injective_map_NoDup; [intros a b; congruence|apply range_nodup].
    - now apply in_map, in_range.
  Qed.

  Lemma ends_hold c r cl : c < of_chunks q -> r < n -> In cl (ends_clauses c r) -> ~ falsified cl.
  Proof.
    intros Hc Hr H F. apply all_reduce_iff in right. specialize (right r c Hr Hc).
    assert (Once : forall i, i < n -> times (held (in_rounds q) r c) i = 1%nat).
    { intros i Hi. rewrite at_end. unfold times. rewrite <- (everybody_once i Hi).
      now apply (Permutation_count_occ source_eq_dec). }
    apply in_app_iff in H as [H|H].
    - apply in_flat_map in H as (i & Hi & H). apply in_range in Hi.
      destruct H as [<-|[<-|[]]]; values F.
      + assert (Own : times (held 0 r c) i = if i =? r then 1%nat else 0%nat).
        { unfold times. change (held 0 r c) with [Rank r]. cbn [count_occ].
          destruct (source_eq_dec (Rank r) (Rank i)), (N.eqb_spec i r); congruence. }
        cbn [value_of] in V. rewrite Own in V. destruct (i =? r); discriminate.
      + rewrite holds_not, Once in V by auto. discriminate.
    - destruct H as [<-|[]]. values F. apply spoilt_iff in V as (i & Hi & L).
      rewrite Once in L by auto. lia.
  Qed.

  Theorem schedule_solves cl : In cl clauses_of -> ~ falsified cl.
  Proof.
    unfold clauses_of. rewrite !in_app_iff, !in_flat_map.
    intros [(t & Ht & H)|[(t & Ht & H)|[(t & Ht & H)|[(t & Ht & H)|(c & Hc & H)]]]];
      apply in_flat_map in H as (a & Ha & H); apply in_flat_map in H as (b & Hb & H) || idtac.
    - now apply (ports_hold t a b).
    - now apply (picks_hold t a b).
    - apply in_flat_map in H as (d & Hd & H). now apply (moves_hold t a b d).
    - apply in_range in Ht. now apply (effect_holds t a b).
    - apply in_range in Hc, Ha. now apply (ends_hold c a).
  Qed.
End Clauses.
