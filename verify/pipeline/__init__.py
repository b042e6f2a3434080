"""Pipeline schedules: what they are, and whether they are right and how long they take."""

from verify.pipeline.check import check, timeline
from verify.pipeline.format import decode, encode, read, write
from verify.pipeline.lower import lowered
from verify.pipeline.schedule import (
    Action,
    Instance,
    Link,
    PipelineSchedule,
    parse_action,
    uniform,
)
from verify.pipeline.torch_csv import decode_csv, encode_csv, read_csv, write_csv
from verify.pipeline.verdict import Bar, Measures, PipelineReport

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
    "write",
    "write_csv",
]
