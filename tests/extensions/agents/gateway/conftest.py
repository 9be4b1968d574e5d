"""A gateway in this process over an engine that answers by a script, and the real clients in front of it."""

from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.extensions.agents.gateway.open_episodes import Episodes
from asyncrl.extensions.agents.gateway.sampler import Sampler
from asyncrl.extensions.agents.serving.service import create_gateway_app
from asyncrl.generation import Generated
from tests.credentials import RUN, TOKEN

CONTEXT = 256


class ScriptedEngine:
    """Says what `reply(text so far)` returns, in tokens of one byte each: tokenizing that text again would give
    others. Keeps every request; `max_tokens` cuts."""

    def __init__(self, renderer, reply):
        self.renderer, self.reply = renderer, reply
        self.requests, self.held = [], []
        self.failure = None
        self.max_model_len = CONTEXT

    def tokens(self, text):
        singles = [self.renderer.tokenizer.encode(c, add_special_tokens=False) for c in text]
        return np.array([i for ids in singles for i in ids] + [self.renderer.stop_token_ids[0]], np.int32)

    async def generate(self, request):
        self.requests.append(request)
        if self.failure:
            raise self.failure
        text = self.renderer.tokenizer.decode(request.token_ids.tolist())
        prompt, _, begun = text.rpartition("<|im_start|>assistant\n")
        if not prompt:
            prompt, begun = text, ""
        ids = self.tokens(self.reply(prompt))[len(self.tokens(begun)) - 1 if begun else 0 :]
        cut = ids[: request.max_tokens]
        logprobs = -np.arange(1, len(cut) + 1, dtype=np.float32) / 64
        reason = "stop" if len(cut) == len(ids) else "length"
        likeliest = {}
        if request.decoding is not None and request.decoding.top_logprobs is not None:
            # The token itself, and below it the tokens before it in the vocabulary.
            below = range(request.decoding.top_logprobs)
            likeliest["top_logprobs"] = tuple(
                {int(i) - b: float(p) - b for b in below} | {int(i): float(p)}
                for i, p in zip(cut, logprobs, strict=True)
            )
            if request.decoding.prompt_logprobs:
                prompt = request.token_ids.tolist()
                likeliest["prompt_logprobs"] = ({}, *({i: -i / 64, i + 1: -9.0} for i in prompt[1:]))
        return Generated(cut, logprobs, np.full(len(cut), 7, np.int32), reason, 0, **likeliest)

    async def context_limit(self):
        return self.max_model_len

    def hold(self, session, num_tokens, ttl_s):
        self.held.append((session, num_tokens, ttl_s))

    def status(self):
        return []

    async def close(self):
        return


class Gateway:
    """The app behind `httpx`, with helpers for the routes of the one who runs the episodes."""

    def __init__(self, renderer, engine):
        self.engine = engine
        self.renderer = renderer
        self.episodes = Episodes(Sampler(self.engine, renderer, parse_hermes))
        self.app = create_gateway_app(self.episodes, self.engine, RUN.access("gateway"))

    def http(self, key=""):
        transport = httpx.ASGITransport(self.app)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)

    async def open(self, **spec):
        async with self.http(TOKEN) as http:
            answer = await http.post("/asyncrl/v1/episodes", json={"task_id": "t", **spec})
        assert answer.status_code == 200, answer.text
        return self.episodes.by_id(answer.json()["id"])

    async def open_key(self):
        """What calls with a key that no episode records; takes the place of an episode for the clients."""
        async with self.http(TOKEN) as http:
            answer = await http.post("/asyncrl/v1/keys", json={})
        assert answer.status_code == 200, answer.text
        return SimpleNamespace(**answer.json())

    async def finish(self, episode, **body):
        async with self.http(TOKEN) as http:
            answer = await http.post(f"/asyncrl/v1/episodes/{episode.id}/finish", json=body)
        assert answer.status_code == 200, answer.text
        return episode.result

    def openai(self, episode):
        from openai import AsyncOpenAI

        return AsyncOpenAI(
            base_url="http://gateway/v1", api_key=episode.key, http_client=self.http(), max_retries=0
        )

    def anthropic(self, episode):
        import httpx2
        from anthropic import AsyncAnthropic

        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app))
        return AsyncAnthropic(base_url="http://gateway", api_key=episode.key, http_client=http, max_retries=0)


@pytest.fixture
def make_gateway(renderer):
    """`make_gateway(reply)`: a gateway whose engine says `reply(prompt text)`."""
    return lambda reply: Gateway(renderer, ScriptedEngine(renderer, reply))
