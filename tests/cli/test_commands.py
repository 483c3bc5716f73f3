"""The commands as a user or a script meets them: what they print, where, and their exit codes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.local.state import FleetState, ProcessState, RunFolder
from warmfleet_runtime.process_identity import ProcessIdentity, identify
from warmfleet_testing.processes.ports import free_port_range
from warmfleet_testing.router.local_fleet import NAME, pids, running, start, stub_plan, wait_for_fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def free_port_runs() -> tuple[int, int]:
    """A free port for a router, and the first of two free ports for workers."""
    first = free_port_range(3)
    return first, first + 1


@contextlib.contextmanager
def listening(port: int = 0) -> Iterator[int]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_detached_fleet_is_shown_and_stopped(home: Path) -> None:
    plan = stub_plan(workers=("", "child"))
    starter = start(home, plan, "detach")
    output, _ = starter.communicate(timeout=20)
    assert starter.returncode == 0, output
    fleet = wait_for_fleet(home, lambda now: now.phase == "Ready")
    try:
        shown = run("status")
        record = json.loads(run("status", "--output", "json").stdout)["fleets"][0]
    finally:
        stopped = run("down")

    assert [line.split()[0] for line in shown.stdout.splitlines()] == [
        "stubs:",
        "NAME",
        "stubs-0",
        "stubs-1",
        "stubs-router-0",
    ]
    assert "1,600" in shown.stdout  # 100 blocks of 16 tokens
    assert record["phase"] == "Ready"
    assert record["detached"] is True
    assert record["processes"][0]["kv_cache"]["capacity_tokens"] == 1600
    assert [process["pid"] for process in record["processes"]] == pids(fleet)
    assert (stopped.exit_code, stopped.stdout) == (0, "stubs has stopped\n")
    assert all(identify(pid) is None for pid in [*pids(fleet), fleet.supervisor.pid])
    assert "stubs has stopped" in RunFolder(home, NAME).supervisor_log_path.read_text()
    assert json.loads(run("status", "-o", "json").stdout) == {"fleets": []}


def test_down_at_once_does_not_wait_for_live_answers(home: Path) -> None:
    with running(home, stub_plan(workers=("stubborn",), drain_seconds=300)) as (_, fleet):
        stopped = run("down", "--now", "--name", NAME)

        assert stopped.exit_code == 0, stopped.output
        assert all(identify(pid) is None for pid in pids(fleet))


def test_down_never_touches_a_process_that_inherited_a_pid(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        identity = identify(bystander.pid)
        assert identity is not None
        stale = ProcessIdentity(pid=bystander.pid, started="an-earlier-boot:1")
        folder = RunFolder(home, "lost")
        folder.create()
        folder.write(_lost_fleet(supervisor=stale, worker=stale))

        shown = run("status")
        stopped = run("down")

        assert "lost: Lost" in shown.stdout
        assert stopped.exit_code == 0
        assert identify(bystander.pid) == identity
        assert folder.read() is None
        bystander.kill()


def test_down_ends_what_a_lost_supervisor_left(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as orphan:
        identity = identify(orphan.pid)
        assert identity is not None
        folder = RunFolder(home, "lost")
        folder.create()
        folder.write(
            _lost_fleet(supervisor=ProcessIdentity(pid=1, started="an-earlier-boot:1"), worker=identity)
        )

        assert run("down", "--name", "lost").exit_code == 0
        assert orphan.wait(10) == -signal.SIGKILL


def _lost_fleet(*, supervisor: ProcessIdentity, worker: ProcessIdentity) -> FleetState:
    process = ProcessState(
        name="lost-0",
        role="worker",
        url="http://127.0.0.1:1",
        port=1,
        log_path="/dev/null",
        phase="Ready",
        identity=worker,
    )
    return FleetState(
        name="lost",
        phase="Ready",
        supervisor=supervisor,
        detached=True,
        urls=["http://127.0.0.1:1"],
        served_names=["x"],
        drain_timeout_seconds=1,
        processes=[process],
    )


def test_nothing_running_is_no_error() -> None:
    assert run("status").stdout.startswith("no local fleet is running")
    assert run("down").exit_code == 0
    assert run("status", "--name", "absent").exit_code == ExitCode.NOT_RUNNING


@pytest.mark.parametrize("flag", ["--port", "--worker-port"])
def test_a_busy_port_is_named_with_its_flag_before_anything_starts(home: Path, flag: str) -> None:
    ports = dict(zip(["--port", "--worker-port"], free_port_runs(), strict=True))
    with listening(ports[flag]) as port:
        result = run("up", *(part for name, value in ports.items() for part in (name, str(value))))

    assert result.exit_code == ExitCode.PORT_BUSY
    assert result.stderr.startswith("error: ")
    assert str(port) in result.stderr
    assert flag in result.stderr
    assert list(home.iterdir()) == []


def test_up_reports_a_name_that_is_taken(home: Path) -> None:
    own = identify(os.getpid())
    assert own is not None
    folder = RunFolder(home, "smollm2")
    folder.create()
    folder.write(msgspec.structs.replace(_lost_fleet(supervisor=own, worker=own), name="smollm2"))

    result = run("up")

    assert result.exit_code == ExitCode.ALREADY_RUNNING
    assert "already running" in result.stderr
    assert "warmfleet down --name smollm2" in result.stderr


def test_a_wrong_manifest_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(EXAMPLE.read_text().replace("512Mi", "plenty"))

    result = run("up", "-f", str(path))

    assert result.exit_code == ExitCode.MANIFEST
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {path}: spec.kvCache.size: 'plenty' is not a quantity")
    assert len(result.stderr.splitlines()) == 1


def test_a_local_path_without_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    source = "localPath: {path: /nowhere}"
    path.write_text(EXAMPLE.read_text().replace("catalog: {name: smollm2-135m-instruct}", source))

    port, worker_port = free_port_runs()
    result = run("up", "-f", str(path), "--port", str(port), "--worker-port", str(worker_port))

    assert result.exit_code == ExitCode.MODEL
    assert "/nowhere holds no config.json" in result.stderr


def test_an_unknown_catalog_model_is_refused_with_the_catalog() -> None:
    result = run("model", "pull", "gpt-17")

    assert result.exit_code == ExitCode.MODEL
    assert "smollm2-135m-instruct" in result.stderr


def test_the_size_of_a_model_is_exact(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(bytes(1234))

    result = run("model", "size", str(tmp_path), "--kv-size", "1Mi", "--dtype", "BFloat16", "-o", "json")

    report = json.loads(result.stdout)
    assert report["weights_bytes"] == 1234
    (sized,) = report["kv_cache"]
    assert sized.pop("pod_bytes") > 640 * 2**20
    assert sized == {
        "dtype": "BFloat16",
        "bytes_per_token": 2 * 3 * 2 * 16 * 2,
        "blocks": 170,
        "tokens": 2720,
    }
    assert "2,720" in run("model", "size", str(tmp_path), "--kv-size", "1Mi").stdout


def test_every_command_explains_itself_with_an_example() -> None:
    groups = {
        (): ["up", "status", "doctor", "down", "chat", "why", "version", "model", "bench"],
        ("model",): ["pull", "list", "size"],
    }
    for group, commands in groups.items():
        listed = run(*group, "--help").stdout
        for command in commands:
            assert command in listed
            if command not in {"model", "bench"}:
                help_text = run(*group, command, "--help").stdout
                assert "Example: warmfleet" in help_text, command
                assert "--output" in help_text, command
    assert "Exit codes:" in run("--help").stdout


def test_pipes_get_no_colour() -> None:
    for arguments in (["--help"], ["status"], ["up", "-f", "absent.yaml"], ["version"]):
        shown = subprocess.run(
            [sys.executable, "-m", "warmfleet_cli", *arguments],
            capture_output=True,
            check=False,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        assert b"\x1b" not in shown.stdout + shown.stderr
