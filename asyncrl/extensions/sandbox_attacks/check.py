"""`asyncrl sandbox check`: attack a backend on this machine and report what held."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from asyncrl.errors import ConfigError
from asyncrl.extensions.sandbox_attacks.attacks import Finding, attacks_on, carry_out
from asyncrl.extensions.sandbox_attacks.host import Host
from asyncrl.extensions.sandbox_attacks.scene import Scene
from asyncrl.sandbox.backends import BACKENDS, choose, probe
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import Probe


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asyncrl sandbox check",
        description="Attack a sandbox backend with bounded, harmless programs. Exit status 0: everything held.",
    )
    parser.add_argument(
        "--backend", default="auto", help=f"auto, module:Class or one of: {', '.join(BACKENDS)}"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="attacks whose name contains TEXT"
    )
    parser.add_argument("--runs", type=int, default=1000, help="runs of the exhaustion attack (default 1000)")
    parser.add_argument(
        "--list", action="store_true", help="say which backends work here, and attack nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


async def attack_backend(name: str, only: Sequence[str] = (), runs: int = 1000) -> list[Finding]:
    """Carry out the suite, or the attacks whose names contain one of `only`, one after the other."""
    with Host() as host:
        scene = Scene(name, host, runs)
        return [await carry_out(attack, scene) for attack in attacks_on(name, only)]


def _print_table(chosen: Probe, findings: list[Finding]) -> None:
    missing = ", ".join(chosen.missing) or "none"
    print(f"backend {chosen.backend}; guarantees it does not claim here: {missing}\n")
    for finding in findings:
        print(
            f"{finding.status:7} {finding.attack.name:36} {finding.attack.guarantee:16} {finding.wall_s:7.2f} s"
        )
        if finding.status == "leaked" and finding.attack.guarantee in chosen.missing:
            print("          (not claimed here)")
        for detail in finding.details[:6]:
            print(f"          {detail[:400]}")
    bad = sum(finding.status != "held" for finding in findings)
    print(f"\n{len(findings) - bad} held, {bad} did not")


async def _list_backends() -> int:
    for name in BACKENDS:
        try:
            found = await probe(name)
        except ConfigError as error:
            found = Probe(name, False, str(error))
        text = (
            f"works; missing: {', '.join(found.missing) or 'nothing'}"
            if found.works
            else f"no: {found.reason}"
        )
        print(f"{name:12} {text}")
    return 0


async def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.list:
            return await _list_backends()
        # Attacking an unsafe backend is what this command is for.
        chosen = await choose(arguments.backend, allow_unsafe=True)
        findings = await attack_backend(chosen.backend, arguments.only, arguments.runs)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        await LauncherClient.close_shared()
    if not findings:
        print(f"error: no attack matches {arguments.only}", file=sys.stderr)
        return 2
    if arguments.json:
        rows = [
            {"attack": f.attack.name, "guarantee": f.attack.guarantee, "status": f.status, "details": f.details,
             "wall_s": round(f.wall_s, 3)}
            for f in findings
        ]  # fmt: skip
        print(json.dumps({"backend": chosen.backend, "missing": chosen.missing, "attacks": rows}, indent=1))
    else:
        _print_table(chosen, findings)
    return 0 if all(finding.status == "held" for finding in findings) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all held, 1 something leaked or could not be tried, 2 the backend does not work here."""
    return asyncio.run(run(_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
