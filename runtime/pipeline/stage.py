"""A stage whose messages take our links, not the process group's calls; and its gradients.

PyTorch's pipeline runtime asks a stage for lists of send and receive operations, which it posts and
waits for. This stage returns empty lists: a send is handed to the transport at once, and what a
pass needs is taken from the mailbox when it runs. The passes themselves are PyTorch's own code.
Relies on private parts of its stage; those that differ between versions are in
``latecomer.runtime.torch_versions``.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.host import host
from latecomer.runtime.pipeline.staging import Tensors
from latecomer.runtime.pipeline.timing import StepRecorder
from latecomer.runtime.pipeline.transport import Transport
from latecomer.runtime.torch_versions import (
    PipelineAction,
    PipelineContext,
    PipelineScheduleRuntime,
    PipelineStageBase,
    announce_inputs,
    no_groups_of_its_own,
    outputs_of,
    replace_reduction,
    skip_validation,
    take_input_gradients,
)
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import TensorError
from latecomer.verify.pipeline import Action


class DelegatedStage(PipelineStageBase):
    """One stage of a pipeline; ``about`` is what PyTorch's own takes, in order."""

    def __init__(self, transport: Transport, recorder: StepRecorder, *about: Any) -> None:
        with no_groups_of_its_own():
            super().__init__(*about)
        skip_validation(self)  # messages describe themselves
        self._transport = transport
        self._recorder = recorder
        self._local: dict[Action, Tensors] = {}  # handed over by a stage on the same rank
        self._inputs: dict[int, tuple[Any, ...]] = {}  # by microbatch, until their gradients go

    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: Any = None, has_backward: bool = False
    ) -> None:
        self.args_recv_info = dict.fromkeys(range(num_microbatches), ())
        self.act_send_info = {}
        if self.is_first:
            announce_inputs(self, len(args or ()))

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> None:
        self.chunks = num_microbatches

    def _nothing(self, *_: Any, **__: Any) -> Any:
        """To be posted, or to be known beforehand: the connections are read at any time."""
        return []

    get_fwd_recv_ops = get_bwd_recv_ops = _nothing
    _create_grad_recv_info = _get_init_p2p_neighbors_ops = _nothing

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Hand the activation over; nothing to wait for."""
        outputs = _dense(outputs_of(self, fwd_chunk_id))
        self._transport.send(Action(self.stage_index + 1, "RECV_F", fwd_chunk_id), outputs)
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Hand the gradient over; nothing to wait for."""
        gradients = self.get_local_bwd_output(bwd_chunk_id)
        if not self.is_first:
            self._transport.send(Action(self.stage_index - 1, "RECV_B", bwd_chunk_id), gradients)
        return []

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Take the outputs of a stage on the same rank."""
        several = isinstance(prev_stage_outputs, list | tuple)
        outputs = tuple(prev_stage_outputs if several else [prev_stage_outputs])
        self._local[Action(self.stage_index, "RECV_F", mb_index)] = _dense(outputs)

    def get_local_bwd_output(self, mb_index: int) -> tuple[torch.Tensor | None, ...]:
        """The gradients of this stage's inputs; zeros where an input had no part in the output."""
        inputs = self._inputs.pop(mb_index)
        gradients = take_input_gradients(self, mb_index, len(inputs))
        return tuple(
            torch.zeros_like(value) if gradient is None and value.requires_grad else gradient
            for value, gradient in zip(inputs, gradients, strict=True)
        )

    def set_local_bwd_input(
        self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int
    ) -> None:
        """Take the gradients of a stage on the same rank."""
        self._local[Action(self.stage_index, "RECV_B", mb_index)] = next_stage_bwd_outputs

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[torch.Tensor, ...]:
        tensors, flags = self._receive("RECV_F", fwd_chunk_id)
        track = self.has_backward and torch.is_grad_enabled()
        inputs = tuple(
            tensor.detach().requires_grad_(flag and track)
            for tensor, flag in zip(tensors, flags, strict=True)
            if tensor is not None
        )
        announce_inputs(self, len(inputs))
        self._inputs[fwd_chunk_id] = inputs
        return inputs

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[torch.Tensor | None, ...]:
        return tuple(self._receive("RECV_B", bwd_chunk_id)[0])

    def _receive(self, kind: Any, microbatch: int) -> tuple[Tensors, tuple[bool, ...]]:
        """The tensors of a message, and which of them tracked gradients."""
        receive = Action(self.stage_index, kind, microbatch)
        transport = self._transport
        local = self._local.pop(receive, None)
        if local is not None:
            return local, tuple(t is not None and t.requires_grad for t in local)
        message, waited = transport.mailbox.take(receive)
        self._recorder.record.transits.append(message.transit)
        tensors = transport.staging.use(message.staged)
        if waited:
            self._recorder.restart()
        return tensors, message.requires_grad

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """F."""
        with self._timed("F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """B, or I where it is split."""
        with self._timed("B" if full_backward else "I", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """W."""
        with self._timed("W", bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    @contextlib.contextmanager
    def _timed(self, kind: Any, microbatch: int) -> Iterator[None]:
        with self._recorder.timed(Action(self.stage_index, kind, microbatch)):
            yield
        self._transport.mailbox.moved_s = host.monotonic()

    def clear_runtime_states(self) -> None:
        """Forget the last step."""
        super().clear_runtime_states()
        self._local.clear()
        self._inputs.clear()


def _dense(outputs: tuple[Any, ...]) -> Tensors:
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            kind = type(output).__name__
            raise TensorError(f"a stage returns {kind}; must return a tensor or several")
    return outputs


class Gradients:
    """What REDUCE_GRAD does on this rank, which may have ``replicas`` in other pipelines.

    PyTorch's own action divides by the number of microbatches; with replicas the gradients are then
    averaged over all pipelines by an executor, as one flat tensor per dtype. A DDP wrapper can't do
    that: the split backward uses ``autograd.grad``, which fires none of its hooks. Replicas must
    submit in the same order: when the last stage of a rank is done, lowest stage first.
    """

    def __init__(
        self,
        modules: dict[int, torch.nn.Module],
        replicas: Executor | None,
        runtime: PipelineScheduleRuntime,
    ) -> None:
        self._modules = modules
        self._reduced = set[int]()
        self._flying: list[tuple[CollectiveWork, list[torch.Tensor]]] = []
        if replicas is not None:
            replace_reduction(runtime, partial(self._reduce, replicas))

    def wait(self) -> None:
        """Until all averages are in place; RankFailure if a replica is dead or silent."""
        for work, gradients in self._flying:
            means = torch.split(work.wait(), [gradient.numel() for gradient in gradients])
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean.view_as(gradient))
        self._flying.clear()
        self._reduced.clear()

    def _reduce(self, replicas: Executor, action: PipelineAction, ctx: PipelineContext) -> None:
        runtime: Any = ctx.schedule_ref
        stage = next(s for s in runtime._stages if s.stage_index == action.stage_index)
        stage.perform_reduce_grad(runtime._n_microbatches if runtime.scale_grads else 1)
        self._reduced.add(action.stage_index)
        if self._reduced != set(self._modules):
            return
        for module in self._modules.values():
            by_dtype = defaultdict(list)
            for parameter in module.parameters():
                if parameter.requires_grad:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    by_dtype[parameter.dtype].append(parameter.grad)
            for gradients in by_dtype.values():
                flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
                self._flying.append((replicas.submit(flat, average=True), gradients))
