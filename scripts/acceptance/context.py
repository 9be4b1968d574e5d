"""What the parts of the acceptance run share: models, training runs, engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.config import parse_config
from asyncrl.gpus import found_gpus
from asyncrl.launch.processes.process_group import ProcessGroup

PART_S = 480.0
"""A part that has not ended then has failed."""
QWEN3_06B = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "vocab_size": 4096, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True,
}  # fmt: skip
SHARED_KV_BYTES = 4 * 2**30
"""The KV cache of an engine that starts beside others."""
WORDS = 512
"""Vocabulary of models that play episodes."""
START_S = 300.0
STOP_S = 10.0
"""Seconds in which a part that is told to end may end what it has started, before it is killed."""


class NotRun(Exception):
    """A part cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where and on what a part runs."""

    folder: Path
    data: Path | None = None
    """Rows that a model learns from."""
    start_model: str = ""
    """Its name or folder."""
    curve_s: float = 0.0
    """How long it learns each time; 0 for what suits the machine."""
    kept: Path | None = None
    """Where the metrics of its runs go."""
    share: float = 0.0
    """Of a GPU, what each engine takes beside others that start at the same time; 0 for what it takes by itself."""

    @property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return len(found_gpus())

    def need_gpus(self, count: int) -> None:
        """Raise `NotRun` where there are fewer."""
        if self.gpus < count:
            raise NotRun(f"needs {count} GPU(s), {self.gpus} found")

    @property
    def shape(self) -> dict[str, Any]:
        """The model that is measured: Qwen3-0.6B's shape on a GPU, a small one on a CPU."""
        return QWEN3_06B if self.gpus else SMALL

    def model(self, **changes: Any) -> Path:
        """Return a folder with a randomly initialised model of that shape and a tokenizer; made once."""
        shape = self.shape | changes
        folder = self.folder / f"model-{shape['hidden_size']}-{shape['vocab_size']}"
        if not (folder / "done").exists():
            _make_model(folder, shape)
            (folder / "done").touch()
        return folder

    def train(self, name: str, *words: str, recipe: str = "gridworld_grpo") -> Path:
        """Run a whole training run to its end; return its folder. Raises `RuntimeError` with the end of its output."""
        share = [f"engine.{key}={json.dumps(value)}" for key, value in self._shared().items()]
        self._asyncrl("train", recipe, f"run.name={name}", "run.folder=runs", *share, *words)
        return self.folder / "runs" / name

    def _shared(self) -> dict[str, Any]:
        """Return the settings of an engine that starts beside others: it must not derive its cache from what is free
        meanwhile."""
        if not (self.gpus and self.share):
            return {}
        cache = ["--kv-cache-memory-bytes", str(SHARED_KV_BYTES)]
        return {"gpu_memory_utilization": self.share, "extra_args": cache}

    def resume(self, run: Path, *words: str) -> None:
        """Continue a run."""
        self._asyncrl("train", "--resume", str(run), *words)

    def _asyncrl(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "asyncrl", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise RuntimeError(
                f"asyncrl {' '.join(words)}: exit code {done.returncode}: {' / '.join(lines[-4:])}"
            )

    @contextmanager
    def engine(
        self, model: Path, dtype: str, weights: Path | None = None, **engine: Any
    ) -> Iterator[tuple[str, str]]:
        """Serve a model; give the engine's address and token. It takes 0.4 of a GPU.

        weights: the folder that it takes versions from.
        """
        with self.engines(model, dtype, {"engine": engine}, weights=weights) as (served,):
            yield served

    @contextmanager
    def engines(
        self,
        model: Path,
        dtype: str,
        settings: Mapping[str, dict[str, Any]],
        weights: Path | None = None,
        **sections: Any,
    ) -> Iterator[list[tuple[str, str]]]:
        """Serve a model by several engines, which start at once and take 0.4 of a GPU together; give their addresses
        and tokens. settings: of each, by its name; sections: further ones of their recipe."""
        share: dict[str, Any] = {"gpu_memory_utilization": 0.4 / len(settings)} if self.gpus else {}
        share |= self._shared()
        with ExitStack() as stack:
            started = []
            for name, engine in settings.items():
                recipe = {
                    "model": {"path": str(model), "dtype": dtype}, "env": {"name": "gridworld"},
                    "engine": {"max_model_len": 512, "max_num_seqs": 64} | share | engine,
                    "run": {} if self.gpus else {"threads": 1}, **sections,
                }  # fmt: skip
                folder = self.folder / f"{name}-{dtype}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "config.json").write_text(parse_config(recipe).model_dump_json())
                process_group = ProcessGroup(folder)
                stack.callback(process_group.stop)
                words = ["serve", "engine", "--folder", str(folder), "--model", str(model)]
                words += ["--weights-dir", str(weights)] if weights else []
                started.append((process_group, process_group.start("engine", words)))
            for process_group, child in started:
                process_group.wait_ready(child, START_S)
            yield [(child.url, group.credentials.bearer("engine")) for group, child in started]


def summary(run: Path) -> dict[str, Any]:
    """Return a run's summary.json."""
    return json.loads((run / "summary.json").read_text())


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def run_part(command: list[str], timeout_s: float = PART_S) -> tuple[int | None, str]:
    """Run a command in a session of its own; return its exit code, None when its time was up, and what it said last."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=timeout_s)
            return child.returncode, _end(output)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGINT)
            try:
                output, _ = child.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                output, _ = child.communicate()
            return None, _end(output)


def _end(output: str) -> str:
    return " / ".join(output.strip().splitlines()[-3:])


def _make_model(folder: Path, shape: dict[str, Any]) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from asyncrl.train.models.tiny_model import build_tokenizer, save

    torch.manual_seed(0)
    corpus = [f"Move {direction} {number}" for direction in ("left", "right") for number in range(300)]
    tokenizer = build_tokenizer(corpus, min(WORDS, shape["vocab_size"]), 2048)
    config = Qwen3Config(**shape, max_position_embeddings=65536, eos_token_id=tokenizer.eos_token_id)
    # A CPU takes most of a minute for the random numbers of 4B.
    on_gpu = torch.cuda.is_available()
    with torch.device("cuda" if on_gpu else "cpu"):
        model: Any = Qwen3ForCausalLM(config)
    save(folder, model.to(torch.bfloat16) if on_gpu else model, tokenizer)
