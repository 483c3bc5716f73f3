"""The counts of a message, for tests that put any number into each."""

import typing

import msgspec

from warmfleet_contracts.cache.kv_events import Count


def counts_of(message: type[msgspec.Struct]) -> list[str]:
    """Names of the fields that are a `Count`, those that may be absent too."""
    hints = typing.get_type_hints(message, include_extras=True)
    return [name for name, hint in hints.items() if Count in (hint, *typing.get_args(hint))]
