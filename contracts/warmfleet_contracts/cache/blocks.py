"""Identity of KV blocks: cache identity, salt, chained block hashes.

Router and worker both import this module, so a prompt has the same hashes on both sides or the
golden vectors in tests/contracts/cache/block_hashes.json fail on both sides.
"""

import hashlib
import hmac
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType, cast

BlockHash = NewType("BlockHash", bytes)
"""16 bytes that identify one full block *and all tokens before it*."""

CacheIdentity = NewType("CacheIdentity", bytes)
"""16 bytes, opaque to the router. Equal identities may share block hashes; see `cache_identity`."""

HASH_BYTES: Final = 16
TOKEN_BYTES: Final = 4
"""Of a token id in what is hashed."""
NO_SALT: Final = b""
NO_ADAPTER: Final = b""
OWN_ENGINE: Final = "Warmfleet"

_IDENTITY_DOMAIN: Final = b"warmfleet-identity-v1"
_BLOCK_DOMAIN: Final = b"warmfleet-block-v1"


@dataclass(frozen=True, slots=True)
class IdentityParts:
    """What the content of a cached block depends on, apart from its tokens."""

    model_digest: bytes
    """SHA-256 over the sorted SHA-256 of the served model's files."""
    tokenizer_digest: bytes
    chat_template_digest: bytes
    block_size_tokens: int
    window_tokens: int
    """Sliding window of attention in tokens; 0 means full attention."""
    kv_dtype: str
    engine_type: str = OWN_ENGINE
    """Two engines round differently: their blocks are not those of one another."""
    kernels: str = ""
    """Instruction-set level and revision of kernels that promise equal bits; "" of those that do not."""


def cache_identity(parts: IdentityParts) -> CacheIdentity:
    """Digest `parts` into the opaque identity that a worker publishes."""
    # Identities of our own engine are as they were before there was another one.
    other_engine = [] if parts.engine_type == OWN_ENGINE else [parts.engine_type.encode()]
    kernels = [b"kernels", parts.kernels.encode()] if parts.kernels else []
    return CacheIdentity(
        _digest(
            _IDENTITY_DOMAIN,
            parts.model_digest,
            parts.tokenizer_digest,
            parts.chat_template_digest,
            parts.block_size_tokens.to_bytes(4, "little"),
            parts.window_tokens.to_bytes(4, "little"),
            parts.kv_dtype.encode(),
            *other_engine,
            *kernels,
        )
    )


def tenant_salt(salt_key: bytes, group: str, request_salt: str = "") -> bytes:
    """Salt of a tenant or sharing group: HMAC-SHA256 under the fleet's salt key.

    `request_salt` is the body's optional `cache_salt`; the two are length-prefixed, so that no choice
    of one can imitate another pair.
    """
    message = _length_prefixed(group.encode(), request_salt.encode())
    return hmac.digest(salt_key, message, "sha256")


def block_root(identity: CacheIdentity, *, adapter: bytes = NO_ADAPTER, salt: bytes = NO_SALT) -> BlockHash:
    """Parent of the first block: ties a chain to one identity, adapter and salt."""
    return BlockHash(_digest(_BLOCK_DOMAIN, identity, adapter, salt))


def block_hashes(parent: BlockHash, token_ids: Sequence[int], block_size_tokens: int) -> list[BlockHash]:
    """Hashes of the full blocks of `token_ids`, in order; a partial last block has none.

    `parent` is `block_root(...)` for position 0, or the hash of the block before the first token: a
    chain can be continued. `h[i] = blake2b-128(h[i-1] | token ids as little-endian u32)`.

        root = block_root(identity, salt=tenant_salt(salt_key, tenant))
        hashes = block_hashes(root, token_ids, block_size_tokens=16)
        assert len(hashes) == len(token_ids) // 16
    """
    full_blocks = len(token_ids) // block_size_tokens
    return chain_hashes(parent, token_bytes(token_ids[: full_blocks * block_size_tokens]), block_size_tokens)


def chain_hashes(parent: BlockHash, tokens: bytes, block_size_tokens: int) -> list[BlockHash]:
    """The same of `token_bytes` of whole blocks."""
    step = block_size_tokens * TOKEN_BYTES
    hashes: list[bytes] = []
    previous: bytes = parent
    blake2b = hashlib.blake2b
    for offset in range(0, len(tokens), step):
        previous = blake2b(previous + tokens[offset : offset + step], digest_size=HASH_BYTES).digest()
        hashes.append(previous)
    # Once: a call of `BlockHash` for each takes a fifth of the time.
    return cast("list[BlockHash]", hashes)


def cacheable_tokens(prompt_tokens: int, block_size_tokens: int) -> int:
    """Most tokens of a prompt that a cache can serve: full blocks, and never the last token.

    The last token is always computed, because its logits choose the first output token.
    """
    return max(prompt_tokens - 1, 0) // block_size_tokens * block_size_tokens


def prefix_caching_supported(window_tokens: int) -> bool:
    """Sliding-window models run without a prefix cache until both sides can match past a dropped head."""
    return window_tokens == 0


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as they are hashed: little-endian, `TOKEN_BYTES` each."""
    encoded = array("I", token_ids)
    if encoded.itemsize != 4:  # pragma: no cover - no supported platform has another size
        return b"".join(token.to_bytes(4, "little") for token in token_ids)
    if _BIG_ENDIAN:  # pragma: no cover
        encoded.byteswap()
    return encoded.tobytes()


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(_length_prefixed(*parts), digest_size=HASH_BYTES).digest()


def _length_prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


_BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\x00\x01"
