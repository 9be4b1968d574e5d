"""`python -m asyncrl.chat.check_parsers JSON`: do chat template and parsers suit the model and the run's tasks?

JSON: `{"model", "tool_format", "reasoning_format", "template_args", "template_file", "needs_tools"}`. Prints a line for
everything worth knowing. Exits with 1 and one line on standard error where they do not suit. A process of its own,
because it loads a tokenizer and may import a large library.
"""

from __future__ import annotations

import json
import sys

from asyncrl.chat.renderer import import_tokenizers_only, load_renderer
from asyncrl.chat.template_check import (
    check_reasoning,
    notes_on_arguments,
    notes_on_template,
    refuse_template,
)
from asyncrl.chat.tool_formats import load_format, needs_library
from asyncrl.errors import ConfigError


def main(text: str) -> int:
    """Load template and parsers as a rollout worker does."""
    asked = json.loads(text)
    tool_format, reasoning_format = asked["tool_format"], asked["reasoning_format"]
    if not needs_library(tool_format, reasoning_format):
        import_tokenizers_only()
    try:
        renderer = load_renderer(asked["model"], asked["template_args"], asked["template_file"])
        load_format(tool_format, reasoning_format, renderer)
        refuse_template(renderer, asked["needs_tools"])
        notes = notes_on_template(renderer, asked["needs_tools"])
        notes += notes_on_arguments(renderer, asked["template_args"])
        notes += check_reasoning(renderer, tool_format, reasoning_format)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(notes))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
