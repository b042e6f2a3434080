"""Pipeline schedules: what they are, and whether they are right and how long they take.

Examples:
    Two stages on two ranks, two microbatches; each rank alternates between forward and backward as
    soon as it can. Actions are written as PyTorch writes them:

    >>> from latecomer.verify.pipeline import Action, PipelineSchedule, check, parse_action, uniform
    >>> parse_action("1F0") == Action(stage=1, kind="F", microbatch=0)
    True
    >>> rows = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    >>> programs = tuple(tuple(map(parse_action, row.split())) for row in rows)
    >>> schedule = PipelineSchedule(
    ...     stages=2, microbatches=2, instance=uniform(2), programs=programs)
    >>> report = check(schedule)  # a PipelineReport
    >>> report.verdict
    <Verdict.PROVED: 'proved'>

    What it takes, in the unit of the instance (here: a forward), and in activations per rank:

    >>> measures = report.measures  # Measures
    >>> measures.makespan, measures.lower_bound, measures.peak_memory
    (9, 7, (2, 1))

    The same over a slow link, where the second rank can hold one activation:

    >>> from latecomer.verify.pipeline import Instance, Link
    >>> slow = Instance(forward=(1, 1), backward=(1, 1), weight=(1, 1), memory=(2, 1),
    ...                 links=(Link((0, 1), latency=5),))
    >>> again = PipelineSchedule(stages=2, microbatches=2, instance=slow, programs=programs)
    >>> check(again).measures.makespan
    19
"""

from latecomer.verify.pipeline.check import check, timeline
from latecomer.verify.pipeline.format import decode, encode, read, write
from latecomer.verify.pipeline.lower import lowered
from latecomer.verify.pipeline.schedule import (
    Action,
    Instance,
    Link,
    PipelineSchedule,
    parse_action,
    uniform,
)
from latecomer.verify.pipeline.torch_csv import decode_csv, encode_csv, read_csv, write_csv
from latecomer.verify.pipeline.verdict import Bar, Measures, PipelineReport
from latecomer.verify.pipeline.waits import with_waits, without_waits

__all__ = [
    "Action",
    "Bar",
    "Instance",
    "Link",
    "Measures",
    "PipelineReport",
    "PipelineSchedule",
    "check",
    "decode",
    "decode_csv",
    "encode",
    "encode_csv",
    "lowered",
    "parse_action",
    "read",
    "read_csv",
    "timeline",
    "uniform",
    "with_waits",
    "without_waits",
    "write",
    "write_csv",
]
