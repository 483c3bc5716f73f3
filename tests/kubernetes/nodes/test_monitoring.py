"""Every query of the dashboard, evaluated by Prometheus' own promtool over what a live fleet exposes."""

import json

import httpx
from prometheus_client.parser import text_string_to_metric_families

from warmfleet_contracts.metrics import OPERATOR_SCALING_WANTED, ROUTER_OVERLOADED
from warmfleet_contracts.names import OPERATOR_METRICS_PORT, ROUTER_PORT, WORKER_PORT
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import Installed, tiny_deployment
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.resources.chart_render import case_values, render
from warmfleet_testing.resources.promtool import expect_results, series_name

MINUTES = 10
NAME = "watched"
ADVISORY = {"mode": "Advisory", "maxReplicas": 3, "scaleUp": {"stabilizationSeconds": 0}}
"""Advice is given from the first tick on."""


def scraped(models: Installed) -> dict[str, list[float]]:
    """Series of all operators, routers and workers, as if their values had stayed for `MINUTES`."""
    targets = [
        *((OPERATOR_METRICS_PORT, pod) for pod in models.release_pods("operator")),
        *((ROUTER_PORT, pod) for pod in models.release_pods("router")),
        *((WORKER_PORT, pod) for pod in models.pods(NAME)),
    ]
    found: dict[str, list[float]] = {}
    for port, pod in targets:
        url = models.forwarder.to(pod["status"]["podIP"], port)
        answer = httpx.get(f"{url}/metrics", timeout=30, verify=NO_TLS, trust_env=False).raise_for_status()
        target = {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"]}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                found[series_name(sample.name, target | sample.labels)] = [sample.value] * MINUTES
    return found


def test_every_query_of_the_dashboard_yields_something_on_a_live_fleet(models: Installed) -> None:
    models.apply(tiny_deployment(NAME, autoscaling=ADVISORY))
    models.wait_ready(NAME)
    models.chat(NAME, "A walk along the river.", max_tokens=4)
    (config,) = [
        item
        for item in render(case_values("everything")).of_kind("ConfigMap")
        if "warmfleet.json" in item.get("data", {})
    ]
    panels = json.loads(config["data"]["warmfleet.json"])["panels"]
    queries = [target["expr"].replace("$namespace", ".*") for panel in panels for target in panel["targets"]]
    # One refusal is needed for its series, which has the tenant's name; this fleet refuses nothing.
    after_a_refusal = [query for query in queries if ROUTER_OVERLOADED in query]
    assert len(after_a_refusal) == 1

    found = eventually(
        lambda: scraped(models), lambda names: any(OPERATOR_SCALING_WANTED in name for name in names)
    )

    expect_results([query for query in queries if query not in after_a_refusal], found)
