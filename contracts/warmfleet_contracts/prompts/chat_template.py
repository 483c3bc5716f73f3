"""A model's chat template: vetted when loaded, rendered in a sandbox, bounded in size.

Templates come with the model and never with a request. The environment is the one that `transformers`
renders chat templates in (its `utils/chat_template_utils.py`), so that the text is the same.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from warmfleet_contracts.errors import PromptError
from warmfleet_contracts.prompts.chat_message import ChatMessage

MAX_TEMPLATE_CHARS: Final = 256 * 1024
MAX_RENDERED_CHARS: Final = 4 * 1024 * 1024
"""Longer than any context window, and still encoded within seconds."""

_OTHER_TEMPLATES: Final[tuple[type[jinja2.nodes.Node], ...]] = (
    jinja2.nodes.Include,
    jinja2.nodes.Import,
    jinja2.nodes.FromImport,
    jinja2.nodes.Extends,
)

# What code inside a template can raise for the messages of one request.
_RENDER_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template. `render` depends on its arguments only (and on the date, if it asks for it)."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
    ) -> None:
        """Vet and compile; raises PromptError for a template that cannot be served."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise PromptError(
                f"the chat template has {len(source)} characters, the limit is {MAX_TEMPLATE_CHARS}"
            )
        environment = _environment()
        try:
            syntax = environment.parse(source)
            if any(syntax.find(node) is not None for node in _OTHER_TEMPLATES):
                raise PromptError("the chat template loads another template, which is not supported")
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise PromptError(f"the chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage], *, max_chars: int = MAX_RENDERED_CHARS) -> str:
        """Text of the conversation up to where the assistant's answer starts; raises PromptError."""
        pieces: list[str] = []
        chars = 0
        try:
            for piece in self._template.generate(
                messages=[{"role": message.role, "content": message.content} for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            ):
                chars += len(piece)
                if chars > max_chars:
                    raise PromptError(
                        f"the conversation renders to more than the limit of {max_chars} characters"
                    )
                pieces.append(piece)
        except _RENDER_ERRORS as error:
            raise PromptError(f"the model's chat template refuses this conversation: {error}") from error
        return "".join(pieces)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; when serving it is its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares a mutable set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the filter's signature is transformers'
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(time_format: str) -> str:
    # Local time without a zone, as templates expect from transformers.
    return datetime.now().strftime(time_format)  # noqa: DTZ005
