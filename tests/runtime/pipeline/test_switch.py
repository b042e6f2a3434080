"""All ranks change the schedule at one step or none does, whatever comes late or never."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from runtime.pipeline.switch import GO, Proposal, SwitchCoordinator, SwitchMember

NEVER = 10**6
STEPS = 9


class Late:
    """Keys that each reader sees a delay after they are written; a delay of NEVER is a loss."""

    def __init__(self, draw_delay) -> None:
        self.now, self._delay = 0, draw_delay
        self.written: dict[str, tuple[int, bytes]] = {}
        self.seen_at: dict[tuple[str, int], int] = {}


class View:
    def __init__(self, late: Late, rank: int) -> None:
        self._late, self._rank = late, rank

    def put(self, key: str, value: bytes) -> None:
        assert key not in self._late.written, "written twice"
        self._late.written[key] = (self._late.now, value)

    def see(self, key: str) -> bytes | None:
        late = self._late
        if key not in late.written:
            return None
        at, value = late.written[key]
        place = key, self._rank
        if place not in late.seen_at:
            late.seen_at[place] = at + late._delay()
        return value if late.now >= late.seen_at[place] else None


class Waits(Exception):
    """No decision yet: the rank stands still."""


class Rank:
    """Runs steps; votes some time after it noticed a proposal, or never."""

    def __init__(self, rank: int, size: int, late: Late, vote_after: list[int]) -> None:
        view = View(late, rank)
        self.member, self.step, self.version = SwitchMember(view, rank), 0, 0
        self.coordinator = SwitchCoordinator(view, size) if rank == 0 else None
        self.vote_after, self.voting = vote_after, []
        self.ran: list[int] = []
        self.refusals: list[str] = []

    def boundary(self, now: int, propose: bool, ahead: int) -> None:
        """Everything before a step begins, then the step; raises Waits where it has to."""
        self.vote(now)
        if self.coordinator is not None:
            reason = self.coordinator.decide(self.step)
            if reason:
                self.refusals.append(reason)
            if propose and not self.coordinator.busy:
                self.coordinator.propose(self.step + ahead, b"")
        proposal = self.member.notice(self.step)
        if proposal is not None:
            after = self.vote_after[proposal.number % len(self.vote_after)]
            self.voting.append((now + max(after, 0), proposal, after < 0))
        self.vote(now)
        changed = self.change()
        if changed is not None:
            self.version = changed.number + 1
        self.ran.append(self.version)
        self.step += 1

    def change(self) -> Proposal | None:
        def decided(look):
            found = look()
            if found is None:
                raise Waits
            return found

        return self.member.change(self.step, decided)

    def vote(self, now: int) -> None:
        for due, proposal, against in self.voting[:]:
            if now >= due:
                self.voting.remove((due, proposal, against))
                self.member.vote(proposal, "not proved" if against else "")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_one_schedule_per_step_on_all_ranks(data, size: int, ahead: int) -> None:
    delays = st.sampled_from([0] * 9 + [1, 3, 10, NEVER])
    late = Late(lambda: data.draw(delays))
    after = st.lists(st.sampled_from([0] * 8 + [1, 5, 40, -1]), min_size=1, max_size=3)
    ranks = [Rank(r, size, late, data.draw(after)) for r in range(size)]
    for _ in range(40 * size):
        late.now += 1
        behind = min(rank.step for rank in ranks)
        # finishing a step needs everybody in it: nobody begins a step while another is to enter
        # the one before
        able = [r for r in ranks if r.step <= behind + 1 and r.step < STEPS]
        if not able:
            break
        rank = data.draw(st.sampled_from(able))
        try:
            rank.boundary(late.now, data.draw(st.booleans()), ahead)
        except Waits:
            continue
    for step in range(STEPS):
        assert len({rank.ran[step] for rank in ranks if step < len(rank.ran)}) <= 1
    switched = any(rank.version for rank in ranks)
    event(f"switched: {switched}")
    decisions = {k: v for k, (_, v) in late.written.items() if k.startswith("decision")}
    for key, value in decisions.items():
        number = key.split("/")[1]
        votes = [late.written.get(f"vote/{number}/{r}") for r in range(size)]
        assert value != GO or all(vote is not None and vote[1] == b"" for vote in votes)


def test_with_a_prompt_store_two_steps_ahead_is_enough() -> None:
    """Nobody ever waits, in any order of ranks that a pipeline allows."""
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        late = Late(lambda: 0)
        ranks = [Rank(r, 3, late, [0]) for r in range(3)]
        for step in range(4):
            for r in order:
                ranks[r].boundary(late.now, propose=step == 0, ahead=2)
        assert [rank.ran for rank in ranks] == [[0, 0, 1, 1]] * 3
        assert not ranks[0].refusals


def test_a_vote_against_and_a_missing_vote_are_named() -> None:
    for after, text in (([-1], "rank 1: not proved"), ([40], "no vote yet from rank(s) 1")):
        late = Late(lambda: 0)
        ranks = [Rank(0, 2, late, [0]), Rank(1, 2, late, after)]
        for step in range(4):
            for rank in ranks:
                rank.boundary(late.now, propose=step == 0, ahead=2)
        assert [rank.ran for rank in ranks] == [[0] * 4] * 2
        assert ranks[0].refusals == [text]
