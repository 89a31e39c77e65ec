"""The content of shared objects: files in memory that several processes map, and what they contain."""

from __future__ import annotations

import gc
import os
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._transport.shared_objects import Store
from mwpy._values import messages
from mwpy._values.errors import SharedObjectMissing
from mwpy._values.messages import Share
from mwpy._values.shares import KNOWN, SIZE_FORMAT, Shared, SharedObject

CODEC = Codec()


def share(obj: object) -> Shared:
    return shared_objects.handle_of(obj, CODEC)


def _head(*numbers: int) -> bytes:
    """The beginning of a content, as `struct` writes it."""
    return struct.pack(f"={len(numbers)}{SIZE_FORMAT}", *numbers)


def given(named: Share, reason: str = "") -> Any:
    """The object, as a slave has it to which its agent gives it."""
    found = shared_objects.give(named, reason)
    return shared_objects.load(found.share.digest)


def test_arrays_use_the_memory_of_the_file_and_are_read_only() -> None:
    shared = share(np.arange(50_000.0))
    array: Any = shared_objects.load(shared.shared.share.digest)
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0
    content = np.frombuffer(shared.shared.content, np.uint8)
    assert np.shares_memory(array, content)
    assert array.ctypes.data % 64 == 0


def test_each_task_gets_an_object_of_its_own_over_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large without its arrays, and what cannot be changed, is one object for all tasks."""
    monkeypatch.setattr(shared_objects, "OWN_BYTES", 2000)
    small, large, array = share({"a": np.arange(50_000.0), "b": [1]}), share([1, "x" * 2000]), share(np.arange(9.0))
    assert [shared_objects.is_for_each_slave(each) for each in (small, large, array)] == [False, True, False]
    first, second = (cast(dict[str, Any], shared_objects.load(small.shared.share.digest)) for _ in range(2))
    first["b"] *= 2
    assert second["b"] == [1]
    assert np.shares_memory(first["a"], second["a"])
    for each in (large, array):
        assert shared_objects.load(each.shared.share.digest) is shared_objects.load(each.shared.share.digest)


# ---- other processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    ["", "nonsense", "boot:1:2:3", "{0}:{1}:99999:{3}", "{0}:{1}:{2}:1", "other:{1}:{2}:{3}", "{0}:x:{2}:{3}"],
)
def test_an_agent_on_another_host_fetches_the_content_in_parts(wrong: str) -> None:
    """The location must name the right file of this host. The last part completes the file, and nobody can change
    it any more."""
    shared = share(np.arange(50_004.0))
    named, content = shared.shared.share, memoryview(shared.shared.content)
    store = Store()
    location, is_complete = store.open(replace(named, location=wrong.format(*named.location.split(":"))))
    assert not is_complete
    store.write(named.digest, 300_000, content[300_000:])
    with pytest.raises(SharedObjectMissing, match="this slave cannot open it"):
        given(replace(named, location=location))  # it is not complete
    store.write(named.digest, 0, content[:300_000])
    array = given(replace(named, location=location))
    assert array[-1] == 50_003.0
    with pytest.raises(OSError, match="not permitted"):
        store.write(named.digest, 0, b"x")
    store.drop(named.digest)
    store.drop(named.digest)
    assert array[-2] == 50_002.0


def test_a_file_that_is_no_memory_is_not_opened(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb+") as file:
        file.write(b"x" * 100)
        file.flush()
        number, boot = os.fstat(file.fileno()).st_ino, share(1).shared.share.location.split(":")[0]
        named = Share("d", 100, f"{boot}:{os.getpid()}:{file.fileno()}:{number}")
        assert not Store().open(named)[1]


@pytest.mark.parametrize("size", [shared_objects.SHARED_BYTES, shared_objects.DISK_BYTES])
def test_an_agent_gives_its_slaves_a_large_output_in_a_file_that_nobody_can_change(size: int) -> None:
    """A very large one is on disk, so that it takes no memory of the job."""
    store, content = Store(), os.urandom(size)
    named = Share("result-1", size)
    location, is_complete = store.open(named, content)
    assert is_complete
    kept = shared_objects.give(replace(named, location=location), "")
    assert kept.content == content
    is_on_disk = int(location.split(":")[-1]) in on_disk()
    assert is_on_disk == (size >= shared_objects.DISK_BYTES)
    store.close()
    assert kept.content == content


def on_disk() -> set[int]:
    """The open files of this process, by their numbers, that have no name and are not in memory."""
    links = [(each, str(each.readlink())) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    found = [link for link, target in links if target.endswith("(deleted)") and not target.startswith("/memfd:")]
    return {link.stat().st_ino for link in found}


def test_the_master_writes_outputs_to_disk_that_later_tasks_need() -> None:
    """Processes of its host find them there. The file is gone with the last view of it."""
    content = os.urandom(shared_objects.SHARED_BYTES)
    small = b"small"
    group = messages.Results(1, [1], [1], [1], [0.1], [], [2], shares=[Share("", 0), Share("result-1", len(content))])
    before = len(on_disk())
    spooled, frames = shared_objects.spooled(group, [b"entry", small, content])
    assert len(on_disk()) == before + 1
    assert [*map(bytes, frames)] == [b"entry", small, content]
    assert shared_objects.give(spooled.shares[1], "").content == content
    del frames
    gc.collect()
    assert len(on_disk()) == before


def test_a_file_on_disk_is_used_only_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is large for the memory of the host is fetched into such a file."""
    monkeypatch.setattr(shared_objects, "MEMORY_SHARE", 1 << 60)
    store, named = Store(), Share("d", 2000)
    location, is_complete = store.open(named)
    assert not is_complete
    assert int(location.split(":")[-1]) in on_disk()
    store.write("d", 1000, b"b" * 1000)
    assert not Store().open(replace(named, location=location))[1]
    store.write("d", 0, b"a" * 1000)
    assert Store().open(replace(named, location=location))[1]
    assert shared_objects.give(replace(named, location=location), "").content == b"a" * 1000 + b"b" * 1000


def test_outputs_stay_in_memory_if_there_is_no_room_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("_CONDOR_SCRATCH_DIR", str(tmp_path / "missing"))
    group = messages.Results(1, [1], [1], [1], [0.1], [], [1], shares=[Share("result-1", 3)])
    spooled, frames = shared_objects.spooled(group, [b"entry", b"abc"])
    assert (spooled, frames[1]) == (group, b"abc")


def test_a_slave_says_why_an_object_is_missing() -> None:
    with pytest.raises(SharedObjectMissing, match="too large for the job"):
        given(Share("missing", 100), "too large for the job")
    kept = shared_objects.give(Share("missing", 100), "again")
    assert shared_objects.is_known("missing")
    del kept
    gc.collect()
    assert "missing" not in KNOWN


GARBAGE = {"ones": b"\xff" * 200, "zeros": bytes(200), "too large": _head(1, 1 << 40), "too short": _head(2, 8)}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_a_content_that_is_garbage_is_named(content: bytes) -> None:
    shared = SharedObject(Share("garbage", len(content)), content)
    KNOWN["garbage"] = shared  # which refers only weakly to it
    with pytest.raises(ValueError, match="the content is damaged") as caught:
        shared_objects.load("garbage")
    assert caught.value.__notes__ == ["(mwpy.share: a shared object cannot be unpickled here)"]
