"""The pieces of a stream joined are the text of the whole, cut at the first stop string."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.server.detokenizer import Detokenizer, StopMatcher

TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))

token_ids = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


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
