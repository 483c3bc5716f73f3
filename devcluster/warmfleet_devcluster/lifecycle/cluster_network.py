"""One devcluster's network: its namespace with fixed addresses, and the API server's port on the host."""

import asyncio
import socket
from pathlib import Path
from typing import Final, Self

from warmfleet_devcluster.network.addresses import (
    API_SERVER_ADDRESS,
    API_SERVER_PORT,
    DNS_ADDRESS,
    SERVICE_NETWORK,
    node_address,
)
from warmfleet_devcluster.network.forwarder import HostForwarder
from warmfleet_devcluster.network.namespace import NetworkNamespace

_DNS_PORT: Final = 53


class ClusterNetwork:
    """An open network; `close` ends it. `open` makes one."""

    def __init__(self, namespace: NetworkNamespace, forwarder: HostForwarder, api_url: str) -> None:
        self.namespace: Path = namespace.path
        """Opens as the network namespace for as long as this process holds it."""
        self.api_url = api_url
        """The API server's URL on the host."""
        self._namespace = namespace
        self._forwarder = forwarder

    @classmethod
    async def open(cls, *, nodes: int, api_port: int) -> Self:
        """Make the namespace, with an address per node, and listen on `api_port` of the host (0: any port).

        Raises:
            NotPermittedError: this process may not make a namespace.
            PortBusyError: another process listens on `api_port`.
        """
        namespace = NetworkNamespace()
        try:
            addresses = [node_address(index) for index in range(nodes)]
            namespace.add_addresses([API_SERVER_ADDRESS, DNS_ADDRESS, *addresses])
            # Without a route the kernel refuses to connect before it evaluates the rules of Services.
            namespace.add_route(SERVICE_NETWORK, source=API_SERVER_ADDRESS)
            forwarder = HostForwarder(namespace, API_SERVER_ADDRESS, API_SERVER_PORT)
            port = await forwarder.start(api_port)
        except BaseException:
            namespace.close()
            raise
        return cls(namespace, forwarder, f"https://127.0.0.1:{port}")

    async def serves_names(self) -> bool:
        """Whether the DNS server accepts connections."""
        probe = self._namespace.make_socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            await asyncio.get_running_loop().sock_connect(probe, (str(DNS_ADDRESS), _DNS_PORT))
        except OSError:
            return False
        finally:
            probe.close()
        return True

    async def close(self) -> None:
        """Close the port on the host and release the namespace."""
        await self._forwarder.close()
        self._namespace.close()
