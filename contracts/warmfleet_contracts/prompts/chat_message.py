"""One message of a conversation, apart from template and tokenizer: who decodes requests needs neither."""

import msgspec


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation, its content as one text."""

    role: str
    content: str
