"""Merges a user's overlay into a manifest: maps merge, known lists merge by key, null removes.

Like Kubernetes' strategic merge patch, with its directives `$patch: delete` and `$patch: replace` in a map or
in an item of a list that merges: plain `kubectl apply` drops nulls before it sends them. Arguments are not
modified.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmfleet_operator.desired.errors import OverlayError

MAX_DEPTH: Final = 32

_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose items are identified by a field, and that field."""

_APPENDED: Final = frozenset({"tolerations"})
"""Lists without such a field, to which new items are appended. All other lists are replaced."""


_DIRECTIVE: Final = "$patch"
_DELETE: Final = "delete"
_REPLACE: Final = "replace"


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A new value: `base` with `overlay` merged into it.

    Args:
        base: the manifest.
        overlay: its changes; a field that is None, or a map with `$patch: delete`, is removed.
        path: field path of both in the manifest, for errors.

    Raises:
        OverlayError: a list item lacks the field that identifies it or names one twice, a value has the
            wrong shape, or a directive is unknown.
    """
    return _merge_maps(base, overlay, path, 0)


def _merge_maps(base: Mapping[str, Any], overlay: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise OverlayError(path[:200], f"nested more than {MAX_DEPTH} levels deep")
    merged = {} if overlay.get(_DIRECTIVE) == _REPLACE else copy.deepcopy(dict(base))
    for name, value in overlay.items():
        if name == _DIRECTIVE:
            if value not in {_DELETE, _REPLACE}:
                where = f"{path}.{name}" if path else name
                raise OverlayError(where, f"expected {_DELETE} or {_REPLACE}")
            continue
        if _removes(value):
            merged.pop(name, None)
            continue
        merged[name] = _merge_values(merged.get(name), value, f"{path}.{name}" if path else name, depth + 1)
    return merged


def _removes(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and value.get(_DIRECTIVE) == _DELETE)


def _merge_values(base: object, value: object, path: str, depth: int) -> object:
    name = path.rpartition(".")[2]
    if isinstance(value, Mapping):
        return _merge_maps(base if isinstance(base, Mapping) else {}, value, path, depth)
    if name in _KEYS:
        return _merge_lists(_items(base, path), _items(value, path), _KEYS[name], path, depth)
    if name in _APPENDED:
        return _appended(_items(base, path), _items(value, path), path)
    return copy.deepcopy(value)


def _items(value: object, path: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise OverlayError(path, "expected a list")
    for i, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise OverlayError(f"{path}[{i}]", "expected an object")
    return [dict(item) for item in value]


def _merge_lists(
    base: list[dict[str, Any]], overlay: list[dict[str, Any]], key: str, path: str, depth: int
) -> list[dict[str, Any]]:
    merged = copy.deepcopy(base)
    named: set[str | int] = set()
    for i, item in enumerate(overlay):
        identity = item.get(key)
        if not isinstance(identity, (str, int)):
            raise OverlayError(f"{path}[{i}]", f"needs {key}, by which it merges")
        if identity in named:
            raise OverlayError(f"{path}[{i}]", f"names the {key} {identity} a second time")
        named.add(identity)
        place = next((j for j, known in enumerate(merged) if known.get(key) == identity), None)
        where = f"{path}[{identity}]"
        if _removes(item):
            merged = [known for known in merged if known.get(key) != identity]
        elif place is None:
            merged.append(_merge_maps({}, item, where, depth))
        else:
            merged[place] = _merge_maps(merged[place], item, where, depth)
    return merged


def _appended(base: list[dict[str, Any]], overlay: list[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    merged = copy.deepcopy(base)
    for item in overlay:
        wanted = _merge_maps({}, item, path, 0)
        if wanted not in merged:
            merged.append(wanted)
    return merged
