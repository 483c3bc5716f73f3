"""The nftables messages that Services and NetworkPolicies need, as bytes. Pure, but for `send`.

Written out because the bytes are few and fixed; the layout is that of linux/netfilter/nf_tables.h.
"""

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Final

_NETLINK_NETFILTER: Final = 12
_SO_SNDBUFFORCE: Final = 32
_SEND_BUFFER_BYTES: Final = 32 * 1024 * 1024
_ANSWER_SECONDS: Final = 10.0

_SUBSYSTEM: Final = 10 << 8
_BATCH_BEGIN: Final = 0x10
_BATCH_END: Final = 0x11
_NEW_TABLE: Final = 0
_DELETE_TABLE: Final = 2
_NEW_CHAIN: Final = 3
_NEW_RULE: Final = 6
_ERROR: Final = 2

_REQUEST: Final = 0x001
_ACK: Final = 0x004
_CREATE: Final = 0x400
_APPEND: Final = 0x800
_NESTED: Final = 0x8000

_FAMILY_IPV4: Final = 2
_DROP: Final = 0
_ACCEPT: Final = 1
_JUMP: Final = -3
_RETURN: Final = -5
_EQUAL: Final = 0
_NOT_EQUAL: Final = 1
_AT_MOST: Final = 3
_AT_LEAST: Final = 5
_SOURCE_ADDRESS: Final = 12
_DESTINATION_ADDRESS: Final = 16
_ESTABLISHED_OR_RELATED: Final = 0b110
_VERDICT_REGISTER: Final = 0
_REGISTER_1: Final = 1
_REGISTER_2: Final = 2
PROTOCOL_NUMBERS: Final = {"TCP": 6, "UDP": 17, "SCTP": 132}

PREROUTING: Final = 0
INPUT: Final = 1
FORWARD: Final = 2
OUTPUT: Final = 3
POSTROUTING: Final = 4


class NetfilterError(OSError):
    """The kernel refused a batch; nothing of it took effect."""


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def new_table(table: str) -> bytes:
    """Add a table; no error if it is there."""
    return _message(_NEW_TABLE, _CREATE, attribute(1, _text(table)))


def delete_table(table: str) -> bytes:
    """Delete a table and all in it; an error if it is not there."""
    return _message(_DELETE_TABLE, 0, attribute(1, _text(table)))


def new_chain(table: str, chain: str, *, kind: str, hook: int, priority: int) -> bytes:
    """Add a base chain of a kind (`nat`, `filter`) that accepts what none of its rules decides."""
    return _message(
        _NEW_CHAIN,
        _CREATE,
        attribute(1, _text(table)),
        attribute(3, _text(chain)),
        nested(4, _be32(1, hook), attribute(2, struct.pack(">i", priority))),
        _be32(5, _ACCEPT),
        attribute(7, _text(kind)),
    )


def new_called_chain(table: str, chain: str) -> bytes:
    """Add a chain for the packets that `jump_to` sends there; it returns those that it does not decide."""
    return _message(_NEW_CHAIN, _CREATE, attribute(1, _text(table)), attribute(3, _text(chain)))


def new_rule(table: str, chain: str, expressions: Iterable[bytes]) -> bytes:
    """Append a rule."""
    return _message(
        _NEW_RULE,
        _CREATE | _APPEND,
        attribute(1, _text(table)),
        attribute(2, _text(chain)),
        nested(4, *expressions),
    )


def to_address(address: str) -> list[bytes]:
    """Matches packets to an address."""
    return [_payload(base=1, offset=_DESTINATION_ADDRESS, length=4), _equals(socket.inet_aton(address))]


def from_address(address: str) -> list[bytes]:
    """Matches packets from an address."""
    return [_payload(base=1, offset=_SOURCE_ADDRESS, length=4), _equals(socket.inet_aton(address))]


def to_network(cidr: str, *, outside: bool = False) -> list[bytes]:
    """Matches packets into a network, or to all addresses that are outside of it."""
    return _in_network(_DESTINATION_ADDRESS, cidr, outside=outside)


def from_network(cidr: str, *, outside: bool = False) -> list[bytes]:
    """Matches packets out of a network, or from all addresses that are outside of it."""
    return _in_network(_SOURCE_ADDRESS, cidr, outside=outside)


def of_protocol(protocol: str) -> list[bytes]:
    """Matches packets of a protocol."""
    l4_protocol = _expression("meta", _be32(1, _REGISTER_1), _be32(2, 16))
    return [l4_protocol, _equals(bytes([PROTOCOL_NUMBERS[protocol]]))]


def to_port(protocol: str, port: int) -> list[bytes]:
    """Matches packets of a protocol to a port."""
    return [
        *of_protocol(protocol),
        _payload(base=2, offset=2, length=2),
        _equals(struct.pack(">H", port)),
    ]


def to_ports(protocol: str, first: int, last: int) -> list[bytes]:
    """Matches packets of a protocol to a range of ports, both ends included."""
    return [
        *of_protocol(protocol),
        _payload(base=2, offset=2, length=2),
        _compares(_AT_LEAST, struct.pack(">H", first)),
        _compares(_AT_MOST, struct.pack(">H", last)),
    ]


def of_accepted_connection() -> list[bytes]:
    """Matches packets of a connection of which both sides have sent, and errors that concern one."""
    state = _expression("ct", _be32(1, _REGISTER_1), _be32(2, 0))
    wanted = struct.pack("=I", _ESTABLISHED_OR_RELATED)
    return [state, _masked(wanted), _compares(_NOT_EQUAL, bytes(4))]


def one_in(count: int) -> list[bytes]:
    """Matches one of `count` packets at random."""
    random = _expression("numgen", _be32(1, _REGISTER_1), _be32(2, count), _be32(3, 1))
    return [random, _equals(bytes(4))]


def destination_becomes(address: str, port: int) -> list[bytes]:
    """Sends the connection on to this address and port."""
    return [
        _immediate(_REGISTER_1, socket.inet_aton(address)),
        _immediate(_REGISTER_2, struct.pack(">H", port)),
        _expression(
            "nat",
            _be32(1, 1),
            _be32(2, _FAMILY_IPV4),
            _be32(3, _REGISTER_1),
            _be32(4, _REGISTER_1),
            _be32(5, _REGISTER_2),
            _be32(6, _REGISTER_2),
        ),
    ]


def source_becomes_ours() -> list[bytes]:
    """Masquerades: replaces the source address by this machine's, so that answers come back through it."""
    return [_expression("masq")]


def refused(protocol: str) -> list[bytes]:
    """Answers as for a closed port: reset for TCP, otherwise port unreachable."""
    if protocol == "TCP":
        return [_expression("reject", _be32(1, 1))]
    return [_expression("reject", _be32(1, 0), attribute(2, bytes([3])))]


def accepted() -> list[bytes]:
    """Ends the table's decision: the packet passes."""
    return [_verdict(_ACCEPT)]


def dropped() -> list[bytes]:
    """The packet is gone without an answer."""
    return [_verdict(_DROP)]


def returned() -> list[bytes]:
    """Goes on after the rule that jumped here."""
    return [_verdict(_RETURN)]


def jump_to(chain: str) -> list[bytes]:
    """Goes on with a chain of the same table."""
    return [_verdict(_JUMP, attribute(2, _text(chain)))]


def batch(messages: Sequence[bytes]) -> bytes:
    """One transaction: all of it or nothing. The last message asks for the kernel's answer."""
    framed = [_batch_edge(_BATCH_BEGIN), *messages, _batch_edge(_BATCH_END)]
    packed = []
    for sequence, message in enumerate(framed):
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", message)
        if sequence == len(messages):
            flags |= _ACK
        packed.append(struct.pack("=IHHII", length, kind, flags, sequence, 0) + message[16:])
    return b"".join(packed)


def send(messages: Sequence[bytes]) -> None:
    """Apply a batch in the network namespace of the calling thread.

    Raises:
        NetfilterError: the kernel refused it.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
        # The kernel takes a batch in one piece or not at all.
        netlink.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER_BYTES)
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.bind((0, 0))
        netlink.send(batch(messages))
        while True:
            for kind, sequence, code in _answers(netlink.recv(65536)):
                if kind == _ERROR and code != 0:
                    raise NetfilterError(-code, f"nftables message {sequence}: {os.strerror(-code)}")
                if sequence == len(messages):
                    return


def _answers(received: bytes) -> Iterable[tuple[int, int, int]]:
    """Kind, sequence and error code of each message."""
    offset = 0
    while offset + 20 <= len(received):
        length, kind, _, sequence, _, code = struct.unpack_from("=IHHIIi", received, offset)
        yield kind, sequence, code
        offset += max(length + (-length % 4), 20)


def _message(kind: int, flags: int, *attributes: bytes) -> bytes:
    body = struct.pack(">BBH", _FAMILY_IPV4, 0, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), _SUBSYSTEM | kind, _REQUEST | flags, 0, 0) + body


def _batch_edge(kind: int) -> bytes:
    return struct.pack("=IHHII", 20, kind, _REQUEST, 0, 0) + struct.pack(">BBH", 0, 0, 10)


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, attribute(1, _text(name)), nested(2, *attributes))


def _payload(*, base: int, offset: int, length: int) -> bytes:
    return _expression("payload", _be32(1, _REGISTER_1), _be32(2, base), _be32(3, offset), _be32(4, length))


def _in_network(offset: int, cidr: str, *, outside: bool) -> list[bytes]:
    network = ipaddress.IPv4Network(cidr, strict=False)
    if network.prefixlen == 0 and not outside:
        return []
    return [
        _payload(base=1, offset=offset, length=4),
        _masked(network.netmask.packed),
        _compares(_NOT_EQUAL if outside else _EQUAL, network.network_address.packed),
    ]


def _masked(mask: bytes) -> bytes:
    return _expression(
        "bitwise",
        _be32(1, _REGISTER_1),
        _be32(2, _REGISTER_1),
        _be32(3, len(mask)),
        nested(4, attribute(1, mask)),
        nested(5, attribute(1, bytes(len(mask)))),
    )


def _equals(value: bytes) -> bytes:
    return _compares(_EQUAL, value)


def _compares(operator: int, value: bytes) -> bytes:
    return _expression("cmp", _be32(1, _REGISTER_1), _be32(2, operator), nested(3, attribute(1, value)))


def _verdict(code: int, *details: bytes) -> bytes:
    verdict = nested(2, attribute(1, struct.pack(">i", code)), *details)
    return _expression("immediate", _be32(1, _VERDICT_REGISTER), nested(2, verdict))


def _immediate(register: int, value: bytes) -> bytes:
    return _expression("immediate", _be32(1, register), nested(2, attribute(1, value)))


def _be32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value))


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
