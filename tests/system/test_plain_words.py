"""Every text of the repository is in plain words: no figure of speech stands where the field has a term.

Checked are code, documents, manifests and templates, with their identifiers: `last_words` is found as well
as "last words". A quotation is exempt: text in backticks, and in Markdown text in double quotes.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    *("benchmarks", "charts", "cli", "contracts", "crds", "devcluster", "docs", "examples", "images"),
    *("operator", "router", "runtime", "simulator", "tests", "worker", ".ci"),
)
SUFFIXES: Final = frozenset({".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".tpl", ".txt"})
NAMES: Final = frozenset({"Makefile", "Dockerfile", "run"})
PINS: Final = ("constraints", "images/requirements/", "tests/clients/requirements/")
"""Names of other projects' packages."""

INSTEAD: Final[Mapping[str, str]] = {
    r"whoever|whomever": "the client, the caller, the process",
    r"whatever": "any, or the thing by its name",
    r"somebodys?|someones?": "a user, another process",
    r"nobod(?:y|ys)": "no client, no process, none",
    r"anybody|anyone": "any client, any process",
    r"everybody|everyone": "every client, all users",
    r"parole": "half-open",
    r"innocents?": "the other sequences, the other requests",
    r"wordless": "silent, seconds since the last message",
    r"last[ _-]words?": "termination message, last lines of the log",
    r"doors?": "admission, in-flight limits, edge",
    r"mates?": "other sequences in the batch, peers",
    r"sick|sickness": "unhealthy, liveness failure",
    r"(?:its|his|their|your|whose) turn": "next in the queue",
    r"ways? of a": "path of a, life of a",
    r"by the books?": "as recorded",
    r"hears?|heard|hearing": "receives, learns, observes",
    r"news|newsroom": "events, changes, messages",
    r"say(?! something)|says|said|unsaid": "reports, returns, writes, logs, states, has",
    r"told|tells?(?! me\b|\()": "reports, sends, shows, gets",
    r"in one go": "at once, in one pass",
    r"reckon(?:s|ed|ing)? with": "counts, takes into account",
    r"strand(?:s|ed|ing)?": "waits for good, is never served",
    r"blips?": "a short interruption",
    r"swallow(?:s|ed|ing)?": "drops, loses, is not passed on",
    r"deeds?": "the write, the change",
    r"blam(?:es?|ed|ing)": "names, counts against",
    r"suffer(?:s|ed|ing)?": "is affected",
    r"hurt(?:s|ing)?": "slows down, fails",
    r"by turns": "in rotation",
}
"""A pattern of words that are figures of speech, and the terms that replace them."""

_QUOTED: Final = re.compile(r"`[^`]*`")
_QUOTED_IN_MARKDOWN: Final = re.compile(r'`[^`]*`|"[^"]*"|“[^”]*”')
_BANNED: Final = tuple(
    (re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])", re.IGNORECASE), instead)
    for pattern, instead in INSTEAD.items()
)
_ANY: Final = re.compile(rf"(?<![a-z])(?:{'|'.join(INSTEAD)})(?![a-z])", re.IGNORECASE)


def findings(text: str, *, markdown: bool = False) -> Iterator[str]:
    """Line, word and replacement of each figure of speech in `text`."""
    quoted = _QUOTED_IN_MARKDOWN if markdown else _QUOTED
    for number, line in enumerate(text.splitlines(), start=1):
        if _ANY.search(line) is None:
            continue
        bare = quoted.sub("", line)
        for banned, instead in _BANNED:
            yield from (f"{number}: {match[0]} -> {instead}" for match in banned.finditer(bare))


def texts() -> Iterator[Path]:
    """Every file of ours but this one, which lists what is banned."""
    tops = [path for path in ROOT.iterdir() if path.is_file()]
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted([*tops, *below]):
        ours = not str(path.relative_to(ROOT)).startswith(PINS) and path != Path(__file__)
        if ours and (path.suffix in SUFFIXES or path.name in NAMES):
            yield path


def test_no_text_of_ours_holds_a_figure_of_speech() -> None:
    paths = list(texts())
    assert len(paths) > 500

    found = [
        f"{path.relative_to(ROOT)}:{finding}"
        for path in paths
        for finding in findings(path.read_text(), markdown=path.suffix == ".md")
    ]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "planted",
    [
        "# whoever calls",
        '"""Whatever the engine does."""',
        'raise CliError("somebody else holds it")',
        "nobody reads it",
        "on parole",
        "the innocent ones",
        "request.wordless_seconds",
        "def last_words(path):",
        "refused at the door",
        "self._mates = ()",
        "if sick():",
        "it waits for its turn",
        "## The way of a request",
        "class Newsroom:",
        "a router that hears of it",
        "def says(fleet):",
        "the worker is told its names",
        "a log that tells why",
        "considered in one go",
        "others must reckon with it",
        "a lost event strands a request",
        "a blip costs nothing",
        "the network swallows it",
        "after the deed",
        "which worker is to blame",
        "other tenants suffer",
        "what can hurt a tenant",
        "named by turns",
    ],
)
def test_the_gate_sees_what_is_planted(planted: str) -> None:
    assert list(findings(f"first line\n{planted}\n"))


def test_a_finding_names_the_line_the_word_and_a_replacement() -> None:
    assert list(findings("a\nb\nheld by nobody\n")) == ["3: nobody -> no client, no process, none"]


@pytest.mark.parametrize(
    ("quoting", "markdown"),
    [
        ("it logs `nobody home`", False),
        ('an answer of "nobody"', True),
        ("estimates of the rate", False),
        ("an indoor turn of a chat, doorway", False),
        ('question = "Say something."', False),
        ("position = file.tell()", False),
    ],
)
def test_the_gate_lets_quotations_and_longer_words_through(quoting: str, markdown: bool) -> None:
    assert not list(findings(quoting, markdown=markdown))
