(** What a schedule is: phases of rounds of transfers (verify/schedule.py, docs/reference/format.md).

    Ranks are 0 .. n-1, chunks 0 .. k-1. The information in [meta] and the names of phases have no
    meaning and are left out. *)

From Coq Require Import List NArith.
Import ListNotations.
Open Scope N_scope.

Inductive operation := Copy | Reduce.

(** One chunk going from [src] to [dst]; in a file [[src, dst, chunk, op]]. *)
Record transfer := Transfer { src : N; dst : N; chunk : N; op : operation }.

(** Transfers that all read the state at the start of the round. *)
Definition round := list transfer.

Record phase := Phase { absent : list N; rounds : list round }.

Inductive port_model := Duplex | Matching | Incast (limit : N).

Record schedule := Schedule {
  ranks : N;
  chunks : N;
  late : list N;
  ports : port_model;
  phases : list phase }.

(** How many sends and receives a rank may have in a round. *)
Definition port_limit (p : port_model) : N :=
  match p with Duplex | Matching => 1 | Incast limit => limit end.

Definition rounds_of (phases : list phase) : list round := flat_map rounds phases.

Definition all_rounds (s : schedule) : list round := rounds_of (phases s).

Definition nobody_absent (p : phase) : bool :=
  match absent p with [] => true | _ => false end.

(** The completion: the rounds in which nobody is absent. *)
Definition completion (s : schedule) : list round :=
  rounds_of (filter nobody_absent (phases s)).

Definition same_operation (a b : operation) : bool :=
  match a, b with Copy, Copy | Reduce, Reduce => true | _, _ => false end.
