"""Processes by /proc: those below another one, and whether one runs."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, without those that have ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            child = int(stat.parent.name)
            found += [child, *descendants(child)]
    return found


def is_running(pid: int) -> bool:
    """Whether it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def name_of(pid: int) -> str:
    """As the kernel has it; "" of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
