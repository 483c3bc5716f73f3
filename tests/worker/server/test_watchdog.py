"""An engine that has work and reports no step: first not ready, then replaced."""

import contextlib
import json
import os
import signal
import threading
import time

import httpx
import pytest

from warmfleet_contracts.cache.kv_events import Frame, MessageReader
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.process_tree import is_running
from warmfleet_worker.server.watchdog import Health, StepWatchdog
from warmfleet_worker.settings import parse_settings

BODY = {"model": TINY_NAME, "prompt": "hello", "max_tokens": 900, "temperature": 0, "ignore_eos": True}


def watch(watchdog, seconds, *, start=0.0, working=True, last_report_seconds=0.0):
    """The watchdog's verdicts until `seconds`."""
    verdicts = []
    now = start
    while now <= seconds:
        verdicts.append(watchdog.update(now, working=working, last_report_seconds=last_report_seconds))
        now += watchdog.check_seconds
    return verdicts


def test_silence_is_a_stall_first_and_a_loss_after_twice_the_time():
    watchdog = StepWatchdog(8.0)
    assert watchdog.check_seconds == 1.0

    verdicts = watch(watchdog, 17.0)

    # The first verdict counts from the last report.
    assert verdicts == [Health.HEALTHY] * 8 + [Health.STALLED] * 8 + [Health.DEAD] * 2


def test_a_report_or_the_end_of_all_work_ends_a_stall():
    for change in ({"last_report_seconds": 9.0}, {"working": False}):
        watchdog = StepWatchdog(8.0)
        assert watch(watchdog, 10.0)[-1] is Health.STALLED
        assert (
            watchdog.update(11.0, **{"working": True, "last_report_seconds": 0.0, **change}) is Health.HEALTHY
        )


def test_an_idle_engine_may_be_silent():
    assert set(watch(StepWatchdog(1.0), 50.0, working=False)) == {Health.HEALTHY}


def test_time_in_which_the_watchdog_did_not_run_is_not_counted():
    watchdog = StepWatchdog(8.0)
    watch(watchdog, 2.0)

    assert watchdog.update(3600.0, working=True, last_report_seconds=0.0) is Health.HEALTHY


class EventReader(threading.Thread):
    """The newest total_blocks that a router would receive."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.total_blocks: list[int] = []
        self.start()

    def run(self) -> None:
        messages = MessageReader()
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{self.url}/internal/kv-events", timeout=60, verify=NO_TLS) as response,
        ):
            for data in response.iter_raw():
                for message in messages.feed(data):
                    if isinstance(message, Frame) and message.load is not None:
                        self.total_blocks.append(message.load.total_blocks)

    def wait_for(self, wanted: bool) -> None:
        deadline = time.monotonic() + 30
        while not self.total_blocks or bool(self.total_blocks[-1]) != wanted:
            assert time.monotonic() < deadline, self.total_blocks
            time.sleep(0.02)


@contextlib.contextmanager
def held_stream(worker):
    """A stream in the middle of its answer, and the lines that come after its first."""
    with (
        httpx.Client(base_url=worker.url, timeout=60, verify=NO_TLS) as client,
        client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        yield lines


def statuses(worker):
    return [
        httpx.get(f"{worker.url}{path}", timeout=10, verify=NO_TLS).status_code
        for path in ("/livez", "/readyz")
    ]


def wait_for_statuses(worker, wanted):
    deadline = time.monotonic() + 60
    while statuses(worker) != wanted:
        assert time.monotonic() < deadline, (statuses(worker), wanted)
        time.sleep(0.02)


def test_a_stalled_engine_takes_nothing_new_and_recovers(tiny_served_path):
    flags = ("--stall-seconds", "4", "--kv-cache-bytes", "4000000")
    with running_worker(tiny_served_path, *flags) as worker:
        router = EventReader(worker.url)
        engine_pid = worker.engine_pid
        router.wait_for(wanted=True)
        os.kill(engine_pid, signal.SIGSTOP)
        time.sleep(0.2)
        assert statuses(worker) == [200, 200], "without work no report is due"
        os.kill(engine_pid, signal.SIGCONT)

        with held_stream(worker) as lines:
            os.kill(engine_pid, signal.SIGSTOP)
            wait_for_statuses(worker, [503, 503])
            router.wait_for(wanted=False)
            refused = httpx.post(f"{worker.url}/v1/completions", json=BODY, timeout=10, verify=NO_TLS)
            os.kill(engine_pid, signal.SIGCONT)
            rest = [line for line in lines if line]

        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert rest[-1] == "data: [DONE]", "open streams are served to the end"
        wait_for_statuses(worker, [200, 200])
        router.wait_for(wanted=True)
        answer = httpx.post(
            f"{worker.url}/v1/completions", json={**BODY, "max_tokens": 3}, timeout=30, verify=NO_TLS
        )
        assert answer.status_code == 200
        assert (
            "warmfleet_worker_engine_stalls_total" in httpx.get(f"{worker.url}/metrics", verify=NO_TLS).text
        )


def test_an_engine_that_stays_silent_is_killed_and_its_worker_ends(tiny_served_path):
    flags = ("--stall-seconds", "2", "--kv-cache-bytes", "4000000")
    with running_worker(tiny_served_path, *flags) as worker:
        engine_pid = worker.engine_pid
        plain: list[httpx.Response] = []

        def ask() -> None:
            plain.append(httpx.post(f"{worker.url}/v1/completions", json=BODY, timeout=60, verify=NO_TLS))

        askers = [threading.Thread(target=ask) for _ in range(2)]
        askers[0].start()
        while not worker.cache()["pinned_blocks"]:
            time.sleep(0.01)  # until one is admitted; the other will find no engine
        with held_stream(worker) as lines:
            os.kill(engine_pid, signal.SIGSTOP)
            askers[1].start()
            rest = [line for line in lines if line]
        for asker in askers:
            asker.join(20)

        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "not_ready"
        errors = [(answer.status_code, answer.json()["error"]["code"]) for answer in plain]
        assert errors == [(503, "not_ready")] * 2
        assert worker.process.wait(15) == 1
        assert "no step" in worker.wait_for_log("the engine ended, so does this worker")["reason"]
        assert not is_running(engine_pid)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "x"])
def test_a_stall_time_that_means_nothing_is_refused(capsys, value):
    with pytest.raises(SystemExit):
        parse_settings(["--model", "/anywhere", "--stall-seconds", value], {})
    assert "--stall-seconds" in capsys.readouterr().err
