"""What two warmfleet processes must agree on: names, hashes, messages, resources. Imports no sibling package.

Rooms: `cache` (block hashes, KV events), `prompts` (text to token ids), `openai` (requests), `openapi` (their
documentation), `resources` (ModelDeployment). Beside them `names`, `metrics`, `keys` (API keys), `errors`,
`framing` (length-prefixed messages), `plain_yaml` and `decoding` (what decoding can raise, and messages
decoded).
"""
