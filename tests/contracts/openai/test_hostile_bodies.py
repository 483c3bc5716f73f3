"""Bytes that no JSON library sends: each is a request or a refusal, and never anything else."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.openai import (
    RequestError,
    decode_chat_request,
    decode_completion_request,
    decode_detokenize_request,
    decode_tokenize_request,
    request_fields,
)
from warmfleet_contracts.openai.request_fields import MAX_JSON_STRINGS

DECODERS = (
    decode_chat_request,
    decode_completion_request,
    decode_detokenize_request,
    decode_tokenize_request,
)


def with_field(raw: str | bytes) -> bytes:
    """A completion request with these bytes in it."""
    more = raw if isinstance(raw, bytes) else raw.encode()
    return b'{"model":"m","prompt":"x",' + more + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + with_field('"n":1'),
        with_field('"n":1').decode().encode("utf-16"),
        with_field(b'"cache_salt":"\xff\xfe"'),
        with_field(b'"cache_salt":"\xed\xa0\x80"'),
        with_field(b'"\xc0\xaf":1'),
        with_field('"temperature":NaN'),
        with_field('"temperature":Infinity'),
        with_field('"temperature":-Infinity'),
        with_field('"temperature":.5'),
        with_field('"temperature":1.'),
        with_field('"temperature":+1'),
        with_field('"n":01'),
        with_field('"n":0x1'),
        with_field("'n':1"),
        with_field('"n":1,'),
        with_field('"n":1}{"n":1'),
        with_field('"n":1 /* one */'),
        with_field('"user":"\x00"'),
        with_field('"user":"\n"'),
        with_field('"user":"\\x41"'),
        with_field('"user":"\\ud800"'),
        with_field('"user":"\\udc00\\ud800"'),
        b"\x00" * 100,
        b'{"model":"m","prompt":"x"',
    ],
)
def test_what_is_no_json_is_refused(body):
    with pytest.raises(RequestError) as caught:
        decode_completion_request(body)

    assert caught.value.status == 400
    json.loads(caught.value.body())


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ('"temperature":1e400', "temperature"),
        ('"temperature":-1e400', "temperature"),
        ('"temperature":1e309', "temperature"),
        ('"seed":1e400', "seed"),
        ('"seed":' + "9" * 400, "seed"),
        ('"max_tokens":-1', "max_tokens"),
        ('"max_tokens":1.5', "max_tokens"),
        ('"max_tokens":true', "max_tokens"),
        ('"max_tokens":"16"', "max_tokens"),
        ('"n":1e9', "n"),
        ('"n":99999999999999999999', "n"),
        ('"logit_bias":{"1":1e400}', "logit_bias"),
        ('"logit_bias":{"1.5":1}', "logit_bias"),
        ('"logit_bias":{"":1}', "logit_bias"),
        ('"logit_bias":{"99999999999999999999":1}', "logit_bias"),
        ('"logit_bias":[]', "logit_bias"),
        ('"stop_token_ids":[18446744073709551616]', "stop_token_ids"),
        ('"stop":["\\u0000",1]', "stop"),
        ('"stop":{}', "stop"),
        ('"stream":0', "stream"),
        ('"stream_options":[]', "stream_options"),
        ('"cache_salt":""', "cache_salt"),
        ('"length_penalty":true', "length_penalty"),
        ('"use_beam_search":0', "use_beam_search"),
    ],
)
def test_a_value_out_of_any_range_is_refused_by_name(raw, param):
    with pytest.raises(RequestError) as caught:
        decode_completion_request(with_field(raw))

    assert (caught.value.status, caught.value.param) == (400, param)
    assert len(caught.value.message) < 400


def test_a_refusal_quotes_a_megabyte_only_in_part():
    for wrong in (
        {"role": "x" * 1_000_000, "content": "x"},
        {"role": "user", "content": [{"type": "x" * 1_000_000}]},
    ):
        with pytest.raises(RequestError) as caught:
            decode_chat_request(json.dumps({"model": "m", "messages": [wrong]}).encode())

        assert len(caught.value.message) < 500


@pytest.mark.parametrize("digits", [400, 5_000, 1_000_000])
def test_a_number_of_many_digits_costs_nothing(digits):
    started = time.process_time()

    for field in ("max_tokens", "temperature", "seed", "n", "unknown_field"):
        with contextlib.suppress(RequestError):
            decode_completion_request(with_field(f'"{field}":' + "9" * digits))

    assert time.process_time() - started < 1


def test_the_last_of_several_values_of_a_field_counts():
    request = decode_completion_request(with_field('"n":9,"n":2,"temperature":-0.0,"temperature":-0'))

    assert (request.n, request.temperature) == (2, 0)


@pytest.mark.parametrize("value", ["1.0", "1.000", "-0.0"])
def test_a_whole_number_may_be_written_with_a_point(value):
    request = decode_completion_request(with_field(f'"top_k":{value},"seed":{value}'))

    assert request.top_k == request.seed == int(float(value))


def test_every_character_that_utf8_can_hold_passes_through():
    text = "\x00\x1f\x7f\u2028\ufeff\uffff\U0010ffff" + "e\u0301\u202e"

    assert decode_completion_request(json.dumps({"model": "m", "prompt": text}).encode()).prompts == [text]


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":', b'"\\"[', b"[[],"])
def test_ten_thousand_levels_are_refused_before_they_are_read(opening):
    body = b'{"model":"m","prompt":"x","x":' + opening * 10_000

    with pytest.raises(RequestError) as caught:
        decode_completion_request(body)

    assert caught.value.code in {"json_too_deep", "invalid_json"}


@pytest.mark.parametrize("piece", [b'"",', b'"%d":1,', b'{"a":""},', b'"\\\\",'])
def test_a_body_of_strings_only_is_refused_before_it_is_read(piece):
    pieces = b"".join(piece.replace(b"%d", b"%d" % number) for number in range(2 * MAX_JSON_STRINGS + 2))
    started = time.process_time()

    with pytest.raises(RequestError) as caught:
        decode_completion_request(b'{"model":"m","x":' + pieces)

    assert caught.value.code == "json_too_large"
    assert time.process_time() - started < 0.3


def test_quotes_inside_text_are_no_strings():
    text = '"' * 2 * (MAX_JSON_STRINGS + 1)

    assert decode_completion_request(json.dumps({"model": "m", "prompt": text}).encode()).prompts == [text]


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7])
def test_quotes_inside_text_are_no_strings_wherever_a_slice_ends(slice_bytes, monkeypatch):
    monkeypatch.setattr(request_fields, "_SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(request_fields, "MAX_JSON_STRINGS", 4)  # two names and two values

    request = decode_completion_request(json.dumps({"model": "m", "prompt": '"' * 50}).encode())

    assert request.prompts == ['"' * 50]


@given(st.data())
def test_a_request_with_any_bytes_changed_is_a_request_or_a_refusal(data):
    body = bytearray(
        with_field('"n":1,"stop":["\\u00e9","x"],"logit_bias":{"1":-1.5e0},"tools":[],"user":{}')
    )
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))

    for decode in DECODERS:
        with contextlib.suppress(RequestError):
            decode(bytes(body))
