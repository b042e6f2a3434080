"""OptiReduce behind a DDP model: ``latecomer.ddp.attach(model, algorithm="optireduce")``.

Before a forward pass in training, every ``resync_steps`` steps, parameters are re-synchronized.
Where the optimizer is known, a step that lost too much is not applied: it gets no gradients.
"""

import logging
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.sync import Replicas
from latecomer.runtime.samebits.bits_log import WithBitsLog
from latecomer.runtime.torch_versions import GradBucket
from latecomer.runtime.work import CollectiveWork

logger = logging.getLogger("latecomer")


class Attachment(WithBitsLog):
    """What ``latecomer.ddp.attach`` returns, with the ``engine`` behind the model's gradients.

    ``engine.failure`` is the typed error after a failed backward (autograd itself reports a
    RuntimeError); ``engine.ledger`` has what was lost by step, ``replicas`` the drift.
    """

    def __init__(
        self, engine: OptiReduceEngine, model: DistributedDataParallel, optimizer: Optimizer | None
    ) -> None:
        self.engine = engine
        self.ledger = engine.ledger
        self.is_closed = False
        self.replicas = Replicas(list(model.parameters()), engine.reliable, optimizer)
        self._synced = 0
        self._handles: list[Any] = [model.register_forward_pre_hook(self._before_forward)]
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_update))

    @property
    def runs_natively(self) -> bool:
        """Whether DDP's own all-reduce runs, since this is closed."""
        return self.is_closed

    @property
    def skip_update(self) -> bool:
        """The last step lost more than ``skip_loss``: do not apply it.

        With an ``optimizer`` given to ``attach`` this is seen to; else ask before each step.
        """
        return self.ledger.skip

    def submit(self, bucket: GradBucket) -> CollectiveWork:
        """Start the average of a bucket (the hook calls it)."""
        work = self.engine.submit(bucket.buffer(), average=True, last=bucket.is_last())
        self.engine.source.bucket_submitted(is_last=bucket.is_last())
        return work

    def resync(self) -> float:
        """Average the parameters now; the drift before. Collective, between two steps."""
        return self.replicas.resync()

    def close(self) -> None:
        """Release threads and connections; call it before ``destroy_process_group``.

        A backward pass after it is DDP's own, and ``attach`` may be called again.
        """
        self.is_closed = True
        for handle in self._handles:
            handle.remove()
        self.engine.close()
        self.close_bits_log()

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        step = self.engine.step
        options = self.engine.options
        after = step - options.warmup_steps
        if not options.resync_steps or after <= 0 or after % options.resync_steps:
            return
        # Once, however many forward passes there are before a step's gradients; and not in an
        # evaluation, which a rank may do alone, while this waits for all.
        if step != self._synced and module.training and torch.is_grad_enabled():
            self._synced = step
            logger.info("rank %d: step %d, drift %.2e", self.engine.rank, step, self.resync())

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self.skip_update:
            optimizer.zero_grad()  # the step that begins now finds nothing to apply
