(** The executor for CPU tensors (runtime/executor/tcp): no rounds, no barriers, ahead, with credits.

    [Programs.v] is about ranks that stay in a round until all of it is complete. The executor does
    not. A chunk has elements, and what must be done before an element of a transfer may move is the
    same element of other transfers of its chunk on the same rank (runtime/executor/program.py):

    - it is sent after it has landed from all transfers into the chunk in earlier rounds;
    - it lands after it has been sent by all transfers of the chunk up to its own round, and after
      it has landed from those into the chunk in earlier rounds.

    (The executor looks at the last ones only; that these come after the others follows.) The
    elements of a transfer go in order. Between sending and landing they travel, or wait in buffers.
    When a rank sends is up to the receivers' credits and to what the sender prefers. Of all that
    only this is assumed ([has_to]):

    - what has come lands as soon as it may;
    - a transfer for which all elements are there, and whose receiver lacks nothing of earlier
      rounds, may send when all that was sent of it has landed: the receiver gives all transfers of
      its due round credit for at least one element more than has landed.

    Whatever else is sent ahead, in whatever order: no execution gets stuck ([never_stuck]), every
    execution ends ([execution_ends]), and it ends with what the rounds, run in lockstep, compute
    ([same_result]). Operations in flight together are covered as one long schedule, in which each
    has chunks of its own: all ranks submit them, in the same order.

    Assumed of the schedule is that in a round a rank receives no chunk twice ([one_at_a_time]): so it
    is with duplex and matching ports, and with incast unless several reduces meet in a buffer.
    An element stands for what a sender never cuts, 16 bytes or an element of the tensor. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics Structure.
Import ListNotations.
Open Scope nat_scope.

(** The buffer into which a transfer goes. *)
Definition target (tr : transfer) : N * N := (dst tr, chunk tr).

(** No buffer is received into twice in a round: so it is with duplex and matching ports, and with
    incast where no chunk is summed from several ranks at once. *)
Definition one_at_a_time (s : schedule) : Prop :=
  forall rd, In rd (all_rounds s) -> NoDup (map target rd).

Section SendAhead.
  Context {A : Type} (plus : A -> A -> A).
  Variable rs : list round.

  (** How many elements a chunk has, and what they are at the start, by rank and chunk. *)
  Variables (size : N -> nat) (start : N -> N -> nat -> A).

  Definition transfer_at (t i : nat) : option transfer := nth_error (nth t rs []) i.

  (** What an execution has reached: of each transfer how many elements are sent and how many have
      landed, the values they carried, and each rank's buffers. *)
  Record situation := Situation {
    sent : nat -> nat -> nat;
    landed : nat -> nat -> nat;
    carried : nat -> nat -> nat -> A;
    memory : N -> N -> nat -> A }.

  Definition beginning : situation :=
    Situation (fun _ _ => 0) (fun _ _ => 0) (fun _ _ => start 0%N 0%N) start.

  (** The next element of transfer [i] of round [t]. *)
  Inductive event := Sends (t i : nat) | Lands (t i : nat).

  (** Element [e] has landed from all transfers to rank [r], chunk [c], in rounds before [t]. *)
  Definition landed_before (s : situation) (t : nat) (r c : N) (e : nat) : Prop :=
    forall t' i' tr', transfer_at t' i' = Some tr' -> t' < t -> dst tr' = r -> chunk tr' = c ->
      e < landed s t' i'.

  (** It has been sent by all transfers of rank [r], chunk [c], in rounds up to [t]. *)
  Definition sent_up_to (s : situation) (t : nat) (r c : N) (e : nat) : Prop :=
    forall t' i' tr', transfer_at t' i' = Some tr' -> t' <= t -> src tr' = r -> chunk tr' = c ->
      e < sent s t' i'.

  Definition allowed (s : situation) (e : event) : Prop :=
    match e with
    | Sends t i => exists tr, transfer_at t i = Some tr /\ sent s t i < size (chunk tr) /\
        landed_before s t (src tr) (chunk tr) (sent s t i)
    | Lands t i => exists tr, transfer_at t i = Some tr /\ landed s t i < sent s t i /\
        sent_up_to s t (dst tr) (chunk tr) (landed s t i) /\
        landed_before s t (dst tr) (chunk tr) (landed s t i)
    end.

  (** All that comes to rank [r] in rounds before [t], of chunks for which [of_chunk], is there. *)
  Definition all_landed (s : situation) (t : nat) (r : N) (of_chunk : N -> Prop) : Prop :=
    forall t' i' tr', transfer_at t' i' = Some tr' -> t' < t -> dst tr' = r ->
      of_chunk (chunk tr') -> landed s t' i' = size (chunk tr').

  (** What must be possible, however little credit there is. *)
  Definition has_to (s : situation) (e : event) : Prop :=
    match e with
    | Sends t i => exists tr, transfer_at t i = Some tr /\ sent s t i < size (chunk tr) /\
        sent s t i = landed s t i /\
        all_landed s t (src tr) (fun c => c = chunk tr) /\
        all_landed s t (dst tr) (fun _ => True)
    | Lands t i => allowed s e
    end.

  Definition here (t i t' i' : nat) : bool := (t' =? t) && (i' =? i).

  Definition counted (f : nat -> nat -> nat) (t i : nat) : nat -> nat -> nat :=
    fun t' i' => if here t i t' i' then S (f t' i') else f t' i'.

  Definition happen (s : situation) (e : event) : situation :=
    match e with
    | Sends t i =>
        let v := match transfer_at t i with
                 | Some tr => memory s (src tr) (chunk tr) (sent s t i)
                 | None => carried s t i (sent s t i)
                 end in
        Situation (counted (sent s) t i) (landed s)
          (fun t' i' b => if here t i t' i' && (b =? sent s t i) then v else carried s t' i' b)
          (memory s)
    | Lands t i =>
        let b := landed s t i in
        Situation (sent s) (counted (landed s) t i) (carried s)
          match transfer_at t i with
          | Some tr => fun r c b' =>
              if ((r =? dst tr) && (c =? chunk tr))%N && (b' =? b)
              then match op tr with
                   | Copy => carried s t i b
                   | Reduce => plus (memory s r c b) (carried s t i b)
                   end
              else memory s r c b'
          | None => memory s
          end
    end.

  (** An execution by some executor: [may s e] says that event [e] may happen next. *)
  Inductive execution (may : situation -> event -> Prop) : list event -> situation -> Prop :=
  | Begin : execution may [] beginning
  | Next events s e : execution may events s -> may s e ->
      execution may (e :: events) (happen s e).

  Definition finished (s : situation) : Prop :=
    forall t i tr, transfer_at t i = Some tr -> landed s t i = size (chunk tr).

  Definition places : list (nat * nat) :=
    flat_map (fun t => map (pair t) (seq 0 (length (nth t rs [])))) (seq 0 (length rs)).

  (** Each element of each transfer is sent once and lands once. *)
  Definition elements (p : nat * nat) : nat :=
    match transfer_at (fst p) (snd p) with Some tr => size (chunk tr) | None => 0 end.

  Definition most_events : nat := list_sum (map (fun p => 2 * elements p) places).

  (** * Proofs *)

  Hypothesis one_receive : forall rd, In rd rs -> NoDup (map target rd).

  Lemma transfer_at_round t i tr : transfer_at t i = Some tr -> t < length rs.
  Proof.
    unfold transfer_at. intros H. destruct (le_lt_dec (length rs) t); auto.
    rewrite nth_overflow in H by auto. destruct i; discriminate.
  Qed.

  Lemma once t i i' tr tr' : transfer_at t i = Some tr -> transfer_at t i' = Some tr' ->
    dst tr' = dst tr -> chunk tr' = chunk tr -> i' = i.
  Proof.
    intros H H' D' C. pose proof (one_receive (nth t rs []) (nth_In _ _ (transfer_at_round t i tr H))) as D.
    apply (proj1 (NoDup_nth_error _) D).
    - rewrite map_length. apply nth_error_Some. unfold transfer_at in H'. congruence.
    - unfold transfer_at in *.
      rewrite (map_nth_error target _ _ H), (map_nth_error target _ _ H').
      unfold target. congruence.
  Qed.

  (** The state of element [e] after [t] rounds in lockstep. *)
  Definition lockstep (e t : nat) : state A := run plus (fun r c => start r c e) (firstn t rs).

  Lemma lockstep_succ e t : t < length rs ->
    lockstep e (S t) = run_round plus (lockstep e t) (nth t rs []).
  Proof.
    unfold lockstep. intros H.
    assert (E : firstn (S t) rs = firstn t rs ++ [nth t rs []]).
    { clear - H. revert t H. induction rs as [|rd l IH]; simpl; intros t H; [lia|].
      destruct t; simpl; auto. rewrite <- IH by lia. auto. }
    rewrite E, run_app. reflexivity.
  Qed.

  Lemma lockstep_quiet e r c t t' : t <= t' -> t' <= length rs ->
    (forall t'' i tr, transfer_at t'' i = Some tr -> t <= t'' < t' -> dst tr = r -> chunk tr <> c) ->
    lockstep e t' r c = lockstep e t r c.
  Proof.
    intros L. induction L as [|t' L IH]; auto. intros M Q.
    rewrite lockstep_succ by lia. rewrite run_round_quiet.
    - apply IH; [lia|]. intros t'' i tr H B. apply (Q t'' i tr); auto; lia.
    - intros tr Hin D. apply In_nth_error in Hin as (i & Hi). apply (Q t' i tr); auto; lia.
  Qed.

  Lemma round_receives (s : state A) rd tr : NoDup (map target rd) -> In tr rd ->
    run_round plus s rd (dst tr) (chunk tr)
    = match op tr with
      | Copy => s (src tr) (chunk tr)
      | Reduce => plus (s (dst tr) (chunk tr)) (s (src tr) (chunk tr))
      end.
  Proof.
    intros Once Hin. apply in_split in Hin as (before & after & ->).
    rewrite map_app in Once. simpl in Once. apply NoDup_remove in Once as [_ Once].
    assert (Else : forall u, In u (before ++ after) -> dst u = dst tr -> chunk u <> chunk tr).
    { intros u Hu D C. apply Once. rewrite <- map_app.
      replace (target tr) with (target u) by (unfold target; congruence). now apply in_map. }
    unfold run_round. rewrite fold_left_app. simpl.
    assert (Quiet : forall l now, (forall u, In u l -> dst u = dst tr -> chunk u <> chunk tr) ->
              fold_left (deliver plus s) l now (dst tr) (chunk tr) = now (dst tr) (chunk tr)).
    { induction l as [|u l IH]; simpl; auto. intros now H. rewrite IH by (intros; apply H; auto).
      unfold deliver. apply put_other. destruct (N.eq_dec (dst tr) (dst u)) as [D|]; auto.
      right. intros C. now apply (H u (or_introl eq_refl)). }
    rewrite Quiet by (intros u Hu; apply Else, in_or_app; now right).
    unfold deliver at 1. rewrite put_same.
    rewrite Quiet by (intros u Hu; apply Else, in_or_app; now left).
    reflexivity.
  Qed.

  Lemma lockstep_receives e t i tr : transfer_at t i = Some tr ->
    lockstep e (S t) (dst tr) (chunk tr)
    = match op tr with
      | Copy => lockstep e t (src tr) (chunk tr)
      | Reduce => plus (lockstep e t (dst tr) (chunk tr)) (lockstep e t (src tr) (chunk tr))
      end.
  Proof.
    intros H. pose proof (transfer_at_round t i tr H) as L. rewrite lockstep_succ by auto.
    apply round_receives; [apply one_receive, nth_In; auto|]. apply nth_error_In with (1 := H).
  Qed.

  Lemma here_true t i t' i' : here t i t' i' = true <-> t' = t /\ i' = i.
  Proof. unfold here. now rewrite andb_true_iff, !Nat.eqb_eq. Qed.

  Lemma counted_here f t i : counted f t i t i = S (f t i).
  Proof. unfold counted, here. now rewrite !Nat.eqb_refl. Qed.

  Lemma counted_more f t i t' i' : f t' i' <= counted f t i t' i'.
  Proof. unfold counted. destruct here; lia. Qed.

  Lemma counted_spec f t i t' i' :
    (t' = t /\ i' = i /\ counted f t i t' i' = S (f t i)) \/
    (~ (t' = t /\ i' = i) /\ counted f t i t' i' = f t' i').
  Proof.
    unfold counted. destruct (here t i t' i') eqn:E.
    - apply here_true in E as [-> ->]. auto.
    - right. split; auto. intros [-> ->]. unfold here in E. rewrite !Nat.eqb_refl in E. discriminate.
  Qed.

  (** ** What always holds *)

  Definition exactly_before (s : situation) (T : nat) (r c : N) (e : nat) : Prop :=
    forall t i tr, transfer_at t i = Some tr -> dst tr = r -> chunk tr = c ->
      (e < landed s t i <-> t < T).

  Record invariant (s : situation) : Prop := {
    in_order : forall t i tr, transfer_at t i = Some tr ->
      landed s t i <= sent s t i /\ sent s t i <= size (chunk tr);
    earlier_first : forall t i tr e, transfer_at t i = Some tr -> e < landed s t i ->
      landed_before s t (dst tr) (chunk tr) e;
    carries : forall t i tr e, transfer_at t i = Some tr -> e < sent s t i ->
      carried s t i e = lockstep e t (src tr) (chunk tr);
    not_overwritten : forall t i tr e, transfer_at t i = Some tr -> sent s t i <= e ->
      forall t' i' tr', transfer_at t' i' = Some tr' -> t <= t' ->
        dst tr' = src tr -> chunk tr' = chunk tr -> landed s t' i' <= e;
    holds : forall r c e T, T <= length rs -> exactly_before s T r c e ->
      memory s r c e = lockstep e T r c }.

  Lemma invariant_beginning : invariant beginning.
  Proof.
    split; simpl; try lia.
    intros r c e T L H. symmetry. apply (lockstep_quiet e r c 0 T); auto; try lia.
    intros t i tr Htr B D C. destruct (H t i tr Htr D C) as [_ G]. simpl in G. lia.
  Qed.

  Lemma invariant_sends s t i : invariant s -> allowed s (Sends t i) ->
    invariant (happen s (Sends t i)).
  Proof.
    intros I (tr & Htr & Room & Before). split; simpl.
    - intros t' i' tr' H'. destruct (in_order s I t' i' tr' H').
      destruct (counted_spec (sent s) t i t' i') as [(-> & -> & ->)|[_ ->]]; try lia.
      assert (tr' = tr) by congruence. subst. lia.
    - apply (earlier_first s I).
    - intros t' i' tr' e H' He. rewrite Htr.
      destruct (here t i t' i') eqn:Here; simpl.
      + apply here_true in Here as [-> ->]. assert (tr' = tr) by congruence. subst tr'.
        destruct (Nat.eqb_spec e (sent s t i)) as [->|Ne].
        * apply (holds s I); [pose proof (transfer_at_round _ _ _ Htr); lia|].
          intros t' i' tr' H D C. split.
          -- intros L. destruct (le_lt_dec t t') as [Le|]; auto. exfalso.
             pose proof (not_overwritten s I t i tr (sent s t i) Htr (le_n _) t' i' tr' H Le D C). lia.
          -- intros L. now apply (Before t' i' tr').
        * apply (carries s I t i tr); auto. rewrite counted_here in He. lia.
      + apply (carries s I t' i' tr'); auto. unfold counted in He. now rewrite Here in He.
    - intros t' i' tr' e H' He. apply (not_overwritten s I t' i' tr' e H').
      pose proof (counted_more (sent s) t i t' i'). lia.
    - intros r c e T L H. apply (holds s I); auto.
  Qed.

  Lemma invariant_lands s t i : invariant s -> allowed s (Lands t i) ->
    invariant (happen s (Lands t i)).
  Proof.
    intros I (tr & Htr & Come & Sent & Before).
    set (b := landed s t i) in *.
    assert (Later : forall t' i' tr', transfer_at t' i' = Some tr' -> dst tr' = dst tr ->
              chunk tr' = chunk tr -> b < landed s t' i' -> t' < t).
    { intros t' i' tr' H' D C L. destruct (lt_eq_lt_dec t' t) as [[|E]|G]; auto; exfalso.
      - subst t'. rewrite (once t i i' tr tr' Htr H' D C) in L. unfold b in L. lia.
      - pose proof (earlier_first s I t' i' tr' b H' L t i tr Htr G (eq_sym D) (eq_sym C)).
        unfold b in *. lia. }
    split; simpl.
    - intros t' i' tr' H'. destruct (in_order s I t' i' tr' H').
      destruct (counted_spec (landed s) t i t' i') as [(-> & -> & ->)|[_ ->]]; unfold b in *; lia.
    - intros t' i' tr' e H' He t'' i'' tr'' H'' Lt D C. simpl.
      apply Nat.lt_le_trans with (2 := counted_more (landed s) t i t'' i'').
      destruct (counted_spec (landed s) t i t' i') as [(-> & -> & E)|[_ E]]; rewrite E in He.
      + assert (tr' = tr) by congruence. subst tr'.
        destruct (Nat.eq_dec e b) as [->|Ne]; [now apply (Before t'' i'' tr'')|].
        apply (earlier_first s I t i tr e Htr) with (tr' := tr''); auto. unfold b in *. lia.
      + now apply (earlier_first s I t' i' tr' e H') with (tr' := tr'').
    - apply (carries s I).
    - intros t' i' tr' e H' He t'' i'' tr'' H'' Le D C.
      destruct (counted_spec (landed s) t i t'' i'') as [(-> & -> & ->)|[_ ->]].
      + assert (tr'' = tr) by congruence. subst tr''. fold b.
        pose proof (not_overwritten s I t' i' tr' e H' He t i tr Htr Le D C).
        pose proof (Sent t' i' tr' H' Le (eq_sym D) (eq_sym C)). fold b in H. lia.
      + now apply (not_overwritten s I t' i' tr' e H' He t'' i'' tr'').
    - rewrite Htr. fold b. intros r c e T L H.
      destruct ((r =? dst tr)%N && (c =? chunk tr)%N && (e =? b)) eqn:Here.
      + apply andb_true_iff in Here as [Here Eb]. apply andb_true_iff in Here as [Er Ec].
        apply N.eqb_eq in Er, Ec. apply Nat.eqb_eq in Eb. subst r c e.
        assert (Now : memory s (dst tr) (chunk tr) b = lockstep b t (dst tr) (chunk tr)).
        { apply (holds s I); [pose proof (transfer_at_round _ _ _ Htr); lia|].
          intros t' i' tr' H' D C. split; [now apply (Later t' i' tr')|].
          intros Lt. now apply (Before t' i' tr'). }
        assert (LT : t < T).
        { apply (H t i tr Htr eq_refl eq_refl). simpl. rewrite counted_here. unfold b. lia. }
        assert (Quiet : lockstep b T (dst tr) (chunk tr) = lockstep b (S t) (dst tr) (chunk tr)).
        { apply lockstep_quiet; auto. intros t' i' tr' H' B D C.
          assert (G : b < counted (landed s) t i t' i') by (apply (H t' i' tr'); auto; lia).
          destruct (counted_spec (landed s) t i t' i') as [(-> & _)|[_ E]]; [lia|].
          rewrite E in G. pose proof (Later t' i' tr' H' D C G). lia. }
        rewrite Quiet.
        rewrite (lockstep_receives b t i tr Htr), <- Now, <- (carries s I t i tr b Htr Come).
        reflexivity.
      + apply (holds s I); auto. intros t' i' tr' H' D C. rewrite <- (H t' i' tr' H' D C). simpl.
        destruct (counted_spec (landed s) t i t' i') as [(-> & -> & ->)|[_ ->]]; [|tauto].
        assert (tr' = tr) by congruence. subst tr' r c. rewrite !N.eqb_refl in Here. simpl in Here.
        apply Nat.eqb_neq in Here. unfold b in Here. lia.
  Qed.

  Lemma invariant_happen s e : invariant s -> allowed s e -> invariant (happen s e).
  Proof. destruct e; [apply invariant_sends|apply invariant_lands]. Qed.

  Lemma invariant_execution (may : situation -> event -> Prop) events s :
    (forall s e, may s e -> allowed s e) -> execution may events s -> invariant s.
  Proof.
    intros H. induction 1; [apply invariant_beginning|]. apply invariant_happen; auto.
  Qed.
  (** ** No deadlock *)

  Lemma place_in t i tr : transfer_at t i = Some tr -> In (t, i) places.
  Proof.
    intros H. apply in_flat_map. exists t. split.
    - apply in_seq. pose proof (transfer_at_round t i tr H). lia.
    - apply in_map, in_seq. split; [lia|]. apply nth_error_Some. unfold transfer_at in H. congruence.
  Qed.

  Lemma least {X} (f : X -> nat) (holds : X -> Prop) l :
    (forall x, {holds x} + {~ holds x}) -> (exists x, In x l /\ holds x) ->
    exists x, holds x /\ forall y, In y l -> holds y -> f x <= f y.
  Proof.
    intros Dec (x & Hin & Hx). remember (f x) as m eqn:E. revert x Hin Hx E.
    induction m as [m IH] using lt_wf_ind. intros x Hin Hx E.
    destruct (Exists_dec (fun y => holds y /\ f y < m) l) as [Y|Y].
    - intros y. destruct (Dec y); [|right; tauto].
      destruct (lt_dec (f y) m); [left|right]; tauto.
    - apply Exists_exists in Y as (y & Hy & Py & Ly). now apply (IH (f y) Ly y Hy Py).
    - exists x. split; auto. intros y Hy Py. destruct (le_lt_dec (f x) (f y)); auto.
      exfalso. apply Y, Exists_exists. exists y. subst. auto.
  Qed.

  Definition lacking (s : situation) (p : nat * nat) : Prop :=
    landed s (fst p) (snd p) < elements p.

  Lemma lacking_dec s p : {lacking s p} + {~ lacking s p}.
  Proof. apply lt_dec. Qed.

  Lemma lacking_place s p : lacking s p -> In p places.
  Proof.
    destruct p as [t i]. unfold lacking, elements. simpl.
    destruct (transfer_at t i) as [tr|] eqn:E; [|lia]. intros _. now apply (place_in t i tr).
  Qed.

  Theorem never_stuck s : invariant s -> ~ finished s -> exists e, has_to s e.
  Proof.
    intros I H.
    destruct (Exists_dec (lacking s) places (lacking_dec s)) as [X|X].
    2:{ exfalso. apply H. intros t i tr Htr. destruct (in_order s I t i tr Htr).
        destruct (Nat.eq_dec (landed s t i) (size (chunk tr))) as [|Ne]; auto. exfalso.
        apply X, Exists_exists. exists (t, i). split; [now apply (place_in t i tr)|].
        unfold lacking, elements. simpl. rewrite Htr. lia. }
    apply Exists_exists in X.
    (* a round that is not done, all before which are *)
    destruct (least fst (lacking s) places (lacking_dec s) X) as ([t i0] & L0 & First).
    simpl in First.
    (* of its transfers one of which least has landed *)
    destruct (least (fun p => landed s (fst p) (snd p))
                (fun p => lacking s p /\ fst p = t) places) as ([t' i] & [L Et] & Least).
    { intros p. destruct (lacking_dec s p), (Nat.eq_dec (fst p) t); [left|right|right|right]; tauto. }
    { exists (t, i0). repeat split; auto. now apply (lacking_place s). }
    simpl in Et, Least. subst t'.
    assert (Done : forall t' i' tr', transfer_at t' i' = Some tr' -> t' < t ->
              landed s t' i' = size (chunk tr')).
    { intros t' i' tr' H' Lt. destruct (in_order s I t' i' tr' H').
      destruct (Nat.eq_dec (landed s t' i') (size (chunk tr'))) as [|Ne]; auto. exfalso.
      assert (P : lacking s (t', i')) by (unfold lacking, elements; simpl; rewrite H'; lia).
      pose proof (First (t', i') (lacking_place s _ P) P). simpl in H2. lia. }
    assert (May : forall j tr, transfer_at t j = Some tr -> landed s t j < size (chunk tr) ->
              sent s t j = landed s t j -> has_to s (Sends t j)).
    { intros j tr Htr Lt E. exists tr. repeat split; auto; [lia| |].
      - intros t' i' tr' H' Lt' _ _. now apply Done.
      - intros t' i' tr' H' Lt' _ _. now apply Done. }
    unfold lacking, elements in L. simpl in L.
    destruct (transfer_at t i) as [tr|] eqn:Htr; [|lia].
    destruct (in_order s I t i tr Htr) as [Le _].
    destruct (Nat.eq_dec (sent s t i) (landed s t i)) as [E|Ne].
    { exists (Sends t i). now apply (May i tr). }
    (* it has come; a transfer of its place in the same round that is not as far may send *)
    destruct (Exists_dec (fun j => exists tr', transfer_at t j = Some tr' /\ src tr' = dst tr /\
                            chunk tr' = chunk tr /\ sent s t j <= landed s t i)
                (seq 0 (length (nth t rs [])))) as [Y|Y].
    { intros j. destruct (transfer_at t j) as [tr'|]; [|right; intros (? & ? & _); discriminate].
      destruct (N.eq_dec (src tr') (dst tr)); [|right; intros (? & [= <-] & ? & _); congruence].
      destruct (N.eq_dec (chunk tr') (chunk tr)); [|right; intros (? & [= <-] & _ & ? & _); congruence].
      destruct (le_dec (sent s t j) (landed s t i)); [left; eauto|].
      right. intros (? & [= <-] & _ & _ & ?). lia. }
    - apply Exists_exists in Y as (j & _ & tr' & Hj & _ & Ej & Lj).
      destruct (in_order s I t j tr' Hj) as [Lej _]. exists (Sends t j). apply (May j tr'); auto.
      + rewrite Ej. lia.
      + assert (P : lacking s (t, j)).
        { unfold lacking, elements. simpl. rewrite Hj, Ej. lia. }
        pose proof (Least (t, j) (lacking_place s _ P) (conj P eq_refl)). simpl in H0. lia.
    - exists (Lands t i). exists tr. repeat split; auto; [lia| |].
      + intros t' i' tr' H' Le' S C. destruct (Nat.eq_dec t' t) as [->|Lt].
        * destruct (le_lt_dec (sent s t i') (landed s t i)); auto. exfalso.
          apply Y, Exists_exists. exists i'. split; [|eauto 6].
          apply in_seq. split; [lia|]. apply nth_error_Some. unfold transfer_at in H'. congruence.
        * destruct (in_order s I t' i' tr' H') as [Le'' _].
          rewrite (Done t' i' tr' H') in Le'' by lia. rewrite C in Le''. lia.
      + intros t' i' tr' H' Lt D C. rewrite (Done t' i' tr' H' Lt), C. lia.
  Qed.

  (** What must be possible may happen. *)
  Lemma has_to_allowed s e : has_to s e -> allowed s e.
  Proof.
    destruct e as [t i|t i]; [|auto]. intros (tr & Htr & Room & _ & Here & _).
    exists tr. repeat split; auto. intros t' i' tr' H' Lt D C.
    rewrite (Here t' i' tr' H' Lt D C), C. auto.
  Qed.

  (** ** Every execution ends *)

  Definition happened (s : situation) : nat :=
    list_sum (map (fun p => sent s (fst p) (snd p) + landed s (fst p) (snd p)) places).

  Lemma sum_more {X} (f g : X -> nat) l x : In x l -> (forall y, f y <= g y) -> f x < g x ->
    list_sum (map f l) < list_sum (map g l).
  Proof.
    assert (Le : forall l, (forall y, f y <= g y) -> list_sum (map f l) <= list_sum (map g l)).
    { induction l0 as [|a l0 IH]; simpl; intros H; auto. pose proof (H a). specialize (IH H). lia. }
    induction l as [|a l IH]; simpl; intros Hin H Hx; [easy|].
    pose proof (H a). destruct Hin as [->|Hin].
    - specialize (Le l H). lia.
    - specialize (IH Hin H Hx). lia.
  Qed.

  Lemma happened_more s e : allowed s e -> happened s < happened (happen s e).
  Proof.
    unfold happened. intros H.
    assert (P : exists t i tr, transfer_at t i = Some tr /\ (e = Sends t i \/ e = Lands t i))
      by (destruct e as [t i|t i]; destruct H as (tr & Htr & _); eauto 6).
    destruct P as (t & i & tr & Htr & [-> | ->]); simpl.
    - apply sum_more with (x := (t, i)); [now apply (place_in t i tr)| |].
      + intros [t' i']. simpl. pose proof (counted_more (sent s) t i t' i'). lia.
      + simpl. rewrite counted_here. lia.
    - apply sum_more with (x := (t, i)); [now apply (place_in t i tr)| |].
      + intros [t' i']. simpl. pose proof (counted_more (landed s) t i t' i'). lia.
      + simpl. rewrite counted_here. lia.
  Qed.

  Lemma place_of p : In p places -> exists tr, transfer_at (fst p) (snd p) = Some tr.
  Proof.
    intros H. apply in_flat_map in H as (t & _ & H). apply in_map_iff in H as (i & <- & H).
    apply in_seq in H. simpl. destruct (transfer_at t i) as [tr|] eqn:E; [eauto|].
    apply nth_error_None in E. lia.
  Qed.

  Lemma sum_at_most {X} (f g : X -> nat) l : (forall x, In x l -> f x <= g x) ->
    list_sum (map f l) <= list_sum (map g l).
  Proof.
    induction l as [|a l IH]; simpl; intros H; auto.
    pose proof (H a (or_introl eq_refl)). specialize (IH (fun x Hx => H x (or_intror Hx))). lia.
  Qed.

  Theorem execution_ends (may : situation -> event -> Prop) events s :
    (forall s e, may s e -> allowed s e) -> execution may events s ->
    length events <= most_events.
  Proof.
    intros H X. apply Nat.le_trans with (happened s).
    - induction X as [|events s e X IH M]; simpl; [lia|].
      pose proof (happened_more s e (H s e M)). lia.
    - pose proof (invariant_execution may events s H X) as I.
      apply sum_at_most. intros p Hp. destruct (place_of p Hp) as (tr & Htr).
      unfold elements. rewrite Htr. destruct (in_order s I _ _ tr Htr). lia.
  Qed.

  (** ** The main theorem *)

  (** An execution that can't go on has moved everything, and each buffer holds what the rounds in
      lockstep give. *)
  Theorem same_result (may : situation -> event -> Prop) events s :
    (forall s e, has_to s e -> may s e) -> (forall s e, may s e -> allowed s e) ->
    execution may events s -> (forall e, ~ may s e) ->
    finished s /\
    forall r c e, e < size c -> memory s r c e = run plus (fun r c => start r c e) rs r c.
  Proof.
    intros Low High X Stop. pose proof (invariant_execution may events s High X) as I.
    assert (F : finished s).
    { intros t i tr Htr. destruct (Nat.eq_dec (landed s t i) (size (chunk tr))) as [|Ne]; auto.
      exfalso. destruct (never_stuck s I) as (e & He); [intros F; apply Ne; now apply F|].
      apply (Stop e); auto. }
    split; auto. intros r c e He.
    rewrite (holds s I r c e (length rs)); auto.
    - unfold lockstep. now rewrite firstn_all.
    - intros t i tr Htr _ C. split; intros _; [now apply (transfer_at_round t i tr)|].
      rewrite (F t i tr Htr), C. auto.
  Qed.
End SendAhead.

(** ** For right schedules *)

Lemma one_port_one_at_a_time s : ports_respected s -> port_limit (ports s) = 1%N -> one_at_a_time s.
Proof.
  intros P One rd Hin. apply (NoDup_map_inv fst). rewrite map_map.
  change (NoDup (map dst rd)). apply (NoDup_count_occ N.eq_dec). intros r.
  destruct (P rd Hin) as (_ & R & _). specialize (R r). rewrite One in R. exact R.
Qed.

(** What acceptance promises of such a schedule: whatever is sent ahead, and in whatever order it
    comes, the execution ends, and every element of every buffer is the sum over all ranks. *)
Theorem ahead_all_reduce s (M : commutative_monoid) (size : N -> nat) (x : N -> N -> nat -> M)
  (may : situation -> event -> Prop) events now :
  one_at_a_time s -> correct s ->
  (forall s' e, has_to (all_rounds s) size s' e -> may s' e) ->
  (forall s' e, may s' e -> allowed (all_rounds s) size s' e) ->
  execution (add M) (all_rounds s) x may events now ->
  length events <= most_events (all_rounds s) size /\
  ((forall e, ~ may now e) ->
   forall r c e, (r < ranks s)%N -> (c < chunks s)%N -> e < size c ->
     memory now r c e = sum M (fun i => x i c e) (range (ranks s))).
Proof.
  intros Receives C Low High X. split.
  - now apply (execution_ends (add M) (all_rounds s) size x Receives may events now).
  - intros Stop r c e Hr Hc He.
    destruct (same_result (add M) (all_rounds s) size x Receives may events now Low High X Stop)
      as [_ V].
    rewrite V by auto. now apply (C M (fun r' c' => x r' c' e) r c).
Qed.
