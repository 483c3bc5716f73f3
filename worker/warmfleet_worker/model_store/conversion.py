"""Converts a GGUF file to a Hugging Face folder, tensor by tensor, in float32."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from warmfleet_worker.model_store.gguf import GgufModel, tensor_bytes


def convert_gguf(gguf_path: Path, folder: Path, on_progress: Callable[[int, int], None]) -> None:
    """Fill the existing, empty `folder`; every file is fsynced; the caller writes the manifest.

    `on_progress` gets bytes of weights written and to write. Raises ModelError for a file that is not a
    supported GGUF. Holds one dequantised tensor at a time.
    """
    model = GgufModel(gguf_path)
    config = model.config()
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"do_sample": False, **tokens})
    _write_json(folder / "tokenizer.json", model.tokenizer(), indent=None)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            # The class that takes tokenizer.json as it is.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **model.special_tokens(),
        },
    )
    _write_synced(folder / "chat_template.jinja", model.chat_template().encode())
    _write_weights(model, folder / "model.safetensors", on_progress)


def _write_weights(model: GgufModel, path: Path, on_progress: Callable[[int, int], None]) -> None:
    """The safetensors format: header length as u64, JSON header, tensors one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in model:
        end = offset + tensor_bytes(entry)
        header[entry.name] = {"dtype": "F32", "shape": entry.shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the tensors start aligned

    written = 0
    on_progress(written, offset)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for entry in model:
            values = model.read(entry).astype("<f4", copy=False)
            file.write(np.ascontiguousarray(values).data)
            written += tensor_bytes(entry)
            on_progress(written, offset)
        file.flush()
        os.fsync(file.fileno())


def _write_json(path: Path, value: dict[str, Any], indent: int | None = 2) -> None:
    _write_synced(path, (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
