"""On every path through the engine's runner a token is the same.

The oracle of the logits is transformers; the oracle of every reuse of KV is a full recompute without any.
Families x (GQA ratio, tied embeddings, RoPE scaling, window) for the logits; families x (one-shot,
chunked, batched) over 500 greedy tokens in float32, and once in float64, for the ids. With `-m gpu` all of it
on a GPU.
"""

import random

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmfleet_testing.engine.runner_driver import DEVICES, RunnerDriver, load_runner_on
from warmfleet_testing.engine.tiny_models import (
    DECISIVE_SEEDS,
    LLAMA3_ROPE,
    TINY_FAMILIES,
    decisive_prompt,
    tiny_model_folder,
)
from warmfleet_testing.exact.model_steps import head_logits, hidden_rows
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.runner.runner import ModelRunner
from warmfleet_worker.runner.runner_settings import RunnerSettings

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

PROMPT_TOKENS = 69
OUTPUT_TOKENS = 500
BLOCK = 16
MODELS = [*((family, "Float32") for family in TINY_FAMILIES), ("llama", "Float64")]
CASES = [
    *((*model, "cpu") for model in MODELS),
    *(pytest.param((*model, "cuda"), marks=pytest.mark.gpu) for model in MODELS),
]

HEADS = {
    "MHA": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "GQA 2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "GQA 4": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "GQA 7": {"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 112, "head_dim": 8},
    "MQA": {"num_attention_heads": 8, "num_key_value_heads": 1},
}
FEATURES = {
    "tied": {"tie_word_embeddings": True},
    "llama3 rope": {"rope_parameters": dict(LLAMA3_ROPE)},
    "old rope names": {"rope_parameters": None, "rope_theta": 500.0},
}
OF_ONE_FAMILY = [
    ("llama", {"attention_bias": True}),
    ("llama", {"head_dim": None, "hidden_size": 96}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": BLOCK + 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
]


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        *[pytest.param(f, o, id=f"{f} {name}") for f in TINY_FAMILIES for name, o in HEADS.items()],
        *[pytest.param(f, o, id=f"{f} {name}") for f in TINY_FAMILIES for name, o in FEATURES.items()],
        *[pytest.param(f, o, id=f"{f} {o}") for f, o in OF_ONE_FAMILY],
    ],
)
@pytest.mark.parametrize("device", DEVICES)
def test_logits_agree_with_transformers(family, overrides, device, tmp_path):
    # given
    folder = tiny_model_folder(family, tmp_path, **overrides)
    runner = _runner(folder, device=device)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    token_ids = _prompt(130)

    # when the runner's parts compute it in three chunks and transformers at once
    ours = _logits(runner, token_ids, chunk_tokens=(50, 1, 79))
    with torch.inference_mode():
        theirs = oracle(torch.tensor([token_ids])).logits[0]

    # then
    assert theirs.abs().max() > 4, "the weights are too small to distinguish right from wrong"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def case(request, tmp_path_factory):
    """A tiny model, its prompt, and 500 greedy tokens of which each was computed without any KV reuse."""
    family, dtype, device = request.param
    folder = tiny_model_folder(family, tmp_path_factory.mktemp(family), seed=DECISIVE_SEEDS[family])
    runner = _runner(folder, dtype, device)
    driver = RunnerDriver(runner)
    prompt = decisive_prompt()
    token_ids = list(prompt)
    for _ in range(OUTPUT_TOKENS):
        sequence = driver.sequence(token_ids)
        driver.step([(sequence, len(token_ids))])
        token_ids = sequence.token_ids
        driver.release(sequence)
    recomputed = sum(range(PROMPT_TOKENS, PROMPT_TOKENS + OUTPUT_TOKENS))
    assert driver.computed_tokens == recomputed, "this is what caching saves"
    return runner, prompt, token_ids[PROMPT_TOKENS:]


def test_the_greedy_answer_wanders(case):
    _, _, expected = case
    assert len(expected) == OUTPUT_TOKENS
    assert len(set(expected)) >= 100


def test_one_prefill_and_decode_equal_full_recompute(case):
    runner, prompt, expected = case
    driver = RunnerDriver(runner, seed=1)

    assert driver.generate(prompt, OUTPUT_TOKENS) == expected
    assert driver.computed_tokens == PROMPT_TOKENS + OUTPUT_TOKENS - 1
    assert driver.executed_steps == OUTPUT_TOKENS


@pytest.mark.parametrize("split", [(1,) * PROMPT_TOKENS, (15, 1, 53), (16, 16, 37), (17, 30, 1, 21)], ids=len)
def test_a_chunked_prefill_equals_full_recompute(case, split):
    runner, prompt, expected = case
    driver = RunnerDriver(runner, seed=2)

    answer = driver.generate(prompt, OUTPUT_TOKENS, prompt_chunks_tokens=split)

    assert answer == expected
    assert driver.executed_chunks == len(split) + OUTPUT_TOKENS - 1


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_split_of_the_whole_text_predicts_the_same_tokens(case, data):
    # given prompt and answer, split anywhere: at block edges +-1, into single tokens, at random
    runner, prompt, expected = case
    text = [*prompt, *expected]
    edges = st.integers(1, len(text) // BLOCK).flatmap(lambda n: st.integers(n * BLOCK - 1, n * BLOCK + 1))
    cuts = data.draw(st.sets(edges | st.integers(1, len(text) - 1), min_size=1, max_size=40))
    ends = sorted({*(cut for cut in cuts if cut < len(text)), len(text) - 1})
    driver = RunnerDriver(runner, seed=3)

    # when each chunk is computed, and its last token asked for the next one
    sequence = driver.sequence([])
    predicted = {}
    for end in ends:
        sequence.token_ids = text[:end]
        driver.step([(sequence, end - sequence.computed_tokens)])
        predicted[end] = sequence.token_ids[end]
    driver.release(sequence)

    # then
    assert driver.executed_chunks == len(ends)
    assert driver.computed_tokens == len(text) - 1
    answers = {end: token for end, token in predicted.items() if end >= PROMPT_TOKENS}
    assert answers == {end: text[end] for end in answers}


def test_other_sequences_in_the_batch_change_nothing(case):
    # given the sequence and five others that come, prefill in chunks, decode and leave at different times
    runner, prompt, expected = case
    driver = RunnerDriver(runner, seed=4)
    chooser = random.Random(5)
    sequence = driver.sequence(prompt)
    others = [driver.sequence(_prompt(length, start=length)) for length in (1, 15, 16, 17, 90)]

    # when
    while len(sequence.output_ids) < OUTPUT_TOKENS:
        work = [
            (one, chooser.randint(1, left) if left > 1 else 1)
            for one in [*others[:2], sequence, *others[2:]]
            if (left := len(one.token_ids) - one.computed_tokens)
            and (one is sequence or chooser.random() < 0.7)
        ]
        driver.step(work)
        for index, other in enumerate(others):
            if len(other.output_ids) >= 60:
                driver.release(other)
                others[index] = driver.sequence(other.token_ids[:30])
    driver.release(sequence)
    for other in others:
        driver.release(other)

    # then
    assert sequence.output_ids == expected
    assert driver.largest_batch_chunks == 6
    assert driver.mixed_steps > 50


def test_a_batch_gives_every_sequence_its_own_answer(case):
    # given eight prompts and their answers alone
    runner, _, _ = case
    driver = RunnerDriver(runner, seed=6)
    prompts = [_prompt(length, start=100 + length) for length in (1, 2, 15, 16, 17, 31, 33, 64)]
    alone = [driver.generate(prompt, 40) for prompt in prompts]

    # when all decode together, after one step that prefills them all
    sequences = [driver.sequence(prompt) for prompt in prompts]
    driver.step([(one, len(one.token_ids)) for one in sequences])
    while len(sequences[0].output_ids) < 40:
        driver.step([(one, 1) for one in sequences])

    # then
    assert [one.output_ids for one in sequences] == alone
    assert driver.largest_batch_chunks == len(prompts)
    for one in sequences:
        driver.release(one)


def _runner(folder, dtype="Float32", device="cpu") -> ModelRunner:
    settings_of_test = RunnerSettings(
        kv_cache_bytes=8 * 1024 * 1024, block_size_tokens=BLOCK, dtype=dtype, poison=True
    )
    return load_runner_on(device, folder, settings_of_test)


def _prompt(tokens, start=11):
    return [(start + 37 * index) % 512 for index in range(tokens)]


def _logits(runner, token_ids, chunk_tokens):
    """Logits of every position, from the parts that `execute` joins."""
    blocks = list(range(runner.total_blocks))
    random.Random(7).shuffle(blocks)
    parts, first = [], 0
    with torch.inference_mode():
        for tokens in chunk_tokens:
            chunk = Chunk(1, token_ids[first : first + tokens], first, blocks, None)
            hidden, _ = hidden_rows(runner.step_model, [chunk], range(tokens))
            parts.append(head_logits(runner.step_model, hidden).cpu())
            first += tokens
    return torch.cat(parts)
