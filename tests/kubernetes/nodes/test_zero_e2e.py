"""A fleet of real workers sleeps and wakes under the chart's operator and two routers."""

from warmfleet_contracts.names import ROUTER_PORT
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import Installed, is_ready, tiny_deployment
from warmfleet_testing.cluster.steady_load import held_streams

NAME = "quiet"
SCALING = {
    "mode": "Active",
    "minReplicas": 0,
    "maxReplicas": 2,
    "scaleDown": {"stabilizationSeconds": 2, "periodSeconds": 1},
    "zero": {"idleSeconds": 3, "holdSeconds": 90},
}
PROMPTS = ("What is behind the hill?", "What is behind the sea?")


def sleep(fleet: Installed) -> None:
    """Wait until it sleeps and its pods are gone."""
    fleet.wait_for(NAME, "Ready", "True", "Asleep", seconds=60)
    eventually(lambda: fleet.pods(NAME), [], seconds=60)


def test_requests_at_both_routers_wake_a_fleet_and_all_are_answered(models: Installed) -> None:
    models.apply(tiny_deployment(NAME, replicas=0, autoscaling=SCALING))
    routers = [pod for pod in models.release_pods("router") if is_ready(pod)]
    urls = [models.forwarder.to(pod["status"]["podIP"], ROUTER_PORT) for pod in routers]
    assert len(urls) == 2

    texts = []
    for _ in range(2):
        sleep(models)
        with held_streams(urls, NAME, PROMPTS, requests=12) as load:
            pass
        assert [answer.error for answer in load.answers] == [""] * 12
        texts.append([answer.text for answer in load.answers])

    assert texts[0] == texts[1]
    assert len(set(texts[0])) == len(PROMPTS)
    reasons = [item["reason"] for item in models.resource(NAME)["status"]["scaling"]["decisions"]]
    assert reasons[:2] == ["RequestsHeld", "Idle"]
    assert "asleepSince" not in models.resource(NAME)["status"]["scaling"]
