"""Groups that go on with other ranks, by c10d's own interface (torch 2.14 and later).

    handle = dist._get_reconfigure_handle(group)          # goes to the peers, by any way
    dist._reconfigure(uuid, handles, group).wait()        # the ranks are in order of the handles

A handle says where a process serves a store, and which process it is. The peers of a new group meet
in the store of the first of them, under the number that the group has. torch's own interface is
experimental, and its functions are named as private; a ``torchft.Manager`` of 2026-10 calls it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import msgspec

from latecomer.runtime.host import host
from latecomer.runtime.network.addresses import own_address
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import PrefixStore, Store, Work
from latecomer.verify.errors import ArgumentError, RankFailure


class _Handle(msgspec.Struct, frozen=True):
    process: str  # a number that tells it from all others
    store: str  # host and port


HANDLE = msgspec.json.Decoder(_Handle)  # with the module: see latecomer.verify.core.format


class Meeting:
    """Where the peers of one process can meet for a new group.

    Args:
        store: of the group that there is, towards which this process has an address.
    """

    def __init__(self, store: Store, timeout: timedelta) -> None:
        self._process = host.random_token(16)
        self._served, where = host.serve_store(own_address(store), timeout)
        self.handle = msgspec.json.encode(_Handle(self._process, where)).decode()

    def group(self, number: int, handles: Collection[str], timeout: timedelta) -> StoreExchange:
        """This process's place in the group of that number (collective, but waits for none).

        Args:
            number: never used before.
            handles: of all its processes: a list by rank; of a set the ranks are in order of text.

        Raises:
            ArgumentError: a handle is none of ours, or this process's own is missing.
            RankFailure: the first process's store does not answer in time.
        """
        in_order = list(handles) if isinstance(handles, list) else sorted(handles)
        try:
            members = [HANDLE.decode(handle) for handle in in_order]
        except msgspec.DecodeError as error:
            raise ArgumentError("handles", in_order, f"must be of this backend ({error})") from None
        processes = [member.process for member in members]
        if processes.count(self._process) != 1:
            requirement = "must have this process's own handle once"
            raise ArgumentError("handles", in_order, requirement, "Exchange them anew")

        try:
            store = host.open_store(members[0].store, timeout)
        except RuntimeError as error:
            text = f"rank 0 of the new group: its store is gone: {error}"
            raise RankFailure([0], text) from None
        rank = processes.index(self._process)
        prefixed = PrefixStore(f"group/{number}", store)
        return StoreExchange(prefixed, rank, len(members), timeout.total_seconds())


class Reconfigured(Work):
    """That it is done: :meth:`ForwardingGroup.reconfigure` returns when it is."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """It is done."""
        return True

    def is_completed(self) -> bool:
        """It is done."""
        return True

    def get_future(self) -> Any:
        """A future that is complete."""
        import torch

        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future
