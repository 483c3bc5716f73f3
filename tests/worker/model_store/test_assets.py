import json

import pytest
import tokenizers

from warmfleet_contracts.errors import ModelError
from warmfleet_testing.engine.tiny_tokenizer import CHATML_TEMPLATE, tiny_tokenizer
from warmfleet_worker.model_store.assets import load_prompt_assets


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    return tmp_path


def write_config(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_special_tokens_are_read_as_text_or_as_objects(folder):
    write_config(
        folder, bos_token={"content": "<|im_start|>", "lstrip": False}, eos_token="<|im_end|>", pad_token=None
    )

    assert load_prompt_assets(folder).special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }


@pytest.mark.parametrize(
    "declared",
    [
        CHATML_TEMPLATE,
        [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML_TEMPLATE}],
    ],
    ids=["one", "named"],
)
def test_the_template_may_stand_in_the_tokenizer_configuration(folder, declared):
    write_config(folder, chat_template=declared)

    assert load_prompt_assets(folder).chat_template == CHATML_TEMPLATE


def test_the_template_file_goes_before_the_configuration_and_keeps_its_line_ends(folder):
    write_config(folder, chat_template="other")
    (folder / "chat_template.jinja").write_bytes(b"a\r\nb\n")

    assert load_prompt_assets(folder).chat_template == "a\r\nb\n"


def test_a_base_model_has_no_template(folder):
    assets = load_prompt_assets(folder)

    assert assets.chat_template is None
    assert not assets.add_bos


BOS = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def template(*single):
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }


def roberta(first, token_id):
    return {
        "type": "RobertaProcessing",
        "sep": ["<|im_end|>", 2],
        "cls": [first, token_id],
        "trim_offsets": True,
        "add_prefix_space": False,
    }


POST_PROCESSORS = {
    "none": (None, False),
    "bytes": (BYTE_LEVEL, False),
    "first": (template(BOS, TEXT), True),
    "last": (template(TEXT, BOS), False),
    "absent": (template(TEXT), False),
    "after bytes": ({"type": "Sequence", "processors": [BYTE_LEVEL, template(BOS, TEXT)]}, True),
    "as a class": (roberta("<|im_start|>", 1), True),
    "another class": (roberta("<tool>", 3), False),
}


@pytest.mark.parametrize("case", POST_PROCESSORS)
def test_the_post_processor_decides_whether_a_text_starts_with_bos(folder, case):
    post_processor, adds_bos = POST_PROCESSORS[case]
    content = tiny_tokenizer(post_processor=post_processor)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    write_config(folder, bos_token="<|im_start|>")

    assert load_prompt_assets(folder).add_bos == adds_bos
    whole = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert adds_bos == (whole.encode("a").ids[0] == whole.token_to_id("<|im_start|>"))


def test_a_post_processor_that_cannot_be_read_is_refused(folder):
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(post_processor={"type": "Unknown"})))
    write_config(folder, bos_token="<|im_start|>")

    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be loaded"):
        load_prompt_assets(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_damaged_file_is_refused_by_name(folder, name):
    write_config(folder, bos_token="<|im_start|>")
    (folder / name).write_bytes(b"\xff\xff")

    with pytest.raises(ModelError, match=name):
        load_prompt_assets(folder)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_prompt_assets(tmp_path)
