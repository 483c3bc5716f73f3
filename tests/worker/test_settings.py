"""Which callers may reach a worker, and by which token."""

import signal

import httpx
import pytest

from warmfleet_contracts.cache.worker_tokens import worker_token
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_worker.settings import parse_settings

KEY = "5c" * 32
MODEL = ("--model", "/anywhere")


def refusal(capsys, arguments, environment):
    with pytest.raises(SystemExit):
        parse_settings([*MODEL, *arguments], environment)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(["--uid", "pod-1"], {}), ([], {"WARMFLEET_POD_UID": "pod-1"})],
    ids=["flag", "variable"],
)
def test_a_pods_token_is_derived_from_the_namespaces_key(arguments, environment):
    settings = parse_settings([*MODEL, *arguments], {"WARMFLEET_NAMESPACE_KEY": KEY, **environment})

    assert settings.uid == "pod-1"
    assert settings.token == worker_token(bytes.fromhex(KEY), "pod-1")
    assert settings.token.decode() not in repr(settings)


def test_a_token_is_given_or_derived_and_not_both(capsys):
    environment = {"WARMFLEET_NAMESPACE_KEY": KEY, "WARMFLEET_WORKER_TOKEN": "planted-token"}
    error = refusal(capsys, ["--uid", "pod-1"], environment)

    assert "WARMFLEET_WORKER_TOKEN and $WARMFLEET_NAMESPACE_KEY: give one of them" in error
    assert "planted-token" not in error
    assert KEY not in error


@pytest.mark.parametrize(
    ("key", "uid", "reason"),
    [
        (KEY, "", "needs the pod's uid"),
        ("5c", "pod-1", "at least 16 bytes"),
        ("no hex", "pod-1", "hexadecimal"),
    ],
)
def test_a_key_that_gives_no_token_is_refused(capsys, key, uid, reason):
    error = refusal(capsys, ["--uid", uid], {"WARMFLEET_NAMESPACE_KEY": key})

    assert "WARMFLEET_NAMESPACE_KEY" in error
    assert reason in error
    assert key not in error


def test_callers_beyond_loopback_need_a_token_or_a_flag(capsys):
    error = refusal(capsys, ["--host", "0.0.0.0"], {})

    assert "--allow-anonymous" in error
    assert "WARMFLEET_NAMESPACE_KEY" in error
    for arguments, environment in [
        (["--allow-anonymous"], {}),
        ([], {"WARMFLEET_WORKER_TOKEN": "t"}),
        (["--uid", "pod-1"], {"WARMFLEET_NAMESPACE_KEY": KEY}),
    ]:
        assert parse_settings([*MODEL, "--host", "0.0.0.0", *arguments], environment).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("share", "one_in"), [("0", 0), ("1/1", 1), ("1/250", 250), ("1/999999999", 999_999_999)]
)
def test_a_share_of_hits_is_verified(share, one_in):
    assert parse_settings([*MODEL, "--verify-hits", share], {}).engine.verify_hits_one_in == one_in


@pytest.mark.parametrize(
    "share", ["", "1", "1/0", "2/3", "1/-4", "1/1e3", "1/١", "1/1000000000", "1/" + "9" * 9999]
)
def test_what_is_no_share_is_refused_by_name(capsys, share):
    error = refusal(capsys, [f"--verify-hits={share}"], {})

    assert "argument --verify-hits: expected 1/N with N from 1 to 999999999, or 0" in error
    assert len(error) < 5000


@pytest.mark.parametrize("other", [["--no-prefix-caching"], ["--engine-type", "VLLM"]])
def test_hits_that_there_are_not_are_not_verified(capsys, other):
    assert "--verify-hits: " in refusal(capsys, ["--verify-hits", "1/10", *other], {})


def test_a_worker_that_promises_no_equal_bits_refuses_to_verify_hits(tiny_served_path):
    flags = ("--verify-hits", "1/10", "--dtype", "Float64")
    with running_worker(tiny_served_path, *flags, wait=False) as worker:
        assert worker.process.wait(60) == 2
        assert "--verify-hits" in worker.wait_for_log("cannot serve this model")["reason"]


def test_a_worker_in_a_pod_answers_probes_to_all_and_requests_with_its_token(tiny_served_path):
    token = worker_token(bytes.fromhex(KEY), "pod-1").decode()
    environment = {"WARMFLEET_NAMESPACE_KEY": KEY, "WARMFLEET_POD_UID": "pod-1"}
    flags = ("--host", "0.0.0.0", "--kv-cache-bytes", "1000000", "--drain-seconds", "5")
    with running_worker(tiny_served_path, *flags, environment=environment) as worker:
        others = httpx.Client(base_url=worker.url, timeout=30, verify=NO_TLS)
        with others:
            probes = {
                path: others.get(path).status_code for path in ("/livez", "/readyz", "/health", "/metrics")
            }
            closed = {
                path: others.get(path).status_code
                for path in (
                    "/v1/models",
                    "/version",
                    "/openapi.json",
                    "/internal/cache",
                    "/internal/kv-events",
                )
            }
            of_another_pod = worker_token(bytes.fromhex(KEY), "pod-2").decode()
            misled = others.get("/v1/models", headers={"authorization": f"Bearer {of_another_pod}"})
        worker.token = token
        with worker.client() as routers:
            models = routers.get("/v1/models").json()
        worker.process.send_signal(signal.SIGTERM)
        exit_code = worker.process.wait(20)
        logged = repr(worker.log_lines())

    assert set(probes.values()) == {200}
    assert set(closed.values()) == {401}
    assert misled.status_code == 401
    assert [model["id"] for model in models["data"]] == [TINY_NAME]
    assert exit_code == 0
    assert "draining" in logged
    assert token not in logged
    assert KEY not in logged


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["9"], "expected 0 or at least 10, got 9"),
        (["50", "--max-batched-tokens", "64"], "--max-batched-tokens sets how much a step computes"),
        (["100", "--engine-type", "VLLM"], "vLLM's steps have no target time"),
    ],
)
def test_a_target_time_that_no_step_would_follow_is_refused(capsys, flags, problem):
    assert problem in refusal(capsys, ["--uid", "u", "--target-step-milliseconds", *flags], {})
