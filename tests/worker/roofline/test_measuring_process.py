"""An engine has the limits of its machine measured by a process, and ends that when a request comes."""

import os
import stat
import subprocess
import sys
import time

import msgspec
import pytest

from warmfleet_testing.processes.process_tree import is_running
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.roofline import measuring_process
from warmfleet_worker.roofline.limits_file import machine_lock
from warmfleet_worker.roofline.measurement import NeverMeasurable, NotMeasurable
from warmfleet_worker.roofline.measuring_process import measured_by_a_process


@pytest.fixture
def instead(tmp_path, monkeypatch):
    """Run a shell script instead of Python with our module; its file."""
    script = tmp_path / "python"
    monkeypatch.setattr(measuring_process, "bound_command", lambda command: [str(script), *command[1:]])

    def write(text: str) -> None:
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return write


def result_of(slices) -> MachineLimits:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value


def test_the_limits_that_the_process_prints_are_the_result(instead):
    limits = MachineLimits(
        read_bytes_per_second=2e10,
        read_threads=2,
        buffer_bytes=2**30,
        bfloat16_flops_per_second=3e11,
        float32_flops_per_second=1e11,
    )
    instead(f"sleep 0.1; echo '{msgspec.json.encode(limits).decode()}'")

    assert result_of(measured_by_a_process()) == limits


def test_our_module_measures_and_keeps_limits_or_names_other_work(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the lock of the machine
    limits, reason = None, ""
    try:
        limits = result_of(measured_by_a_process())
    except NotMeasurable as error:
        reason = str(error)

    if limits is None:  # other tests run meanwhile
        assert "other processes used" in reason
    else:
        assert min(limits.read_bytes_per_second, limits.float32_flops_per_second) > 0
    assert len(list(tmp_path.glob("home/*"))) == (limits is not None)


def test_nothing_is_measured_while_another_process_does(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with (
        machine_lock(tmp_path, wait=True) as held,
        pytest.raises(NotMeasurable, match="another process measures them now"),
    ):
        assert held
        result_of(measured_by_a_process())


def test_no_process_is_started_where_torch_is_not_installed(instead, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    instead("touch started")
    with pytest.raises(NeverMeasurable, match="PyTorch, whose products are measured, is not installed"):
        next(measured_by_a_process())


def test_no_process_is_started_where_it_would_take_the_engines_memory(instead, monkeypatch):
    monkeypatch.setattr(measuring_process, "available_memory_bytes", lambda: 600 * 2**20)
    instead("touch started")
    with pytest.raises(NotMeasurable, match="too little memory is free"):
        next(measured_by_a_process())


def test_the_process_of_an_engine_that_is_killed_ends_before_it_has_imported_anything(tmp_path):
    # given a parent that starts one whose imports take long, and is killed at once
    slow = tmp_path / "torch.py"
    slow.write_text("import time\ntime.sleep(1000)\n")
    program = (
        "from warmfleet_worker.roofline.measuring_process import measured_by_a_process as measured\n"
        "slices = measured()\nnext(slices)\nprint(slices.gi_frame.f_locals['process'].pid, flush=True)\n"
        "import time\ntime.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    with parent:
        pid = int(parent.stdout.readline())
        parent.kill()

    # then
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_closing_a_measurement_ends_its_process(instead, tmp_path):
    written = tmp_path / "pid"
    instead(f"echo $$ > {written}.new; mv {written}.new {written}; exec sleep 1000")
    slices = measured_by_a_process()
    while not written.exists():
        next(slices)

    slices.close()

    with pytest.raises(ProcessLookupError):
        os.kill(int(written.read_text()), 0)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo error: no room >&2; exit 1", "^no room$"),
        ("exit 3", "exit code 3"),
        ("echo {", "wrote something else"),
        ("exec sleep 1000", "takes longer than 1 s"),
    ],
)
def test_a_process_that_fails_gives_its_reason(instead, monkeypatch, script, reason):
    monkeypatch.setattr(measuring_process, "LONGEST_SECONDS", 1.0)
    instead(script)
    with pytest.raises(NotMeasurable, match=reason):
        result_of(measured_by_a_process())
