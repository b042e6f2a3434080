"""A DDP model's gradients: each parameter's exponents, and each microbatch's own contribution.

With gradient accumulation DDP would add up a rank's microbatches as floats, and the bits would
depend on which rank had which. So what a pass within ``no_sync`` leaves in a parameter's ``grad``
is taken out of it and kept, until the pass that reduces; then each is converted by itself, and
they are added as integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from latecomer.runtime.samebits.contributions import Contributions, TensorExponents
from latecomer.runtime.torch_versions import GradBucket, backward_number
from latecomer.verify.errors import ArgumentError


def names_of_parameters(model: DistributedDataParallel) -> WeakTensorKeyDictionary:
    """The name of each parameter of the wrapped model, which is not kept alive."""
    names: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
    for name, parameter in model.module.named_parameters():
        names[parameter] = name
    return names


class Gradients:
    """The gradients of a model that is wrapped in DDP.

    Args:
        model: is not kept alive.
        contributions: to each sum, over all ranks.
        by_microbatch: whether each pass within ``no_sync`` is a contribution of its own; else a
            rank's gradients are one, however many passes it takes.
    """

    def __init__(
        self, model: DistributedDataParallel, contributions: int, *, by_microbatch: bool
    ) -> None:
        self.contributions = contributions
        self.device = next(model.parameters()).device
        self._model = ref(model)
        self._names = names_of_parameters(model)
        self._exponents: dict[str, TensorExponents] = {}
        self._kept: dict[str, list[torch.Tensor]] = {}  # by parameter, of the passes so far
        self._passes: set[int] = set()  # the passes that were kept
        self._hooks: list[Any] = []
        for parameter in model.module.parameters():
            if by_microbatch and parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(self._accumulated)
                self._hooks.append(hook)

    def of_bucket(self, bucket: GradBucket) -> tuple[Contributions, list[TensorExponents]]:
        """What this rank contributes to a bucket, and its tensors' exponents; takes what is kept.

        Tensors without elements are left out.
        """
        flat = bucket.buffer()
        count = len(self._passes) + 1
        sizes: list[int] = []
        tensors: list[TensorExponents] = []
        others: dict[int, list[torch.Tensor]] = {}
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter.numel() == 0:
                continue
            name = self._names[parameter]
            kept = self._kept.pop(name, None)
            if kept is not None:
                others[len(sizes)] = [_as_in_bucket(each, gradient) for each in kept]
            sizes.append(parameter.numel())
            tensors.append(self._exponents_of(name, parameter.numel(), flat.dtype))
        if bucket.is_last():
            self._passes.clear()
        return Contributions(flat, tuple(sizes), count, others), tensors

    def state_dict(self) -> dict[str, Any]:
        """The exponents; a run that goes on from a checkpoint has the same bits only with them."""
        exponents = {
            name: torch.from_numpy(each.values.copy()) for name, each in self._exponents.items()
        }
        return {"contributions": self.contributions, "exponents": exponents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the exponents of a checkpoint; on all ranks, between two steps.

        Raises:
            ArgumentError: they are of another model, or for another number of contributions.
        """
        if state["contributions"] != self.contributions:
            requirement = f"must be {self.contributions}, as they are now"
            raise ArgumentError("contributions", state["contributions"], requirement)
        model = self._model()
        assert model is not None
        parameters = dict(model.module.named_parameters())
        loaded = {}
        for name, values in state["exponents"].items():
            if name not in parameters:
                raise ArgumentError("exponents", name, "must be of a parameter of the model")
            parameter = parameters[name]
            exponents = TensorExponents(parameter.numel(), parameter.dtype, self.contributions)
            if exponents.values.shape != tuple(values.shape):
                requirement = f"must have {len(exponents.values)} blocks for {name}"
                raise ArgumentError("exponents", tuple(values.shape), requirement)
            exponents.values = values.cpu().numpy().copy()
            loaded[name] = exponents
        self._exponents = loaded

    def close(self) -> None:
        """Let microbatches accumulate as they would without this."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._kept.clear()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """A pass has left its gradient in ``parameter.grad``: keep it, unless DDP reduces it."""
        model = self._model()
        if model is None or model.require_backward_grad_sync or parameter.grad is None:
            return
        self._passes.add(backward_number())
        kept = self._kept.setdefault(self._names[parameter], [])
        kept.append(parameter.grad.clone())
        parameter.grad.zero_()  # without one DDP would take the parameter for unused

    def _exponents_of(self, name: str, elements: int, dtype: torch.dtype) -> TensorExponents:
        if name not in self._exponents:
            self._exponents[name] = TensorExponents(elements, dtype, self.contributions)
        return self._exponents[name]


def _as_in_bucket(gradient: torch.Tensor, in_bucket: torch.Tensor) -> torch.Tensor:
    """A flat tensor with the elements of ``gradient`` in the order that they have in the bucket."""
    same_order = torch.empty_strided(
        in_bucket.shape, in_bucket.stride(), dtype=in_bucket.dtype, device=in_bucket.device
    )
    same_order.copy_(gradient)
    return same_order.as_strided((in_bucket.numel(),), (1,))
