"""Grade a countdown answer: a small arithmetic grammar, exact fractions, nothing is evaluated as Python."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 200
OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value_of(expression: str) -> tuple[Fraction, list[int]]:
    """Return the value of an expression of whole numbers, `+ - * /` and parentheses, and the numbers it uses.

    Raises `ValueError` with a reason that may be shown to the model.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"an expression has at most {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("that is not an expression") from None
    numbers: list[int] = []
    return _value(tree.body, numbers), numbers


def judge(expression: str, numbers: list[int], target: int, use_all: bool) -> str:
    """Return an empty text if the expression has the target's value, else what is wrong with it."""
    try:
        value, used = value_of(expression)
    except ValueError as error:
        return str(error)
    if extra := Counter(used) - Counter(numbers):
        return f"{min(extra)} is not among the numbers left"
    if use_all and (unused := Counter(numbers) - Counter(used)):
        return f"{min(unused)} is not used"
    return "" if value == target else f"that makes {value}"


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ValueError("that divides by zero")
        return OPERATIONS[type(node.op)](left, right)
    raise ValueError("only whole numbers, + - * / and parentheses are allowed")
