"""The cluster's network namespace: made by one thread, held by an open file, gone with its last holder.

No name under /run/netns and no mount: when the supervisor ends, however it ends, nothing is left to delete.
"""

import ctypes
import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, TypeVar

from pyroute2 import IPRoute

from warmfleet_devcluster.errors import NotPermittedError

CLONE_NEWNET: Final = 0x40000000

T = TypeVar("T")


class NetworkNamespace:
    """A network namespace and a thread that lives in it.

    A socket belongs to the namespace of the thread that makes it, and can be used from any thread.
    """

    def __init__(self) -> None:
        """Make the namespace, with its loopback up and forwarding on.

        Raises:
            NotPermittedError: this process may not make one.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cluster-network")
        try:
            self._descriptor = self._thread.submit(_unshare).result()
        except OSError as error:
            self._thread.shutdown()
            raise NotPermittedError(
                f"a devcluster needs root, to make a network namespace: {(error.strerror or '').lower()}",
                advice="run it as root, for instance with sudo",
            ) from error
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        """Opens as the namespace for as long as this process holds it."""
        self.run(_bring_up)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function inside the namespace and wait for it."""
        return self._thread.submit(function).result()

    def make_socket(self, family: socket.AddressFamily, kind: socket.SocketKind) -> socket.socket:
        """A non-blocking socket inside the namespace."""
        made = self.run(lambda: socket.socket(family, kind))
        made.setblocking(False)
        return made

    def add_addresses(self, addresses: Iterable[IPv4Address]) -> None:
        """Give the loopback these addresses."""
        wanted = list(addresses)

        def add() -> None:
            with IPRoute() as netlink:
                (index,) = netlink.link_lookup(ifname="lo")
                for address in wanted:
                    netlink.addr("add", index=index, address=str(address), prefixlen=32)

        self.run(add)

    def add_route(self, network: IPv4Network, *, source: IPv4Address) -> None:
        """Route a network through the loopback; `source` is the source address of unbound senders."""

        def add() -> None:
            with IPRoute() as netlink:
                (index,) = netlink.link_lookup(ifname="lo")
                netlink.route("add", dst=str(network), oif=index, prefsrc=str(source))

        self.run(add)

    def close(self) -> None:
        """Close the descriptor; the kernel deletes the namespace with its last process."""
        self._thread.shutdown()
        with suppress(OSError):
            os.close(self._descriptor)


def enter(path: Path) -> None:
    """Move the calling thread into the namespace at `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET))
    finally:
        os.close(descriptor)


def _unshare() -> int:
    _check(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _bring_up() -> None:
    with IPRoute() as netlink:
        (index,) = netlink.link_lookup(ifname="lo")
        netlink.link("set", index=index, state="up")
    # /proc/sys/net shows the network of the thread that opens it.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
