"""From ModelDeployments and EndpointSlices to endpoints, against rules written down one by one."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.worker_tokens import namespace_key, worker_token
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec, ZeroRule
from warmfleet_router.discovery.base import MAX_ENDPOINTS, vetted_endpoints
from warmfleet_router.discovery.endpoint_builder import discovered_from, endpoints_from
from warmfleet_router.discovery.resources import EndpointSliceObject, ModelDeploymentObject

ROOT = bytes(range(32))
LABEL = "warmfleet.dev/model-deployment"


def deployment(
    name="m",
    namespace="default",
    *,
    uid="",
    created="2026-01-01T00:00:00Z",
    claims=(),
    generation=3,
    **spec,
):
    """As the API server writes one, with fields that routers do not read."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"md-{namespace}-{name}",
        "creationTimestamp": created,
        "generation": generation,
        "managedFields": [{"manager": "x"}],
    }
    full = {"model": {"source": {"catalog": {"name": "x"}}}, "replicas": 1, **spec}
    status = {"nameClaims": [{"name": name, "since": since} for name, since in claims]}
    return msgspec.convert({"metadata": metadata, "spec": full, "status": status}, ModelDeploymentObject)


def pod(uid, address="10.0.0.1", *, name="", kind="Pod", **conditions):
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
        "targetRef": {"kind": kind, "name": name or f"pod-{uid}", "uid": uid, "namespace": "default"},
        "nodeName": "n",
    }


def a_slice(
    *pods, name="s", of="m", namespace="default", ports=({"name": "http", "port": 8000},), family="IPv4"
):
    content = {
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: of, "other": "x"}},
        "addressType": family,
        "endpoints": list(pods),
        "ports": [{"protocol": "TCP", **port} for port in ports],
    }
    return msgspec.convert(content, EndpointSliceObject)


@pytest.mark.parametrize(
    ("spec", "hold_seconds"),
    [
        ({}, None),
        ({"autoscaling": {"maxReplicas": 2}}, None),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 2}}, ZeroRule().hold_seconds),
        ({"autoscaling": {"mode": "Active", "minReplicas": 0, "zero": {"holdSeconds": 7}}}, 7),
        ({"autoscaling": {"mode": "Active", "minReplicas": 0, "zero": {"idleSeconds": 7}}}, 300),
        ({"autoscaling": {"mode": "Advisory", "minReplicas": 0}}, None),
        ({"autoscaling": {"mode": "Paused", "minReplicas": 0}}, None),
        ({"autoscaling": {"minReplicas": 0}, "suspend": True}, None),
    ],
)
def test_requests_may_be_held_for_models_that_may_sleep(spec, hold_seconds):
    found = discovered_from([deployment(model={"servedNames": ["chat"]}, **spec)], [], ROOT)

    assert found.names == {"chat", "default/m"}
    assert found.hold_seconds == dict.fromkeys(found.names if hold_seconds is not None else (), hold_seconds)


def test_a_name_is_held_for_as_its_owner_sets():
    older = deployment("a", model={"servedNames": ["chat"]}, created="2026-01-01T00:00:00Z", generation=1)
    younger = deployment(
        "b",
        model={"servedNames": ["chat"]},
        created="2026-01-02T00:00:00Z",
        generation=1,
        autoscaling={"minReplicas": 0},
    )

    found = discovered_from([older, younger], [], ROOT)
    assert found.hold_seconds == {"default/b": 300}
    assert found.owners == {"chat": "default/a", "default/a": "default/a", "default/b": "default/b"}


def test_the_defaults_are_those_of_the_resource():
    scaling = AutoscalingSpec.model_validate({"maxReplicas": 1})

    assert (scaling.mode, scaling.min_replicas, ZeroRule().hold_seconds) == ("Active", 1, 300)


def test_a_pod_becomes_an_endpoint_with_its_own_token():
    (endpoint,) = endpoints_from(
        [deployment(model={"servedNames": ["org/chat", "chat"]}, routing={"policy": "RoundRobin"})],
        [a_slice(pod("u1", "10.1.2.3", name="m-abc"))],
        ROOT,
    )

    assert (endpoint.uid, endpoint.name, endpoint.url) == ("u1", "m-abc", "http://10.1.2.3:8000")
    assert endpoint.served_names == ("chat", "default/m", "org/chat")
    assert endpoint.token == worker_token(namespace_key(ROOT, "default"), "u1")
    assert (endpoint.deployment, endpoint.policy, endpoint.shared_cache) == ("default/m", "RoundRobin", "")


def test_a_deployment_without_names_is_called_by_its_own():
    found = discovered_from([deployment("smol", "team-a")], [], ROOT)

    assert found.names == {"smol", "team-a/smol"}
    assert found.endpoints == ()


def test_a_cache_is_shared_within_its_deployment_only():
    shared = {"kvCache": {"sharing": "Deployment", "size": "1Gi"}}
    endpoints = endpoints_from(
        [deployment("m", "a", **shared), deployment("m", "b", **shared), deployment("t", "a")],
        [
            a_slice(pod("1"), namespace="a"),
            a_slice(pod("2"), namespace="b"),
            a_slice(pod("3"), namespace="a", of="t"),
        ],
        ROOT,
    )

    assert {endpoint.uid: endpoint.shared_cache for endpoint in endpoints} == {
        "1": "a/m",
        "2": "b/m",
        "3": "",
    }


@pytest.mark.parametrize(
    "conditions", [{}, {"ready": False}, {"serving": False, "ready": False, "terminating": True}]
)
def test_a_pod_is_an_endpoint_in_every_condition_as_its_worker_reports_its_own_state(conditions):
    assert len(endpoints_from([deployment()], [a_slice(pod("1", **conditions))], ROOT)) == 1


@pytest.mark.parametrize(
    "found",
    [
        a_slice(pod("1"), of="unknown"),
        a_slice(pod("1"), namespace="elsewhere"),
        a_slice(pod("1"), ports=[{"name": "metrics", "port": 8000}]),
        a_slice(pod("1"), ports=[{"port": 8000}]),
        a_slice(pod("1"), ports=[{"name": "http"}]),
        a_slice(pod("1", kind="Node")),
        a_slice(pod("")),
        a_slice(pod("1", "worker.example.com"), family="FQDN"),
        a_slice(pod("1", "fe80::1%eth0/x"), family="IPv6"),
        a_slice({"addresses": ["10.0.0.1"]}),
        msgspec.convert(
            {"metadata": {"name": "s", "namespace": "default"}, "endpoints": None}, EndpointSliceObject
        ),
    ],
    ids=[
        "of no deployment",
        "of another namespace",
        "another port",
        "an unnamed port",
        "no port",
        "no pod",
        "no uid",
        "a host name",
        "an interface's address",
        "no target",
        "empty",
    ],
)
def test_what_is_no_pod_of_a_known_deployment_is_left_out(found):
    assert endpoints_from([deployment()], [found], ROOT) == ()


def test_a_pod_with_two_addresses_is_one_endpoint():
    slices = [a_slice(pod("1", "fd00::1"), name="v6", family="IPv6"), a_slice(pod("1"), name="v4")]

    (endpoint,) = endpoints_from([deployment()], slices, ROOT)
    (only_v6,) = endpoints_from([deployment()], slices[:1], ROOT)

    assert endpoint.url == "http://10.0.0.1:8000"
    assert only_v6.url == "http://[fd00::1]:8000"


def test_another_pod_at_the_same_address_is_another_endpoint_with_another_token():
    (before,) = endpoints_from([deployment()], [a_slice(pod("1"))], ROOT)
    (after,) = endpoints_from([deployment()], [a_slice(pod("2"))], ROOT)

    assert before.url == after.url
    assert before.token != after.token
    assert not before.is_reached_like(after)


def test_of_two_deployments_that_claim_a_name_the_older_is_asked_until_it_is_gone():
    older = deployment("a", model={"servedNames": ["chat"]})
    younger = deployment("b", created="2026-01-01T00:00:01Z", model={"servedNames": ["chat", "code"]})
    slices = [a_slice(pod("1"), of="a"), a_slice(pod("2"), of="b", name="t")]

    both = {e.uid: e.served_names for e in endpoints_from([younger, older], slices, ROOT)}
    alone = {e.uid: e.served_names for e in endpoints_from([younger], slices, ROOT)}

    assert both == {"1": ("chat", "default/a"), "2": ("code", "default/b")}
    assert alone == {"2": ("chat", "code", "default/b")}


RECORDED = ("own", "2026-01-01T00:00:00Z")


@pytest.mark.parametrize("claims", [[RECORDED], [RECORDED, ("chat", "2026-01-03T00:00:00Z")]], ids=len)
def test_an_older_deployment_that_adds_a_name_does_not_take_it_from_its_holder(claims):
    """Also before the operator has recorded since when it claims the name."""
    older = deployment("a", model={"servedNames": ["own", "chat"]}, claims=claims)
    younger = deployment("b", created="2026-01-02T00:00:00Z", model={"servedNames": ["chat"]}, generation=1)
    slices = [a_slice(pod("1"), of="a"), a_slice(pod("2"), of="b", name="t")]

    both = {e.uid: e.served_names for e in endpoints_from([older, younger], slices, ROOT)}
    alone = {e.uid: e.served_names for e in endpoints_from([older], slices, ROOT)}

    assert both == {"1": ("default/a", "own"), "2": ("chat", "default/b")}
    assert alone == {"1": ("chat", "default/a", "own")}


def test_a_slice_of_another_namespace_takes_no_pod_from_an_older_deployment():
    thief = deployment("thief", "evil", created="2026-02-01T00:00:00Z")
    slices = [
        a_slice(pod("1", "10.0.0.66"), of="thief", namespace="evil", name="a"),
        a_slice(pod("1"), name="b"),
    ]

    (endpoint,) = endpoints_from([deployment(), thief], slices, ROOT)

    assert (endpoint.deployment, endpoint.url) == ("default/m", "http://10.0.0.1:8000")


def test_a_fleet_beyond_the_limit_keeps_its_oldest_deployments():
    old, new = deployment("old"), deployment("new", created="2026-03-01T00:00:00Z")
    slices = [
        a_slice(
            *(pod(f"n{i}", f"10.1.{i // 250}.{i % 250}") for i in range(MAX_ENDPOINTS)), of="new", name="a"
        ),
        a_slice(*(pod(f"o{i}") for i in range(3)), of="old", name="b"),
    ]

    endpoints = endpoints_from([new, old], slices, ROOT)

    assert len(endpoints) == MAX_ENDPOINTS
    assert {"o0", "o1", "o2"} <= {endpoint.uid for endpoint in endpoints}


NAMES = st.sampled_from(["a", "b", "c", "org/x", "n1/a"])
NAMESPACES = st.sampled_from(["n1", "n2"])
DEPLOYMENTS = st.lists(
    st.builds(
        lambda name, namespace, created, served, policy, sharing: deployment(
            name,
            namespace,
            created=created,
            model={"servedNames": served},
            routing={"policy": policy},
            kvCache={"sharing": sharing},
        ),
        st.sampled_from(["a", "b", "c"]),
        NAMESPACES,
        st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"]),
        st.lists(NAMES, max_size=3, unique=True),
        st.sampled_from(["", "LowestCost", "RoundRobin", "Future"]),
        st.sampled_from(["", "Tenant", "Deployment", "Future"]),
    ),
    max_size=5,
    unique_by=lambda found: found.key,
)
PODS = st.builds(
    pod,
    st.sampled_from(["", *(f"u{number}" for number in range(6))]),
    st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "not an address", "::1%x", ""]),
    kind=st.sampled_from(["Pod", "Pod", "Pod", "Node"]),
)
SLICES = st.lists(
    st.builds(
        lambda pods, name, of, namespace, port: a_slice(
            *pods, name=name, of=of, namespace=namespace, ports=[{"name": "http", "port": port}]
        ),
        st.lists(PODS, max_size=4),
        st.sampled_from(["s", "t", "u"]),
        st.sampled_from(["a", "b", "unknown"]),
        NAMESPACES,
        st.sampled_from([8000, 8001, 0, 70000, None]),
    ),
    max_size=5,
    unique_by=lambda found: (found.metadata.namespace, found.metadata.name),
)


@given(DEPLOYMENTS, SLICES)
def test_endpoints_of_any_objects_can_be_served(deployments, slices):
    found = discovered_from(deployments, slices, ROOT)

    endpoints = vetted_endpoints(found.endpoints)
    known = {"/".join(deployment.key): deployment for deployment in deployments}
    named = {
        (found.metadata.namespace, endpoint.target_ref.uid)
        for found in slices
        for endpoint in found.endpoints or ()
        if endpoint.target_ref
    }
    for endpoint in endpoints:
        namespace = endpoint.deployment.partition("/")[0]
        assert endpoint.deployment in known
        assert endpoint.deployment in endpoint.served_names
        assert (namespace, endpoint.uid) in named
        assert endpoint.token == worker_token(namespace_key(ROOT, namespace), endpoint.uid)
        assert set(endpoint.served_names) <= found.names
    # A name leads to the workers of one deployment.
    for name in found.names:
        assert len({endpoint.deployment for endpoint in endpoints if name in endpoint.served_names}) <= 1
    assert {name for one in deployments for name in one.served_names} <= found.names


@given(DEPLOYMENTS, SLICES, st.randoms(use_true_random=False))
def test_the_order_of_objects_changes_nothing(deployments, slices, order: random.Random):
    shuffled = [list(deployments), list(slices)]
    for objects in shuffled:
        order.shuffle(objects)

    assert discovered_from(*shuffled, ROOT) == discovered_from(deployments, slices, ROOT)
