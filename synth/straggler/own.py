"""The closed form as a runtime takes it: for any number of chunks, one rank's part at a time."""

from __future__ import annotations

from synth.straggler.program import OwnRound, program
from verify.core.schedule import Phase, Round, Schedule, Transfer


def own_part(n: int, rank: int, chunks: int) -> Schedule:
    """All transfers of ``rank`` (the last is late), in their rounds; those of other ranks are not
    there. ArgumentError as :func:`synth.straggler.program.program`.
    """
    made = program(n, rank, chunks=chunks)

    def seen(each: OwnRound) -> Round:
        sent, got = each.send, each.receive
        sends = (Transfer(rank, sent.peer, sent.chunk, sent.op),) if sent else ()
        return (*sends, *((Transfer(got.peer, rank, got.chunk, got.op),) if got else ()))

    waiting, completion = (tuple(map(seen, rounds)) for rounds in (made.waiting, made.completion))
    phases: tuple[Phase, ...]
    phases = Phase("reduce_scatter", (n - 1,), waiting), Phase("completion", (), completion)
    phases = phases if waiting else phases[1:]
    return Schedule(ranks=n, chunks=chunks, phases=phases, late=(n - 1,))
