"""From messages or text to token ids: router and worker share one implementation, so both get the same ids.

Public names: `encoder.PromptEncoder`, `chat_message.ChatMessage`, `segment_memory.SegmentMemory` (a cache of
ids, per salt), `prompt_size.conversation_chars` (how much work a conversation is). `word_table` encodes words
by lookup, `token_bound` counts how many tokens a text has at least. Imports `errors` and `cache`.
"""
