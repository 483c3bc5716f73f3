"""No alert of the chart fires for a fleet that sleeps."""

from warmfleet_testing.resources.chart_render import case_values, render
from warmfleet_testing.resources.promtool import expect_no_alert, series_name

SERVED, SLEPT = 60, 121
"""Minutes."""
OF_FLEET = {"namespace": "n", "name": "m"}
OF_MODEL = {"namespace": "n", "model_name": "m", "pod": "p"}


def steps(served, slept):
    return [served] * SERVED + [slept] * SLEPT


def test_no_alert_fires_for_a_fleet_that_sleeps():
    """A router's counters stand still, and the series of workers have ended."""
    (rule,) = render(case_values("everything")).of_kind("PrometheusRule")
    rose = [1000 * minute for minute in range(SERVED)]
    prompts = [*rose, *[rose[-1]] * SLEPT]
    series = {
        series_name("warmfleet_operator_leader", {"namespace": "models", "pod": "o"}): steps(1, 1),
        series_name("vllm:kv_cache_usage_perc", OF_MODEL): steps(0.99, None),
        series_name("warmfleet_worker_evicted_blocks_total", OF_MODEL): [*rose, *[None] * SLEPT],
        series_name("warmfleet_router_prompt_tokens_total", OF_MODEL): prompts,
        series_name("warmfleet_router_cached_tokens_total", OF_MODEL): prompts,
        series_name("warmfleet_router_missed_tokens_total", {**OF_MODEL, "cause": "capacity"}): prompts,
    }
    for name, served in (
        ("deployment_wanted_replicas", 1),
        ("deployment_ready_replicas", 1),
        ("scaling_wanted_replicas", 1),
        ("scaling_blind", 0),
        ("scaling_capacity_pending_replicas", 0),
    ):
        series[series_name(f"warmfleet_operator_{name}", OF_FLEET)] = steps(served, 0)
    for condition, served, slept in (("Ready", "True", "True"), ("Available", "True", "False")):
        for status in {served, slept}:
            labels = {**OF_FLEET, "condition": condition, "status": status}
            series[series_name("warmfleet_operator_deployment_condition", labels)] = steps(
                1 if status == served else None, 1 if status == slept else None
            )
    for state, served in (("ready", 1), ("unready", 0)):
        labels = {"namespace": "n", "service": "s", "state": state}
        series[series_name("warmfleet_router_endpoints", labels)] = steps(served, 0)

    expect_no_alert(rule["spec"]["groups"], series)
