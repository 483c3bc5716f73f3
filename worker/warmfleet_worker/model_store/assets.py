"""The files of a model folder that render and encode prompts."""

from pathlib import Path
from typing import Any, Final

import msgspec
import tokenizers

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError

_SPECIAL_TOKEN_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def load_prompt_assets(model_path: Path) -> PromptAssets:
    """Tokenizer, chat template and special tokens of a Hugging Face folder.

    Raises ModelError naming the file that is missing or damaged. Vocabulary and model of the tokenizer are
    checked by `PromptEncoder`.
    """
    tokenizer_json = _read_text(model_path / "tokenizer.json")
    if tokenizer_json is None:
        raise ModelError("tokenizer.json is missing from the model folder")
    config = _read_json(model_path / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(model_path / "special_tokens_map.json") | config)
    return PromptAssets(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(model_path, config),
        special_tokens=special_tokens,
        add_bos=_adds_bos(tokenizer_json, special_tokens.get("bos_token")),
    )


def _chat_template(model_path: Path, config: dict[str, Any]) -> str | None:
    template = _read_text(model_path / "chat_template.jinja")
    if template is not None:
        return template
    declared = config.get("chat_template")
    if isinstance(declared, list):  # named templates; "default" is for plain conversations
        named = {entry.get("name"): entry.get("template") for entry in declared if isinstance(entry, dict)}
        declared = named.get("default")
    if declared is not None and not isinstance(declared, str):
        raise ModelError("tokenizer_config.json: chat_template is not a text")
    return declared


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """A token is declared as its text or as an object with `content`."""
    found = {}
    for name in _SPECIAL_TOKEN_NAMES:
        declared = config.get(name)
        content = declared.get("content") if isinstance(declared, dict) else declared
        if isinstance(content, str):
            found[name] = content
    return found


class _TokenizerFile(msgspec.Struct):
    """Of a tokenizer.json, what decides whether a text starts with BOS."""

    post_processor: dict[str, Any] | None = None


def _adds_bos(tokenizer_json: str, bos_token: str | None) -> bool:
    """Whether the tokenizer's own post-processor puts BOS before a text.

    It names the tokens that it adds, so it is loaded without the vocabulary, which takes most of the time.
    """
    if bos_token is None:
        return False
    try:
        post_processor = msgspec.json.decode(tokenizer_json, type=_TokenizerFile).post_processor
        one_letter = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
        reduced = {"model": one_letter, "post_processor": post_processor}
        encoding = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(reduced)).encode("a")
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"tokenizer.json cannot be loaded: {error}") from error
    return (encoding.special_tokens_mask[:1], encoding.tokens[:1]) == ([1], [bos_token])


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNDECODABLE as error:
        raise ModelError(f"{path.name} is damaged: {error}") from error


def _read_text(path: Path) -> str | None:
    try:
        # Line ends stay as they are: a template's text is part of every prompt.
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path.name} cannot be read: {error}") from error
