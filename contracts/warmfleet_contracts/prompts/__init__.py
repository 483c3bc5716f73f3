"""From messages or text to token ids: the one function that router and worker share.

`encoder` is the entry point; it renders with `chat_template` and encodes with `word_table`, and remembers
long pieces of text in `segment_memory`. Imports `errors` and `cache`.
"""
