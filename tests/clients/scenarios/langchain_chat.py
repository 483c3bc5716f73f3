"""LangChain's ChatOpenAI, and its OpenAI for text completions."""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import openai
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_openai import ChatOpenAI, OpenAI
from suite import Suite, raised, target

SUITE = Suite()
QUESTION = "Say something."


@dataclass(frozen=True)
class LangChain:
    """Where the server is; each scenario builds the models that it wants."""

    base_url: str
    model: str
    key: str
    other_key: str
    """May not call the model."""

    def chat(self, **fields: Any) -> ChatOpenAI:
        """A greedy, short-spoken chat model."""
        defaults = {"model": self.model, "api_key": self.key, "max_retries": 0, "timeout": 30}
        defaults |= {"temperature": 0, "max_tokens": 8}
        return ChatOpenAI(base_url=self.base_url, **(defaults | fields))

    def text(self, **fields: Any) -> OpenAI:
        """The same as a text model."""
        defaults = {"model": self.model, "api_key": self.key, "max_retries": 0, "timeout": 30}
        defaults |= {"temperature": 0, "max_tokens": 8}
        return OpenAI(base_url=self.base_url, **(defaults | fields))


class Tokens(BaseCallbackHandler):
    """What a run passed to its callbacks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ended = 0
        self.errors: list[BaseException] = []

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.texts.append(token)

    def on_llm_end(self, *_: Any, **__: Any) -> None:
        self.ended += 1

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self.errors.append(error)


@SUITE.scenario(requests=1)
async def invoke_gives_a_message_with_usage(langchain: LangChain) -> None:
    message = langchain.chat().invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert message.content
    assert message.usage_metadata["output_tokens"] == 8
    assert message.usage_metadata["total_tokens"] == message.usage_metadata["input_tokens"] + 8
    assert message.usage_metadata["input_token_details"]["cache_read"] >= 0
    assert not message.tool_calls


@SUITE.scenario(requests=1)
async def the_response_metadata_names_model_and_reason(langchain: LangChain) -> None:
    metadata = langchain.chat().invoke(QUESTION).response_metadata
    assert metadata["model_name"] == langchain.model
    assert metadata["finish_reason"] == "length"
    assert metadata["id"].startswith("chatcmpl-")
    assert metadata["token_usage"]["prompt_tokens_details"]["cached_tokens"] >= 0


@SUITE.scenario(requests=2)
async def ainvoke_gives_the_same(langchain: LangChain) -> None:
    chat = langchain.chat()
    assert (await chat.ainvoke(QUESTION)).content == chat.invoke(QUESTION).content


@SUITE.scenario(requests=2)
async def stream_has_the_text_of_invoke(langchain: LangChain) -> None:
    chat = langchain.chat()
    chunks = list(chat.stream(QUESTION))
    assert len(chunks) > 2
    assert "".join(chunk.content for chunk in chunks) == chat.invoke(QUESTION).content


@SUITE.scenario(requests=2)
async def astream_has_the_text_of_invoke(langchain: LangChain) -> None:
    chat = langchain.chat()
    chunks = [chunk async for chunk in chat.astream(QUESTION)]
    assert "".join(chunk.content for chunk in chunks) == chat.invoke(QUESTION).content


@SUITE.scenario(requests=1)
async def streamed_chunks_add_up_to_a_message_with_usage(langchain: LangChain) -> None:
    first, *others = langchain.chat(stream_usage=True).stream(QUESTION)
    whole = first
    for chunk in others:
        whole += chunk
    assert whole.usage_metadata["output_tokens"] == 8
    assert whole.usage_metadata["input_token_details"]["cache_read"] >= 0
    assert whole.response_metadata["finish_reason"] == "length"


@SUITE.scenario(requests=1)
async def a_stream_can_be_left_early(langchain: LangChain) -> None:
    stream = langchain.chat(max_tokens=400, extra_body={"ignore_eos": True}).stream(QUESTION)
    assert next(stream).content is not None
    stream.close()


@SUITE.scenario(requests=4)
async def batch_answers_in_order(langchain: LangChain) -> None:
    chat = langchain.chat(extra_body={"ignore_eos": True})
    models = [chat.bind(max_tokens=limit) for limit in (2, 3)]
    for model, limit in zip(models, (2, 3), strict=True):
        answers = model.batch([QUESTION, "Something else."], config={"max_concurrency": 2})
        assert [answer.usage_metadata["output_tokens"] for answer in answers] == [limit, limit]


@SUITE.scenario(requests=4)
async def abatch_answers_in_order(langchain: LangChain) -> None:
    chat = langchain.chat()
    questions = [QUESTION, "Something else."]
    answers = await chat.abatch(questions)
    assert [answer.content for answer in answers] == [chat.invoke(question).content for question in questions]


@SUITE.scenario(requests=1)
async def every_kind_of_message_is_read(langchain: LangChain) -> None:
    message = langchain.chat().invoke(
        [
            SystemMessage("You are terse."),
            ChatMessage(role="developer", content="Answer in lower case."),
            HumanMessage("Hello", name="ann"),
            AIMessage("hello"),
            ToolMessage("42", tool_call_id="call_1"),
            HumanMessage([{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]),
        ]
    )
    assert message.usage_metadata["input_tokens"] > 60


@SUITE.scenario(requests=1)
async def pairs_of_role_and_text_are_messages(langchain: LangChain) -> None:
    assert langchain.chat().invoke([("system", "You are terse."), ("human", "Hello")]).content


@SUITE.scenario(requests=3)
async def stop_ends_the_answer(langchain: LangChain) -> None:
    chat = langchain.chat()
    text = chat.invoke(QUESTION).content
    stop = text[2:4]
    for message in (chat.invoke(QUESTION, stop=[stop]), chat.bind(stop=[stop]).invoke(QUESTION)):
        assert message.content == text[: text.index(stop)]
        assert message.response_metadata["finish_reason"] == "stop"


@SUITE.scenario(requests=2)
async def bound_and_configured_limits_count(langchain: LangChain) -> None:
    assert langchain.chat(max_tokens=3).invoke(QUESTION).usage_metadata["output_tokens"] == 3
    bound = langchain.chat().bind(max_tokens=2)
    assert bound.invoke(QUESTION).usage_metadata["output_tokens"] == 2


@SUITE.scenario(requests=3)
async def a_seed_repeats_the_answer(langchain: LangChain) -> None:
    texts = [langchain.chat(temperature=1.5, seed=seed).invoke(QUESTION).content for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


@SUITE.scenario(requests=1)
async def sampling_fields_are_taken(langchain: LangChain) -> None:
    chat = langchain.chat(
        temperature=1,
        top_p=0.9,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        logit_bias={30: 5},
        extra_body={"top_k": 20, "min_p": 0.01, "cache_salt": "mine"},
        model_kwargs={"user": "ann"},
    )
    assert chat.invoke(QUESTION).usage_metadata["output_tokens"] > 0


@SUITE.scenario(requests=2)
async def log_probabilities_are_in_the_metadata(langchain: LangChain) -> None:
    chat = langchain.chat().bind(logprobs=True, top_logprobs=2)
    entries = chat.invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert len(entries) == 8
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    first, *others = chat.stream(QUESTION)
    whole = first
    for chunk in others:
        whole += chunk
    streamed = whole.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


@SUITE.scenario(requests=1)
async def generate_gives_n_choices(langchain: LangChain) -> None:
    chat = langchain.chat(n=2, temperature=1, extra_body={"ignore_eos": True})
    result = chat.generate([[HumanMessage(QUESTION)]])
    assert len(result.generations[0]) == 2
    assert result.llm_output["token_usage"]["completion_tokens"] == 16


@SUITE.scenario(requests=2)
async def the_second_turn_reads_the_cache(langchain: LangChain) -> None:
    chat = langchain.chat()
    messages = [HumanMessage(uuid.uuid4().hex + " a quick brown fox" * 10)]
    first = chat.invoke(messages)
    second = chat.invoke([*messages, first, HumanMessage("And then?")])
    assert first.usage_metadata["input_token_details"]["cache_read"] < 32
    assert second.usage_metadata["input_token_details"]["cache_read"] >= 192


@SUITE.scenario(requests=2)
async def a_chain_of_template_model_and_parser_answers(langchain: LangChain) -> None:
    chain = (
        ChatPromptTemplate.from_messages(
            [
                ("system", "You speak of {topic}."),
                MessagesPlaceholder("history"),
                ("human", "{question}"),
            ]
        )
        | langchain.chat()
        | StrOutputParser()
    )
    given = {"topic": "rain", "history": [HumanMessage("Hi"), AIMessage("Hi")], "question": "Why?"}
    assert chain.invoke(given) == "".join(chain.stream(given))


@SUITE.scenario(requests=2)
async def branches_run_side_by_side(langchain: LangChain) -> None:
    chat = langchain.chat() | StrOutputParser()
    branches = RunnableParallel(plain=chat, upper=chat | RunnableLambda(str.upper))
    answers = await branches.ainvoke(QUESTION)
    assert answers["upper"] == answers["plain"].upper()


@SUITE.scenario(requests=2)
async def callbacks_receive_every_piece(langchain: LangChain) -> None:
    received = Tokens()
    text = langchain.chat(streaming=True).invoke(QUESTION, config={"callbacks": [received]}).content
    assert "".join(received.texts) == text == langchain.chat().invoke(QUESTION).content
    assert received.ended == 1


@SUITE.scenario(requests=1)
async def events_of_a_run_are_streamed(langchain: LangChain) -> None:
    kinds = [event["event"] async for event in langchain.chat().astream_events(QUESTION)]
    assert kinds[0] == "on_chat_model_start"
    assert kinds[-1] == "on_chat_model_end"
    assert kinds.count("on_chat_model_stream") > 2


@SUITE.scenario(requests=1)
async def response_headers_hold_the_request_id(langchain: LangChain) -> None:
    metadata = langchain.chat(include_response_headers=True).invoke(QUESTION).response_metadata
    assert metadata["id"] == f"chatcmpl-{metadata['headers']['x-request-id']}"


@SUITE.scenario(requests=1)
async def tools_are_refused_by_name(langchain: LangChain) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    chat = langchain.chat().bind_tools([now])
    error = await raised(openai.BadRequestError, lambda: chat.invoke(QUESTION))
    assert (error.param, error.code) == ("tools", "unsupported_parameter")


@SUITE.scenario(requests=1)
async def structured_output_is_refused_by_name(langchain: LangChain) -> None:
    schema = {"title": "Day", "type": "object", "properties": {"name": {"type": "string"}}}
    chat = langchain.chat().with_structured_output(schema, method="json_schema")
    error = await raised(openai.BadRequestError, lambda: chat.invoke(QUESTION))
    assert (error.param, error.code) == ("response_format", "unsupported_parameter")


@SUITE.scenario(requests=2)
async def a_prompt_beyond_the_context_is_an_overflow(langchain: LangChain) -> None:
    chat = langchain.chat()
    error = await raised(ContextOverflowError, lambda: chat.invoke("far too long " * 100))
    assert "maximum context length is 1024 tokens" in str(error)
    await raised(ContextOverflowError, lambda: list(chat.stream("far too long " * 100)))


@SUITE.scenario(requests=1)
async def an_unknown_model_is_not_found(langchain: LangChain) -> None:
    received = Tokens()
    chat = langchain.chat(model="gpt-4o", callbacks=[received])
    await raised(openai.NotFoundError, lambda: chat.invoke(QUESTION))
    assert len(received.errors) == 1


@SUITE.scenario(requests=2)
async def wrong_keys_are_distinguished(langchain: LangChain) -> None:
    await raised(openai.AuthenticationError, lambda: langchain.chat(api_key="wrong").invoke(QUESTION))
    chat = langchain.chat(api_key=langchain.other_key)
    await raised(openai.PermissionDeniedError, lambda: chat.invoke(QUESTION))


@SUITE.scenario(requests=2)
async def a_fallback_answers_for_a_model_that_is_not_served(langchain: LangChain) -> None:
    chat = langchain.chat(model="gpt-4o").with_fallbacks([langchain.chat()])
    assert chat.invoke(QUESTION).content


@SUITE.scenario(requests=1)
async def a_timeout_is_a_timeout(langchain: LangChain) -> None:
    chat = langchain.chat(timeout=0.1, max_tokens=900, extra_body={"ignore_eos": True})
    await raised(openai.APITimeoutError, lambda: chat.invoke(QUESTION))


@SUITE.scenario(requests=4)
async def the_text_model_completes_streams_and_batches(langchain: LangChain) -> None:
    text = langchain.text()
    whole = text.invoke("Once upon")
    assert "".join(text.stream("Once upon")) == whole
    assert await text.ainvoke("Once upon") == whole
    assert text.generate(["Once upon"] * 2).llm_output["token_usage"]["completion_tokens"] == 16


if __name__ == "__main__":
    given = target()
    asyncio.run(SUITE.run(LangChain(given.base_url, given.model, given.key, given.other_key)))
