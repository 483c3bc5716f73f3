"""Workers: what this router knows of each worker, and how it talks to them.

Public: `fleet` (`Fleet`, `WorkerStatus`), `prefix_index` (`PrefixIndex`), `index_sweeper` (`IndexSweeper`),
`breakers` (`Breakers`), `encoders` (`Encoders`), `liveness` (`LivenessWatch`, `LivenessSweeper`) and
`upstream` (`Upstream`), the only HTTP client towards workers; its `body_relay` passes a body on from callback
to callback. `stream_follower` reads from it, and
`event_stream` feeds fleet and index with what it reads. The index keeps all blocks in one `block_table`,
whose entries are `holder_sets` of `slots`; `held_blocks` is one worker's part of it, `table_pass` sweeps it,
`block_use` counts in it. Imports `discovery`, and nothing of the rooms above.
"""
