"""The pieces of a stream joined are the text of the whole, cut at the first stop string."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models

from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.server.detokenizer import Detokenizer, StopMatcher
from warmfleet_worker.server.token_texts import BYTE_LETTERS

TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Byte tokens as SentencePiece writes them; here the id of each is its byte."""
WORDS = ("", "▁", "a", "b", "▁the", "##s", "é", "\ufffd", ".", "▁'s", "ab</w>", "▁▁")
VOCABULARY = {piece: token_id for token_id, piece in enumerate((*BYTES, *WORDS, "<s>"))}
EMPTY, CONTROL, UNKNOWN = VOCABULARY[""], VOCABULARY["<s>"], len(VOCABULARY)

LLAMA = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
"""Of Llama 2, Mistral and TinyLlama; Gemma's is the same without `Strip`."""

token_ids = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40)
any_ids = st.lists(
    st.integers(0, UNKNOWN)
    | st.integers(len(BYTES), UNKNOWN)
    | st.sampled_from((*"ab €é😀".encode(), 0xE2, 0x82, 0xF0, 0x9F, 0xC3)),
    max_size=24,
)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def tokenizer_with(decoder: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(VOCABULARY, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


def streamed(tokenizer: tokenizers.Tokenizer, ids: Sequence[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.finish()


def cut_runs(ids: Sequence[int]) -> Iterator[int]:
    """`ids` with each run of byte tokens cut, by a token without text, before its first fault."""
    in_text = (token_id for token_id in ids if token_id not in {CONTROL, UNKNOWN})
    for are_bytes, group in groupby(in_text, lambda token_id: token_id < len(BYTES)):
        run = list(group)
        if are_bytes:
            try:
                bytes(run).decode()
            except UnicodeDecodeError as error:
                run.insert(error.start, EMPTY)
        yield from run


def cut_at_first_stop(text: str, stop_strings: list[str]) -> str:
    """The oracle: character by character, until the text ends with a stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(token_ids)
def test_pieces_joined_are_the_text_of_the_whole(ids):
    detokenizer = Detokenizer(TOKENIZER)

    text = "".join(detokenizer.push(token_id) for token_id in ids) + detokenizer.finish()

    assert text == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_a_stop_string_counts_only_past_the_least_length():
    ids = TOKENIZER.encode("abcabcabc", add_special_tokens=False).ids
    assert len(ids) == 9
    detokenizer = Detokenizer(TOKENIZER, ["bc"], min_tokens=2)

    text = "".join(detokenizer.push(token_id) for token_id in ids)

    assert text == "abca"  # the first "bc" begins before the third token
    assert detokenizer.stopped


@given(st.text(max_size=30), stops)
def test_text_of_any_language_survives_its_split_into_bytes(text, stop_strings):
    detokenizer = Detokenizer(TOKENIZER, stop_strings)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids

    joined = "".join(detokenizer.push(token_id) for token_id in ids) + detokenizer.finish()

    assert joined == cut_at_first_stop(TOKENIZER.decode(ids), stop_strings)


@given(st.lists(st.text(alphabet="abc", max_size=4), max_size=12), stops)
def test_a_stop_string_ends_the_text_wherever_the_pieces_break(pieces, stop_strings):
    matcher = StopMatcher(stop_strings)
    sent = "".join(matcher.push(piece) for piece in pieces)

    expected = cut_at_first_stop("".join(pieces), stop_strings)

    assert sent + matcher.finish() == expected
    assert matcher.stopped == any(stop in "".join(pieces) for stop in stop_strings)


def test_a_possible_stop_is_held_back_until_it_is_none():
    matcher = StopMatcher(["<end>"])

    assert matcher.push("text <en") == "text "
    assert matcher.push("emy>") == "<enemy>"
    assert matcher.push("<end") == ""
    assert matcher.push(">more") == ""
    assert matcher.stopped


def test_an_incomplete_character_is_held_back_and_flushed_at_the_end():
    detokenizer = Detokenizer(TOKENIZER)
    first, second, *_ = TOKENIZER.encode("é").ids

    assert detokenizer.push(first) == ""
    assert detokenizer.push(second) == "é"
    assert detokenizer.push(first) == ""
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("literal", ["<|im_end|>", "<|endoftext|>"])
def test_control_tokens_are_no_part_of_the_text(literal):
    detokenizer = Detokenizer(TOKENIZER)

    assert detokenizer.push(TOKENIZER.token_to_id(literal)) + detokenizer.finish() == ""


@given(st.lists(st.integers(0, 255) | st.sampled_from(b"\xe0\xed\xf0\xf4\x80\x8f\x90\x9f\xa0\xbf\xc1a")))
def test_bytes_that_are_no_characters_become_as_many_replacements_as_the_tokenizer_writes(content):
    letters = {value: letter for letter, value in BYTE_LETTERS.items()}
    ids = [TOKENIZER.token_to_id(letters[byte]) for byte in content]

    assert streamed(TOKENIZER, ids) == TOKENIZER.decode(ids) == bytes(content).decode("utf-8", "replace")


def test_a_byte_level_token_with_other_letters_stands_for_itself():
    tokenizer = tokenizer_with(decoders.ByteLevel())
    ids = [VOCABULARY[piece] for piece in ("▁the", "é", "a")]

    assert streamed(tokenizer, ids) == tokenizer.decode(ids) == "▁the\ufffda"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.ByteLevel(),
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.WordPiece(),
        decoders.WordPiece(cleanup=False),
        decoders.Sequence([decoders.Replace(tokenizers.Regex("▁+"), "_"), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        None,
    ],
    ids=str,
)
@given(ids=any_ids)
def test_any_ids_join_to_what_the_tokenizer_decodes(decoder, ids):
    tokenizer = tokenizer_with(decoder)

    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("steps", [LLAMA, LLAMA[:3], LLAMA[:2]], ids=["llama", "gemma", "not-fused"])
@given(ids=any_ids)
def test_a_run_of_byte_tokens_keeps_the_characters_before_its_first_fault(steps, ids):
    tokenizer = tokenizer_with(decoders.Sequence(list(steps)))

    assert streamed(tokenizer, ids) == tokenizer.decode(list(cut_runs(ids)))


@given(st.lists(st.sampled_from(["a", "▁the", "▁", *"aé€😀ก \u2581"]), max_size=20))
def test_characters_that_byte_tokens_spell_are_the_tokenizers(pieces):
    tokenizer = tokenizer_with(decoders.Sequence(list(LLAMA)))
    ids = [
        token_id
        for piece in pieces
        for token_id in ([VOCABULARY[piece]] if piece in VOCABULARY else piece.encode())
    ]

    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


def test_byte_tokens_that_are_no_text_do_not_break_the_answer():
    detokenizer = Detokenizer(tokenizer_with(decoders.Sequence(list(LLAMA))))

    assert [detokenizer.push(token_id) for token_id in (0x61, 0xE2, VOCABULARY["b"])] == ["a", "", "\ufffdb"]
    assert detokenizer.finish() == ""


def test_each_character_of_byte_tokens_is_sent_when_it_is_complete():
    detokenizer = Detokenizer(tokenizer_with(decoders.Sequence(list(LLAMA))))

    assert [detokenizer.push(byte) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert detokenizer.push(CONTROL) == ""  # ends no run
    assert [detokenizer.push(byte) for byte in (0xE2, 0x28, 0x61)] == ["", "\ufffd\ufffd", "\ufffd"]


UNKNOWN_KINDS = [
    decoders.BPEDecoder(),
    decoders.CTC(pad_token="<0x00>", cleanup=False),
    decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    decoders.Sequence([decoders.Fuse(), decoders.Replace("aa", "b")]),
]


@pytest.mark.parametrize("decoder", UNKNOWN_KINDS, ids=str)
@given(ids=any_ids)
def test_a_decoder_that_looks_at_neighbours_never_fails(decoder, ids):
    streamed(tokenizer_with(decoder), ids)


@pytest.mark.parametrize("decoder", UNKNOWN_KINDS[:3], ids=str)
@given(words=st.lists(st.sampled_from(["a", "b", "▁", "▁the", "ab</w>", "é", "<s>", "€", "😀"]), max_size=20))
@example(words=["▁", "😀"])
@example(words=["a", "<s>", "a", "€", "é", "😀", "▁the"])
def test_a_decoder_that_looks_at_neighbours_reads_a_window_of_them(decoder, words):
    tokenizer = tokenizer_with(decoder)
    ids = [
        token_id
        for word in words
        for token_id in ([VOCABULARY[word]] if word in VOCABULARY else word.encode())
    ]

    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("decoder", [decoders.ByteLevel(), decoders.Sequence(list(LLAMA)), *UNKNOWN_KINDS])
@pytest.mark.parametrize("ids", [[CONTROL], [UNKNOWN], [EMPTY], [0xE2], [CONTROL, 0xE2, EMPTY], [0x61]])
def test_a_token_costs_the_same_however_many_came_before_it(decoder, ids):
    tokenizer = CountingTokenizer(tokenizer_with(decoder))
    detokenizer = Detokenizer(tokenizer)  # type: ignore[arg-type]
    counts = []
    for _ in range(60):
        tokenizer.ids = 0
        for token_id in ids * 10:
            detokenizer.push(token_id)
        counts.append(tokenizer.ids)
    tokenizer.ids = 0
    detokenizer.finish()

    assert max(counts) <= 16 * 10 * len(ids)
    assert max(counts[1:]) <= min(counts[1:]) + 32
    assert tokenizer.ids <= 16


class CountingTokenizer:
    """Counts the ids that a tokenizer looks at."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        self.ids += len(ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        self.ids += 1
        return self._tokenizer.id_to_token(token_id)
