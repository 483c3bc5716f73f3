"""What the server sets of its engine process reaches the engine."""

from pathlib import Path

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.engine_process import build_engine
from warmfleet_worker.settings import parse_settings


def test_a_step_takes_the_target_time_of_the_flag(tmp_path: Path) -> None:
    folder = tiny_model_folder("llama", tmp_path)

    def batched_tokens(*flags: str) -> int:
        settings = parse_settings(
            ["--model", str(folder), "--uid", "u", "--kv-cache-bytes", "1048576", *flags], {}
        )
        engine, _, _ = build_engine(settings.engine, "ab" * 32)
        # On a machine that takes 1 ms for each token, a stream's among them.
        for size in (8, 16, 32, 64, 128, 128):
            engine._step_time.observe(StepShape(size, 1, size), 0.001 * (size + 1))
        return engine._step_time.prefill_tokens(StepShape.of_decodes([8]), 0, 1000)

    default = batched_tokens()

    assert 90 <= default <= 100
    assert batched_tokens("--target-step-milliseconds", "100") == default
    assert default / 2 - 5 <= batched_tokens("--target-step-milliseconds", "50") <= default / 2 + 5
