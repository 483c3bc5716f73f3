"""What a manifest means on one machine: processes and their flags, refusals, and notices."""

import os
from importlib import resources
from pathlib import Path

import pytest
import yaml

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.plan import (
    MAX_WAIT_SECONDS,
    FleetPlan,
    LocalOptions,
    plan_fleet,
    require_local_support,
)
from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.manifests import load_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_router.settings import parse_settings as parse_router_settings
from warmfleet_worker.settings import parse_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"


def _deployment(**changes: object) -> ModelDeployment:
    """The example with fields of `spec` replaced: `engine__dtype="Float32"`."""
    document = yaml.safe_load(EXAMPLE.read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = document["spec"]
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return load_manifest(yaml.safe_dump(document), local=True)


def _plan(deployment: ModelDeployment, options: LocalOptions | None = None, cores: int = 8) -> FleetPlan:
    return plan_fleet(
        deployment,
        options or LocalOptions(),
        model_path=Path("/models/tiny"),
        endpoints_path=Path("/run/endpoints.json"),
        cores=cores,
        fleet_uid="abcd",
    )


def test_the_built_in_manifest_is_the_example() -> None:
    built_in = resources.files("warmfleet_cli").joinpath("default_fleet.yaml").read_text()

    assert built_in == EXAMPLE.read_text()


def test_a_worker_understands_every_flag_it_is_given() -> None:
    plan = _plan(
        _deployment(
            kvCache__prefixCaching="Disabled", engine__dtype="Float32", model__servedNames=["a", "b/c"]
        )
    )

    settings = parse_settings(plan.workers[1].argv[3:], {})

    assert plan.workers[1].argv[1:3] == ("-m", "warmfleet_worker")
    assert settings.port == plan.workers[1].port == 8101
    assert settings.uid == plan.workers[1].uid
    assert settings.served_names == ("a", "b/c")
    assert settings.drain_seconds == 300
    assert settings.engine.kv_cache_bytes == 512 * 2**20
    assert settings.engine.dtype == "Float32"
    assert settings.engine.max_model_length_tokens == 4096
    assert settings.engine.threads == 4
    assert settings.engine.prefix_caching is False


def test_vllms_own_flags_reach_the_worker_word_by_word() -> None:
    words = ["--quantization", "fp8", "--hf-overrides", '{"a": "$(HOME) b"}']

    plan = _plan(_deployment(engine__type="VLLM", engine__extraArgs=words))

    assert list(parse_settings(plan.workers[0].argv[3:], {}).engine.extra_arguments) == words


def test_the_command_line_decides_over_the_manifest() -> None:
    options = LocalOptions(replicas=3, routers=2, router_port=9000, worker_port=9100)

    plan = _plan(_deployment(), options, cores=2)

    assert [worker.port for worker in plan.workers] == [9100, 9101, 9102]
    assert [router.port for router in plan.routers] == [9000, 9001]
    assert len({worker.uid for worker in plan.workers}) == 3
    assert all(worker.argv[worker.argv.index("--threads") + 1] == "1" for worker in plan.workers)
    assert all("LowestCost" in router.argv for router in plan.routers)


def test_overlapping_ports_are_refused_with_both_names() -> None:
    with pytest.raises(CliError, match="8101 would serve both smollm2-1 and smollm2-router-0") as refusal:
        _plan(_deployment(), LocalOptions(router_port=8101))

    assert refusal.value.exit_code is ExitCode.PORT_BUSY


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"suspend": True}, "spec.suspend"),
        ({"model__source": {"image": {"reference": "a"}}}, "spec.model.source.image"),
        (
            {"model__source": {"persistentVolumeClaim": {"claimName": "a"}}},
            "spec.model.source.persistentVolumeClaim",
        ),
        ({"kvCache__dtype": "Int4"}, "spec.kvCache.dtype: Int4"),
        ({"kvCache": {"deviceMemoryPercent": 50}}, "spec.kvCache.deviceMemoryPercent"),
        ({"engine__env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}, "spec.engine.env: A"),
    ],
)
def test_what_cannot_be_honoured_here_is_an_error_and_not_ignored(
    changes: dict[str, object], field: str
) -> None:
    with pytest.raises(ManifestError, match=rf"fleet\.yaml: {field}"):
        require_local_support(_deployment(**changes), origin="fleet.yaml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accelerator": {"count": 1}, "podTemplate": {"spec": {}}}, "spec.accelerator, spec.podTemplate"),
        ({"rollout__maxSurge": 2}, "spec.rollout.maxSurge"),
        ({"model__cache": {"emptyDir": {}}}, "spec.model.cache"),
        ({"engine__image": "x"}, "spec.engine.image"),
        ({"autoscaling": {"maxReplicas": 4}}, "spec.autoscaling: --autoscale acts on it"),
        ({"kvCache__sharing": "Tenant"}, "one tenant"),
        ({"kvCache__sharing": "Deployment"}, "one tenant"),
    ],
)
def test_what_only_a_cluster_acts_on_is_one_notice(changes: dict[str, object], words: str) -> None:
    notices = require_local_support(_deployment(**changes), origin="fleet.yaml")

    assert len(notices) == 1
    assert words in notices[0]


def test_the_example_has_nothing_to_notice() -> None:
    assert require_local_support(_deployment(), origin="fleet.yaml") == []


def test_no_workers_is_refused_by_the_field_that_set_it() -> None:
    with pytest.raises(ManifestError, match=r"spec\.replicas: is 0"):
        _plan(_deployment(replicas=0))


def test_environment_of_the_manifest_reaches_workers_alone() -> None:
    plan = _plan(_deployment(engine__env=[{"name": "A", "value": "b"}, {"name": "EMPTY"}]))

    assert plan.workers[0].environment == {"A": "b", "EMPTY": ""}
    assert plan.routers[0].environment == {}
    assert "A" not in os.environ


def test_a_router_understands_every_flag_it_is_given(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"version": 1}')
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text("[]")
    plan = plan_fleet(
        _deployment(kvCache__sharing="Deployment"),
        LocalOptions(keys_path=keys),
        model_path=Path("/models/tiny"),
        endpoints_path=endpoints,
        cores=8,
        fleet_uid="abcd",
    )

    settings = parse_router_settings(plan.routers[0].argv[3:], {})

    assert settings.keys_path == keys
    assert settings.admission.max_wait_seconds == MAX_WAIT_SECONDS
    assert settings.keys is not None
    assert plan.asks_for_keys
    assert plan.shared_cache == plan.name


def test_without_sharing_every_tenant_has_its_own_cache_and_without_keys_none_is_required() -> None:
    plan = _plan(_deployment())

    assert (plan.shared_cache, plan.asks_for_keys) == ("", False)
