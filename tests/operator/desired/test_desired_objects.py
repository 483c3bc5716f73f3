"""What a ModelDeployment wants in a cluster: which objects, and how they hang together."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL, REVISION_LABEL
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.errors import UnsupportedError
from warmfleet_testing.resources.desired_specs import (
    BEHIND_A_PROXY,
    EXAMPLES,
    FROM_A_CLAIM,
    FROM_AN_IMAGE,
    FULL,
    GPU_FROM_THE_HUB_ON_A_CLAIM,
    MINIMAL,
    NAMES,
    desired,
    manifest,
    pod_template,
    specs,
)
from warmfleet_testing.resources.pod_security import violations
from warmfleet_worker import settings as worker_settings
from warmfleet_worker.model_store.fetch import settings as fetch_settings

CLAIM = {"persistentVolumeClaim": {"claimName": "models"}}
VLLM = {"type": "VLLM", "image": "registry.example/worker-vllm:1"}
DEFAULT_ARGUMENTS = (
    *("--dtype", "Auto", "--block-size-tokens", "16", "--max-model-length-tokens", "16777216"),
    *(
        "--max-running-sequences",
        "64",
        "--max-batched-tokens",
        "0",
        "--drain-seconds",
        "300",
        "--threads",
        "0",
    ),
)
"""What a worker was given for the defaults of the schema while they were arguments."""


def engine(template):
    return next(item for item in template["spec"]["containers"] if item["name"] == "engine")


def with_defaults(spec):
    """The spec with every default written, as an API server returns it."""
    deployment = CheckedDeployment.from_object(manifest(spec))
    return deployment.spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def templates(children):
    return [child["spec"]["template"] for child in children.values() if "template" in child.get("spec", {})]


def flag(container, name):
    return container["args"][container["args"].index(name) + 1]


def worker_of(container):
    """The settings of the worker that the container starts."""
    environment = {"WARMFLEET_NAMESPACE_KEY": "0f" * 32, "WARMFLEET_POD_UID": "uid"}
    return worker_settings.parse_settings(container["args"], environment)


def test_a_deployment_without_a_claim_has_six_children():
    assert list(desired(MINIMAL)) == [
        ("ServiceAccount", "chat"),
        ("NetworkPolicy", "chat"),
        ("NetworkPolicy", "chat-fetch"),
        ("Service", "chat"),
        ("PodDisruptionBudget", "chat"),
        ("Deployment", "chat"),
    ]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"engine": {**VLLM, "weightQuantization": "Int8"}}, "spec.engine.weightQuantization"),
        (
            {"engine": {"weightQuantization": "Int8"}, "accelerator": {"count": 1}},
            "spec.engine.weightQuantization",
        ),
        ({"kvCache": {"size": "1Gi", "dtype": "Int4"}}, "spec.kvCache.dtype"),
        ({"accelerator": {"count": 2}}, "spec.accelerator.count"),
        ({"engine": {"type": "VLLM"}}, "spec.engine.image"),
        ({"engine": VLLM, "kvCache": {"size": "1Gi", "dtype": "Int8"}}, "spec.kvCache.dtype"),
    ],
)
def test_what_no_worker_can_honour_is_refused_by_field(spec, field):
    with pytest.raises(UnsupportedError, match=field) as refusal:
        desired({**MINIMAL, **spec})
    assert refusal.value.field == field


@settings(max_examples=80)
@given(specs(), NAMES)
def test_every_pod_is_admitted_under_restricted_pod_security(spec, name):
    for template in templates(desired(spec, BEHIND_A_PROXY, name=name)):
        # Images as volumes are newer than the documented list; the API server's own verdict is tested, too.
        pod = template["spec"]
        pod["volumes"] = [volume for volume in pod["volumes"] if "image" not in volume]
        assert list(violations(pod)) == []
        assert pod["automountServiceAccountToken"] is False


@settings(max_examples=80)
@given(specs(), NAMES)
def test_workers_and_fetches_understand_every_flag_and_agree_on_the_folder(spec, name):
    for template in templates(desired(spec, BEHIND_A_PROXY, name=name)):
        pod = template["spec"]
        fetches = [
            fetch_settings.parse_settings(container["args"], {})
            for container in [*pod.get("initContainers", []), *pod["containers"]]
            if container["name"] == "model-fetch"
        ]
        for container in pod["containers"]:
            if container["name"] == "engine":
                worker = worker_of(container)
                assert worker.port == 8000
                own_name = f"models/{name}"
                assert worker.served_names == (*spec["model"].get("servedNames", [name]), own_name)
                for fetch in fetches:
                    assert fetch.into == worker.model_path


@settings(max_examples=80)
@given(specs(), NAMES)
def test_selectors_find_the_pods_of_their_own_deployment_and_no_other(spec, name):
    children = desired(spec, name=name)
    deployment = children["Deployment", name]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        children["Service", name]["spec"]["selector"],
        children["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"],
        children["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert selector[MODEL_DEPLOYMENT_LABEL] == name
        assert REVISION_LABEL not in selector
    for (kind, _), child in children.items():
        if kind == "Job":  # its pods are no workers: they get no traffic and count for no budget
            job_labels = child["spec"]["template"]["metadata"]["labels"]
            assert not deployment["spec"]["selector"]["matchLabels"].items() <= job_labels.items()


@settings(max_examples=80)
@given(specs(), NAMES)
def test_children_are_named_within_kubernetes_limits_and_owned_by_the_deployment(spec, name):
    for (_, child_name), child in desired(spec, name=name).items():
        assert len(child_name) <= 63
        assert child_name.startswith(name[:39])
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("ModelDeployment", name, True)
        assert child["metadata"]["namespace"] == "models"
        assert all(len(value) <= 63 for value in child["metadata"]["labels"].values())


@settings(max_examples=50)
@given(specs(), NAMES)
def test_the_same_input_gives_the_same_bytes_and_every_object_is_plain_json(spec, name):
    once, again = (json.dumps(list(desired(spec, name=name).values())) for _ in range(2))
    assert once == again


@settings(max_examples=50)
@given(specs(), st.integers(0, 50), st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")))
def test_replicas_labels_and_routing_of_the_resource_leave_its_pods_alone(spec, replicas, labels):
    changed = {**spec, "replicas": replicas, "routing": {"policy": "RoundRobin"}, "suspend": True}
    assert pod_template(spec) == pod_template(changed, labels=labels, generation=7)


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"dtype": "Float16"}},
        {"kvCache": {"size": "513Mi"}},
        {"model": {"source": {"catalog": {"name": "another"}}}},
        {"rollout": {"drainTimeoutSeconds": 299}},
        {"nodeSelector": {"a": "b"}},
        {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}},
    ],
)
def test_what_changes_pods_changes_their_revision(change):
    before, after = (
        pod_template(spec)["metadata"]["labels"][REVISION_LABEL] for spec in (MINIMAL, {**MINIMAL, **change})
    )
    assert before != after


def test_secrets_are_referred_to_and_never_written_down():
    for spec, release in EXAMPLES.values():
        for template in templates(desired(spec, release)):
            containers = [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]
            for container in containers:
                assert not any("KEY" in part or "TOKEN" in part for part in container.get("args", []))
                for variable in container.get("env", []):
                    if variable["name"] in {"WARMFLEET_NAMESPACE_KEY", "HF_TOKEN"}:
                        assert "value" not in variable
                        assert set(variable["valueFrom"]) == {"secretKeyRef"}


def test_the_hubs_token_is_given_to_the_fetch_and_not_to_the_engine():
    worker = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM)
    job = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM, kind="Job")
    assert "HF_TOKEN" not in json.dumps(worker)
    assert "HF_TOKEN" in json.dumps(job)


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({}, 1),
        ({"replicas": 0}, 0),
        ({"replicas": 7}, 7),
        ({"replicas": 7, "suspend": True}, 0),
        ({"replicas": 1, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}}, 2),
        ({"replicas": 3, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}}, 3),
        ({"replicas": 3, "autoscaling": {"maxReplicas": 4}, "suspend": True}, 0),
    ],
)
def test_replicas_follow_the_spec_within_bounds_unless_suspended(spec, replicas):
    assert desired({**MINIMAL, **spec})["Deployment", "chat"]["spec"]["replicas"] == replicas


@settings(max_examples=60)
@given(st.integers(0, 3600), st.integers(1, 86_400))
def test_a_pod_may_load_and_drain_for_as_long_as_the_spec_sets(drain_seconds, startup_seconds):
    rollout = {"drainTimeoutSeconds": drain_seconds, "startupTimeoutSeconds": startup_seconds}
    template = pod_template({**MINIMAL, "rollout": rollout})
    container = engine(template)
    probe = container["startupProbe"]
    assert 0 <= probe["periodSeconds"] * probe["failureThreshold"] - startup_seconds < probe["periodSeconds"]
    assert worker_of(container).drain_seconds == drain_seconds
    assert template["spec"]["terminationGracePeriodSeconds"] == drain_seconds + 15


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("4", 4), (2, 2), ("2500m", 2), ("100m", 1), ("0.5", 1), ("many", 0), (None, 0)],
)
def test_the_engine_has_as_many_threads_as_its_limit_has_cores(limit, threads):
    resources = {"limits": {} if limit is None else {"cpu": limit}}
    template = pod_template({**MINIMAL, "resources": resources})
    assert worker_of(engine(template)).engine.threads == threads


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        ({"requests": {"cpu": "6"}}, 6),
        ({"requests": {"cpu": "250m"}, "limits": {"memory": "8Gi"}}, 1),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "8"}}, 8),
        ({"requests": {"memory": "2Gi"}}, 0),
        ({"requests": None}, 0),
    ],
)
def test_without_a_limit_the_engine_has_as_many_threads_as_its_request_has_cores(resources, threads):
    template = pod_template({**MINIMAL, "resources": resources})
    assert worker_of(engine(template)).engine.threads == threads


LARGE_CACHE = {**MINIMAL, "kvCache": {"size": "20Gi"}}
RELEASE = {"requests": {"cpu": "250m", "memory": "1Gi"}}
"""What the chart states by default."""


@pytest.mark.parametrize(
    ("spec", "release", "memory"),
    [
        (LARGE_CACHE, RELEASE, "21650Mi"),  # 20 GiB, 640 MiB, and the model's 529 MiB
        (LARGE_CACHE, {}, "21650Mi"),
        ({**FROM_AN_IMAGE, "kvCache": {"size": "20Gi"}}, RELEASE, "21120Mi"),
        ({**FROM_AN_IMAGE, "kvCache": {"size": "64Mi"}}, RELEASE, "1Gi"),
        ({**FROM_AN_IMAGE, "kvCache": {"size": "64Mi"}}, {"requests": {"memory": "lots"}}, "lots"),
        ({**LARGE_CACHE, "resources": {"requests": {"cpu": "2"}}}, RELEASE, "21650Mi"),
        ({**LARGE_CACHE, "resources": {"requests": {"memory": "3Gi"}}}, RELEASE, "3Gi"),
        ({**LARGE_CACHE, "resources": {"limits": {"memory": "3Gi"}}}, RELEASE, None),
        ({**LARGE_CACHE, "resources": {"requests": None}}, RELEASE, "21650Mi"),
        ({**LARGE_CACHE, "accelerator": {}}, RELEASE, "1Gi"),
    ],
)
def test_without_a_limit_a_pod_requests_the_memory_of_its_cache_and_its_model(spec, release, memory):
    settings = replace(BEHIND_A_PROXY, default_resources=release)

    resources = engine(pod_template(spec, settings))["resources"]

    assert (resources.get("requests") or {}).get("memory") == memory


def test_a_memory_limit_of_the_pod_template_counts_like_one_of_the_resources():
    container = {"name": "engine", "resources": {"limits": {"memory": "3Gi"}}}
    spec = {**LARGE_CACHE, "podTemplate": {"spec": {"containers": [container]}}}
    settings = replace(BEHIND_A_PROXY, default_resources=RELEASE)

    resources = engine(pod_template(spec, settings))["resources"]

    assert resources == {**RELEASE, "limits": {"memory": "3Gi"}}


def test_a_field_that_equals_its_default_is_no_argument():
    container = engine(pod_template(MINIMAL))
    assert container["args"] == [
        *(
            "--model",
            flag(container, "--model"),
            "--host",
            "0.0.0.0",
            "--port",
            "8000",
            "--uid",
            "$(WARMFLEET_POD_UID)",
        ),
        *("--kv-cache-bytes", "536870912", "--served-name", "chat", "--served-name", "models/chat"),
    ]


def test_an_image_of_the_release_before_serves_the_whole_context_without_a_setting():
    """Without the argument it served 4,096 tokens."""
    own_image = {**MINIMAL, "engine": {"image": "registry.example/worker:0.1"}}

    assert flag(engine(pod_template(own_image)), "--max-model-length-tokens") == "16777216"
    own_image["engine"]["maxModelLengthTokens"] = 77
    assert flag(engine(pod_template(own_image)), "--max-model-length-tokens") == "77"


def test_the_fetch_has_the_default_of_the_schema():
    def fetch_of(spec):
        (container,) = pod_template(spec)["spec"]["initContainers"]
        return container["args"], fetch_settings.parse_settings(container["args"], {}).timeout_seconds

    (arguments, seconds) = fetch_of(MINIMAL)
    assert "--timeout-seconds" not in arguments
    rollout = CheckedDeployment.from_object(manifest(MINIMAL)).spec.rollout
    assert seconds == rollout.startup_timeout_seconds == 1800
    assert fetch_of({**MINIMAL, "rollout": {"startupTimeoutSeconds": 60}})[1] == 60


@settings(max_examples=60)
@given(specs())
def test_defaults_that_the_api_server_adds_leave_arguments_and_revision_alone(spec):
    assert pod_template(with_defaults(spec)) == pod_template(spec)


def test_the_worker_has_the_defaults_of_the_schema():
    container = engine(pod_template(MINIMAL))
    left_out = worker_of(container)
    given = worker_of({"args": [*container["args"], *DEFAULT_ARGUMENTS]})
    # 0 is the model's context, which is below every limit that is longer.
    assert left_out.engine.max_model_length_tokens == 0
    longest = msgspec.structs.replace(left_out.engine, max_model_length_tokens=16777216)
    assert replace(left_out, engine=longest) == given


def test_every_engine_field_reaches_the_worker_once_it_differs_from_its_default():
    changed = {
        **MINIMAL,
        "engine": {
            "dtype": "Float16",
            "maxModelLengthTokens": 77,
            "maxRunningSequences": 7,
            "maxBatchedTokens": 9,
        },
        "kvCache": {"size": "512Mi", "blockSizeTokens": 64, "prefixCaching": "Disabled"},
        "rollout": {"drainTimeoutSeconds": 11},
    }
    worker = worker_of(engine(pod_template(changed)))
    assert worker.drain_seconds == 11
    assert (worker.engine.dtype, worker.engine.max_model_length_tokens) == ("Float16", 77)
    assert (worker.engine.max_running_sequences, worker.engine.max_batched_tokens) == (7, 9)
    assert (worker.engine.block_size_tokens, worker.engine.prefix_caching) == (64, False)


def test_a_release_has_default_resources_for_deployments_that_name_none():
    assert engine(pod_template(MINIMAL, BEHIND_A_PROXY))["resources"]["limits"]["cpu"] == "3500m"
    own = {**MINIMAL, "resources": {"limits": {"cpu": "1", "memory": "4Gi"}}}
    assert engine(pod_template(own, BEHIND_A_PROXY))["resources"] == own["resources"]


def test_a_source_that_needs_no_fetch_has_no_fetching_container():
    for spec in (FROM_AN_IMAGE, FROM_A_CLAIM):
        pod = pod_template(spec)["spec"]
        assert "initContainers" not in pod
        model = flag(pod["containers"][0], "--model")
        (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "model"]
        assert mount["mountPath"] == model
        assert mount["readOnly"] is True


def test_pods_with_a_shared_claim_wait_for_the_job_and_only_read():
    pod = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM)["spec"]
    (init,) = pod["initContainers"]
    assert "--wait" in init["args"]
    for container in (init, pod["containers"][0]):
        assert {item["name"]: item.get("readOnly") for item in container["volumeMounts"]}["model"] is True


def test_another_source_or_another_way_to_it_is_another_job_over_the_same_folder_only_if_the_files_are():
    def job(**hub):
        source = {"huggingFace": {"repository": "a/b", "revision": "a" * 40, **hub}}
        spec = {**MINIMAL, "model": {"source": source, "cache": CLAIM}}
        children = desired(spec)
        (name,) = [name for kind, name in children if kind == "Job"]
        return name, flag(engine(children["Deployment", "chat"]["spec"]["template"]), "--model")

    plain, with_token = job(), job(tokenSecretRef={"name": "t", "key": "k"})
    other = job(revision="b" * 40)
    assert plain[0] != with_token[0]
    assert plain[1] == with_token[1]
    assert other[0] not in {plain[0], with_token[0]}
    assert other[1] != plain[1]


def test_jobs_of_long_names_that_begin_alike_are_two():
    spec = {**MINIMAL, "model": {**MINIMAL["model"], "cache": CLAIM}}
    names = {name for end in "xy" for kind, name in desired(spec, name="a" * 51 + end) if kind == "Job"}
    assert len(names) == 2
    assert {len(name) for name in names} <= set(range(64))


def test_an_accelerator_is_asked_for_with_its_runtime_and_its_shared_memory():
    pod = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM)["spec"]
    assert engine({"spec": pod})["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["runtimeClassName"] == "nvidia"
    (memory,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shared-memory"]
    assert memory == {"medium": "Memory", "sizeLimit": "8Gi"}
    job = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM, kind="Job")["spec"]
    assert "runtimeClassName" not in job
    assert "nvidia.com/gpu" not in json.dumps(job["containers"])


def test_several_devices_of_vllm_compute_in_one_pod_with_shared_memory():
    spec = {**GPU_FROM_THE_HUB_ON_A_CLAIM, "engine": VLLM}
    several = pod_template({**spec, "accelerator": {"count": 4}})
    assert engine(several)["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert flag(engine(several), "--tensor-parallel-size") == "4"
    volumes = {volume["name"]: volume for volume in several["spec"]["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    mounts = {mount["name"]: mount["mountPath"] for mount in engine(several)["volumeMounts"]}
    assert mounts["shared-memory"] == "/dev/shm"

    one = pod_template({**spec, "accelerator": {"count": 1}})
    assert "--tensor-parallel-size" not in engine(one)["args"]
    assert "shared-memory" not in json.dumps(one)
    stated = pod_template({**spec, "accelerator": {"count": 2, "sharedMemorySize": "8Gi"}})
    assert {"medium": "Memory", "sizeLimit": "8Gi"} in [
        volume.get("emptyDir") for volume in stated["spec"]["volumes"]
    ]


def test_vllms_own_flags_reach_the_worker_and_name_no_variable_of_its_environment():
    words = ["--hf-overrides", '{"a": "$(WARMFLEET_NAMESPACE_KEY) $$"}']
    args = engine(pod_template({**MINIMAL, "engine": {**VLLM, "extraArgs": words}}))["args"]
    assert [part for part in args if part.startswith("--engine-argument")] == [
        "--engine-argument=--hf-overrides",
        '--engine-argument={"a": "$$(WARMFLEET_NAMESPACE_KEY) $$$$"}',
    ]


def test_a_fetch_runs_where_its_workers_run_because_volumes_have_zones():
    job = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM, kind="Job")["spec"]
    worker = pod_template(GPU_FROM_THE_HUB_ON_A_CLAIM)["spec"]
    assert {name: job[name] for name in ("nodeSelector", "tolerations")} == {
        name: worker[name] for name in ("nodeSelector", "tolerations")
    }


def test_a_full_spec_reaches_the_pod():
    template = pod_template(FULL, BEHIND_A_PROXY)
    pod, container = template["spec"], engine(template)
    assert container["image"] == FULL["engine"]["image"]
    assert "--no-prefix-caching" in container["args"]
    assert flag(container, "--threads") == "2"
    assert [item["name"] for item in pod["imagePullSecrets"]] == ["mirror", "own"]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert template["metadata"]["labels"]["team"] == "search"
    assert [item["name"] for item in pod["containers"]] == ["engine", "sidecar"]
    assert [item["name"] for item in container["env"]][-2:] == ["OMP_WAIT_POLICY", "NODE"]
