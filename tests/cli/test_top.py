"""`warmfleet top`: what it makes of routers' totals, what it prints, and how it fails."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.top.fleet_watch import FleetWatch
from warmfleet_cli.top.readings import EndpointView, Readings
from warmfleet_cli.top.screen import lines_of
from warmfleet_cli.top.views import ModelView
from warmfleet_contracts.cache.fleet_totals import (
    FLEET_TOTALS_PATH,
    FleetTotals,
    LatencyHistogram,
    MissTokens,
    ModelTotals,
    ReplicaTotals,
    encode_totals,
)
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_testing.resources.scaling_signals import POLICY
from warmfleet_testing.router.stub_router import StubRouter, stub_router

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDPOINTS = (
    EndpointView(uid="uid-0", name="chat-0", served_names=("chat", "chat-latest")),
    EndpointView(uid="uid-1", name="chat-1", served_names=("chat", "chat-latest")),
)


def replica(uid: str, pinned_tokens: int) -> ReplicaTotals:
    return ReplicaTotals(
        uid=uid,
        ready=True,
        report_age_seconds=0.5,
        capacity_tokens=10_000,
        pinned_tokens=pinned_tokens,
        evictable_tokens=1_000,
        running_sequences=3,
        waiting_sequences=1,
        seats=8,
        queued_uncached_tokens=1_200,
        prefill_tokens_per_second=2_000.0,
        unique_value_tokens_per_second=40.25,
    )


def totals(turn: int, *, pinned_tokens: int = 9_000) -> FleetTotals:
    """Of the `turn`-th reading: counts grow by the same each time."""
    return FleetTotals(
        router="router-a",
        uptime_seconds=1000.0 + turn,
        models={
            "chat": ModelTotals(
                queued_requests=4,
                queued_tokens=3_000,
                prompt_tokens=1_000 * turn,
                cached_tokens=600 * turn,
                misses=MissTokens(compulsory=250 * turn, capacity=100 * turn, placement=50 * turn),
                first_token=LatencyHistogram((0, 10 * turn)),
            )
        },
        replicas=(replica("uid-0", pinned_tokens), replica("uid-1", pinned_tokens)),
    )


def watched(policy: AutoscalingPolicy | None, turns: int = 12, **fields: int) -> ModelView:
    """After readings that are five seconds apart."""
    watch = FleetWatch(policy)
    for turn in range(turns):
        (view,) = watch.views(Readings((totals(turn, **fields),), ENDPOINTS), 5.0 * turn)
    return view


def test_a_model_is_shown_with_the_reasons_of_its_misses_and_the_wanted_number() -> None:
    assert lines_of(watched(replace(POLICY, max_replicas=8))) == [
        "model        chat, chat-latest",
        "replicas     2 of 2 ready, 3 wanted",
        "because      demand above supply",
        "asked for    3 by tokens, 2 by sequences, 1 by compute, 2 by earlierGrowth, 1 by requests",
        "KV memory    90 % pinned, 10 % cached",
        "prompts      6,000 tokens in 30 s, 60 % cached",
        "misses       25 % compulsory, 5 % placement, 10 % capacity",
        "queue        4 requests, 3,000 tokens",
        "first token  p50 1 ms, p90 1 ms, p99 1 ms",
        "next tokens  none yet",
        "",
        "REPLICA  STATE  KV TOKENS  PINNED  CACHED  RUNNING  WAITING  QUEUED  UNIQUE",
        "chat-0   Ready     10,000    90 %    10 %        3        1   1,200  40.2/s",
        "chat-1   Ready     10,000    90 %    10 %        3        1   1,200  40.2/s",
    ]


def test_without_a_policy_no_number_is_wanted() -> None:
    view = watched(None)

    assert view.decision is None
    assert not any("wanted" in line or line.startswith("because") for line in lines_of(view))


def test_a_number_that_a_bound_keeps_names_the_bound() -> None:
    assert "because      steady, limited by MaxReplicas" in lines_of(watched(replace(POLICY, max_replicas=2)))


def test_the_first_reading_shows_replicas_and_no_rates() -> None:
    lines = lines_of(watched(None, turns=1))

    assert "prompts      none yet" in lines
    assert any(line.startswith("chat-1   Ready") for line in lines)


def test_a_replica_without_a_report_and_a_silent_router_are_named() -> None:
    silent = ReplicaTotals(uid="uid-1", ready=True)
    now = msgspec.structs.replace(totals(1), replicas=(replica("uid-0", 0), silent))
    (view,) = FleetWatch(None).views(Readings((now,), ENDPOINTS, problems=("http://b does not answer",)), 0.0)
    lines = lines_of(view)

    assert "missing      1 replicas without a recent report, 1 routers that do not answer" in lines
    assert lines[-1].split() == ["chat-1", "Unknown", *["-"] * 7]


def test_each_model_has_its_own_replicas_and_counts() -> None:
    endpoints = (ENDPOINTS[0], EndpointView(uid="uid-1", name="code-0", served_names=("code",)))
    chat, code = FleetWatch(None).views(Readings((totals(1),), endpoints), 0.0)

    assert [view.names for view in (chat, code)] == [("chat", "chat-latest"), ("code",)]
    assert [[item.name for item in view.replicas] for view in (chat, code)] == [["chat-0"], ["code-0"]]
    assert [view.queued_requests for view in (chat, code)] == [4, 0]


def test_names_of_replicas_and_models_are_one_printable_line_each() -> None:
    endpoints = (
        EndpointView(uid="uid-0", name="w\n\x9b2J", served_names=("m\x1b]0;title\x07\nreplicas 9",)),
    )
    (view,) = FleetWatch(None).views(Readings((totals(1),), endpoints), 0.0)
    lines = lines_of(view)

    assert lines[0] == "model        m\\u001b]0;title\\u0007\\u000areplicas 9"
    assert lines[-1].startswith("w\\u000a\\u009b2J  Ready")


def test_a_model_that_has_gone_is_forgotten() -> None:
    watch = FleetWatch(None)
    watch.views(Readings((totals(1),), ENDPOINTS), 0.0)

    assert watch.views(Readings((FleetTotals(router="router-a"),), ()), 5.0) == []


class GrowingRouter(StubRouter):
    """A router with two replicas, whose counts grow with each reading; for the key "admin"."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = count()
        self.endpoints = ENDPOINTS
        self.asleep = ["chat", "quiet", "team/quiet"]

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if authorization != "Bearer admin":
            return 403, b'{"error": {"message": "this key has no admin scope"}}'
        if path == FLEET_TOTALS_PATH:
            return 200, encode_totals(totals(next(self.turns)))
        return 200, msgspec.json.encode({"endpoints": self.endpoints, "asleep": self.asleep})


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrowingRouter]:
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    with stub_router(made := GrowingRouter()):
        yield made


@pytest.fixture
def url(router: GrowingRouter) -> str:
    return f"http://127.0.0.1:{router.port}"


def top(url: str, *arguments: str, key: str = "admin") -> Result:
    command = ["top", "--url", url, "--api-key", key, "--interval", "0.2", *arguments]
    return CliRunner().invoke(app, command)


def test_in_a_pipe_it_prints_once_after_two_readings(url: str) -> None:
    shown = top(url, "-f", str(EXAMPLES / "autoscaling.yaml"))

    assert shown.exit_code == ExitCode.OK, shown.output
    assert shown.stdout.count("model        chat, chat-latest\n") == 1
    assert "prompts      1,000 tokens in 0 s, 60 % cached" in shown.stdout
    assert "UNIQUE: prompt tokens per second" in shown.stdout


def test_json_has_the_numbers_and_the_decision(url: str) -> None:
    shown = top(url, "-f", str(EXAMPLES / "autoscaling.yaml"), "--output", "json")
    (model,) = json.loads(shown.stdout)["models"]

    assert model["misses"] == {"compulsory": 250, "placement": 50, "capacity": 100, "lost": 0, "rollout": 0}
    assert model["replicas"][0]["pinned_tokens"] == 9_000
    assert model["decision"]["from_replicas"] == 2
    assert model["decision"]["recommendations"]["tokens"] == 3


def test_models_that_sleep_are_named_beside_those_that_serve_and_alone(
    router: GrowingRouter, url: str
) -> None:
    beside, as_json = top(url), top(url, "--output", "json")
    router.endpoints = ()
    alone = top(url)

    line = "asleep       quiet, team/quiet: a request starts a replica\n"
    assert line in beside.stdout
    assert json.loads(as_json.stdout)["asleep"] == ["quiet", "team/quiet"]
    assert alone.stdout == line.replace("quiet,", "chat, quiet,")


def test_a_model_that_sleeps_is_one_printable_line(router: GrowingRouter, url: str) -> None:
    router.endpoints = ()
    router.asleep = ["m\x1b[2J\nready"]

    assert top(url).stdout == "asleep       m\\u001b[2J\\u000aready: a request starts a replica\n"


@pytest.mark.parametrize("path", [FLEET_TOTALS_PATH, "/internal/fleet"])
def test_an_answer_beyond_its_bound_ends_it_with_the_bound(
    router: GrowingRouter, url: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    answer = router.answer
    padding = b" " * (17 * 1024 * 1024)
    monkeypatch.setattr(
        router, "answer", lambda asked, key: (200, padding) if asked == path else answer(asked, key)
    )

    shown = top(url)

    bound = "4,194,304" if path == FLEET_TOTALS_PATH else "16,777,216"
    assert shown.exit_code == ExitCode.REFUSED
    assert f"error: {url}{path} answers more than {bound} bytes\n" in shown.stderr


def test_a_key_without_admin_scope_is_an_error_that_names_the_variable(url: str) -> None:
    shown = top(url, key="other")

    assert shown.exit_code == ExitCode.REFUSED
    assert "this key has no admin scope" in shown.stderr
    assert "WARMFLEET_API_KEY" in shown.stderr


def test_without_a_router_it_names_the_command_that_starts_one(url: str) -> None:
    shown = top("http://127.0.0.1:9")

    assert shown.exit_code == ExitCode.NOT_RUNNING
    assert "warmfleet up" in shown.stderr


def test_a_manifest_without_autoscaling_is_refused(url: str) -> None:
    shown = top(url, "-f", str(EXAMPLES / "minimal.yaml"))

    assert shown.exit_code == ExitCode.USAGE
    assert "has no spec.autoscaling" in shown.stderr
