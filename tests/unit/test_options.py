"""The `--mw-*` options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mwpy._values.errors import UsageError
from mwpy._values.options import (
    OPTIONS,
    MasterStream,
    Options,
    Role,
    help_text,
    parse,
    slave_or_template,
    thread_limits,
)
from mwpy._values.policy import Policies


def test_options_can_be_anywhere_and_the_other_arguments_keep_their_order() -> None:
    """The algorithm gets only its own arguments."""
    options, rest = parse(["a", "--mw-master", "b", "--mw-audit-file", "x.audit", "--mw-local=3", "c"])
    assert rest == ["a", "b", "c"]
    assert (options.role, options.audit_file, options.local) == (Role.MASTER, "x.audit", 3)


def test_two_dashes_end_the_options() -> None:
    """All arguments after `--` belong to the algorithm, even if they look like options."""
    options, rest = parse(["--mw-slave", "--", "--mw-master"])
    assert options.role is Role.SLAVE
    assert rest == ["--", "--mw-master"]


def test_the_user_decides_which_silence_is_too_long_and_otherwise_the_master() -> None:
    """The resource file of the master has its value. Without a resource file, the default holds."""
    given, _ = parse(["--mw-client-timeout", "7"])
    assert (given.silence_s(), given.silence_s(2.0)) == (7.0, 7.0)
    assert (Options().silence_s(), Options().silence_s(2.0)) == (30.0, 2.0)


def test_the_key_can_come_from_the_environment() -> None:
    """`MWPY_KEY` replaces a key file."""
    assert parse([], {"MWPY_KEY": "k"})[0].key == "k"


def test_the_end_of_another_job_is_named_and_ignored() -> None:
    """The variable can come from a shell in an allocation that has ended. A lifetime counts, whatever the job's end."""
    options = Options(job_end=1000.0)
    assert (options.seconds_left(990.0), options.about_past_end(990.0)) == (10.0, "")
    assert options.seconds_left(1007.0) is None
    assert options.about_past_end(1007.0).startswith(
        "SLURM_JOB_END_TIME says that this job ended 7 s ago, so it is from another job, and is ignored: unset it"
    )
    assert Options(job_end=1000.0, lifetime=5.0).about_past_end(1007.0) == ""
    assert Options().about_past_end(1007.0) == ""


def test_options_after_the_resource_file_override_it() -> None:
    """As in CL-MW, the later option counts: the resource file or the member id."""
    before, _ = parse(["--mw-member-id", "mine", "--mw-resource-file", "f"])
    after, _ = parse(["--mw-resource-file", "f", "--mw-member-id", "mine"])
    assert "member_id" not in before.after_file
    assert "member_id" in after.after_file


@pytest.mark.parametrize(("text", "end"), [("1795271766", 1795271766.0), ("NONE", None), ("", None)])
def test_slurm_sets_the_end_of_a_job(text: str, end: float | None) -> None:
    """A job without a time limit has no end. A local agent ignores it, because its master decides."""
    assert parse(["--mw-slave"], {"SLURM_JOB_END_TIME": text})[0].job_end == end
    assert parse([], {"SLURM_JOB_END_TIME": text, "MWPY_AGENT": "[]"})[0].job_end is None


@pytest.mark.parametrize(
    ("node", "cpu", "cpus", "memory"),
    [
        ("512", "", "", 512 << 20),
        ("0", "", "", None),
        ("$$([RequestMemory])", "", "", None),
        ("", "512", "4", 2 << 30),
        ("", "512", "", None),
        ("", "512", "0", None),
        ("100", "512", "4", 100 << 20),
    ],
)
def test_slurm_sets_the_memory_of_a_job(node: str, cpu: str, cpus: str, memory: int | None) -> None:
    """As a whole or for each processor. A local agent has the same job as its master."""
    job = {"SLURM_MEM_PER_NODE": node, "SLURM_MEM_PER_CPU": cpu, "SLURM_CPUS_ON_NODE": cpus}
    assert parse(["--mw-slave"], job)[0].job_memory == memory
    assert parse([], job | {"MWPY_AGENT": "[]"})[0].job_memory == memory


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--mw-slav"], "did you mean --mw-slave?"),
        (["--mw-qqqqqqqq"], "--mw-help-all lists the options"),
        (["--mw-local"], "needs a value: write --mw-local N"),
        (["--mw-local", "x"], "--mw-local='x': give a whole number from 0 to 10,000"),
        (["--mw-local", "-1"], "give a whole number from 0"),
        (["--mw-local", "1.5"], "give a whole number"),
        (["--mw-member-id", "x" * 256], "has 256 characters: give at most 255"),
        (["--mw-local", "1" + 20 * "0"], "give a whole number from 0 to 10,000"),
        (["--mw-slave", "--mw-local", "1"], "--mw-slave-processes N sets the number"),
        (["--mw-client-timeout", "inf"], "give a number of seconds from 0.1 to 1,000,000,000"),
        (["--mw-client-timeout", "nan"], "give a number of seconds from 0.1"),
        (["--mw-master-port", "70000"], "give a port from 1 to 65,535"),
        (["--mw-member-id="], "--mw-member-id is empty"),
        (["--mw-audit-level", "all"], "--mw-audit-level='all': give events or groups"),
        (["--mw-master=yes"], "takes no value"),
        (["--mw-master", "--mw-slave"], "exclude each other"),
        (["--mw-examine"], "--mw-examine is for agents: write --mw-slave --mw-examine"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_the_remedy(argv: list[str], words: str) -> None:
    """The message says what is wrong and what to write instead."""
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_help_explains_every_option_once_and_first_those_that_matter() -> None:
    shown = re.findall(r"^  --mw-(\S+)", help_text("app.py", every_option=True), re.MULTILINE)
    assert shown[:3] == ["local", "master", "slave"]
    assert shown == [option.name for option in OPTIONS]
    for option in OPTIONS:
        known = hasattr(Options(), option.field) or option.field in Policies.__annotations__
        assert known or option.name in ("master", "slave")
        assert option.sentence.endswith(".")


def test_the_short_help_fits_on_a_terminal() -> None:
    """It explains the roles, and some of the other options with the first clause of their sentence."""
    lines = help_text("app.py", every_option=False).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for role in ("Without a role: run the", "--mw-master Be the master.", "--mw-slave Be an agent with slaves."):
        assert role in text
    assert "--mw-resource-file FILE Master: write this file for batch systems and slaves." in text
    assert lines[-1] == "--mw-help-all explains all options."


@pytest.mark.parametrize("name", ["memory-max", "slave-max-memory", "max-read-buffer-size", "max-waiting-results"])
def test_a_number_of_bytes_may_have_a_unit(name: str) -> None:
    options, _ = parse([f"--mw-{name}", "4 GB"])
    field = name.replace("-", "_")
    assert (options.policies.get(field) or getattr(options, field)) == 4 << 30
    for wrong in ("0", "-1", "much", "4 PB"):
        with pytest.raises(UsageError, match=f"^--mw-{name}={wrong!r}: give a number of bytes"):
            parse([f"--mw-{name}", wrong])


def test_options_set_the_policies_of_all_tasks() -> None:
    options, _ = parse(["--mw-attempts-max", "2", "--mw-seconds-max", "0.5", "--mw-memory-max=4 GB"])
    assert options.policies == {"attempts_max": 2, "seconds_max": 0.5, "memory_max": 4 << 30}
    assert parse([])[0].policies == {}


def test_a_local_agent_uses_the_options_of_its_environment_and_the_arguments_of_the_script() -> None:
    """The command line is the master's, so the role in it does not count."""
    environment = {"MWPY_AGENT": '["--mw-slave", "--mw-master-host", "h", "--mw-master-port", "7"]', "MWPY_KEY": "k"}
    options, rest = parse(["a", "--mw-local", "2", "--", "--mw-x"], environment)
    assert (options.role, options.master_host, options.master_port) == (Role.SLAVE, "h", 7)
    assert (options.key, options.local) == ("k", None)
    assert rest == ["a", "--", "--mw-x"]


@pytest.mark.parametrize("text", ["", "yes", "[1, 2]", '{"a": "b"}'])
def test_directions_that_no_master_wrote_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MWPY_AGENT is set, but not by a master: unset it"):
        parse([], {"MWPY_AGENT": text})


def test_a_master_passes_the_options_about_slaves_on_to_agents() -> None:
    """Only those that were given. The agents on its own machine stay when they are idle."""
    given = ["--mw-slave-max-tasks", "7", "--mw-slave-max-memory", "4 GB", "--mw-idle-exit", "60"]
    options, _ = parse(given)
    slaves = ["--mw-slave-max-tasks", "7", "--mw-slave-max-memory", str(4 << 30)]
    assert options.for_agents(local=True) == slaves
    assert options.for_agents(local=False) == [*slaves, "--mw-idle-exit", "60.0"]
    assert parse(options.for_agents(local=False))[0] == options
    assert Options().for_agents(local=False) == []


def test_options_can_be_made_from_values_of_python() -> None:
    options = Options.of(slave_max_tasks=None, slave_max_memory="1 KB", slave_start_timeout=7)
    assert options == Options(slave_max_memory=1024, slave_start_timeout=7.0)
    assert Options.of(slave_max_memory=5) == Options(slave_max_memory=5)
    assert Options.of(reuse_changed_code=None) == Options()
    with pytest.raises(UsageError, match="reuse_changed_code='no': give True or False"):
        Options.of(reuse_changed_code="no")
    given = Options.of(run_database=Path("run.db"), reuse_changed_code=True)
    assert given == Options(run_database="run.db", reuse_changed_code=True)
    with pytest.raises(UsageError, match="slave_max_tasks='True': give a whole number"):
        Options.of(slave_max_tasks=True)
    with pytest.raises(UsageError, match=r"slave_max_tasks=\'2\.5\': give a whole number"):
        Options.of(slave_max_tasks=2.5)


@pytest.mark.parametrize(
    ("options", "is_near"),
    [
        (Options(job_end=1000.0), False),
        (Options(job_end=1120.0), True),
        (Options(job_end=1121.0), False),
        (Options(job_end=1120.0, lifetime=5.0), False),
        (Options(), False),
    ],
)
def test_a_signal_shortly_before_the_known_end_of_a_job_announces_this_end(options: Options, is_near: bool) -> None:
    assert options.is_near_the_end(1000.0) is is_near


@pytest.mark.parametrize("text", ["", "1", "{", '{"stream": 3}', '{"shoe": 1}'])
def test_settings_that_no_agent_or_master_wrote_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MWPY_SLAVE is set, but not by an agent"):
        slave_or_template(text)
    with pytest.raises(UsageError, match="MWPY_MASTER is set, but not by a master"):
        MasterStream.from_json(text)


@pytest.mark.parametrize(("cores", "slaves", "share"), [(64, 64, "1"), (64, 6, "10"), (2, 8, "1"), (8, 1, "8")])
def test_a_slave_gets_its_share_of_the_cores_for_the_threads_of_numeric_libraries(
    cores: int, slaves: int, share: str
) -> None:
    limits = thread_limits({}, cores, slaves)
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"} <= set(limits)
    assert set(limits.values()) == {share}


def test_the_users_own_limit_of_threads_is_kept() -> None:
    """Each library reads OMP_NUM_THREADS if its own variable is missing, so the limit there counts for all of them."""
    assert "MKL_NUM_THREADS" not in thread_limits({"MKL_NUM_THREADS": "3"}, 8, 2)
    assert thread_limits({"MKL_NUM_THREADS": "3"}, 8, 2)["OMP_NUM_THREADS"] == "4"
    assert thread_limits({"OMP_NUM_THREADS": "2"}, 8, 2) == {}
    assert thread_limits({"OMP_NUM_THREADS": "2", "PYTHON_CPU_COUNT": "4"}, 8, 2) == {}


def test_the_slaves_of_a_job_share_the_number_of_threads_that_the_batch_system_set_for_the_job() -> None:
    """HTCondor sets each of these variables to the number of processors of the job."""
    of_job = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHON_CPU_COUNT"), "4")
    assert thread_limits(of_job, 8, 4) == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert thread_limits(of_job, 8, 1) == {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    limits = thread_limits({"MKL_NUM_THREADS": "6", "NCPUS": "6"}, 8, 2)
    assert (limits["MKL_NUM_THREADS"], limits["OMP_NUM_THREADS"]) == ("3", "3")


@pytest.mark.parametrize("name", ["SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "NSLOTS", "NCPUS", "PBS_NUM_PPN"])
def test_the_slaves_of_a_job_share_no_more_cores_than_it_has(name: str) -> None:
    """A batch system that does not bind its jobs to cores lets a process use all cores of the machine."""
    assert thread_limits({name: "4"}, 64, 2)["OMP_NUM_THREADS"] == "2"
    assert thread_limits({name: "128"}, 64, 2)["OMP_NUM_THREADS"] == "32"
