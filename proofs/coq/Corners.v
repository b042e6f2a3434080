(** A broadcast of k chunks among the corners of a hypercube of d dimensions, corner 0 the root.

    In round t all corners that differ in bit t mod d are partners (rotated binomial trees: Johnsson
    and Ho, 1989). Chunk c comes to corner w in the last round t of c .. c+d-1 whose bit is set in w,
    if bit c mod d is set in w, and in round c + d if not. When chunks run out, what would be a later
    chunk is the last one again, which so comes to every corner by round k + d - 2.

    What the rest needs stands at the end: who passes a chunk on has received it before
    ([comes_from]), every chunk comes once ([comes_once]) and comes everywhere ([comes_all]). *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges.
Import ListNotations.
Open Scope N_scope.

(** The rounds t .. u-1. *)
Definition rounds_in (t u : N) : list N := map (N.add t) (range (u - t)).

Lemma in_rounds t u x : In x (rounds_in t u) <-> t <= x < u.
Proof.
  unfold rounds_in. rewrite in_map_iff. split.
  - intros (i & <- & Hi). apply in_range in Hi. lia.
  - intros H. exists (x - t). rewrite in_range. lia.
Qed.

Section Corners.
  Variables (d k : N).

  Definition corners : N := 2 ^ d.

  (** The bit of corner [w] that round [u] is about. *)
  Definition bit (w u : N) : bool := N.testbit w (u mod d).

  Definition partner (w t : N) : N := N.lxor w (2 ^ (t mod d)).

  Definition beside_root (t : N) : N := 2 ^ (t mod d).

  (** Chunk [c] comes to corner [w] in round [t], if chunks never run out. *)
  Definition arrives (w c t : N) : bool :=
    if t =? c + d then negb (bit w c)
    else (c <=? t) && (t <? c + d) && bit w c && bit w t
         && forallb (fun u => negb (bit w u)) (rounds_in (t + 1) (c + d)).

  (** The chunks that can come in round [t]. *)
  Definition window (t : N) : list N :=
    map (fun i => t - i) (filter (fun i => i <=? t) (range (d + 1))).

  Definition incoming (w t : N) : option N := find (fun c => arrives w c t) (window t).

  (** The last chunk, or one that stands for it, does not come in round [u]. *)
  Definition not_last (w u : N) : bool :=
    match incoming w u with Some c => c <? k - 1 | None => true end.

  (** The chunk that comes to corner [w] in round [t], if it is not there yet. *)
  Definition comes (w t : N) : option N :=
    if (w =? 0) || (k + d - 1 <=? t) then None
    else match incoming w t with
         | Some c => if (c <? k - 1) || forallb (not_last w) (rounds_in (k - 1) t)
                     then Some (N.min c (k - 1)) else None
         | None => None
         end.

  (** * Proofs *)

  Hypothesis dimensions : 1 <= d.
  Hypothesis some_chunk : 1 <= k.

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

  Lemma arrives_spec w c t : arrives w c t = true <->
    (t = c + d /\ bit w c = false) \/
    (c <= t < c + d /\ bit w c = true /\ bit w t = true /\
     forall u, t < u < c + d -> bit w u = false).
  Proof.
    unfold arrives. destruct (N.eqb_spec t (c + d)) as [E|E].
    - rewrite negb_true_iff. split; [tauto|]. intros [[_ H]|[H _]]; [auto|lia].
    - rewrite !andb_true_iff, N.leb_le, N.ltb_lt, forallb_forall. split.
      + intros ((((H1 & H2) & H3) & H4) & H5). right. repeat split; auto.
        intros u Hu. apply negb_true_iff, H5. apply in_rounds; lia.
      + intros [[H _]|(H1 & H2 & H3 & H4)]; [lia|]. repeat split; auto; try lia.
        intros u Hu. apply in_rounds in Hu. apply negb_true_iff, H4. lia.
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

  Lemma partner_zero w t : partner w t = 0 <-> w = beside_root t.
  Proof. unfold partner, beside_root. apply N.lxor_eq_0_iff. Qed.

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


  (** Each chunk comes in one round only. *)
  Lemma arrives_then w c t t' : arrives w c t = true -> arrives w c t' = true -> t = t'.
  Proof.
    rewrite !arrives_spec. intros [(E & H)|(R & H1 & H2 & H3)] [(E' & H')|(R' & H1' & H2' & H3')];
      try congruence.
    destruct (N.lt_trichotomy t t') as [L|[E|L]]; auto; exfalso.
    - specialize (H3 t'). rewrite H3 in H2'; [discriminate|lia].
    - specialize (H3' t). rewrite H3' in H2; [discriminate|lia].
  Qed.

  (** Every chunk comes early enough, or in place of the last one a later one. *)
  Lemma arrives_all w c : 1 <= w < corners -> c < k ->
    exists c' t, (c' = c \/ (c = k - 1 /\ k - 1 <= c')) /\ t < k + d - 1 /\ arrives w c' t = true.
  Proof.
    intros Hw Hc.
    assert (Set_bit : exists p, p < d /\ N.testbit w p = true).
    { exists (N.log2 w). split; [apply N.log2_lt_pow2; [lia|apply Hw]|apply N.bit_log2; lia]. }
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

  (** ** What comes *)

  Lemma comes_spec w t c : comes w t = Some c <->
    w <> 0 /\ t < k + d - 1 /\ exists c', arrives w c' t = true /\ c = N.min c' (k - 1) /\
      (c' < k - 1 \/ forall u c1, k - 1 <= u < t -> arrives w c1 u = true -> c1 < k - 1).
  Proof.
    unfold comes. destruct (N.eqb_spec w 0); simpl; [split; [easy|tauto]|].
    destruct (N.leb_spec (k + d - 1) t); [split; [easy|lia]|].
    assert (Early : forallb (not_last w) (rounds_in (k - 1) t) = true <->
      forall u c1, k - 1 <= u < t -> arrives w c1 u = true -> c1 < k - 1).
    { rewrite forallb_forall. unfold not_last. split.
      - intros H' u c1 Hu A. specialize (H' u). rewrite in_rounds in H'.
        apply incoming_some in A. rewrite A in H'. now apply N.ltb_lt, H'.
      - intros H' u Hu. apply in_rounds in Hu. destruct (incoming w u) as [c1|] eqn:E; auto.
        apply incoming_some in E. apply N.ltb_lt. now apply (H' u). }
    destruct (incoming w t) as [c'|] eqn:E.
    - apply incoming_some in E. split.
      + destruct (N.ltb_spec c' (k - 1)); simpl.
        * intros [= <-]. repeat split; auto. exists c'. auto.
        * destruct (forallb _ _); [|discriminate]. intros [= <-]. repeat split; auto.
          exists c'. repeat split; auto. right. now apply Early.
      + intros (_ & _ & c1 & A & -> & H'). rewrite (arrives_once w c1 c' t A E) in *.
        destruct (N.ltb_spec c' (k - 1)); simpl; auto.
        destruct H' as [H'|H']; [lia|]. apply Early in H'. now rewrite H'.
    - split; [discriminate|]. intros (_ & _ & c1 & A & _). apply incoming_some in A. congruence.
  Qed.

  Lemma comes_range w t c : comes w t = Some c -> c < k /\ c <= t /\ t < k + d - 1 /\ w <> 0.
  Proof.
    intros (Hw & Ht & c' & A & -> & _)%comes_spec. apply arrives_range in A. lia.
  Qed.

  Lemma comes_root t : comes 0 t = None.
  Proof. reflexivity. Qed.

  (** What arrives has come by then. *)
  Lemma has_come w c' t : w <> 0 -> t < k + d - 1 -> arrives w c' t = true ->
    exists t', t' <= t /\ comes w t' = Some (N.min c' (k - 1)).
  Proof.
    intros Hw. destruct (N.lt_ge_cases c' (k - 1)) as [L|L].
    - intros Ht A. exists t. split; [lia|]. apply comes_spec. repeat split; auto. eauto.
    - replace (N.min c' (k - 1)) with (k - 1) by lia. revert c' L.
      induction t as [t IH] using (well_founded_induction N.lt_wf_0). intros c' L Ht A.
      destruct (forallb (not_last w) (rounds_in (k - 1) t)) eqn:F.
      + exists t. split; [lia|]. apply comes_spec. repeat split; auto. exists c'.
        repeat split; auto; [lia|]. right. intros u c1 Hu A1. rewrite forallb_forall in F.
        specialize (F u). unfold not_last in F. apply incoming_some in A1. rewrite A1 in F.
        apply N.ltb_lt, F, in_rounds, Hu.
      + assert (X : exists u, In u (rounds_in (k - 1) t) /\ not_last w u = false).
        { clear - F. induction (rounds_in (k - 1) t) as [|u l IH]; simpl in *; [discriminate|].
          destruct (not_last w u) eqn:E; [destruct (IH F) as (v & ? & ?); eauto|eauto]. }
        destruct X as (u & Hu & E). apply in_rounds in Hu. unfold not_last in E.
        destruct (incoming w u) as [c1|] eqn:E1; [|discriminate]. apply incoming_some in E1.
        apply N.ltb_ge in E. destruct (IH u) with (c' := c1) as (t' & ? & ?); auto; try lia.
        exists t'. split; auto; lia.
  Qed.

  (** Who passes a chunk on has received it before. *)
  Lemma comes_from w t c : w < corners -> comes w t = Some c -> partner w t <> 0 ->
    exists t', t' < t /\ comes (partner w t) t' = Some c.
  Proof.
    intros Hw (Hw0 & Ht & c' & A & -> & _)%comes_spec P.
    destruct (sender_has w c' t A P Hw) as (t1 & L & A1).
    destruct (has_come (partner w t) c' t1) as (t' & L' & C); auto; [lia|].
    exists t'. split; auto; lia.
  Qed.

  (** Every chunk comes once. *)
  Lemma comes_once w c t t' : comes w t = Some c -> comes w t' = Some c -> t = t'.
  Proof.
    intros (_ & _ & c1 & A & E & H)%comes_spec (_ & _ & c2 & A' & E' & H')%comes_spec.
    destruct (N.lt_ge_cases c (k - 1)) as [L|L].
    - assert (c1 = c) by lia. assert (c2 = c) by lia. apply (arrives_then w c); congruence.
    - pose proof (arrives_range _ _ _ A). pose proof (arrives_range _ _ _ A').
      destruct (N.lt_trichotomy t t') as [M|[M|M]]; auto; exfalso.
      + destruct H' as [H'|H']; [lia|]. specialize (H' t c1). specialize (H' ltac:(lia) A). lia.
      + destruct H as [H|H]; [lia|]. specialize (H t' c2). specialize (H ltac:(lia) A'). lia.
  Qed.

  (** And it comes everywhere. *)
  Lemma comes_all w c : 1 <= w < corners -> c < k -> exists t, t < k + d - 1 /\ comes w t = Some c.
  Proof.
    intros Hw Hc. destruct (arrives_all w c Hw Hc) as (c' & t & E & Ht & A).
    destruct (has_come w c' t) as (t' & L & C); auto; [lia|].
    exists t'. split; [lia|]. rewrite C. f_equal. destruct E; lia.
  Qed.

  (** The root gives chunk t in round t, then the last one, to whoever it meets, and nobody has
      that. *)
  Lemma comes_from_root w t c : comes w t = Some c -> partner w t = 0 -> c = N.min t (k - 1).
  Proof. intros (_ & _ & c' & A & -> & _)%comes_spec P. now rewrite (from_late w c' t A P). Qed.

  Lemma beside_root_corner t : 1 <= beside_root t < corners.
  Proof.
    unfold beside_root, corners. assert (t mod d < d) by (apply N.mod_lt; lia). split.
    - assert (2 ^ (t mod d) <> 0) by (apply N.pow_nonzero; lia). lia.
    - apply N.pow_lt_mono_r; lia.
  Qed.

  Lemma beside_root_bit t u : bit (beside_root t) u = (t mod d =? u mod d).
  Proof. unfold bit, beside_root. apply N.pow2_bits_eqb. Qed.

  Lemma root_gives t : t < k + d - 1 -> comes (beside_root t) t = Some (N.min t (k - 1)).
  Proof.
    intros Ht. pose proof (beside_root_corner t). apply comes_spec.
    split; [lia|]. split; [auto|]. exists t. split; [|split; [auto|]].
    - apply arrives_spec. right. rewrite beside_root_bit, N.eqb_refl.
      split; [lia|]. split; [auto|]. split; [auto|]. intros u Hu. rewrite beside_root_bit.
      apply N.eqb_neq. intros E. assert (t = u); [|lia]. apply same_residue; auto; lia.
    - destruct (N.lt_ge_cases t (k - 1)) as [L|L]; auto. right. intros u c1 Hu A.
      apply arrives_spec in A as [(E & _)|(R & _ & B & _)]; [lia|].
      rewrite beside_root_bit in B. apply N.eqb_eq in B.
      assert (u = t); [|lia]. apply same_residue; auto; lia.
  Qed.
End Corners.
