"""A Dockerfile as data, and which files of the context a builder would see."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continued lines joined."""

    keyword: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def json(self) -> list[str]:
        """The exec form of ENTRYPOINT and CMD."""
        value: list[str] = json.loads(self.text)
        return value

    @property
    def pairs(self) -> dict[str, str]:
        """What ENV, LABEL and ARG set."""
        return dict(word.partition("=")[::2] for word in self.words)

    @property
    def copy(self) -> "Copy":
        """What COPY copies."""
        words = self.words
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        return Copy(tuple(words[:-1]), words[-1], stage)


@dataclass(frozen=True, slots=True)
class Copy:
    sources: tuple[str, ...]
    target: str
    stage: str | None


@dataclass(slots=True)
class Stage:
    """FROM base AS name, and what follows."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def of(self, keyword: str) -> list[Instruction]:
        return [item for item in self.instructions if item.keyword == keyword]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    arguments: Mapping[str, str]
    """Defaults of the arguments before the first stage."""
    stages: Mapping[str, Stage]

    def lineage(self, name: str) -> list[Stage]:
        """The stages whose instructions make up `name`, the first one first."""
        stage = self.stages[name]
        return [*(self.lineage(stage.base) if stage.base in self.stages else ()), stage]


def parse_dockerfile(text: str) -> Dockerfile:
    """Stages by name. Knows what this project's Dockerfile uses."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            base, _, name = instruction.text.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif stage is None:
            arguments |= instruction.pairs
        else:
            stage.instructions.append(instruction)
    return Dockerfile(arguments, stages)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if line.strip():
            keyword, _, rest = line.partition(" ")
            yield Instruction(keyword, rest.strip())


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME}` by its value."""
    return _VARIABLE.sub(lambda match: variables[match[1]], text)


def sent_files(context: Path, ignore: str) -> set[str]:
    """Paths of the files that a builder gets, as .dockerignore has it: the last line that matches decides."""
    rules = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    patterns = [(not rule.startswith("!"), _pattern(rule.removeprefix("!"))) for rule in rules]
    kept: set[str] = set()
    # A folder whose first part no exception names cannot hold anything that is sent.
    tops = {rule[1:].partition("/")[0] for rule in rules if rule.startswith("!")}
    for top in sorted(tops):
        path = context / top
        for file in [path] if path.is_file() else path.rglob("*"):
            name = file.relative_to(context).as_posix()
            if file.is_file() and not _is_ignored(name, patterns):
                kept.add(name)
    return kept


def _is_ignored(name: str, patterns: list[tuple[bool, re.Pattern[str]]]) -> bool:
    ignored = False
    for ignores, pattern in patterns:
        if pattern.match(name):
            ignored = ignores
    return ignored


def _pattern(rule: str) -> re.Pattern[str]:
    """A rule also covers everything below what it matches."""
    parts = re.escape(rule).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.compile(rf"{parts}(?:/.*)?\Z")
