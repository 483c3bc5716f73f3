"""The supervisor over real processes: it restarts what dies, and takes everything along when it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmfleet_cli.errors import ExitCode
from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.log_file import LogFile, worth_quoting
from warmfleet_cli.local.state import RunFolder
from warmfleet_runtime.process_identity import identify, is_alive, send_signal
from warmfleet_testing.router.local_fleet import (
    NAME,
    pids,
    running,
    start,
    stub_plan,
    wait_for_fleet,
    wait_until,
)


def _gone(fleet_pids: list[int]) -> bool:
    return all(identify(pid) is None for pid in fleet_pids)


def test_delays_double_up_to_a_bound_and_start_over_after_a_stable_life() -> None:
    policy = RestartPolicy()

    delays: list[float] = []
    for _ in range(7):
        delays.append(policy.next_delay_seconds(delays[-1] if delays else None, lived_seconds=0.5))

    assert delays == [1, 2, 4, 8, 16, 30, 30]
    assert policy.next_delay_seconds(30, lived_seconds=60) == 1


def test_a_killed_worker_comes_back_on_its_port_with_growing_delays(tmp_path: Path) -> None:
    plan = stub_plan(workers=("", ""))
    with running(tmp_path, plan) as (supervisor, fleet):
        before = fleet.processes[0]
        for restart in (1, 2):
            worker = wait_for_fleet(tmp_path, lambda now: now.processes[0].phase == "Ready").processes[0]
            assert worker.identity is not None
            os.kill(worker.identity.pid, signal.SIGKILL)
            fleet = wait_for_fleet(
                tmp_path,
                lambda now, n=restart: now.processes[0].restarts == n and now.processes[0].phase == "Ready",
            )

        after = fleet.processes[0]
        assert (after.port, after.url) == (before.port, before.url)
        assert after.identity != before.identity
        assert fleet.processes[1].restarts == 0
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert "stubs-0 was killed by SIGKILL; restart 1 in 0.05 s" in output
    assert "stubs-0 was killed by SIGKILL; restart 2 in 0.1 s" in output
    assert "stubs-0 is ready again" in output


@pytest.mark.parametrize(
    ("options", "number", "trouble"),
    [("", signal.SIGSTOP, "no answer within 2 s"), ("stalled", signal.SIGUSR1, "status 503")],
    ids=["stopped", "stalled"],
)
def test_a_worker_that_hangs_is_killed_and_comes_back(
    tmp_path: Path, options: str, number: signal.Signals, trouble: str
) -> None:
    with running(tmp_path, stub_plan(workers=(options, ""))) as (supervisor, fleet):
        hung, other = fleet.processes[0].identity, fleet.processes[1].identity
        assert hung is not None

        os.kill(hung.pid, number)
        after = wait_for_fleet(
            tmp_path, lambda now: now.processes[0].restarts == 1 and now.processes[0].phase == "Ready"
        )

        assert identify(hung.pid) is None
        assert after.processes[1].identity == other
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert f"stubs-0 hangs ({trouble} from /livez); it is killed" in output
    assert "stubs-0 was killed by SIGKILL; restart 1" in output
    assert "stubs-1 hangs" not in output


def test_a_drain_that_takes_long_is_not_taken_for_a_hang(tmp_path: Path) -> None:
    plan = stub_plan(workers=("stalled stubborn",), drain_seconds=1)
    with running(tmp_path, plan) as (supervisor, fleet):
        worker = fleet.processes[0].identity
        assert worker is not None

        supervisor.send_signal(signal.SIGINT)
        wait_for_fleet(tmp_path, lambda now: now.phase == "Stopping")
        os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(1)  # several probes long

        assert identify(worker.pid) == worker
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert "hangs" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_requested_stop_leaves_no_process_and_no_state(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, stub_plan(workers=("child", ""))) as (supervisor, fleet):
        log = Path(fleet.processes[0].log_path)
        grandchild = int(wait_until(lambda: re.search(r"child (\d+)", log.read_text()))[1])
        assert len(pids(fleet)) == 3

        supervisor.send_signal(number)
        output, _ = supervisor.communicate(timeout=20)

    assert supervisor.returncode == 0
    assert output.rstrip().endswith("stubs has stopped")
    assert _gone(pids(fleet))
    wait_until(lambda: _gone([grandchild]))  # killed, but only its own parent could wait for its end
    assert RunFolder(tmp_path, NAME).read() is None
    assert not RunFolder(tmp_path, NAME).endpoints_path.exists()


def test_a_killed_supervisor_takes_its_processes_along(tmp_path: Path) -> None:
    with running(tmp_path, stub_plan(workers=("stubborn", ""))) as (supervisor, fleet):
        supervisor.kill()

        wait_until(lambda: _gone(pids(fleet)))


def test_a_second_ctrl_c_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    with running(tmp_path, stub_plan(router="stubborn", drain_seconds=300)) as (supervisor, fleet):
        supervisor.send_signal(signal.SIGINT)
        wait_for_fleet(tmp_path, lambda now: now.phase == "Stopping")
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=10)

    assert supervisor.returncode == 0
    assert _gone(pids(fleet))


@pytest.mark.parametrize("options", [(), ("detach",)], ids=["foreground", "detached"])
def test_a_worker_that_cannot_start_fails_the_fleet_with_its_own_message(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    process = start(tmp_path, stub_plan(workers=("", "fail")), *options)
    output, _ = process.communicate(timeout=20)

    assert process.returncode == ExitCode.START_FAILED
    assert "stubs-1 exited with code 3 before it was ready" in output
    assert "model.safetensors: checksum does not match" in output
    assert str(RunFolder(tmp_path, NAME).log_path("stubs-1")) in output
    assert "Traceback" not in output
    assert RunFolder(tmp_path, NAME).read() is None


def test_a_second_fleet_of_the_same_name_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, stub_plan()) as (_, fleet):
        second = start(tmp_path, stub_plan())
        output, _ = second.communicate(timeout=20)

        assert second.returncode == ExitCode.ALREADY_RUNNING
        assert "fleet 'stubs' is already running" in output
        assert RunFolder(tmp_path, NAME).read() == fleet


def test_secrets_reach_no_command_line_and_no_other_user(tmp_path: Path) -> None:
    with running(tmp_path, stub_plan(workers=("", ""))) as (_, fleet):
        folder = RunFolder(tmp_path, NAME)
        tokens = re.findall(r'"token":"([0-9a-f]{64})"', folder.endpoints_path.read_text())
        commands = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids(fleet))

        assert len(set(tokens)) == 2
        assert not any(token in commands for token in tokens)
        assert folder.endpoints_path.stat().st_mode & 0o077 == 0
        assert folder.path.stat().st_mode & 0o077 == 0


def test_a_signal_never_reaches_a_process_that_merely_has_the_pid() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        now = identify(process.pid)
        assert now is not None
        earlier = type(now)(pid=now.pid, started=now.started.replace(":", ":1", 1))

        assert not is_alive(earlier)
        assert not send_signal(earlier, signal.SIGKILL)
        assert is_alive(now)
        assert send_signal(now, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert identify(process.pid) is None
    assert not send_signal(now, signal.SIGKILL)


def test_a_log_keeps_its_end_and_cannot_outgrow_its_bound(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "worker.log", max_bytes=100)
    for i in range(50):
        log.write(f"line {i}\n".encode())
    log.close()

    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 100
    assert log.tail(2) == ["line 48", "line 49"]


def test_a_new_log_does_not_quote_the_old_one(tmp_path: Path) -> None:
    old = LogFile(tmp_path / "worker.log")
    old.write(b"yesterday's error\n")
    old.close()

    log = LogFile(tmp_path / "worker.log")
    log.write(b"today\n")
    log.close()

    assert log.tail(5) == ["today"]
    assert (tmp_path / "worker.log.1").read_text() == "yesterday's error\n"


def test_errors_are_quoted_and_normal_work_is_left_out() -> None:
    lines = [
        '{"event": "listening", "port": 8100}',
        '{"event": "the engine ended", "reason": "model.safetensors is damaged", "level": "error"}',
        '{"event": "worker ended", "level": "info"}',
        "Segmentation fault",
    ]

    assert worth_quoting(lines) == ["the engine ended: model.safetensors is damaged", "Segmentation fault"]
    assert worth_quoting(lines[:1]) == lines[:1]
