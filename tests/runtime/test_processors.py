from warmfleet_runtime.processors import busy_ratio, cpu_model, isa_flags

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
