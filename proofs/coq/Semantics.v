(** What a schedule means (verify/semantics.py), for data of any kind.

    A state gives every (rank, chunk) a value. All transfers of a round read the state at the start
    of the round; they are applied in the order in which they are listed; [Copy] overwrites,
    [Reduce] adds.

    The main tool is a *collecting* run, in which the value of a (rank, chunk) is the list of the
    sources that were added up in it. By [run_collects] it tells the result for all data at once:
    the real run ends with the sum over that list, in every commutative monoid. *)

From Coq Require Import List NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule.
Import ListNotations.
Open Scope N_scope.

(** * Running rounds *)

Section Run.
  Context {A : Type} (plus : A -> A -> A).

  (** rank -> chunk -> value *)
  Definition state := N -> N -> A.

  Definition put (s : state) r c v : state :=
    fun r' c' => if (r' =? r) && (c' =? c) then v else s r' c'.

  (** One transfer: [start] is the state at the start of the round, [now] the state so far. *)
  Definition deliver (start now : state) (t : transfer) : state :=
    put now (dst t) (chunk t)
      match op t with
      | Copy => start (src t) (chunk t)
      | Reduce => plus (now (dst t) (chunk t)) (start (src t) (chunk t))
      end.

  Definition run_round (s : state) (rd : round) : state := fold_left (deliver s) rd s.

  Definition run (s : state) (rs : list round) : state := fold_left run_round rs s.

  Lemma run_app s rs rs' : run s (rs ++ rs') = run (run s rs) rs'.
  Proof. apply fold_left_app. Qed.

  Lemma put_same s r c v : put s r c v r c = v.
  Proof. unfold put. now rewrite !N.eqb_refl. Qed.

  Lemma put_other s r c v r' c' : r' <> r \/ c' <> c -> put s r c v r' c' = s r' c'.
  Proof.
    unfold put. intros H. destruct (N.eqb_spec r' r), (N.eqb_spec c' c); simpl; auto.
    destruct H; congruence.
  Qed.

  (** A round changes nothing where it writes nothing. *)
  Lemma run_round_quiet s rd r c :
    (forall t, In t rd -> dst t = r -> chunk t <> c) -> run_round s rd r c = s r c.
  Proof.
    unfold run_round. intros H.
    assert (G : forall now, fold_left (deliver s) rd now r c = now r c).
    { induction rd as [|t rd IH]; simpl; auto. intros now. rewrite IH.
      - unfold deliver. apply put_other. destruct (N.eq_dec r (dst t)) as [->|]; auto.
        right. specialize (H t (or_introl eq_refl) eq_refl). congruence.
      - intros u Hu. apply H. now right. }
    apply G.
  Qed.

  (** Where only one transfer of the round goes to a rank, it does what it says. *)
  Lemma run_round_receives s rd t : NoDup (map dst rd) -> In t rd ->
    run_round s rd (dst t) (chunk t)
    = match op t with
      | Copy => s (src t) (chunk t)
      | Reduce => plus (s (dst t) (chunk t)) (s (src t) (chunk t))
      end.
  Proof.
    intros Once Hin. apply in_split in Hin as (before & after & ->).
    rewrite map_app in Once. simpl in Once. apply NoDup_remove in Once as [_ Once].
    assert (Else : forall u, In u (before ++ after) -> dst u <> dst t).
    { intros u Hu E. apply Once. rewrite <- map_app, <- E. now apply in_map. }
    unfold run_round. rewrite fold_left_app. simpl.
    set (now := fold_left (deliver s) before s).
    assert (Now : now (dst t) (chunk t) = s (dst t) (chunk t)).
    { apply (run_round_quiet s before). intros u Hu E. exfalso. revert E.
      apply Else, in_or_app. now left. }
    assert (G : forall later s', (forall u, In u later -> dst u <> dst t) ->
      fold_left (deliver s) later s' (dst t) (chunk t) = s' (dst t) (chunk t)).
    { induction later as [|u later IH]; simpl; auto. intros s' H.
      rewrite IH by (intros; apply H; now right).
      unfold deliver. apply put_other. left. intros E. apply (H u); [now left|congruence]. }
    rewrite G by (intros u Hu; apply Else, in_or_app; now right).
    unfold deliver. rewrite put_same. destruct (op t); auto. now rewrite Now.
  Qed.

  (** Induction over the rounds 0 .. m-1. *)
  Lemma run_invariant (holds : N -> state -> Prop) s (f : N -> round) m :
    holds 0 s ->
    (forall t s', t < m -> holds t s' -> holds (t + 1) (run_round s' (f t))) ->
    holds m (run s (map f (range m))).
  Proof.
    intros H0 Hstep. revert Hstep. induction m as [|m IH] using N.peano_ind; intros Hstep; auto.
    rewrite <- N.add_1_r, range_succ, map_app, run_app. simpl. apply Hstep; [lia|].
    apply IH. intros t s' Ht. apply Hstep. lia.
  Qed.
End Run.

Arguments state : clear implicits.

(** * Two runs side by side *)

(** A relation between values that addition preserves is preserved by running. It may depend on the
    chunk. [inside] are the ranks it is about: no transfer brings data in from outside. *)
Section Related.
  Context {A B : Type} (plus_a : A -> A -> A) (plus_b : B -> B -> B).
  Variable related : N -> A -> B -> Prop.
  Hypothesis related_plus : forall c a b a' b',
    related c a b -> related c a' b' -> related c (plus_a a a') (plus_b b b').
  Variable inside : N -> Prop.

  Definition states_related (s : state A) (s' : state B) :=
    forall r c, inside r -> related c (s r c) (s' r c).

  Definition sent_inside (rd : round) := Forall (fun t => inside (src t)) rd.

  Lemma run_round_related s s' rd :
    sent_inside rd -> states_related s s' ->
    states_related (run_round plus_a s rd) (run_round plus_b s' rd).
  Proof.
    unfold run_round. intros Hin Hs.
    assert (G : forall now now', states_related now now' ->
      states_related (fold_left (deliver plus_a s) rd now)
                     (fold_left (deliver plus_b s') rd now')).
    { induction Hin as [|t rd Ht Hin IH]; simpl; auto. intros now now' Hn. apply IH.
      intros r c Hr. unfold deliver, put.
      destruct (N.eqb_spec r (dst t)) as [->|]; simpl; auto.
      destruct (N.eqb_spec c (chunk t)) as [->|]; simpl; auto.
      destruct (op t); auto. }
    auto.
  Qed.

  Lemma run_related rs : forall s s',
    Forall sent_inside rs -> states_related s s' ->
    states_related (run plus_a s rs) (run plus_b s' rs).
  Proof.
    induction rs as [|rd rs IH]; simpl; auto. intros s s' Hin Hs.
    inversion Hin; subst. apply IH; auto. now apply run_round_related.
  Qed.
End Related.

(** Runs that start equal end equal. *)
Lemma run_ext {A} (plus : A -> A -> A) rs s s' :
  (forall r c, s r c = s' r c) -> forall r c, run plus s rs r c = run plus s' rs r c.
Proof.
  intros H r c.
  refine (run_related plus plus (fun _ a b => a = b) _ (fun _ => True) rs s s' _ _ r c I).
  - intros; congruence.
  - apply Forall_forall; intros rd _. apply Forall_forall; auto.
  - intros r' c' _. apply H.
Qed.

(** The ranks that a well formed schedule deals with; nothing else is read. *)
Definition ranks_exist (n : N) (rs : list round) : Prop :=
  Forall (sent_inside (fun r => r < n)) rs.

(** * Commutative monoids *)

Record commutative_monoid := CommutativeMonoid {
  carrier :> Type;
  add : carrier -> carrier -> carrier;
  zero : carrier;
  add_comm : forall a b, add a b = add b a;
  add_assoc : forall a b c, add a (add b c) = add (add a b) c;
  add_zero : forall a, add zero a = a }.

Definition counting : commutative_monoid :=
  CommutativeMonoid N N.add 0 N.add_comm N.add_assoc N.add_0_l.

Section Sum.
  Variable M : commutative_monoid.

  (** The sum of [x i] over a list of [i]. *)
  Definition sum {I : Type} (x : I -> M) (l : list I) : M :=
    fold_right (fun i total => add M (x i) total) (zero M) l.

  Lemma sum_app {I} (x : I -> M) l l' : sum x (l ++ l') = add M (sum x l) (sum x l').
  Proof.
    induction l as [|i l IH]; simpl.
    - now rewrite add_zero.
    - now rewrite IH, add_assoc.
  Qed.

  Lemma sum_cons {I} (x : I -> M) i l : sum x (i :: l) = add M (x i) (sum x l).
  Proof. reflexivity. Qed.

  Lemma sum_single {I} (x : I -> M) i : sum x [i] = x i.
  Proof. simpl. rewrite add_comm. apply add_zero. Qed.

  Lemma sum_permutation {I} (x : I -> M) l l' : Permutation l l' -> sum x l = sum x l'.
  Proof.
    induction 1; simpl; try congruence.
    now rewrite !add_assoc, (add_comm M (x y)).
  Qed.

  Lemma sum_map {I J} (f : J -> I) (x : I -> M) l : sum x (map f l) = sum (fun j => x (f j)) l.
  Proof. induction l; simpl; congruence. Qed.
End Sum.

(** A rank's own data, or whatever happened to be in a rank's buffer before. *)
Inductive source := Rank (r : N) | Stale (r : N).

(** The sources that were added up in each (rank, chunk), with repetition. *)
Definition collect (start : N -> N -> list source) (rs : list round) : state (list source) :=
  run (@app source) start rs.

(** One collecting run tells the result for all data, in every commutative monoid. *)
Theorem run_collects (M : commutative_monoid) (x : source -> N -> M) start rs r c :
  run (add M) (fun r c => sum M (fun i => x i c) (start r c)) rs r c
  = sum M (fun i => x i c) (collect start rs r c).
Proof.
  symmetry.
  refine (run_related (@app source) (add M)
            (fun c l m => sum M (fun i => x i c) l = m) _ (fun _ => True) rs _ _ _ _ r c I).
  - intros; subst. apply sum_app.
  - apply Forall_forall; intros rd _. apply Forall_forall; auto.
  - intros r' c' _. reflexivity.
Qed.

(** * Correct schedules *)

(** The specification. Every rank [r] brings its own [x r c] to every chunk [c]; at the end every
    rank holds the sum over all ranks in every chunk. *)
Definition all_reduce (n k : N) (rs : list round) : Prop :=
  forall (M : commutative_monoid) (x : N -> N -> M) r c, r < n -> c < k ->
    run (add M) x rs r c = sum M (fun i => x i c) (range n).

Definition correct (s : schedule) : Prop := all_reduce (ranks s) (chunks s) (all_rounds s).

(** At the start every rank has its own data, everywhere. *)
Definition own_data : N -> N -> list source := fun r _ => [Rank r].

Definition source_eq_dec (i j : source) : {i = j} + {i <> j}.
Proof. decide equality; apply N.eq_dec. Defined.

(** Counting: with 1 from source [i] and 0 from all others the sum counts the [i]. *)
Lemma sum_counting (l : list source) i :
  sum counting (fun j => if source_eq_dec j i then 1 else 0) l
  = N.of_nat (count_occ source_eq_dec l i).
Proof.
  set (x := fun j => if source_eq_dec j i then 1 else 0).
  induction l as [|j l IH]; auto. rewrite sum_cons, IH. unfold x. simpl.
  destruct (source_eq_dec j i); lia.
Qed.
