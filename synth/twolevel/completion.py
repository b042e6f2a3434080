"""The completion on two levels: the late rank's chunks go round its mates, then over the network.

The late rank exchanges one chunk per round with the mate that holds the helpers' sum of it, over
the inner link; both hold the chunk from then on (it is *full*). Full chunks are copied: across the
network, at most P out of and P into a node per round and never twice into the same node, and
inside every node. Rounds are built one by one:

    fast round      no network. The late rank exchanges, and in every node a largest matching of
                    (rank that needs a chunk, rank that holds one) passes chunks on.
    network round   the network takes what it can, chunks in fewest nodes first; ports that are
                    still free exchange and pass on as in a fast round, at no extra cost.

A network round is due when ``burst`` chunks that no other node has have gathered at home, and for
as long as a node lacks a chunk after the last exchange. burst = 1 suits slow exchanges, burst = P
fills all ports and saves network rounds; the caller tries both.

Source: rarest-first list scheduling. Deviation: two kinds of round, since a round costs as much as
its slowest message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.waiting import mates_of
from latecomer.verify.core.schedule import Round, Transfer


def completion(machine: Machine, late: int, chunks: int, burst: int) -> tuple[Round, ...]:
    """The rounds from the late rank's arrival to the end; it has at least one mate."""
    build = _Completion(machine, late, chunks)
    rounds = []
    while not build.done:
        rounds.append(build.round(network=build.network_due(burst)))
    return tuple(rounds)


class _Completion:
    """The state between two rounds, and how the next round comes out of it.

    Attributes:
        full: the full chunks of each rank.
        pending: for each mate the chunks that it and the late rank have yet to exchange, in order.
    """

    def __init__(self, machine: Machine, late: int, chunks: int) -> None:
        self.machine = machine
        self.late = late
        self.chunks = chunks
        self.node_of = machine.node_of
        self.home = self.node_of[late]
        self._nodes = range(machine.nodes)
        mates = mates_of(machine, late)
        self.pending: dict[int, list[int]] = {}
        for first, mate in enumerate(mates):
            self.pending[mate] = list(range(first, chunks, len(mates)))
        self.full: list[set[int]] = [set() for _ in range(machine.ranks)]
        self._begin_round()

    @property
    def done(self) -> bool:
        """Everybody holds every full chunk."""
        return all(len(held) == self.chunks for held in self.full)

    def network_due(self, burst: int) -> bool:
        """Whether the next round should use the network."""
        if self.machine.nodes == 1:
            return False
        held_in = [self._in_node(node) for node in self._nodes]
        # After the last exchange nothing gathers at home any more.
        if not any(self.pending.values()):
            return any(chunks != held_in[self.home] for chunks in held_in)
        elsewhere = set().union(*held_in[: self.home], *held_in[self.home + 1 :])
        return len(held_in[self.home] - elsewhere) >= burst

    def round(self, *, network: bool) -> Round:
        """The next round; the state is the one after it."""
        # What only home has chooses its senders before the exchange does, for that is what the
        # round is there for. What else crosses comes after it, and what fits in besides costs
        # nothing.
        self._begin_round()
        if network:
            self._cross_fresh()
        self._exchange()
        if network:
            self._cross_rest()
        for node in self._nodes:
            self._pass_on(node)
        for move in self._moves:
            self.full[move.dst].add(move.chunk)
        return tuple(self._moves)

    # -- one round ---------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        ports = self.machine.network_ports
        self._moves: list[Transfer] = []
        self._may_send = set(range(self.machine.ranks))
        self._may_receive = set(range(self.machine.ranks))
        # of each node: free network ports, either way
        self._ports_out = [ports for _ in self._nodes]
        self._ports_in = [ports for _ in self._nodes]
        # of each node: the full chunks at the start of the round, and with what comes in it
        self._held_in = [self._in_node(node) for node in self._nodes]
        self._coming_to = [set(chunks) for chunks in self._held_in]

    def _in_node(self, node: int) -> set[int]:
        return set().union(*(self.full[rank] for rank in self.machine.ranks_of(node)))

    def _copy(self, src: int, dst: int, chunk: int) -> None:
        self._moves.append(Transfer(src, dst, chunk, "copy"))
        self._may_send.remove(src)
        self._may_receive.remove(dst)

    def _cross_fresh(self) -> None:
        """As many as the ports allow of the chunks that only home has, once each."""
        chunks = [c for c in sorted(self._held_in[self.home]) if self._nodes_with(c) == 1]
        ports = self.machine.network_ports
        sender_of = _matching(chunks, lambda chunk: self._senders(self.home, chunk), ports)
        for chunk, src in sender_of.items():
            self._send_across(chunk, src)

    def _cross_rest(self) -> None:
        """Whatever else still fits, chunks in fewest nodes first; all nodes take part."""
        progress = True
        while progress:
            progress = False
            for chunk in sorted(self._held_in[self.home], key=lambda c: (self._nodes_with(c), c)):
                for node in self._sources(chunk):
                    senders = self._senders(node, chunk)
                    if senders and self._send_across(chunk, senders[0]):
                        progress = True
                        break

    def _sources(self, chunk: int) -> list[int]:
        """Nodes that can send it across, those with most free ports first."""
        able = [node for node in self._nodes if chunk in self._held_in[node]]
        able = [node for node in able if self._ports_out[node]]
        return sorted(able, key=lambda node: -self._ports_out[node])

    def _nodes_with(self, chunk: int) -> int:
        """How many nodes have the chunk after this round."""
        return sum(chunk in chunks for chunks in self._coming_to)

    def _send_across(self, chunk: int, src: int) -> bool:
        """``chunk`` from ``src`` to the emptiest node that lacks it and has a free port, if any."""
        able = []
        for rank in self._may_receive:
            node = self.node_of[rank]
            if self._ports_in[node] and chunk not in self._coming_to[node]:
                able.append(rank)
        if not able:
            return False

        def emptiest(rank: int) -> tuple[int, int, int]:
            return len(self._coming_to[self.node_of[rank]]), len(self.full[rank]), rank

        dst = min(able, key=emptiest)
        self._copy(src, dst, chunk)
        self._ports_out[self.node_of[src]] -= 1
        self._ports_in[self.node_of[dst]] -= 1
        self._coming_to[self.node_of[dst]].add(chunk)
        return True

    def _senders(self, node: int, chunk: int) -> list[int]:
        """The free ranks of a node that hold it; first those that are not about to exchange, and
        of these the ones that hold little besides.
        """
        about_to_exchange = (self.late, self._next_mate(self.pending))
        free = [rank for rank in self.machine.ranks_of(node) if rank in self._may_send]
        holders = [rank for rank in free if chunk in self.full[rank]]
        return sorted(holders, key=lambda rank: (rank in about_to_exchange, len(self.full[rank])))

    def _next_mate(self, mates: Iterable[int]) -> int | None:
        """The one of ``mates`` with the lowest chunk to exchange, if any."""
        unfinished = (mate for mate in mates if self.pending[mate])
        return min(unfinished, key=lambda mate: self.pending[mate][0], default=None)

    def _exchange(self) -> None:
        """The late rank and a mate whose ports are all free, the one with the lowest chunk."""
        free = self._may_send & self._may_receive
        mate = self._next_mate(mate for mate in self.pending if mate in free)
        if mate is None or self.late not in free:
            return
        chunk = self.pending[mate].pop(0)
        self._moves.append(Transfer(self.late, mate, chunk, "reduce"))
        self._moves.append(Transfer(mate, self.late, chunk, "reduce"))
        self._may_send -= {self.late, mate}
        self._may_receive -= {self.late, mate}

    def _pass_on(self, node: int) -> None:
        """A largest matching of receivers and senders inside a node, rarest chunks first."""
        ranks = self.machine.ranks_of(node)
        senders = [rank for rank in ranks if rank in self._may_send]
        receivers = [rank for rank in ranks if rank in self._may_receive]
        holders = Counter[int]()  # of each chunk
        for rank in ranks:
            holders.update(self.full[rank])

        # [receiver][sender]: the rarest chunk that the one has and the other needs, if any
        gifts: dict[int, dict[int, int]] = {}
        for dst in receivers:
            gifts[dst] = {}
            for src in senders:
                wanted = self.full[src] - self.full[dst]
                if wanted:
                    gifts[dst][src] = min(wanted, key=lambda chunk: (holders[chunk], chunk))

        def rarest_first(dst: int) -> list[int]:
            return sorted(gifts[dst], key=lambda src: holders[gifts[dst][src]])

        emptiest_first = sorted(receivers, key=lambda rank: len(self.full[rank]))
        sender_of = _matching(emptiest_first, rarest_first, limit=len(senders))
        for dst, src in sender_of.items():
            self._copy(src, dst, gifts[dst][src])


def _matching(
    takers: Iterable[int], senders_for: Callable[[int], list[int]], limit: int
) -> dict[int, int]:
    """A largest set of pairs (taker -> sender), up to ``limit``, by augmenting paths.

    By hand, though networkx has one: of all largest sets it matters which, so takers are served in
    their order, each by the first of its senders that can be had.
    """
    taker_of: dict[int, int] = {}

    def augment(taker: int, visited: set[int]) -> bool:
        for src in senders_for(taker):
            if src not in visited:
                visited.add(src)
                if src not in taker_of or augment(taker_of[src], visited):
                    taker_of[src] = taker
                    return True
        return False

    for taker in takers:
        if len(taker_of) == limit:
            break
        augment(taker, set())
    return {taker: src for src, taker in taker_of.items()}
