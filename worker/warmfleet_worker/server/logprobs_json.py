"""Log probabilities in OpenAI's two shapes, for chat and for text completion."""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from warmfleet_worker.server.answer_tokens import AnswerToken
from warmfleet_worker.server.token_texts import TokenTexts

LEAST_LOGPROB: Final = -9999.0
"""For a token of probability 0, as in OpenAI's answers: JSON has no infinity."""

_encode: Final = msgspec.json.Encoder().encode


def chat_logprobs(tokens: Sequence[AnswerToken], texts: TokenTexts) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer."""
    return {"content": [_chat_entry(token, texts) for token in tokens], "refusal": None}


def completion_logprobs(tokens: Sequence[AnswerToken], texts: TokenTexts) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion."""
    return {
        "tokens": [texts[token.token_id].text for token in tokens],
        "token_logprobs": [
            None if token.score is None else representable(token.score.logprob) for token in tokens
        ],
        "top_logprobs": [_by_text(token, texts) for token in tokens],
        "text_offset": [token.text_offset for token in tokens],
    }


def representable(logprob: float) -> float:
    """The value, or `LEAST_LOGPROB` for what is below it or no number."""
    return max(logprob, LEAST_LOGPROB) if math.isfinite(logprob) else LEAST_LOGPROB


def _chat_entry(token: AnswerToken, texts: TokenTexts) -> msgspec.Raw:
    """Encoded at once: an answer of many thousand tokens would be large as Python objects."""
    assert token.score is not None, "a chat answer echoes no prompt"
    top = zip(token.score.top_token_ids, token.score.top_logprobs, strict=True)
    return msgspec.Raw(
        _encode(
            {
                **_one(token.token_id, token.score.logprob, texts),
                "top_logprobs": [_one(token_id, logprob, texts) for token_id, logprob in top],
            }
        )
    )


def _one(token_id: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    text, content = texts[token_id]
    return {"token": text, "logprob": representable(logprob), "bytes": list(content)}


def _by_text(token: AnswerToken, texts: TokenTexts) -> msgspec.Raw | None:
    """The most likely tokens, the best first, then the token itself unless it is one of them.

    Of tokens with the same text the most likely is kept.
    """
    if token.score is None:
        return None
    by_text: dict[str, float] = {}
    for token_id, logprob in zip(token.score.top_token_ids, token.score.top_logprobs, strict=True):
        by_text.setdefault(texts[token_id].text, representable(logprob))
    by_text.setdefault(texts[token.token_id].text, representable(token.score.logprob))
    return msgspec.Raw(_encode(by_text))
