"""A member passes files and says anything about them. Its receiver gets what is in the files, or a `ProtocolError`."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import closing

from hypothesis import event, given, settings
from hypothesis import strategies as st

from mwpy._transport.passage import FOLDED, Passage, make_passage, read_references, unfold
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import encode

MOST_BYTES = 1 << 20

SEALS = (0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)

near = st.sampled_from([0, 1, 2, 4096, 65_535, 65_536, 1 << 20, 1 << 40, 1 << 63, -1])
frames = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), near, near), max_size=2)
right = st.sampled_from([(SEALS[2], 65_536, 0), (SEALS[1], 65_536, 1), (SEALS[1], 65_536, 2)])
wrong = st.tuples(st.sampled_from(SEALS), st.sampled_from([0, 1, 65_536]), st.integers(-1, 3))
files = st.lists(right | wrong, max_size=2)


@settings(max_examples=500)
@given(files, frames, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_a_receiver_is_not_harmed(
    files: list[tuple[int, int, int]],
    frames: list[tuple[int, int, int, int]],
    lies: int,
    withholds: int,
    passes_on: bool,
) -> None:
    here, there = make_passage()
    other = Passage(there)
    with closing(here), closing(other):
        described, fds = [], []
        for seals, size, hop in files:
            fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
            fds.append(fd)
            os.write(fd, b"x" * size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            described.append((os.fstat(fd).st_ino, size + (lies == 1), hop))
        if fds and withholds != 1:
            socket.send_fds(here._socket, [FOLDED], fds)
        for fd in fds:
            os.close(fd)
        message = [FOLDED + encode([described, frames]), b"header"]
        try:
            found = unfold(message, read_references(message, MOST_BYTES), other, passes_on=passes_on)
        except ProtocolError:
            return
        event("received")
        assert sorted(map(len, found)) == sorted([6, *(size for *_, size in frames)])
        assert {bytes(frame).strip(b"x") for frame in found} <= {b"header", b""}
