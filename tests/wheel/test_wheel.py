"""What is handed out: a wheel and an sdist, built, checked, installed into an empty environment.

There, without the repository, the commands of README run, and somebody's own script.
"""

from __future__ import annotations

import email
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from docs.site.reference import FLOORS
from tests.docs.sessions import ROOT, sessions
from tests.runtime.spawning import execute
from tests.runtime.test_own_script import train_and_look

pytestmark = pytest.mark.wheel

MOST_BYTES = 2_000_000
PARTS = ("ddp.py", "command.py", "py.typed", *FLOORS)
DATA = ("verify/viewer/assets/page.css", "runtime/telemetry/page/arrivals.js")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The files that ``python -m build`` makes: the wheel from the sdist, that from here."""
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation it is built by the setuptools that is pinned.
    made = execute(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def programs(built, tmp_path_factory) -> Path:
    """The folder of programs of an environment that has the wheel, and what that asks for."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    pins = ("-c", str(ROOT / "constraints.txt"))
    pip = str(folder / "bin" / "pip")
    installed = execute(pip, "install", "-q", *pins, str(built["wheel"]))
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


def test_what_is_built_is_whole_and_small(built):
    checked = execute(sys.executable, "-m", "twine", "check", "--strict", *map(str, built.values()))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for file in built.values():
        assert file.stat().st_size < MOST_BYTES

    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
    with tarfile.open(built["sdist"]) as archive:
        packed = {member.name for member in archive if member.isfile()}
    modules = {
        f"latecomer/{path.relative_to(ROOT)}"
        for part in FLOORS
        for path in (ROOT / part).rglob("*.py")
    }
    expected = modules | {f"latecomer/{name}" for name in DATA}
    assert expected <= names
    assert expected <= {name.partition("/src/")[2] for name in packed}
    assert {name.split("/")[1] for name in names if name.startswith("latecomer/")} >= set(PARTS)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"latecomer"}


def test_it_installs_from_a_git_url(tmp_path):
    """The parts of latecomer are links in git, too."""
    url = f"git+file://{ROOT}"
    here = ("--no-build-isolation", "--no-deps", "--target", str(tmp_path / "there"))
    installed = execute(sys.executable, "-m", "pip", "install", "-q", *here, url)
    assert installed.returncode == 0, installed.stderr
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "verify").rglob("*.py")}
    found = (tmp_path / "there" / "latecomer").rglob("*.py")
    assert modules <= {str(path.relative_to(tmp_path / "there" / "latecomer")) for path in found}


def test_the_wheel_says_what_it_is(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Name"] == "latecomer"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_commands_of_readme_run_from_the_wheel(programs, tmp_path):
    """From a folder that has the examples and nothing else of the repository."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{programs}:/usr/bin:/bin"
    commands = [command for command, _ in sessions((ROOT / "README.md").read_text())]
    assert len(commands) >= 5
    for command in commands:
        result = execute("sh", "-c", f"PATH={path} {command}", cwd=tmp_path, PYTHONPATH="")
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    for page in ("schedule.html", "run.html"):
        assert (tmp_path / page).read_text().startswith("<!doctype html>")

    where = "import latecomer.runtime; print(latecomer.runtime.__file__)"
    found = execute(str(programs / "python"), "-c", where, cwd=tmp_path, PYTHONPATH="")
    assert found.stdout.startswith(str(programs.parent))


def test_an_own_script_trains_from_the_wheel(programs, tmp_path):
    headline, _ = train_and_look(programs, tmp_path / "job")
    assert "rank 1 wasted most" in headline
