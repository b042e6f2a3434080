(** The checker of programs of thread blocks as an OCaml program: what [proofs/kernel/blocks.ml]
    calls. It stands in a file of its own, since its theories use names that others use, too. *)

From Coq Require Import Extraction ExtrOcamlBasic.
From Latecomer Require Import ThreadBlocks ThreadBlocksCheck.

Extraction Language OCaml.
Extraction "block_checker.ml" decide.
