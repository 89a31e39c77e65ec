"""Which findings of an examination are faults, and their remedies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mwpy._doctor.diagnosis import (
    Finding,
    Report,
    about_addresses,
    about_file,
    about_resources,
    diagnose,
    no_report,
    stuck,
)
from mwpy._values.jobs import Job, JobState, Outcome

WELL = Report(
    machine="node1, 8 cores",
    python="3.11.7",
    executable="/usr/bin/python3",
    clock=1000.0,
    libraries={"mwpy": "1.0", "pyzmq": "27"},
    connection=[Finding("resource file", "read")],
    resources=[Finding("disk", "free")],
    imports={"numpy": "2.4"},
)


def faults(there: Report, here: Report | None = None) -> list[tuple[str, str, str]]:
    """Return the faults, if the clock here showed 999 s before and 1001 s after the examination."""
    found = diagnose(there, here, 999.0, 1001.0)
    return [(each.about, each.found, each.remedy) for each in found if each.remedy]


@pytest.mark.parametrize("here", [None, WELL])
def test_all_is_reported_even_without_a_fault(here: Report | None) -> None:
    assert faults(WELL, here) == []
    found = diagnose(WELL, here, 999.0, 1001.0)
    assert [each.about for each in found] == [
        *("machine", "Python", "libraries", "clock", "resource file", "application", "disk")
    ]
    assert found[5].found == "imported; its packages: numpy 2.4"
    assert diagnose(replace(WELL, imports={}), here, 999.0, 1001.0)[5].found.startswith("imported; its packages: none")


def test_one_address_that_works_is_enough_and_the_others_are_spare() -> None:
    found = about_addresses({"tcp://a:1": ("nobody listens there", "unreachable")}, "tcp://b:1: connected")
    assert [(each.found, each.remedy, each.spare) for each in found] == [
        ("tcp://a:1: nobody listens there", "", True),
        ("tcp://b:1: connected", "", False),
    ]


def test_what_is_not_known_is_no_fault() -> None:
    """The memory of a machine, or the time limit of a job."""
    found = about_resources(None, 8 << 30, None)
    assert [(each.found, each.remedy) for each in found] == [
        *(("not known", ""), ("8590 MB free", ""), ("no limit is known", ""))
    ]


@pytest.mark.parametrize(
    ("found", "about", "text", "remedy"),
    [
        (diagnose(replace(WELL, clock=900.0), None, 999.0, 1001.0), "clock", "at least 99 s behind the one", "NTP"),
        (diagnose(replace(WELL, clock=1101.0), None, 999.0, 1001.0), "clock", "at least 100 s ahead of the", "NTP"),
        (
            diagnose(replace(WELL, imports=None, import_fault="No module"), WELL, 999.0, 1001.0),
            *("application", "No module", "pack the script"),
        ),
        ([about_file(5000.0, 300.0)], "resource file", "written 5000 s ago", "a fresh copy"),
        ([about_file(-4922.0, 300.0)], "resource file", "the master's clock is 4922 s ahead", "NTP"),
        (about_addresses({}, ""), "address", "names no address of the master", "--mw-master-host"),
        (about_addresses({"a": ("closed", "unreachable")}, ""), "address", "a: closed", "that the master is running"),
        (about_addresses({"a": ("keys", "refused")}, ""), "address", "a: keys", "another computation has this address"),
        (about_addresses({"a": ("none", "unknown host")}, ""), "address", "a: none", "--mw-master-host"),
        (about_resources(1 << 20, 8 << 30, 600.0), "memory", "1 MB free", "ask the batch system"),
        (about_resources(8 << 30, 1 << 20, 600.0), "disk", "1 MB free", "ask the batch system"),
        (about_resources(8 << 30, 8 << 30, 10.0), "time left", "10 s", "more time"),
    ],
)
def test_a_fault_comes_with_its_remedy(found: list[Finding], about: str, text: str, remedy: str) -> None:
    """There is one fault, and all other findings are good."""
    [fault] = [each for each in found if each.remedy]
    assert fault.about == about
    assert text in fault.found
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("changes", "about", "found"),
    [
        ({"python": "3.13.5"}, "Python", "3.13.5 (/usr/bin/python3), here 3.11.7"),
        ({"libraries": {"mwpy": "2.0"}}, "libraries", "mwpy 2.0 there, 1.0 here"),
        ({"imports": {"numpy": "1.26"}}, "application", "numpy 1.26 there, 2.4 here"),
    ],
)
def test_another_version_than_here_is_a_fault(changes: dict[str, Any], about: str, found: str) -> None:
    """This holds for Python's minor versions, mwpy, and the application's packages, if there is a report from here."""
    wrong = faults(replace(WELL, **changes), WELL)
    assert [each[0] for each in wrong] == [about]
    assert found in wrong[0][1]
    assert faults(replace(WELL, **changes)) == []


def test_another_version_of_a_library_or_another_patch_version_of_python_is_no_fault() -> None:
    """Nevertheless, master and agents understand each other."""
    other = replace(WELL, python="3.11.2", libraries={"mwpy": "1.0", "pyzmq": "26"})
    assert faults(other, WELL) == []
    assert "pyzmq 26 there, 27 here" in diagnose(other, WELL, 999.0, 1001.0)[2].found


def test_a_job_that_is_held_or_does_not_end_is_a_fault() -> None:
    """The batch system's note is shown."""
    held = stuck(Job("1", "m", JobState.HELD, note="no such file"), 600.0)
    assert (held.found, held.remedy) == (
        "it is held: no such file",
        "correct what the batch system names, and try again",
    )
    waiting = stuck(Job("1", "m", JobState.QUEUED), 600.0)
    assert waiting.found == "it is still queued after 600 s"
    assert "--timeout" in waiting.remedy


def test_a_job_without_a_report_is_a_fault() -> None:
    """The text that the job wrote instead is shown."""
    ended = no_report("1", Outcome.of_process(127, 0.0, "python: not found\n"), "/logs")
    assert ended.found == "there is no report: exit code 127. It wrote last:\npython: not found"
    assert "another --command" in ended.remedy
    silent = no_report("1", Outcome.of_process(0, 0.0, ""), "/logs")
    assert silent.found.endswith("It wrote last:\n(nothing)")
    unknown = no_report("1", None, "/logs")
    assert (unknown.found, unknown.remedy) == ("it is not known how 1 ended", "look into /logs")
