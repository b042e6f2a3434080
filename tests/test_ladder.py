"""The ladder holds; each of its rules is seen refusing, and letting through."""

from __future__ import annotations

import pytest

from tests import ladder


def _imports(*arrows: str) -> list[ladder.Import]:
    """Imports from lines like ``runtime.work -> runtime.ddp``."""
    return [ladder.Import(*arrow.split(" -> ")) for arrow in arrows]


def test_the_ladder_holds():
    assert ladder.broken_rules() == []


def test_every_door_to_synth_is_used():
    edges = ladder.imports(ladder.modules(*ladder.FLOORS))
    importers = [edge.importer for edge in edges if edge.imported.partition(".")[0] == "synth"]

    for door in ladder.DOORS_TO_SYNTH:
        assert any(importer == door or importer.startswith(f"{door}.") for importer in importers)


def test_imports_are_noticed_wherever_they_stand(tmp_path):
    package = tmp_path / "runtime"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "low.py").write_text("def f():\n    from latecomer.runtime import high\n")
    both = "import latecomer.runtime.low\nfrom latecomer.runtime.low import f\n"
    (package / "high.py").write_text(both)

    edges = ladder.imports(ladder.modules("runtime", root=tmp_path))

    assert edges == _imports("runtime.high -> runtime.low", "runtime.low -> runtime.high")


@pytest.mark.parametrize(
    "arrow",
    [
        "verify.core.check -> synth.cost",
        "verify.core.check -> runtime.work",
        "synth.cost -> runtime.work",
        "runtime.work -> tests.ladder",
        "runtime.work -> src.latecomer",
        "runtime.executor.load -> synth.cost",
    ],
)
def test_an_import_of_the_wrong_floor_is_refused(arrow):
    (line,) = ladder.floors_broken({}, _imports(arrow))

    assert line.startswith(arrow.replace("->", "imports"))


@pytest.mark.parametrize(
    "arrow",
    [
        "synth.cost -> verify.errors",
        "runtime.work -> verify.errors",
        "runtime.policy.candidates -> synth.candidates",
        "tests.ladder -> runtime.work",
    ],
)
def test_an_import_of_a_lower_floor_is_taken(arrow):
    assert list(ladder.floors_broken({}, _imports(arrow))) == []


def test_torch_is_refused_below_the_runtime(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import torch.nn\n")

    assert list(ladder.floors_broken({"verify.module": path}, []))
    assert not list(ladder.floors_broken({"runtime.module": path}, []))


@pytest.mark.parametrize(
    ("arrow", "reason"),
    [
        ("runtime.executor.load -> runtime.device.kernel", "higher rung"),
        ("runtime.work -> runtime.executor.program", "higher rung"),
        ("runtime.work -> runtime.attic", "on no rung"),
    ],
)
def test_an_import_up_the_ladder_is_refused(arrow, reason):
    (line,) = ladder.rungs_broken(_imports(arrow))

    assert reason in line


def test_an_import_down_the_ladder_or_beside_is_taken():
    edges = _imports(
        "runtime.device.kernel -> runtime.executor.load",
        "runtime.ddp -> runtime.backend",
        "runtime.executor.load -> runtime.executor.program",
    )

    assert list(ladder.rungs_broken(edges)) == []


def test_circles_of_folders_are_refused_though_no_modules_import_each_other():
    edges = _imports("synth.a.one -> synth.b.one", "synth.b.two -> synth.a.two")

    assert list(ladder.circles(edges)) == ["in synth: a circle of a, b"]


def test_circles_of_modules_are_refused():
    edges = _imports("bench.a -> bench.b", "bench.b -> bench.a")

    assert list(ladder.circles(edges)) == ["in modules: a circle of bench.a, bench.b"]


def test_a_package_may_import_its_modules_and_they_its_neighbours():
    edges = _imports("synth.a -> synth.a.one", "synth.a.one -> synth.b", "synth.b -> verify")

    assert list(ladder.circles(edges)) == []


def test_private_names_of_torch_are_refused_but_for_one_module(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import torch._a, torch.nn\ndef f():\n  from torch.b import _c")

    lines = list(ladder.private_torch({"runtime.module": path}))

    assert [line.split(":")[0] for line in lines] == [
        "runtime.module imports torch._a",
        "runtime.module imports torch.b._c",
    ]
    assert not list(ladder.private_torch({"runtime.torch_versions": path}))


def test_a_clock_that_is_not_the_hosts_is_refused(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import time\nfrom threading import Lock\nfrom latecomer.runtime.host import host\n"
    )

    lines = list(ladder.past_the_host({"runtime.module": path}))

    assert [line.partition(":")[0] for line in lines] == [
        "runtime.module imports time",
        "runtime.module imports threading.Lock",
    ]
    assert not list(ladder.past_the_host({"runtime.host": path, "synth.module": path}))


def test_what_is_made_of_a_type_of_the_hosts_is_refused(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "from latecomer.runtime.host import Event, Queue, Thread, host\n"
        "waiting: Queue[int] = host.Queue()\nother = Queue[int]()\nnews = Event()\n"
    )

    lines = list(ladder.past_the_host({"runtime.module": path}))

    assert [line.partition(":")[0] for line in lines] == [
        "runtime.module makes a Queue",
        "runtime.module makes a Event",
    ]
