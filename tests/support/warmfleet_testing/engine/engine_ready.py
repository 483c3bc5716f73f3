"""The message of an engine of the tiny model that has loaded, for tests without an engine process."""

from typing import Final

from warmfleet_worker.engine.messages import EngineReady

READY: Final = EngineReady(
    epoch="life-1",
    identity=bytes(16),
    block_size_tokens=16,
    window_tokens=0,
    total_blocks=1000,
    kv_bytes_per_token=512,
    max_model_length_tokens=8192,
    max_batched_tokens=0,
    max_running_sequences=8,
    dtype="Float32",
    device="cpu",
    vocabulary_size=1024,
)
