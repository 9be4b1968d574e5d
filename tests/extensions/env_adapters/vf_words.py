"""A verifiers environment as its authors write them: find a word, told how many letters are right."""

import verifiers as vf
from datasets import Dataset

WORDS = ["cat", "dog", "sun", "sea", "oak", "fox"]


def rows(words):
    return Dataset.from_list([{"question": f"A word of {len(w)} letters.", "answer": w} for w in words])


class WordEnv(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["guesses"] = 0
        return state

    @vf.stop
    async def found(self, state):
        return bool(state["trajectory"]) and self.parser.parse_answer(self.last(state)) == state["answer"]

    @vf.cleanup
    async def count_end(self, state):
        state["ended"] = state.get("ended", 0) + 1

    async def env_response(self, messages, state, **kwargs):
        state["guesses"] += 1
        guess = self.parser.parse_answer(self.last(state)) or ""
        if guess == "give up":
            reply = [{"role": "user", "content": f"It was {state['answer']}."}]
            state["final_env_response"] = reply
            return reply
        if guess == "break":
            raise vf.SandboxError("the sandbox is gone")
        right = sum(a == b for a, b in zip(guess, state["answer"], strict=False))
        return [{"role": "user", "content": [{"type": "text", "text": f"{right} right"}]}]

    def last(self, state):
        return state["trajectory"][-1]["completion"]


def exact(parser, completion, answer):
    return float(parser.parse_answer(completion) == answer)


def ended_once(state):
    return float(state["ended"] == 1)


def load_environment(held_out: bool = True, max_turns: int = 3, kind: str = "words"):
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(funcs=[exact], parser=parser)
    rubric.add_metric(ended_once)
    common = {"parser": parser, "rubric": rubric, "system_prompt": "Answer in <answer> tags."}
    data = (
        {"dataset": rows(WORDS[:4]), "eval_dataset": rows(WORDS[4:])}
        if held_out
        else {"dataset": rows(WORDS)}
    )
    if kind == "tools":
        return vf.ToolEnv(tools=[double], rubric=vf.Rubric(funcs=[says_ten]), max_turns=max_turns, **data)
    if kind == "group":
        return WordEnv(rubric=vf.Rubric(funcs=[best_of]), **data)
    if kind == "single":
        return vf.SingleTurnEnv(**common, **data)
    return WordEnv(max_turns=max_turns, **common, **data)


async def double(number: int) -> int:
    """Twice a number.

    Args:
        number: the number to double
    """
    return 2 * number


def says_ten(completion):
    return float("10" in completion[-1]["content"])


def best_of(completions):
    return [1.0] * len(completions)
