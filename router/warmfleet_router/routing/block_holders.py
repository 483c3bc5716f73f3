"""Who held a request's blocks when its worker was picked: what the causes of its misses are found from."""

from collections.abc import Mapping, Sequence

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.economics.misses import OtherIdentity, PromptHolders
from warmfleet_router.routing.prediction import Prediction
from warmfleet_router.routing.prompt_hashes import HashedPrompt
from warmfleet_router.workers.fleet import WorkerStatus


def prompt_holders(
    uid: str, workers: Mapping[str, WorkerStatus], predictions: Mapping[str, Prediction]
) -> tuple[PromptHolders, ...]:
    """Per prompt, for the worker `uid` among those that could be picked; empty without its tokenizer."""
    own, identity = predictions[uid], workers[uid].identity
    same = [prediction for other, prediction in predictions.items() if _is(workers[other], identity, uid)]
    others: dict[bytes, list[Prediction]] = {}
    for other, prediction in predictions.items():
        if prediction.prompts and workers[other].identity != identity:
            others.setdefault(workers[other].identity, []).append(prediction)
    return tuple(
        PromptHolders(
            hashes=_cacheable(prompt),
            block_size_tokens=prompt.block_size_tokens,
            held_blocks=part.resident_blocks,
            held_elsewhere_blocks=_most_held(same, number),
            others=[
                OtherIdentity(
                    hashes=_cacheable(peers[0].prompts[number]),
                    block_size_tokens=peers[0].prompts[number].block_size_tokens,
                    held_blocks=_most_held(peers, number),
                )
                for peers in others.values()
            ],
        )
        for number, (prompt, part) in enumerate(zip(own.prompts, own.parts, strict=False))
    )


def _is(worker: WorkerStatus, identity: bytes, uid: str) -> bool:
    return worker.identity == identity and worker.endpoint.uid != uid


def _most_held(predictions: Sequence[Prediction], number: int) -> int:
    return max((prediction.parts[number].resident_blocks for prediction in predictions), default=0)


def _cacheable(prompt: HashedPrompt) -> Sequence[BlockHash]:
    return prompt.hashes[: prompt.cacheable_tokens // prompt.block_size_tokens]
