"""The board: ranks tell each other where they stand when something is wrong, over UDP.

Silent in normal operation: one socket and one sleeping thread per rank. When a rank notices a
failure it *asks* everybody; the others answer with their position at once, from the board's own
thread, however busy or stuck the rest of the process is. A question may be an alarm, which makes
them give up too. The first verdict reached is told to all, so that all name the same rank.

It depends on no store and no rank's survival: the store is used once, at the start, to exchange
addresses and a random token that keeps datagrams of other jobs out (a token is no authentication
against an attacker on the network).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from runtime.blame import Position, blame
from verify.errors import RankFailure

ASK_AGAIN_S = 0.1
MAX_DATAGRAM = 60_000
TOLD_LINES = 64


class _Message(msgspec.Struct, omit_defaults=True):
    """``position`` answers; ``asks`` demands an answer; ``ranks`` is a verdict.

    An answer has the number of its question: one that comes late or twice is told apart.
    """

    token: str
    sender: int
    asks: bool = False
    alarm: bool = False
    question: int = 0
    position: Position | None = None
    ranks: list[int] | None = None
    text: str = ""
    evidence: list[str] = []


class Board:
    """One rank's end of the control plane.

    Args:
        store: used for the exchange of addresses only.
        rank, size: place in the group.
        position: called from the board's thread to learn where this rank stands.
        alarmed: called once, on a thread of its own, when another rank raises the alarm.
        start_timeout_s: how long to wait for the others' addresses.

    Raises:
        RankFailure: ranks that did not show up within ``start_timeout_s``.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        position: Callable[[], Position],
        alarmed: Callable[[str], None],
        start_timeout_s: float,
    ) -> None:
        self.rank, self.size = rank, size
        self._position, self._alarmed = position, alarmed
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((_own_address(store), 0))
        self._numbers = itertools.count()
        self._answers: dict[int, dict[int, Position]] = {}  # by question
        self._verdict: RankFailure | None = None
        self._news = threading.Condition()
        self._alarm_raised = False
        self._closed = False
        self._token, self._peers = self._meet(store, start_timeout_s)
        self._thread = threading.Thread(target=self._listen, name="latecomer-board", daemon=True)
        self._thread.start()

    def survey(self, grace_s: float) -> dict[int, Position]:
        """Ask everybody where they stand; what was answered within ``grace_s`` seconds."""
        with self._news:
            return self._ask(grace_s, alarm=False)

    def diagnose(self, noticed: str, grace_s: float) -> RankFailure:
        """Raise the alarm and decide who failed, within ``grace_s`` seconds."""
        with self._news:
            self._alarm_raised = True
            answers = self._ask(grace_s, alarm=True)
            if self._verdict is None:
                self._verdict = blame(self.size, answers, self.rank, noticed, grace_s)
            verdict = self._verdict
        told = _Message(
            self._token,
            self.rank,
            ranks=list(verdict.ranks),
            text=str(verdict).split("\n", 1)[0],
            evidence=list(verdict.evidence)[:TOLD_LINES],
        )
        for peer in range(self.size):
            if peer != self.rank:
                self._send(peer, told)
        return verdict

    def close(self) -> None:
        """Stop listening; the rank counts as silent from here on."""
        self._closed = True
        # wake the listener with an empty datagram of our own
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join(timeout=1.0)
        self._socket.close()

    def _ask(self, grace_s: float, *, alarm: bool) -> dict[int, Position]:
        """Positions by rank; ends early when all have spoken or there is a verdict."""
        deadline = time.monotonic() + grace_s
        number = next(self._numbers)
        answers = self._answers[number] = {self.rank: self._position()}
        question = _Message(self._token, self.rank, asks=True, alarm=alarm, question=number)
        while self._verdict is None and len(answers) < self.size:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for peer in range(self.size):
                if peer not in answers:
                    self._send(peer, question)
            self._news.wait(min(left, ASK_AGAIN_S))
        del self._answers[number]
        return answers

    def _meet(self, store: Store, timeout_s: float) -> tuple[str, dict[int, tuple[str, int]]]:
        host, port = self._socket.getsockname()
        store.set(f"board/{self.rank}", f"{host}:{port}")
        if self.rank == 0:
            store.set("board/token", secrets.token_hex(16))
        deadline = time.monotonic() + timeout_s
        peers, absent = {}, []
        for peer in range(self.size):
            left = max(0.01, deadline - time.monotonic())
            try:
                store.wait([f"board/{peer}"], timedelta(seconds=left))
            except RuntimeError:
                absent.append(peer)
                continue
            name, number = store.get(f"board/{peer}").decode().rsplit(":", 1)
            peers[peer] = name, int(number)
        if absent:
            names = ", ".join(map(str, absent))
            raise RankFailure(absent, f"rank(s) {names}: did not join within {timeout_s:g} s")
        return store.get("board/token").decode(), peers

    def _send(self, peer: int, message: _Message) -> None:
        data = msgspec.json.encode(message)[:MAX_DATAGRAM]
        with contextlib.suppress(OSError):  # a dead peer's port may refuse; silence tells
            self._socket.sendto(data, self._peers[peer])

    def _listen(self) -> None:
        decoder = msgspec.json.Decoder(_Message)
        while not self._closed:
            try:
                data, _ = self._socket.recvfrom(MAX_DATAGRAM)
                message = decoder.decode(data)
            except (OSError, msgspec.DecodeError):
                continue
            if message.token == self._token and 0 <= message.sender < self.size:
                self._hear(message)

    def _hear(self, message: _Message) -> None:
        raise_alarm = False
        with self._news:
            if message.asks:
                number, position = message.question, self._position()
                answer = _Message(self._token, self.rank, question=number, position=position)
                self._send(message.sender, answer)
            if message.position is not None and message.question in self._answers:
                self._answers[message.question][message.sender] = message.position
            if message.ranks is not None and self._verdict is None:
                self._verdict = RankFailure(message.ranks, message.text, message.evidence)
            if (message.alarm or message.ranks is not None) and not self._alarm_raised:
                self._alarm_raised = raise_alarm = True
            self._news.notify_all()
        if raise_alarm:
            told = f"told by rank {message.sender}"
            threading.Thread(target=self._alarmed, args=(told,), daemon=True).start()


def _own_address(store: Store) -> str:
    """The address under which the other ranks reach this one.

    ``LATECOMER_ADDRESS`` if set; otherwise the local end of the way to the store's host, which
    every rank can reach; loopback for stores without a host.
    """
    if chosen := os.environ.get("LATECOMER_ADDRESS"):
        return chosen
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            store.host, store.port, socket.AF_INET, socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
