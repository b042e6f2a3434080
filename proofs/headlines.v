(** What the theorems of docs/theorems.md rest on: [make proofs] compiles this file and requires
    "Closed under the global context" of each, that is, no axiom and nothing left out. *)

From Latecomer Require Check Certificate ExactlyOnce SameBits Structure Programs Waiting Knowledge
  Spread Volume Bounds Ring Transpose ClosedForm Renaming Refutation Formula Impossible PipelineRun Pipeline
  PipelineBound.

Print Assumptions Check.check_sound.
Print Assumptions Check.check_complete.
Print Assumptions Check.check_exhibits.
Print Assumptions Check.check_optimal.
Print Assumptions Check.check_bound.
Print Assumptions Certificate.certify.
Print Assumptions Certificate.certify_optimal.
Print Assumptions ExactlyOnce.correct_iff.
Print Assumptions ExactlyOnce.completes_iff.
Print Assumptions SameBits.same_bits_iff.
Print Assumptions Structure.hazard_free_order_irrelevant.
Print Assumptions Programs.never_stuck.
Print Assumptions Programs.execution_ends.
Print Assumptions Programs.same_result.
Print Assumptions Programs.asynchronous_all_reduce.
Print Assumptions Waiting.acyclic_never_stuck.
Print Assumptions Waiting.ends.
Print Assumptions Knowledge.completion_lower_bound.
Print Assumptions Knowledge.knowledge_bound_holds.
Print Assumptions Spread.spread_bound_holds.
Print Assumptions Spread.bounds_in_pairs.
Print Assumptions Volume.volume_bound_holds.
Print Assumptions Bounds.lower_bound_holds.
Print Assumptions Bounds.at_the_bound_optimal.
Print Assumptions Bounds.idle_round_not_optimal.
Print Assumptions Ring.ring_correct.
Print Assumptions Ring.ring_rounds.
Print Assumptions Transpose.transpose_correct.
Print Assumptions Transpose.transpose_same_bits.
Print Assumptions Transpose.one_loss_to_owner.
Print Assumptions Transpose.one_loss_from_owner.
Print Assumptions Transpose.direct_correct.
Print Assumptions Transpose.one_by_one_correct.
Print Assumptions ClosedForm.right.
Print Assumptions ClosedForm.optimal.
Print Assumptions ClosedForm.waiting_length.
Print Assumptions ClosedForm.completion_completes.
Print Assumptions ClosedForm.completion_optimal.
Print Assumptions ClosedForm.in_pairs.
Print Assumptions ClosedForm.own_program.
Print Assumptions ClosedForm.programs_together.
Print Assumptions Renaming.renamed_right.
Print Assumptions Refutation.refutation_sound.
Print Assumptions Formula.schedule_solves.
Print Assumptions Impossible.refuted_question_sound.
Print Assumptions Impossible.refuted_shorter_optimal.
Print Assumptions Impossible.certified_optimal_sound.
Print Assumptions PipelineRun.never_stuck.
Print Assumptions PipelineRun.step_by_step.
Print Assumptions PipelineRun.earliest.
Print Assumptions PipelineRun.realised.
Print Assumptions PipelineRun.makespan_least.
Print Assumptions Pipeline.check_pipeline_sound.
Print Assumptions Pipeline.check_pipeline_complete.
Print Assumptions PipelineBound.makespan_bound_holds.
