"""The newest known state of every watched object.

Filled by `KopfWatches` and by the answers to the operator's own writes; the newer version wins.
"""

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.cluster import Listed
from warmfleet_operator.objects.deployment_state import DeploymentState
from warmfleet_operator.objects.kinds import CHILDREN, DEPLOYMENT, MODEL_DEPLOYMENT, WATCHED, Kind
from warmfleet_operator.objects.pods import PodView
from warmfleet_operator.objects.rollouts import UpgradeState
from warmfleet_operator.watch.entry import Entry, Key

REMEMBERED_DELETIONS: Final = 512


class Store:
    """All watched objects. Calls `changed` with the key of every ModelDeployment that a change affects."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._entries: Final[dict[Kind, dict[Key, Entry]]] = {kind: {} for kind in WATCHED}
        self._by_owner: dict[Key, set[tuple[Kind, Key]]] = {}
        self._deleted_uids: deque[str] = deque(maxlen=REMEMBERED_DELETIONS)

    def put(self, entry: Entry) -> None:
        """Store `entry` unless a newer version is stored. resourceVersions of one cluster are comparable."""
        known = self._entries[entry.kind].get(entry.key)
        if entry.uid in self._deleted_uids or (known is not None and known.version >= entry.version):
            return
        if known is not None and known.owner != entry.owner:
            self._disown(known)
        self._entries[entry.kind][entry.key] = entry
        if entry.owner is not None:
            self._by_owner.setdefault(entry.owner, set()).add((entry.kind, entry.key))
            self._changed(entry.owner)
        if entry.claim is not None and (known is None or known.claim != entry.claim):
            self._requeue_claimants(entry, known)

    def drop(self, kind: Kind, key: Key, uid: str) -> None:
        """Remove a deleted object, unless a newer object of the same name is stored."""
        self._deleted_uids.append(uid)  # the answer to a write may arrive after the deletion
        known = self._entries[kind].get(key)
        if known is None or known.uid != uid:
            return
        del self._entries[kind][key]
        self._disown(known)
        if known.claim is not None:
            self._requeue_claimants(known, None)

    def keep_only(
        self,
        kind: Kind,
        listed: Iterable[Listed],
        since_version: int,
        *,
        except_in: Container[str | None] = (),
    ) -> None:
        """Remove objects that are not in `listed` and not newer than `since_version`.

        A watch that was broken for long starts with a new list and never reports what was deleted before it.
        Of namespaces in `except_in` nothing was listed, and nothing is removed.
        """
        listed_uids = {item.uid for item in listed}
        for entry in list(self._entries[kind].values()):
            if entry.key.namespace in except_in:
                continue
            if entry.uid not in listed_uids and entry.version <= since_version:
                self.drop(kind, entry.key, entry.uid)

    def version(self, kind: Kind, key: Key) -> tuple[str, int] | None:
        """Uid and resourceVersion of the stored object."""
        known = self._entries[kind].get(key)
        return (known.uid, known.version) if known is not None else None

    def newest(self, kind: Kind) -> int:
        """The highest stored resourceVersion of this kind."""
        return max((entry.version for entry in self._entries[kind].values()), default=0)

    def deployments(self) -> list[Key]:
        """Keys of all ModelDeployments."""
        return list(self._entries[MODEL_DEPLOYMENT])

    def deployment(self, key: Key) -> dict[str, Any] | None:
        """The ModelDeployment as a dictionary; None if it is not known."""
        entry = self._entries[MODEL_DEPLOYMENT].get(key)
        return entry.decoded() if entry is not None else None

    def children(self, key: Key) -> list[dict[str, Any]]:
        """Its objects of the kinds in `CHILDREN`, as dictionaries."""
        return [entry.decoded() for entry in self._owned(key) if entry.kind in CHILDREN]

    def child(self, kind: Kind, key: Key) -> dict[str, Any] | None:
        """One object of a kind in `CHILDREN`, as a dictionary; None if it is not known."""
        entry = self._entries[kind].get(key)
        return entry.decoded() if entry is not None else None

    def pods(self, key: Key) -> list[PodView]:
        """Its pods, those of its fetch Job included."""
        return [entry.body for entry in self._owned(key) if isinstance(entry.body, PodView)]

    def claims(self) -> Iterator[Claim]:
        """The served names that each ModelDeployment claims."""
        for entry in self._entries[MODEL_DEPLOYMENT].values():
            if entry.claim is not None:
                yield entry.claim

    def affected_by(self, pod_uids: AbstractSet[str], names: AbstractSet[str]) -> Iterator[Key]:
        """Keys of ModelDeployments that own one of the pods or claim one of the names."""
        for key, entry in self._entries[MODEL_DEPLOYMENT].items():
            own_names = entry.claim.served_names if entry.claim is not None else ()
            if not names.isdisjoint(own_names) or any(pod.uid in pod_uids for pod in self.pods(key)):
                yield key

    def upgrades(self) -> Iterator[tuple[Key, UpgradeState]]:
        """The upgrade state of every Deployment of workers."""
        for entry in self._entries[DEPLOYMENT].values():
            if entry.upgrade is not None and entry.owner is not None:
                yield entry.owner, entry.upgrade

    def namespaces(self) -> set[str]:
        """Namespaces with a ModelDeployment."""
        return {key.namespace for key in self._entries[MODEL_DEPLOYMENT]}

    def counts(self) -> dict[str, int]:
        """Number of objects by kind."""
        return {kind.name: len(entries) for kind, entries in self._entries.items()}

    def states(self) -> dict[Key, DeploymentState]:
        """What the status of each ModelDeployment reports."""
        entries = self._entries[MODEL_DEPLOYMENT].items()
        return {key: entry.state for key, entry in entries if entry.state is not None}

    def conditions(self) -> Counter[tuple[str, str]]:
        """Number of ModelDeployments by (type, status) of their conditions."""
        return Counter(condition for state in self.states().values() for condition in state.conditions)

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

    def _requeue_claimants(self, entry: Entry, known: Entry | None) -> None:
        """Report every other ModelDeployment that claims a name of `entry` or `known`."""
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
