"""What a schedule is, and whether it is right. Imports neither ``synth`` nor ``runtime``.

``check`` never raises for a bad schedule, it refutes it; ``read`` and ``decode`` raise FormatError
for what is no schedule file; ``write`` raises ArgumentError where the path can't be written.

Examples:
    A schedule is made of phases of rounds of transfers. Here two ranks add each other's buffer, of
    one chunk, in the same round:

    >>> from latecomer.verify import Phase, Schedule, Transfer, check
    >>> both = (Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 0, "reduce"))
    >>> schedule = Schedule(ranks=2, chunks=1, phases=(Phase("exchange", (), (both,)),))
    >>> report = check(schedule)  # a verify.Report
    >>> report.verdict, report.rounds, report.lower_bound, report.optimal
    (<Verdict.PROVED: 'proved'>, 1, 1, True)

    Without the second transfer rank 0 never gets what rank 1 has; the counterexample says so:

    >>> wrong = Schedule(ranks=2, chunks=1, phases=(Phase("exchange", (), (both[:1],)),))
    >>> report = check(wrong)
    >>> report.verdict
    <Verdict.REFUTED: 'refuted'>
    >>> found = report.counterexample  # a verify.Counterexample
    >>> found.property, found.rank, found.chunk, found.contribution
    ('exactly_once', 0, 0, 1)
    >>> found.expected, found.found
    ('the contribution of rank 1 once', '0 times')

    Three ranks that send to one at once need ports that allow it:

    >>> from latecomer.verify import Incast, Verdict
    >>> gather = tuple(Transfer(src, 0, 0, "reduce") for src in (1, 2, 3))
    >>> spread = tuple(Transfer(0, dst, 0, "copy") for dst in (1, 2, 3))
    >>> phases = (Phase("star", (), (gather, spread)),)
    >>> for ports in ("duplex", Incast(3)):
    ...     report = check(Schedule(ranks=4, chunks=1, ports=ports, phases=phases))
    ...     print(report.results["ports"].verdict is Verdict.PROVED)
    False
    True

    Files are JSON, and compressed if they are called so:

    >>> from latecomer import verify
    >>> verify.write(schedule, "exchange.json.zst")
    >>> verify.read("exchange.json.zst") == schedule
    True
    >>> verify.decode(b'{"format": "latecomer/1", "kind": "allreduce"}', "mine.json")
    Traceback (most recent call last):
    latecomer.verify.core.errors.FormatError: mine.json: Object missing required field `ranks`
"""

if __name__ != "latecomer.verify":
    raise ImportError("verify is a part of latecomer: import latecomer.verify in its place")


from latecomer.verify.core.check import check
from latecomer.verify.core.format import decode, read
from latecomer.verify.core.schedule import Incast, Phase, Schedule, Transfer
from latecomer.verify.core.verdict import Counterexample, Report, Verdict
from latecomer.verify.output import encode, write

__all__ = [
    "Counterexample",
    "Incast",
    "Phase",
    "Report",
    "Schedule",
    "Transfer",
    "Verdict",
    "check",
    "decode",
    "encode",
    "read",
    "write",
]
