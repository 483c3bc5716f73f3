"""Structured logs on stderr: JSON lines, or readable ones on a terminal. Never the text of a prompt."""

import json
import logging
import sys
from typing import Final

import structlog

_ENCODE: Final = json.JSONEncoder(default=repr).encode


def configure_logs(level: str = "info", /, **context: str) -> None:
    """Write structlog's lines, and the standard library's, in one form; `context` is in every line.

    `level` is the least one that is written: debug, info, warning or error.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else _as_json
    )
    # Straight to the file: the way through the standard library costs three times as much, per request.
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=least, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(**context)


def _as_json(logger: object, method: str, event: structlog.typing.EventDict) -> str:
    del logger, method
    return _ENCODE(event)
