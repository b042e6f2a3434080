"""Models and pages of documents, as the command makes them."""

import json
from pathlib import Path
from typing import Any

from verify.core.check import check
from verify.core.schedule import Schedule
from verify.families import decode_any
from verify.pipeline import PipelineSchedule
from verify.pipeline import check as check_pipeline
from verify.viewer.command import model_of


def model_of_text(name: str, text: bytes, part: str | None = None) -> dict[str, Any]:
    """The model of a file's text."""
    schedule = decode_any(Path(name), text)
    report: Any = schedule
    if isinstance(schedule, Schedule):
        report = check(schedule)
    elif isinstance(schedule, PipelineSchedule):
        report = check_pipeline(schedule)
    return model_of(name, text, schedule, report, part)


def model_of_document(document: Any, part: str | None = None) -> dict[str, Any]:
    """The model of a JSON document."""
    return model_of_text("schedule.json", json.dumps(document).encode(), part)
