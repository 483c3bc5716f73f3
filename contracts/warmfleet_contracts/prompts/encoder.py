"""From messages or text to token ids, by the same code in router and worker.

Text of a user never becomes a control token. Two encodings guarantee that:

- If the rendered prompt holds the template's own control tokens and no others, it is encoded as one
  string, exactly as `transformers` does.
- Otherwise the conversation is rendered again with marks (a private-use character that it does not hold)
  inside the user's text, so that only the template's control tokens are still whole. These get random
  names, the marks are removed, and a second tokenizer, which has the control tokens under those names only,
  encodes the text as one string. Merges across turns stay as they are; the user's `<|im_end|>` is
  plain text.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import tokenizers

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import PromptError, PromptTooLongError
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.chat_template import MAX_RENDERED_CHARS, ChatTemplate
from warmfleet_contracts.prompts.segment_memory import Encode, SaltedSegments
from warmfleet_contracts.prompts.token_bound import TokenBound
from warmfleet_contracts.prompts.word_table import WordTable, large_chunks

_PRIVATE_USE: Final = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))
"""No filter of a template and no normalizer changes these characters."""
_MARKED_CHARS_PER_CHAR: Final = 3
"""A typed character gets at most a mark before and one after it."""
_NAME_START: Final = 0xF0000
_NONCE_CHARS: Final = 12
"""12 private-use characters: 204 bits that no request can guess."""

_CACHING_MODELS: Final = (tokenizers.models.BPE, tokenizers.models.Unigram)
"""Models of the library that cache the ids of words."""

_ROLE: Final = re.compile(r"\w{1,64}")
_NO_LITERAL: Final = re.compile(r"(?!)")
_CUT: Final = re.compile(r"[A-Za-z] ")
"""Where text is cut for encoding it in pieces."""


class PromptEncoder:
    """Renders and encodes the prompts of one model. Immutable; safe to share between threads.

    encoder = PromptEncoder(assets)
    token_ids = encoder.encode_chat([ChatMessage("user", "Name three rivers.")])
    text = encoder.decode(token_ids)
    """

    tokenizer: tokenizers.Tokenizer
    """The model's own tokenizer, for decoding. Encoding goes through `encode_chat` and `encode_text`."""
    tokenizer_digest: str
    """SHA-256 in hex over everything in the assets: the digest in `GET /internal/tokenizer/{digest}`."""
    vocabulary_size: int
    """Token ids are below this; the model's embedding may be larger."""

    def __init__(self, assets: PromptAssets, *, max_rendered_chars: int = MAX_RENDERED_CHARS) -> None:
        self._max_chars = max_rendered_chars
        self._chat_template = (
            None
            if assets.chat_template is None
            else ChatTemplate(assets.chat_template, assets.special_tokens)
        )
        self._description = _tokenizer_description(assets.tokenizer_json)
        self.tokenizer = _build_tokenizer(self._description)
        self.vocabulary_size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.tokenizer_digest = assets.digest.hex()

        self._control_ids = _control_tokens(self._description)
        self._any_literal = _literal_pattern(self._control_ids)
        # No literal can start or end in text without one of these characters.
        self._literal_edge = _character_pattern(
            {edge for literal in self._control_ids for edge in (literal[0], literal[-1])}
        )
        unknown_token = self._description["model"].get("unk_token")
        # A character outside the vocabulary is "unknown" wherever it stands, which injects nothing.
        self._watched_ids = frozenset(self._control_ids.values()) - {self._control_ids.get(unknown_token)}
        self._words = WordTable.of(self._description, self.tokenizer.model, self._tokenize)
        self._bound = TokenBound.of(self._description)
        self._hidden = self._new_hidden_tokenizer()
        self._bos_ids = [_bos_id(self.tokenizer, assets)] if assets.add_bos else []

    @classmethod
    def from_assets(
        cls, assets: PromptAssets, *, max_rendered_chars: int = MAX_RENDERED_CHARS
    ) -> "PromptEncoder":
        """Build from a worker's assets; raises PromptError for assets that cannot be used."""
        return cls(assets, max_rendered_chars=max_rendered_chars)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, generation prompt included; raises PromptError."""
        return self._render(messages, self._max_chars)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        segments: SaltedSegments | None = None,
        limit_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of the conversation, generation prompt included; `segments` only makes it faster.

        Control ids come from the template only, never from the messages. Raises PromptError if the template
        refuses the conversation or the text is too long, PromptTooLongError as soon as it is known that there
        are more than `limit_tokens`. More messages than that are not rendered at all.
        """
        if limit_tokens is not None and len(messages) > limit_tokens:
            raise PromptTooLongError
        rendered = self._render(messages, self._max_chars)
        self._require_bound(rendered, limit_tokens)
        typed = "\n".join(message.content for message in messages)
        hidden = self._hidden_tokenizer(typed)
        mark, marked = "", rendered
        if self._literal_edge.search(typed) is not None:
            mark = _unused_mark(rendered)
            marked = self._render(
                [ChatMessage(message.role, hidden.mark_text(message.content, mark)) for message in messages],
                self._max_chars * _MARKED_CHARS_PER_CHAR,
            )
        templates_own = self._watched_literals(marked)
        if templates_own == self._watched_literals(rendered):
            token_ids = self._encode(rendered, segments, limit_tokens)
            # A normalizer can turn look-alikes into a literal that the text does not show.
            if len(list(filter(self._watched_ids.__contains__, token_ids))) <= len(templates_own):
                return token_ids
        return hidden.encode(marked, mark, limit_tokens)

    def encode_text(
        self, text: str, segments: SaltedSegments | None = None, limit_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a completion prompt: BOS if the model wants one, otherwise never a control token.

        Raises PromptError if the text is too long, PromptTooLongError as `encode_chat` does.
        """
        if len(text) > self._max_chars:
            raise PromptError(f"the prompt has {len(text)} characters, the limit is {self._max_chars}")
        self._require_bound(text, limit_tokens)
        token_ids = self._encode(text, segments, limit_tokens)
        if not self._watched_ids.isdisjoint(token_ids):
            token_ids = self._hidden_tokenizer(text).encode_plain(text, limit_tokens)
        return self._bos_ids + token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, control tokens left out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def _render(self, messages: Sequence[ChatMessage], max_chars: int) -> str:
        if self._chat_template is None:
            raise PromptError("this model has no chat template; use /v1/completions")
        if not messages:
            raise PromptError("a conversation needs at least one message")
        for message in messages:
            # Some templates build control tokens around the role (`<|` role `|>`), so it is a bare word.
            if _ROLE.fullmatch(message.role) is None:
                raise PromptError("a message's role must be a word of at most 64 letters")
        return self._chat_template.render(messages, max_chars=max_chars)

    def _require_bound(self, text: str, limit_tokens: int | None) -> None:
        if limit_tokens is None or self._bound is None or len(text) <= limit_tokens:
            return
        if self._bound.least_tokens(text) > limit_tokens:
            raise PromptTooLongError

    def _encode(self, text: str, segments: SaltedSegments | None, limit_tokens: int | None) -> list[int]:
        if self._words is None:
            return self._tokenize(text)
        if segments is None:
            return self._words.encode(text, limit_tokens=limit_tokens)

        def recall(segment: str, encode: Encode) -> Sequence[int]:
            return segments.encode(self.tokenizer_digest, segment, encode)

        return self._words.encode(text, recall, limit_tokens, segments.words(self.tokenizer_digest))

    def _tokenize(self, text: str) -> list[int]:
        return _encode(self.tokenizer, text)

    def _watched_literals(self, text: str) -> list[int]:
        ids = (self._control_ids[literal] for literal in self._any_literal.findall(text))
        return [token_id for token_id in ids if token_id in self._watched_ids]

    def _hidden_tokenizer(self, typed: str) -> "_HiddenTokenizer":
        hidden = self._hidden
        while hidden.is_named_in(typed):
            hidden = self._new_hidden_tokenizer()
        return hidden

    def _new_hidden_tokenizer(self) -> "_HiddenTokenizer":
        ordinary = {
            token["content"] for token in self._description.get("added_tokens") or []
        } - self._control_ids.keys()
        may_cut = self._words is not None and not any(map(_CUT.search, ordinary))
        return _HiddenTokenizer(self._description, self._control_ids, large_chunks if may_cut else _whole)


class _HiddenTokenizer:
    """The same tokenizer, with its control tokens under random names."""

    def __init__(
        self, description: dict[str, Any], control_ids: dict[str, int], cut: Callable[[str], Iterable[str]]
    ) -> None:
        """`cut` makes pieces of a text that can be encoded one by one."""
        self._cut = cut
        self._name_prefix = "".join(chr(secrets.choice(_PRIVATE_USE)) for _ in range(_NONCE_CHARS))
        self._names = {
            literal: self._name_prefix + chr(_NAME_START + position)
            for position, literal in enumerate(control_ids)
        }
        self._tokenizer = _build_tokenizer(_rename_tokens(description, self._names))
        self._literals = _literal_pattern(control_ids)
        self._first_chars = {literal[0] for literal in control_ids}
        self._last_chars = {literal[-1] for literal in control_ids}

    def is_named_in(self, text: str) -> bool:
        return self._name_prefix in text

    def mark_text(self, text: str, mark: str) -> str:
        """`text`, marked so that no control-token literal starts or ends in it in any template."""
        for char in self._first_chars:
            text = text.replace(char, char + mark)
        for char in self._last_chars:
            text = text.replace(char, mark + char)
        return text

    def encode(self, marked: str, mark: str, limit_tokens: int | None = None) -> list[int]:
        """Ids of `marked` without its marks; only literals that hold no mark are control tokens."""
        text: list[str] = []
        end = 0
        for found in self._literals.finditer(marked):
            text += (marked[end : found.start()].replace(mark, ""), self._names[found.group()])
            end = found.end()
        text.append(marked[end:].replace(mark, ""))
        return self.encode_plain("".join(text), limit_tokens)

    def encode_plain(self, text: str, limit_tokens: int | None = None) -> list[int]:
        if limit_tokens is None:
            return _encode(self._tokenizer, text)
        token_ids: list[int] = []
        for piece in self._cut(text):
            token_ids += _encode(self._tokenizer, piece)
            if len(token_ids) > limit_tokens:
                raise PromptTooLongError
        return token_ids


def _tokenizer_description(tokenizer_json: str) -> dict[str, Any]:
    try:
        description = msgspec.json.decode(tokenizer_json, type=dict[str, Any])
        model = description["model"]
        model["vocab"]  # a missing vocabulary must fail here, by name
    except (*UNDECODABLE, KeyError, TypeError) as error:
        raise PromptError(f"tokenizer.json is not a tokenizer: {error!r}") from error
    # Prompts are bounded by their own limits; a tokenizer that cuts or pads silently changes them.
    return {**description, "truncation": None, "padding": None}


def _build_tokenizer(description: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(description))
    except Exception as error:  # tokenizers raises bare Exception
        raise PromptError(f"tokenizer.json cannot be loaded: {error}") from error
    if isinstance(tokenizer.model, _CACHING_MODELS):
        # Words encoded for one tenant would be twice as fast for the next, which could measure that.
        tokenizer.model._resize_cache(0)  # noqa: SLF001 - the only switch there is; the JSON's is ignored
    return tokenizer


def _whole(text: str) -> Iterable[str]:
    return (text,)


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        # The only call that lets other threads run meanwhile, and the fastest: it keeps no offsets.
        token_ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except (UnicodeError, TypeError) as error:  # lone surrogates
        raise PromptError("the prompt is not valid Unicode text") from error
    return token_ids


def _control_tokens(description: dict[str, Any]) -> dict[str, int]:
    """Literal -> id of every added token that text could be mistaken for.

    Runs of white space and single characters, which some vocabularies add, are ordinary text.
    """
    return {
        token["content"]: token["id"]
        for token in description.get("added_tokens") or []
        if len(token["content"].strip()) > 1
    }


def _literal_pattern(literals: dict[str, int]) -> re.Pattern[str]:
    """Leftmost, longest match of any literal, as tokenizers splits."""
    if not literals:
        return _NO_LITERAL
    return re.compile("|".join(re.escape(literal) for literal in sorted(literals, key=len, reverse=True)))


def _character_pattern(characters: set[str]) -> re.Pattern[str]:
    if not characters:
        return _NO_LITERAL
    return re.compile("[" + "".join(re.escape(character) for character in sorted(characters)) + "]")


def _rename_tokens(description: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """`description` with each token of `names` renamed wherever the tokenizer could find it by its text."""
    model = dict(description["model"])
    vocabulary = model["vocab"]
    model["vocab"] = (
        {names.get(token, token): token_id for token, token_id in vocabulary.items()}
        if isinstance(vocabulary, dict)
        else [[names.get(token, token), score] for token, score in vocabulary]
    )
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    added_tokens = [
        # A name is found as it is written: a normalizer that prepends to it would hide it.
        {**token, "content": names[token["content"]], "normalized": False}
        if token["content"] in names
        else token
        for token in description.get("added_tokens") or []
    ]
    # The post-processor only adds BOS and the like, by their old names; prompts here never use it.
    return {**description, "model": model, "added_tokens": added_tokens, "post_processor": None}


def _unused_mark(text: str) -> str:
    used = set(text)  # once: a search per character would take minutes for a long prompt
    mark = next((mark for mark in map(chr, _PRIVATE_USE) if mark not in used), None)
    if mark is None:
        raise PromptError(f"the prompt uses all {len(_PRIVATE_USE)} private-use characters; one must be free")
    return mark


def _bos_id(tokenizer: tokenizers.Tokenizer, assets: PromptAssets) -> int:
    token_id: int | None = tokenizer.token_to_id(assets.special_tokens.get("bos_token", ""))
    if token_id is None:
        raise PromptError("the model wants a BOS token, but its tokenizer does not name one")
    return token_id
