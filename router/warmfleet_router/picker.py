"""Which worker gets a request: filter, predict, cost, choose.

The picker reads views, the index, pending blocks and open dispatches; it changes nothing. Whoever acts on
its choice takes a lease.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from warmfleet_contracts.blocks import BlockHash
from warmfleet_router.breakers import Breakers
from warmfleet_router.cost import (
    StepRates,
    Work,
    WorkerLoad,
    measured_rates,
    median_rates,
    request_cost,
    worker_load,
)
from warmfleet_router.discovery import Endpoint
from warmfleet_router.endpoints import EndpointView
from warmfleet_router.leases import Charge, Leases
from warmfleet_router.load import UnreportedLoad
from warmfleet_router.prefix_index import PrefixIndex
from warmfleet_router.request_prompts import HashedPrompt, RequestPrompts
from warmfleet_router.scorers import Candidate, Policy, Ranking, RoutedRequest


@dataclass(frozen=True, slots=True)
class PromptPrediction:
    """How much of one prompt a worker holds, in tokens."""

    prompt_tokens: int
    cached_tokens: int = 0
    """min(longest run of resident or pending blocks, cacheable tokens)."""
    pending_tokens: int = 0
    """The part of `cached_tokens` that is not resident yet."""
    last_block: BlockHash | None = None
    """Hash of the last full block; None if there is none, or no tokenizer."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a worker would find of a request's prompts, and what it would have to do."""

    first: PromptPrediction
    """Of the first prompt: the one that the worker's answer headers speak of."""
    prompt_tokens: int
    cached_tokens: int
    pending_tokens: int
    needed_blocks: int
    precise: bool = False
    """Whether `cached_tokens` comes from a complete index; otherwise it is 0 for want of knowledge."""
    new_hashes: tuple[BlockHash, ...] = ()
    """Full blocks that are not resident: what the request makes pending."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The worker that was chosen, and everything that led to it."""

    endpoint: Endpoint
    epoch: str
    """The life of the worker that was chosen."""
    left_out: Mapping[str, str]
    """Why ready workers were not considered, by uid."""
    candidate: Candidate
    prediction: Prediction
    ranking: Ranking
    charge: Charge


@dataclass(frozen=True, slots=True)
class Ranked:
    """Every ready worker for one request, best first; `choice` makes one of them the chosen one."""

    ranking: Ranking
    sequences: int
    left_out: Mapping[str, str]
    """Why ready workers were not considered, by uid: ejected, or tried before."""
    _views: Mapping[str, EndpointView]
    _predictions: Mapping[str, Prediction]

    def needed_blocks(self, candidate: Candidate) -> int:
        """KV blocks that the prompts would pin there."""
        return self._predictions[candidate.uid].needed_blocks

    def choice(self, candidate: Candidate, reason: str = "") -> Choice:
        """`candidate` chosen; `reason` says why, where it is not the ranking's first."""
        prediction = self._predictions[candidate.uid]
        return Choice(
            endpoint=self._views[candidate.uid].endpoint,
            epoch=self._views[candidate.uid].epoch,
            left_out=self.left_out,
            candidate=candidate,
            prediction=prediction,
            ranking=self.ranking.led_by(candidate, reason) if reason else self.ranking,
            charge=Charge(
                uid=candidate.uid,
                uncached_tokens=candidate.uncached_tokens,
                blocks=prediction.needed_blocks,
                sequences=self.sequences,
                new_hashes=prediction.new_hashes,
            ),
        )


NOTHING_PLANNED: Final[Mapping[str, UnreportedLoad]] = MappingProxyType({})


class Picker:
    """Chooses among the views of one model. Holds no state of its own but the turn of RoundRobin."""

    def __init__(
        self, index: PrefixIndex, leases: Leases, policy: Policy, breakers: Breakers | None = None
    ) -> None:
        """`breakers` leave out workers that are ejected; without any nobody is."""
        self._breakers = breakers if breakers is not None else Breakers()
        self._index = index
        self._leases = leases
        self._policy = policy
        self._turn = 0

    def pick(
        self, views: Sequence[EndpointView], prompts: RequestPrompts, *, excluded: Collection[str] = ()
    ) -> Choice | None:
        """The best ready worker that is neither `excluded` nor ejected; None if there is none."""
        ranked = self.rank(views, prompts, excluded=excluded)
        return ranked.choice(ranked.ranking.candidates[0]) if ranked is not None else None

    def rank(
        self,
        views: Sequence[EndpointView],
        prompts: RequestPrompts,
        *,
        excluded: Collection[str] = (),
        planned: Mapping[str, UnreportedLoad] = NOTHING_PLANNED,
    ) -> Ranked | None:
        """Every ready worker that is neither `excluded` nor ejected, best first; None if there is none.

        `planned` is what will be sent to a worker before this request, by uid.
        """
        ready, left_out = self.eligible(views, excluded)
        if not ready:
            return None
        matched = self._match(ready, prompts)
        peers = _rates_by_identity(views)
        predictions = {view.endpoint.uid: self._predict(view, prompts, matched) for view in ready}
        candidates = [
            self._candidate(
                view, predictions[view.endpoint.uid], prompts, peers, planned.get(view.endpoint.uid)
            )
            for view in ready
        ]
        self._turn += 1
        ranking = self._policy(
            candidates,
            RoutedRequest(
                head_key=prompts.head_key, tie_key=_tie_key(ready, prompts, matched), turn=self._turn - 1
            ),
        )
        return Ranked(
            ranking=ranking,
            sequences=prompts.sequences,
            left_out=left_out,
            _views={view.endpoint.uid: view for view in ready},
            _predictions=predictions,
        )

    def eligible(
        self, views: Sequence[EndpointView], excluded: Collection[str] = ()
    ) -> tuple[list[EndpointView], dict[str, str]]:
        """Ready workers that are neither `excluded` nor ejected; and why the others are left out, by uid."""
        ready = [view for view in views if view.ready]
        screening = self._breakers.screen({view.endpoint.uid: view.epoch for view in ready})
        left_out = {**screening.ejected, **dict.fromkeys(excluded, "tried before")}
        return [view for view in ready if view.endpoint.uid not in left_out], left_out

    def load(self, view: EndpointView, planned: UnreportedLoad | None = None) -> WorkerLoad:
        """A worker's report, less what has ended since, plus what this router sent or plans to send."""
        uid, dispatches = view.endpoint.uid, self._leases.dispatches
        unreported = dispatches.unreported(uid, view.load.admitted_dispatches)
        ended = dispatches.ended(uid, view.load)
        if planned is not None:
            unreported += planned
        return worker_load(
            view.load,
            unreported_tokens=unreported.tokens,
            unreported_seats=unreported.seats,
            unreported_blocks=unreported.blocks,
            ended_seats=ended.seats,
            ended_blocks=ended.blocks,
        )

    @staticmethod
    def rates(views: Sequence[EndpointView]) -> dict[str, StepRates]:
        """Each worker's own rates, or its peers', by uid."""
        peers = _rates_by_identity(views)
        return {
            view.endpoint.uid: measured_rates(view.load.step_time) or peers[_identity(view)] for view in views
        }

    def _match(self, ready: Sequence[EndpointView], prompts: RequestPrompts) -> dict[str, list[int]]:
        """Resident run in blocks by uid, one per prompt; only workers whose index can be believed."""
        uids_of: dict[bytes, list[str]] = {}
        hashed_of: dict[bytes, tuple[HashedPrompt, ...]] = {}
        for view in ready:
            hashed = prompts.hashed(view.hello) if view.hello is not None and view.precise else None
            if hashed is not None:
                hashed_of[_identity(view)] = hashed
                uids_of.setdefault(_identity(view), []).append(view.endpoint.uid)
        matched: dict[str, list[int]] = {}
        for identity, hashed in hashed_of.items():
            uids = uids_of[identity]
            for prompt in hashed:
                for uid, blocks in self._index.match(prompt.hashes, uids).items():
                    matched.setdefault(uid, []).append(blocks)
        return matched

    def _predict(
        self, view: EndpointView, prompts: RequestPrompts, matched: Mapping[str, list[int]]
    ) -> Prediction:
        uid = view.endpoint.uid
        hashed = prompts.hashed(view.hello) if view.hello is not None else None
        if hashed is None:
            tokens = prompts.token_count or prompts.estimated_tokens
            block_size = view.hello.block_size_tokens if view.hello is not None else tokens
            first = PromptPrediction(prompt_tokens=tokens)
            return Prediction(first, tokens, 0, 0, needed_blocks=-(-tokens // block_size))
        runs = matched.get(uid)
        precise = runs is not None
        parts: list[PromptPrediction] = []
        new_hashes: dict[BlockHash, None] = {}
        for position, prompt in enumerate(hashed):
            resident = runs[position] if runs is not None else 0
            parts.append(self._predict_prompt(uid, prompt, resident if precise else None, new_hashes))
            new_hashes.update(dict.fromkeys(prompt.hashes[resident:]))
        return Prediction(
            first=parts[0],
            prompt_tokens=sum(part.prompt_tokens for part in parts),
            cached_tokens=sum(part.cached_tokens for part in parts),
            pending_tokens=sum(part.pending_tokens for part in parts),
            needed_blocks=sum(prompt.blocks for prompt in hashed),
            precise=precise,
            new_hashes=tuple(new_hashes),
        )

    def _predict_prompt(
        self,
        uid: str,
        prompt: HashedPrompt,
        resident_blocks: int | None,
        earlier_prompts: Collection[BlockHash],
    ) -> PromptPrediction:
        last_block = prompt.hashes[-1] if prompt.hashes else None
        if resident_blocks is None:
            return PromptPrediction(prompt_tokens=prompt.tokens, last_block=last_block)
        run = self._leases.pending.run(uid, prompt.hashes, resident_blocks, self._index)
        blocks, pending_blocks = run.blocks, run.pending_blocks
        # Prompts of one request share prefixes too: the first computes, the others wait for it.
        while blocks < len(prompt.hashes) and prompt.hashes[blocks] in earlier_prompts:
            blocks, pending_blocks = blocks + 1, pending_blocks + 1
        cached_tokens = min(blocks * prompt.block_size_tokens, prompt.cacheable_tokens)
        resident_tokens = (blocks - pending_blocks) * prompt.block_size_tokens
        return PromptPrediction(
            prompt_tokens=prompt.tokens,
            cached_tokens=cached_tokens,
            pending_tokens=max(cached_tokens - resident_tokens, 0),
            last_block=last_block,
        )

    def is_coming(self, view: EndpointView, prompts: RequestPrompts, cached_tokens: int) -> bool:
        """Whether the worker holds by now, or is computing, the first prompt's block at `cached_tokens`.

        To be asked by a dispatch about the block that it missed: its own claim to it does not count.
        """
        hashed = prompts.hashed(view.hello) if view.hello is not None else None
        if not hashed or (position := cached_tokens // hashed[0].block_size_tokens) >= len(hashed[0].hashes):
            return False
        block_hash, uid = hashed[0].hashes[position], view.endpoint.uid
        return self._index.holds(uid, block_hash) or self._leases.pending.claims(uid, block_hash) > 1

    def _candidate(
        self,
        view: EndpointView,
        prediction: Prediction,
        prompts: RequestPrompts,
        peers: Mapping[bytes, StepRates],
        planned: UnreportedLoad | None,
    ) -> Candidate:
        uid = view.endpoint.uid
        load = self.load(view, planned)
        rates = measured_rates(view.load.step_time) or peers[_identity(view)]
        uncached = prediction.prompt_tokens - prediction.cached_tokens
        work = Work(
            uncached_tokens=uncached,
            needed_blocks=prediction.needed_blocks,
            sequences=prompts.sequences,
        )
        return Candidate(
            uid=uid,
            endpoint=view.endpoint.name,
            precise=prediction.precise,
            cached_tokens=prediction.cached_tokens,
            pending_tokens=prediction.pending_tokens,
            uncached_tokens=uncached,
            load=load,
            rates=rates,
            cost=request_cost(work, load, rates, seat_seconds=self._leases.seat_times.seconds(uid)),
        )


def _identity(view: EndpointView) -> bytes:
    return view.hello.identity if view.hello is not None else b""


def _rates_by_identity(views: Sequence[EndpointView]) -> dict[bytes, StepRates]:
    identities = {_identity(view) for view in views}
    return {
        identity: median_rates(view.load.step_time for view in views if _identity(view) == identity)
        for identity in identities
    }


def _tie_key(
    ready: Sequence[EndpointView], prompts: RequestPrompts, matched: Mapping[str, list[int]]
) -> bytes:
    """The first block of the first prompt that no candidate holds; the whole prompt if all are held.

    Only resident blocks count here, not pending ones: every router sees the same residents, so that
    siblings of a new prefix meet at the same worker whichever router they came through.
    """
    chains = [
        (view.hello.identity, hashed[0].hashes)
        for view in ready
        if view.hello is not None and (hashed := prompts.hashed(view.hello)) is not None
    ]
    if not chains:
        return prompts.whole_key
    held_blocks = max((runs[0] for runs in matched.values()), default=0)
    _, hashes = min(chains)
    return hashes[held_blocks] if held_blocks < len(hashes) else prompts.whole_key
