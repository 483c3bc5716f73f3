"""NetworkPolicies of a ModelDeployment: who reaches its workers, and what they and its fetches reach."""

from dataclasses import replace

from warmfleet_contracts.names import FETCHING_LABEL
from warmfleet_testing.resources.desired_specs import (
    BEHIND_A_PROXY,
    FROM_A_CLAIM,
    FROM_AN_IMAGE,
    GPU_FROM_THE_HUB_ON_A_CLAIM,
    MINIMAL,
    SETTINGS,
    desired,
    pod_template,
)


def ports(policy):
    """Ports that a policy lets out to more than names."""
    return [
        {port["port"] for port in rule["ports"]}
        for rule in policy["spec"]["egress"]
        if "UDP" not in {port["protocol"] for port in rule["ports"]}
    ]


def test_names_are_asked_of_the_clusters_own_dns():
    peer = {"podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    release = replace(SETTINGS, dns_peers=(peer,), dns_ports=(5353,))
    children = desired(GPU_FROM_THE_HUB_ON_A_CLAIM, release)
    for name in ("chat", "chat-fetch"):
        rule = children["NetworkPolicy", name]["spec"]["egress"][0]
        assert rule == {
            "to": [peer],
            "ports": [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}],
        }
    everywhere = desired(MINIMAL)["NetworkPolicy", "chat"]["spec"]["egress"][0]
    assert "to" not in everywhere


def chosen(policy, pod):
    """Whether the policy selects pods of the template."""
    return policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_only_pods_that_fetch_may_leave_the_cluster_and_only_until_they_have_the_model():
    direct = desired(MINIMAL, BEHIND_A_PROXY)
    own, fetch = (direct["NetworkPolicy", name] for name in ("chat", "chat-fetch"))
    assert ports(own) == []
    assert ports(fetch) == [{443, 3128, 8443}]
    worker = pod_template(MINIMAL, BEHIND_A_PROXY)
    assert chosen(own, worker)
    assert chosen(fetch, worker)
    # What the operator removes once the fetch has succeeded.
    del worker["metadata"]["labels"][FETCHING_LABEL]
    assert chosen(own, worker)
    assert not chosen(fetch, worker)


def test_pods_that_a_job_fetches_for_never_leave_the_cluster():
    by_job = desired(GPU_FROM_THE_HUB_ON_A_CLAIM, BEHIND_A_PROXY)
    own, fetch = (by_job["NetworkPolicy", name] for name in ("chat", "chat-fetch"))
    assert ports(own) == []
    assert ports(fetch) == [{443, 3128, 8443}]
    worker = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM)
    assert FETCHING_LABEL not in worker["metadata"]["labels"]
    assert not chosen(fetch, worker)
    assert chosen(fetch, pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM, kind="Job"))
    for spec in (FROM_AN_IMAGE, FROM_A_CLAIM):
        children = desired(spec)
        assert ports(children["NetworkPolicy", "chat"]) == []
        assert ("NetworkPolicy", "chat-fetch") not in children
        assert FETCHING_LABEL not in pod_template(spec)["metadata"]["labels"]


def test_offline_nothing_may_leave_and_the_fetch_gets_the_flag():
    children = desired(MINIMAL, replace(SETTINGS, hub_offline=True))
    assert ports(children["NetworkPolicy", "chat"]) == []
    assert ports(children["NetworkPolicy", "chat-fetch"]) == []
    (init,) = children["Deployment", "chat"]["spec"]["template"]["spec"]["initContainers"]
    assert "--offline" in init["args"]


def test_the_metadata_service_of_a_cloud_is_out_of_reach():
    policy = desired(MINIMAL)["NetworkPolicy", "chat-fetch"]
    (rule,) = [rule for rule in policy["spec"]["egress"] if "to" in rule]
    blocks = [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]
    assert [block["cidr"] for block in blocks] == ["0.0.0.0/0", "::/0"]
    assert "169.254.0.0/16" in blocks[0]["except"]


def test_metrics_of_workers_are_read_by_the_scrapers_that_are_named():
    def ingress(scrapers):
        release = replace(SETTINGS, worker_scrapers=scrapers)
        return desired(MINIMAL, release)["NetworkPolicy", "chat"]["spec"]["ingress"]

    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ports = [{"port": "http", "protocol": "TCP"}]
    assert len(ingress(None)) == 1
    assert ingress((peer,))[1:] == [{"from": [peer], "ports": ports}]
    assert ingress(())[1:] == [{"ports": ports}]


def test_network_policies_can_be_switched_off():
    without = replace(SETTINGS, network_policies_enabled=False)
    assert not [kind for kind, _ in desired(GPU_FROM_THE_HUB_ON_A_CLAIM, without) if kind == "NetworkPolicy"]
