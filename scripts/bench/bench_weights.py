"""Weights over HTTP behind a slow link: what the trainer sends, and how long a version takes to be committed.

    python scripts/bench/bench_weights.py [--engines 1 2 4] [--delay-ms 100] [--mbit 10] [--num-bytes N] [--json OUT]

The engines are those of `weight_engines`: their routes, transfers and checks are real, and nothing is
loaded into a model. The link is between the trainer and all engines; these reach each other directly. Versions are of
bfloat16 weights, of which the second changes 1.5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from report import write_report
from slow_link import SourceBehindLink
from weight_engines import LoadingEngine

from asyncrl.credentials import own_credentials, share_one_token
from asyncrl.extensions.http_weights.carrier import HttpCarrier
from asyncrl.extensions.weight_deltas.files import DELTA
from asyncrl.extensions.weight_deltas.transport import WithDeltas
from asyncrl.services.engine.client import EngineClient
from asyncrl.weights.carrier import Carried
from asyncrl.weights.publish import FilePublisher

CHANGED = 0.015
"""What a step at a learning rate of 1e-6 changes in bfloat16 (docs/benchmarks.md)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--delay-ms", type=float, default=100.0, help="there and back")
    parser.add_argument("--mbit", type=float, default=10.0, help="0 for no limit")
    parser.add_argument("--num-bytes", type=int, default=20_000_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    share_one_token()
    link = {"delay_s": args.delay_ms / 2000, "bytes_per_s": args.mbit * 1e6 / 8}
    rows = [asyncio.run(measure(count, link, args.num_bytes)) for count in args.engines]
    write_report({"link": link, "num_bytes": args.num_bytes, "rows": rows}, args.json)


async def measure(count: int, link: dict[str, float], num_bytes: int) -> dict[str, Any]:
    """Publish a whole version and a delta to `count` engines."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(num_bytes // 2, generator=generator).mul_(0.02).to(torch.bfloat16)
    changed = torch.rand(len(weights), generator=generator) < CHANGED
    following = torch.where(changed, weights * 1.01, weights)
    credentials = own_credentials()
    source = SourceBehindLink(credentials, **link)
    carrier = HttpCarrier(source)
    row: dict[str, Any] = {"engines": count}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-bench-")))
        engines = [LoadingEngine(folder / f"engine-{number}") for number in range(count)]
        for engine in engines:
            stack.callback(engine.close)
        stack.callback(carrier.close)
        clients = [EngineClient(engine.url, credentials.bearer("engine")) for engine in engines]
        publisher = FilePublisher(folder / "trainer", clients, transport=WithDeltas(Carried(carrier)))
        for version, (name, tensor) in enumerate((("whole", weights), ("delta", following)), 1):
            file = publisher.write(version, [("w", tensor)])
            before, start = source.carried_bytes, time.perf_counter()
            report = await publisher.publish(file)
            assert not report.failed, report.failed
            row[name] = {
                "bytes": report.short_bytes[DELTA] if name == "delta" else report.num_bytes,
                "sent_by_trainer": source.carried_bytes - before,
                "seconds_to_commit": round(time.perf_counter() - start, 2),
            }
        await publisher.close()
        await asyncio.gather(*(client.close() for client in clients))
    return row


if __name__ == "__main__":
    main()
