"""The engine process: starts a vLLM server with the asyncrl plugin, waits until it serves, watches it.

    asyncrl serve engine --model DIR [--port N]

The vLLM server is a child in the same process group and dies with this process. All its routes but `/health` ask for a
token, and its development routes (pause, weight updates) for the trainer's. It listens on loopback only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from asyncrl.credentials import VARIABLE, Credentials
from asyncrl.cuda_toolkit import engine_variables, torch_cuda
from asyncrl.endpoint import EVERY_INTERFACE, advertised_host, announce, in_url
from asyncrl.errors import ConfigError, DeadlineError, UnavailableError
from asyncrl.gpus import on_cpu
from asyncrl.http_clients import open_url
from asyncrl.kv_blocks import LONG_CONTEXT, long_blocks, short_blocks
from asyncrl.model_kinds import described, kind_of
from asyncrl.process_start import Process, start_child
from asyncrl.scratch import clear_shared_memory, scratch_folder
from asyncrl.services.engine.additions import Addition, added_arguments
from asyncrl.services.engine.machines import (
    MachineShare,
    machine_arguments,
    machine_variables,
    network_variables,
)
from asyncrl.startup import StartDeadline
from asyncrl.tls import own_files, scheme
from asyncrl.weights.folders import SCRATCH
from asyncrl.weights.vllm_plugin import ENGINE_URL, STAGES, WEIGHTS_DIR

LOOPBACK = "127.0.0.1"
WEIGHT_BACKEND = "shared_file"
"""What loads weights in vLLM's workers, from a file whatever brought it; see `asyncrl.weights.vllm_backend`."""
MIN_BATCHED_TOKENS = 8192
KV_CACHE_GIB = "1"
"""Memory for the KV cache on a CPU, unless VLLM_CPU_KVCACHE_SPACE says otherwise."""
KEEP_ALIVE_S = "30"
"""For which vLLM keeps an idle connection open, unless VLLM_HTTP_TIMEOUT_KEEP_ALIVE says otherwise."""
PORT_WAIT_S = 5.0
MAX_PARENT_CHARS = 47
"""A socket's path has at most 107 characters, of which vLLM and the folder's name take 58."""
STOP_GRACE_S = 2.0
"""For a killed server to be gone."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What one engine needs to start. Sizes in tokens, memory in GiB, times in seconds."""

    model: str
    dtype: str = "float32"
    max_model_len: int = 2048
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.9
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    machine: MachineShare = field(default_factory=MachineShare)
    """What of it is on this machine, where its ranks are on several."""
    threads: int = 0
    """CPU threads of the model; 0 lets vLLM choose."""
    base_version: int = 0
    """Policy version of the weights in `model`."""
    seed: int = 0
    start_timeout_s: float = 300.0
    extra_args: Sequence[str] = field(default_factory=tuple)
    weights_dir: str = ""
    """Folder of the run's published weights; the engine loads the newest before it serves."""
    additions: Sequence[Addition] = ()
    """What extensions add."""
    host: str = LOOPBACK
    """Where it listens."""
    advertise: str = ""
    """The host that others are told, "" for the one it listens on."""

    @property
    def ranks(self) -> int:
        """Its processes with parts of the model."""
        return self.tensor_parallel * self.pipeline_parallel


def build_command(options: EngineOptions, port: int) -> list[str]:
    """Return the vLLM server's command line.

    `--logprobs-mode` reports the log-probabilities of the distribution that was sampled from, which is the behavior
    policy.
    """
    module = "asyncrl.weights.vllm_follower" if options.machine.follows else "asyncrl.weights.vllm_api_server"
    command = [
        *(sys.executable, "-m", module),
        *("--model", options.model, "--served-model-name", "policy"),
        *("--host", options.host, "--port", str(port)),
        *("--dtype", options.dtype, "--seed", str(options.seed)),
        *("--max-model-len", str(options.max_model_len), "--max-num-seqs", str(options.max_num_seqs)),
        *rank_arguments(options),
        *("--weight-transfer-config", json.dumps({"backend": WEIGHT_BACKEND})),
        *("--worker-extension-cls", "asyncrl.weights.vllm_workers.WorkerCalls"),
        *("--middleware", "asyncrl.weights.vllm_routes.Routes"),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *machine_arguments(options.machine),
        *("--scheduling-policy", "priority"),
        *("--enable-scale-out", "--no-enable-log-requests", "--disable-uvicorn-access-log"),
    ]
    if (kind := kind_of(options.model)) is not None:
        command += kind.served().arguments
    if options.max_model_len >= LONG_CONTEXT:
        # Each turn hashes all of its context, beside the scheduler: half of SHA-256's time.
        command += ["--prefix-caching-hash-algo", "xxhash"]
    command += device_arguments(options)
    return command + added_arguments(options.additions) + list(options.extra_args)


def rank_arguments(options: EngineOptions) -> list[str]:
    """Return vLLM's arguments for how the model is split."""
    stages = options.pipeline_parallel
    return [
        *("--tensor-parallel-size", str(options.tensor_parallel)),
        *(("--pipeline-parallel-size", str(stages)) if stages > 1 else ()),
    ]


def device_arguments(options: EngineOptions) -> list[str]:
    """Return vLLM's arguments that follow from the machine having GPUs or none."""
    if not on_cpu():
        arguments = ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
        if block := long_blocks(options.max_model_len, described(options.model)):
            arguments += ["--block-size", str(block)]
        return arguments
    # A prompt prefilled in pieces makes vLLM rewind the generator of a seeded request, which CPU generators
    # cannot do: the engine would die. Whole prefills need a budget of at least one context.
    arguments = ["--enforce-eager", "--no-enable-chunked-prefill"]
    arguments += ["--max-num-batched-tokens", str(max(MIN_BATCHED_TOKENS, options.max_model_len))]
    if block := short_blocks(options.max_model_len):
        arguments += ["--block-size", str(block)]
    if options.ranks == 1:
        arguments += ["--distributed-executor-backend", "asyncrl.weights.vllm_executor.InProcessExecutor"]
    return arguments


def build_env(
    options: EngineOptions,
    credentials: Credentials,
    sockets: str = "",
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the vLLM server's environment. `sockets` is the folder of its processes' sockets, their only temporary
    one. The server gets the key with which it checks its callers, and no run token."""
    env = {**network_variables(options.machine), **base}
    own = credentials.issue("engine") if credentials.run_token else credentials
    env.update(
        {VARIABLE: own.text},
        VLLM_SERVER_DEV_MODE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_PLUGINS="asyncrl",
        ASYNCRL_BASE_VERSION=str(options.base_version),
        ASYNCRL_ENGINE_HOSTS=f"{options.host},{options.advertise}",
        **{WEIGHTS_DIR: options.weights_dir},
        **machine_variables(options.machine, options.ranks),
    )
    env.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB)
    # A busy client counts from when it has read an answer: it would send on a connection that is just being closed.
    env.setdefault("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", KEEP_ALIVE_S)
    if on_cpu():
        # The model runs eagerly here. Compiling the rest, parts of the sampler, costs the first request ten
        # seconds and each new batch size some more, and is no faster then.
        env.setdefault("TORCHDYNAMO_DISABLE", "1")
    else:
        env.update(engine_variables(env, torch_cuda()))
    if options.pipeline_parallel > 1:
        env[STAGES] = str(options.pipeline_parallel)
    if (kind := kind_of(options.model)) is not None:
        env.update(kind.served().variables)
    for one in options.additions:
        env.update(one.variables)
    if sockets:
        # vLLM leaves behind sockets and the file by which its ranks find each other. Compiled code of torch is kept.
        env.setdefault("TORCHINDUCTOR_CACHE_DIR", compile_cache())
        env.update(VLLM_RPC_BASE_PATH=sockets, TMPDIR=sockets)
    if options.threads:
        env.update(OMP_NUM_THREADS=str(options.threads), VLLM_CPU_OMP_THREADS_BIND="nobind")
    if Path(options.model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    return env


def compile_cache() -> str:
    """Return where torch keeps compiled code by default."""
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}")


def serve_engine(
    options: EngineOptions, credentials: Credentials, port: int = 0, ready_file: str | Path | None = None
) -> int:
    """Run one engine until it exits or a signal ends it; return its exit code.

    `port` 0 picks a free one. `ready_file` receives
    `{"url", "pid"}` once the engine answers.

    Raises `ConfigError` (model or port), `DeadlineError` (not up in time), `UnavailableError` (it died).
    """
    _check_model(options.model)
    if options.weights_dir:
        _clear_after_killed(Path(options.weights_dir))
    with contextlib.ExitStack() as held:
        scratch = held.enter_context(engine_scratch(options.weights_dir))
        loaded = replace(options, advertise=advertised_host(options.host, options.advertise))

        def line_of(url: str) -> str:
            return f"engine: serving {loaded.model} (version {loaded.base_version}) at {url}"

        env = build_env(loaded, credentials, scratch)
        if loaded.machine.nodes > 1 and not loaded.machine.follows:
            # Until its first rank listens there, which may be a minute later.
            held.enter_context(reserved_port(loaded.machine.main_port, loaded.host))
        try:
            if loaded.machine.follows:
                return run_workers(build_command(loaded, 0), env, loaded.machine.number)
            return run_server(
                lambda chosen: build_command(loaded, chosen), env, loaded.host, port, loaded.start_timeout_s,
                ready_file, line_of, loaded.advertise,
            )  # fmt: skip
        finally:
            clear_shared_memory(Path(scratch))


def run_workers(command: Sequence[str], env: Mapping[str, str], number: int) -> NoReturn:
    """Run those workers of an engine whose server is on another machine until a signal ends them.

    They announce nothing: their engine serves when all of its workers have met. number: of this machine. Raises
    `UnavailableError` when one has ended by itself, whatever its exit code: the engine is lost with it.
    """
    child = start_child(command, env, library="vllm")
    stop_with(child)
    code = child.wait()
    how = f"were killed by signal {-code}" if code < 0 else f"have ended (exit code {code})"
    raise UnavailableError(f"engine: its workers on machine {number} {how}; the log says why")


def run_server(
    command: Callable[[int], list[str]],
    env: Mapping[str, str],
    host: str,
    port: int,
    start_timeout_s: float,
    ready_file: str | Path | None,
    line_of: Callable[[str], str],
    advertise: str = "",
) -> int:
    """Run a vLLM server until it exits or a signal ends it; return its exit code.

    command: its command line for a port. line_of: what to print for its address once it serves. advertise: the host in
    that address, "" for the one that this machine reaches it by.
    """
    with reserved_port(port, host) as chosen:
        tls = own_files()
        encrypted = (
            ["--ssl-certfile", str(tls.certificate), "--ssl-keyfile", str(tls.key)] if tls is not None else []
        )
        # A server that listens on all addresses is asked at that of loopback.
        asked = LOOPBACK if host in EVERY_INTERFACE else host
        url = f"{scheme()}://{in_url(advertise or asked)}:{chosen}"
        child = start_child([*command(chosen), *encrypted], {**env, ENGINE_URL: url}, library="vllm")
        stop_with(child)
        try:
            _wait_until_healthy(child, f"{scheme()}://{in_url(asked)}:{chosen}", start_timeout_s)
        except DeadlineError:
            child.kill()
            raise
    print(line_of(url), flush=True)
    if ready_file:
        announce(Path(ready_file), url, child.pid)
    return child.wait()


@contextlib.contextmanager
def reserved_port(port: int, host: str = LOOPBACK) -> Iterator[int]:
    """Keep a port for vLLM, which listens only after it has loaded the model; 0 takes a free one.

    A socket that is bound but does not listen keeps the port from everybody except those who ask for it by number
    with SO_REUSEADDR, as vLLM does.
    """
    if port:
        _check_port(port, host)
    with _socket(host) as sock:
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigError(f"--host {host}: cannot be listened on: {error.strerror or error}") from error
        yield sock.getsockname()[1]


def _socket(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


@contextlib.contextmanager
def engine_scratch(weights_dir: str) -> Iterator[str]:
    """Make a folder for files that vLLM needs while it runs and leaves behind, such as sockets. In a run it is in the
    folder of weights, so that it is removed with them when this process is killed."""
    if weights_dir and len(weights_dir) <= MAX_PARENT_CHARS and Path(weights_dir).is_dir():
        prefix = f"{SCRATCH}{os.getpid()}-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=weights_dir, ignore_cleanup_errors=True) as name:
            yield name
        return
    with scratch_folder("rpc", _short(Path(tempfile.gettempdir()))) as folder:
        yield str(folder)


def _short(folder: Path) -> Path:
    """Return a folder for temporary files in which sockets can be, whose paths the system limits."""
    fits = len(str(folder)) <= MAX_PARENT_CHARS or not os.access("/tmp", os.W_OK)
    return folder if fits else Path("/tmp")


def _clear_after_killed(weights_dir: Path) -> None:
    """Free what engines of this run left in this machine's shared memory that were killed."""
    for scratch in weights_dir.glob(f"{SCRATCH}*"):
        pid = scratch.name.removeprefix(SCRATCH).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            clear_shared_memory(scratch)


def stop_with(child: Process) -> None:
    """End the child on SIGTERM and SIGINT, so both end together.

    It is killed, and its own processes with it: asked to end, vLLM kills them, too, but together with Python's resource
    tracker, which would remove the shared memory of an engine of several ranks.
    """

    def forward(signum: int, frame: object) -> None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=STOP_GRACE_S)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)


def _check_model(model: str) -> None:
    path = Path(model)
    looks_local = path.is_absolute() or model.startswith(".") or model.count("/") > 1
    if looks_local and not (path / "config.json").is_file():
        raise ConfigError(
            f"model.path: {model!r} has no config.json; give a Hugging Face model folder or a hub name"
        )


def _check_port(port: int, host: str) -> None:
    deadline = time.monotonic() + PORT_WAIT_S
    while _port_taken(port, host):
        if time.monotonic() < deadline:
            # The engine that this one replaces may still be shutting down.
            time.sleep(0.2)
            continue
        raise ConfigError(f"port {port} is in use; choose another or 0 for a free one")


def _port_taken(port: int, host: str) -> bool:
    with _socket(host) as sock:
        try:
            sock.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _wait_until_healthy(child: Process, url: str, timeout_s: float) -> None:
    deadline = StartDeadline(child.pid, timeout_s)
    while not (missed := deadline.missed()):
        if (code := child.poll()) is not None:
            raise UnavailableError(f"engine: vLLM exited with code {code} while starting; its log says why")
        try:
            with open_url(f"{url}/health", timeout_s=2.0) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise DeadlineError(f"engine: vLLM {missed}")
