"""What the operator needs to ask the hub which commit a branch is: its way out, and certificates."""

import pytest

from warmfleet_operator.settings import parse_settings as parse_operator
from warmfleet_testing.resources.chart_render import REGISTRY, render


def operator_settings(rendered):
    (item,) = rendered.get("Deployment", "warmfleet-operator")["spec"]["template"]["spec"]["containers"]
    return parse_operator(item["args"], {})


def operator_egress(rendered) -> list[list[int]]:
    """Ports of each rule."""
    policy = rendered.get("NetworkPolicy", "warmfleet-operator")["spec"]
    return [[port["port"] for port in rule["ports"]] for rule in policy["egress"]]


@pytest.mark.parametrize(
    ("fetch", "ports"),
    [
        ({}, [443]),
        ({"hubEndpoint": "http://hub.inside.example:8080/hf"}, [443, 8080]),
        ({"hubEndpoint": "http://hub.inside.example"}, [443, 80]),
        ({"hubEndpoint": "https://hub.inside.example", "httpsProxy": "proxy.example:3128"}, [443, 3128]),
        ({"httpsProxy": "http://[fd00::1]:3128"}, [443, 3128]),
        ({"resolveRevisions": False}, None),
        ({"offline": True}, None),
    ],
)
def test_the_operator_reaches_the_hub_where_it_resolves_branches(fetch, ports):
    rendered = render(REGISTRY | {"modelFetch": fetch})
    hub = [rule for rule in operator_egress(rendered) if rule not in ([8080], [443, 6443], [53, 53])]
    assert hub == ([] if ports is None else [ports])
    settings = operator_settings(rendered)
    assert settings.resolve_revisions == fetch.get("resolveRevisions", True)


@pytest.mark.parametrize("asks", [True, False])
def test_the_operator_trusts_the_bundle_for_the_hub_if_it_asks_one(asks):
    fetch = {"caBundleConfigMap": "inside-ca", "resolveRevisions": asks}
    rendered = render(REGISTRY | {"modelFetch": fetch})
    settings = operator_settings(rendered)
    pod = rendered.get("Deployment", "warmfleet-operator")["spec"]["template"]["spec"]
    bundles = [volume["configMap"] for volume in pod["volumes"] if "configMap" in volume]
    assert bundles == ([{"name": "inside-ca", "optional": True}] if asks else [])
    assert str(settings.hub_ca_file) == ("/etc/warmfleet/ca/ca.crt" if asks else "None")
