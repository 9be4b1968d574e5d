"""Environments of tinker-cookbook, written as its authors write them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import chz
import tinker
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.tokenizer_utils import get_tokenizer

WORDS = ["cat", "dog", "ant", "bee", "cow", "emu"]


class Spelling(ProblemEnv):
    def __init__(self, word, renderer):
        super().__init__(renderer, [{"role": "system", "content": "Spell."}])
        self.word = word

    def get_question(self):
        return f"Spell {self.word}."

    def check_answer(self, sample_str):
        return sample_str == "-".join(self.word)

    def check_format(self, sample_str):
        return "-" in sample_str

    def get_reference_answer(self):
        return "-".join(self.word)


@dataclass
class Spellings(RLDataset):
    words: list[str]
    renderer: object
    group_size: int

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        pair = self.words[2 * index : 2 * index + 2]
        return [ProblemGroupBuilder(lambda w=w: Spelling(w, self.renderer), self.group_size) for w in pair]

    def __len__(self) -> int:
        return len(self.words) // 2


@chz.chz
class SpellingBuilder(RLDatasetBuilder):
    model_name_for_tokenizer: str
    renderer_name: str
    group_size: int = 1
    held_out: bool = True

    async def __call__(self):
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name_for_tokenizer))
        made = Spellings(WORDS, renderer, self.group_size)
        return made, Spellings(["owl", "pig"], renderer, 1) if self.held_out else None


@dataclass
class Doubling(MessageEnv):
    """Tools by the renderer, kept in one conversation."""

    renderer: object
    history: list = field(default_factory=list)

    async def initial_observation(self):
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        tool = {"name": "double", "description": "Doubles.", "parameters": parameters}
        self.history = self.renderer.create_conversation_prefix_with_tools([tool], "Use tools.")
        self.history += [{"role": "user", "content": "Double 4."}]
        return self.history

    async def step(self, message):
        self.history.append(message)
        for call in message.get("tool_calls", ()):
            answer = {"role": "tool", "tool_call_id": call.id, "name": call.function.name}
            self.history.append({**answer, "content": f"got {call.function.arguments}"})
        for call in message.get("unparsed_tool_calls", ()):
            self.history.append({"role": "tool", "content": f"broken: {call.error}"})
        done = self.history[-1]["role"] != "tool"
        return MessageStepResult(float(message["content"] == "8"), done, self.history, {"turns": 1.0})


class Groups(EnvGroupBuilder):
    closed = 0

    def __init__(self, seed, renderer):
        self.seed, self.renderer = seed, renderer

    async def make_envs(self):
        return [EnvFromMessageEnv(self.renderer, Doubling(self.renderer))]

    async def compute_group_rewards(self, trajectory_group, env_group):
        turns = len(trajectory_group[0].transitions)
        return [(-0.1 * turns, {"closed_before": float(Groups.closed)}) for _ in trajectory_group]

    async def cleanup(self):
        Groups.closed += 1


class Corridor(Env):
    """Shows only where one is, so each turn is a prompt of its own. Reads the turn by the tokenizer."""

    def __init__(self, seed, renderer, kind="corridor"):
        self.place, self.renderer, self.kind = seed % 3, renderer, kind

    def shown(self):
        content = f"You are at {self.place}."
        if self.kind == "image":
            content = [{"type": "image", "image": "x.png"}]
        role = "game" if self.kind == "role" else "user"
        return self.renderer.build_generation_prompt([{"role": role, "content": content}])

    async def initial_observation(self):
        if self.kind == "tokens":
            return tinker.ModelInput.from_ints(self.renderer.tokenizer.encode("You are here.")), []
        if self.kind == "stop":
            return self.shown(), ["]\n"]
        return self.shown(), self.renderer.get_stop_sequences()

    async def step(self, action, *, extra=None):
        if self.renderer.tokenizer.decode(action) == "boom":
            raise RuntimeError("the corridor is gone")
        self.place += 1
        done = self.place == 3
        reward = 1.0 if done else -0.25
        metrics = {"stop/max_turns": 1.0} if self.renderer.tokenizer.decode(action) == "wait" else {}
        return StepResult(reward, done, self.shown(), self.renderer.get_stop_sequences(), metrics)


def corridor(seed, renderer, kind="corridor"):
    return Corridor(seed, renderer, kind)


def nothing():
    return "no data set"
