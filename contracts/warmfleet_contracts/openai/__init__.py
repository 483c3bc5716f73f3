"""OpenAI's requests as this project serves them: normalised, bounded, or refused with a reason.

Both router and worker decode with these functions, so a request means the same on both sides. null means
absent; unknown fields are ignored and named in `ignored_fields`; fields that would change the answer and
are not served are refused with code `unsupported_parameter`. Imports `prompts`, `cache` and `errors`;
public names are those of `__all__`, beside `context_length` and `server_sent_event`. For `openapi`: `chat`,
`completion`, `generation`, `request_fields`, `tokens` and `values`, whose decoders it records.
"""

from warmfleet_contracts.openai.chat import ChatRequest, decode_chat_request
from warmfleet_contracts.openai.completion import (
    MAX_PROMPTS,
    CompletionRequest,
    Prompt,
    decode_completion_request,
)
from warmfleet_contracts.openai.generation import MAX_TOP_LOGPROBS, GenerationRequest
from warmfleet_contracts.openai.request_fields import MAX_BODY_BYTES, RequestError
from warmfleet_contracts.openai.served_fields import NO_EFFECT, UNSUPPORTED
from warmfleet_contracts.openai.tokens import (
    DetokenizeRequest,
    TokenizeRequest,
    decode_detokenize_request,
    decode_tokenize_request,
)

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_PROMPTS",
    "MAX_TOP_LOGPROBS",
    "NO_EFFECT",
    "UNSUPPORTED",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "Prompt",
    "RequestError",
    "TokenizeRequest",
    "decode_chat_request",
    "decode_completion_request",
    "decode_detokenize_request",
    "decode_tokenize_request",
]
