"""What the documents name is there: links, files, commands and their flags, targets, fields, values."""

import functools
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from warmfleet_cli.__main__ import app
from warmfleet_contracts.names import (
    KIND,
    NAMESPACE_SECRET,
    NAMESPACE_SECRET_KEY,
    OPERATOR_HEALTH_PORT,
    OPERATOR_METRICS_PORT,
    ROOT_KEYS_OPERATOR_TOKEN,
    ROOT_KEYS_SALT,
    ROOT_KEYS_WORKER_TOKEN,
    ROUTER_PORT,
    WORKER_PORT,
)
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_testing.documents.documents import (
    DOCUMENTS,
    REPOSITORY,
    anchors,
    commands,
    fences,
    links,
    spans,
    tables,
)
from warmfleet_testing.resources.crd_schema import root_schema

every_document = pytest.mark.parametrize(
    "page", DOCUMENTS, ids=lambda page: str(page.relative_to(REPOSITORY))
)
PACKAGES = ("contracts", "runtime", "operator", "router", "worker", "devcluster", "simulator", "cli")
MODULE = re.compile(rf"(?:{'|'.join(PACKAGES)})/[\w/{{}},.]+")
FILES = re.compile(r"(?:examples|docs|charts|crds|tests|benchmarks|images)/[\w./-]+\.(?:md|ya?ml|py|json)")


@functools.cache
def chart_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((REPOSITORY / "charts/warmfleet/values.yaml").read_text())
    return values


@functools.cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


def expanded(path: str) -> Iterator[str]:
    """A path with `{a,b}` in it as the paths that it stands for."""
    parts = re.split(r"\{([^}]*)\}", path)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    yield from ("".join(choice) for choice in itertools.product(*choices))


@every_document
def test_a_link_leads_somewhere(page: Path) -> None:
    for target in links(page.read_text()):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), target


@every_document
def test_a_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text()

    for path in FILES.findall(text):
        assert (REPOSITORY / path).exists(), path


@every_document
def test_a_manifest_is_accepted(page: Path) -> None:
    for fence in fences(page.read_text()):
        for manifest in fence.manifests():
            if manifest.get("kind") == KIND:
                parse_manifest(manifest, origin=page.name)


@every_document
def test_a_command_exists_with_its_flags(page: Path) -> None:
    for command in commands(page.read_text()):
        match = re.match(r"(?:sudo (?:-E )?)?(?:\.venv/bin/)?warmfleet ([a-z].*)", command)
        if match is None:
            continue
        for words in alternatives(shlex.split(match[1])):
            check_command(words)


def alternatives(words: list[str]) -> Iterator[list[str]]:
    """`keys create|list` as the two commands that it stands for."""
    yield from (list(choice) for choice in itertools.product(*(word.split("|") for word in words)))


def check_command(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and (below := getattr(command, "commands", {})):
        name = rest.pop(0)
        assert name in below, words
        command = below[name]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in flags | {"--help"}, words


@every_document
def test_a_make_target_exists(page: Path) -> None:
    for command in commands(page.read_text()):
        if re.match(r"make( |$)", command):
            words = [
                word for word in shlex.split(command, comments=True)[1:] if re.fullmatch(r"[a-z][\w-]*", word)
            ]
            assert set(words) <= targets(), command


@every_document
def test_a_value_of_the_chart_exists(page: Path) -> None:
    text = page.read_text()
    given = [
        name
        for command in commands(text)
        if command.startswith("helm ")
        for name in re.findall(r"--set(?:-string)?[ =]([\w.]+)=", command)
    ]
    named = [
        match[1]
        for span in spans(text)
        if (match := re.fullmatch(r"([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:: .*)?", span))
        and match[1].partition(".")[0] in chart_values()
        and not match[1].endswith((".md", ".py", ".json", ".yaml", ".sock"))
    ]
    for path in given + named:
        value: Any = chart_values()
        for name in path.split("."):
            assert isinstance(value, Mapping), path
            if not value:
                break  # an object of the user's, such as resources
            assert name in value, path
            value = value[name]


@every_document
def test_a_field_of_the_resource_exists(page: Path) -> None:
    for span in spans(page.read_text()):
        match = re.fullmatch(r"((?:spec|status)(?:\.[a-zA-Z]+)+)(?:: .*)?", span)
        if match is not None:
            assert field_exists(match[1]), span


def field_exists(path: str) -> bool:
    schema = root_schema()
    for name in path.split("."):
        schema = schema.get("items", schema)
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return True
        if name not in schema.get("properties", {}):
            return False
        schema = schema["properties"][name]
    return True


OTHERS = (frozenset({"servingEngineSpec", "routerSpec"}), frozenset({"version", "tenants", "keys"}))
"""Values of another project's chart, in the page about moving from it; a key file."""


@every_document
def test_a_part_of_a_manifest_or_of_values_names_what_exists(page: Path) -> None:
    spec = root_schema()["properties"]["spec"]
    for fence in fences(page.read_text()):
        for part in fence.manifests():
            if "kind" in part or set(part) in OTHERS:
                continue
            unknown = list(not_in_schema(part, spec, "spec"))
            if unknown:
                unknown = list(not_in_values(part, chart_values(), "values"))
            assert not unknown, fence.text


def not_in_schema(part: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Fields of `part` that the schema does not know."""
    if isinstance(part, list):
        for item in part:
            yield from not_in_schema(item, schema.get("items", {}), f"{path}[]")
    elif isinstance(part, Mapping) and "properties" in schema:
        for name, value in part.items():
            if name in schema["properties"]:
                yield from not_in_schema(value, schema["properties"][name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


def not_in_values(part: Any, values: Any, path: str) -> Iterator[str]:
    """Values of `part` that the chart does not have; below an empty one everything is the user's."""
    if isinstance(part, Mapping) and isinstance(values, Mapping) and values:
        for name, value in part.items():
            if name in values:
                yield from not_in_values(value, values[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


def test_the_page_about_security_lists_every_port_and_every_secret() -> None:
    text = (REPOSITORY / "docs/reference/security.md").read_text()
    by_title = {table[0][0]: table[1:] for table in tables(text)}

    ports = {int(row[1]) for row in by_title["pod"] if row[1].isdecimal()}
    assert ports == {ROUTER_PORT, WORKER_PORT, OPERATOR_HEALTH_PORT, OPERATOR_METRICS_PORT}
    secrets = " ".join(" ".join(row) for row in by_title["Secret"])
    for name in (
        NAMESPACE_SECRET,
        NAMESPACE_SECRET_KEY,
        ROOT_KEYS_WORKER_TOKEN,
        ROOT_KEYS_SALT,
        ROOT_KEYS_OPERATOR_TOKEN,
    ):
        assert f"`{name}`" in secrets, name


@every_document
def test_a_module_or_room_that_is_named_exists(page: Path) -> None:
    """`router/routing/picker` stands for `router/warmfleet_router/routing/picker.py`."""
    for span in spans(page.read_text()):
        if MODULE.fullmatch(span):
            assert all(module_exists(path) for path in expanded(span)), span


def module_exists(path: str) -> bool:
    package, _, rest = path.partition("/")
    found = (
        REPOSITORY / path,
        REPOSITORY / "tests" / path,  # the tables of faults leave `tests/` out
        REPOSITORY / package / f"warmfleet_{package}" / rest,
    )
    return any(place.exists() or place.with_name(f"{place.name}.py").exists() for place in found)


def test_a_module_that_is_not_there_is_missed() -> None:
    assert MODULE.fullmatch("router/routing/pickers")
    assert not module_exists("router/routing/pickers")
    assert module_exists("router/routing/picker")
    assert module_exists("router/routing")


def test_the_table_of_rooms_is_the_tree() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text()
    rows = next(table for table in tables(text) if table[0] == ["room", "what it is for"])

    rooms = {
        f"{package}/{init.parent.name}"
        for package in PACKAGES
        for init in (REPOSITORY / package / f"warmfleet_{package}").glob("*/__init__.py")
    }
    assert {row[0].strip("`") for row in rows[1:]} == rooms
