"""`status.lastStart`: of which pod, which phases, and what becomes of them in metrics."""

import re
from dataclasses import replace
from pathlib import Path

from pydantic.alias_generators import to_camel

from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_operator.objects.deployment_state import deployment_state
from warmfleet_operator.objects.pods import ContainerView
from warmfleet_operator.routers.fleet import FleetView
from warmfleet_operator.status.status import status_of
from warmfleet_testing.resources.metrics_page import metrics_page
from warmfleet_testing.resources.observations import NOW, figures, pod, serving

ROOT = Path(__file__).parents[3]
START = StartPhases(process=0.4, imports=2.4, load=0.5, prewarm=0.031)


def fleet_of(**starts: StartPhases) -> FleetView:
    workers = {f"uid-{name.replace('_', '-')}": figures(start=start) for name, start in starts.items()}
    return FleetView(2, 2, "", workers, polled=True)


def started(name: str, *, seconds_ago: float, restarts: int = 0):
    created = NOW - seconds_ago
    engine = ContainerView(running=True, running_since_seconds=created + 5, restarts=restarts)
    return pod(name, created_seconds=created, scheduled_seconds=created + 1, engine=engine)


def test_the_newest_worker_that_has_loaded_is_shown_with_the_times_of_its_pod() -> None:
    pods = tuple(started(f"m-{number}", seconds_ago=900 - 300 * number) for number in range(3))
    fleet = fleet_of(m_0=START, m_1=replace_token(START, 0.08), m_2=StartPhases())

    status = status_of(serving(pods=pods, fleet=fleet))

    assert status["lastStart"] == {
        "pod": "m-1",
        "phaseMilliseconds": {
            "schedule": 1000,
            "fetch": 4000,
            "process": 400,
            "imports": 2400,
            "load": 500,
            "prewarm": 31,
            "firstToken": 80,
        },
    }


def replace_token(start: StartPhases, seconds: float) -> StartPhases:
    return StartPhases(**(start.by_name() | {"first_token": seconds}))


def test_a_container_that_restarted_has_no_times_of_its_pod() -> None:
    pods = (started("m-0", seconds_ago=600, restarts=1),)

    shown = status_of(serving(pods=pods, fleet=fleet_of(m_0=START)))["lastStart"]["phaseMilliseconds"]

    assert shown == {"process": 400, "imports": 2400, "load": 500, "prewarm": 31}


def test_the_known_start_stays_while_no_router_knows_one() -> None:
    pods = (started("m-0", seconds_ago=600),)
    before = status_of(serving(pods=pods, fleet=fleet_of(m_0=START)))
    away = serving(pods=pods, fleet=FleetView())
    known = replace(away, deployment={**away.deployment, "status": before})

    assert status_of(known)["lastStart"] == before["lastStart"]
    assert "lastStart" not in status_of(away)


def test_the_phases_are_metrics_of_their_deployment() -> None:
    status = status_of(serving(pods=(started("m-0", seconds_ago=60),), fleet=fleet_of(m_0=START)))
    state = deployment_state({"spec": {}, "status": status})

    page = metrics_page(states={("models", "m"): state})

    name = 'warmfleet_operator_deployment_start_phase_seconds{name="m",namespace="models",phase='
    shown = {line.split(name)[1] for line in page.splitlines() if line.startswith(name)}
    assert shown >= {'"schedule"} 1.0', '"imports"} 2.4', '"prewarm"} 0.031'}


def test_phases_are_named_in_their_order_where_people_read_of_them() -> None:
    names = ["schedule", "fetch", *map(to_camel, StartPhases.__struct_fields__)]
    page = (ROOT / "docs" / "reference" / "workers-in-a-cluster.md").read_text()
    section = page.partition("## How long a start takes")[2].partition("\n## ")[0]
    resource = (ROOT / "crds" / "warmfleet.dev_modeldeployments.yaml").read_text()
    described = resource.partition("phaseMilliseconds:")[2].partition("type: object")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == names
    assert [word for word in re.findall(r"\w+", described) if word in names] == names
