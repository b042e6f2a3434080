(** The checkers as an OCaml program: what [proofs/kernel/*.ml] calls.

    [ExtrOcamlBasic] maps bool, option, list, pairs and unit to OCaml's own; everything else, numbers
    included, is extracted as it is defined. *)

From Coq Require Import Extraction ExtrOcamlBasic.
From Latecomer Require Import Schedule Check Ring Transpose Hypercube Formula Impossible
  Pipeline PipelineBound PipelineCertificate PipelineOptimal.

Extraction Language OCaml.
Extraction "checker.ml" check accepted ring direct one_by_one hypercube
  formula_of certified_optimal check_pipeline places makespan_bound
  certified_makespan.
