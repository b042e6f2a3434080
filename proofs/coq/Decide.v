(** Deciding properties 1, 2, 3 and 6: functions that can be executed, and that they are exact. *)

From Coq Require Import List Arith NArith Lia Bool Permutation.
From Latecomer Require Import Ranges Schedule Semantics Structure Tables.
Import ListNotations.
Open Scope N_scope.

(** * Property 1 *)

Definition transfer_formed (n k : N) (t : transfer) : bool :=
  (src t <? n) && (dst t <? n) && (chunk t <? k) && negb (src t =? dst t).

Definition is_in (l : list N) (r : N) : bool := existsb (N.eqb r) l.

Definition decide_well_formed (s : schedule) : bool :=
  (1 <=? ranks s) && (1 <=? chunks s) && (1 <=? port_limit (ports s)) &&
  forallb (fun r => r <? ranks s) (late s) &&
  forallb (fun p => forallb (is_in (late s)) (absent p)) (phases s) &&
  forallb (forallb (transfer_formed (ranks s) (chunks s))) (all_rounds s).

Lemma is_in_iff l r : is_in l r = true <-> In r l.
Proof.
  unfold is_in. rewrite existsb_exists. split.
  - intros (y & H & E). apply N.eqb_eq in E. now subst.
  - intros H. exists r. split; auto. apply N.eqb_refl.
Qed.

Theorem well_formed_iff s : decide_well_formed s = true <-> well_formed s.
Proof.
  unfold decide_well_formed, well_formed.
  rewrite !andb_true_iff, !N.leb_le, !forallb_forall.
  split.
  - intros (((((Hn & Hk) & Hp) & Hl) & Ha) & Ht). repeat apply conj; auto.
    + intros r Hr. now apply N.ltb_lt, Hl.
    + intros p r Hin Hr. specialize (Ha p Hin). rewrite forallb_forall in Ha.
      now apply is_in_iff, Ha.
    + intros rd t Hrd Hin. specialize (Ht rd Hrd). rewrite forallb_forall in Ht.
      specialize (Ht t Hin). unfold transfer_formed, transfer_well_formed in *.
      rewrite !andb_true_iff, !N.ltb_lt, negb_true_iff, N.eqb_neq in Ht. tauto.
  - intros (Hn & Hk & Hp & Hl & Ha & Ht). repeat apply conj; auto.
    + intros r Hr. now apply N.ltb_lt, Hl.
    + intros p Hin. apply forallb_forall. intros r Hr. apply is_in_iff. now apply (Ha p).
    + intros rd Hrd. apply forallb_forall. intros t Hin. specialize (Ht rd t Hrd Hin).
      unfold transfer_formed, transfer_well_formed in *.
      rewrite !andb_true_iff, !N.ltb_lt, negb_true_iff, N.eqb_neq. tauto.
Qed.

(** * Property 2 *)

(** Whether no number occurs more than [limit] times; [counts] says how often each came before. *)
Definition count_at (counts : PM.t N) (x : N) : N :=
  match find_at counts x with Some c => c | None => 0 end.

Fixpoint within (limit : N) (counts : PM.t N) (l : list N) : bool :=
  match l with
  | [] => true
  | x :: l => let c := count_at counts x + 1 in
              (c <=? limit) && within limit (add_at counts x c) l
  end.

Lemma within_iff limit l : forall counts,
  (forall x, count_at counts x <= limit) ->
  within limit counts l = true <->
  forall x, (N.to_nat (count_at counts x) + occurrences l x <= N.to_nat limit)%nat.
Proof.
  induction l as [|a l IH]; intros counts Hc; simpl.
  - split; auto. intros _ x. specialize (Hc x). lia.
  - assert (Count : forall x, count_at (add_at counts a (count_at counts a + 1)) x
                              = count_at counts x + if a =? x then 1 else 0).
    { intros x. unfold count_at. rewrite find_add, N.eqb_sym.
      destruct (N.eqb_spec a x) as [->|]; destruct (find_at counts x); lia. }
    rewrite andb_true_iff, N.leb_le. split.
    + intros [Ha H]. rewrite IH in H.
      * intros x. specialize (H x). rewrite Count in H.
        destruct (N.eqb_spec a x), (N.eq_dec a x); try congruence; lia.
      * intros x. rewrite Count. specialize (Hc x). destruct (N.eqb_spec a x); subst; lia.
    + intros H. assert (Ha : count_at counts a + 1 <= limit).
      { specialize (H a). destruct (N.eq_dec a a); [lia|congruence]. }
      split; auto. apply IH.
      * intros x. rewrite Count. specialize (Hc x). destruct (N.eqb_spec a x); subst; lia.
      * intros x. rewrite Count. specialize (H x).
        destruct (N.eqb_spec a x), (N.eq_dec a x); try congruence; lia.
Qed.

Lemma within_empty limit l :
  within limit (PM.empty N) l = true <-> forall x, (occurrences l x <= N.to_nat limit)%nat.
Proof.
  assert (Z : forall x, count_at (PM.empty N) x = 0)
    by (intros x; unfold count_at, find_at; now rewrite PM.gempty).
  rewrite within_iff.
  - split; intros H x; specialize (H x); rewrite Z in *; lia.
  - intros x. rewrite Z. lia.
Qed.

(** Whom every rank sends to (the last listed, where it sends more than once). *)
Definition partners (rd : round) : PM.t N :=
  fold_left (fun m t => add_at m (src t) (dst t)) rd (PM.empty N).

Definition decide_pairs (rd : round) : bool :=
  let sends_to := partners rd in
  forallb (fun t => match find_at sends_to (dst t) with Some d => d =? src t | None => true end) rd.

Lemma partners_spec rd : (forall r, (occurrences (map src rd) r <= 1)%nat) ->
  (forall t, In t rd -> find_at (partners rd) (src t) = Some (dst t)) /\
  (forall r d, find_at (partners rd) r = Some d -> exists t, In t rd /\ src t = r /\ dst t = d).
Proof.
  unfold partners. induction rd as [|t rd IH] using rev_ind; intros Once.
  - split; [intros t []|]. intros r d H.
    change (find_at (PM.empty N) r = Some d) in H. now rewrite find_empty in H.
  - rewrite fold_left_app. simpl. rewrite map_app in Once. simpl in Once.
    destruct IH as [IH IH'].
    { intros r. specialize (Once r). rewrite count_occ_app in Once. lia. }
    split.
    + intros u Hu. rewrite find_add. apply in_app_iff in Hu as [Hu|[<-|[]]].
      * destruct (N.eqb_spec (src u) (src t)) as [E|]; [|auto]. exfalso.
        specialize (Once (src t)). rewrite count_occ_app in Once. simpl in Once.
        destruct (N.eq_dec (src t) (src t)); [|congruence].
        assert (In (src t) (map src rd)) by (rewrite <- E; now apply in_map).
        apply (count_occ_In N.eq_dec) in H. lia.
      * now rewrite N.eqb_refl.
    + intros r d. rewrite find_add. destruct (N.eqb_spec r (src t)) as [->|].
      * intros [= <-]. exists t. split; auto. apply in_or_app. right. now left.
      * intros H. apply IH' in H as (u & Hu & ?). exists u. split; auto. apply in_or_app. auto.
Qed.

Lemma pairs_iff rd : sends_within 1 rd -> decide_pairs rd = true <-> disjoint_pairs rd.
Proof.
  intros Once. destruct (partners_spec rd Once) as [S S'].
  unfold decide_pairs, disjoint_pairs. rewrite forallb_forall. split.
  - intros H t u Ht Hu E. specialize (H t Ht). rewrite <- E, (S u Hu) in H. now apply N.eqb_eq.
  - intros H t Ht. destruct (find_at _ _) as [d|] eqn:F; auto.
    apply S' in F as (u & Hu & Eu & <-). apply N.eqb_eq. now apply H.
Qed.

Definition decide_round_ports (p : port_model) (rd : round) : bool :=
  within (port_limit p) (PM.empty N) (map src rd) &&
  within (port_limit p) (PM.empty N) (map dst rd) &&
  match p with Matching => decide_pairs rd | _ => true end.

Definition decide_ports (s : schedule) : bool :=
  forallb (decide_round_ports (ports s)) (all_rounds s).

Theorem ports_iff s : decide_ports s = true <-> ports_respected s.
Proof.
  unfold decide_ports, ports_respected. rewrite forallb_forall.
  assert (R : forall rd, decide_round_ports (ports s) rd = true <-> fits_ports (ports s) rd).
  { intros rd. unfold decide_round_ports, fits_ports.
    rewrite !andb_true_iff, !within_empty. fold (sends_within (port_limit (ports s)) rd).
    fold (receives_within (port_limit (ports s)) rd).
    destruct (ports s); simpl; try (split; intros H; repeat split; try discriminate; tauto).
    split.
    - intros [[Hs Hr] Hp]. split; [|split]; auto. intros _. now apply (pairs_iff rd Hs).
    - intros (Hs & Hr & Hp). split; [split|]; auto. now apply (pairs_iff rd Hs), Hp. }
  split; intros H rd Hrd; apply R; auto.
Qed.

(** * Property 3 *)

Definition decide_absence (s : schedule) : bool :=
  forallb (fun p =>
    forallb (fun r => forallb (forallb (fun t => negb (src t =? r) && negb (dst t =? r)))
                        (rounds p))
      (absent p)) (phases s).

Theorem absence_iff s : decide_absence s = true <-> absence_respected s.
Proof.
  unfold decide_absence, absence_respected, silent. rewrite forallb_forall. split.
  - intros H p r rd Hp Hr Hrd t Ht. specialize (H p Hp). rewrite forallb_forall in H.
    specialize (H r Hr). rewrite forallb_forall in H. specialize (H rd Hrd).
    rewrite forallb_forall in H. specialize (H t Ht).
    rewrite andb_true_iff, !negb_true_iff, !N.eqb_neq in H. exact H.
  - intros H p Hp. apply forallb_forall. intros r Hr. apply forallb_forall. intros rd Hrd.
    apply forallb_forall. intros t Ht. rewrite andb_true_iff, !negb_true_iff, !N.eqb_neq.
    now apply (H p r rd).
Qed.

(** * Property 6 *)

(** [seen]: chunk -> rank -> how the transfers so far wrote it. *)
Fixpoint decide_hazards (allowed : bool) (seen : table (A := operation)) (rd : round) : bool :=
  match rd with
  | [] => true
  | t :: rd =>
      match find_at (row seen (chunk t)) (dst t) with
      | None => true
      | Some before => allowed && same_operation before Reduce && same_operation (op t) Reduce
      end && decide_hazards allowed (write seen (dst t) (chunk t) (op t)) rd
  end.

Definition decide_hazard_free (s : schedule) : bool :=
  forallb (decide_hazards (summing_allowed (ports s)) (PM.empty _)) (all_rounds s).

(** [seen] describes a list of transfers: of each target, one of those that wrote it; all of them
    have the same operation. *)
Definition describes (seen : table (A := operation)) (before : round) : Prop :=
  forall t, match find_at (row seen (chunk t)) (dst t) with
            | None => forall u, In u before -> ~ same_target u t
            | Some o => (exists u, In u before /\ same_target u t) /\
                        forall u, In u before -> same_target u t -> op u = o
            end.

Lemma find_write (seen : table (A := operation)) r c o r' c' :
  find_at (row (write seen r c o) c') r'
  = if (r' =? r) && (c' =? c) then Some o else find_at (row seen c') r'.
Proof.
  unfold write, row at 1. rewrite find_add. destruct (N.eqb_spec c' c) as [->|].
  - rewrite find_add, andb_true_r. now destruct (r' =? r).
  - now rewrite andb_false_r.
Qed.

Lemma hazard_free_app allowed before t :
  hazard_free_round allowed (before ++ [t]) <->
  hazard_free_round allowed before /\ (forall u, In u before -> compatible allowed u t).
Proof.
  unfold hazard_free_round. induction before as [|b before IH]; simpl.
  - split; [intros _; split; [constructor|intros u []]|intros _; repeat constructor].
  - split.
    + intros H. inversion H as [|? ? Hb Hrest]; subst.
      apply Forall_app in Hb as [Hb Hbt]. apply Forall_inv in Hbt.
      apply IH in Hrest as [Hrest Ht]. split; [now constructor|].
      intros u [E|Hu]; [now subst|auto].
    + intros [H Ht]. inversion H as [|? ? Hb Hrest]; subst. constructor.
      * apply Forall_app. split; auto.
      * apply IH. auto.
Qed.

Lemma hazard_free_prefix allowed before later :
  hazard_free_round allowed (before ++ later) -> hazard_free_round allowed before.
Proof.
  unfold hazard_free_round. induction before as [|b before IH]; simpl; [constructor|].
  intros H. inversion H as [|? ? Hb Hrest]; subst. constructor; auto.
  now apply Forall_app in Hb.
Qed.

Lemma describes_write allowed seen before t :
  describes seen before -> (forall u, In u before -> compatible allowed u t) ->
  describes (write seen (dst t) (chunk t) (op t)) (before ++ [t]).
Proof.
  intros D C u. rewrite find_write. specialize (D u).
  destruct ((dst u =? dst t) && (chunk u =? chunk t)) eqn:E.
  - apply andb_true_iff in E as [Ed Ec]. apply N.eqb_eq in Ed, Ec. split.
    + exists t. split; [apply in_or_app; right; now left|now split].
    + intros v Hv Sv. apply in_app_iff in Hv as [Hv|[<-|[]]]; auto.
      destruct (C v Hv) as (_ & Ev & Et); [destruct Sv; split|]; congruence.
  - assert (Other : ~ same_target t u).
    { intros [Ed Ec]. rewrite Ed, Ec, !N.eqb_refl in E. discriminate. }
    destruct (find_at _ _) as [o|].
    + destruct D as ((v & Hv & Sv) & All). split.
      * exists v. split; auto. apply in_or_app. auto.
      * intros w Hw Sw. apply in_app_iff in Hw as [Hw|[<-|[]]]; [auto|contradiction].
    + intros w Hw Sw. apply in_app_iff in Hw as [Hw|[<-|[]]]; [now apply (D w)|contradiction].
Qed.

Lemma hazards_iff allowed rd : forall seen before,
  describes seen before -> hazard_free_round allowed before ->
  decide_hazards allowed seen rd = true <-> hazard_free_round allowed (before ++ rd).
Proof.
  induction rd as [|t rd IH]; intros seen before D F; simpl.
  { rewrite app_nil_r. tauto. }
  replace (before ++ t :: rd) with ((before ++ [t]) ++ rd) by now rewrite <- app_assoc.
  match goal with |- ?ok && _ = true <-> _ =>
    assert (Here : ok = true <-> forall u, In u before -> compatible allowed u t) end.
  { specialize (D t). unfold compatible. destruct (find_at _ _) as [o|].
    - destruct D as ((u & Hu & Su) & All). rewrite !andb_true_iff. split.
      + intros ((Ha & Ho) & Ht) v Hv Sv. rewrite (All v Hv Sv).
        destruct o, (op t); try discriminate. auto.
      + intros H. destruct (H u Hu Su) as (Ha & Ho & Ht). rewrite (All u Hu Su) in Ho.
        now rewrite Ha, Ho, Ht.
    - split; auto. intros _ u Hu Su. now destruct (D u Hu). }
  rewrite andb_true_iff, Here. split.
  - intros [Hok Hrest]. revert Hrest. apply IH.
    + now apply describes_write with allowed.
    + now apply hazard_free_app.
  - intros H. assert (Hok : forall u, In u before -> compatible allowed u t).
    { assert (P : hazard_free_round allowed (before ++ [t])) by (now apply hazard_free_prefix in H).
      now apply hazard_free_app in P. }
    split; auto. revert H. apply IH.
    + now apply describes_write with allowed.
    + now apply hazard_free_app.
Qed.

Theorem hazard_free_iff s : decide_hazard_free s = true <-> hazard_free s.
Proof.
  unfold decide_hazard_free, hazard_free. rewrite forallb_forall.
  assert (R : forall rd, decide_hazards (summing_allowed (ports s)) (PM.empty _) rd = true
                         <-> hazard_free_round (summing_allowed (ports s)) rd).
  { intros rd. apply (hazards_iff _ rd _ []); [|constructor].
    intros t. unfold row, find_at. rewrite !PM.gempty. intros u []. }
  split; intros H rd Hrd; apply R; auto.
Qed.
