"""A communication hook for DDP under torchft's Manager that does not hold up the backward pass.

torchft's own hook waits for each bucket before the next one is computed. This one hands the bucket
over and returns a future, so that buckets travel while backward goes on. The average is over the
replicas that take part in the step; one that heals, or is a spare, contributes zeros and gets the
average like all others. An error goes to the Manager, which does not commit the step then.
"""

from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.futures import Future
from torch.nn import parallel
from torchft.process_group import ProcessGroupDummy

from latecomer.runtime.torch_versions import AllreduceOptions, GradBucket
from latecomer.runtime.torchft.versions import process_group_of


def ddp_hook(manager: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Start the average of a bucket: ``model.register_comm_hook(manager, ddp_hook)``.

    Gradients are divided by the number of participants before they are summed, as DDP does, so that
    small formats do not overflow. ``manager`` is a ``torchft.Manager``; with any process group of
    torchft's the buckets overlap, with :class:`latecomer.torchft.ProcessGroup` they absorb
    stragglers as well.

    Examples:
        On every replica; ``latecomer.torchft.DistributedDataParallel(manager, net)`` does the same:

        >>> import torch
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> from torchft.process_group import ProcessGroupDummy
        >>> from latecomer.torchft import ddp_hook
        >>> manager = None  # in training a torchft.Manager
        >>> net = torch.nn.Linear(4, 1)
        >>> alone = ProcessGroupDummy(0, 1)  # since parameters are not compared
        >>> model = DistributedDataParallel(
        ...     net, process_group=alone, find_unused_parameters=True
        ... )
        >>> model.register_comm_hook(manager, ddp_hook)
    """
    gradients = bucket.buffer()
    if manager.errored():
        return _done(gradients)
    try:
        participants = manager.num_participants()  # which waits for the quorum,
        if manager.errored():  # whose replicas may have failed to connect
            return _done(gradients)
        if manager.is_participating():
            gradients.div_(participants)
        else:
            gradients.zero_()

        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        work = process_group_of(manager).allreduce([gradients], options)
    except Exception as error:
        manager.report_error(error)
        return _done(gradients)
    average: Future[torch.Tensor] = manager.wrap_future(_first(work.get_future()), gradients)
    return average


class DistributedDataParallel(parallel.DistributedDataParallel):
    """DDP among the replicas of a Manager: torchft's own, but for its hook, which is ours.

    Args:
        manager: a ``torchft.Manager``, which also sees to equal parameters at the start.
        module: the model.
        options: of ``torch.nn.parallel.DistributedDataParallel``, but for ``process_group`` and
            ``find_unused_parameters``: buckets stay as they are after the first step, since those
            of a replica that comes back would differ from the others'.
    """

    def __init__(self, manager: Any, module: torch.nn.Module, **options: Any) -> None:
        super().__init__(
            module,
            process_group=ProcessGroupDummy(0, 1),  # parameters are not compared
            find_unused_parameters=True,
            **options,
        )
        self.register_comm_hook(manager, ddp_hook)


def _done(tensor: torch.Tensor) -> Future[torch.Tensor]:
    """A future that is complete."""
    future: Future[torch.Tensor] = Future()
    future.set_result(tensor)
    return future


def _first(tensors: Future[list[torch.Tensor]]) -> Future[torch.Tensor]:
    """A future of the first tensor, with an error's own type: ``then`` would lose it."""
    first: Future[torch.Tensor] = Future()

    def pass_on(complete: Future[list[torch.Tensor]]) -> None:
        try:
            first.set_result(complete.value()[0])
        except Exception as error:
            first.set_exception(error)  # type: ignore[arg-type]

    tensors.add_done_callback(pass_on)
    return first
