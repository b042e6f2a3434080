"""What is shown of a transpose.

Two predictions, because incast helps latency only where messages overlap: *one at a time*, a rank
pays alpha for each message of a round; *overlapped*, once per round. Two bounds on time hold for
every AllReduce of n ranks whose ports carry 1 / beta bytes per second each way: the 2 (n - 1) S
bytes that must be received in all, over n ports (the bandwidth bound of ``verify/core/bounds.py``),
and ceil(log_{I+1} n) alpha until any rank can have all contributions (the dissemination bound).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from latecomer.synth import show
from latecomer.synth.cost import Cost, Latency, Setting, completion_cost
from latecomer.synth.units import format_seconds
from latecomer.verify.core.bounds import dissemination_bound
from latecomer.verify.core.schedule import Incast, Schedule

LATENCIES: dict[str, Latency] = {"one at a time": "message", "overlapped": "round"}


def text(path: str, answer: show.Collective, setting: Setting | None) -> str:
    """The lines for people."""
    schedule = answer.schedule
    incast = _incast(schedule)
    assert isinstance(schedule.ports, Incast)
    chunks_at_once = schedule.ports.incast

    claim = f": {answer.claim}" if answer.optimal else ""
    lines = [
        f"rounds        {show.phases(schedule)} = {schedule.rounds}",
        f"lower bound   {answer.bound} rounds for any AllReduce through these ports{claim}",
    ]
    fewest_rounds = _fewest_without_detours(schedule)
    if fewest_rounds is not None:
        lines.append(f"              {fewest_rounds} without detours over a third rank")
    for name, latency in LATENCIES.items():
        lines.append(f"{name:<13} {_predicted_text(schedule, latency, setting)}")

    title = f"transpose {show.size(schedule)}, incast {incast}"
    if chunks_at_once > incast:
        title += f" of messages, {chunks_at_once} of chunks"
    return show.text(path, title, [*lines, show.legend(setting)])


def _predicted_text(schedule: Schedule, latency: Latency, setting: Setting | None) -> str:
    """What it costs, and what no AllReduce goes below; with a setting in seconds, too."""
    cost = completion_cost(schedule, latency)
    bound = _time_bound(schedule, latency)
    if setting is None:
        predicted = str(cost)
        at_least = f"{bound.messages} alpha, or {float(bound.share):.4g} S*beta"
    else:
        predicted = f"{cost} = {format_seconds(setting.seconds(cost))}"
        at_least = format_seconds(_least_seconds(bound, setting))
    return f"{predicted}; no AllReduce takes less than {at_least}"


def facts(path: str, answer: show.Collective, setting: Setting | None) -> dict[str, Any]:
    """The facts of :func:`text`."""
    schedule = answer.schedule
    buffer = None
    if setting is not None:
        link = {"alpha_s": setting.alpha_s, "bandwidth": setting.bandwidth}
        buffer = {"size_bytes": setting.buffer_bytes, "link": link}
    return {
        **show.facts(path, answer),
        "incast": _incast(schedule),
        "rounds": schedule.rounds,
        "fewest_rounds_without_detours": _fewest_without_detours(schedule),
        "buffer": buffer,
        "predicted": {
            name.replace(" ", "_"): _prediction(schedule, latency, setting)
            for name, latency in LATENCIES.items()
        },
    }


def _incast(schedule: Schedule) -> int:
    """Messages that a rank receives at the same time."""
    incast = schedule.meta["incast"]
    assert isinstance(incast, int)
    return incast


def _fewest_without_detours(schedule: Schedule) -> int | None:
    """Rounds of any schedule without detours; None with groups, where sums do take one."""
    if schedule.meta["groups"] != 1:
        return None
    return 2 * -(-(schedule.ranks - 1) // _incast(schedule))


def _prediction(schedule: Schedule, latency: Latency, setting: Setting | None) -> dict[str, Any]:
    bound = _time_bound(schedule, latency)
    return {
        **show.cost_facts(completion_cost(schedule, latency), setting),
        "at_least_alphas": bound.messages,
        "at_least_share": float(bound.share),
        "at_least_seconds": None if setting is None else _least_seconds(bound, setting),
    }


def _time_bound(schedule: Schedule, latency: Latency) -> Cost:
    """Two bounds in one: so many alphas, and so large a share of S*beta; not their sum."""
    n = schedule.ranks
    at_once = _incast(schedule) if latency == "round" else 1
    return Cost(dissemination_bound(n, 1, at_once), Fraction(2 * (n - 1), n))


def _least_seconds(bound: Cost, setting: Setting) -> float:
    latency_alone = Cost(bound.messages, Fraction(0))
    bytes_alone = Cost(0, bound.share)
    return max(setting.seconds(latency_alone), setting.seconds(bytes_alone))
