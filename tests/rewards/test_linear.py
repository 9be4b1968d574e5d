"""No extractor takes time in the square of a text: each is fed 200 KB of the marks that a policy may write.

An extractor whose work grew with the square would need hours for that, far beyond the file's limit.
"""

import pytest

from asyncrl.chat import tool_calls
from asyncrl.envs.code.grading import extract as code_program
from asyncrl.envs.countdown.env import extract as countdown
from asyncrl.envs.search.reward import extract as search
from asyncrl.envs.sql.reward import as_query, as_rows
from asyncrl.envs.team.env import _number as team
from asyncrl.extensions.answer_rewards.equality import chosen, is_number, never_right, plan
from asyncrl.extensions.answer_rewards.extraction import after_reasoning, boxed, extract
from asyncrl.extensions.answer_rewards.normalisation import without_remarks
from asyncrl.extensions.answer_rewards.quantities import read_quantity
from asyncrl.extensions.program_rewards.extraction import defining_block, last_block
from asyncrl.rewards.marks import last_between, last_fence

CHARACTERS = 200_000
EXTRACTORS = {
    "answers": extract,
    "boxes": boxed,
    "reasoning": after_reasoning,
    "remarks": without_remarks,
    "quantities": read_quantity,
    "golds": never_right,
    "comparisons": lambda text: (plan("42", text), plan("x+1", text), plan("B", text), plan("a, b", text)),
    "choices": chosen,
    "calculator": lambda text: is_number(7, extract(text)),
    "marks": lambda text: (last_between(text, "<answer>", "</answer>"), last_fence(text)),
    "last block": last_block,
    "defining block": lambda text: defining_block(text, ["f"]),
    "code": code_program,
    "countdown": countdown,
    "sql query": as_query,
    "sql rows": as_rows,
    "search": search,
    "team": team,
    "hermes": tool_calls.parse_hermes,
    "llama": tool_calls.parse_llama,
    "mistral": tool_calls.parse_mistral,
}
MARKS = [
    *(
        "<answer>",
        "</answer>",
        "```",
        "```sql\n",
        "``` ",
        "\\boxed{",
        "\\boxed",
        "\\fbox{{",
        "####",
        "#### 1 ",
    ),
    *(
        "\nQuestion: ",
        "= 1. 2 ",
        "1) ",
        "0.\\dot{3}",
        "12,34,",
        "1.234.",
        "one hundred ",
        "]0,1[ or ",
        "1 hour ",
        "the answer is ",
        "answer: ",
        "answer to ",
        "Answer\n",
        "<think>",
        "</think>",
        "**",
        "$",
        "\\(",
        "(",
        "(a",
        "[",
        "{",
    ),
    *(
        "1,",
        "1 ",
        "1",
        "1e",
        "x=",
        "\\text{",
        "\\frac{",
        "a ",
        "A) ",
        "(A)",
        "\n",
        " ",
        "= ",
        "\\approx",
        "and ",
        "(not ",
    ),
    *("<tool_call>", "[TOOL_CALLS]", "[ARGS]", '{"a":', "\\sqrt{", "1/", "-", ".", "%", "½"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EXTRACTORS)
def test_marks_by_the_thousand_take_no_more_than_reading_them(name):
    for mark in MARKS:
        repeated = mark * (CHARACTERS // len(mark))
        for text in (repeated, f"x{repeated}x", f"1 {repeated} 42\n{repeated}"):
            EXTRACTORS[name](text)


def test_the_last_marks_count():
    assert last_between("<a>1</a><a>2</a><a>3", "<a>", "</a>") == "2"
    assert last_between("1</a>", "<a>", "</a>") is None
    assert last_fence("```sql a```b```c```d```") == "c"
    assert last_fence("```never closed") is None
