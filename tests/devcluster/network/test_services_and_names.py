"""Which pods stand behind an address or a name, from Services and EndpointSlices alone."""

import struct
from fractions import Fraction
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.network import netfilter
from warmfleet_devcluster.network.dns_server import answer
from warmfleet_devcluster.network.endpoints import Frontend, frontends
from warmfleet_devcluster.network.names import Zone, make_zone
from warmfleet_devcluster.network.service_rules import service_rules


def service(name: str = "s", address: str = "10.96.1.1", **spec: Any) -> dict[str, Any]:
    ports = spec.pop("ports", [{"name": "http", "port": 80}])
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"clusterIP": address, "ports": ports, **spec},
    }


def endpoint(address: str, *, hostname: str = "", **conditions: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    return {**found, "hostname": hostname} if hostname else found


def slice_of(*endpoints: dict[str, Any], name: str = "s", port: int = 8000, **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
        **fields,
    }


def backends(*slices: dict[str, Any]) -> list[tuple[str, int]]:
    (frontend,) = frontends([service()], slices)
    return list(frontend.backends)


def test_ready_endpoints_stand_behind_a_port_and_unready_ones_do_not() -> None:
    ready, unready = endpoint("10.0.0.1", ready=True), endpoint("10.0.0.2", ready=False, serving=False)
    assert backends(slice_of(ready, unready)) == [("10.0.0.1", 8000)]


def test_an_endpoint_without_conditions_counts_as_ready() -> None:
    assert backends(slice_of(endpoint("10.0.0.1"))) == [("10.0.0.1", 8000)]


def test_terminating_endpoints_serve_only_while_no_other_is_ready() -> None:
    leaving = endpoint("10.0.0.1", ready=False, serving=True, terminating=True)
    assert backends(slice_of(leaving)) == [("10.0.0.1", 8000)]
    other = slice_of(endpoint("10.0.0.2", ready=True))
    assert backends(slice_of(leaving), other) == [("10.0.0.2", 8000)]


def test_a_named_target_port_may_differ_between_slices() -> None:
    slices = slice_of(endpoint("10.0.0.1"), port=8000), slice_of(endpoint("10.0.0.2"), port=9000)
    assert backends(*slices) == [("10.0.0.1", 8000), ("10.0.0.2", 9000)]


def test_another_services_or_address_familys_slice_does_not_count() -> None:
    assert backends(slice_of(endpoint("10.0.0.1"), name="other")) == []
    assert backends(slice_of(endpoint("::1"), addressType="IPv6")) == []


@pytest.mark.parametrize("address", ["None", ""])
def test_a_service_without_an_address_has_no_frontend(address: str) -> None:
    assert frontends([service(address=address)], [slice_of(endpoint("10.0.0.1"))]) == ()


def test_an_unnamed_port_meets_the_slices_unnamed_port() -> None:
    slices = slice_of(endpoint("10.0.0.1"), ports=[{"name": "", "port": 5, "protocol": "TCP"}])
    (frontend,) = frontends([service(ports=[{"port": 80}])], [slices])
    assert frontend.backends == (("10.0.0.1", 5),)


@given(st.integers(1, 12))
def test_every_backend_is_as_likely_as_the_others(count: int) -> None:
    found = Frontend("10.96.1.1", "TCP", 80, tuple((f"10.0.0.{index}", 8000) for index in range(count)))
    dice = {number: b"".join(netfilter.one_in(number)) for number in range(2, count + 1)}
    left = Fraction(1)
    chances = []
    for index, message in enumerate(service_rules([found])[4 : 4 + count]):
        assert b"".join(netfilter.destination_becomes(f"10.0.0.{index}", 8000)) in message
        taken = left / next((number for number, expression in dice.items() if expression in message), 1)
        chances.append(taken)
        left -= taken
    assert chances == [Fraction(1, count)] * count


def test_the_rules_are_one_transaction_that_replaces_the_table() -> None:
    found = (
        Frontend("10.96.1.1", "TCP", 80, (("10.0.0.1", 8000), ("10.0.0.2", 8000))),
        Frontend("10.96.1.2", "UDP", 53, ()),
    )
    messages = service_rules(found)
    assert messages[:3] == [
        netfilter.new_table("warmfleet-services"),
        netfilter.delete_table("warmfleet-services"),
        netfilter.new_table("warmfleet-services"),
    ]
    # Two ways in with two backends each, two refusals of the empty one, a hairpin per pod; five chains.
    assert len(messages) == 3 + 5 + 2 * 2 + 2 + 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["TCP", "UDP"]),
            st.integers(1, 65535),
            st.lists(st.tuples(st.ip_addresses(v=4), st.integers(1, 65535)), max_size=4),
        ),
        max_size=6,
    )
)
def test_a_batch_is_well_formed_netlink(ports: list[tuple[str, int, list[tuple[Any, int]]]]) -> None:
    found = [
        Frontend("10.96.0.7", protocol, port, tuple((str(address), number) for address, number in pods))
        for protocol, port, pods in ports
    ]
    messages = service_rules(found)
    packed = netfilter.batch(messages)
    offset, kinds = 0, []
    while offset < len(packed):
        length, kind, _, sequence, _ = struct.unpack_from("=IHHII", packed, offset)
        assert length % 4 == 0
        assert sequence == len(kinds)
        kinds.append(kind)
        offset += length
    assert offset == len(packed)
    assert (kinds[0], kinds[-1], len(kinds)) == (0x10, 0x11, len(messages) + 2)


def test_an_attribute_is_padded_but_holds_its_unpadded_length() -> None:
    assert netfilter.attribute(1, b"abc") == b"\x07\x00\x01\x00abc\x00"


def ask(zone: Zone, name: str, kind: str = "A", **options: Any) -> dns.message.Message:
    query = dns.message.make_query(name, kind, **options)
    response = answer(query.to_wire(), zone, over_udp=True)
    assert response is not None
    return dns.message.from_wire(response)


def texts(message: dns.message.Message) -> list[str]:
    return sorted(record.to_text() for rrset in message.answer for record in rrset)


ZONE = make_zone(
    [
        service("web"),
        service("fleet", "None"),
        service("out", "", type="ExternalName", externalName="example.com"),
    ],
    [
        slice_of(endpoint("10.0.0.1"), endpoint("10.0.0.2", hostname="pod-a"), name="fleet"),
        slice_of(endpoint("10.0.0.9"), name="web"),
    ],
)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("web.ns.svc.cluster.local", "A", ["10.96.1.1"]),
        ("WEB.ns.svc.Cluster.Local", "A", ["10.96.1.1"]),
        ("fleet.ns.svc.cluster.local", "A", ["10.0.0.1", "10.0.0.2"]),
        ("pod-a.fleet.ns.svc.cluster.local", "A", ["10.0.0.2"]),
        ("10-0-0-1.fleet.ns.svc.cluster.local", "A", ["10.0.0.1"]),
        ("10-0-0-7.ns.pod.cluster.local", "A", ["10.0.0.7"]),
        ("out.ns.svc.cluster.local", "A", ["example.com."]),
        ("_http._tcp.web.ns.svc.cluster.local", "SRV", ["0 100 80 web.ns.svc.cluster.local."]),
        (
            "_http._tcp.fleet.ns.svc.cluster.local",
            "SRV",
            ["0 50 8000 10-0-0-1.fleet.ns.svc.cluster.local.", "0 50 8000 pod-a.fleet.ns.svc.cluster.local."],
        ),
    ],
)
def test_a_name_resolves_as_the_dns_specification_defines(name: str, kind: str, expected: list[str]) -> None:
    response = ask(ZONE, name, kind)
    assert texts(response) == expected
    assert response.rcode() == dns.rcode.NOERROR


@pytest.mark.parametrize("name", ["web.ns.svc.cluster.local", "ns.svc.cluster.local", "cluster.local"])
def test_a_name_without_such_a_record_exists_all_the_same(name: str) -> None:
    """NXDOMAIN for AAAA would make resolvers give up on the A record, too."""
    response = ask(ZONE, name, "AAAA")
    assert (response.rcode(), texts(response)) == (dns.rcode.NOERROR, [])


@pytest.mark.parametrize(
    "name",
    ["missing.ns.svc.cluster.local", "web.svc.cluster.local", "example.com", "x.ns.pod.cluster.local", "."],
)
def test_what_the_cluster_does_not_know_does_not_exist(name: str) -> None:
    assert ask(ZONE, name).rcode() == dns.rcode.NXDOMAIN


def test_a_long_answer_is_cut_over_udp_and_whole_over_tcp() -> None:
    addresses = [f"10.0.{index // 250}.{index % 250 + 1}" for index in range(300)]
    zone = make_zone([service("big", "None")], [slice_of(*map(endpoint, addresses), name="big")])
    query = dns.message.make_query("big.ns.svc.cluster.local", "A").to_wire()
    cut = answer(query, zone, over_udp=True)
    whole = answer(query, zone, over_udp=False)
    assert cut is not None
    assert whole is not None
    assert len(cut) <= 512
    assert dns.message.from_wire(cut).flags & dns.flags.TC
    assert texts(dns.message.from_wire(whole)) == sorted(addresses)


@given(st.binary(max_size=600))
def test_nonsense_gets_no_answer_or_a_valid_one(query: bytes) -> None:
    response = answer(query, ZONE, over_udp=True)
    if response is not None:
        assert dns.message.from_wire(response).flags & dns.flags.QR


def test_a_response_is_never_answered() -> None:
    query = dns.message.make_query("web.ns.svc.cluster.local", "A")
    response = answer(query.to_wire(), ZONE, over_udp=True)
    assert response is not None
    assert answer(response, ZONE, over_udp=True) is None
