from warmfleet_cli.bench.machine import (
    idle_remark,
    others_remark,
    this_machine,
)


def test_a_busy_machine_is_called_out():
    assert "NOT idle" in idle_remark(0.4)
    assert "NOT" not in idle_remark(0.02)
    assert "NOT idle" in others_remark(0.4)
    assert "NOT" not in others_remark(0.02)


def test_the_hardware_line_names_torch_and_the_dtype():
    line = this_machine().line("Float32")

    assert "torch" in line
    assert "Float32" in line
    assert "cores" in line
