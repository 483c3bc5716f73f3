"""Every package is sorted into rooms: few modules each, a docstring that explains it, no import cycles."""

import ast
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    *(ROOT / name / f"warmfleet_{name}" for name in ("contracts", "runtime", "operator", "router", "worker")),
    *(ROOT / name / f"warmfleet_{name}" for name in ("devcluster", "simulator", "cli")),
    ROOT / "tests/support/warmfleet_testing",
)
PRODUCT: Final = PACKAGES[:-1]
"""Without the support of tests."""
MODULES_AT_MOST: Final = 20
"""In one folder, its `__init__.py` aside."""

ROOMS: Final = sorted({path.parent for package in PACKAGES for path in package.rglob("*.py")})
BENCHMARKS: Final = sorted({path.parent for path in (ROOT / "benchmarks").rglob("*.py")})

every_room = pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))


@pytest.mark.parametrize("room", [*ROOMS, *BENCHMARKS], ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_holds_at_most_twenty_modules(room: Path) -> None:
    modules = [path.name for path in room.glob("*.py") if path.name != "__init__.py"]

    assert len(modules) <= MODULES_AT_MOST, modules


@every_room
def test_a_room_explains_itself(room: Path) -> None:
    tree = ast.parse((room / "__init__.py").read_text())

    assert ast.get_docstring(tree), "its __init__.py has no docstring"


def test_a_room_names_each_module_that_other_rooms_import() -> None:
    files = {name_of(path, package): path for package in PRODUCT for path in package.rglob("*.py")}
    sources = {name: path.read_text() for name, path in files.items()}
    rooms = {name for name, path in files.items() if path.name == "__init__.py"}
    shared = set(shared_modules(sources, rooms))
    assert len(shared) > 200

    assert {module for module in shared if not is_named(module, sources[room_of(module)])} == set()


def test_a_module_that_its_room_does_not_name_is_found() -> None:
    planted = {
        "a": "",
        "a.one": '"""Public: `first.Thing`; imports a second."""',
        "a.one.first": "",
        "a.one.second": "from a.one import first",
        "a.one.own": "",
        "a.two": "import a.one.own",
        "a.two.user": "from a.one import first, second",
    }

    shared = set(shared_modules(planted, {"a", "a.one", "a.two"}))

    assert shared == {"a.one.first", "a.one.second", "a.one.own"}
    assert is_named("a.one.first", planted["a.one"])
    assert not is_named("a.one.second", planted["a.one"])


def test_no_module_imports_itself_through_others() -> None:
    sources = {
        name_of(path, package): path.read_text() for package in PACKAGES for path in package.rglob("*.py")
    }
    assert len(sources) > 400

    assert cycle_in(sources) == []


def test_a_planted_cycle_is_found() -> None:
    planted = {
        "a": "",
        "a.first": "from a import second",
        "a.second": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.third import Thing",
        "a.third": "import a.first",
    }

    assert set(cycle_in(planted)) == {"a.first", "a.second", "a.third"}


def test_an_import_inside_a_function_makes_no_cycle() -> None:
    assert cycle_in({"a": "import b", "b": "def f():\n    import a"}) == []


def name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.rpartition(".")[0]


def shared_modules(sources: Mapping[str, str], rooms: AbstractSet[str]) -> Iterator[str]:
    """Modules that modules of other rooms import. `sources` maps the name of each module to its text."""
    for name, text in sources.items():
        own_room = name if name in rooms else room_of(name)
        for module in imported(ast.parse(text), sources):
            if module not in rooms and room_of(module) != own_room:
                yield module


def is_named(module: str, room: str) -> bool:
    """Whether the docstring of `room`, the text of its `__init__.py`, has the module in backticks."""
    docstring = ast.get_docstring(ast.parse(room)) or ""
    return re.search(rf"`{module.rpartition('.')[2]}[.`]", docstring) is not None


def cycle_in(sources: Mapping[str, str]) -> list[str]:
    """The modules of one import cycle, or none. `sources` maps the name of each module to its text."""
    graph = {name: set(imported(ast.parse(text), sources)) - {name} for name, text in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imported(tree: ast.AST, known: Mapping[str, str]) -> Iterator[str]:
    """Names of known modules that `tree` imports at module level, under TYPE_CHECKING included."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.Import(names=names):
                found = [name.name for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                below = [f"{module}.{name.name}" for name in names]
                found = [name if name in known else module for name in below]
            case _:
                yield from imported(node, known)
                continue
        yield from (name for name in found if name in known)
