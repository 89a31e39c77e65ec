"""The bare loop: the minimum work of a master-worker loop with mwpy's structure. mwpy's rates are compared with it.

The structure is the thread of the algorithm, an I/O thread, one agent behind a CURVE connection, two slaves behind
pipes, and groups of 1,000 tasks. Each argument and each value is pickled alone, and each value returns with its tag.
The bare loop does not count, record or check anything, and does not survive failures.

    python bare.py 100000        # print the seconds that 100,000 tasks take
    python bare.py 500 1         # the same for 500 tasks, one after the other
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue

import zmq

GROUP = 1000
WINDOW = 10_000
SLAVES = 2


def run(tasks: int, window: int = WINDOW) -> float:
    """Return the seconds that `tasks` tasks take, with at most `window` of them in flight."""
    server_public, server_secret = zmq.curve_keypair()
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_secretkey = server_secret
    port = router.bind_to_random_port("tcp://127.0.0.1")
    agent = Process(target=_agent, args=(port, server_public))
    agent.start()
    peer, _ = router.recv_multipart()
    submitted: deque[tuple[int, bytes]] = deque()
    results: SimpleQueue[Sequence[tuple[int, bytes]]] = SimpleQueue()
    wake_out = context.socket(zmq.PAIR)
    wake_out.bind("inproc://wake")
    wake = context.socket(zmq.PAIR)
    wake.connect("inproc://wake")
    threading.Thread(target=_io, args=(router, peer, wake_out, submitted, results), daemon=True).start()
    for _ in range(2):  # the first round only waits for the processes to start
        began = time.perf_counter()
        finished = number = 0
        while finished < tasks:
            for _ in range(min(tasks - number, window - (number - finished))):
                submitted.append((number, pickle.dumps((number,), 5)))
                number += 1
            wake.send(b"")
            for tag, packed in results.get():
                finished += pickle.loads(packed) == tag
    seconds = time.perf_counter() - began
    agent.terminate()
    agent.join()
    return seconds


def _io(
    router: zmq.Socket[bytes],
    peer: bytes,
    wake: zmq.Socket[bytes],
    submitted: deque[tuple[int, bytes]],
    results: SimpleQueue[Sequence[tuple[int, bytes]]],
) -> None:
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(wake, zmq.POLLIN)
    pending: dict[int, int] = {}
    next_id = 0
    while True:
        ready = dict(poller.poll())
        if wake in ready:
            wake.recv()
        while submitted:
            group = [submitted.popleft() for _ in range(min(GROUP, len(submitted)))]
            ids = range(next_id, next_id + len(group))
            next_id += len(group)
            pending.update(zip(ids, [tag for tag, _ in group], strict=True))
            router.send_multipart([peer, *_packed(ids, [payload for _, payload in group])])
        if router in ready:
            _, *frames = router.recv_multipart()
            results.put([(pending.pop(task), payload) for task, payload in _unpacked(frames)])


def _packed(ids: Sequence[int], payloads: Sequence[bytes]) -> list[bytes]:
    sizes = [len(payload) for payload in payloads]
    return [struct.pack(f"{len(ids)}Q", *ids), struct.pack(f"{len(ids)}I", *sizes), b"".join(payloads)]


def _unpacked(frames: Sequence[bytes]) -> list[tuple[int, bytes]]:
    count = len(frames[0]) // 8
    found = []
    start = 0
    sizes = struct.unpack(f"{count}I", frames[1])
    for task, size in zip(struct.unpack(f"{count}Q", frames[0]), sizes, strict=True):
        found.append((task, frames[2][start : start + size]))
        start += size
    return found


def _agent(port: int, server_public: bytes) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.curve_serverkey = server_public
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"hello")
    slaves: list[Connection] = []
    for _ in range(SLAVES):
        mine, its = Pipe()
        Process(target=_slave, args=(its, _nothing), daemon=True).start()
        slaves.append(mine)
    poller = zmq.Poller()
    poller.register(dealer, zmq.POLLIN)
    for slave in slaves:
        poller.register(slave.fileno(), zmq.POLLIN)
    turn = 0
    while True:
        ready = dict(poller.poll())
        if dealer in ready:
            slaves[turn % SLAVES].send(dealer.recv_multipart())
            turn += 1
        for slave in slaves:
            if slave.fileno() in ready:
                dealer.send_multipart(slave.recv())


def _slave(pipe: Connection, function: Callable[[int], int]) -> None:
    while wait([pipe]):
        tasks = _unpacked(pipe.recv())
        values = [pickle.dumps(function(*pickle.loads(payload)), 5) for _, payload in tasks]
        pipe.send(_packed([task for task, _ in tasks], values))


def _nothing(number: int) -> int:
    return number


if __name__ == "__main__":
    print(run(*map(int, sys.argv[1:])))
