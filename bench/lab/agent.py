"""Process 1 of the lab: starts commands in the namespaces and says how they end.

Run by path (``unshare ... python agent.py CONTROL PARENT``), standard library only, so that it is
up in milliseconds. CONTROL is a SOCK_SEQPACKET socket with one JSON message per datagram:

    {"start": {"argv", "env", "cwd", "netns"}} + 4 descriptors: stdin, stdout, stderr, report
    {"signal": {"pid", "number"}}              to the whole session of a started process

The report descriptor gets ``{"pid": ...}`` and in the end ``{"returncode": ...}``, or ``{"error":
...}``. PARENT is a pidfd of the process that owns the lab. When that process ends, however it
ends, or CONTROL is closed, the agent ends; being process 1 of a PID namespace, it takes every
other process of the lab with it (pid_namespaces(7)), and with the last process go the network
namespaces, which nothing outside refers to.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

CLONE_NEWNET = 0x40000000
LARGEST = 1 << 17
DEFAULTED = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
"""Ignored by the agent, and as usual in what it starts."""
_libc = ctypes.CDLL(None, use_errno=True)


class Agent:
    """The processes it has started, and where each one's end is reported."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.reports: dict[int, int] = {}

    def message(self) -> bool:
        """Handle one message; false when the other side is gone."""
        data, descriptors, _, _ = socket.recv_fds(self.control, LARGEST, 4)
        if not data:
            return False
        request = json.loads(data)
        if "start" in request:
            self.start(request["start"], descriptors)
        elif "signal" in request:
            pid = request["signal"]["pid"]
            number = request["signal"]["number"]
            if pid in self.reports:  # not reaped yet, so the number can't be another process's
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:  # it has not become a leader yet
                    os.kill(pid, number)
        return True

    def start(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Fork and execute; each command is the leader of a session of its own."""
        report = descriptors[3]
        # held back, not ignored, until the new process has set them to their defaults
        signal.pthread_sigmask(signal.SIG_BLOCK, DEFAULTED)
        pid = os.fork()
        if pid == 0:
            try:
                become(request, descriptors[:3])
            except BaseException as error:
                tell(report, {"error": f"{request['argv'][0]}: {error}"})
            os._exit(127)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEFAULTED)
        self.reports[pid] = report
        tell(report, {"pid": pid})
        for descriptor in descriptors[:3]:
            os.close(descriptor)

    def reap(self) -> None:
        """Report every process that has ended; orphans are reaped silently."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (report := self.reports.pop(pid, None)) is not None:
                tell(report, {"returncode": os.waitstatus_to_exitcode(status)})
                os.close(report)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Turn this (forked) process into the command."""
    os.setsid()
    if request["netns"]:
        namespace = os.open(f"/run/netns/{request['netns']}", os.O_RDONLY | os.O_CLOEXEC)
        if _libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), request["netns"])
    os.chdir(request["cwd"])
    for number in DEFAULTED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEFAULTED)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.execvpe(request["argv"][0], request["argv"], request["env"])


def tell(report: int, message: dict[str, Any]) -> None:
    """Write one line; nobody listening is no reason to end."""
    with contextlib.suppress(BrokenPipeError):
        os.write(report, json.dumps(message).encode() + b"\n")


def main(control: int, parent: int) -> None:
    """Serve until the owner is gone."""
    for number in DEFAULTED:
        signal.signal(number, signal.SIG_IGN)

    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    agent = Agent(socket.socket(fileno=control))
    agent.control.set_inheritable(False)
    os.set_inheritable(parent, False)
    agent.control.send(b'{"ready": true}')

    with selectors.DefaultSelector() as selector:
        for watched in (control, parent, wake_read):
            selector.register(watched, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == parent or (key.fd == control and not agent.message()):
                    return
                if key.fd == wake_read:
                    os.read(wake_read, 4096)
                    agent.reap()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
