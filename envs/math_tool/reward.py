"""Grades a final answer with math-verify, in a separate process: a hostile answer may kill that, never the
service."""

from __future__ import annotations

import json
import re
import resource
import sys
from fractions import Fraction

from asyncrl.env.helper_process import HelperProcess

DEADLINE_S = 4.0
MEMORY_BYTES = 2 * 1024**3
MAX_CHARACTERS = 500
"""Characters of an answer that are read, from its end."""
NUMBER = re.compile(r"-?\d{1,50}(?:/\d{1,50}|\.\d{1,20})?")


def extract(content: str) -> str:
    r"""Return the final answer of a turn: the last \boxed{...}, else the last <answer> tag, else the last line."""
    content = content.strip()[-MAX_CHARACTERS:]
    if r"\boxed{" in content:
        return content[content.rindex(r"\boxed{") :]
    tagged = re.findall(r"<answer>(.*?)</answer>", content, re.DOTALL)
    lines = (tagged[-1] if tagged else content).strip().splitlines()
    return lines[-1].strip() if lines else ""


def as_number(text: str) -> Fraction | None:
    """Return a plain whole number, fraction or decimal exactly; None for anything else."""
    if not NUMBER.fullmatch(text.strip()):
        return None
    try:
        return Fraction(text.strip())
    except ZeroDivisionError:
        return None


class Grader(HelperProcess):
    """A child process that holds math-verify."""

    def __init__(self) -> None:
        missing = "the math grader did not start; is math-verify installed (pip install math-verify)?"
        super().__init__([sys.executable, "-m", __name__], missing)

    def equal(self, gold: str, answer: str) -> bool:
        r"""Return True if `answer` is equivalent to `gold` (LaTeX without dollar signs).

        An answer that cannot be judged within the deadline is wrong. Raises `InfrastructureError` if the grader does
        not start.
        """
        exact, given = as_number(gold), as_number(answer)
        if exact is not None and given is not None:
            return exact == given
        return bool(answer) and self.ask([gold, answer], DEADLINE_S) == "true"


def main() -> None:
    """Serve requests on stdin until it closes: `[gold, answer]` in, `true` or `false` out."""
    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    parse("$1$")
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        # math-verify reads LaTeX only inside an environment; a bare expression may be meant as LaTeX, too.
        golds = parse(f"${gold}$")
        same = any(verify(golds, parse(text)) for text in (answer, f"${answer}$"))
        print(json.dumps(bool(same)), flush=True)


GRADER = Grader()

if __name__ == "__main__":
    main()
