"""Messages are encoded as frames and decoded again. Frames that are not a message are refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.bounds import MAX_NAME, MAX_PACKAGES, MAX_REASON, MAX_SLAVES, MAX_TASKS, SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import ProtocolError
from mwpy._values.last_words import LAST_WORDS_BYTES, NO_WORDS, LastWords
from mwpy._values.messages import AlgorithmStatus, HostStatus, LogRow, Notice, Share
from mwpy._values.policy import Limits
from mwpy._values.requires import Given

DEFINITION = messages.AlgorithmDefinition(0, "f", "m:f", "d", "3.11", {"p": "1"})
STATUS = messages.Status(
    *("m", "g", 7.5, {"pending": 1}, 0.5, 3, 2, 1),
    *({"f": AlgorithmStatus(pending=1)}, {"node1": HostStatus(busy=2)}, {"ValueError": 1}, {"crash": 1}),
    notices=[Notice(1.5, "text")],
)
OVERVIEW = messages.Overview(
    STATUS,
    "no slave is connected",
    [messages.SlaveStatus("SLAVE-0", "AGENT-0", "h", "4711.0", "busy", 7, "f", 1.5, 2, 3, 4.5, 6.0, 1 << 30)],
    0,
    [messages.AlgorithmAtHost("f", "h", 3, 1, 4.5, 2.0, 0, 0.0, 1 << 30)],
    [messages.FailureExample("ValueError", 1, 5, "f", "h", "ValueError: no", "3", "argument 1 is 3", "Traceback", 9.5)],
    [messages.LogLine("SLAVE-0", "h", 5, "f", 5.5, 20, "app", "text")],
)
EXPLANATION = messages.Explanation(7, "f", "waits", reasons=["no slave is connected"])
ALL: list[tuple[messages.Message, list[bytes]]] = [
    (messages.Hello("m", "g", "h", 1, "3.11", 2, "17.3"), []),
    (messages.Welcome("A", 0, 1 << 30, 30.0), []),
    (messages.Welcome("A", 0, 1, 30.0, set_up=messages.SetUp(DEFINITION, b"x", 5.0, 1 << 30)), []),
    (messages.SetUpEnded(1, 2.5, "why", True, {"PATH": "/usr/bin"}), []),
    (messages.Refused("why"), []),
    (messages.Algorithms([DEFINITION]), []),
    (messages.Installed({"p": "1", "q": ""}), []),
    (messages.Tasks(1, [1, 4], [1, 1], [1, 1], [0, 0], [1, 0], [Limits(2.5), None]), [b"x", b"large"]),
    (messages.Tasks(1, [1], [1], [1], [0], given=Given({"cpus": 2, "gpus": 1}, [0, 3], [1])), [b"x"]),
    (messages.OffersWanted(["gnuplot"]), []),
    (messages.Offered({"gnuplot": "/usr/bin/gnuplot"}), []),
    (messages.Tasks(1, [1], [1], [1], [0], shares=[Share("digest", 9, "")]), [b"x"]),
    (messages.Results(1, [1], [1], [1], [0.5], [0]), [b"x"]),
    (messages.Handover("g1", "SLAVE-0", messages.Results(1, [1], [1], [1], [0.5], [0])), [b"x"]),
    (messages.FormerTasks("g1", messages.FormerFate.LOST, [1, 7], [2, 1]), []),
    (messages.NextGeneration(1, "app.py"), []),
    (messages.Revoke(1, 2), []),
    (messages.Revoked(1, [1], [1], [1]), []),
    (messages.Cancel([1, 5], [4, 1], True), []),
    (messages.Checkpoint(1, 7, 2), [b"state", b"large"]),
    (messages.CheckpointRead(1), []),
    (messages.Reported(1, 7, 2, 5.5), [b"values"]),
    (messages.ReportRead(1), []),
    (messages.ShareWanted("digest", 1 << 40), []),
    (messages.SharePart("digest", 1 << 40), [b"part"]),
    (messages.ShareGone("digest"), []),
    (messages.ShareGiven(Share("digest", 1 << 40, "boot:1:2:3"), "why"), []),
    (messages.ShareForgotten("digest"), []),
    (messages.SlaveReady(1), []),
    (messages.SlaveWorn(1, "why"), []),
    (messages.PeakMemory(1, 7, 1 << 32), []),
    (messages.OtherValues(1, 7, "RATE"), []),
    (messages.Logged(1, [LogRow(7, "f", 5.5, 20, "app", "text", "/app.py", 12, "work", "trace")], 3), []),
    (messages.SlaveNamed(1, SlaveId("SLAVE-0")), []),
    (messages.SlaveDied(1, 0, Cause.CRASH, "why", LastWords("out", "err", "fault", 1 << 40)), []),
    (messages.AlgorithmFailed(1, 0, "why", [1], [1], [1]), []),
    (messages.Probe(), []),
    (messages.Handled(7), []),
    (messages.Renew("/new", 3), []),
    (messages.Shutdown(True, 5.0), []),
    (messages.Leaving("why", Cause.EVICTED), []),
    (messages.Goodbye("why", Cause.EVICTED), []),
    (messages.Ask("m", "g", 7, ["AGENT-1"]), []),
    (messages.Drained(["AGENT-1 on h"], 3, ["x (no agent)"]), []),
    (STATUS, []),
    (EXPLANATION, []),
    (OVERVIEW, []),
]


VERSION = bytes([messages.PROTOCOL_VERSION])
PROBE, REFUSED = (bytes(wire.encode(each)[0][:2]) for each in (messages.Probe(), messages.Refused("why")))


@pytest.mark.parametrize(("message", "payload"), ALL)
def test_a_message_comes_back_equal(message: messages.Message, payload: list[bytes]) -> None:
    decoded, rest = wire.decode(wire.encode(message, payload))
    assert (decoded, list(rest)) == (message, payload)


def test_every_kind_of_message_can_travel() -> None:
    kinds = {each for each in vars(messages).values() if isinstance(each, type) and issubclass(each, messages.Message)}
    bases = {base for each in kinds for base in each.__bases__}
    assert {type(message) for message, _ in ALL} == kinds - bases


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "0 frames"),
        ([b"\x01"], "1 frames"),
        ([b"", b"\x80"], "do not begin like a message"),
        ([b"\x63" + PROBE[1:] + b"\x80"], "protocol version 99 there"),
        ([VERSION + b"\x63\x80"], "unknown message kind 99"),
        ([PROBE + bytes(wire.MAX_HEADER_BYTES + 1)], "a header of"),
        ([REFUSED + b"\x80"], "a malformed Refused"),
        ([REFUSED + b"\x81\xa6reason\xa1\xff"], "a malformed Refused"),
        ([PROBE + b"\x81\xa1a" + b"\x91" * 100_000], "a malformed Probe"),
        ([*wire.encode(messages.SlaveReady(1)), b"x"], "payload frames, but 0 are expected"),
        (wire.encode(messages.FormerTasks("g", messages.FormerFate.LOST, [5, 2], [1, 1])), "not in ascending order"),
    ],
)
def test_what_is_no_message_is_a_protocol_error(frames: list[Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.decode(frames)


LONG = "x" * 10_000
MANY = [1] * (MAX_TASKS + 1)
TOO_LARGE: list[messages.Message] = [
    messages.Hello(LONG, "g", "h", 1, "3.11", 1),
    messages.Hello("m", LONG, "h", 1, "3.11", 1),
    messages.Hello("m", "g", LONG, 1, "3.11", 1),
    messages.Hello("m", "g", "h", 1, LONG, 1),
    messages.Hello("m", "g", "h", 1, "3.11", 1, LONG),
    messages.Hello("m", "g", "h", -1, "3.11", 1),
    messages.Hello("m", "g", "h", 1, "3.11", 10**18),
    messages.Hello("m", "g", "h", 1, "3.11", -1),
    messages.Installed({LONG: "1"}),
    messages.Installed({"p": LONG}),
    messages.Installed({str(number): "" for number in range(MAX_PACKAGES + 1)}),
    messages.Results(1, MANY, MANY, MANY, [0.0] * len(MANY), []),
    messages.Results(1, [1], [1], [1], [2e9], []),
    messages.Results(1, [1], [1], [1], [float("inf")], []),
    messages.Results(1, [1], [1], [1], [-1.0], []),
    messages.Results(1, [1], [1], [1], [0.0], MANY),
    messages.Results(1, [1], [1], [1], [0.0], [], MANY),
    messages.Handover(LONG, "SLAVE-0", messages.Results(1, [1], [1], [1], [0.5], [])),
    messages.Handover("g1", LONG, messages.Results(1, [1], [1], [1], [0.5], [])),
    messages.Handover("g1", "SLAVE-0", messages.Results(1, MANY, MANY, MANY, [0.0] * len(MANY), [])),
    messages.FormerTasks(LONG, messages.FormerFate.RUNNING, [1], [1]),
    messages.FormerTasks("g1", messages.FormerFate.RUNNING, MANY, MANY),
    messages.Reported(-1, 1, 1, 0.0),
    messages.Reported(1, -1, 1, 0.0),
    messages.Reported(1, 1, -1, 0.0),
    messages.Reported(1, 1, 1, -1.0),
    messages.Reported(1, 1, 1, float("inf")),
    messages.Revoked(1, MANY, MANY, MANY),
    messages.SlaveReady(-1),
    messages.SlaveReady(1 << 60),
    messages.SlaveDied(1, -1, Cause.CRASH, "why", NO_WORDS),
    messages.SlaveDied(1, 1, Cause.CRASH, LONG, NO_WORDS),
    messages.SlaveDied(1, 1, Cause.CRASH, "why", LastWords("x" * 65_537)),
    messages.SlaveDied(1, 1, Cause.CRASH, "why", LastWords(peak_bytes=-1)),
    messages.AlgorithmFailed(1, 0, LONG, [1], [1], [1]),
    messages.AlgorithmFailed(1, -1, "why", [1], [1], [1]),
    messages.AlgorithmFailed(1, 0, "why", MANY, MANY, MANY),
    messages.Leaving(LONG, Cause.EVICTED),
    messages.Goodbye(LONG, Cause.EVICTED),
    messages.Ask(LONG, "g"),
    messages.Ask("m", LONG),
    messages.Ask("m", "g", -1),
]


@pytest.mark.parametrize("message", TOO_LARGE)
def test_each_text_number_and_list_of_a_member_has_a_bound(message: messages.Message) -> None:
    with pytest.raises(ProtocolError, match=f"a malformed {type(message).__name__}: Expected"):
        wire.decode(wire.encode(message), wire.FROM_AGENT)


def test_a_list_is_counted_before_it_is_built() -> None:
    """Too many spans cost the receiver no memory. Their list would take 240,000 bytes."""
    spans = [1 << 40] * 30_000
    frames = wire.encode(messages.Results(1, spans, spans, spans, [], []))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="a malformed Results: Expected `array` of length <= 4096"):
            wire.decode(frames, wire.FROM_AGENT)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("route", "receiver", "kinds"),
    [
        (wire.FROM_AGENT, "a master", 21),
        (wire.FROM_MASTER, "an agent", 19),
        (wire.FROM_SLAVE, "an agent", 11),
        (wire.TO_INQUIRER, "an inquirer", 7),
    ],
)
def test_a_message_of_another_kind_than_the_receiver_expects_is_not_read(
    route: wire.Route, receiver: str, kinds: int
) -> None:
    """Nor is a header that is larger than this sender's headers can be."""
    expected = [type(message) for message, payload in ALL if _arrives(message, payload, route)]
    assert len(expected) == kinds
    prefixes = {type(message): bytes(wire.encode(message)[0][:2]) for message, _ in ALL}
    for kind in prefixes.keys() - {*expected}:
        with pytest.raises(ProtocolError, match=f"{kind.__name__} is not for {receiver}"):
            wire.decode([prefixes[kind] + b"nonsense"], route)
    with pytest.raises(ProtocolError, match="a header of"):
        wire.decode([prefixes[expected[0]] + bytes(route.max_header_bytes)], route)


def _arrives(message: messages.Message, payload: list[bytes], route: wire.Route) -> bool:
    try:
        return wire.decode(wire.encode(message, payload), route)[0] == message
    except ProtocolError:
        return False


def test_the_largest_message_of_a_correct_agent_arrives() -> None:
    spans = [(1 << 64) - 1] * MAX_TASKS
    attempts = [*range((1 << 64) - MAX_TASKS, 1 << 64)]  # no task is named twice in one attempt
    text = "\ufffd" * LAST_WORDS_BYTES
    for message in (
        messages.Revoked(1, spans, spans, attempts),
        messages.SlaveDied(1, 1, Cause.CRASH, "\ufffd" * MAX_REASON, LastWords(text, text, text, 1 << 50)),
        messages.Hello("m", "g", "h" * MAX_NAME, 1, "3.11", MAX_SLAVES),
    ):
        assert wire.decode(wire.encode(message), wire.FROM_AGENT)[0] == message
