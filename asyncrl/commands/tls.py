"""`asyncrl tls FOLDER HOST ...`: certificates for the machines of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "tls",
        help="make certificates for the machines of a run",
        description="Make FOLDER/HOST for each machine: a certificate, its key, and the certificate of the CA, "
        "which is made in FOLDER the first time. Copy each folder to its machine and name it there in ASYNCRL_TLS: all "
        "services are then HTTPS, and called only if this CA has signed their certificates. FOLDER/ca.key stays here.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "hosts", nargs="+", metavar="HOST", help="name or address by which others reach a machine"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.tls import VARIABLE, make_certificates

    for folder in make_certificates(args.folder, args.hosts):
        print(f"export {VARIABLE}={folder}")
    return 0
