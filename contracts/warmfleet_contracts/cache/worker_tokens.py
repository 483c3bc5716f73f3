"""Worker tokens: one per pod, derived from a key, so that none is distributed or stored.

token = HMAC-SHA256(HMAC-SHA256(root, namespace), pod uid). Routers and the operator hold the root and derive
every pod's token. A namespace with models holds its own key only, and a pod its uid: the Secret of one
namespace yields no token of another. A pod that takes over an address has another uid, so another token.
"""

import hashlib
import hmac
from typing import Final

from warmfleet_contracts.errors import SecretError

MIN_SECRET_BYTES: Final = 16


def namespace_key(root: bytes, namespace: str) -> bytes:
    """The key of all workers of a namespace, 32 bytes. Its Secret holds it in hexadecimal digits."""
    return hmac.digest(root, namespace.encode(), hashlib.sha256)


def worker_token(key: bytes, pod_uid: str) -> bytes:
    """One pod's token, from its namespace's key: 64 hexadecimal digits, as they go after `Bearer`."""
    return hmac.digest(key, pod_uid.encode(), hashlib.sha256).hex().encode()


def secret_from_hex(text: str, variable: str) -> bytes:
    """A secret as an environment variable holds it; white space around it does not count.

    Raises:
        SecretError: it holds anything but hexadecimal digits, or less than `MIN_SECRET_BYTES`. The text names
            `variable` and nothing of its content.
    """
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        # Not chained: the cause's text names the position of the wrong character.
        raise SecretError(f"${variable}: expected hexadecimal digits") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise SecretError(f"${variable}: expected at least {MIN_SECRET_BYTES} bytes, got {len(secret)}")
    return secret
