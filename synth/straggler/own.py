"""The closed form as a runtime takes it: for any number of chunks, one rank's part at a time.

The whole, made in one piece by another way through the same construction, is there for comparison:
whoever runs a part can have the whole proved first and see that it has its part of that.
"""

from __future__ import annotations

from synth.straggler.closed_form import ClosedForm
from synth.straggler.instance import Instance
from synth.straggler.program import OwnRound, program
from verify.arrays import phase, with_table
from verify.core.schedule import Phase, Round, Schedule, Transfer


def own_part(n: int, rank: int, chunks: int) -> Schedule:
    """All transfers of ``rank`` (the last is late), in their rounds; those of other ranks are not
    there. ArgumentError as :func:`synth.straggler.program.program`.
    """
    made = program(n, rank, chunks=chunks)

    def seen(each: OwnRound) -> Round:
        sent = each.send
        got = each.receive
        sends = (Transfer(rank, sent.peer, sent.chunk, sent.op),) if sent else ()
        return (*sends, *((Transfer(got.peer, rank, got.chunk, got.op),) if got else ()))

    waiting, completion = (tuple(map(seen, rounds)) for rounds in (made.waiting, made.completion))
    phases: tuple[Phase, ...]
    phases = Phase("reduce_scatter", (n - 1,), waiting), Phase("completion", (), completion)
    phases = phases if waiting else phases[1:]
    return Schedule(ranks=n, chunks=chunks, phases=phases, late=(n - 1,))


def whole(n: int, chunks: int) -> Schedule:
    """The transfers of all ranks, as ``synth generate --owners free`` writes them; not proved yet.

    ``synth.straggler.generate`` has what it makes proved. Who asks here has it proved himself, and
    would otherwise wait for that twice.
    """
    form = ClosedForm(Instance(n, chunks))
    waiting = form.waiting()
    phases = [phase("completion", (), form.completion())]

    if waiting:
        phases.insert(0, phase("reduce_scatter", (n - 1,), waiting))

    return with_table(Schedule(ranks=n, chunks=chunks, phases=tuple(phases), late=(n - 1,)))
