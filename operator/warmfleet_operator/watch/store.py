"""What the operator knows of the cluster: the newest state of every object that it watches.

Filled by the informer and by the answers to our own writes, whichever is newer. Bodies are kept as JSON, a
fifth of what the same objects cost as dictionaries; pods as the few fields that are read.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL
from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.cluster import Listed
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, POD, WATCHED, Kind
from warmfleet_operator.objects.pods import PodView, pod_view
from warmfleet_operator.objects.rollouts import UpgradeState, upgrade_state
from warmfleet_operator.objects.served_names import claim_of, served_names

REMEMBERED_DELETIONS: Final = 512


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One ModelDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, as it is kept."""

    kind: Kind
    key: Key
    uid: str
    version: int
    owner: Key | None
    """The ModelDeployment that it belongs to, by its label; its own key for a ModelDeployment."""
    body: bytes | PodView
    claim: Claim | None = None
    upgrade: UpgradeState | None = None

    def decoded(self) -> dict[str, Any]:
        """The object again; not for pods."""
        assert isinstance(self.body, bytes)
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded


def entry_of(kind: Kind, body: Mapping[str, Any]) -> Entry:
    """An object of the API server, cut down to what is kept."""
    metadata = body["metadata"]
    key = Key(metadata["namespace"], metadata["name"])
    owner: Key | None = key
    kept: bytes | PodView
    if kind is not MODEL_DEPLOYMENT:
        label = (metadata.get("labels") or {}).get(MODEL_DEPLOYMENT_LABEL)
        owner = Key(key.namespace, label) if label else None
    if kind is POD:
        kept = pod_view(body)
    else:
        without = {name: item for name, item in metadata.items() if name != "managedFields"}
        whole = {**body, "apiVersion": kind.api_version, "kind": kind.name, "metadata": without}
        kept = json.dumps(whole, separators=(",", ":")).encode()
    return Entry(
        kind=kind,
        key=key,
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        owner=owner,
        body=kept,
        claim=_claim(body) if kind is MODEL_DEPLOYMENT else None,
        upgrade=upgrade_state(body) if kind is DEPLOYMENT else None,
    )


class Store:
    """All entries; tells `changed` of every ModelDeployment whose world is another now."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._entries: Final[dict[Kind, dict[Key, Entry]]] = {kind: {} for kind in WATCHED}
        self._by_owner: dict[Key, set[tuple[Kind, Key]]] = {}
        self._gone: deque[str] = deque(maxlen=REMEMBERED_DELETIONS)

    def put(self, entry: Entry) -> None:
        """Keep `entry` unless what is kept is newer. Versions of one cluster are comparable numbers."""
        known = self._entries[entry.kind].get(entry.key)
        if entry.uid in self._gone or (known is not None and known.version >= entry.version):
            return
        if known is not None and known.owner != entry.owner:
            self._disown(known)
        self._entries[entry.kind][entry.key] = entry
        if entry.owner is not None:
            self._by_owner.setdefault(entry.owner, set()).add((entry.kind, entry.key))
            self._changed(entry.owner)
        if entry.claim is not None and (known is None or known.claim != entry.claim):
            self._tell_rivals(entry, known)

    def drop(self, kind: Kind, key: Key, uid: str) -> None:
        """Forget an object that is gone, unless its name is another object's by now."""
        self._gone.append(uid)  # the answer to a write of ours may come after the news of its end
        known = self._entries[kind].get(key)
        if known is None or known.uid != uid:
            return
        del self._entries[kind][key]
        self._disown(known)
        if known.claim is not None:
            self._tell_rivals(known, None)

    def keep_only(self, kind: Kind, listed: Iterable[Listed], since_version: int) -> None:
        """Forget what a list did not hold, of that which is not newer than the list.

        A watch that was broken for long is begun anew and never tells what was deleted meanwhile.
        """
        alive = {item.uid for item in listed}
        for entry in list(self._entries[kind].values()):
            if entry.uid not in alive and entry.version <= since_version:
                self.drop(kind, entry.key, entry.uid)

    def version(self, kind: Kind, key: Key) -> tuple[str, int] | None:
        """Uid and version of what is kept."""
        known = self._entries[kind].get(key)
        return (known.uid, known.version) if known is not None else None

    def newest(self, kind: Kind) -> int:
        """The highest version of this kind."""
        return max((entry.version for entry in self._entries[kind].values()), default=0)

    def deployments(self) -> list[Key]:
        """Every ModelDeployment."""
        return list(self._entries[MODEL_DEPLOYMENT])

    def deployment(self, key: Key) -> dict[str, Any] | None:
        """The ModelDeployment itself, decoded."""
        entry = self._entries[MODEL_DEPLOYMENT].get(key)
        return entry.decoded() if entry is not None else None

    def children(self, key: Key) -> list[dict[str, Any]]:
        """Its objects but the pods, decoded."""
        return [entry.decoded() for entry in self._owned(key) if entry.kind not in {MODEL_DEPLOYMENT, POD}]

    def pods(self, key: Key) -> list[PodView]:
        return [entry.body for entry in self._owned(key) if isinstance(entry.body, PodView)]

    def claims(self) -> Iterator[Claim]:
        """Which names every ModelDeployment wants."""
        for entry in self._entries[MODEL_DEPLOYMENT].values():
            if entry.claim is not None:
                yield entry.claim

    def concerned(self, pod_uids: AbstractSet[str], names: AbstractSet[str]) -> Iterator[Key]:
        """Those who own one of the pods, or want one of the names."""
        for key, entry in self._entries[MODEL_DEPLOYMENT].items():
            own_names = entry.claim.served_names if entry.claim is not None else ()
            if not names.isdisjoint(own_names) or any(pod.uid in pod_uids for pod in self.pods(key)):
                yield key

    def upgrades(self) -> Iterator[tuple[Key, UpgradeState]]:
        """Where every Deployment stands."""
        for entry in self._entries[DEPLOYMENT].values():
            if entry.upgrade is not None and entry.owner is not None:
                yield entry.owner, entry.upgrade

    def namespaces(self) -> set[str]:
        """Those with a ModelDeployment."""
        return {key.namespace for key in self._entries[MODEL_DEPLOYMENT]}

    def counts(self) -> dict[str, int]:
        """Objects by kind."""
        return {kind.name: len(entries) for kind, entries in self._entries.items()}

    def conditions(self) -> Counter[tuple[str, str]]:
        """ModelDeployments by (type, status) of each condition that they say."""
        entries = self._entries[MODEL_DEPLOYMENT].values()
        return Counter(
            (condition["type"], condition["status"])
            for entry in entries
            for condition in entry.decoded().get("status", {}).get("conditions", ())
        )

    def _owned(self, key: Key) -> list[Entry]:
        return [self._entries[kind][child] for kind, child in self._by_owner.get(key, ())]

    def _disown(self, entry: Entry) -> None:
        if entry.owner is None:
            return
        owned = self._by_owner.get(entry.owner, set())
        owned.discard((entry.kind, entry.key))
        if not owned:
            self._by_owner.pop(entry.owner, None)
        self._changed(entry.owner)

    def _tell_rivals(self, entry: Entry, known: Entry | None) -> None:
        names = {
            name
            for claim in (entry.claim, known.claim if known else None)
            if claim
            for name in claim.served_names
        }
        for key, other in self._entries[MODEL_DEPLOYMENT].items():
            if (
                other.claim is not None
                and key != entry.key
                and not names.isdisjoint(other.claim.served_names)
            ):
                self._changed(key)


def _claim(body: Mapping[str, Any]) -> Claim | None:
    """None where it lists what is no name."""
    return claim_of(body) if all(isinstance(name, str) for name in served_names(body)) else None
