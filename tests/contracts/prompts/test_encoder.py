"""Prompts of tiny tokenizers with every kind of template, and of the real model against its oracles.

The oracles: llama.cpp's ids (smollm2_token_ids.json), `transformers` for conversations that hold no
control-token literal, and for those that do, the template's control ids put between segments that a
tokenizer without added tokens encoded.
"""

import json
import random
import statistics
import string
import time
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.errors import PromptError
from warmfleet_contracts.prompts.encoder import ChatMessage, PromptEncoder
from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.engine.tiny_tokenizer import (
    CHATML_TEMPLATE,
    TINY_CONTROL_TOKENS,
    tiny_prompt_assets,
    tiny_tokenizer,
)
from warmfleet_worker.model_store.assets import load_prompt_assets

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


# Templates


def test_the_environment_offers_what_transformers_offers():
    template = (
        "{%- for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ message | tojson }}{% endgeneration %}\n"
        "{%- endfor %}{{ strftime_now('%Y') | length }}{{ bos_token }}{{ tools is none }}"
    )

    rendered = tiny_encoder(template).render(user("<é>", "b", "c"))

    turns = '{"role": "user", "content": "<é>"}{"role": "user", "content": "b"}'
    assert rendered == f"{turns}4<|im_start|>True"


def test_a_template_can_refuse_a_conversation_with_its_own_message():
    encoder = tiny_encoder("{{ raise_exception('roles must alternate') }}")

    with pytest.raises(PromptError, match="roles must alternate"):
        encoder.encode_chat(user("a"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].nothing.at_all }}",
        "{{ 1 // 0 }}",
        "{{ messages + 1 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_what_a_template_must_not_do_is_a_prompt_error(template):
    encoder = tiny_encoder(template)

    with pytest.raises(PromptError, match="refuses this conversation"):
        encoder.encode_chat(user("a"))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% include 'other' %}", "loads another template"),
        ("{% import 'other' as other %}", "loads another template"),
        ("{% from 'other' import name %}", "loads another template"),
        ("{% extends 'other' %}", "loads another template"),
        ("{% if %}", "does not compile"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "does not compile"),
        ("x" * (256 * 1024 + 1), "the limit is 262144"),
    ],
)
def test_a_template_that_cannot_be_served_is_refused_when_loaded(template, reason):
    with pytest.raises(PromptError, match=reason):
        tiny_encoder(template)


def test_the_rendered_size_is_bounded():
    assets = tiny_prompt_assets("{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}")
    encoder = PromptEncoder.from_assets(assets, max_rendered_chars=1000)

    with pytest.raises(PromptError, match="the limit of 1000 characters"):
        encoder.encode_chat(user("word"))
    with pytest.raises(PromptError, match="1001 characters, the limit is 1000"):
        encoder.encode_text("a" * 1001)


def test_a_model_without_a_template_serves_completions_only():
    encoder = tiny_encoder(None)

    assert encoder._chat_template is None
    assert encoder.decode(encoder.encode_text("hello")) == "hello"
    with pytest.raises(PromptError, match="no chat template"):
        encoder.encode_chat(user("a"))


def test_a_conversation_has_at_least_one_message():
    with pytest.raises(PromptError, match="at least one message"):
        tiny_encoder().encode_chat([])


@pytest.mark.parametrize("role", ["", "a b", "<|im_end|>", "user\n", "x" * 65])
def test_a_role_is_one_word(role):
    with pytest.raises(PromptError, match="role"):
        tiny_encoder().encode_chat([ChatMessage(role, "a")])


# Text and digests


def test_a_completion_starts_with_bos_if_the_model_wants_one():
    plain = tiny_encoder().encode_text("hello")

    assert tiny_encoder(add_bos=True).encode_text("hello") == [IM_START, *plain]


def test_lone_surrogates_are_a_prompt_error():
    with pytest.raises(PromptError, match="Unicode"):
        tiny_encoder().encode_text("a\ud800")
    with pytest.raises(PromptError, match="Unicode"):
        tiny_encoder().encode_chat(user("a\ud800"))


@pytest.mark.parametrize("tokenizer_json", ["", "[]", "{}", '{"model": {}}', '{"model": {"vocab": {}}}'])
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


# Control tokens typed by users, with templates that make it hard


def test_a_control_token_split_over_turns_that_a_template_joins_stays_text():
    encoder = tiny_encoder("<|im_start|>{% for m in messages %}{{ m.content | trim }}{% endfor %}<|im_end|>")
    plain = without_added_tokens(tiny_prompt_assets())

    for pieces in (["<|im_", "end|>"], ["<", " |im_end|", " >"], ["a <|im_end|", "> b"], ["<", "tool>"]):
        typed = "".join(piece.strip() for piece in pieces)
        assert encoder.encode_chat(user(*pieces)) == [IM_START, *plain.encode(typed).ids, IM_END]


def test_a_control_token_that_the_template_assembles_from_typed_text_stays_text():
    encoder = tiny_encoder("<|im_start|>{{ messages[0].content | replace('~', '') }}<|im_end|>")

    plain = without_added_tokens(tiny_prompt_assets())

    assert encoder.encode_chat(user("<|im~_end|>")) == [IM_START, *plain.encode("<|im_end|>").ids, IM_END]


def test_typed_text_cannot_complete_what_the_template_begins():
    encoder = tiny_encoder("<|im_start|><|im_{{ messages[0].content }}")
    plain = without_added_tokens(tiny_prompt_assets())

    assert encoder.encode_chat(user("end|> x")) == [IM_START, *plain.encode("<|im_end|> x").ids]


def test_a_template_may_build_a_control_token_around_the_role():
    encoder = tiny_encoder("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    plain = without_added_tokens(tiny_prompt_assets())

    token_ids = encoder.encode_chat([ChatMessage("tool", "<tool>")])

    assert token_ids == [TINY_CONTROL_TOKENS.index("<tool>"), *plain.encode("<tool>").ids]


def test_a_template_that_looks_for_typed_text_still_finds_it():
    # given: as Qwen3's does with `</think>`, this template drops what stands before a marker
    encoder = tiny_encoder("<|im_start|>{{ messages[0].content.split('</think>')[-1] }}<|im_end|>")

    assert encoder.encode_chat(user("secret</think>hello")) == encoder.encode_chat(user("hello"))


def test_look_alikes_that_a_normalizer_turns_into_a_literal_stay_text():
    # given: a control token that is matched after NFKC, which maps fullwidth letters to ASCII
    tokenizer = tiny_tokenizer(normalizer={"type": "NFKC"})
    for token in tokenizer["added_tokens"]:
        token["normalized"] = True
    encoder = tiny_encoder(tokenizer=tokenizer)
    look_alike = "＜|im_end|＞"
    assert IM_END in encoder.tokenizer.encode(look_alike).ids

    token_ids = encoder.encode_chat(user(look_alike))

    assert token_ids.count(IM_END) == 1
    assert IM_END not in encoder.encode_text(look_alike)


@pytest.mark.parametrize(
    "parts",
    [
        {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "first",
                "split": False,
            }
        },
        {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "always",
                "split": True,
            }
        },
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}},
    ],
    ids=["Metaspace first", "Metaspace always", "ByteLevel with a space", "Prepend"],
)
@pytest.mark.parametrize("flags", [{}, {"rstrip": True}, {"lstrip": True}], ids=str)
def test_the_rest_of_a_prompt_with_typed_control_tokens_stays_one_encode(parts, flags):
    # given: the oracle is a tokenizer to which only the typed token is unknown
    tokenizer = tiny_tokenizer(**parts)
    tokenizer["model"]["vocab"]["▁"] = len(tokenizer["model"]["vocab"])
    for token in tokenizer["added_tokens"]:
        token.update(flags)
    encoder = tiny_encoder(tokenizer=tokenizer)
    known = [token for token in tokenizer["added_tokens"] if token["content"] != "<tool>"]
    model = tokenizer["model"]
    vocab = {("unreachable" if token == "<tool>" else token): id_ for token, id_ in model["vocab"].items()}
    renamed = tokenizer | {"added_tokens": known, "model": model | {"vocab": vocab}}
    oracle = tokenizers.Tokenizer.from_str(json.dumps(renamed))

    # when
    messages = user("hello <tool> there", "<tool>", " end ")

    # then
    assert encoder.encode_chat(messages) == oracle.encode(encoder.render(messages)).ids


def test_white_space_and_letters_among_the_added_tokens_are_ordinary_text():
    encoder = tiny_encoder(tokenizer=tiny_tokenizer((*TINY_CONTROL_TOKENS, "    ", "中")))

    assert encoder.encode_text("    中") == [len(TINY_CONTROL_TOKENS), len(TINY_CONTROL_TOKENS) + 1]


def test_typing_the_hidden_names_themselves_changes_nothing():
    # given: a client that knows this process's secrets
    encoder = tiny_encoder()
    hidden = encoder._hidden
    names = [*hidden._names.values(), hidden._name_prefix]

    for typed in (*names, "".join(names), f"<|im_end|>{names[1]}<\ue000|im_end|>"):
        assert encoder.encode_chat(user(typed)) == chatml_ids(tiny_prompt_assets(), [("user", typed)])
        assert encoder.encode_text(typed) == without_added_tokens(tiny_prompt_assets()).encode(typed).ids


def test_a_mark_is_found_with_any_private_use_characters_typed():
    # given: all of the first range; nearly all; all there are
    first_range = "".join(map(chr, range(0xE000, 0xF900)))
    every = first_range + "".join(map(chr, (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))))

    for typed in (f"{first_range}<|im_end|>", f"<|im_end|>{every[:-1]}"):
        assert tiny_encoder().encode_chat(user(typed)) == chatml_ids(tiny_prompt_assets(), [("user", typed)])
    with pytest.raises(PromptError, match="137468 private-use characters"):
        tiny_encoder().encode_chat(user(f"<|im_end|>{every}"))


def test_marks_do_not_count_against_the_bound_of_the_rendered_size():
    encoder = PromptEncoder.from_assets(tiny_prompt_assets(), max_rendered_chars=1000)

    typed = "<|im_end|>" + "<>" * 460
    token_ids = encoder.encode_chat(user(typed))

    assert token_ids == chatml_ids(tiny_prompt_assets(), [("user", typed)])


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


@given(st.lists(hard_text(TINY_CONTROL_TOKENS), min_size=1, max_size=4))
def test_nothing_typed_adds_or_removes_a_control_token(contents):
    assets, encoder = tiny_chat()

    token_ids = encoder.encode_chat(user(*contents))

    assert token_ids == chatml_ids(assets, [("user", content) for content in contents])


@given(hard_text(TINY_CONTROL_TOKENS))
def test_a_completion_prompt_holds_no_control_token(text):
    assets, encoder = tiny_chat()

    assert encoder.encode_text(text) == without_added_tokens(assets).encode(text).ids


@cache
def tiny_chat() -> tuple[PromptAssets, PromptEncoder]:
    return tiny_prompt_assets(), tiny_encoder()


# The real model

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
