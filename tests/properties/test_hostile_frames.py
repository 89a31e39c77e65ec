"""Members and strangers send frames that are made to cost much. No frame costs the master much memory or many steps.

The master is the loop of its I/O thread over a link that is not real. Some members are hostile: they have the keys,
hold tasks, and send anything. Strangers say no Hello. One member is correct. `--frames` sets the number of frames;
`make attack` sends a million.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import length_hint
from random import Random
from types import FrameType
from typing import Any

from tests.spans import MAX, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import CancelTasks, MasterSettings, Running
from mwpy._roles.master_io import MasterIo
from mwpy._system.process import Child
from mwpy._transport import wire
from mwpy._values import groups, messages, records
from mwpy._values.bounds import MAX_TASKS, Buffer
from mwpy._values.causes import Cause
from mwpy._values.connections import Frames, Happened
from mwpy._values.last_words import LastWords

FRAMES_TO_SETTLE = 1000
"""After so many frames, the memory that stays is measured for the first time."""

MEMORY_OF_A_FRAME = 12 << 20
"""Bytes that the master may use while it handles a frame, beyond four times the size of the frame."""

MEMORY_THAT_STAYS = 24 << 20
"""Bytes by which the memory of the master may grow, however many frames arrive. Last words take most of it."""

STEPS_OF_A_FRAME = 1_000_000
"""Lines of Python that run for one frame, each pass of a loop counted: twenty times what the costliest frame takes. On
every machine, they are the same."""

GOOD = b"good"
"""The correct member."""

HOSTILE = 4
"""How many hostile members are connected at a time."""

PENDING = 500

PACKAGES = [f"p{number}" for number in range(50_000)]
"""Names of packages. They are made before memory is traced, because tracing makes this slow."""

VERSION = bytes([messages.PROTOCOL_VERSION])
RESULTS = bytes(wire.encode(messages.Results(1, [], [], [], [], []))[0][:2])


class Link:
    """The master's end of all connections. It keeps all that was sent to the correct member, and the last messages that
    were sent to each other peer."""

    asleep = False

    def __init__(self) -> None:
        self.sent: dict[bytes, deque[messages.Message]] = {}
        self.dropped: dict[bytes, None] = {}

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        raise AssertionError("the test hands over what happened")

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        message, _ = wire.decode(frames)
        if isinstance(message, messages.Refused):
            self.dropped[peer] = None
        self.sent.setdefault(peer, deque(maxlen=None if peer == GOOD else 20)).append(message)

    def forget(self, peer: bytes) -> None:
        self.dropped[peer] = None

    def disconnect(self, peer: bytes) -> None:
        self.dropped[peer] = None

    def wake(self) -> None: ...
    def close(self, linger_s: float) -> None: ...


class Trail:
    """The master's audit file: it counts the records."""

    count = 0

    def write(self, happened: Sequence[records.Record], wall: float) -> None:
        self.count += len(happened)

    def close(self) -> None: ...


class Clock:
    """A clock that a frame moves by a millisecond."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    wall = monotonic

    def sleep(self, seconds: float) -> None: ...


def no_process(command: Sequence[str], *, environment: Mapping[str, str]) -> Child:
    raise AssertionError("a frame started a process")


def steps_of(act: Callable[[], None]) -> int:
    """Do something. Return how many lines of Python ran for it, up to the limit. The count itself takes no memory."""
    left, before = repeat(None, STEPS_OF_A_FRAME), sys.gettrace()

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        next(left, None)
        return count

    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return STEPS_OF_A_FRAME - length_hint(left)


class Attack:
    """A master, its members, and the frames that hostile members make.

    Args:
        seed: the same seed gives the same frames.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.link, self.clock, self.trail = Link(), Clock(), Trail()
        self.core = MasterCore(MasterSettings("m", "g"))
        self.core.definitions.add(Defined(MAX))
        edges: Any = (self.link, self.trail, self.clock, no_process)
        self.io = MasterIo(self.core, *edges)
        self.tasks = 0
        self.peers = 0
        self.hostile: list[bytes] = []
        self.most_steps = 0
        self.largest = 0
        self._held: dict[bytes, messages.Tasks] = {}
        self.join(GOOD)
        self.kinds: tuple[Callable[[bytes], list[Buffer]], ...] = (
            *(self.noise, self.mutated, self.truncated, self.many_spans, self.announced_lists, self.nested_header),
            *(self.nested_result, self.wide_result, self.long_texts, self.many_frames, self.numbers, self.scattered),
            *(self.replayed, self.returned, self.died, self.wrong_kind, self.many_packages, self.states),
            *(self.reports, self.plain_results, self.portions, self.wanted_parts, self.parts),
        )

    # ---- what the members do -------------------------------------------------------------------------------

    def deliver(self, peer: bytes, frames: list[Buffer]) -> None:
        self.clock.now += 0.001
        self.io.turn([Frames(peer, "10.0.0.1", frames)])
        while not self.io.users.algorithm.outcomes.empty():
            self.io.users.algorithm.outcomes.get()

    def join(self, peer: bytes) -> None:
        self.deliver(peer, wire.encode(messages.Hello("m", "g", "h", 1, "3.11", 3)))
        self.deliver(peer, wire.encode(messages.SlaveReady(1)))

    def supply(self) -> None:
        """Keep tasks pending, leave the dropped members, and let new ones join."""
        if self.core.state.jar.runnable < PENDING:
            self.core.submit([span(self.tasks + 1, MAX, PENDING)])
            self.tasks += PENDING
        for peer in self.link.dropped:
            self.core.admission.forget(peer)
            self.link.sent.pop(peer, None)
            self._held.pop(peer, None)
        assert GOOD not in self.link.dropped, "the correct member was dropped"
        self.hostile = [peer for peer in self.hostile if peer not in self.link.dropped]
        self.link.dropped.clear()
        while len(self.hostile) < HOSTILE:
            self.peers += 1
            self.hostile.append(b"hostile %d" % self.peers)
            self.join(self.hostile[-1])

    def work(self, peer: bytes) -> int:
        """A member finishes tasks that it was sent, and so has none to give back. Return how many it finished."""
        done, sent = 0, [*self.link.sent.get(peer, ())]
        self.link.sent[peer].clear()
        for message in sent:
            if isinstance(message, messages.Tasks):
                self.deliver(peer, self.results(message))
                self._held[peer] = message
                done += sum(message.counts)
            elif isinstance(message, messages.Revoke):
                self.deliver(peer, wire.encode(messages.Revoked(message.slave, [], [], [])))
        return done

    def cancel(self) -> None:
        """The master algorithm cancels a few tasks, which have ended, wait, or are at a member."""
        ranges = [(self.random.randint(max(1, self.tasks - 2 * PENDING), self.tasks), 1)]
        self.io.commands.append(CancelTasks(ranges, self.random.choice([*Running])))

    def results(self, group: messages.Tasks) -> list[Buffer]:
        count = sum(group.counts)
        done = messages.Results(1, group.tasks, group.counts, group.attempts, [0.0] * count, [])
        return wire.encode(done, [groups.payload(count, [bytes(count)])])

    def strike(self) -> int:
        """Send one hostile frame, and measure it. Return its size."""
        peer = self.random.choice([*self.hostile, b"stranger %d" % self.random.randrange(3)])
        frames = self.random.choice(self.kinds)(peer)
        size = sum(map(len, frames))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        steps = steps_of(lambda: self.deliver(peer, frames))
        used = tracemalloc.get_traced_memory()[1] - before
        described = f"{bytes(frames[0][:40])!r}, {len(frames)} frames, {size} bytes"
        assert steps < STEPS_OF_A_FRAME, f"{steps} steps for {described}"
        assert used < MEMORY_OF_A_FRAME + 4 * size, f"{used} bytes of memory for {described}"
        self.most_steps, self.largest = max(self.most_steps, steps), max(self.largest, used)
        return size

    # ---- what they send ------------------------------------------------------------------------------------

    def size(self, most: int) -> int:
        """A number up to `most`: small ones are as likely as large ones."""
        return int(most ** self.random.random())

    def tasks_of(self, peer: bytes) -> messages.Tasks:
        return self._held.get(peer, messages.Tasks(1, [1], [1], [1], [0]))

    def any_message(self) -> messages.Message:
        number, text = self.random.choice([-1, 0, 1, 2, 1 << 40, (1 << 63) - 1]), "x" * self.size(10_000)
        column = [self.random.randrange(self.tasks + 1) for _ in range(self.size(50))]
        return self.random.choice(
            (
                messages.Hello("m", "g", text, number, text, number, text),
                messages.Results(1, column, [1] * len(column), [1] * len(column), [0.1] * len(column), []),
                messages.Revoked(number, column, [number] * len(column), [1] * len(column), self.random.random() < 0.5),
                messages.Checkpoint(number, number, 1),
                messages.Reported(number, number, 1, 0.5),
                messages.SlaveReady(number),
                messages.SlaveDied(number, number, Cause.CRASH, text, LastWords(text, text)),
                messages.AlgorithmFailed(number, 0, text, column, column, column),
                messages.Installed({text: text}),
                messages.Leaving(text, Cause.EVICTED),
                messages.Goodbye(text, Cause.EVICTED),
                messages.Ask(text, text),
                messages.Ask("m", "g"),
                messages.Ask("m", "g", self.random.randrange(self.tasks + 2)),
            )
        )

    def states(self, peer: bytes) -> list[Buffer]:
        """A state of a task that the member holds. It often replaces an earlier one."""
        groups = [each for each in self.link.sent.get(peer, ()) if isinstance(each, messages.Tasks)]
        group = groups[-1] if groups else self.tasks_of(peer)
        frames: list[Buffer] = [bytes(self.size(100_000)) for _ in range(1 + self.size(20))]
        return wire.encode(messages.Checkpoint(1, group.tasks[0], group.attempts[0]), frames)

    def reports(self, peer: bytes) -> list[Buffer]:
        """A report of a task that the member holds, often too large. The algorithm does not ask for it."""
        groups = [each for each in self.link.sent.get(peer, ()) if isinstance(each, messages.Tasks)]
        group = groups[-1] if groups else self.tasks_of(peer)
        message = messages.Reported(1, group.tasks[0], group.attempts[0], 0.5)
        return wire.encode(message, [bytes(self.size(100_000))])

    def plain_results(self, peer: bytes) -> list[Buffer]:
        """Results of a portion with one time, often more than it holds, and often with entries that are not plain."""
        held = self.tasks_of(peer)
        counts = [self.size(MAX_TASKS)] if self.random.random() < 0.5 else held.counts
        firsts, count = held.tasks[: len(counts)], sum(counts)
        group = messages.Results(1, firsts, counts, held.attempts[: len(counts)], [0.5], [], plain=True)
        entry = self.random.choice([b"\x05", b"\x05", b"\xa0", b"\x90", b"\xc7\x00\x01", b"\xdd\xff\xff\xff\xff"])
        return wire.encode(group, [groups.payload(count, [entry * count])])

    def portions(self, peer: bytes) -> list[Buffer]:
        """Tasks of portions, which no member may send."""
        spans = [1] * self.size(100_000)
        group = messages.Tasks(1, spans, spans, spans, spans, portions=spans)
        return wire.encode(group, [groups.payload(len(spans), [b"\x91\x05" * len(spans)])])

    def digest(self) -> str:
        """The name of a result, or of any object."""
        task, attempt = self.random.randrange(self.tasks + 2), self.random.randrange(3)
        return self.random.choice(
            [f"result {task} {attempt}", "x" * self.size(10_000), "result " + "9" * self.size(5000)]
        )

    def wanted_parts(self, peer: bytes) -> list[Buffer]:
        return wire.encode(messages.ShareWanted(self.digest(), self.random.choice([0, 1, -1, (1 << 63) - 1])))

    def parts(self, peer: bytes) -> list[Buffer]:
        """A part for which nobody has asked, or the answer that there is none."""
        if self.random.random() < 0.5:
            return wire.encode(messages.ShareGone(self.digest()))
        return wire.encode(messages.SharePart(self.digest(), self.size(1 << 40)), [bytes(self.size(4 << 20))])

    def noise(self, peer: bytes) -> list[Buffer]:
        return [VERSION + self.random.randbytes(self.size(10_000)) for _ in range(1 + self.size(3))]

    def mutated(self, peer: bytes) -> list[Buffer]:
        header = bytearray(wire.encode(self.any_message())[0])
        for _ in range(3):
            header[self.random.randrange(2, len(header))] = self.random.randrange(256)
        return [bytes(header)]

    def truncated(self, peer: bytes) -> list[Buffer]:
        header, *payload = self.results(self.tasks_of(peer))
        if self.random.random() < 0.5:
            return [header, payload[0][: self.random.randrange(len(payload[0]))]]
        return [header[: self.random.randrange(len(header))], *payload]

    def many_spans(self, peer: bytes) -> list[Buffer]:
        spans = [self.random.randrange(self.tasks + 1)] * self.size(200_000)
        return wire.encode(messages.Revoked(1, spans, [1] * len(spans), [1] * len(spans)))

    def announced_lists(self, peer: bytes) -> list[Buffer]:
        """A length of four billion, and no list."""
        return [RESULTS + b"\x81\xa5tasks" + self.random.choice([b"\xdd", b"\xdf"]) + b"\xff" * 4]

    def nested_header(self, peer: bytes) -> list[Buffer]:
        return [RESULTS + b"\x81\xa7unknown" + self.random.choice([b"\x91", b"\x81"]) * self.size(1 << 20)]

    def nested_result(self, peer: bytes) -> list[Buffer]:
        group = messages.Results(1, [1], [1], [1], [0.0], [])
        return wire.encode(group, [groups.payload(1, [b"\x91" * self.size(1 << 20)])])

    def wide_result(self, peer: bytes) -> list[Buffer]:
        """Empty lists in a list, in one result."""
        count = self.size(1 << 20)
        group = messages.Results(1, [1], [1], [1], [0.0], [])
        return wire.encode(group, [groups.payload(1, [b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count])])

    def long_texts(self, peer: bytes) -> list[Buffer]:
        text = "x" * self.size(1 << 21)
        return wire.encode(
            self.random.choice((messages.Leaving(text, Cause.EVICTED), messages.Hello("m", "g", text, 1, text, 1)))
        )

    def many_frames(self, peer: bytes) -> list[Buffer]:
        return [*wire.encode(messages.SlaveReady(2)), *[b""] * self.size(100_000)]

    def numbers(self, peer: bytes) -> list[Buffer]:
        return wire.encode(self.any_message())

    def scattered(self, peer: bytes) -> list[Buffer]:
        """As many results as a message can have, in any order, of tasks that it holds or does not hold."""
        count = self.size(MAX_TASKS)
        ids = self.random.choices(range(self.tasks + 1), k=count)
        group = messages.Results(1, ids, [1] * count, [1] * count, [0.0] * count, [])
        return wire.encode(group, [groups.payload(count, [bytes(count)])])

    def replayed(self, peer: bytes) -> list[Buffer]:
        return self.results(self.tasks_of(peer))

    def returned(self, peer: bytes) -> list[Buffer]:
        """Every second task that it holds comes back, so that spans fall into pieces."""
        slave = next(iter(self.core.state.members.peers[peer].slaves.values()), None) if peer in self.hostile else None
        ids = [task for each in slave.held.spans for task in each.ids][::2] if slave else [1]
        attempts = [each.attempt for each in slave.held.spans for _ in each.ids][::2] if slave else [1]
        return wire.encode(messages.Revoked(1, ids, [1] * len(ids), attempts, self.random.random() < 0.5))

    def died(self, peer: bytes) -> list[Buffer]:
        text = self.random.randbytes(5000).hex()
        return wire.encode(
            messages.SlaveDied(self.random.randrange(5), 0, Cause.CRASH, text[:100], LastWords(text, text, text))
        )

    def wrong_kind(self, peer: bytes) -> list[Buffer]:
        spans = [1] * self.size(100_000)
        return wire.encode(messages.Tasks(1, spans, spans, spans, spans), [groups.payload(1, [b"\x05"])])

    def many_packages(self, peer: bytes) -> list[Buffer]:
        return wire.encode(messages.Installed(dict.fromkeys(PACKAGES[: self.size(len(PACKAGES))], "1")))


def test_no_frame_costs_the_master_much_memory_or_many_steps(frames: int, seed: int, story: list[str]) -> None:
    """The correct member works on, and what the master remembers of the others does not grow."""
    attack = Attack(seed)
    story.append(f"seed {seed}")
    settled, done, sent = 0, 0, 0
    tracemalloc.start()
    try:
        for number in range(frames):
            attack.supply()
            sent += attack.strike()
            if number % 100 == 0:
                done += attack.work(GOOD)
                attack.work(attack.hostile[0])
                attack.cancel()
            if number % FRAMES_TO_SETTLE == 0:
                gc.collect()
                attack.core.check()
                stays = tracemalloc.get_traced_memory()[0]
                settled = settled or stays
                assert stays - settled < MEMORY_THAT_STAYS, f"{stays - settled} more bytes after {number} frames"
    finally:
        tracemalloc.stop()
    assert done > frames, "the correct member did not work"
    print(
        f"\n{frames} frames, {sent >> 20} MiB, {attack.peers} members; the costliest took {attack.most_steps} steps, "
        f"the largest {attack.largest >> 10} KiB; {done} results"
    )
