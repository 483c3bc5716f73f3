"""What chat and text completion requests have in common, taken from a body and normalised."""

from typing import Annotated, Final

import msgspec

from warmfleet_contracts.cache.worker_api import HIGHEST_PRIORITY, LOWEST_PRIORITY
from warmfleet_contracts.openai.request_fields import RequestError, RequestFields
from warmfleet_contracts.openai.served_fields import NO_EFFECT, UNSUPPORTED
from warmfleet_contracts.openai.values import BOOL, COUNT, OPTIONAL_NAME, Name, TokenId

MAX_CHOICES: Final = 8
"""Of one prompt."""
MAX_STOP_STRINGS: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_STOP_TOKEN_IDS: Final = 128
MAX_LOGIT_BIASES: Final = 1024
MAX_IGNORED_FIELDS: Final = 32
MAX_TOP_LOGPROBS: Final = 20
"""Most likely tokens that a request may ask to see beside each token."""

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
"""Logits stay finite within this range."""
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Priority = Annotated[int, msgspec.Meta(ge=HIGHEST_PRIORITY, le=LOWEST_PRIORITY)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completion requests have in common, after normalisation."""

    model: str
    stream: bool = False
    include_usage: bool = False
    """A stream ends with a chunk that carries usage and no choices."""
    seed: int | None = None
    """64 bits, unsigned; None lets the server draw one."""
    cache_salt: str = ""
    max_output_tokens: int | None = None
    """None means as many as fit into the model's context."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    """By token id; the worker checks that the model has the ids."""
    min_tokens: int = 0
    """Neither end tokens nor stop tokens or strings end the answer before."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    """Choices per prompt; choice i draws its noise from seed + i."""
    priority: int = 0
    """Lower runs earlier, as in vLLM; a router's header replaces it."""
    return_token_ids: bool = False
    """Each choice also carries the ids it consists of, as vLLM's field of that name asks."""
    logprobs: int | None = None
    """Each token of the answer carries its log probability and those of so many most likely tokens;
    None: neither."""
    ignored_fields: tuple[str, ...] = ()
    """Names of unknown fields, at most `MAX_IGNORED_FIELDS` of them."""

    @property
    def prompt_logprobs(self) -> int | None:
        """The same for the tokens of the prompt."""
        return None

    @property
    def may_read_cache(self) -> bool:
        """Whether cached blocks may stand for a part of the prompt.

        Not when the prompt's own log probabilities are asked for: they need every position computed.
        The router predicts by this and the worker matches by it.
        """
        return self.prompt_logprobs is None


def take_common(
    fields: RequestFields, *, max_output_tokens: int | None, logprobs: int | None
) -> GenerationRequest:
    """The fields that both requests have, after those that each spells in its own way."""
    model = fields.take("model", OPTIONAL_NAME, None)
    if model is None:
        raise RequestError("model: the name of a served model is required", param="model")
    seed = fields.take("seed", _SEED, None)
    top_k = fields.take("top_k", _TOP_K, 0)
    top_p = fields.take("top_p", _PROBABILITY, 1.0)
    stop_token_ids: list[int] = fields.take("stop_token_ids", _STOP_TOKEN_IDS, [])
    options = fields.take("stream_options", _STREAM_OPTIONS, _StreamOptions())
    for name in NO_EFFECT:
        fields.drop(name)
    for name, neutral in UNSUPPORTED.items():
        fields.refuse_unless(name, neutral)
    request = GenerationRequest(
        model=model,
        stream=fields.take("stream", BOOL, False),
        include_usage=bool(options.include_usage),
        seed=None if seed is None else seed % 2**64,
        cache_salt=fields.take("cache_salt", _NAME, ""),
        max_output_tokens=max_output_tokens,
        temperature=fields.take("temperature", _TEMPERATURE, 1.0),
        top_p=top_p or 1.0,
        # Nothing but the most likely token fits into a nucleus of probability 0.
        top_k=1 if top_p == 0 else max(top_k, 0),
        min_p=fields.take("min_p", _PROBABILITY, 0.0),
        presence_penalty=fields.take("presence_penalty", _PENALTY, 0.0),
        frequency_penalty=fields.take("frequency_penalty", _PENALTY, 0.0),
        repetition_penalty=fields.take("repetition_penalty", _REPETITION_PENALTY, 1.0),
        logit_bias=fields.take("logit_bias", _LOGIT_BIAS, {}),
        min_tokens=_take_min_tokens(fields, max_output_tokens),
        stop=_take_stop(fields),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=fields.take("ignore_eos", BOOL, False),
        n=_take_choices(fields),
        priority=fields.take("priority", _PRIORITY, 0),
        return_token_ids=fields.take("return_token_ids", BOOL, False),
        logprobs=logprobs,
    )
    return msgspec.structs.replace(request, ignored_fields=fields.left[:MAX_IGNORED_FIELDS])


def _take_choices(fields: RequestFields) -> int:
    choices = fields.take("n", _CHOICES, 1)
    best_of = fields.take("best_of", _CHOICES, choices)
    if best_of != choices:
        raise RequestError(
            f"best_of: expected the same as n, {choices}, as no choice is thrown away, got {best_of}",
            param="best_of",
            code="unsupported_parameter",
        )
    return choices


def _take_min_tokens(fields: RequestFields, max_output_tokens: int | None) -> int:
    least = fields.take("min_tokens", COUNT, 0)
    if max_output_tokens is not None and least > max_output_tokens:
        raise RequestError(
            f"min_tokens: expected at most max_tokens, {max_output_tokens}, got {least}", param="min_tokens"
        )
    return least


def _take_stop(fields: RequestFields) -> tuple[str, ...]:
    value = fields.take("stop", _STOP, [])
    stop = (value,) if isinstance(value, str) else tuple(value)
    if len(stop) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop: expected at most {MAX_STOP_STRINGS} strings, got {len(stop)}", param="stop"
        )
    for text in stop:
        size = len(text.encode())
        if not 0 < size <= MAX_STOP_BYTES:
            raise RequestError(
                f"stop: expected strings of 1 to {MAX_STOP_BYTES} bytes, got {size}", param="stop"
            )
    return stop


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_CHOICES: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(
    Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
)
_PENALTY: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(Penalty)
_REPETITION_PENALTY: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(RepetitionPenalty)
_LOGIT_BIAS: Final[msgspec.json.Decoder[dict[int, float]]] = msgspec.json.Decoder(
    Annotated[dict[TokenId, Bias], msgspec.Meta(max_length=MAX_LOGIT_BIASES)]
)
_SEED: Final[msgspec.json.Decoder[int | None]] = msgspec.json.Decoder(Seed | None)
_TOP_K: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=-1, lt=2**31)])
_TEMPERATURE: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(Temperature)
_PROBABILITY: Final[msgspec.json.Decoder[float]] = msgspec.json.Decoder(Probability)
_NAME: Final[msgspec.json.Decoder[str]] = msgspec.json.Decoder(Name)
_PRIORITY: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Priority)
_STOP: Final[msgspec.json.Decoder[str | list[str]]] = msgspec.json.Decoder(str | list[str])
_STOP_TOKEN_IDS: Final[msgspec.json.Decoder[list[int]]] = msgspec.json.Decoder(
    Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKEN_IDS)]
)
_STREAM_OPTIONS: Final = msgspec.json.Decoder(_StreamOptions)
