"""The memory of encoded segments: same ids with and without it, bounded, and each salt for itself."""

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.errors import PromptError
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.segment_memory import (
    MAX_WORD_CHARS,
    MAX_WORD_TOKENS,
    MAX_WORDS,
    MIN_SEGMENT_CHARS,
    WORD_MEMORIES,
    WORD_MEMORY_BYTES,
    SegmentMemory,
    WordMemory,
)
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets, tiny_tokenizer

TOKENIZERS = ("GPT-2", "digits")
SALTS = (b"", b"a" * 32, b"b" * 32)
LONG = "the cat sat on the mat. " * 30
SEGMENTS = st.sampled_from(
    [
        LONG,
        LONG + "x",
        "é " * MIN_SEGMENT_CHARS,
        "12 " * MIN_SEGMENT_CHARS,
        "a" * (MIN_SEGMENT_CHARS - 1),
        "a" * MIN_SEGMENT_CHARS,
        LONG + "<|im_end|>" + LONG,
        "short",
    ]
)
CONTENTS = st.lists(SEGMENTS, min_size=1, max_size=3)
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(SALTS), st.sampled_from(TOKENIZERS), st.lists(SEGMENTS, min_size=1, max_size=3)
    ),
    max_size=12,
)


@cache
def encoder(shape):
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}
    digits["pretokenizers"].append(tiny_tokenizer()["pre_tokenizer"])
    parts = {} if shape == "GPT-2" else {"pre_tokenizer": digits}
    return PromptEncoder.from_assets(tiny_prompt_assets(tokenizer=tiny_tokenizer(**parts)))


class Counted:
    """Encodes by length and remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return list(range(len(text) // 4))


@settings(max_examples=100)
@given(requests=REQUESTS, limit_bytes=st.sampled_from([0, 20_000, 50_000, 10**7]))
def test_prompts_encode_the_same_with_a_memory_of_any_size(requests, limit_bytes):
    memory = SegmentMemory(limit_bytes)

    for salt, shape, contents in requests:
        segments = memory.of_salt(salt)
        messages = [ChatMessage("user", content) for content in contents]
        assert encoder(shape).encode_chat(messages, segments) == encoder(shape).encode_chat(messages)
        assert encoder(shape).encode_text(contents[0], segments) == encoder(shape).encode_text(contents[0])
        assert memory._held_bytes <= limit_bytes


def test_a_long_segment_is_encoded_once():
    encode, segments = Counted(), SegmentMemory().of_salt(b"a")

    first, second = (segments.encode("t", LONG, encode) for _ in range(2))

    assert encode.asked == [LONG]
    assert list(first) == list(second)


def test_a_segment_that_another_salt_has_sent_is_encoded_again():
    encode, memory = Counted(), SegmentMemory()

    for salt in SALTS * 2:
        memory.of_salt(salt).encode("t", LONG, encode)

    assert encode.asked == [LONG] * len(SALTS)


def test_a_segment_of_another_tokenizer_is_encoded_again():
    encode, segments = Counted(), SegmentMemory().of_salt(b"a")

    for tokenizer in ("t", "u", "t", "u"):
        segments.encode(tokenizer, LONG, encode)

    assert encode.asked == [LONG] * 2


def test_short_text_is_not_remembered():
    encode, memory = Counted(), SegmentMemory()

    memory.of_salt(b"a").encode("t", "a" * (MIN_SEGMENT_CHARS - 1), encode)

    assert (len(memory._entries), memory._held_bytes) == (0, 0)


def test_the_segment_that_was_not_used_for_longest_goes_first():
    encode = Counted()
    texts = [letter * 1000 for letter in "abcdefghi"]
    measure = SegmentMemory()
    measure.of_salt(b"a").encode("t", texts[0], encode)
    memory = SegmentMemory(8 * measure._held_bytes)
    segments = memory.of_salt(b"a")

    for text in (*texts[:8], texts[0], texts[8]):
        segments.encode("t", text, encode)
    assert len(memory._entries) == 8
    encode.asked.clear()
    segments.encode("t", texts[0], encode)
    segments.encode("t", texts[1], encode)

    assert encode.asked == [texts[1]]


def test_a_segment_larger_than_an_eighth_of_the_memory_drives_nothing_out():
    encode, memory = Counted(), SegmentMemory(100_000)
    segments = memory.of_salt(b"a")
    segments.encode("t", "a" * 1000, encode)

    segments.encode("t", "b" * 8000, encode)

    assert len(memory._entries) == 1
    assert 0 < memory._held_bytes <= 100_000


@pytest.mark.parametrize("tokens_per_char", [0, 0.25, 1])
def test_segments_take_no_more_memory_than_is_stated(tokens_per_char):
    limit_bytes = 10**6
    memory = SegmentMemory(limit_bytes)
    segments = memory.of_salt(b"a" * 32)
    tracemalloc.start()
    try:
        for number in range(2000):
            # Ids above those of which Python shares the objects.
            segments.encode(
                "t", f"{number:01024}", lambda text: range(300, 300 + int(len(text) * tokens_per_char))
            )
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 0.9 * limit_bytes < memory._held_bytes <= limit_bytes
    assert taken_bytes <= limit_bytes


def test_a_prompt_that_cannot_be_encoded_leaves_nothing_behind():
    memory = SegmentMemory()

    for _ in range(2):
        with pytest.raises(PromptError):
            encoder("GPT-2").encode_text("\ud800" * 1000, memory.of_salt(b"a"))

    assert len(memory._entries) == 0


def test_changing_the_ids_of_a_prompt_changes_no_later_prompt():
    segments = SegmentMemory().of_salt(b"a")
    first = encoder("GPT-2").encode_text(LONG, segments)
    expected = list(first)

    first.clear()

    assert encoder("GPT-2").encode_text(LONG, segments) == expected


def test_a_word_outside_the_vocabulary_is_encoded_once_per_salt_in_texts_of_any_length():
    fresh = PromptEncoder.from_assets(tiny_prompt_assets())
    table, asked = fresh._words, []
    tokenize = table._tokenize
    table._tokenize = lambda word: (asked.append(word), tokenize(word))[1]
    memory = SegmentMemory()

    for text in ("zebra", "a zebra", LONG + " zebra zebra"):
        fresh.encode_text(text, memory.of_salt(b"a"))
    of_one_salt = asked.count("zebra") + asked.count("\u0120zebra")
    fresh.encode_text("zebra", memory.of_salt(b"b"))

    assert of_one_salt == 2  # with and without a space in front
    assert asked.count("zebra") == 2


def test_so_many_words_are_remembered_and_no_long_ones():
    encode, words = Counted(), WordMemory()

    for number in range(3 * MAX_WORDS):
        words.encode(f"word {number}", encode)
        assert len(words._ids) <= MAX_WORDS
    words.encode("x" * (MAX_WORD_CHARS + 1), encode)

    assert len(encode.asked) == 3 * MAX_WORDS + 1
    assert "x" * (MAX_WORD_CHARS + 1) not in words._ids


@pytest.mark.parametrize("tokens", [1, MAX_WORD_TOKENS, MAX_WORD_TOKENS + 1, MAX_WORD_CHARS])
def test_words_take_no_more_memory_than_is_stated(tokens):
    words = WordMemory()
    tracemalloc.start()
    try:
        for number in range(MAX_WORDS):
            # Ids above those of which Python shares the objects.
            words.encode(f"{number:0{MAX_WORD_CHARS}}", lambda _: list(range(10_000, 10_000 + tokens)))
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken_bytes * WORD_MEMORIES <= WORD_MEMORY_BYTES


def test_the_words_of_the_salt_that_was_not_used_for_longest_go_first():
    memory = SegmentMemory()
    first = memory.of_salt(b"0").words("t")
    for number in range(1, WORD_MEMORIES):
        memory.of_salt(b"%d" % number).words("t")
    assert memory.of_salt(b"0").words("t") is first

    memory.of_salt(b"one more").words("t")

    assert memory.of_salt(b"0").words("t") is first
    assert (b"1", "t") not in memory._words
    assert len(memory._words) == WORD_MEMORIES


def test_threads_that_encode_and_drive_out_at_once_get_the_right_ids():
    memory = SegmentMemory(100_000)
    texts = [letter * 1000 for letter in "abcdefghijklm"]
    start = threading.Barrier(4)

    def work(turn):
        start.wait(timeout=10)
        segments = memory.of_salt(b"a")
        for step in range(2000):
            text = texts[(turn + step * (turn + 1)) % len(texts)]
            ids = segments.encode("t", text, lambda text: [ord(text[0])] * 250)
            assert ids[0] == ord(text[0])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))

    assert 0 < memory._held_bytes <= 100_000
    assert len(memory._entries) > 0
