"""Classes A and C: values that ended engines elsewhere, and grammars that hung them."""

from typing import Any, Final

from warmfleet_testing.hostile.request import LEFT_OUT, Attacks, HostileRequest

VOCABULARY: Final = 267
"""Of the tiny model."""
NESTED_REGEX: Final = "(" * 500 + "a*" + ")*" * 500 + "$"


def value_attacks() -> list[HostileRequest]:
    """Class A: each of these fields has ended an engine, or could."""
    attacks = Attacks("A")
    text, chat, raw = attacks.text, attacks.chat, attacks.raw_field
    text("min_tokens beyond max_tokens", param="min_tokens", min_tokens=5, max_tokens=4)
    text("min_tokens beyond any answer", param="min_tokens", min_tokens=2**31 - 1)
    chat("min_tokens beyond the context", 200, min_tokens=2**31 - 1, max_tokens=LEFT_OUT)
    text("min_tokens negative", param="min_tokens", min_tokens=-1)
    text("min_tokens and a stop token each step", 200, min_tokens=4, stop_token_ids=[*range(100)])
    text("a million log probabilities", param="logprobs", logprobs=1_000_000)
    text("negative log probabilities", param="logprobs", logprobs=-1)
    chat("a million top log probabilities", param="top_logprobs", logprobs=True, top_logprobs=1_000_000)
    text("prompt_logprobs of a million", param="prompt_logprobs", prompt_logprobs=1_000_000)
    text("log probabilities of a million ids", 200, logprobs=2, logprob_token_ids=[7] * 1_000_000)
    text(
        "echo with all log probabilities and nothing else",
        200,
        echo=True,
        max_tokens=0,
        logprobs=20,
    )
    text("echo of eight choices, each with log probabilities", 200, echo=True, logprobs=20, n=8)
    edges = {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 0.01}
    text("penalties at one edge", 200, **edges, temperature=2)
    edges = {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 100}
    text("penalties at the other edge", 200, **edges, temperature=2)
    text("a repetition penalty of nothing", param="repetition_penalty", repetition_penalty=0)
    text(
        "the smallest repetition penalty that is a number",
        param="repetition_penalty",
        repetition_penalty=5e-324,
    )
    raw("a temperature beyond numbers", '"temperature":1e400', param="temperature")
    raw("a temperature of NaN", '"temperature":NaN')
    raw("a temperature of Infinity", '"temperature":Infinity')
    text("the smallest temperature that is a number", 200, temperature=5e-324)
    text("a temperature below float32", 200, temperature=1e-45, logit_bias={"5": 100, "6": -100})
    every_bias = {str(token): (-1) ** token * 100 for token in range(VOCABULARY)}
    text("the smallest temperature with all biases", 200, temperature=1e-300, logit_bias=every_bias)
    text("nothing but a nucleus of nothing", 200, temperature=2, top_p=0, top_k=1, min_p=1)
    text("the smallest nucleus", 200, temperature=2, top_p=5e-324, min_p=5e-324)
    text("top_k beyond the vocabulary", 200, temperature=1, top_k=2**31 - 1)
    text("top_k below nothing", param="top_k", top_k=-2)
    raw("a bias beyond numbers", '"logit_bias":{"1":-1e400}', param="logit_bias")
    text("a bias on each token", 200, logit_bias={str(token): -100 for token in range(VOCABULARY)})
    text("a bias for no token", param="logit_bias", logit_bias={str(VOCABULARY): 1})
    text("a bias for a negative token", param="logit_bias", logit_bias={"-1": 1})
    text("a million biases", code="json_too_large", logit_bias={str(token): 1 for token in range(1_000_000)})
    text(
        "a salt of odd characters",
        200,
        cache_salt="\x00\n\r\t\x1b\x7f\u2028\u202e\ufffe\U0010ffff/../%00'\";--",
    )
    text("a salt of a megabyte", param="cache_salt", cache_salt="s" * 1_000_000)
    text("a salt that is no text", param="cache_salt", cache_salt=[1])
    text("an empty salt", param="cache_salt", cache_salt="")
    text("prompt embeddings alone", param="prompt", prompt_embeds="gASVAAAAAAAAAA==", prompt=LEFT_OUT)
    text("prompt embeddings beside a prompt", param="prompt_embeds", prompt_embeds=["AAAA"] * 8)
    text("a priority that is all others' last", param="priority", priority=-(2**63))
    text("a priority in words", param="priority", priority="urgent")
    text("a priority of a truth", param="priority", priority=True)
    text("the first priority that there is", 200, priority=-100)
    text("a negative seed", 200, seed=-(2**63), temperature=1)
    text("eight seeds past the last", 200, seed=2**63 - 1, temperature=1, n=8)
    text("a seed of 65 bits", param="seed", seed=2**64)
    text("a stop id beyond the vocabulary", 200, stop_token_ids=[VOCABULARY, 2**32 - 1])
    text("a negative stop id", param="stop_token_ids", stop_token_ids=[-1])
    text("ten thousand biases", param="logit_bias", logit_bias={str(id_): 1 for id_ in range(10_000)})
    text("a million stop ids", param="stop_token_ids", stop_token_ids=[1] * 1_000_000)
    text("stop strings of nothing", param="stop", stop=[""])
    text("seventeen stop strings", param="stop", stop=["x"] * 17)
    text("a stop string of a megabyte", param="stop", stop="x" * 1_000_000)
    text("stop strings that overlap", 200, stop=["a" * count for count in range(1, 17)])
    text("a prompt of ids beyond the vocabulary", param="prompt", prompt=[1, VOCABULARY])
    text("a prompt of a negative id", param="prompt", prompt=[-1])
    text("a prompt of control tokens", 200, prompt=[0, 1, 2, 3] * 8)
    text("a prompt of no tokens", param="prompt", prompt=[])
    text("one of the prompts has no tokens", param="prompt", prompt=[[1], []])
    text("a prompt of no text", param="prompt", prompt="")
    text("max_tokens below nothing", param="max_tokens", max_tokens=-1)
    text("max_tokens beyond any context", 200, max_tokens=2**31 - 1, ignore_eos=True)
    text("max_tokens of half a token", param="max_tokens", max_tokens=0.5)
    text("options of no stream", param="stream_options", stream_options={"include_usage": "yes"})
    text("beams", param="use_beam_search", use_beam_search=True, n=8)
    text("a million allowed tokens", param="allowed_token_ids", allowed_token_ids=[1] * 1_000_000)
    text("bad words", param="bad_words", bad_words=["x"] * 10_000)
    text("truncation to a negative length", param="truncate_prompt_tokens", truncate_prompt_tokens=-(2**63))
    raw("a field twice, right and wrong", '"n":1,"n":1000000000', param="n")
    return attacks.requests


def grammar_attacks() -> list[HostileRequest]:
    """Class C: what would be compiled is refused by name, and never looked at."""
    attacks = Attacks("C")

    def refused(name: str, field: str, value: Any) -> None:
        attacks.chat(name, param=field, code="unsupported_parameter", **{field: value})

    def schema(content: Any) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": content}}

    refused("nested quantifiers", "guided_regex", NESTED_REGEX)
    refused("a regex that backtracks", "guided_regex", "(x+x+)+y" * 1_000)
    refused("a regex of a megabyte", "guided_regex", "a" * 1_000_000)
    refused("a grammar that is left-recursive", "guided_grammar", "root ::= root root | root")
    refused("a grammar of depth 10,000", "guided_grammar", "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000)
    refused("a hundred thousand choices", "guided_choice", [str(number) for number in range(100_000)])
    refused("no choice", "guided_choice", [])
    refused(
        "a schema of ten thousand fields", "guided_json", {"properties": {f"p{i}": {} for i in range(10_000)}}
    )
    refused("a schema as text", "guided_json", '{"type":"object"')
    refused("a schema that refers to itself", "response_format", schema({"$ref": "#"}))
    refused("a schema with a pattern", "response_format", schema({"type": "string", "pattern": NESTED_REGEX}))
    refused("a schema of a billion items", "response_format", schema({"type": "array", "minItems": 10**9}))
    refused("a schema without a schema", "response_format", {"type": "json_schema"})
    refused("any JSON", "response_format", {"type": "json_object"})
    refused("an unknown format", "response_format", {"type": "regex", "pattern": NESTED_REGEX})
    refused("a format that is no object", "response_format", "json_schema")
    refused("structured outputs by regex", "structured_outputs", {"regex": NESTED_REGEX})
    refused("structured outputs by grammar", "structured_outputs", {"grammar": "root ::= root"})
    refused("structured outputs of nothing", "structured_outputs", {})
    refused("a structural tag", "structured_outputs", {"structural_tag": "{}"})
    refused(
        "a tool with a schema", "tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    )
    refused(
        "ten thousand tools",
        "tools",
        [{"type": "function", "function": {"name": f"f{i}"}} for i in range(10_000)],
    )
    refused("a tool that must be called", "tool_choice", "required")
    refused("a tool by name", "tool_choice", {"type": "function", "function": {"name": "f"}})
    refused("functions", "functions", [{"name": "f", "parameters": {"pattern": NESTED_REGEX}}])
    deep: Any = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    attacks.chat("a schema of depth 300", code="json_too_deep", response_format=schema(deep))
    attacks.chat("a backend of the caller's choice", 200, guided_decoding_backend="outlines:disable-any")
    return attacks.requests
