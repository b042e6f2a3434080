"""How long an operation takes by each method, and how long to wait for who is missing.

Legend: S bytes of the buffer; a cost is ``messages * alpha + share * S * beta``. With a late rank
that comes L seconds after the others, from the others' arrival on:

    native      L + N                 nothing can be done before it comes
    schedule    max(L, W) + C         W: the waiting phases, C: the completion after its arrival

On machines of several ranks a two-level schedule's C counts what moves between machines and what
moves inside them, each with the alpha and beta measured there. Its phases overlap, since the links
carry the one to the late rank's machine and the other away from it; so W is what the whole takes
with all ranks on time, as measured, less C.

Source: docs/explanation/cost.md. Deviation: native and schedules run on different transports, so
they have an alpha and a beta each, corrected by what was seen (``history.ModelCorrection``).

A wait that is given up after tau takes L + N if L <= tau, else tau + max(L - tau, W) + C.
*Break-even*, where nothing is known of L: tau = W + C - N, what a start just before its arrival
loses. So no operation loses more than that twice over. *Learned*: the tau with the least mean time
over the L seen lately, given that L is longer than what has passed already. Source of both: ski
rental (Karlin et al., 1988; with known distributions, Karlin et al., 1994). Deviations: the price
of buying, W + C - N, depends on L; and while the links are busy with operations before (until
``free_s``) nothing is gained by starting, so neither way begins to count before that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from latecomer.runtime.collective import ALL_REDUCE, Collective
from latecomer.runtime.policy.messages import NATIVE
from latecomer.verify.errors import ArgumentError

LEAST_GAIN = 0.02  # of the native time: what a schedule must promise to gain, or native runs


class AlphaBeta(msgspec.Struct, frozen=True):
    """Seconds per message and seconds per byte."""

    alpha_s: float
    beta_s: float

    def seconds(self, messages: float, share: float, nbytes: int) -> float:
        """The time of so many messages and that share of ``nbytes`` bytes."""
        return messages * self.alpha_s + share * nbytes * self.beta_s


class MachinesProfile(msgspec.Struct, frozen=True):
    """What is measured where the job's machines have several ranks each."""

    ranks_per_machine: int
    inside: AlphaBeta  # of the native all-reduce of one machine's ranks
    between: AlphaBeta  # of the native all-reduce of one rank of each machine
    on_time: dict[str, AlphaBeta]  # by the candidate's name: the whole, as one message, nobody late


class Profile(msgspec.Struct, frozen=True):
    """What ``latecomer profile`` measures: the library's all-reduce, and our executor.

    ``on_time``: by class of sizes, the name of the schedule that is fastest where all ranks are
    waited for, or "native"; classes that are missing are still to be tried.
    """

    ranks: int
    native: AlphaBeta
    schedule: AlphaBeta
    machines: MachinesProfile | None = None
    hosts: tuple[int, ...] = ()  # how many ranks each host had, in order of ranks; (): not known
    on_time: dict[int, str] = {}

    def for_some(self, ranks: int) -> Profile:
        """The same links between so many of the ranks; which hosts these are on is not known."""
        on_time = self.on_time if ranks == self.ranks else {}
        return msgspec.structs.replace(self, ranks=ranks, machines=None, hosts=(), on_time=on_time)

    def native_s(self, nbytes: int) -> float:
        """N: the native all-reduce of ``nbytes`` bytes, taken as a ring."""
        hops = 2 * (self.ranks - 1)
        return self.native.seconds(hops, hops / self.ranks, nbytes)


PROFILE = msgspec.json.Decoder(Profile)  # with the module: see latecomer.verify.core.format


def read(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file that ``latecomer profile`` wrote; else ArgumentError."""
    try:
        return PROFILE.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        remedy = "Make one with: torchrun ... -m latecomer profile"
        problem = f"is no profile ({error})"
        raise ArgumentError("profile", os.fspath(path), problem, remedy) from None


class Phase(msgspec.Struct, frozen=True):
    """What a part of a schedule costs: messages one after the other, share of the buffer."""

    messages: float
    share: float


class TwoLevelCompletion(msgspec.Struct, frozen=True):
    """What a two-level schedule does after the late rank's arrival, by the links it uses."""

    ranks_per_machine: int
    between: Phase  # rounds in which something moves between machines
    inside: Phase  # all other rounds


class ScheduleCandidate(msgspec.Struct, frozen=True):
    """A schedule for so many late ranks; its cost before and after the last one's arrival.

    Of another collective than all-reduce: with nobody late.
    """

    name: str
    late: int
    waiting: Phase
    completion: Phase
    on_demand: bool = False  # made in the background when a size asks for it
    two_level: TwoLevelCompletion | None = None
    collective: Collective = ALL_REDUCE


class Times(msgspec.Struct, frozen=True):
    """One candidate and one buffer size: W and C, in seconds."""

    candidate: int
    waiting_s: float
    completion_s: float

    def total_s(self, lateness_s: float) -> float:
        """From the others' arrival to the end, if it is started at once."""
        return max(lateness_s, self.waiting_s) + self.completion_s


def times(
    candidates: tuple[ScheduleCandidate, ...],
    profile: Profile,
    late: int,
    nbytes: int,
    collective: Collective = ALL_REDUCE,
) -> list[Times]:
    """W and C of every candidate for ``late`` late ranks of which the profile can tell them."""
    predicted = []
    for index, candidate in enumerate(candidates):
        if candidate.late != late or candidate.collective != collective:
            continue
        if candidate.two_level is None:
            waiting_s = _phase_s(candidate.waiting, profile.schedule, nbytes)
            completion_s = _phase_s(candidate.completion, profile.schedule, nbytes)
            predicted.append(Times(index, waiting_s, completion_s))
        elif _was_measured(candidate, profile.machines):
            assert profile.machines is not None
            predicted.append(_two_level_times(index, candidate, profile.machines, nbytes))
    return predicted


def _phase_s(phase: Phase, cost: AlphaBeta, nbytes: int) -> float:
    return cost.seconds(phase.messages, phase.share, nbytes)


def _was_measured(candidate: ScheduleCandidate, machines: MachinesProfile | None) -> bool:
    """Whether the profile is of this two-level candidate on such machines (a file may not be)."""
    two_level = candidate.two_level
    assert two_level is not None
    return (
        machines is not None
        and machines.ranks_per_machine == two_level.ranks_per_machine
        and candidate.name in machines.on_time
    )


def _two_level_times(
    index: int, candidate: ScheduleCandidate, machines: MachinesProfile, nbytes: int
) -> Times:
    """W and C of a two-level candidate: see the top of this module."""
    completion = candidate.two_level
    assert completion is not None
    between_s = _phase_s(completion.between, machines.between, nbytes)
    inside_s = _phase_s(completion.inside, machines.inside, nbytes)
    on_time_s = machines.on_time[candidate.name].seconds(1, 1, nbytes)

    # the model of the parts may exceed the whole, which was measured
    completion_s = min(between_s + inside_s, on_time_s)
    return Times(index, on_time_s - completion_s, completion_s)


@dataclass(frozen=True)
class Wait:
    """Wait until ``tau_s`` after the last arrival (by default for all), then run ``candidate``."""

    tau_s: float = math.inf
    candidate: int = NATIVE
    mean_s: float = math.nan  # predicted from the others' arrival on (NaN at break-even)
    native_s: float = math.nan  # the same if all are waited for


def worth_s(native_s: float, schedules: Sequence[Times]) -> float:
    """What a schedule saves at best, when the rank comes late enough; 0 if nothing."""
    completion_s = min((schedule.completion_s for schedule in schedules), default=math.inf)
    if completion_s >= (1 - LEAST_GAIN) * native_s:
        return 0.0
    return max(0.0, native_s - completion_s)


def break_even(native_s: float, schedules: Sequence[Times]) -> Wait:
    """The wait where nothing is known of the lateness."""
    if not worth_s(native_s, schedules):
        return Wait()

    def price_s(schedule: Times) -> float:
        """What a start just before the late rank's arrival loses against native."""
        return max(0.0, schedule.waiting_s + schedule.completion_s - native_s)

    best = min(schedules, key=lambda schedule: schedule.completion_s + price_s(schedule))
    if not worth_s(native_s, [best]):
        return Wait()
    return Wait(price_s(best), best.candidate)


def learned(
    lateness_s: Sequence[float],
    passed_s: float,
    native_s: float,
    schedules: Sequence[Times],
    free_s: float = 0.0,
) -> Wait:
    """The best wait for a lateness drawn from those of ``lateness_s`` that exceed ``passed_s``.

    At least one must. A wait for all is taken unless a schedule gains ``LEAST_GAIN``.
    """
    possible = [lateness for lateness in lateness_s if lateness > passed_s]
    latenesses = np.sort(np.asarray(possible, dtype=float))
    assert len(latenesses)

    native_ends = np.maximum(latenesses, free_s) + native_s
    mean_for_all_s = float(native_ends.mean())
    wait_for_all = Wait(mean_s=mean_for_all_s, native_s=mean_for_all_s)
    if not schedules:
        return wait_for_all

    # it pays to start only right after an arrival; after the last one nobody is missing
    taus = np.concatenate(([passed_s], latenesses[:-1]))

    # axes: schedule, tau, lateness
    waiting_s = np.array([schedule.waiting_s for schedule in schedules])[:, None, None]
    completion_s = np.array([schedule.completion_s for schedule in schedules])[:, None, None]
    begins = np.maximum(taus, free_s)[:, None]
    schedule_ends = begins + np.maximum(latenesses - begins, waiting_s) + completion_s
    in_time = latenesses <= taus[:, None]
    means = np.where(in_time, native_ends, schedule_ends).mean(axis=2)

    best_schedule, best_tau = divmod(int(means.argmin()), len(taus))
    mean_s = float(means[best_schedule, best_tau])
    if mean_s >= mean_for_all_s - LEAST_GAIN * native_s:
        return wait_for_all
    candidate = schedules[best_schedule].candidate
    return Wait(float(taus[best_tau]), candidate, mean_s, mean_for_all_s)
