(** Pipelines with written-out messages whose sends are rendezvous (verify/pipeline/graph.py,
    [build] with [rendezvous]): if waiting has no cycle, nobody gets stuck.

    A program is a list of actions and of messages that its rank sends or receives. A rank works off
    its actions in order, and, as a second stream, its messages. An action waits for the data it needs.
    A message is there when both of its ranks have come to it, that is, when in both programs all
    that stands before it is over. That each message is in the program of its sender and in that of
    its receiver, in the same order for each pair, is what verify/pipeline/messages.py checks. *)

From Coq Require Import List Arith NArith Lia Bool Sorted.
Import ListNotations.

(** An action, or a message: in the program of its sender its send, in that of its receiver its
    receive. *)
Inductive item := Does (a : N) | Passes (m : N).

Definition item_eq_dec (e f : item) : {e = f} + {e <> f}.
Proof. decide equality; apply N.eq_dec. Defined.

Definition is_action (e : item) : bool := match e with Does _ => true | Passes _ => false end.
Definition is_message (e : item) : bool := negb (is_action e).

Section Messages.
  Variable programs : list (list item).
  Variable needs : N -> list N.   (** the messages whose data an action needs *)

  Definition items : list item := concat programs.

  (** What must be over before [e] can be, where [before] stands before it in a program. *)
  Definition after_all (before : list item) (e : item) : list item :=
    match e with
    | Does a => filter is_action before ++ map Passes (needs a)
    | Passes _ => before
    end.

  Definition waits_for (e f : item) : Prop :=
    exists before after, In (before ++ e :: after) programs /\ In f (after_all before e).

  (** A run: what is over, the last first. Ranks go on in any order. *)
  Inductive run : list item -> Prop :=
  | Begins : run []
  | GoesOn e over : run over -> In e items -> ~ In e over ->
      (forall f, waits_for e f -> In f over) -> run (e :: over).

  Definition all_over (over : list item) : Prop := forall e, In e items -> In e over.

  (** Waiting has no cycle: there are levels that rise along it. *)
  Definition acyclic : Prop :=
    exists level : item -> nat, forall e f, waits_for e f -> level f < level e.

  (** What is needed is there to be waited for. *)
  Definition nothing_missing : Prop := forall a m, In (Does a) items -> In m (needs a) -> In (Passes m) items.

  Lemma in_items before e after f : In (before ++ e :: after) programs ->
    In f (before ++ e :: after) -> In f items.
  Proof. intros Hp Hf. apply in_concat. eauto. Qed.

  Lemma waits_in_items e f : nothing_missing -> waits_for e f -> In e items /\ In f items.
  Proof.
    intros Whole (before & after & Hp & Hf).
    assert (He : In e items) by (apply (in_items before e after); auto; apply in_or_app; right; now left).
    split; auto. destruct e as [a|m]; simpl in Hf.
    - apply in_app_iff in Hf as [Hf|Hf].
      + apply filter_In in Hf as [Hf _]. eapply in_items; eauto. apply in_or_app. now left.
      + apply in_map_iff in Hf as (m & <- & Hm). now apply (Whole a).
    - eapply in_items; eauto. apply in_or_app. now left.
  Qed.

  (** No deadlock. *)
  Theorem never_stuck over : nothing_missing -> acyclic -> run over -> ~ all_over over ->
    exists e, run (e :: over).
  Proof.
    intros Whole (level & Rises) R Not.
    assert (Least : forall l, (exists e, In e l /\ ~ In e over) ->
      exists e, In e l /\ ~ In e over /\ forall f, In f l -> level f < level e -> In f over).
    { induction l as [|x l IH]; [intros (e & [] & _)|]. intros (e & He & No).
      destruct (in_dec item_eq_dec x over) as [X|X].
      - destruct IH as (b & Hb & Nb & Min).
        { exists e. destruct He as [->|]; auto. contradiction. }
        exists b. simpl. repeat split; auto. intros f [<-|Hf]; auto.
      - destruct (Exists_dec (fun e => ~ In e over) l) as [Y|Y].
        { intros y. destruct (in_dec item_eq_dec y over); [right|left]; tauto. }
        + apply Exists_exists in Y. destruct (IH Y) as (b & Hb & Nb & Min).
          destruct (le_lt_dec (level b) (level x)).
          * exists b. simpl. repeat split; auto. intros f [<-|Hf]; auto. lia.
          * exists x. simpl. repeat split; auto. intros f [<-|Hf] L; [lia|]. apply Min; auto. lia.
        + exists x. simpl. repeat split; auto. intros f [<-|Hf] L; [lia|].
          destruct (in_dec item_eq_dec f over); auto. exfalso. apply Y, Exists_exists. eauto. }
    destruct (Exists_dec (fun e => ~ In e over) items) as [X|X].
    { intros y. destruct (in_dec item_eq_dec y over); [right|left]; tauto. }
    - apply Exists_exists in X. destruct (Least _ X) as (e & He & No & Min). exists e.
      constructor; auto. intros f Hf. apply Min; [now apply (waits_in_items e f)|now apply Rises].
    - exfalso. apply Not. intros e He. destruct (in_dec item_eq_dec e over); auto.
      exfalso. apply X, Exists_exists. eauto.
  Qed.

  (** Every run ends, after no more events than there are items. *)
  Theorem ends over : run over -> length over <= length items.
  Proof.
    intros R. assert (G : NoDup over /\ incl over items).
    { induction R as [|e over R [ND In'] He No _]; split; try (constructor; auto); try easy.
      intros f [<-|Hf]; auto. }
    now apply NoDup_incl_length.
  Qed.

  (** Where one run gets everything done, waiting has no cycle: so no run gets stuck. *)
  Theorem one_run_acyclic over : nothing_missing -> run over -> all_over over -> acyclic.
  Proof.
    intros Whole R All.
    assert (G : exists level : item -> nat, (forall e, In e over -> level e < length over) /\
              forall e f, In e over -> waits_for e f -> In f over /\ level f < level e).
    { clear All. induction R as [|e over R (level & Below & Rises) He No Waits].
      - exists (fun _ => 0). split; intros e; [intros []|intros f []].
      - exists (fun x => if item_eq_dec x e then length over else level x). split.
        + intros x [<-|Hx]; simpl; [destruct (item_eq_dec e e); [lia|congruence]|].
          destruct (item_eq_dec x e); [lia|]. specialize (Below x Hx). lia.
        + intros x f [<-|Hx] Hf.
          * specialize (Waits f Hf). split; [now right|].
            destruct (item_eq_dec f e) as [->|]; [contradiction|].
            destruct (item_eq_dec e e); [|congruence]. now apply Below.
          * destruct (Rises x f Hx Hf) as [Hin L]. split; [now right|].
            destruct (item_eq_dec f e) as [->|]; [contradiction|].
            destruct (item_eq_dec x e) as [->|]; [contradiction|auto]. }
    destruct G as (level & _ & Rises). exists level. intros e f H.
    apply Rises; auto. apply All. now apply (waits_in_items e f).
  Qed.

  (** ** The graph that verify looks for cycles in *)

  (** Its edges: from an action to the one before it and to the messages it needs; from a message, in
      both programs, to the message before it and to the last action before it. *)
  Definition rises_along_edges (level : item -> nat) : Prop :=
    let lower f e := level f < level e in
    (forall p, In p programs ->
       Sorted lower (filter is_action p) /\ Sorted lower (filter is_message p)) /\
    (forall before m after, In (before ++ Passes m :: after) programs ->
       forall a, last (map Some (filter is_action before)) None = Some a -> level a < level (Passes m)) /\
    (forall a m, In (Does a) items -> In m (needs a) -> level (Passes m) < level (Does a)).

  Lemma sorted_before level (l l' : list item) e f :
    Sorted (fun f e => level f < level e) (l ++ e :: l') -> In f l -> level f < level e.
  Proof.
    intros S Hf. apply Sorted_StronglySorted in S; [|intros x y z; lia].
    induction l as [|x l IH]; simpl in *; [easy|].
    apply StronglySorted_inv in S as [S H]. destruct Hf as [->|Hf]; auto.
    rewrite Forall_forall in H. apply H, in_or_app. right. now left.
  Qed.

  Theorem no_cycle_in_the_graph level : rises_along_edges level -> acyclic.
  Proof.
    intros (Streams & Last & Data). exists level.
    intros e f (before & after & Hp & Hf). destruct (Streams _ Hp) as [SA SM].
    rewrite filter_app in SA, SM. simpl in SA, SM. destruct e as [a|m]; simpl in *.
    - apply in_app_iff in Hf as [Hf|Hf]; [now apply (sorted_before _ _ _ _ f SA)|].
      apply in_map_iff in Hf as (m & <- & Hm). apply Data; auto.
      apply in_concat. exists (before ++ Does a :: after). split; auto. apply in_or_app. right. now left.
    - destruct f as [a|m'].
      + assert (Ha : In (Does a) (filter is_action before)) by now apply filter_In.
        specialize (Last before m after Hp).
        destruct (filter is_action before) as [|x l] eqn:E using rev_ind; [easy|].
        clear IHl. rewrite map_app in Last. cbn [map] in Last. rewrite last_last in Last.
        specialize (Last x eq_refl).
        apply in_app_iff in Ha as [Ha|[->|[]]]; auto.
        rewrite <- app_assoc in SA. simpl in SA.
        pose proof (sorted_before _ _ _ _ _ SA Ha). lia.
      + apply (sorted_before _ _ _ _ (Passes m') SM). now apply filter_In.
  Qed.
End Messages.
