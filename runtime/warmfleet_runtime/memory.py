"""Memory of this process: what it frees goes back to the system, what it holds, and what it may use."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MAPPED_BYTES: Final = 256 * 1024
"""Blocks from this size on are mapped for themselves and unmapped when they are freed."""
ARENAS: Final = 2
"""Heaps that threads share; each keeps the holes that its threads leave."""
TERMINAL_LIBRARIES: Final = ("rich",)
"""What structlog imports where it is installed, to colour tracebacks: 0.25 s of a process that needs none."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_PROC: Final = Path("/proc")
_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


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


def exclude_from_collection(*, collect_all: bool = False) -> None:
    """Keep full garbage collections from walking what exists now; its last reference still frees it.

    For long-lived objects that are in no cycle. What is in a cycle is never freed afterwards, so young
    garbage is collected first; with `collect_all` all of it, which takes as long as a full collection.
    """
    gc.collect(2 if collect_all else 1)
    gc.freeze()


@contextmanager
def importing(*, without: Sequence[str] = ()) -> Iterator[None]:
    """Collect no garbage while large libraries are imported, and never walk afterwards what exists then.

    An import leaves hundreds of thousands of objects and next to no garbage; collections that walk them again
    and again take a seventh of the time in which torch is imported, and 0.1 s each afterwards.

    Optional libraries in `without` count as not installed meanwhile, unless they have been imported.
    """
    hidden = [name for name in without if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # documented: importing it raises
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        gc.freeze()
        if collected:
            gc.enable()


def own_memory_bytes() -> int:
    """Memory that this process holds and that is no file's; 0 where the system does not report it."""
    with suppress(OSError):
        for line in (_PROC / "self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def memory_limit_bytes(
    proc: Path = _PROC, control_groups: Path = _CONTROL_GROUPS, machine_bytes: int | None = None
) -> int:
    """Memory that this process may use: the machine's, or the least limit of its control groups.

    Reads versions 1 and 2 of control groups (cgroups(7)); a limit that cannot be read does not count.
    """
    if machine_bytes is None:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine_bytes, *_control_group_limits(proc, control_groups)])


def available_memory_bytes(proc: Path = _PROC, control_groups: Path = _CONTROL_GROUPS) -> int | None:
    """Memory that new processes can still have; None where the system does not report it.

    The least of what the machine has left and of what each control group with a limit has; file pages that
    the kernel can drop count as left.
    """
    with suppress(OSError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                left = [limit - used for limit, used in _control_group_uses(proc, control_groups)]
                return max(0, min([int(line.split()[1]) * 1024, *left]))
    return None


def _control_group_limits(proc: Path, control_groups: Path) -> Iterator[int]:
    for folder, limit_name, _ in _control_group_folders(proc, control_groups):
        with suppress(OSError, ValueError):  # ValueError: "max", no limit
            yield int((folder / limit_name).read_text())


def _control_group_uses(proc: Path, control_groups: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that has a limit."""
    for folder, limit_name, usage_name in _control_group_folders(proc, control_groups):
        with suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in (limit_name, usage_name))
            lines = (folder / "memory.stat").read_text().splitlines()
            files = {line.split()[0]: int(line.split()[1]) for line in lines}
            yield limit, max(0, used - files.get("total_inactive_file", files.get("inactive_file", 0)))


def _control_group_folders(proc: Path, control_groups: Path) -> Iterator[tuple[Path, str, str]]:
    """Folders of this process's control groups, from the innermost, and their files of limit and use."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = control_groups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = control_groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = Path(path.lstrip("/"))
        # In a container the path may be the host's; the container's own group is then the root.
        for folder in (group, *group.parents):
            yield root / folder, *names
