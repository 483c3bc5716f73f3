"""Arguments that a user gives vLLM as they are, against those that warmfleet gives it. Pure."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError

_WHERE: Final = "engine.extraArgs"
_FIELDS: Final = {
    "model": "model.source",
    "served_model_name": "model.servedNames",
    "dtype": "engine.dtype",
    "max_model_len": "engine.maxModelLengthTokens",
    "max_num_seqs": "engine.maxRunningSequences",
    "max_num_batched_tokens": "engine.maxBatchedTokens",
    "block_size": "kvCache.blockSizeTokens",
    "enable_prefix_caching": "kvCache.prefixCaching",
    "kv_cache_memory_bytes": "kvCache.size",
    "num_gpu_blocks_override": "kvCache.size",
    "gpu_memory_utilization": "kvCache.deviceMemoryPercent",
    "tensor_parallel_size": "accelerator.count",
}
"""vLLM's options that a field of a ModelDeployment sets."""
_ONE_PODS_DEVICES: Final = "the devices of one pod, by accelerator.count, compute one model together"
_OWN_TOKENS: Final = "prompts and answers are token ids, by the tokenizer of the worker's server"
_LOG_CONFIG: Final = "such a file names code that is run, and may be one of the model's"
_REFUSED: Final = {
    "pipeline_parallel_size": _ONE_PODS_DEVICES,
    "prefill_context_parallel_size": _ONE_PODS_DEVICES,
    "decode_context_parallel_size": _ONE_PODS_DEVICES,
    "nnodes": _ONE_PODS_DEVICES,
    "tokenizer": _OWN_TOKENS,
    "skip_tokenizer_init": _OWN_TOKENS,
    "generation_config": "a request's parameters come from the worker's server",
    "max_logprobs": "its bound is that of the worker's server",
    "scheduling_policy": "prefixes that no client waits for come after all others, by priority",
    "disable_log_stats": "load reports are made of its statistics",
    "enable_logging_iteration_details": "load reports are made of them",
    "kv_events_config": "routers know the cache by its events, which the engine process reads",
    "prefix_match_unit": "routers predict hits of whole blocks",
    "trust_remote_code": "a model is data: code in it is never run",
    "log_config_file": _LOG_CONFIG,
    "logging_config": _LOG_CONFIG,
}
"""Other options that are warmfleet's, and why."""
_REFUSED_PREFIXES: Final = {"data_parallel_": f"{_ONE_PODS_DEVICES}; replicas are spec.replicas"}
"""How names of such options begin."""
_DEFAULTS: Final = frozenset({"distributed_executor_backend", "enforce_eager", "worker_cls"})
"""What warmfleet sets and a user may set otherwise."""
_NOT_GIVEN: Final = object()


def with_extra_arguments(
    arguments: Mapping[str, Any], words: Sequence[str], parser: argparse.ArgumentParser
) -> dict[str, Any]:
    """Arguments of vLLM with those that the user gives as `words` of a command line.

    `arguments` are those by the settings; `parser` is vLLM's own, with all its flags, and is used up.

    Raises:
        UnfitSettingsError: its parser refuses them, or they contradict the settings; both are named.
    """
    if not words:
        return dict(arguments)
    taken = dict(arguments)
    for name, value in _parsed(words, parser).items():
        # Of an option that takes several values its parser makes a list.
        if name not in arguments or value not in (arguments[name], [arguments[name]]):
            _refuse_contradiction(name, value, arguments)
            taken[name] = value
    return taken


def _refuse_contradiction(name: str, value: object, arguments: Mapping[str, Any]) -> None:
    flag = f"--{name.replace('_', '-')}"
    if name in _DEFAULTS:
        return
    if name in _FIELDS:
        ours = f", which makes it {arguments[name]!r}" if name in arguments else ""
        raise UnfitSettingsError(
            f"{_WHERE}: {flag} {value!r} contradicts {_FIELDS[name]}{ours}: set {_FIELDS[name]} instead"
        )
    if reason := _refusal(name):
        ours = f"which sets it to {arguments[name]!r}" if name in arguments else "which sets none"
        raise UnfitSettingsError(f"{_WHERE}: {flag} {value!r} contradicts warmfleet, {ours}: {reason}")


def _refusal(name: str) -> str:
    """Why an option is warmfleet's, or "" if it is not."""
    beginnings = (reason for prefix, reason in _REFUSED_PREFIXES.items() if name.startswith(prefix))
    return _REFUSED.get(name) or next(beginnings, "")


def _parsed(words: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Options by name, those alone that `words` have."""

    def refuse(message: str) -> NoReturn:
        raise UnfitSettingsError(f"{_WHERE}: vLLM refuses them: {message}")

    # It would read a file of flags.
    if "--config" in words:
        refuse("unrecognized arguments: --config")
    parser.error = refuse  # type: ignore[method-assign]
    parser.set_defaults(**dict.fromkeys(vars(parser.parse_args([])), _NOT_GIVEN))
    try:
        parsed = vars(parser.parse_args(list(words)))
    except IndexError:  # its own reading of --flag.key, without a value
        refuse(f"{words[-1]}: expected one argument")
    except (ValueError, OverflowError, argparse.ArgumentError, argparse.ArgumentTypeError) as error:
        refuse(str(error))
    return {name: value for name, value in parsed.items() if value is not _NOT_GIVEN}
