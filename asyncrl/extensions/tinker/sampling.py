"""Carries out requests for samples: each on the engine, by the adapter of its sampler."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from asyncrl.errors import InfrastructureError, InputError
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.messages import ModelInput, Sample, SamplingParams
from asyncrl.extensions.tinker.tables import FAILED, PROTO, SAMPLE, Request
from asyncrl.extensions.tinker.token_extra import SAMPLER, Sampler
from asyncrl.extensions.tinker.waiting import Answers
from asyncrl.extensions.tinker.wire import Sampled, sample_response
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.types import Decoding

log = logging.getLogger("asyncrl.tinker")
PAUSE_S = 1.0
"""Before a request is sent again to an engine that is being started anew."""
MOST_ATTEMPTS = 4
"""A request that ends engines must not end them for ever."""
LAST_SEED = 2**63 - 1


class Sampling:
    """Requests for samples, all at once: the engine orders them.

    context: tokens of prompt and answer together.
    """

    def __init__(self, ledger: Ledger, answers: Answers, context: int) -> None:
        self.ledger, self.answers, self.context = ledger, answers, context
        self.engine: Generator | None = None
        """None while it is being started."""
        self.tokens = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._given_up: set[str] = set()

    def resume(self) -> None:
        """Carry out what a server that was killed has left."""
        for request in self.ledger.unanswered((SAMPLE,)):
            self.submit(request)

    def submit(self, request: Request, message: Sample | None = None) -> None:
        """Carry out a request that has been written down. message: its body as it was read, if it was."""
        task = asyncio.ensure_future(self._carry_out(request, message))
        self._tasks[request.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.id, None))

    @property
    def num_waiting(self) -> int:
        """Requests that have no answer yet."""
        return len(self._tasks)

    def cancel(self, request_id: str) -> None:
        """Give a request up: nobody waits for it, and no later server is to carry it out."""
        if (task := self._tasks.get(request_id)) is not None:
            self._given_up.add(request_id)
            task.cancel()

    async def close(self) -> None:
        """Leave what is running to the next server."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, request: Request, message: Sample | None) -> None:
        tokens = 0
        try:
            (found, tokens), form = await self._sample(request, message), PROTO
        except InputError as error:
            found, form = _failure(str(error), "user"), FAILED
        except InfrastructureError as error:
            found, form = _failure(str(error), "server"), FAILED
        except asyncio.CancelledError:
            if request.id not in self._given_up:
                raise
            self._given_up.remove(request.id)
            found, form = _failure("its client has given it up", "user"), FAILED
        except Exception as error:
            # A bug: its client must hear of it, and the others go on.
            log.exception("request %s", request.id)
            found, form = _failure(f"the server failed: {type(error).__name__}: {error}", "server"), FAILED
        await asyncio.to_thread(self._write, request, found, form, tokens)
        self.answers.arrived(request.id)

    def _write(self, request: Request, answer: bytes, form: str, tokens: int) -> None:
        """Write an answer down, and count its tokens."""
        session = self.ledger.session(request.owner.partition(":")[0])
        with self.ledger.together():
            if tokens and session is not None:
                self.ledger.use(session["client"], sampled=tokens)
            self.ledger.answer(request, answer, form, drop_body=True)

    async def _sample(self, request: Request, message: Sample | None) -> tuple[bytes, int]:
        """Return the answer, and how many tokens were sampled. Raises `InputError`."""
        message = message or Sample.model_validate_json(request.body)
        sampler = self.ledger.sampler(request.owner)
        if sampler is None:
            raise InputError(f"sampling_session_id: there is no sampler {request.owner!r}")
        prompt = prompt_tokens(message.prompt)
        asked = requests_of(message, prompt, request.id, sampler["adapter"], self.context)
        found = await asyncio.gather(*(self._generate(one) for one in asked))
        tokens = sum(len(one.token_ids) for one in found)
        self.tokens += tokens
        return answer_of(message, prompt, found), tokens

    async def _generate(self, request: GenerateRequest) -> Generated:
        """Sample one sequence; an engine that ends meanwhile is waited for. Raises `InputError`, and
        `InfrastructureError` for a request of which `MOST_ATTEMPTS` engines have ended."""
        attempts = 0
        while True:
            if (engine := self.engine) is None:
                await asyncio.sleep(PAUSE_S)
                continue
            attempts += 1
            try:
                return await engine.generate(request)
            except InfrastructureError as error:
                why = str(error)
            except asyncio.CancelledError:
                # That of an engine's client which was closed, unless this request itself was given up.
                task = asyncio.current_task()
                if task is None or task.cancelling() or engine is self.engine:
                    raise
                why = "the engine has ended"
            if attempts == MOST_ATTEMPTS:
                raise InfrastructureError(f"no engine could sample it in {attempts} attempts: {why}")
            log.warning("%s: %s; it is sent again", request.id, why)
            await asyncio.sleep(PAUSE_S)


def _failure(reason: str, category: str) -> bytes:
    return json.dumps({"error": reason, "category": category}).encode()


def prompt_tokens(prompt: ModelInput) -> np.ndarray:
    """Return a prompt's tokens [L] int32. Raises `InputError` for one that holds something else."""
    found: list[int] = []
    for index, chunk in enumerate(prompt.chunks):
        if chunk.tokens is None:
            raise InputError(f"prompt.chunks[{index}]: is of {chunk.type}; this server reads tokens alone")
        found += chunk.tokens
    return np.asarray(found, np.int32)


def requests_of(
    message: Sample, prompt: np.ndarray, name: str, adapter: str, context: int
) -> list[GenerateRequest]:
    """Return a request to the engine for each sample. Raises `InputError` for what this server does not have."""
    for key in ("target_prompt_logprobs", "prompt_alt_tokens_k"):
        if getattr(message, key):
            raise InputError(f"{key}: this server does not have it")
    if message.record_stability_info:
        raise InputError(
            "record_stability_info: this server does not have stable_reinforce, which it is for; choose another loss, "
            "such as loss_fn=importance_sampling in a recipe"
        )
    params, left = message.sampling_params, context - len(prompt)
    if not len(prompt) or left < 1:
        raise InputError(f"prompt: must have 1 to {context - 1} tokens, got {len(prompt)}")
    if (last_n := message.prompt_logprobs_last_n) is not None and not last_n < len(prompt):
        raise InputError(
            f"prompt_logprobs_last_n: must be below the prompt's {len(prompt)} tokens, got {last_n}"
        )
    max_tokens = min(params.max_tokens or left, left)
    stop_ids, texts, to_the_end = stops(params)
    scores_prompt = bool(message.prompt_logprobs or message.topk_prompt_logprobs)
    likeliest = max(message.topk_sample_logprobs, message.topk_prompt_logprobs)
    decoding = Decoding(
        top_p=params.top_p,
        top_k=max(0, params.top_k),
        top_logprobs=likeliest if likeliest or scores_prompt else None,
        prompt_logprobs=scores_prompt,
    )
    return [
        GenerateRequest(
            id=f"{name}/{index}",
            token_ids=prompt,
            max_tokens=max_tokens,
            temperature=params.temperature,
            seed=None if params.seed is None else (params.seed + index) % LAST_SEED,
            stop_token_ids=stop_ids,
            # Of the first alone: the prompt is the same.
            decoding=decoding if index == 0 or not scores_prompt else _without_prompt(decoding, message),
            extras={SAMPLER: Sampler(adapter, texts, to_the_end)},
        )
        for index in range(message.num_samples)
    ]


def _without_prompt(decoding: Decoding, message: Sample) -> Decoding:
    return Decoding(
        top_p=decoding.top_p, top_k=decoding.top_k, top_logprobs=message.topk_sample_logprobs or None
    )


def stops(params: SamplingParams) -> tuple[tuple[int, ...], tuple[str, ...], bool]:
    """Return token ids and texts that end a sequence, and whether not even the model's own end does."""
    stop = params.stop
    if stop is None:
        return (), (), False
    if isinstance(stop, str):
        return (), (stop,), False
    if not stop:
        return (), (), True
    texts = tuple(one for one in stop if isinstance(one, str) and one)
    return tuple(one for one in stop if isinstance(one, int)), texts, False


def answer_of(message: Sample, prompt: np.ndarray, found: Sequence[Generated]) -> bytes:
    """Return the answer to a request. prompt: its tokens [L]."""
    sequences = [
        Sampled(
            one.token_ids,
            one.logprobs,
            "length" if one.finish_reason == "length" else "stop",
            one.top_logprobs,
        )
        for one in found
    ]
    scored: np.ndarray | None = None
    if message.prompt_logprobs:
        scored = prompt_logprobs(found[0].prompt_logprobs, prompt)
        if message.prompt_logprobs_last_n is not None:
            scored[: len(prompt) - message.prompt_logprobs_last_n] = np.nan
    return sample_response(
        sequences,
        scored,
        found[0].prompt_logprobs,
        message.topk_sample_logprobs,
        message.topk_prompt_logprobs,
        found[0].cached_tokens,
    )


def prompt_logprobs(likeliest: Sequence[Mapping[int, float]], tokens: np.ndarray) -> np.ndarray:
    """Return the log-probability of each prompt token [L] float32, NaN for the first, which nothing precedes."""
    found = np.full(len(tokens), np.nan, np.float32)
    for index, (token, one) in enumerate(zip(tokens.tolist(), likeliest, strict=True)):
        found[index] = one.get(token, np.nan)
    return found
