"""The least time of a step against the time that it took."""

import math

import pytest

from warmfleet_worker.engine.roofline import MachineLimits, ModelCost, StepRoofline, least_seconds
from warmfleet_worker.engine.step_time import StepShape

LIMITS = MachineLimits(
    read_bytes_per_second=1e9,
    read_threads=2,
    buffer_bytes=2**31,
    bfloat16_flops_per_second=2e11,
    float32_flops_per_second=1e11,
)
COST = ModelCost(
    element_bytes=2, layer_weights=900_000, head_weights=100_000, kv_bytes_per_token=1_000, flops_per_pair=8
)


def test_a_decode_reads_every_weight_and_the_context_of_every_sequence():
    shape = StepShape.of_decodes([99, 299])

    assert COST.read_bytes(shape) == 2 * 1_000_000 + 400 * 1_000
    assert least_seconds(COST, LIMITS, shape) == pytest.approx(0.0024)


def test_a_prefill_is_limited_by_its_products_and_reads_no_head():
    shape = StepShape(0, 0, 0).with_prefill(0, 1000)

    assert COST.read_bytes(shape) == 2 * 900_000 + 1000 * 1_000
    assert COST.flops(shape) == 2 * 900_000 * 1000 + 8 * 1000 * 1001 // 2
    assert least_seconds(COST, LIMITS, shape) == pytest.approx(1_804_004_000 / 2e11)


def test_few_tokens_of_prefill_are_limited_by_the_reading_of_weights():
    shape = StepShape(0, 0, 0).with_prefill(0, 2)

    assert least_seconds(COST, LIMITS, shape) == pytest.approx(COST.read_bytes(shape) / 1e9)


def test_a_window_limits_what_a_token_reads():
    windowed = ModelCost(
        element_bytes=2,
        layer_weights=0,
        head_weights=0,
        kv_bytes_per_token=10,
        flops_per_pair=0,
        window_tokens=64,
    )

    assert windowed.read_bytes(StepShape.of_decodes([999, 999])) == 2 * 64 * 10


def test_weights_of_two_bytes_may_be_multiplied_as_float32():
    slow = MachineLimits(
        read_bytes_per_second=1.0,
        read_threads=1,
        buffer_bytes=1,
        bfloat16_flops_per_second=1.0,
        float32_flops_per_second=8.0,
    )

    assert [slow.flops_per_second(size) for size in (2, 4, 8)] == [8.0, 8.0, 4.0]


def test_the_ratio_of_a_phase_is_of_its_own_steps_and_fades():
    meter = StepRoofline(COST, LIMITS)
    decode, prefill = StepShape.of_decodes([99]), StepShape(0, 0, 0).with_prefill(0, 1000)
    assert meter.ratio("decode") == meter.ratio("prefill") == 0.0

    for _ in range(1000):
        meter.observe(decode, 4 * least_seconds(COST, LIMITS, decode))
    for _ in range(200):
        meter.observe(decode, 2 * least_seconds(COST, LIMITS, decode))
    meter.observe(prefill, 10 * least_seconds(COST, LIMITS, prefill))

    assert 0.4 < meter.ratio("decode") < 0.5
    assert meter.ratio("prefill") == pytest.approx(0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_duration_does_not_count(seconds):
    meter = StepRoofline(COST, LIMITS)

    meter.observe(StepShape.of_decodes([1]), seconds)

    assert meter.ratio("decode") == 0.0
