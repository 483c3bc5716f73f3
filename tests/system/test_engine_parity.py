"""The same greedy tokens, however they were computed.

For each family with seeded tiny weights, in bfloat16, float32 and float64: 500 tokens by full recompute, from
a cold cache, from a prefix hit, in chunks, in a batch of other sequences and after preemption. Each variant
proves by a counter that it happened. Of the real model 500 full recomputes would take minutes: one pass of
transformers without a cache judges all 500 tokens, and our own recompute every fiftieth.
On a GPU, where there is one, the tiny models run the same tests.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.engine.engine_runs import EngineRun, full_recompute, recomputed_token
from warmfleet_testing.engine.runner_driver import load_runner_on
from warmfleet_testing.engine.tiny_models import (
    DECISIVE_MARGIN,
    DECISIVE_SEEDS,
    TINY_FAMILIES,
    decisive_prompt,
    tiny_model_folder,
)
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.runner.runner import ModelRunner
from warmfleet_worker.runner.runner_settings import RunnerSettings

transformers.utils.logging.disable_progress_bar()

OUTPUT_TOKENS = 500
BLOCK_TOKENS = 16
PROMPT_TOKENS = 69
SHARED_TOKENS = 64
RECOMPUTED_EVERY_TOKENS = 50

LETTER = """\
Dear Maria, I am writing to you from the train between the mountains and the sea. The journey has been long, \
but the view from the window is worth every hour of it. This morning we passed a lake so still that the \
clouds lay in it, and a man in a red boat who waved at us. Tomorrow we will arrive and"""

ELEMENT_BYTES = {"BFloat16": 2, "Float32": 4, "Float64": 8}
IN_BFLOAT16 = [(family, "BFloat16", "cpu") for family in TINY_FAMILIES]
"""On a GPU PyTorch promises no equal bits in it."""
IN_OTHERS = [
    pytest.param(family, dtype, device, marks=marks)
    for device, marks in (("cpu", ()), ("cuda", pytest.mark.gpu))
    for dtype in ("Float32", "Float64")
    for family in TINY_FAMILIES
]


class Subject:
    """One model, its reference answer once it is known, and runners with as many blocks as a test wants."""

    def __init__(self, folder: Path, dtype: str, prompt: list[int], device: str = "cpu") -> None:
        self.folder = folder
        self.device = device
        self.dtype = dtype
        self.caches_prefixes = load_model_config(folder).window_tokens == 0
        vocabulary = load_model_config(folder).vocab_size
        draw = random.Random(8)
        self.prompt = prompt
        self.others = [
            [draw.randrange(vocabulary) for _ in range(length)] for length in (15, 16, 17, 33, 130)
        ]
        self.sibling = self.prompt[:SHARED_TOKENS] + [draw.randrange(vocabulary) for _ in range(9)]
        self.runner = self.new_runner(blocks=160)
        self.expected: list[int] = []

    def new_runner(self, *, blocks: int) -> ModelRunner:
        settings = RunnerSettings(
            kv_cache_bytes=blocks * self._block_bytes(),
            block_size_tokens=BLOCK_TOKENS,
            dtype=self.dtype,
            threads=1,  # the other test processes have the other cores
            poison=True,
        )
        return load_runner_on(self.device, self.folder, settings)

    def engine(self, *, max_batched_tokens: int = 2048) -> EngineRun:
        """An engine with an empty cache; the weights are loaded once."""
        return EngineRun(self.runner, max_batched_tokens=max_batched_tokens)

    def _block_bytes(self) -> int:
        config = load_model_config(self.folder)
        size = ELEMENT_BYTES[self.dtype]
        return 2 * config.layers * config.kv_heads * config.head_dim * size * BLOCK_TOKENS


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Subject]:
    made: dict[tuple[str, str, str], Subject] = {}

    def made_once(family: str, dtype: str, device: str) -> Subject:
        key = (family, dtype, device)
        if key not in made:
            folder = tiny_model_folder(family, tmp_path_factory.mktemp(family), seed=DECISIVE_SEEDS[family])
            subject = made[key] = Subject(folder, dtype, decisive_prompt(), device)
            subject.expected = full_recompute(subject.runner, subject.prompt, OUTPUT_TOKENS)
        return made[key]

    return made_once


@pytest.mark.parametrize(("family", "dtype", "device"), [*IN_BFLOAT16, *IN_OTHERS])
class TestATinyModelOfEveryFamily:
    def test_decodes_at_least_a_hundred_distinct_tokens(self, tiny, family, dtype, device) -> None:
        subject = tiny(family, dtype, device)
        assert len(subject.expected) == OUTPUT_TOKENS
        assert len(set(subject.expected)) >= 100

    def test_answers_the_same_from_a_cold_cache(self, tiny, family, dtype, device) -> None:
        subject = tiny(family, dtype, device)
        assert cold_answer(subject) == subject.expected

    def test_answers_the_same_from_a_prefix_hit(self, tiny, family, dtype, device) -> None:
        check_prefix_hit(tiny(family, dtype, device))

    @pytest.mark.parametrize("budget", [1, 15, 16, 17, 64])
    def test_answers_the_same_in_chunks(self, tiny, family, dtype, device, budget) -> None:
        check_chunked(tiny(family, dtype, device), budget)

    def test_answers_the_same_in_a_batch_of_others(self, tiny, family, dtype, device) -> None:
        check_batched(tiny(family, dtype, device))

    def test_answers_the_same_after_preemption(self, tiny, family, dtype, device) -> None:
        check_preempted(tiny(family, dtype, device))


# Bfloat16 rounds its way to other tokens than float64: there the oracle is the full recompute alone.
@pytest.mark.parametrize(("family", "dtype", "device"), IN_OTHERS)
def test_a_tiny_model_answers_as_transformers_would_and_never_by_a_near_tie(
    tiny, family, dtype, device
) -> None:
    subject = tiny(family, dtype, device)
    choices, margin = transformers_choices(subject, torch.float64)
    assert choices == subject.expected
    assert margin > DECISIVE_MARGIN


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_the_real_model_answers_the_same_however_it_is_computed() -> None:
    folder = pulled_catalog_model()
    encoder = PromptEncoder.from_assets(load_prompt_assets(folder))
    subject = Subject(folder, "Float32", encoder.encode_text(LETTER)[:PROMPT_TOKENS])
    subject.expected = cold_answer(subject)
    choices, margin = transformers_choices(subject, torch.float32)
    assert len(subject.expected) == OUTPUT_TOKENS
    assert choices == subject.expected
    assert margin > DECISIVE_MARGIN
    some = range(0, OUTPUT_TOKENS, RECOMPUTED_EVERY_TOKENS)
    recomputed = [recomputed_token(subject.runner, subject.prompt, subject.expected[:end]) for end in some]
    assert recomputed == [subject.expected[end] for end in some]
    check_prefix_hit(subject)
    check_chunked(subject, 17)
    check_batched(subject)


def transformers_choices(subject: Subject, dtype: torch.dtype) -> tuple[list[int], float]:
    """What transformers would choose after every prefix of our answer, and its smallest lead."""
    oracle = AutoModelForCausalLM.from_pretrained(subject.folder, dtype=dtype)
    with torch.inference_mode():
        logits = oracle(torch.tensor([subject.prompt + subject.expected])).logits[0]
    choices = logits[PROMPT_TOKENS - 1 : -1].topk(2)
    margins = choices.values[:, 0] - choices.values[:, 1]
    return choices.indices[:, 0].tolist(), margins.min().item()


def cold_answer(subject: Subject) -> list[int]:
    (outcome,), counters = subject.engine().finish([subject.prompt], OUTPUT_TOKENS)

    assert outcome.cached_tokens == 0
    assert counters.computed_tokens == PROMPT_TOKENS + OUTPUT_TOKENS - 1
    assert counters.chunk_lengths == [PROMPT_TOKENS] + [1] * (OUTPUT_TOKENS - 1)
    return outcome.token_ids


def check_prefix_hit(subject: Subject) -> None:
    # Given a sibling that has left its prefix in the cache, and others that have taken and freed blocks
    run = subject.engine()
    run.finish([subject.sibling, *subject.others[:2]], 20)

    # When the prompt comes, twice: its own answer's blocks are warm the second time
    (first,), counters = run.finish([subject.prompt], OUTPUT_TOKENS)
    (second,), _ = run.finish([subject.prompt + subject.expected[:100]], OUTPUT_TOKENS - 100)

    # Then only what the cache lacks was computed, and the tokens are the same
    cached = SHARED_TOKENS if subject.caches_prefixes else 0
    warm = (PROMPT_TOKENS + 100 - 1) // BLOCK_TOKENS * BLOCK_TOKENS if subject.caches_prefixes else 0
    assert first.cached_tokens == cached
    assert counters.computed_tokens == PROMPT_TOKENS + OUTPUT_TOKENS - 1 - cached
    assert first.token_ids == subject.expected
    assert second.cached_tokens == warm
    assert second.token_ids == subject.expected[100:]


def check_chunked(subject: Subject, budget_tokens: int) -> None:
    run = subject.engine(max_batched_tokens=budget_tokens)
    (outcome,), counters = run.finish([subject.prompt], OUTPUT_TOKENS)

    whole, rest = divmod(PROMPT_TOKENS, budget_tokens)
    prefill = [budget_tokens] * whole + ([rest] if rest else [])
    assert outcome.token_ids == subject.expected
    assert counters.chunk_lengths == prefill + [1] * (OUTPUT_TOKENS - 1)


def check_batched(subject: Subject) -> None:
    run = subject.engine(max_batched_tokens=24)
    prompts = [*subject.others[:2], subject.prompt, *subject.others[2:]]
    outcomes, counters = run.finish(prompts, OUTPUT_TOKENS)

    assert outcomes[2].token_ids == subject.expected
    assert counters.largest_batch == len(prompts)
    assert counters.mixed_steps > 0


def check_preempted(subject: Subject) -> None:
    # Given a pool that holds any one of three sequences to its end, but not all together
    runner = subject.new_runner(blocks=60)
    run = EngineRun(runner)

    # When all three run to the same length
    prompts = [subject.others[3], subject.prompt, subject.others[2]]
    outcomes, counters = run.finish(prompts, OUTPUT_TOKENS)

    # Then some gave their blocks back on the way, and the answers do not show it
    assert counters.preempted_sequences > 0
    assert outcomes[1].token_ids == subject.expected
    assert all(len(outcome.token_ids) == OUTPUT_TOKENS for outcome in outcomes)
