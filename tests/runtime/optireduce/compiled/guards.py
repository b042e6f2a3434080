"""Memory between pages that may not be touched: what is read or written beside it kills."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PROT_NONE = 0
AGAIN = 8  # rooms that are used in turn when all have been handed out


class Guards:
    """Copies of arrays that end (or begin) where a forbidden page begins (or ended).

    Maps so much at once, and hands it out again after ``reset``; before it only the last rooms, in
    turn, so that what was asked for first stays.
    """

    def __init__(self, rooms=40, pages=4):
        self._room = pages * mmap.PAGESIZE
        self._next = 0
        self._at_end = True
        room_and_page = self._room + mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        nbytes = mmap.PAGESIZE + rooms * room_and_page
        start = libc.mmap(None, nbytes, protection, flags, -1, 0)
        assert start != ctypes.c_void_p(-1).value, "no memory"
        first = start + mmap.PAGESIZE
        self.rooms = [first + number * room_and_page for number in range(rooms)]
        for forbidden in [start, *(room + self._room for room in self.rooms)]:
            assert libc.mprotect(forbidden, mmap.PAGESIZE, PROT_NONE) == 0

    def reset(self, at_end=True):
        """Hand out all memory anew, arrays at the ends or at the beginnings of theirs."""
        self._next = 0
        self._at_end = at_end

    def __call__(self, array):
        """A copy of a small array of bytes or booleans."""
        assert array.nbytes <= self._room
        if self._next < len(self.rooms):
            room = self.rooms[self._next]
        else:
            room = self.rooms[-1 - self._next % AGAIN]
        self._next += 1

        start = room
        if self._at_end:
            start += self._room - array.nbytes
        memory = (ctypes.c_uint8 * array.nbytes).from_address(start)
        copy = np.frombuffer(memory, array.dtype).reshape(array.shape)
        copy[...] = array
        return copy
