"""A short hash over canonical JSON: equal content has an equal digest, in any order of its keys."""

import hashlib
import json


def digest(value: object, length: int = 16) -> str:
    """The first `length` hexadecimal digits of SHA-256 over `value` as canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]
