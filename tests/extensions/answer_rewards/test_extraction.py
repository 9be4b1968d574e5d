r"""What is taken as the final answer: boxes wherever they stand, marks, the last value; nothing of reasoning."""

import pytest

from asyncrl.extensions.answer_rewards.extraction import after_reasoning, boxed, extract

TAIL = "This holds since each step above follows from the one before. " * 10


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{42}" + f"\n\n{TAIL}We checked 7 cases.", "42"),
        (TAIL + r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{41} no, rather \boxed{42}", "42"),
        (r"The answers are \boxed{3}, \boxed{5} and \boxed{7}.", "3, 5, 7"),
        (r"$x = \boxed{2}$ or $x = \boxed{3}$", "2, 3"),
        (r"\boxed{42}. So \boxed{42}", "42"),
        (r"\boxed{42}" + "\n(As asked, it is in \\boxed{}.)", "42"),
        (r"\boxed{42} and not `\boxed{41}`", "42"),
        (r"\boxed{42}, in the form \boxed{answer}", "42"),
        (r"So $\boxed 5$.", "5"),
        (r"So \fbox{5}.", "5"),
        (r"$\boxed{f = \left\{ 1 \right.}$. And {more}", r"f = \left\{ 1 \right."),
        (r"\boxed{1 \boxed{2}}", r"1 \boxed{2}"),
        (r"\boxed{42} and \boxed{4", "42"),
        ("<answer>42</answer>" + TAIL, "42"),
        ("<answer>The answer is 42.</answer>", "42"),
        (f"#### 42\n{TAIL}", "42"),
        ("Sum: 905\n\n✅ Final Answer: **73**", "73"),
        ("**Answer: 42**\n\n---", "42"),
        ("### Final Answer\n\n**42**", "42"),
        ("The answer is $42$.\n\nHope this helps.", "$42$"),
        ("The answer is 42, not 41.", "42"),
        ("The answer is 7 because 3 + 4 = 7.", "7"),
        ("42 (not 41)", "42"),
        ("1. 42", "42"),
        ("1) 17\n2) $42$", "$42$"),
        ("5) $$42", "5) $$42"),
        ("**-8814**", "-8814"),
        ("Therefore the result is −8,814.", "−8,814"),
        ("So x = \\frac{3}{4}", r"x = \frac{3}{4}"),
        ("The answer is Paris.", "Paris"),
        ("The correct answer is **B**.", "B"),
        ("## Step 1\n#### 2. Add\nWe get 5.", "5"),
        ("", None),
        ("<think>The answer is 42", None),
        ("The answer is 42</think>", None),
        (r"<think>maybe \boxed{42}</think> The answer is 41.", "41"),
    ],
)
def test_the_final_answer_is_found(text, answer):
    assert extract(text) == answer


AS_QWEN3 = [
    "<think>30939 - 39753 is negative: \\boxed{1}.</think>\n\nThe answer is -8814.",
    "<think>\n\n</think>\n\n-8814",
    "The answer is -8814.",
    "30939 - 39753 = **-8814**",
    r"30939 - 39753 = \boxed{-8814}",
    "The result of the subtraction is:\n\n$$\n30939 - 39753 = \\boxed{-8814}\n$$",
    "**Answer:** -8814",
    "The difference is **-8,814**.",
]
"""Right answers to 30939 - 39753, as Qwen3 writes them."""


@pytest.mark.parametrize("text", AS_QWEN3)
def test_right_answers_as_qwen3_writes_them_are_right_in_the_calculator(text):
    from asyncrl.extensions.answer_rewards.equality import is_number

    assert is_number(-8814, extract(text))
    assert not is_number(8814, extract(text))


@pytest.mark.parametrize("text", ["-8814.0", "-٨٨١٤", "8814", "-8814.5", "-8,814 or 3", "-8814 x", ""])
def test_other_forms_are_not_the_whole_number_that_the_calculator_asks_for(text):
    from asyncrl.extensions.answer_rewards.equality import is_number

    assert not is_number(-8814, extract(text))


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("a</think>b", "b"),
        ("b<think>a", "b"),
        ("[THINK]a[/THINK]b", "b"),
        ("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b", "b"),
        ("b", "b"),
    ],
)
def test_reasoning_is_left_out_in_all_families_marks(text, rest):
    assert after_reasoning(text) == rest


def test_there_is_no_box_without_one():
    assert boxed("no box { here }") is None
    assert boxed(r"\boxed{}") is None
