"""Random faults for documents of both kinds: a few small changes of a right one.

A document is rows of items: a collective's rounds of transfers, a pipeline's programs of actions.
A change is made at one item, ``row[i]``, in whatever row it stands.
"""

import copy
import random
import re
from collections.abc import Sequence
from functools import partialmethod
from typing import Any, ClassVar

from tests.verify.builders import Document, all_right, document, shuffled
from tests.verify.pipeline import documents as pipelines

RIGHT = list(all_right().values())
RIGHT_PIPELINES = list(pipelines.all_right().values())


class Change:
    """An item of a document, and what can be done there."""

    NAMES: ClassVar[str]
    """The changes; those named several times are made more often."""

    def __init__(self, doc: Document, rng: random.Random) -> None:
        self.doc = doc
        self.rng = rng
        self.rows = self.rows_of(doc)
        items = [(row, i) for row in self.rows for i in range(len(row))]
        if items:
            self.row, self.i = rng.choice(items)
            getattr(self, rng.choice(self.NAMES.split()))()

    def rows_of(self, doc: Document) -> list[list[Any]]:
        raise NotImplementedError

    def insert(self, item: Any, row: list[Any]) -> None:
        row.insert(self.rng.randint(0, len(row)), item)

    def drop(self) -> None:
        del self.row[self.i]

    def double(self) -> None:
        self.insert(copy.copy(self.row[self.i]), self.row)

    def elsewhere(self) -> None:
        """Into another row: another round in any phase, another rank's program."""
        item = self.row.pop(self.i)
        self.insert(item, self.rng.choice(self.rows))


class CollectiveChange(Change):
    NAMES = (
        "drop double src dst chunk op around elsewhere swap rounds order absent leave leave ports "
        "claim"
    )

    def rows_of(self, doc: Document) -> list[list[Any]]:
        return [moves for phase in doc["phases"] for moves in phase["rounds"]]

    def _field(self, number: int, indexed: str) -> None:
        limit = self.doc[indexed]
        values: Sequence[int] = range(limit)
        if self.rng.random() < 0.02:
            values = (-1, limit, 2**70)
        self.row[self.i][number] = self.rng.choice(values)

    src = partialmethod(_field, 0, "ranks")
    dst = partialmethod(_field, 1, "ranks")
    chunk = partialmethod(_field, 2, "chunks")

    def op(self) -> None:
        move = self.row[self.i]
        move[3] = {"copy": "reduce", "reduce": "copy"}[move[3]]

    def around(self) -> None:
        self.row[self.i][:2] = reversed(self.row[self.i][:2])

    def swap(self) -> None:
        """Two transfers change places."""
        partner = self.rng.choice([row for row in self.rows if row])
        j = self.rng.randrange(len(partner))
        move = self.row[self.i]
        self.row[self.i] = partner[j]
        partner[j] = move

    def rounds(self) -> None:
        """Two rounds change places."""
        partner = self.rng.choice(self.rows)
        moves = self.row[:]
        self.row[:] = partner[:]
        partner[:] = moves

    def order(self) -> None:
        """Within a round it matters only where several reduces meet."""
        self.rng.shuffle(self.row)

    def absent(self) -> None:
        """A rank is away from a phase that it takes part in; declared late most of the time."""
        rank = self.rng.randrange(self.doc["ranks"])
        phase = self.rng.choice(self.doc["phases"])
        lists = [phase["absent"]]
        if self.rng.random() < 0.8:
            lists.append(self.doc["late"])
        for ranks in lists:
            if rank not in ranks:
                ranks.append(rank)

    def leave(self) -> None:
        """Ranks that a round does not need are away from it, most often after their arrival.

        The round becomes a phase of its own; the schedule stays right.
        """
        phase = self.rng.choice([phase for phase in self.doc["phases"] if phase["rounds"]])
        number = self.rng.randrange(len(phase["rounds"]))
        busy = {rank for move in phase["rounds"][number] for rank in move[:2]}
        bystanders = set(range(self.doc["ranks"])) - busy
        away = {rank for rank in bystanders if self.rng.random() < 0.7}
        self.doc["late"] += sorted(away - set(self.doc["late"]))

        absent = sorted(away | set(phase["absent"]))
        part = len(self.doc["phases"])  # makes names of phases that no other phase has
        alone = {"name": f"alone {part}", "absent": absent, "rounds": [phase["rounds"][number]]}
        following = {
            "name": f"after {part}",
            "absent": [*phase["absent"]],
            "rounds": phase["rounds"][number + 1 :],
        }
        del phase["rounds"][number:]
        after = self.doc["phases"].index(phase) + 1
        self.doc["phases"][after:after] = [alone, following]

    def ports(self) -> None:
        self.doc["ports"] = self.rng.choice(["duplex", "matching", {"incast": 1}, {"incast": 2}])

    def claim(self) -> None:
        name = self.rng.choice(["rounds", "completion_rounds"])
        self.doc["meta"][name] = self.rng.randint(0, 12)


class PipelineChange(Change):
    NAMES = (
        "drop double move move neighbours neighbours neighbours overtake elsewhere rewrite fuse "
        "shard claim"
    )
    KINDS = str.split("F I W B SEND_F RECV_F SEND_B RECV_B WAIT_SEND_F WAIT_SEND_B")

    def rows_of(self, doc: Document) -> list[list[Any]]:
        return doc["programs"]  # type: ignore[no-any-return]

    def move(self) -> None:
        action = self.row.pop(self.i)
        self.insert(action, self.row)

    def neighbours(self) -> None:
        """Two neighbouring actions change places: most often still a right schedule."""
        self.row[self.i - 1 : self.i + 1] = self.row[self.i - 1 : self.i + 1][::-1]

    def overtake(self) -> None:
        """Two actions of one kind and stage change places."""
        bodies = [action.rstrip("0123456789") for action in self.row]
        alike = [j for j, body in enumerate(bodies) if body == bodies[self.i]]
        j = self.rng.choice(alike)
        action = self.row[self.i]
        self.row[self.i] = self.row[j]
        self.row[j] = action

    def rewrite(self) -> None:
        """Another stage, kind or microbatch."""
        parts = list(pipelines.split(self.row[self.i]))
        if parts[2] >= 0:
            stage = self.rng.randint(0, self.doc["stages"])
            microbatch = self.rng.randint(0, self.doc["microbatches"])
            number = self.rng.randrange(3)
            kind = self.rng.choice(self.KINDS)
            parts[number] = (stage, kind, microbatch)[number]
            self.row[self.i] = "".join(map(str, parts))

    def fuse(self) -> None:
        """An I becomes a B, or a B an I and a W."""
        row = self.row
        backwards = [j for j, action in enumerate(row) if re.fullmatch(r"\d+[IB]\d+", action)]
        if not backwards:
            return

        j = self.rng.choice(backwards)
        action = row[j]
        if "B" in action:
            row[j : j + 1] = [action.replace("B", "I"), action.replace("B", "W")]
        else:
            row[j] = action.replace("I", "B")
            weight_gradient = action.replace("I", "W")
            row[:] = [action for action in row if action != weight_gradient]

    def shard(self) -> None:
        stage = pipelines.split(self.row[self.i])[0]
        begin, end = sorted(self.rng.sample(range(len(self.row) + 2), 2))
        self.row.insert(begin, f"{stage}UNSHARD")
        if self.rng.random() < 0.8:
            self.row.insert(end, f"{stage}RESHARD")

    def claim(self) -> None:
        name = self.rng.choice(["makespan", "lower_bound"])
        self.doc["meta"][name] = self.rng.randint(0, 200)


def mutant(rng: random.Random) -> Document:
    """A right collective under random names, then one to three changes."""
    doc = shuffled(rng.choice(RIGHT), rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        CollectiveChange(doc, rng)
    return doc


def pipeline_mutant(rng: random.Random) -> Document:
    """A right pipeline in a random instance, then none to three changes."""
    doc = pipelines.in_a_random_instance(copy.deepcopy(rng.choice(RIGHT_PIPELINES)), rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        PipelineChange(doc, rng)
    return doc


def random_schedule(rng: random.Random) -> Document:
    """Anything at all: few ranks and chunks, any transfers, any ports, any absences."""
    n = rng.randint(2, 4)
    k = rng.randint(1, 2)
    late = sorted(rng.sample(range(n), rng.choice((0, 0, 1, min(2, n)))))
    ops = rng.choice((["reduce"], ["reduce", "copy"], ["reduce", "reduce", "copy"]))

    def move() -> list[int | str]:
        src = rng.randrange(n)
        dst = src
        if rng.random() < 0.99:
            dst = rng.choice([rank for rank in range(n) if rank != src])
        return [src, dst, rng.randrange(k), rng.choice(ops)]

    phases = []
    for number in range(rng.randint(0, 3)):
        absent = [r for r in late if rng.random() < 0.4]
        lengths = [rng.choice((0, 1, 1, 2, 3)) for _ in range(rng.choice((1, 2, 4)))]
        rounds = []
        for length in lengths:
            rounds.append([move() for _ in range(length)])
        phases.append((f"phase {number}", absent, rounds))
    ports = rng.choice(["duplex", "matching", {"incast": 1}, {"incast": 2}, {"incast": 3}])
    return document(n, k, phases, ports=ports, late=late)
