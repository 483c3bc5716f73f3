"""Between which numbers of workers `warmfleet up --autoscale` scales, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.autoscaler import LocalReplica, replica_state
from warmfleet_cli.local.bounds import local_bounds, no_room
from warmfleet_cli.local.plan import FleetPlan, LocalOptions, LocalScaling, plan_fleet
from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.manifests import load_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_router.discovery.resources import DEFAULT_HOLD_SECONDS
from warmfleet_testing.engine.tiny_models import tiny_model_folder, tiny_weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"
GIB = 2**30
WORKER_BYTES = (
    640 * 2**20  # server, engine, their libraries, activations
    + (134_515_008 + 2 * 4096 * 64) * 4  # weights, and a table of rotations
    + (512 * 2**20 // 737_280 + 1) * 737_280  # blocks of 16 tokens, and one of zeros
    + 2 * 3 * 8192 * 64 * 4  # workspace
)
"""Of the example."""


def deployment(autoscaling: dict[str, Any] | None = None, **spec: Any) -> ModelDeployment:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"] |= spec | ({"autoscaling": autoscaling} if autoscaling is not None else {})
    return load_manifest(yaml.safe_dump(document), local=True)


def bounds(
    given: ModelDeployment, *, cores: int = 8, available_bytes: int | None = 64 * GIB
) -> tuple[LocalScaling, str]:
    return local_bounds(given, origin="fleet.yaml", cores=cores, available_bytes=available_bytes)


@pytest.mark.parametrize(
    ("cores", "available_bytes", "most"),
    [(2, 64 * GIB, 2), (8, 64 * GIB, 4), (64, 64 * GIB, 8), (64, 7 * GIB, 4), (8, 2 * GIB, 1), (8, None, 4)],
)
def test_without_bounds_in_the_manifest_cores_and_memory_are_the_bounds(
    cores: int, available_bytes: int | None, most: int
) -> None:
    scaling, notice = bounds(deployment(), cores=cores, available_bytes=available_bytes)

    assert (scaling.spec.min_replicas, scaling.spec.max_replicas) == (1, most)
    assert (scaling.worker_bytes, notice) == (WORKER_BYTES, "")


def test_the_manifest_decides_as_far_as_memory_allows() -> None:
    given = deployment({"minReplicas": 2, "maxReplicas": 9, "scaleDown": {"periodSeconds": 7}})

    whole, silent = bounds(given, cores=1)
    bounded, notice = bounds(given, available_bytes=5 * GIB)

    assert (whole.spec.max_replicas, silent) == (9, "")
    assert (bounded.spec.min_replicas, bounded.spec.max_replicas) == (2, 3)
    assert notice == (
        "spec.autoscaling.maxReplicas: 9 becomes 3, as memory has room for 3 workers of up to 1.6 GiB"
    )
    assert bounded.spec.scale_down is not None
    assert bounded.spec.scale_down.period_seconds == 7


def test_more_workers_than_a_local_fleet_can_have_are_not_planned() -> None:
    scaling, notice = bounds(deployment({"maxReplicas": 500}), available_bytes=None)

    assert scaling.spec.max_replicas == 64
    assert "500 becomes 64, as a local fleet has at most 64 workers" in notice


@pytest.mark.parametrize(
    ("autoscaling", "text"),
    [
        ({"mode": "Advisory", "maxReplicas": 2}, "spec.autoscaling.mode: is Advisory"),
        ({"mode": "Paused", "maxReplicas": 2}, "spec.autoscaling.mode: is Paused"),
    ],
)
def test_what_cannot_be_acted_on_is_refused(autoscaling: dict[str, Any], text: str) -> None:
    with pytest.raises(ManifestError, match=rf"fleet\.yaml: {text}"):
        bounds(deployment(autoscaling))


def test_without_memory_for_the_fewest_workers_nothing_starts() -> None:
    with pytest.raises(CliError, match=r"2 workers of up to 1\.6 GiB need more than the 2\.5 GiB") as refusal:
        bounds(deployment({"minReplicas": 2, "maxReplicas": 2}), available_bytes=5 * GIB // 2)

    assert refusal.value.exit_code is ExitCode.START_FAILED


def test_a_model_in_a_folder_counts_as_it_is_computed_with(tmp_path: Path) -> None:
    folder = tiny_model_folder("llama", tmp_path)
    given = deployment(model={"source": {"localPath": {"path": str(folder)}}})
    half = deployment(model={"source": {"localPath": {"path": str(folder)}}}, engine={"dtype": "BFloat16"})
    stored = sum(tensor.nbytes for tensor in tiny_weights(folder).values())

    worker_bytes = bounds(given)[0].worker_bytes

    assert worker_bytes - bounds(half)[0].worker_bytes > stored / 2
    assert stored < worker_bytes - (640 + 512) * 2**20 < stored + 3 * 2**20


def test_a_folder_without_a_model_leaves_its_weights_out_and_is_refused_later(tmp_path: Path) -> None:
    given = deployment(model={"source": {"localPath": {"path": str(tmp_path)}}})

    assert bounds(given)[0].worker_bytes == (640 + 512) * 2**20


def plan(given: ModelDeployment, scaling: LocalScaling, options: LocalOptions, cores: int) -> FleetPlan:
    return plan_fleet(
        given,
        options,
        model_path=Path("/models/tiny"),
        endpoints_path=Path("/run/endpoints.json"),
        cores=cores,
        fleet_uid="abcd",
        scaling=scaling,
    )


def test_every_worker_of_a_fleet_that_scales_has_its_place_and_the_threads_of_the_largest_fleet() -> None:
    given = deployment({"minReplicas": 1, "maxReplicas": 4})
    made = plan(given, bounds(given)[0], LocalOptions(worker_port=9000), cores=8)

    assert [worker.port for worker in made.workers] == [9000, 9001]
    assert [worker.port for worker in made.spare_workers] == [9002, 9003]
    assert len({worker.uid for worker in made.all_workers}) == 4
    assert {worker.argv[worker.argv.index("--threads") + 1] for worker in made.all_workers} == {"2"}
    assert (made.scales, made.worker_bytes) == (True, WORKER_BYTES)
    assert made.autoscaling is not None
    assert made.autoscaling["maxReplicas"] == 4


@pytest.mark.parametrize(("replicas", "first"), [(None, 2), (1, 2), (3, 3), (9, 4)])
def test_the_first_number_is_within_the_bounds(replicas: int | None, first: int) -> None:
    given = deployment({"minReplicas": 2, "maxReplicas": 4})
    made = plan(given, bounds(given)[0], LocalOptions(replicas=replicas), cores=8)

    assert (len(made.workers), len(made.all_workers)) == (first, 4)


def test_a_worker_that_starts_has_yet_to_take_its_memory() -> None:
    assert no_room(GIB, 2 * GIB, starting=1) == ""
    assert no_room(GIB, None, starting=9) == ""
    assert no_room(GIB, GIB // 2, starting=0) == (
        "a further worker needs up to 1.0 GiB of memory, and 0.5 GiB is free"
    )
    assert no_room(GIB, GIB, starting=1) == (
        "a further worker, 1 that start included, needs up to 2.0 GiB of memory, and 1.0 GiB is free"
    )


def test_a_worker_that_never_was_ready_is_no_supply_and_one_that_drains_counts_no_more() -> None:
    def worker(name: str, **changes: bool) -> LocalReplica:
        state = {"ready": False, "leaving": False, "fails_to_start": False, **changes}
        return LocalReplica(name, uid=name, created_seconds=0.0, **state)

    replicas = [
        worker("serves", ready=True),
        worker("drains", ready=True, leaving=True),
        worker("starts"),
        worker("crashes", fails_to_start=True),
    ]

    assert replica_state(replicas) == ReplicaState(
        spec_replicas=3, ready=1, pending=2, unschedulable=1, stopping=1
    )


def test_a_fleet_that_may_sleep_needs_room_for_one_worker_and_may_begin_without() -> None:
    given = deployment({"minReplicas": 0, "maxReplicas": 2, "zero": {"holdSeconds": 7}}, replicas=0)
    made = plan(given, bounds(given)[0], LocalOptions(), cores=8)

    assert (len(made.workers), len(made.spare_workers), made.hold_seconds) == (0, 2, 7.0)
    assert plan(given, bounds(given)[0], LocalOptions(replicas=1), cores=8).workers
    with pytest.raises(CliError, match=r"1 worker of up to 1\.6 GiB need more than the 1\.0 GiB"):
        bounds(given, available_bytes=GIB)


def test_routers_hold_requests_of_a_fleet_that_may_sleep_alone() -> None:
    sleeps, stays = deployment({"minReplicas": 0, "maxReplicas": 2}), deployment({"maxReplicas": 2})

    assert plan(sleeps, bounds(sleeps)[0], LocalOptions(), cores=8).hold_seconds == DEFAULT_HOLD_SECONDS
    assert plan(stays, bounds(stays)[0], LocalOptions(), cores=8).hold_seconds is None
