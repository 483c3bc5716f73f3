"""Reads memory as fast as the processors can: anonymous huge pages, by the C library's vector loops."""

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from warmfleet_runtime.memory import available_memory_bytes
from warmfleet_worker.roofline.measurement import FILL_BYTES, MAX_BUFFER_BYTES

_ABSENT: Final = 0xFF
"""A byte that the memory, filled with zeros, does not have: a search for it reads all of it."""


class MemoryReader:
    """A mapping of `size_bytes`, which `fill` makes real and `read` reads; given back on exit.

    with MemoryReader(free_buffer_bytes(), cores=8) as reader:
        reader.fill(0, reader.size_bytes)
        reader.read(0, reader.size_bytes, threads=8)
    """

    def __init__(self, size_bytes: int, *, cores: int) -> None:
        """Reserve addresses; nothing is allocated before it is filled."""
        self.size_bytes = size_bytes
        self._mapping = mmap.mmap(
            -1, max(size_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages: its limit is that of small ones
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._view = ctypes.c_char.from_buffer(self._mapping)
        self._address = ctypes.addressof(self._view)
        self._memchr = ctypes.CDLL(None).memchr
        self._memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._memchr.restype = ctypes.c_void_p
        self._cores = cores
        self._threads = ThreadPoolExecutor(cores, thread_name_prefix="roofline")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        del self._view
        self._mapping.close()

    def fill(self, offset: int, length: int) -> None:
        """Write zeros: a page that was never written is one shared page of zeros, which a cache holds."""
        share = length // self._cores
        starts = [self._address + offset + index * share for index in range(self._cores)]
        for _ in self._threads.map(lambda start: ctypes.memset(start, 0, share), starts):
            pass

    def read(self, offset: int, length: int, *, threads: int) -> None:
        """Read each byte once, an equal share by each thread; ctypes lets go of the interpreter meanwhile."""
        share = length // threads
        starts = [self._address + offset + index * share for index in range(threads)]
        for found in self._threads.map(lambda start: self._memchr(start, _ABSENT, share), starts):
            assert found is None


def free_buffer_bytes() -> int:
    """Memory to measure with: half of what is free, whole pieces of `FILL_BYTES`, at most 2 GiB."""
    free_bytes = available_memory_bytes() or 0
    return min(free_bytes // 2, MAX_BUFFER_BYTES) // FILL_BYTES * FILL_BYTES
