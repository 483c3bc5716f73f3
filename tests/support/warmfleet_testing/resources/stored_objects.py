"""Objects as an API server keeps them, as values: each has a uid, and a new version after each write."""

import itertools
from typing import Any

from warmfleet_operator.errors import GoneError
from warmfleet_operator.objects.kinds import Kind


class StoredObjects:
    """The newest body of each object, by kind and name; of one namespace."""

    def __init__(self) -> None:
        self._versions = itertools.count(100)
        self._bodies: dict[tuple[Kind, str], dict[str, Any]] = {}

    def __contains__(self, kind_and_name: tuple[Kind, str]) -> bool:
        return kind_and_name in self._bodies

    def __delitem__(self, kind_and_name: tuple[Kind, str]) -> None:
        del self._bodies[kind_and_name]

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        """An object as it is stored.

        Raises:
            GoneError: there is none.
        """
        if (kind, name) not in self._bodies:
            raise GoneError(name)
        return self._bodies[kind, name]

    def all(self) -> list[tuple[Kind, dict[str, Any]]]:
        """All of them, by kind."""
        return [(kind, body) for (kind, _), body in self._bodies.items()]

    def put(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        """Create or replace an object; returns it as it is stored."""
        identity = kind, body["metadata"]["name"]
        known = self._bodies.get(identity, {}).get("metadata", {})
        version = next(self._versions)
        uid = known.get("uid") or body["metadata"].get("uid") or f"uid-{version}"
        metadata = {**body["metadata"], "uid": uid, "resourceVersion": str(version)}
        self._bodies[identity] = {**body, "metadata": metadata}
        return self._bodies[identity]
