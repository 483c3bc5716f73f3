"""Worker tokens against golden vectors, written down with HMAC spelt out from RFC 2104."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.worker_tokens import namespace_key, secret_from_hex, worker_token
from warmfleet_contracts.errors import SecretError

VECTORS = json.loads((Path(__file__).parent / "worker_tokens.json").read_text())
ROOT = bytes(range(32))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["token"][:8])
def test_key_and_token_equal_their_golden_vector(vector):
    key = namespace_key(bytes.fromhex(vector["root"]), vector["namespace"])

    assert key.hex() == vector["namespace_key"]
    assert worker_token(key, vector["pod_uid"]) == vector["token"].encode()


@given(st.sets(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=2, max_size=8))
def test_no_two_pods_share_a_token(pods):
    tokens = {worker_token(namespace_key(ROOT, namespace), uid) for namespace, uid in pods}

    assert len(tokens) == len(pods)


@given(st.binary(min_size=16, max_size=64))
def test_a_secret_survives_its_way_through_the_environment(secret):
    assert secret_from_hex(f" {secret.hex()}\n", "V") == secret


@pytest.mark.parametrize("text", ["", "00" * 15, "planted-secret-value", "0" * 33])
def test_an_unusable_secret_is_refused_by_its_variable_and_not_shown(text):
    with pytest.raises(SecretError, match=r"^\$WARMFLEET_SALT_KEY: ") as refused:
        secret_from_hex(text, "WARMFLEET_SALT_KEY")

    assert not text or text not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
