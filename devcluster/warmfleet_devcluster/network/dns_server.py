"""The cluster's DNS, over UDP and TCP. It knows the cluster's names and no others: there is no way out."""

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from warmfleet_devcluster.network.names import Records, Zone

TTL_SECONDS: Final = 5
_PLAIN_UDP_BYTES: Final = 512
_MAX_UDP_BYTES: Final = 4096
_TCP_IDLE_SECONDS: Final = 10.0
_MAX_TCP_CONNECTIONS: Final = 256


def answer(query: bytes, zone: Zone, *, over_udp: bool) -> bytes | None:
    """The response to one query, both as wire bytes; None for what deserves no answer."""
    try:
        asked = dns.message.from_wire(query)
    except (dns.exception.DNSException, ValueError):
        return None
    if asked.flags & dns.flags.QR:
        return None  # a response: an answer to it could start an endless exchange of two servers
    response = dns.message.make_response(asked, recursion_available=True)
    response.flags |= dns.flags.AA
    if asked.opcode() != dns.opcode.QUERY or len(asked.question) != 1:
        response.set_rcode(dns.rcode.NOTIMP)
    else:
        question = asked.question[0]
        _fill(response, question.name, question.rdtype, zone)
    limit = max(_PLAIN_UDP_BYTES, min(asked.payload, _MAX_UDP_BYTES)) if over_udp else 65535
    try:
        return response.to_wire(max_size=limit)
    except dns.exception.TooBig:
        # The client asks again over TCP.
        response.answer.clear()
        response.flags |= dns.flags.TC
        return response.to_wire(max_size=limit)


def _fill(
    response: dns.message.Message, name: dns.name.Name, kind: dns.rdatatype.RdataType, zone: Zone
) -> None:
    records = zone.look_up(name.to_text())
    if records is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
        return
    texts = _texts(records, kind)
    if records.alias:
        kind = dns.rdatatype.CNAME
    if texts:
        rrset = dns.rrset.from_text_list(
            name, TTL_SECONDS, dns.rdataclass.IN, dns.rdatatype.to_text(kind), texts
        )
        response.answer.append(rrset)


def _texts(records: Records, kind: dns.rdatatype.RdataType) -> list[str]:
    """Records of one kind in the notation of a zone file; an alias answers a query of any kind."""
    if records.alias:
        return [records.alias.rstrip(".") + "."]
    if kind == dns.rdatatype.A:
        return list(records.addresses)
    if kind == dns.rdatatype.SRV:
        share = 100 // max(len(records.services), 1)
        return [f"0 {share} {port} {target}." for port, target in records.services]
    return []


class DnsServer:
    """Answers from the zone that `zone` returns at the moment of the query."""

    def __init__(self, zone: Callable[[], Zone]) -> None:
        self._zone = zone
        self._connections = 0
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None

    async def start(self, address: str, port: int = 53) -> None:
        """Listen on one address, over UDP and TCP."""
        loop = asyncio.get_running_loop()
        self._udp, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self._zone), local_addr=(address, port)
        )
        self._tcp = await asyncio.start_server(self._serve, address, port)

    def close(self) -> None:
        """Stop listening."""
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _MAX_TCP_CONNECTIONS:
                return
            while True:
                async with asyncio.timeout(_TCP_IDLE_SECONDS):
                    (length,) = struct.unpack(">H", await reader.readexactly(2))
                    query = await reader.readexactly(length)
                response = answer(query, self._zone(), over_udp=False)
                if response is None:
                    return
                writer.write(struct.pack(">H", len(response)) + response)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            return  # the client has closed the connection
        finally:
            self._connections -= 1
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, zone: Callable[[], Zone]) -> None:
        self._zone = zone
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an instance of the class that asyncio's own types name.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        response = answer(data, self._zone(), over_udp=True)
        if response is not None and self._transport is not None:
            self._transport.sendto(response, addr)
