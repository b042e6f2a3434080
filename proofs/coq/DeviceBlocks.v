(** Blocks of a kernel share nothing: each has its own slice of every chunk, and its own staging.

    Chunk c of a buffer of [numel] elements is the elements from [c * size] on, and block b's slice
    of it those from [b * part] on; a buffer that is moved in pieces has the chunks of all pieces.
    Every element is in one slice ([slices_partition]); places of two different sets, slots or
    blocks are different ([staging_apart], [flags_apart]). So each block runs as if it were alone
    ([each_block_alone]): what is shown of one program (DeviceOrder.v) holds for all blocks. *)

From Coq Require Import Arith Lia.

Lemma one_quotient d a b x : a * d <= x < a * d + d -> b * d <= x < b * d + d -> a = b.
Proof.
  intros A B. destruct (Nat.lt_total a b) as [L|[|L]]; auto; exfalso.
  - pose proof (Nat.mul_le_mono_r (S a) b d L). simpl in *. lia.
  - pose proof (Nat.mul_le_mono_r (S b) a d L). simpl in *. lia.
Qed.

Section Slices.
  Variables numel size part chunks blocks : nat.
  Hypothesis all_elements : numel <= chunks * size.
  Hypothesis all_slices : size <= blocks * part.

  Definition in_slice (c b i : nat) : Prop :=
    c * size + b * part <= i /\ i < c * size + b * part + part /\ i < c * size + size /\ i < numel.

  Theorem slices_partition i : i < numel -> exists c b, c < chunks /\ b < blocks /\
    in_slice c b i /\ forall c' b', in_slice c' b' i -> c' = c /\ b' = b.
  Proof.
    intros L.
    assert (S : size <> 0) by (intros E; rewrite E in all_elements; lia).
    assert (P : part <> 0) by (intros E; rewrite E in all_slices; lia).
    pose proof (Nat.div_mod i size S) as D. pose proof (Nat.mod_upper_bound i size S) as M.
    set (c := i / size) in *. set (j := i mod size) in *.
    pose proof (Nat.div_mod j part P) as D'. pose proof (Nat.mod_upper_bound j part P) as M'.
    set (b := j / part) in *.
    rewrite (Nat.mul_comm size c) in D. rewrite (Nat.mul_comm part b) in D'.
    exists c, b. split; [|split; [|split]].
    - apply (Nat.mul_lt_mono_pos_r size); lia.
    - apply (Nat.mul_lt_mono_pos_r part); lia.
    - unfold in_slice. lia.
    - intros c' b' (A & B & C & _). assert (c' = c) as -> by (apply (one_quotient size _ _ i); lia).
      split; auto. apply (one_quotient part _ _ j); lia.
  Qed.
End Slices.

Section Staging.
  (** Staging is an area for each set and block, in which slots of [part] elements stand in a row;
      operations may cut an area in different ways, but it is one block's. *)
  Variables blocks slots area part : nat.
  Hypothesis all_slots : slots * part <= area.

  Definition staged (set block slot offset : nat) : nat :=
    (set * blocks + block) * area + slot * part + offset.

  Definition flag (set slot block : nat) : nat := (set * slots + slot) * blocks + block.

  Theorem staging_apart set block slot offset set' block' slot' offset' :
    block < blocks -> block' < blocks -> slot < slots -> slot' < slots ->
    offset < part -> offset' < part ->
    staged set block slot offset = staged set' block' slot' offset' ->
    set = set' /\ block = block' /\ slot = slot' /\ offset = offset'.
  Proof.
    unfold staged. intros B B' L L' O O' E.
    assert (R : forall s o, s < slots -> o < part -> s * part + o < area).
    { intros s o Ls Lo. pose proof (Nat.mul_le_mono_r (S s) slots part Ls). simpl in *. lia. }
    pose proof (R slot offset L O). pose proof (R slot' offset' L' O').
    assert (E1 : set * blocks + block = set' * blocks + block').
    { apply (one_quotient area _ _ ((set * blocks + block) * area + slot * part + offset)); lia. }
    rewrite E1 in E.
    assert (E2 : slot = slot') by (apply (one_quotient part _ _ (slot * part + offset)); lia).
    assert (E3 : set = set') by (apply (one_quotient blocks _ _ (set * blocks + block)); lia).
    subst. lia.
  Qed.

  Theorem flags_apart set slot block set' slot' block' :
    slot < slots -> slot' < slots -> block < blocks -> block' < blocks ->
    flag set slot block = flag set' slot' block' -> set = set' /\ slot = slot' /\ block = block'.
  Proof.
    unfold flag. intros A A' B B' E.
    assert (E1 : set * slots + slot = set' * slots + slot').
    { apply (one_quotient blocks _ _ ((set * slots + slot) * blocks + block)); lia. }
    assert (E2 : set = set') by (apply (one_quotient slots _ _ (set * slots + slot)); lia).
    subst. lia.
  Qed.
End Staging.

Section Blocks.
  (** What one block may do, in memory of its own. *)
  Variables (state : Type) (initial : nat -> state) (goes : nat -> state -> state -> Prop).

  Inductive reached_alone (b : nat) : state -> Prop :=
  | Started_alone : reached_alone b (initial b)
  | Went_alone s t : reached_alone b s -> goes b s t -> reached_alone b t.

  (** All blocks together: in every step, one of them goes on. *)
  Inductive reached_together : (nat -> state) -> Prop :=
  | Started_together : reached_together initial
  | Went_together s b t : reached_together s -> goes b (s b) t ->
      reached_together (fun c => if c =? b then t else s c).

  Theorem each_block_alone s : reached_together s -> forall b, reached_alone b (s b).
  Proof.
    induction 1 as [|s b t R IH G]; intros c; [constructor|].
    destruct (Nat.eqb_spec c b) as [->|]; auto. now apply Went_alone with (s b).
  Qed.
End Blocks.
