"""A cable that delays every frame, for kernels without netem: two devices, and this process between them.

Run as ``python cable.py DEVICE DEVICE SECONDS``; it makes the devices (TAP), says so, and carries frames until it is
killed, with which the devices go. Needs root.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

SET_UP = 0x400454CA  # TUNSETIFF of linux/if_tun.h
TAP_OF_PLAIN_FRAMES = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI


def tap(name: str) -> int:
    """Make a device and return the descriptor from which its frames are read, and to which they are written."""
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, SET_UP, struct.pack("16sH", name.encode(), TAP_OF_PLAIN_FRAMES))
    return end


def carry(one: int, other: int, seconds: float) -> None:
    """Carry frames both ways for ever; each comes out ``seconds`` after it went in."""
    across = {one: other, other: one}
    under_way: deque[tuple[float, int, bytes]] = deque()  # when it arrives, where, the frame
    while True:
        left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(across, (), (), left)[0]:
            with suppress(OSError):  # the device is down
                frame = os.read(end, 1 << 16)
                under_way.append((time.monotonic() + seconds, across[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, frame = under_way.popleft()
            with suppress(OSError):
                os.write(end, frame)


if __name__ == "__main__":
    first, second, delay = sys.argv[1:]
    ends = tap(first), tap(second)
    print("ready", flush=True)  # noqa: T201
    carry(*ends, float(delay))
