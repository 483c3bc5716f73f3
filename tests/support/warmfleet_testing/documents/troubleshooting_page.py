"""docs/how-to/troubleshooting.md as tests read it: sections by heading, and the commands in them."""

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[4] / "docs" / "how-to" / "troubleshooting.md"
_SECTION: Final = re.compile(r"^##+ (.+)\n((?:(?!^##).*\n?)*)", re.MULTILINE)
_FENCE: Final = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def sections() -> dict[str, str]:
    """Text by heading; what stands before the first is below the empty one."""
    text = PAGE.read_text()
    return {"": text.partition("\n## ")[0], **dict(_SECTION.findall(text))}


def commands() -> list[tuple[str, str]]:
    """Every command line that the page shows, with the heading that it stands below."""
    return [
        (heading, line)
        for heading, text in sections().items()
        for block in _FENCE.findall(text)
        for line in block.splitlines()
    ]
