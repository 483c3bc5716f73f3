"""Alerts and dashboard ask for metrics that exist; monitors find the ports that serve them."""

import json
import re

import pytest

from warmfleet_contracts import metrics
from warmfleet_operator.settings import parse_settings
from warmfleet_testing.resources.chart_render import CHART, REGISTRY, case_values, render

KNOWN = {
    value
    for value in vars(metrics).values()
    if isinstance(value, str) and re.match(r"vllm:|warmfleet_", value)
}
SUFFIXES = re.compile(r"_(total|bucket|sum|count|created)$")
NAME = re.compile(r"\b(?:vllm:|warmfleet_)[a-z0-9_]+")


def asked_for(expression):
    return {name if name in KNOWN else SUFFIXES.sub("", name) for name in NAME.findall(expression)}


def alerts():
    (rule,) = render(case_values("everything")).of_kind("PrometheusRule")
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def dashboard():
    (config,) = [
        item
        for item in render(case_values("everything")).of_kind("ConfigMap")
        if "warmfleet.json" in item.get("data", {})
    ]
    return json.loads(config["data"]["warmfleet.json"])


def test_without_switches_nothing_needs_another_operator():
    kinds = {item["apiVersion"].partition("/")[0] for item in render().objects}
    assert not {"monitoring.coreos.com", "gateway.networking.k8s.io"} & kinds


def test_every_alert_uses_metrics_that_exist_and_describes_the_problem():
    assert len(alerts()) >= 8
    for alert in alerts():
        names = asked_for(alert["expr"])
        assert names, alert["alert"]
        assert names <= KNOWN, alert["alert"]
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"]
        assert alert["labels"] == {"team": "inference", "severity": alert["labels"]["severity"]}
        assert alert["expr"].count("(") == alert["expr"].count(")")


def test_every_panel_asks_for_metrics_that_exist():
    panels = dashboard()["panels"]
    assert len(panels) >= 10
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            names = asked_for(target["expr"])
            assert names, panel["title"]
            assert names <= KNOWN, panel["title"]


def test_a_name_that_is_not_a_metric_would_be_found():
    assert asked_for("rate(warmfleet_router_requests_total[5m])") <= KNOWN
    assert not asked_for("rate(warmfleet_router_request_total[5m])") <= KNOWN


def test_monitors_scrape_the_ports_of_services_and_workers():
    rendered = render(case_values("everything"))
    services = {item["metadata"]["name"]: item for item in rendered.of_kind("Service")}
    for monitor in rendered.of_kind("ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [
            item for item in services.values() if wanted.items() <= item["metadata"]["labels"].items()
        ]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (workers,) = rendered.of_kind("PodMonitor")
    assert workers["spec"]["namespaceSelector"] == {"matchNames": ["models", "team-a"]}


def test_prometheus_is_let_in_to_the_operator_only_while_it_is_wanted():
    closed = render().get("NetworkPolicy", "warmfleet-operator")["spec"]
    assert "ingress" not in closed
    monitored = REGISTRY | {"monitoring": {"serviceMonitor": {"enabled": True}}}
    (rule,) = render(monitored).get("NetworkPolicy", "warmfleet-operator")["spec"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": 8082}]}


def test_scrapers_reach_workers_only_while_workers_are_monitored():
    def scrapers(values):
        (operator,) = render(values).get("Deployment", "warmfleet-operator")["spec"]["template"]["spec"][
            "containers"
        ]
        return parse_settings(operator["args"], {}).worker_scrapers

    assert scrapers(None) is None
    assert scrapers(REGISTRY | {"monitoring": {"podMonitor": {"enabled": True}}}) == ()
    assert scrapers(case_values("everything")) == (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    )


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json", "ask_router.py"])
def test_files_of_the_chart_are_part_of_its_package(name):
    assert (CHART / "files" / name).is_file()
