"""An engine may report several tokens of a sequence at once: the answer does not depend on their grouping."""

import asyncio
import json
from array import array

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.engine.messages import (
    SequenceUpdate,
    StepReport,
    decode_engine_message,
    encode_message,
    message_reader,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.server.answer_tokens import EchoedPrompt
from warmfleet_worker.server.choices import ChoiceDecoder, joined
from warmfleet_worker.server.detokenizer import Detokenizer
from warmfleet_worker.server.engine_client import SequenceRequest
from warmfleet_worker.server.plain_answers import PlainAnswers
from warmfleet_worker.server.sequence_handle import SequenceHandle

TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))
END_TOKEN = TOKENIZER.get_vocab_size() - 1
TOP = 1

token_ids = st.lists(st.integers(0, END_TOKEN - 1), min_size=1, max_size=24)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=2)
cuts = st.sets(st.integers(1, 24))


class NoControl:
    """An engine that nothing is asked of."""

    def abort_sequence(self, sequence_id): ...
    def pause_sequence(self, sequence_id): ...
    def resume_sequence(self, sequence_id): ...


def scored(tokens):
    """Log probabilities of tokens: minus their id, and the next id as the most likely one."""
    return TokenLogprobs(
        TOP,
        array("f", [-float(token) for token in tokens]).tobytes(),
        array("I", [token + 1 for token in tokens]).tobytes(),
        array("f", [0.0] * len(tokens)).tobytes(),
    )


def grouped(tokens, at):
    """`tokens` in groups that end where `at` has it."""
    ends = sorted({end for end in at if end < len(tokens)} | {len(tokens)})
    return [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def reports(groups):
    """The steps of an engine that reports `groups`, as they go over the socket."""
    steps = [
        StepReport(
            updates=[
                SequenceUpdate(
                    sequence_id=1,
                    cached_tokens=0 if index == 0 else None,
                    token_ids=group,
                    logprobs=scored(group),
                    finish_reason="stop" if index == len(groups) - 1 else "",
                )
            ],
            load=LoadReport(),
        )
        for index, group in enumerate(groups)
    ]
    return [
        decode_engine_message(body)
        for body in message_reader().feed(b"".join(encode_message(step) for step in steps))
    ]


def decoder_of(handle, stop_strings, metrics):
    return ChoiceDecoder(
        0,
        handle,
        Detokenizer(TOKENIZER, stop_strings),
        SequenceRequest(
            prompt_token_ids=[1, 2],
            sampling=SamplingParameters(stop_token_ids=frozenset({END_TOKEN}), logprobs=TOP),
        ),
        metrics,
        echo=EchoedPrompt(),
        return_token_ids=True,
        lists_all_tokens=False,
    )


def answer(groups, stop_strings):
    """The whole answer of a sequence whose tokens come in `groups`, read after each."""
    handle = SequenceHandle(1, asyncio.Event(), NoControl())
    metrics = WorkerMetrics("tiny")
    decoder = decoder_of(handle, stop_strings, metrics)
    progress = PlainAnswers(now=lambda: 0.0)
    pieces = []
    with progress.open("router-0", 1, [1]):
        for report in reports(groups):
            progress.apply(report.updates)
            [update] = report.updates
            handle.apply(update, "e:0")
            piece = decoder.take()
            if piece is not None:
                pieces.append(piece)
        [plain] = progress.next_report()["router-0"]
    generated = metrics.registry.get_sample_value("vllm:generation_tokens_total", {"model_name": "tiny"})
    assert generated is None or generated == decoder.completion_tokens
    return joined(0, pieces), decoder.completion_tokens, plain.generated_tokens


@given(token_ids, stops, cuts)
def test_an_answer_is_the_same_for_every_grouping_of_its_tokens(tokens, stop_strings, at):
    tokens = [*tokens, END_TOKEN]

    one_by_one = answer([[token] for token in tokens], stop_strings)

    assert answer(grouped(tokens, at), stop_strings) == one_by_one
    assert answer([tokens], stop_strings) == one_by_one


def test_tokens_whose_text_is_not_certain_yet_show_as_a_delta_without_text():
    handle = SequenceHandle(1, asyncio.Event(), NoControl())
    decoder = decoder_of(handle, ["stop"], WorkerMetrics("tiny"))
    control = TOKENIZER.token_to_id("<|im_start|>")
    whole = [token for character in ("st", "\U0001f600") for token in TOKENIZER.encode(character).ids]

    texts = []
    for token in (control, *whole):
        assert decoder.take() is None
        handle.apply(SequenceUpdate(sequence_id=1, cached_tokens=0, token_ids=[token]), "e:0")
        texts.append(decoder.take().text)

    assert texts == [""] * len(whole) + ["st\U0001f600"]
