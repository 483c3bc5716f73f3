"""`warmfleet up --autoscale` as its user runs it: real workers, routers that require keys, live streams."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.planted_keys import PlantedKeys
from warmfleet_testing.router.whole_fleet import (
    START_SECONDS,
    WholeFleet,
    run_warmfleet,
    wait_for,
    whole_fleet,
)

SEATS = 2
TOKENS = 150
SHORT = {
    "maxReplicas": 2,
    "scaleUp": {"stabilizationSeconds": 0, "periodSeconds": 1, "panicSeconds": 1},
    "scaleDown": {"stabilizationSeconds": 1, "periodSeconds": 1},
}


@contextmanager
def load(fleet: WholeFleet, key: str, *, clients: int, pause_seconds: float = 0.0) -> Iterator[list[int]]:
    """Clients that ask one after the other; yields the tokens of each answer, or the status of a refusal."""
    answers: list[int] = []
    stop = threading.Event()

    def ask(number: int) -> None:
        while not stop.is_set():
            prompt = [(number * 7 + place) % 200 for place in range(64)]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True}
            response = httpx.post(
                f"{fleet.url}/v1/completions",
                json=body,
                headers={"authorization": f"Bearer {key}"},
                timeout=60,
                verify=NO_TLS,
            )
            good = response.status_code == httpx.codes.OK
            answers.append(response.json()["usage"]["completion_tokens"] if good else response.status_code)
            stop.wait(pause_seconds)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_local_fleet_grows_under_load_and_shrinks_after_it_without_a_failed_request(tmp_path: Path) -> None:
    keys = PlantedKeys()
    tenant = keys.add("tenant").text
    model = tiny_served_model(tmp_path / "model")
    with whole_fleet(tmp_path, model, replicas=1, keys=keys, seats=SEATS, autoscaling=SHORT) as fleet:

        def ready() -> list[str]:
            return [worker["name"] for worker in fleet.processes("worker") if worker["state"] == "Ready"]

        with load(fleet, tenant, clients=3 * SEATS) as answers:
            wait_for(lambda: len(ready()) == 2, "a second worker", seconds=START_SECONDS)
            wait_for(lambda: all(one["ready"] for one in fleet.endpoints().values()), "known to the router")
            grown = set(fleet.endpoints())
        flags = ("--seconds", "1", "--in-flight", "3", "--prefix-tokens", "64", "--output-tokens", "8")
        report = run_warmfleet(
            tmp_path, "bench", "load", "--url", fleet.url, *flags, "--output", "json", api_key=tenant
        )
        # The worker that goes may be the one that serves it. Little enough for one worker of a busy machine.
        with load(fleet, tenant, clients=1, pause_seconds=1.0) as more:
            wait_for(lambda: len(fleet.processes("worker")) == 1, "one worker again", seconds=START_SECONDS)
        wait_for(lambda: len(fleet.endpoints()) == 1, "the router follows")
        status = run_warmfleet(tmp_path, "status", api_key=fleet.admin_key)

    bench = json.loads(report)
    assert (bench["failed"], bench["errors"]) == (0, {})
    assert bench["requests"] >= 3
    assert bench["first_token_p50_seconds"] > 0
    assert grown == {"whole-0", "whole-1"}
    assert set(answers + more) == {TOKENS}
    log = (tmp_path / "run" / "whole" / "supervisor.log").read_text()
    assert "1 -> 2 replicas: demand above supply" in log
    assert "2 -> 1 replicas: demand below supply" in log
    # On a slow machine one client is enough for it to grow again.
    shown = re.search(r"^autoscaling: (.+ replicas) .+ ago, (.+)$", status, re.MULTILINE)
    assert shown is not None, status
    assert f"{shown[1]}: {shown[2]}" in log
    assert "restart" not in log


def test_a_local_fleet_begins_asleep_and_is_woken_by_a_request(tmp_path: Path) -> None:
    model = tiny_served_model(tmp_path / "model")
    zero = {**SHORT, "minReplicas": 0, "maxReplicas": 1}
    with whole_fleet(tmp_path, model, replicas=0, autoscaling=zero) as fleet:
        wait_for(lambda: fleet.get("/internal/fleet")["asleep"] == ["tiny"], "asleep")
        models = [one["id"] for one in fleet.get("/v1/models")["data"]]
        top = run_warmfleet(tmp_path, "top", "--once", "--interval", "0.2")
        status = run_warmfleet(tmp_path, "status")
        body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=START_SECONDS, verify=NO_TLS)
        awake = fleet.processes("worker")
        log = (tmp_path / "run" / "whole" / "supervisor.log").read_text()

    assert models == ["tiny"]
    assert "asleep       tiny: a request starts a replica" in top
    assert "autoscaling: no change yet; asleep until a request comes" in status
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4)
    assert [worker["state"] for worker in awake] == ["Ready"]
    steps = ("asleep: a request for tiny", "0 -> 1 replicas: woken by 1 held request", "whole-0 is ready")
    places = [log.index(step) for step in steps]
    assert places == sorted(places)
    assert "restart" not in log
