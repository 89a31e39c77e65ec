"""The `--mw-*` options."""

from __future__ import annotations

import pytest

from mwpy._values.errors import UsageError
from mwpy._values.options import OPTIONS, Options, Role, help_text, parse


def test_without_options_a_computation_runs_here() -> None:
    """No option at all: the local role, every argument left alone."""
    options, rest = parse(["--pings", "3"])
    assert options == Options()
    assert options.role is Role.LOCAL
    assert rest == ["--pings", "3"]


def test_options_are_taken_out_in_any_place_and_the_rest_keeps_its_order() -> None:
    """The algorithm sees its own arguments only, as they stood."""
    options, rest = parse(["a", "--mw-master", "b", "--mw-audit-file", "x.audit", "--mw-local=3", "c"])
    assert rest == ["a", "b", "c"]
    assert (options.role, options.audit_file, options.local) == (Role.MASTER, "x.audit", 3)


def test_two_dashes_end_the_options() -> None:
    """What follows `--` belongs to the algorithm, whatever it looks like."""
    options, rest = parse(["--mw-slave", "--", "--mw-master"])
    assert options.role is Role.SLAVE
    assert rest == ["--", "--mw-master"]


def test_groups_are_numbers_or_auto() -> None:
    """`auto` is the default, and can be said."""
    options, _ = parse(["--mw-slave-task-group", "7", "--mw-slave-result-group", "auto"])
    assert options.slave_task_group == 7
    assert options.slave_result_group is None


def test_the_key_may_come_from_the_environment() -> None:
    """`MWPY_KEY` serves where no key file does."""
    assert parse([], {"MWPY_KEY": "k"})[0].key == "k"


def test_what_is_given_after_the_resource_file_wins_over_it() -> None:
    """As in CL-MW: the later of the file and the member id directs a slave."""
    before, _ = parse(["--mw-member-id", "mine", "--mw-resource-file", "f"])
    after, _ = parse(["--mw-resource-file", "f", "--mw-member-id", "mine"])
    assert before.directed_to("the file's") == "the file's"
    assert after.directed_to("the file's") == "mine"


@pytest.mark.parametrize(("text", "end"), [("1795271766", 1795271766.0), ("NONE", None), ("", None)])
def test_slurm_tells_when_a_job_ends(text: str, end: float | None) -> None:
    """A job without a time limit has no end; a local agent's is its master's affair."""
    assert parse(["--mw-slave"], {"SLURM_JOB_END_TIME": text})[0].job_end == end
    assert parse([], {"SLURM_JOB_END_TIME": text, "MWPY_AGENT": "[]"})[0].job_end is None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--mw-slav"], "did you mean --mw-slave?"),
        (["--mw-qqqqqqqq"], "--mw-help lists the options"),
        (["--mw-local"], "needs a value: write --mw-local N"),
        (["--mw-local", "x"], "must be a whole number"),
        (["--mw-local", "0"], "must be 1 or more"),
        (["--mw-local", "1.5"], "must be a whole number"),
        (["--mw-local", "1" + 20 * "0"], "must be 1 or more and at most 1,000,000"),
        (["--mw-slave", "--mw-local", "1"], "--mw-slave-processes N sets the number"),
        (["--mw-client-timeout", "inf"], "must be 0.1 or more and at most 1,000,000,000"),
        (["--mw-client-timeout", "nan"], "must be 0.1 or more"),
        (["--mw-master-port", "70000"], "at most 65,535"),
        (["--mw-member-id="], "must not be empty"),
        (["--mw-master=yes"], "takes no value"),
        (["--mw-master", "--mw-slave"], "exclude each other"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_remedy(argv: list[str], words: str) -> None:
    """A bad option says what is wrong and what to write instead."""
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_help_explains_every_option_with_its_default() -> None:
    """Each option of the table is in the help, with its sentence."""
    text = help_text("app.py")
    for option in OPTIONS:
        assert f"--mw-{option.name}" in text
        assert option.sentence in text
        assert not option.default or f"Default: {option.default}." in text
        assert hasattr(Options(), option.field) or option.name in ("master", "slave")


def test_a_local_agent_goes_by_its_environment_and_keeps_the_scripts_arguments() -> None:
    """What its command line says of roles is its master's."""
    environment = {"MWPY_AGENT": '["--mw-slave", "--mw-master-host", "h", "--mw-master-port", "7"]', "MWPY_KEY": "k"}
    options, rest = parse(["a", "--mw-local", "2", "--", "--mw-x"], environment)
    assert (options.role, options.master_host, options.master_port) == (Role.SLAVE, "h", 7)
    assert (options.key, options.local) == ("k", None)
    assert rest == ["a", "--", "--mw-x"]
    with pytest.raises(UsageError, match="MWPY_AGENT is set, but not by a master: unset it"):
        parse([], {"MWPY_AGENT": "yes"})
