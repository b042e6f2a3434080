"""What disturbs whole flows while all-reduces run: a rank that is paused, bursts of cross traffic.

    python -m bench.optireduce.disturbance pause PID SEED
    python -m bench.optireduce.disturbance burst ADDRESS SEED

Runs beside a rank, in its host, until the process that started it ends. A pause stops the rank's
process (SIGSTOP) for 50 to 200 ms, as a busy machine or a hypervisor does; its kernel goes on and
answers TCP. A burst is UDP to another host's discard port, as fast as the port lets it, for 50 to
200 ms. Between two of them are 0.3 to 1.2 s. All of it is drawn from the seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

LEAST_BETWEEN_S = 0.3
MOST_BETWEEN_S = 1.2
SHORTEST_S = 0.05
LONGEST_S = 0.2
PORT = 9
FRAME = 1400


@contextlib.contextmanager
def beside(kind: str, target: str, seed: int) -> Iterator[None]:
    """Disturb while the block runs."""
    command = [sys.executable, "-m", "bench.optireduce.disturbance", kind, target, str(seed)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()  # it lets go of whom it has stopped
        process.wait()


def pause(pid: int, for_s: float) -> None:
    """Stop a process for so long."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(for_s)
    finally:
        os.kill(pid, signal.SIGCONT)


def burst(sender: socket.socket, for_s: float) -> None:
    """Send as fast as the port lets us for so long."""
    until_s = time.monotonic() + for_s
    frame = bytes(FRAME)
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):  # nobody listens there
            sender.send(frame)


def main(kind: str, target: str, seed: str) -> None:
    """Disturb until told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    dice = random.Random(int(seed))
    owner = os.getppid()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        if kind == "burst":
            sender.connect((target, PORT))
        while os.getppid() == owner:
            time.sleep(dice.uniform(LEAST_BETWEEN_S, MOST_BETWEEN_S))
            for_s = dice.uniform(SHORTEST_S, LONGEST_S)
            if kind == "burst":
                burst(sender, for_s)
            else:
                pause(int(target), for_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
