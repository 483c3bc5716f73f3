"""How much work a conversation is, found without rendering it."""

import pytest

from warmfleet_contracts.errors import PromptTooLongError
from warmfleet_contracts.prompts import encoder as encoder_module
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.prompt_size import INLINE_CHARS, MESSAGE_CHARS, conversation_chars
from warmfleet_testing.engine.prompt_oracles import tiny_encoder


def test_messages_without_content_are_work_too():
    empty, long = ChatMessage("assistant", ""), ChatMessage("user", "a" * INLINE_CHARS)

    assert conversation_chars([ChatMessage("user", "hello")]) < INLINE_CHARS
    assert conversation_chars([long]) > INLINE_CHARS
    assert conversation_chars([empty] * (INLINE_CHARS // MESSAGE_CHARS + 1)) > INLINE_CHARS


def test_a_conversation_of_more_messages_than_the_context_has_tokens_is_not_rendered(monkeypatch):
    encoder, message = tiny_encoder(), ChatMessage("assistant", "")
    limit_tokens = len(encoder.encode_chat([message] * 10))
    assert encoder.encode_chat([message] * 10, limit_tokens=limit_tokens)

    def must_not_render(*_args: object, **_options: object) -> str:
        raise AssertionError

    monkeypatch.setattr(encoder_module.ChatTemplate, "render", must_not_render)
    with pytest.raises(PromptTooLongError):
        encoder.encode_chat([message] * (limit_tokens + 1), limit_tokens=limit_tokens)
