"""Answers and golds of public reports: what was judged wrongly elsewhere is judged rightly here (docs/reports.md)."""

import pytest

from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.extensions.answer_rewards.grader import GRADERS

BOLD = (
    "So Left 437 + 2*234 = 905\n\nThus, the number of residents is **73**.\n\n--- \n\n✅ Final Answer: **73**"
)
COMPLETIONS = [
    (
        "Math-Verify#44",
        "840",
        "could answer therefore\\boxed{840}.,but let me put this after explain.\n\n**Final Answer**\n\\boxed{840}",
        True,
    ),
    (
        "Math-Verify#44",
        "4",
        " the answer should be \\boxed{004}.\n\nBut let me check again: the sum is 2,552,004. The last three digits "
        "are 004. So, \\boxed{004} is the correct answer.\n\n**Final Answer**\n\\boxed{004}",
        True,
    ),
    ("Math-Verify#57", "4", r"\boxed{35 cm} ++++++ \boxed{4}", True),
    ("Math-Verify#57", "35", r"\boxed{35 cm} ++++++ \boxed{4}", False),
    ("Math-Verify#76", "73", BOLD, True),
    ("Math-Verify#76", "234", BOLD, False),
    (
        "verl#7274",
        "42",
        "2+40=42\n#### 42\n" + " and the reasoning above confirms this result is consistent." * 8,
        True,
    ),
    ("verl#2150", "18", r"She makes 9 * 2 = $18. So \boxed{18}.", True),
    ("X-R1#53", "48480", "<think> 55 − 15 is 40. </think><answer> 48480 </answer>", True),
    ("omlx#3484", "72", "The total is 72 clips, altogether.", True),
    ("helm#4337", "72", "The answer is 72, in total, so the farmer earns that much.", True),
    ("opencompass#2647", "9500", r"\boxed{$9{,}500}", True),
    ("opencompass#2647", "10000", r"\boxed{10,000}", True),
    ("opencompass#2647", "9500", "The answer is $9{,}500.", True),
    ("lm-evaluation-harness#3214", "29", "Hence the total cost of Rory's delivery order is $29.00.", True),
    ("sglang#29933", "18", "9 * 2 = 18\n#### 18\n\nQuestion: And 2 + 3?\nAnswer: 2 + 3 = 5\n#### 5", True),
    ("sglang#29933", "5", "9 * 2 = 18\n#### 18\n\nQuestion: And 2 + 3?\nAnswer: 2 + 3 = 5\n#### 5", False),
    ("verl#7789", "72", "Natalia sold 48+24 = 72 clips altogether in April and May.", True),
]  # fmt: skip
"""Report, gold, completion, whether it is right."""
ANSWERS = [
    ("degrees", r"\sin 30^\circ", r"\frac12", True),
    ("degrees", r"\frac{3}{4}", r"\cos^2(30^\circ)", True),
    ("degrees", r"\frac12", r"\cos 30^\circ", False),
    ("degrees", "30", "30°", True),
    ("about", "42", r"\approx 42", True),
    ("about", "42", r"\approx 43", False),
    ("an option with its value", "12", r"\textbf{(C)}\ 12", True),
    ("an option with its value", "12", r"\textbf{(C)}\ 13", False),
    ("an option with its value", "12", "(C) 12 (D) 13", False),
    ("a member of a set", r"x \in \{1, 2\}", "1, 2", True),
    ("a member of a set", r"x \in \{1, 2\}", r"x \in \left\{2, 1\right\}", True),
    ("a member of a set", r"x \in \{1, 2\}", r"x \in \{1, 3\}", False),
    ("a member of a set", r"\{1, 2\}", r"x \in \{1, 2\}", False),
    ("Math-Verify#64", r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", True),
    ("Math-Verify#64", "f(x) = 0", "f(x) = 1", False),
    ("Math-Verify#56", r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{2\pi}{3})", False),
    ("Math-Verify#56", r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})", True),
    ("Math-Verify#56", r"\left( 3, \frac{\pi}{2} \right)", "3", False),
    ("Math-Verify#41", "4", r"4\sqrt(2)", False),
    ("Math-Verify#41", r"4\sqrt{2}", r"4\sqrt(2)", True),
    ("Math-Verify#82", r"1 - \frac{1}{\mathrm{e}}", r"1 + \frac{1}{\mathrm{e}}", False),
    ("Math-Verify#82", r"1 - \frac{1}{\mathrm{e}}", r"1 - \frac{1}{e}", True),
    ("Math-Verify#82", "1 - e^{-1}", r"1 - \frac{1}{\mathrm{e}}", True),
    ("Math-Verify#70", r"\dfrac{9}{7}", "9/7", True),
    ("Math-Verify#60", "3*x-1*y+13=0", "3x + 4y + 14=0", False),
    ("Math-Verify#60", "3*x-1*y+13=0", "y = 3x + 13", True),
    ("Math-Verify#74", r"1 - \sqrt{2}", r"$1 - \sqrt{2}$", True),
    ("Math-Verify#74", r"1 - \sqrt{2}", "1", False),
    ("Math-Verify#29", r"\sqrt{17}", "sqrt(17)", True),
    ("Math-Verify#29", r"\sqrt{17}", "sqrt{17}", True),
    ("Math-Verify#29", r"\sqrt{17}", "√17", True),
    ("Math-Verify#10", "(0, 12.5)", "0 < x < 12.5", True),
    ("Math-Verify#10", "0 < x < 12.5", "(0, 12.5)", True),
    ("Math-Verify#10", "(0, 12.5)", r"0 \le x < 12.5", False),
    ("Math-Verify#71", "x<3", r"(-\infty, 3)", True),
    ("Math-Verify#71", r"(-\infty, 3)", "x<3", True),
    ("open-r1#503", r"10 - 2\sqrt{5}", "10 - 2√5", True),
    ("open-r1#566", r"\frac{63}{400}", r"\frac{64}{400}", False),
    ("open-r1#566", "6", "3", False),
    ("Math-Verify#71", r"(-\infty, 3)", "2x<6", False),
    ("Math-Verify#71", r"[3, \infty)", r"x \ge 3", True),
    ("Math-Verify#71", r"(3, \infty)", r"x \geq 3", False),
    ("Math-Verify#10", "(0, 12.5]", r"0 < x \leq 12.5", True),
    ("Math-Verify#10", "(0, 12.5)", "0 < x < 13", False),
    ("Math-Verify#64", "|x|", "x", False),
    ("Math-Verify#64", r"\sqrt{x^2}", "x", False),
    ("Math-Verify#64", r"\sqrt{x^2}", "|x|", True),
    ("Math-Verify#27", "Yes", "yes", True),
    ("Math-Verify#34", "2.5", r"2\frac{1}{2}", True),
    ("Math-Verify#34", "5/4", "1 1/4", True),
    ("Math-Verify#81", "71/6", "11 5/6", True),
    ("Math-Verify#81", "2", "2 2/3", False),
    ("Math-Verify#81", "10", "4 10/3", False),
    ("Math-Verify#81", "-71/6", "-11 5/6", True),
    ("Math-Verify#67", r"28\%", "28", True),
    ("Math-Verify#67", r"28\%", "28 percent", True),
    ("Math-Verify#67", r"28\%", "0.28", True),
    ("Math-Verify#67", r"28\%", "2800", False),
    ("Math-Verify#3", r"\frac{1}{12}", "0.0833333333333333", True),
    ("Math-Verify#3", r"1,\frac{9}{2}", "1,4.5", True),
    ("Math-Verify#3", r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}", True),
    ("Math-Verify#3", r"\tan^2(y)+1", r"\sec^2(y)", True),
    ("Math-Verify#3", "34x+45y-20z+100=0", "-34x-45y+20z-100=0", True),
    ("Math-Verify#3", "33.3", r"\frac{100}{3}", False),
    ("Math-Verify#35", r"\frac12", r"\frac{1}{2}", True),
    ("Math-Verify#14", "n=2, 3, 4", "n=1, 2, 3", False),
    ("Math-Verify#14", "D = (0, 1)", "D = (0, 1.5)", False),
    ("Math-Verify#14", r"19, 46, \text{ and } 82", "21, 36, and 82", False),
    ("Math-Verify#14", r"19, 46, \text{ and } 82", "19, 46, 82", True),
    ("Math-Verify#14", r"\pm 2021", "2021", False),
    ("Math-Verify#14", r"\pm 2021", "2021, -2021", True),
    ("Math-Verify#14", "12:00", "1:00", False),
    ("Math-Verify#14", r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1", False),
    ("Math-Verify#14", r"1:2:3:\ldots", r"1:4:9:\ldots", False),
    ("DoenetML#168", r"(1,2) \cup (3,4)", r"(3, 4) \cup (1, 2)", True),
    ("DoenetML#168", r"(1,2) \cup (3,4)", r"[1, 2] \cup (3, 4)", False),
    ("OpenThoughts-Agent#129", r"(-\infty,0)\cup(0,\infty)", r"(-\infty,\infty)", False),
    ("OpenThoughts-Agent#129", r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R} \setminus \{0\}", True),
    ("reasoning-from-scratch#133", "52_8", "528", False),
    ("reasoning-from-scratch#133", r"11,\! 111,\! 111,\! 100", "11111111100", True),
    ("reasoning-from-scratch#133", r"(0,9) \cup (9,36)", r"(0, 9) \cup (9, 36)", True),
    ("reasoning-from-scratch#133", r"(0,9) \cup (9,36)", "(0,36)", False),
]
"""Report, gold, answer, whether it is right."""


@pytest.mark.parametrize(("report", "gold", "completion", "right"), COMPLETIONS)
def test_the_answer_of_a_completion_is_the_one_it_ends_with(report, gold, completion, right):
    answer = extract(completion)
    assert answer is not None
    assert GRADERS.equal(gold, answer) is right


@pytest.mark.parametrize(("report", "gold", "answer", "right"), ANSWERS)
def test_an_answer_is_right_for_its_gold_and_no_other(report, gold, answer, right):
    assert GRADERS.equal(gold, answer) is right


NOTHING = (
    "", "null", "NaN", "None", "undefined", "inf", "infinity", "false", "[]", "N/A", r"\emptyset", r"\boxed{}",
    r"\boxed{null}", r"\boxed{\text{none}}",
)  # fmt: skip


@pytest.mark.parametrize("gold", ["0", "0.0", r"\frac{0}{5}", "1"])
def test_an_answer_that_is_nothing_is_no_number(gold):
    # AgentBench#234: null, NaN and infinity were 0, and right where that was asked for.
    given = [extract(answer) for answer in NOTHING]
    assert not any(GRADERS.equal(gold, answer) for answer in given if answer is not None)
