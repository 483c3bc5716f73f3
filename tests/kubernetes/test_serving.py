"""What clients notice of changes under them: five greedy streams a second, no client tries again.

The oracle is the undisturbed fleet: every text is the one that it gave before anything was changed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

import pytest

from warmfleet_testing.cluster import eventually
from warmfleet_testing.installed import Installed, tiny_deployment
from warmfleet_testing.steady_load import SteadyLoad, steady_load

NAME = "steady"
TOKENS = 48
PROMPTS = tuple(f"A long walk along the river, part {number}. What is next?" for number in range(8))
ROLLOUT_SECONDS = 120.0


@pytest.fixture(scope="module")
def fleet(installed: Installed) -> Iterator[Installed]:
    """Two workers of the tiny model that the tests of this module change one after the other."""
    with installed.within(f"serving-{uuid4().hex[:8]}") as models:
        models.apply(tiny_deployment(NAME, replicas=2))
        models.wait_ready(NAME)
        yield models


@pytest.fixture(scope="module")
def undisturbed(fleet: Installed) -> Mapping[str, str]:
    """What each prompt is answered while nothing happens."""
    return {prompt: text_of(fleet, prompt) for prompt in PROMPTS}


def text_of(fleet: Installed, prompt: str, tokens: int = TOKENS, name: str = NAME) -> str:
    answer = fleet.chat(name, prompt, max_tokens=tokens, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == tokens
    return str(answer["choices"][0]["message"]["content"])


@contextmanager
def nobody_notices(fleet: Installed, undisturbed: Mapping[str, str]) -> Iterator[SteadyLoad]:
    """The body runs under load, and not one stream fails or says anything else than it would have."""
    with steady_load(fleet.router_url, NAME, PROMPTS, tokens=TOKENS) as load:
        eventually(lambda: sum(answer.complete for answer in load.answers), lambda done: done >= 5)
        yield load
        after = len(load.answers) + 5
        eventually(lambda: len(load.answers), lambda count: count >= after)
    assert [answer.error for answer in load.failed] == []
    for answer in load.answers:
        assert answer.text == undisturbed[answer.prompt]


def uids(fleet: Installed, name: str = NAME) -> set[str]:
    return {pod["metadata"]["uid"] for pod in fleet.pods(name)}


def patch(fleet: Installed, name: str, spec: Mapping[str, object]) -> None:
    fleet.kubectl("patch", "modeldeployment", name, "--type=merge", "-p", json.dumps({"spec": spec}))


def rolled_out(fleet: Installed, name: str, before: set[str], replicas: int = 2) -> None:
    """Until every pod is another one than before, and ready for requests."""
    eventually(
        lambda: uids(fleet, name),
        lambda now: len(now) == replicas and not now & before,
        seconds=ROLLOUT_SECONDS,
    )
    fleet.wait_ready(name)


def test_a_rolling_update_costs_no_request(fleet: Installed, undisturbed: Mapping[str, str]) -> None:
    before = uids(fleet)
    with nobody_notices(fleet, undisturbed):
        patch(fleet, NAME, {"engine": {"maxRunningSequences": 32}})
        rolled_out(fleet, NAME, before)


def test_a_restart_of_the_operator_costs_no_request_and_no_worker(
    fleet: Installed, undisturbed: Mapping[str, str]
) -> None:
    before = uids(fleet)
    operators = {pod["metadata"]["uid"] for pod in fleet.release_pods("operator")}
    with nobody_notices(fleet, undisturbed):
        fleet.upgrade("--set", "operator.logLevel=debug")
        eventually(
            lambda: {pod["metadata"]["uid"] for pod in fleet.release_pods("operator")},
            lambda now: len(now) == 2 and not now & operators,
        )
    assert uids(fleet) == before


def test_a_drained_node_costs_no_request(fleet: Installed, undisturbed: Mapping[str, str]) -> None:
    cluster = fleet.cluster
    with nobody_notices(fleet, undisturbed):
        try:
            cluster.kubectl(
                "drain",
                "node-1",
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--force",
                "--timeout=100s",
            )
            left = {pod["spec"]["nodeName"] for pod in fleet.pods(NAME)}
            fleet.wait_ready(NAME)
        finally:
            cluster.kubectl("uncordon", "node-1")
    assert left == {"node-0"}
