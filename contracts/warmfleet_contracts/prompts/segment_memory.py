"""Caches token ids: of long pieces of text, and of words that are not in a tokenizer's vocabulary.

So a system prompt is not encoded for every request, nor a name that all texts of a tenant hold. A cached text
is encoded faster, which a client can measure. So entries are found only under the salt of their tenant or
sharing group: response times reveal no text of other tenants, as with cached blocks.
"""

import contextlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

Encode = Callable[[str], Sequence[int]]
"""From text to token ids, the same for the same text."""

MIN_SEGMENT_CHARS: Final = 512
"""Shorter text is encoded about as fast as it is looked up, and there is much more of it."""
SEGMENT_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""At least 4,000 system prompts of 2,000 tokens."""
_LARGEST_SHARE: Final = 8
"""One segment takes at most 1/8 of the memory, so that one prompt cannot evict all others."""
_ID_BYTES: Final = 4
"""Of an array: an integer object and its slot in a tuple take 36."""
_WIDE_CHAR_BYTES: Final = 8
"""Most bytes that Python uses per character, its cached UTF-8 included."""
_ENTRY_BYTES: Final = 512
"""Key, salt, links and array of one segment."""

WORD_MEMORIES: Final = 32
"""Pairs of salt and tokenizer whose words are remembered."""
WORD_MEMORY_BYTES: Final = 20 * 1024 * 1024
"""All of them together take at most this, by the next three bounds."""
MAX_WORDS: Final = 2048
MAX_WORD_CHARS: Final = 64
MAX_WORD_TOKENS: Final = 8
"""Names and identifiers have fewer, 64 characters of punctuation may have 64."""

_Key = tuple[bytes, str, str]


class WordMemory:
    """Token ids of words, the first `MAX_WORDS` since it was empty. Safe to share between threads."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, array[int]] = {}

    def encode(self, word: str, encode: Encode) -> Sequence[int]:
        """`encode(word)`, remembered if neither is too long; raises what `encode` raises."""
        ids = self._ids.get(word)
        if ids is None:
            ids = array("I", encode(word))
            if len(word) <= MAX_WORD_CHARS and len(ids) <= MAX_WORD_TOKENS:
                if len(self._ids) >= MAX_WORDS:
                    # Cheaper than an order of use, and what is frequent is back after a few texts.
                    self._ids.clear()
                self._ids[word] = ids
        return ids


class SegmentMemory:
    """Token ids by salt, tokenizer and text, with LRU eviction. Safe to share between threads."""

    def __init__(self, limit_bytes: int = SEGMENT_MEMORY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        """Upper bound of the memory in use; never above the limit."""
        self._entries: OrderedDict[_Key, array[int]] = OrderedDict()
        self._words: OrderedDict[tuple[bytes, str], WordMemory] = OrderedDict()
        # For `_words`, and for changes of `_held_bytes`: a look-up of a segment is single operations.
        self._changes = threading.Lock()

    def of_salt(self, salt: bytes) -> "SaltedSegments":
        """The entries of `salt`."""
        return SaltedSegments(self, salt)

    def _words_of(self, salt: bytes, tokenizer_digest: str) -> WordMemory:
        key = (salt, tokenizer_digest)
        with self._changes:
            words = self._words.get(key)
            if words is None:
                words = self._words[key] = WordMemory()
                if len(self._words) > WORD_MEMORIES:
                    self._words.popitem(last=False)
            self._words.move_to_end(key)
        return words

    def _recall(self, key: _Key) -> "array[int] | None":
        ids = self._entries.get(key)
        if ids is not None:
            with contextlib.suppress(KeyError):  # another thread has evicted it
                self._entries.move_to_end(key)
        return ids

    def _remember(self, key: _Key, ids: "array[int]") -> None:
        size_bytes = _size_bytes(key, ids)
        if size_bytes * _LARGEST_SHARE > self._limit_bytes:
            return
        with self._changes:
            if key in self._entries:  # two threads have encoded it at once
                return
            while self._held_bytes + size_bytes > self._limit_bytes:
                oldest = self._entries.popitem(last=False)
                self._held_bytes -= _size_bytes(*oldest)
            self._entries[key] = ids
            self._held_bytes += size_bytes


class SaltedSegments:
    """A memory as the requests of one salt see it."""

    __slots__ = ("_memory", "_salt")

    def __init__(self, memory: SegmentMemory, salt: bytes) -> None:
        self._memory = memory
        self._salt = salt

    def words(self, tokenizer_digest: str) -> WordMemory:
        """The words that `tokenizer_digest` has encoded."""
        return self._memory._words_of(self._salt, tokenizer_digest)  # noqa: SLF001 - as below

    def encode(self, tokenizer_digest: str, text: str, encode: Encode) -> Sequence[int]:
        """`encode(text)`, remembered if `text` is long; raises what `encode` raises.

        `encode` must be the one that `tokenizer_digest` names.
        """
        if len(text) < MIN_SEGMENT_CHARS:
            return encode(text)
        key = (self._salt, tokenizer_digest, text)
        known = self._memory._recall(key)  # noqa: SLF001 - one noun, seen by one salt
        if known is not None:
            return known
        ids = encode(text)
        self._memory._remember(key, array("I", ids))  # noqa: SLF001
        return ids


def _size_bytes(key: _Key, ids: "array[int]") -> int:
    salt, _, text = key
    char_bytes = 1 if text.isascii() else _WIDE_CHAR_BYTES
    return _ENTRY_BYTES + len(salt) + char_bytes * len(text) + _ID_BYTES * len(ids)
