"""What JSON Schema cannot express of a request: the model's name, and which limits are the model's own."""

import json
import os
from typing import Any

import schemathesis

MODEL = os.environ["WARMFLEET_FUZZED_MODEL"]
BEYOND_SCHEMA = (
    "maximum context length",
    "expected token ids below",
    "expected the same as n",
    "expected at most max_tokens",
    "expected logprobs to be true beside it",
    "expected at least 1, or echo to be true",
    "expected strings of 1 to 256 bytes",
    "a character that cannot be printed",  # the fuzzer's own values for a path, against its pattern
    "got float at [",  # JSON Schema takes 1.0 for an integer; a token id has one spelling
)


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Most names that a fuzzer thinks of are served nowhere; 404 alone would test little."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and 0 < len(body["model"]) <= 256:
        return {**body, "model": MODEL}
    return body


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """A well-formed request may still break a rule between fields, or one that the model brings."""
    if type(failure).__name__ != "RejectedPositiveData":
        return True
    message = json.loads(response.text)["error"]["message"]
    return not any(words in message for words in BEYOND_SCHEMA)
