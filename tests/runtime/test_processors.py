import subprocess
import sys
import time

import pytest

from warmfleet_runtime import processors
from warmfleet_runtime.processors import CpuUsage, busy_cpu_seconds, busy_ratio, cpu_model, isa_flags

CPU_INFORMATION = """processor\t: 0
model name\t: Example CPU 9000
flags\t\t: fpu sse avx2 avx512f amx_bf16

processor\t: 1
"""


def test_the_cpu_line_names_the_model_and_the_vector_extensions_that_matter():
    assert cpu_model(CPU_INFORMATION) == "Example CPU 9000"
    assert isa_flags(CPU_INFORMATION) == ("avx2", "avx512f", "amx_bf16")


def test_time_waiting_for_disk_is_not_busy_time():
    before = "cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 ..."
    after = "cpu  150 0 0 180 70 0 0 0 0 0\ncpu0 ..."

    assert busy_ratio(before, after) == 50 / 200


def test_two_equal_readings_count_as_idle():
    assert busy_ratio("cpu  1 1 1 1 1 1 1 1 0 0\n", "cpu  1 1 1 1 1 1 1 1 0 0\n") == 0


def test_what_a_process_uses_is_part_of_what_the_machine_does():
    assert busy_cpu_seconds() > time.process_time()


def test_what_this_process_and_its_children_use_is_not_of_others(monkeypatch):
    busy = [100.0]
    monkeypatch.setattr(processors, "busy_cpu_seconds", lambda: busy[0])
    monkeypatch.setattr(processors.os, "cpu_count", lambda: 1)
    usage = CpuUsage()
    own = time.process_time()
    subprocess.run([sys.executable, "-c", "sum(range(2_000_000))"], check=True)
    own = time.process_time() - own

    busy[0] += own
    assert usage.others_ratio() == 0.0
    busy[0] += 1000.0
    assert usage.others_ratio() > 0.1


def test_a_usage_of_no_time_is_none(monkeypatch):
    monkeypatch.setattr(processors.time, "monotonic", lambda: 1.0)

    assert CpuUsage().others_ratio() == pytest.approx(0.0)
