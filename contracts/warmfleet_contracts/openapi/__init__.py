"""The OpenAPI 3.1 documents of router and worker.

Requests are described by watching the decoders at work, so that description and decoding cannot differ;
answers by types that tests hold against what servers send.
"""

from warmfleet_contracts.openapi.document import openapi_document

__all__ = ["openapi_document"]
