(** Sums of integers: the same for every grouping of the contributions by rank, every order, every
    schedule, and exact where a certificate that is itself a sum says so.

    In a training step there are contributions (a gradient of one microbatch each). Each is turned
    into integers, a rank adds up those that it brings, and an AllReduce adds up the ranks.

    - Integers of a machine, which wrap around, are a commutative monoid ([machine]). So whatever is
      proved of a schedule for every commutative monoid is true of the bits that they leave: who
      brings what, with how many ranks, who is late, and the order of additions have no influence
      ([grouping_is_free], [executed], [late_rank_is_free]).
    - That what is left is the sum, and not the sum up to a multiple of 2^32, is certified by one
      *word* per block of elements, which is added up in the same way ([certified_exact]).
    - Where the certificate is missing the contributions are added up once more, in wider integers;
      these agree where both are exact ([wide_is_narrow], [wide_exact]).

    How a number becomes an integer, and how far that is off, is in [SameRounding.v]; steps after
    each other are in [SameTraining.v]. *)

From Coq Require Import List NArith ZArith Lia Bool Permutation Eqdep_dec.
From Latecomer Require Import Ranges Schedule Semantics Check Headline.
From Latecomer Require Programs SendAhead.
Import ListNotations.
Open Scope N_scope.

(** * The grouping of contributions by rank *)

(** What an AllReduce of [n] ranks promises at some places (chunks, elements, blocks): rank [r]
    brings [x r p] to place [p], and every rank ends with the sum over all ranks. *)
Definition all_reduced {P : Type} (M : commutative_monoid) (n : N) (places : list P)
  (x result : N -> P -> M) : Prop :=
  forall r p, r < n -> In p places -> result r p = sum M (fun i => x i p) (range n).

(** The ranks 0 .. n-1 bring these contributions, each exactly one rank's, in any order. *)
Definition grouped {I : Type} (n : N) (brings : N -> list I) (contributions : list I) : Prop :=
  Permutation (concat (map brings (range n))) contributions.

(** Some of the contributions, in any order: what a sum has taken up so far. *)
Definition some_of {I : Type} (part contributions : list I) : Prop :=
  exists rest, Permutation (part ++ rest) contributions.

Lemma sum_concat (M : commutative_monoid) {I} (x : I -> M) parts :
  sum M x (concat parts) = sum M (sum M x) parts.
Proof. induction parts as [|part parts IH]; auto. simpl concat. now rewrite sum_app, IH, sum_cons. Qed.

Lemma sum_ext (M : commutative_monoid) {I} (x y : I -> M) l :
  (forall i, In i l -> x i = y i) -> sum M x l = sum M y l.
Proof.
  induction l as [|i l IH]; intros H; auto. rewrite !sum_cons, (H i) by now left.
  f_equal. apply IH. intros j Hj. apply H. now right.
Qed.

Theorem sum_of_groups (M : commutative_monoid) {I} (q : I -> M) n brings contributions :
  grouped n brings contributions ->
  sum M (fun r => sum M q (brings r)) (range n) = sum M q contributions.
Proof.
  intros G. rewrite <- (sum_map M brings (sum M q)), <- sum_concat. now apply sum_permutation.
Qed.

(** After any AllReduce every rank holds the sum of all contributions, which knows of no ranks. *)
Theorem grouping_is_free {P I} (M : commutative_monoid) (q : I -> P -> M) n places brings contributions
  result :
  grouped n brings contributions ->
  all_reduced M n places (fun r p => sum M (fun i => q i p) (brings r)) result ->
  forall r p, r < n -> In p places -> result r p = sum M (fun i => q i p) contributions.
Proof.
  intros G A r p Hr Hp. rewrite (A r p Hr Hp). now apply (sum_of_groups M (fun i => q i p)).
Qed.

(** ** What schedules leave, when ranks run on their own *)

(** Place [p] lies in chunk [chunk_of p], and [start p] is what ranks have there and elsewhere. For any
    right schedule and any transport from rendezvous to eager: executions that can't go on have done an
    AllReduce. *)
Theorem executed {P} s (M : commutative_monoid) (places : list P) chunk_of (start : P -> N -> N -> M)
  (may : Programs.situation -> Programs.event -> Prop) (events : P -> list Programs.event)
  (now : P -> Programs.situation) :
  Check.right s -> (forall p, In p places -> chunk_of p < chunks s) ->
  (forall s' e, Programs.rendezvous (ranks s) (all_rounds s) s' e -> may s' e) ->
  (forall s' e, may s' e -> Programs.eager (ranks s) (all_rounds s) s' e) ->
  (forall p, In p places ->
     Programs.execution (add M) (start p) (all_rounds s) may (events p) (now p) /\
     forall e, ~ may (now p) e) ->
  all_reduced M (ranks s) places (fun r p => start p r (chunk_of p))
    (fun r p => Programs.memory (now p) r (chunk_of p)).
Proof.
  intros ((W & _ & _ & C) & _) Inside Low High X r p Hr Hp. destruct (X p Hp) as [Xp Stop].
  destruct (Programs.asynchronous_all_reduce s M (start p) may (events p) (now p) W C Low High Xp)
    as [_ V]. now apply V; auto.
Qed.

(** The same where ranks keep to no rounds: place [p] is element [element_of p] of its chunk. *)
Theorem executed_ahead {P} s (M : commutative_monoid) (places : list P) chunk_of element_of
  (size : N -> nat) (start : N -> N -> nat -> M)
  (may : SendAhead.situation -> SendAhead.event -> Prop) events now :
  Check.right s -> SendAhead.one_at_a_time s ->
  (forall p, In p places -> chunk_of p < chunks s /\ (element_of p < size (chunk_of p))%nat) ->
  (forall s' e, SendAhead.has_to (all_rounds s) size s' e -> may s' e) ->
  (forall s' e, may s' e -> SendAhead.allowed (all_rounds s) size s' e) ->
  SendAhead.execution (add M) (all_rounds s) start may events now -> (forall e, ~ may now e) ->
  all_reduced M (ranks s) places (fun r p => start r (chunk_of p) (element_of p))
    (fun r p => SendAhead.memory now r (chunk_of p) (element_of p)).
Proof.
  intros ((_ & _ & _ & C) & _) One Inside Low High X Stop r p Hr Hp.
  destruct (SendAhead.ahead_all_reduce s M size start may events now One C Low High X) as [_ V].
  now apply V; auto; apply Inside.
Qed.

(** Two executions of what [synth] ships: with different numbers of ranks and chunks, different late
    ranks, other orders of events, and the contributions grouped and ordered anew. An element of the
    vector that lies in chunk [c] of the one and in chunk [c'] of the other ends the same. *)
Theorem late_rank_is_free n k late n' k' late' (M : commutative_monoid) {I} (q q' : I -> N -> M)
  brings brings' contributions (may may' : Programs.situation -> Programs.event -> Prop)
  events events' now now' c c' :
  2 <= n -> 1 <= k -> late < n -> 2 <= n' -> 1 <= k' -> late' < n' ->
  grouped n brings contributions -> grouped n' brings' contributions ->
  let rounds := all_rounds (schedule_for n k late) in
  let rounds' := all_rounds (schedule_for n' k' late') in
  (forall s e, Programs.rendezvous n rounds s e -> may s e) ->
  (forall s e, may s e -> Programs.eager n rounds s e) ->
  (forall s e, Programs.rendezvous n' rounds' s e -> may' s e) ->
  (forall s e, may' s e -> Programs.eager n' rounds' s e) ->
  Programs.execution (add M) (fun r c => sum M (fun i => q i c) (brings r)) rounds may events now ->
  Programs.execution (add M) (fun r c => sum M (fun i => q' i c) (brings' r)) rounds' may' events' now' ->
  (forall e, ~ may now e) -> (forall e, ~ may' now' e) ->
  c < k -> c' < k' -> (forall i, In i contributions -> q i c = q' i c') ->
  forall r r', r < n -> r' < n' -> Programs.memory now r c = Programs.memory now' r' c'.
Proof.
  intros Hn Hk Hl Hn' Hk' Hl' G G' rounds rounds' Low High Low' High' X X' Stop Stop' Hc Hc' Same
    r r' Hr Hr'.
  destruct (one_late_rank n k late Hn Hk Hl) as [(_ & _ & R & _) _].
  destruct (one_late_rank n' k' late' Hn' Hk' Hl') as [(_ & _ & R' & _) _].
  pose proof (executed (schedule_for n k late) M [c] (fun c => c)
    (fun _ r c => sum M (fun i => q i c) (brings r)) may (fun _ => events) (fun _ => now) R) as A.
  pose proof (executed (schedule_for n' k' late') M [c'] (fun c => c)
    (fun _ r c => sum M (fun i => q' i c) (brings' r)) may' (fun _ => events') (fun _ => now') R') as A'.
  rewrite (grouping_is_free M q n [c] brings contributions (Programs.memory now) G) by
    (try apply A; simpl; auto; now intros p [<-|[]]).
  rewrite (grouping_is_free M q' n' [c'] brings' contributions (Programs.memory now') G') by
    (try apply A'; simpl; auto; now intros p [<-|[]]).
  now apply sum_ext.
Qed.

(** * Integers of a machine *)

Open Scope Z_scope.

Definition integers : commutative_monoid :=
  CommutativeMonoid Z Z.add 0 Z.add_comm Z.add_assoc Z.add_0_l.

(** There are 2 ^ w of them, half of them negative. *)
Definition half (w : positive) : Z := 2 ^ (Z.pos w - 1).

Definition fits (w : positive) (z : Z) : bool := (- half w <=? z) && (z <? half w).

(** An integer of [w] bits, and what is left of any integer in so many. *)
Definition int (w : positive) : Type := {z : Z | fits w z = true}.

Definition value {w} (a : int w) : Z := proj1_sig a.

Definition wrapped (w : positive) (z : Z) : Z := (z + half w) mod (2 * half w) - half w.

Lemma half_positive w : 0 < half w.
Proof. apply Z.pow_pos_nonneg; lia. Qed.

Lemma fits_iff w z : fits w z = true <-> - half w <= z < half w.
Proof. unfold fits. rewrite andb_true_iff, Z.leb_le, Z.ltb_lt. tauto. Qed.

Lemma wrapped_fits w z : fits w (wrapped w z) = true.
Proof.
  apply fits_iff. unfold wrapped. pose proof (half_positive w).
  pose proof (Z.mod_pos_bound (z + half w) (2 * half w)). lia.
Qed.

Definition wrap (w : positive) (z : Z) : int w := exist _ (wrapped w z) (wrapped_fits w z).

Definition int_add {w} (a b : int w) : int w := wrap w (value a + value b).

Lemma int_ext {w} (a b : int w) : value a = value b -> a = b.
Proof.
  destruct a as [a Ha], b as [b Hb]. simpl. intros <-. f_equal. apply UIP_dec, bool_dec.
Qed.

Lemma wrapped_exact w z : fits w z = true -> wrapped w z = z.
Proof. rewrite fits_iff. intros B. unfold wrapped. rewrite Z.mod_small by lia. lia. Qed.

Lemma value_fits {w} (a : int w) : wrapped w (value a) = value a.
Proof. apply wrapped_exact. apply (proj2_sig a). Qed.

Lemma wrapped_add_left w a b : wrapped w (wrapped w a + b) = wrapped w (a + b).
Proof.
  unfold wrapped at 1 3. f_equal. pose proof (half_positive w) as P. unfold wrapped.
  replace ((a + half w) mod (2 * half w) - half w + b + half w)
    with ((a + half w) mod (2 * half w) + b) by ring.
  rewrite Zplus_mod_idemp_l. f_equal. ring.
Qed.

Lemma wrapped_add_right w a b : wrapped w (a + wrapped w b) = wrapped w (a + b).
Proof. now rewrite (Z.add_comm a), wrapped_add_left, (Z.add_comm b). Qed.

Lemma int_add_comm w (a b : int w) : int_add a b = int_add b a.
Proof. apply int_ext. simpl. now rewrite Z.add_comm. Qed.

Lemma int_add_assoc w (a b c : int w) : int_add a (int_add b c) = int_add (int_add a b) c.
Proof. apply int_ext. simpl. now rewrite wrapped_add_left, wrapped_add_right, Z.add_assoc. Qed.

Lemma int_add_zero w (a : int w) : int_add (wrap w 0) a = a.
Proof. apply int_ext. simpl. rewrite wrapped_add_left. apply value_fits. Qed.

(** Additions that wrap around, as a processor does them. *)
Definition machine (w : positive) : commutative_monoid :=
  CommutativeMonoid (int w) int_add (wrap w 0)
    (int_add_comm w) (int_add_assoc w) (int_add_zero w).

(** Whatever wrapped on the way: what is left is the true sum, wrapped once. *)
Theorem machine_sum w {I} (q : I -> Z) l :
  value (sum (machine w) (fun i => wrap w (q i)) l) = wrapped w (sum integers q l).
Proof.
  induction l as [|i l IH]; auto. rewrite !sum_cons. simpl add.
  change (wrapped w (wrapped w (q i) + value (sum (machine w) (fun i => wrap w (q i)) l))
          = wrapped w (q i + sum integers q l)).
  now rewrite IH, wrapped_add_left, wrapped_add_right.
Qed.

(** Where the sum fits, no width matters. *)
Theorem wide_is_narrow w w' {I} (q : I -> Z) l : (w <= w')%positive ->
  fits w (sum integers q l) = true ->
  value (sum (machine w) (fun i => wrap w (q i)) l)
  = value (sum (machine w') (fun i => wrap w' (q i)) l).
Proof.
  intros W F. rewrite !machine_sum, !wrapped_exact; auto.
  apply fits_iff. apply fits_iff in F. unfold half in *.
  assert (2 ^ (Z.pos w - 1) <= 2 ^ (Z.pos w' - 1)) by (apply Z.pow_le_mono_r; lia). lia.
Qed.

(** * Words *)

(** The number of bits of [m]. *)
Definition bits_of (m : N) : Z := Z.of_N (N.size m).

(** Where there are [m] contributions at most, one in a word stands for 2 ^ [bits_of m]. The largest word
    means: too large, or no number at all. *)
Definition cap (w : positive) (m : N) : Z := 2 ^ (Z.pos w - 1 - bits_of m).

(** Sums of words up to here certify. *)
Definition limit (w : positive) (m : N) : Z := cap w m - 1.

(** The word [word] covers the integers [q]: either it is the largest, or none is larger than it says. *)
Definition covers (w : positive) (m : N) (word : Z) (q : list Z) : Prop :=
  0 <= word <= cap w m /\
  (word < cap w m -> forall z, In z q -> Z.abs z <= 2 ^ bits_of m * word).

Lemma bits_enough m : Z.of_N m < 2 ^ bits_of m.
Proof.
  unfold bits_of. change 2 with (Z.of_N 2). rewrite <- N2Z.inj_pow. apply N2Z.inj_lt, N.size_gt.
Qed.

Lemma bits_nonnegative m : 0 <= bits_of m.
Proof. unfold bits_of. lia. Qed.

Lemma cap_unit w m : bits_of m < Z.pos w -> 2 ^ bits_of m * cap w m = half w.
Proof.
  intros U. pose proof (bits_nonnegative m). unfold cap, half.
  rewrite <- Z.pow_add_r by lia. f_equal. lia.
Qed.

Lemma sum_at_most {I} (q : I -> Z) (most : Z) l : (forall i, In i l -> 0 <= q i <= most) ->
  0 <= sum integers q l <= most * Z.of_nat (length l).
Proof.
  induction l as [|i l IH]; intros H; [simpl; lia|]. rewrite sum_cons. cbn [length].
  pose proof (H i (or_introl eq_refl)).
  assert (0 <= sum integers q l <= most * Z.of_nat (length l))
    by (apply IH; intros; apply H; now right).
  rewrite Nat2Z.inj_succ. simpl in *. lia.
Qed.

Lemma sum_ge_part {I} (q : I -> Z) part rest : (forall i, In i (part ++ rest) -> 0 <= q i) ->
  sum integers q part <= sum integers q (part ++ rest).
Proof.
  intros H. rewrite sum_app. simpl.
  assert (Rest : forall i, In i rest -> 0 <= q i) by (intros; apply H, in_or_app; now right).
  clear H. assert (0 <= sum integers q rest); [|lia].
  induction rest as [|i rest IH]; [simpl; lia|]. rewrite sum_cons. simpl.
  pose proof (Rest i (or_introl eq_refl)).
  assert (0 <= sum integers q rest) by (apply IH; intros; apply Rest; now right). lia.
Qed.

Lemma some_of_length {I} (part contributions : list I) m :
  some_of part contributions -> (N.of_nat (length contributions) <= m)%N ->
  Z.of_nat (length part) <= Z.of_N m.
Proof. intros (rest & P) Len. apply Permutation_length in P. rewrite app_length in P. lia. Qed.

Lemma some_of_in {I} (part contributions : list I) i :
  some_of part contributions -> In i part -> In i contributions.
Proof. intros (rest & P) Hi. apply (Permutation_in _ P), in_or_app. now left. Qed.

Lemma some_of_all {I} (contributions : list I) : some_of contributions contributions.
Proof. exists []. now rewrite app_nil_r. Qed.

Section Certificate.
  Context {I : Type} (w : positive) (m : N).
  Variables (word : I -> Z) (contributions : list I).
  Hypothesis enough_bits : bits_of m < Z.pos w.
  Hypothesis so_many : (N.of_nat (length contributions) <= m)%N.
  Hypothesis words_in_range : forall i, In i contributions -> 0 <= word i <= cap w m.

  (** The certificate can't be wrong: words never wrap, whatever the contributions are. *)
  Theorem words_never_wrap part : some_of part contributions ->
    fits w (sum integers word part) = true /\
    value (sum (machine w) (fun i => wrap w (word i)) part) = sum integers word part.
  Proof.
    intros P.
    assert (F : fits w (sum integers word part) = true).
    { apply fits_iff. destruct (sum_at_most word (cap w m) part) as [Low High].
      { intros i Hi. now apply words_in_range, (some_of_in part). }
      pose proof (some_of_length part contributions m P so_many).
      pose proof (bits_enough m). pose proof (cap_unit w m enough_bits). pose proof (half_positive w).
      assert (0 < cap w m) by (pose proof (bits_nonnegative m); nia). nia. }
    split; auto. rewrite machine_sum. now apply wrapped_exact.
  Qed.

  (** The data of one element: each contribution's integer. The certificate is what a rank holds
      after the words are added up. *)
  Variable q : I -> Z.
  Hypothesis covered : forall i, In i contributions -> covers w m (word i) [q i].
  Hypothesis certified :
    value (sum (machine w) (fun i => wrap w (word i)) contributions) <= limit w m.

  Lemma certified_words : sum integers word contributions <= limit w m.
  Proof.
    destruct (words_never_wrap contributions (some_of_all contributions)) as [_ <-]. exact certified.
  Qed.

  Lemma words_of_some part : some_of part contributions ->
    sum integers word part <= limit w m.
  Proof.
    intros (rest & P). pose proof (sum_ge_part word part rest) as G.
    rewrite (sum_permutation integers word _ _ P) in G. pose proof certified_words.
    assert (sum integers word part <= sum integers word contributions); [|lia].
    apply G. intros i Hi. now apply words_in_range, (Permutation_in _ P).
  Qed.

  Lemma no_word_is_the_largest i : In i contributions -> word i < cap w m.
  Proof.
    intros Hi. apply in_split in Hi as (before & after & E).
    pose proof (words_of_some [i]) as W. rewrite (sum_single integers word i) in W.
    unfold limit in W. apply Z.lt_le_pred. rewrite <- Z.sub_1_r. apply W.
    exists (before ++ after). rewrite E. exact (Permutation_middle before after i).
  Qed.

  (** Every sum of some of the contributions, in whatever order and with whatever others to come, is
      within the machine's integers. *)
  Theorem partial_sums_fit part : some_of part contributions ->
    Z.abs (sum integers q part) <= 2 ^ bits_of m * limit w m /\ fits w (sum integers q part) = true.
  Proof.
    intros P.
    assert (Bound : Z.abs (sum integers q part) <= 2 ^ bits_of m * sum integers word part).
    { assert (Here : forall i, In i part -> In i contributions)
        by (intros i; now apply some_of_in).
      clear P. induction part as [|i l IH]; [simpl; lia|]. rewrite !sum_cons. simpl.
      assert (Hi : In i contributions) by (apply Here; now left).
      assert (Z.abs (q i) <= 2 ^ bits_of m * word i)
        by (apply covered; auto using no_word_is_the_largest; now left).
      assert (Z.abs (sum integers q l) <= 2 ^ bits_of m * sum integers word l)
        by (apply IH; intros; apply Here; now right).
      simpl in *. lia. }
    pose proof (words_of_some part P). pose proof (bits_nonnegative m).
    pose proof (Z.pow_pos_nonneg 2 (bits_of m)).
    assert (Le : Z.abs (sum integers q part) <= 2 ^ bits_of m * limit w m) by nia.
    split; auto. apply fits_iff. pose proof (cap_unit w m enough_bits). unfold limit in *. nia.
  Qed.

  (** So the machine's sum is the sum. [brought] is what a contribution adds: its integer unless its
      word is the largest; then it may add anything, and the certificate is missing. *)
  Theorem certified_exact (brought : I -> Z) part :
    (forall i, In i contributions -> word i < cap w m -> brought i = q i) ->
    some_of part contributions ->
    value (sum (machine w) (fun i => wrap w (brought i)) part) = sum integers q part.
  Proof.
    intros B P. destruct (partial_sums_fit part P) as [_ F].
    rewrite machine_sum, (sum_ext integers brought q part).
    - now apply wrapped_exact.
    - intros i Hi. assert (In i contributions) by now apply (some_of_in part).
      apply B; auto. now apply no_word_is_the_largest.
  Qed.
End Certificate.

(** The second time: integers that are small enough for their number need no words. *)
Theorem wide_exact w (m : N) {I} (q : I -> Z) contributions :
  bits_of m < Z.pos w -> (N.of_nat (length contributions) <= m)%N ->
  (forall i, In i contributions -> Z.abs (q i) <= cap w m) ->
  forall part, some_of part contributions ->
    fits w (sum integers q part) = true /\
    value (sum (machine w) (fun i => wrap w (q i)) part) = sum integers q part.
Proof.
  intros U Len Small part P.
  assert (F : fits w (sum integers q part) = true).
  { apply fits_iff. pose proof (some_of_length part contributions m P Len).
    assert (B : Z.abs (sum integers q part) <= cap w m * Z.of_nat (length part)).
    { assert (Part : forall i, In i part -> Z.abs (q i) <= cap w m)
        by (intros i Hi; now apply Small, (some_of_in part)).
      clear P H. induction part as [|i l IH]; [simpl; lia|]. rewrite sum_cons. cbn [length].
      pose proof (Part i (or_introl eq_refl)).
      assert (Z.abs (sum integers q l) <= cap w m * Z.of_nat (length l))
        by (apply IH; intros; apply Part; now right).
      rewrite Nat2Z.inj_succ. simpl in *. lia. }
    pose proof (bits_enough m). pose proof (cap_unit w m U). pose proof (half_positive w).
    assert (0 < cap w m) by (pose proof (bits_nonnegative m); nia). nia. }
  split; auto. rewrite machine_sum. now apply wrapped_exact.
Qed.

(** ** What a rank's memory holds on the way *)

Lemma collects_ranks n rs r c : ranks_exist n rs -> (r < n)%N ->
  forall i, In i (collect own_data rs r c) -> exists p, (p < n)%N /\ i = Rank p.
Proof.
  intros E Hr.
  refine (run_related (@app source) (fun _ _ => tt)
    (fun _ l _ => forall i, In i l -> exists p, (p < n)%N /\ i = Rank p) _ (fun p => (p < n)%N)
    rs own_data (fun _ _ => tt) E _ r c Hr).
  - intros _ a _ a' _ Ha Ha' i Hi. apply in_app_or in Hi as [Hi|Hi]; auto.
  - intros p _ Hp i [<-|[]]. now exists p.
Qed.

Definition rank_of (i : source) : N := match i with Rank p => p | Stale p => p end.

Lemma held_sum (M : commutative_monoid) (x : N -> N -> M) rs r c :
  run (add M) x rs r c = sum M (fun i => x (rank_of i) c) (collect own_data rs r c).
Proof.
  rewrite <- (run_collects M (fun i c => x (rank_of i) c)). apply run_ext. intros r' c'.
  symmetry. apply (sum_single M (fun i => x (rank_of i) c')).
Qed.

Lemma parts_of_range (l : list N) n : NoDup l -> (forall p, In p l -> (p < n)%N) ->
  exists rest, Permutation (l ++ rest) (range n).
Proof.
  intros Once Inside. set (others := fun p => if in_dec N.eq_dec p l then false else true).
  exists (filter others (range n)).
  assert (Else : forall p, In p (filter others (range n)) <-> (p < n)%N /\ ~ In p l).
  { intros p. rewrite filter_In, in_range. unfold others.
    destruct (in_dec N.eq_dec p l); intuition discriminate. }
  apply NoDup_Permutation; [|apply range_nodup|].
  - apply nodup_app. split; auto. split; [apply NoDup_filter, range_nodup|].
    intros p Hp H. now apply Else in H.
  - intros p. rewrite in_app_iff, Else, in_range.
    destruct (in_dec N.eq_dec p l); intuition.
Qed.

(** After any rounds: where no rank's contributions are held twice, nothing has wrapped. *)
Theorem nothing_wraps_on_the_way w m {I} (q word : I -> Z) n brings contributions rs r c :
  bits_of m < Z.pos w -> (N.of_nat (length contributions) <= m)%N ->
  grouped n brings contributions ->
  (forall i, In i contributions -> covers w m (word i) [q i]) ->
  value (sum (machine w) (fun i => wrap w (word i)) contributions) <= limit w m ->
  ranks_exist n rs -> (r < n)%N -> NoDup (collect own_data rs r c) ->
  value (run (add (machine w))
           (fun p _ => sum (machine w) (fun i => wrap w (q i)) (brings p)) rs r c)
  = run Z.add (fun p _ => sum integers q (brings p)) rs r c.
Proof.
  intros U Len G Cov Cert E Hr Once.
  pose proof (collects_ranks n rs r c E Hr) as Ranks.
  set (held := collect own_data rs r c) in *.
  destruct (parts_of_range (map rank_of held) n) as (rest & P).
  { apply nodup_map_on; auto. intros i j Hi Hj. destruct (Ranks i Hi) as (p & _ & ->).
    destruct (Ranks j Hj) as (p' & _ & ->). simpl. congruence. }
  { intros p Hp. apply in_map_iff in Hp as (i & <- & Hi). now destruct (Ranks i Hi) as (p & ? & ->). }
  set (part := concat (map brings (map rank_of held))).
  assert (Of : forall (M : commutative_monoid) (x : I -> M),
    sum M (fun i => sum M x (brings (rank_of i))) held = sum M x part).
  { intros M x. unfold part. now rewrite sum_concat, !sum_map. }
  transitivity (sum integers q part).
  2: { symmetry. exact (eq_trans (held_sum integers _ rs r c) (Of integers q)). }
  refine (eq_trans (f_equal value (eq_trans (held_sum (machine w) _ rs r c) (Of (machine w) _))) _).
  assert (Some_ : some_of part contributions).
  { exists (concat (map brings rest)). unfold part. rewrite <- concat_app, <- map_app.
    rewrite <- G, <- !flat_map_concat_map. now apply Permutation_flat_map. }
  apply (certified_exact w m word contributions U Len); auto. intros i Hi. now apply Cov.
Qed.
