(** The volume bound (verify/bounds.py): how many transfers a chunk needs.

    A chunk moves at least 2(n - 1) times: n - 1 transfers join the contributions until some rank
    first knows all of them, and each other rank needs one more. In a round at most n * limit
    transfers fit. So there are at least ceil(2 k (n - 1) / (n limit)) rounds, whoever is present. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge.
Import ListNotations.
Open Scope N_scope.

Section Chunk.
  Variables (n c : N).

  Definition moves_chunk (t : transfer) : bool := chunk t =? c.

  (** How many transfers of the chunk there are in these rounds. *)
  Definition moves (rs : list round) : nat := length (filter moves_chunk (concat rs)).

  Lemma moves_app rs rs' : moves (rs ++ rs') = (moves rs + moves rs')%nat.
  Proof. unfold moves. now rewrite concat_app, filter_app, app_length. Qed.

  (** ** Joining: ranks get the label of those whose data they may hold *)

  Definition label_of_joined (label : N -> N) (t : transfer) : N -> N :=
    if moves_chunk t
    then fun r => if label r =? label (dst t) then label (src t) else label r
    else label.

  Definition labels (ts : list transfer) : N -> N :=
    fold_left label_of_joined ts (fun r => r).

  Lemma joined_coarser label t a b :
    label a = label b -> label_of_joined label t a = label_of_joined label t b.
  Proof. unfold label_of_joined. destruct (moves_chunk t); auto. now intros ->. Qed.

  Lemma joined_all_coarser ts : forall label a b, label a = label b ->
    fold_left label_of_joined ts label a = fold_left label_of_joined ts label b.
  Proof. induction ts; simpl; auto using joined_coarser. Qed.

  Lemma joins t label : chunk t = c ->
    label_of_joined label t (dst t) = label_of_joined label t (src t).
  Proof.
    intros H. unfold label_of_joined, moves_chunk. rewrite H, !N.eqb_refl.
    now destruct (label (src t) =? label (dst t)).
  Qed.

  (** The labels in use. *)
  Definition classes (label : N -> N) : list N := nodup N.eq_dec (map label (range n)).

  Lemma joined_classes label t :
    (length (classes label) <=
     (if moves_chunk t then 1 else 0) + length (classes (label_of_joined label t)))%nat.
  Proof.
    unfold label_of_joined. destruct (moves_chunk t); [|simpl; lia].
    change (1 + length ?l)%nat with (length (label (dst t) :: l)).
    apply NoDup_incl_length; [apply NoDup_nodup|]. intros y Hy.
    apply nodup_In, in_map_iff in Hy as (r & <- & Hr).
    destruct (N.eq_dec (label r) (label (dst t))) as [E|E]; [now left|right].
    apply nodup_In, in_map_iff. exists r. split; auto.
    destruct (N.eqb_spec (label r) (label (dst t))); congruence.
  Qed.

  Lemma all_joined_classes ts : forall label,
    (length (classes label) <=
     length (filter moves_chunk ts) + length (classes (fold_left label_of_joined ts label)))%nat.
  Proof.
    induction ts as [|t ts IH]; simpl; intros label; auto.
    pose proof (joined_classes label t). specialize (IH (label_of_joined label t)).
    destruct (moves_chunk t); simpl in *; lia.
  Qed.

  Lemma one_class_moves ts l : (forall r, r < n -> labels ts r = l) ->
    (N.to_nat n <= length (filter moves_chunk ts) + 1)%nat.
  Proof.
    intros H. pose proof (all_joined_classes ts (fun r => r)) as L.
    fold (labels ts) in L. unfold classes at 1 in L.
    rewrite map_id, nodup_fixed_point, range_length in L by apply range_nodup.
    assert (length (classes (labels ts)) <= 1)%nat; [|lia].
    change 1%nat with (length [l]). apply NoDup_incl_length; [apply NoDup_nodup|].
    intros y Hy. apply nodup_In, in_map_iff in Hy as (r & <- & Hr).
    left. symmetry. apply H. now apply in_range.
  Qed.

  (** Whoever holds a contribution has its label. *)
  Lemma holders_labelled rs : forall start label,
    (forall r i, In (Rank i) (start r c) -> label i = label r) ->
    forall r i, In (Rank i) (collect start rs r c) ->
      fold_left label_of_joined (concat rs) label i = fold_left label_of_joined (concat rs) label r.
  Proof.
    induction rs as [|rd rs IH]; simpl; intros start label H r i Hi; auto.
    rewrite fold_left_app. refine (IH (run_round (@app source) start rd) _ _ r i Hi).
    clear r i Hi. unfold run_round.
    assert (G : forall later now label,
      (forall r i, In (Rank i) (start r c) -> label i = label r) ->
      (forall r i, In (Rank i) (now r c) -> label i = label r) ->
      forall r i, In (Rank i) (fold_left (deliver (@app source) start) later now r c) ->
        fold_left label_of_joined later label i = fold_left label_of_joined later label r).
    { clear. induction later as [|t later IH]; simpl; intros now label Hs Hn; auto.
      apply IH; [intros; apply joined_coarser; auto|].
      intros r i Hi. unfold deliver in Hi.
      destruct (N.eq_dec r (dst t)) as [->|Hr];
        [destruct (N.eq_dec c (chunk t)) as [Hc|Hc]|].
      2,3: rewrite put_other in Hi by auto; apply joined_coarser; auto.
      rewrite Hc, put_same, <- Hc in Hi.
      assert (T : In (Rank i) (start (src t) c) ->
                  label_of_joined label t i = label_of_joined label t (dst t)).
      { intros Hi'. rewrite joins by auto. apply joined_coarser; auto. }
      destruct (op t); auto. apply in_app_iff in Hi as [Hi|Hi]; auto.
      apply joined_coarser; auto. }
    now apply G.
  Qed.

  (** ** Full ranks: those that hold something of everybody *)

  Definition full (rs : list round) (r : N) : Prop :=
    forall i, i < n -> In (Rank i) (collect own_data rs r c).

  Definition full_dec rs r : {full rs r} + {~ full rs r}.
  Proof.
    destruct (Forall_dec (fun i => In (Rank i) (collect own_data rs r c))
               (fun i => in_dec source_eq_dec (Rank i) _) (range n)) as [H|H].
    - left. intros i Hi. rewrite Forall_forall in H. now apply H, in_range.
    - right. intros F. apply H, Forall_forall. intros i Hi. now apply F, in_range.
  Defined.

  Definition somebody_full (rs : list round) : Prop := exists r, r < n /\ full rs r.

  Definition somebody_full_dec rs : {somebody_full rs} + {~ somebody_full rs}.
  Proof.
    destruct (Exists_dec (full rs) (range n) (full_dec rs)) as [H|H].
    - left. apply Exists_exists in H as (r & Hr & F). exists r. now rewrite <- in_range.
    - right. intros (r & Hr & F). apply H, Exists_exists. exists r. now rewrite in_range.
  Defined.

  (** The first round after which somebody is full. *)
  Lemma first_full rs : ~ somebody_full [] -> somebody_full rs ->
    exists before rd later, rs = before ++ rd :: later /\
      ~ somebody_full before /\ somebody_full (before ++ [rd]).
  Proof.
    intros H0. induction rs as [|rd rs IH] using rev_ind; intros H; [contradiction|].
    destruct (somebody_full_dec rs) as [Y|Y].
    - destruct (IH Y) as (before & rd' & later & -> & ?).
      exists before, rd', (later ++ [rd]). now rewrite <- app_assoc.
    - exists rs, rd, []. auto.
  Qed.

  (** What a rank gets in a round is brought by the transfers to it. *)
  Lemma only_incoming (s : state (list source)) rd r :
    run_round (@app source) s rd r c
    = run_round (@app source) s (filter (fun t => dst t =? r) rd) r c.
  Proof.
    unfold run_round.
    assert (G : forall now now', now r c = now' r c ->
      fold_left (deliver (@app source) s) rd now r c
      = fold_left (deliver (@app source) s) (filter (fun t => dst t =? r) rd) now' r c).
    { induction rd as [|t rd IH]; simpl; auto. intros now now' H.
      destruct (N.eqb_spec (dst t) r) as [<-|Hr]; simpl; apply IH.
      - unfold deliver. destruct (N.eq_dec c (chunk t)) as [Hc|Hc].
        + rewrite Hc, !put_same, <- Hc, H. auto.
        + now rewrite !put_other by auto.
      - unfold deliver. now rewrite put_other by auto. }
    now apply G.
  Qed.

  Lemma filter_split {A} (p q : A -> bool) l :
    length (filter q l)
    = (length (filter q (filter p l)) + length (filter q (filter (fun x => negb (p x)) l)))%nat.
  Proof.
    induction l as [|a l IH]; simpl; auto. destruct (p a); simpl; destruct (q a); simpl; lia.
  Qed.

  (** Who is full in the end and was not before has received. *)
  Lemma became_full before later r :
    ~ full before r -> full (before ++ later) r ->
    exists t, In t (concat later) /\ dst t = r /\ chunk t = c.
  Proof.
    intros H H'.
    destruct (Exists_dec (fun t => dst t = r /\ chunk t = c) (concat later)) as [E|E].
    { intros t. destruct (N.eq_dec (dst t) r), (N.eq_dec (chunk t) c); [left|right..]; tauto. }
    { apply Exists_exists in E as (t & Ht & ? & ?). eauto. }
    exfalso. apply H. intros i Hi. specialize (H' i Hi). unfold collect in *.
    rewrite run_app in H'. revert H'. generalize (run (@app source) own_data before) as s.
    clear - E. induction later as [|rd later IH]; simpl; intros s; auto.
    intros Hin. simpl in E. apply IH in Hin.
    2: { intros X. apply E, Exists_exists. apply Exists_exists in X as (t & Ht & ?).
         exists t. split; auto. apply in_or_app. now right. }
    rewrite only_incoming in Hin.
    assert (Unchanged : forall ts now, incl ts (filter (fun t => dst t =? r) rd) ->
      fold_left (deliver (@app source) s) ts now r c = now r c).
    { induction ts as [|t ts IHt]; simpl; auto. intros now Hts. rewrite IHt.
      - unfold deliver. apply put_other. right. intros Hc. apply E, Exists_exists.
        exists t. specialize (Hts t (or_introl eq_refl)). apply filter_In in Hts as [? Hd].
        apply N.eqb_eq in Hd. split; [apply in_or_app; now left|auto].
      - intros u Hu. apply Hts. now right. }
    unfold run_round in Hin. rewrite Unchanged in Hin; [auto|now intros ?].
  Qed.

  Theorem chunk_volume rs : 2 <= n -> (forall r, r < n -> full rs r) ->
    (2 * (N.to_nat n - 1) <= moves rs)%nat.
  Proof.
    intros Hn Hall.
    destruct (first_full rs) as (before & rd & later & -> & Hnot & r & Hr & Hfull).
    { intros (r & Hr & F). assert (E : forall i, i < n -> i = r).
      { intros i Hi. destruct (F i Hi) as [E|[]]. congruence. }
      pose proof (E 0). pose proof (E 1). lia. }
    { exists 0. split; [lia|]. apply Hall. lia. }
    set (incoming := filter (fun t => dst t =? r) rd).
    set (others := filter (fun t => negb (dst t =? r)) rd).
    (* joins *)
    assert (J : (N.to_nat n <= moves before + length (filter moves_chunk incoming) + 1)%nat).
    { unfold moves. rewrite <- app_length, <- filter_app.
      apply (one_class_moves _ (labels (concat before ++ incoming) r)). intros i Hi.
      replace (concat before ++ incoming) with (concat (before ++ [incoming]))
        by (rewrite concat_app; simpl; now rewrite app_nil_r).
      apply (holders_labelled (before ++ [incoming]) own_data).
      - intros a b [E|[]]. congruence.
      - specialize (Hfull i Hi). unfold collect in *. rewrite run_app in *. simpl in *.
        unfold incoming. now rewrite <- only_incoming. }
    (* completions of the others *)
    assert (C : (N.to_nat n <= length (filter moves_chunk others) + moves later + 1)%nat).
    { unfold moves. rewrite <- app_length, <- filter_app, Nat.add_comm.
      change (1 + length ?l)%nat with (S (length l)). rewrite <- (map_length dst).
      apply (covering_length (r :: map dst (filter moves_chunk (others ++ concat later)))).
      intros r' Hr'. destruct (N.eq_dec r r') as [->|Hne]; [now left|right].
      destruct (became_full before (rd :: later) r') as (t & Ht & Hd & Hc).
      - intros F. apply Hnot. exists r'. auto.
      - now apply Hall.
      - rewrite <- Hd. apply in_map, filter_In. split; [|unfold moves_chunk; now apply N.eqb_eq].
        simpl in Ht. apply in_app_iff in Ht as [Ht|Ht]; apply in_or_app; auto.
        left. apply filter_In. split; auto. apply negb_true_iff, N.eqb_neq. congruence. }
    replace (before ++ rd :: later) with (before ++ [rd] ++ later) by reflexivity.
    rewrite !moves_app. unfold moves at 2. simpl. rewrite app_nil_r.
    rewrite (filter_split (fun t => dst t =? r) moves_chunk rd). fold incoming others. lia.
  Qed.
End Chunk.

(** * All chunks together *)

Definition total (f : N -> nat) (cs : list N) : nat :=
  fold_right (fun c sum => f c + sum)%nat 0%nat cs.

Lemma many_each (f : N -> nat) m : forall cs, (forall c, In c cs -> m <= f c)%nat ->
  (length cs * m <= total f cs)%nat.
Proof.
  induction cs as [|c cs IH]; simpl; intros H; auto.
  pose proof (H c (or_introl eq_refl)). assert (length cs * m <= _)%nat by (apply IH; auto). lia.
Qed.

Lemma total_ext f g cs : (forall c, In c cs -> f c = g c) -> total f cs = total g cs.
Proof. induction cs as [|c cs IH]; simpl; intros H; auto. Qed.

Lemma moves_disjoint cs : forall (ts : list transfer), NoDup cs ->
  (total (fun c => length (filter (moves_chunk c) ts)) cs <= length ts)%nat.
Proof.
  induction cs as [|c cs IH]; simpl; intros ts Hcs; [lia|]. inversion Hcs; subst.
  specialize (IH (filter (fun t => negb (moves_chunk c t)) ts)).
  rewrite (total_ext _ (fun c' => length (filter (moves_chunk c') ts))) in IH.
  - specialize (IH ltac:(assumption)).
    enough (length ts = length (filter (moves_chunk c) ts)
                        + length (filter (fun t => negb (moves_chunk c t)) ts))%nat by lia.
    clear. induction ts as [|t ts IH]; simpl; auto.
    destruct (moves_chunk c t); simpl; lia.
  - intros c' Hc'. f_equal. assert (Hne : c' <> c) by congruence. clear - Hne.
    induction ts as [|t ts IH]; simpl; auto. unfold moves_chunk in *.
    destruct (N.eqb_spec (chunk t) c) as [E|E]; simpl; rewrite IH; auto.
    destruct (N.eqb_spec (chunk t) c'); congruence.
Qed.

Lemma round_length n limit rd : (forall t, In t rd -> src t < n) -> sends_within limit rd ->
  (length rd <= N.to_nat n * N.to_nat limit)%nat.
Proof.
  intros Hn H. rewrite <- (map_length src), <- (range_length n), Nat.mul_comm.
  apply crowd_length; auto. intros x Hx. apply in_map_iff in Hx as (t & <- & Ht).
  now apply in_range, Hn.
Qed.

(** Rounds that all transfers together need, whoever is present. *)
Definition volume_bound (n k limit : N) : N := ceil_div (2 * k * (n - 1)) (n * limit).

Theorem volume_bound_holds n k limit rs :
  2 <= n -> 1 <= limit -> ranks_exist n rs -> Forall (sends_within limit) rs ->
  (forall r i c, r < n -> i < n -> c < k -> In (Rank i) (collect own_data rs r c)) ->
  volume_bound n k limit <= N.of_nat (length rs).
Proof.
  intros Hn Hl Hex Hports Hall.
  assert (Low : (N.to_nat k * (2 * (N.to_nat n - 1)) <= length (concat rs))%nat).
  { etransitivity; [|apply (moves_disjoint (range k)), range_nodup].
    rewrite <- (range_length k). apply many_each. intros c Hc. apply in_range in Hc.
    apply chunk_volume; auto. intros r Hr i Hi. now apply Hall. }
  assert (High : (length (concat rs) <= length rs * (N.to_nat n * N.to_nat limit))%nat).
  { clear Hall Low. unfold ranks_exist in Hex.
    induction rs as [|rd rs IH]; simpl; [lia|]. rewrite app_length.
    specialize (IH (Forall_inv_tail Hex) (Forall_inv_tail Hports)).
    pose proof (round_length n limit rd) as L.
    enough (length rd <= N.to_nat n * N.to_nat limit)%nat by lia.
    apply L; [|now apply Forall_inv in Hports].
    apply Forall_inv in Hex. now apply Forall_forall. }
  apply ceil_div_le; nia.
Qed.
