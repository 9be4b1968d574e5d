"""Other programs that evaluate: each has an environment of its own, and plays and judges against a checkpoint that
asyncrl serves."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import InfrastructureError
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.process_hooks import die_with_parent
from asyncrl.textfile import parse_lines

HIDDEN = ("PYTHONPATH", "ASYNCRL_TOKEN", "PYTHONHOME")
"""Variables that such a program does not get."""


def play_by(
    name: str,
    main: Path,
    python: Path,
    checkpoint: str,
    config: Config,
    folder: Path,
    request: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Serve a checkpoint, have another program evaluate it, and return the lines that it writes.

    main: its script, called with a file of the request and the file to be written; the request has the server's `url`,
    the `tokenizer`, how many are answered `at_once` and the context's length (`max_length`), too. The server's token is
    in `OPENAI_API_KEY`. folder: of processes, logs and both files. The program shows its progress on the standard error
    stream. Raises `InfrastructureError`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json())
    group = ProcessGroup(folder)
    try:
        token, token_file = secrets.token_hex(32), folder / "token"
        token_file.touch(0o600)
        token_file.write_text(token)
        argv = ["serve", "policy", checkpoint, "--recipe", str(folder / "config.json"), "--port", "0"]
        server = group.start("policy", [*argv, "--token-file", str(token_file)])
        url = group.wait_ready(server, config.run.start_timeout_s)
        asked, samples = folder / "request.json", folder / "samples.jsonl"
        served = {
            "url": url,
            "tokenizer": str(Path(checkpoint).absolute()) if Path(checkpoint).exists() else checkpoint,
            "at_once": config.engine.max_num_seqs,
            "max_length": config.engine.max_model_len,
        }
        asked.write_text(json.dumps({**served, **request}))
        env = {key: value for key, value in os.environ.items() if key not in HIDDEN}
        env["OPENAI_API_KEY"] = token
        with open(folder / "logs" / f"{name.replace('-', '_')}.log", "w") as log:
            done = subprocess.run(
                [str(python), "-P", str(main), str(asked), str(samples)],
                env=env,
                stdout=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
        if done.returncode:
            group.check()
            raise InfrastructureError(
                f"{name} ended with exit code {done.returncode}; see what it said above"
            )
        return parse_lines(samples.read_bytes())
    finally:
        group.stop()
