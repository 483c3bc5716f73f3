"""Settings of a fetch: flags for the source; environment for hub address, token and models of the image."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warmfleet_contracts.names import IMAGE_HOME_VARIABLE
from warmfleet_contracts.resources.fetch_outcome import FETCH_MODULE, TERMINATION_MESSAGE_PATH
from warmfleet_contracts.resources.hub import PUBLIC_HUB, is_commit

TOKEN_VARIABLE: Final = "HF_TOKEN"  # noqa: S105 - the variable's name, not a token
ENDPOINT_VARIABLE: Final = "HF_ENDPOINT"

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """One model to fetch, and its target folder."""

    into: Path
    """The model's folder; its parent holds what is being fetched, and the lock."""
    catalog: str = ""
    repository: str = ""
    """`owner/name` on the hub; exactly one of this and `catalog` is given."""
    revision: str = ""
    endpoint: str = PUBLIC_HUB
    token: str = field(default="", repr=False)
    image_models: Path | None = None
    """A warmfleet home whose models were baked into this image."""
    any_architecture: bool = False
    """Fetch models that warmfleet's own engine cannot compute, too: for vLLM, which decides for itself."""
    link: bool = False
    """Link to a model of the image instead of copying it: the folder is read by the same image only."""
    wait: bool = False
    """Fetch nothing; wait until another process has."""
    offline: bool = False
    timeout_seconds: float = 1800.0
    termination_message: Path = Path(TERMINATION_MESSAGE_PATH)

    @property
    def source(self) -> str:
        """The source as text, for logs and for the folder's manifest."""
        return f"catalog:{self.catalog}" if self.catalog else f"huggingface:{self.repository}@{self.revision}"


def parse_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> FetchSettings:
    """Settings from the command line; exits with a usage error on a wrong flag."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.hugging_face and _REPOSITORY.fullmatch(given.hugging_face) is None:
        parser.error(f"--hugging-face: expected owner/name, got {given.hugging_face[:200]!r}")
    if given.hugging_face and not is_commit(given.revision):
        parser.error("--revision: expected the full commit hash, 40 hexadecimal digits")
    if not 0 < given.timeout_seconds < float("inf"):
        parser.error(f"--timeout-seconds: expected more than 0, got {given.timeout_seconds}")
    baked = environment.get(IMAGE_HOME_VARIABLE, "")
    return FetchSettings(
        into=given.into.absolute(),
        catalog=given.catalog or "",
        repository=given.hugging_face or "",
        revision=given.revision,
        endpoint=(environment.get(ENDPOINT_VARIABLE) or PUBLIC_HUB).rstrip("/"),
        token=environment.get(TOKEN_VARIABLE, "").strip(),
        image_models=Path(baked) if baked else None,
        any_architecture=given.any_architecture,
        link=given.link,
        wait=given.wait,
        offline=given.offline,
        timeout_seconds=given.timeout_seconds,
        termination_message=given.termination_message,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {FETCH_MODULE}",
        description="Fetch a model into the folder from which a worker loads it, unless it is there.",
        epilog=f"${TOKEN_VARIABLE} and ${ENDPOINT_VARIABLE} name the hub's token and address; "
        "$HTTPS_PROXY, $NO_PROXY and $SSL_CERT_FILE apply. "
        "Exit codes: 0 done, 1 failed, 2 usage, 3 refused (trying again is useless), 4 no space.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--catalog", metavar="NAME", help="a model of the catalog")
    source.add_argument("--hugging-face", metavar="OWNER/NAME", help="a repository on the hub")
    add = parser.add_argument
    add("--revision", default="", help="commit of the repository, 40 hexadecimal digits")
    add("--any-architecture", action="store_true", help="also models that only vLLM may know")
    add("--into", type=Path, required=True, help="the model's folder")
    add("--link", action="store_true", help="link to a model of this image instead of copying it")
    add("--wait", action="store_true", help="wait until another process has fetched it")
    add("--offline", action="store_true", help="use existing files, download nothing")
    add("--timeout-seconds", type=float, default=1800.0, help="fail after this long")
    add(
        "--termination-message",
        type=Path,
        default=Path(TERMINATION_MESSAGE_PATH),
        help="file for the termination message, if it exists",
    )
    return parser
