"""No code comes in as data: neither pickles, nor archives with paths of their own, nor commands for a shell.

Reports of other projects: vllm#12366 and lmdeploy#4804 (pickles from files and sockets), inspect_ai#4340 (an archive of
the sandbox unpacked on the host), OpenEnv#695 (`shell=True`).
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "joblib", "jsonpickle"}
ALLOWED = {
    "asyncrl/extensions/program_rewards/candidate_main.py": "runs a candidate's program, in the sandbox",
    "asyncrl/extensions/program_rewards/tests_main.py": "runs a benchmark's tests, in the sandbox",
    "asyncrl/sandbox/jail/zygote_main.py": "runs a policy's program, in the sandbox",
    "envs/code/programs.py": "runs the reference programs of the package",
    "envs/repair/problem.py": "runs the reference libraries of the package",
}
"""Files that run text as code, with the reason."""


def unsafe_calls(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"line {node.lineno}: {name}" for name in names if name.split(".")[0] in PICKLES]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {one.arg: ast.unparse(one.value) for one in node.keywords}
            last = name.rpartition(".")[2]
            if (
                name in ("exec", "eval", "os.system", "os.popen", "marshal.loads", "marshal.load")
                or options.get("shell") == "True"
                or options.get("allow_pickle") == "True"
                or (name == "torch.load" and options.get("weights_only") != "True")
                or (last in ("extractall", "extract") and "tar" in name and options.get("filter") != "'data'")
                or (name in ("yaml.load", "yaml.unsafe_load"))
                or last in ("recv_pyobj", "send_pyobj")
            ):
                found.append(f"line {node.lineno}: {name}")
    return found


def test_nothing_that_comes_in_is_run_but_where_a_reason_is_given():
    files = [path for folder in ("asyncrl", "services", "envs") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): unsafe_calls(path.read_text()) for path in files}
    assert len(files) > 300
    assert {path: calls for path, calls in found.items() if calls and path not in ALLOWED} == {}
    assert [path for path in ALLOWED if not found[path]] == [], "a reason that is no longer needed"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "numpy.load(path, allow_pickle=True)",
        "subprocess.run(command, shell=True)",
        "tar.extractall(folder)",
        "yaml.load(text)",
        "socket.recv_pyobj()",
        "eval(text)",
    ],
)
def test_a_call_of_each_kind_is_found(source):
    assert unsafe_calls(source) != []


@pytest.mark.parametrize("source", ["torch.load(path, weights_only=True)", "model.eval()", "box.exec(code)"])
def test_what_is_safe_is_not(source):
    assert unsafe_calls(source) == []
