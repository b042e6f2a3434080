(** Any programs (verify/programs.py, [deadlock_free]): if waiting has no cycle, nobody gets stuck.

    A program is a list of steps, each a group of transfers that are posted together; a rank goes on
    when all transfers of its step are complete; a transfer completes when both ends have posted it.
    Transfer j waits for transfer i if some rank has i in an earlier step than j. This is acyclic if
    and only if transfers can be given levels that rise along it, and then there is no deadlock,
    whatever the timing. (For one step per round, the level is the round: [Programs.v].) *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Volume Programs.
Import ListNotations.
Open Scope nat_scope.

Section Programs.
  Variables (n : N) (transfers : nat) (src dst : nat -> N) (program : N -> list (list nat)).

  Definition step (r : N) (a : nat) : list nat := nth a (program r) [].

  (** Rank [r] posts transfer [i] in step [a]. *)
  Definition posts (r : N) (a i : nat) : Prop := In i (step r a).

  (** Both ends post every transfer, in one step each, and nobody else does. *)
  Definition faithful : Prop :=
    (forall i, i < transfers -> (src i < n)%N /\ (dst i < n)%N /\
       (exists a, posts (src i) a i) /\ (exists a, posts (dst i) a i)) /\
    (forall r a b i, posts r a i -> posts r b i -> a = b) /\
    (forall r a i, posts r a i -> i < transfers /\ (src i = r \/ dst i = r)).

  Definition waits_for (j i : nat) : Prop := exists r a b, posts r a i /\ posts r b j /\ a < b.

  Definition acyclic : Prop := exists level : nat -> nat, forall i j, waits_for j i -> level i < level j.

  (** How far everybody is, and what is complete. *)
  Record standing := Standing { at_step : N -> nat; completed : nat -> bool }.

  Inductive happens (s : standing) : standing -> Prop :=
  | Completed i : i < transfers -> completed s i = false ->
      posts (src i) (at_step s (src i)) i -> posts (dst i) (at_step s (dst i)) i ->
      happens s (Standing (at_step s) (fun j => (j =? i) || completed s j))
  | WentOn r : (r < n)%N -> at_step s r < length (program r) ->
      (forall i, posts r (at_step s r) i -> completed s i = true) ->
      happens s (Standing (fun q => if (q =? r)%N then S (at_step s r) else at_step s q)
                   (completed s)).

  Inductive reached : standing -> Prop :=
  | Started : reached (Standing (fun _ => 0) (fun _ => false))
  | Reached s s' : reached s -> happens s s' -> reached s'.

  Definition all_done (s : standing) : Prop :=
    forall r, (r < n)%N -> at_step s r >= length (program r).

  Lemma posts_in_program r a i : posts r a i -> a < length (program r).
  Proof.
    unfold posts, step. intros H. destruct (le_lt_dec (length (program r)) a); auto.
    now rewrite nth_overflow in H.
  Qed.

  (** Nobody has passed a step with an open transfer. *)
  Lemma open_not_passed s : reached s ->
    forall r a i, posts r a i -> completed s i = false -> at_step s r <= a.
  Proof.
    induction 1 as [|s s' R IH H]; simpl; intros r a i P C; [lia|].
    destruct H as [j Hj Open Ps Pd|q Hq Hlt All]; simpl in *.
    - apply orb_false_iff in C as [_ C]. eauto.
    - destruct (N.eqb_spec r q) as [->|]; [|eauto].
      specialize (IH q a i P C). destruct (Nat.eq_dec (at_step s q) a) as [<-|]; [|lia].
      rewrite (All i P) in C. discriminate.
  Qed.

  Theorem acyclic_never_stuck : faithful -> acyclic ->
    forall s, reached s -> ~ all_done s -> exists s', happens s s'.
  Proof.
    intros (Both & Once & Own) (level & Rising) s R NotDone.
    assert (Least : forall l, (exists i, In i l /\ completed s i = false) ->
      exists i, In i l /\ completed s i = false /\
        forall j, In j l -> level j < level i -> completed s j = true).
    { induction l as [|a l IH]; [intros (i & [] & _)|]. intros (i & Hi & Ci).
      destruct (completed s a) eqn:Ca.
      - destruct Hi as [->|Hi]; [congruence|].
        destruct IH as (b & Hb & Cb & Min); [eauto|].
        exists b. simpl. repeat split; auto. intros j [<-|Hj]; auto.
      - destruct (Exists_dec (fun i => completed s i = false) l) as [X|X].
        { intros x. destruct (completed s x); [right|left]; congruence. }
        + apply Exists_exists in X. destruct (IH X) as (b & Hb & Cb & Min).
          destruct (le_lt_dec (level b) (level a)).
          * exists b. simpl. repeat split; auto. intros j [<-|Hj]; auto. lia.
          * exists a. simpl. repeat split; auto. intros j [<-|Hj] L; [lia|].
            apply Min; auto. lia.
        + exists a. simpl. repeat split; auto. intros j [<-|Hj] L; [lia|].
          destruct (completed s j) eqn:Cj; auto. exfalso. apply X, Exists_exists. eauto. }
    destruct (Exists_dec (fun i => completed s i = false) (seq 0 transfers)) as [X|X].
    { intros x. destruct (completed s x); [right|left]; congruence. }
    - apply Exists_exists in X. destruct (Least _ X) as (i & Hi & Ci & Min).
      apply in_seq in Hi. destruct (Both i) as (Hs & Hd & (a & Pa) & (b & Pb)); [lia|].
      (* an end that is not there yet can go on *)
      assert (GoOn : forall r c, (r < n)%N -> posts r c i -> at_step s r <> c ->
                     exists s', happens s s').
      { intros r c Hr P Ne. pose proof (open_not_passed s R r c i P Ci) as Le.
        eexists. apply (WentOn s r Hr).
        - pose proof (posts_in_program r c i P). lia.
        - intros j Pj. apply Min.
          + apply in_seq. destruct (Own r _ j Pj). lia.
          + apply Rising. exists r, (at_step s r), c. repeat split; auto. lia. }
      destruct (Nat.eq_dec (at_step s (src i)) a) as [Ea|]; [|eauto].
      destruct (Nat.eq_dec (at_step s (dst i)) b) as [Eb|]; [|eauto].
      subst a b. eexists. apply (Completed s i); auto. lia.
    - assert (All : forall i, i < transfers -> completed s i = true).
      { intros i Hi. destruct (completed s i) eqn:C; auto. exfalso.
        apply X, Exists_exists. exists i. split; auto. apply in_seq. lia. }
      destruct (Exists_dec (fun r => at_step s r < length (program r)) (range n)) as [Y|Y].
      { intros r. apply lt_dec. }
      + apply Exists_exists in Y as (r & Hr & L). eexists. apply (WentOn s r); auto.
        * now apply in_range.
        * intros i Pi. apply All. now apply (Own r (at_step s r) i).
      + exfalso. apply NotDone. intros r Hr.
        destruct (le_lt_dec (length (program r)) (at_step s r)); auto. exfalso.
        apply Y, Exists_exists. exists r. rewrite in_range. auto.
  Qed.

  (** Every happening brings the end nearer, so a run that goes on while it can ends. *)
  Definition ahead (s : standing) : nat :=
    length (filter (fun i => negb (completed s i)) (seq 0 transfers))
    + total (fun r => length (program r) - at_step s r) (range n).

  Theorem ends s s' : happens s s' -> ahead s' < ahead s.
  Proof.
    unfold ahead. intros [i Hi Open _ _|r Hr L _]; simpl.
    - apply Nat.add_lt_mono_r. apply (filter_fewer _ _ _ i).
      + intros j. destruct (completed s j); auto. now rewrite orb_true_r.
      + apply in_seq. lia.
      + now rewrite Open.
      + now rewrite Nat.eqb_refl.
    - apply Nat.add_lt_mono_l. apply (total_fewer _ _ _ r); [now apply in_range| |].
      + intros q _. destruct (N.eqb_spec q r) as [->|]; lia.
      + rewrite N.eqb_refl. lia.
  Qed.
End Programs.
