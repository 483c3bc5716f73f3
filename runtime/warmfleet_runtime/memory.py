"""Freed memory goes back to the system, so that one large request does not make a process large for good."""

import ctypes
import sys
from typing import Final

MAPPED_BYTES: Final = 256 * 1024
"""Blocks from this size on are mapped for themselves and unmapped when they are freed."""
ARENAS: Final = 2
"""Heaps that threads share; each keeps the holes that its threads leave."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def return_freed_memory() -> None:
    """Set glibc's allocator so, for this process; other C libraries do it by themselves or cannot.

    By itself glibc raises the threshold to the largest block that was ever freed, 32 MiB at most: after one
    large body all later ones come from a heap, which only shrinks from its end. See mallopt(3).
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, ARENAS)
