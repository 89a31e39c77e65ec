"""A member passes files and says anything about them. Its receiver gets what is in the files, or a `ProtocolError`."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import closing

from hypothesis import event, given, settings
from hypothesis import strategies as st

from mwpy._transport.stream import FOLDED, SEALS, Passage, make_passage, unfold
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import encode

MOST_BYTES = 1 << 20

right = st.tuples(st.integers(0, 2), st.just(SEALS), st.just(65_536), st.just(65_536))
wrong = st.tuples(
    st.integers(-1, 3),
    st.sampled_from([0, fcntl.F_SEAL_SHRINK, SEALS & ~fcntl.F_SEAL_WRITE, SEALS]),
    st.sampled_from([0, 1, 65_536]),
    st.sampled_from([0, 1, 65_535, 65_536, 1 << 20, 1 << 40, 1 << 63, -1]),
)
files = st.lists(right | wrong, max_size=3)
"""The place of each file in the message, its seals, its size, and the size that the message says."""


@settings(max_examples=500)
@given(files, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_a_receiver_is_not_harmed(
    files: list[tuple[int, int, int, int]], lies: int, withholds: int, passes_on: bool
) -> None:
    here, there = make_passage()
    other = Passage(there)
    with closing(here), closing(other):
        described, fds = [], []
        for place, seals, size, said in files:
            fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
            fds.append(fd)
            os.write(fd, b"x" * size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            described.append((place, os.fstat(fd).st_ino + (lies == 1), said))
        if fds and withholds != 1:
            socket.send_fds(here._socket, [FOLDED], fds)
        for fd in fds:
            os.close(fd)
        try:
            found = unfold([FOLDED + encode([described]), b"header"], other, MOST_BYTES, passes_on=passes_on)
        except ProtocolError:
            return
        event("received")
        assert sorted(map(len, found)) == sorted([6, *(size for _, _, size in described)])
        assert {bytes(frame).strip(b"x") for frame in found} <= {b"header", b""}
