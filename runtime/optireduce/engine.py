"""The engine: AllReduce by transpose over UBT, several operations in flight.

Two threads: one moves datagrams and takes means (``ubt.endpoint``), one lays out and transforms,
so that neither keeps the other waiting. Steps before ``warmup_steps`` run over TCP (``reliable``);
then the ranks hold a council, which sets the bound t_B, and UBT begins. From its entry an operation
takes at most ``absence_s + 2 t_B`` and the time for computing. Whatever ends the engine ends every
operation of it, present and future, with the same error.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from runtime.address import own_address
from runtime.blame import Position
from runtime.board import Board
from runtime.datagrams import Datagrams
from runtime.operation import Operation
from runtime.optireduce.council import Council
from runtime.optireduce.flight import Flight
from runtime.optireduce.hadamard import FLOATS, operation_seed
from runtime.optireduce.ledger import Ledger, StepRecord
from runtime.optireduce.options import Options
from runtime.optireduce.reliable import Reliable
from runtime.optireduce.rendezvous import meet
from runtime.optireduce.source import EngineSource
from runtime.optireduce.ubt.codec import Codec
from runtime.optireduce.ubt.endpoint import Endpoint
from runtime.optireduce.ubt.node import Ended, Node
from runtime.optireduce.ubt.sockets import Channel
from runtime.optireduce.watch import CONFIRM_SHARE, Watch
from runtime.pending import Pending
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

    Attributes:
        ledger: what was lost, step by step.
        council: what the ranks have decided.
        reliable: TAR over TCP among the same ranks.
        failure: why the engine ended, if it did.
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
    ) -> None:
        if size < 2:
            raise ArgumentError("size", size, "OptiReduce needs at least 2 ranks")
        self.rank, self.size = rank, size
        self.options = options or Options()
        self.step = 0
        self.failure: LatecomerError | None = None
        self.council = Council(self.options)
        self.ledger = Ledger(self.options, rank)
        self._bucket = self._entered = 0
        self._record = StepRecord(0)
        self._open: dict[int, Pending] = {}
        self._flights: dict[int, Flight] = {}
        self._lock = threading.Lock()
        self._channel = Channel(self.options, own_address(store))
        self._meeting = meet(
            PrefixStore("ubt", store), rank, size, self._channel.address, self.options, timeout_s
        )
        self._channel.connect(self._meeting.addresses)
        self._datagrams = Datagrams(
            PrefixStore("datagrams", store), rank, size, start_timeout_s=timeout_s
        )
        self._board = Board(self._datagrams, position=self._position, alarmed=self._alarmed)
        self.reliable = Reliable(PrefixStore("reliable", store), rank, size, timeout_s)
        self.source = EngineSource(
            PrefixStore("source", store), rank, size, self._datagrams, self.ledger
        )
        self._endpoint: Endpoint | None = None
        self._watch: Watch | None = None
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._compute, name="latecomer-mean", daemon=True)
        self._worker.start()
        if not self.options.warmup_steps:
            self._begin()

    @property
    def how(self) -> str:
        """What runs, and how, for reports."""
        if self._endpoint is None:
            return f"TAR over TCP (warm-up, {self.options.warmup_steps} steps)"
        return f"TAR over {self._channel.how}; t_B {self.council.bound_s * 1e3:.1f} ms"

    def submit(
        self, tensor: torch.Tensor, *, average: bool = False, last: bool = True
    ) -> Pending | Operation:
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
        if self._bucket == 0 and self.council.due(self.step):
            self._hold_council()
        self.source.entered()
        step, bucket = self.step, self._bucket
        self.step, self._bucket = (step + 1, 0) if last else (step, bucket + 1)
        record = self._record
        if last:
            self._record = StepRecord(step + 1)
        if self._endpoint is None:
            self.ledger.reliable += 1
            return self.source.reliable(self.reliable.submit(tensor, average=average))
        seed = self._meeting.session >> 1
        flight = Flight(
            Pending(self._entered, tensor, average, time.monotonic()),
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
        self._work.put(lambda: self._encode(flight))
        return flight.operation

    def fail(self, error: LatecomerError) -> None:
        """End the engine: all operations, present and future, raise ``error``."""
        with self._lock:
            if self.failure is None:
                self.failure = error
            left, self._open = list(self._open.values()), {}
        for operation in left:
            operation.settle(self.failure)

    def close(self) -> None:
        """Release threads and connections."""
        self.source.close()
        if self._watch is not None:
            self._watch.close()
        if self._endpoint is not None:
            self._endpoint.close()
        else:
            self._channel.close()
        self._work.put(None)
        self._worker.join(timeout=5.0)
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

    def _hold_council(self) -> None:
        """Wait for what is in flight, then decide together."""
        try:
            self.council.meet(self.step, self.reliable, self.ledger)
        except LatecomerError as error:
            self.fail(error)
            raise
        if self._endpoint is None:
            self._begin()

    def _begin(self) -> None:
        key = self._meeting.key if self.options.authenticate else b""
        codec = Codec(self._meeting.session, self.rank, self.size, self.options.datagram_bytes, key)
        node = Node(self.options, codec, self.council.bound_s)
        self.ledger.dropped, self.ledger.dropped_from = node.counts, node.by_sender
        self._endpoint = Endpoint(self.options, node, self._channel, self._ended, self._broke)
        self._endpoint.start()
        self._watch = Watch(self._board, self._suspects, self.fail, self.options.dead_s)
        logger.info("rank %d: %s", self.rank, self.how)

    def _encode(self, flight: Flight) -> None:
        exchange = flight.encode(self.options, self.rank, self.size)
        endpoint = self._endpoint
        assert endpoint is not None
        self._flights[exchange.operation] = flight
        endpoint.call(lambda: endpoint.node.open(exchange, time.monotonic()))

    def _ended(self, ended: Ended) -> None:
        """On the endpoint's thread: hand what comes next to the other one."""
        if ended.stage == 2:
            flight = self._flights.pop(ended.exchange.operation)
            self._work.put(lambda: self._finish(flight))

    def _finish(self, flight: Flight) -> None:
        assert self._endpoint is not None
        operation, record, exchange = flight.operation, flight.record, flight.exchange
        flight.finish(self.options)
        done_s = time.monotonic()
        seconds = done_s - operation.arrived_s
        record.add(exchange, self._endpoint.node, seconds, flight.seed is not None)
        self.source.ended(operation, exchange, done_s)
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

    def _compute(self) -> None:
        while (task := self._work.get()) is not None:
            try:
                task()
            except Exception as error:  # whatever it is, nobody may be left waiting
                self._broke(error)

    def _broke(self, error: Exception) -> None:
        failure = LatecomerError(f"rank {self.rank}: OptiReduce broke: {error!r}")
        failure.__cause__ = error
        self.fail(failure)

    def _position(self) -> Position:
        broken = str(self.failure).split("\n", 1)[0] if self.failure is not None else ""
        return Position(self._entered, None, 0.0, broken)

    def _alarmed(self, told: str) -> None:
        self.fail(self._board.diagnose(told, self.options.dead_s * CONFIRM_SHARE))

    def _suspects(self) -> set[int]:
        """Ranks that keep an open operation waiting and were not heard of in it so far."""
        assert self._endpoint is not None
        node, late_s = self._endpoint.node, time.monotonic() - SUSPECT_S
        suspects: set[int] = set()
        for exchange in list(node.open_exchanges.values()):
            stage = exchange.stages[0]
            if stage.end is None and stage.began_s < late_s:
                suspects.update(stage.absent)
        return suspects
