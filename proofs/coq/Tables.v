(** Runs that can be executed: a state as a table (finite maps), the same as in [Semantics]. *)

From Coq Require Import List NArith PArith FMapPositive Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics.
Import ListNotations.
Open Scope N_scope.

(** * Finite maps from numbers *)

Module PM := PositiveMap.

Section Map.
  Context {A : Type}.

  Definition find_at (m : PM.t A) (i : N) : option A := PM.find (N.succ_pos i) m.

  Definition add_at (m : PM.t A) (i : N) (v : A) : PM.t A := PM.add (N.succ_pos i) v m.

  Lemma find_add m i v j : find_at (add_at m i v) j = if j =? i then Some v else find_at m j.
  Proof.
    unfold find_at, add_at. destruct (N.eqb_spec j i) as [->|H]; [apply PM.gss|].
    apply PM.gso. intros E. apply H. apply (f_equal N.pos) in E.
    rewrite !N.succ_pos_spec in E. lia.
  Qed.

  Lemma find_empty i : find_at (PM.empty A) i = None.
  Proof. apply PM.gempty. Qed.
End Map.

(** * Tables: chunk -> rank -> value, where something has been written *)

Section Table.
  Context {A : Type} (plus : A -> A -> A) (start : N -> N -> A).

  Definition table := PM.t (PM.t A).

  Definition row (t : table) (c : N) : PM.t A :=
    match find_at t c with Some m => m | None => PM.empty A end.

  Definition read (t : table) (r c : N) : A :=
    match find_at (row t c) r with Some v => v | None => start r c end.

  Definition write (t : table) (r c : N) (v : A) : table := add_at t c (add_at (row t c) r v).

  Definition deliver_table (before now : table) (x : transfer) : table :=
    write now (dst x) (chunk x)
      match op x with
      | Copy => read before (src x) (chunk x)
      | Reduce => plus (read now (dst x) (chunk x)) (read before (src x) (chunk x))
      end.

  Definition run_round_table (t : table) (rd : round) : table := fold_left (deliver_table t) rd t.

  Definition run_table (rs : list round) : table := fold_left run_round_table rs (PM.empty _).

  Lemma read_write t r c v r' c' : read (write t r c v) r' c' = put (read t) r c v r' c'.
  Proof.
    unfold read, write, put, row at 1. rewrite find_add.
    destruct (N.eqb_spec c' c) as [->|]; [|now rewrite andb_false_r].
    rewrite find_add, andb_true_r. now destruct (r' =? r).
  Qed.

  Lemma run_round_table_ok t rd (s : state A) : (forall r c, read t r c = s r c) ->
    forall r c, read (run_round_table t rd) r c = run_round plus s rd r c.
  Proof.
    intros H. unfold run_round_table, run_round.
    assert (G : forall now (s' : state A), (forall r c, read now r c = s' r c) ->
      forall r c, read (fold_left (deliver_table t) rd now) r c
                  = fold_left (deliver plus s) rd s' r c).
    { induction rd as [|x rd IH]; simpl; auto. intros now s' E. apply IH. intros r c.
      unfold deliver_table, deliver. rewrite read_write. unfold put.
      destruct ((r =? dst x) && (c =? chunk x)); auto. destruct (op x); now rewrite ?E, ?H. }
    now apply G.
  Qed.

  Theorem run_table_ok rs r c : read (run_table rs) r c = run plus start rs r c.
  Proof.
    unfold run_table, run.
    assert (G : forall t (s : state A), (forall r c, read t r c = s r c) ->
      forall r c, read (fold_left run_round_table rs t) r c
                  = fold_left (run_round plus) rs s r c).
    { induction rs as [|rd rs IH]; simpl; auto. intros t s E. apply IH.
      now apply run_round_table_ok. }
    apply G. intros r' c'. unfold read, row. now rewrite !find_empty.
  Qed.
End Table.
