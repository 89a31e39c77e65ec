"""Programs without a key that connect to a master: `python -m tests.strangers KIND PORT COUNT`.

Each prints a line when it has done this to a master often enough, and goes on until it is killed.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
import threading
from contextlib import suppress

__all__ = ["GREETING", "command"]

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""The greeting of a client of version 3.0 with the mechanism CURVE."""

FRAME_BYTES = 1000 << 20

CONNECTIONS = 10
"""How many connections each client makes before it has made enough."""


def command(length: int) -> bytes:
    """Announce a command frame of a length."""
    return b"\x06" + length.to_bytes(8, "big")


def fill(port: int) -> None:
    """Announce a large frame, and send it. The connection ends before or after this."""
    chunk = bytes(1 << 20)
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as master:
        master.sendall(GREETING + command(FRAME_BYTES))
        for _ in range(FRAME_BYTES // len(chunk)):
            master.sendall(chunk)
        while master.recv(65536):
            pass


def fill_again(port: int) -> None:
    """Do this several times."""
    for _ in range(CONNECTIONS):
        fill(port)


def flood(port: int, clients: int) -> None:
    """Let some clients fill the memory of a master at a time."""
    threads = [threading.Thread(target=fill_again, args=[port]) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("enough", flush=True)
    while True:
        fill(port)


def idle(port: int, clients: int) -> None:
    """Connect, and say nothing."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    print("enough", flush=True)
    signal.pause()
    del held


if __name__ == "__main__":
    {"flood": flood, "idle": idle}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
