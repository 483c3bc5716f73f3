"""Which sockets a process holds, out of /proc."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class InternetSocket:
    """`protocol` is tcp, tcp6, udp or udp6; the remote port is 0 where there is none."""

    protocol: str
    is_listening: bool
    local_port: int
    remote_port: int


def internet_sockets(pid: int) -> set[InternetSocket]:
    """Of process `pid`, all that are not between processes of this machine by file."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:  # closed since it was listed
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/{pid}/net/{protocol}")
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        for fields in map(str.split, lines):
            if fields[9] in inodes:
                local, remote = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
                is_listening = protocol.startswith("tcp") and fields[3] == LISTENING
                found.add(InternetSocket(protocol, is_listening, local, remote))
    return found


def listening_ports(pid: int) -> list[int]:
    return sorted(entry.local_port for entry in internet_sockets(pid) if entry.is_listening)


def resident_bytes(pid: int) -> int:
    """What process `pid` holds in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")
