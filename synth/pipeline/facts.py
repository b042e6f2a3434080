"""What holds in every schedule of a pipeline, as arrays: for the search for refutations.

The facts are those of ``latecomer.verify.pipeline.refutation``, which shares no code with this:
microbatches are alike, so action number m of a stage and kind is the m-th that the stage runs,
whichever it is of.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from latecomer.synth.pipeline.problem import Problem

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
KINDS = "FIW"


class Facts:
    """What holds in every schedule; actions are numbered by stage, kind and microbatch.

    Attributes:
        cost: per action its ticks.
        arcs: per message the sender, the receiver, and the ticks from start to start.
        on: per rank its actions.
        orders: per rank which of its actions surely come before which.
        room: per rank rows (F, I, W), places on the rank: before F, I or W is over.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.n = problem.microbatches
        self.cost = self._costs()
        self.arcs = self._arcs()

        self.on = []
        self.orders = []
        self.room = []
        for stages, limit in zip(problem.stages_of, problem.limits, strict=True):
            actions = [np.arange(3 * self.n) + self.number(stage, 0, 0) for stage in stages]
            order = np.kron(np.eye(len(stages), dtype=bool), self._chain())
            room = np.zeros((0, 3), np.int64)
            if len(stages) == 1:
                room = self._room(order, limit)
            self.on.append(np.concatenate(actions))
            self.orders.append(order)
            self.room.append(room)

    def number(self, stage: int, kind: int, microbatch: int) -> int:
        """The number of an action; ``kind`` is its place in ``KINDS``."""
        return (stage * 3 + kind) * self.n + microbatch

    def _costs(self) -> Ints:
        costs = self.problem.costs
        ticks: list[int] = []
        for stage in range(self.problem.stages):
            for ticks_of_stages in (costs.forward, costs.backward, costs.weight):
                ticks += [ticks_of_stages[stage]] * self.n
        return np.array(ticks)

    def _arcs(self) -> Ints:
        costs = self.problem.costs
        arcs = []
        for stage, (latency, _, _) in enumerate(self.problem.between):
            for m in range(self.n):
                forward = self.number(stage, 0, m)
                next_forward = self.number(stage + 1, 0, m)
                arcs.append((forward, next_forward, costs.forward[stage] + latency))

                backward = self.number(stage + 1, 1, m)
                next_backward = self.number(stage, 1, m)
                arcs.append((backward, next_backward, costs.backward[stage + 1] + latency))
        return np.array(arcs, np.int64).reshape(-1, 3).T

    def _chain(self) -> Bools:
        """F before I before W of a microbatch and all later ones; each kind in order."""
        m = np.arange(self.n)
        strictly = m[:, None] < m[None, :]
        weakly = m[:, None] <= m[None, :]
        never = np.zeros_like(weakly)
        return np.block(
            [[strictly, weakly, weakly], [never, strictly, weakly], [never, never, strictly]]
        )

    def _room(self, order: Bools, limit: int) -> Ints:
        """What memory says of a rank with one stage; what it says of I alone goes into ``order``.

        Before F number k starts, ``ended`` = 2 (k + 1) - limit of the I and W have ended: for any
        i + w = ended - 1, I number i or W number w, since else only i + w have.
        """
        rows = []
        n = self.n
        for k in range(n):
            ended = 2 * (k + 1) - limit
            for i in range(ended):
                w = ended - 1 - i
                # Where i <= w, I number i is over before W number w is: the pair asks for that I
                # alone.
                if i <= w and i < n:
                    order[n + i, k] = True  # a W that early has its I before it
                elif w < n and i < n:
                    rows.append((k, n + i, 2 * n + w))
        return np.array(rows, np.int64).reshape(-1, 3)

    def text(self, action: int) -> str:
        """As in a refutation: 3F5."""
        stage, in_stage = divmod(int(action), 3 * self.n)
        kind, microbatch = divmod(in_stage, self.n)
        return f"{stage}{KINDS[kind]}{microbatch}"

    def texts(self, actions: Ints) -> str:
        """A set as in a refutation: 3F5-9,3I0."""
        runs: list[list[int]] = []
        for action in map(int, np.sort(actions)):
            if runs and runs[-1][1] == action - 1 and action % self.n:
                runs[-1][1] = action
            else:
                runs.append([action, action])

        texts = []
        for first, last in runs:
            text = self.text(first)
            if last > first:
                text += f"-{last % self.n}"
            texts.append(text)
        return ",".join(texts)
