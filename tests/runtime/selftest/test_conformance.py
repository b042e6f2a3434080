"""The conformance suite itself."""

from __future__ import annotations

import pytest
from torch._C._distributed_c10d import HashStore

from runtime.selftest import conformance
from runtime.selftest.audit import Audit
from verify.errors import RankFailure


@pytest.mark.parametrize("check", [None, "audit"])
def test_a_rank_that_is_gone_in_the_middle_is_named(check, monkeypatch):
    monkeypatch.setattr(conformance, "TIMEOUT_S", 0.05)
    monkeypatch.setattr("runtime.selftest.audit.TIMEOUT_S", 0.05)
    store = HashStore()
    audit = Audit([], 1000, store, 1, 2) if check else None
    with pytest.raises(RankFailure, match="did not join") as caught:
        conformance.run(lambda tensor, average: tensor, store, 1, 2, sizes=(0,), check=audit)
    assert caught.value.ranks == (0,)
