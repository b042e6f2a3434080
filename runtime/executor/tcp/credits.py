"""What a rank allows others to send it, and when.

The receive side of a port is used best by one transfer at a time, the one that is due by the order
of rounds, but it must never stand idle while another could use it. So the first receive of a phase
that is not complete is granted a window, the few behind it a share of their chunk, so that they
can fill a gap, and a window of their own as soon as those before are nearly done.

A phase is a *lane*: receives of the next operation stand behind those of the one before, phase by
phase, so the helpers reduce the next bucket while the completion of the last one still waits for
the late rank. All ranks submit in the same order, every lane is first in, first out, and the due
receive of every lane is granted without condition: with the schedule's own proof this rules out
deadlock.

How large the windows are: ``runtime.executor.tcp.sizes``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from runtime.executor.tcp.connection import Connection
from runtime.executor.tcp.sizes import Sizes
from runtime.executor.tcp.transfer import TransferState

AHEAD_SHARE = 4  # a transfer behind the due one may be a quarter of its chunk ahead
AHEAD_TRANSFERS = 2


class ReceiveCredits:
    """The lanes of one rank.

    Args:
        lanes: how many.
        links: carry the grants.
        gone: ranks whose connections are closed.
        sizes: of the windows.
    """

    def __init__(
        self, lanes: int, links: Mapping[int, Connection], gone: Collection[int], sizes: Sizes
    ) -> None:
        self._lanes: list[deque[TransferState]] = [deque() for _ in range(lanes)]
        self._settled = [True] * lanes  # everything in the lane is granted
        self._links, self._gone, self._sizes = links, gone, sizes

    def enter(self, flow: TransferState) -> None:
        """An operation takes its place at the end of each lane."""
        for lane, receives in enumerate(flow.plan.lanes):
            if receives:
                self._lanes[lane].append(flow)
                self._settled[lane] = False

    def renew(self) -> None:
        """Grant what has become due since the last time."""
        for lane, queue in enumerate(self._lanes):
            while queue and not queue[0].receives_left(lane):
                queue.popleft()
            if not self._settled[lane]:
                self._settled[lane] = self._renew(lane, queue)

    def _renew(self, lane: int, queue: deque[TransferState]) -> bool:
        """Grant what is due in a lane; true if nothing in it is left to be granted."""
        sizes, settled = self._sizes, True
        before = ahead = 0  # bytes that others need first, transfers behind the due ones
        for flow in queue:
            for i in flow.receives_left(lane):
                left = flow.size[i] - flow.done[i]
                if not left:
                    continue
                if before <= sizes.nearly:
                    window = sizes.due
                elif ahead < AHEAD_TRANSFERS:
                    window = min(max(flow.size[i] // AHEAD_SHARE, sizes.wake), sizes.ahead)
                    ahead += 1
                else:
                    return False
                before += left
                size, granted = flow.size[i], flow.granted[i]
                if granted == size:
                    continue
                place = flow.limit(i) if sizes.whole else flow.done[i]
                upto = min(size, place + window)
                settled = settled and upto == size
                if upto - granted >= sizes.wake or upto == size:
                    flow.granted[i] = upto
                    move = flow.plan.all[i]
                    if move.peer not in self._gone:
                        self._links[move.peer].grant(flow, move.index, upto)
        return settled
