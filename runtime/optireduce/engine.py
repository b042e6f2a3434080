"""The engine: AllReduce by transpose over UBT, several operations in flight.

The first ``reliable_steps`` run over TCP (``reliable``), then UBT begins (``carrier``). Before step
``warmup_steps``, and every ``resync_steps`` after it, the ranks hold a council, which sets the
bound t_B. From its entry an operation takes at most ``absence_s + 2 t_B`` and the time for
computing. Whatever ends the engine ends every operation of it, present and future, with the same
error.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import torch

from runtime.health.diagnosis import RankStatus
from runtime.health.native_work import NativeWaits
from runtime.health.old_protocol import HealthProtocol
from runtime.network.address import own_address
from runtime.network.control_channel import ControlChannel
from runtime.network.store_exchange import StoreExchange
from runtime.optireduce.bucket import Bucket
from runtime.optireduce.hadamard import FLOATS, operation_seed
from runtime.optireduce.loss import LossStats, StepRecord
from runtime.optireduce.options import Options
from runtime.optireduce.recorder import EngineRecorder
from runtime.optireduce.reliable import Reliable
from runtime.optireduce.rendezvous import meet
from runtime.optireduce.sync import SyncPoint
from runtime.optireduce.udp.codec import Codec
from runtime.optireduce.udp.socket import UdpSocket
from runtime.optireduce.udp.workers import BucketWorkers
from runtime.optireduce.watch import CONFIRM_SHARE, Watch
from runtime.torch_versions import PrefixStore, Store
from runtime.work import AllReduceWork
from verify.errors import ArgumentError, LatecomerError, TensorError

logger = logging.getLogger("latecomer")
SUSPECT_S = 0.5
"""A rank that is so late for an operation is asked whether it is alive."""


class Engine:
    """OptiReduce on a group of ranks.

    Args:
        store: for connecting; every rank of the group, and nothing else, uses it under the same
            prefix.
        rank, size: this rank and the number of ranks, at least 2.
        options: the same on all ranks.
        timeout_s: for starting, the warm-up and councils, which wait for all ranks.
        native_waits: see :class:`runtime.Executor`.

    Attributes:
        ledger: what was lost, step by step.
        council: what the ranks have decided.
        reliable: TAR over TCP among the same ranks.
        failure: why the engine ended, if it did: over UBT or over TCP.
        source: what it tells to ``runtime.watch``.

    Raises:
        RankFailure: ranks that did not join within ``timeout_s``.
        ArgumentError: options that differ between ranks, or a group of one.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        options: Options | None = None,
        timeout_s: float = 300.0,
        native_waits: NativeWaits | None = None,
    ) -> None:
        if size < 2:
            raise ArgumentError("size", size, "OptiReduce needs at least 2 ranks")
        self.rank, self.size = rank, size
        self.options = options or Options()
        self.step = 0
        self.failure: LatecomerError | None = None
        self.council = SyncPoint(self.options)
        self.ledger = LossStats(self.options, rank)
        self._bucket = self._entered = 0
        self._record = StepRecord(0)
        self._open: dict[int, AllReduceWork] = {}
        self._lock = threading.Lock()
        with contextlib.ExitStack() as started:  # closed if the start fails
            self._channel = UdpSocket(self.options, own_address(store))
            started.callback(self._channel.close)
            place, address = PrefixStore("ubt", store), self._channel.address
            self._meeting = meet(place, rank, size, address, self.options, timeout_s)
            self._channel.connect(self._meeting.addresses)
            self._datagrams = ControlChannel(
                StoreExchange(PrefixStore("datagrams", store), rank, size, timeout_s)
            )
            started.callback(self._datagrams.close)
            self._board = HealthProtocol(
                self._datagrams, position=self._position, alarmed=self._alarmed
            )
            self.reliable = Reliable(
                PrefixStore("reliable", store),
                rank,
                size,
                timeout_s,
                native_waits,
                failed=self._reliable_failed,
            )
            started.pop_all()
        group = StoreExchange(store, rank, size, timeout_s)
        self.source = EngineRecorder(group.under("source"), self._datagrams, self.ledger)
        self._watch: Watch | None = None
        self._reliable_steps = min(self.options.reliable_steps, self.options.warmup_steps)
        self._carrier = None if self._reliable_steps else self._begin()

    @property
    def how(self) -> str:
        """What runs, and how, for reports."""
        if self._carrier is None:
            return "TAR over TCP (the first steps of the warm-up)"
        return f"TAR over {self._channel.how}; t_B {self.council.bound_s * 1e3:.1f} ms"

    def submit(
        self, tensor: torch.Tensor, *, average: bool = False, last: bool = True
    ) -> AllReduceWork:
        """Start the sum or average of ``tensor`` over all ranks, in place; returns at once.

        All ranks must submit tensors of equal size and dtype in the same order. Before some steps
        (the end of the warm-up, every ``resync_steps``) the first one waits for a council.

        Args:
            tensor: dense, contiguous, floating point, on the CPU.
            last: the last one of its step.

        Raises:
            TensorError: a tensor that can't be carried.
            RankFailure, LossExceeded: the engine has failed before.
        """
        self._require(tensor)
        if self.failure is not None:
            raise self.failure
        if self._bucket == 0:
            self._between_steps()
        self.source.entered()
        step, bucket = self.step, self._bucket
        self.step, self._bucket = (step + 1, 0) if last else (step, bucket + 1)
        record = self._record
        if last:
            self._record = StepRecord(step + 1)
        if self._carrier is None:
            self.ledger.reliable += 1
            return self.source.reliable(self.reliable.submit(tensor, average=average))
        seed = self._meeting.session >> 1
        flight = Bucket(
            AllReduceWork(self._entered, tensor, average, time.monotonic()),
            step,
            bucket,
            record,
            operation_seed(seed, step, bucket) if self.council.hadamard else None,
        )
        self._entered += 1
        record.submitted, record.sealed = bucket + 1, last
        with self._lock:
            if self.failure is None:
                self._open[flight.operation.number] = flight.operation
        if flight.operation.number not in self._open:
            flight.operation.settle(self.failure)
            return flight.operation
        self._carrier.submit(flight)
        return flight.operation

    def fail(self, error: LatecomerError) -> None:
        """End the engine: all operations, present and future, raise ``error``."""
        with self._lock:
            if self.failure is None:
                self.failure = error
            left, self._open = list(self._open.values()), {}
        for operation in left:
            operation.settle(self.failure)

    def find_silent(self, noticed: str) -> LatecomerError | None:
        """Ask all ranks for a sign of life; fail, here and everywhere, if some give none."""
        failure = self.reliable.executor.find_silent(noticed)
        if failure is not None:
            self.fail(failure)
        return failure

    @property
    def timeout_s(self) -> float:
        """For councils and what else waits for all ranks; may be changed, on all ranks."""
        return self.reliable.executor.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.reliable.executor.timeout_s = timeout_s

    def close(self) -> None:
        """Release threads and connections."""
        self.source.close()
        if self._watch is not None:
            self._watch.close()
        if self._carrier is not None:
            self._carrier.close()
        else:
            self._channel.close()
        self.reliable.close()
        self._datagrams.close()

    def _require(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise TensorError(f"the tensor is on {tensor.device}, OptiReduce carries CPU tensors")
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            raise TensorError("the tensor must be dense and contiguous")
        if tensor.dtype not in FLOATS:
            raise TensorError(
                f"{tensor.dtype} can't be averaged over what arrives; must be floating point"
            )

    def _between_steps(self) -> None:
        """Begin with UBT, or decide together, where that is due."""
        if self._carrier is None and self.step >= self._reliable_steps:
            self._carrier = self._begin()
        if not self.council.due(self.step):
            return
        try:
            self.council.meet(self.reliable, self.ledger)
        except LatecomerError as error:
            self.fail(error)
            raise
        if self._carrier is not None:
            self._carrier.bind(self.council.bound_s)
        logger.info("rank %d: %s", self.rank, self.how)

    def _begin(self) -> BucketWorkers:
        key = self._meeting.key if self.options.authenticate else b""
        codec = Codec(self._meeting.session, self.rank, self.size, self.options.datagram_bytes, key)
        bound_s = self.council.bound_s
        carrier = BucketWorkers(
            self.options, codec, self._channel, bound_s, self._done, self._broke
        )
        self.ledger.dropped, self.ledger.dropped_from = carrier.node.counts, carrier.node.by_sender
        carrier.start()
        self._watch = Watch(self._board, self._suspects, self.fail, self.options.dead_s)
        return carrier

    def _done(self, flight: Bucket) -> None:
        assert self._carrier is not None
        operation, record, exchange = flight.operation, flight.record, flight.exchange
        done_s = time.monotonic()
        seconds = done_s - operation.arrived_s
        record.add(exchange, self._carrier.node, seconds, flight.seed is not None)
        self.ledger.end(exchange)
        first, second = exchange.stages
        size = operation.flat.numel() * operation.flat.element_size()
        self.council.took(size, max(first.reached_s, second.reached_s / 2))
        self.source.ended(operation, exchange.stages, done_s)
        if record.complete:
            if error := self.ledger.close_step(record):
                self.fail(error)
            elif record.skipped:
                lost = f"step {record.step} lost {record.loss:.1%}, above skip_loss"
                logger.warning("rank %d: %s", self.rank, lost)
        with self._lock:
            mine = self._open.pop(operation.number, None)
        if mine is not None:
            operation.settle()

    def _reliable_failed(self, error: LatecomerError) -> None:
        """TCP has failed: so has the engine. Whoever gets the error finds it here, too."""
        with self._lock:
            self.failure = self.failure or error
        threading.Thread(target=self.fail, args=(error,), daemon=True).start()

    def _broke(self, error: Exception) -> None:
        failure = LatecomerError(f"rank {self.rank}: OptiReduce broke: {error!r}")
        failure.__cause__ = error
        self.fail(failure)

    def _position(self) -> RankStatus:
        broken = str(self.failure).split("\n", 1)[0] if self.failure is not None else ""
        return RankStatus(self._entered, None, 0.0, broken)

    def _alarmed(self, told: str) -> None:
        self.fail(self._board.diagnose(told, self.options.dead_s * CONFIRM_SHARE))

    def _suspects(self) -> set[int]:
        """Ranks that keep an open operation waiting and were not heard of in it so far."""
        assert self._carrier is not None
        return set(self._carrier.keep_waiting(time.monotonic() - SUSPECT_S))
