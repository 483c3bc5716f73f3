"""The bytes of single tokens: joined they are the text, for any characters."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.server.token_texts import TokenTexts

TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))
TEXTS = TokenTexts(TOKENIZER)


@given(st.text(max_size=40))
def test_the_bytes_of_the_tokens_of_a_text_are_its_bytes(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids

    assert b"".join(TEXTS[token_id].content for token_id in ids) == text.encode()


@pytest.mark.parametrize("token_id", range(TOKENIZER.get_vocab_size()))
def test_a_token_by_itself_reads_as_the_tokenizer_reads_it(token_id):
    assert TEXTS[token_id].text == TOKENIZER.decode([token_id], skip_special_tokens=False)


def test_a_part_of_a_character_keeps_its_byte_and_shows_a_replacement():
    first, second = TOKENIZER.encode("é").ids

    assert [TEXTS[first].content, TEXTS[second].content] == [b"\xc3", b"\xa9"]
    assert TEXTS[first].text == TEXTS[second].text == "\ufffd"


def test_a_control_token_shows_its_name_and_an_unknown_id_nothing():
    assert TEXTS[TOKENIZER.token_to_id("<|im_end|>")].text == "<|im_end|>"
    assert TEXTS[10_000] == ("", b"")


def test_sentencepiece_vocabularies_mark_spaces_and_spell_bytes():
    pieces = ["<unk>", "<0xE2>", "<0x82>", "<0xAC>", "▁costs", "5", "▁"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    llama = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    for decoder in (llama, decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])):
        tokenizer.decoder = decoder
        texts = TokenTexts(tokenizer)

        assert b"".join(texts[number].content for number in (4, 6, 1, 2, 3, 5)).decode() == " costs €5"
        assert texts[1].text == "\ufffd"


def test_a_byte_level_token_with_other_letters_stands_for_itself():
    tokenizer = tokenizers.Tokenizer(models.BPE({"▁é": 0, "é": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    texts = TokenTexts(tokenizer)

    assert texts[0].content == "▁é".encode()
    alone = [tokenizer.decode([token_id]) for token_id in (0, 1)]
    assert [texts[0].text, texts[1].text] == alone == ["▁é", "\ufffd"]
