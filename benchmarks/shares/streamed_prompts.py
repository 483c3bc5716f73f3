"""Prompts that are answered at once, as streams, by a client that costs next to nothing."""

import asyncio
import json
from collections.abc import Sequence

import httpx


async def streamed(url: str, model: str, prompts: Sequence[Sequence[int]], output_tokens: int) -> float:
    """Seconds until all prompts are answered greedily, with so many tokens each.

    The client reads bytes and looks at them afterwards: what it computes meanwhile, the engine lacks.
    """
    loop = asyncio.get_running_loop()
    address = httpx.URL(url)

    async def one(prompt: Sequence[int]) -> bytes:
        body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
        stream = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        content = json.dumps({**body, **stream})
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write((head + content).encode())
        answer = await reader.read()
        writer.close()
        return answer

    start = loop.time()
    answers = await asyncio.gather(*map(one, prompts))
    seconds = loop.time() - start
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:400]
        assert answer.count(b"\ndata: {") > 1
        assert f'"completion_tokens":{output_tokens}'.encode() in answer.replace(b" ", b"")
    return seconds
