(** A broadcast of k chunks from one rank to any number of others (synth/straggler/broadcast.py).

    The root, rank n-1, is alone in corner 0 of a hypercube, and the others share its other corners,
    one or two in each. Among corners it is the broadcast of [Corners.v]. Of what came to a corner
    from outside, each of two members has at most one chunk that the other lacks, its *pending* one.
    The member that does not receive from outside gives; if the chunk to be given is pending with the
    other one, they change places. In the same round the one that receives passes its own pending
    chunk on. Where nothing comes or goes, both do. *)

From Coq Require Import List Arith NArith Lia Bool.
From Latecomer Require Import Ranges Schedule Corners.
Import ListNotations.
Open Scope N_scope.

(** Who receives from outside ([front]) and who gives ([back]); the pending chunk of each. *)
Record corner := Corner { front : N; back : N; newest : option N; oldest : option N }.

(** Who has just received the chunk that is to go gives it on. *)
Definition turned (go : option N) (s : corner) : corner :=
  match go, newest s with
  | Some c, Some c' => if c =? c' then Corner (back s) (front s) (oldest s) (newest s) else s
  | _, _ => s
  end.

Definition pass (a b : N) (pending : option N) : list transfer :=
  match pending with Some c => [Transfer a b c Copy] | None => [] end.

Section Broadcast.
  Variables n k : N.

  Definition dimensions : N := N.log2 n.

  Definition root : N := n - 1.

  Definition first_member (v : N) : N := if v =? 0 then root else v - 1.

  Definition second_member (v : N) : N := v + corners dimensions - 2.

  Definition pair (v : N) : bool := (0 <? v) && (second_member v <? root).

  Definition corner_of (r : N) : N :=
    if r =? root then 0
    else if r <? corners dimensions - 1 then r + 1 else r + 2 - corners dimensions.

  Definition across (v t : N) : N := partner dimensions v t.

  Definition coming (v t : N) : option N := comes dimensions k v t.

  Definition going (v t : N) : option N := coming (across v t) t.

  Definition idle (v t : N) : bool :=
    match coming v t, going v t with None, None => true | _, _ => false end.

  Definition step (v : N) (s : corner) (t : N) : corner :=
    let s := turned (going v t) s in
    Corner (front s) (back s) (if pair v then coming v t else None)
      (if idle v t then None else oldest s).

  Definition state (v t : N) : corner :=
    let second := if pair v then second_member v else first_member v in
    fold_left (step v) (range t) (Corner (first_member v) second None None).

  (** Corner [v] in round [t]. *)
  Definition acting (v t : N) : corner := turned (going v t) (state v t).

  (** What the members of corner [v] receive in round [t]. *)
  Definition corner_moves (t v : N) : list transfer :=
    let s := acting v t in
    pass (front s) (back s) (newest s)
    ++ (if idle v t then pass (back s) (front s) (oldest s) else [])
    ++ pass (back (acting (across v t) t)) (front s) (coming v t).

  Definition moves (t : N) : list transfer := flat_map (corner_moves t) (range (corners dimensions)).

  Definition outside_rounds : N := k + dimensions - 1.

  Definition broadcast_rounds : N := outside_rounds + (if n =? corners dimensions then 0 else 1).

  (** Who receives from the root in round [t], or would; who is beside it and sends nothing. *)
  Definition receiver (t : N) : N := front (acting (beside_root dimensions t) t).

  Definition beside (t : N) : N := back (acting (beside_root dimensions t) t).

  (** The moves of one rank, from its own corner and its partner. *)
  Definition takes_part (r : N) (m : transfer) : bool := (src m =? r) || (dst m =? r).

  Definition moves_of (r t : N) : list transfer :=
    let v := corner_of r in
    filter (takes_part r) (corner_moves t v ++ corner_moves t (across v t)).

  (** * Proofs *)

  Hypothesis two_ranks : 2 <= n.
  Hypothesis some_chunk : 1 <= k.

  (** ** Corners and their members *)

  Lemma dimensions_some : 1 <= dimensions.
  Proof. unfold dimensions. rewrite <- N.log2_2 at 1. now apply N.log2_le_mono. Qed.

  Lemma corners_ranks : 2 <= corners dimensions <= n /\ n < 2 * corners dimensions.
  Proof.
    unfold corners, dimensions. pose proof (N.log2_spec n ltac:(lia)) as H.
    rewrite N.pow_succ_r' in H. split; [split|]; try lia.
  Qed.

  Hint Resolve dimensions_some : core.

  Definition members (v : N) (s : corner) : Prop :=
    if pair v
    then (front s = first_member v /\ back s = second_member v) \/
         (front s = second_member v /\ back s = first_member v)
    else front s = first_member v /\ back s = first_member v /\ newest s = None /\ oldest s = None.

  Lemma corner_of_first v : v < corners dimensions -> corner_of (first_member v) = v.
  Proof.
    intros Hv. pose proof corners_ranks. unfold corner_of, first_member.
    destruct (N.eqb_spec v 0) as [->|]; [now rewrite N.eqb_refl|]. unfold root.
    destruct (N.eqb_spec (v - 1) (n - 1)); [lia|].
    destruct (N.ltb_spec (v - 1) (corners dimensions - 1)); lia.
  Qed.

  Lemma corner_of_second v : pair v = true -> corner_of (second_member v) = v.
  Proof.
    unfold pair, corner_of, second_member. rewrite andb_true_iff, !N.ltb_lt.
    pose proof corners_ranks. intros H'.
    destruct (N.eqb_spec (v + corners dimensions - 2) root); [lia|].
    destruct (N.ltb_spec (v + corners dimensions - 2) (corners dimensions - 1)); lia.
  Qed.

  Lemma members_here v s : v < corners dimensions -> members v s ->
    corner_of (front s) = v /\ corner_of (back s) = v.
  Proof.
    intros Hv. unfold members. destruct (pair v) eqn:P.
    - pose proof (corner_of_first v Hv). pose proof (corner_of_second v P).
      intros [[-> ->]|[-> ->]]; auto.
    - intros (-> & -> & _). now rewrite corner_of_first.
  Qed.

  Lemma members_apart v s : pair v = true -> members v s -> front s <> back s.
  Proof.
    unfold members. intros P. rewrite P. unfold pair in P.
    rewrite andb_true_iff, !N.ltb_lt in P. pose proof corners_ranks.
    assert (first_member v <> second_member v).
    { unfold first_member, second_member. destruct (N.eqb_spec v 0); lia. }
    intros [[-> ->]|[-> ->]]; auto.
  Qed.

  Lemma members_turned v go s : members v s -> members v (turned go s).
  Proof.
    intros M. unfold turned. destruct go as [c|]; auto. destruct (newest s) as [c'|] eqn:E; auto.
    destruct (c =? c'); auto. unfold members in *. destruct (pair v); simpl; [tauto|].
    destruct M as (_ & _ & ? & _). congruence.
  Qed.

  Lemma state_succ v t : state v (t + 1) = step v (state v t) t.
  Proof. unfold state. now rewrite range_succ, fold_left_app. Qed.

  Lemma members_state v t : members v (state v t).
  Proof.
    induction t as [|t IH] using N.peano_ind.
    - unfold state, members. simpl. destruct (pair v); simpl; auto.
    - rewrite <- N.add_1_r, state_succ. apply (members_turned v (going v t)) in IH.
      unfold members, step in *. destruct (pair v); simpl in *; auto.
      destruct IH as (? & ? & ? & ?). repeat split; auto. now destruct (idle v t).
  Qed.

  Lemma members_acting v t : members v (acting v t).
  Proof. apply members_turned, members_state. Qed.

  Lemma across_corner v t : v < corners dimensions -> across v t < corners dimensions.
  Proof. now apply (partner_corner dimensions k). Qed.

  Lemma across_twice v t : across (across v t) t = v.
  Proof. apply partner_twice. Qed.

  Lemma going_across v t : going (across v t) t = coming v t.
  Proof. unfold going. now rewrite across_twice. Qed.

  Lemma root_alone t : acting 0 t = Corner root root None None.
  Proof.
    pose proof (members_acting 0 t) as M. unfold members in M. simpl in M.
    destruct (acting 0 t) as [f b p q]. simpl in M. destruct M as (-> & -> & -> & ->). reflexivity.
  Qed.

  Lemma helper_corner v s : 1 <= v < corners dimensions -> members v s ->
    front s < root /\ back s < root.
  Proof.
    intros Hv. unfold members. pose proof corners_ranks.
    assert (F : first_member v < root).
    { unfold first_member, root. destruct (N.eqb_spec v 0); lia. }
    destruct (pair v) eqn:P; [|intros (-> & -> & _); auto].
    unfold pair in P. rewrite andb_true_iff, !N.ltb_lt in P.
    intros [[-> ->]|[-> ->]]; tauto.
  Qed.

  Lemma corner_of_helper r : r < root -> 1 <= corner_of r < corners dimensions.
  Proof.
    unfold corner_of. intros Hr. pose proof corners_ranks. unfold root in *.
    destruct (N.eqb_spec r (n - 1)); [lia|].
    destruct (N.ltb_spec r (corners dimensions - 1)); lia.
  Qed.

  Lemma is_member r s : r < root -> members (corner_of r) s -> r = front s \/ r = back s.
  Proof.
    intros Hr. pose proof corners_ranks. pose proof (corner_of_helper r Hr) as C. unfold members.
    assert (E : r = first_member (corner_of r) \/
                (pair (corner_of r) = true /\ r = second_member (corner_of r))).
    { unfold pair, first_member, second_member, corner_of in *. unfold root in *.
      destruct (N.eqb_spec r (n - 1)); [lia|].
      destruct (N.ltb_spec r (corners dimensions - 1)).
      - destruct (N.eqb_spec (r + 1) 0); lia.
      - right. rewrite andb_true_iff, !N.ltb_lt. lia. }
    destruct E as [E|[P E]].
    - destruct (pair (corner_of r)); [intros [[-> ->]|[-> ->]]|intros (-> & -> & _)]; auto.
    - rewrite P. intros [[-> ->]|[-> ->]]; auto.
  Qed.

  (** ** What moves *)

  Lemma in_pass a b p m : In m (pass a b p) <-> exists c, p = Some c /\ m = Transfer a b c Copy.
  Proof.
    destruct p as [c|]; simpl; split; try easy.
    - intros [<-|[]]. eauto.
    - intros (c' & [= ->] & ->). auto.
    - intros (c' & E & _). discriminate.
  Qed.

  Lemma in_corner_moves t v m : In m (corner_moves t v) <->
    (exists c, newest (acting v t) = Some c /\
       m = Transfer (front (acting v t)) (back (acting v t)) c Copy) \/
    (idle v t = true /\ exists c, oldest (acting v t) = Some c /\
       m = Transfer (back (acting v t)) (front (acting v t)) c Copy) \/
    (exists c, coming v t = Some c /\
       m = Transfer (back (acting (across v t) t)) (front (acting v t)) c Copy).
  Proof.
    unfold corner_moves. rewrite !in_app_iff, !in_pass.
    destruct (idle v t); [rewrite in_pass; tauto|]. simpl.
    split; [tauto|]. intros [H|[[? _]|H]]; [tauto|discriminate|tauto].
  Qed.

  Lemma nothing_to_root t : corner_moves t 0 = [].
  Proof. unfold corner_moves. rewrite root_alone. simpl. now destruct (idle 0 t). Qed.

  Lemma in_moves t m : In m (moves t) <->
    exists v, 1 <= v < corners dimensions /\ In m (corner_moves t v).
  Proof.
    unfold moves. rewrite in_flat_map. split.
    - intros (v & Hv & Hm). apply in_range in Hv. exists v. split; auto.
      destruct (N.eq_dec v 0) as [->|]; [|lia]. now rewrite nothing_to_root in Hm.
    - intros (v & Hv & Hm). exists v. rewrite in_range. split; auto. lia.
  Qed.

  Lemma move_dst t v m : 1 <= v < corners dimensions -> In m (corner_moves t v) ->
    corner_of (dst m) = v /\ dst m < root.
  Proof.
    intros Hv. destruct (members_here v (acting v t)) as [F B]; [lia|apply members_acting|].
    destruct (helper_corner v (acting v t)) as [F' B']; auto; [apply members_acting|].
    rewrite in_corner_moves. intros [(c & _ & ->)|[(_ & c & _ & ->)|(c & _ & ->)]]; auto.
  Qed.

  (** A rank has received a chunk before round [t]; something has come to a corner. *)
  Definition got (r t c : N) : Prop :=
    exists t' m, t' < t /\ In m (moves t') /\ dst m = r /\ chunk m = c.

  Definition held (v t c : N) : Prop := exists t', t' < t /\ coming v t' = Some c.

  Definition gets (r t c : N) : Prop := exists m, In m (moves t) /\ dst m = r /\ chunk m = c.

  Lemma got_succ r t c : got r (t + 1) c <-> got r t c \/ gets r t c.
  Proof.
    split.
    - intros (t' & m & L & H). destruct (N.eq_dec t' t) as [->|].
      + right. exists m. tauto.
      + left. exists t', m. split; [lia|tauto].
    - intros [(t' & m & L & H)|(m & H)].
      + exists t', m. split; [lia|tauto].
      + exists t, m. split; [lia|tauto].
  Qed.

  Lemma held_succ v t c : held v (t + 1) c <-> held v t c \/ coming v t = Some c.
  Proof.
    split.
    - intros (t' & L & H). destruct (N.eq_dec t' t) as [->|]; [now right|].
      left. exists t'. split; [lia|auto].
    - intros [(t' & L & H)|H]; [exists t'|exists t]; split; auto; lia.
  Qed.

  Lemma comes_new v t c : coming v t = Some c -> ~ held v t c.
  Proof.
    intros H (t' & L & H'). assert (t' = t); [|lia].
    now apply (comes_once dimensions k dimensions_some some_chunk v c).
  Qed.

  (** Only the corner's own moves reach its members. *)
  Lemma gets_here v t r c : 1 <= v < corners dimensions -> corner_of r = v ->
    gets r t c <-> exists m, In m (corner_moves t v) /\ dst m = r /\ chunk m = c.
  Proof.
    intros Hv Hr. split.
    - intros (m & Hm & D & E). apply in_moves in Hm as (v' & Hv' & Hm).
      destruct (move_dst t v' m Hv' Hm) as [C _]. replace v' with v in Hm by congruence. exists m. auto.
    - intros (m & Hm & D & E). exists m. split; auto. apply in_moves. eauto.
  Qed.

  Lemma gets_back v t c : 1 <= v < corners dimensions -> pair v = true ->
    gets (back (acting v t)) t c <-> newest (acting v t) = Some c.
  Proof.
    intros Hv P. pose proof (members_acting v t) as M.
    pose proof (members_apart v _ P M) as Apart.
    rewrite (gets_here v); [|auto|now apply members_here].
    split.
    - intros (m & Hm & D & E). apply in_corner_moves in Hm
        as [(c' & H & ->)|[(_ & c' & H & ->)|(c' & H & ->)]]; simpl in *; congruence.
    - intros H. eexists. rewrite in_corner_moves. split; [left; eauto|]. auto.
  Qed.

  Lemma gets_front v t c : 1 <= v < corners dimensions ->
    gets (front (acting v t)) t c <->
    coming v t = Some c \/ (idle v t = true /\ oldest (acting v t) = Some c).
  Proof.
    intros Hv. pose proof (members_acting v t) as M.
    rewrite (gets_here v); [|auto|now apply members_here]. split.
    - intros (m & Hm & D & E). apply in_corner_moves in Hm
        as [(c' & H & ->)|[(I & c' & H & ->)|(c' & H & ->)]]; simpl in *; subst; auto.
      exfalso. destruct (pair v) eqn:P.
      + apply (members_apart v _ P M). auto.
      + unfold members in M. rewrite P in M. destruct M as (_ & _ & N & _). congruence.
    - intros [H|[I H]]; eexists; rewrite in_corner_moves.
      + split; [right; right; eauto|]. auto.
      + split; [right; left; eauto|]. auto.
  Qed.

  (** ** The invariant of a corner *)

  Definition fine (v t : N) (s : corner) : Prop :=
    members v s /\
    (forall c, got (front s) t c <-> held v t c /\ oldest s <> Some c) /\
    (forall c, got (back s) t c <-> held v t c /\ newest s <> Some c) /\
    (forall c, newest s = Some c -> held v t c /\ oldest s <> Some c) /\
    (forall c, oldest s = Some c -> held v t c).

  Lemma fine_turned v t go s : fine v t s -> fine v t (turned go s).
  Proof.
    intros (M & F & B & N & O). split; [now apply members_turned|]. unfold turned.
    destruct go as [c|], (newest s) as [c'|] eqn:E; try rewrite E; auto.
    destruct (c =? c'); simpl; rewrite ?E; auto.
    repeat split; auto.
    - now apply B.
    - now apply B.
    - intros [H1 H2]. now apply B.
    - now apply F.
    - now apply F.
    - intros [H1 H2]. now apply F.
    - intros X. apply N in X. tauto.
    - intros c1 X. now apply N.
  Qed.

  Lemma fine_step v t : 1 <= v < corners dimensions ->
    fine v t (acting v t) -> fine v (t + 1) (state v (t + 1)).
  Proof.
    intros Hv (M & F & B & N & O). split; [apply members_state|].
    rewrite state_succ. unfold step. fold (acting v t). simpl.
    assert (New : forall c, coming v t = Some c -> idle v t = false /\ ~ held v t c).
    { intros c H. split; [unfold idle; now rewrite H|now apply comes_new]. }
    assert (Front : forall c, got (front (acting v t)) (t + 1) c <->
              held v (t + 1) c /\ (if idle v t then None else oldest (acting v t)) <> Some c).
    { intros c. rewrite got_succ, held_succ, gets_front, F by auto.
      specialize (New c). specialize (O c).
      assert (D : oldest (acting v t) = Some c \/ oldest (acting v t) <> Some c).
      { destruct (oldest (acting v t)) as [c'|]; [|right; discriminate].
        destruct (N.eq_dec c' c) as [->|]; [now left|right; congruence]. }
      destruct (idle v t).
      - assert (None <> Some c) by discriminate. intuition congruence.
      - intuition congruence. }
    destruct (pair v) eqn:P.
    - repeat apply conj; auto.
      + intros c. rewrite got_succ, held_succ, gets_back, B by auto.
        specialize (New c). specialize (N c).
        assert (D : newest (acting v t) = Some c \/ newest (acting v t) <> Some c).
        { destruct (newest (acting v t)) as [c'|]; [|right; discriminate].
          destruct (N.eq_dec c' c) as [->|]; [now left|right; congruence]. }
        intuition congruence.
      + intros c H. destruct (New c H) as [-> Not]. split; [apply held_succ; auto|].
        intros X. now apply Not, O.
      + intros c H. apply held_succ. left. destruct (idle v t); [discriminate|auto].
    - unfold members in M. rewrite P in M. destruct M as (Ef & Eb & En & Eo).
      rewrite Eo in *. rewrite Eb, <- Ef. repeat apply conj; auto; try discriminate.
      + intros c. rewrite Front. destruct (idle v t); intuition discriminate.
      + intros c. destruct (idle v t); discriminate.
  Qed.

  Lemma fine_state v t : 1 <= v < corners dimensions -> fine v t (state v t).
  Proof.
    intros Hv. induction t as [|t IH] using N.peano_ind.
    - split; [apply members_state|]. unfold state. simpl.
      repeat apply conj; try discriminate; intros c;
        (split; [intros (t' & ? & L & _)|intros [(t' & L & _) _]]); lia.
    - rewrite <- N.add_1_r. apply fine_step; auto. now apply fine_turned.
  Qed.

  Lemma fine_acting v t : 1 <= v < corners dimensions -> fine v t (acting v t).
  Proof. intros Hv. now apply fine_turned, fine_state. Qed.

  (** ** The broadcast is right *)

  Lemma move_range t m : In m (moves t) ->
    src m < n /\ dst m < root /\ chunk m < k /\ src m <> dst m /\ op m = Copy.
  Proof.
    intros Hm. apply in_moves in Hm as (v & Hv & Hm).
    pose proof (move_dst t v m Hv Hm) as [_ D].
    pose proof (members_acting v t) as M.
    pose proof (helper_corner v _ Hv M) as [HF HB]. destruct (fine_acting v t Hv) as (_ & _ & _ & N & O).
    assert (Held : forall c, held v t c -> c < k).
    { intros c (t' & _ & H). now apply comes_range in H. }
    assert (Pair : newest (acting v t) <> None \/ oldest (acting v t) <> None -> pair v = true).
    { unfold members in M. destruct (pair v); auto. destruct M as (_ & _ & -> & ->). tauto. }
    unfold root in *. apply in_corner_moves in Hm
      as [(c & H & ->)|[(_ & c & H & ->)|(c & H & ->)]]; simpl in *.
    - repeat split; auto; [lia|now apply Held, N|]. apply (members_apart v); auto.
      apply Pair. left. congruence.
    - repeat split; auto; [lia|]. intros E. symmetry in E. revert E.
      apply (members_apart v); auto. apply Pair. right. congruence.
    - assert (U : across v t < corners dimensions) by (apply across_corner; lia).
      destruct (members_here (across v t) (acting (across v t) t) U (members_acting _ _)) as [_ CU].
      destruct (members_here v (acting v t) (proj2 Hv) M) as [CF _].
      apply comes_range in H as (Hc & _); auto. repeat split; auto.
      + destruct (N.eq_dec (across v t) 0) as [E|E]; [rewrite E, root_alone; simpl; unfold root; lia|].
        pose proof (helper_corner (across v t) (acting (across v t) t)) as X.
        unfold root in X. destruct X; [lia|apply members_acting|lia].
      + intros E. rewrite E, CF in CU. unfold across in CU.
        assert (Z : 2 ^ (t mod dimensions) = 0); [|revert Z; apply N.pow_nonzero; lia].
        transitivity (N.lxor v (N.lxor v (2 ^ (t mod dimensions)))).
        * rewrite <- N.lxor_assoc, N.lxor_nilpotent. now rewrite N.lxor_0_l.
        * unfold partner in CU. rewrite <- CU. apply N.lxor_nilpotent.
  Qed.

  (** Every rank receives every chunk at most once. *)
  Lemma moves_once t m : In m (moves t) -> ~ got (dst m) t (chunk m).
  Proof.
    intros Hm. apply in_moves in Hm as (v & Hv & Hm).
    destruct (fine_acting v t Hv) as (_ & F & B & _ & _).
    apply in_corner_moves in Hm as [(c & H & ->)|[(_ & c & H & ->)|(c & H & ->)]]; simpl in *.
    - rewrite B. tauto.
    - rewrite F. tauto.
    - rewrite F. intros [Held _]. revert Held. now apply comes_new.
  Qed.

  Lemma turned_gives v t c s : fine v t s -> newest (turned (Some c) s) <> Some c.
  Proof.
    intros (_ & _ & _ & N & _). unfold turned. destruct (newest s) as [c'|] eqn:E; [|congruence].
    destruct (N.eqb_spec c c') as [->|]; simpl; [now apply N|congruence].
  Qed.

  (** Who sends a chunk has it: the root, or it has received it before. *)
  Lemma moves_from t m : In m (moves t) -> src m <> root -> got (src m) t (chunk m).
  Proof.
    intros Hm. apply in_moves in Hm as (v & Hv & Hm).
    destruct (fine_acting v t Hv) as (_ & F & B & N & O).
    apply in_corner_moves in Hm as [(c & H & ->)|[(_ & c & H & ->)|(c & H & ->)]]; simpl in *.
    - intros _. apply F. now apply N.
    - intros _. apply B. split; auto. intros X. now apply N in X.
    - intros R. destruct (N.eq_dec (across v t) 0) as [E|E].
      { rewrite E, root_alone in R. now destruct R. }
      assert (U : 1 <= across v t < corners dimensions).
      { pose proof (across_corner v t (proj2 Hv)). lia. }
      destruct (fine_acting (across v t) t U) as (_ & _ & B' & _ & _). apply B'. split.
      + apply comes_from; auto. lia.
      + unfold acting. rewrite going_across, H. apply (turned_gives (across v t) t).
        now apply fine_state.
  Qed.

  (** Every rank receives every chunk. *)
  Lemma moves_all r c : r < root -> c < k -> got r broadcast_rounds c.
  Proof.
    intros Hr Hc. pose proof (corner_of_helper r Hr) as Hv. set (v := corner_of r) in *.
    destruct (fine_state v broadcast_rounds Hv) as (M & F & B & _ & _).
    assert (H : held v broadcast_rounds c).
    { destruct (comes_all dimensions k dimensions_some some_chunk v c) as (t & L & C); auto.
      exists t. split; auto. unfold broadcast_rounds, outside_rounds. lia. }
    assert (None' : newest (state v broadcast_rounds) = None /\ oldest (state v broadcast_rounds) = None).
    { destruct (pair v) eqn:P; [|unfold members in M; rewrite P in M; tauto].
      assert (E : broadcast_rounds = outside_rounds + 1).
      { unfold broadcast_rounds. unfold pair, second_member, root in P.
        rewrite andb_true_iff, !N.ltb_lt in P. destruct (N.eqb_spec n (corners dimensions)); lia. }
      assert (Q : forall v', coming v' outside_rounds = None).
      { intros v'. destruct (coming v' outside_rounds) eqn:C; auto.
        apply comes_range in C; auto. unfold outside_rounds in C. lia. }
      rewrite E, state_succ. unfold step, idle, going. rewrite !Q. simpl. now rewrite P. }
    destruct None' as [N O].
    destruct (is_member r _ Hr M) as [E|E]; rewrite E; [apply F|apply B]; split; auto;
      rewrite ?N, ?O; discriminate.
  Qed.

  (** ** Ports *)

  Lemma nodup_flat_map (key : N -> N) (f : N -> list transfer) l :
    NoDup l -> (forall v, In v l -> NoDup (map dst (f v))) ->
    (forall v m, In v l -> In m (f v) -> key (dst m) = v) -> NoDup (map dst (flat_map f l)).
  Proof.
    induction l as [|v l IH]; simpl; intros Hl Each Key; [constructor|]. inversion Hl; subst.
    rewrite map_app. apply nodup_app. repeat split; auto.
    intros r Hr Hr'. apply in_map_iff in Hr as (m & <- & Hm), Hr' as (m' & E & Hm').
    apply in_flat_map in Hm' as (v' & Hv' & Hm'). apply Key in Hm, Hm'; auto. congruence.
  Qed.

  Theorem receives_once t : NoDup (map dst (moves t)).
  Proof.
    unfold moves. apply (nodup_flat_map corner_of); [apply range_nodup| |].
    - intros v Hv. apply in_range in Hv. destruct (N.eq_dec v 0) as [->|Hne].
      { rewrite nothing_to_root. constructor. }
      pose proof (members_acting v t) as M. unfold corner_moves.
      destruct (pair v) eqn:P.
      + pose proof (members_apart v _ P M) as Apart. unfold idle, pass.
        destruct (newest (acting v t)), (coming v t), (going v t), (oldest (acting v t)); simpl;
          repeat (constructor; simpl; try tauto); intuition congruence.
      + unfold members in M. rewrite P in M. destruct M as (_ & _ & -> & ->). unfold pass.
        destruct (idle v t), (coming v t); simpl; repeat constructor; auto.
    - intros v m Hv Hm. apply in_range in Hv. destruct (N.eq_dec v 0) as [->|Hne].
      { now rewrite nothing_to_root in Hm. }
      apply (move_dst t v m); auto. lia.
  Qed.

  Lemma same_receiver t m m' : In m (moves t) -> In m' (moves t) -> dst m = dst m' -> m = m'.
  Proof.
    intros Hm Hm' E. pose proof (receives_once t) as D.
    induction (moves t) as [|x l IH]; simpl in *; [easy|]. inversion D as [|? ? Hx Hl]; subst.
    destruct Hm as [->|Hm], Hm' as [->|Hm']; auto; exfalso; apply Hx;
      [rewrite E|rewrite <- E]; now apply in_map.
  Qed.

  (** A corner's members send inside, or the one at the back sends across. *)
  Lemma move_src t v m : 1 <= v < corners dimensions -> In m (corner_moves t v) ->
    (corner_of (src m) = v /\ pair v = true /\
       ((src m = front (acting v t) /\ dst m = back (acting v t)) \/
        (idle v t = true /\ src m = back (acting v t) /\ dst m = front (acting v t)))) \/
    (src m = back (acting (across v t) t) /\ coming v t <> None /\ corner_of (src m) = across v t /\
       dst m = front (acting v t)).
  Proof.
    intros Hv Hm. pose proof (members_acting v t) as M.
    destruct (members_here v _ (proj2 Hv) M) as [CF CB].
    assert (Pair : newest (acting v t) <> None \/ oldest (acting v t) <> None -> pair v = true).
    { unfold members in M. destruct (pair v); auto. destruct M as (_ & _ & -> & ->). tauto. }
    apply in_corner_moves in Hm as [(c & H & ->)|[(I & c & H & ->)|(c & H & ->)]]; simpl.
    - left. repeat split; auto. apply Pair. left. congruence.
    - left. repeat split; auto. apply Pair. right. congruence.
    - right. repeat split; auto; [congruence|].
      apply members_here; [now apply across_corner|apply members_acting].
  Qed.

  Theorem sends_once t : NoDup (map src (moves t)).
  Proof.
    apply nodup_map_on; [|apply (NoDup_map_inv dst), receives_once].
    intros m m' Hm Hm' E. apply (same_receiver t); auto.
    apply in_moves in Hm as (v & Hv & Hm), Hm' as (v' & Hv' & Hm').
    assert (Busy : forall v v', coming v t <> None -> v' = across v t -> idle v' t = false).
    { intros v1 v2 H ->. unfold idle. rewrite going_across.
      destruct (coming (across v1 t) t), (coming v1 t); tauto. }
    pose proof (members_acting v t) as M. pose proof (members_acting v' t) as M'.
    destruct (move_src t v m Hv Hm) as [(C & P & S)|(S & N & C & D)],
             (move_src t v' m' Hv' Hm') as [(C' & P' & S')|(S' & N' & C' & D')].
    - assert (V : v' = v) by congruence. rewrite V in S'.
      pose proof (members_apart v _ P M) as Apart.
      destruct S as [[S D]|(_ & S & D)], S' as [[S' D']|(_ & S' & D')]; congruence.
    - exfalso. assert (V : v = across v' t) by congruence. rewrite (Busy v' v N' V) in S.
      destruct S as [[S _]|[? _]]; [|discriminate]. apply (members_apart v _ P M). congruence.
    - exfalso. assert (V : v' = across v t) by congruence. rewrite (Busy v v' N V) in S'.
      destruct S' as [[S' _]|[? _]]; [|discriminate]. apply (members_apart v' _ P' M'). congruence.
    - assert (v' = v).
      { rewrite <- (across_twice v t), <- (across_twice v' t). congruence. }
      subst v'. congruence.
  Qed.

  (** ** The root *)

  Lemma across_root t : across (beside_root dimensions t) t = 0.
  Proof. now apply partner_zero. Qed.

  Lemma beside_root_here t : 1 <= beside_root dimensions t < corners dimensions.
  Proof. now apply (beside_root_corner dimensions k). Qed.

  Lemma receiver_helper t : receiver t < root.
  Proof. apply (helper_corner _ _ (beside_root_here t)), members_acting. Qed.

  Lemma beside_helper t : beside t < root.
  Proof. apply (helper_corner _ _ (beside_root_here t)), members_acting. Qed.

  (** What the root sends: in every round chunk t, then the last one. *)
  Theorem root_sends t m : In m (moves t) /\ src m = root <->
    t < outside_rounds /\ m = Transfer root (receiver t) (N.min t (k - 1)) Copy.
  Proof.
    split.
    - intros [Hm R]. apply in_moves in Hm as (v & Hv & Hm).
      assert (Zero : corner_of (src m) = 0).
      { rewrite R. unfold corner_of. now rewrite N.eqb_refl. }
      destruct (move_src t v m Hv Hm) as [(C & _)|(S & N & C & D)]; [lia|].
      assert (A : across v t = 0) by congruence.
      assert (V : v = beside_root dimensions t) by now apply partner_zero.
      apply in_corner_moves in Hm as [(c & H & ->)|[(I & c & H & ->)|(c & H & ->)]].
      + exfalso. simpl in *. pose proof (helper_corner v _ Hv (members_acting v t)). lia.
      + exfalso. simpl in *. pose proof (helper_corner v _ Hv (members_acting v t)). lia.
      + simpl in *. pose proof (comes_from_root dimensions k dimensions_some some_chunk v t c H A).
        apply comes_range in H as (_ & _ & L & _); auto. split; [exact L|].
        rewrite A, root_alone. simpl. unfold receiver. now rewrite <- V, H0.
    - intros [L ->]. split; auto. apply in_moves. exists (beside_root dimensions t).
      split; [apply beside_root_here|]. apply in_corner_moves. right. right.
      exists (N.min t (k - 1)). split; [apply root_gives; auto|].
      rewrite across_root, root_alone. reflexivity.
  Qed.

  (** Who is beside the root's receiver sends nothing while the root gives. *)
  Theorem beside_silent t m : t < outside_rounds -> In m (moves t) -> src m <> beside t.
  Proof.
    intros L Hm E. set (b := beside_root dimensions t). pose proof (beside_root_here t) as Hb.
    fold b in Hb. pose proof (members_acting b t) as M.
    assert (Cb : corner_of (beside t) = b) by now apply members_here.
    assert (C0 : coming b t = Some (N.min t (k - 1))) by now apply root_gives.
    apply in_moves in Hm as (v & Hv & Hm).
    destruct (move_src t v m Hv Hm) as [(C & P & S)|(S & N & C & D)].
    - assert (V : v = b) by congruence. rewrite V in S, P.
      assert (I : idle b t = false) by (unfold idle; now rewrite C0). rewrite I in S.
      destruct S as [[S _]|[? _]]; [|discriminate]. apply (members_apart b _ P M).
      rewrite <- S, E. reflexivity.
    - assert (A : across v t = b) by congruence.
      assert (V : v = 0).
      { rewrite <- (across_twice v t), A. apply across_root. }
      lia.
  Qed.

  (** The root's first chunk comes to corner 1 at once. *)
  Lemma first_chunk : coming 1 0 = Some 0.
  Proof.
    pose proof (root_gives dimensions k dimensions_some some_chunk 0) as H.
    unfold beside_root in H. rewrite N.mod_0_l in H by (pose proof dimensions_some; lia).
    rewrite N.pow_0_r in H. rewrite N.min_0_l in H. apply H.
    pose proof dimensions_some. lia.
  Qed.

  (** A chunk is under way only after the root has given it. *)
  Lemma got_late r t c : got r t c -> c < t.
  Proof.
    revert r c. induction t as [t IH] using (well_founded_induction N.lt_wf_0).
    intros r c (t' & m & L & Hm & _ & <-). destruct (N.eq_dec (src m) root) as [R|R].
    - apply (conj Hm) in R. apply root_sends in R as [_ ->]. simpl. lia.
    - apply moves_from in Hm; auto. apply (IH t' L) in Hm. lia.
  Qed.

  (** ** One rank's own moves *)

  Lemma mine r m : takes_part r m = true <-> src m = r \/ dst m = r.
  Proof. unfold takes_part. now rewrite orb_true_iff, !N.eqb_eq. Qed.

  Theorem moves_of_rank r t m : r < n ->
    In m (moves_of r t) <-> In m (moves t) /\ (src m = r \/ dst m = r).
  Proof.
    intros Hr. unfold moves_of. rewrite filter_In, mine, in_app_iff.
    assert (Hc : corner_of r < corners dimensions).
    { destruct (N.eq_dec r root) as [->|]; [unfold corner_of; rewrite N.eqb_refl; pose proof corners_ranks; lia|].
      apply corner_of_helper. unfold root in *. lia. }
    split.
    - intros [Hm Mine]. split; auto. unfold moves. apply in_flat_map.
      destruct Hm as [Hm|Hm]; [exists (corner_of r)|exists (across (corner_of r) t)];
        (split; [apply in_range|exact Hm]); auto. now apply across_corner.
    - intros [Hm Mine]. split; auto. apply in_moves in Hm as (v & Hv & Hm).
      destruct Mine as [<-|<-].
      + destruct (move_src t v m Hv Hm) as [(-> & _)|(_ & _ & -> & _)]; auto.
        rewrite across_twice. auto.
      + destruct (move_dst t v m Hv Hm) as [-> _]. auto.
  Qed.
End Broadcast.
