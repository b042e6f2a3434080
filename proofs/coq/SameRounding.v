(** Numbers as integers: how far the sum of the integers is off, and which words cover them.

    A number x counts as the integer next to x * 2 ^ e, in units of 2 ^ -e. Numbers are rational here,
    as all finite floating point numbers are, and x * 2 ^ e is exact. [rint] is any function to an
    integer within 1/2, whichever way it goes where two are as near. *)

From Coq Require Import List ZArith NArith QArith Qpower Qabs Qround Lia Lqa.
From Latecomer Require Import Semantics SameSums.
Import ListNotations.
Open Scope Q_scope.

(** The integer that is no further than 1/2. *)
Definition nearest (rint : Q -> Z) : Prop := forall y, Qabs (inject_Z (rint y) - y) <= 1 # 2.

Definition power (e : Z) : Q := (2 # 1) ^ e.

(** What a number counts as. *)
Definition integer_of (rint : Q -> Z) (e : Z) (x : Q) : Z := rint (x * power e).

(** The true sum. *)
Definition total {I : Type} (x : I -> Q) (l : list I) : Q := fold_right (fun i t => x i + t) 0 l.

(** How many there are. *)
Definition number_of {I : Type} (l : list I) : Q := inject_Z (Z.of_nat (length l)).

(** * The error *)

Lemma power_positive e : 0 < power e.
Proof. apply Qpower_0_lt. reflexivity. Qed.

Lemma power_next e : power (e + 1) == 2 * power e.
Proof. unfold power. rewrite Qpower_plus by discriminate. change ((2 # 1) ^ 1) with 2. ring. Qed.

Lemma power_opposite e : power (- e) == / power e.
Proof. apply Qpower_opp. Qed.

Lemma number_of_cons {I} (i : I) l : number_of (i :: l) == 1 + number_of l.
Proof.
  unfold number_of. cbn [length]. rewrite Nat2Z.inj_succ, <- Z.add_1_l, inject_Z_plus. reflexivity.
Qed.

Lemma number_of_nonnegative {I} (l : list I) : 0 <= number_of l.
Proof. unfold number_of. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia. Qed.

(** In units: each number is off by 1/2 at most. *)
Lemma error_in_units rint e {I} (x : I -> Q) l : nearest rint ->
  Qabs (inject_Z (sum integers (fun i => integer_of rint e (x i)) l) - total x l * power e)
  <= number_of l * (1 # 2).
Proof.
  intros Near. induction l as [|i l IH]; [simpl; discriminate|].
  rewrite sum_cons, number_of_cons. cbn [add integers total fold_right].
  rewrite inject_Z_plus. fold (total x l).
  set (rest := inject_Z (sum integers _ l)) in *.
  setoid_replace (inject_Z (integer_of rint e (x i)) + rest - (x i + total x l) * power e)
    with (inject_Z (integer_of rint e (x i)) - x i * power e + (rest - total x l * power e)) by ring.
  eapply Qle_trans; [apply Qabs_triangle|].
  pose proof (Near (x i * power e)). unfold integer_of. lra.
Qed.

(** The sum of m numbers is off by m / 2 ^ (e + 1) at most. *)
Theorem error_of_sum rint e {I} (x : I -> Q) l : nearest rint ->
  Qabs (inject_Z (sum integers (fun i => integer_of rint e (x i)) l) / power e - total x l)
  <= number_of l / power (e + 1).
Proof.
  intros Near. pose proof (error_in_units rint e x l Near) as U.
  set (s := inject_Z _) in *. pose proof (power_positive e) as P.
  setoid_replace (s / power e - total x l) with ((s - total x l * power e) / power e)
    by (field; lra).
  unfold Qdiv. rewrite Qabs_Qmult, (Qabs_pos (/ power e)) by (apply Qlt_le_weak, Qinv_lt_0_compat, P).
  rewrite power_next. setoid_replace (number_of l * / (2 * power e))
    with (number_of l * (1 # 2) * / power e) by (field; lra).
  apply Qmult_le_compat_r; auto. apply Qlt_le_weak, Qinv_lt_0_compat, P.
Qed.

(** The average is off by 1 / 2 ^ (e + 1) at most, however many numbers there are. *)
Theorem error_of_average rint e {I} (x : I -> Q) l : nearest rint -> l <> [] ->
  Qabs (inject_Z (sum integers (fun i => integer_of rint e (x i)) l) / power e / number_of l
        - total x l / number_of l)
  <= / power (e + 1).
Proof.
  intros Near Some_. pose proof (error_of_sum rint e x l Near) as S. set (s := inject_Z _) in *.
  assert (N : 0 < number_of l).
  { destruct l as [|i l]; [congruence|]. rewrite number_of_cons.
    pose proof (number_of_nonnegative l). lra. }
  pose proof (power_positive e) as P. pose proof (power_positive (e + 1)) as P'.
  setoid_replace (s / power e / number_of l - total x l / number_of l)
    with ((s / power e - total x l) / number_of l) by (field; lra).
  unfold Qdiv at 1. rewrite Qabs_Qmult, (Qabs_pos (/ number_of l))
    by (apply Qlt_le_weak, Qinv_lt_0_compat, N).
  setoid_replace (/ power (e + 1)) with (number_of l / power (e + 1) * / number_of l)
    by (field; lra).
  apply Qmult_le_compat_r; auto. apply Qlt_le_weak, Qinv_lt_0_compat, N.
Qed.

(** What a float makes of it: the sum becomes a float, and the quotient is one. Each of these two
    roundings is off by the share [u] at most (2 ^ -24 for float32, unless the result is denormal). *)
Theorem error_after_division rint e {I} (x : I -> Q) l u converted divided :
  nearest rint -> l <> [] -> 0 <= u ->
  let s := inject_Z (sum integers (fun i => integer_of rint e (x i)) l) in
  let average := total x l / number_of l in
  Qabs (converted - s) <= u * Qabs s ->
  Qabs (divided - converted / power e / number_of l)
    <= u * Qabs (converted / power e / number_of l) ->
  Qabs (divided - average)
  <= / power (e + 1) + (2 * u + u * u) * (Qabs average + / power (e + 1)).
Proof.
  intros Near Some_ U s average C D.
  pose proof (error_of_average rint e x l Near Some_) as A. fold s average in A.
  assert (N : 0 < number_of l).
  { destruct l as [|i l]; [congruence|]. rewrite number_of_cons.
    pose proof (number_of_nonnegative l). lra. }
  pose proof (power_positive e) as P.
  set (scale := / power e / number_of l).
  assert (Scale : 0 <= scale).
  { unfold scale, Qdiv. apply Qmult_le_0_compat; apply Qlt_le_weak, Qinv_lt_0_compat; auto. }
  assert (Ec : converted / power e / number_of l == converted * scale)
    by (unfold scale; field; lra).
  assert (Es : s / power e / number_of l == s * scale) by (unfold scale; field; lra).
  rewrite Ec in D. rewrite Es in A.
  assert (C' : Qabs (converted * scale - s * scale) <= u * Qabs (s * scale)).
  { setoid_replace (converted * scale - s * scale) with ((converted - s) * scale) by ring.
    rewrite !Qabs_Qmult, (Qabs_pos scale) by exact Scale.
    rewrite Qmult_assoc. now apply Qmult_le_compat_r. }
  set (exact := s * scale) in *. set (off := converted * scale) in *. set (half := / power (e + 1)) in *.
  assert (Large : Qabs exact <= Qabs average + half).
  { setoid_replace exact with (exact - average + average) by ring.
    eapply Qle_trans; [apply Qabs_triangle|]. lra. }
  assert (Off : Qabs off <= (1 + u) * Qabs exact).
  { setoid_replace off with (off - exact + exact) by ring.
    eapply Qle_trans; [apply Qabs_triangle|]. lra. }
  assert (Off' : u * Qabs off <= u * ((1 + u) * Qabs exact)).
  { rewrite (Qmult_comm u), (Qmult_comm u (_ * _)). now apply Qmult_le_compat_r. }
  assert (Last : (2 * u + u * u) * Qabs exact <= (2 * u + u * u) * (Qabs average + half)).
  { rewrite !(Qmult_comm (2 * u + u * u)). apply Qmult_le_compat_r; auto.
    pose proof (Qmult_le_0_compat u u U U). lra. }
  setoid_replace (divided - average)
    with (divided - off + (off - exact) + (exact - average)) by ring.
  eapply Qle_trans; [apply Qabs_triangle|].
  pose proof (Qabs_triangle (divided - off) (off - exact)). lra.
Qed.

(** * Words that cover *)

(** What is within an integer stays within it. *)
Lemma rint_within rint y (n : Z) : nearest rint -> Qabs y <= inject_Z n -> (Z.abs (rint y) <= n)%Z.
Proof.
  intros Near B. specialize (Near y). apply Qabs_Qle_condition in Near, B.
  destruct Near as [L H], B as [L' H'].
  assert (inject_Z (rint y) < inject_Z (n + 1)) by (rewrite inject_Z_plus; change (inject_Z 1) with 1; lra).
  assert (inject_Z (- n - 1) < inject_Z (rint y)).
  { unfold Z.sub. rewrite inject_Z_plus, inject_Z_opp. change (inject_Z (-(1))) with (- (1)). lra. }
  rewrite <- Zlt_Qlt in *. lia.
Qed.

(** From the largest magnitude of the numbers, without their integers. *)
Definition word_of_magnitude (w : positive) (m : N) (e : Z) (top : Q) : Z :=
  Z.min (cap w m) (Qceiling (top * power (e - bits_of m))).

(** From the integers. *)
Definition word_of_integers (w : positive) (m : N) (largest : Z) : Z :=
  Z.min (cap w m) (- (- largest / 2 ^ bits_of m)).

Lemma power_integer a : (0 <= a)%Z -> power a == inject_Z (2 ^ a).
Proof. intros A. unfold power. rewrite Zpower_Qpower by exact A. reflexivity. Qed.

Lemma cap_nonnegative w m : (bits_of m < Z.pos w -> 0 <= cap w m)%Z.
Proof. intros. unfold cap. apply Z.pow_nonneg. lia. Qed.

Theorem magnitude_covers rint w m e (xs : list Q) top :
  nearest rint -> (bits_of m < Z.pos w)%Z -> 0 <= top -> (forall x, In x xs -> Qabs x <= top) ->
  covers w m (word_of_magnitude w m e top) (map (integer_of rint e) xs).
Proof.
  intros Near U T B. set (y := top * power (e - bits_of m)).
  assert (Y : 0 <= y)
    by (apply Qmult_le_0_compat; [exact T|apply Qlt_le_weak, power_positive]).
  assert (C : (0 <= Qceiling y)%Z).
  { rewrite Zle_Qle. eapply Qle_trans; [exact Y|apply Qle_ceiling]. }
  pose proof (cap_nonnegative w m U). unfold covers, word_of_magnitude. fold y.
  split; [lia|]. intros Small z Hz. apply in_map_iff in Hz as (x & <- & Hx).
  replace (Z.min (cap w m) (Qceiling y)) with (Qceiling y) by lia.
  apply (rint_within rint); auto. rewrite inject_Z_mult, <- power_integer by apply bits_nonnegative.
  eapply Qle_trans with (y := power (bits_of m) * y).
  - unfold y. rewrite Qabs_Qmult, (Qabs_pos (power e)) by apply Qlt_le_weak, power_positive.
    setoid_replace (power (bits_of m) * (top * power (e - bits_of m))) with (top * power e).
    + apply Qmult_le_compat_r; auto. apply Qlt_le_weak, power_positive.
    + rewrite (Qmult_comm top), Qmult_assoc, (Qmult_comm _ top). unfold power.
      rewrite <- Qpower_plus by discriminate. replace (bits_of m + (e - bits_of m))%Z with e by lia.
      reflexivity.
  - rewrite !(Qmult_comm (power (bits_of m))).
    apply Qmult_le_compat_r; [apply Qle_ceiling|apply Qlt_le_weak, power_positive].
Qed.

Theorem integers_cover w m (zs : list Z) largest :
  (bits_of m < Z.pos w -> 0 <= largest -> (forall z, In z zs -> Z.abs z <= largest) ->
   covers w m (word_of_integers w m largest) zs)%Z.
Proof.
  intros U L B. pose proof (cap_nonnegative w m U).
  assert (P : (0 < 2 ^ bits_of m)%Z) by (apply Z.pow_pos_nonneg; [lia|apply bits_nonnegative]).
  pose proof (Z.div_mod (- largest) (2 ^ bits_of m)).
  pose proof (Z.mod_pos_bound (- largest) (2 ^ bits_of m) P).
  unfold covers, word_of_integers. set (c := (- largest / 2 ^ bits_of m)%Z) in *.
  assert (largest <= 2 ^ bits_of m * - c)%Z by lia.
  assert (0 <= - c)%Z by nia. split; [lia|]. intros Small z Hz. specialize (B z Hz).
  replace (Z.min (cap w m) (- c)) with (- c)%Z by lia. lia.
Qed.

(** Exponents for the second time: where the largest magnitude fits, all integers do. *)
Theorem rescaled_fits rint w m e top x :
  nearest rint -> top * power e <= inject_Z (cap w m) -> Qabs x <= top ->
  (Z.abs (integer_of rint e x) <= cap w m)%Z.
Proof.
  intros Near T B. apply (rint_within rint); auto.
  rewrite Qabs_Qmult, (Qabs_pos (power e)) by apply Qlt_le_weak, power_positive.
  eapply Qle_trans; [|exact T]. apply Qmult_le_compat_r; auto. apply Qlt_le_weak, power_positive.
Qed.
