"""The user's overlay over a pod: how it merges, and what it may not touch."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_operator.desired.errors import OverlayError
from warmfleet_operator.desired.overlay import MAX_DEPTH, merge
from warmfleet_testing.resources.desired_specs import GPU_FROM_THE_HUB_ON_A_CLAIM, MINIMAL, pod_template
from warmfleet_testing.resources.pod_security import violations

PATCH = "$patch"
SCALARS = st.integers(-3, 3) | st.booleans() | st.sampled_from(["", "a", "b"])
NAMED = st.fixed_dictionaries(
    {"name": st.sampled_from("abc")}, optional={"value": st.none() | SCALARS, "image": SCALARS}
)
DIRECTED = st.fixed_dictionaries(
    {"name": st.sampled_from("abc"), PATCH: st.sampled_from(["delete", "replace"])}, optional={"x": SCALARS}
)


def trees(leaf, items=NAMED):
    """Maps with nested maps, lists that merge, lists that append and lists that replace."""
    return st.recursive(
        st.fixed_dictionaries({}, optional={"x": leaf, "y": leaf, "args": st.lists(SCALARS, max_size=3)}),
        lambda inner: st.fixed_dictionaries(
            {},
            optional={
                "spec": inner,
                "metadata": inner,
                "containers": st.lists(items, max_size=3, unique_by=lambda item: item["name"]),
                "env": st.lists(items, max_size=3, unique_by=lambda item: item["name"]),
                "volume": items,
                "tolerations": st.lists(st.fixed_dictionaries({"key": st.sampled_from("ab")}), max_size=3),
                "z": leaf,
            },
        ),
        max_leaves=6,
    )


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


BASES = trees(SCALARS).map(without_nulls)
OVERLAYS = trees(st.none() | SCALARS, NAMED | DIRECTED)


@settings(max_examples=300)
@given(BASES, OVERLAYS)
def test_a_second_time_changes_nothing(base, overlay):
    once = merge(base, overlay)
    assert merge(once, overlay) == once


@settings(max_examples=200)
@given(BASES, OVERLAYS)
def test_what_is_given_stays_as_it_was(base, overlay):
    before = copy.deepcopy((base, overlay))
    merge(base, overlay)
    assert (base, overlay) == before


@given(BASES)
def test_nothing_over_it_is_the_thing_itself(base):
    assert merge(base, {}) == base


@settings(max_examples=200)
@given(BASES, OVERLAYS)
def test_fields_that_are_not_named_stay(base, overlay):
    merged = merge(base, overlay)
    for name in base.keys() - overlay.keys():
        assert merged[name] == base[name]
    for name, value in overlay.items():
        removed = value is None or (isinstance(value, dict) and value.get(PATCH) == "delete")
        assert (name in merged) == (not removed)


@settings(max_examples=200)
@given(OVERLAYS)
def test_no_null_and_no_directive_gets_into_the_result(overlay):
    def no_null(value):
        if isinstance(value, dict):
            return PATCH not in value and all(item is not None and no_null(item) for item in value.values())
        return all(map(no_null, value)) if isinstance(value, list) else True

    assert no_null(merge({}, overlay))


@pytest.mark.parametrize(
    ("base", "overlay", "merged"),
    [
        (
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
            {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "x"}]},
        ),
        (
            {"volumes": [{"name": "model", "emptyDir": {}}]},
            {"volumes": [{"name": "model", "emptyDir": None, "hostPath": {"path": "/x"}}]},
            {"volumes": [{"name": "model", "hostPath": {"path": "/x"}}]},
        ),
        (
            {"volumes": [{"name": "model", "emptyDir": {}}, {"name": "tmp"}]},
            {"volumes": [{"name": "model", PATCH: "replace", "image": {}}, {"name": "tmp", PATCH: "delete"}]},
            {"volumes": [{"name": "model", "image": {}}]},
        ),
        ({"a": {"b": 1}, "c": {"d": 1}}, {"a": {PATCH: "replace"}, "c": {PATCH: "delete"}}, {"a": {}}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "a"}, {"key": "b"}]}, None),
        ({"args": ["1", "2"]}, {"args": ["3"]}, {"args": ["3"]}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_lists_merge_by_key_append_or_are_replaced(base, overlay, merged):
    assert merge(base, overlay) == (merged or overlay)


@pytest.mark.parametrize(
    ("overlay", "field"),
    [
        ({"containers": [{"image": "x"}]}, "spec.containers[0]"),
        ({"containers": "engine"}, "spec.containers"),
        ({"env": ["A=b"]}, "spec.env[0]"),
        ({"tolerations": [3]}, "spec.tolerations[0]"),
        ({"env": [{"name": "a"}, {"name": "a", PATCH: "delete"}]}, "spec.env[1]"),
        ({"a": {PATCH: "merge"}}, "spec.a.$patch"),
    ],
)
def test_what_cannot_be_merged_is_named(overlay, field):
    with pytest.raises(OverlayError) as refusal:
        merge({}, overlay, "spec")
    assert refusal.value.field == field


def test_depth_has_a_bound():
    deep = {}
    for _ in range(MAX_DEPTH + 2):
        deep = {"a": deep}
    with pytest.raises(OverlayError, match="nested more than"):
        merge({}, deep)


def overlaid(overlay, spec=MINIMAL, kind="Deployment"):
    return pod_template({**spec, "podTemplate": overlay}, kind=kind)


@pytest.mark.parametrize(
    ("overlay", "field"),
    [
        (
            {"metadata": {"labels": {"warmfleet.dev/component": "x"}}},
            "spec.podTemplate.metadata.labels[warmfleet.dev/component]",
        ),
        (
            {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
            "spec.podTemplate.metadata.labels[app.kubernetes.io/managed-by]",
        ),
        (
            {"metadata": {"labels": {"warmfleet.dev/revision": "mine"}}},
            "spec.podTemplate.metadata.labels[warmfleet.dev/revision]",
        ),
        ({"metadata": {"labels": None}}, "spec.podTemplate.metadata.labels[app.kubernetes.io/name]"),
        ({"spec": {"containers": None}}, "spec.podTemplate.spec.containers"),
        (
            {
                "spec": {
                    "containers": [{"name": "engine", "env": [{"name": "WARMFLEET_POD_UID", "value": "x"}]}]
                }
            },
            "spec.podTemplate.spec.containers[engine].env[WARMFLEET_POD_UID]",
        ),
        (
            {"spec": {"containers": [{"name": "engine", "env": None}]}},
            "spec.podTemplate.spec.containers[engine].env[WARMFLEET_NAMESPACE_KEY]",
        ),
        (
            {
                "spec": {
                    "initContainers": [
                        {"name": "model-fetch", "env": [{"name": "WARMFLEET_IMAGE_HOME", "value": "/x"}]}
                    ]
                }
            },
            "spec.podTemplate.spec.initContainers[model-fetch].env[WARMFLEET_IMAGE_HOME]",
        ),
    ],
)
def test_what_is_ours_cannot_be_overlaid(overlay, field):
    with pytest.raises(OverlayError) as refusal:
        overlaid(overlay)
    assert refusal.value.field == field


def test_a_sidecar_is_restricted_unless_it_sets_otherwise_itself():
    own = {"name": "own", "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}
    pod = overlaid({"spec": {"containers": [{"name": "sidecar", "image": "x"}, own]}})["spec"]
    assert list(violations(pod)) == []
    contexts = {container["name"]: container["securityContext"] for container in pod["containers"]}
    assert "readOnlyRootFilesystem" not in contexts["sidecar"]
    assert contexts["own"]["capabilities"]["add"] == ["NET_BIND_SERVICE"]


def test_a_replaced_security_context_of_the_pod_stays_restricted():
    overlay = {"spec": {"securityContext": {PATCH: "replace", "runAsUser": 7}}}
    pod = overlaid(overlay, GPU_FROM_THE_HUB_ON_A_CLAIM, "Job")["spec"]
    assert list(violations(pod)) == []
    assert pod["securityContext"].keys() == {"runAsNonRoot", "seccompProfile", "runAsUser"}


def test_what_is_set_for_every_pod_and_for_the_fetch_reaches_the_job():
    overlay = {
        "spec": {
            "securityContext": {"fsGroup": None},
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
            "containers": [{"name": "sidecar", "image": "x"}],
            "initContainers": [{"name": "model-fetch", "resources": {"limits": {"memory": "4Gi"}}}],
        }
    }
    pod = overlaid(overlay, GPU_FROM_THE_HUB_ON_A_CLAIM, "Job")["spec"]
    assert "fsGroup" not in pod["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["hostAliases"] == overlay["spec"]["hostAliases"]
    (container,) = pod["containers"]
    assert container["name"] == "model-fetch"
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert container["resources"]["requests"]["memory"] == "256Mi"
