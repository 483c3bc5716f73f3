"""The OpenAPI 3.1 documents of router and worker.

Schemas of requests are recorded while the decoders run, so that schema and decoder cannot differ; responses
are types that tests compare with what servers send. Imports `openai` and `cache`. Public name:
`openapi_document`, and `operations`; `python -m warmfleet_contracts.openapi` prints a document.
"""

from warmfleet_contracts.openapi.document import openapi_document

__all__ = ["openapi_document"]
