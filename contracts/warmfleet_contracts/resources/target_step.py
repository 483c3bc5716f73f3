"""How long a step of the engine may take: what an answer waits for its next token beside others' prompts.

An engine computes as much of a prompt in a step as the target lets it (chunked prefill; Agrawal et al.,
*Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, OSDI 2024). Where prompts always
wait, every step takes the target, on any number of replicas: so it has to be below what callers may wait
between tokens.
"""

from typing import Final

DEFAULT_TARGET_STEP_MILLISECONDS: Final = 100
LEAST_TARGET_STEP_MILLISECONDS: Final = 10
"""A shorter step is mostly what every step takes, however little it computes."""
_PERCENT_OF_GOAL: Final = 90
"""The engine's estimate of a step is off by up to a tenth."""


def target_step_milliseconds(between_tokens_milliseconds: int) -> int:
    """The target for a fleet whose callers may wait so long between tokens.

    A goal that steps of the default meet changes nothing.
    """
    milliseconds = between_tokens_milliseconds * _PERCENT_OF_GOAL // 100
    return min(max(milliseconds, LEAST_TARGET_STEP_MILLISECONDS), DEFAULT_TARGET_STEP_MILLISECONDS)
