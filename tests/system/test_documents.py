"""What the documents name is there: links, files, commands and their flags, targets, fields, values."""

import contextlib
import functools
import io
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

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
from warmfleet_operator import settings as operator_settings
from warmfleet_router import settings as router_settings
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
from warmfleet_worker import settings as worker_settings
from warmfleet_worker.model_store.fetch import settings as fetch_settings

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


PARSERS: Final[tuple[Callable[[list[str]], object], ...]] = (
    router_settings.parse_settings,
    operator_settings.parse_settings,
    worker_settings.parse_settings,
    fetch_settings.parse_settings,
)
FLAG: Final = re.compile(r"--[a-z][a-z0-9-]*(?<!-)")
SCRIPTS: Final = "benchmarks"
OTHER_PROGRAMS: Final = re.compile(r"vllm|extraArgs|helm|kubectl|buildah", re.IGNORECASE)
"""`extraArgs` are vLLM's."""


def flags_of(parse: Callable[[list[str]], object]) -> frozenset[str]:
    """The flags that a program of ours lists."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        parse(["--help"])
    return frozenset(re.findall(rf"^  (?:-\w, )?({FLAG.pattern})", shown.getvalue(), re.MULTILINE))


def flags_below(command: Any) -> Iterator[str]:
    """Those of a command of `warmfleet` and of the commands below it."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from flags_below(below)


@functools.cache
def our_flags() -> frozenset[str]:
    commands_flags = flags_below(typer.main.get_command(app))
    return frozenset(commands_flags).union(*map(flags_of, PARSERS))


@functools.cache
def script_flags() -> frozenset[str]:
    """Those that a script in `benchmarks/` defines; each of them parses its own."""
    texts = (path.read_text() for path in (REPOSITORY / SCRIPTS).rglob("*.py"))
    return frozenset(flag for text in texts for flag in re.findall(rf"\"({FLAG.pattern})\"", text))


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each paragraph, list item and table row, with the headings that it stands below, outermost first."""
    headings: dict[int, str] = {}
    block: list[str] = []
    for line in [*re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines(), ""]:
        heading = re.match(r"(#+) ", line)
        if heading or not line.strip() or re.match(r" *(?:[-*]|\d+\.) |\|", line):
            if block:
                yield " / ".join(headings.values()), " ".join(block)
            block = []
        if heading:
            level = len(heading[1])
            headings = {above: title for above, title in headings.items() if above < level} | {level: line}
        elif line.strip():
            block.append(line)


def unknown_flags(text: str) -> Iterator[str]:
    """Flags in inline code of a page that no parser of ours has.

    A flag of another program stands in a command of it, or where its paragraph, list item or table row, or a
    heading above, names the program.
    """
    known = our_flags() | (script_flags() if f"{SCRIPTS}/" in text else frozenset())
    for headings, block in blocks(text):
        if OTHER_PROGRAMS.search(f"{headings} {block}"):
            continue
        for span in spans(block):
            if span.startswith("--"):
                yield from (flag for flag in FLAG.findall(span) if flag not in known)


@every_document
def test_a_flag_exists(page: Path) -> None:
    assert not list(unknown_flags(page.read_text()))


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("as many as `--ring-size` has", []),
        ("as many as `--ring-sizes` has", ["--ring-sizes"]),
        ("| what | `--ring-sizes 7`, `--port` |", ["--ring-sizes"]),
        ("- first\n- second, over\n  two lines: `--ring-sizes=7`", ["--ring-sizes"]),
        ("vLLM's `--enforce-eager`", []),
        ("## Flags of vLLM\n### Some\n`--enforce-eager`", []),
        ("## Flags of vLLM\n## Ours\n`--enforce-eager`", ["--enforce-eager"]),
        ("vLLM's\n\n`--enforce-eager`", ["--enforce-eager"]),
        ("`skopeo copy --preserve-digests`", []),
        ("`benchmarks/soak.py` with `--idle-seconds`", []),
        ("`--idle-seconds`", ["--idle-seconds"]),
    ],
)
def test_a_flag_that_is_not_there_is_missed(text: str, unknown: list[str]) -> None:
    assert list(unknown_flags(text)) == unknown


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


VALUES_MARK: Final = "# values of the chart"


@every_document
def test_a_part_of_a_manifest_or_of_values_names_what_exists(page: Path) -> None:
    """A part of a manifest begins with `spec:`, and one of the chart's values is marked as such."""
    for fence in fences(page.read_text()):
        for part in fence.manifests():
            if "kind" in part or set(part) in OTHERS:
                continue
            if fence.text.lstrip().startswith(VALUES_MARK):
                unknown = list(not_in_values(part, chart_values(), "values"))
            else:
                unknown = list(
                    not_in_schema(part, {"properties": {"spec": root_schema()["properties"]["spec"]}}, "")
                )
            assert not unknown, (unknown, fence.text)


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
