(** What `verify --certify` writes files against: one computation in the kernel, one theorem.

    A certificate defines a schedule, lets the kernel compute [check] on it, and concludes by
    [certify] that it is right, or by [certify_optimal] that it is optimal as well. *)

From Coq Require Export List NArith.
From Coq Require Import Bool.
From Latecomer Require Export Ranges Schedule Semantics SameBits Structure Bounds Check.
Export ListNotations.
Global Open Scope N_scope.

Notation Send s d c := (Transfer s d c Copy) (only parsing).
Notation Add s d c := (Transfer s d c Reduce) (only parsing).

Theorem certify s : accepted (check s) = true ->
  correct s /\ same_bits s /\ well_formed s /\ ports_respected s /\ absence_respected s /\
  hazard_free s.
Proof. apply check_sound. Qed.

Definition proves_optimal (s : schedule) : bool :=
  let r := check s in
  (2 <=? ranks s) && accepted r && match is_optimal r with Some true => true | _ => false end.

Theorem certify_optimal s : proves_optimal s = true ->
  (correct s /\ same_bits s /\ well_formed s /\ ports_respected s /\ absence_respected s /\
   hazard_free s) /\ optimal s.
Proof.
  unfold proves_optimal. rewrite !andb_true_iff, N.leb_le. intros [[Hn A] O]. split.
  - now apply certify.
  - pose proof (check_optimal s Hn A) as H. destruct (is_optimal (check s)) as [[]|]; easy.
Qed.
