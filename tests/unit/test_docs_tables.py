"""The tables and lists of the documents agree with the code: states, options, exit codes, files, calls."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import mwpy
from mwpy import _core
from mwpy._core.agent.traffic import NEWEST_S
from mwpy._core.master.results import STATES_BYTES
from mwpy._core.master.silence import FIRST_S
from mwpy._values import records
from mwpy._values.bounds import MAX_REPORT_BYTES, SlaveId
from mwpy._values.causes import BLAMELESS_ALLOWED, RESUMED_ALLOWED, Cause
from mwpy._values.errors import ExitCode
from mwpy._values.messages import Report
from mwpy._values.options import OPTIONS, Option, Options
from mwpy._values.policy import ATTEMPTS_MAX, DEFAULT_POLICY, Policies
from mwpy._values.task import Result
from mwpy.audit import KEPT, text_of
from mwpy.master import LoopCounts, Master
from mwpy.resource_file import FINISHED, IN_PROGRESS, MemberKeys, ResourceFile, write
from mwpy.slave import Slave, SlaveLoop

ROOT = Path(__file__).parent.parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
MANUAL = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "manual").glob("*.md")))
"""All pages of the manual."""
STATES = (ROOT / "docs" / "contributing" / "states.md").read_text(encoding="utf-8")
TASK_DRAWING = (ROOT / "docs" / "pictures" / "task.svg").read_text(encoding="utf-8")
HTCONDOR = (ROOT / "docs" / "clusters" / "htcondor.md").read_text(encoding="utf-8")
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
]

NUMBERS: dict[float, str] = dict(enumerate(("none", "one", "two", "three", "four", "five", "six")))


def section(text: str, title: str) -> str:
    """Return the text below a heading of any level, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the only table in a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert set(lines[1]) <= {"|", "-", " "}, f"no table: {lines}"
    return [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines[2:]
    ]


def code_in(text: str) -> list[str]:
    """Return the texts in backquotes."""
    return re.findall(r"`([^`]+)`", text)


# States

LIFECYCLES = {
    f"{module.name.removeprefix('mwpy.').replace('.', '/')}.py": transitions
    for module in pkgutil.walk_packages(_core.__path__, "mwpy._core.")
    if (transitions := getattr(importlib.import_module(module.name), "TRANSITIONS", None))
}
HEADINGS = re.findall(r"^## (.*)$", STATES, re.MULTILINE)


def shown(state: Enum) -> str:
    """Return the name of a state as docs/contributing/states.md writes it."""
    return state.name.replace("_", " ")


def test_the_drawing_of_a_task_has_its_states_and_only_steps_of_the_table() -> None:
    """It leaves out CANCELLING, and steps that few users see."""
    drawn = {tuple(step.split()) for step in re.findall(r'data-step="([^"]+)"', TASK_DRAWING)}
    steps = {
        (source.name, target.name)
        for event in LIFECYCLES["_core/master/tasks.py"].values()
        for source, target in event.items()
    }
    assert drawn <= steps
    assert {state for step in steps for state in step} - {state for step in drawn for state in step} == {"CANCELLING"}


def test_every_lifecycle_has_a_table() -> None:
    """The headings name exactly the modules of the core that have a table of transitions."""
    assert sorted(module for heading in HEADINGS for module in code_in(heading)) == sorted(LIFECYCLES)


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_page_of_states_shows_the_transitions_of_the_code(heading: str) -> None:
    """A row has the event, the state before it and the state after it. The rows have the order of the code."""
    transitions = LIFECYCLES[code_in(heading)[0]]
    assert rows(section(STATES, heading)) == [
        [event.value, shown(source), shown(target)]
        for event, steps in transitions.items()
        for source, target in steps.items()
    ]


# Options


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_in_a_document_exists(document: Path) -> None:
    """No document names an option that mwpy does not have."""
    named = {*re.findall(r"--mw-[a-z-]+[a-z]", document.read_text(encoding="utf-8"))}
    assert named <= {f"--mw-{option.name}" for option in OPTIONS}


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.metavar], ids=lambda option: option.name)
def test_a_default_that_is_a_value_is_the_real_default(option: Option) -> None:
    """The default in the manual, given on a command line, has the same effect as no option."""
    holder = DEFAULT_POLICY if option.field in Policies.__annotations__ else Options()
    real = getattr(holder, option.field)
    if real is not None or option.default == "auto":
        assert option.convert(option.name, option.default) == real
    else:
        assert not option.default.isdigit()


# Exit codes


def test_the_manual_shows_the_exit_codes() -> None:
    """The table has each code of `ExitCode` once, in ascending order."""
    assert [int(code) for code, _ in rows(section(MANUAL, "Exit codes"))] == [code.value for code in ExitCode]


def test_the_page_on_htcondor_has_the_exit_codes_of_a_slave() -> None:
    """It names all codes except the code of an interrupted master."""
    text = HTCONDOR[HTCONDOR.index("The exit codes of a slave") :].split("\n\n", maxsplit=1)[0]
    named = re.findall(r"\b(\d+):", text)
    assert [int(code) for code in named] == [code.value for code in ExitCode if code is not ExitCode.INTERRUPTED]


# Files

CONTENT = ResourceFile(
    IN_PROGRESS, 100.0, 10.0, "m", "g", ("tcp://h:1",), MemberKeys("a" * 40, "b" * 40, "c" * 40), 2, 1, 1, "/x", ()
)


def paragraph(name: str) -> str:
    """Return the paragraph of the manual's section on files that begins with this name."""
    return next(part for part in section(MANUAL, "Files").split("\n\n") if part.lstrip().startswith(f"*{name}*"))


def test_the_manual_names_the_keys_of_the_resource_file(tmp_path: Path) -> None:
    """The keys are in the order of the file. The manual also lists the values of `keys` and `computation-status`."""
    path = tmp_path / "rsc"
    write(path, CONTENT)
    document: dict[str, Any] = json.loads(path.read_text())
    found = re.search(r"Keys: (.*?)\.\s", paragraph("Resource file"), re.DOTALL)
    assert found
    inside = {key: code_in(text) for key, text in re.findall(r"`([^`]+)` \(([^)]*)\)", found[1]) if "`" in text}
    assert code_in(re.sub(r"\(.*?\)", "", found[1], flags=re.DOTALL)) == list(document)
    assert inside == {"computation-status": [IN_PROGRESS, FINISHED], "keys": list(document["keys"])}


def test_the_manual_says_who_can_read_the_resource_file(tmp_path: Path) -> None:
    """The file has the mode that the manual states."""
    path = tmp_path / "rsc"
    write(path, CONTENT)
    found = re.search(r"mode (\d+)", paragraph("Resource file"))
    assert found
    assert path.stat().st_mode & 0o777 == int(found[1], 8)


def test_the_manual_shows_lines_of_the_audit_file() -> None:
    """The lines for tasks and results look as the manual shows them."""
    shown = [text for text in code_in(paragraph("Audit file")) if "SLAVE" in text]
    sid = SlaveId("SLAVE-0")
    assert shown == [text_of(records.TasksReceived(sid, 10)), text_of(records.ResultsSent(sid, 10))]


# Calls


def shown_calls(title: str) -> list[tuple[str, str]]:
    """Return each `mw.NAME(ARGUMENTS)` of a section, and each `mw.NAME` without arguments."""
    text = " ".join(code_in(section(MANUAL, title)))
    return re.findall(r"\bmw\.(\w+)((?:\((?:\(\)|[^)])*\))?)", text)


def call_of(method: Callable[..., Any] | property) -> str:
    """Return the arguments of a method as the manual shows them, with defaults. A property has no arguments."""
    if isinstance(method, property):
        return ""
    taken = list(inspect.signature(method).parameters.values())[1:]
    return str(inspect.Signature([one.replace(annotation=one.empty) for one in taken])).replace("'", '"')


@pytest.mark.parametrize(("title", "of"), [("All calls of the master", Master), ("Slave algorithm", Slave)])
def test_the_manual_shows_every_method_with_its_arguments(title: str, of: type) -> None:
    """The manual shows each method and property of `mw` once, and nothing else."""
    methods = {name: method for each in reversed(of.__mro__) for name, method in vars(each).items()}
    offered = [(name, call_of(method)) for name, method in methods.items() if not name.startswith("_")]
    assert sorted(shown_calls(title)) == sorted(offered)


def test_the_reference_shows_each_public_name() -> None:
    """docs/reference.md has one line for each public name, and no other."""
    shown = re.findall(r"^::: mwpy\.(\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(shown) == sorted(mwpy.__all__), "correct docs/reference.md"


def test_the_manual_explains_each_cause() -> None:
    """The table names each cause, and says which the task is charged with."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|.*\| (.*) \|$", section(MANUAL, "Lost attempts"), re.MULTILINE)
    charged = {cause.name: "yes" if cause.is_charged else "no" for cause in Cause}
    assert dict(rows) == charged | {Cause.AGENT_LOST.name: "suspect"}
    assert f"lost {BLAMELESS_ALLOWED} times without its fault" in " ".join(MANUAL.split())


def test_the_manual_names_the_numbers_of_checkpoints() -> None:
    text = " ".join(section(MANUAL, "Checkpoint: tasks longer than a job").split())
    assert f"when {NEWEST_S:g} second has passed" in text
    assert f"left no state in {BLAMELESS_ALLOWED} uncharged attempts" in text
    assert f"or after {RESUMED_ALLOWED} of them" in text
    assert f"more than {STATES_BYTES >> 30} GiB" in text


def test_the_manual_names_the_numbers_of_reports() -> None:
    text = " ".join(section(MANUAL, "Reports of running tasks").split())
    assert f"when {NEWEST_S:g} second has passed" in text
    assert f"up to {MAX_REPORT_BYTES >> 10} KiB" in text


def test_the_manual_shows_what_a_report_has() -> None:
    text = " ".join(section(MANUAL, "Reports of running tasks").split())
    shown = next(code for code in code_in(text[text.index("- `mw.reports()`") :]) if code.startswith(".task_id"))
    assert {*shown.replace(".", "").split(", ")} == {name for name in dir(Report) if not name.startswith("_")}


def test_the_manual_shows_what_a_result_has() -> None:
    """The manual lists each attribute and property of `Result`, and no other; it shows the method elsewhere."""
    text = section(MANUAL, "What a result has")
    shown = code_in(text[text.index("`Result` has") :])[1]
    offered = {name for name in dir(Result) if not name.startswith("_")} - {"to_dict"}
    assert {*shown.replace(".", "").split(", ")} == offered


# Numbers that are written as words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (len(LoopCounts._fields), "something can be fetched, and returns {} counts"),
        (len(SlaveLoop._fields), "CL-MW's {} values"),
        (ATTEMPTS_MAX, "{} attempts are lost by its own fault"),
        (FIRST_S, "After {} seconds without possible progress"),
        (KEPT, "the newest of {} old files"),
    ],
)
def test_the_manual_counts_as_the_code_does(number: float, words: str) -> None:
    """The manual writes some numbers as words. They are equal to the numbers in the code."""
    assert words.format(NUMBERS[number]) in " ".join(MANUAL.split())


# Tests that documents name


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return the tests that a text names, as (file, function). A name without a file is in the file before it; a file
    alone has an empty function."""
    found: list[tuple[str, str]] = []
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::)?(test_\w+)?`", text):
        if path or name:
            found.append((path or found[-1][0], name))
    return found


def missing_tests(text: str) -> list[str]:
    """Return which of the tests that a text names do not exist."""
    return [
        f"{path}::{name}"
        for path, name in named_tests(text)
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8"))
    ]


def test_each_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "contributing" / "promises.md").read_text(encoding="utf-8")
    tables = [rows(table) for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    assert sum(map(len, tables)) > 30
    for promise, shown_by in (row for table in tables for row in table):
        assert named_tests(shown_by), f"{promise}: which test shows it?"
        assert not missing_tests(shown_by), promise


def test_each_feature_of_the_origins_names_its_tests() -> None:
    """Or it says that the feature is to come, or why it is not in mwpy."""
    text = (ROOT / "docs" / "contributing" / "origins.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == len(re.findall(r"^\|---\|---\|---\|$", text, re.MULTILINE))
    for feature, how, shown_by in (row for table in tables for row in rows(table)):
        named = [name for _, name in named_tests(shown_by)]
        assert named or "*to come" in how or how.startswith("*not in mwpy*: "), f"{feature}: which test shows it?"
        assert all(named), f"{feature}: name the test in its file"
        assert not missing_tests(shown_by), feature
