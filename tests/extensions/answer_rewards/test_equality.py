r"""Which answers are right: numbers, units, words, lists, choices, expressions. No answer counts under two readings."""

import pytest

from asyncrl.extensions.answer_rewards.equality import Ask, never_right, plan
from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.extensions.answer_rewards.grader import GRADERS

RIGHT_WITHOUT_ALGEBRA = [
    ("42", "42.0"),
    ("1234567", r"1{,}234{,}567"),
    ("1234567", r"1\,234\,567"),
    ("-5", "−5"),
    ("12", "１２"),
    ("0.5", "½"),
    ("1/2", r"\frac12"),
    ("1 1/2", "1.5"),
    (r"3/2", r"1\frac{1}{2}"),
    ("1/3", "0.333333"),
    ("0.30000000000000004", "0.3"),
    (r"1.6 \times 10^{-19}", "1.6e-19"),
    ("10^{-7}", "0.0000001"),
    ("50%", "50"),
    ("50%", "0.5"),
    ("0.5", r"50\%"),
    (r"90^\circ", "90"),
    (r"90^\circ", r"90 \text{ degrees}"),
    ("18", r"18~\text{km/h}"),
    ("18 km/h", "18"),
    ("$18 dollars", "18"),
    ("9 (apples)", "9"),
    ("12 kg", "12000 g"),
    ("5 hours", "300 minutes"),
    (r"25 \text{ cm}^2", r"25\ \mathrm{cm^2}"),
    ("5 students", "5 people"),
    ("listen", "listen"),
    ("true", "True"),
    (r"\text{June 20}", "June 20"),
    ("New York", "new york."),
    ("$5$;$10$", "5, 10"),
    ("1, 2", "2 and 1"),
    (r"\{1,2\}", r"\{2, 1\}"),
    ("(1,2)", "(1, 2)"),
    ("x=5", "5"),
    ("5", "x = 5"),
    ("x=2, x=-3", "2, -3"),
    (r"\text{B}", r"\textbf{(B)}\ 42"),
    ("C", "C) 42"),
    ("3:4", "6:8"),
]
WRONG_WITHOUT_ALGEBRA = [
    (r"1.6 \times 10^{-19}", r"9.1 \times 10^{-31}"),
    ("0.0000001", "0.0000005"),
    ("0.0000012", "0.0000014"),
    ("10^{-20}", "0"),
    (r"3 \times 10^{8}", r"3.1 \times 10^{8}"),
    ("1000000", "1000001"),
    ("1/3", "0.33"),
    ("50", "0.5"),
    ("listen", "silent"),
    ("New York", "York New"),
    ("ABC", "CBA"),
    ("52_8", "52"),
    (r"4:30 \text{ p.m.}", r"4:30 \text{ a.m.}"),
    (r"12 \text{ kg}", r"12 \text{ g}"),
    ("5 m", "5 cm"),
    (r"90^\circ", r"90 \text{ rad}"),
    ("7", "3, 5, 7"),
    ("(1,2)", "(2,1)"),
    ("[0,1)", "(0,1)"),
    ("B", "A, B"),
    ("B", "A) 3 or B) 4"),
    ("x=5", "y=5"),
    ("3:4", "4:3"),
    ("7", ""),
]
RIGHT = [
    ("5 m", "5m"),
    ("5", "a + b = 2 + 3 = 5"),
    ("(1,2)", "(x, y) = (1, 2)"),
    ("2x", r"\frac{dy}{dx} = 2x"),
    (r"0.1\overline{6}", "1/6"),
    ("x^2", "x**2"),
    (r"[0,1)", r"x \in [0, 1)"),
    ("12!", "479001600"),
    ("x^2+1", "1+x^2"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"3+\sqrt{5}", r"\sqrt{5} + 3"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\sqrt2", "1.414214"),
    (r"2\sqrt{3}", "2√3"),
    ("y=2x+3", "2x - y + 3 = 0"),
    ("-8814", "30939 - 39753 = -8814"),
    (r"(-\infty,3]\cup[5,6)", r"(-\infty, 3] \cup [5, 6)"),
    ("x>5", r"(5,\infty)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"5\pm 1", "6, 4"),
    ("120", r"\binom{10}{3}"),
    ("55", r"\sum_{k=1}^{10} k"),
    (r"\frac{1}{3}", r"\frac{1}{3} \approx 0.33"),
]
WRONG = [
    ("3t", "3"),
    ("2m", "2"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{6}"),
    ("10^{-8}x", r"2 \cdot 10^{-8}x"),
    (r"\sqrt2", "1.41"),
    (r"3+\sqrt{5}", r"3-\sqrt{5}"),
    ("x^2+y^2=1", "x^2+y^2=2"),
    ("x^2+1", "1/2 = x^2+1"),
    ("x>5", r"x \ge 5"),
    (r"\{10^{-7}, \pi\}", r"\{2 \cdot 10^{-7}, \pi\}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT_WITHOUT_ALGEBRA)
def test_what_is_the_same_is_right_without_asking_anyone(gold, answer):
    assert plan(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), WRONG_WITHOUT_ALGEBRA)
def test_what_is_another_number_word_or_list_is_wrong_without_asking_anyone(gold, answer):
    assert plan(gold, answer) is False


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_expressions_of_one_value_are_right(gold, answer):
    assert GRADERS.equal(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_expressions_of_another_value_are_wrong(gold, answer):
    assert GRADERS.equal(gold, answer) is False


@pytest.mark.parametrize(
    "form",
    [
        "{b}$${a}",
        "{a}$ $\x7b\x7d{b}",
        "{a}) $${b}",
        r"\boxed{{{a}}} \boxed{{{b}}}",
        r"\boxed{{{a} or {b}}}",
        r"\boxed{{{a}, {b}}}",
        r"\boxed{{{a}={b}}}",
        r"\boxed{{x={a}={b}}}",
        r"\boxed{{{a} \approx {b}}}",
        r"\boxed{{\{{{a},{b}\}}}}",
        r"\boxed{{{a}\pm {b}}}",
        r"\boxed{{{a} \boxed{{{b}}}}}",
        r"\boxed{{{a} \le x \le {b}}}",
        "<answer>{a} {b}</answer>",
        "{a}({b})",
        "{a}% {b}",
    ],
)
def test_two_guesses_are_never_right_for_both(form):
    text = extract(form.replace("\x7b\x7d", "").format(a=137, b=255)) or ""
    assert [GRADERS.equal(gold, text) for gold in ("137", "255")] != [True, True]


@pytest.mark.parametrize(
    "answer",
    [
        "142) $$137",
        "142) 137",
        "142. 137",
        "142? 137",
        "142 | 137",
        "142 -> 137",
        r"142 \Rightarrow 137",
        "[142) 137",
    ],
)
def test_the_last_of_two_guesses_does_not_count_alone(answer):
    assert GRADERS.equal("137", answer) is False


@pytest.mark.parametrize("gold", ["", "  ", "nan", float("nan"), "None", "1" + "+x" * 600])
def test_a_gold_that_nothing_can_match_is_told(gold):
    assert never_right(str(gold)) is not None


@pytest.mark.parametrize("gold", [*(gold for gold, _ in RIGHT), *(gold for gold, _ in RIGHT_WITHOUT_ALGEBRA)])
def test_a_gold_is_equal_to_itself_in_a_box(gold):
    assert never_right(gold) is None


def test_expressions_are_left_to_algebra():
    assert plan("x^2+1", "1+x^2") == Ask("x^2+1", "1+x^2")
