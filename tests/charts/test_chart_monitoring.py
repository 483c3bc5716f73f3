"""Alerts and dashboard ask for metrics that exist; monitors find the ports that serve them."""

import itertools
import json
import re

import helm_python
import pytest

from warmfleet_contracts import metrics
from warmfleet_operator.settings import parse_settings
from warmfleet_operator.watch.sync import BEHIND_PERIODS
from warmfleet_router.workers.breakers import Breakers, Cause
from warmfleet_testing.resources.chart_render import CHART, REGISTRY, case_values, render
from warmfleet_testing.resources.promtool import check_rules, expect_alerts

KNOWN = {
    value
    for value in vars(metrics).values()
    if isinstance(value, str) and re.match(r"vllm:|warmfleet_", value)
}
SUFFIXES = re.compile(r"_(total|bucket|sum|count|created)$")
NAME = re.compile(r"\b(?:vllm:|warmfleet_)[a-z0-9_]+")


def asked_for(expression):
    return {name if name in KNOWN else SUFFIXES.sub("", name) for name in NAME.findall(expression)}


def groups():
    (rule,) = render(case_values("everything")).of_kind("PrometheusRule")
    return rule["spec"]["groups"]


def alerts():
    return [alert for group in groups() for alert in group["rules"]]


def operator_settings(values):
    (operator,) = render(values).get("Deployment", "warmfleet-operator")["spec"]["template"]["spec"][
        "containers"
    ]
    return parse_settings(operator["args"], {})


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


def test_prometheus_finds_no_fault_in_the_rules():
    check_rules(groups())


def of_deployment(name, *, wanted, ready, available):
    labels = f'namespace="team",name="{name}"'
    return {
        f"warmfleet_operator_deployment_wanted_replicas{{{labels}}}": [wanted] * 21,
        f"warmfleet_operator_deployment_ready_replicas{{{labels}}}": [ready] * 21,
        f'warmfleet_operator_deployment_condition{{{labels},condition="Available",status="{available}"}}': [1]
        * 21,
    }


SERVING = of_deployment("a", wanted=2, ready=2, available="True")
SUSPENDED = of_deployment("b", wanted=0, ready=0, available="False")
LOST = of_deployment("c", wanted=2, ready=0, available="False")
SHORT = of_deployment("d", wanted=2, ready=1, available="False")
LEADING = 'warmfleet_operator_leader{namespace="models",pod="operator-0"}'
STANDING_BY = 'warmfleet_operator_leader{namespace="models",pod="operator-1"}'
GROWS = list(range(0, 2100, 100))


def series(name, **labels):
    given = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{given}}}"


MISMATCHED = series("warmfleet_worker_mismatched_blocks_total", namespace="n", model_name="m", pod="p")
EVICTED = series("warmfleet_worker_evicted_blocks_total", namespace="n", model_name="m", pod="p")
EJECTED = series("warmfleet_router_ejected_endpoints", namespace="n")
BEHIND = series("warmfleet_operator_watch_behind_seconds", namespace="n", kind="pods")
BLIND = 'warmfleet_operator_scaling_blind{namespace="team",name="a"}'
PENDING = 'warmfleet_operator_scaling_capacity_pending_replicas{namespace="team",name="a"}'


def grows(step, minutes):
    """A counter that rises by `step` each minute."""
    return [step * minute for minute in range(minutes)]


def ejected_by_a_router(probe_seconds, minutes):
    """Whether a worker counts as ejected, each minute, when every probe of it fails after `probe_seconds`."""
    clock = [0.0]
    breakers = Breakers(now=lambda: clock[0], draw=lambda: 0.5)
    breakers.eject("uid", "epoch", Cause.SILENT, "neither answers nor sends events")
    probe, samples = None, []
    for second in range(60 * minutes):
        clock[0] = float(second)
        if probe is None and breakers.status("uid", "epoch").state == "half-open":
            probe = breakers.trial("uid", "epoch"), second
        elif probe is not None and second - probe[1] >= probe_seconds:
            probe[0].failed("no answer")
            probe = None
        if second % 60 == 0:
            samples.append(int(breakers.status("uid", "epoch").state == "open"))
    return samples


def prompts(tokens, cached):
    """A router's counters of prompt tokens."""
    return {
        series("warmfleet_router_prompt_tokens_total", namespace="n", model_name="m", pod="p"): tokens,
        series("warmfleet_router_cached_tokens_total", namespace="n", model_name="m", pod="p"): cached,
    }


def missed(cause, tokens):
    labels = {"namespace": "n", "model_name": "m", "pod": "p", "cause": cause}
    return {series("warmfleet_router_missed_tokens_total", **labels): tokens}


@pytest.mark.parametrize(
    ("alert", "quiet", "firing", "labels"),
    [
        (
            "WarmfleetNoReadyWorkers",
            SERVING | SUSPENDED | SHORT,
            SERVING | SUSPENDED | LOST,
            [{"name": "c", "namespace": "team"}],
        ),
        (
            "WarmfleetDeploymentUnavailable",
            SERVING | SUSPENDED,
            SERVING | SUSPENDED | SHORT | LOST,
            [{"name": "c", "namespace": "team"}, {"name": "d", "namespace": "team"}],
        ),
        (
            "WarmfleetRoutersHaveNoWorkers",
            {series("warmfleet_router_endpoints", namespace="n", service="s", state="ready"): [1] * 21},
            {
                series("warmfleet_router_endpoints", namespace="n", service="s", state="ready"): [0] * 21,
                series("warmfleet_router_endpoints", namespace="n", service="s", state="unready"): [2] * 21,
            },
            [{"namespace": "n", "service": "s"}],
        ),
        (
            "WarmfleetRequestsRefused",
            {
                series("warmfleet_router_requests_total", namespace="n"): GROWS,
                series("warmfleet_router_overloaded_requests_total", namespace="n"): range(21),
            },
            {
                series("warmfleet_router_requests_total", namespace="n"): GROWS,
                series("warmfleet_router_overloaded_requests_total", namespace="n"): GROWS,
            },
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetStreamsBreak",
            {series("warmfleet_router_broken_streams_total", namespace="n"): [9] * 21},
            {series("warmfleet_router_broken_streams_total", namespace="n"): range(21)},
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetWorkersEjected",
            {EJECTED: [1] * 10 + [0] * 11},
            {EJECTED: [1] * 21},
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetWorkersEjected",
            {EJECTED: [1, 0, 0, 0] * 5 + [1]},
            {EJECTED: ejected_by_a_router(probe_seconds=30, minutes=30)},
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetHashesDiffer",
            {series("warmfleet_router_hash_mismatches_total", namespace="n"): [3] * 21},
            {series("warmfleet_router_hash_mismatches_total", namespace="n"): [3] * 20 + [4]},
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetCachedBlocksDiffer",
            {MISMATCHED: [3] * 21},
            {MISMATCHED: [3] * 20 + [4]},
            [{"namespace": "n", "model_name": "m", "pod": "p"}],
        ),
        (
            "WarmfleetKeyFileRefused",
            {series("warmfleet_router_key_file_refused", namespace="n", pod="p"): [1] * 20 + [0]},
            {
                series("warmfleet_router_key_file_refused", namespace="n", pod="p"): [1] * 21,
                series("warmfleet_router_key_file_refused", namespace="n", pod="q"): [0] * 21,
            },
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetCacheFull",
            {
                series("vllm:kv_cache_usage_perc", namespace="n", model_name="m", pod="1"): [0.99] * 21,
                series("vllm:kv_cache_usage_perc", namespace="n", model_name="m", pod="2"): [0.5] * 21,
            },
            {series("vllm:kv_cache_usage_perc", namespace="n", model_name="m", pod="1"): [0.99] * 21},
            [{"model_name": "m", "namespace": "n"}],
        ),
        (
            "WarmfleetCacheFull",
            {
                series("vllm:kv_cache_usage_perc", namespace="n", model_name="m", pod="1"): [0.85] * 21,
                series("warmfleet_router_held_requests", namespace="r", model_name="m", pod="2"): [0] * 21,
                series("warmfleet_router_held_requests", namespace="r", model_name="o", pod="2"): [3] * 21,
            },
            {
                series("vllm:kv_cache_usage_perc", namespace="n", model_name="m", pod="1"): [0.85] * 21,
                series("warmfleet_router_held_requests", namespace="r", model_name="m", pod="2"): [
                    0,
                    *[3, 0] * 10,
                ],
            },
            [{"model_name": "m", "namespace": "n"}],
        ),
        (
            "WarmfleetEngineStalls",
            {series("warmfleet_worker_engine_stalls_total", namespace="n", pod="p"): [1] * 21},
            {series("warmfleet_worker_engine_stalls_total", namespace="n", pod="p"): [0] * 20 + [1]},
            [{"namespace": "n", "pod": "p"}],
        ),
        (
            "WarmfleetDeploymentsStall",
            {
                series(
                    "warmfleet_operator_deployments", namespace="n", condition="Stalled", status="False"
                ): [1] * 21
            },
            {
                series("warmfleet_operator_deployments", namespace="n", condition="Stalled", status="True"): [
                    1
                ]
                * 21
            },
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetReconciliationsFail",
            {series("warmfleet_operator_reconciliations_total", namespace="n", result="refused"): GROWS * 2},
            {
                series("warmfleet_operator_reconciliations_total", namespace="n", result="failed"): GROWS
                + [GROWS[-1] + 100 * more for more in range(1, 21)]
            },
            [{"namespace": "n"}],
        ),
        (
            "WarmfleetWatchIsBehind",
            {BEHIND: [45] * 21},
            {BEHIND: [0] * 15 + [75] + [0] * 5},
            [{"kind": "pods", "namespace": "n"}],
        ),
        (
            "WarmfleetHitRateDrops",
            prompts(grows(100, 101), grows(70, 101)),
            prompts(grows(100, 101), [*grows(70, 71), *(70 * 70 + 20 * more for more in range(1, 31))]),
            [{"model_name": "m", "namespace": "n"}],
        ),
        (
            "WarmfleetEvictionSurge",
            {EVICTED: grows(600, 101)},
            {EVICTED: [*grows(60, 81), *(80 * 60 + 600 * more for more in range(1, 21))]},
            [{"model_name": "m", "namespace": "n"}],
        ),
        (
            "WarmfleetPrefixesRecomputed",
            prompts(grows(100, 41), grows(50, 41))
            | missed("capacity", grows(5, 41))
            | missed("lost", grows(40, 41)),
            prompts(grows(100, 41), grows(50, 41)) | missed("capacity", grows(20, 41)),
            [{"model_name": "m", "namespace": "n"}],
        ),
        (
            "WarmfleetAutoscalerBlind",
            {BLIND: [0] * 21},
            {BLIND: [1] * 21},
            [{"name": "a", "namespace": "team"}],
        ),
        (
            "WarmfleetCapacityPending",
            {PENDING: [0] * 21},
            {PENDING: [2] * 21},
            [{"name": "a", "namespace": "team"}],
        ),
        ("WarmfleetOperatorHasNoLeader", {LEADING: [1] * 21, STANDING_BY: [0] * 21}, {}, [{}]),
        (
            "WarmfleetOperatorHasNoLeader",
            {LEADING: [1] * 21},
            {LEADING: [0] * 21, STANDING_BY: [0] * 21},
            [{}],
        ),
        (
            "WarmfleetOperatorHasNoLeader",
            {LEADING: [1] * 15 + [None] * 6, STANDING_BY: [0] * 16 + [1] * 5},
            {LEADING: [1] * 15 + [None] * 6},
            [{}],
        ),
        (
            "WarmfleetOperatorHasNoLeader",
            {LEADING: [1] * 21},
            {'warmfleet_operator_leader{namespace="another",pod="operator-0"}': [1] * 21},
            [{}],
        ),
    ],
)
def test_an_alert_fires_for_what_it_describes_and_not_otherwise(alert, quiet, firing, labels):
    expect_alerts(groups(), alert, quiet, [])
    expect_alerts(groups(), alert, firing, labels)


def test_every_alert_is_tried():
    (mark,) = test_an_alert_fires_for_what_it_describes_and_not_otherwise.pytestmark
    assert {case[0] for case in mark.args[1]} == {item["alert"] for item in alerts()}


def test_a_worker_that_is_probed_counts_as_ejected_with_gaps():
    ejected = ejected_by_a_router(probe_seconds=30, minutes=30)

    assert 0 in ejected[1:]
    assert (0, 0) not in itertools.pairwise(ejected)


def test_the_alert_about_watches_fires_before_the_operator_is_restarted():
    (rule,) = [item for item in alerts() if item["alert"] == "WarmfleetWatchIsBehind"]
    threshold = float(rule["expr"].rpartition(">")[2])

    assert "for" not in rule
    assert threshold < BEHIND_PERIODS * operator_settings(None).sync_seconds


def test_every_alert_names_its_section_where_a_page_is_given():
    page = "https://docs.example.com/how-to/alerts"
    assert [item["annotations"]["runbook_url"] for item in alerts()] == [
        f"{page}#{item['alert'].lower()}" for item in alerts()
    ]
    (rule,) = render(REGISTRY | {"monitoring": {"prometheusRule": {"enabled": True}}}).of_kind(
        "PrometheusRule"
    )
    (group,) = rule["spec"]["groups"]
    assert [set(item["annotations"]) for item in group["rules"]] == [{"summary", "description"}] * len(
        alerts()
    )


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


def test_the_figures_of_a_deployment_keep_its_own_namespace():
    monitors = {
        item["metadata"]["name"]: item for item in render(case_values("everything")).of_kind("ServiceMonitor")
    }
    (operator,), (router,) = (
        monitors[f"warmfleet-{name}"]["spec"]["endpoints"] for name in ("operator", "router")
    )
    assert operator["honorLabels"] is True
    assert "honorLabels" not in router


def test_prometheus_reaches_routers_also_where_clients_are_named():
    clients = [{"podSelector": {"matchLabels": {"app": "chat"}}}]
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    monitored = REGISTRY | {"monitoring": {"serviceMonitor": {"enabled": True}}}
    named = monitored | {"networkPolicies": {"clients": clients, "scrapers": [prometheus]}}
    (rule,) = render(named).get("NetworkPolicy", "warmfleet-router")["spec"]["ingress"]
    assert prometheus in rule["from"]
    assert clients[0] in rule["from"]
    with pytest.raises(helm_python.HelmRenderError, match=r"networkPolicies\.scrapers"):
        render(monitored | {"networkPolicies": {"clients": clients}})
    (unrestricted,) = render(monitored).get("NetworkPolicy", "warmfleet-router")["spec"]["ingress"]
    assert "from" not in unrestricted


def test_prometheus_is_let_in_to_the_operator_only_while_it_is_wanted():
    closed = render().get("NetworkPolicy", "warmfleet-operator")["spec"]
    assert "ingress" not in closed
    monitored = REGISTRY | {"monitoring": {"serviceMonitor": {"enabled": True}}}
    (rule,) = render(monitored).get("NetworkPolicy", "warmfleet-operator")["spec"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": 8082}]}


def test_scrapers_reach_workers_only_while_workers_are_monitored():
    assert operator_settings(None).worker_scrapers is None
    monitored = REGISTRY | {"monitoring": {"podMonitor": {"enabled": True}}}
    assert operator_settings(monitored).worker_scrapers == ()
    assert operator_settings(case_values("everything")).worker_scrapers == (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    )


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json", "ask_router.py"])
def test_files_of_the_chart_are_part_of_its_package(name):
    assert (CHART / "files" / name).is_file()
