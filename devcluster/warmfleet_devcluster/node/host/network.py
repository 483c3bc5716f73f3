"""A network namespace per pod: a routed veth pair into the cluster's network, an address of the node."""

import asyncio
import contextlib
import ctypes
import ipaddress
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pyroute2 import IPRoute

from warmfleet_devcluster.node.errors import NodeError

_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")
_LOCK = threading.Lock()


class AddressPool:
    """The pod addresses of one node; a freed one is reused last."""

    def __init__(self, cidr: str) -> None:
        self._free = [str(host) for host in ipaddress.ip_network(cidr).hosts()]

    def take(self) -> str:
        if not self._free:
            raise NodeError("the node has no pod addresses left")
        return self._free.pop(0)

    def give_back(self, address: str) -> None:
        """Reused last, so that a client with a stale address does not reach another pod."""
        assert address not in self._free, address
        self._free.append(address)


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A pod's network; lives as long as its file descriptor or a process inside."""

    address: str
    namespace_fd: int
    interface: str
    """The end of the pair that lies in the cluster's network."""

    def close(self) -> None:
        os.close(self.namespace_fd)


async def prepare_node(address: str) -> None:
    """Gives the cluster's network namespace, in which this process runs, the node's own address."""
    await asyncio.to_thread(_prepare_node, address)


async def connect_pod(address: str, node_address: str, interface: str) -> PodNetwork:
    """Makes a pod's network namespace. Takes a few milliseconds. Raises NodeError."""
    return await asyncio.to_thread(_connect_pod, address, node_address, interface)


async def disconnect_pod(network: PodNetwork) -> None:
    """Takes the pod off the network at once, even while programs run in it."""
    await asyncio.to_thread(_disconnect_pod, network)


def _prepare_node(address: str) -> None:
    with IPRoute() as route:
        loopback = _index(route, "lo")
        route.link("set", index=loopback, state="up")
        if not route.get_addr(address=address):
            route.addr("add", index=loopback, address=address, prefixlen=32)
    with Path("/proc/sys/net/ipv4/ip_forward").open("r+") as file:
        if file.read().strip() != "1":
            file.write("1")


def _connect_pod(address: str, node_address: str, interface: str) -> PodNetwork:
    with _LOCK, _own_namespace() as home:
        try:
            _checked(_LIBC.unshare(_CLONE_NEWNET), "unshare")
            namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # As container runtimes do: any user may listen on any port of the pod.
                Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
                _enter(home)
                with IPRoute() as route:
                    route.link(
                        "add", ifname=interface, kind="veth", peer={"ifname": "eth0", "net_ns_fd": namespace}
                    )
                    ours = _index(route, interface)
                    route.link("set", index=ours, state="up")
                    route.route("replace", dst=f"{address}/32", oif=ours, prefsrc=node_address)
                    route.addr("add", index=ours, address="169.254.1.1", prefixlen=32, scope=253)
                _enter(namespace)
                with IPRoute() as route:
                    inside = _index(route, "eth0")
                    route.addr("add", index=inside, address=address, prefixlen=32)
                    route.link("set", index=_index(route, "lo"), state="up")
                    route.link("set", index=inside, state="up")
                    route.route("add", dst="169.254.1.1/32", oif=inside, scope="link")
                    route.route("add", dst="default", gateway="169.254.1.1", oif=inside)
            except BaseException:
                os.close(namespace)
                raise
        except Exception as error:
            raise NodeError(f"no network for {address}: {error}") from error
    return PodNetwork(address, namespace, interface)


def _disconnect_pod(network: PodNetwork) -> None:
    network.close()
    with _LOCK, contextlib.suppress(Exception), IPRoute() as route:
        # The pair is gone already if the namespace was: the kernel deletes both ends together.
        for index in route.link_lookup(ifname=network.interface):
            route.link("del", index=index)


def in_namespace(namespace_fd: int, act: Callable[[], _Result]) -> _Result:
    """The result of `act`, called inside a network namespace; call from a worker thread."""
    with _own_namespace():
        _enter(namespace_fd)
        return act()


@contextlib.contextmanager
def _own_namespace() -> Iterator[int]:
    """Returns this thread to its network namespace at the end."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield home
    finally:
        _enter(home)
        os.close(home)


def _enter(namespace: int) -> None:
    _checked(_LIBC.setns(namespace, _CLONE_NEWNET), "setns")


def _index(route: IPRoute, name: str) -> int:
    return int(route.link_lookup(ifname=name)[0])


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
