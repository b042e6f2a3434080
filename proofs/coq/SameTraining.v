(** Training by sums of integers: every rank, in every group, is after every step where a process
    would be that has all contributions and adds up exact integers of any size.

    A step: each contribution's numbers become integers of 32 bits, by an exponent per block that is
    part of the state; these and a word per block are added up over the ranks. Where some block's sum
    of words is above the limit, an AllReduce of the largest magnitudes follows, from which come new
    exponents, and a sum of integers of 64 bits. The next state (parameters, exponents) is a function
    of the state and of these results.

    Nobody says who repeats: each rank decides by what it holds ([all_decide_alike]). *)

From Coq Require Import List NArith ZArith QArith Qpower Qabs Qround Qminmax Lia Bool Permutation.
From Latecomer Require Import Ranges Semantics SameSums SameRounding.
Import ListNotations.
Open Scope N_scope.

Definition maxima : commutative_monoid :=
  CommutativeMonoid N N.max 0 N.max_comm N.max_assoc N.max_0_l.

Section Training.
  Context {I number State : Type}.

  (** The vector: numbers by block and place within it. *)
  Variables (blocks : N) (size : N -> N).

  Definition places : list (N * N) :=
    flat_map (fun b => map (pair b) (range (size b))) (range blocks).

  (** The contributions of each step, and the numbers of each. *)
  Variables (contributions : nat -> list I) (gradient : nat -> State -> I -> N -> N -> number).

  Definition numbers t s i b : list number := map (gradient t s i b) (range (size b)).

  Definition count t : N := N.of_nat (length (contributions t)).

  (** A number as an integer; the word of a block's numbers; what is added for a number, which may be
      anything where the word is the largest; a number's magnitude. *)
  Variables (integer : Z -> number -> Z) (word : N -> Z -> list number -> Z)
    (brought : N -> Z -> list number -> number -> Z) (magnitude : number -> N).

  (** Exponents of a state, by block; those for the second time, from the sums of words and the
      largest magnitudes; and the next state, which gets no magnitudes where nothing was repeated. *)
  Variables (exponent : State -> N -> Z) (rescaled : nat -> State -> list Z -> list N -> N -> Z)
    (next : nat -> State -> list Z -> list N -> list Z -> State).

  Hypothesis word_covers : forall t e xs, covers 32 (count t) (word (count t) e xs) (map (integer e) xs).

  Hypothesis brought_is_integer : forall t e xs x,
    (word (count t) e xs < cap 32 (count t))%Z -> brought (count t) e xs x = integer e x.

  Hypothesis rescaled_fits : forall t s words tops b x, b < blocks ->
    magnitude x <= nth (N.to_nat b) tops 0 ->
    (Z.abs (integer (rescaled t s words tops b) x) <= cap 64 (count t))%Z.

  Hypothesis not_too_many : forall t, (bits_of (count t) < 32)%Z.

  (** ** What a contribution adds, in a state *)

  Definition own_word t s i b : Z := word (count t) (exponent s b) (numbers t s i b).

  Definition own_data t s i (p : N * N) : Z :=
    brought (count t) (exponent s (fst p)) (numbers t s i (fst p)) (gradient t s i (fst p) (snd p)).

  Definition own_top t s i b : N := sum maxima magnitude (numbers t s i b).

  Definition own_wide t s words tops i (p : N * N) : Z :=
    integer (rescaled t s words tops (fst p)) (gradient t s i (fst p) (snd p)).

  (** Is nothing to be repeated? *)
  Definition enough t (words : list Z) : bool :=
    forallb (fun a => (a <=? limit 32 (count t))%Z) words.

  (** ** One process that has all contributions *)

  Definition exact_integer t s i (p : N * N) : Z :=
    integer (exponent s (fst p)) (gradient t s i (fst p) (snd p)).

  Definition total_words t s : list Z :=
    map (fun b => sum integers (fun i => own_word t s i b) (contributions t)) (range blocks).

  Definition total_tops t s : list N :=
    map (fun b => sum maxima (fun i => own_top t s i b) (contributions t)) (range blocks).

  Definition exact_sums t (q : I -> N * N -> Z) : list Z :=
    map (fun p => sum integers (fun i => q i p) (contributions t)) places.

  Definition step_alone t s : State :=
    let words := total_words t s in
    if enough t words then next t s words [] (exact_sums t (exact_integer t s))
    else
      let tops := total_tops t s in
      next t s words tops (exact_sums t (own_wide t s words tops)).

  Fixpoint alone (first : State) (t : nat) : State :=
    match t with 0%nat => first | S t => step_alone t (alone first t) end.

  (** ** Ranks that add up what they bring *)

  (** What an AllReduce of each kind has left, by rank. *)
  Record results := Results {
    words_of : N -> N -> int 32;
    data_of : N -> N * N -> int 32;
    tops_of : N -> N -> N;
    wide_of : N -> N * N -> int 64 }.

  Definition held_words (held : results) r : list Z :=
    map (fun b => value (words_of held r b)) (range blocks).

  Definition held_tops (held : results) r : list N := map (tops_of held r) (range blocks).

  Definition repeats t held r : bool := negb (enough t (held_words held r)).

  Definition step t s held r : State :=
    if repeats t held r
    then next t s (held_words held r) (held_tops held r)
           (map (fun p => value (wide_of held r p)) places)
    else next t s (held_words held r) [] (map (fun p => value (data_of held r p)) places).

  (** One step of [n] ranks, of which each is in a state of its own. The AllReduces do what they promise;
      of the second and third only if all ranks take part. *)
  Definition stepped t n brings (state : N -> State) (held : results) : Prop :=
    grouped n brings (contributions t) /\
    all_reduced (machine 32) n (range blocks)
      (fun r b => sum (machine 32) (fun i => wrap 32 (own_word t (state r) i b)) (brings r))
      (words_of held) /\
    all_reduced (machine 32) n places
      (fun r p => sum (machine 32) (fun i => wrap 32 (own_data t (state r) i p)) (brings r))
      (data_of held) /\
    ((forall r, r < n -> repeats t held r = true) ->
     all_reduced maxima n (range blocks)
       (fun r b => sum maxima (fun i => own_top t (state r) i b) (brings r)) (tops_of held) /\
     all_reduced (machine 64) n places
       (fun r p => sum (machine 64)
          (fun i => wrap 64 (own_wide t (state r) (held_words held r) (held_tops held r) i p)) (brings r))
       (wide_of held)).

  (** Steps after each other. The number of ranks and who brings what may change at every step: a rank
      goes on with its own state, or with the state of a rank of the step before. *)
  Definition trains (first : State) (n : nat -> N) (brings : nat -> N -> list I)
    (state : nat -> N -> State) (held : nat -> results) : Prop :=
    (forall r, r < n 0%nat -> state 0%nat r = first) /\
    (forall t, stepped t (n t) (brings t) (state t) (held t)) /\
    (forall t r, r < n (S t) -> exists from, from < n t /\
       state (S t) r = step t (state t from) (held t) from).

  (** * Proofs *)

  Lemma all_reduced_alike {P : Type} (M : commutative_monoid) n (somewhere : list P) x x' result :
    (forall r p, r < n -> In p somewhere -> x r p = x' r p) ->
    all_reduced M n somewhere x result -> all_reduced M n somewhere x' result.
  Proof.
    intros E A r p Hr Hp. rewrite (A r p Hr Hp). apply sum_ext. intros i Hi. apply E; auto.
    now apply in_range.
  Qed.

  Lemma in_places p : In p places -> fst p < blocks /\ snd p < size (fst p).
  Proof.
    unfold places. rewrite in_flat_map. intros (b & Hb & Hp).
    apply in_map_iff in Hp as (j & <- & Hj). apply in_range in Hb, Hj. auto.
  Qed.

  Lemma in_numbers t s i p : In p places -> In (gradient t s i (fst p) (snd p)) (numbers t s i (fst p)).
  Proof. intros Hp. apply in_places in Hp as [_ Hp]. now apply in_map, in_range. Qed.

  Lemma word_in_range t s b : forall i, In i (contributions t) ->
    (0 <= own_word t s i b <= cap 32 (count t))%Z.
  Proof. intros i _. apply word_covers. Qed.

  Lemma at_most_maximum {J} (f : J -> N) l j : In j l -> f j <= sum maxima f l.
  Proof.
    induction l as [|a l IH]; [easy|]. rewrite sum_cons. simpl. intros [<-|H]; [lia|].
    specialize (IH H). simpl in IH. lia.
  Qed.

  Section OneStep.
    Variables (t : nat) (n : N) (brings : N -> list I) (state : N -> State) (held : results) (s : State).
    Hypothesis done : stepped t n brings state held.
    Hypothesis alike : forall r, r < n -> state r = s.

    Lemma words_exact r : r < n -> held_words held r = total_words t s.
    Proof.
      intros Hr. destruct done as (G & W & _). unfold held_words, total_words.
      apply map_ext_in. intros b Hb.
      eapply (all_reduced_alike (machine 32)) in W.
      - rewrite (grouping_is_free (machine 32) (fun i b => wrap 32 (own_word t s i b)) n (range blocks)
          brings _ _ G W r b Hr Hb).
        destruct (words_never_wrap 32 (count t) (fun i => own_word t s i b) (contributions t))
          with (part := contributions t) as [_ Exact];
          auto using word_in_range, some_of_all, not_too_many, N.le_refl.
      - intros r' b' Hr' _. now rewrite (alike r').
    Qed.

    Lemma repeats_alike r : r < n -> repeats t held r = negb (enough t (total_words t s)).
    Proof. intros Hr. unfold repeats. now rewrite words_exact. Qed.

    Lemma data_exact r : r < n -> enough t (total_words t s) = true ->
      map (fun p => value (data_of held r p)) places = exact_sums t (exact_integer t s).
    Proof.
      intros Hr Enough. destruct done as (G & _ & D & _). unfold exact_sums.
      apply map_ext_in. intros p Hp.
      eapply (all_reduced_alike (machine 32)) in D.
      - rewrite (grouping_is_free (machine 32) (fun i p => wrap 32 (own_data t s i p)) n places
          brings _ _ G D r p Hr Hp).
        apply (certified_exact 32 (count t) (fun i => own_word t s i (fst p)) (contributions t));
          auto using word_in_range, some_of_all, not_too_many, N.le_refl.
        + intros i _. destruct (word_covers t (exponent s (fst p)) (numbers t s i (fst p))) as [R C].
          split; [exact R|]. intros Small z [<-|[]]. apply C; auto.
          now apply (in_map (integer _)), in_numbers.
        + destruct (words_never_wrap 32 (count t) (fun i => own_word t s i (fst p)) (contributions t))
            with (part := contributions t) as [_ ->];
            auto using word_in_range, some_of_all, not_too_many, N.le_refl.
          unfold enough in Enough. rewrite forallb_forall in Enough. apply Z.leb_le, Enough.
          apply (in_map (fun b => sum integers (fun i => own_word t s i b) (contributions t))).
          apply in_range. now apply in_places.
        + intros i _. apply brought_is_integer.
      - intros r' p' Hr' _. now rewrite (alike r').
    Qed.

    Lemma tops_exact r : r < n -> enough t (total_words t s) = false -> held_tops held r = total_tops t s.
    Proof.
      intros Hr Again. destruct done as (G & _ & _ & A).
      destruct A as [T _]. { intros r' Hr'. now rewrite repeats_alike, Again. }
      unfold held_tops, total_tops. apply map_ext_in. intros b Hb.
      eapply (all_reduced_alike maxima) in T.
      - exact (grouping_is_free maxima (fun i b => own_top t s i b) n (range blocks)
          brings _ _ G T r b Hr Hb).
      - intros r' b' Hr' _. now rewrite (alike r').
    Qed.

    Lemma wide_sums_exact r : r < n -> enough t (total_words t s) = false ->
      map (fun p => value (wide_of held r p)) places
      = exact_sums t (own_wide t s (total_words t s) (total_tops t s)).
    Proof.
      intros Hr Again. destruct done as (G & _ & _ & A).
      destruct A as [_ V]. { intros r' Hr'. now rewrite repeats_alike, Again. }
      unfold exact_sums. apply map_ext_in. intros p Hp.
      eapply (all_reduced_alike (machine 64)) in V.
      - rewrite (grouping_is_free (machine 64)
          (fun i p => wrap 64 (own_wide t s (total_words t s) (total_tops t s) i p)) n places
          brings _ _ G V r p Hr Hp).
        destruct (wide_exact 64 (count t) (fun i => own_wide t s (total_words t s) (total_tops t s) i p)
          (contributions t)) with (part := contributions t) as [_ Exact];
          auto using some_of_all, N.le_refl.
        + pose proof (not_too_many t). lia.
        + intros i Hi. destruct (in_places p Hp) as [Hb _]. apply rescaled_fits; auto.
          unfold total_tops.
          rewrite (nth_indep _ 0 (sum maxima (fun i => own_top t s i 0) (contributions t)))
            by (rewrite map_length, range_length; lia).
          rewrite (map_nth (fun b => sum maxima (fun i => own_top t s i b) (contributions t))).
          rewrite nth_range by exact Hb.
          etransitivity; [apply (at_most_maximum magnitude), in_numbers, Hp|].
          now apply (at_most_maximum (fun i => own_top t s i (fst p))).
      - intros r' p' Hr' _. rewrite (alike r'), words_exact, tops_exact; auto.
    Qed.

    Lemma step_exact r : r < n -> step t s held r = step_alone t s.
    Proof.
      intros Hr. unfold step, step_alone. rewrite repeats_alike, words_exact by exact Hr.
      destruct (enough t (total_words t s)) eqn:E; simpl.
      - now rewrite data_exact.
      - now rewrite tops_exact, wide_sums_exact.
    Qed.
  End OneStep.

  (** Ranks that are in the same state decide alike whether to repeat. *)
  Theorem all_decide_alike t n brings state held s :
    stepped t n brings state held -> (forall r, r < n -> state r = s) ->
    forall r, r < n -> repeats t held r = negb (enough t (total_words t s)).
  Proof. intros Done Alike r Hr. now apply (repeats_alike t n brings state). Qed.

  (** Every rank of every group is after any number of steps where the one process is. *)
  Theorem same_training first n brings state held :
    trains first n brings state held ->
    forall t r, r < n t -> state t r = alone first t.
  Proof.
    intros (Begin & Done & On). induction t as [|t IH]; intros r Hr; [now apply Begin|].
    destruct (On t r Hr) as (from & Hfrom & ->). rewrite (IH from Hfrom). simpl.
    now apply (step_exact t (n t) (brings t) (state t)).
  Qed.
End Training.

(** * Rational numbers *)

(** What is assumed above of integers, words and exponents is true of these: numbers that are multiples
    of 2 ^ -[finest] (those of float32 are, with [finest] = 149), words of the largest magnitude, and
    exponents for the second time that follow from it. *)
Section Rational.
  Context {I State : Type} (blocks : N) (size : N -> N) (contributions : nat -> list I)
    (gradient : nat -> State -> I -> N -> N -> Q) (rint : Q -> Z) (finest : Z)
    (exponent : State -> N -> Z) (next : nat -> State -> list Z -> list N -> list Z -> State).
  Hypothesis rint_nearest : nearest rint.
  Hypothesis not_too_many : forall t, (bits_of (count contributions t) < 32)%Z.

  Definition largest (xs : list Q) : Q := fold_right (fun x top => Qmax (Qabs x) top) 0%Q xs.

  Definition word_of_numbers (m : N) (e : Z) (xs : list Q) : Z := word_of_magnitude 32 m e (largest xs).

  Definition integer_brought (m : N) (e : Z) (xs : list Q) (x : Q) : Z := integer_of rint e x.

  (** In units of 2 ^ -[finest]. *)
  Definition units (x : Q) : N := Z.to_N (Qceiling (Qabs x * power finest)).

  Definition fitting_exponent (t : nat) (s : State) (words : list Z) (tops : list N) (b : N) : Z :=
    finest + (63 - bits_of (count contributions t)) - bits_of (nth (N.to_nat b) tops 0).

  Lemma largest_is xs : (0 <= largest xs)%Q /\ forall x, In x xs -> (Qabs x <= largest xs)%Q.
  Proof.
    induction xs as [|y xs [P IH]]; [split; [discriminate|easy]|]. simpl.
    split; [eapply Qle_trans; [exact P|apply Q.le_max_r]|].
    intros x [<-|Hx]; [apply Q.le_max_l|]. eapply Qle_trans; [now apply IH|apply Q.le_max_r].
  Qed.

  Lemma units_cover x (top : N) : units x <= top ->
    (Qabs x <= inject_Z (Z.of_N top) * power (- finest))%Q.
  Proof.
    intros U. unfold units in U.
    assert (C : (Qabs x * power finest <= inject_Z (Z.of_N top))%Q).
    { eapply Qle_trans; [apply Qle_ceiling|]. rewrite <- Zle_Qle. lia. }
    rewrite power_opposite. apply Qle_shift_div_l; [apply power_positive|exact C].
  Qed.

  Theorem same_training_of_rationals first n brings state held :
    trains blocks size contributions gradient (integer_of rint) word_of_numbers integer_brought units
      exponent fitting_exponent next first n brings state held ->
    forall t r, r < n t ->
    state t r = alone blocks size contributions gradient (integer_of rint) word_of_numbers units
                  exponent fitting_exponent next first t.
  Proof.
    apply same_training; auto.
    - intros t e xs. destruct (largest_is xs) as [P L]. now apply magnitude_covers.
    - intros t s words tops b x _ U.
      set (top := nth (N.to_nat b) tops 0) in *.
      apply (rescaled_fits rint 64 _ _ (inject_Z (Z.of_N top) * power (- finest)));
        auto using units_cover.
      unfold fitting_exponent. fold top. set (u := bits_of (count contributions t)).
      assert (0 <= u < 32)%Z by (split; [apply bits_nonnegative|apply not_too_many]).
      rewrite <- Qmult_assoc. unfold power. rewrite <- Qpower_plus by discriminate.
      replace (- finest + (finest + (63 - u) - bits_of top))%Z
        with (63 - u + - bits_of top)%Z by lia.
      rewrite Qpower_plus by discriminate. fold (power (63 - u)) (power (- bits_of top)).
      rewrite power_opposite, !power_integer by (lia || apply bits_nonnegative).
      unfold cap. fold u. change (Z.pos 64 - 1)%Z with 63%Z.
      set (whole := inject_Z (2 ^ (63 - u))). set (room := inject_Z (2 ^ bits_of top)).
      assert (Room : (0 < room)%Q).
      { unfold room. change 0%Q with (inject_Z 0). rewrite <- Zlt_Qlt.
        pose proof (bits_enough top). lia. }
      rewrite Qmult_assoc. apply Qle_shift_div_r; [exact Room|].
      rewrite (Qmult_comm whole). apply Qmult_le_compat_r.
      + unfold room. rewrite <- Zle_Qle. pose proof (bits_enough top). lia.
      + unfold whole. change 0%Q with (inject_Z 0). rewrite <- Zle_Qle. apply Z.pow_nonneg. lia.
  Qed.
End Rational.
