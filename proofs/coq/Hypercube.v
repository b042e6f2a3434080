(** The completion at the lower bound for every power of two and any number of chunks.

    Ranks are the corners of a hypercube of [d] dimensions, n = 2^d; the late rank is corner 0. In
    round t all corners that differ in bit t mod d are partners, so the rounds are matchings. The
    late rank exchanges chunk t with its partner, who owns it; all others pass on what their
    partner lacks (rotated binomial trees: Johnsson and Ho, 1989).

    Chunk c comes to corner w in the last round t of c .. c+d-1 whose bit is set in w, if bit c mod d
    is set in w, and in round c + d if not. When chunks run out, what would be a later chunk is the
    last one again, which so comes to everybody by round k + d - 2. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce Structure Knowledge.
Import ListNotations.
Open Scope N_scope.

Section Hypercube.
  Variables (d k : N).
  Hypothesis dimensions : 1 <= d.
  Hypothesis some_chunk : 1 <= k.

  Definition corners : N := 2 ^ d.

  (** The bit of corner [w] that round [u] is about. *)
  Definition bit (w u : N) : bool := N.testbit w (u mod d).

  Definition partner (w t : N) : N := N.lxor w (2 ^ (t mod d)).

  (** The rounds strictly between [t] and [u]. *)
  Definition between (t u : N) : list N := map (fun i => t + 1 + i) (range (u - t - 1)).

  (** Chunk [c] comes to corner [w] in round [t]. *)
  Definition arrives (w c t : N) : bool :=
    if t =? c + d then negb (bit w c)
    else (c <=? t) && (t <? c + d) && bit w c && bit w t
         && forallb (fun u => negb (bit w u)) (between t (c + d)).

  Definition window (t : N) : list N :=
    map (fun i => t - i) (filter (fun i => i <=? t) (range (d + 1))).

  Definition incoming (w t : N) : option N := find (fun c => arrives w c t) (window t).

  Definition owner (c : N) : N := 2 ^ (c mod d).

  (** What corner [w] receives in round [t]. *)
  Definition receipt (t w : N) : list transfer :=
    match incoming w t with
    | Some c => [Transfer (partner w t) w (N.min c (k - 1))
                   (if (c =? t) && (t <? k) then Reduce else Copy)]
    | None => []
    end.

  Definition round_at (t : N) : round :=
    (if t <? k then [Transfer (owner t) 0 t Reduce] else [])
    ++ flat_map (receipt t) (tl (range corners)).

  Definition hypercube : list round := map round_at (range (k + d - 1)).

  (** ** Residues *)

  Lemma same_residue c t : c <= t -> t < c + d -> c mod d = t mod d -> c = t.
  Proof.
    intros H1 H2 E. pose proof (N.div_mod' c d) as Ec. pose proof (N.div_mod' t d) as Et.
    assert (c / d <= t / d) by (apply N.div_le_mono; lia).
    assert (t / d < c / d + 1) by (apply (N.mul_lt_mono_pos_l d); lia).
    assert (Eq : t / d = c / d) by lia. rewrite Eq in Et. lia.
  Qed.

  Lemma residue_shift c : (c + d) mod d = c mod d.
  Proof. rewrite <- (N.mul_1_l d) at 1. now rewrite N.mod_add by lia. Qed.

  Lemma bit_shift w c : bit w (c + d) = bit w c.
  Proof. unfold bit. now rewrite residue_shift. Qed.

  (** Every residue occurs in every window. *)
  Lemma residue_in_window p t : p < d -> exists u, t <= u < t + d /\ u mod d = p.
  Proof.
    intros Hp. pose proof (N.div_mod' t d) as E. assert (t mod d < d) by (apply N.mod_lt; lia).
    set (q := t / d) in *. set (r := t mod d) in *.
    exists (if r <=? p then d * q + p else d * q + p + d).
    destruct (N.leb_spec r p).
    - split; [lia|]. symmetry. apply (N.mod_unique _ _ q); lia.
    - split; [lia|]. symmetry. apply (N.mod_unique _ _ (q + 1)); lia.
  Qed.

  Lemma partner_bit w t u : bit (partner w t) u = xorb (bit w u) (u mod d =? t mod d).
  Proof. unfold bit, partner. now rewrite N.lxor_spec, N.pow2_bits_eqb, (N.eqb_sym (t mod d)). Qed.

  Lemma partner_twice w t : partner (partner w t) t = w.
  Proof. unfold partner. now rewrite N.lxor_assoc, N.lxor_nilpotent, N.lxor_0_r. Qed.

  Lemma pow_corner p : p < d -> 2 ^ p < corners.
  Proof. intros. unfold corners. apply N.pow_lt_mono_r; lia. Qed.

  Lemma high_bits w p : w < corners -> d <= p -> N.testbit w p = false.
  Proof.
    unfold corners. intros Hw Hp. destruct (N.eq_dec w 0) as [->|]; [apply N.bits_0|].
    apply N.bits_above_log2. apply N.lt_le_trans with d; auto. apply N.log2_lt_pow2; lia.
  Qed.

  Lemma corner_bound w : (forall p, d <= p -> N.testbit w p = false) -> w < corners.
  Proof.
    intros H. unfold corners. assert (2 ^ d <> 0) by (apply N.pow_nonzero; lia).
    destruct (N.eq_dec w 0) as [->|Hw]; [lia|].
    apply N.log2_lt_pow2; [lia|]. destruct (N.lt_ge_cases (N.log2 w) d) as [|L]; auto.
    specialize (H _ L). now rewrite (N.bit_log2 w Hw) in H.
  Qed.

  Lemma partner_corner w t : w < corners -> partner w t < corners.
  Proof.
    intros Hw. apply corner_bound. intros p Hp. unfold partner.
    rewrite N.lxor_spec, (high_bits w) by auto. rewrite N.pow2_bits_eqb.
    assert (t mod d < d) by (apply N.mod_lt; lia). destruct (N.eqb_spec (t mod d) p); lia || auto.
  Qed.

  (** ** Arrivals *)

  Lemma in_between t u x : In x (between t u) <-> t < x < u.
  Proof.
    unfold between. rewrite in_map_iff. split.
    - intros (i & <- & Hi). apply in_range in Hi. lia.
    - intros H. exists (x - t - 1). rewrite in_range. lia.
  Qed.

  Lemma arrives_spec w c t : arrives w c t = true <->
    (t = c + d /\ bit w c = false) \/
    (c <= t < c + d /\ bit w c = true /\ bit w t = true /\
     forall u, t < u < c + d -> bit w u = false).
  Proof.
    unfold arrives. destruct (N.eqb_spec t (c + d)) as [E|E].
    - rewrite negb_true_iff. split; [tauto|]. intros [[_ H]|[H _]]; [auto|lia].
    - rewrite !andb_true_iff, N.leb_le, N.ltb_lt, forallb_forall. split.
      + intros ((((H1 & H2) & H3) & H4) & H5). right. repeat split; auto.
        intros u Hu. apply negb_true_iff, H5. now apply in_between.
      + intros [[H _]|(H1 & H2 & H3 & H4)]; [lia|]. repeat split; auto; try lia.
        intros u Hu. apply negb_true_iff, H4. now apply in_between.
  Qed.

  Lemma arrives_range w c t : arrives w c t = true -> c <= t <= c + d.
  Proof. rewrite arrives_spec. lia. Qed.

  (** In each round at most one chunk. *)
  Lemma arrives_once w c c' t : arrives w c t = true -> arrives w c' t = true -> c = c'.
  Proof.
    assert (G : forall c c', c < c' -> arrives w c t = true -> arrives w c' t = true -> False).
    { clear c c'. intros c c' L. rewrite !arrives_spec.
      intros [(E & H)|(R & H1 & H2 & H3)] [(E' & H')|(R' & H1' & H2' & H3')].
      - lia.
      - subst t. rewrite bit_shift in H2'. congruence.
      - lia.
      - specialize (H3' (c + d)). rewrite bit_shift in H3'. rewrite H3' in H1; [discriminate|lia]. }
    intros H H'. destruct (N.lt_trichotomy c c') as [L|[E|L]]; auto; exfalso; eauto.
  Qed.

  (** The last number of a stretch with a property. *)
  Lemma last_such (b : N -> bool) c m : b c = true -> 1 <= m ->
    exists t, c <= t < c + m /\ b t = true /\ forall u, t < u < c + m -> b u = false.
  Proof.
    intros Hc. induction m as [|m IH] using N.peano_ind; intros Hm; [lia|].
    destruct (b (c + m)) eqn:E.
    - exists (c + m). repeat split; auto; try lia.
    - destruct (N.eq_dec m 0) as [->|]; [rewrite N.add_0_r in E; congruence|].
      destruct IH as (t & Ht & Bt & Ut); [lia|]. exists t. repeat split; auto; try lia.
      intros u Hu. destruct (N.eq_dec u (c + m)) as [->|]; auto. apply Ut. lia.
  Qed.

  (** Who passes a chunk on has received it before. *)
  Lemma sender_has w c t : arrives w c t = true -> partner w t <> 0 -> w < corners ->
    exists t', t' < t /\ arrives (partner w t) c t' = true.
  Proof.
    intros H Hp Hw. pose proof H as H0. apply arrives_spec in H as [(-> & Hc)|(R & H1 & H2 & H3)].
    - assert (B : bit (partner w (c + d)) c = true).
      { rewrite partner_bit, Hc, residue_shift, N.eqb_refl. reflexivity. }
      destruct (last_such (bit (partner w (c + d))) c d B dimensions) as (t' & R & Bt & Ut).
      exists t'. split; [lia|]. apply arrives_spec. right. auto.
    - destruct (N.eq_dec c t) as [->|Hne].
      { (* then w has this one bit only, and its partner is the late rank *)
        exfalso. apply Hp. apply N.bits_inj. intros p. unfold partner.
        rewrite N.lxor_spec, N.pow2_bits_eqb, N.bits_0.
        destruct (N.lt_ge_cases p d) as [Lp|Lp].
        - destruct (residue_in_window p t Lp) as (u & Hu & <-).
          destruct (N.eqb_spec (t mod d) (u mod d)) as [E|E].
          + rewrite <- E. unfold bit in H2. now rewrite H2.
          + change (N.testbit w (u mod d)) with (bit w u). rewrite (H3 u); auto.
            assert (t <> u) by congruence. lia.
        - rewrite (high_bits w p Hw Lp).
          assert (t mod d < d) by (apply N.mod_lt; lia). destruct (N.eqb_spec (t mod d) p); auto. lia. }
      assert (D : forall u, c <= u < c + d -> u mod d = t mod d -> u = t).
      { intros u Hu E. destruct (N.le_gt_cases u t).
        - apply same_residue; auto; lia.
        - symmetry. apply same_residue; auto; lia. }
      assert (B : bit (partner w t) c = true).
      { rewrite partner_bit, H1. destruct (N.eqb_spec (c mod d) (t mod d)) as [E|]; auto.
        apply D in E; lia. }
      destruct (last_such (bit (partner w t)) c d B dimensions) as (t' & R' & Bt & Ut).
      exists t'. split; [|apply arrives_spec; right; auto].
      destruct (N.lt_ge_cases t' t) as [|L]; auto. exfalso. rewrite partner_bit in Bt.
      destruct (N.eqb_spec (t' mod d) (t mod d)) as [E|E].
      + apply D in E; [|lia]. subst t'. now rewrite H2 in Bt.
      + rewrite (H3 t') in Bt; [discriminate|]. assert (t <> t') by congruence. lia.
  Qed.

  (** What comes from the late rank is the chunk of the round. *)
  Lemma from_late w c t : arrives w c t = true -> partner w t = 0 -> c = t.
  Proof.
    intros H P. assert (W : forall u, bit w u = (u mod d =? t mod d)).
    { intros u. pose proof (partner_bit w t u) as B. rewrite P in B. unfold bit at 1 in B.
      rewrite N.bits_0 in B. destruct (bit w u), (u mod d =? t mod d); simpl in B; congruence. }
    apply arrives_spec in H as [(-> & H)|(R & H1 & _)].
    - rewrite W, residue_shift, N.eqb_refl in H. discriminate.
    - rewrite W in H1. apply N.eqb_eq in H1. apply same_residue; auto; lia.
  Qed.

  Lemma from_late_iff w t : w < corners -> arrives w t t = true -> partner w t = 0.
  Proof.
    intros Hw H. destruct (N.eq_dec (partner w t) 0) as [|Hp]; auto.
    destruct (sender_has w t t H Hp Hw) as (t' & L & A). apply arrives_range in A. lia.
  Qed.

  Lemma partner_zero w t : partner w t = 0 <-> w = owner t.
  Proof. unfold partner, owner. apply N.lxor_eq_0_iff. Qed.

  (** ** The rounds *)

  Lemma in_window t c : In c (window t) <-> c <= t <= c + d.
  Proof.
    unfold window. rewrite in_map_iff. split.
    - intros (i & <- & Hi). apply filter_In in Hi as [Hi L]. apply in_range in Hi.
      apply N.leb_le in L. lia.
    - intros H. exists (t - c). split; [lia|]. apply filter_In.
      rewrite in_range, N.leb_le. lia.
  Qed.

  Lemma incoming_some w c t : incoming w t = Some c <-> arrives w c t = true.
  Proof.
    unfold incoming. split.
    - intros H. now apply find_some in H.
    - intros H. destruct (find _ _) as [c'|] eqn:E.
      + apply find_some in E as [_ E]. f_equal. now apply (arrives_once w c' c t).
      + exfalso. assert (W : In c (window t)) by (apply in_window; now apply arrives_range in H).
        apply (find_none _ _ E) in W. congruence.
  Qed.

  Lemma receipt_dst t w : map dst (receipt t w) = if incoming w t then [w] else [].
  Proof. unfold receipt. now destruct (incoming w t). Qed.

  Lemma map_dst_receipts t l : map dst (flat_map (receipt t) l)
    = filter (fun w => if incoming w t then true else false) l.
  Proof.
    induction l as [|w l IH]; simpl; auto. rewrite map_app, receipt_dst, IH.
    now destruct (incoming w t).
  Qed.

  Lemma helper_corner w : In w (tl (range corners)) <-> 1 <= w < corners.
  Proof.
    unfold range. assert (corners <> 0) by (apply N.pow_nonzero; lia).
    destruct (N.to_nat corners) as [|m] eqn:E; [lia|]. simpl. rewrite in_map_iff. split.
    - intros (x & <- & Hx). apply in_seq in Hx. lia.
    - intros Hw. exists (N.to_nat w). split; [lia|]. apply in_seq. lia.
  Qed.

  Lemma receivers_distinct t : NoDup (map dst (round_at t)).
  Proof.
    unfold round_at. rewrite map_app, map_dst_receipts.
    assert (T : NoDup (tl (range corners))).
    { pose proof (range_nodup corners) as H. destruct (range corners); simpl; [constructor|].
      now inversion H. }
    assert (F : NoDup (filter (fun w => if incoming w t then true else false) (tl (range corners))))
      by now apply NoDup_filter.
    destruct (t <? k); auto. simpl. constructor; auto. rewrite filter_In, helper_corner. lia.
  Qed.

  Lemma in_round t x : In x (round_at t) <->
    (t < k /\ x = Transfer (owner t) 0 t Reduce) \/
    (exists w c, 1 <= w < corners /\ arrives w c t = true /\
       x = Transfer (partner w t) w (N.min c (k - 1)) (if (c =? t) && (t <? k) then Reduce else Copy)).
  Proof.
    unfold round_at. rewrite in_app_iff, in_flat_map. split.
    - intros [H|(w & Hw & H)].
      + destruct (N.ltb_spec t k); [|easy]. destruct H as [<-|[]]. auto.
      + right. unfold receipt in H. destruct (incoming w t) as [c|] eqn:E; [|easy].
        destruct H as [<-|[]]. exists w, c. rewrite <- helper_corner, <- incoming_some. auto.
    - intros [[L ->]|(w & c & Hw & A & ->)].
      + left. destruct (N.ltb_spec t k); [now left|lia].
      + right. exists w. rewrite helper_corner. split; auto. unfold receipt.
        apply incoming_some in A. rewrite A. now left.
  Qed.

  Lemma owner_helper c : 1 <= owner c < corners.
  Proof.
    unfold owner, corners. assert (c mod d < d) by (apply N.mod_lt; lia). split.
    - assert (2 ^ (c mod d) <> 0) by (apply N.pow_nonzero; lia). lia.
    - apply N.pow_lt_mono_r; lia.
  Qed.

  Definition start : N -> N -> list source := after_reduction corners 0 owner.

  Definition helpers_sum : list source :=
    map Rank (filter (fun i => negb (i =? 0)) (range corners)).

  Lemma late_and_helpers : Permutation (Rank 0 :: helpers_sum) (everybody corners).
  Proof.
    unfold helpers_sum, everybody. change (Rank 0 :: map Rank ?l) with (map Rank (0 :: l)).
    apply Permutation_map, NoDup_Permutation.
    - constructor; [|apply NoDup_filter, range_nodup]. rewrite filter_In. intros [_ H]. discriminate.
    - apply range_nodup.
    - intros y. simpl. rewrite filter_In, in_range, negb_true_iff, N.eqb_neq.
      pose proof (owner_helper 0). split.
      + intros [<-|[H' _]]; lia.
      + destruct (N.eq_dec 0 y); [now left|right; split; auto].
  Qed.

  (** Corner [w] has the whole sum of chunk [c] before round [t]. *)
  Definition has (w c t : N) : Prop :=
    if w =? 0 then c < t
    else exists c' t', (c' = c \/ (c = k - 1 /\ k - 1 <= c')) /\ t' < t /\ arrives w c' t' = true.

  Definition reached (t : N) (s : state (list source)) : Prop :=
    (forall w c, w < corners -> c < k -> has w c t -> Permutation (s w c) (everybody corners)) /\
    (forall c, c < k -> t <= c -> s 0 c = [Rank 0] /\ s (owner c) c = helpers_sum).

  Lemma reached_start : reached 0 start.
  Proof.
    split.
    - intros w c Hw Hc H. exfalso. unfold has in H. destruct (w =? 0); [lia|].
      destruct H as (c' & t' & _ & L & _). lia.
    - intros c Hc _. unfold start, after_reduction. simpl. split; auto.
      pose proof (owner_helper c). destruct (N.eqb_spec (owner c) 0); [lia|].
      now rewrite N.eqb_refl.
  Qed.

  Lemma quiet t s r c : (forall x, In x (round_at t) -> dst x = r -> chunk x <> c) ->
    run_round (@app source) s (round_at t) r c = s r c.
  Proof. apply run_round_quiet. Qed.

  Lemma receives t s x : In x (round_at t) ->
    run_round (@app source) s (round_at t) (dst x) (chunk x)
    = match op x with
      | Copy => s (src x) (chunk x)
      | Reduce => s (dst x) (chunk x) ++ s (src x) (chunk x)
      end.
  Proof. apply run_round_receives, receivers_distinct. Qed.

  Lemma reached_late t s : reached t s -> forall c, c < k -> c < t + 1 ->
    Permutation (run_round (@app source) s (round_at t) 0 c) (everybody corners).
  Proof.
    intros [Full Raw] c Hc L. pose proof (owner_helper 0) as One. destruct (N.eq_dec c t) as [->|Hne].
    - pose proof (receives t s (Transfer (owner t) 0 t Reduce)) as R. simpl in R. rewrite R.
      + destruct (Raw t) as [-> ->]; auto; [lia|]. apply late_and_helpers.
      + apply in_round. auto.
    - rewrite quiet.
      + apply Full; auto; [lia|]. unfold has. simpl. lia.
      + intros x Hx Hd. apply in_round in Hx as [[_ ->]|(w & c' & Hw & _ & ->)]; simpl in *; lia.
  Qed.

  Lemma reached_helper t s : reached t s -> forall w c, 1 <= w < corners -> c < k ->
    has w c (t + 1) ->
    Permutation (run_round (@app source) s (round_at t) w c) (everybody corners).
  Proof.
    intros [Full Raw] w c Hw Hc H.
    destruct (incoming w t) as [c'|] eqn:In; [apply incoming_some in In;
      destruct (N.eq_dec (N.min c' (k - 1)) c) as [E|E]|].
    - (* the chunk comes in this round *)
      assert (Hx : List.In (Transfer (partner w t) w (N.min c' (k - 1))
                     (if (c' =? t) && (t <? k) then Reduce else Copy)) (round_at t)).
      { apply in_round. right. exists w, c'. auto. }
      apply (receives t s) in Hx. simpl in Hx. rewrite E in Hx. rewrite Hx. clear Hx.
      pose proof (arrives_range w c' t In) as R.
      destruct (N.eqb_spec c' t) as [->|Hne]; simpl.
      + assert (P : partner w t = 0) by (apply from_late_iff; [lia|auto]).
        rewrite P. destruct (N.ltb_spec t k) as [L|L].
        * apply partner_zero in P. subst w c. replace (N.min t (k - 1)) with t by lia.
          destruct (Raw t) as [-> ->]; auto; [lia|].
          apply Permutation_trans with (Rank 0 :: helpers_sum); [|apply late_and_helpers].
          apply Permutation_sym, Permutation_cons_append.
        * apply Full; auto; [lia|]. unfold has. simpl. lia.
      + assert (P : partner w t <> 0) by (intros P; apply Hne; now apply (from_late w)).
        apply Full; auto; [now apply partner_corner|].
        destruct (sender_has w c' t In P) as (t' & L & A); [lia|].
        unfold has. destruct (N.eqb_spec (partner w t) 0); [congruence|].
        exists c', t'. repeat split; auto. lia.
    - (* another chunk comes *)
      rewrite quiet.
      + apply Full; auto; [lia|]. unfold has in *. destruct (N.eqb_spec w 0); [lia|].
        destruct H as (c1 & t1 & Hc1 & L & A). exists c1, t1. repeat split; auto.
        destruct (N.eq_dec t1 t) as [->|]; [|lia]. exfalso. apply E.
        rewrite (arrives_once w c' c1 t In A). lia.
      + intros x Hx Hd. apply in_round in Hx as [[_ ->]|(w' & c1 & _ & A & ->)]; simpl in *; [lia|].
        subst w'. rewrite <- (arrives_once w c' c1 t In A). auto.
    - (* nothing comes *)
      assert (None' : forall c', arrives w c' t = true -> False).
      { intros c' A. apply incoming_some in A. congruence. }
      rewrite quiet.
      + apply Full; auto; [lia|]. unfold has in *. destruct (N.eqb_spec w 0); [lia|].
        destruct H as (c1 & t1 & Hc1 & L & A). exists c1, t1. repeat split; auto.
        destruct (N.eq_dec t1 t) as [->|]; [|lia]. exfalso. eauto.
      + intros x Hx Hd. apply in_round in Hx as [[_ ->]|(w' & c1 & _ & A & ->)]; simpl in *; [lia|].
        subst w'. exfalso. eauto.
  Qed.

  Lemma reached_step t s : reached t s -> reached (t + 1) (run_round (@app source) s (round_at t)).
  Proof.
    intros H. split.
    - intros w c Hw Hc Hh. destruct (N.eq_dec w 0) as [->|].
      + apply reached_late; auto.
      + apply reached_helper; auto. lia.
    - intros c Hc L. destruct H as [_ Raw]. destruct (Raw c) as [E E']; auto; [lia|].
      rewrite !quiet; auto.
      + intros x Hx Hd. apply in_round in Hx as [[_ ->]|(w' & c1 & _ & A & ->)]; simpl in *.
        * lia.
        * apply arrives_range in A. lia.
      + intros x Hx Hd. apply in_round in Hx as [[_ ->]|(w' & c1 & _ & A & ->)]; simpl in *.
        * lia.
        * apply arrives_range in A. lia.
  Qed.

  (** Everything has come by the end. *)
  Lemma has_all w c : w < corners -> c < k -> has w c (k + d - 1).
  Proof.
    intros Hw Hc. unfold has. destruct (N.eqb_spec w 0) as [|Hw0]; [lia|].
    assert (Set_bit : exists p, p < d /\ N.testbit w p = true).
    { exists (N.log2 w). split; [apply N.log2_lt_pow2; [lia|exact Hw]|now apply N.bit_log2]. }
    destruct (N.eq_dec c (k - 1)) as [->|Hne].
    - (* the first round from k-1 on whose bit is set brings it early enough *)
      destruct Set_bit as (p & Lp & Bp). destruct (residue_in_window p (k - 1) Lp) as (u & Hu & Eu).
      assert (First : exists a, k - 1 <= a < k - 1 + d /\ bit w a = true /\
                        forall v, k - 1 <= v < a -> bit w v = false).
      { assert (Bu : bit w u = true) by (unfold bit; now rewrite Eu). clear Eu Bp.
        assert (G : forall m, (exists a, k - 1 <= a < k - 1 + m /\ bit w a = true /\
                       forall v, k - 1 <= v < a -> bit w v = false) \/
                     (forall v, k - 1 <= v < k - 1 + m -> bit w v = false)).
        { induction m as [|m IH] using N.peano_ind; [right; lia|].
          destruct IH as [(a & Ha & Ba & Va)|None'].
          - left. exists a. repeat split; auto; lia.
          - destruct (bit w (k - 1 + m)) eqn:B.
            + left. exists (k - 1 + m). split; [lia|]. split; [exact B|exact None'].
            + right. intros v Hv. destruct (N.eq_dec v (k - 1 + m)) as [->|]; auto. apply None'. lia. }
        destruct (G d) as [?|None']; auto. now rewrite (None' u Hu) in Bu. }
      destruct First as (a & Ha & Ba & Va).
      destruct (last_such (bit w) a d Ba dimensions) as (t & Rt & Bt & Ut).
      exists a, t. split; [right; split; auto; lia|]. split.
      + destruct (N.lt_ge_cases t (k + d - 1)) as [|L]; auto. exfalso.
        assert (Bs : bit w (t - d) = true).
        { rewrite <- (bit_shift w (t - d)). now replace (t - d + d) with t by lia. }
        rewrite (Va (t - d)) in Bs by lia. discriminate.
      + apply arrives_spec. right. auto.
    - destruct (bit w c) eqn:B.
      + destruct (last_such (bit w) c d B dimensions) as (t & Rt & Bt & Ut).
        exists c, t. split; [now left|]. split; [lia|]. apply arrives_spec. right. auto.
      + exists c, (c + d). split; [now left|]. split; [lia|]. apply arrives_spec. left. auto.
  Qed.

  (** ** The theorems *)

  Theorem hypercube_completes : completes corners k 0 owner hypercube.
  Proof.
    apply completes_iff. intros w c Hw Hc. unfold collect, hypercube.
    destruct (run_invariant (@app source) reached start round_at (k + d - 1)) as [Full _].
    - apply reached_start.
    - intros t s _. apply reached_step.
    - apply Full; auto. now apply has_all.
  Qed.

  Theorem hypercube_rounds : N.of_nat (length hypercube) = k + N.log2_up corners - 1.
  Proof.
    unfold hypercube. rewrite map_length, range_length, N2Nat.id.
    unfold corners. now rewrite N.log2_up_pow2 by lia.
  Qed.

  (** Every rank deals with one partner only: even matching ports are enough. *)
  Lemma mirrored t x : In x (round_at t) -> src x = partner (dst x) t.
  Proof.
    intros Hx. apply in_round in Hx as [[_ ->]|(w & c & _ & _ & ->)]; simpl; auto.
  Qed.

  Lemma occurrences_nodup l : NoDup l -> forall x, (occurrences l x <= 1)%nat.
  Proof. intros H. now apply NoDup_count_occ. Qed.

  Theorem hypercube_matching : Forall (fits_ports Matching) hypercube.
  Proof.
    apply Forall_forall. intros rd Hrd. apply in_map_iff in Hrd as (t & <- & _).
    pose proof (receivers_distinct t) as D. repeat split.
    - assert (E : map src (round_at t) = map (fun w => partner w t) (map dst (round_at t))).
      { rewrite map_map. apply map_ext_in. apply mirrored. }
      intros r. apply occurrences_nodup. rewrite E. apply nodup_map_on; auto.
      intros a b _ _ H. rewrite <- (partner_twice a t), <- (partner_twice b t). congruence.
    - intros r. now apply occurrences_nodup.
    - intros _ x y Hx Hy E. apply mirrored in Hx, Hy. rewrite Hx, <- E, Hy. now rewrite partner_twice.
  Qed.

  Lemma hypercube_well_formed rd x : In rd hypercube -> In x rd -> transfer_well_formed corners k x.
  Proof.
    intros Hrd Hx. apply in_map_iff in Hrd as (t & <- & _). pose proof Hx as M. apply mirrored in M.
    assert (D : dst x < corners /\ chunk x < k).
    { apply in_round in Hx as [[L ->]|(w & c & Hw & _ & ->)]; simpl; split; try lia.
      pose proof (owner_helper 0). lia. }
    destruct D as [D Ck]. repeat split; auto.
    - rewrite M. now apply partner_corner.
    - rewrite M. unfold partner. intros E.
      assert (Z : 2 ^ (t mod d) = 0); [|revert Z; apply N.pow_nonzero; lia].
      transitivity (N.lxor (N.lxor (dst x) (dst x)) (2 ^ (t mod d))).
      + now rewrite N.lxor_nilpotent, N.lxor_0_l.
      + now rewrite N.lxor_assoc, E, N.lxor_nilpotent.
  Qed.

  (** It is optimal: no right completion, whoever owns what, has fewer rounds. *)
  Theorem hypercube_optimal owner' rs :
    Forall (sends_within 1) rs -> completes corners k 0 owner' rs ->
    (length hypercube <= length rs)%nat.
  Proof.
    intros Hp Hc. pose proof (owner_helper 0).
    assert (L : k + N.log2_up corners - 1 <= N.of_nat (length rs)).
    { apply (completion_lower_bound corners k 0 owner'); auto; lia. }
    rewrite <- hypercube_rounds in L. lia.
  Qed.
End Hypercube.
