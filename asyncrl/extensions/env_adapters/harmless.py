"""Texts that a library may pass to Python's `eval` without harm.

Scorers of reasoning-gym evaluate answers, `sympy.parse_expr` included, which a model could use to run code in this
process. What passes here is a literal, or arithmetic over a few known names with small powers.
"""

from __future__ import annotations

import ast
import math
import re

MAX_CHARACTERS = 2000
MAX_ARITHMETIC = 500
MAX_DEGREE = 64
"""The highest degree of nested powers: `(x**4)**2` is of degree 8."""
FUNCTIONS = (
    "sin cos tan sec csc cot asin acos atan sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs erf "
    "pi E I oo Rational"
)
NAMES = frozenset(FUNCTIONS.split())
ARITHMETIC = re.compile(r"[A-Za-z0-9+\-*/^() .,\n]*")
WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*")
ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")


def is_harmless(text: str) -> bool:
    """Return whether evaluating a text can do nothing but compute, and not for long."""
    if len(text) > MAX_CHARACTERS:
        return False
    return _is_literal(text) or _is_arithmetic(text)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_arithmetic(text: str) -> bool:
    if len(text) > MAX_ARITHMETIC or not ARITHMETIC.fullmatch(text) or ATTRIBUTE.search(text):
        return False
    if any(len(word) > 1 and word not in NAMES for word in WORD.findall(text)):
        return False
    powers = text.replace("^", "**")
    if "**" not in powers:
        return True
    try:
        return _degree(ast.parse(powers.strip(), mode="eval")) <= MAX_DEGREE
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _degree(node: ast.AST) -> float:
    """The highest degree that nested powers reach."""
    below = max((_degree(child) for child in ast.iter_child_nodes(node)), default=1.0)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return below * max(_bound(node.right), 1.0)
    return below


def _bound(exponent: ast.expr) -> float:
    """A bound on an exponent's size, taking every variable as one."""
    match exponent:
        case ast.Constant(value=int() | float() as value):
            return abs(value)
        case ast.Name():
            return 1.0
        case ast.UnaryOp(operand=operand):
            return _bound(operand)
        case ast.Call(args=args):
            return max(map(_bound, args), default=math.inf)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _bound(left) + _bound(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _bound(left) * _bound(right)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int() as divisor)) if divisor:
            return _bound(left)
        case _:
            return math.inf
