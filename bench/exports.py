"""Exports in the hands of the targets' own code: ``python -m bench.exports [--parser ...] [...]``.

None of that code is part of this project; it is fetched and built elsewhere. ``--parser`` is a
program that calls ``mscclGetAlgoFromXmlFile`` of Azure/msccl-executor-nccl for each rank, as
``PARSER FILE RANKS``, and exits with 0 where all are accepted. ``--converter`` is the folder of
collectiveapi's ``et_converter.py`` and ``--chakra`` one from which ``chakra`` can be imported, with
its schema compiled: the converter must take our MSCCL XML, and Chakra's own decoder read our traces
to the end. ``--python`` runs both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth import standard
from latecomer.synth.export import chakra, msccl_xml
from latecomer.synth.straggler.generate import generate
from latecomer.verify.core.schedule import Schedule

DECODE = """
import sys
from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd
file = openFileRd(sys.argv[1])
assert decodeMessage(file, GlobalMetadata())
count = 0
while decodeMessage(file, Node()):
    count += 1
print(count)
"""


def schedules(n: int) -> list[Schedule]:
    exported = [generate(n, owners="free"), generate(n, chunks=2 * n, owners="free")]
    exported += [standard.ring(n), standard.direct(n)]
    is_power_of_two = n & (n - 1) == 0
    if is_power_of_two:
        exported.append(standard.rhd(n))
    return exported


def accepted(command: list[str | Path], chakra_at: Path | None = None) -> str:
    """The output of a command; RuntimeError with what it said if it fails or complains."""
    environment = {"PYTHONPATH": str(chakra_at)} if chakra_at else None
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    if done.returncode or "Error" in done.stdout + done.stderr:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def main(
    parser: Annotated[Path | None, typer.Option(exists=True)] = None,
    converter: Annotated[Path | None, typer.Option(exists=True)] = None,
    chakra_at: Annotated[Path | None, typer.Option("--chakra", exists=True)] = None,
    python: Annotated[str, typer.Option()] = sys.executable,
    to: Annotated[int, typer.Option(help="The largest number of ranks.")] = 16,
) -> None:
    files = traces = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n in range(2, to + 1):
            for schedule in schedules(n):
                xml = folder / "exported.xml"
                xml.write_bytes(msccl_xml.encode(schedule))
                if parser is not None:
                    accepted([parser.absolute(), xml, str(n)])
                if converter is not None:
                    command: list[str | Path] = [python, converter / "et_converter.py"]
                    command += ["--input_filename", xml]
                    command += ["--output_filename", folder / "converted"]
                    command += ["--log_filename", folder / "log"]
                    accepted(command, chakra_at)
                files += 1
                if chakra_at is None:
                    continue
                for trace in chakra.encode(schedule, 2**20)[:: max(1, n - 1)]:
                    (folder / "ours.et").write_bytes(trace)
                    count = accepted([python, "-c", DECODE, folder / "ours.et"], chakra_at)
                    assert int(count) > 0
                    traces += 1
    print(f"{files} files and {traces} traces for 2 to {to} ranks accepted")


if __name__ == "__main__":
    typer.run(main)
