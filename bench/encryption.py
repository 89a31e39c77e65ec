"""What the encryption of messages between hosts costs: large frames through ZeroMQ, with CURVE and without it.

    python -m bench.encryption

Both ends are in one process, so its processor time is that of both. No copy is made that libzmq does not need.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import zmq
from bench.peers.workloads import QUICK

FRAME_BYTES = 1_000_000
FRAMES = 10 if QUICK else 1000
RUNS = 3


def transfer(encrypted: bool) -> tuple[float, float]:
    """Send the frames. Return the seconds, and the seconds of processor time."""
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver, context.socket(zmq.PUSH) as sender:
        if encrypted:
            receiver.curve_server, receiver.curve_secretkey = True, secret
            sender.curve_publickey, sender.curve_secretkey = zmq.curve_keypair()
            sender.curve_serverkey = public
        sender.connect(f"tcp://127.0.0.1:{receiver.bind_to_random_port('tcp://127.0.0.1')}")
        frame = bytes(FRAME_BYTES)

        def send() -> None:
            for _ in range(FRAMES):
                sender.send(frame, copy=False)

        thread = threading.Thread(target=send)
        began, used = time.perf_counter(), time.process_time()
        thread.start()
        for _ in range(FRAMES):
            receiver.recv(copy=False)
        thread.join()
        return time.perf_counter() - began, time.process_time() - used


def lines() -> Iterator[str]:
    for _ in range(RUNS):
        for encrypted in (True, False):
            took, used = transfer(encrypted)
            megabytes = FRAMES * FRAME_BYTES / 1e6
            how = "with CURVE" if encrypted else "without it"
            yield f"{how}: {megabytes / took:.0f} MB/s, {used / megabytes * 1e3:.2f} ms of processor time for 1 MB"


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
