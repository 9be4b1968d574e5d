from __future__ import annotations

import shutil

import pytest

from asyncrl.errors import ConfigError
from asyncrl.sandbox import languages
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import Limits, Mount, SandboxSpec
from tests.sandbox.conftest import run_async

# Each reads two numbers and prints their sum.
SUMS = {
    "python": "a, b = map(int, input().split())\nprint(a + b)",
    "c": '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); return 0; }',
    "cpp": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }",
    "javascript": (
        "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);\nconsole.log(a + b);"
    ),
    "java": (
        "import java.util.Scanner;\npublic class Main { public static void main(String[] x) {\n"
        "Scanner s = new Scanner(System.in); System.out.println(s.nextInt() + s.nextInt()); } }"
    ),
    "lua": 'local a, b = io.read("n", "n")\nprint(a + b)',
    "perl": 'my ($a, $b) = split " ", <STDIN>;\nprint $a + $b, "\\n";',
    "bash": "read a b\necho $((a + b))",
    "tcl": "gets stdin line\nputs [expr {[lindex $line 0] + [lindex $line 1]}]",
}


def test_there_is_a_program_for_every_built_in_language():
    assert set(SUMS) == set(languages.built_in())


@pytest.mark.parametrize("language", sorted(SUMS))
def test_every_language_runs_under_its_limits(language):
    profile = languages.get(language)
    for tool in {(profile.compile or profile.run)[0], profile.run[0]}:
        if not tool.startswith("./") and shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin") is None:
            pytest.skip(f"{tool} is not installed; packages: {' '.join(profile.packages)}")

    async def body():
        async with await open_sandbox("bubblewrap", SandboxSpec(language=language)) as box:
            built, argv = await box.build(SUMS[language])
            assert built.ok, built
            return [await box.exec(argv, stdin=text) for text in (b"2 40\n", b"-5 5\n")]

    results = run_async(body)
    assert [result.stdout for result in results] == [b"42\n", b"0\n"], results


@pytest.mark.parametrize("language", ["c", "cpp", "java"])
def test_a_compile_error_says_so(language):
    async def body():
        async with await open_sandbox("bubblewrap", SandboxSpec(language=language)) as box:
            return await box.exec(code="this is no program;")

    result = run_async(body)
    assert result.phase == "compile"
    assert not result.ok
    assert b"error" in result.stderr


def test_a_profile_file_adds_a_language(tmp_path, monkeypatch):
    monkeypatch.setattr(languages, "_added", {})
    path = tmp_path / "more.toml"
    path.write_text('[sed]\nfile = "main.sed"\nrun = ["sed", "-f", "main.sed"]\nlimits = { wall_s = 3 }\n')
    languages.add(path)
    assert languages.get("sed").limits == Limits(wall_s=3)

    async def body():
        async with await open_sandbox("bubblewrap", SandboxSpec(language="sed")) as box:
            return await box.exec(code="s/a/b/", stdin=b"aha\n")

    assert run_async(body).stdout == b"bha\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[x]\nrun = ['x']", "'file'"),
        ("[x]\nfile = 'a'", "'run'"),
        ("[x]\nfile = '../a'\nrun = ['x']", "plain file name"),
        ("[x]\nfile = 'a'\nrun = 'x'", "list of strings"),
        ("[x]\nfile = 'a'\nrun = ['x']\ncompiler = ['y']", "compiler"),
        ("[x]\nfile = 'a'\nrun = ['x']\nlimits = { memory = 1 }", "memory"),
        ("[x]\nfile = 'a'\nrun = ['x']\nlimits = { processes = 0 }", ">= 1"),
        ("not toml", "language profiles"),
    ],
)
def test_a_wrong_profile_is_named(tmp_path, text, complaint):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        languages.load(path)


@pytest.mark.parametrize("value", [0, -1, "many", None])
def test_limits_must_be_positive_numbers(value):
    with pytest.raises(ConfigError, match="processes"):
        Limits(processes=value)


@pytest.mark.parametrize("path", ["relative", "/a/../b", ""])
def test_mounts_must_be_plain_absolute_paths(path):
    with pytest.raises(ConfigError, match="mount"):
        Mount(path, "/x")
    with pytest.raises(ConfigError, match="mount"):
        Mount("/x", path)
