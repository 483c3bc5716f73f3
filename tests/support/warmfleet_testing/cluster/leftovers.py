"""What a devcluster could leave behind on this machine."""

import os
import socket
from pathlib import Path


def machine() -> dict[str, set[str]]:
    """What a devcluster could leave behind: processes, mounts, network interfaces and routes of the host."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    routes = set(Path("/proc/net/route").read_text().splitlines())
    return {
        "mounts": mounts,
        "interfaces": {name for _, name in socket.if_nameindex()},
        "routes": routes,
        "named namespaces": {path.name for path in Path("/run/netns").glob("*")},
    }


def processes_that_name(text: str) -> set[str]:
    """Command lines of processes that name `text`, other than our own and kubectl's."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text in line and path.parent.name != str(os.getpid()):
            found.add(line)
    return found
