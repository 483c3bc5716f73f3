"""An engine's settings, the same in a fleet and without a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmfleet_worker.settings import EngineSettings, EngineType

SEATS: Final = 8
CONTEXT_TOKENS: Final = 2048
MODEL: Final = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine type."""

    engine_type: EngineType
    block_size_tokens: int
    cache_bytes: int

    def settings(self, model: str, *, threads: int = 0) -> EngineSettings:
        """Of the engine without a server; `threads` 0: as many as it chooses."""
        return EngineSettings(
            model_path=model,
            block_size_tokens=self.block_size_tokens,
            kv_cache_bytes=self.cache_bytes,
            max_model_length_tokens=CONTEXT_TOKENS,
            max_running_sequences=SEATS,
            threads=threads,
        )

    def manifest(self, model_path: Path) -> dict[str, Any]:
        """Of a fleet of one worker."""
        return {
            "apiVersion": "warmfleet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": f"{self.engine_type.lower()}-shares"},
            "spec": {
                "model": {"servedNames": [MODEL], "source": {"localPath": {"path": str(model_path)}}},
                "engine": {
                    "type": self.engine_type,
                    "maxModelLengthTokens": CONTEXT_TOKENS,
                    "maxRunningSequences": SEATS,
                },
                "kvCache": {
                    "size": f"{self.cache_bytes // 2**20}Mi",
                    "blockSizeTokens": self.block_size_tokens,
                },
                "replicas": 1,
            },
        }


WARMFLEET: Final = Setup("Warmfleet", block_size_tokens=16, cache_bytes=2**29)
VLLM: Final = Setup("VLLM", block_size_tokens=32, cache_bytes=2**28)
"""Its attention on a CPU takes multiples of 32."""
