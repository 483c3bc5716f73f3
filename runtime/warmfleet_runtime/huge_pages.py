"""Has the kernel keep what this process has in memory in pages of 2 MiB.

A process that visits gigabytes of small objects at random spends a part of its time on finding where pages of
4 KiB are. CPython maps its objects' memory in arenas of 1 MiB, each for itself: where the kernel gives huge
pages to those who ask, as most systems set it, there is nothing of that size to ask for.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

HUGE_PAGE_BYTES: Final = 2 * 1024 * 1024
"""Of x86-64, and of AArch64 with pages of 4 KiB."""
PIECE_BYTES: Final = 32 * HUGE_PAGE_BYTES
"""That are moved at a time: a signal is handled between two pieces, a fifth of a second apart."""
_MAPPINGS: Final = Path("/proc/self/maps")
_WRITABLE: Final = b"rw-p"
_NO_FILE: Final = b"0"
_HEAP: Final = b"[heap]"
_MADV_COLLAPSE: Final = 25
"""madvise(2), Linux 6.1; the module `mmap` does not have it."""


def move_into_huge_pages() -> None:
    """Move this process's memory into huge pages, where it is not in any and a whole one fits.

    Takes 2.5 to 3.6 s per GiB that is moved, and 0.1 s where all was moved before. Where the kernel cannot,
    or has no huge page left, memory stays as it is. Not for a process that uses few pages of large mappings,
    which would be filled up, or that shares its memory with children that it forked.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with suppress(OSError):
        for start, end in huge_page_ranges(_MAPPINGS.read_bytes()):
            for piece in range(start, end, PIECE_BYTES):
                # An error also means that a part was never used; the rest of the piece is moved all the same.
                madvise(piece, min(PIECE_BYTES, end - piece), _MADV_COLLAPSE)


def huge_page_ranges(mappings: bytes) -> Iterator[tuple[int, int]]:
    """Addresses of the first and behind the last whole huge page of each mapping that only this process has.

    `mappings` is the content of /proc/PID/maps (proc_pid_maps(5)). Files, whose names may be any bytes but a
    line feed, and the main thread's stack are left out.
    """
    for line in mappings.split(b"\n"):
        fields = line.split(maxsplit=5)
        if (
            len(fields) < 5
            or fields[1] != _WRITABLE
            or fields[4] != _NO_FILE
            or fields[5:] not in ([], [_HEAP])
        ):
            continue
        start, end = (int(address, 16) for address in fields[0].split(b"-"))
        first, last = -(-start // HUGE_PAGE_BYTES), end // HUGE_PAGE_BYTES
        if first < last:
            yield first * HUGE_PAGE_BYTES, last * HUGE_PAGE_BYTES
