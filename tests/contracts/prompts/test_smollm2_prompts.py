"""Prompts of the real model against its oracles.

They are llama.cpp's ids (smollm2_token_ids.json), `transformers` for conversations that hold no control-token
literal, and for those that do, the template's control ids between segments that a tokenizer without added
tokens encoded.
"""

import json
import random
import statistics
import string
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.engine.prompt_oracles import (
    chatml_ids,
    hard_text,
)
from warmfleet_worker.model_store.assets import load_prompt_assets

DEFAULT_SYSTEM = ("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
SMOLLM2_CONTROL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>",
    "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>",
    "<jupyter_code>", "<jupyter_output>", "<jupyter_script>", "<empty_output>",
)  # fmt: skip

CONVERSATIONS = [
    [("user", "What is the capital of France?")],
    [("system", "Be brief."), ("user", "Hi")],
    [("system", ""), ("user", "Hi")],
    [("user", "")],
    [("user", "Hi"), ("assistant", "Hello!"), ("user", "And  12 more?"), ("assistant", ""), ("user", "ok")],
    [("user", "Hi"), ("system", "late system turn"), ("user", "again")],
    [("assistant", "I start")],
    [("user", "  spaces \t and\r\n lines\n\n"), ("assistant", "\n"), ("user", "a  12 b")],
    [("user", "Grüße 你好 👩‍👩‍👧 \u200b \ufeff")],
    [("user", "if (a < b && c > d) { return '<b>x</b>'; } |> <| im_end |>")],
    [("tool", '{"x": [1, 2.5e10]}'), ("developer", "1234567890 3.14 ²③")],
]  # fmt: skip


@cache
def real_chat() -> tuple[PromptAssets, PromptEncoder]:
    assets = load_prompt_assets(pulled_catalog_model())
    return assets, PromptEncoder.from_assets(assets)


@cache
def transformers_tokenizer():
    return AutoTokenizer.from_pretrained(pulled_catalog_model())


def transformers_chat(turns: list[tuple[str, str]], *, tokenize: bool):
    messages = [{"role": role, "content": content} for role, content in turns]
    encoded = transformers_tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, tokenize=tokenize
    )
    return encoded["input_ids"] if tokenize else encoded


def messages_of(turns: list[tuple[str, str]]) -> list[ChatMessage]:
    return [ChatMessage(role, content) for role, content in turns]


@pytest.mark.model
def test_288_strings_encode_as_in_llama_cpp_with_and_without_control_tokens():
    cases = json.loads((Path(__file__).parent / "smollm2_token_ids.json").read_text())["cases"]
    _, encoder = real_chat()

    assert len(cases) == 288
    for case in cases:
        assert encoder.tokenizer.encode(case["text"], add_special_tokens=False).ids == case["ids"], case
        assert encoder.encode_text(case["text"]) == case["ids_as_plain_text"], case


@pytest.mark.model
@pytest.mark.parametrize("turns", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
def test_conversations_render_and_encode_as_in_transformers(turns):
    _, encoder = real_chat()

    assert encoder.render(messages_of(turns)) == transformers_chat(turns, tokenize=False)
    assert encoder.encode_chat(messages_of(turns)) == transformers_chat(turns, tokenize=True)


ordinary_text = st.text(max_size=60).filter(
    lambda text: not any(token in text for token in SMOLLM2_CONTROL_TOKENS)
)


@pytest.mark.model
@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), ordinary_text), min_size=1, max_size=5
    )
)
def test_any_ordinary_conversation_renders_and_encodes_as_in_transformers(turns):
    _, encoder = real_chat()

    assert encoder.render(messages_of(turns)) == transformers_chat(turns, tokenize=False)
    assert encoder.encode_chat(messages_of(turns)) == transformers_chat(turns, tokenize=True)


@pytest.mark.model
def test_the_model_declares_exactly_these_control_tokens():
    assets, _ = real_chat()

    declared = [token["content"] for token in json.loads(assets.tokenizer_json)["added_tokens"]]

    assert tuple(declared) == SMOLLM2_CONTROL_TOKENS
    assert not assets.add_bos


@pytest.mark.model
@pytest.mark.parametrize("token", SMOLLM2_CONTROL_TOKENS)
def test_every_control_token_typed_by_a_user_is_plain_text(token):
    assets, encoder = real_chat()

    for typed in (token, f"a{token}b", token + token, f"{token[:3]}{token}{token[3:]}", f" {token}\n"):
        turns = [("user", typed), ("assistant", typed)]
        assert encoder.encode_chat(messages_of(turns)) == chatml_ids(assets, [DEFAULT_SYSTEM, *turns])
        assert min(encoder.encode_text(typed)) >= len(SMOLLM2_CONTROL_TOKENS)


@pytest.mark.model
@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), hard_text(SMOLLM2_CONTROL_TOKENS)),
        min_size=1,
        max_size=4,
    )
)
@example([("user", "<|im_"), ("assistant", "end|>")])
def test_nothing_typed_at_the_real_model_adds_or_removes_a_control_token(turns):
    assets, encoder = real_chat()

    assert encoder.encode_chat(messages_of(turns)) == chatml_ids(assets, [DEFAULT_SYSTEM, *turns])


# What is encoded leaves no trace.


@pytest.mark.model
def test_a_word_takes_as_long_the_second_time_as_the_first():
    """A tokenizer that remembers words reveals to one tenant, by its times, what another has sent."""
    encoder = PromptEncoder.from_assets(load_prompt_assets(pulled_catalog_model()))
    draw = random.Random(0)

    def cpu_seconds(text: str) -> float:
        start = time.process_time()
        encoder._hidden.encode_plain(text)
        return time.process_time() - start

    first, again = [], []
    for _ in range(15):
        text = " ".join("".join(draw.choices(string.ascii_lowercase, k=200)) for _ in range(100))
        first.append(cpu_seconds(text))
        again.append(cpu_seconds(text))

    # With the library's cache the quotient is above 2.
    assert statistics.median(first) / statistics.median(again) < 1.5
