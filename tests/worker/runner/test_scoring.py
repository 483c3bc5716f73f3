"""Log probabilities from logits, against numpy and sorting."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_testing.engine.runner_driver import AllocatedMemory
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import Chunk, SampleRequest, ScoreRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.runner import scoring
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings
from warmfleet_worker.runner.scoring import score, score_rows

torch.set_num_threads(1)
MIB = 1024 * 1024


def naive_logprobs(row: np.ndarray) -> np.ndarray:
    relative = row.astype(np.float64) - row.max()
    with np.errstate(divide="ignore"):
        return relative - np.log(np.exp(relative).sum())


@settings(max_examples=150)
@given(data=st.data())
def test_values_are_log_softmax_and_ties_go_to_the_lowest_id(data):
    # given logits with many ties, some of them impossible
    vocab_size = data.draw(st.integers(1, 30), label="vocabulary")
    logit = st.integers(-6, 6).map(lambda halves: halves / 2) | st.just(-math.inf)
    row = st.lists(logit, min_size=vocab_size, max_size=vocab_size).filter(lambda row: max(row) > -math.inf)
    logits = np.array(data.draw(st.lists(row, min_size=1, max_size=5)), np.float32)
    rows = range(len(logits))
    own = [data.draw(st.integers(0, vocab_size - 1)) for _ in rows]
    tops = [data.draw(st.none() | st.integers(0, 20)) for _ in rows]

    # when
    scores = score_rows(logits, own, tops, np.asarray)

    # then
    for index in rows:
        expected = naive_logprobs(logits[index])
        if tops[index] is None:
            assert scores[index] is None
            continue
        (token,) = scores[index]
        best = sorted(range(vocab_size), key=lambda number: (-logits[index, number].item(), number))
        best = best[: tops[index]]
        assert token.logprob == pytest.approx(expected[own[index]], abs=1e-5)
        assert list(token.top_token_ids) == best
        assert list(token.top_logprobs) == pytest.approx(list(expected[best]), abs=1e-5)


def test_a_row_without_a_token_has_none():
    assert score_rows(np.zeros((2, 4), np.float32), [None, 1], [3, 3], np.asarray)[0] is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_equal_pytorchs_log_softmax_in_float64(dtype):
    logits = (8 * np.random.default_rng(1).standard_normal((3, 150_000))).astype(dtype)

    values = [token.logprob for token in score([logits], [5, 6, 7], 0)]

    expected = torch.from_numpy(logits).double().log_softmax(dim=-1)[range(3), [5, 6, 7]]
    assert values == pytest.approx(expected.tolist(), abs=2e-6 * 8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_ends_no_step(bad):
    logits = np.zeros((3, 100), np.float32)
    logits[1] = bad
    logits[2, 7] = bad

    tokens = list(score([logits], [5, 5, 5], 20))

    assert list(tokens[0].top_token_ids) == list(range(20))
    assert len(tokens) == 3


def test_slices_change_nothing(monkeypatch):
    logits = np.random.default_rng(2).standard_normal((50, 64)).astype(np.float32)
    own = list(range(50))
    whole = score([logits], own, 5)

    monkeypatch.setattr(scoring, "SLICE_VALUES", 64 * 7)
    slices = list(scoring.row_slices(50, 64))

    assert [part.stop - part.start for part in slices] == [7] * 7 + [1]
    assert score((logits[part] for part in slices), own, 5) == whole


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tiny_model_folder("llama", tmp_path_factory.mktemp("scored"), vocab_size=65536)
    return load_runner(folder, RunnerSettings(kv_cache_bytes=2 * MIB, dtype="Float32"))


def chunk_of(tokens, first=0, *, score=None, sequence_id=1, blocks=range(64), **parameters):
    sampling = SamplingParameters(temperature=0.0, **parameters)
    return Chunk(sequence_id, tokens, first, tuple(blocks), SampleRequest(sampling, 0), score)


def test_a_long_prompt_is_scored_without_its_logits_ever_being_whole(runner):
    # given a prompt whose logits would take 250 MiB
    prompt = [(31 * index) % 8192 for index in range(1000)]
    chunk = chunk_of(prompt, score=ScoreRequest(0, prompt[1:], 3))

    # when
    with AllocatedMemory() as allocations:
        (result,) = runner.execute(StepBatch((chunk,))).chunks

    # then
    assert result.prompt_logprobs.tokens == 999
    # A slice, what is computed from it, and what of it is sorted.
    assert 0 < allocations.most_array_bytes <= 3 * scoring.SLICE_VALUES * 4


def test_log_probabilities_change_no_other_token_and_cost_no_row_of_the_head_without_a_request(
    runner, monkeypatch
):
    # given a batch in which one row asks, then none
    heads: list[int] = []
    model = type(runner.step_model)
    logits, begin = model.logits, model.begin

    def begin_counted(own, chunks, wanted, requests):
        heads.extend([len(wanted)] if requests else [])
        return begin(own, chunks, wanted, requests)

    monkeypatch.setattr(model, "begin", begin_counted)
    monkeypatch.setattr(
        model, "logits", lambda own, hidden: heads.append(hidden.shape[0]) or logits(own, hidden)
    )
    prompts = [[5 * number + index for index in range(20)] for number in range(4)]

    def step(asking: int | None) -> list[int]:
        heads.clear()
        chunks = []
        for number, prompt in enumerate(prompts):
            asks = {"logprobs": 20, "prompt_logprobs": 20} if number == asking else {}
            score = ScoreRequest(0, prompt[1:], 20) if asks else None
            blocks = range(16 * number, 16 * number + 16)
            chunks.append(chunk_of(prompt, score=score, sequence_id=number, blocks=blocks, **asks))
        results = runner.execute(StepBatch(tuple(chunks))).chunks
        assert [result.logprobs is not None for result in results] == [n == asking for n in range(4)]
        return [result.token_ids for result in results]

    # when / then
    quiet = step(None)
    assert heads == [4]
    assert step(2) == quiet
    assert heads == [4, 19]
