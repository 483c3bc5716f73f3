"""The resource as a user of kubectl meets it: explained, listed, scaled, applied and edited."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from warmfleet_testing.cluster.control_plane import ControlPlane, KubectlError
from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi
from warmfleet_testing.cluster.model_namespace import model_namespace
from warmfleet_testing.resources.crd_schema import spec_fields, status_fields
from warmfleet_testing.resources.full_manifests import FULL, MINIMAL, STATUS, Manifest, changed

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(model_deployments: ModelDeploymentApi) -> Kubectl:
    """kubectl in the module's namespace; a manifest is given as its input."""

    def run(*args: str, manifest: Manifest | None = None) -> str:
        text = None if manifest is None else yaml.safe_dump(manifest)
        namespaced = ("-n", model_deployments.namespace, *args)
        return model_deployments.control_plane.kubectl(*namespaced, input=text)

    return run


def _named(name: str, manifest: Manifest = MINIMAL, **members: Any) -> Manifest:
    def change(copied: Manifest) -> None:
        copied["metadata"]["name"] = name
        copied["spec"].update(members)

    return changed(manifest, change)


OBJECTS = [field.path for field in (*spec_fields(), *status_fields()) if "properties" in field.schema]

FIELD = re.compile(r"^  (\w+)\t<.*\n(?:  enum: .*\n)?((?:    .*\n)*)", re.MULTILINE)
"""A field as `kubectl explain` lists it: its name, and the text below."""


def test_kubectl_explains_every_field_in_eight_words_or_more(kubectl: Kubectl) -> None:
    fields = {field.path for field in (*spec_fields(), *status_fields())}
    explained: dict[str, str] = {}
    for path in ("", *OBJECTS):
        text = kubectl("explain", f"mdep.{path}".replace("[]", "").rstrip("."))
        listed = text.partition("\nFIELDS:\n")[2]
        for name, _, words in re.findall(
            r"^  (\w+)\t(<.*)\n((?:    .*\n|  enum: .*\n)*)", listed, re.MULTILINE
        ):
            explained[f"{path}.{name}".removeprefix(".")] = words

    named = {path for path in fields if not path.endswith(("[]", "{}"))}
    assert named - explained.keys() == set()
    short = {path: words for path, words in explained.items() if len(words.split()) < 8}
    # The API server explains metadata itself, in seven words and a link.
    assert short.keys() <= {"metadata"}, short


def test_kubectl_get_shows_the_state_at_a_glance(
    kubectl: Kubectl, model_deployments: ModelDeploymentApi
) -> None:
    kubectl("create", "-f", "-", manifest=_named("glance"))
    kubectl("create", "-f", "-", manifest=_named("unobserved"))
    model_deployments.patch("glance", {"status": STATUS}, subresource="status", dry_run=False)

    header, row, unobserved = kubectl("get", "mdep", "glance", "unobserved").splitlines()
    wide_header, wide_row, _ = kubectl("get", "warmfleet", "-o", "wide").splitlines()[:3]

    assert header.split() == ["NAME", "MODEL", "READY", "STATUS", "KV%", "HIT%", "WAITING", "AGE"]
    assert row.split()[:7] == ["glance", STATUS["servedNames"][0], "2/3", "Progressing", "40", "87", "4"]
    assert unobserved.split()[0] == "unobserved"
    assert wide_header.split()[8:] == ["REVISION", "IMAGE", "ACCELERATOR", "EQUALBITS"]
    assert re.split(r"\s{2,}", wide_row)[8:] == [
        STATUS["revision"],
        STATUS["image"],
        STATUS["accelerator"],
        STATUS["equalBits"],
    ]


def test_kubectl_waits_for_a_condition_of_this_generation(
    kubectl: Kubectl, model_deployments: ModelDeploymentApi
) -> None:
    kubectl("create", "-f", "-", manifest=_named("awaited"))
    ready = {**STATUS["conditions"][0], "status": "True", "observedGeneration": 1}
    status = {"observedGeneration": 1, "conditions": [ready]}
    model_deployments.patch("awaited", {"status": status}, subresource="status", dry_run=False)

    kubectl("wait", "--for=condition=Ready", "modeldeployments.warmfleet.dev/awaited", "--timeout=5s")

    kubectl("patch", "mdep", "awaited", "--type=merge", "-p", '{"spec": {"replicas": 2}}')
    with pytest.raises(KubectlError, match="timed out"):
        kubectl("wait", "--for=condition=Ready", "mdep/awaited", "--timeout=1s")


def test_kubectl_scale_sets_replicas_within_their_bounds(
    kubectl: Kubectl, model_deployments: ModelDeploymentApi
) -> None:
    kubectl("create", "-f", "-", manifest=_named("scaled"))
    kubectl("create", "-f", "-", manifest=_named("ruled", autoscaling={"maxReplicas": 4}))
    model_deployments.patch("scaled", {"status": STATUS}, subresource="status", dry_run=False)

    kubectl("scale", "mdep", "scaled", "--replicas=7")
    kubectl("scale", "mdep", "ruled", "--replicas=4")

    scale = json.loads(kubectl("get", "mdep", "scaled", "--subresource=scale", "-o", "json"))
    assert scale["spec"] == {"replicas": 7}
    assert scale["status"] == {"replicas": STATUS["replicas"], "selector": STATUS["selector"]}
    with pytest.raises(KubectlError, match=r"spec\.replicas.*less than or equal to 1000"):
        kubectl("scale", "mdep", "scaled", "--replicas=1001")
    with pytest.raises(KubectlError, match=r"spec\.replicas.*greater than autoscaling\.maxReplicas 4"):
        kubectl("scale", "mdep", "ruled", "--replicas=5")


HUB = {"huggingFace": {"repository": "org/big", "revision": "0" * 40}}


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_a_union_switches_its_member_by_apply(kubectl: Kubectl, flags: tuple[str, ...]) -> None:
    name = f"switch-{len(flags)}"
    kubectl("apply", *flags, "-f", "-", manifest=_named(name))

    hub = {"source": HUB, "cache": {"emptyDir": {"sizeLimit": "2Gi"}}}
    kubectl("apply", *flags, "-f", "-", manifest=_named(name, model=hub))
    stored = _spec(kubectl, name)
    assert stored["model"] == hub

    # An empty object over a filled one, and the other measure of memory: both are traps of merging.
    bare = {"source": HUB, "cache": {"emptyDir": {}}}
    share = {"kvCache": {"deviceMemoryPercent": 80}, "accelerator": {}}
    kubectl("apply", *flags, "-f", "-", manifest=_named(name, model=bare, **share))
    stored = _spec(kubectl, name)
    assert stored["model"] == bare
    assert stored["kvCache"]["deviceMemoryPercent"] == 80
    assert "size" not in stored["kvCache"]


def test_another_manager_takes_the_whole_union_over(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", manifest=_named("handed-over"))

    with pytest.raises(KubectlError, match=r"conflict.*\.spec\.model\.source"):
        kubectl("apply", "--server-side", "-f", "-", manifest=_named("handed-over", model={"source": HUB}))
    kubectl(
        *("apply", "--server-side", "--force-conflicts", "-f", "-"),
        manifest=_named("handed-over", model={"source": HUB}),
    )

    assert _spec(kubectl, "handed-over")["model"]["source"] == HUB


def test_managers_share_the_environment_by_name(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "-f", "-", manifest=_named("shared", engine={"env": [{"name": "A"}]}))
    extra = {
        **{key: MINIMAL[key] for key in ("apiVersion", "kind")},
        "metadata": {"name": "shared"},
        "spec": {"engine": {"env": [{"name": "B", "value": "b"}]}},
    }
    with pytest.raises(KubectlError, match=r"spec\.model: Required|spec\.kvCache: Required"):
        kubectl("create", "-f", "-", manifest={**extra, "metadata": {"name": "partial"}})

    kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", manifest=extra)

    assert _spec(kubectl, "shared")["engine"]["env"] == [{"name": "A"}, {"name": "B", "value": "b"}]


@pytest.mark.parametrize("verb", [("create",), ("apply",), ("apply", "--server-side")], ids=" ".join)
def test_an_unknown_field_is_refused_by_name(kubectl: Kubectl, verb: tuple[str, ...]) -> None:
    misspelt = _named("misspelt", kvCache={"size": "1Gi", "blockSize": 16})

    with pytest.raises(KubectlError, match=r"spec\.kvCache\.blockSize"):
        kubectl(*verb, "-f", "-", manifest=misspelt)


def test_everything_of_a_live_fleet_can_be_changed(
    kubectl: Kubectl, model_deployments: ModelDeploymentApi
) -> None:
    kubectl("create", "-f", "-", manifest=_named("changed"))

    there = model_deployments.patch("changed", {"spec": {**FULL["spec"], **_replaced(MINIMAL, FULL)}})

    assert there.accepted, there


def _replaced(before: Manifest, after: Manifest) -> dict[str, Any]:
    """A merge patch keeps what it does not name: members of unions that go are set to null."""
    return {
        "model": {**after["spec"]["model"], "source": {"catalog": None, **after["spec"]["model"]["source"]}},
        "kvCache": {"size": None, **after["spec"]["kvCache"]},
    }


def _spec(kubectl: Kubectl, name: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(kubectl("get", "mdep", name, "-o", "json"))["spec"]
    return stored


def test_the_definition_is_established_without_a_complaint(
    control_plane: ControlPlane, model_deployments: ModelDeploymentApi
) -> None:
    definition = control_plane.get("crd", "modeldeployments.warmfleet.dev")
    conditions = {item["type"]: item["status"] for item in definition["status"]["conditions"]}

    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert "ModelDeployment" in str(model_deployments.openapi()["components"]["schemas"].keys())


def test_a_new_resource_has_a_status_that_describes_no_generation_yet(control_plane: ControlPlane) -> None:
    """Without it kstatus would take it for complete before any operator has seen it."""
    with model_namespace(control_plane, "unobserved") as fleet:
        fleet.apply("new")
        created = fleet.get("modeldeployment", "new")

    assert created["metadata"]["generation"] == 1
    assert created["status"] == {"observedGeneration": 0}
