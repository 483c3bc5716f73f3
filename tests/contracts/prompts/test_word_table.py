"""Encoding by the word table against the tokenizer itself, which is the oracle."""

import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warmfleet_contracts.prompts.segment_memory import WordMemory
from warmfleet_contracts.prompts.word_table import WordTable
from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.engine.tiny_tokenizer import TINY_CONTROL_TOKENS, tiny_tokenizer

SPLIT_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def split(digits):
    return {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": SPLIT_WORDS % digits},
                "behavior": "Isolated",
                "invert": False,
            },
            BYTE_LEVEL | {"use_regex": False},
        ],
    }


SHAPES = {
    "GPT-2": {},
    "digits": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
        }
    },
    "Qwen2": {"normalizer": {"type": "NFC"}, "pre_tokenizer": split(r"\p{N}")},
    "Llama 3": {"pre_tokenizer": split(r"\p{N}{1,3}")},
    "Llama 3 whole words": {"pre_tokenizer": split(r"\p{N}{1,3}"), "model": {"ignore_merges": True}},
}
# Merges over white space, punctuation and contractions show a word that is cut in the wrong place.
MERGES = [
    ["Ġ", "Ġ"], ["ĠĠ", "Ġ"], ["Ċ", "Ċ"], ["ĊĊ", "Ġ"], ["ĉ", "a"], ["'", "s"], ["l", "l"], ["'", "ll"],
    ["Ġ", "a"], ["Ġa", "b"], ["a", "b"], ["1", "2"], ["Ġ", "1"], ["!", "Ċ"], ["Ġ", "!"], ["(", "a"],
    ["ab", "Ġ"], ["Ã", "©"], ["12", "1"], ["121", "2"],
]  # fmt: skip
# Only a model that ignores merges finds these.
UNREACHED = ["Ġabb", "212", "Ã©aÃ©"]

PIECES = st.one_of(
    st.sampled_from(TINY_CONTROL_TOKENS),
    st.sampled_from(
        ["'s", "'LL", " 's", "ab ab", "é a", "a é", "a\u0301", "ſ", "\u212a", "\u00a0", "\u2028", "1 ²"]
    ),
    st.sampled_from([" abb", "1212", "212", "12121", "éaé"]),
    st.text("ab 's\n\t\r!<>|(12", max_size=8),
    st.text(st.characters(max_codepoint=127), max_size=8),
    st.text(max_size=5),
    st.just("ab ab " * 50),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def table_and_oracle(description):
    table, encode, _ = observed_table(description)
    return table, encode


def observed_table(description):
    """A table, its oracle, and the texts for which the table has asked the tokenizer since it was made."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    asked = []

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    def observed(text):
        asked.append(text)
        return encode(text)

    table = WordTable.of(description, tokenizer.model, observed)
    asked.clear()
    return table, encode, asked


@cache
def tiny(shape):
    parts = dict(SHAPES[shape])
    model = parts.pop("model", {})
    description = tiny_tokenizer(**parts)
    description["model"] |= model
    description["model"]["merges"] += MERGES
    words = (*(left + right for left, right in MERGES), *UNREACHED)
    for word in words:
        description["model"]["vocab"].setdefault(word, len(description["model"]["vocab"]))
    return table_and_oracle(description)


@cache
def real():
    return table_and_oracle(json.loads((pulled_catalog_model() / "tokenizer.json").read_text()))


WORDS = {shape: WordMemory() for shape in SHAPES}
"""Of all texts before."""


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=500)
@given(text=TEXTS)
@example(text="a  1 2\n\n b'll  'S\x0b\x1c\x85!\n\n")
def test_text_encodes_as_the_tokenizer_encodes_it(shape, text):
    table, encode = tiny(shape)

    assert table.encode(text) == table.encode(text, words=WORDS[shape]) == encode(text)


@pytest.mark.model
@settings(max_examples=500)
@given(text=TEXTS)
def test_text_encodes_as_the_real_tokenizer_encodes_it(text):
    table, encode = real()

    assert table.encode(text) == encode(text)


@pytest.mark.model
def test_real_text_and_288_hard_strings_encode_as_the_real_tokenizer_encodes_them():
    table, encode = real()
    cases = json.loads((Path(__file__).parent / "smollm2_token_ids.json").read_text())["cases"]
    root = Path(__file__).parents[3]
    files = [root / "LICENSE", *root.glob("*/*/*.py"), *root.glob("docs/**/*.md")]

    assert len(cases) == 288
    assert len(files) > 30
    for text in (*(case["text"] for case in cases), *(file.read_text() for file in files)):
        assert table.encode(text) == encode(text)


@pytest.mark.model
def test_english_is_encoded_without_asking_the_tokenizer():
    description = json.loads((pulled_catalog_model() / "tokenizer.json").read_text())
    table, _, asked = observed_table(description)
    table.encode((Path(__file__).parents[3] / "LICENSE").read_text())

    assert asked == []


@pytest.mark.parametrize("stranger", ["é", "!a" * 300], ids=["not ASCII", "unknown words"])
def test_the_tokenizer_encodes_only_the_surroundings_of_what_the_table_does_not_have(stranger):
    text = " ab" * 1000 + stranger + " ab" * 1000
    description = tiny_tokenizer(pre_tokenizer=split(r"\p{N}"))
    description["model"]["merges"] += MERGES
    for left, right in MERGES:
        description["model"]["vocab"].setdefault(left + right, len(description["model"]["vocab"]))
    table, encode, asked = observed_table(description)

    assert table.encode(text) == encode(text)
    assert stranger in "".join(asked)
    assert len("".join(asked)) < len(stranger) + 800


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}},
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Prepend", "prepend": "_"}},
    ],
    ids=str,
)
def test_a_tokenizer_of_another_shape_has_no_table(parts):
    assert table_and_oracle(tiny_tokenizer(**parts))[0] is None


@pytest.mark.parametrize(
    "flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}], ids=str
)
def test_literals_that_depend_on_their_surroundings_leave_no_table(flags):
    description = tiny_tokenizer()
    description["added_tokens"][0].update(flags)

    assert table_and_oracle(description)[0] is None


@pytest.mark.parametrize(
    "flags", [{"dropout": 0.1}, {"end_of_word_suffix": "</w>"}, {"continuing_subword_prefix": "##"}], ids=str
)
def test_a_model_that_does_not_encode_words_alone_has_no_table(flags):
    description = tiny_tokenizer()
    description["model"].update(flags)

    assert WordTable.of(description, tokenizers.models.BPE(), list) is None
