"""Processes of pods on this machine's nodes, found by what only their command line has."""

import os
import signal
from pathlib import Path


def pids_with_argument(text: str) -> list[int]:
    """Processes, oldest first, one of whose arguments contains `text`; such as a pod's uid."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            started = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(text.encode() in argument for argument in arguments):
            found.append((started, int(folder.name)))
    return [pid for _, pid in sorted(found)]


def kill_process_of(uid: str, module: str) -> None:
    """SIGKILL for the pod's process that runs `python -m module`, and for nothing else."""
    (pid, *_) = [pid for pid in pids_with_argument(uid) if module in arguments_of(pid)]
    os.kill(pid, signal.SIGKILL)


def arguments_of(pid: int) -> list[str]:
    """A process's command line; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
