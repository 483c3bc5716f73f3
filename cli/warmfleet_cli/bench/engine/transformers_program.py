"""transformers as a process that is measured; on a CPU the faster of bfloat16 and float32 counts.

python -m warmfleet_cli.bench.engine.transformers_program MODEL
"""

import sys
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from warmfleet_cli.bench.engine.case_loop import CaseEngine, serve
from warmfleet_cli.bench.engine.cases import Case

_DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class TransformersEngine:
    """A model and a cache of the current case; the other dtype is loaded when it is asked for."""

    dtype: Final = "fastest"

    def __init__(self, model: Path) -> None:
        transformers.logging.set_verbosity_error()
        self.name = f"transformers {transformers.__version__}"
        self._path = model
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.variants = list(_DTYPES) if self._device.type == "cpu" else ["bfloat16"]
        self._models: dict[str, Any] = {}
        self._model: Any = None
        self._key: tuple[Case, str] | None = None
        self._cache: Any = None

    def prepare(self, case: Case, variant: str) -> None:
        """Load the model in this dtype, and make a cache of random keys and values."""
        if variant not in self._models:
            model = transformers.AutoModelForCausalLM.from_pretrained(str(self._path), dtype=_DTYPES[variant])
            self._models[variant] = model.eval().to(self._device)
        self._model = self._models[variant]
        if case.kind == "prefill" or self._key == (case, variant):
            return
        self._key, self._cache = (case, variant), None
        self._cache = self._filled_cache(case, _DTYPES[variant])

    @torch.inference_mode()
    def step(self, case: Case, index: int) -> list[int]:
        """One forward pass and the most likely token of each sequence."""
        vocabulary = self._model.config.vocab_size
        if case.kind == "prefill":
            prompt = [1 + (7 * token) % (vocabulary - 1) for token in range(case.context_tokens)]
            ids = torch.tensor([prompt], device=self._device)
            output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1)
        else:
            ids = torch.full((case.batch, 1), 1 + index % (vocabulary - 1), device=self._device)
            output = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True)
        tokens: list[int] = output.logits[:, -1].argmax(dim=-1).tolist()
        return tokens

    def reset(self, case: Case) -> None:
        """Cut the cache to the case's context."""
        if case.kind == "decode":
            self._cache.crop(case.context_tokens - self._cache.get_seq_length())  # a negative number

    def _filled_cache(self, case: Case, dtype: torch.dtype) -> Any:
        config = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        cache = transformers.DynamicCache()
        shape = (case.batch, config.num_key_value_heads, case.context_tokens, head_dim)
        for layer in range(config.num_hidden_layers):
            keys, values = (torch.randn(shape, dtype=dtype, device=self._device) for _ in range(2))
            cache.update(keys, values, layer)
        return cache


def main() -> int:
    def make() -> CaseEngine:
        return TransformersEngine(Path(sys.argv[1]))

    return serve(make)


if __name__ == "__main__":
    sys.exit(main())
