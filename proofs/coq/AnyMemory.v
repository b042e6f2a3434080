(** Memory beside the buffer, and parts of chunks, don't help: the lower bound in a richer model.

    In [Schedule.v] a rank has one cell for each chunk, and a transfer brings a whole chunk into the
    cell of its name. Here a rank has any cells, and the buffer is cut into [units] as small as one
    likes. A message carries values of at most [most] units, from any cells and for any cells; between
    rounds every rank copies and adds its values as often as it likes, for nothing. In each round a
    rank sends one message at most; it may receive any number.

    A value is a formal sum of contributions, so this is for every operation that can be added up and
    not taken back: what has been added to something can't be got out of it again.

    A buffer of k chunks is [k * most] units, and then the bound is k + ceil(log2 n) - 1 again, which
    one cell per chunk and whole chunks reach ([Headline.v]). *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge Spread.
Import ListNotations.
Open Scope N_scope.

(** Whose data of which unit. A value is the sum of its contributions. *)
Definition contribution : Type := N * N.
Definition value : Type := list contribution.

Record message := Message { sender : N; receiver : N; carried : list value }.

(** At most one message from each rank, of [most] units at most. *)
Definition one_message (most : N) (ms : list message) : Prop :=
  NoDup (map sender ms) /\ forall m, In m ms -> N.of_nat (length (carried m)) <= most.

(** What can be had from some values by adding them up. *)
Inductive computed (have : value -> Prop) : value -> Prop :=
| nothing : computed have []
| as_it_is v : have v -> computed have v
| added v w : computed have v -> computed have w -> computed have (v ++ w).

(** What each rank holds in each of its cells, whatever cells are called. *)
Definition state (cell : Type) : Type := N -> cell -> value.

Definition holds {cell} (s : state cell) (r : N) (v : value) : Prop := exists c, s r c = v.

Definition received (ms : list message) (r : N) (v : value) : Prop :=
  exists m, In m ms /\ receiver m = r /\ In v (carried m).

(** One round, and what ranks do by themselves: every value that is sent was computed by its sender
    from what it held; everything that a rank holds afterwards it computed from what it held and what
    it received. *)
Definition step {cell} (s : state cell) (ms : list message) (s' : state cell) : Prop :=
  (forall m v, In m ms -> In v (carried m) -> computed (holds s (sender m)) v) /\
  (forall r c, computed (fun v => holds s r v \/ received ms r v) (s' r c)).

Inductive run {cell} : state cell -> list (list message) -> state cell -> Prop :=
| done s : run s [] s
| one_more s ms s' rest s'' : step s ms s' -> run s' rest s'' -> run s (ms :: rest) s''.

(** At first all that a rank holds is its own. *)
Definition own_data_only {cell} (s : state cell) : Prop :=
  forall r c i u, In (i, u) (s r c) -> i = r.

(** At the end every rank has, for every unit, a sum of all ranks' data of it, and of nothing else.
    How often something is in a sum is not even asked. *)
Definition reduced {cell} (n units : N) (s : state cell) : Prop :=
  forall r u, r < n -> u < units -> exists c,
    (forall i, i < n -> In (i, u) (s r c)) /\ (forall i w, In (i, w) (s r c) -> w = u).

(** * Proofs *)

Section Knowing.
  Context {cell : Type}.
  Variables (origin u : N).

  (** A sum for unit [u] that has [origin]'s part in it. *)
  Definition useful (v : value) : Prop := In (origin, u) v /\ forall i w, In (i, w) v -> w = u.

  Definition knows (s : state cell) (r : N) : Prop := exists c, useful (s r c).

  Lemma computed_useful (have : value -> Prop) v : computed have v -> useful v ->
    exists w, have w /\ useful w.
  Proof.
    induction 1 as [|v H|v w _ IHv _ IHw]; intros [I P].
    - destruct I.
    - exists v. split; auto. now split.
    - apply in_app_iff in I as [I|I]; [apply IHv|apply IHw]; split; auto;
        intros i x Hx; apply (P i x), in_or_app; auto.
  Qed.

  Lemma learns s ms s' r : step s ms s' -> knows s' r ->
    knows s r \/ exists m v, In m ms /\ receiver m = r /\ In v (carried m) /\ useful v
                             /\ knows s (sender m).
  Proof.
    intros [Sent Held] (c & Us). destruct (computed_useful _ _ (Held r c) Us) as (w & [H|H] & Uw).
    - left. destruct H as (d & <-). now exists d.
    - right. destruct H as (m & Hm & Hr & Hw). exists m, w. repeat split; auto; try apply Uw.
      destruct (computed_useful _ _ (Sent m w Hm Hw) Uw) as (x & (d & <-) & Ux). now exists d.
  Qed.

  (** While [origin] sends no such sum, nobody else knows. *)
  Lemma unsent rounds : forall s s', run s rounds s' ->
    (forall ms m v, In ms rounds -> In m ms -> sender m = origin -> In v (carried m) -> ~ useful v) ->
    (forall r, knows s r -> r = origin) -> forall r, knows s' r -> r = origin.
  Proof.
    induction rounds as [|ms rounds IH]; intros s s'' R Quiet Own; inversion R as [|? ? s' ? ? St R']; subst; auto.
    apply (IH s' s''); auto.
    - intros ms' m v Hms. apply Quiet. now right.
    - intros r K. destruct (learns s ms s' r St K) as [K'|(m & v & Hm & _ & Hv & Uv & K')]; auto.
      exfalso. apply (Quiet ms m v); auto. now left.
  Qed.

  (** Those who know at most double in a round. *)
  Lemma doubles rounds : forall s s'' most knowers, run s rounds s'' ->
    Forall (one_message most) rounds -> (forall r, knows s r -> In r knowers) ->
    exists knowers', (forall r, knows s'' r -> In r knowers') /\
                     (length knowers' <= 2 ^ length rounds * length knowers)%nat.
  Proof.
    induction rounds as [|ms rounds IH]; intros s s'' most knowers R F K;
      inversion R as [|? ? s' ? ? St R']; subst.
    - exists knowers. split; auto. simpl. lia.
    - inversion F as [|? ? [One _] F']; subst.
      set (senders := filter (fun m => existsb (N.eqb (sender m)) knowers) ms).
      destruct (IH s' s'' most (map receiver senders ++ knowers)) as (knowers' & K' & L); auto.
      { intros r Kr. apply in_or_app.
        destruct (learns s ms s' r St Kr) as [Old|(m & v & Hm & Hr & _ & _ & Ks)]; auto.
        left. subst r. apply in_map, filter_In. split; auto. apply existsb_exists.
        exists (sender m). split; [auto|apply N.eqb_refl]. }
      exists knowers'. split; auto. rewrite app_length, map_length in L.
      assert (Few : (length senders <= length knowers)%nat).
      { rewrite <- (map_length sender). apply NoDup_incl_length.
        - unfold senders. clear -One. induction ms as [|m ms IH]; simpl; [constructor|].
          inversion One as [|? ? No One']; subst. destruct (existsb _ knowers); auto.
          simpl. constructor; auto. intros I. apply No.
          apply in_map_iff in I as (x & E & Hx). apply filter_In in Hx as [Hx _].
          rewrite <- E. now apply in_map.
        - intros x Hx. apply in_map_iff in Hx as (m & <- & Hm). apply filter_In in Hm as [_ Hm].
          apply existsb_exists in Hm as (y & Hy & E). apply N.eqb_eq in E. now subst. }
      change (length (ms :: rounds)) with (S (length rounds)). rewrite Nat.pow_succ_r'.
      assert (2 ^ length rounds * (length senders + length knowers)
              <= 2 ^ length rounds * (2 * length knowers))%nat by (apply Nat.mul_le_mono_l; lia).
      lia.
  Qed.
End Knowing.

(** The units that a rank's values are sums for. *)
Definition unit_of (v : value) : N := match v with (_, u) :: _ => u | [] => 0 end.

Lemma useful_unit origin u v : useful origin u v -> unit_of v = u.
Proof. intros [I P]. destruct v as [|[i w] v]; [destruct I|]. apply (P i w). now left. Qed.

Definition units_from (r : N) (ms : list message) : list N :=
  flat_map (fun m => if sender m =? r then map unit_of (carried m) else []) ms.

Lemma units_from_length most r ms : one_message most ms ->
  (length (units_from r ms) <= N.to_nat most)%nat.
Proof.
  intros [One Size]. unfold units_from.
  assert (None : forall l, ~ In r (map sender l) ->
    flat_map (fun m => if sender m =? r then map unit_of (carried m) else []) l = []).
  { induction l as [|m l IH]; simpl; auto. intros No.
    destruct (N.eqb_spec (sender m) r); [exfalso; auto|]. apply IH. auto. }
  induction ms as [|m ms IH]; simpl; [lia|]. inversion One as [|? ? No One']; subst.
  rewrite app_length. destruct (N.eqb_spec (sender m) r) as [<-|Ne].
  - rewrite None by auto. rewrite map_length. specialize (Size m (or_introl eq_refl)). simpl. lia.
  - simpl. apply IH; auto. intros x Hx. apply Size. now right.
Qed.

Lemma all_units_from_length most r rounds : Forall (one_message most) rounds ->
  (length (flat_map (units_from r) rounds) <= N.to_nat most * length rounds)%nat.
Proof.
  induction 1 as [|ms rounds H _ IH]; simpl; [lia|].
  rewrite app_length. pose proof (units_from_length most r ms H). lia.
Qed.

Lemma run_app {cell} rounds : forall (s : state cell) more s'', run s (rounds ++ more) s'' ->
  exists s', run s rounds s' /\ run s' more s''.
Proof.
  induction rounds as [|ms rounds IH]; simpl; intros s more s'' R.
  - exists s. split; auto. constructor.
  - inversion R as [|? ? s1 ? ? St R']; subst. destruct (IH _ _ _ R') as (s' & R1 & R2).
    exists s'. split; auto. econstructor; eauto.
Qed.

(** * The bound *)

(** [before]: rounds in which [late] sends nothing; [after]: from its arrival on. *)
Theorem any_memory_bound cell n units most late (start finish : state cell) before after :
  2 <= n -> 1 <= units -> 1 <= most -> late < n ->
  own_data_only start ->
  (forall ms m, In ms before -> In m ms -> sender m <> late) ->
  Forall (one_message most) after ->
  run start (before ++ after) finish ->
  reduced n units finish ->
  ceil_div units most + N.log2_up n - 1 <= N.of_nat (length after).
Proof.
  intros Hn Hu Hm Hlate Own Quiet Fits R End.
  set (m := ceil_div units most - 1).
  assert (Room : most * m < units).
  { apply ceil_div_lt; [lia|]. unfold m. enough (0 < ceil_div units most) by lia.
    unfold ceil_div. apply N.div_str_pos. lia. }
  set (early := firstn (N.to_nat m) after). set (rest := skipn (N.to_nat m) after).
  assert (Split : after = early ++ rest) by (symmetry; apply firstn_skipn).
  assert (F : Forall (one_message most) early /\ Forall (one_message most) rest).
  { apply Forall_app. now rewrite <- Split. }
  destruct F as [Fearly Frest].
  destruct (left_out (flat_map (units_from late) early) units) as (u & Hu' & Unsent).
  { pose proof (all_units_from_length most late early Fearly).
    assert (length early <= N.to_nat m)%nat by (unfold early; rewrite firstn_length; lia). nia. }
  assert (R' : run start ((before ++ early) ++ rest) finish) by (now rewrite <- app_assoc, <- Split).
  destruct (run_app _ _ _ _ R') as (s & R1 & R2).
  assert (Only : forall r, knows late u s r -> r = late).
  { apply (unsent late u (before ++ early) start s R1).
    - intros ms msg v Hms Hmsg Src Hv U. apply in_app_iff in Hms as [Hms|Hms].
      + now apply (Quiet ms msg).
      + apply Unsent. apply in_flat_map. exists ms. split; auto. unfold units_from.
        apply in_flat_map. exists msg. split; auto. rewrite Src, N.eqb_refl.
        rewrite <- (useful_unit late u v U). now apply in_map.
    - intros r (c & I & _). symmetry. now apply (Own r c late u). }
  destruct (doubles late u rest s finish most [late] R2 Frest) as (knowers & All & L).
  { intros r K. apply Only in K. rewrite K. now left. }
  assert (Size : (N.to_nat n <= 2 ^ length rest)%nat).
  { simpl length in L. rewrite Nat.mul_1_r in L. etransitivity; [|exact L].
    apply covering_length. intros r Hr. apply All.
    destruct (End r u Hr Hu') as (c & Everybody & Nothing). exists c. split; auto. }
  assert (Log : N.log2_up n <= N.of_nat (length rest)).
  { rewrite <- (N.log2_up_pow2 (N.of_nat (length rest))) by lia. apply N.log2_up_le_mono.
    change 2 with (N.of_nat 2). rewrite <- Nat2N.inj_pow. lia. }
  pose proof (N.log2_up_le_mono 2 n Hn) as Pos. change (N.log2_up 2) with 1 in Pos.
  unfold rest in Log. rewrite skipn_length in Log. unfold m in *. lia.
Qed.

(** The buffer is k times as long as a message may be. *)
Theorem any_memory_chunks cell n k most late (start finish : state cell) before after :
  2 <= n -> 1 <= k -> 1 <= most -> late < n ->
  own_data_only start ->
  (forall ms m, In ms before -> In m ms -> sender m <> late) ->
  Forall (one_message most) after ->
  run start (before ++ after) finish ->
  reduced n (k * most) finish ->
  k + N.log2_up n - 1 <= N.of_nat (length after).
Proof.
  intros Hn Hk Hm Hl Own Quiet Fits R End.
  replace k with (ceil_div (k * most) most).
  - apply (any_memory_bound cell n (k * most) most late start finish before after); auto. nia.
  - unfold ceil_div. symmetry. apply (N.div_unique _ _ _ (most - 1)); lia.
Qed.

(** * Whole chunks and one cell for each are a case of it *)

Definition tagged (c : N) (i : source) : contribution :=
  match i with Rank r | Stale r => (r, c) end.

Definition values_of (s : Semantics.state (list source)) : state N :=
  fun r c => map (tagged c) (s r c).

Definition message_of (s : Semantics.state (list source)) (t : transfer) : message :=
  Message (src t) (dst t) [values_of s (src t) (chunk t)].

Fixpoint messages_of (s : Semantics.state (list source)) (rs : list round) : list (list message) :=
  match rs with
  | [] => []
  | rd :: rs => map (message_of s) rd :: messages_of (run_round (@app source) s rd) rs
  end.

Lemma messages_of_length rs : forall s, length (messages_of s rs) = length rs.
Proof. induction rs as [|rd rs IH]; simpl; intros s; auto. Qed.

Lemma round_is_step s rd :
  step (values_of s) (map (message_of s) rd) (values_of (run_round (@app source) s rd)).
Proof.
  split.
  - intros m v Hm Hv. apply in_map_iff in Hm as (t & <- & Ht). destruct Hv as [<-|[]].
    apply as_it_is. now exists (chunk t).
  - set (have := fun r v => holds (values_of s) r v \/ received (map (message_of s) rd) r v).
    assert (G : forall later now, incl later rd ->
      (forall r c, computed (have r) (values_of now r c)) ->
      forall r c, computed (have r)
                    (values_of (fold_left (deliver (@app source) s) later now) r c)).
    { induction later as [|t later IH]; simpl; intros now Hl Hnow; auto.
      apply IH; [intros x Hx; apply Hl; now right|]. intros r c. unfold values_of, deliver.
      destruct (N.eq_dec r (dst t)) as [->|Hr]; [destruct (N.eq_dec c (chunk t)) as [->|Hc]|].
      2,3: rewrite put_other by auto; apply Hnow.
      rewrite put_same.
      assert (Comes : computed (have (dst t)) (values_of s (src t) (chunk t))).
      { apply as_it_is. right. exists (message_of s t).
        split; [apply in_map, Hl; now left|]. split; [reflexivity|now left]. }
      destruct (op t); [exact Comes|]. rewrite map_app. apply added; [apply Hnow|exact Comes]. }
    apply (G rd); [apply incl_refl|]. intros r c. apply as_it_is. left. now exists c.
Qed.

Lemma schedule_is_run rs : forall s,
  run (values_of s) (messages_of s rs) (values_of (Semantics.run (@app source) s rs)).
Proof.
  induction rs as [|rd rs IH]; simpl; intros s; [constructor|].
  econstructor; [apply round_is_step|apply IH].
Qed.

(** Every right schedule is a run with as many rounds, of messages of one unit each. So the bound says
    no less than that for schedules, and who reaches that reaches this. *)
Theorem schedules_are_runs n k rs : all_reduce n k rs ->
  Forall (sends_within 1) rs ->
  own_data_only (values_of own_data) /\
  run (values_of own_data) (messages_of own_data rs) (values_of (collect own_data rs)) /\
  reduced n k (values_of (collect own_data rs)) /\
  Forall (one_message 1) (messages_of own_data rs) /\
  length (messages_of own_data rs) = length rs.
Proof.
  intros Right Fits. split; [|split; [|split; [|split]]].
  - intros r c i u I. unfold values_of, own_data in I. simpl in I.
    destruct I as [E|[]]. congruence.
  - apply schedule_is_run.
  - intros r u Hr Hu. exists u. apply all_reduce_iff in Right. specialize (Right r u Hr Hu). split.
    + intros i Hi. unfold values_of. apply (in_map (tagged u) _ (Rank i)).
      apply (Permutation_in (Rank i) (Permutation_sym Right)). now apply in_everybody.
    + intros i w I. unfold values_of in I. apply in_map_iff in I as ([a|a] & E & _); simpl in E; congruence.
  - clear Right. generalize own_data.
    induction Fits as [|rd rs F _ IH]; simpl; constructor; auto. split.
    + rewrite map_map. simpl. apply nodup_occurrences. exact F.
    + intros m Hm. apply in_map_iff in Hm as (t & <- & _). simpl. lia.
  - apply messages_of_length.
Qed.
