"""What the chart installs: hardened pods, fixed selectors, no permission too many, the flags that exist."""

import re
from functools import reduce

import helm_python
import pytest
import yaml

from warmfleet_contracts import names
from warmfleet_operator.settings import parse_settings as parse_operator
from warmfleet_router.settings import parse_settings as parse_router
from warmfleet_testing.resources.chart_render import CASES, CHART, REGISTRY, REPOSITORY, case_values, render
from warmfleet_testing.resources.pod_security import violations

MODELS, RELEASE = "model namespaces", "release namespace"
ROOT_KEYS = (names.ROOT_KEYS_WORKER_TOKEN, names.ROOT_KEYS_SALT, names.ROOT_KEYS_OPERATOR_TOKEN)


def container(rendered, deployment):
    (found,) = rendered.get("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_admitted_under_restricted_pod_security(case):
    pods = list(render(case_values(case)).pods())
    assert len(pods) >= 2
    for name, pod in pods:
        assert list(violations(pod["spec"])) == [], name


@pytest.mark.parametrize("case", CASES)
def test_every_container_has_a_read_only_root_and_a_place_to_write(case):
    for _, pod in render(case_values(case)).pods():
        for item in pod["spec"]["containers"]:
            assert item["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"name": "tmp", "mountPath": "/tmp"} in item["volumeMounts"]
        assert pod["spec"]["enableServiceLinks"] is False


def test_the_checker_finds_what_the_standard_forbids():
    pod = {
        "hostNetwork": True,
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{"name": "bad", "securityContext": {"privileged": True}, "ports": [{"hostPort": 1}]}],
    }
    assert len(list(violations(pod))) == 8


def test_selectors_are_those_of_the_first_release():
    rendered = render(name="llm")
    for name in ("operator", "router"):
        selector = {
            "app.kubernetes.io/name": "warmfleet",
            "app.kubernetes.io/instance": "llm",
            "app.kubernetes.io/component": name,
        }
        assert rendered.get("Deployment", f"llm-warmfleet-{name}")["spec"]["selector"] == {
            "matchLabels": selector
        }


@pytest.mark.parametrize("case", CASES)
def test_every_selector_selects_pods_of_its_component_only(case):
    rendered = render(case_values(case))
    pods = {name: pod["metadata"]["labels"] for name, pod in rendered.pods() if "kind" not in pod}
    for kind in ("Deployment", "PodDisruptionBudget", "Service"):
        for item in rendered.of_kind(kind):
            selector = item["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            chosen = [name for name, labels in pods.items() if wanted.items() <= labels.items()]
            assert chosen == [item["metadata"]["name"].removesuffix("-metrics")]


def test_containers_ports_and_secret_keys_are_those_of_the_contract():
    rendered = render()
    router, operator = container(rendered, "warmfleet-router"), container(rendered, "warmfleet-operator")
    assert (router["name"], operator["name"]) == ("router", "operator")
    assert router["ports"] == [{"name": names.HTTP_PORT_NAME, "containerPort": names.ROUTER_PORT}]
    assert [port["containerPort"] for port in operator["ports"]] == [
        names.OPERATOR_HEALTH_PORT,
        names.OPERATOR_METRICS_PORT,
    ]
    assert not any("secretKeyRef" in item.get("valueFrom", {}) for item in router["env"])
    volumes = rendered.get("Deployment", "warmfleet-router")["spec"]["template"]["spec"]["volumes"]
    (secret,) = [item["secret"] for item in volumes if item["name"] == "root-keys"]
    assert secret["secretName"] == "warmfleet-root-keys"
    assert {item["path"]: item["key"] for item in secret["items"]} == {name: name for name in ROOT_KEYS}


def test_router_pods_carry_the_label_that_workers_let_in():
    labels = render().get("Deployment", "warmfleet-router")["spec"]["template"]["metadata"]["labels"]
    assert labels[names.COMPONENT_LABEL] == names.ROUTER_COMPONENT


@pytest.mark.parametrize("case", CASES)
def test_the_operator_takes_its_flags(case):
    values = case_values(case)
    rendered = render(values, name="llm", namespace="prod")
    (deployment,) = [
        item for item in rendered.of_kind("Deployment") if item["metadata"]["name"].endswith("operator")
    ]
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = parse_operator(operator["args"], {})
    assert settings.release_namespace == "prod"
    assert settings.release_name == "llm"
    scope, namespaces = values.get("rbac", {}).get("scope"), values.get("rbac", {}).get("namespaces", [])
    assert settings.watched_namespaces == (() if scope == "Cluster" else ("prod", *namespaces))
    router = next(
        item for item in rendered.of_kind("Deployment") if item["metadata"]["name"].endswith("router")
    )
    labels = router["spec"]["template"]["metadata"]["labels"]
    assert settings.router_pod_labels.items() <= labels.items()
    service = rendered.get("Service", settings.router_service_name)
    assert service["spec"]["ports"][0]["port"] == settings.router_service_port
    assert settings.network_policies_enabled == bool(rendered.of_kind("NetworkPolicy"))
    assert settings.create_root_secret == (case != "everything")
    assert settings.default_resources["requests"] == {"cpu": "250m", "memory": "1Gi"}


@pytest.mark.parametrize("case", CASES)
def test_the_router_takes_its_flags(case, tmp_path):
    values = case_values(case)
    rendered = render(values, name="llm", namespace="prod")
    (deployment,) = [
        item for item in rendered.of_kind("Deployment") if item["metadata"]["name"].endswith("router")
    ]
    (router,) = deployment["spec"]["template"]["spec"]["containers"]
    keys = tmp_path / "keys.json"
    keys.write_text('{"version": 1, "tenants": [], "keys": []}', encoding="utf-8")
    uid = "0f0c1c1e-5d3b-4c43-9a51-0123456789ab"
    for name in ROOT_KEYS:
        (tmp_path / name).write_text("5a" * 32)
    mounted = {"/etc/warmfleet/keys/keys.json": str(keys), "/etc/warmfleet/root-keys": str(tmp_path)}
    mounted["$(WARMFLEET_POD_UID)"] = uid
    args = [reduce(lambda text, item: text.replace(*item), mounted.items(), text) for text in router["args"]]
    environment = {item["name"]: item.get("value", "x") for item in router["env"]}
    settings = parse_router(args, environment)
    assert settings.salt_key == settings.cluster.token_root == bytes.fromhex("5a" * 32)
    assert settings.operator_token == b"5a" * 32
    assert settings.router_id == uid
    assert settings.host == "0.0.0.0"
    assert settings.port == names.ROUTER_PORT
    scope, namespaces = values.get("rbac", {}).get("scope"), values.get("rbac", {}).get("namespaces", [])
    watched = settings.cluster.namespaces
    assert set(watched) == (set() if scope == "Cluster" else {"prod", *namespaces})
    asks_for_keys = values.get("router", {}).get("auth", {}).get("mode") == "Keys"
    assert settings.allow_anonymous != asks_for_keys
    assert (settings.keys_path is not None) == asks_for_keys


def test_everything_that_models_are_fetched_through_reaches_the_operator():
    rendered = render(case_values("everything"))
    settings = parse_operator(container(rendered, "warmfleet-operator")["args"], {})
    assert settings.hub_endpoint == "https://hub.example.com"
    assert settings.hub_offline
    assert settings.https_proxy == settings.http_proxy == "http://proxy.example.com:3128"
    assert settings.no_proxy == ".svc,10.0.0.0/8"
    assert settings.ca_bundle_config_map == "corporate-roots"
    assert settings.image_pull_secrets == ("registry",)
    assert settings.image_pull_policy == "Always"
    assert settings.root_secret_name == "my-root-keys"
    assert settings.worker_scrapers == tuple(case_values("everything")["networkPolicies"]["scrapers"])


def test_releases_to_adopt_reach_the_operator():
    assert parse_operator(container(render(), "warmfleet-operator")["args"], {}).adopted_releases == ()
    adopting = render(REGISTRY | {"operator": {"adoptReleases": ["models/blue", "other/green"]}})
    settings = parse_operator(container(adopting, "warmfleet-operator")["args"], {})
    assert [str(release) for release in settings.adopted_releases] == ["models/blue", "other/green"]
    assert str(settings.release) == "models/warmfleet"


def test_metrics_of_workers_are_closed_until_something_reads_them():
    closed = container(render(REGISTRY), "warmfleet-operator")["args"]
    assert parse_operator(closed, {}).worker_scrapers is None
    monitored = render(REGISTRY | {"monitoring": {"podMonitor": {"enabled": True}}})
    assert parse_operator(container(monitored, "warmfleet-operator")["args"], {}).worker_scrapers == ()


def test_a_stopping_router_outlives_its_streams():
    spec = render(REGISTRY | {"router": {"drainSeconds": 600}}).get("Deployment", "warmfleet-router")["spec"][
        "template"
    ]["spec"]
    (item,) = spec["containers"]
    assert {"--linger-seconds=8", "--drain-seconds=600"} <= set(item["args"])
    assert spec["terminationGracePeriodSeconds"] >= 8 + 600 + 15


def test_keys_are_mounted_as_a_folder_so_that_a_change_arrives():
    spec = render(case_values("ha")).get("Deployment", "warmfleet-router")["spec"]["template"]["spec"]
    (item,) = spec["containers"]
    assert "--keys-file=/etc/warmfleet/keys/keys.json" in item["args"]
    assert "--allow-anonymous" not in item["args"]
    (mount,) = [mount for mount in item["volumeMounts"] if mount["name"] == "keys"]
    assert mount == {"name": "keys", "mountPath": "/etc/warmfleet/keys", "readOnly": True}
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "keys"]
    assert volume["secret"]["secretName"] == "warmfleet-keys"


def test_the_resource_definition_is_kept_unless_a_value_removes_it():
    (crd,) = render().of_kind("CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (dropped,) = render(REGISTRY | {"crds": {"keep": False}}).of_kind("CustomResourceDefinition")
    assert "helm.sh/resource-policy" not in dropped["metadata"].get("annotations", {})
    assert render(REGISTRY | {"crds": {"install": False}}).of_kind("CustomResourceDefinition") == []


def test_the_charts_copy_of_the_resource_definition_is_the_one_in_crds():
    copies = {path.name: path.read_bytes() for path in (CHART / "files" / "crds").glob("*.yaml")}
    originals = {path.name: path.read_bytes() for path in (REPOSITORY / "crds").glob("*.yaml")}
    assert copies, "run `make chart`"
    assert copies == originals, "run `make chart`"
    (rendered,) = render().of_kind("CustomResourceDefinition")
    (text,) = originals.values()
    assert rendered["spec"] == yaml.safe_load(text)["spec"]


def documented_permissions():
    """(account, where, group, resource, name, verb) of every row in docs/reference/rbac.md."""
    text = (REPOSITORY / "docs" / "reference" / "rbac.md").read_text(encoding="utf-8")
    operator, router = text.split("## What a router may do")
    for account, part in (("operator", operator), ("router", router)):
        for line in part.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 6 and cells[0] in (MODELS, RELEASE):
                where, group, resources, name, verbs, _ = cells
                for resource in re.findall(r"`([^`]+)`", resources):
                    for verb in verbs.split(", "):
                        yield (
                            account,
                            where,
                            group.strip("`").replace("core", ""),
                            resource,
                            name.strip("`"),
                            verb,
                        )


def granted_permissions(rendered, release_namespace):
    """The same of the rendered roles and their bindings."""
    known = {"warmfleet-root-keys": "the root keys' Secret", "warmfleet-operator": "the operator's Lease"}
    for binding in [*rendered.of_kind("RoleBinding"), *rendered.of_kind("ClusterRoleBinding")]:
        role = next(
            item
            for item in rendered.of_kind(binding["roleRef"]["kind"])
            if item["metadata"]["name"] == binding["roleRef"]["name"]
            and item["metadata"].get("namespace") == binding["metadata"].get("namespace")
        )
        (subject,) = binding["subjects"]
        assert subject["namespace"] == release_namespace
        account = subject["name"].removeprefix("warmfleet-")
        where = (
            MODELS if role["metadata"]["name"].split("-models")[0] != role["metadata"]["name"] else RELEASE
        )
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        for verb in rule["verbs"]:
                            yield account, where, group, resource, known.get(name, name), verb


@pytest.mark.parametrize("case", ["default", "ha", "namespaced"])
def test_roles_grant_what_the_documentation_gives_a_reason_for(case):
    rendered = render(case_values(case), namespace="prod")
    assert set(granted_permissions(rendered, "prod")) == set(documented_permissions())


def test_roles_are_in_the_watched_namespaces_and_nowhere_else():
    rendered = render(case_values("namespaced"), namespace="prod")
    assert rendered.of_kind("ClusterRole") == rendered.of_kind("ClusterRoleBinding") == []
    assert {item["metadata"]["namespace"] for item in rendered.of_kind("Role")} == {
        "prod",
        "team-a",
        "team-b",
    }
    assert {item["metadata"]["namespace"] for item in rendered.objects} == {"prod", "team-a", "team-b"}


def test_only_a_cluster_scope_gives_rights_in_all_namespaces():
    assert render(case_values("default")).of_kind("ClusterRoleBinding") == []
    rendered = render(case_values("ha"))
    bound = {item["roleRef"]["name"] for item in rendered.of_kind("ClusterRoleBinding")}
    assert bound == {"models-warmfleet-operator-models", "models-warmfleet-router-models"}


@pytest.mark.parametrize("case", CASES)
def test_no_rule_has_a_wildcard_or_reaches_into_pods(case):
    rendered = render(case_values(case))
    for role in [*rendered.of_kind("Role"), *rendered.of_kind("ClusterRole")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"pods/exec", "pods/attach", "pods/portforward"} & set(rule["resources"])
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"] or rule["resourceNames"]


def test_without_rbac_no_role_is_made():
    rendered = render(REGISTRY | {"rbac": {"create": False}})
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {
        item["kind"] for item in rendered.objects
    }


def test_view_reads_and_edit_and_admin_write():
    roles = {
        next(iter(key for key in item["metadata"]["labels"] if "aggregate-to" in key)).rpartition("-")[
            2
        ]: item
        for item in render().of_kind("ClusterRole")
        if any("aggregate-to" in key for key in item["metadata"]["labels"])
    }
    assert set(roles) == {"view", "edit", "admin"}
    verbs = {name: {verb for rule in role["rules"] for verb in rule["verbs"]} for name, role in roles.items()}
    assert verbs["view"] == {"get", "list", "watch"}
    assert verbs["edit"] == verbs["admin"] == {"create", "update", "patch", "delete", "deletecollection"}


def edges(rendered, name):
    policy = rendered.get("NetworkPolicy", name)["spec"]
    ports = lambda rules: [sorted({port["port"] for port in rule["ports"]}) for rule in rules]
    return ports(policy.get("ingress", [])), ports(policy.get("egress", []))


def test_the_network_is_closed_but_for_the_edges_that_the_parts_need():
    rendered = render()
    denied = rendered.get("NetworkPolicy", "warmfleet-default-deny")["spec"]
    assert denied["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in denied
    assert "egress" not in denied
    for _, pod in rendered.pods():
        assert denied["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert edges(rendered, "warmfleet-router") == ([[8080]], [[8000], [443, 6443], [53]])
    assert edges(rendered, "warmfleet-operator") == ([], [[8080], [443], [443, 6443], [53]])
    assert edges(rendered, "warmfleet-test") == ([], [[8080], [53]])


def test_clients_can_be_named_and_then_the_fleets_own_still_come_in():
    rendered = render(case_values("everything"))
    (rule,) = rendered.get("NetworkPolicy", "warmfleet-router")["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}} in rule[
        "from"
    ]
    let_in = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    pods = dict(rendered.pods())
    for name in ("warmfleet-operator", "warmfleet-test"):
        assert any(peer.items() <= pods[name]["metadata"]["labels"].items() for peer in let_in)
    router = rendered.get("NetworkPolicy", "warmfleet-router")["spec"]["egress"]
    assert router[1]["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    workers = {
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in router[0]["to"]
    }
    assert workers == {"models", "team-a"}


def test_dns_is_the_clusters_own_for_every_pod_and_every_worker():
    rendered = render()
    peers = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    ]
    for name in ("warmfleet-router", "warmfleet-operator", "warmfleet-test"):
        assert rendered.get("NetworkPolicy", name)["spec"]["egress"][-1]["to"] == peers
    settings = parse_operator(container(rendered, "warmfleet-operator")["args"], {})
    assert settings.dns_peers == tuple(peers)
    assert settings.dns_ports == (53,)
    everywhere = REGISTRY | {"networkPolicies": {"dns": {"peers": [], "ports": [53, 5353]}}}
    settings = parse_operator(container(render(everywhere), "warmfleet-operator")["args"], {})
    assert settings.dns_peers == ()
    assert settings.dns_ports == (53, 5353)
    assert "to" not in render(everywhere).get("NetworkPolicy", "warmfleet-router")["spec"]["egress"][-1]


def test_an_autoscaler_owns_the_number_of_routers():
    assert render().get("Deployment", "warmfleet-router")["spec"]["replicas"] == 2
    assert render().of_kind("HorizontalPodAutoscaler") == []
    scaled = render(REGISTRY | {"router": {"autoscaling": {"enabled": True, "maxReplicas": 5}}})
    assert "replicas" not in scaled.get("Deployment", "warmfleet-router")["spec"]
    autoscaler = scaled.get("HorizontalPodAutoscaler", "warmfleet-router")["spec"]
    assert autoscaler["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "warmfleet-router",
    }
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (2, 5)
    (metric,) = autoscaler["metrics"]
    assert metric["resource"]["target"] == {"type": "AverageValue", "averageValue": "600m"}


def test_the_number_of_routers_can_be_left_to_an_autoscaler_of_the_users():
    spec = render(REGISTRY | {"router": {"replicas": None}}).get("Deployment", "warmfleet-router")["spec"]
    assert "replicas" not in spec
    assert (
        render(REGISTRY | {"router": {"replicas": 0}}).get("Deployment", "warmfleet-router")["spec"][
            "replicas"
        ]
        == 0
    )


def test_an_autoscaler_whose_bounds_contradict_each_other_is_refused():
    bounds = {"enabled": True, "minReplicas": 3, "maxReplicas": 2}
    with pytest.raises(helm_python.HelmRenderError, match="minReplicas is greater than maxReplicas"):
        render(REGISTRY | {"router": {"autoscaling": bounds}})
