"""Workers: what this router knows of each worker, and how it talks to them.

Public: `fleet` (`Fleet`, `WorkerStatus`), `prefix_index` (`PrefixIndex`), `gradual_release`
(`GradualRelease`), `breakers` (`Breakers`), `encoders` (`Encoders`), `liveness` (`LivenessWatch`,
`LivenessSweeper`) and `upstream` (`Upstream`), the only HTTP client towards workers. `event_stream` feeds
fleet and index. Imports `discovery`, and nothing of the rooms above.
"""
