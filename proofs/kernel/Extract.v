(** The checkers as an OCaml program: what [proofs/kernel/*.ml] calls.

    [ExtrOcamlBasic] maps bool, option, list, pairs and unit to OCaml's own; everything else, numbers
    included, is extracted as it is defined. *)

From Coq Require Import Extraction ExtrOcamlBasic.
From Latecomer Require Import Schedule Check Ring Transpose ClosedForm Formula Impossible Arrivals
  Pipeline PipelineBound PipelineCertificate PipelineOptimal DeviceCheck.

Extraction Language OCaml.
Extraction "checker.ml" check accepted all_rounds ring_schedule transpose
  closed_form waiting_of completion_of formula_of certified_optimal arrivals_bound
  optimal_for_arrivals check_pipeline places makespan_bound certified_makespan
  decide_device device_accepted.
