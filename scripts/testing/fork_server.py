"""A server that has imported the large libraries and forks the processes of runs; see `asyncrl.process_start`.

    python scripts/testing/fork_server.py SOCKET LIBRARY... - MODULE...

A request is one message: the process as JSON, with the three files that become its input, output and errors. The answer
is its pid, and later, on the same connection, its exit code. A connection that is closed before ends its process. The
server imports the libraries when the first request comes, ends with the process that started it, and its processes end
with it. Who asks from other namespaces, as on a machine of `testing.namespaces`, gets a process in these.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import json
import logging
import multiprocessing
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import typing
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from asyncrl.process_hooks import die_with_parent, lower_priority
from asyncrl.process_start import (
    FORK_SERVER,
    IMPORTED_WITH,
    MAX_MESSAGE,
    asyncrl_modules,
    forget_asyncrl,
    run_forked,
    start_process,
)

COMMANDS = "asyncrl.cli"
PLATFORMS = "vllm.platforms"
RANKS = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
"""What starts the ranks of torchrun."""
LIBRARIES = (
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.generate.label_reads",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.models.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.rl.factories",
    "vllm.entrypoints.rl.online.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.factories",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "vllm.entrypoints.serve.dev.cache.api_router",
    "vllm.entrypoints.serve.dev.rpc.api_router",
    "vllm.entrypoints.serve.dev.server_info.api_router",
    "vllm.entrypoints.serve.dev.sleep.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.instrumentator.offline_docs",
    "vllm.entrypoints.serve.lora.api_router",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.sagemaker.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.entrypoints.serve.utils.fingerprint",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.qwen3",
    PLATFORMS,
    "vllm.renderers.hf",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.pool.flash_maxsim",
    "vllm.v1.worker.cpu_worker",
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PpmImagePlugin",
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.sequence.layer",
    "httpx",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "model_hosting_container_standards.sagemaker.sagemaker_router",
    "pandas",
    "peft",
    "prometheus_client.core",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "pydantic.v1",
    "ray.dag",
    "safetensors.numpy",
    "setproctitle",
    "starlette.staticfiles",
    "torch.distributed.run",
    "torch.profiler._cupti_monitor",
    "torch.utils.tensorboard",
    "transformers.conversion_mapping",
    "transformers.models.qwen3.modeling_qwen3",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)
"""None of them starts a thread when it is imported."""
MODULES = (
    COMMANDS,
    "asyncrl.commands.eval",
    "asyncrl.commands.serve",
    "asyncrl.extensions.supervised.command",
    "asyncrl.commands.train",
    "asyncrl.extensions.env_tools.check",
    "asyncrl.envs.gridworld.env",
    "asyncrl.launch.checks.check",
    "asyncrl.launch.evaluation.evaluate",
    "asyncrl.launch.train",
    "asyncrl.services.buffer.service",
    "asyncrl.services.engine.policy",
    "asyncrl.services.engine.service",
    "asyncrl.services.env.service",
    "asyncrl.services.joining",
    "asyncrl.extensions.judge.service",
    "asyncrl.extensions.old_policy.service",
    "asyncrl.services.rollout.service",
    "asyncrl.services.trainer.service",
    "asyncrl.train.features.poison",
    "asyncrl.train.features.sampled_check",
    "asyncrl.extensions.supervised.sft",
    "asyncrl.weights.vllm_conversions",
    "asyncrl.weights.vllm_cpu",
    "asyncrl.weights.vllm_direct_writes",
    "asyncrl.weights.vllm_executor",
    "asyncrl.weights.vllm_int8",
    "asyncrl.weights.vllm_plugin",
    "asyncrl.weights.vllm_routes",
    "asyncrl.weights.vllm_workers",
    "asyncrl.extensions.machines.kinds",
    "asyncrl.extensions.machines.slurm",
    "asyncrl.extensions.planning.command",
    "asyncrl.extensions.planning.machine",
    "asyncrl.extensions.planning.refuse",
    "asyncrl.extensions.planning.start_check",
    "asyncrl.extensions.collective_weights.hook",
    "asyncrl.extensions.collective_weights.worker",
    "asyncrl.extensions.http_weights.hook",
    "asyncrl.extensions.http_weights.other_machines",
    "asyncrl.extensions.http_weights.worker",
    "asyncrl.extensions.nixl.hook",
    "asyncrl.extensions.router_replay.vllm_experts",
    "asyncrl.extensions.sleep.vllm_sleep",
    "asyncrl.extensions.speculation.vllm_speculation",
    "asyncrl.extensions.weight_deltas.hook",
)
"""What the roles import of asyncrl, with all that these import."""
BACKLOG = 64
HUGE_PAGE = 2 << 20
MADV_COLLAPSE = 25
"""As in Linux's mman-common.h."""
REQUEST_S = 30.0
NAMESPACES = ("net", "uts", "mnt")


class ForkServer:
    """Serves at `socket_path` until it is killed: hands each request to the process that forks for its installation.

    An installation of asyncrl, such as the repository and a wheel in a virtual environment, has a process of its own
    that has imported it, since some modules cannot be imported twice.
    """

    def __init__(self, socket_path: str, libraries: Sequence[str], modules: Sequence[str]) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Whoever sees the socket can connect to it.
        self.listener.bind(f"{socket_path}.new")
        self.listener.listen(BACKLOG)
        os.rename(f"{socket_path}.new", socket_path)
        self.libraries, self.modules = libraries, modules
        self.imported = False
        self.forkers: dict[str, socket.socket] = {}
        """The connection to each forking process, by the file of the package asyncrl that it has imported."""
        # Nobody waits for a forking process: without it the tests fail.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def run(self) -> NoReturn:
        while True:
            connection, _ = self.listener.accept()
            try:
                connection.settimeout(REQUEST_S)
                # The forking process takes the request and the files that come with it.
                request = json.loads(connection.recv(MAX_MESSAGE, socket.MSG_PEEK))
                forker = self._forker([str(entry) for entry in request["path"]], connection)
                socket.send_fds(forker, [b"one"], [connection.fileno()])
            except (OSError, ValueError, TypeError, KeyError) as error:
                # The asking process has ended, or is not one of ours.
                print(f"fork server: a request failed: {error!r}", file=sys.stderr, flush=True)
            finally:
                connection.close()

    def _forker(self, path: list[str], connection: socket.socket) -> socket.socket:
        """Return the connection to the process that forks for the installation that is found first in `path`."""
        sys.path_importer_cache.clear()
        found = importlib.machinery.PathFinder.find_spec("asyncrl", path)
        installation = (found and found.origin) or ""
        if installation not in self.forkers:
            if not self.imported:
                import_libraries(self.libraries)
                self.imported = True
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if not os.fork():
                try:
                    die_with_parent()
                    for sock in (self.listener, connection, ours, *self.forkers.values()):
                        sock.close()
                    Forker(theirs, self.modules if installation else (), path).run()
                finally:
                    traceback.print_exc()
                    os._exit(1)
            theirs.close()
            self.forkers[installation] = ours
        return self.forkers[installation]


class Forker:
    """Forks what is asked for on the connections that come by `source`, having imported `modules` from `path`."""

    def __init__(self, source: socket.socket, modules: Sequence[str], path: list[str]) -> None:
        self.source = source
        self.owners: dict[int, socket.socket | None] = {}
        """Running processes by pid, each with the connection that asked for it; None when that was closed."""
        self.ended, noticed = socket.socketpair()
        """Becomes readable when a process has ended."""
        noticed.setblocking(False)
        self.noticed = noticed
        self.missing: list[str] = []
        """Folders of modules that were not there when this process imported its own."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(noticed.fileno(), warn_on_full_buffer=False)
        forget_asyncrl()
        sys.path[:] = path
        import_once(modules)
        prepare_commands(modules)
        if (started := sys.modules.get("asyncrl.process_start")) is not None:
            # That of its processes, which was imported anew.
            started.FROM_SERVER.update(asyncrl_modules())
        self.missing = [entry for entry, finder in sys.path_importer_cache.items() if finder is None]
        collapse_memory()

    def run(self) -> NoReturn:
        while True:
            owners = [connection for connection in self.owners.values() if connection is not None]
            ready, _, _ = select.select([self.source, self.ended, *owners], [], [])
            if self.ended in ready:
                self.ended.recv(MAX_MESSAGE)
                self._tell_ends()
            for pid, connection in self.owners.items():
                if connection is not None and connection in ready:
                    # It was closed: the process that held it has ended.
                    os.kill(pid, signal.SIGKILL)
                    connection.close()
                    self.owners[pid] = None
            if self.source in ready:
                _, fds, _, _ = socket.recv_fds(self.source, MAX_MESSAGE, 1)
                if not fds:
                    # The server has ended.
                    os._exit(0)
                self._take(socket.socket(fileno=fds[0]))

    def _tell_ends(self) -> None:
        while self.owners:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if (connection := self.owners.pop(pid)) is not None:
                with contextlib.suppress(OSError):
                    connection.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
                connection.close()

    def _take(self, connection: socket.socket) -> None:
        fds: list[int] = []
        try:
            connection.settimeout(REQUEST_S)
            message, fds, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 3)
            request = json.loads(message)
            if not (pid := os.fork()):
                try:
                    self._be(request, fds, connection)
                finally:
                    # Whatever went wrong, there is one server.
                    traceback.print_exc()
                    os._exit(1)
            self.owners[pid] = connection
            connection.send(json.dumps({"pid": pid}).encode())
        except (OSError, ValueError) as error:
            # The asking process has ended, or is not one of ours.
            print(f"fork server: a request failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            for fd in fds:
                os.close(fd)

    def _be(self, request: dict[str, Any], fds: list[int], connection: socket.socket) -> NoReturn:
        """Be the process that was asked for."""
        signal.set_wakeup_fd(-1)
        enter_namespaces(_peer(connection))
        for sock in (self.source, self.ended, self.noticed, connection, *self.owners.values()):
            if sock is not None:
                sock.close()
        if request["own_session"]:
            os.setsid()
        die_with_parent()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(request["folder"])
        os.nice(max(0, request["base_nice"] - os.nice(0)))
        if request["nice"]:
            lower_priority(request["nice"])
        sys.executable = request["command"][0]
        multiprocessing.set_executable(sys.executable)
        sys.prefix, sys.exec_prefix = request["prefixes"]
        sys.path[:] = request["path"]
        # What was not there may be by now. Finders of folders see for themselves, and to look through them, or to take
        # them apart with all the names they hold, would make this process copy what it shares.
        for entry in self.missing:
            sys.path_importer_cache.pop(entry, None)
        run_forked(request["command"], request["env"])


def enter_namespaces(pid: int) -> None:
    """Move this process, which has one thread, into the namespaces of another where they are not its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in NAMESPACES:
        theirs = f"/proc/{pid}/ns/{kind}"
        if os.path.samefile(theirs, f"/proc/self/ns/{kind}"):
            continue
        fd = os.open(theirs, os.O_RDONLY)
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), f"{theirs} cannot be entered")
        os.close(fd)


def _peer(connection: socket.socket) -> int:
    """Return the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


def import_libraries(names: Sequence[str]) -> None:
    """Import what takes long; see `import_once`."""
    for module in import_once(names):
        # It compiles half a second of patterns for the first model that is loaded.
        if build := getattr(module, "get_checkpoint_conversion_mapping", None):
            build("qwen3")
    if PLATFORMS in names:
        replace_kernels_once(sys.modules[PLATFORMS].current_platform)
        set_up_vllm_once()
    if (ranks := sys.modules.get(RANKS)) is not None:
        fork_ranks(ranks.SubprocessHandler)
    leave_out_reports()


def fork_ranks(handler: Any) -> None:
    """Have torchrun's `SubprocessHandler` fork ranks as `start_process` does: each would import DeepSpeed anew."""
    popen = handler._popen

    def start(self: Any, args: Sequence[str], env: dict[str, str]) -> Any:
        python, *words = args
        if FORK_SERVER not in env or words[:1] != ["-u"] or self._stdout or self._stderr:
            return popen(self, args, env)
        return start_process([python, *words[1:]], env, sys.stdout.fileno(), errors=sys.stderr.fileno())

    handler._popen = start


def replace_kernels_once(platform: Any) -> None:
    """Have vLLM put its CPU kernels in Triton's place for all processes that are forked.

    Each engine looks for them at every name of every module, which makes a forked process copy all of the memory that
    it would otherwise share.
    """
    platform.register_triton_kernel_overrides()
    platform.register_triton_kernel_overrides = lambda: None


def set_up_vllm_once() -> None:
    """Do for all processes that are forked what every process of vLLM does before it looks at its arguments."""
    logger, plugins, command_line, arguments, core = (
        sys.modules[f"vllm.{name}"]
        for name in (
            "logger",
            "plugins",
            "entrypoints.launchers.cli_args",
            "utils.argparse_utils",
            "v1.engine.core",
        )
    )
    # Of hundreds of loggers, each would empty the caches of all.
    logger.configure_logging(sys.modules["vllm.config.logging"].LoggingConfig())
    setattr(core, "configure_logging", logger.configure_logging_if_needed)  # noqa: B010 - mypy forbids to assign it
    # vLLM remembers what it reads from the sources of its settings. Its plugins are each engine's own.
    setattr(plugins, "plugins_loaded", True)  # noqa: B010 - as above
    command_line.make_arg_parser(arguments.FlexibleArgumentParser())
    setattr(plugins, "plugins_loaded", False)  # noqa: B010 - as above


def prepare_commands(modules: Sequence[str]) -> None:
    """Do for all processes that are forked what each would do first, with the same result."""
    if COMMANDS not in modules:
        return
    sys.modules[COMMANDS].quiet_libraries()
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # That of the tests' models, which transformers remembers; vLLM asks for it, too.
    _compile_jinja_template(sys.modules["asyncrl.train.models.tiny_model"].CHAT_TEMPLATE)


def leave_out_reports() -> None:
    """Have forked processes end without what libraries do then for their own developers.

    torch reports how long it compiled, and Triton empties the caches of `typing` to find what leaks. Both look through
    memory that a process would otherwise share to its end.
    """
    if (dynamo := sys.modules.get("torch._dynamo.utils")) is not None:
        atexit.unregister(dynamo.dump_compile_times)
    getattr(typing, "_cleanups").clear()  # noqa: B009


def import_once(names: Sequence[str]) -> list[ModuleType]:
    """Import for all processes that are forked. Afterwards there must be one thread only: a fork has no other."""
    gc.disable()
    level = logging.getLogger().level
    modules = [importlib.import_module(name) for name in names]
    # One of vLLM's libraries sets it for the whole process: those that do without it would log no warnings.
    logging.getLogger().setLevel(level)
    # Memory that the collector does not look through stays shared.
    gc.freeze()
    gc.enable()
    if threading.active_count() != 1 or len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("an import has started a thread, which forked processes would lack")
    return modules


def collapse_memory() -> None:
    """Put this process's memory into huge pages as far as it fills them, if the kernel can.

    A fork copies one entry for each page and drops it in the end. For half a gigabyte of small pages that takes longer
    than what many processes do.
    """
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, access, _, _, _, *name = line.split()
        if access != "rw-p" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in area.split("-"))
        for page in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE, HUGE_PAGE):
            libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)


def start_fork_server(
    folder: Path, libraries: Sequence[str] = LIBRARIES, modules: Sequence[str] = MODULES
) -> subprocess.Popen[bytes]:
    """Start a server whose socket and log are in `folder`, which must be this user's alone, and have all processes that
    this one starts know of it. It ends with this process. Returns when it listens. Raises `RuntimeError` with its log
    where it ends before."""
    place = folder / "fork-server"
    os.environ[FORK_SERVER] = str(place)
    with open(folder / "fork-server.log", "wb") as log:
        server = subprocess.Popen(
            [
                sys.executable,
                "-P",
                __file__,
                os.environ[FORK_SERVER],
                *libraries,
                "-",
                *modules,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | IMPORTED_WITH,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    while not place.exists():
        if server.poll() is not None:
            raise RuntimeError(f"the fork server ended: {(folder / 'fork-server.log').read_text()}")
        time.sleep(0.01)
    return server


if __name__ == "__main__":
    place, *imported = sys.argv[1:]
    between = imported.index("-")
    ForkServer(place, imported[:between], imported[between + 1 :]).run()
