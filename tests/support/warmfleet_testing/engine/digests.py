"""The digest of a resident set by its definition, the oracle of the one that is kept up to date."""

from collections.abc import Collection

from warmfleet_contracts.cache.kv_events import ResidentDigest


def digest_of(hashes: Collection[bytes]) -> ResidentDigest:
    """Number and exclusive-or of `hashes`, 16 bytes each."""
    xor = bytes(16)
    for block_hash in hashes:
        xor = bytes(left ^ right for left, right in zip(xor, block_hash, strict=True))
    return ResidentDigest(count=len(hashes), xor=xor)
