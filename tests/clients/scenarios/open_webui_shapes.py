"""What Open WebUI sends to an OpenAI connection, and what it reads of the answers.

After backend/open_webui/routers/openai.py at commit 671f577; the application is too heavy to install for it.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
from suite import Suite, target

SUITE = Suite()
SETTINGS = {
    "temperature": 0.8,
    "top_p": 0.9,
    "frequency_penalty": 0.1,
    "seed": 42,
    "stop": ["never generated"],
    "max_tokens": 8,
    "logit_bias": {"40": 1},
    "reasoning_effort": "medium",
}
"""What a model's advanced parameters put into the body."""
TITLE = {"stream": False, "max_tokens": 8, "messages": [{"role": "user", "content": "A title, please."}]}


@dataclass(frozen=True)
class WebUi:
    """One session per request there; one for all here."""

    session: aiohttp.ClientSession
    base_url: str
    model: str

    async def post(self, body: dict[str, Any]) -> aiohttp.ClientResponse:
        data = json.dumps({"model": self.model, **body})
        return await self.session.post(f"{self.base_url}/chat/completions", data=data)


@SUITE.scenario(requests=1)
async def the_connection_is_verified_and_lists_models(webui: WebUi) -> None:
    async with webui.session.get(f"{webui.base_url}/models") as response:
        models = (await response.json())["data"]
    assert response.status == 200
    assert [model["id"] for model in models] == [webui.model]


@SUITE.scenario(requests=1)
async def a_chat_is_streamed_with_a_models_settings(webui: WebUi) -> None:
    messages = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    body = {"stream": True, "messages": messages, "stream_options": {"include_usage": True}, **SETTINGS}
    async with await webui.post(body) as response:
        assert response.status == 200
        assert "text/event-stream" in response.headers["Content-Type"]
        lines = (await response.text()).split("\n")
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    assert json.loads(events[-1])["usage"]["completion_tokens"] > 0


@SUITE.scenario(requests=1)
async def a_title_is_asked_for_without_a_stream(webui: WebUi) -> None:
    async with await webui.post(TITLE) as response:
        answer = await response.json()
    assert answer["choices"][0]["message"]["content"] is not None


@SUITE.scenario(requests=1)
async def a_pipelines_user_object_changes_nothing(webui: WebUi) -> None:
    user = {"name": "Ann", "id": "1", "email": "ann@example.org", "role": "user"}
    async with await webui.post({**TITLE, "user": user}) as response:
        assert response.status == 200, await response.text()


@SUITE.scenario(requests=1)
async def a_refusal_is_json_whose_message_is_shown(webui: WebUi) -> None:
    async with await webui.post({**TITLE, "stream": True, "temperature": 9}) as response:
        assert response.status == 400
        assert "temperature" in (await response.json())["error"]["message"]


async def main() -> None:
    given = target()
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {given.key}",
        "X-OpenWebUI-User-Name": "Ann%20Example",
        "X-OpenWebUI-User-Role": "user",
        "X-OpenWebUI-Chat-Id": "c1",
    }
    async with aiohttp.ClientSession(trust_env=True, headers=headers) as session:
        await SUITE.run(WebUi(session, given.base_url, given.model))


if __name__ == "__main__":
    asyncio.run(main())
