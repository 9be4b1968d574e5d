"""The names of vLLM's formats are known without vLLM; `tests/chat/test_families.py` reads turns in them."""

import subprocess
import sys

import pytest

from asyncrl.chat.tool_formats import libraries, needs_library
from asyncrl.extensions.vllm_formats.vllm_parsers import MARKS, known_names


def test_names_are_those_of_the_installed_vllm_but_for_formats_of_token_ids():
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    stubs = {"openai", "openai_gptoss", "hf"}
    tools, reasoning = known_names("tool_format"), known_names("reasoning_format")
    assert set(tools) == {*ToolParserManager.list_registered()} - stubs
    assert set(reasoning) == {*ReasoningParserManager.list_registered()} - stubs
    assert set(MARKS) <= {*tools}


def test_a_format_is_looked_for_and_refused_without_importing_vllm():
    code = """
import sys
from asyncrl.chat.tool_formats import check_formats
check_formats("glm45", "glm45")
try:
    check_formats("glm4711", "")
except Exception as error:
    sys.exit(2 if "glm45" not in str(error) else "vllm" in sys.modules or "torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_one_library_is_vllm():
    assert [library.owner for library in libraries()] == ["vLLM"]


@pytest.mark.parametrize(
    ("tools", "reasoning", "needs"),
    [
        ("hermes", "", False),
        ("harmony", "think", False),
        ("glm45", "", True),
        ("hermes", "deepseek_r1", True),
    ],
)
def test_only_a_format_of_vllm_needs_it(tools, reasoning, needs):
    assert needs_library(tools, reasoning) is needs
