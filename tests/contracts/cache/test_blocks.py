"""Block identity, salt and hashes against golden vectors and a naive restatement of the rule."""

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import (
    CacheIdentity,
    IdentityParts,
    block_hashes,
    block_root,
    cache_identity,
    cacheable_tokens,
    prefix_caching_supported,
    tenant_salt,
)

VECTORS = json.loads((Path(__file__).parent / "block_hashes.json").read_text())
IDENTITY = CacheIdentity(bytes(range(16)))

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=70)


@pytest.mark.parametrize("vector", VECTORS["identities"], ids=lambda vector: vector["identity"][:8])
def test_an_identity_equals_its_golden_vector(vector):
    parts = IdentityParts(
        model_digest=bytes.fromhex(vector["model_digest"]),
        tokenizer_digest=bytes.fromhex(vector["tokenizer_digest"]),
        chat_template_digest=bytes.fromhex(vector["chat_template_digest"]),
        block_size_tokens=vector["block_size_tokens"],
        window_tokens=vector["window_tokens"],
        kv_dtype=vector["kv_dtype"],
    )

    assert cache_identity(parts).hex() == vector["identity"]


def test_two_engines_of_one_model_share_no_block():
    own = IdentityParts(bytes(32), bytes(32), bytes(32), 32, 0, "float32")

    other = cache_identity(replace(own, engine_type="VLLM"))

    assert other != cache_identity(own)
    assert block_hashes(block_root(other), range(32), 32) != block_hashes(
        block_root(cache_identity(own)), range(32), 32
    )


def test_kernels_that_promise_other_bits_share_no_block():
    torch = IdentityParts(bytes(32), bytes(32), bytes(32), 32, 0, "BFloat16")
    kernels = ("", "AVX-512 1a2b", "AVX-512-BF16 1a2b", "AVX-512 3c4d")

    assert len({cache_identity(replace(torch, kernels=name)) for name in kernels}) == 4
    assert cache_identity(replace(torch, engine_type="kernels")) != cache_identity(
        replace(torch, kernels="kernels")
    )


@pytest.mark.parametrize("vector", VECTORS["salts"], ids=lambda vector: vector["salt"][:8])
def test_a_salt_equals_its_golden_vector(vector):
    salt = tenant_salt(bytes.fromhex(vector["salt_key"]), vector["group"], vector["request_salt"])

    assert salt.hex() == vector["salt"]


@pytest.mark.parametrize("vector", VECTORS["chains"], ids=lambda vector: vector["root"][:8])
def test_a_chain_of_block_hashes_equals_its_golden_vector(vector):
    root = block_root(
        CacheIdentity(bytes.fromhex(vector["identity"])),
        adapter=bytes.fromhex(vector["adapter"]),
        salt=bytes.fromhex(vector["salt"]),
    )

    hashes = block_hashes(root, vector["token_ids"], vector["block_size_tokens"])

    assert root.hex() == vector["root"]
    assert [block_hash.hex() for block_hash in hashes] == vector["hashes"]


@pytest.mark.parametrize("vector", VECTORS["cacheable"], ids=str)
def test_cacheable_tokens_equal_their_golden_vector(vector):
    tokens = cacheable_tokens(vector["prompt_tokens"], vector["block_size_tokens"])

    assert tokens == vector["cacheable_tokens"]


@given(token_lists, st.sampled_from([1, 4, 16]), st.binary(max_size=40))
def test_hashes_are_a_chain_over_little_endian_tokens(token_ids, block_size, salt):
    root = block_root(IDENTITY, salt=salt)

    hashes = block_hashes(root, token_ids, block_size)

    previous = root
    assert len(hashes) == len(token_ids) // block_size
    for index, block_hash in enumerate(hashes):
        block = token_ids[index * block_size : (index + 1) * block_size]
        previous = hashlib.blake2b(previous + struct.pack(f"<{block_size}I", *block), digest_size=16).digest()
        assert block_hash == previous


@given(token_lists, st.integers(0, 5))
def test_a_chain_can_be_continued_from_any_block(token_ids, split_blocks):
    root = block_root(IDENTITY)
    whole = block_hashes(root, token_ids, 4)
    split = min(split_blocks, len(whole))

    head = block_hashes(root, token_ids[: split * 4], 4)
    tail = block_hashes(head[-1] if head else root, token_ids[split * 4 :], 4)

    assert head + tail == whole


@given(st.lists(st.integers(0, 99), min_size=32, max_size=32), st.integers(0, 31))
def test_one_other_token_changes_its_block_and_every_later_one_and_no_earlier_one(token_ids, place):
    root = block_root(IDENTITY)
    other = list(token_ids)
    other[place] += 1

    hashes, changed = block_hashes(root, token_ids, 4), block_hashes(root, other, 4)

    same = [left == right for left, right in zip(hashes, changed, strict=True)]
    assert same == [index < place // 4 for index in range(8)]


def test_identity_adapter_and_salt_each_separate_the_caches():
    roots = {
        block_root(IDENTITY),
        block_root(CacheIdentity(bytes(16))),
        block_root(IDENTITY, adapter=b"a"),
        block_root(IDENTITY, salt=b"a"),
        block_root(IDENTITY, adapter=b"ab", salt=b"c"),
        block_root(IDENTITY, adapter=b"a", salt=b"bc"),
    }

    assert len(roots) == 6


def test_no_request_salt_imitates_another_group():
    key = b"k" * 32

    assert tenant_salt(key, "ab", "c") != tenant_salt(key, "a", "bc")
    assert tenant_salt(key, "a") != tenant_salt(b"j" * 32, "a")


@given(st.integers(0, 10_000), st.sampled_from([1, 16, 32, 64, 128]))
def test_the_last_token_is_never_cacheable_and_at_most_one_block_is_lost_to_that(prompt_tokens, block_size):
    tokens = cacheable_tokens(prompt_tokens, block_size)

    assert tokens % block_size == 0
    assert tokens < max(prompt_tokens, 1)
    assert tokens + block_size >= prompt_tokens


def test_a_sliding_window_has_no_prefix_cache():
    assert prefix_caching_supported(0)
    assert not prefix_caching_supported(4096)
