"""Run the tests that failed in the last run once more, one by one, and name those that then pass.

Among thousands of tests that start real processes, one may meet a machine that stood still. A test that passes
here depends on what ran beside it: it is named, to be mended, but does not hide what else the run has shown. More than
`MOST` failures are not chance, and stay failures.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 8
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def run_again(failed: list[str]) -> int:
    """The exit status: 0 where all of `failed` pass by themselves."""
    if not 0 < len(failed) <= MOST:
        print(f"{len(failed)} tests failed; up to {MOST} would be run once more by themselves")
        return 1
    # A process of its own for each: nothing of a fixture that was built beside the others is left.
    still = [
        test for test in failed if subprocess.run([sys.executable, "-m", "pytest", "-q", test]).returncode
    ]
    for test in failed:
        print(f"{'failed again' if test in still else 'PASSED ONLY BY ITSELF, mend it'}: {test}")
    return 1 if still else 0


if __name__ == "__main__":
    sys.exit(run_again(list(json.loads(FAILED.read_text())) if FAILED.exists() else []))
