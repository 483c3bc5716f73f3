"""YAML that people write is plain data, of a size that its text bounds; or it is an error with its place."""

import pytest
import yaml

from warmfleet_contracts.errors import KeyFileError, ManifestError
from warmfleet_contracts.keys import parse_key_file
from warmfleet_contracts.plain_yaml import MAX_REPEATED_VALUES, read_document, read_documents
from warmfleet_contracts.resources.manifests import load_manifest

ALIASES = "a0: &a0 [1]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 12)
)


def test_documents_are_plain_data() -> None:
    text = "a: 1\nb: [x, 2.5, null, true]\n---\nc: &c {d: e}\nf: *c\ng: {<<: *c, h: i}\n"

    first, second = read_documents(text)

    assert first == {"a": 1, "b": ["x", 2.5, None, True]}
    assert second == {"c": {"d": "e"}, "f": {"d": "e"}, "g": {"d": "e", "h": "i"}}


def test_an_empty_text_is_no_document() -> None:
    assert read_document("# nothing\n") is None
    assert list(read_documents("")) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!bool x", "does not fit its type, bool"),
        ("a: !!int ''", "does not fit its type, int"),
        ("a: !!int x", "does not fit its type, int"),
        ("a: !!float ''", "does not fit its type, float"),
        ("a: !!timestamp x", "does not fit its type, timestamp"),
        ("a: 2001-99-99", "does not fit its type, timestamp"),
        ("a: 0x" + 5000 * "f", "at most 100 characters"),
        ("a: " + 5000 * "9", "at most 100 characters"),
        ("a: 1" + 100_000 * ":1", "at most 100 characters"),
        ("a: 1\na: 2", "'a' stands twice"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: &a [*a]", "stands within what it names"),
        (ALIASES, "aliases repeat more than 10,000 values"),
        (MERGES, "aliases repeat more than 10,000 values"),
        ("a: 1\n---\nb: 2", "but found another document"),
    ],
)
def test_what_is_no_plain_data_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        read_document(text)

    assert problem in str(caught.value.problem)
    assert caught.value.problem_mark is not None


def test_aliases_may_repeat_up_to_a_number_of_values() -> None:
    def text(repeated: int) -> str:
        return "a: &a [" + ", ".join(["1"] * 99) + "]\nb: [" + ", ".join(["*a"] * repeated) + "]"

    most = MAX_REPEATED_VALUES // 100
    assert len(read_document(text(most))["b"]) == most
    with pytest.raises(yaml.MarkedYAMLError):
        read_document(text(most + 1))


@pytest.mark.parametrize("text", [ALIASES, MERGES, "a: !!bool x", "a: !!timestamp x", "a: 0x" + 5000 * "f"])
def test_manifests_and_key_files_that_are_no_plain_data_are_refused(text: str) -> None:
    with pytest.raises(ManifestError, match=r"manifest:1:\d+: not valid YAML"):
        load_manifest(text)
    with pytest.raises(KeyFileError, match="not valid YAML in line 1"):
        parse_key_file(text.encode())
