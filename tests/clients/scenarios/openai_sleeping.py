"""The OpenAI SDK against a model that sleeps: a plain answer and a stream, asked for at the same time."""

import asyncio
import json
import sys

import openai


async def main(base_url: str, model: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:

        async def streamed() -> int:
            stream = await client.chat.completions.create(model=model, messages=messages, stream=True)
            return len([chunk async for chunk in stream])

        plain, chunks = await asyncio.gather(
            client.completions.create(model=model, prompt="hello"),
            streamed(),
        )
    sys.stdout.write(json.dumps({"plain": bool(plain), "chunks": chunks}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
