"""Reads YAML that people write: plain data alone, of a size that its text bounds, or an error with its place.

PyYAML's safe loader constructs no objects of ours, but a text of 800 bytes can hold a billion values (aliases
and merge keys that name each other), a number of 200,000 characters takes it seconds, and a tag that does not
fit its value raises what Python raised.
"""

from collections.abc import Hashable, Iterator
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

MAX_REPEATED_VALUES: Final = 10_000
"""That aliases and merge keys may add to those that stand in the text."""
MAX_NUMBER_CHARACTERS: Final = 100
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


def read_document(text: str | bytes) -> Any:
    """The one document of a text; None for an empty one.

    Raises:
        yaml.YAMLError: as `read_documents`; also where there are several.
        UnicodeDecodeError, RecursionError: the same.
    """
    loader = _PlainLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_documents(text: str | bytes) -> Iterator[Any]:
    """The documents of a text.

    Raises:
        yaml.YAMLError: it is no YAML, a mapping has a key twice, or its values are not plain data; with its
            place, a `MarkedYAMLError`.
        UnicodeDecodeError: bytes that are no text.
        RecursionError: it is nested too deeply.
    """
    return yaml.load_all(text, Loader=_PlainLoader)


class _PlainLoader(yaml.SafeLoader):
    # Not libyaml's loader, which is faster: deep nesting overflows its stack and ends the process.

    def construct_document(self, node: yaml.Node) -> Any:
        _check_size(node)
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARACTERS:
            raise _error(f"a number has at most {MAX_NUMBER_CHARACTERS} characters", node)
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _error(f"the value does not fit its type, {kind}", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _error(f"key {key.value!r} stands twice", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _check_size(root: yaml.Node) -> None:
    """Refuse a document that aliases make much larger than its text, or endless."""
    sizes: dict[yaml.Node, int] = {}
    _size(root, sizes, set())
    if sizes[root] - len(sizes) > MAX_REPEATED_VALUES:
        raise _error(f"aliases repeat more than {MAX_REPEATED_VALUES:,} values", root)


def _size(node: yaml.Node, sizes: dict[yaml.Node, int], within: set[yaml.Node]) -> int:
    """Values of a node, each alias counted as what it names; `sizes` has those of all nodes so far."""
    known = sizes.get(node)
    if known is not None:
        return known
    if node in within:
        raise _error("an alias stands within what it names", node)
    within.add(node)
    sizes[node] = 1 + sum(_size(child, sizes, within) for child in _children(node))
    within.remove(node)
    return sizes[node]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


def _error(problem: str, node: yaml.Node) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)
