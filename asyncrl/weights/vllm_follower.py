"""An engine's workers on a machine without its server: `python -m asyncrl.weights.vllm_follower ARGUMENT...`.

The arguments are those of the server. It ends when one of its workers does.
"""

from __future__ import annotations

import gc

from asyncrl.process_hooks import collecting_no_garbage
from asyncrl.weights.vllm_api_server import MANY_OBJECTS


def main() -> None:
    """Run vLLM's headless mode, as `vllm serve --headless` does; its console command needs a distribution that is
    called vllm."""
    from vllm.entrypoints.cli.serve import run_headless
    from vllm.entrypoints.launchers.api_server.entry import configure_logging_from_args
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    configure_logging_from_args(args)
    validate_parsed_serve_args(args)
    args.api_server_count = 0
    run_headless(args)


if __name__ == "__main__":
    with collecting_no_garbage():
        import vllm.v1.executor.multiproc_executor  # noqa: F401
    gc.set_threshold(MANY_OBJECTS)
    main()
