(** The same schedule with other names for the ranks (verify/renaming.py): the runtime gives the
    late rank of a schedule the name that it really has. *)

From Coq Require Import List NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics ExactlyOnce SameBits Structure Bounds Check.
Import ListNotations.
Open Scope N_scope.

Section Renaming.
  (** The new name of every rank; [old] is its inverse. *)
  Variables new old : N -> N.

  Definition renamed_transfer (t : transfer) : transfer :=
    Transfer (new (src t)) (new (dst t)) (chunk t) (op t).

  Definition renamed_phase (p : phase) : phase :=
    Phase (map new (absent p)) (map (map renamed_transfer) (rounds p)).

  Definition renamed (s : schedule) : schedule :=
    Schedule (ranks s) (chunks s) (map new (late s)) (ports s) (map renamed_phase (phases s)).

  (** Names of ranks stay names of ranks, and no two ranks get one name. *)
  Definition renaming (n : N) : Prop :=
    (forall r, old (new r) = r) /\ (forall r, new (old r) = r) /\ (forall r, r < n <-> new r < n).

  (** * Proofs *)

  Variable s : schedule.
  Hypothesis names : renaming (ranks s).

  Lemma new_same a b : new a = new b <-> a = b.
  Proof.
    destruct names as (O & _ & _). split; [|congruence]. intros E. rewrite <- (O a), <- (O b). congruence.
  Qed.

  Lemma old_rank r : r < ranks s -> old r < ranks s.
  Proof. destruct names as (_ & N & R). intros H. apply R. now rewrite N. Qed.

  Lemma renamed_rounds : all_rounds (renamed s) = map (map renamed_transfer) (all_rounds s).
  Proof.
    unfold all_rounds, rounds_of. simpl. induction (phases s) as [|p ps IH]; simpl; auto.
    now rewrite IH, map_app.
  Qed.

  (** A run under new names is the run, under new names. *)
  Lemma run_renamed {A} (plus : A -> A -> A) rs : forall x y : state A,
    (forall r c, x (new r) c = y r c) ->
    forall r c, run plus x (map (map renamed_transfer) rs) (new r) c = run plus y rs r c.
  Proof.
    induction rs as [|rd rs IH]; simpl; auto. intros x y H. apply IH. unfold run_round.
    assert (G : forall ts (x' y' : state A), (forall r c, x' (new r) c = y' r c) ->
      forall r c, fold_left (deliver plus x) (map renamed_transfer ts) x' (new r) c
                  = fold_left (deliver plus y) ts y' r c).
    { induction ts as [|t ts IHt]; simpl; auto. intros x' y' H'. apply IHt. intros r c.
      unfold deliver, put. simpl. rewrite !H, !H'.
      destruct (N.eqb_spec (new r) (new (dst t))) as [E|E], (N.eqb_spec r (dst t)) as [E'|E']; auto.
      - exfalso. now apply E', new_same.
      - exfalso. apply E. congruence. }
    apply G. exact H.
  Qed.

  Lemma runs_alike {A} (plus : A -> A -> A) (x : state A) r c :
    run plus x (all_rounds (renamed s)) r c
    = run plus (fun r c => x (new r) c) (all_rounds s) (old r) c.
  Proof.
    destruct names as (_ & N & _). rewrite renamed_rounds, <- (N r) at 1.
    now apply (run_renamed plus (all_rounds s) x (fun r c => x (new r) c)).
  Qed.

  Lemma in_renamed_rounds rd : In rd (all_rounds (renamed s)) ->
    exists rd', In rd' (all_rounds s) /\ rd = map renamed_transfer rd'.
  Proof. rewrite renamed_rounds, in_map_iff. intros (rd' & <- & H). eauto. Qed.

  Lemma occurrences_renamed l r : occurrences (map new l) r = occurrences l (old r).
  Proof.
    destruct names as (O & N & _). induction l as [|a l IH]; simpl; auto. rewrite IH.
    destruct (N.eq_dec (new a) r), (N.eq_dec a (old r)); auto; exfalso; congruence.
  Qed.

  Lemma fits_renamed p rd : fits_ports p rd -> fits_ports p (map renamed_transfer rd).
  Proof.
    intros (S & R & M). repeat split.
    - intros r. rewrite map_map. simpl. rewrite <- (map_map src new), occurrences_renamed. apply S.
    - intros r. rewrite map_map. simpl. rewrite <- (map_map dst new), occurrences_renamed. apply R.
    - intros E t u Ht Hu. apply in_map_iff in Ht as (t' & <- & Ht), Hu as (u' & <- & Hu). simpl.
      rewrite !new_same. now apply (M E).
  Qed.

  Lemma hazard_free_renamed b rd : hazard_free_round b rd ->
    hazard_free_round b (map renamed_transfer rd).
  Proof.
    unfold hazard_free_round. induction 1 as [|t rd Ht H IH]; simpl; constructor; auto.
    apply Forall_map. eapply Forall_impl; [|exact Ht]. intros u C [E1 E2]. simpl in *.
    apply C. split; [now apply new_same|exact E2].
  Qed.

  Lemma correct_renamed : correct s -> correct (renamed s).
  Proof.
    intros C M x r c Hr Hc. rewrite runs_alike.
    rewrite (C M (fun r c => x (new r) c)); auto; [|now apply old_rank].
    change (fun i => x (new i) c) with (fun j => (fun i => x i c) (new j)).
    rewrite <- (sum_map M new (fun i => x i c)). apply sum_permutation, range_permutation.
    - apply FinFun.Injective_map_NoDup; [intros a b; apply new_same|apply range_nodup].
    - destruct names as (O & N & R). intros a. rewrite in_map_iff. simpl. split.
      + intros (b & <- & Hb). apply (proj1 (R b)). now apply in_range.
      + intros Ha. exists (old a). split; [apply N|]. apply in_range. now apply old_rank.
  Qed.

  Lemma valid_renamed : valid s -> valid (renamed s).
  Proof.
    destruct names as (O & N & R). intros ((W1 & W2 & W3 & W4 & W5 & W6) & P & A & C).
    split; [|split; [|split]].
    - refine (conj W1 (conj W2 (conj W3 (conj _ (conj _ _))))).
      + intros r Hr. apply in_map_iff in Hr as (r' & <- & Hr). apply (proj1 (R r')). now apply W4.
      + intros p r Hp Hr. apply in_map_iff in Hp as (q & <- & Hq).
        apply in_map_iff in Hr as (r' & <- & Hr). apply in_map. now apply (W5 q).
      + intros rd t Hrd Ht. apply in_renamed_rounds in Hrd as (rd' & Hrd & ->).
        apply in_map_iff in Ht as (t' & <- & Ht). destruct (W6 rd' t' Hrd Ht) as (H1 & H2 & H3 & H4).
        unfold transfer_well_formed. simpl. rewrite <- !R, new_same. auto.
    - intros rd Hrd. apply in_renamed_rounds in Hrd as (rd' & Hrd & ->). now apply fits_renamed, P.
    - intros p r rd Hp Hr Hrd t Ht. apply in_map_iff in Hp as (q & <- & Hq).
      apply in_map_iff in Hr as (r' & <- & Hr), Hrd as (rd' & <- & Hrd), Ht as (t' & <- & Ht).
      simpl. rewrite !new_same. now apply (A q r' rd').
    - now apply correct_renamed.
  Qed.

  (** Renaming keeps a schedule right. *)
  Theorem renamed_right : Check.right s -> Check.right (renamed s).
  Proof.
    intros (V & B & H). split; [now apply valid_renamed|]. split.
    - intros A plus Comm x r r' c Hr Hr' Hc. rewrite !runs_alike.
      apply B; auto; now apply old_rank.
    - intros rd Hrd. apply in_renamed_rounds in Hrd as (rd' & Hrd & ->).
      now apply hazard_free_renamed, H.
  Qed.
End Renaming.
