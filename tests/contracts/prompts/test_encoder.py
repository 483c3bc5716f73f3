"""Prompts of tiny tokenizers: text, digests, and what is refused."""

import pytest

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.errors import PromptError
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.prompt_oracles import IM_START, tiny_encoder, user
from warmfleet_testing.engine.tiny_tokenizer import (
    CHATML_TEMPLATE,
    TINY_CONTROL_TOKENS,
    tiny_prompt_assets,
    tiny_tokenizer,
)


def test_a_completion_starts_with_bos_if_the_model_wants_one():
    plain = tiny_encoder().encode_text("hello")

    assert tiny_encoder(add_bos=True).encode_text("hello") == [IM_START, *plain]


def test_lone_surrogates_are_a_prompt_error():
    with pytest.raises(PromptError, match="Unicode"):
        tiny_encoder().encode_text("a\ud800")
    with pytest.raises(PromptError, match="Unicode"):
        tiny_encoder().encode_chat(user("a\ud800"))


@pytest.mark.parametrize(
    "tokenizer_json",
    ["", "[]", "{}", '{"model": {}}', '{"model": {"vocab": {}}}', '{"a":' * 5000],
    ids=["empty", "list", "nothing", "no vocabulary", "no type", "deep"],
)
def test_a_damaged_tokenizer_is_refused_when_loaded(tokenizer_json):
    with pytest.raises(PromptError, match=r"tokenizer\.json"):
        PromptEncoder.from_assets(
            PromptAssets(tokenizer_json=tokenizer_json, chat_template=None, special_tokens={})
        )


def test_a_tokenizer_that_cuts_or_pads_does_neither_here():
    tokenizer = tiny_tokenizer(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    )

    assert len(tiny_encoder(tokenizer=tokenizer).encode_text("abcdef")) == 6


def test_the_digest_names_every_part_of_the_assets():
    variants = [
        tiny_prompt_assets(),
        tiny_prompt_assets(CHATML_TEMPLATE + " "),
        tiny_prompt_assets(None),
        tiny_prompt_assets(""),
        tiny_prompt_assets(add_bos=True),
        tiny_prompt_assets(tokenizer=tiny_tokenizer((*TINY_CONTROL_TOKENS, "<more>"))),
        PromptAssets(
            tokenizer_json=tiny_prompt_assets().tokenizer_json,
            chat_template=CHATML_TEMPLATE,
            special_tokens={"bos_token": "<|im_start|>"},
        ),
    ]

    digests = [PromptEncoder.from_assets(assets).tokenizer_digest for assets in variants]

    assert len(set(digests)) == len(variants)
    assert PromptEncoder.from_assets(variants[0]).tokenizer_digest == digests[0]
