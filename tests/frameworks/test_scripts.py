"""Programs of others train on the backend as on Gloo: the scripts of ``examples/frameworks``.

In mode auto with a profile by which no schedule ever pays, every sum is Gloo's and the parameters
are equal. A schedule adds the ranks' contributions in another order.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from tests.frameworks.jobs import AUTO, GLOO, SCHEDULE
from tests.frameworks.scripts import FOLDER, RANKS, Trained, run

TOLERANCE = {
    "accelerate_loop.py": 2e-6,
    "deepspeed_zero1.py": 2e-6,
    "fsdp2_tp.py": 2e-6,
    "hf_trainer.py": 2e-6,
    "lightning_ddp.py": 2e-6,
    "lightning_hook.py": 1e-3,
    "torchtitan_parts.py": 2e-6,
}
"""How far a parameter may be from the reference's with a schedule.

Two orders of adding n numbers differ by at most 2 (n - 1) u times the sum of their absolute values,
u = 6e-8 in float32: for four ranks 4e-7 of the gradient, below 2e-6 after a few of these steps.
The hook sums in float16, where u = 5e-4 and it is 0.3 % of the gradient.
"""


PATHS = {
    "accelerate_loop.py": {"schedule": 5},
    "deepspeed_zero1.py": {"schedule": 16},
    "fsdp2_tp.py": {"schedule": 48, "2 ranks, the schedule is for 4": 84},
    "hf_trainer.py": {"schedule": 16},
    "lightning_ddp.py": {"schedule": 50, "operation MAX": 16},
    "lightning_hook.py": {"schedule": 34},
    "torchtitan_parts.py": {"schedule": 36, "2 ranks, the schedule is for 4": 18},
}
"""Which way the all-reduces of a rank go with a schedule for four, as the page says."""


def _distance(first: list[Trained], second: list[Trained]) -> float:
    """The largest difference of a parameter on any rank; 0 if all are equal."""
    largest = 0.0
    for first_rank, second_rank in zip(first, second, strict=True):
        assert first_rank.parameters.keys() == second_rank.parameters.keys() != set()
        for name, value in first_rank.parameters.items():
            assert np.isfinite(value).all(), name
            largest = max(largest, np.abs(value - second_rank.parameters[name]).max(initial=0.0))
    return largest


@pytest.fixture(scope="module")
def variables(schedules, tmp_path_factory) -> dict[str, dict[str, str]]:
    """The environment of each way."""
    profile = tmp_path_factory.mktemp("profile") / "native.json"
    schedules_are_dear = Profile(RANKS, AlphaBeta(1e-6, 1e-12), AlphaBeta(10.0, 1e-3))
    profile.write_bytes(msgspec.json.encode(schedules_are_dear))
    common = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    return {
        GLOO: common,
        AUTO: common | {"LATECOMER_MODE": "auto", "LATECOMER_PROFILE": str(profile)},
        SCHEDULE: common | {"LATECOMER_SCHEDULE": schedules[RANKS]},
    }


@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", TOLERANCE)
def test_trains_as_on_gloo(name, variables, tmp_path):
    trained = {way: run(name, way, chosen, tmp_path) for way, chosen in variables.items()}
    assert all(rank.paths == {} for rank in trained[GLOO])
    assert all(rank.paths["mode auto"] > 0 for rank in trained[AUTO])
    assert all(rank.paths == PATHS[name] for rank in trained[SCHEDULE])
    assert _distance(trained[GLOO], trained[AUTO]) == 0
    assert _distance(trained[GLOO], trained[SCHEDULE]) <= TOLERANCE[name]


@pytest.mark.timeout(240)
def test_the_hook_runs(variables, tmp_path):
    # Otherwise the two scripts are the same, and gradients would not be rounded to float16.
    without = run("lightning_ddp.py", GLOO, variables[GLOO], tmp_path)
    with_hook = run("lightning_hook.py", GLOO, variables[GLOO], tmp_path)
    assert _distance(without, with_hook) > 1e-5


def test_no_script_is_left_out():
    assert {path.name for path in FOLDER.glob("*.py")} == set(TOLERANCE)


def test_differences_are_found():
    first = [Trained({"a": np.array([1.0, 2.0])}, {})]
    second = [Trained({"a": np.array([1.0, 2.5])}, {})]
    assert _distance(first, first) == 0
    assert _distance(first, second) == 0.5
    with pytest.raises(AssertionError):
        _distance(first, [Trained({"b": np.array([1.0, 2.0])}, {})])
