"""Control groups that a kubelet and containerd made; they outlive every process in them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = ("kubepods", "k8s.io")
"""Of pods, and of containers whose group containerd chooses."""
_POLL_SECONDS: Final = 0.1


def remove_node_cgroups(root: Path = CGROUPS, *, seconds: float = 5.0) -> list[Path]:
    """Remove a node's control groups; returns those that processes still use after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        left = [group for top in _tops(root) for group in _deepest_first(top) if not _removed(group)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)


def _tops(root: Path) -> Iterator[Path]:
    """Below the root of version 2, and of every hierarchy of version 1."""
    for name in _OWN:
        for pattern in (name, f"*/{name}"):
            # Hierarchies of version 1 also go by second names, which are links.
            yield from (path for path in root.glob(pattern) if not path.parent.is_symlink())


def _deepest_first(top: Path) -> list[Path]:
    folders = [top, *(path for path in top.rglob("*") if path.is_dir())]
    return sorted(folders, key=lambda path: len(path.parts), reverse=True)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # processes that were killed are still in it
        return False
    return True
