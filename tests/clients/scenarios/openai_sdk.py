"""Every scenario of the OpenAI SDK, through its sync and its async client."""

import argparse
import asyncio
from typing import Any

import openai
import openai_chat
import openai_completions
import openai_errors
from openai_client import Sdk
from suite import target

SUITES = (openai_chat.SUITE, openai_completions.SUITE, openai_errors.SUITE)


async def main() -> None:
    given = target()
    options = {"base_url": given.base_url, "api_key": given.key, "max_retries": 0, "timeout": 30}
    with openai.OpenAI(**options) as client:
        for suite in SUITES:
            await suite.run(sdk_of(client, given), label="sync: ")
    async with openai.AsyncOpenAI(**options) as client:
        for suite in SUITES:
            await suite.run(sdk_of(client, given), label="async: ")


def sdk_of(client: Any, given: argparse.Namespace) -> Sdk:
    return Sdk(client, given.base_url, given.model, given.other_key, given.narrow_key)


if __name__ == "__main__":
    asyncio.run(main())
