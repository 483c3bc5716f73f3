"""Which connections NetworkPolicies allow: the decision by table, and the rules that the kernel gets."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from warmfleet_devcluster.network import netfilter
from warmfleet_devcluster.network.policies import (
    ANYWHERE,
    Allowed,
    IsolatedPod,
    Namespace,
    NetworkPolicy,
    Pod,
    isolated_pods,
)
from warmfleet_devcluster.network.policy_rules import TABLE, policy_rules

NODE = "10.10.0.10"
WEB, API, CLIENT, FOREIGN, SCRAPER, DNS = (
    *("10.244.0.2", "10.244.0.3", "10.244.0.4", "10.244.0.5", "10.244.1.6"),
    "10.96.0.10",
)
"""`web`, `api` and `client` are in the namespace `shop`, `foreign` and `scraper` in `ops`; DNS is no pod."""

Json = dict[str, Any]


def pod(namespace: str, name: str, address: str, *ports: tuple[str, int], **fields: Any) -> Json:
    named = [{"name": port, "containerPort": number} for port, number in ports]
    status = {"podIP": address, "hostIP": NODE, "phase": "Running", **fields}
    metadata = {"namespace": namespace, "name": name, "labels": {"app": name}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "ports": named}]}, "status": status}


PODS = (
    pod("shop", "web", WEB, ("http", 8000), ("metrics", 9000)),
    pod("shop", "api", API, ("http", 8001)),
    pod("shop", "client", CLIENT),
    pod("ops", "foreign", FOREIGN, ("http", 8002)),
    pod("ops", "scraper", SCRAPER),
)
NAMESPACES = (
    {"metadata": {"name": "shop"}},
    *({"metadata": {"name": n, "labels": {"team": n}}} for n in ("ops",)),
)


def policy(selects: Json | None = None, namespace: str = "shop", **spec: Any) -> Json:
    types = [name for name in ("Ingress", "Egress") if name.lower() in spec]
    selector = {"matchLabels": {"app": "web"}} if selects is None else selects
    return {
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"podSelector": selector, "policyTypes": types, **spec},
    }


def isolated(*policies: Json, pods: Iterable[Json] = PODS) -> Mapping[str, IsolatedPod]:
    """By address."""
    system = {"metadata": {"name": "kube-system", "labels": {"kubernetes.io/metadata.name": "kube-system"}}}
    found = isolated_pods(
        msgspec.convert(policies, list[NetworkPolicy]),
        msgspec.convert(list(pods), list[Pod]),
        msgspec.convert([*NAMESPACES, system], list[Namespace]),
    )
    return {one.address: one for one in found}


def ingress(*rules: Json) -> tuple[Allowed, ...] | None:
    return isolated(policy(ingress=list(rules)))[WEB].ingress


def egress(*rules: Json) -> tuple[Allowed, ...] | None:
    return isolated(policy(egress=list(rules)))[WEB].egress


def one(address: str, protocol: str = "", first: int = 0, last: int = 0) -> Allowed:
    return Allowed(f"{address}/32", (), protocol, first, last or first)


def app(*names: str) -> Json:
    return {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": list(names)}]}}


TEAM_OPS = {"namespaceSelector": {"matchLabels": {"team": "ops"}}}
ALL_BUT = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.0.0/24"]}}


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({}, [Allowed(ANYWHERE)]),
        ({"from": []}, [Allowed(ANYWHERE)]),
        ({"from": [app("client")]}, [one(CLIENT)]),
        ({"from": [{"podSelector": {}}]}, [one(WEB), one(API), one(CLIENT)]),
        ({"from": [app("foreign")]}, []),
        ({"from": [TEAM_OPS]}, [one(FOREIGN), one(SCRAPER)]),
        ({"from": [{**TEAM_OPS, **app("scraper", "client")}]}, [one(SCRAPER)]),
        ({"from": [TEAM_OPS, app("client")]}, [one(CLIENT), one(FOREIGN), one(SCRAPER)]),
        ({"from": [{"namespaceSelector": {}, **app("client", "foreign")}]}, [one(CLIENT), one(FOREIGN)]),
        ({"from": [ALL_BUT]}, [Allowed("10.0.0.0/8", ("10.244.0.0/24",))]),
        ({"from": [{"ipBlock": {"cidr": "fd00::/8"}}]}, []),
        ({"ports": [{"port": 8000}]}, [Allowed(ANYWHERE, (), "TCP", 8000, 8000)]),
        ({"ports": [{"port": 80, "endPort": 90}]}, [Allowed(ANYWHERE, (), "TCP", 80, 90)]),
        ({"ports": [{"protocol": "UDP"}]}, [Allowed(ANYWHERE, (), "UDP")]),
        ({"ports": [{"port": "http"}]}, [Allowed(ANYWHERE, (), "TCP", 8000, 8000)]),
        ({"ports": [{"port": "http", "protocol": "UDP"}]}, []),
        ({"ports": [{"port": "unknown"}]}, []),
        (
            {"from": [app("client", "api")], "ports": [{"port": "metrics"}, {"port": 7, "protocol": "UDP"}]},
            [one(API, "TCP", 9000), one(API, "UDP", 7), one(CLIENT, "TCP", 9000), one(CLIENT, "UDP", 7)],
        ),
    ],
)
def test_an_ingress_rule_allows_its_peers_on_its_ports(rule: Json, allowed: list[Allowed]) -> None:
    assert ingress(rule) == tuple(sorted(allowed))


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({}, [Allowed(ANYWHERE)]),
        ({"to": [app("api")], "ports": [{"port": 8001}]}, [one(API, "TCP", 8001)]),
        (
            {"to": [ALL_BUT], "ports": [{"port": 443}]},
            [Allowed("10.0.0.0/8", ("10.244.0.0/24",), "TCP", 443, 443)],
        ),
        # A named port is that of each pod at the other end.
        (
            {"ports": [{"port": "http"}]},
            [one(WEB, "TCP", 8000), one(API, "TCP", 8001), one(FOREIGN, "TCP", 8002)],
        ),
        ({"to": [app("api", "client")], "ports": [{"port": "http"}]}, [one(API, "TCP", 8001)]),
        ({"to": [{"ipBlock": {"cidr": f"{API}/32"}}], "ports": [{"port": "http"}]}, [one(API, "TCP", 8001)]),
        (
            {
                "to": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                    }
                ],
                "ports": [{"port": 53, "protocol": "UDP"}],
            },
            [one(DNS, "UDP", 53)],
        ),
    ],
)
def test_an_egress_rule_allows_its_peers_on_its_ports(rule: Json, allowed: list[Allowed]) -> None:
    assert egress(rule) == tuple(sorted(allowed))


@pytest.mark.parametrize(
    ("requirement", "selected"),
    [
        ({"key": "app", "operator": "In", "values": ["web", "api"]}, {WEB, API}),
        ({"key": "app", "operator": "NotIn", "values": ["web"]}, {API, CLIENT}),
        ({"key": "app", "operator": "Exists"}, {WEB, API, CLIENT}),
        ({"key": "app", "operator": "DoesNotExist"}, set()),
        ({"key": "other", "operator": "NotIn", "values": ["x"]}, {WEB, API, CLIENT}),
        ({"key": "other", "operator": "DoesNotExist"}, {WEB, API, CLIENT}),
    ],
)
def test_a_policy_isolates_the_pods_of_its_namespace_that_it_selects(
    requirement: Json, selected: set[str]
) -> None:
    assert isolated(policy({"matchExpressions": [requirement]}, ingress=[])).keys() == selected


def test_no_pod_is_isolated_without_a_policy_and_each_direction_only_by_a_policy_that_names_it() -> None:
    assert isolated() == {}
    (inwards,) = isolated(policy(ingress=[])).values()
    assert inwards == IsolatedPod(WEB, NODE, ingress=(), egress=None)
    (outwards,) = isolated(policy(egress=[])).values()
    assert outwards == IsolatedPod(WEB, NODE, ingress=None, egress=())


def test_what_one_of_several_policies_allows_is_allowed() -> None:
    found = isolated(policy({}, ingress=[], egress=[]), policy(ingress=[{"from": [app("client")]}]))
    assert found[WEB] == IsolatedPod(WEB, NODE, ingress=(one(CLIENT),), egress=())
    assert found[API] == IsolatedPod(API, NODE, ingress=(), egress=())


def test_a_pod_that_has_ended_or_has_no_address_has_no_rules_and_is_no_peer() -> None:
    pods = (pod("shop", "web", WEB, phase="Succeeded"), pod("shop", "web", ""), pod("shop", "web", API))
    assert isolated(policy(ingress=[{"from": [app("web")]}]), pods=pods) == {
        API: IsolatedPod(API, NODE, ingress=(one(API),), egress=None)
    }


def test_a_hollow_pod_has_no_rules_and_is_a_peer() -> None:
    hollow = "198.18.0.7"
    found = isolated(policy({}, egress=[{"to": [app("api")]}]), pods=(PODS[0], pod("shop", "api", hollow)))
    assert found == {WEB: IsolatedPod(WEB, NODE, ingress=None, egress=(one(hollow),))}


def test_the_rules_are_one_transaction_that_replaces_the_table() -> None:
    messages = policy_rules([])
    assert messages[:3] == [
        netfilter.new_table(TABLE),
        netfilter.delete_table(TABLE),
        netfilter.new_table(TABLE),
    ]
    # Two chains of the kernel's, each with the rule that connections stay.
    assert len(messages) == 3 + 2 * 2


def test_each_direction_returns_what_is_allowed_and_drops_the_rest() -> None:
    allowed = Allowed("10.0.0.0/8", ("10.244.0.0/24",), "TCP", 80, 90)
    messages = policy_rules([IsolatedPod(WEB, NODE, ingress=(allowed,), egress=())])[7:]

    returned, dropped = netfilter.returned(), netfilter.dropped()
    block = [
        *netfilter.from_network("10.0.0.0/8"),
        *netfilter.from_network("10.244.0.0/24", outside=True),
        *netfilter.to_ports("TCP", 80, 90),
    ]
    itself, node = netfilter.from_address(WEB), netfilter.to_address(NODE)
    to, out = f"to-{WEB}", f"from-{WEB}"
    assert messages == [
        netfilter.new_called_chain(TABLE, to),
        *(
            netfilter.new_rule(TABLE, to, rule)
            for rule in ([*itself, *returned], [*block, *returned], dropped)
        ),
        netfilter.new_rule(TABLE, "between-pods", [*netfilter.to_address(WEB), *netfilter.jump_to(to)]),
        netfilter.new_called_chain(TABLE, out),
        *(
            netfilter.new_rule(TABLE, out, rule)
            for rule in ([*netfilter.to_address(WEB), *returned], [*node, *returned], dropped)
        ),
        netfilter.new_rule(TABLE, "between-pods", [*itself, *netfilter.jump_to(out)]),
        netfilter.new_rule(TABLE, "to-this-machine", [*itself, *netfilter.jump_to(out)]),
    ]
