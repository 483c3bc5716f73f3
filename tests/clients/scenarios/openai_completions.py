"""Text completions through the OpenAI SDK."""

from openai_client import Sdk
from suite import Suite, each

SUITE = Suite()


@SUITE.scenario(requests=1)
async def a_text_is_completed(sdk: Sdk) -> None:
    answer = await sdk.complete()
    (choice,) = answer.choices
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", sdk.model)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.text
    assert answer.usage.completion_tokens == 8
    for part in (answer, choice, answer.usage):
        assert not part.model_extra, (type(part).__name__, part.model_extra)


@SUITE.scenario(requests=1)
async def sixteen_tokens_are_the_default(sdk: Sdk) -> None:
    answer = await sdk.complete(max_tokens=None, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


@SUITE.scenario(requests=3)
async def a_list_of_texts_is_a_list_of_choices(sdk: Sdk) -> None:
    answer = await sdk.complete(["Once upon", "Far away"])
    alone = [(await sdk.complete(text)).choices[0].text for text in ("Once upon", "Far away")]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.text for choice in answer.choices] == alone


@SUITE.scenario(requests=4)
async def token_ids_are_the_text_that_they_stand_for(sdk: Sdk) -> None:
    ids = await sdk.token_ids("Once upon")
    text = (await sdk.complete("Once upon")).choices[0].text
    answer = await sdk.complete(ids)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.choices[0].text == text
    assert [choice.text for choice in (await sdk.complete([ids, ids])).choices] == [text, text]


@SUITE.scenario(requests=3)
async def echo_puts_the_prompt_first_plain_and_streamed(sdk: Sdk) -> None:
    prompt = "grüß dich 🙂"
    text = (await sdk.complete(prompt)).choices[0].text
    echoed = await sdk.complete(prompt, echo=True)
    stream = await sdk.complete(prompt, echo=True, stream=True)
    streamed = "".join([chunk.choices[0].text async for chunk in each(stream)])
    assert echoed.choices[0].text == streamed == prompt + text


@SUITE.scenario(requests=2)
async def a_completion_is_streamed(sdk: Sdk) -> None:
    text = (await sdk.complete()).choices[0].text
    stream = await sdk.complete(stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in each(stream)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.completion_tokens) == ([], 8)


@SUITE.scenario(requests=1)
async def log_probabilities_have_a_place_for_every_token(sdk: Sdk) -> None:
    choice = (await sdk.complete(logprobs=2)).choices[0]
    lists = choice.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.text_offset) == 8
    # Two at each place, the token itself the first; halves of characters have one text, and then one place.
    places = list(zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True))
    assert all(next(iter(top.items())) == (token, value) for token, value, top in places)
    assert all(len(top) == 2 or list(top) == ["\N{REPLACEMENT CHARACTER}"] for _, _, top in places)
    assert any(len(top) == 2 for _, _, top in places)
    assert all(value <= 0 for value in lists.token_logprobs)


@SUITE.scenario(requests=1)
async def an_echoed_prompt_is_scored(sdk: Sdk) -> None:
    answer = await sdk.complete("Once upon", echo=True, logprobs=1, max_tokens=1)
    lists = answer.choices[0].logprobs
    assert len(lists.tokens) == answer.usage.prompt_tokens + 1
    assert lists.token_logprobs[0] is None
    assert all(value <= 0 for value in lists.token_logprobs[1:])


@SUITE.scenario(requests=1)
async def choices_stand_prompt_by_prompt(sdk: Sdk) -> None:
    answer = await sdk.complete(["Once upon", "Far away"], n=2, best_of=2, temperature=1, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 32


@SUITE.scenario(requests=1)
async def neutral_values_change_nothing(sdk: Sdk) -> None:
    await sdk.complete(suffix="", user="ann", stop=None, presence_penalty=0, extra_body={"best_of": None})
