"""What holds in every schedule of a pipeline, as arrays: for the search for refutations.

The facts are those of ``verify.pipeline.refutation``, which shares no code with this: microbatches
are alike, so action number m of a stage and kind is the m-th that the stage runs, whichever it is
of.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from synth.pipeline.problem import Problem

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
        self.problem, self.n = problem, problem.microbatches
        costs = problem.costs
        stages = problem.stages
        per_stage = (costs.forward, costs.backward, costs.weight)
        self.cost = np.array(
            [per_stage[k][s] for s in range(stages) for k in range(3) for _ in range(self.n)]
        )
        arcs = []
        for s, (latency, _, _) in enumerate(problem.between):
            for m in range(self.n):
                forward = self.number(s, 0, m)
                back = self.number(s + 1, 1, m)
                arcs.append((forward, self.number(s + 1, 0, m), costs.forward[s] + latency))
                arcs.append((back, self.number(s, 1, m), costs.backward[s + 1] + latency))
        self.arcs = np.array(arcs, np.int64).reshape(-1, 3).T
        self.on = [
            np.concatenate([np.arange(3 * self.n) + self.number(s, 0, 0) for s in mine])
            for mine in problem.stages_of
        ]
        self.orders = []
        self.room = []
        for mine, limit in zip(problem.stages_of, problem.limits, strict=True):
            order = np.kron(np.eye(len(mine), dtype=bool), self._chain())
            room = np.zeros((0, 3), np.int64)
            if len(mine) == 1:
                room = self._room(order, limit)
            self.orders.append(order)
            self.room.append(room)

    def number(self, stage: int, kind: int, microbatch: int) -> int:
        """The number of an action."""
        return (stage * 3 + kind) * self.n + microbatch

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
        rows = []
        n = self.n
        for k in range(n):
            for i in range(2 * (k + 1) - limit):
                w = 2 * (k + 1) - limit - 1 - i
                if i <= w and i < n:
                    order[n + i, k] = True  # a W that early has its I before it
                elif w < n and i < n:
                    rows.append((k, n + i, 2 * n + w))
        return np.array(rows, np.int64).reshape(-1, 3)

    def text(self, action: int) -> str:
        """As in a refutation: 3F5."""
        stage, rest = divmod(int(action), 3 * self.n)
        return f"{stage}{KINDS[rest // self.n]}{rest % self.n}"

    def texts(self, actions: Ints) -> str:
        """A set as in a refutation: 3F5-9,3I0."""
        runs: list[list[int]] = []
        for action in map(int, np.sort(actions)):
            if runs and runs[-1][1] == action - 1 and action % self.n:
                runs[-1][1] = action
            else:
                runs.append([action, action])
        return ",".join(
            self.text(low) + (f"-{high % self.n}" if high > low else "") for low, high in runs
        )
