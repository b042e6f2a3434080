"""A DDP model whose gradients have the same bits, over one engine after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from latecomer.runtime.samebits.gradients import Gradients
from latecomer.runtime.samebits.summing import SameBits, Start
from latecomer.runtime.torch_versions import GradBucket
from latecomer.runtime.work import CollectiveWork


class SameBitsOfModel:
    """What an attachment with ``bits="same"`` has: exponents that outlast a change of the mode.

    Args:
        gradients: of the model.
        make_sums: makes what sums over the engine of the moment (collective).

    Examples:
        On every rank of ``torchrun``, here with two of them:

        >>> import torch, torch.distributed as dist
        >>> from latecomer import ddp
        >>> dist.init_process_group("gloo")
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> attachment = ddp.attach(model, mode="auto", bits="same", contributions=4)
        >>> for microbatch in range(2):  # of this rank
        ...     if microbatch == 0:
        ...         with model.no_sync():
        ...             model(torch.ones(2, 4)).sum().backward()
        ...     else:
        ...         model(torch.ones(2, 4)).sum().backward()
        >>> attachment.same_bits.contributions, attachment.same_bits.repeated  # a SameBitsOfModel
        (4, 1)
        >>> sorted(attachment.same_bits.state_dict())
        ['contributions', 'exponents']
        >>> attachment.close()
        >>> dist.destroy_process_group()
    """

    def __init__(self, gradients: Gradients, make_sums: Callable[[], SameBits]) -> None:
        self._gradients = gradients
        self._make_sums = make_sums
        self._sums = make_sums()
        self._repeated_before = 0

    @property
    def contributions(self) -> int:
        """To each sum, over all ranks."""
        return self._gradients.contributions

    @property
    def repeated(self) -> int:
        """How many sums had a tensor that was summed again; in the first step all are."""
        return self._repeated_before + self._sums.repeated

    def submit(self, bucket: GradBucket, start: Start) -> CollectiveWork:
        """Start the average of a bucket over all contributions; raises as :class:`SameBits`."""
        given, tensors = self._gradients.of_bucket(bucket)
        if not tensors:
            return start(bucket.buffer())
        return self._sums.submit(given, tensors, start, average=True)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold for training to go on with the same bits."""
        return self._gradients.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; on all ranks, between two steps.

        Raises:
            ArgumentError: it is of another model, or for another number of contributions.
        """
        self._gradients.load_state_dict(state)

    def change_engine(self) -> None:
        """There is another engine (collective)."""
        before = self._sums
        self._sums = self._make_sums()
        self._repeated_before += before.repeated
        before.close()

    def close(self) -> None:
        """Release threads and hooks."""
        self._sums.close()
        self._gradients.close()
