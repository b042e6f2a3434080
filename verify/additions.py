"""What is printed about a file that was checked, and the files that options ask for beside it."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from latecomer.verify import kernel
from latecomer.verify.asynchronous.render import render as render_asynchronous
from latecomer.verify.asynchronous.teccl import FlowReport
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.certify import certificate
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import BaseReport, Report, Verdict
from latecomer.verify.device import command as device_command
from latecomer.verify.families import Parsed
from latecomer.verify.loss import command as loss_command
from latecomer.verify.options import Options
from latecomer.verify.output import print_now, write_atomically
from latecomer.verify.pipeline.render import render as render_pipeline
from latecomer.verify.pipeline.schedule import PipelineSchedule
from latecomer.verify.pipeline.verdict import PipelineReport
from latecomer.verify.report.addition import Addition
from latecomer.verify.report.render import render, to_json
from latecomer.verify.symbolic import require_few_unknowns, smt2
from latecomer.verify.viewer.command import write_page


class Output(msgspec.Struct):
    """What is printed about one file.

    Attributes:
        text: for people.
        json: for machines.
        verdicts: on the file, and on what options examine beside it; the worst is the exit code.
    """

    text: str
    json: dict[str, Any]
    verdicts: list[Verdict]

    def add(self, name: str, addition: Addition) -> None:
        """Append what an option adds, in JSON as the object ``name``."""
        self.text = f"{self.text}\n{addition.text}"
        self.json = {**self.json, name: addition.json}
        self.verdicts.append(addition.verdict)


def output_of(parsed: Parsed, report: BaseReport, options: Options) -> Output:
    """What to print about a file, after all that options ask for was examined and written.

    Args:
        parsed: the file.
        report: what ``latecomer.verify.families.check`` says of it.
        options: those that the file's family takes.

    Raises:
        ArgumentError: something can't be drawn, asked or written.
    """
    if isinstance(report, Report):
        output = _output_of_collective(parsed, report, options)
    elif isinstance(report, PipelineReport):
        output = _output_of_pipeline(parsed, report)
    elif isinstance(report, AsynchronousReport):
        text = render_asynchronous(str(parsed.path), report)
        output = Output(text, report.to_json(), [report.verdict])
    else:
        assert isinstance(report, FlowReport)
        output = Output(report.text(str(parsed.path)), report.to_json(), [report.verdict])

    write_page(options.html, options.html_part, parsed.path, parsed.data, parsed.decoded, report)
    return output


def _output_of_pipeline(parsed: Parsed, report: PipelineReport) -> Output:
    assert isinstance(parsed.decoded, PipelineSchedule)
    text = render_pipeline(str(parsed.path), parsed.decoded, report)
    return Output(text, report.to_json(), [report.verdict])


def _output_of_collective(parsed: Parsed, report: Report, options: Options) -> Output:
    """A collective's report, with its certificate, Z3's question, losses and device program."""
    schedule = parsed.decoded
    assert isinstance(schedule, Schedule)
    name = str(parsed.path)

    if options.certify is not None:
        digest = hashlib.sha256(parsed.data).hexdigest()
        proof = certificate(schedule, report, digest, options.certify)
        write_atomically(options.certify, proof.encode())

    output = Output(render(name, schedule, report), to_json(schedule, report), [report.verdict])

    # A schedule that is not well formed names ranks or chunks that the question has no unknown for.
    if options.smt2 is not None and report.results["well_formed"].verdict is Verdict.PROVED:
        _write_question(schedule, options.smt2)

    if options.loss is not None:
        losses = loss_command.addition(
            name, schedule, report, options.loss, options.timeout_s, options.draw
        )
        output.add("loss", losses)

    if options.device is not None and options.nodes is not None:
        stages = device_command.addition_in_stages(schedule, report, options.device, options.nodes)
        output.add("device", stages)
    elif options.device is not None:
        opinion = None
        if options.kernel:
            opinion = partial(kernel.opinion, timeout_s=options.timeout_s)
        kernels = device_command.addition(schedule, report, options.device, parsed.data, opinion)
        output.add("device", kernels)
    return output


def _write_question(schedule: Schedule, path: Path) -> None:
    require_few_unknowns(schedule, str(path))
    if os.fspath(path) == "-":
        print_now(smt2(schedule), sys.stdout)
    else:
        write_atomically(path, smt2(schedule).encode())
