"""The engine: AllReduce by transpose over UBT, several operations in flight.

The first ``reliable_steps`` run over TCP (``reliable``), then UBT begins (``udp.loop``). Before
step ``warmup_steps``, and every ``resync_steps`` after it, the ranks meet at a sync point, which
sets the bound t_B. From its entry an operation takes at most ``absence_s + 2 t_B`` and the time for
computing. A rank of which nothing is heard is asked where it stands: if it does not answer for
``dead_s`` all ranks give up with an error that names it, else it is waited for, or done without.
Whatever ends the engine ends every operation of it, present and future, with the same error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple

import torch

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.executor.load import load
from latecomer.runtime.health.native_work import NativeWaits
from latecomer.runtime.host import host
from latecomer.runtime.network.addresses import own_address
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce.hadamard import FLOATS, operation_seed
from latecomer.runtime.optireduce.loss import LossStats
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.recorder import EngineRecorder
from latecomer.runtime.optireduce.sync import Reliable, SyncPoint
from latecomer.runtime.optireduce.udp.bucket import Bucket, shard_bounds
from latecomer.runtime.optireduce.udp.compiled.choice import choose
from latecomer.runtime.optireduce.udp.endpoint import Endpoint
from latecomer.runtime.optireduce.udp.loop import UdpLoop
from latecomer.runtime.optireduce.udp.protocol import UdpProtocol
from latecomer.runtime.optireduce.udp.sender import REPEAT_MOST_S
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import AllReduceWork, CollectiveWork, require_summable
from latecomer.verify.errors import ArgumentError, LatecomerError

logger = logging.getLogger("latecomer")
CPU = torch.device("cpu")
LINGER_S = 4 * REPEAT_MOST_S  # how long a rank that closes answers those that stay
SUSPECT_S = 0.5  # a rank that is so late for an operation is asked whether it is alive


class Session(NamedTuple):
    """What the ranks agreed on by the store; who can read that knows number and key."""

    number: int  # rank 0's 64 random bits, in every datagram
    key: bytes  # its 16 random bytes, for those who authenticate
    addresses: dict[int, tuple[str, int]]  # of each other rank's socket


def meet(group: StoreExchange, address: tuple[str, int], options: Options) -> Session:
    """Exchange addresses. Collective; RankFailure for absent ranks, ArgumentError for options."""
    own_host, port = address
    own_text = f"{options.digest} {own_host} {port} {host.random_token(8)} {host.random_token(16)}"
    texts = group.all_gather("meeting", own_text)

    differing = []
    addresses = {}
    for rank, text in texts.items():
        digest, its_host, its_port, _, _ = text.split()
        if digest != options.digest:
            differing.append(str(rank))
        if rank != group.rank:
            addresses[rank] = (its_host, int(its_port))
    if differing:
        problem = f"rank(s) {', '.join(differing)} have others"
        raise ArgumentError("options", options, problem, "Give all ranks the same options")

    *_, number, key = texts[0].split()  # rank 0's count for all
    return Session(int(number, 16), bytes.fromhex(key), addresses)


class OptiReduceEngine:
    """OptiReduce on a group of ranks.

    Args:
        store: for connecting; every rank of the group, and nothing else, uses it under its prefix.
        rank, size: this rank and the number of ranks, at least 2.
        options: the same on all ranks.
        timeout_s: for starting, the warm-up and sync points, which wait for all ranks.
        native_waits: see :class:`latecomer.Executor`.

    Attributes:
        ledger: what was lost, step by step.
        sync_point: what the ranks have decided.
        reliable: TAR over TCP among the same ranks.
        find_silent: see :meth:`latecomer.Executor.find_silent`.

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
        from latecomer.synth.transpose.generate import transpose

        if size < 2:
            raise ArgumentError("size", size, "OptiReduce needs at least 2 ranks")
        self.rank = rank
        self.size = size
        self.step = 0
        self.options = options or Options()
        self.sync_point = SyncPoint(self.options)
        self._path = choose(self.options.compiled)  # compiled, if so, before anybody waits
        self.ledger = self.loss_stats = LossStats(self.options, rank)
        self._error: LatecomerError | None = None
        self._bucket = 0
        self._open: dict[int, CollectiveWork] = {}
        self._lock = host.Lock()
        self._loop: UdpLoop | None = None  # from the first step over UBT on
        group = StoreExchange(store, rank, size, timeout_s)
        with contextlib.ExitStack() as started:  # closed if the start fails
            self._channel = self._path.socket(self.options, own_address(store), self._path.reader)
            started.callback(self._channel.close)
            self._session = meet(group.under("ubt"), self._channel.address, self.options)
            self._channel.peers = self._session.addresses
            self.reliable = Reliable(
                load(transpose(size)),
                host.prefixed("reliable", store),
                rank,
                size,
                timeout_s=timeout_s,
                native_waits=native_waits,
            )
            started.pop_all()
        channel = self.reliable.datagrams
        watchdog = self.reliable.watchdog
        self.source = EngineRecorder(group.under("source"), channel, self.loss_stats)
        self.find_silent = watchdog.find_silent
        watchdog.on_failure(self._fail)
        noticed = f"rank {rank} heard nothing over UBT"
        watchdog.suspect(self._suspects, noticed, self.options.dead_s)
        self._begin_where_due()
        close_at_exit(self)

    @property
    def failure(self) -> LatecomerError | None:
        """Why the engine ended, if it did: over UBT or over TCP, in the warm-up or later."""
        return self._error or self.reliable.watchdog.failure

    @property
    def how(self) -> str:
        """What runs, and how, for reports."""
        if self._loop is None:
            return "TAR over TCP (the first steps of the warm-up)"
        how = f"{self._channel.how}, {self._path.how}"
        return f"TAR over {how}; t_B {self.sync_point.bound_s * 1e3:.1f} ms"

    @property
    def timeout_s(self) -> float:
        """For sync points and what else waits for all ranks; may be changed, on all ranks."""
        return self.reliable.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.reliable.timeout_s = timeout_s

    def submit(
        self, tensor: torch.Tensor, *, average: bool = False, last: bool = True
    ) -> CollectiveWork:
        """Start the sum or average of ``tensor`` over all ranks, in place; returns at once.

        All ranks must submit tensors of equal size and dtype in the same order. Before some steps
        (the end of the warm-up, every ``resync_steps``) the first one waits for a sync point.

        Args:
            tensor: dense, contiguous, floating point, on the CPU.
            last: the last one of its step.

        Raises:
            TensorError: a tensor that can't be carried.
            RankFailure, LossExceeded: the engine has failed before.
        """
        require_summable(tensor, CPU, average, FLOATS)
        if self.failure is not None:
            raise self.failure
        if self._bucket == 0:
            self._between_steps()
        step = self.step
        bucket = self._bucket
        if last:
            self.step = step + 1
            self._bucket = 0
        else:
            self._bucket = bucket + 1
        if self._loop is None:
            self.loss_stats.reliable += 1
            return self.source.reliable(self.reliable.submit(tensor, average=average))
        work = AllReduceWork(self.loss_stats.entered, tensor, average)
        self.loss_stats.submitted(step, bucket, last)
        self._open[work.number] = work
        if self.failure is not None:  # since it was asked above: nobody else would settle this
            self._fail(self.failure)
            return work
        bounds = shard_bounds(tensor.numel(), self.size)
        seed = None
        if self.sync_point.hadamard:
            seed = operation_seed(self._session.number >> 1, step, bucket)
        self._loop.submit(
            Bucket(
                work=work,
                step=step,
                index=bucket,
                rank=self.rank,
                bounds=bounds,
                options=self.options,
                seed=seed,
                path=self._path,
            )
        )
        return work

    def close(self, *, at_once: bool = False) -> None:
        """Release threads and connections; ``at_once``: without waiting for TCP's operations."""
        has_closed(self)
        self.source.close()
        if self._loop is not None and not at_once and self.failure is None:
            # Nothing is sent twice over UBT. A peer that has lost all of a shard asks for it again
            # and again, and is told that it is gone; but not by one that has closed.
            host.sleep(LINGER_S)
        (self._loop or self._channel).close()
        self.reliable.close(at_once=at_once)

    def _between_steps(self) -> None:
        self._begin_where_due()
        if not self.sync_point.is_due(self.step):
            return
        self.sync_point.decide(self.reliable, self.loss_stats)
        if self._loop is not None:
            self._loop.set_bound(self.sync_point.bound_s)
        logger.info("rank %d: %s", self.rank, self.how)

    def _begin_where_due(self) -> None:
        options = self.options
        session = self._session
        stats = self.loss_stats
        if self._loop is not None or self.step < min(options.reliable_steps, options.warmup_steps):
            return
        key = session.key if options.authenticate else b""
        codec = self._path.codec(session.number, self.rank, self.size, options.datagram_bytes, key)
        endpoint = Endpoint(self._channel, self._path.placer(codec))
        stats.dropped = endpoint.placer.dropped
        stats.dropped_from = endpoint.placer.dropped_from
        protocol = UdpProtocol(
            options,
            rank=self.rank,
            world_size=self.size,
            bound_s=self.sync_point.bound_s,
            placer=endpoint.placer,
            together=self._channel.together,
        )
        self._loop = UdpLoop(protocol, endpoint, self._done, self._broke)

    def _done(self, bucket: Bucket) -> None:
        assert self._loop is not None
        work = bucket.work
        stages = bucket.stages
        done_s = host.monotonic()
        nbytes = work.nbytes
        self.sync_point.took(nbytes, max(stages[0].reached_s, stages[1].reached_s / 2))
        self.source.ended(work, stages, done_s)
        if error := self.loss_stats.ended(bucket, self._loop.protocol, done_s - work.arrived_s):
            self._stop(error)
        if self._open.pop(work.number, None) is not None:
            work.settle()

    def _broke(self, error: Exception) -> None:
        failure = LatecomerError(f"rank {self.rank}: OptiReduce broke: {error!r}")
        failure.__cause__ = error
        self._stop(failure)

    def _stop(self, error: LatecomerError) -> None:
        """This rank can't go on; the others learn why when they ask."""
        self.reliable.watchdog.broken = str(error).split("\n", 1)[0]
        self._fail(error)

    def _fail(self, error: LatecomerError) -> None:
        """End all operations, present and future, with ``error``, if it is the first."""
        with self._lock:
            self._error = self.failure or error
        if self._loop is not None:
            self._loop.abort()  # what has failed is its caller's again
        for number in list(self._open):
            if (work := self._open.pop(number, None)) is not None:
                work.settle(self._error)

    def _suspects(self, limit_s: float) -> Iterator[int]:
        """Ranks that keep an open operation waiting and were not heard of in it so far."""
        buckets = self._loop.protocol.buckets if self._loop is not None else {}
        for bucket in list(buckets.values()):  # copies: the loop's thread changes both meanwhile
            stage = bucket.stages[0]
            if stage.end is None and stage.began_s < host.monotonic() - SUSPECT_S:
                yield from list(stage.absent)
