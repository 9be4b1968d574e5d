r"""Final answers in the forms in which models and data sets write them: each is right for its gold and for no other."""

import pytest

from asyncrl.extensions.answer_rewards.equality import never_right
from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.extensions.answer_rewards.grader import GRADERS

RIGHT_ENDS = {
    "John": [
        "The winner is John.", "So the winner is **John**.", "John", "**John**", "Answer: John", r"\boxed{\text{John}}",
    ],
    "42": [
        "Answer: 3) 42", "3) 42", "The answer is 3) 42.", "1. Add 40.\n2. Add 2.\n3. 42",
        "Step 1: 40\nStep 2: 42", "1) 40 + 2 = 42", "1. 40 + 2 = 42", "(1) 42", "a) 42", "a. 42", "i) 42",
        "Q1: 42", "A: 42", "A1. 42", "* 42", "• 42", "=> 42", "= 42", "→ 42", "> 42", "Answer = 42",
        "Answer - 42", "Final answer → 42", "Ans: 42", "Ans. 42", "Result: 42", "So the total is 42 apples.",
        "**Final Answer:** 42", r"**Final Answer**: The final answer is $\boxed{42}$. I hope it is correct.",
        r"The final answer is: $\boxed{42}$.", "Therefore, the answer is **42**.",
        "The answer is **42 apples**.", "### Answer\n42", "### Answer:\n\n$$42$$", "#### 42.", "#### $42",
        "#### 42 dollars", "####42", "#### **42**", "Janet makes $42 every day.",
        "Janet makes $42.00 every day.", "She needs 42 more eggs",
        "In total she has 20 + 22 = <<20+22=42>>42 eggs.", "40 + 2 = 42.", "The sum of 40 and 2 is 42!",
        "It's 42.", r"Answer: \(42\)", r"Answer: \[42\]", "\\[\n\\boxed{42}\n\\]",
        r"$$\boxed{42 \text{ apples}}$$", r"\boxed{\$42}", r"\boxed{42\,\text{dollars}}",
        r"\boxed{\text{42}}", r"\boxed{x = 42}", "<answer>\n42\n</answer>", "<answer>$42$</answer>",
        r"<answer>\boxed{42}</answer>", "<answer> x = 42 </answer>", "Answer: forty-two (42)",
        "The answer is forty-two, i.e. 42.", "Answer: 42 ✅", "✅ 42", "Answer:\n\n42\n", "The answer is:\n42",
        "The answer is:\n- 42", "The answer is:\n1. 42", "答案是42。", "答案：42", "所以答案是 42 个苹果。",
        "La respuesta es 42.", "La réponse est 42.", "Die Antwort ist 42.", "Ответ: 42", "答えは42です。",
        "Answer: B) 42", "(B) 42", "B. 42", "The correct option is (C) 42",
        "Final Answer: 42\n\nLet me know if you have 2 more questions!",
        "The answer is 42. (Check: 40 + 2 = 42.)", "42\n\nExplanation: 40 + 2 = 42",
        "Answer: 42\nConfidence: 95%", "Answer: 42\n\nConfidence: 0.9", "The answer is $42$, which is even.",
        "The answer is 42 = 6 * 7.", r"Thus, $6 \times 7 = 42$.", r"Thus, the value is $\mathbf{42}$.",
        "**42**", "__42__", "`42`", "```\n42\n```", "\"42\"", "{\"answer\": 42}", "{\"answer\": \"42\"}",
        "answer=42", "ANSWER: 42", "Answer:42", "Answer is 42", "The answer, then, is 42.",
        "The answer would be 42.", "The answer should be 42.", "The answer must be 42.",
        "The answer comes to 42.", "My answer: 42", "My final answer is 42",
        "the answer of the problem is 42",
    ],
    "1234": [
        "#### 1,234",
    ],
    "10": [
        "10 - 5 = 5, so 10", "It is 5, so 10",
    ],
    "18": [
        "1. Eggs eaten: 3\n2. Eggs baked: 4\n3. Eggs sold: 16 - 3 - 4 = 9\n4. Money: 9 * 2 = $18",
        "1. 3 eggs\n2. 4 eggs\n3. 9 eggs left\n\n18 dollars", "16 - 3 - 4 = 9. 9 * 2 = 18",
        "16 - 3 - 4 = 9\n9 * 2 = 18", "16-3-4=9, 9*2=18",
    ],
    "1.5": [
        "1.5", "Answer: 1.5",
    ],
    "5": [
        "1. 5",
    ],
    "B": [
        "The correct option is (B) 42", "B", "Answer: B", "**B) 42**", "Answer: **B**.",
        "The answer is (B).", r"\boxed{B}", r"\boxed{\text{B}}", r"\boxed{(B)}", "Option B", "I choose B.",
        "B: 42", "Answer: b", "The answer is option B: Paris", "<answer>B</answer>", "#### B",
    ],
    "-3": [
        "The answer is -3", "The answer is negative 3.", "x = −3",
    ],
    "3": [
        "Answer - 3", "Thus n=3 (since n > 0).", "x = 3 or x = -5; since x > 0, x = 3.",
    ],
    "1/2": [
        "The probability is 1/2.", r"The probability is $\frac{1}{2}$.", "Answer: 0.5",
        "Probability = 0.5 = 50%",
    ],
    "0.5": [
        "Answer: 1/2",
    ],
    "1000000": [
        "1 million", "$1 million",
    ],
    "2500000": [
        "2.5 million",
    ],
    "20": [
        "20%", "20 percent",
    ],
    "20%": [
        "20%",
    ],
    "540": [
        "He runs 540 meters a week.",
    ],
    "137": [
        "10) 137", "12. 137", "1. 142\n2. 137",
    ],
}  # fmt: skip
"""By gold: completions, or their last lines, that answer rightly."""
WRONG_ENDS = {
    "John": [
        "The winner is not John.", "It is Bob or John.", "The winner is Bob.", "John is the one who lost to Bob",
    ],
    "5": [
        "10 - 5 = 5, so 10",
    ],
    "1.5": [
        "1. 5",
    ],
    "7": [
        "Answer: 1) 3 2) 7",
    ],
    "3": [
        "Answer -3",
    ],
    "137": [
        "142) 137", "142. 137", "142? 137", "1) 142 2) 137", "1. 142 2. 137", "Answer: 142 or 137",
        "Answer: 142/137", "Answer: 142, 137",
    ],
    "142": [
        "142. 137", "1. 142\n2. 137", "1) 142 2) 137", "Answer: 142, 137",
    ],
    "255": [
        "137$$255",
    ],
}  # fmt: skip
"""By gold: completions that do not say it, two guesses among them."""
RIGHT_FORMS = {
    r"2 \pmod{5}": [
        r"2 \pmod 5", "2 mod 5", r"x \equiv 2 \pmod{5}", r"x \equiv 2 (\bmod 5)", r"2 \mod 5", "x = 2 (mod 5)",
    ],
    r"\mp 2": [
        r"\pm 2",
    ],
    "0.25": [
        "1/4",
    ],
    "1/4": [
        ".25",
    ],
    r"\frac{1}{4}": [
        "0.250",
    ],
    r"-\frac{1}{2}": [
        "-0.5",
    ],
    r"\frac{-1}{2}": [
        "-0.5",
    ],
    "-0.5": [
        r"\frac{1}{-2}",
    ],
    r"\frac{2}{4}": [
        r"\frac{1}{2}",
    ],
    "1.0": [
        "1",
    ],
    "-0": [
        "0",
    ],
    "0": [
        "-0.0",
    ],
    "3.14159265": [
        r"\pi",
    ],
    "1e3": [
        "1000",
    ],
    "1.2E-3": [
        "0.0012",
    ],
    r"1.5 \times 10^3": [
        "1500",
    ],
    "1.5 * 10^3": [
        "1500",
    ],
    "1.5×10³": [
        "1500",
    ],
    "10^{100}": [

        "10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    ],
    "10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000": [
        "10^{100}",
    ],
    "2^{100}": [
        "1267650600228229401496703205376",
    ],
    "1234567": [
        "1 234 567", "1'234'567", "12,34,567",
    ],
    "1,234.5": [
        "1234.5",
    ],
    "1,000": [
        "1000",
    ],
    "10,000": [
        "10000",
    ],
    "1,000, 2,000": [
        "1000, 2000",
    ],
    "$1,000": [
        "1000",
    ],
    "€1.50": [
        "1.50",
    ],
    "£20": [
        "20",
    ],
    "20 €": [
        "20",
    ],
    "20€": [
        "20",
    ],
    "₹500": [
        "500",
    ],
    "¥500": [
        "500",
    ],
    "Rs. 500": [
        "500",
    ],
    "US$5": [
        "5",
    ],
    "USD 5": [
        "5",
    ],
    "5 USD": [
        "$5",
    ],
    "$5.00": [
        "5",
    ],
    "5 cents": [
        "$0.05",
    ],
    "$0.05": [
        "5¢",
    ],
    r"\$5": [
        "5 dollars",
    ],
    r"3\frac{1}{2}": [
        "7/2",
    ],
    "3 1/2": [
        "3.5",
    ],
    r"3\tfrac12": [
        "3.5",
    ],
    r"-3\frac12": [
        "-3.5",
    ],
    "3 and 1/2": [
        "3.5",
    ],
    "3-1/2": [
        "2.5",
    ],
    "3½": [
        "3.5",
    ],
    r"50\%": [
        "50", r"\frac12",
    ],
    "50%": [
        "0.50",
    ],
    "50": [
        "50%",
    ],
    "0.5%": [
        "0.005",
    ],
    "12.5%": [
        "1/8",
    ],
    "5 km": [
        "5000 m",
    ],
    "5": [
        r"5 \text{ km}",
    ],
    "60 mph": [
        "60 miles per hour", "60 mi/h",
    ],
    r"5 \text{ square units}": [
        "5",
    ],
    "5 sq. ft": [
        "5 square feet",
    ],
    "5 ft^2": [
        "5 square feet",
    ],
    "10 m/s": [
        "10 meters per second", "36 km/h",
    ],
    "1.5 hours": [
        "90 minutes",
    ],
    "90 min": [
        "1 hour 30 minutes",
    ],
    "1 h 30 min": [
        "90 minutes",
    ],
    "2 feet 6 inches": [
        "30 inches",
    ],
    "25°C": [
        "25", "25 degrees Celsius",
    ],
    "30 degrees": [
        "30°",
    ],
    "5:00 PM": [
        "5 PM",
    ],
    "5 p.m.": [
        "5:00 p.m.",
    ],
    "12 kg": [
        "12kg",
    ],
    r"\pm 2": [
        "2, -2", "-2, 2",
    ],
    "2, -2": [
        r"\pm 2",
    ],
    r"\pm\sqrt{2}": [
        r"\sqrt{2}, -\sqrt{2}",
    ],
    r"1 \pm \sqrt{5}": [
        r"1+\sqrt5, 1-\sqrt5",
    ],
    r"x = \pm 3": [
        "3, -3", r"x = 3 \text{ or } x = -3",
    ],
    "x=3 or x=-3": [
        r"\pm 3",
    ],
    r"\pm 3": [
        "±3",
    ],
    r"\mp 3": [
        r"\pm 3",
    ],
    r"\frac{1 \pm \sqrt{5}}{2}": [
        r"\frac{1+\sqrt5}{2}, \frac{1-\sqrt5}{2}",
    ],
    r"\{1,2,3\}": [
        r"\{3,2,1\}", "1,2,3",
    ],
    "{1,2,3}": [
        r"\{1, 2, 3\}",
    ],
    r"\emptyset": [
        r"\varnothing", r"\{\}", "∅",
    ],
    "(1,2),(3,4)": [
        "(3,4),(1,2)", "(1,2) and (3,4)",
    ],
    r"\{(1,2),(3,4)\}": [
        "(3,4),(1,2)",
    ],
    r"\langle 1,2 \rangle": [
        r"\langle 1, 2\rangle",
    ],
    r"\mathbb{R}": [
        r"(-\infty,\infty)",
    ],
    r"x \in \mathbb{R}": [
        r"\mathbb{R}",
    ],
    r"\mathbb{R} \setminus \{0\}": [
        r"(-\infty,0)\cup(0,\infty)",
    ],
    "[0,1]": [
        r"0 \le x \le 1", "[0, 1.0]",
    ],
    r"(0,\infty)": [
        "x>0",
    ],
    r"(0,+\infty)": [
        r"(0,\infty)",
    ],
    "]0,1[": [
        "(0,1)",
    ],
    r"[0, 1) \cup (2, 3]": [
        r"(2,3] \cup [0,1)",
    ],
    r"x \geq 2": [
        "x ≥ 2",
    ],
    r"x \ge 2": [
        r"2 \le x",
    ],
    r"x\neq 2": [
        "x ≠ 2",
    ],
    r"(-\infty, 2]": [
        r"x \le 2",
    ],
    "1 < x < 3": [
        "(1,3)",
    ],
    r"x \in [1,2]": [
        r"1 \leq x \leq 2",
    ],
    "x<-1 or x>3": [
        r"(-\infty,-1)\cup(3,\infty)",
    ],
    r"(-\infty,-1)\cup(3,\infty)": [
        r"x < -1 \text{ or } x > 3",
    ],
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [
        r"\begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}",
    ],
    r"\begin{pmatrix} 1/2 \\ 0 \end{pmatrix}": [
        r"\begin{pmatrix} 0.5 \\ 0 \end{pmatrix}",
    ],
    r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]": [
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ],
    r"\text{yes}": [
        "Yes",
    ],
    r"\text{Yes}": [
        r"\text{yes.}",
    ],
    r"\text{even}": [
        "even",
    ],
    r"\text{Monday}": [
        "monday",
    ],
    r"\mathrm{A}": [
        "A",
    ],
    r"\text{(A)}": [
        "A",
    ],
    "(A)": [
        "A",
    ],
    "A": [
        "a", r"\text{(A) }5",
    ],
    r"\textbf{(A)}": [
        "A",
    ],
    "A. 5": [
        "A",
    ],
    "E": [
        r"\text{E}",
    ],
    "C": [
        "Option C", "choice (C)",
    ],
    "A, C": [
        "C, A",
    ],
    "True": [
        "true",
    ],
    "x^2-1": [
        "(x-1)(x+1)",
    ],
    "2x+3": [
        "3+2x",
    ],
    r"\frac{x}{2}": [
        "0.5x",
    ],
    "x/2": [
        r"\frac{1}{2}x",
    ],
    "e^{x}": [
        r"\exp(x)",
    ],
    r"\ln(2)": [
        r"\ln 2",
    ],
    r"\log_2 8": [
        "3",
    ],
    r"\log_{10} 100": [
        "2",
    ],
    r"\sin^2 x": [
        r"(\sin x)^2",
    ],
    "n(n+1)/2": [
        r"\frac{n(n+1)}{2}",
    ],
    "n!": [
        "n! ",
    ],
    r"\binom{n}{2}": [
        r"\frac{n(n-1)}{2}",
    ],
    r"\binom{5}{2}": [
        "10",
    ],
    "2^{10}": [
        "1024",
    ],
    r"\sqrt[3]{8}": [
        "2",
    ],
    "8^{1/3}": [
        "2",
    ],
    "i": [
        r"\sqrt{-1}",
    ],
    "3+4i": [
        "4i+3",
    ],
    "|3+4i|": [
        "5",
    ],
    r"\lfloor 3.7 \rfloor": [
        "3",
    ],
    r"\infty": [
        r"+\infty", "infinity",
    ],
    "f(x)=x^2": [
        "x^2",
    ],
    "y = x^2": [
        "x^2",
    ],
    "x^2+y^2=4": [
        "x^2 + y^2 - 4 = 0",
    ],
    "2x+4y=6": [
        "x+2y=3",
    ],
    "e": [
        "2.718281828",
    ],
    r"\frac{\pi}{4}": [
        r"\pi/4", "0.7853982",
    ],
    r"2\sqrt{2}": [
        r"\sqrt{8}",
    ],
    r"\sqrt{2}/2": [
        r"\frac{1}{\sqrt2}",
    ],
    r"0.\overline{3}": [
        "1/3",
    ],
    r"0.\dot{3}": [
        "1/3",
    ],
    r"0.3\dot{6}": [
        "11/30",
    ],
    "k = 3, m = 4": [
        "m=4, k=3",
    ],
    "a=1,b=2": [
        "1,2",
    ],
    "1:2": [
        "1/2", "0.5",
    ],
    "1:2:3": [
        "2:4:6",
    ],
    "1 to 2": [
        "1:2",
    ],
    "1000": [
        "1e3",
    ],
    "007": [
        "7",
    ],
    "101_2": [
        "101_{2}",
    ],
    "1F_{16}": [
        "1F_{16}",
    ],
    "seven": [
        "7",
    ],
    "7": [
        "seven",
    ],
    "twelve": [
        "12",
    ],
    "1st": [
        "1",
    ],
    "None of the above": [
        "none of the above",
    ],
    "undefined": [
        "undefined",
    ],
}  # fmt: skip
"""By gold: answers that mean the same."""
WRONG_FORMS = {
    r"2 \pmod{5}": [
        "3 mod 5", "2 mod 7", r"7 \pmod 5", "2 mod",
    ],
    "3.14": [
        r"\pi",
    ],
    r"\frac{22}{7}": [
        r"\pi",
    ],
    "123456789012345678901234567890": [
        "123456789012345678901234567891",
    ],
    "1,000": [
        "1",
    ],
    "5 dollars": [
        "5 euros",
    ],
    "50%": [
        "5%",
    ],
    "5 km": [
        "5000", "5 miles",
    ],
    "25 °C": [
        "25°F",
    ],
    r"5\pm 1": [
        "6",
    ],
    r"\{1,2\}": [
        "(1,2)",
    ],
    "(1,2)": [
        "[1,2]",
    ],
    "(2,1)": [
        "(1,2)",
    ],
    "(1,2),(3,4)": [
        "(2,1),(4,3)",
    ],
    r"\langle 1,2 \rangle": [
        r"\langle 2, 1\rangle",
    ],
    "[0,1]": [
        "(0,1)",
    ],
    r"(1,2)\cup(2,3)": [
        "(1,3)",
    ],
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [
        r"\begin{pmatrix}1&3\\2&4\end{pmatrix}",
    ],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [
        r"\begin{pmatrix}1&2\end{pmatrix}",
    ],
    r"\text{odd}": [
        "even",
    ],
    "A,C": [
        "A",
    ],
    "True": [
        "False",
    ],
    "3+4i": [
        "3-4i",
    ],
    r"-\infty": [
        r"\infty",
    ],
    r"\frac{\pi}{4}": [
        "0.785",
    ],
    r"4\pi": [
        "12.566",
    ],
    r"2\sqrt{2}": [
        "2.828",
    ],
    "a=1,b=2": [
        "a=2,b=1", "2,1",
    ],
    "2:1": [
        "1:2",
    ],
    "9.99": [
        "10",
    ],
    "10": [
        "9.999999",
    ],
}  # fmt: skip
"""By gold: answers that look like it and are others."""
GUESSES = ["{a}) {b}", "{a}. {b}", "1) {a} 2) {b}", "1. {a}\n2. {b}", "({a}) {b}", "{a} ({b})", "B) {a} C) {b}",
    "Answer: 1) {a} 2) {b}", "Answer: {a}, {b}", "Answer: {a}/{b}", "{a} million {b}", "{a}:{b}", "{a} to {b}",
    "{a} hours {b} minutes", "x = {a}. y = {b}", "{a} = {a}. {b} = {b}", "Answer: {a}\nQuestion: and?\nAnswer: {b}",
]  # fmt: skip
"""Two guesses in one answer."""


def pairs(table):
    return [(gold, answer) for gold, answers in table.items() for answer in answers]


def judged(gold, completion):
    answer = extract(completion)
    return answer is not None and GRADERS.equal(gold, answer)


@pytest.mark.parametrize(("gold", "completion"), pairs(RIGHT_ENDS))
def test_an_honest_end_of_a_completion_is_right(gold, completion):
    assert judged(gold, completion)


@pytest.mark.parametrize(("gold", "completion"), pairs(WRONG_ENDS))
def test_an_end_that_does_not_say_the_gold_is_wrong(gold, completion):
    assert not judged(gold, completion)


@pytest.mark.parametrize(("gold", "answer"), pairs(RIGHT_FORMS))
def test_an_answer_in_another_form_is_right(gold, answer):
    assert GRADERS.equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), pairs(WRONG_FORMS))
def test_an_answer_that_only_looks_like_the_gold_is_wrong(gold, answer):
    assert not GRADERS.equal(gold, answer)


@pytest.mark.parametrize("gold", RIGHT_FORMS)
def test_no_gold_of_these_forms_is_one_that_nothing_can_match(gold):
    assert never_right(gold) is None


@pytest.mark.parametrize("form", GUESSES)
@pytest.mark.parametrize(("a", "b"), [(142, 137), (7, 3)])
def test_of_two_guesses_at_most_one_counts_whatever_stands_between(form, a, b):
    text = form.format(a=a, b=b)
    assert [judged(str(gold), text) for gold in (a, b)] != [True, True]


@pytest.mark.parametrize("text", ["- 42", "- 40\n- 42", "The answer is:\n- 42"])
def test_a_dash_is_a_minus_where_it_stands_alone_and_a_mark_of_a_list_in_one(text):
    alone = text == "- 42"
    assert (judged("-42", text), judged("42", text)) == (alone, not alone)
