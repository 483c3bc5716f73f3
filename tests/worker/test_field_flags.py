"""A field of a ModelDeployment that equals its default is no argument: the worker has the same default."""

import pytest

from warmfleet_contracts.names import API_VERSION, KIND
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeploymentSpec
from warmfleet_contracts.resources.worker_flags import FIELD_FLAGS, VLLM_FIELD_FLAGS, worker_flags
from warmfleet_worker.settings import WorkerSettings, parse_settings


def worker(*flags: str) -> WorkerSettings:
    return parse_settings(["--model", "m", "--uid", "u", *flags], {})


@pytest.mark.parametrize(("flag", "part", "field"), [*FIELD_FLAGS, *VLLM_FIELD_FLAGS])
def test_a_worker_without_the_flag_has_the_fields_default(flag: str, part: str, field: str) -> None:
    section = ModelDeploymentSpec.model_fields[part].annotation
    assert section is not None
    default = section.model_fields[field].default

    # 0 is "not set" for a worker.
    assert worker(flag, "0" if default is None else str(default)) == worker()


@pytest.mark.parametrize(("engine", "has_it"), [("VLLM", True), ("Warmfleet", False)])
def test_the_time_to_load_is_an_argument_of_workers_with_vllm_alone(engine: str, has_it: bool) -> None:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "m"},
        "spec": {
            "model": {"source": {"catalog": {"name": "smollm2-135m-instruct"}}},
            "engine": {"type": engine, "image": "an/image"},
            "kvCache": {"size": "1Gi"},
            "rollout": {"startupTimeoutSeconds": 3600},
        },
    }
    deployment = parse_manifest(manifest, origin="test")

    flags = worker_flags(deployment, model_path="/m", host="", port=1, uid="u", threads=0)

    assert ("--startup-seconds" in flags) == has_it
    if has_it:
        assert flags[flags.index("--startup-seconds") + 1] == "3600"
        assert worker("--startup-seconds", "3600").engine.startup_seconds == 3600
