(** What the checker computes with: sets of contributions as bits, with the tree that added them.

    A value in which some contribution was counted twice, or which stale data went into, can only
    get right again by being overwritten: contributions are never subtracted. So such values need no
    detail; they are [None]. *)

From Coq Require Import List NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits Tables.
Import ListNotations.
Open Scope N_scope.

(** Contributions (bit r: rank r) and tree; [None] for what can't be part of a right result. *)
Definition value := option (N * tree).

Definition own_value (r : N) : value := Some (N.shiftl 1 r, Leaf r).

Definition add_values (a b : value) : value :=
  match a, b with
  | Some (set, t), Some (set', t') =>
      if N.land set set' =? 0 then Some (N.lor set set', join t t') else None
  | _, _ => None
  end.

(** All contributions of the ranks below n, each once. *)
Definition is_total (n : N) (v : value) : bool :=
  match v with Some (set, _) => set =? N.ones n | None => false end.

(** * The relation to lists of sources and to trees *)

(** No source twice, nothing stale. *)
Definition clean (l : list source) : Prop :=
  NoDup l /\ forall i, In i l -> exists r, i = Rank r.

Definition bits_of (set : N) (l : list source) : Prop :=
  forall r, N.testbit set r = true <-> In (Rank r) l.

Definition stands_for (v : value) (l : list source) : Prop :=
  match v with
  | Some (set, _) => clean l /\ bits_of set l
  | None => ~ clean l
  end.

Lemma clean_app l l' :
  clean (l ++ l') <-> clean l /\ clean l' /\ (forall r, In (Rank r) l -> ~ In (Rank r) l').
Proof.
  unfold clean. rewrite nodup_app. split.
  - intros ((Hl & Hl' & D) & R). repeat split; auto; intros i Hi; apply R, in_or_app; auto.
  - intros ((Hl & R) & (Hl' & R') & D). repeat split; auto.
    + intros i Hi. destruct (R i Hi) as (r & ->). auto.
    + intros i Hi. apply in_app_iff in Hi as [Hi|Hi]; auto.
Qed.

Lemma disjoint_bits a b : N.land a b = 0 <-> forall r, N.testbit a r = true -> N.testbit b r = false.
Proof.
  split.
  - intros H r Ha. destruct (N.testbit b r) eqn:Hb; auto.
    assert (T : N.testbit (N.land a b) r = true) by (now rewrite N.land_spec, Ha, Hb).
    rewrite H, N.bits_0 in T. discriminate.
  - intros H. apply N.bits_inj. intros r. rewrite N.land_spec, N.bits_0.
    destruct (N.testbit a r) eqn:Ha; auto. now rewrite (H r Ha).
Qed.

Lemma add_stands a b l l' : stands_for a l -> stands_for b l' ->
  stands_for (add_values a b) (l ++ l').
Proof.
  unfold stands_for, bits_of, add_values. destruct a as [[set t]|], b as [[set' t']|]; intros H H'.
  - destruct H as [C B], H' as [C' B'].
    destruct (N.eqb_spec (N.land set set') 0) as [E|E].
    + rewrite disjoint_bits in E. split.
      * apply clean_app. repeat split; auto; try apply C; try apply C'.
        intros r Hr Hr'. apply B in Hr. apply B' in Hr'. rewrite (E r Hr) in Hr'. discriminate.
      * intros r. rewrite N.lor_spec, orb_true_iff, in_app_iff, B, B'. tauto.
    + intros C''. apply clean_app in C'' as (_ & _ & D). apply E, disjoint_bits.
      intros r Hr. destruct (N.testbit set' r) eqn:Hr'; auto. exfalso.
      apply B in Hr. apply B' in Hr'. now apply (D r).
  - intros C. apply clean_app in C. tauto.
  - intros C. apply clean_app in C. tauto.
  - intros C. apply clean_app in C. tauto.
Qed.

Lemma own_stands r : stands_for (own_value r) [Rank r].
Proof.
  split.
  - split; [constructor; [intros []|constructor]|]. intros i [<-|[]]. eauto.
  - intros r'. rewrite N.shiftl_1_l, N.pow2_bits_eqb, N.eqb_eq. simpl. intuition congruence.
Qed.

Lemma everybody_clean n : clean (everybody n).
Proof.
  unfold everybody. split.
  - apply FinFun.Injective_map_NoDup; [intros a b; congruence|apply range_nodup].
  - intros i Hi. apply in_map_iff in Hi as (r & <- & _). eauto.
Qed.

Lemma clean_permutation l l' : Permutation l l' -> clean l -> clean l'.
Proof.
  intros P [Hn Hr]. split; [now apply (Permutation_NoDup P)|].
  intros i Hi. apply Hr. now apply (Permutation_in i (Permutation_sym P)).
Qed.

Lemma ones_testbit n r : N.testbit (N.ones n) r = true <-> r < n.
Proof.
  destruct (N.lt_ge_cases r n) as [H|H].
  - rewrite N.ones_spec_low by auto. tauto.
  - rewrite N.ones_spec_high by auto. split; [discriminate|lia].
Qed.

(** The checker's test at the end is exact. *)
Lemma is_total_iff n v l : stands_for v l -> is_total n v = true <-> Permutation l (everybody n).
Proof.
  unfold stands_for, bits_of, is_total. destruct v as [[set t]|].
  - intros [C B]. rewrite N.eqb_eq. split.
    + intros ->. apply NoDup_Permutation; [apply C|apply everybody_clean|].
      intros i. split; intros Hi.
      * destruct (proj2 C i Hi) as (r & ->). apply in_map, in_range, ones_testbit. now apply B.
      * apply in_map_iff in Hi as (r & <- & Hr). apply B, ones_testbit. now apply in_range.
    + intros P. apply N.bits_inj. intros r. apply eq_true_iff_eq.
      rewrite (B r), ones_testbit, <- in_range. split; intros H.
      * apply (Permutation_in _ P) in H. apply in_map_iff in H as (r' & E & H). congruence.
      * apply (Permutation_in _ (Permutation_sym P)). now apply in_map.
  - intros N. split; [discriminate|]. intros P. exfalso. apply N.
    now apply (clean_permutation (everybody n)); [apply Permutation_sym|apply everybody_clean].
Qed.

(** Trees: a value that is not [None] carries the tree of the run on trees. *)
Definition has_tree (v : value) (t : tree) : Prop :=
  match v with Some (_, t') => t' = t | None => True end.

Lemma add_has_tree a b t t' : has_tree a t -> has_tree b t' -> has_tree (add_values a b) (join t t').
Proof.
  unfold has_tree, add_values. destruct a as [[set u]|], b as [[set' u']|]; auto.
  intros -> ->. destruct (_ =? _); auto.
Qed.

(** * One run of values tells both *)

Section Run.
  Variable rs : list round.

  Definition final_values : table := run_table add_values (fun r _ => own_value r) rs.

  Definition final_value (r c : N) : value := read (fun r _ => own_value r) final_values r c.

  Lemma final_value_stands r c : stands_for (final_value r c) (collect own_data rs r c).
  Proof.
    unfold final_value, final_values. rewrite run_table_ok.
    refine (run_related add_values (@app source) (fun _ => stands_for) _ (fun _ => True)
              rs _ own_data _ _ r c I).
    - intros _ a b a' b'. apply add_stands.
    - apply Forall_forall; intros rd _. apply Forall_forall; auto.
    - intros r' c' _. apply own_stands.
  Qed.

  Lemma final_value_tree r c : has_tree (final_value r c) (final_trees rs r c).
  Proof.
    unfold final_value, final_values. rewrite run_table_ok.
    refine (run_related add_values join (fun _ => has_tree) _ (fun _ => True)
              rs _ (fun r _ => Leaf r) _ _ r c I).
    - intros _ a b a' b'. apply add_has_tree.
    - apply Forall_forall; intros rd _. apply Forall_forall; auto.
    - intros r' c' _. reflexivity.
  Qed.
End Run.
