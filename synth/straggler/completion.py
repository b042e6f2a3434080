"""The completion with one late rank, as a yes/no question and back.

Source: StragglAR (arXiv 2505.23523). There, for powers of two, the schedule is constructed by
hand; here it is searched, for any n, any number of chunks, and two models of the ports.

Names in this module: the N = n - 1 helpers are ranks 0 .. N-1, the late rank is N. Chunk c of the
k chunks is owned by helper c mod N, which holds the helpers' partial sum of it. A rank
*holds* a chunk once it has the sum over all n ranks.

Normal form: in round c < k the late rank and the owner of chunk c exchange that chunk and both
hold it from then on. All other transfers copy a held chunk to a rank that does not hold it.
From round k on the late rank has nothing left to give and spreads chunks like anybody else.
A schedule outside the normal form may exist where none inside it does.

Forms, all inside the normal form:

    staged   before round k everything repeats with (round, helper, chunk) -> +1: whether a helper
             receives a chunk depends only on the chunk's age and on how far the helper is from
             the chunk's owner. The repeating rounds are solved first, then the rest with those
             fixed. Two small questions, but a wrong first answer can spoil the second.
    cyclic   the same repetition, solved as one question.
    general  no such demand; a search that ends without a schedule has exhausted the normal form.

In the staged and cyclic forms a chunk also reaches everybody in a limited number of rounds, which
keeps the question small.

Encoding, duplex: any sender can feed any receiver, so there are no variables for pairs, only
"rank sends chunk in round" and "rank receives chunk in round", and of each chunk at least as many
sends as receives in each round. Matching: variables for the pairs of a round, and a receiver's
partner holds what it receives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from latecomer.synth.solvers.model import Found, Model
from latecomer.synth.straggler.instance import Instance
from latecomer.verify.core.schedule import Op, Round, Transfer

Form = Literal["staged", "cyclic", "general"]
FORMS: tuple[Form, ...] = ("staged", "cyclic", "general")


class CompletionQuestion:
    """The question "is there a completion in so many rounds?" for one instance and form."""

    def __init__(self, instance: Instance, rounds: int, form: Form) -> None:
        self.instance = instance
        self.rounds = rounds
        self.form = form
        self.repeating = form != "general"
        self.window = self._most_hops()
        self.model = Model()
        self._variable: dict[tuple[str | int, ...], int] = {}
        self._build()

    def _most_hops(self) -> int:
        """Rounds within which a chunk reaches everybody after its exchange.

        With n a power of two a repeating pattern can (and at the bound must) double the holders
        in every round; otherwise one round more is the least that leaves any pattern. These give
        the smallest questions; the cyclic form allows one or two rounds more.
        """
        if not self.repeating:
            return self.rounds
        # Tried up to n = 19: where n is no power of two, a pattern has one or two more rounds.
        if self.form == "cyclic":
            return self.instance.fewest_hops + 2
        power_of_two = self.instance.ranks == 2**self.instance.fewest_hops
        return self.instance.fewest_hops + (not power_of_two)

    def head(self) -> Model:
        """The part of the question that is about the repeating rounds alone."""
        repeating = self._repeating_variables()

        def inside(literals: tuple[int, ...]) -> bool:
            return all(abs(literal) in repeating for literal in literals)

        part = Model()
        whole = self.model
        part.variables = whole.variables
        part.clauses = {c: None for c in whole.clauses if inside(c)}
        part.at_most_one = {c: None for c in whole.at_most_one if inside(c)}
        part.at_least = {c: None for c in whole.at_least if inside(c[1])}
        return part

    def fix_head(self, head: Found) -> None:
        """From now on the repeating rounds are those of ``head``."""
        for variable in sorted(self._repeating_variables()):
            self.model.require_any([variable if variable in head.true else -variable])

    def _repeating_variables(self) -> set[int]:
        return {variable for name, variable in self._variable.items() if name[1] == "orbit"}

    # -- variables -----------------------------------------------------------------------------

    def _named(self, *name: str | int) -> int:
        if name not in self._variable:
            self._variable[name] = self.model.new_variable()
        return self._variable[name]

    def _act(self, kind: str, t: int, rank: int, chunk: int) -> int:
        """``rank`` sends/receives ``chunk`` in round ``t``; in the cyclic form one per orbit."""
        n_helpers = self.instance.helpers
        k = self.instance.chunks
        if self.repeating and t < k:
            return self._named(kind, "orbit", t - chunk, (rank - chunk) % n_helpers)
        return self._named(kind, t, rank, chunk)

    def _pair(self, t: int, a: int, b: int) -> int:
        """Ranks ``a`` and ``b`` are partners in round ``t`` (matching)."""
        n_helpers = self.instance.helpers
        k = self.instance.chunks
        if self.repeating and t < k:
            return self._named("pair", "orbit", *sorted(((a - t) % n_helpers, (b - t) % n_helpers)))
        return self._named("pair", t, *sorted((a, b)))

    def _free(self, t: int) -> Iterator[int]:
        """The ranks that are not exchanging in round ``t``."""
        if t >= self.instance.chunks:
            yield from range(self.instance.ranks)
        else:
            busy = self.instance.owner(t)
            yield from (h for h in range(self.instance.helpers) if h != busy)

    def _can_receive(self, t: int, helper: int, chunk: int) -> bool:
        busy = t < self.instance.chunks and helper == self.instance.owner(t)
        last = min(self.rounds - 1, chunk + self.window)
        return chunk < t <= last and not busy and self._needs(helper, chunk)

    def _needs(self, rank: int, chunk: int) -> bool:
        return rank not in (self.instance.owner(chunk), self.instance.helpers)

    def _receive(self, t: int, helper: int, chunk: int) -> int:
        return self._act("receive", t, helper, chunk)

    def _held(self, t: int, helper: int, chunk: int) -> int | None:
        """The literal "``helper`` holds ``chunk`` when round ``t`` starts"; None: it can't yet.

        Defined by: it held it a round earlier or received it in that round.
        """
        if not any(self._can_receive(s, helper, chunk) for s in range(chunk + 1, t)):
            return None
        n_helpers = self.instance.helpers
        k = self.instance.chunks
        name: tuple[str | int, ...]
        # What is held when round k starts follows from repeating rounds alone, so it repeats, too.
        if self.repeating and t <= k:
            name = ("held", "orbit", t - chunk, (helper - chunk) % n_helpers)
        else:
            name = ("held", t, helper, chunk)
        is_new = name not in self._variable
        held = self._named(*name)
        if is_new:
            causes = []
            if self._can_receive(t - 1, helper, chunk):
                causes.append(self._receive(t - 1, helper, chunk))
            before = self._held(t - 1, helper, chunk)
            if before is not None:
                causes.append(before)
            self.model.require_any([-held, *causes])
            for cause in causes:
                self.model.require_any([held, -cause])
        return held

    # -- constraints ---------------------------------------------------------------------------

    def _build(self) -> None:
        model = self.model
        instance = self.instance
        for chunk in range(instance.chunks):
            for helper in range(instance.helpers):
                if self._needs(helper, chunk):
                    times = [
                        self._receive(t, helper, chunk)
                        for t in range(chunk + 1, self.rounds)
                        if self._can_receive(t, helper, chunk)
                    ]
                    model.require_any(times)
                    model.require_at_most_one(times)
        for t in range(self.rounds):
            for helper in range(instance.helpers):
                model.require_at_most_one(
                    self._receive(t, helper, chunk)
                    for chunk in range(min(t, instance.chunks))
                    if self._can_receive(t, helper, chunk)
                )
            if instance.ports == "duplex":
                self._duplex_round(t)
            else:
                self._matching_round(t)

    def _receivers(self, t: int, chunk: int) -> list[int]:
        return [h for h in range(self.instance.helpers) if self._can_receive(t, h, chunk)]

    def _duplex_round(self, t: int) -> None:
        """One send per rank, of what it holds; of each chunk no more receives than sends."""
        sends_of: dict[int, list[int]] = {rank: [] for rank in self._free(t)}
        for chunk in range(min(t, self.instance.chunks)):
            receives = [self._receive(t, h, chunk) for h in self._receivers(t, chunk)]
            if not receives:
                continue
            sends = []
            for rank, its_sends in sends_of.items():
                send = self._act("send", t, rank, chunk)
                # The owner and the late rank hold the chunk since their exchange.
                if self._needs(rank, chunk):
                    held = self._held(t, rank, chunk)
                    if held is None:
                        continue
                    self.model.require_any([-send, held])
                sends.append(send)
                its_sends.append(send)
            # Which sender feeds which receiver is left to decode: any of them can feed any.
            self.model.require_no_more(receives, sends)
        for its_sends in sends_of.values():
            self.model.require_at_most_one(its_sends)

    def _matching_round(self, t: int) -> None:
        """One partner per rank; a receiver has one, and that one holds what is received."""
        model = self.model
        free = list(self._free(t))
        for rank in free:
            model.require_at_most_one(self._pair(t, rank, other) for other in free if other != rank)
        for chunk in range(min(t, self.instance.chunks)):
            for helper in self._receivers(t, chunk):
                receive = self._receive(t, helper, chunk)
                partners = []
                for other in free:
                    if other == helper:
                        continue
                    pair = self._pair(t, helper, other)
                    partners.append(pair)
                    if self._needs(other, chunk):
                        held = self._held(t, other, chunk)
                        model.require_any([-receive, -pair, *([] if held is None else [held])])
                model.require_any([-receive, *partners])

    # -- and back ------------------------------------------------------------------------------

    def decode(self, answer: Found) -> tuple[Round, ...]:
        """The rounds that an assignment stands for (helpers 0 .. N-1, late rank N)."""
        instance = self.instance
        rounds = []
        for t in range(self.rounds):
            moves = list(self._exchange(t)) if t < instance.chunks else []
            for chunk in range(min(t, instance.chunks)):
                receivers = [
                    h
                    for h in self._receivers(t, chunk)
                    if self._receive(t, h, chunk) in answer.true
                ]
                senders = self._senders(t, chunk, receivers, answer)
                moves += (
                    _copy(src, dst, chunk) for src, dst in zip(senders, receivers, strict=False)
                )
            rounds.append(tuple(moves))
        return tuple(rounds)

    def _exchange(self, t: int) -> Iterator[Transfer]:
        late = self.instance.helpers
        owner = self.instance.owner(t)
        op: Op = "reduce"
        yield Transfer(late, owner, t, op)
        yield Transfer(owner, late, t, op)

    def _senders(self, t: int, chunk: int, receivers: list[int], answer: Found) -> list[int]:
        """Senders, as many as receivers or more; in matching each is its receiver's partner."""
        free = list(self._free(t))
        if self.instance.ports == "duplex":
            return [r for r in free if self._act("send", t, r, chunk) in answer.true]
        return [
            next(r for r in free if r != h and self._pair(t, h, r) in answer.true)
            for h in receivers
        ]


def _copy(src: int, dst: int, chunk: int) -> Transfer:
    return Transfer(src, dst, chunk, "copy")
