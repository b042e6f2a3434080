(** The spread bound (verify/bounds.py): how many receives are of use early on.

    After rank r arrives, r must receive something of every chunk, and every other rank must
    receive, for each of r's chunks, something from a rank that knows of r's part. In the t-th round
    after the arrival at most (limit + 1)^t ranks know anything of r's. So of these n k receives at
    most min(capacity, limit (limit + 1)^t + limit) fit into it, where [capacity] is the most
    transfers that the ports allow in a round. For an odd number of ranks in disjoint pairs this can
    be more than the knowledge bound. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Volume.
Import ListNotations.
Open Scope N_scope.

(** * Ports: how many transfers fit into a round *)

Definition capacity (n : N) (p : port_model) : N :=
  match p with
  | Matching => 2 * (n / 2)
  | _ => n * port_limit p
  end.

Lemma half_round n (rd : round) :
  (forall t, In t rd -> src t < n /\ dst t < n) ->
  NoDup (map src rd) -> NoDup (map dst rd) ->
  (forall t u, In t rd -> In u rd -> src t <> dst u) ->
  (2 * length rd <= N.to_nat n)%nat.
Proof.
  intros Ends S D Apart.
  replace (2 * length rd)%nat with (length (map src rd ++ map dst rd))
    by (rewrite app_length, !map_length; lia).
  apply bounded_length.
  - apply nodup_app. repeat split; auto. intros x Hx Hx'. apply in_map_iff in Hx as (t & <- & Ht).
    apply in_map_iff in Hx' as (u & E & Hu). now apply (Apart t u).
  - intros x Hx. apply in_app_iff in Hx as [Hx|Hx]; apply in_map_iff in Hx as (t & <- & Ht);
      now apply Ends.
Qed.

Lemma nodup_occurrences l : (forall x, (occurrences l x <= 1)%nat) -> NoDup l.
Proof. apply (NoDup_count_occ N.eq_dec). Qed.

Lemma round_capacity n k p rd :
  (forall t, In t rd -> transfer_well_formed n k t) -> fits_ports p rd ->
  (length rd <= N.to_nat (capacity n p))%nat.
Proof.
  intros W (Hs & Hr & Hp).
  assert (Plain : (length rd <= N.to_nat (n * port_limit p))%nat).
  { pose proof (round_length n (port_limit p) rd) as L.
    assert (length rd <= N.to_nat n * N.to_nat (port_limit p))%nat; [|lia].
    apply L; auto. intros t Ht. now apply W. }
  destruct p; try exact Plain. specialize (Hp eq_refl). unfold capacity.
  pose proof (nodup_occurrences _ Hs) as S. pose proof (nodup_occurrences _ Hr) as D.
  set (up := filter (fun t => src t <? dst t) rd).
  set (down := filter (fun t => negb (src t <? dst t)) rd).
  assert (Split : length rd = (length up + length down)%nat).
  { unfold up, down. clear. induction rd as [|t rd IH]; simpl; auto.
    destruct (src t <? dst t); simpl; lia. }
  assert (Half : forall part, (forall t, In t part -> In t rd) ->
    NoDup (map src part) -> NoDup (map dst part) ->
    (forall t u, In t part -> In u part -> src t = dst u -> dst t = src u -> False) ->
    (2 * length part <= N.to_nat n)%nat).
  { intros part Sub S' D' One. apply half_round; auto.
    - intros t Ht. destruct (W t (Sub t Ht)) as (? & ? & _). auto.
    - intros t u Ht Hu E. apply (One t u); auto. }
  assert (U : (2 * length up <= N.to_nat n)%nat).
  { apply Half; try (unfold up; now apply nodup_filter_map).
    - intros t Ht. now apply filter_In in Ht.
    - intros t u Ht Hu E E'. apply filter_In in Ht as [_ Ht], Hu as [_ Hu].
      apply N.ltb_lt in Ht, Hu. lia. }
  assert (V : (2 * length down <= N.to_nat n)%nat).
  { apply Half; try (unfold down; now apply nodup_filter_map).
    - intros t Ht. now apply filter_In in Ht.
    - intros t u Ht Hu E E'. apply filter_In in Ht as [Ht0 Ht], Hu as [_ Hu].
      apply negb_true_iff, N.ltb_ge in Ht, Hu. destruct (W t Ht0) as (_ & _ & _ & Ne). lia. }
  pose proof (N.div_mod' n 2) as M. assert (n mod 2 < 2) by (apply N.mod_lt; lia). lia.
Qed.

(** * Receives that are of use *)

Section Useful.
  Variables (n k limit cap origin : N).

  (** Ranks that may know anything of [origin]'s, in whatever chunk. *)
  Definition spread_any (knowers : list N) (rd : round) : list N :=
    map dst (filter (fun t => existsb (N.eqb (src t)) knowers) rd) ++ knowers.

  Definition useful (knowers : list N) (t : transfer) : bool :=
    (dst t =? origin) || existsb (N.eqb (src t)) knowers.

  (** The (rank, chunk) pairs of all useful receives. *)
  Fixpoint useful_receives (knowers : list N) (rs : list round) : list (N * N) :=
    match rs with
    | [] => []
    | rd :: rs => map (fun t => (dst t, chunk t)) (filter (useful knowers) rd)
                  ++ useful_receives (spread_any knowers rd) rs
    end.

  Lemma in_list_iff r (l : list N) : existsb (N.eqb r) l = true <-> In r l.
  Proof.
    rewrite existsb_exists. split.
    - intros (y & H & E). apply N.eqb_eq in E. now subst.
    - intros H. exists r. split; auto. apply N.eqb_refl.
  Qed.

  Lemma spread_any_length knowers rd : sends_within limit rd ->
    (length (spread_any knowers rd) <= (1 + N.to_nat limit) * length knowers)%nat.
  Proof.
    intros H. unfold spread_any. rewrite app_length, map_length.
    enough (length (filter (fun t => existsb (N.eqb (src t)) knowers) rd)
            <= N.to_nat limit * length knowers)%nat by lia.
    rewrite <- (map_length src). apply crowd_length.
    - intros x Hx. apply in_map_iff in Hx as (t & <- & Ht).
      apply filter_In in Ht as [_ Ht]. now apply in_list_iff.
    - intros x. pose proof (occurrences_filter_map src (fun t => existsb (N.eqb (src t)) knowers) rd x).
      specialize (H x). lia.
  Qed.

  Lemma useful_length knowers rd : sends_within limit rd -> receives_within limit rd ->
    (length (filter (useful knowers) rd)
     <= N.to_nat limit * length knowers + N.to_nat limit)%nat.
  Proof.
    intros Hs Hr.
    assert (Split : (length (filter (useful knowers) rd)
      <= length (filter (fun t => existsb (N.eqb (src t)) knowers) rd)
         + length (filter (fun t => dst t =? origin)%N rd))%nat).
    { clear Hs Hr. unfold useful. induction rd as [|t rd IH]; simpl; auto.
      destruct (existsb _ knowers), (dst t =? origin); simpl; lia. }
    assert (From : (length (filter (fun t => existsb (N.eqb (src t)) knowers) rd)
                    <= N.to_nat limit * length knowers)%nat).
    { rewrite <- (map_length src). apply crowd_length.
      - intros x Hx. apply in_map_iff in Hx as (t & <- & Ht).
        apply filter_In in Ht as [_ Ht]. now apply in_list_iff.
      - intros x. pose proof (occurrences_filter_map src (fun t => existsb (N.eqb (src t)) knowers) rd x).
        specialize (Hs x). lia. }
    assert (To : (length (filter (fun t => dst t =? origin)%N rd) <= N.to_nat limit)%nat).
    { rewrite <- (map_length dst).
      replace (N.to_nat limit) with (N.to_nat limit * length [origin])%nat by (simpl; lia).
      apply crowd_length.
      - intros x Hx. apply in_map_iff in Hx as (t & <- & Ht). apply filter_In in Ht as [_ Ht].
        apply N.eqb_eq in Ht. now left.
      - intros x. pose proof (occurrences_filter_map dst (fun t => dst t =? origin) rd x).
        specialize (Hr x). lia. }
    lia.
  Qed.

  (** What fits into [m] rounds, if [knowers] ranks know of it at first. *)
  Fixpoint fitting (m : nat) (knowers : N) : N :=
    match m with
    | O => 0
    | S m => N.min cap (limit * (knowers + 1)) + fitting m (knowers * (limit + 1))
    end.

  Lemma fitting_mono m : forall a b, a <= b -> fitting m a <= fitting m b.
  Proof.
    induction m as [|m IH]; simpl; intros a b H; [lia|].
    specialize (IH (a * (limit + 1)) (b * (limit + 1))). nia.
  Qed.

  Lemma useful_receives_fit rs : forall knowers,
    Forall (sends_within limit) rs -> Forall (receives_within limit) rs ->
    Forall (fun rd => (length rd <= N.to_nat cap)%nat) rs ->
    N.of_nat (length (useful_receives knowers rs))
    <= fitting (length rs) (N.of_nat (length knowers)).
  Proof.
    induction rs as [|rd rs IH]; simpl; intros knowers Hs Hr Hc; [lia|].
    rewrite app_length, map_length.
    specialize (IH (spread_any knowers rd) (Forall_inv_tail Hs) (Forall_inv_tail Hr) (Forall_inv_tail Hc)).
    apply Forall_inv in Hs, Hr, Hc.
    pose proof (useful_length knowers rd Hs Hr). pose proof (filter_length_le (useful knowers) rd).
    pose proof (spread_any_length knowers rd Hs).
    pose proof (fitting_mono (length rs) (N.of_nat (length (spread_any knowers rd)))
                  (N.of_nat (length knowers) * (limit + 1))).
    lia.
  Qed.

  (** Who comes to know of the origin's part of a chunk does so by a useful receive. *)
  Lemma learns_usefully c rs : forall some any,
    incl some any -> forall q, In q (spread_all c some rs) ->
    In q some \/ In (q, c) (useful_receives any rs).
  Proof.
    induction rs as [|rd rs IH]; simpl; intros some any Sub q Hq; auto.
    assert (Sub' : incl (spread c some rd) (spread_any any rd)).
    { intros x Hx. apply in_app_iff in Hx as [Hx|Hx]; apply in_or_app; [left|right; auto].
      apply in_map_iff in Hx as (t & <- & Ht). apply filter_In in Ht as [Ht Tt].
      apply in_map, filter_In. split; auto. apply in_list_iff, Sub. now apply tells_src in Tt. }
    destruct (IH _ _ Sub' q Hq) as [H|H]; [|right; apply in_or_app; now right].
    apply in_app_iff in H as [H|H]; auto. right. apply in_or_app. left.
    apply in_map_iff in H as (t & <- & Ht). apply filter_In in Ht as [Ht Tt].
    apply in_map_iff. exists t. split.
    - f_equal. apply andb_true_iff in Tt as [Tc _]. now apply N.eqb_eq.
    - apply filter_In. split; auto. apply orb_true_iff. right.
      apply in_list_iff, Sub. now apply tells_src in Tt.
  Qed.

  Lemma receives_are_useful rs : forall any t, In t (concat rs) -> dst t = origin ->
    In (origin, chunk t) (useful_receives any rs).
  Proof.
    induction rs as [|rd rs IH]; simpl; intros any t Ht Hd; [easy|].
    apply in_or_app. apply in_app_iff in Ht as [Ht|Ht]; [left|right; auto].
    apply in_map_iff. exists t. split; [congruence|]. apply filter_In. split; auto.
    apply orb_true_iff. left. now apply N.eqb_eq.
  Qed.

  (** All n k receives are needed. *)
  Lemma all_needed rs :
    (forall q c, q < n -> c < k -> In q (spread_all c [origin] rs)) ->
    (forall c, c < k -> exists t, In t (concat rs) /\ dst t = origin /\ chunk t = c) ->
    n * k <= N.of_nat (length (useful_receives [origin] rs)).
  Proof.
    intros Know Receive.
    assert (L : (length (list_prod (range n) (range k))
                 <= length (useful_receives [origin] rs))%nat).
    { apply NoDup_incl_length.
      - apply nodup_prod; apply range_nodup.
      - intros [q c] H. apply in_prod_iff in H as [Hq Hc]. apply in_range in Hq, Hc.
        destruct (learns_usefully c rs [origin] [origin] (fun x H => H) q (Know q c Hq Hc))
          as [[E|[]]|H]; auto.
        subst q. destruct (Receive c Hc) as (t & Ht & Hd & <-). now apply receives_are_useful. }
    rewrite prod_length, !range_length in L. lia.
  Qed.
End Useful.

(** * The bound *)

(** As in verify: while a round is not yet full, then full rounds. [tries] is any number; the more,
    the better the bound, up to the rounds that are not full. *)
Fixpoint spread_rounds (limit cap : N) (tries : nat) (missing knowers : N) : N :=
  match tries with
  | O => ceil_div missing cap
  | S tries =>
      if (0 <? missing) && (limit * (knowers + 1) <? cap)
      then 1 + spread_rounds limit cap tries (missing - limit * (knowers + 1)) (knowers * (limit + 1))
      else ceil_div missing cap
  end.

Definition spread_bound (n k : N) (p : port_model) : N :=
  spread_rounds (port_limit p) (capacity n p) (N.to_nat (N.size (capacity n p))) (n * k) 1.

Lemma fitting_capacity limit cap m : forall knowers, fitting limit cap m knowers <= cap * N.of_nat m.
Proof.
  induction m as [|m IH]; intros knowers; [simpl; lia|].
  cbn [fitting]. specialize (IH (knowers * (limit + 1))). lia.
Qed.

Lemma spread_rounds_le limit cap tries : 0 < cap -> forall m missing knowers,
  missing <= fitting limit cap m knowers ->
  spread_rounds limit cap tries missing knowers <= N.of_nat m.
Proof.
  intros Hc. assert (Full : forall m missing knowers, missing <= fitting limit cap m knowers ->
    ceil_div missing cap <= N.of_nat m).
  { intros m missing knowers H. apply ceil_div_le; auto.
    pose proof (fitting_capacity limit cap m knowers). lia. }
  induction tries as [|tries IH]; intros m missing knowers H; cbn [spread_rounds]; eauto.
  destruct ((0 <? missing) && (limit * (knowers + 1) <? cap)) eqn:E; eauto.
  apply andb_true_iff in E as [E1 E2]. apply N.ltb_lt in E1, E2.
  destruct m as [|m]; [simpl in H; lia|]. cbn [fitting] in H.
  specialize (IH m (missing - limit * (knowers + 1)) (knowers * (limit + 1))). lia.
Qed.

(** [before]: rounds in which the rank takes no part; [after]: from its arrival on. *)
Theorem spread_bound_holds n k p origin (before after : list round) :
  2 <= n -> 1 <= port_limit p -> origin < n ->
  (forall rd t, In rd before -> In t rd -> src t <> origin /\ dst t <> origin) ->
  (forall rd t, In rd after -> In t rd -> transfer_well_formed n k t) ->
  Forall (fits_ports p) after ->
  (forall r i c, r < n -> i < n -> c < k -> In (Rank i) (collect own_data (before ++ after) r c)) ->
  spread_bound n k p <= N.of_nat (length after).
Proof.
  intros Hn Hl Ho Hbefore Hformed Hports Hall.
  assert (Cap : 0 < capacity n p).
  { destruct p; cbn [capacity port_limit] in *; try nia.
    assert (1 <= n / 2) by (apply N.div_le_lower_bound; lia). lia. }
  apply spread_rounds_le; auto. etransitivity.
  - apply (all_needed n k origin after).
    + intros q c Hq Hc.
      assert (K : In q (spread_all c [origin] (before ++ after))).
      { apply (holders_know c [Rank origin] (before ++ after) own_data) with (i := Rank origin).
        - intros a i [<-|[]] [Ea|[]]. injection Ea as ->. now left.
        - now apply Hall.
        - now left. }
      rewrite spread_all_app, (spread_unsent origin c before) in K; auto.
      intros rd t Hrd Ht [Hs _]. destruct (Hbefore rd t Hrd Ht). contradiction.
    + intros c Hc.
      (* it has to learn of another rank, after its arrival *)
      assert (Other : exists j, j < n /\ j <> origin).
      { destruct (N.eq_dec origin 0); [exists 1|exists 0]; lia. }
      destruct Other as (j & Hj & Ne).
      destruct (Exists_dec (fun t => dst t = origin /\ chunk t = c) (concat after)) as [E|E].
      { intros t. destruct (N.eq_dec (dst t) origin), (N.eq_dec (chunk t) c); [left|right..]; tauto. }
      { apply Exists_exists in E as (t & Ht & ? & ?). eauto. }
      exfalso. pose proof (Hall origin j c Ho Hj Hc) as H.
      assert (Quiet : forall rs (s : state (list source)),
        (forall t, In t (concat rs) -> dst t = origin -> chunk t <> c) ->
        run (@app source) s rs origin c = s origin c).
      { induction rs as [|rd rs IH]; simpl; intros s Q; auto. rewrite IH.
        - apply run_round_quiet. intros t Ht. apply Q, in_or_app. now left.
        - intros t Ht. apply Q, in_or_app. now right. }
      unfold collect in H. rewrite Quiet in H.
      * destruct H as [H|[]]. congruence.
      * intros t Ht Hd Hch. rewrite concat_app in Ht. apply in_app_iff in Ht as [Ht|Ht].
        -- apply in_concat in Ht as (rd & Hrd & Ht). destruct (Hbefore rd t Hrd Ht). contradiction.
        -- apply E, Exists_exists. eauto.
  - change 1 with (N.of_nat (length [origin])).
    apply useful_receives_fit; apply Forall_forall; intros rd Hrd;
      rewrite Forall_forall in Hports; specialize (Hports rd Hrd).
    + apply Hports.
    + apply Hports.
    + apply (round_capacity n k); eauto.
Qed.

(** With disjoint pairs, k = n - 1 and one late rank, for small odd n. For n = 7, 11 and 13 that is
    one round more than the knowledge bound: 7 ranks need 9 rounds, not 8. *)
Theorem bounds_in_pairs :
  map (fun n => spread_bound n (n - 1) Matching) [3; 5; 7; 9; 11; 13] = [3; 6; 9; 11; 14; 16].
Proof. reflexivity. Qed.
