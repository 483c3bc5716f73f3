"""The sampler against naive code: Philox word by word, filters by sorting, the draw by its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_testing.engine.naive_sampler import naive_noise, naive_philox, naive_sample, token_counts
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import SampleRequest
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.native.library import native_library
from warmfleet_worker.runner.penalties import adjusted
from warmfleet_worker.runner.philox import philox_4x32
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings
from warmfleet_worker.runner.sampler import choose, gumbel_noise

torch.set_num_threads(1)

WORDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", params=["PyTorch", *(level.option for level in native_library().levels())])
def sample(request, tmp_path_factory):
    """All samplers, behind the penalties that they share."""
    if request.param == "PyTorch":
        return lambda logits, requests: choose(torch.from_numpy(adjusted(logits.numpy(), requests)), requests)
    folder = tiny_model_folder("llama", tmp_path_factory.mktemp("tiny"), vocab_size=2500)
    settings = RunnerSettings(kv_cache_bytes=2**20, cpu_kernels=request.param)
    model = load_runner(folder, settings).step_model
    assert model.exact
    return lambda logits, requests: model.choose(adjusted(logits.numpy(), requests), requests)


def _request(output_index=0, known_token_ids=(), **parameters):
    return SampleRequest(
        SamplingParameters(**{"temperature": 1.0, **parameters}),
        output_index,
        token_counts(known_token_ids, output_index) if known_token_ids else None,
    )


def _requests():
    return st.builds(
        _request,
        output_index=st.integers(0, 5000),
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 2, 7, 1000]),
        # Not the sum of a few equal shares: there rounding, not the rule, would decide.
        top_p=st.sampled_from([1.0, 0.9137, 0.4823, 0.0519]),
        min_p=st.sampled_from([0.0, 0.0731, 0.6177]),
        seed=st.integers(0, 2**64 - 1),
    )


@pytest.mark.parametrize("filters", [{"top_k": 1}, {}, {"top_k": 3, "min_p": 0.1}])
def test_a_temperature_that_is_0_in_float32_is_greedy(sample, filters):
    logits = torch.arange(2500, dtype=torch.float32)[None]

    assert sample(logits, [_request(temperature=1e-46, top_p=0.9, **filters)]) == [2499]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_leaves_its_neighbours_their_tokens(sample, value):
    logits = torch.zeros(3, 2500)
    logits[:, 7] = 90.0
    logits[1, 9] = value

    assert sample(logits, [_request(top_k=5, top_p=0.9)] * 3) == [7, None, 7]


# The published vectors of Random123 (kat_vectors, philox 4x32 10).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    assert _torch_philox(_words(counter), _words(key)) == _words(expected)
    assert naive_philox(_words(counter), _words(key)) == _words(expected)


@given(counter=st.tuples(WORDS, WORDS, WORDS, WORDS), key=st.tuples(WORDS, WORDS))
def test_philox_equals_its_definition_everywhere(counter, key):
    assert _torch_philox(list(counter), list(key)) == naive_philox(list(counter), list(key))


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**31), vocab_size=st.integers(1, 23))
def test_noise_is_a_function_of_seed_output_index_and_token(seed, index, vocab_size):
    noise = gumbel_noise([1, seed], [0, index], vocab_size)[1]

    np.testing.assert_allclose(noise.numpy(), naive_noise(seed, index, vocab_size), rtol=2e-6, atol=2e-6)


def test_noise_has_the_moments_of_a_gumbel_distribution():
    noise = gumbel_noise([3], [4], 1_000_000).double()

    assert float(noise.mean()) == pytest.approx(0.5772156649, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)
    assert torch.isfinite(noise).all()


@settings(max_examples=200)
@given(data=st.data())
def test_a_draw_equals_the_naive_sampler(sample, data):
    # given logits with ties, and any mix of filters
    vocab_size = data.draw(st.integers(1, 40), label="vocabulary")
    quarter = st.integers(-20, 20).map(lambda quarters: quarters / 4)
    rows = data.draw(
        st.lists(st.tuples(_logit_rows(vocab_size, quarter), _requests()), min_size=1, max_size=4)
    )
    logits = torch.tensor([row for row, _ in rows], dtype=torch.float32)
    requests = [request for _, request in rows]

    # when
    tokens = sample(logits, requests)

    # then
    expected = [naive_sample(row.numpy(), request) for row, request in zip(logits, requests, strict=True)]
    assert tokens == expected


@settings(max_examples=300)
@given(data=st.data())
def test_bias_penalties_and_the_minimum_length_change_a_draw_as_in_the_naive_sampler(sample, data):
    # given rows that ask for any mix of them, and one that asks for nothing
    vocab_size = data.draw(st.integers(3, 30), label="vocabulary")
    quarter = st.integers(-20, 20).map(lambda quarters: quarters / 4)
    requests = [data.draw(_changing_requests(vocab_size)), _request(temperature=0.0)]
    logits = torch.tensor(
        [data.draw(_logit_rows(vocab_size, quarter)) for _ in requests], dtype=torch.float32
    )
    before = logits.clone()

    # when
    tokens = sample(logits, requests)

    # then
    expected = [naive_sample(row.numpy(), request) for row, request in zip(logits, requests, strict=True)]
    assert tokens == expected
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("parameters", "chosen"),
    [
        # prompt 0 0, output 1 1 2; logits 3.0 2.9 2.6 2.0 -1.0
        ({}, 0),
        ({"presence_penalty": 2.0}, 0),
        ({"presence_penalty": -0.5}, 1),
        ({"frequency_penalty": -0.3}, 1),
        ({"frequency_penalty": -0.45, "presence_penalty": 0.9}, 0),
        ({"repetition_penalty": 2.0}, 3),
        ({"repetition_penalty": 1.3, "logit_bias": {3: -1.0}}, 0),
        ({"logit_bias": {4: 100.0}}, 4),
        ({"logit_bias": {0: -100.0}}, 1),
        ({"stop_token_ids": frozenset({0, 99}), "min_output_tokens": 4}, 1),
        ({"stop_token_ids": frozenset({0, 99}), "min_output_tokens": 3}, 0),
    ],
)
def test_each_change_of_the_logits_has_the_meaning_of_its_name(sample, parameters, chosen):
    logits = torch.tensor([[3.0, 2.9, 2.6, 2.0, -1.0]])
    request = _request(3, (0, 0, 1, 1, 2), temperature=0.0, **parameters)

    assert sample(logits, [request]) == [chosen]


@settings(max_examples=25)
@given(requests=st.lists(_requests(), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_a_draw_does_not_depend_on_other_sequences_in_the_batch(sample, requests, seed):
    logits = 3 * torch.randn(len(requests), 300, generator=torch.Generator().manual_seed(seed))

    together = sample(logits, requests)

    assert together == [sample(logits[i : i + 1], [requests[i]])[0] for i in range(len(requests))]


def test_greedy_takes_the_lowest_of_equal_ids(sample):
    logits = torch.zeros(2, 2431)
    logits[0, [2100, 1500, 1501]] = 2.0

    assert sample(logits, [_request(temperature=0.0)] * 2) == [1500, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-4])
def test_a_tiny_temperature_is_greedy_and_does_not_overflow(sample, temperature):
    logits = torch.tensor([[50.0, 90.0, -1000.0, 89.0]])

    assert sample(logits, [_request(temperature=temperature, top_p=0.9, top_k=2)]) == [1]


def test_a_row_without_a_possible_token_gives_none(sample):
    logits = torch.full((2, 8), -math.inf)

    assert sample(logits, [_request(), _request(temperature=0.0)]) == [None, None]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_no_token_and_spares_the_others(sample, bad, temperature):
    logits = torch.zeros(3, 8)
    logits[1, 5] = bad
    logits[:, 2] = 40.0

    assert sample(logits, [_request(temperature=temperature)] * 3) == [2, None, 2]


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0, 1}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.6}, {0, 1}),
        ({"top_k": 3, "top_p": 0.75}, {0, 1}),
        ({"top_k": 1, "top_p": 0.99, "min_p": 0.01}, {0}),
    ],
)
def test_draws_follow_the_filtered_distribution(sample, parameters, kept):
    # given a known distribution
    probabilities = np.array([0.4, 0.3, 0.2, 0.1])
    logits = torch.tensor(np.log(probabilities), dtype=torch.float32).repeat(4000, 1)

    # when 4,000 output indices of one seed are drawn
    requests = [_request(seed=9, output_index=index, **parameters) for index in range(4000)]
    counts = np.bincount(sample(logits, requests), minlength=4)

    # then only kept tokens come, in the right proportions (5 standard deviations)
    expected = np.array([p if token in kept else 0 for token, p in enumerate(probabilities)])
    expected = 4000 * expected / expected.sum()
    assert set(np.flatnonzero(counts)) == kept
    assert (abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()


def test_a_wide_nucleus_is_found_past_the_first_candidates(sample):
    # given a flat distribution over more tokens than the fast path reads
    logits = -torch.arange(2000, dtype=torch.float32)[None] * 1e-4
    request = _request(top_p=0.9, output_index=3)

    assert sample(logits, [request]) == [naive_sample(logits[0].numpy(), request)]


@pytest.mark.parametrize("top_k", [0, 300])
@pytest.mark.parametrize("top_p", [0.95, 0.3107, 0.0213])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_a_draw_from_a_large_vocabulary_equals_the_naive_sampler(sample, spread, top_p, top_k):
    # given a vocabulary that is no multiple of a vector's lanes, and nuclei that often miss the best score
    logits = torch.from_numpy(np.random.default_rng(4).normal(0, spread, (20, 2431)).astype(np.float32))
    requests = [_request(seed=seed, top_p=top_p, top_k=top_k) for seed in range(20)]

    # when
    tokens = sample(logits, requests)

    # then
    expected = [naive_sample(row.numpy(), request) for row, request in zip(logits, requests, strict=True)]
    assert tokens == expected


@pytest.mark.parametrize("wanted", [1, 40, 400])
def test_logits_against_the_order_of_their_noise_end_in_the_same_draw(sample, wanted):
    """A client knows its seed's noise and can bias logits: then the worst token left has the best score."""
    # given
    noise = gumbel_noise([5], [0], 2431)
    logits = -0.5 * noise
    probabilities = logits.softmax(-1).sort(descending=True).values[0]
    request = _request(seed=5, top_p=float(probabilities[:wanted].sum()) - 1e-6)

    # when
    tokens = sample(logits, [request])

    # then
    assert tokens == [naive_sample(logits[0].numpy(), request)]
    assert int((logits[0] > logits[0, tokens[0]]).sum()) == wanted - 1


@pytest.mark.parametrize("place", [0, 63, 64, 1023, 1024, 2047, 2048, 2430])
def test_the_best_and_what_is_not_a_number_are_found_at_every_place(sample, place):
    logits = torch.zeros(2, 2431)
    logits[0, place] = 1.0
    logits[1, place] = math.nan

    assert sample(logits, [_request(temperature=0.0)] * 2) == [place, None]


def _logit_rows(vocab_size, element):
    return st.lists(element, min_size=vocab_size, max_size=vocab_size)


@st.composite
def _changing_requests(draw, vocab_size):
    tokens = st.integers(0, vocab_size - 1)
    known = draw(st.lists(tokens, min_size=1, max_size=20))
    return _request(
        output_index=draw(st.integers(0, len(known) - 1)),
        known_token_ids=tuple(known),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        presence_penalty=draw(st.sampled_from([0.0, 0.7, -1.9])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3, -0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.4])),
        logit_bias=draw(st.dictionaries(tokens, st.sampled_from([-100.0, 0.55, 3.3]), max_size=4)),
        min_output_tokens=draw(st.integers(0, 20)),
        stop_token_ids=draw(st.frozensets(tokens | st.just(vocab_size + 7), max_size=2)),
    )


def _torch_philox(counter, key):
    words = philox_4x32(
        tuple(torch.tensor(word) for word in counter), tuple(torch.tensor(word) for word in key)
    )
    return [int(word) for word in words]


def _words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.gpu
def test_a_gpu_draws_the_tokens_that_a_cpu_draws():
    generator = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(200, 997, generator=generator)
    requests = [
        SampleRequest(
            SamplingParameters(
                temperature=(0.0, 0.7, 1.0, 3.0)[row % 4], top_k=(0, 40)[row % 2], top_p=0.95, seed=row
            ),
            output_index=row,
        )
        for row in range(200)
    ]

    assert choose(logits.cuda(), requests) == choose(logits, requests)
