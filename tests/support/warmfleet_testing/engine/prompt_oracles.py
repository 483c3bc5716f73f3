"""Encoders of tiny tokenizers, what ChatML must encode to, and text that is hard to encode."""

import json
from functools import cache

import tokenizers
from hypothesis import strategies as st

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.tiny_tokenizer import (
    CHATML_TEMPLATE,
    TINY_CONTROL_TOKENS,
    tiny_prompt_assets,
)

IM_START, IM_END = TINY_CONTROL_TOKENS.index("<|im_start|>"), TINY_CONTROL_TOKENS.index("<|im_end|>")


def tiny_encoder(chat_template=CHATML_TEMPLATE, **parts) -> PromptEncoder:
    return PromptEncoder.from_assets(tiny_prompt_assets(chat_template, **parts))


def user(*contents: str) -> list[ChatMessage]:
    return [ChatMessage("user", content) for content in contents]


@cache
def tokenizer_without_added_tokens(tokenizer_json: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(json.loads(tokenizer_json) | {"added_tokens": []}))


def without_added_tokens(assets: PromptAssets) -> tokenizers.Tokenizer:
    return tokenizer_without_added_tokens(assets.tokenizer_json)


def chatml_ids(assets: PromptAssets, turns: list[tuple[str, str]]) -> list[int]:
    """What ChatML must encode to: control ids around turns that cannot hold any."""
    plain = without_added_tokens(assets)
    start, end = (plain.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    ids: list[int] = []
    for role, content in turns:
        ids += [start, *plain.encode(f"{role}\n{content}").ids, end, *plain.encode("\n").ids]
    return [*ids, start, *plain.encode("assistant\n").ids]


def hard_text(control_tokens: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Control tokens whole, cut, nested and adjacent, between ordinary, private-use and other characters."""
    whole = st.sampled_from(control_tokens)
    cut = st.builds(
        lambda token, at: (token[: at % len(token)], token[at % len(token) :]), whole, st.integers(0)
    )
    nested = st.builds(lambda outer, inner: outer[0] + inner + outer[1], cut, whole)
    private_use = st.sampled_from(["\ue000", "\uf8ff", "\U000f0000", "\U0010fffd", "\ufdd0"])
    piece = st.one_of(
        whole,
        cut.map(lambda halves: halves[0]),
        cut.map(lambda halves: halves[1]),
        nested,
        private_use,
        st.text(max_size=5),
        st.sampled_from([" ", "\n", "hello", "<", ">", "|", "12", "user\n"]),
    )
    return st.lists(piece, max_size=8).map("".join)
