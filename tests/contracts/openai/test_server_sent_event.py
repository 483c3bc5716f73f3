"""An event reaches its reader whole, however it looks for the ends of lines."""

import json

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from warmfleet_contracts.openai.server_sent_event import server_sent_event

BREAKING = st.sampled_from("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


@given(st.lists(st.text() | BREAKING))
@example(["a\u2028b\u2029c\x85d\\u2028 \\"])
def test_a_text_survives_clients_that_cut_at_any_line_separator(pieces):
    event = server_sent_event(msgspec.json.encode({"text": "".join(pieces)}))

    line, empty = event.decode().splitlines()
    assert empty == ""
    assert json.loads(line.removeprefix("data: ")) == {"text": "".join(pieces)}


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_document_of_several_lines_becomes_one(document):
    (line, empty) = server_sent_event(json.dumps(document, indent=2).encode()).splitlines()

    assert empty == b""
    assert json.loads(line.removeprefix(b"data: ")) == document
