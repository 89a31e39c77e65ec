"""The streams of an agent: output passes in order and without blocking, and its end is kept."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterator

import pytest

from mwpy._system.streams import FULL_BYTES, MOST_BYTES, STUCK_S, Inlet, Outlet

PIPE_BYTES = 65536


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(reading, False)
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            pass  # the test has closed it


def read_all(fd: int) -> bytes:
    data = b""
    while select.select([fd], [], [], 0)[0] and (chunk := os.read(fd, 1 << 20)):
        data += chunk
    return data


# ---- out of the agent --------------------------------------------------------------------------------------------


def test_output_that_a_pipe_does_not_take_waits_for_its_reader(pipe: tuple[int, int]) -> None:
    """Output of any size does not block, and stays in order."""
    data = os.urandom(5 * PIPE_BYTES + 17)
    outlet = Outlet(pipe[1], "out", 0.0)
    outlet.pass_on(data[:100_000], 0.0)
    outlet.pass_on(data[100_000:], 0.0)
    came = read_all(pipe[0])
    assert len(came) < len(data)
    while outlet.waiting:
        outlet.flush(0.0)
        came += read_all(pipe[0])
    assert came == data


def test_slaves_wait_for_a_full_stream_only_for_a_limited_time(pipe: tuple[int, int]) -> None:
    """After that time, output without room is dropped. A line in its place says how much was dropped."""
    outlet = Outlet(pipe[1], "standard output", 0.0)
    outlet.pass_on(b"a" * FULL_BYTES, 1.0)
    assert outlet.patience_until() is None
    outlet.pass_on(b"b" * (MOST_BYTES - FULL_BYTES), 2.0)
    assert outlet.patience_until() == 1.0 + STUCK_S
    outlet.pass_on(b"c" * PIPE_BYTES * 2, 3.0)
    outlet.pass_on(b"c" * PIPE_BYTES * 2, 3.0)
    came = read_all(pipe[0])
    while outlet.waiting:
        outlet.flush(40.0)
        came += read_all(pipe[0])
    outlet.pass_on(b"d", 41.0)
    came += read_all(pipe[0])
    assert came.startswith(b"a" * FULL_BYTES + b"b" * (MOST_BYTES - FULL_BYTES))
    assert came.count(b"c") < 4 * PIPE_BYTES
    assert came.endswith(b" bytes from slaves are missing in standard output here: nobody read it\nd")


def test_a_stream_without_a_reader_takes_everything_and_keeps_nothing(pipe: tuple[int, int]) -> None:
    outlet = Outlet(pipe[1], "out", 0.0)
    outlet.pass_on(b"a" * FULL_BYTES, 0.0)
    os.close(pipe[0])
    outlet.flush(0.0)
    outlet.pass_on(b"b", 0.0)
    outlet.flush(0.0)
    assert not outlet.waiting
    absent = Outlet(None, "out", 0.0)
    absent.pass_on(b"a" * FULL_BYTES, 0.0)
    assert not absent.waiting


# ---- into the agent ----------------------------------------------------------------------------------------------


def test_a_terminal_gets_complete_lines(pipe: tuple[int, int]) -> None:
    """A carriage return ends a line, too. The rest comes with its end, with the end of the slave, or if it is long."""
    inlet = Inlet(pipe[0], 100, by_lines=True)
    read = []
    for written in (b"task", b" 1\ntask", b" 2\n10 %\r", b"20 %"):
        os.write(pipe[1], written)
        read.append(inlet.read())
    assert read == [b"", b"task 1\n", b"task 2\n10 %\r", b""]
    os.write(pipe[1], b"\n.")
    assert inlet.read() + inlet.read_rest() == b"20 %\n."
    os.write(pipe[1], b"x" * 40_000)
    assert inlet.read() == b""
    os.write(pipe[1], b"x" * 40_000)
    assert len(inlet.read()) == 80_000
    os.write(pipe[1], b"the end")
    assert inlet.read() == b""
    os.close(pipe[1])
    assert (inlet.read(), inlet.ended) == (b"the end", True)


def test_the_kept_end_does_not_begin_within_a_character(pipe: tuple[int, int]) -> None:
    """Bytes that are not text are shown as replacement characters."""
    inlet = Inlet(pipe[0], 4)
    os.write(pipe[1], "€€".encode())
    inlet.read()
    assert inlet.end == "€"
    os.write(pipe[1], b"\xff\xfe\x80\x80")
    inlet.read()
    assert inlet.end == "\ufffd" * 4


def test_another_process_that_writes_without_end_does_not_delay_the_end_of_a_slave(pipe: tuple[int, int]) -> None:
    """A process that a dead slave forked may hold the other end of the pipe."""
    if os.fork() == 0:
        try:
            os.close(pipe[0])
            while True:
                os.write(pipe[1], bytes(PIPE_BYTES))
        finally:
            os._exit(0)
    os.close(pipe[1])
    inlet = Inlet(pipe[0], 10)
    while not inlet.read():
        select.select([pipe[0]], [], [])
    assert len(inlet.read_rest()) <= 16 * PIPE_BYTES
    os.close(pipe[0])
    os.wait()
