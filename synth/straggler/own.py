"""The closed form as a runtime takes it: for any number of chunks, one rank's part at a time.

The whole, made in one piece by another way through the same construction, is there for comparison:
whoever runs a part can have the whole proved first and see that it has its part of that.
"""

from __future__ import annotations

from latecomer.synth.straggler.closed_form import ClosedForm
from latecomer.synth.straggler.instance import Instance
from latecomer.synth.straggler.program import OwnRound, program
from latecomer.verify.arrays import phase, with_table
from latecomer.verify.core.schedule import Phase, Round, Schedule, Transfer


def own_part(n: int, rank: int, chunks: int) -> Schedule:
    """All transfers of ``rank`` (the last is late), in their rounds; those of other ranks are not
    there. ArgumentError as :func:`latecomer.synth.straggler.program.program`.
    """
    own_program = program(n, rank, chunks=chunks)
    waiting = tuple(_as_round(rank, own_round) for own_round in own_program.waiting)
    completion = tuple(_as_round(rank, own_round) for own_round in own_program.completion)

    phases = [Phase("completion", (), completion)]
    if waiting:
        phases.insert(0, Phase("reduce_scatter", (n - 1,), waiting))
    return Schedule(ranks=n, chunks=chunks, phases=tuple(phases), late=(n - 1,))


def _as_round(rank: int, own_round: OwnRound) -> Round:
    """The transfers of ``rank`` in a round, of which it is one end."""
    transfers = []
    send = own_round.send
    if send is not None:
        transfers.append(Transfer(rank, send.peer, send.chunk, send.op))
    receive = own_round.receive
    if receive is not None:
        transfers.append(Transfer(receive.peer, rank, receive.chunk, receive.op))
    return tuple(transfers)


def whole(n: int, chunks: int) -> Schedule:
    """The transfers of all ranks, as ``synth generate --owners free`` writes them; not proved yet.

    ``latecomer.synth.straggler.generate`` has what it makes proved. Who asks here has it proved
    himself, and would otherwise wait for that twice.
    """
    form = ClosedForm(Instance(n, chunks))
    waiting = form.waiting()
    phases = [phase("completion", (), form.completion())]

    if waiting:
        phases.insert(0, phase("reduce_scatter", (n - 1,), waiting))

    return with_table(Schedule(ranks=n, chunks=chunks, phases=tuple(phases), late=(n - 1,)))
