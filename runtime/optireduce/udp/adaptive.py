"""What adapts to the network: how long to wait, how many senders at once, how fast to send.

Source: OptiReduce (arXiv 2310.06993), section 3.2. Three state machines, each pure: times, counts
and what other ranks announce in their headers go in, numbers come out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence

from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.reassembly import End, StageReceiver

LEAST_S = 1e-6  # of t_C: the unit in which it travels, where 0 means that it is not known
PERIOD = 8  # stages whose mean loss counts for incast
EXCUSED_FACTOR = 2.0  # a loss up to so many times the excused one is excused
EXCUSED_DECAY = 0.9  # of the excused loss is left after a period
STALL_ROUND_TRIPS = 4
HEAD_ROOM = 3.0  # a window is at most so many times what the network holds
PAUSE_S = 0.01  # a rank that shares its processor pauses so long, beyond its round trip
RATE_KEPT = 0.9  # of a high rate from one stage to the next, so slowly is it forgotten;
LEAST_KEPT = 1.002  # a short round trip by this factor from one credit to the next


def hard_bound_s(times_s: Iterable[Sequence[float]], options: Options) -> float:
    """t_B from the stage times of all ranks, of which there is one at least (section 3.2.1)."""
    times = sorted(time for rank in times_s for time in rank)
    position = min(len(times) - 1, int(len(times) * options.bound_percentile / 100))
    return max(options.bound_floor_s, options.bound_factor * times[position])


class CompletionEstimator:
    """t_C, when a stage (first or second) is expected to be complete, and the grace x % of it.

    Section 3.2.2. Deviations: before the first stage t_C is the time of that stage so far; and x
    doubles only where waiting longer would have helped, that is where datagrams came after the end
    of their stage and within the longest wait that x allows. What the network has lost, or holds
    back for longer, does not come however long one waits.
    """

    def __init__(self, options: Options, bound_s: float) -> None:
        self._options = options
        self.bound_s = bound_s  # t_B: t_C never exceeds it
        self.own_s = 0.0  # this rank's t_C; 0 before its first stage is over
        self.expected_s = 0.0  # t_C: the median over what the ranks announced last; 0: none has yet
        self.percent = options.grace_percent  # x
        self._announced_s = dict[int, float]()  # by rank
        self._reach_s = dict[int, float]()  # by operation: until when a longer wait would have gone
        self._late = 0  # datagrams that came after their stage, and yet within that time

    def grace_s(self, elapsed_s: float) -> float:
        """How long to wait on after the last marks; ``elapsed_s`` stands in for an unknown t_C."""
        expected_s = self.expected_s or elapsed_s
        return max(self._options.grace_floor_s, expected_s * self.percent / 100)

    def announced(self, rank: int, expected_s: float) -> None:
        """Another rank's t_C, from a header (0: it says nothing); held to t_B."""
        if expected_s > 0 and self._announced_s.get(rank) != expected_s:
            self._announced_s[rank] = expected_s
            self._update()

    def late(self, operation: int, count: int, now_s: float) -> None:
        """So many datagrams came when their stage was over."""
        if now_s <= self._reach_s.get(operation, -math.inf):
            self._late += count

    def ended(self, stage: StageReceiver, operation: int, now_s: float) -> None:
        """A stage is over: adapt t_C and x."""
        if not stage.due:
            return
        options = self._options
        received = 1 - stage.loss
        late = self._late / stage.due
        self._late = 0
        self._reach_s = {o: until_s for o, until_s in self._reach_s.items() if until_s >= now_s}
        if stage.end is End.EARLY and stage.quiet_s is not None:
            longest_s = self.expected_s * options.grace_most_percent / 100
            self._reach_s[operation] = stage.quiet_s + longest_s
        timed_out = stage.end is End.TIMEOUT or not received
        sample_s = self.bound_s if timed_out else stage.elapsed_s / received
        weight = options.expected_weight if self.own_s else 1.0
        self.own_s += weight * (max(LEAST_S, min(sample_s, self.bound_s)) - self.own_s)
        self._update()
        if late > options.grace_up_loss:
            self.percent = min(options.grace_most_percent, self.percent * 2)
        elif late < options.grace_down_loss:
            self.percent = max(1.0, self.percent - 1)

    def _update(self) -> None:
        all_s = [self.own_s, *self._announced_s.values()]
        known_s = [expected_s for expected_s in all_s if expected_s > 0]
        self.expected_s = min(self.bound_s, statistics.median(known_s))


class Incast:
    """How many senders a receiver takes at once, and its window: bytes underway from them all.

    Section 3.2.3: each receiver announces a number; a sender uses the smallest announced to it.
    Deviations: it begins with all, since senders that take turns leave ports idle; the window moves
    likewise and first; losses are looked at in periods, as one stage's luck is no sign; a half
    that does not halve the loss is taken back, and losses of that size are excused from then on.
    A window is no larger than what the network holds, as a queue delays what others wait for.

    ``own`` is what this rank announces; never more than its ``peers``, to whom ``pacers`` are.
    """

    def __init__(self, options: Options, peers: int, pacers: Collection[Pacer] = ()) -> None:
        self._options = options
        self._peers = max(1, peers)
        self._pacers = pacers
        self.own = min(options.incast, self._peers)
        self.window_bytes = options.window_bytes
        self._excused = 0.0  # a loss against which a half did not help
        self._clean = 0  # stages in a row without more loss than is allowed
        self._rate = 0.0  # at which stages came: datagrams per second
        self._announced = dict[int, int]()  # by rank
        self._losses = list[float]()  # of the stages of this period
        # while a half is on trial: senders and window before, and what was lost with them
        self._before: tuple[int, int, float] | None = None

    @property
    def allowed(self) -> int:
        """To how many peers this rank may send at once."""
        return max(1, min([self._peers, *self._announced.values()]))

    @property
    def window(self) -> int:
        """How many datagrams may be underway from each sender: bandwidth times round trip."""
        nbytes = self.window_bytes
        datagram_bytes = self._options.datagram_bytes
        if least_s := max((pacer.least_s for pacer in self._pacers), default=0.0):
            holds = int(HEAD_ROOM * self._rate * (least_s + PAUSE_S)) * datagram_bytes
            nbytes = min(nbytes, max(holds, self.own * self._options.grant_bytes))
        return max(1, nbytes // self.own // datagram_bytes)

    def announced(self, rank: int, senders: int) -> None:
        """Another rank's number, from a header."""
        self._announced[rank] = senders

    def ended(self, stage: StageReceiver) -> None:
        """A stage is over: adapt."""
        if not stage.due:
            return
        self._losses.append(stage.loss)
        rate = (stage.due - stage.lost) / max(stage.reached_s, PAUSE_S)
        self._rate = max(rate, RATE_KEPT * self._rate)
        if stage.end is End.TIMEOUT:  # counts at once, not with the period
            self._halve()
            self._before = None
            self._clean = 0
            self._losses = []
            return
        if self._before is None:
            self._rise(stage.loss)
        if len(self._losses) == PERIOD:
            self._judge(sum(self._losses) / PERIOD)
            self._losses = []

    @property
    def _limit(self) -> float:
        return max(self._options.incast_down_loss, EXCUSED_FACTOR * self._excused)

    def _rise(self, loss: float) -> None:
        options = self._options
        self._clean = self._clean + 1 if loss <= self._limit else 0
        if self._clean:
            larger_bytes = self.window_bytes + options.window_step_bytes
            self.window_bytes = min(options.window_most_bytes, larger_bytes)
        if self._clean >= options.incast_up_after:
            self.own = min(self._peers, self.own + 1)
            self._clean = 0

    def _halve(self) -> None:
        # the window first: a smaller one costs little, and fewer senders cost much
        least = self._options.window_bytes
        if self.window_bytes > least:
            self.window_bytes = max(least, self.window_bytes // 2)
        else:
            self.own = max(1, self.own // 2)

    def _judge(self, mean: float) -> None:
        """A period is over: halve, or see whether that has helped."""
        limit = self._limit
        self._excused = self._excused * EXCUSED_DECAY
        trial = self._before
        self._before = None
        if trial is None and mean > limit:
            self._before = (self.own, self.window_bytes, mean)
            self._halve()
        elif trial is not None:
            senders_before, window_before, loss_before = trial
            if mean > loss_before / 2:
                self.own = senders_before
                self.window_bytes = window_before
                self._excused = max(self._excused, loss_before, mean)


class Pacer:
    """How fast to send to one peer: a light rate control in the style of TIMELY (SIGCOMM 2015).

    Up to ``rtt_high_s`` the rate rises by a step, above it falls in proportion (without the lower
    threshold and the trend of the source). It is there to avoid congestion collapse, not to share.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.stall_most_s = options.stall_s
        self.next_s = 0.0  # when the next burst may go
        self.rtt_s = 0.0  # moving average; 0 before the first sample
        self.least_s = 0.0  # the shortest
        self._set(options.rate_start)

    @property
    def stall_s(self) -> float:
        """Silence after which what is underway counts as lost: a few round trips."""
        least_s = max(self._options.stall_s, STALL_ROUND_TRIPS * self.rtt_s)
        return min(self.stall_most_s, least_s) if self.rtt_s else self.stall_most_s

    def sent(self, nbytes: int, now_s: float) -> None:
        """So much was handed to the kernel."""
        self.next_s = max(self.next_s, now_s) + nbytes / self.rate

    def answered(self, rtt_s: float) -> None:
        """A credit came back after ``rtt_s`` seconds."""
        if not 0 <= rtt_s < 60:  # no sample: nothing was sent so long ago
            return
        options = self._options
        self.least_s = min(rtt_s, LEAST_KEPT * (self.least_s or rtt_s))
        if self.rtt_s:
            self.rtt_s = 0.875 * self.rtt_s + 0.125 * rtt_s  # as TCP does (RFC 6298)
        else:
            self.rtt_s = rtt_s
        if rtt_s > options.rtt_high_s:
            self._set(self.rate * (1 - options.rate_decrease * (1 - options.rtt_high_s / rtt_s)))
        else:
            self._set(self.rate + options.rate_step)

    def stalled(self) -> None:
        """Nothing came back: half the rate."""
        self._set(self.rate * self._options.rate_decrease)

    def _set(self, rate: float) -> None:
        self.rate = min(max(rate, self._options.rate_least), self._options.rate_most)
