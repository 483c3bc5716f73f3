"""The whole state of an object as plain values, so that a test can compare it before and after a call."""

import asyncio
import enum
import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

import msgspec

_PLAIN = (int, float, str, bytes, bool, type(None), enum.Enum)
_OPAQUE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, asyncio.Future)


def state_of(value: object) -> object:
    """All attributes and elements that `value` reaches, in order; functions and tasks by identity."""
    return _state(value, {})


@contextmanager
def unchanged(*objects: object) -> Iterator[None]:
    """Fail if the block changes the state of any of `objects`.

    with unchanged(index, pending):
        pending.match("worker-0", hashes, 0, index)
    """
    before = state_of(objects)
    yield
    assert state_of(objects) == before


def _state(value: object, seen: dict[int, int]) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _OPAQUE):
        return type(value).__name__, id(value)
    if id(value) in seen:
        return "seen as", seen[id(value)]
    seen[id(value)] = len(seen)
    name = type(value).__name__
    if isinstance(value, Mapping):
        return name, [(_state(key, seen), _state(item, seen)) for key, item in value.items()]
    if isinstance(value, AbstractSet):
        return name, sorted(repr(_state(item, seen)) for item in value)
    if isinstance(value, Sequence):
        return name, [_state(item, seen) for item in value]
    return name, [(field, _state(getattr(value, field), seen)) for field in _fields(value)]


def _fields(value: object) -> list[str]:
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in [*slots, *getattr(value, "__dict__", {})] if hasattr(value, name)]
