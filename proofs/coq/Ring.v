(** Ring AllReduce (synth/standard.py [ring]; Patarasuk and Yuan, 2009), right for every number of ranks.

    n chunks, 2(n - 1) rounds. Chunk c is added up on its way around the ring, from rank c to rank
    c - 1; then the sum goes around once more. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Volume Bounds Check NobodyLate.
Import ListNotations.
Open Scope N_scope.

Section Ring.
  Variable n : N.
  Hypothesis two_ranks : 2 <= n.

  Definition next (r : N) : N := (r + 1) mod n.

  Definition reduce_scatter (t : N) : round :=
    map (fun r => Transfer r (next r) ((r + (n - t)) mod n) Reduce) (range n).

  Definition all_gather (t : N) : round :=
    map (fun r => Transfer r (next r) ((next r + (n - t)) mod n) Copy) (range n).

  Definition ring : list round :=
    map reduce_scatter (range (n - 1)) ++ map all_gather (range (n - 1)).

  (** How far rank [r] is behind rank [c], where the way of chunk [c] begins. *)
  Definition way (c r : N) : N := (r + (n - c)) mod n.

  Definition previous (r : N) : N := (r + (n - 1)) mod n.

  Lemma next_previous r : r < n -> next (previous r) = r /\ previous r < n.
  Proof.
    intros H. assert (P : previous r = if r =? 0 then n - 1 else r - 1).
    { unfold previous. rewrite mod_add by lia. destruct (N.eqb_spec r 0); by_cases. }
    unfold next. rewrite P. destruct (N.eqb_spec r 0) as [->|].
    - rewrite mod_add by lia. by_cases.
    - rewrite mod_add by lia. by_cases.
  Qed.

  Lemma previous_next r : r < n -> previous (next r) = r /\ next r < n.
  Proof.
    intros H. assert (P : next r = if r =? n - 1 then 0 else r + 1).
    { unfold next. rewrite mod_add by lia. destruct (N.eqb_spec r (n - 1)); by_cases. }
    unfold previous. rewrite P. destruct (N.eqb_spec r (n - 1)) as [->|].
    - rewrite mod_add by lia. by_cases.
    - rewrite mod_add by lia. by_cases.
  Qed.

  Lemma receivers_distinct (f : N -> N) o :
    NoDup (map dst (map (fun r => Transfer r (next r) (f r) o) (range n))).
  Proof.
    rewrite map_map. simpl. apply nodup_map_on; [|apply range_nodup].
    intros a b Ha Hb E. apply in_range in Ha, Hb.
    rewrite <- (proj1 (previous_next a Ha)), <- (proj1 (previous_next b Hb)). congruence.
  Qed.

  Lemma ranks_exist_ring : ranks_exist n ring.
  Proof.
    apply Forall_forall. intros rd Hrd. apply Forall_forall. intros t Ht.
    unfold ring in Hrd. apply in_app_iff in Hrd as [Hrd|Hrd];
      apply in_map_iff in Hrd as (s & <- & _); apply in_map_iff in Ht as (r & <- & Hr);
      now apply in_range.
  Qed.

  Lemma way_bound c r : c < n -> way c r < n.
  Proof. intros. apply N.mod_lt. lia. Qed.

  Lemma way_here c r : c < n -> r < n -> way c r = if c <=? r then r - c else r + n - c.
  Proof.
    intros Hc Hr. unfold way. rewrite mod_add by lia.
    destruct (N.leb_spec c r); by_cases.
  Qed.

  Lemma way_zero c r : c < n -> r < n -> way c r = 0 <-> r = c.
  Proof. intros. rewrite way_here by auto. destruct (N.leb_spec c r); lia. Qed.

  Lemma way_injective c r r' : c < n -> r < n -> r' < n -> way c r = way c r' -> r = r'.
  Proof.
    intros Hc Hr Hr'. rewrite !way_here by auto.
    destruct (N.leb_spec c r), (N.leb_spec c r'); lia.
  Qed.

  Lemma way_previous c r : c < n -> r < n -> r <> c -> way c (previous r) + 1 = way c r.
  Proof.
    intros Hc Hr Hne. destruct (next_previous r Hr) as [_ Hp].
    rewrite !way_here by auto. unfold previous in *. rewrite mod_add in * by lia.
    destruct (N.ltb_spec (r + (n - 1)) n);
      destruct (N.leb_spec c r); destruct (N.leb_spec c (r + (n - 1) - n));
      try destruct (N.leb_spec c (r + (n - 1))); lia.
  Qed.

  (** Which chunk travels to [r] in round [t] of the first phase: that whose way has r at t + 1. *)
  Lemma travelling t c r : t < n - 1 -> c < n -> r < n ->
    (previous r + (n - t)) mod n = c <-> way c r = t + 1.
  Proof.
    intros Ht Hc Hr. unfold previous. rewrite way_here by auto.
    rewrite (mod_add r) by lia. destruct (N.ltb_spec (r + (n - 1)) n).
    - rewrite mod_add by lia. destruct (N.leb_spec c r); by_cases.
    - rewrite mod_add by lia. destruct (N.leb_spec c r); by_cases.
  Qed.

  (** After t rounds of the second phase the first t ranks along the way have what the last rank
      along it has, too. *)
  Section Gather.
  Context {A : Type} (plus : A -> A -> A) (v : N -> A).

  Definition gathered (t : N) (s : state A) : Prop := forall r c, r < n -> c < n ->
    way c r < t \/ way c r = n - 1 -> s r c = v c.

  Lemma travelling_back t c r : t < n - 1 -> c < n -> r < n ->
    (r + (n - t)) mod n = c <-> way c r = t.
  Proof.
    intros Ht Hc Hr. rewrite way_here, mod_add by lia. destruct (N.leb_spec c r); by_cases.
  Qed.

  Lemma gathered_step t s : t < n - 1 -> gathered t s ->
    gathered (t + 1) (run_round plus s (all_gather t)).
  Proof.
    intros Ht H r c Hr Hc Hw. destruct (next_previous r Hr) as [Np Hp].
    set (tr := Transfer (previous r) (next (previous r)) ((next (previous r) + (n - t)) mod n) Copy).
    assert (Hin : In tr (all_gather t)).
    { apply (in_map (fun r => Transfer r (next r) ((next r + (n - t)) mod n) Copy)).
      now apply in_range. }
    destruct (N.eq_dec (way c r) t) as [E|E].
    - pose proof (proj2 (travelling_back t c r Ht Hc Hr) E) as Ec.
      pose proof (run_round_receives plus s (all_gather t) tr (receivers_distinct _ _) Hin) as R.
      simpl in R. rewrite Np, Ec in R. rewrite R. apply H; auto.
      destruct (N.eq_dec r c) as [->|Hne].
      + right. destruct (next_previous c Hc) as [Nc _].
        rewrite way_here by auto. unfold previous. rewrite mod_add by lia.
        destruct (N.ltb_spec (c + (n - 1)) n);
          [destruct (N.leb_spec c (c + (n - 1)))|destruct (N.leb_spec c (c + (n - 1) - n))]; lia.
      + left. pose proof (way_previous c r Hc Hr Hne). lia.
    - rewrite run_round_quiet.
      + apply H; auto. destruct Hw; [left; lia|now right].
      + intros u Hu Hd Hch. apply in_map_iff in Hu as (a & <- & Ha). simpl in *.
        apply E, (travelling_back t c r Ht Hc Hr). now rewrite <- Hd.
  Qed.
  End Gather.

  (** ** Counting one rank's contributions *)

  Variable i : N.
  Hypothesis rank_i : i < n.

  Definition own (r : N) : N := if r =? i then 1 else 0.

  (** After t rounds of the first phase the ranks up to t places along chunk c's way have the data
      of those before them. *)
  Definition scattered (t : N) (s : state N) : Prop := forall r c, r < n -> c < n ->
    s r c = if way c r <=? t then (if way c i <=? way c r then 1 else 0) else own r.

  Lemma scattered_start : scattered 0 (fun j _ => own j).
  Proof.
    intros r c Hr Hc. destruct (N.leb_spec (way c r) 0) as [L|L]; auto.
    assert (r = c) by (apply way_zero; auto; lia). subst r. unfold own.
    destruct (N.leb_spec (way c i) (way c c)) as [M|M], (N.eqb_spec c i) as [E|E]; auto.
    - exfalso. apply E. symmetry. apply way_zero; auto. lia.
    - subst. lia.
  Qed.

  Lemma scattered_step t s : t < n - 1 -> scattered t s ->
    scattered (t + 1) (run_round N.add s (reduce_scatter t)).
  Proof.
    intros Ht H r c Hr Hc. destruct (next_previous r Hr) as [Np Hp].
    set (tr := Transfer (previous r) (next (previous r)) ((previous r + (n - t)) mod n) Reduce).
    assert (Hin : In tr (reduce_scatter t)).
    { apply (in_map (fun r => Transfer r (next r) ((r + (n - t)) mod n) Reduce)).
      now apply in_range. }
    destruct (N.eq_dec (way c r) (t + 1)) as [E|E].
    - pose proof (proj2 (travelling t c r Ht Hc Hr) E) as Ec.
      pose proof (run_round_receives N.add s (reduce_scatter t) tr (receivers_distinct _ _) Hin) as R.
      simpl in R. rewrite Np, Ec in R. rewrite R, !H by auto.
      assert (Hne : r <> c) by (intros ->; rewrite (proj2 (way_zero c c Hc Hc)) in E; lia).
      pose proof (way_previous c r Hc Hr Hne) as P.
      replace (way c r <=? t) with false by (symmetry; apply N.leb_gt; lia).
      replace (way c (previous r) <=? t) with true by (symmetry; apply N.leb_le; lia).
      replace (way c r <=? t + 1) with true by (symmetry; apply N.leb_le; lia).
      unfold own. destruct (N.eqb_spec r i) as [<-|Hi].
      + rewrite N.leb_refl. replace (way c r <=? way c (previous r)) with false; auto.
        symmetry. apply N.leb_gt. lia.
      + assert (way c i <> way c r) by (intros X; apply Hi; symmetry; now apply (way_injective c)).
        destruct (N.leb_spec (way c i) (way c (previous r))), (N.leb_spec (way c i) (way c r)); lia.
    - rewrite run_round_quiet.
      + rewrite H by auto.
        destruct (N.leb_spec (way c r) t), (N.leb_spec (way c r) (t + 1)); auto; lia.
      + intros u Hu Hd Hch. apply in_map_iff in Hu as (a & <- & Ha). apply in_range in Ha.
        simpl in *. apply E. apply (travelling t c r Ht Hc Hr).
        now rewrite <- Hd, (proj1 (previous_next a Ha)).
  Qed.

  Lemma counted r c : r < n -> c < n ->
    run N.add (fun j _ => if j =? i then 1 else 0) ring r c = 1.
  Proof.
    intros Hr Hc. unfold ring. rewrite run_app.
    assert (S : scattered (n - 1) (run N.add (fun j _ => if j =? i then 1 else 0)
                                     (map reduce_scatter (range (n - 1))))).
    { apply (run_invariant N.add scattered); [apply scattered_start|].
      intros t s Ht. now apply scattered_step. }
    assert (G : gathered (fun _ => 1) (n - 1) (run N.add (run N.add (fun j _ => if j =? i then 1 else 0)
                  (map reduce_scatter (range (n - 1)))) (map all_gather (range (n - 1))))).
    { apply (run_invariant N.add (gathered (fun _ => 1))).
      - intros r' c' Hr' Hc' [L|E]; [lia|]. rewrite S by auto. rewrite E, N.leb_refl.
        pose proof (way_bound c' i Hc'). destruct (N.leb_spec (way c' i) (n - 1)); lia.
      - intros t s Ht. now apply gathered_step. }
    apply G; auto. pose proof (way_bound c r Hc). lia.
  Qed.
End Ring.

Theorem ring_correct n : 2 <= n -> all_reduce n n (ring n).
Proof.
  intros Hn. apply counting_suffices; [now apply ranks_exist_ring|].
  intros i r c Hi Hr Hc. now apply counted.
Qed.

Theorem ring_rounds n : 1 <= n -> N.of_nat (length (ring n)) = 2 * (n - 1).
Proof. intros H. unfold ring. rewrite app_length, !map_length, range_length. lia. Qed.

(** The schedule that synth writes. *)
Definition ring_schedule (n : N) : schedule :=
  nobody_late n n Duplex
    [map (reduce_scatter n) (range (n - 1)); map (all_gather n) (range (n - 1))].

Lemma way_of_previous n c : 2 <= n -> c < n -> way n c (previous n c) = n - 1.
Proof.
  intros Hn Hc. destruct (next_previous n Hn c Hc) as [_ Hp].
  rewrite way_here by auto. unfold previous. rewrite mod_add by lia.
  destruct (N.ltb_spec (c + (n - 1)) n);
    [destruct (N.leb_spec c (c + (n - 1)))|destruct (N.leb_spec c (c + (n - 1) - n))]; lia.
Qed.

(** Every rank ends with a copy of what the last rank on a chunk's way has added up. *)
Lemma ring_same_bits n {A} (plus : A -> A -> A) x r c : 2 <= n -> r < n -> c < n ->
  run plus x (ring n) r c
  = run plus x (map (reduce_scatter n) (range (n - 1))) (previous n c) c.
Proof.
  intros Hn Hr Hc. unfold ring. rewrite run_app.
  set (s := run plus x (map (reduce_scatter n) (range (n - 1)))).
  apply (run_invariant plus (gathered n (fun c => s (previous n c) c)) s (all_gather n) (n - 1)); auto.
  - intros r' c' Hr' Hc' [L|E]; [lia|]. f_equal.
    apply (way_injective n Hn c'); auto; [now apply next_previous|]. now rewrite way_of_previous.
  - intros t s' Ht. now apply gathered_step.
  - pose proof (way_bound n Hn c r Hc). lia.
Qed.

Theorem ring_right n : 2 <= n -> right (ring_schedule n).
Proof.
  intros Hn. apply nobody_late_right; try lia; simpl; rewrite ?app_nil_r.
  - simpl. lia.
  - assert (G : forall (f : N -> N) o rd, rd = map (fun r => Transfer r (next n r) (f r) o) (range n) ->
      (forall r, f r < n) ->
      (forall t, In t rd -> transfer_well_formed n n t) /\ fits_ports Duplex rd /\
      hazard_free_round (summing_allowed Duplex) rd).
    { intros f o rd -> Hf.
      assert (D : NoDup (map dst (map (fun r => Transfer r (next n r) (f r) o) (range n))))
        by now apply receivers_distinct.
      split; [|split]; [|apply once_fits; auto|now apply once_hazard_free].
      - intros t Ht. apply in_map_iff in Ht as (r & <- & Hr). apply in_range in Hr.
        destruct (previous_next n Hn r Hr) as [P Hx]. repeat split; simpl; auto.
        intros E. rewrite <- E in P. unfold next, previous in *.
        rewrite mod_add in E, P by lia. by_cases.
      - rewrite map_map. simpl. rewrite map_id. apply range_nodup. }
    intros rd Hrd. apply in_app_iff in Hrd as [Hrd|Hrd];
      apply in_map_iff in Hrd as (t & <- & _); eapply G; try reflexivity;
      intros r; apply N.mod_lt; lia.
  - now apply ring_correct.
  - intros A plus x r r' c Hr Hr' Hc. change (run plus x (ring n) r c = run plus x (ring n) r' c).
    now rewrite !ring_same_bits.
Qed.

(** And nobody has fewer rounds, with n chunks. *)
Theorem ring_optimal n : 2 <= n -> optimal (ring_schedule n).
Proof.
  intros Hn. apply nobody_late_optimal; auto; [now apply ring_right|].
  simpl. rewrite app_nil_r. change (_ ++ _) with (ring n). rewrite ring_rounds by lia.
  unfold volume_bound, Knowledge.ceil_div. rewrite N.mul_1_r.
  apply N.div_le_lower_bound; nia.
Qed.
