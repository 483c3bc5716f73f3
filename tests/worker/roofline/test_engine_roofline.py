"""The engine measures its machine only while neither has anything else to do."""

import pytest

from warmfleet_worker.engine.roofline import MachineLimits, ModelCost
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.roofline.engine_roofline import IDLE_SECONDS, MAX_FAILURES, EngineRoofline
from warmfleet_worker.roofline.limits_file import read_limits, write_limits
from warmfleet_worker.roofline.measurement import NeverMeasurable, NotMeasurable

LIMITS = MachineLimits(
    read_bytes_per_second=1e9,
    read_threads=2,
    buffer_bytes=2**31,
    bfloat16_flops_per_second=3e11,
    float32_flops_per_second=1e11,
)
COST = ModelCost(
    element_bytes=2, layer_weights=900_000, head_weights=100_000, kv_bytes_per_token=0, flops_per_pair=0
)
SLICES = 5
DECODE = StepShape.of_decodes([10])


class Fixture:
    """An engine's roofline over a clock, a load of the machine, and a measurement in `SLICES` slices."""

    def __init__(self, path):
        self.seconds = 0.0
        self.busy_jiffies = 0
        self.begun = self.ended = 0
        self.error = None
        self._path = path
        self.roofline = EngineRoofline(
            COST, path=path, begin=self._measure, clock=lambda: self.seconds, stat=self._stat
        )

    def _stat(self):
        idle = 200 * self.seconds - self.busy_jiffies
        return f"cpu  {self.busy_jiffies} 0 0 {int(idle)} 0 0 0 0 0 0\n"

    def _measure(self):
        self.begun += 1
        try:
            for _ in range(SLICES):
                if self.error:
                    raise self.error
                yield
        finally:
            self.ended += 1
        write_limits(self._path, LIMITS)
        return LIMITS

    def idle(self, seconds=IDLE_SECONDS):
        """Wait so long, as an engine does by heartbeats, then measure while there is more to measure."""
        self.roofline.advance()
        self.seconds += seconds
        slices = 0
        while self.roofline.advance():
            slices += 1
        return slices


@pytest.fixture
def path(tmp_path):
    return tmp_path / "limits.json"


def test_an_idle_engine_measures_once_and_its_steps_count_from_then_on(path):
    fixture = Fixture(path)
    fixture.roofline.observe(DECODE, 0.004)
    assert fixture.roofline.ratio("decode") == 0.0

    assert fixture.idle() == SLICES
    fixture.roofline.observe(DECODE, 0.004)

    assert fixture.roofline.ratio("decode") == pytest.approx(0.5)
    assert read_limits(path) == LIMITS
    assert fixture.idle() == 0
    assert fixture.begun == fixture.ended == 1


def test_limits_that_are_known_are_not_measured_again(path):
    write_limits(path, LIMITS)
    fixture = Fixture(path)

    fixture.roofline.observe(DECODE, 0.004)

    assert fixture.roofline.ratio("decode") == pytest.approx(0.5)
    assert fixture.idle() == 0


def test_limits_that_another_process_measured_meanwhile_are_taken(path):
    fixture = Fixture(path)
    fixture.roofline.advance()
    write_limits(path, LIMITS)

    fixture.idle()
    fixture.roofline.observe(DECODE, 0.002)

    assert fixture.begun == 0
    assert fixture.roofline.ratio("decode") == pytest.approx(1.0)


def test_nothing_is_measured_before_the_engine_was_idle_for_long(path):
    fixture = Fixture(path)

    assert fixture.idle(IDLE_SECONDS - 1) == 0
    fixture.roofline.interrupt()
    assert fixture.idle(IDLE_SECONDS - 1) == 0
    assert fixture.begun == 0


def test_nothing_is_measured_beside_other_work_on_the_machine(path):
    fixture = Fixture(path)
    fixture.roofline.advance()
    fixture.busy_jiffies = int(200 * IDLE_SECONDS / 2)

    assert fixture.idle() == 0
    assert fixture.begun == 0
    assert fixture.idle() == SLICES


def test_work_ends_a_measurement_at_once_and_the_next_idle_time_has_another(path):
    fixture = Fixture(path)
    fixture.roofline.advance()
    fixture.seconds += IDLE_SECONDS
    assert fixture.roofline.advance()

    fixture.roofline.interrupt()

    assert (fixture.begun, fixture.ended) == (1, 1)
    assert fixture.idle() == SLICES


def test_a_measurement_that_fails_ends_no_engine_and_is_tried_a_few_times(path):
    fixture = Fixture(path)
    fixture.error = NotMeasurable("no memory")

    for _ in range(MAX_FAILURES + 3):
        assert fixture.idle() == 0

    assert fixture.begun == MAX_FAILURES
    assert fixture.roofline.ratio("decode") == 0.0


def test_what_can_never_be_measured_here_is_tried_and_logged_once(path, capsys):
    fixture = Fixture(path)
    fixture.error = NeverMeasurable("PyTorch is not installed")

    for _ in range(MAX_FAILURES):
        assert fixture.idle() == 0

    assert fixture.begun == 1
    assert capsys.readouterr().out.count("PyTorch is not installed") == 1
    assert fixture.roofline.ratio("decode") == 0.0
