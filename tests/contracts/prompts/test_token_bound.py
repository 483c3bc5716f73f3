"""A bound never exceeds what the tokenizer produces, and encoding with a limit ends where it is exceeded."""

import json
from functools import cache

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warmfleet_contracts.errors import PromptTooLongError
from warmfleet_contracts.prompts import encoder as encoding
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.token_bound import TokenBound
from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.engine.tiny_tokenizer import TINY_CONTROL_TOKENS, tiny_prompt_assets, tiny_tokenizer
from warmfleet_worker.model_store.assets import load_prompt_assets

SHAPES = {"bytes": {}, "NFC": {"normalizer": {"type": "NFC"}}}
PIECES = st.one_of(
    st.sampled_from(
        ["hello ", " " * 20, "\n\t ", "\u1111\u1171\u11b6" * 5, "\u03b9\u0308\u0301", "\u4e2d" * 9]
    ),
    st.sampled_from(["<|im_end|>", "<|im_", "|>", "<tool>", "=" * 300, "ab cd " * 100]),
    st.text(max_size=8),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@cache
def tiny(shape):
    assets = tiny_prompt_assets()
    description = json.dumps(tiny_tokenizer(**SHAPES[shape]))
    return PromptEncoder.from_assets(msgspec.structs.replace(assets, tokenizer_json=description))


@cache
def real():
    return PromptEncoder.from_assets(load_prompt_assets(pulled_catalog_model()))


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=300)
@given(text=TEXTS)
@example(text="\u1111\u1171\u11b6" * 100)
@example(text=TINY_CONTROL_TOKENS[0] * 50)
def test_no_text_has_fewer_tokens_than_its_bound(shape, text):
    encoder = tiny(shape)

    assert encoder._bound.least_tokens(text) <= len(encoder._tokenize(text))


WRITTEN = {"a": "a", "b": "b", " ": "\u0120", "\n": "\u010a"}
"""How byte-level vocabularies write these characters."""
TOKENS = st.text("".join(WRITTEN), min_size=1, max_size=6)


@settings(max_examples=300)
@given(
    vocabulary=st.lists(TOKENS, max_size=6),
    literals=st.lists(TOKENS, max_size=2),
    text=st.text("".join(WRITTEN), min_size=1, max_size=60),
)
def test_a_bound_follows_from_the_token_that_holds_most_of_a_kind(vocabulary, literals, text):
    def most(characters):
        return max(1, *(sum(map(token.count, characters)) for token in ("", *vocabulary, *literals)))

    written = ["".join(map(WRITTEN.__getitem__, token)) for token in (*WRITTEN, *vocabulary)]
    bound = TokenBound(dict.fromkeys(written), literals, composes=False)

    kinds = ("a", "b", " ", "\n", " \n", "ab")
    assert bound.least_tokens(text) == max(sum(map(text.count, kind)) // most(kind) for kind in kinds)


@pytest.mark.model
@settings(max_examples=100)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens_of_the_real_tokenizer_than_its_bound(text):
    assert real()._bound.least_tokens(text) <= len(real()._tokenize(text))


def test_a_character_is_bounded_by_the_token_that_holds_it_most_often():
    bound = TokenBound.of(tiny_tokenizer())

    assert bound.least_tokens("a" * 1000) == 1000
    assert bound.least_tokens("hello" * 1000) == 1000
    assert bound.least_tokens(" " * 1000) == 1000


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"String": "x"}, "behavior": "Removed", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                ],
            }
        },
    ],
    ids=str,
)
def test_a_tokenizer_that_may_drop_text_has_no_bound(parts):
    assert TokenBound.of(tiny_tokenizer(**parts)) is None


def test_a_literal_that_takes_white_space_with_it_leaves_no_bound():
    description = tiny_tokenizer()
    description["added_tokens"][0]["lstrip"] = True

    assert TokenBound.of(description) is None


@settings(max_examples=300)
@given(text=TEXTS, limit_tokens=st.integers(1, 400), roles=st.sampled_from(["", "user"]))
def test_a_prompt_is_encoded_whole_or_is_longer_than_the_limit(text, limit_tokens, roles):
    encoder = tiny("bytes")

    def encode(limit):
        if roles:
            return encoder.encode_chat([ChatMessage(roles, text)], limit_tokens=limit)
        return encoder.encode_text(text, limit_tokens=limit)

    whole = encode(None)
    if len(whole) > limit_tokens:
        with pytest.raises(PromptTooLongError):
            encode(limit_tokens)
    else:
        assert encode(limit_tokens) == whole


@pytest.mark.parametrize("unit", ["ab cd ", "<|im_end|>ab cd ", "<|im_start|>ab "])
def test_encoding_ends_soon_after_the_limit(unit, monkeypatch):
    encoder, chars = tiny("bytes"), 0
    encode = encoding._encode

    def counted(tokenizer, text):
        nonlocal chars
        chars += len(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(encoding, "_encode", counted)
    for content in (json.dumps(unit), unit * 100_000):
        chars = 0
        try:
            encoder.encode_chat([ChatMessage("user", content)], limit_tokens=200)
        except PromptTooLongError:
            assert content == unit * 100_000
        else:
            assert content != unit * 100_000

    assert chars <= 2 * 16_384
