"""What vLLM computes with on a CPU in place of classes of its own, found by the names that its options take.

- `executor` computes a step where the engine core measures its time, in the core's own process.
- `worker` samples a prompt that a step computes in part without the request's seeded generator,
  and computes the log probabilities of a prompt by slices.

Public: `executor.NAME` and `worker.NAME`, for `arguments`. vLLM is imported when a class is asked for: the
modules themselves are imported, and checked, where it is not installed.
"""
