"""OptiReduce as a DDP communication hook.

    from runtime import ddp
    attachment = ddp.attach(model, algorithm="optireduce", optimizer=optimizer)

The hook hands each gradient bucket to the engine and returns at once. Before a forward pass in
training, every ``resync_steps`` steps, parameters are re-synchronized. A step that lost too much is
not applied where the optimizer is known: its gradients are taken away before it steps.
"""

import logging
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from runtime.optireduce.engine import Engine
from runtime.optireduce.loss import LossStats
from runtime.optireduce.options import Options
from runtime.optireduce.sync import Replicas
from runtime.torch_versions import GradBucket, PrefixStore, store_of

logger = logging.getLogger("latecomer")
_attached = 0


class Attachment:
    """What :func:`attach` returns.

    Attributes:
        engine: behind the model's gradients; ``engine.failure`` is the typed error after a failed
            backward (autograd itself reports a RuntimeError).
        replicas: drift and re-synchronization.
    """

    def __init__(self, engine: Engine, replicas: Replicas) -> None:
        self.engine, self.replicas = engine, replicas
        self._synced = 0
        self._handles: list[Any] = []

    @property
    def ledger(self) -> LossStats:
        """What was lost, step by step."""
        return self.engine.ledger

    @property
    def skip_update(self) -> bool:
        """The last step lost more than ``skip_loss``: do not apply it.

        With an ``optimizer`` given to :func:`attach` this is seen to; else ask before each step.
        """
        return self.ledger.skip

    def resync(self) -> float:
        """Average the parameters now; the drift before. Collective, between two steps."""
        return self.replicas.resync()

    def close(self) -> None:
        """Release threads and connections; call it before ``destroy_process_group``."""
        for handle in self._handles:
            handle.remove()
        self.engine.close()

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        step, options = self.engine.step, self.engine.options
        after = step - options.warmup_steps
        if not options.resync_steps or after <= 0 or after % options.resync_steps:
            return
        if step != self._synced and module.training and torch.is_grad_enabled():
            self._synced = step
            drift = self.resync()
            logger.info("rank %d: step %d, drift %.2e", self.engine.rank, step, drift)

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.skip_update:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None


def attach(
    model: DistributedDataParallel,
    *,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    timeout_s: float = 300.0,
) -> Attachment:
    """Let ``model`` reduce its gradients by OptiReduce. Collective: all ranks call it.

    Args:
        model: wrapped in DDP on the CPU, with no communication hook yet; dense gradients.
        options: the same on all ranks.
        optimizer: the model's; steps that lost too much are then skipped, and its state is
            re-synchronized with the parameters.
        timeout_s: for starting, the warm-up and re-synchronizations, which wait for all ranks.

    Raises:
        ArgumentError, RankFailure: see :class:`Engine`.
    """
    global _attached  # noqa: PLW0603  (all ranks count alike: it names the connections)
    group = model.process_group
    prefix = f"latecomer/optireduce/{_attached}"
    _attached += 1
    store = PrefixStore(prefix, store_of(group))
    engine = Engine(store, group.rank(), group.size(), options=options, timeout_s=timeout_s)
    replicas = Replicas(list(model.parameters()), engine.reliable, optimizer)
    attachment = Attachment(engine, replicas)

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return engine.submit(bucket.buffer(), average=True, last=bucket.is_last()).future()

    model.register_comm_hook(None, hook)
    attachment._handles.append(model.register_forward_pre_hook(attachment._before_forward))
    if optimizer is not None:
        attachment._handles.append(optimizer.register_step_pre_hook(attachment._before_update))
    return attachment
