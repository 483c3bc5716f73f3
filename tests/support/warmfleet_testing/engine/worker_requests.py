"""Requests that tests send to a worker of the tiny model."""

import secrets

from warmfleet_testing.engine.worker_process import TINY_NAME

CHAT = "/v1/chat/completions"


def fresh_text(chars: int = 64) -> str:
    """Text that no test has sent before."""
    return secrets.token_hex(chars // 2)


def chat_body(text: str | None = None, **fields: object) -> dict[str, object]:
    return {
        "model": TINY_NAME,
        "messages": [{"role": "user", "content": text or fresh_text()}],
        "max_tokens": 8,
        "temperature": 0,
        **fields,
    }
