"""A policy that is a script, for the check of a harness: it repairs `calc.py` with whatever tool the agent offers.

It stands where the engines are: what it is given and what it says are tokens, and it keeps all of both.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.types import Trajectory

REPAIR = "sed -i 's/a - b/a + b/' calc.py && python3 test_calc.py && echo repaired"
PICTURE = "picture.png"
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent wants to read at the end."""
COMMANDS = ("command", "cmd", "commands", "code", "script")
"""Names that agents have for the argument that is a shell command."""
SHELLS = re.compile(r"bash|shell|exec|terminal|command", re.IGNORECASE)
VIEWERS = re.compile(r"view_image|^read$|read_file|^view$", re.IGNORECASE)
PATHS = ("path", "file_path", "filePath", "absolute_path")
FILLER = "seq -s ' ' 1 2400 | fold -w 200"
"""A command that prints 11,000 characters in lines: of more, or of one long line, many agents show only a part."""
EDIT = (
    "calc.py\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n```\n"
)
"""The repair as a block of an answer."""
LISTING = "calc.py\n```python\ndef add(a, b):\n    return a + b\n```\n"
"""The repair as a whole file in an answer."""
KEYSTROKES = "keystrokes"
"""The field of an answer in JSON that is typed into a terminal."""
DONE = re.compile(r"repaired(\n|\\n|<\|im_end\|>)")
"""What the repair prints, also as JSON shows it."""
ASSISTANT = "<|im_start|>assistant\n"
RESULT = "<|im_start|>tool\n"

CHAT_TEMPLATE = """\
{%- macro words(content) %}
    {{- content if content is string else (content or []) | map(attribute='text') | join }}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>tools\\n' }}
    {%- for tool in tools %}{{- tool.function | tojson + '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + words(message.content) }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


@dataclass(slots=True)
class Faults:
    """What goes wrong."""

    slow_s: float = 0.0
    """So long takes the turn that repairs."""
    fails: int = 0
    """So many calls for that turn fail as if no engine answered."""
    fills: int = 0
    """So many turns print much before the repair."""
    picture: bool = False
    """Look at a picture first."""


class ScriptedPolicy:
    """Implements `rollout.elsewhere.Engines`."""

    def __init__(self, tokenizer: Any, max_model_len: int, faults: Faults | None = None) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.faults = faults or Faults()
        self.said: dict[bytes, list[np.ndarray]] = {}
        """What it said, by all that it had read; more than once to an agent that comes back to a context."""
        self.longest = 0
        """Tokens of the longest context."""
        self.calls = 0
        self.happened: set[str] = set()
        """The names of the faults that the agent has met."""
        self._failures = self.faults.fails
        self._fills_left = self.faults.fills
        self._turns: dict[str, str] = {}
        self._latest = ""
        """The prompt that was asked last."""

    async def generate(self, request: GenerateRequest) -> Generated:
        ids = request.token_ids
        text = self.tokenizer.decode(ids.tolist())
        prompt, _, begun = text.rpartition(ASSISTANT)
        turn = self._turns.get(prompt)
        if turn is None or not (begun or prompt == self._latest):
            # A turn that is asked for again, or goes on, stays what it was. An agent that has shortened its context may
            # come to the same one, and would fill it for ever.
            turn = self._turns[prompt] = self._turn(prompt)
        self._latest = prompt
        if not begun:
            self.calls += 1
            if self._failures and _repairs(turn):
                self._failures -= 1
                self.happened.add("fails")
                raise InfrastructureError("no engine answers (scripted)")
            if self.faults.slow_s and _repairs(turn):
                self.happened.add("slow_s")
                await asyncio.sleep(self.faults.slow_s)
        whole = self._tokens(turn)
        # A piece of a turn goes on where the one before it ended.
        rest = whole[len(self._tokens(begun)) - 1 if begun else 0 :]
        said = rest[: request.max_tokens]
        self.said.setdefault(ids.tobytes(), []).append(said)
        self.longest = max(self.longest, len(ids))
        logprobs = -np.arange(1, len(said) + 1, dtype=np.float32) / 64
        reason = "stop" if len(said) == len(rest) else "length"
        return Generated(said, logprobs, np.zeros(len(said), np.int32), reason)

    async def context_limit(self) -> int:
        return self.max_model_len

    def hold(self, session: str, num_tokens: int, ttl_s: float) -> None:
        """Nothing is cached."""

    def wrong_turns(self, trajectories: tuple[Trajectory, ...]) -> tuple[int, int]:
        """Return how many turns are trained, and how many of them are not, token for token, what was said in exactly
        that context. A turn may be the beginning of that: strings that an agent stops at end it."""
        turns = wrong = 0
        for trajectory in trajectories:
            ids = trajectory.token_ids
            for turn in trajectory.turns:
                turns += 1
                at = turn.start
                while count := self._count_said(ids, at, turn.end):
                    at += count
                wrong += at != turn.end
        return turns, wrong

    def _count_said(self, ids: np.ndarray, at: int, end: int) -> int:
        """Return how many of the tokens from `at` on, up to `end`, are what was said in the context before them."""
        counts = [0]
        for said in self.said.get(ids[:at].tobytes(), ()):
            count = min(len(said), end - at)
            if np.array_equal(ids[at : at + count], said[:count]):
                counts.append(count)
        return max(counts)

    def _tokens(self, text: str) -> np.ndarray:
        """Return a token a character: to tokenize the text again would give others."""
        ids = [i for c in text for i in self.tokenizer.encode(c, add_special_tokens=False)]
        return np.array([*ids, self.tokenizer.eos_token_id], np.int32)

    def _turn(self, prompt: str) -> str:
        """Return the turn that follows a conversation."""
        tools = _tools(prompt)
        done = prompt.count(RESULT)
        if not tools:
            return self._without_tools(prompt)
        steps = ["cat calc.py", REPAIR]
        repaired = bool(DONE.search(prompt.replace("echo repaired", "")))
        viewer = _call(tools, VIEWERS, PATHS, f"/work/{PICTURE}") if self.faults.picture else ""
        if viewer and done == 0:
            self.happened.add("picture")
            return viewer
        place = done - bool(viewer)
        # Counted over the episode: an agent that shortens its context forgets how often.
        if self._fills_left and place and not repaired and (filler := _call(tools, SHELLS, COMMANDS, FILLER)):
            self._fill()
            return filler
        if repaired or place > len(steps) + 2 + self.faults.fills:
            submit = _call(tools, SHELLS, COMMANDS, f"echo {SUBMIT}") if SUBMIT in prompt else ""
            return submit or "The test passes now."
        return _call(tools, SHELLS, COMMANDS, steps[min(place, len(steps) - 1)]) or "There is no shell."

    def _without_tools(self, prompt: str) -> str:
        """Answer agents that call no tools, and what agents ask beside their work, such as titles."""
        if "SEARCH/REPLACE" in prompt or "<<<<<<< SEARCH" in prompt:
            return EDIT
        if "file listing" in prompt:
            return LISTING
        if KEYSTROKES in prompt:
            return self._typed(prompt)
        if "final_answer" not in prompt:
            return "Repair of calc.py"
        code = 'final_answer("done")'
        if REPAIR not in prompt:
            code = f'print(shell("{FILLER if self._fills_left else REPAIR}"))'
            self._fill()
        return f"Thought: go on.\n<code>\n{code}\n</code>"

    def _typed(self, prompt: str) -> str:
        """Answer an agent that types what an answer in JSON says."""
        repaired = bool(DONE.search(prompt.replace("echo repaired", "")))
        typed = FILLER if self._fills_left and not repaired else REPAIR
        if not repaired:
            self._fill()
        commands = [] if repaired else [{KEYSTROKES: f"{typed}\n", "duration": 2.0}]
        return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": repaired})

    def _fill(self) -> None:
        if self._fills_left:
            self._fills_left -= 1
            self.happened.add("fills")


def _repairs(turn: str) -> bool:
    return REPAIR in turn or turn in (EDIT, LISTING)


def _tools(prompt: str) -> list[dict[str, Any]]:
    listed = prompt.partition("<|im_start|>tools\n")[2].partition("<|im_end|>")[0]
    return [json.loads(line) for line in listed.splitlines() if line.startswith("{")]


def _call(tools: list[dict[str, Any]], names: re.Pattern[str], arguments: tuple[str, ...], value: str) -> str:
    """Return a call of the first tool of such a name with such an argument; "" without one."""
    for tool in tools:
        properties = (tool.get("parameters") or {}).get("properties") or {}
        key = next((name for name in arguments if name in properties), None)
        if key is None or not names.search(tool["name"]):
            continue
        listed = properties[key].get("type") == "array"
        given: dict[str, Any] = {key: ["bash", "-c", value] if listed else value}
        for name in (tool.get("parameters") or {}).get("required") or ():
            if name not in given:
                given[name] = _filled(properties.get(name) or {})
        return f"<tool_call>\n{json.dumps({'name': tool['name'], 'arguments': given})}\n</tool_call>"
    return ""


def _filled(schema: dict[str, Any]) -> Any:
    """Return some value that an argument takes."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    return {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}.get(str(kind), "look")
