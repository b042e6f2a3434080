(** Numbers 0 .. n-1 as a list, and counting with lists.

    Ranks, chunks and rounds are numbers of type [N] (binary), as they are in a schedule file;
    lengths of lists are of type [nat]. *)

From Coq Require Import List NArith Lia Bool Permutation.
Import ListNotations.
Open Scope N_scope.

(** 0 .. n-1 *)
Definition range (n : N) : list N := map N.of_nat (seq 0 (N.to_nat n)).

Lemma in_range x n : In x (range n) <-> x < n.
Proof.
  unfold range. rewrite in_map_iff. split.
  - intros (y & <- & H). apply in_seq in H. lia.
  - intros H. exists (N.to_nat x). split; [lia|]. apply in_seq. lia.
Qed.

Lemma range_nodup n : NoDup (range n).
Proof.
  apply FinFun.Injective_map_NoDup; [|apply seq_NoDup]. intros a b H. lia.
Qed.

Lemma range_length n : length (range n) = N.to_nat n.
Proof. unfold range. now rewrite map_length, seq_length. Qed.

Lemma range_succ n : range (n + 1) = range n ++ [n].
Proof.
  unfold range. replace (N.to_nat (n + 1)) with (N.to_nat n + 1)%nat by lia.
  rewrite seq_app, map_app. simpl. now rewrite N2Nat.id.
Qed.

Lemma nth_range n r : r < n -> nth (N.to_nat r) (range n) 0 = r.
Proof.
  intros H. unfold range. change 0 with (N.of_nat 0). rewrite map_nth, seq_nth by lia. lia.
Qed.

(** A list without repetition that has exactly the numbers below n. *)
Lemma range_permutation l n : NoDup l -> (forall x, In x l <-> x < n) -> Permutation l (range n).
Proof.
  intros Hl Hx. apply NoDup_Permutation; auto using range_nodup.
  intros x. now rewrite Hx, in_range.
Qed.

(** * Counting *)

Lemma covering_length l n : (forall x, x < n -> In x l) -> (N.to_nat n <= length l)%nat.
Proof.
  intros H. rewrite <- range_length. apply NoDup_incl_length; [apply range_nodup|].
  intros x Hx. apply H, in_range, Hx.
Qed.

Lemma bounded_length l n : NoDup l -> (forall x, In x l -> x < n) -> (length l <= N.to_nat n)%nat.
Proof.
  intros Hl H. rewrite <- range_length. apply NoDup_incl_length; auto.
  intros x Hx. apply in_range, H, Hx.
Qed.

(** A list shorter than n leaves out a number below n. *)
Lemma left_out l n : (length l < N.to_nat n)%nat -> exists x, x < n /\ ~ In x l.
Proof.
  intros H.
  destruct (Forall_Exists_dec (fun x => In x l) (fun x => in_dec N.eq_dec x l) (range n))
    as [All|Some].
  - exfalso. rewrite Forall_forall in All. rewrite <- range_length in H.
    pose proof (NoDup_incl_length (range_nodup n) All). lia.
  - apply Exists_exists in Some as (x & Hx & Hn). exists x. now rewrite in_range in Hx.
Qed.

Notation occurrences := (count_occ N.eq_dec).

Lemma occurrences_filter (f : N -> bool) l x : (occurrences (filter f l) x <= occurrences l x)%nat.
Proof.
  induction l as [|a l IH]; simpl; auto.
  destruct (f a); simpl; destruct (N.eq_dec a x); lia.
Qed.

Lemma length_remove l x : length l = (occurrences l x + length (remove N.eq_dec x l))%nat.
Proof.
  induction l as [|a l IH]; simpl; auto.
  destruct (N.eq_dec a x), (N.eq_dec x a); simpl; try congruence; lia.
Qed.

Lemma occurrences_remove l x y : (occurrences (remove N.eq_dec x l) y <= occurrences l y)%nat.
Proof.
  induction l as [|a l IH]; simpl; auto.
  destruct (N.eq_dec x a); simpl; destruct (N.eq_dec a y); lia.
Qed.

(** If the members of [crowd] come from [places], at most [limit] from each, there are at most
    [limit] times as many. *)
Lemma crowd_length limit places : forall crowd,
  (forall x, In x crowd -> In x places) -> (forall x, (occurrences crowd x <= limit)%nat) ->
  (length crowd <= limit * length places)%nat.
Proof.
  induction places as [|p places IH]; intros crowd Hin Hocc.
  - destruct crowd as [|x crowd]; simpl; [lia|]. destruct (Hin x). now left.
  - rewrite (length_remove crowd p).
    assert (L : (length (remove N.eq_dec p crowd) <= limit * length places)%nat).
    { apply IH.
      - intros x Hx. apply in_remove in Hx as [Hx Hne]. destruct (Hin x Hx); [congruence|auto].
      - intros x. pose proof (occurrences_remove crowd p x). specialize (Hocc x). lia. }
    specialize (Hocc p). simpl. lia.
Qed.

Lemma nodup_filter_map {A} (f : A -> N) p l : NoDup (map f l) -> NoDup (map f (filter p l)).
Proof.
  induction l as [|a l IH]; simpl; auto. inversion 1; subst. destruct (p a); simpl; auto.
  constructor; auto. rewrite in_map_iff. intros (y & E & Hin). apply filter_In in Hin as [Hin _].
  match goal with Hn : ~ In _ _ |- _ => apply Hn end. rewrite <- E. now apply in_map.
Qed.

Lemma occurrences_filter_map {A} (f : A -> N) p l x :
  (occurrences (map f (filter p l)) x <= occurrences (map f l) x)%nat.
Proof.
  induction l as [|a l IH]; simpl; auto.
  destruct (p a); simpl; destruct (N.eq_dec (f a) x); lia.
Qed.

Lemma filter_length_le {A} (p : A -> bool) l : (length (filter p l) <= length l)%nat.
Proof. induction l as [|a l IH]; simpl; auto. destruct (p a); simpl; lia. Qed.

(** * Places around a ring *)

Lemma mod_add a b n : a < n -> b <= n -> (a + b) mod n = if a + b <? n then a + b else a + b - n.
Proof.
  intros Ha Hb. destruct (N.ltb_spec (a + b) n) as [H|H].
  - now apply N.mod_small.
  - symmetry. apply (N.mod_unique _ _ 1); lia.
Qed.

(** Closes goals with comparisons in them, by cases. *)
Ltac by_cases :=
  repeat match goal with
  | |- context [?a <? ?b] => destruct (N.ltb_spec a b)
  | H : context [?a <? ?b] |- _ => destruct (N.ltb_spec a b)
  end; lia.

Lemma filter_unique {A} (p : A -> bool) l x :
  NoDup l -> In x l -> (forall y, In y l -> p y = true <-> y = x) -> filter p l = [x].
Proof.
  induction l as [|a l IH]; simpl; intros Hl Hx Hp; [easy|]. inversion Hl; subst.
  destruct Hx as [->|Hx].
  - replace (p x) with true by (symmetry; apply Hp; auto).
    f_equal. apply incl_l_nil. intros y Hy. apply filter_In in Hy as [Hy Py].
    apply Hp in Py; auto. now subst.
  - destruct (p a) eqn:Pa.
    + apply Hp in Pa; auto. subst. contradiction.
    + apply IH; auto.
Qed.

Lemma nodup_map_on {A B} (f : A -> B) l :
  (forall x y, In x l -> In y l -> f x = f y -> x = y) -> NoDup l -> NoDup (map f l).
Proof.
  induction l as [|a l IH]; simpl; intros Inj Hl; [constructor|]. inversion Hl; subst.
  constructor; auto. rewrite in_map_iff. intros (x & E & Hx).
  apply Inj in E; auto. congruence.
Qed.

Lemma nodup_app {A} (l l' : list A) :
  NoDup (l ++ l') <-> NoDup l /\ NoDup l' /\ (forall x, In x l -> ~ In x l').
Proof.
  induction l as [|a l IH]; simpl.
  - split; [intros H; repeat split; auto; constructor|tauto].
  - rewrite !NoDup_cons_iff, IH, in_app_iff. split.
    + intros (Ha & Hl & Hl' & D). repeat split; auto. intros x [->|Hx]; auto.
    + intros ((Ha & Hl) & Hl' & D). repeat split; auto.
      intros [Hin|Hin]; auto. now apply (D a); auto.
Qed.

Lemma nodup_prod {A B} (l : list A) (l' : list B) : NoDup l -> NoDup l' -> NoDup (list_prod l l').
Proof.
  intros Hl Hl'. induction Hl as [|a l Ha Hl IH]; simpl; [constructor|].
  apply nodup_app. repeat split; auto.
  - apply FinFun.Injective_map_NoDup; auto. intros x y E. congruence.
  - intros p Hp Hin. apply in_map_iff in Hp as (b & <- & _). now apply in_prod_iff in Hin.
Qed.
