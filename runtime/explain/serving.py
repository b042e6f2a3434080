"""A rank that gives out its Flight Recorder's dump on demand, whatever it does just then.

The server is torch's own, which answers on a thread of C++: also while the rank hangs in a
collective, or a thread keeps the interpreter's lock. Where it is, and who is in which process
group, which Gloo's recorder does not tell, stands in a file of the rank's in a directory that all
ranks share, and that is written again when there are new groups.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import torch.distributed as dist

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.explain.served import SUFFIX, RankFile
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import (
    PrefixStore,
    ranks_of_groups,
    store_of,
    worker_server,
)
from latecomer.verify.errors import ArgumentError

LOOK_S = 1.0  # between two looks for new groups
TOGETHER_S = 60.0  # so long ranks wait for each other when they begin
LOOPBACK = "127.0.0.1"
EVERYWHERE = "::"


class DumpServer:
    """One rank's; see :func:`serve_dumps`."""

    def __init__(self, directory: str | os.PathLike[str], *, everywhere: bool) -> None:
        self.directory = Path(directory)
        self.rank = dist.get_rank()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            requirement = f"must be a directory that can be written to ({error.strerror})"
            raise ArgumentError("directory", os.fspath(directory), requirement) from None
        self._server = worker_server(EVERYWHERE if everywhere else LOOPBACK)
        name = host.name() if everywhere else LOOPBACK
        self._url = f"http://{name}:{self._server.port}"
        self._written: dict[str, list[int]] | None = None
        self._closing = host.Event()
        self._write()
        self._thread = host.Thread(target=self._run, name="latecomer-dumps", daemon=True)
        self._thread.start()
        close_at_exit(self)

    @property
    def path(self) -> Path:
        """The rank's file."""
        return self.directory / f"rank{self.rank}{SUFFIX}"

    def close(self, *, at_once: bool = False) -> None:
        """Answer no more, and take the file away."""
        has_closed(self)
        self._closing.set()
        self._thread.join(LOOK_S)
        self._server.shutdown()
        self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._write()

    def _write(self) -> None:
        groups = ranks_of_groups()
        if groups == self._written or not dist.is_initialized():
            return
        served = RankFile(
            rank=self.rank,
            world_size=dist.get_world_size(),
            host=host.name(),
            process=os.getpid(),
            url=self._url,
            groups=groups,
        )
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(served))
        new.replace(self.path)
        self._written = groups


def serve_dumps(directory: str | os.PathLike[str], *, everywhere: bool | None = None) -> DumpServer:
    """From now on ``latecomer dump DIRECTORY`` gets this rank's dump, also while it hangs.

    Call it on every rank, after ``init_process_group``.

    Args:
        directory: shared by all ranks; it is made if need be.
        everywhere: whether other hosts may ask, too. The server is torch's and asks for no
            password. Default: where the job's ranks are on several hosts.

    Raises:
        ArgumentError: there is no process group yet, or the directory cannot be written to.
        RankFailure: another rank has not called it within :data:`TOGETHER_S`.
        OSError: torch's server does not start.

    Examples:
        >>> import torch.distributed as dist
        >>> from latecomer import serve_dumps
        >>> dist.init_process_group("gloo")
        >>> server = serve_dumps("servers")  # a DumpServer, until the program ends
        >>> server.path.name == f"rank{dist.get_rank()}.server"
        True
        >>> server.close()
        >>> dist.destroy_process_group()
    """
    if not dist.is_initialized():
        raise ArgumentError("serve_dumps", None, "must be called after init_process_group()")
    store = PrefixStore("latecomer/dumps", store_of(None))
    group = StoreExchange(store, dist.get_rank(), dist.get_world_size(), TOGETHER_S)
    hosts = set(group.all_gather("host", host.name()).values())
    if everywhere is None:
        everywhere = len(hosts) > 1
    return DumpServer(directory, everywhere=everywhere)
