"""Every message that the troubleshooting page explains is one that the code prints."""

import ast
import re

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)
VALUE = "\0"
"""Stands for what the code fills in."""


@pytest.fixture(scope="module")
def texts():
    """All string literals of the code, and the text of the installer."""
    found = [(ROOT / "scripts" / "install.sh").read_text()]
    for folder in ("asyncrl", "services", "envs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append(
                        "".join(
                            str(part.value) if isinstance(part, ast.Constant) else VALUE
                            for part in node.values
                        )
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def test_every_section_explains_a_message_once():
    assert len(MESSAGES) == len(re.findall(r"^### ", PAGE, re.MULTILINE)) > 40
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_in_the_code(message, texts):
    said = [part for part in message.split("…") if part]
    assert max(map(len, said)) > 12, "quote enough of it to be found"
    pattern = re.compile(".*?".join(map(re.escape, said)), re.DOTALL)
    assert any(pattern.search(text) for text in texts)
