"""Prompts that are answered at once, as streams, by a client that costs next to nothing."""

import json
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Final

import httpx

TIMEOUT_SECONDS: Final = 60


def streamed(url: str, model: str, prompts: Sequence[Sequence[int]], output_tokens: int) -> float:
    """Seconds until all prompts are answered greedily, with so many tokens each.

    The client has no event loop, and looks at what it reads afterwards: what it computes meanwhile, the
    engine lacks.
    """
    address = httpx.URL(url)
    answers: dict[socket.socket, list[bytes]] = {}
    with selectors.DefaultSelector() as selector:
        start = time.perf_counter()
        for prompt in prompts:
            body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
            stream = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
            content = json.dumps({**body, **stream})
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            connection = socket.create_connection((address.host, address.port or 80), TIMEOUT_SECONDS)
            connection.sendall((head + content).encode())
            answers[connection] = []
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(TIMEOUT_SECONDS)
            if not ready:
                raise TimeoutError(f"nothing came for {TIMEOUT_SECONDS} s")
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                part = connection.recv(65_536)
                answers[connection].append(part)
                if not part:
                    selector.unregister(connection)
                    connection.close()
        seconds = time.perf_counter() - start
    for parts in answers.values():
        answer = b"".join(parts)
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:400]
        assert answer.count(b"\ndata: {") > 1
        assert f'"completion_tokens":{output_tokens}'.encode() in answer.replace(b" ", b"")
    return seconds
