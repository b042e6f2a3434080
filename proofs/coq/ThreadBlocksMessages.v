(** Messages of a program of thread blocks: as many are begun as end, and at both ends of a FIFO it
    is the same ones. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Semantics ThreadBlocks ThreadBlocksRuns.
Import ListNotations.
Open Scope N_scope.

Section Side.
  (** [side]: whether an event is at one end of one FIFO. All chunks of a step are, or none. *)
  Variables (size : N) (side : event -> bool) (side_of : step -> bool).
  Hypothesis all_or_none : forall x i, side (chunk_event x i) = side_of x.
  Hypothesis no_chunk : forall ws ss, side (Event 0 true [] [] None None ws ss) = false.

  Definition beginning (e : event) : bool := side e && opens size e.
  Definition ending (e : event) : bool := side e && closes size e.

  Lemma messages_in_step x i : i <= count x ->
    number beginning (map (chunk_event x) (range i)) =
    number ending (map (chunk_event x) (range i)) +
    if side_of x && (i <? count x) && negb (i mod size =? 0) then 1 else 0.
  Proof.
    induction i as [|i IH] using N.peano_ind; intros L.
    - replace (0 mod size =? 0) with true by reflexivity. now rewrite andb_false_r.
    - specialize (IH ltac:(lia)). rewrite <- N.add_1_r in *.
      rewrite range_succ, map_app, !number_app, IH. clear IH. simpl map. rewrite !number_one.
      match goal with |- context [number ?t ?l + _] => generalize (number t l); intros m end.
      unfold beginning, ending, opens, closes. rewrite all_or_none. cbn [offset final chunk_event].
      destruct (side_of x); [|simpl; lia].
      replace (i <? count x) with true by (symmetry; apply N.ltb_lt; lia). cbn [andb].
      destruct (N.eqb_spec (i + 1) (count x)) as [E|E].
      + replace (i + 1 <? count x) with false by (symmetry; apply N.ltb_ge; lia).
        destruct (i mod size =? 0); simpl; lia.
      + replace (i + 1 <? count x) with true by (symmetry; apply N.ltb_lt; lia).
        destruct (i mod size =? 0), ((i + 1) mod size =? 0); simpl; lia.
  Qed.

  (** A block begins as many messages as it ends. *)
  Lemma messages_in_block l : number beginning (events l) = number ending (events l).
  Proof.
    induction l as [|x l IH]; auto. unfold events in *. simpl. rewrite !number_app, IH. f_equal.
    unfold events_of. destruct (count x =? 0).
    - rewrite !number_one. unfold beginning, ending. now rewrite no_chunk.
    - rewrite messages_in_step, N.ltb_irrefl, andb_false_r by lia. simpl. lia.
  Qed.
End Side.

(** What only one block has, the program has there. *)
Lemma only_block (test : event -> bool) owner (blocks : list (list event)) :
  (forall b i e, event_at blocks b i e -> test e = true -> b = owner) ->
  filter test (concat blocks) = filter test (nth (N.to_nat owner) blocks []).
Proof.
  assert (None : forall l : list event, (forall e, In e l -> test e = false) -> filter test l = []).
  { induction l as [|y l IH]; intros H; simpl; auto. rewrite (H y) by now left.
    apply IH. intros e I. apply H. now right. }
  assert (G : forall (bs : list (list event)) o,
    (forall b l e, nth_error bs b = Some l -> In e l -> test e = true -> b = o) ->
    filter test (concat bs) = filter test (nth o bs [])).
  { induction bs as [|l bs IH]; intros o H; simpl; [now destruct o|].
    rewrite filter_app. destruct o as [|o].
    - rewrite (None (concat bs)); [apply app_nil_r|]. intros e I. apply in_concat in I as (l' & Il & Ie).
      apply In_nth_error in Il as (b & E). destruct (test e) eqn:T; auto.
      specialize (H (S b) l' e E Ie T). discriminate.
    - rewrite (None l).
      + apply IH. intros b l' e E I T. specialize (H (S b) l' e E I T). congruence.
      + intros e I. destruct (test e) eqn:T; auto. specialize (H O l e eq_refl I T). discriminate. }
  intros H. apply G. intros b l e E I T. apply In_nth_error in I as (i & I).
  specialize (H (N.of_nat b) (N.of_nat i) e). rewrite <- H; auto; [lia|].
  unfold event_at. rewrite !Nat2N.id. rewrite (nth_error_nth _ _ _ E). exact I.
Qed.

Lemma number_filter (test more : event -> bool) l :
  number (fun e => test e && more e) l = number more (filter test l).
Proof.
  unfold number. f_equal. f_equal. induction l as [|e l IH]; simpl; auto.
  destruct (test e); simpl; [destruct (more e)|]; now rewrite IH.
Qed.

Section Connected.
  Variables (p : program) (size : N).
  Hypothesis joined : connected p size.

  Lemma block_events b : nth (N.to_nat b) (code p) [] = events (nth (N.to_nat b) (steps p) []).
  Proof. exact (map_nth events (steps p) [] (N.to_nat b)). Qed.

  (** The blocks at the two ends of each FIFO, and what they see. *)
  Lemma both_ends : exists putter taker raiser : N -> N,
    (forall b i e f, event_at (code p) b i e -> puts e = Some f -> b = putter f) /\
    (forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f) /\
    (forall b i e c v, event_at (code p) b i e -> In (c, v) (raises e) -> b = raiser c) /\
    forall f,
      map (fun e => (opens size e, closes size e))
        (filter (fun e => is (puts e) f) (nth (N.to_nat (putter f)) (code p) [])) =
      map (fun e => (opens size e, closes size e))
        (filter (fun e => is (takes e) f) (nth (N.to_nat (taker f)) (code p) [])).
  Proof.
    destruct joined as ((putter & Pu) & (taker & Ta) & (raiser & Ra) & Same).
    exists putter, taker, raiser.
    assert (One : forall b i e f, event_at (code p) b i e -> puts e = Some f -> b = putter f).
    { intros b i e f A T. apply (Pu b i e f A). rewrite T. now left. }
    assert (One' : forall b i e f, event_at (code p) b i e -> takes e = Some f -> b = taker f).
    { intros b i e f A T. apply (Ta b i e f A). rewrite T. now left. }
    repeat split; auto.
    - intros b i e c v A I. apply (Ra b i e c A). now apply (in_map fst) in I.
    - intros f. specialize (Same f). unfold messages in Same.
      rewrite (only_block (fun e => is (puts e) f) (putter f)) in Same.
      2: intros b i e A T; apply is_true in T; eauto.
      rewrite (only_block (fun e => is (takes e) f) (taker f)) in Same; auto.
      intros b i e A T; apply is_true in T; eauto.
  Qed.
End Connected.

Lemma event_of_step p b k e : event_at (code p) b k e ->
  exists block x, In block (steps p) /\ In x block /\ In e (events_of x).
Proof.
  intros A. unfold event_at in A. rewrite block_events in A. apply nth_error_In in A.
  unfold events in A. apply in_flat_map in A as (x & Ix & Ie).
  exists (nth (N.to_nat b) (steps p) []), x. repeat split; auto.
  destruct (nth_in_or_default (N.to_nat b) (steps p) []) as [I|E]; auto.
  rewrite E in Ix. destruct Ix.
Qed.

Lemma whole_number blocks test b :
  counted blocks test b (length_of blocks b) = number test (nth (N.to_nat b) blocks []).
Proof. unfold counted, length_of, number. rewrite Nat2N.id. now rewrite firstn_all. Qed.

Lemma number_flags size l l' :
  map (fun e => (opens size e, closes size e)) l = map (fun e => (opens size e, closes size e)) l' ->
  number (fun _ => true) l = number (fun _ => true) l' /\
  number (opens size) l = number (opens size) l' /\ number (closes size) l = number (closes size) l'.
Proof.
  revert l'. induction l as [|e l IH]; intros [|e' l'] E; try discriminate; auto.
  simpl in E. injection E as O C E. apply IH in E. unfold number in *. simpl. rewrite <- O, <- C.
  destruct (opens size e), (closes size e); simpl; lia.
Qed.

Lemma every (l : list event) : filter (fun _ => true) l = l.
Proof. induction l as [|e l IH]; simpl; congruence. Qed.

(** In a whole run of the program as much goes into a FIFO as comes out. *)
Section Same.
  Variables (p : program) (size : N).

  Lemma as_much (putter taker : N -> N) f :
    map (fun e => (opens size e, closes size e))
      (filter (fun e => is (puts e) f) (nth (N.to_nat (putter f)) (code p) [])) =
    map (fun e => (opens size e, closes size e))
      (filter (fun e => is (takes e) f) (nth (N.to_nat (taker f)) (code p) [])) ->
    counted (code p) (fun e => is (puts e) f) (putter f) (length_of (code p) (putter f)) =
    counted (code p) (fun e => is (takes e) f) (taker f) (length_of (code p) (taker f)) /\
    counted (code p) (fun e => is (puts e) f && opens size e) (putter f) (length_of (code p) (putter f)) =
    counted (code p) (fun e => is (takes e) f && closes size e) (taker f) (length_of (code p) (taker f)).
  Proof.
    intros E. apply number_flags in E as (All & Open & _).
    rewrite !whole_number. split.
    - unfold number in *. rewrite !every in All. exact All.
    - rewrite number_filter, Open, <- number_filter, block_events.
      now apply (messages_in_block size (fun e => is (takes e) f) (fun x => is (receives x) f)).
  Qed.
End Same.
