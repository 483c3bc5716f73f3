"""Key files with keys whose text the test knows."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from warmfleet_contracts.keys import KeyEntry, KeyFile, NewKey, TenantEntry, digest_of_key, new_key

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class PlantedKeys:
    """Grows by `add`; `file` is what a router would read."""

    def __init__(self) -> None:
        self.file = KeyFile()
        self.texts: list[str] = []

    def add(
        self,
        tenant: str,
        *,
        scopes: Sequence[str] = ("inference",),
        models: Sequence[str] | None = None,
        expires: dt.datetime | None = None,
        best_priority: int = 0,
        **of_tenant: Any,
    ) -> NewKey:
        """A key of `tenant`, which is the file's if it stands there already."""
        key = new_key([entry.id for entry in self.file.keys])
        entry = KeyEntry(
            id=key.id,
            tenant=tenant,
            sha256=digest_of_key(key.text),
            models=tuple(models) if models is not None else None,
            scopes=tuple(scopes),  # type: ignore[arg-type]  # names of scopes
            best_priority=best_priority,
            created=LONG_AGO,
            expires=expires,
        )
        known = self.file.tenant(tenant)
        self.file = self.file.with_key(entry, known or TenantEntry(name=tenant, **of_tenant))
        self.texts.append(key.text)
        return key


def bearer(key: NewKey | str) -> dict[str, str]:
    return {"authorization": f"Bearer {key if isinstance(key, str) else key.text}"}
