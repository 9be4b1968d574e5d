"""Only literals and small arithmetic reach an `eval`."""

import pytest

from asyncrl.extensions.env_adapters.harmless import is_harmless


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3",
        "[[1, 0], [0, 1]]",
        "['a', 'b']",
        "{'a': (1, 2)}",
        "3*(4 + 5) - 1",
        "x**4/4 + C",
        "-cos(2*x)/2 + 1.5*x^2",
        "exp(x**2)*E**(-2*x/3)",
        "(x + 1)**2",
    ],
)
def test_literals_and_arithmetic_pass(text):
    assert is_harmless(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__",
        "x.real",
        "x . real",
        "open(x)",
        "exit()",
        "[c for c in x]",
        "lambda: 0",
        "5!",
        "9**9**9",
        "9**(9*9999)",
        "((9**8)**8)**8",
        "9**(1/0.0001)",
        "9**factorial(9)",
        "(" * 3000,
        "1" * 3000,
        "x + " * 200 + "x",
        "x\x00",
    ],
)
def test_code_attributes_and_towers_of_powers_do_not(text):
    assert not is_harmless(text)
