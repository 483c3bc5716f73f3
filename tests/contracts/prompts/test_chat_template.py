"""Chat templates: what they are offered, what they must not do, and how large their result may be."""

import pytest

from warmfleet_contracts.errors import PromptError
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.prompt_oracles import tiny_encoder, user
from warmfleet_testing.engine.tiny_tokenizer import (
    tiny_prompt_assets,
)


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
