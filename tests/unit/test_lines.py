"""Lines in a file: what a full disk leaves of them."""

from __future__ import annotations

import resource
from pathlib import Path

from mwpy._system.streams import RotatedFile, WholeLines


def test_a_line_that_was_cut_stays_a_line_of_its_own(tmp_path: Path) -> None:
    """The file can take some bytes of a line before the disk is full. Later lines say how many lines are missing."""
    path = tmp_path / "x"
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    reports: list[Exception] = []
    writer = WholeLines(RotatedFile(path, 1 << 20, 1).put, "{} are missing\n".format, reports.append)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, old[1]))
        writer.write("12345\n67890\nabc\n")
        writer.write("lost\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    writer.write("whole\n")
    assert path.read_text().splitlines() == ["12345", "6789", "3 are missing", "whole"]
    assert len(reports) == 1
