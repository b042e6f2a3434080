(** Machines of two levels (synth/twolevel/bound.py, proofs/paper/two-levels.md): a lower bound on the time.

    Ranks are on nodes; a round in which something goes from one node to another is a *network round*.
    The data of the late rank leaves its node [ports] chunks at a time, and the nodes that know of a
    chunk grow at most (ports + 1)-fold per network round: that is the knowledge bound, of nodes in
    place of ranks. With what a network round and any other round cost at least, it bounds the time. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Bounds.
Import ListNotations.
Open Scope N_scope.

Section TwoLevels.
  Variables (n k nodes network_ports : N) (node : N -> N).

  Definition crosses (t : transfer) : bool := negb (node (src t) =? node (dst t)).

  Definition is_network (rd : round) : bool := existsb crosses rd.

  (** What a round is to the nodes. *)
  Definition between_nodes (rd : round) : round :=
    map (fun t => Transfer (node (src t)) (node (dst t)) (chunk t) (op t)) (filter crosses rd).

  Definition network_rounds (rs : list round) : N := N.of_nat (length (filter is_network rs)).

  (** The rounds before the late rank arrives, and those after; idle ones are left out. *)
  Variables (late : N) (before after : list round).
  Hypothesis two_nodes : 2 <= nodes.
  Hypothesis two_ranks : 2 <= n.
  Hypothesis some_chunk : 1 <= k.
  Hypothesis some_port : 1 <= network_ports.
  Hypothesis every_node : forall m, m < nodes -> exists r, r < n /\ node r = m.
  Hypothesis late_silent : forall rd t, In rd before -> In t rd -> src t <> late.
  Hypothesis one_port : Forall (sends_within 1) after.
  Hypothesis ports_of_nodes : Forall (fun rd => sends_within network_ports (between_nodes rd)) after.
  Hypothesis late_is_rank : late < n.
  Hypothesis right_sum : all_reduce n k (before ++ after).

  Lemma everybody_told r c : r < n -> c < k -> In r (spread_all c [late] (before ++ after)).
  Proof.
    intros Hr Hc. apply (holders_know c [Rank late] _ own_data) with (i := Rank late).
    - intros x i [<-|[]] [[= ->]|[]]. now left.
    - apply all_reduce_iff in right_sum.
      apply (Permutation_in (Rank late) (Permutation_sym (right_sum r c Hr Hc))).
      now apply in_everybody.
    - now left.
  Qed.

  Lemma told_afterwards r c : r < n -> c < k -> In r (spread_all c [late] after).
  Proof.
    intros Hr Hc. pose proof (everybody_told r c Hr Hc) as T.
    rewrite spread_all_app, spread_unsent in T; auto.
    intros rd t Hrd Ht [Hs _]. now apply (late_silent rd t).
  Qed.

  Lemma nodes_told c rs : forall knowers known, (forall r, In r knowers -> In (node r) known) ->
    forall r, In r (spread_all c knowers rs) -> In (node r) (spread_all c known (map between_nodes rs)).
  Proof.
    induction rs as [|rd rs IH]; simpl; auto. intros knowers known H. apply IH. intros r Hr.
    unfold spread in *. apply in_app_iff in Hr as [Hr|Hr]; apply in_or_app; [|right; auto].
    apply in_map_iff in Hr as (t & <- & Ht). apply filter_In in Ht as [Ht Tells].
    assert (Hc : chunk t = c).
    { unfold tells in Tells. apply andb_true_iff in Tells as [E _]. now apply N.eqb_eq. }
    apply tells_src, H in Tells.
    destruct (N.eqb_spec (node (src t)) (node (dst t))) as [E|E]; [right; congruence|left].
    apply in_map_iff. exists (Transfer (node (src t)) (node (dst t)) (chunk t) (op t)).
    split; auto. apply filter_In. split; [|now apply tells_intro].
    apply in_map_iff. exists t. split; auto. apply filter_In. split; auto.
    apply negb_true_iff, N.eqb_neq, E.
  Qed.

  Lemma idle_tells_nothing c rs : forall known,
    spread_all c known (filter moves_something rs) = spread_all c known rs.
  Proof.
    induction rs as [|rd rs IH]; simpl; auto. intros known. destruct rd; simpl; apply IH.
  Qed.

  Lemma network_counted rs :
    length (filter moves_something (map between_nodes rs)) = length (filter is_network rs).
  Proof.
    induction rs as [|rd rs IH]; simpl; auto.
    assert (E : moves_something (between_nodes rd) = is_network rd).
    { unfold between_nodes, is_network. induction rd as [|t rd IHr]; simpl; auto.
      destruct (crosses t); auto. }
    rewrite E. destruct (is_network rd); simpl; congruence.
  Qed.

  Theorem network_rounds_bound :
    knowledge_bound nodes k network_ports <= network_rounds after.
  Proof.
    unfold network_rounds. rewrite <- network_counted.
    apply (knowledge_bound_holds nodes k network_ports (node late) []); auto.
    - apply Forall_forall. intros rd Hrd. apply filter_In in Hrd as [Hrd _].
      apply in_map_iff in Hrd as (rd' & <- & Hrd). rewrite Forall_forall in ports_of_nodes. auto.
    - intros m c Hm Hc. simpl. rewrite idle_tells_nothing.
      destruct (every_node m Hm) as (r & Hr & <-).
      apply (nodes_told c after [late]); [intros x [<-|[]]; now left|now apply told_afterwards].
  Qed.

  Theorem rounds_bound : knowledge_bound n k 1 <= N.of_nat (length after).
  Proof. apply (knowledge_bound_holds n k 1 late before after); auto using everybody_told; lia. Qed.

  (** What a network round costs at least, and any other round; in units of any kind. *)
  Variables (cost : round -> N) (outer least : N).
  Hypothesis network_costs : forall rd, In rd after -> is_network rd = true -> outer <= cost rd.
  Hypothesis others_cost : forall rd, In rd after -> least <= cost rd.
  Hypothesis network_is_slow : least <= outer.

  Definition time (rs : list round) : N := fold_right (fun rd sum => cost rd + sum) 0 rs.

  Theorem time_bound :
    let b := knowledge_bound nodes k network_ports in
    b * outer + (knowledge_bound n k 1 - b) * least <= time after.
  Proof.
    intros b. pose proof network_rounds_bound as B. pose proof rounds_bound as R. fold b in B.
    assert (T : forall rs, (forall rd, In rd rs -> In rd after) ->
      network_rounds rs * outer + (N.of_nat (length rs) - network_rounds rs) * least <= time rs /\
      network_rounds rs <= N.of_nat (length rs)).
    { unfold network_rounds. induction rs as [|rd rs IH]; simpl length; intros H; [simpl; lia|].
      destruct IH as [IH Le]; [intros; apply H; now right|].
      pose proof (H rd (or_introl eq_refl)) as Hrd. pose proof (others_cost rd Hrd).
      cbn [filter time fold_right]. change (fold_right _ 0 rs) with (time rs).
      destruct (is_network rd) eqn:E; cbn [length].
      - pose proof (network_costs rd Hrd E). split; [|lia].
        replace (N.of_nat (S (length rs)) - N.of_nat (S (length (filter is_network rs))))
          with (N.of_nat (length rs) - N.of_nat (length (filter is_network rs))) by lia. nia.
      - split; [|lia].
        replace (N.of_nat (S (length rs)) - N.of_nat (length (filter is_network rs)))
          with (1 + (N.of_nat (length rs) - N.of_nat (length (filter is_network rs)))) by lia. nia. }
    destruct (T after) as [Total Le]; auto. etransitivity; [|exact Total].
    destruct (N.le_gt_cases (knowledge_bound n k 1) b) as [L|L].
    - replace (knowledge_bound n k 1 - b) with 0 by lia. nia.
    - destruct (N.le_gt_cases (knowledge_bound n k 1) (network_rounds after)); nia.
  Qed.
End TwoLevels.
