"""What a scenario returns, and the cluster with the chart in which it runs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.names import OPERATOR_METRICS_PORT, ROUTER_PORT
from warmfleet_testing.cluster.cluster import eventually, running_cluster
from warmfleet_testing.cluster.installed import Installed, installed_chart, is_ready
from warmfleet_testing.processes.plain_http import NO_TLS

WAIT_SECONDS: Final = 180.0

_METRICS_PORTS: Final = {"operator": OPERATOR_METRICS_PORT, "router": ROUTER_PORT}

MANY_NAMESPACES: Final[Mapping[str, Any]] = {"rbac": {"scope": "Cluster"}}
"""The chart's defaults, but for namespaces that are made after the installation."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario has measured."""

    text: str
    """For a reader, a few lines at most."""
    targets: Sequence[Target]
    figures: Mapping[str, object]
    """All of it, as JSON may hold it."""


@contextmanager
def scaling_fleet(
    values: Mapping[str, Any] = MANY_NAMESPACES, **cluster_settings: Any
) -> Iterator[Installed]:
    """A cluster of its own, the chart installed with `values`, and a namespace for models."""
    with (
        running_cluster(**cluster_settings) as cluster,
        installed_chart(cluster, values) as release,
        release.within("scaling") as fleet,
    ):
        yield fleet


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """Whether it has been deleted and drains."""
    return "deletionTimestamp" in pod["metadata"]


def wait_serving(fleet: Installed, name: str, replicas: int) -> None:
    """Until so many replicas are ready, and every router knows them."""
    eventually(lambda: sum(map(is_ready, fleet.pods(name))), replicas, seconds=WAIT_SECONDS)
    fleet.wait_routed(name)


def release_samples(fleet: Installed, component: str, prefix: str) -> dict[str, float]:
    """Samples of `operator` or `router` that begin with `prefix`, by the rest of their name and labels.

    Those of several pods are added.
    """
    counted: dict[str, float] = {}
    for pod in fleet.release_pods(component):
        url = fleet.forwarder.to(pod["status"]["podIP"], _METRICS_PORTS[component])
        page = httpx.get(f"{url}/metrics", timeout=30, verify=NO_TLS, trust_env=False).raise_for_status().text
        for line in page.splitlines():
            if line.startswith(prefix):
                sample, value = line.removeprefix(prefix).rsplit(" ", 1)
                counted[sample] = counted.get(sample, 0.0) + float(value)
    return counted
