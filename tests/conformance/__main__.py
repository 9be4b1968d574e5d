"""`python -m tests.conformance --vectors FILE [--json OUT]`: exit code 0 only when every vector passes."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.conformance.runner import as_json, run_file


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--vectors", type=Path, required=True, help="vectors in JSON")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    results = run_file(options.vectors)
    for result in results:
        print(result.line())
    counts = Counter(result.status for result in results)
    print(
        f"total {len(results)}: {counts['pass']} pass, {counts['fail']} fail, "
        f"{counts['not implemented']} not implemented"
    )
    if options.json is not None:
        options.json.write_text(as_json(results), encoding="utf-8")
    return 0 if results and counts["pass"] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
