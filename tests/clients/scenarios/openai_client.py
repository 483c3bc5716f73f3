"""The OpenAI SDK as scenarios see it: one client, sync or async, behind the same calls."""

import uuid
from dataclasses import dataclass, replace
from typing import Any

from suite import each, settled


@dataclass(frozen=True)
class Sdk:
    """One client and the model that it asks for."""

    client: Any
    base_url: str
    model: str
    other_key: str
    """May not call the model."""
    narrow_key: str
    """May have one request in flight."""

    def with_key(self, key: str) -> "Sdk":
        """The same client with another key."""
        return replace(self, client=self.client.with_options(api_key=key))

    async def chat(self, text: str = "Say something.", **fields: Any) -> Any:
        """A chat answer, or a stream of its chunks; greedy and short by default."""
        fields = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8} | fields
        return await settled(self.client.chat.completions.create(model=self.model, **fields))

    async def chat_chunks(self, text: str = "Say something.", **fields: Any) -> list[Any]:
        """All chunks of a streamed chat answer."""
        return [chunk async for chunk in each(await self.chat(text, stream=True, **fields))]

    async def complete(self, prompt: Any = "Once upon", **fields: Any) -> Any:
        """A text completion, or a stream of its chunks."""
        fields = {"temperature": 0, "max_tokens": 8} | fields
        return await settled(self.client.completions.create(model=self.model, prompt=prompt, **fields))

    async def token_ids(self, text: str) -> list[int]:
        """Ids of a text, from the server's own route beside OpenAI's."""
        url = self.base_url.removesuffix("/v1") + "/tokenize"
        body = {"model": self.model, "prompt": text}
        answer = await settled(self.client.post(url, body=body, cast_to=object))
        return answer["tokens"]

    @staticmethod
    def new_text(length: int = 200) -> str:
        """So many characters, each of them a token here, whose beginning no request has sent before."""
        return (uuid.uuid4().hex + " a quick brown fox jumps at dawn" * length)[:length]


def chunk_text(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a chat stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)
