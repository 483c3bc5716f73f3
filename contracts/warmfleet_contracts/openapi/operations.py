"""Every operation of router and worker: method, path, request body, responses."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH
from warmfleet_contracts.cache.handover import HANDOVER_PATH
from warmfleet_contracts.cache.prewarm import PREWARM_PATH
from warmfleet_contracts.cache.worker_api import CACHE_PATH, KV_EVENTS_PATH, TOKENIZER_PATH
from warmfleet_contracts.openapi.requests import Schema

Server = Literal["router", "worker"]
SERVERS: Final[tuple[Server, ...]] = ("router", "worker")
Tag = Literal["inference", "models", "tokens", "server", "internal"]

EXAMPLE_MODEL: Final = "smollm2-135m-instruct"
JSON: Final = "application/json"
SSE: Final = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path."""

    id: str
    method: Literal["get", "post", "delete"]
    path: str
    tag: Tag
    summary: str
    servers: tuple[Server, ...] = SERVERS
    body: str = ""
    """Component of the request body; empty without one."""
    answers: tuple[tuple[str, str], ...] = ()
    """Media type and component of the success; an empty component is any value of that type."""
    success: str = "200"
    errors: tuple[int, ...] = ()
    """Beyond those that every operation may answer."""
    router_errors: tuple[int, ...] = ()
    """Beyond these, of a router only."""
    status_errors: tuple[int, ...] = ()
    """Errors in the shape of the success: what probes read."""
    parameters: tuple[Schema, ...] = ()
    examples: tuple[tuple[str, dict[str, Any]], ...] = ()
    links: tuple[tuple[str, Schema], ...] = ()
    is_open: bool = False
    """Requires no key."""


def _path_parameter(name: str, description: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[ -~]+$"},
        "description": description,
    }


def _probe(name: str, path: str, summary: str) -> Operation:
    return Operation(
        id=name,
        method="get",
        path=path,
        tag="server",
        summary=summary,
        answers=((JSON, "Status"),),
        status_errors=(503,),
        is_open=True,
    )


_REQUEST_ERRORS: Final = (400, 404, 408, 413, 429, 503)
"""Of operations that read a model name and a body."""
_QUESTION: Final = [{"role": "user", "content": "Name three rivers of Europe."}]
_DECISION_LINK: Final = (
    "decision",
    {"operationId": "getDecision", "parameters": {"id": "$response.header.x-warmfleet-decision"}},
)

OPERATIONS: Final = (
    Operation(
        id="createChatCompletion",
        method="post",
        path="/v1/chat/completions",
        tag="inference",
        summary="Answer a conversation, whole or as server-sent events.",
        body="ChatRequest",
        answers=((JSON, "ChatCompletion"), (SSE, "ChatCompletionChunk")),
        errors=_REQUEST_ERRORS,
        router_errors=(422,),
        examples=(
            ("question", {"model": EXAMPLE_MODEL, "messages": _QUESTION, "max_tokens": 16, "temperature": 0}),
            (
                "stream",
                {
                    "model": EXAMPLE_MODEL,
                    "messages": _QUESTION,
                    "max_tokens": 16,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            ),
        ),
        links=(_DECISION_LINK,),
    ),
    Operation(
        id="createCompletion",
        method="post",
        path="/v1/completions",
        tag="inference",
        summary="Continue one or more prompts, whole or as server-sent events.",
        body="CompletionRequest",
        answers=((JSON, "Completion"), (SSE, "CompletionChunk")),
        errors=_REQUEST_ERRORS,
        router_errors=(422,),
        examples=(
            ("text", {"model": EXAMPLE_MODEL, "prompt": "Once upon a time", "max_tokens": 16, "seed": 7}),
            ("token ids", {"model": EXAMPLE_MODEL, "prompt": [[9, 10, 11], [12, 13]], "max_tokens": 4}),
        ),
        links=(_DECISION_LINK,),
    ),
    Operation(
        id="listModels",
        method="get",
        path="/v1/models",
        tag="models",
        summary="The models that are served.",
        answers=((JSON, "ModelList"),),
        links=(("model", {"operationId": "getModel", "parameters": {"id": "$response.body#/data/0/id"}}),),
    ),
    Operation(
        id="getModel",
        method="get",
        path="/v1/models/{id}",
        tag="models",
        summary="One model; its id may hold slashes.",
        answers=((JSON, "Model"),),
        errors=(404, 503),
        parameters=(_path_parameter("id", "A served name."),),
    ),
    Operation(
        id="tokenize",
        method="post",
        path="/tokenize",
        tag="tokens",
        summary="Token ids of a text, or of a conversation as the model reads it.",
        body="TokenizeRequest",
        answers=((JSON, "Tokenized"),),
        errors=_REQUEST_ERRORS,
        router_errors=(422,),
        examples=(
            ("text", {"model": EXAMPLE_MODEL, "prompt": "hello"}),
            ("conversation", {"model": EXAMPLE_MODEL, "messages": _QUESTION}),
        ),
        links=(("text", {"operationId": "detokenize", "requestBody": {"tokens": "$response.body#/tokens"}}),),
    ),
    Operation(
        id="detokenize",
        method="post",
        path="/detokenize",
        tag="tokens",
        summary="The text of token ids.",
        body="DetokenizeRequest",
        answers=((JSON, "Detokenized"),),
        errors=_REQUEST_ERRORS,
        router_errors=(422,),
        examples=(("ids", {"model": EXAMPLE_MODEL, "tokens": [9, 10, 11]}),),
    ),
    Operation(
        id="getVersion",
        method="get",
        path="/version",
        tag="server",
        summary="The version of this server.",
        answers=((JSON, "Version"),),
    ),
    _probe("getHealth", "/health", "As /readyz, under vLLM's path."),
    _probe("getLiveness", "/livez", "Whether the process is alive; otherwise it should be restarted."),
    _probe("getReadiness", "/readyz", "Whether a request would be answered."),
    Operation(
        id="getMetrics",
        method="get",
        path="/metrics",
        tag="server",
        summary="Metrics in Prometheus' text format; open or for keys with that scope, by setting.",
        answers=(("text/plain", ""),),
    ),
    Operation(
        id="getOpenAPI",
        method="get",
        path="/openapi.json",
        tag="server",
        summary="This document.",
        answers=((JSON, ""),),
    ),
    Operation(
        id="getConfig",
        method="get",
        path="/debug/config",
        tag="internal",
        summary="The router's settings, secrets left out.",
        servers=("router",),
        answers=((JSON, ""),),
    ),
    Operation(
        id="getDecision",
        method="get",
        path="/debug/decisions/{id}",
        tag="internal",
        summary="Why a request went where it went, by decision id or request id.",
        servers=("router",),
        answers=((JSON, ""),),
        errors=(404,),
        parameters=(_path_parameter("id", "`x-warmfleet-decision` or `x-request-id` of the response."),),
    ),
    Operation(
        id="listDecisions",
        method="get",
        path="/internal/decisions",
        tag="internal",
        summary="The newest decisions first.",
        servers=("router",),
        answers=((JSON, "Decisions"),),
        errors=(400,),
        parameters=(
            {
                "name": "limit",
                "in": "query",
                "schema": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 100},
            },
        ),
    ),
    Operation(
        id="getFleet",
        method="get",
        path="/internal/fleet",
        tag="internal",
        summary="Every endpoint with its load, and the sums over those that are ready.",
        servers=("router",),
        answers=((JSON, ""),),
    ),
    Operation(
        id="getFleetTotals",
        method="get",
        path=FLEET_TOTALS_PATH,
        tag="internal",
        summary="Sums per model and replica: demand, capacity, missed tokens by cause, latencies.",
        servers=("router",),
        answers=((JSON, ""),),
    ),
    Operation(
        id="handOver",
        method="post",
        path=HANDOVER_PATH,
        tag="internal",
        summary="Have workers that stay compute what only workers hold that are about to go.",
        servers=("router",),
        answers=((JSON, ""),),
        errors=(400, 408, 413, 429),
    ),
    Operation(
        id="followEvents",
        method="get",
        path=KV_EVENTS_PATH,
        tag="internal",
        summary="Cache events and load reports in msgpack frames, without end.",
        servers=("worker",),
        answers=(("application/octet-stream", ""),),
        errors=(400, 429),
        parameters=(
            {"name": "epoch", "in": "query", "schema": {"type": "string"}},
            {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 2**63}},
        ),
    ),
    Operation(
        id="getPromptAssets",
        method="get",
        path=TOKENIZER_PATH + "/{digest}",
        tag="internal",
        summary="Tokenizer and chat template in msgpack, for a router.",
        servers=("worker",),
        answers=(("application/msgpack", ""),),
        errors=(404,),
        parameters=(_path_parameter("digest", "Hex digest of the tokenizer."),),
    ),
    Operation(
        id="prewarm",
        method="post",
        path=PREWARM_PATH,
        tag="internal",
        summary="Compute prefixes ahead of requests; the answer comes when they are computed.",
        servers=("worker",),
        answers=((JSON, ""),),
        errors=(400, 408, 413, 429, 503),
    ),
    Operation(
        id="getCache",
        method="get",
        path=CACHE_PATH,
        tag="internal",
        summary="What the cache holds, in numbers.",
        servers=("worker",),
        answers=((JSON, ""),),
        errors=(503,),
    ),
    Operation(
        id="clearCache",
        method="delete",
        path=CACHE_PATH,
        tag="internal",
        summary="Drop every block that no live sequence holds.",
        servers=("worker",),
        success="202",
        errors=(503,),
    ),
)
