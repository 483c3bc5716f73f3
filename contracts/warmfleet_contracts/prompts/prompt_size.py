"""How much work a prompt is, known before it is encoded: much of it is kept from event loops."""

from collections.abc import Sequence
from typing import Final

from warmfleet_contracts.prompts.chat_message import ChatMessage

INLINE_CHARS: Final = 16_384
"""Longer prompts are encoded in a thread, so that live streams do not wait for them: 1 ms of English."""
MESSAGE_CHARS: Final = 256
"""What a message costs beside its content, in characters of English: to render what the template puts around
it, and to find the control tokens there, takes some 15 us."""


def conversation_chars(messages: Sequence[ChatMessage]) -> int:
    """Size of a conversation, in characters of one text that would take as long."""
    return sum(len(message.content) for message in messages) + MESSAGE_CHARS * len(messages)
