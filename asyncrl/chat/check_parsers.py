"""`python -m asyncrl.chat.check_parsers MODEL TOOL_FORMAT REASONING_FORMAT`: do vLLM's parsers suit the tokenizer?

Exits with 1 and one line on standard error where they do not. A process of its own, because it imports vLLM.
"""

from __future__ import annotations

import sys

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.errors import ConfigError


def main(model: str, tool_format: str, reasoning_format: str) -> int:
    """Load both parsers as a rollout worker does."""
    try:
        load_format(tool_format, reasoning_format, load_renderer(model))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
