"""One answer of a router, read no further than its bound."""

import httpx


def router_url(ip: str, port: int, path: str) -> str:
    """Where the router of that pod answers."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{port}{path}"


async def bounded_answer(client: httpx.AsyncClient, url: str, token: str, most_bytes: int) -> bytes:
    """The body of a router's answer.

    Raises:
        ValueError: another status than 200, or a body of more than `most_bytes`.
        httpx.HTTPError: no answer.
    """
    content = bytearray()
    async with client.stream("GET", url, headers={"authorization": f"Bearer {token}"}) as response:
        if response.status_code != 200:
            raise ValueError(f"answers {response.status_code}")
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > most_bytes:
                raise ValueError(f"answers more than {most_bytes} bytes")
    return bytes(content)
