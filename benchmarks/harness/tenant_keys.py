"""Key files for benchmarks whose router requires keys."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path

from warmfleet_contracts.keys import KeyEntry, KeyFile, TenantEntry, digest_of_key, encode_key_file, new_key


def write_keys(path: Path, tenants: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Write a key file with one key for each of `tenants`, with its scopes; the keys' texts by tenant."""
    texts: dict[str, str] = {}
    file = KeyFile()
    for tenant, scopes in tenants.items():
        key = new_key([entry.id for entry in file.keys])
        entry = KeyEntry(
            id=key.id,
            tenant=tenant,
            sha256=digest_of_key(key.text),
            scopes=tuple(scopes),
            created=dt.datetime.now(dt.UTC),
        )
        file = file.with_key(entry, TenantEntry(name=tenant))
        texts[tenant] = key.text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_key_file(file))
    return texts
