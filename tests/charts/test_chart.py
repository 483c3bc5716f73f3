"""The chart as a user meets it: lint, render, names, refusals with a way out, and the notes."""

import json
import re

import helm_python
import pytest
import yaml

from warmfleet_testing.resources.chart_render import CASES, CHART, REGISTRY, REPOSITORY, case_values, render

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LONG = "a-release-whose-name-is-as-long-as-helm-allows-it-to"


def exposed(**router):
    return REGISTRY | {"router": router}


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_finds_nothing_but_the_missing_icon(case):
    report = helm_python.lint(CHART, case_values(case), namespace="models", strict=True)
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


@pytest.mark.parametrize("case", CASES)
def test_every_object_is_named_labelled_and_unique(case):
    rendered = render(case_values(case))
    keys = [
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in rendered.objects
    ]
    assert len(keys) == len(set(keys))
    for item in rendered.objects:
        if not item["metadata"]["name"].startswith("extra-") and "extra-text" not in item["metadata"]["name"]:
            labels = item["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "warmfleet"
            assert labels["app.kubernetes.io/part-of"] == "warmfleet"
            assert all(LABEL_VALUE.fullmatch(value) for value in labels.values())


def test_common_labels_and_annotations_are_on_every_object_and_every_pod():
    rendered = render(case_values("everything"))
    own = [item for item in rendered.objects if "extra" not in item["metadata"]["name"]]
    for item in [*own, *(pod for _, pod in rendered.pods())]:
        assert item["metadata"]["labels"]["team"] == "inference"
        assert item["metadata"]["annotations"]["example.com/owner"] == "inference"


def test_without_a_registry_the_error_names_both_ways_to_get_one():
    with pytest.raises(helm_python.HelmRenderError) as caught:
        render({})
    assert "make images REGISTRY=" in str(caught.value)
    assert "warmfleet devcluster up" in str(caught.value)
    assert "images.values.yaml" in str(caught.value)


def test_a_digest_wins_over_a_tag_and_the_version_over_nothing():
    digest = "sha256:" + "a" * 64
    images = {
        "registry": "r.example.com/x",
        "router": {"tag": "1", "digest": digest},
        "operator": {"tag": "2"},
    }
    rendered = render({"images": images})
    found = {name: pod["spec"]["containers"][0]["image"] for name, pod in rendered.pods()}
    assert found["warmfleet-router"] == f"r.example.com/x/warmfleet-router@{digest}"
    assert found["warmfleet-operator"] == "r.example.com/x/warmfleet-operator:2"
    args = rendered.get("Deployment", "warmfleet-operator")["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert f"--worker-cpu-image=r.example.com/x/warmfleet-worker-cpu:{version}" in args


def test_chart_and_package_have_one_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert chart["appVersion"] == re.search(r'^version = "(.+)"', project, re.MULTILINE)[1]


@pytest.mark.parametrize(
    "release", ["a", "0", "1st.release", "a.b-c.d", "warmfleet", "my-warmfleet", LONG, "9" * 53]
)
@pytest.mark.parametrize("case", ["default", "everything"])
def test_any_release_name_gives_valid_names(release, case):
    rendered = render(case_values(case), name=release)
    for item in rendered.objects:
        name = item["metadata"]["name"]
        if "extra" not in name and item["kind"] != "CustomResourceDefinition":
            assert SERVICE_NAME.fullmatch(name), name
    for name, pod in rendered.pods():
        # A Deployment's pods add two hashes of 10 and 5 to its name, each after a dash.
        assert len(name) <= 63 - 17 or pod.get("kind") == "Pod"
        assert all(LABEL_VALUE.fullmatch(value) for value in pod["metadata"]["labels"].values())


def test_two_long_releases_in_one_namespace_stay_apart():
    first = {
        (item["kind"], item["metadata"]["name"]) for item in render(name=LONG + "a").of_kind("Deployment")
    }
    second = {
        (item["kind"], item["metadata"]["name"]) for item in render(name=LONG + "b").of_kind("Deployment")
    }
    assert not first & second


def test_a_release_name_that_contains_the_charts_name_is_not_repeated():
    assert render(name="my-warmfleet").of_kind("Deployment")[0]["metadata"]["name"] == "my-warmfleet-operator"
    assert render(name="llm").of_kind("Deployment")[0]["metadata"]["name"] == "llm-warmfleet-operator"
    full = render(REGISTRY | {"fullnameOverride": "fleet"}, name="llm")
    assert full.of_kind("Deployment")[0]["metadata"]["name"] == "fleet-operator"


@pytest.mark.parametrize(
    "router",
    [
        {"ingress": {"enabled": True}},
        {"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]}},
        {"service": {"type": "LoadBalancer"}},
        {"service": {"type": "NodePort"}},
    ],
)
def test_a_router_without_keys_is_opened_to_the_outside_only_on_demand(router):
    with pytest.raises(helm_python.HelmRenderError, match=r"router\.auth\.exposeAnonymous"):
        render(exposed(**router))
    keys = {"auth": {"mode": "Keys", "existingSecret": "keys"}}
    assert render(exposed(**router, **keys)).objects
    assert render(exposed(**router, auth={"exposeAnonymous": True})).objects


def test_keys_without_a_secret_are_refused_with_the_command_that_makes_one():
    with pytest.raises(helm_python.HelmRenderError, match="warmfleet keys create"):
        render(exposed(auth={"mode": "Keys"}))


def test_a_route_without_a_gateway_is_refused():
    with pytest.raises(helm_python.HelmRenderError, match=r"router\.httpRoute\.parentRefs"):
        render(exposed(httpRoute={"enabled": True}, auth={"exposeAnonymous": True}))


def test_a_lease_that_could_not_hold_is_refused():
    with pytest.raises(helm_python.HelmRenderError, match=r"operator\.lease"):
        render(REGISTRY | {"operator": {"lease": {"renewSeconds": 20}}})


def test_an_ingress_neither_buffers_nor_cuts_long_answers():
    ingress = render(case_values("everything")).get("Ingress", "warmfleet-router")
    annotations = ingress["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    assert ingress["spec"]["tls"] == [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}]
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["llm.example.com"]


def test_a_route_gives_answers_an_hour():
    (route,) = render(case_values("everything")).of_kind("HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "3600s", "backendRequest": "3600s"}
    assert rule["backendRefs"] == [{"name": "warmfleet-router", "port": 8080}]


def test_extra_objects_are_templates_whether_maps_or_texts():
    rendered = render(case_values("everything"), name="llm")
    assert rendered.get("ConfigMap", "extra-map")["data"] == {"release": "llm"}
    assert rendered.get("ConfigMap", "llm-fleet-extra-text")


@pytest.mark.parametrize("case", CASES)
def test_the_notes_give_commands_that_name_what_was_rendered(case):
    rendered = render(case_values(case), name="llm")
    services = [item["metadata"]["name"] for item in rendered.of_kind("Service")]
    deployments = [item["metadata"]["name"] for item in rendered.of_kind("Deployment")]
    forwarded, port = re.search(r"port-forward service/(\S+) 8080:(\d+)", rendered.notes).groups()
    assert forwarded in services
    assert rendered.get("Service", forwarded)["spec"]["ports"][0]["port"] == int(port)
    assert set(re.findall(r"deployment/(\S+)", rendered.notes)) == set(deployments)
    manifest = yaml.safe_load(re.search(r"<<EOF\n(.*?)\n  EOF", rendered.notes, re.DOTALL)[1])
    assert manifest["kind"] == "ModelDeployment"
    body = re.search(r"-d '(.+)'", rendered.notes)[1]
    assert json.loads(body)["model"] in manifest["spec"]["model"]["servedNames"]
    asks_for_keys = case_values(case).get("router", {}).get("auth", {}).get("mode") == "Keys"
    assert ("authorization: Bearer" in rendered.notes) == asks_for_keys
    assert ("warmfleet keys create --tenant NAME" in rendered.notes) != asks_for_keys


def test_the_model_of_the_notes_is_the_one_of_the_examples():
    manifest = yaml.safe_load(re.search(r"<<EOF\n(.*?)\n  EOF", render().notes, re.DOTALL)[1])
    example = yaml.safe_load((REPOSITORY / "examples" / "smollm2.yaml").read_text(encoding="utf-8"))
    assert manifest["spec"]["model"] == example["spec"]["model"]


def test_nothing_is_looked_up_in_the_cluster():
    templates = [
        path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*") if path.is_file()
    ]
    assert not any(re.search(r"\blookup\b", text) for text in templates)
