"""A byte-level BPE tokenizer of a few hundred tokens, and prompt assets around it."""

import json
from typing import Any, Final

from tokenizers import pre_tokenizers

from warmfleet_contracts.cache.worker_api import PromptAssets

TINY_CONTROL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>")
TINY_MERGES: Final = (
    ("l", "l"),
    ("h", "e"),
    ("he", "ll"),
    ("hell", "o"),
    ("i", "m"),
    ("e", "n"),
    ("en", "d"),
)

CHATML_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer(control_tokens: tuple[str, ...] = TINY_CONTROL_TOKENS, **parts: Any) -> dict[str, Any]:
    """The content of a tokenizer.json; `parts` replace its members, such as `normalizer`.

    Control tokens have the first ids and stand in the model's vocabulary, as GPT-2 style vocabularies have
    them; then come the 256 byte letters and the merges.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*control_tokens, *letters, *("".join(merge) for merge in TINY_MERGES)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id, token in enumerate(control_tokens)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [list(merge) for merge in TINY_MERGES],
        },
    } | parts


def tiny_prompt_assets(
    chat_template: str | None = CHATML_TEMPLATE,
    *,
    tokenizer: dict[str, Any] | None = None,
    add_bos: bool = False,
) -> PromptAssets:
    return PromptAssets(
        tokenizer_json=json.dumps(tokenizer or tiny_tokenizer()),
        chat_template=chat_template,
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        add_bos=add_bos,
    )
