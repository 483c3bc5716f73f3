"""An engine has the limits of its machine measured by a process, and ends that when a request comes."""

import os
import stat

import pytest

from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.roofline import measuring_process
from warmfleet_worker.roofline.limits_file import machine_lock
from warmfleet_worker.roofline.measurement import NotMeasurable
from warmfleet_worker.roofline.measuring_process import measured_by_a_process


@pytest.fixture
def instead(tmp_path, monkeypatch):
    """Run a shell script instead of Python with our module; its file."""
    script = tmp_path / "python"
    monkeypatch.setattr(measuring_process.sys, "executable", str(script))

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


def test_limits_are_measured_and_kept_or_other_work_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    limits, reason = None, ""
    try:
        limits = result_of(measured_by_a_process())
    except NotMeasurable as error:
        reason = str(error)

    if limits is None:  # other tests run meanwhile
        assert "other processes used" in reason
    else:
        assert min(limits.read_bytes_per_second, limits.float32_flops_per_second) > 0
    assert len(list(tmp_path.iterdir())) == (limits is not None)


def test_nothing_is_measured_while_another_process_does(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with (
        machine_lock(tmp_path, wait=True) as held,
        pytest.raises(NotMeasurable, match="another process measures them now"),
    ):
        assert held
        result_of(measured_by_a_process())


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
    [("echo no room >&2; exit 1", "no room"), ("exit 3", "exit code 3"), ("echo {", "wrote something else")],
)
def test_a_process_that_fails_gives_its_reason(instead, script, reason):
    instead(script)
    with pytest.raises(NotMeasurable, match=reason):
        result_of(measured_by_a_process())
