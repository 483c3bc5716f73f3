"""The documents of the repository as tests read them: links, code, tables."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

REPOSITORY: Final = Path(__file__).parents[4]
DOCUMENTS: Final = tuple(sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]))

_FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SPAN: Final = re.compile(r"`([^`]+)`")
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fence:
    """One block of code and its language."""

    language: str
    text: str

    def manifests(self) -> Iterator[dict[str, Any]]:
        """The maps in it, if it is YAML."""
        if self.language == "yaml":
            yield from (item for item in yaml.safe_load_all(self.text) if isinstance(item, dict))


def fences(text: str) -> list[Fence]:
    return [Fence(language, body) for language, body in _FENCE.findall(text)]


def spans(text: str) -> list[str]:
    """Inline code, outside of fenced blocks; a line break inside is a blank."""
    return [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text))]


def commands(text: str) -> list[str]:
    """What a reader would type: lines of `sh` blocks, continued ones joined, and inline code."""
    lines = [
        line.strip()
        for fence in fences(text)
        if fence.language in {"sh", "shell", "bash"}
        for line in fence.text.replace("\\\n", " ").splitlines()
    ]
    parts = [re.split(r"(?:^|\s)#|[|;&]+ ", line)[0] for line in lines] + [
        part for line in lines for part in re.split(r"[|;&]+ ", line.partition(" #")[0])[1:]
    ]
    return [part.strip() for part in [*parts, *spans(text)] if part.strip()]


def links(text: str) -> list[str]:
    """Targets within the repository."""
    found = _LINK.findall(_FENCE.sub("", text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """What headings can be linked by, as forges derive it."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables(text: str) -> list[list[list[str]]]:
    """Every table as rows of cells, the heading first, the rule below it left out."""
    found: list[list[list[str]]] = []
    inside = False
    for line in _FENCE.sub("", text).splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        if not inside:
            found.append([])
        inside = True
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if not all(set(cell) <= set("-: ") and cell for cell in cells):
            found[-1].append(cells)
    return found
