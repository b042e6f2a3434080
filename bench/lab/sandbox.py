"""Namespaces of one's own, without root, and processes in them.

``unshare`` makes a user, a mount, a PID and a network namespace; in them the agent
(:mod:`bench.lab.agent`) starts commands for us. However this process ends, they all end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bench.lab.errors import LabError, LabUnavailable

AGENT = Path(__file__).with_name("agent.py")
UNSHARE = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child")
START_S = 20.0
CLOSE_S = 5.0
COMMAND_S = 60.0
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
"""Where the network tools are, though they are not on every user's PATH."""


def search_path() -> str:
    """PATH with the system's folders."""
    own = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join([*own, *(folder for folder in SYSTEM_FOLDERS if folder not in own)])


class Process:
    """A command that runs in the sandbox.

    Attributes:
        argv: the command.
        pid: its number inside the sandbox's PID namespace.
        returncode: as ``subprocess`` has it (negative: the signal that ended it), or ``None``.
    """

    def __init__(self, sandbox: Sandbox, argv: Sequence[str], report: int) -> None:
        self.argv = tuple(argv)
        self.returncode: int | None = None
        self._sandbox = sandbox
        self._report = open(report, "rb", buffering=0)  # noqa: SIM115  (closed at the end)
        self._unread = b""
        first = self._line(time.monotonic() + COMMAND_S)
        if first is None:
            raise LabError(f"{argv[0]} was not started within {COMMAND_S:g} s")
        if "error" in first:
            raise LabError(first["error"])
        self.pid: int = first["pid"]

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._report.fileno()

    def wait(self, timeout_s: float) -> int:
        """The return code.

        Raises:
            TimeoutError: it runs on.
            LabError: it could not be executed, or the sandbox is gone.
        """
        if self.returncode is None:
            last = self._line(time.monotonic() + timeout_s)
            if last is None:
                raise TimeoutError(f"{self.argv[0]} has not ended after {timeout_s:g} s")
            if "error" in last:
                raise LabError(last["error"])
            self.returncode = last["returncode"]
            self._report.close()
        return self.returncode

    def poll(self) -> int | None:
        """The return code if it has ended."""
        with contextlib.suppress(TimeoutError):
            return self.wait(0.0)
        return None

    def signal(self, number: int) -> None:
        """Send a signal to the command and the processes it has started (its session's group)."""
        if self.poll() is None:
            self._sandbox.tell({"signal": {"pid": self.pid, "number": int(number)}})

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self.signal(signal.SIGKILL)

    def _line(self, deadline: float) -> dict[str, Any] | None:
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._report], [], [], left)[0]:
                return None
            if not (data := self._report.read(4096)):
                raise LabError(f"the lab went down while {self.argv[0]} was running")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


class Sandbox:
    """User, mount, PID and network namespaces with an agent in them; a context manager.

    Raises:
        LabUnavailable: this machine does not permit it, and why.
    """

    def __init__(self) -> None:
        tool = shutil.which("unshare", path=search_path())
        if tool is None:
            raise LabUnavailable("there is no unshare command", "Install util-linux")

        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.pidfd_open(os.getpid())
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the sandbox)
        argv = [tool, *UNSHARE, "--mount-proc", sys.executable, "-I", "-S", str(AGENT)]

        try:
            self._process = subprocess.Popen(
                [*argv, str(theirs.fileno()), str(parent)],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(theirs.fileno(), parent),
                start_new_session=True,  # Ctrl-C is for the owner, who takes the lab down
            )
        finally:
            theirs.close()
            os.close(parent)
        self._await_ready()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process outside that holds the sandbox (``unshare``)."""
        return self._process.pid

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> Process:
        """Start a command in the sandbox.

        Args:
            netns: a namespace made with ``ip netns add`` there; default: the sandbox's own.
            env: default: this process's own environment.
            cwd: default: this process's own folder.
            stdin, stdout, stderr: files or descriptors; default: ``/dev/null``.

        Raises:
            LabError: the sandbox is gone.
        """
        request = {
            "argv": [os.fspath(part) for part in argv],
            "env": {**(os.environ if env is None else env), "PATH": search_path()},
            "cwd": os.fspath(cwd or Path.cwd()),
            "netns": netns,
        }

        ours, report = os.pipe()
        with open(os.devnull, "r+b") as nothing:
            streams = [nothing if stream is None else stream for stream in (stdin, stdout, stderr)]
            numbers = [s if isinstance(s, int) else s.fileno() for s in streams]
            try:
                self.tell({"start": request}, [*numbers, report])
            except LabError:
                os.close(ours)
                raise
            finally:
                os.close(report)
        return Process(self, argv, ours)

    def call(
        self, argv: Sequence[str], *, netns: str = "", stdin: str = "", timeout_s: float = COMMAND_S
    ) -> tuple[int, str]:
        """Run a short command to its end; its return code and what it printed.

        Raises:
            LabError: it could not be executed, or did not end in time.
        """
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output:
            source.write(stdin.encode())
            source.seek(0)
            process = self.start(argv, netns=netns, stdin=source, stdout=output, stderr=output)
            try:
                code = process.wait(timeout_s)
            except TimeoutError as error:
                process.kill()
                raise LabError(str(error)) from None
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send the agent a message.

        Raises:
            LabError: it is gone.
        """
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], list(descriptors))
        except OSError as error:
            raise LabError(f"the lab is down ({error})") from None

    def close(self) -> None:
        """End every process in the sandbox, and with them the namespaces."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # holds even if a fork of ours has a copy
        self._control.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # --kill-child takes the agent along
            self._process.wait()
        self._said.close()

    def _await_ready(self) -> None:
        self._control.settimeout(START_S)
        try:
            ready = self._control.recv(4096)
        except TimeoutError:
            ready = b""
        self._control.settimeout(None)

        if not ready:
            self._process.kill()
            self._process.wait()
            self._said.seek(0)
            output = self._said.read().decode(errors="replace").strip()
            self._control.close()
            self._said.close()
            raise LabUnavailable(
                f"namespaces are not permitted ({output or 'unshare ended without a message'})",
                "Allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
                "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), "
                "or run outside of the container",
            )
