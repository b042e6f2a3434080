"""What the next view is: who goes on, who is behind, who computes what, who may come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.elastic.view import Member, Standing, View, dealt, next_view

MICROBATCHES = 8


def _view(ranks, *, step=5, owners=None):
    return View(
        number=3,
        members=tuple(Member(10 + rank, f"10.0.0.{rank}:1") for rank in range(ranks)),
        step=step,
        behind=(),
        newcomers=(),
        owners=owners or dealt(MICROBATCHES, ranks),
        store="",
    )


def _standing(done, *, has_state=True, grows=False):
    return Standing(done=done, has_state=has_state, grows=grows)


NEWCOMER = Member(99, "10.0.0.9:1", "application")


def test_the_lost_ones_microbatches_go_to_who_has_fewest_and_the_others_keep_theirs():
    following = next_view(
        _view(4), {rank: _standing(5) for rank in (0, 2, 3)}, (), "there", number=4
    )
    assert following.number == 4
    assert following.replicas == (10, 12, 13)
    assert following.store == "there"
    assert (following.step, following.behind, following.newcomers) == (5, (), ())
    assert following.owners == (0, 0, 0, 1, 1, 1, 2, 2)
    assert following.microbatches(12, 5) == [3, 4, 5]
    assert following.microbatches(12, 6) == [3, 4, 5]  # of a step in which nothing happens


def test_who_lacks_the_last_results_is_behind_and_gets_them_from_one_who_has_them():
    standings = {0: _standing(5), 1: _standing(6), 3: _standing(6)}
    following = next_view(_view(4), standings, (), "", number=4)
    assert following.step == 6
    assert following.behind == (0,)
    assert following.giver == 1


def test_a_newcomer_comes_in_behind_where_all_have_ended_the_step():
    standings = {rank: _standing(6, grows=True) for rank in range(3)}
    following = next_view(_view(3), standings, (NEWCOMER,), "", number=4)
    assert following.replicas == (10, 11, 12, 99)
    assert following.newcomers == following.behind == (3,)
    assert following.owners == dealt(MICROBATCHES, 4)
    assert following.giver == 0


def test_nobody_comes_in_where_one_has_failed_or_is_behind():
    grows = {rank: _standing(6, grows=True) for rank in range(3)}
    for other in (_standing(6), _standing(5, grows=True)):
        following = next_view(_view(3), {**grows, 1: other}, (NEWCOMER,), "", number=4)
        assert following.newcomers == ()
        assert following.replicas == (10, 11, 12)


def test_a_member_that_has_no_state_yet_is_left_out():
    standings = {0: _standing(6), 1: _standing(5, has_state=False)}
    following = next_view(_view(2, step=6), standings, (), "", number=4)
    assert following.replicas == (10,)
    assert following.behind == ()


@given(st.data())
def test_every_microbatch_has_one_owner_and_survivors_keep_theirs(data):
    ranks = data.draw(st.integers(1, 6))
    owners = data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=20))
    view = _view(ranks, owners=tuple(owners))
    staying = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    following = next_view(view, {rank: _standing(5) for rank in staying}, (), "", number=4)
    order = sorted(staying)
    dealt_out = []
    for rank, old in enumerate(order):
        own = following.microbatches(10 + old, 5)
        dealt_out += own
        assert {each for each, owner in enumerate(owners) if owner == old} <= set(own)
        assert all(following.owners[each] == rank for each in own)
    assert sorted(dealt_out) == list(range(len(owners)))
