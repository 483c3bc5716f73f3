"""ModelDeployments for tests of what they want in a cluster: examples, and any that the schema allows."""

from typing import Any, Final

from hypothesis import strategies as st

from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_operator.settings import OperatorSettings

Manifest = dict[str, Any]

SETTINGS: Final = OperatorSettings(
    release_namespace="warmfleet-system",
    release_name="warmfleet",
    worker_cpu_image="registry.example/warmfleet/worker-cpu:1",
    worker_cuda_image="registry.example/warmfleet/worker-cuda:1",
    router_pod_labels={
        "app.kubernetes.io/instance": "warmfleet",
        "warmfleet.dev/component": "router",
    },
)
BEHIND_A_PROXY: Final = OperatorSettings(
    release_namespace="warmfleet-system",
    release_name="warmfleet",
    worker_cpu_image="registry.example/warmfleet/worker-cpu:1",
    worker_cuda_image="registry.example/warmfleet/worker-cuda:1",
    image_pull_policy="Always",
    image_pull_secrets=("mirror",),
    router_pod_labels={"warmfleet.dev/component": "router"},
    hub_endpoint="https://hub.example:8443/api/hub",
    https_proxy="http://proxy.example:3128",
    no_proxy=".example",
    ca_bundle_config_map="company-ca",
    default_resources={"requests": {"cpu": "500m"}, "limits": {"cpu": "3500m", "memory": "2Gi"}},
)

MINIMAL: Final[Manifest] = {
    "model": {"source": {"catalog": {"name": "smollm2-135m-instruct"}}},
    "kvCache": {"size": "512Mi"},
}
GPU_FROM_THE_HUB_ON_A_CLAIM: Final[Manifest] = {
    "model": {
        "servedNames": ["llama", "acme/llama-8b"],
        "source": {
            "huggingFace": {
                "repository": "acme/llama-8b",
                "revision": "0123456789abcdef0123456789abcdef01234567",
                "tokenSecretRef": {"name": "hub-token", "key": "token"},
            }
        },
        "cache": {"persistentVolumeClaim": {"claimName": "models"}},
    },
    "kvCache": {"deviceMemoryPercent": 85, "blockSizeTokens": 32},
    "accelerator": {"count": 1, "runtimeClassName": "nvidia", "sharedMemorySize": "8Gi"},
    "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "8", "memory": "32Gi"}},
    "nodeSelector": {"accelerator": "h200"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "replicas": 3,
    "rollout": {
        "maxSurge": 0,
        "maxUnavailable": 1,
        "drainTimeoutSeconds": 600,
        "startupTimeoutSeconds": 901,
        "prewarmTimeoutSeconds": 30,
    },
}
FULL: Final[Manifest] = {
    "model": {
        "servedNames": ["chat"],
        "source": {"catalog": {"name": "smollm2-135m-instruct"}},
        "cache": {"emptyDir": {"sizeLimit": "2Gi"}},
    },
    "engine": {
        "image": "registry.example/own/worker@sha256:" + "0" * 64,
        "dtype": "BFloat16",
        "maxModelLengthTokens": 2048,
        "maxRunningSequences": 8,
        "maxBatchedTokens": 512,
        "env": [
            {"name": "OMP_WAIT_POLICY", "value": "PASSIVE"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    },
    "kvCache": {"size": "1Gi", "blockSizeTokens": 64, "prefixCaching": "Disabled", "sharing": "Deployment"},
    "replicas": 3,
    "autoscaling": {"minReplicas": 1, "maxReplicas": 4},
    "routing": {"policy": "ConsistentHash"},
    "resources": {"limits": {"cpu": "2500m", "memory": "4Gi"}},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
            }
        }
    },
    "priorityClassName": "system-cluster-critical",
    "imagePullSecrets": [{"name": "own"}, {"name": "mirror"}],
    "podTemplate": {
        "metadata": {"labels": {"team": "search"}, "annotations": {"example.com/scrape": "true"}},
        "spec": {
            "containers": [
                {"name": "engine", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
                {"name": "sidecar", "image": "registry.example/sidecar:1", "command": ["sleep", "inf"]},
            ],
            "initContainers": [{"name": "model-fetch", "resources": {"limits": {"memory": "1Gi"}}}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        },
    },
}
FROM_AN_IMAGE: Final[Manifest] = {
    "model": {"source": {"image": {"reference": "registry.example/models/tiny@sha256:" + "1" * 64}}},
    "kvCache": {"size": "512Mi"},
}
FROM_A_CLAIM: Final[Manifest] = {
    "model": {"source": {"persistentVolumeClaim": {"claimName": "weights", "subPath": "llama/8b"}}},
    "kvCache": {"size": "512Mi"},
}

EXAMPLES: Final[dict[str, tuple[Manifest, OperatorSettings]]] = {
    "minimal": (MINIMAL, SETTINGS),
    "full": (FULL, BEHIND_A_PROXY),
    "gpu-hub-claim": (GPU_FROM_THE_HUB_ON_A_CLAIM, BEHIND_A_PROXY),
    "image": (FROM_AN_IMAGE, SETTINGS),
    "claim": (FROM_A_CLAIM, SETTINGS),
}


def manifest(spec: Manifest, name: str = "chat", namespace: str = "models", **metadata: Any) -> Manifest:
    """As the API server holds it."""
    return {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": "6c84fb90-12c4-11e1-840d-7b25c5ee775a",
            "generation": 1,
            **metadata,
        },
        "spec": spec,
    }


def desired(
    spec: Manifest, settings: OperatorSettings = SETTINGS, **metadata: Any
) -> dict[tuple[str, str], Manifest]:
    """The children, by kind and name."""
    children = desired_objects(CheckedDeployment.from_object(manifest(spec, **metadata)), settings)
    return {(child["kind"], child["metadata"]["name"]): child for child in children}


def pod_template(
    spec: Manifest, settings: OperatorSettings = SETTINGS, kind: str = "Deployment", **metadata: Any
) -> Manifest:
    """Of the workers, or of the Job that fetches."""
    (found,) = [child for (own, _), child in desired(spec, settings, **metadata).items() if own == kind]
    template: Manifest = found["spec"]["template"]
    return template


NAMES: Final = st.from_regex(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True)
_WORDS = st.from_regex(r"[a-z][a-z0-9]{0,12}", fullmatch=True)
_LABELS = st.dictionaries(_WORDS, _WORDS, max_size=3)
_SOURCES = st.one_of(
    st.builds(lambda name: {"catalog": {"name": name}}, _WORDS),
    st.builds(
        lambda owner, name, token: {
            "huggingFace": {
                "repository": f"{owner}/{name}",
                "revision": "a" * 40,
                **({"tokenSecretRef": {"name": token, "key": "token"}} if token else {}),
            }
        },
        _WORDS,
        _WORDS,
        st.none() | _WORDS,
    ),
    st.builds(lambda name: {"image": {"reference": f"registry.example/{name}:1"}}, _WORDS),
    st.builds(lambda name: {"persistentVolumeClaim": {"claimName": name}}, _WORDS),
)
_CACHES = st.sampled_from(
    [{"emptyDir": {}}, {"emptyDir": {"sizeLimit": "3Gi"}}, {"persistentVolumeClaim": {"claimName": "cache"}}]
)
_OVERLAYS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": _LABELS, "annotations": _LABELS}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(
                    st.fixed_dictionaries(
                        {"name": st.sampled_from(["engine", "sidecar"])},
                        optional={
                            "image": _WORDS,
                            "env": st.lists(
                                st.fixed_dictionaries({"name": _WORDS, "value": _WORDS}),
                                max_size=2,
                                unique_by=lambda variable: variable["name"],
                            ),
                            "securityContext": st.sampled_from([{}, {"runAsUser": 1000}]),
                        },
                    ),
                    max_size=2,
                    unique_by=lambda container: container["name"],
                ),
                "securityContext": st.sampled_from([{}, {"fsGroup": 3000}, {"fsGroup": None}]),
                "tolerations": st.lists(st.fixed_dictionaries({"key": _WORDS}), max_size=2),
                "terminationGracePeriodSeconds": st.integers(0, 1000),
            },
        ),
    },
)


@st.composite
def specs(draw: st.DrawFn) -> Manifest:
    """Any spec that workers can honour."""
    model: Manifest = {"source": draw(_SOURCES)}
    if model["source"].keys() & {"catalog", "huggingFace"} and draw(st.booleans()):
        model["cache"] = draw(_CACHES)
    if draw(st.booleans()):
        model["servedNames"] = draw(st.lists(_WORDS, min_size=1, max_size=3, unique=True))
    optional: Manifest = {
        "replicas": st.integers(0, 50),
        "rollout": st.fixed_dictionaries(
            {
                "drainTimeoutSeconds": st.integers(0, 3600),
                "startupTimeoutSeconds": st.integers(1, 86_400),
                "prewarmTimeoutSeconds": st.integers(0, 300),
            }
        ),
        "resources": st.fixed_dictionaries(
            {"limits": st.fixed_dictionaries({"cpu": st.sampled_from(["1", "500m", "2.5", 4])})}
        ),
        "accelerator": st.fixed_dictionaries({}, optional={"sharedMemorySize": st.just("1Gi")}),
        "nodeSelector": _LABELS,
        "podTemplate": _OVERLAYS,
        "suspend": st.booleans(),
        "autoscaling": st.fixed_dictionaries({"maxReplicas": st.integers(50, 99)}),
        "engine": st.fixed_dictionaries(
            {}, optional={"dtype": st.sampled_from(["Auto", "Float16"]), "image": _WORDS}
        ),
    }
    chosen = draw(st.fixed_dictionaries({}, optional=optional))
    return {"model": model, "kvCache": {"size": "64Mi"}, **chosen}
