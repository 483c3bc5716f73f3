import time

from warmfleet_cli.bench.machine import (
    busy_cpu_seconds,
    idle_remark,
    this_machine,
)


def test_what_a_process_uses_is_part_of_what_the_machine_does():
    assert busy_cpu_seconds() > time.process_time()


def test_a_busy_machine_is_called_out():
    assert "NOT idle" in idle_remark(0.4)
    assert "NOT" not in idle_remark(0.02)


def test_the_hardware_line_names_torch_and_the_dtype():
    line = this_machine().line("Float32")

    assert "torch" in line
    assert "Float32" in line
    assert "cores" in line
