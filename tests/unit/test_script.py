"""How a script calls `mwpy.main`."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from mwpy._system.script import discards_result, is_child_of_multiprocessing, mentions_main


def discarded() -> bool:
    """Record whether the calling line discards the value of this call."""
    SEEN.append(discards_result(sys._getframe(1)))
    return True


SEEN: list[bool] = []


def test_a_plain_statement_discards_its_value() -> None:
    SEEN.clear()
    discarded()
    for _ in range(2):
        discarded()
    kept = discarded()
    if discarded():
        print(discarded(), [discarded(), kept])
    assert SEEN == [True, True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import mwpy\nmwpy.main()", True),
        ("from mwpy import main as run\nrun()", True),
        ("import mwpy\ndef main(mw, argv): ...\nif __name__ == '__main__': main()", False),
        ("no python", True),
    ],
)
def test_a_call_of_main_is_found_in_the_source(tmp_path: Path, text: str, found: bool) -> None:
    (tmp_path / "script.py").write_text(text)
    assert mentions_main(str(tmp_path / "script.py")) is found


def test_a_file_that_cannot_be_read_may_call_main() -> None:
    assert mentions_main("/nowhere/script.py")


def test_a_process_of_multiprocessing_knows_that_it_is_one() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(is_child_of_multiprocessing)
    assert not is_child_of_multiprocessing()
