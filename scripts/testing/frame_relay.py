"""A link between two network namespaces with a delay and a rate, in user space: whatever goes over it, goes slowly.

    python scripts/testing/frame_relay.py SPACE_A SPACE_B DEVICE --delay-s 0.05 --bytes-per-s 1250000

Both namespaces get a TAP device of that name, to be put on a bridge there; frames that one receives are sent by the
other, each direction at the rate and after the delay. A line on stdout says that the devices are there. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import fcntl
import os
import struct
import sys
import time
from collections import deque

from asyncrl.process_hooks import die_with_parent

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65536
QUEUED_S = 1.0
"""What would be sent later than this is dropped, so that senders notice the rate."""


class Direction:
    """Frames on their way from one device to the other."""

    def __init__(self, source: int, target: int, delay_s: float, bytes_per_s: float) -> None:
        self.source, self.target = source, target
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s
        self._free = 0.0
        """When everything that was accepted has been sent."""
        self._frames: deque[tuple[float, bytes]] = deque()

    def receive(self) -> None:
        """Take a frame, or drop it where too many wait."""
        loop = asyncio.get_running_loop()
        frame, now = os.read(self.source, FRAME_BYTES), time.monotonic()
        begun = max(now, self._free)
        if begun - now > QUEUED_S:
            return
        self._free = begun + len(frame) / self.bytes_per_s
        self._frames.append((self._free + self.delay_s, frame))
        if len(self._frames) == 1:
            loop.call_later(self._frames[0][0] - now, self._send)

    def _send(self) -> None:
        while self._frames and self._frames[0][0] <= time.monotonic():
            # Where the device's own queue is full, a frame is lost, as on any link.
            with contextlib.suppress(BlockingIOError):
                os.write(self.target, self._frames[0][1])
            self._frames.popleft()
        if self._frames:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._frames[0][0] - time.monotonic()), self._send)


def open_device(space: str, device: str) -> int:
    """Make a TAP device in a namespace; return its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{space}") as target:
        if libc.setns(target.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {space} cannot be entered")
    found = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(found, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return found


async def relay(first: int, second: int, delay_s: float, bytes_per_s: float) -> None:
    """Forward frames until cancelled."""
    loop = asyncio.get_running_loop()
    for source, target in ((first, second), (second, first)):
        loop.add_reader(source, Direction(source, target, delay_s, bytes_per_s).receive)
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("spaces", nargs=2)
    parser.add_argument("device")
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--bytes-per-s", type=float, required=True)
    args = parser.parse_args()
    die_with_parent()
    first, second = (open_device(space, args.device) for space in args.spaces)
    asyncio.run(relay(first, second, args.delay_s, args.bytes_per_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
