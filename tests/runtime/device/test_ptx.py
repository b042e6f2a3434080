"""The kernel, built for GPUs that are not here: its PTX and machine code; mutants of it fail."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.runtime.device.ptx.builds import WIDTHS, build, spills
from tests.runtime.device.ptx.paths import problems

SOURCE = Path(__file__).parents[3] / "runtime/device/kernel.py"
BUILDS = [(arch, dtype) for arch in (80, 90, 100) for dtype in WIDTHS]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def kernel_of(source, tmp_path):
    """The kernel in a text of the module."""
    path = tmp_path / "mutant.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"mutant_{tmp_path.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.all_reduce


def check(arch, dtype, average, tmp_path):
    built = build(kernel_of(SOURCE.read_text(), tmp_path), arch, dtype, average)
    assert list(problems(built.asm["ptx"], dtype, average)) == []
    assert spills(built.asm["cubin"], tmp_path) == 0
    return built


def test_one_build_and_lost_barriers_in_its_text(tmp_path):
    built = check(90, "bf16", False, tmp_path)
    ptx = built.asm["ptx"]
    assert set(problems(ptx.replace("bar.sync", "// "), "bf16", False)) == {
        "no barrier between stores and a release",
        "no barrier between an acquire and what it orders",
    }
    for word, problem in {
        "release": "no release at system scope",
        "acquire": "no acquire at system scope",
    }.items():
        assert problem in set(problems(ptx.replace(f"sys.{word}", "sys.relaxed"), "bf16", False))
        assert problem in set(problems(ptx.replace(f"sys.{word}", f"gpu.{word}"), "bf16", False))


@pytest.mark.gpu_logic
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(("arch", "dtype"), BUILDS)
def test_all_builds(arch, dtype, average, tmp_path):
    check(arch, dtype, average, tmp_path)


MUTANTS = {
    "no barrier before the release": (
        "    tl.debug_barrier()\n    tl.atomic_xchg",
        "    tl.atomic_xchg",
        "no barrier between stores and a release",
    ),
    "no barrier after a receive": (
        '"copy", TILE)\n                    tl.debug_barrier()',
        '"copy", TILE)',
        "no barrier between what a row stores and what the next one loads",
    ),
    "a relaxed flag": (
        'tl.atomic_xchg(flag, epoch, sem="release"',
        'tl.atomic_xchg(flag, epoch, sem="relaxed"',
        "no release at system scope",
    ),
    "a flag for this GPU alone": (
        'tl.atomic_xchg(flag, epoch, sem="release", scope="sys")',
        'tl.atomic_xchg(flag, epoch, sem="release", scope="gpu")',
        "no release at system scope",
    ),
    # a scalar load is done by every thread, and threads that see different words part at the
    # barriers: a kernel that should end could hang
    "threads that see different stop words": (
        'tl.atomic_add(stop, 0, sem="relaxed", scope="sys")',
        "tl.load(stop, volatile=True)",
        "a word that may change is read by all threads",
    ),
    "nothing known of where slots begin": (
        "slot_data = tl.multiple_of(slot_data, 16)",
        "pass",
        "narrow stores",
    ),
    "slices that begin anywhere": (
        "tl.multiple_of(tl.maximum(numel, 0) // 16 * 16, 16)",
        "tl.maximum(numel, 0)",
        "stores of 16 bytes",
    ),
}


@pytest.mark.gpu_logic
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_kernel(name, tmp_path):
    old, new, problem = MUTANTS[name]
    source = SOURCE.read_text()
    assert source.count(old) == 1
    kernel = kernel_of(source.replace(old, new), tmp_path)
    built = build(kernel, 90, "fp32", False)
    reported = list(problems(built.asm["ptx"], "fp32", False))
    assert any(problem in text for text in reported), reported


@pytest.mark.gpu_logic
def test_too_few_registers_are_noticed(tmp_path):
    kernel = kernel_of(SOURCE.read_text(), tmp_path)
    assert spills(build(kernel, 90, "fp32", True, maxnreg=16).asm["cubin"], tmp_path) > 0
