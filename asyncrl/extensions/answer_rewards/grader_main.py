"""Compares expressions with SymPy, each in a process of its own, which ends with its verdict or its limits.

    PYTHON -P asyncrl/extensions/answer_rewards/grader_main.py SLOTS

Reads JSON lines `{"id", "op", "gold", "answer", "patient"}` and writes `{"id", "verdict"}`: "true", "false", "own" (all
the CPU time or memory that one comparison has went into the answer alone), "cut" (into the gold, or into comparing the
two), "late" (it had no CPU time for long), "killed" (by somebody else, as where the machine has no memory left),
"unread" (the gold could not be parsed). `op` is "equal" or "close". Each request gets a fork that has
everything imported. One that needs longer than `QUICK_S` of CPU time is begun again behind those that do not, if it is
worth that (`patient`), so that hanging ones cost the others little.
This file imports nothing of asyncrl.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import resource
import selectors
import signal
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

QUICK_S, WHOLE_S = 0.5, 3.0
"""CPU seconds of the first and of the second try."""
WALL_S = 20.0
"""From the start of the first try: less than a step of an environment has."""
MEMORY_BYTES = 1024**3
"""Beyond what the server itself has."""
TOLERANCE = 1e-6
"""Relative, between a decimal and what no decimal can be."""
WARM = (
    ("x^2+1", "1+x^2"),
    (r"\frac{1}{2}", "0.5"),
    (r"\sqrt{2}", "1.41421356"),
    ("(1,2]", r"\{1,2\}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "y=2x+3"),
)
DIGITS = 60
STAGES = {b"G": "cut", b"A": "own", b"C": "cut"}
"""What a comparison is at, and so what it is where it ends there: the gold, the answer, both."""


def compared(op: str, gold: str, answer: str, enter: Callable[[bytes], Any] = lambda stage: None) -> str:
    """Return the verdict on two expressions in LaTeX. `enter` is told each stage of the work."""
    left = _parsed(gold)
    if left is None:
        return "unread"
    _alone(left)
    enter(b"A")
    right = _parsed(answer)
    if right is None:
        return "false"
    _alone(right)
    enter(b"C")
    if op == "close":
        return "true" if _close(left, right, 1e-2) else "false"
    return "true" if _equal(left, right) else "false"


def _parsed(text: str) -> Any:
    from math_verify import parse

    try:
        found = parse(f"${text}$", _targets(), parsing_timeout=None)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return None
    # The second item is the text itself, where it could not be read otherwise.
    return None if not found or isinstance(found[0], str) else found[0]


@functools.cache
def _targets() -> list[Any]:
    """Return what math-verify looks for, which is its default but for units.

    It would leave out whatever may be one at the end: the t of "x + 3t", the c of "ab + c". Units are read before.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    latex = LatexExtractionConfig()
    return [
        dataclasses.replace(
            latex, normalization_config=dataclasses.replace(latex.normalization_config, units=False)
        ),
        ExprExtractionConfig(),
    ]


def _alone(value: Any) -> None:
    """Do with one expression what comparing it takes, so that one that takes too long is found out by itself."""
    import sympy

    if isinstance(value, sympy.Expr):
        value = _exact(value).doit()
        if value.free_symbols:
            _values(value)
        else:
            sympy.N(value, DIGITS)
    elif isinstance(value, sympy.Eq):
        _alone(value.lhs - value.rhs)
    elif (members := _members(value)) is not None:
        for member in members:
            _alone(member)


def _equal(gold: Any, answer: Any) -> bool:
    import sympy
    from math_verify import verify
    from sympy.core.relational import Relational

    gold, answer = _complex(_exact(gold), _exact(answer))
    if isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval):
        open_ends = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
        return open_ends and _equal(gold.start, answer.start) and _equal(gold.end, answer.end)
    members, others = _members(gold), _members(answer)
    if members is not None or others is not None:
        if members is None or others is None or len(members) != len(others):
            return False
        if isinstance(gold, sympy.FiniteSet):
            return all(any(_equal(one, other) for other in others) for one in members)
        return all(_equal(one, other) for one, other in zip(members, others, strict=True))
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        same_shape = gold.shape == answer.shape
        return same_shape and all(
            _equal(one, other) for one, other in zip(gold.flat(), answer.flat(), strict=True)
        )
    if isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq):
        return _same_equation(gold, answer)
    special = (Relational, sympy.Set, sympy.MatrixBase, sympy.Tuple, sympy.logic.boolalg.Boolean)
    if isinstance(gold, special) or isinstance(answer, special):
        if _hold_elsewhere(gold, answer):
            return False
        return bool(verify([gold], [answer], float_rounding=12, numeric_precision=30, timeout_seconds=None))
    return _same_value(gold, answer)


def _members(value: Any) -> list[Any] | None:
    import sympy

    return list(value.args) if isinstance(value, sympy.FiniteSet | sympy.Tuple) else None


def _exact(value: Any) -> Any:
    """Return an expression whose decimals are fractions, so that nothing is rounded before it is compared."""
    import sympy

    if not isinstance(value, sympy.Basic) or not value.has(sympy.Float):
        return value
    return value.xreplace({number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)})


def _complex(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Return both with i as the imaginary unit where they have no other variable, as in "3 + 4i"."""
    import sympy

    both = [one for one in (gold, answer) if isinstance(one, sympy.Expr)]
    symbols = {symbol for one in both for symbol in one.free_symbols}
    if len(both) == 2 and {str(symbol) for symbol in symbols} == {"i"}:
        unit = dict.fromkeys(symbols, sympy.I)
        return gold.xreplace(unit), answer.xreplace(unit)
    return gold, answer


def _is_decimal(denominator: int) -> bool:
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _same_value(gold: Any, answer: Any) -> bool:
    import sympy

    if gold == answer:
        return True
    gold, answer = gold.doit(), answer.doit()
    if gold == answer:
        return True
    if not gold.free_symbols and not answer.free_symbols:
        return _same_number(gold, answer)
    if bool(gold.free_symbols) != bool(answer.free_symbols):
        return False
    if _differ(_values(gold), _values(answer)):
        return False
    difference = gold - answer
    if sympy.simplify(difference) == 0 or sympy.expand(difference) == 0:
        return True
    return _same_where_real(gold, answer)


POINTS = 2


def _values(value: Any) -> list[Any]:
    """Return the values of an expression at some positive points, which are the same for every expression; None for
    one that is no number."""
    import sympy

    found: list[Any] = []
    for point in range(POINTS):
        known = {
            symbol: sympy.Rational(7 + zlib.crc32(f"{symbol}{point}".encode()) % 997, 503)
            for symbol in value.free_symbols
        }
        try:
            number = sympy.N(value.xreplace(known), 20)
            found.append(number if number.is_number and number.is_finite else None)
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            found.append(None)
    return found


def _differ(left: list[Any], right: list[Any]) -> bool:
    """Return True if two expressions have clearly different values somewhere. They are told apart so without
    simplifying them, which may take for ever."""
    return any(
        one is not None and other is not None and _apart(one, other)
        for one, other in zip(left, right, strict=True)
    )


def _apart(one: Any, other: Any) -> bool:
    return bool(abs(one - other) > TOLERANCE * max(abs(one), abs(other), 1e-9))


def _hold_elsewhere(gold: Any, answer: Any) -> bool:
    """Return True for two conditions on one variable of which only one holds somewhere."""
    import sympy
    from sympy.core.relational import Relational

    conditions = (Relational, sympy.logic.boolalg.Boolean)
    if not (isinstance(gold, conditions) and isinstance(answer, conditions)):
        return False
    symbols = gold.free_symbols | answer.free_symbols
    if len(symbols) != 1 or any(isinstance(one, sympy.Eq | sympy.Ne) for one in (gold, answer)):
        return False
    (symbol,) = symbols
    for number in (-97, -13, -5, -2, -1, -0.4, 0.3, 1.1, 2.2, 3.3, 5.7, 11, 103):
        try:
            left, right = (one.subs(symbol, sympy.Float(number)) for one in (gold, answer))
        except (ArithmeticError, TypeError, ValueError):
            continue
        if {left, right} == {sympy.true, sympy.false}:
            return True
    return False


def _same_where_real(gold: Any, answer: Any) -> bool:
    r"""Return True for formulas of one variable that are equal wherever either is real: \sqrt{1/n} and 1/\sqrt{n}.

    They are equal for positive values, and at negative ones both have no real value, or the same.
    """
    import sympy

    if gold.free_symbols != answer.free_symbols or len(gold.free_symbols) != 1:
        return False
    (symbol,) = gold.free_symbols
    positive = {symbol: sympy.Dummy(positive=True)}
    if sympy.simplify((gold - answer).xreplace(positive)) != 0:
        return False
    for point in (sympy.Rational(-1, 3), sympy.Integer(-2), sympy.Rational(-31, 7)):
        left, right = (sympy.N(one.subs(symbol, point), 20) for one in (gold, answer))
        if left.is_real or right.is_real:
            return (
                False
                if not (left.is_real and right.is_real)
                else bool(abs(left - right) < 1e-15 * (1 + abs(left)))
            )
    return True


def _same_number(gold: Any, answer: Any) -> bool:
    import sympy

    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    if (
        gold.is_infinite
        or answer.is_infinite
        or gold.has(sympy.nan, sympy.zoo)
        or answer.has(sympy.nan, sympy.zoo)
    ):
        return bool(gold == answer)
    left, right = sympy.N(gold, DIGITS), sympy.N(answer, DIGITS)
    largest = max(abs(left), abs(right))
    distance = abs(left - right)
    if distance <= largest * sympy.Float(10) ** (5 - DIGITS):
        return True
    # A decimal stands for the number it was rounded from, if that is no decimal itself.
    rounded = [
        one
        for one in (gold, answer)
        if one.is_Rational and one.q != 1 and _is_decimal(one.q) and len(str(one.p)) >= 6
    ]
    others = [one for one in (gold, answer) if not one.is_Rational]
    return bool(rounded and others and distance <= largest * TOLERANCE)


def _close(left: Any, right: Any, tolerance: float) -> bool:
    import sympy

    try:
        one, other = sympy.N(left, 20), sympy.N(right, 20)
        return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))
    except (TypeError, ValueError, AttributeError):
        return False


def _same_equation(gold: Any, answer: Any) -> bool:
    """Return True if two equations have the same solutions: one is a multiple of the other."""
    import sympy

    left, right = _exact(gold.lhs - gold.rhs), _exact(answer.lhs - answer.rhs)
    if left.free_symbols == right.free_symbols and left.free_symbols:
        # The multiple is the same everywhere, whatever takes long to expand.
        (one, more), (other, others) = _values(left), _values(right)
        if None not in (one, more, other, others) and _apart(one * others, more * other):
            return False
    left, right = sympy.expand(left), sympy.expand(right)
    if left == 0 or right == 0:
        return bool(left == right)
    if left.free_symbols != right.free_symbols:
        return False
    symbols = sorted(left.free_symbols, key=str)
    if left.is_polynomial(*symbols) and right.is_polynomial(*symbols):
        return bool(sympy.Poly(left, *symbols).monic() == sympy.Poly(right, *symbols).monic())
    ratio = sympy.simplify(left / right)
    return bool(not ratio.free_symbols and ratio != 0 and ratio.is_finite)


def _child(request: dict[str, Any], out: int, cpu_s: float) -> None:
    """Judge one request in a fork; write a byte at each stage, and the verdict's text."""
    with contextlib.suppress(BaseException):
        os.setpgid(0, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
        resource.setrlimit(resource.RLIMIT_CPU, (used + int(cpu_s) + 2,) * 2)
        with open("/proc/self/statm") as status:
            size = int(status.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
        sys.setrecursionlimit(3000)
        sys.set_int_max_str_digits(0)

        def enter(stage: bytes) -> None:
            os.write(out, stage)

        try:
            enter(b"G")
            verdict = compared(request["op"], request["gold"], request["answer"], enter)
        except (MemoryError, RecursionError):
            verdict = ""  # as where it is killed at its limit
        except Exception:
            # SymPy could not compare them; that is no sign of a limit.
            verdict = "false"
        os.write(out, verdict.encode())
    os._exit(0)


def _verdict(output: bytes, status: int, cpu_s: float, late: bool) -> str:
    """Return what became of a fork that wrote this, ended so and took so much CPU time."""
    if text := output.lstrip(b"".join(STAGES)):
        return text.decode()
    if cpu_s < QUICK_S and (late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)):
        return "late" if late else "killed"
    return STAGES.get(output[-1:], "cut")


@dataclasses.dataclass(slots=True)
class Job:
    """A fork at work."""

    child: int
    request: dict[str, Any]
    attempt: int
    output: bytes = b""


class Server:
    """Runs the forks."""

    def __init__(self, slots: int) -> None:
        # The long ones leave most of the processors to the others.
        self.slots = (slots, max(1, slots // 2))
        self.waiting: list[collections.deque[dict[str, Any]]] = [collections.deque(), collections.deque()]
        self.running: dict[int, Job] = {}
        """By read end."""
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ)
        buffer = b""
        while True:
            for key, _ in self.selector.select(1.0 if self.running else None):
                if key.fd != 0:
                    self._hear(key.fd)
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    return self.stop()
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                self.waiting[0].extend(json.loads(line) for line in lines)
            self._give_up()
            for attempt in (0, 1):
                busy = sum(job.attempt == attempt for job in self.running.values())
                while self.waiting[attempt] and busy < self.slots[attempt]:
                    self._start(self.waiting[attempt].popleft(), attempt)
                    busy += 1

    def stop(self) -> None:
        for job in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.child, signal.SIGKILL)

    def _start(self, request: dict[str, Any], attempt: int) -> None:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            _child(request, write_end, (QUICK_S, WHOLE_S)[attempt])
        os.close(write_end)
        request.setdefault("deadline", time.monotonic() + WALL_S)
        self.running[read_end] = Job(child, request, attempt)
        self.selector.register(read_end, selectors.EVENT_READ)

    def _hear(self, fd: int) -> None:
        data = os.read(fd, 64)
        self.running[fd].output += data
        if not data:
            self._ended(fd)

    def _give_up(self) -> None:
        """End what has had its time, and say of what waits for its second try what the first one found."""
        now = time.monotonic()
        for fd in [fd for fd, job in self.running.items() if job.request["deadline"] < now]:
            self._ended(fd, late=True)
        while self.waiting[1] and self.waiting[1][0]["deadline"] < now:
            request = self.waiting[1].popleft()
            self._answer(request, request["first"])

    def _ended(self, fd: int, late: bool = False) -> None:
        job = self.running.pop(fd)
        self.selector.unregister(fd)
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.child, signal.SIGKILL)
        _, status, usage = os.wait4(job.child, 0)
        os.close(fd)
        verdict = _verdict(job.output, status, usage.ru_utime + usage.ru_stime, late)
        if verdict in STAGES.values() and job.attempt == 0 and job.request["patient"] and not late:
            job.request["first"] = verdict
            self.waiting[1].append(job.request)
            return
        self._answer(job.request, verdict)

    def _answer(self, request: dict[str, Any], verdict: str) -> None:
        os.write(1, json.dumps({"id": request["id"], "verdict": verdict}).encode() + b"\n")


def main() -> None:
    """Serve until stdin closes."""
    import logging

    logging.disable(logging.CRITICAL)
    for gold, answer in WARM:
        # What is parsed once is parsed faster by every fork.
        compared("equal", gold, answer)
    os.write(1, b"ready\n")
    Server(int(sys.argv[1])).run()


if __name__ == "__main__":
    main()
