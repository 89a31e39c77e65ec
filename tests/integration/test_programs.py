"""Programs as task algorithms: `mwpy.command`, their files, and how they fail."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import fetched, is_gone, until

import mwpy
from mwpy import CommandFailed, Outcome, UsageError
from mwpy._transport.codec import Codec, has_code
from mwpy.sweep.stages import Named

PYTHON = sys.executable


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.LocalMaster]:
    with mwpy.local_master(slaves=2) as master:
        yield master


def program(code: str, **options: Any) -> mwpy.Command:
    """A program of Python that gets the value of `x` as its argument."""
    return mwpy.command([PYTHON, "-c", code, "{x}"], name="program", **options)


def test_values_arrive_unchanged_and_the_outcome_says_how_it_went(mw: mwpy.LocalMaster) -> None:
    echo = program("import sys; print(ascii(sys.argv[1]), end='')")
    values = ["a  b", 'it\'s "x"', "-n", "--", "é\n", "$HOME", "*", ""]
    outcomes = list(mw.map(echo, values))
    assert [outcome.stdout for outcome in outcomes] == [ascii(value) for value in values]
    first = outcomes[0]
    assert first.ok
    assert first.exit_code == 0
    assert first.host
    assert first.seconds > 0
    assert first.peak_memory > 1_000_000
    assert first.command.endswith("'a  b'")


def test_each_run_has_a_folder_of_its_own_that_is_removed(mw: mwpy.LocalMaster) -> None:
    where = program("import os; print(os.getcwd(), *sorted(os.listdir()), open('parameters.json').read(), sep='\\n')")
    outcomes = list(mw.map(where, [1, 2]))
    folders = [Path(outcome.stdout.splitlines()[0]) for outcome in outcomes]
    assert len({*folders}) == 2
    assert not any(folder.exists() for folder in folders)
    assert outcomes[0].stdout.splitlines()[1:] == ["parameters.json", '{"x": 1}']


def test_files_come_into_the_folder_and_back(mw: mwpy.LocalMaster, tmp_path: Path) -> None:
    """Inputs, rendered templates, files as values, text on standard input, and outputs that are named or a pattern."""
    big = os.urandom(200_000)
    (tmp_path / "big.bin").write_bytes(big)
    (tmp_path / "job.sh").write_text("#!/bin/sh\ncat > copy.txt; cp big.bin out/a.bin; cp $1 out/b.bin; cat conf.ini\n")
    (tmp_path / "job.sh").chmod(0o755)
    (tmp_path / "conf.in").write_text("alpha={alpha:.2f} {{alpha}}\n")
    (tmp_path / "conf.d").write_text("")
    job = mwpy.command(
        "./job.sh {data}",
        inputs=[tmp_path / "job.sh", tmp_path / "big.bin"],
        templates={"conf.ini": tmp_path / "conf.in", "out/empty": tmp_path / "conf.d"},
        stdin="alpha is {alpha}",
        outputs={"copy": "copy.txt", "all": "out/*.bin", "text": "STDOUT", "never": "x{alpha}.txt"},
        optional=["never"],
    )
    (tmp_path / "data").write_bytes(b"data")
    mw.submit(job.task(alpha=0.5, data=mwpy.file(tmp_path / "data", name="given.dat")))
    outcome = _only_result(mw).value
    assert outcome.stdout == "alpha=0.50 {alpha}\n"
    copy, files = outcome.outputs["copy"], outcome.outputs["all"]
    assert copy.read_text() == "alpha is 0.5"
    assert [file.name for file in files] == ["a.bin", "b.bin"]
    assert files[0].read_bytes() == big
    assert files[1].read_bytes() == b"data"
    assert "never" not in outcome.outputs
    assert outcome.outputs["text"].read_text() == outcome.stdout
    assert files[0].save(tmp_path / "saved").read_bytes() == big


def test_outputs_that_only_serve_later_tasks_are_not_saved(mw: mwpy.LocalMaster, tmp_path: Path) -> None:
    outputs = {"mesh": "{x}.mesh", "plots": "*.png", "said": "STDOUT"}
    make = mwpy.command("sh -c 'touch {x}.mesh a.png b.png; echo {x}'", outputs=outputs, intermediate=["mesh"])
    mw.submit(make.task(x=7))
    outcome = _only_result(mw).value
    assert (outcome.outputs["mesh"].name, outcome.intermediate) == ("7.mesh", ("mesh",))
    saved = outcome.save(tmp_path / "study" / "7")
    assert [path.relative_to(tmp_path) for path in saved] == [Path("study/7") / n for n in ("a.png", "b.png", "STDOUT")]
    assert (tmp_path / "study/7/STDOUT").read_text() == "7\n"
    outcome.outputs["other"] = mwpy.File("a.png", b"other")
    with pytest.raises(UsageError, match=rf"two files have the name a\.png in {tmp_path}: save one of them apart"):
        outcome.save(tmp_path)


def test_inputs_stay_in_a_folder_that_the_user_chose_and_are_not_written_again(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho one\n")
    script.chmod(0o755)
    there = tmp_path / "host" / "run.sh"
    there.parent.mkdir()
    assert mwpy.command("./run.sh", inputs=[script], folder=there.parent)().stdout == "one\n"
    first = there.stat()
    assert mwpy.command("./run.sh", inputs=[script], folder=there.parent)().stdout == "one\n"
    assert there.stat() == first
    script.write_text("#!/bin/sh\necho two\n")
    assert mwpy.command("./run.sh", inputs=[script], folder=there.parent)().stdout == "two\n"
    assert [path.name for path in there.parent.iterdir()] == ["run.sh"]


def test_a_template_in_a_folder_that_the_user_chose_is_never_seen_half_written(tmp_path: Path) -> None:
    """Another run may read it meanwhile, so it is replaced as a whole, and only if its text has changed."""
    (tmp_path / "conf.in").write_text("x = {x}\n")
    there = tmp_path / "host" / "conf"
    there.parent.mkdir()
    program = mwpy.command("cat conf", templates={"conf": tmp_path / "conf.in"}, folder=there.parent)
    assert program(x=1).stdout == "x = 1\n"
    first = there.stat()
    assert program(x=1).stdout == "x = 1\n"
    assert there.stat() == first
    with there.open() as other:
        assert program(x=2).stdout == "x = 2\n"
        assert other.read() == "x = 1\n"


def test_an_output_is_the_input_of_a_later_program(mw: mwpy.LocalMaster) -> None:
    make = mwpy.command("cp parameters.json {name}", outputs={"made": "{name}", "several": "*.json"})
    use = mwpy.command("cat {one} {several}")
    first = mw.submit(make.task(name="a.txt"))
    mw.submit(use.task(one=mwpy.output(first, "made"), several=mwpy.output(first, "several")), tag="use")
    mw.submit(use.task(one=mwpy.output(first, "no such"), several=""), tag="wrong")
    ended = {result.tag: result for result in fetched(mw, 3)}
    assert ended["use"].value.stdout == '{"name": "a.txt"}' * 2
    assert "has no output no such (there are: made, several)" in str(ended["wrong"].error)


def test_a_program_that_a_task_has_built_is_run_by_later_tasks(mw: mwpy.LocalMaster) -> None:
    """It can still be executed."""
    build = mwpy.command(
        'sh -c \'echo "#!/bin/sh" > tool; echo "echo tool \\$1" >> tool; chmod +x tool\'', outputs=["tool"]
    )
    built = mw.submit(build.task())
    for number in 1, 2:
        mw.submit(mwpy.command("./{tool} {number}").task(tool=mwpy.output(built, "tool"), number=number), tag=number)
    ended = {result.tag: result.value.stdout for result in fetched(mw, 3)}
    assert (ended[1], ended[2]) == ("tool 1\n", "tool 2\n")


def test_a_program_that_failed_runs_again_only_if_this_is_asked_for(mw: mwpy.LocalMaster, tmp_path: Path) -> None:
    fails = mwpy.command(f"sh -c 'echo >> {tmp_path}/{{name}}; test $(wc -l < {tmp_path}/{{name}}) = 2'")
    mw.submit(fails.task(name="once"), tag="once")
    mw.submit(fails.task(name="again"), tag="again", retry_errors=mwpy.CommandFailed)
    assert {result.tag: result.ok for result in fetched(mw, 2)} == {"once": False, "again": True}
    assert [(tmp_path / name).read_text() for name in ("once", "again")] == ["\n", "\n\n"]


def _only_result(mw: mwpy.LocalMaster) -> mwpy.Result[Any]:
    [result] = fetched(mw, 1)
    return result


FAILING: list[tuple[mwpy.Command, str]] = [
    (mwpy.command("sh -c {x}"), "it ended with exit code 3 (on "),
    (mwpy.command("sh -c {x}", check=[0, 1]), "it ended with exit code 3 (on "),
    (
        mwpy.command("sh -c 'kill -9 $$' {x}"),
        "SIGKILL ended it: most often, the kernel sends it for lack of memory; then raise memory_max",
    ),
    (mwpy.command("no-such-program {x}"), "there is no program no-such-program in PATH"),
    (mwpy.command("/no/such {x}"), "there is no program /no/such"),
    (mwpy.command("./parameters.json {x}"), "parameters.json is not executable; set this with chmod +x"),
    (mwpy.command("true {x}", outputs=["a.txt"]), "it wrote no file a.txt (in its folder are: parameters.json)"),
    (mwpy.command("echo {x}", check="energy = .*"), "its standard output has no 'energy = .*'"),
    (mwpy.command("echo {x}", check=lambda outcome: "too cold"), "too cold (on "),
    (mwpy.command("echo {x}", check=lambda outcome: False), "its check says that it failed (on "),
    (mwpy.command("head -c 3000 /dev/zero {x}", max_output=2000, check=None), "bytes, more than max_output=2000"),
    (mwpy.command("true {x}", before="echo before >&2; false"), "it ended with exit code 1 (on "),
]


@pytest.mark.parametrize(("command", "said"), FAILING, ids=lambda value: value if isinstance(value, str) else "")
def test_a_failure_says_what_ran_and_why_it_failed(command: mwpy.Command, said: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        command(x="echo some; echo last lines >&2; exit 3")
    assert said in str(failed.value)
    if failed.value.outcome is not None and failed.value.outcome.exit_code == 3:
        assert "its last lines:\nlast lines\nto repeat it: sh -c 'echo some" in str(failed.value)


def test_a_run_without_room_for_its_files_did_not_start(mw: mwpy.LocalMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CONDOR_SCRATCH_DIR", "/no/such/folder")
    with pytest.raises(mwpy.NotStarted) as failed:
        mwpy.command("true")()
    assert "a file of the run cannot be used: No such file or directory: /no/such/folder/mwpy-" in str(failed.value)
    assert "cannot be used" in mwpy.command("true").outcome().error
    mw.submit(mwpy.command("no-such-program", retry_errors=mwpy.NotStarted, attempts_max=2).task())
    result = _only_result(mw)
    assert result.error is not None
    assert isinstance(result.error.__cause__, mwpy.NotStarted)
    assert result.attempts == 2


def test_a_failure_is_the_result_of_its_task(mw: mwpy.LocalMaster) -> None:
    mw.submit(mwpy.command("sh -c {x}").task(x="echo out; exit 4"), tag="a")
    error = _only_result(mw).error
    assert error is not None
    assert isinstance(error.__cause__, CommandFailed)
    assert error.__cause__.outcome is not None
    assert (error.__cause__.outcome.exit_code, error.__cause__.outcome.stdout) == (4, "out\n")


def test_the_folder_of_a_failed_run_comes_back(mw: mwpy.LocalMaster) -> None:
    """At most 10 MB of it: the names of the other files are listed."""
    line = "sh -c 'echo said; mkdir sub; echo x > sub/a; head -c 10000001 /dev/zero > b; exit {code}'"
    mw.submit(mwpy.command(line, keep="failed").task(code=3))
    error = _only_result(mw).error
    assert error is not None
    assert isinstance(error.__cause__, CommandFailed)
    assert error.__cause__.outcome is not None
    kept = error.__cause__.outcome.archive
    assert kept is not None
    with tarfile.open(fileobj=io.BytesIO(kept.read_bytes())) as archive:
        content = {name: (archive.extractfile(name) or io.BytesIO()).read().decode() for name in archive.getnames()}
    assert content.pop("COMMAND").startswith("sh -c 'echo said; ")
    assert content == {
        "STDERR": "",
        "STDOUT": "said\n",
        "parameters.json": '{"code": 3}',
        "sub/a": "x\n",
        "LEFT_OUT": "b (10000001 bytes)\n",
    }
    assert mwpy.command("true", keep="failed")().archive is None
    assert mwpy.command("true", keep="all")().archive is not None


def test_bytes_that_are_not_text_are_shown_and_kept() -> None:
    outcome = mwpy.command(r"printf \\377\\000a")()
    assert (outcome.stdout, outcome.stdout_file.read_bytes()) == ("\\xff\0a", b"\xff\0a")


def test_a_long_output_is_a_file(mw: mwpy.LocalMaster) -> None:
    mw.submit(mwpy.command("head -c {size} /dev/zero").task(size=300_000))
    assert _only_result(mw).value.stdout_file.read_bytes() == bytes(300_000)


def test_a_program_runs_in_another_version_of_python_unless_its_check_is_a_function_of_the_script() -> None:
    codec = Codec({})
    for check, expected in (0, False), ("E=", False), (lambda outcome: outcome.ok, True):
        assert has_code(codec.dumps_function(mwpy.command("echo {x}", check=check), "echo")) == expected
    assert not has_code(codec.dumps_function(Named("echo"), "echo"))


def test_a_check_and_the_login_shell_run_where_the_program_runs() -> None:
    checked: list[int] = []

    def check(outcome: Outcome) -> bool:
        checked.append(outcome.exit_code)
        return outcome.exit_code == 7

    run = mwpy.command("sh -c 'echo $MODE $SPEED; exit 7'", env={"SPEED": "{x}"}, before="export MODE=m", check=check)
    assert run("it's").stdout == "m it's\n"
    assert checked == [7]


@pytest.mark.parametrize(
    ("line", "before", "clean_up", "code"),
    [
        ("echo $X", "export X=ran", "echo $X; false; echo no", 1),
        ("sh -c 'echo ran; exit 3'", "", "echo ran; exit 4", 3),
        ("echo no", "echo ran; false", "echo ran", 1),
        ("sh -c 'echo ran; kill -9 $$'", "", ["X=ran", "echo $X"], 137),
    ],
)
def test_the_clean_up_runs_after_each_program(line: str, before: str, clean_up: Any, code: int) -> None:
    """It fails the run only if the program succeeded."""
    outcome = mwpy.command(line, shell=line == "echo $X", before=before, clean_up=clean_up).outcome()
    assert (outcome.exit_code, outcome.stdout, outcome.ok) == (code, "ran\nran\n", code == 0)


def test_the_clean_up_runs_after_a_program_that_was_ended() -> None:
    outcome = mwpy.command("cat /dev/zero", clean_up="echo cleaned >&2", max_output=1000).outcome()
    assert "more than max_output" in outcome.error
    assert outcome.stderr.endswith("cleaned\n")


def test_a_folder_is_named_by_task_and_attempt(mw: mwpy.LocalMaster) -> None:
    """So the folder of a run that hangs can be found on its host."""
    task = mw.submit(mwpy.command("pwd").task())
    assert Path(_only_result(mw).value.stdout).name.startswith(f"mwpy-{task}-1-")
    task = mw.submit(mwpy.task(mwpy.this_attempt))
    assert _only_result(mw).value == mwpy.Attempt(task, 1)
    assert mwpy.this_attempt() is None


def test_a_program_can_be_followed_while_it_runs_and_the_rest_is_in_its_outcome(
    mw: mwpy.LocalMaster, tmp_path: Path
) -> None:
    """What grows too quickly is counted, and its end is there."""
    wait = "while ! test -e {gate}/%d; do sleep 0.02; done"
    line = f"echo one; {wait % 1}; head -c 60000 /dev/zero; echo two; {wait % 2}; echo three"
    task = mw.submit(mwpy.command(line, shell=True, follow=["STDOUT"]).task(gate=tmp_path))
    assert _next_part(mw, task) == b"one\n"
    (tmp_path / "1").touch()
    parts = b""
    while not parts.endswith(b"two\n"):
        parts += _next_part(mw, task)
    left_out = re.findall(rb"\[(\d+) bytes are left out\]\n", parts)
    assert sum(map(int, left_out)) + parts.count(b"\0") == 60000
    assert left_out
    (tmp_path / "2").touch()
    size, end = _only_result(mw).value.followed["STDOUT"]
    assert (size, end[-10:]) == (60014, b"two\nthree\n")
    assert mw.follow(task) == {}


def _next_part(mw: mwpy.LocalMaster, task: mwpy.TaskId) -> bytes:
    while not (parts := mw.follow(task)):
        mw.loop(timeout=0.1)
    return parts["STDOUT"]


def test_only_programs_can_be_followed(mw: mwpy.LocalMaster, tmp_path: Path) -> None:
    task = mw.submit(mwpy.task(_report_a_number, tmp_path / "gate"))
    with pytest.raises(mwpy.UsageError, match=f"task {task} reports values of its own"):
        _next_part(mw, task)
    (tmp_path / "gate").touch()
    _only_result(mw)


def _report_a_number(gate: Path) -> None:
    mwpy.report(loss=1.5)
    while not gate.exists():
        time.sleep(0.02)


def test_a_growing_file_can_be_followed(mw: mwpy.LocalMaster, tmp_path: Path) -> None:
    """The report has its size and its end. The program waits until the report was seen."""
    line = "sh -c 'echo one; echo two > log; while ! test -e {gate}; do sleep 0.02; done'"
    run = mwpy.command(line, follow=["STDOUT", "log", "never"])
    task = mw.submit(run.task(gate=tmp_path / "gate"))
    reports: list[mwpy.Report] = []
    while not reports:
        mw.loop(timeout=0.1)
        reports = mw.reports()
    assert reports[0].task_id == task
    assert reports[0].values == {"STDOUT": (4, b"one\n"), "log": (4, b"two\n")}
    (tmp_path / "gate").touch()
    assert _only_result(mw).ok


# What is left of a program


LEAVES_A_CHILD = "sh -c 'sleep 1000 & echo $! > {file}; trap \"\" TERM; {then}'"


def test_children_that_a_program_leaves_are_killed_and_nobody_waits_for_them(tmp_path: Path) -> None:
    mwpy.command(LEAVES_A_CHILD.replace("{then}", "exit 0"))(file=tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())
    until(lambda: is_gone(pid), "an end of the child")


@pytest.mark.parametrize("how", ["cancel", "seconds_max"])
def test_the_whole_group_of_a_program_that_ignores_sigterm_is_killed(how: str, tmp_path: Path) -> None:
    stays = mwpy.command(LEAVES_A_CHILD.replace("{then}", "while true; do sleep 1; done"), attempts_max=1)
    with mwpy.local_master(slaves=1) as mw:
        limits: mwpy.Policies = {"seconds_max": 1.0} if how == "seconds_max" else {}
        task = mw.submit(stays.task(file=tmp_path / "pid"), **limits)
        until((tmp_path / "pid").exists, "a child")
        until(lambda: (tmp_path / "pid").read_text().endswith("\n"), "its id")
        pid = int((tmp_path / "pid").read_text())
        if how == "cancel":
            mw.cancel([task])
        error = _only_result(mw).error
        assert isinstance(error, mwpy.TaskCancelled if how == "cancel" else mwpy.TaskUnrunnable)
        until(lambda: is_gone(pid), "an end of the child")


def test_a_signal_to_the_terminal_does_not_reach_programs(tmp_path: Path) -> None:
    """A program has a process group of its own."""
    group = mwpy.command("sh -c 'ps -o pgid= -p $$; echo $$'")
    ids = group().stdout.split()
    assert ids[0] == ids[1] != str(os.getpgrp())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Mistakes


def test_mistakes_are_found_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("{beta}")
    (tmp_path / "x").write_bytes(b"\xff")
    two, template = [tmp_path / "a" / "x", tmp_path / "x"], {"t": tmp_path / "a" / "x"}
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: mwpy.command("run {a}").task(b=1), "no placeholder {b}: it has {a}"),
        (lambda: mwpy.command("run {a}").task(), "the placeholder {a}, and there is no value for it"),
        (lambda: mwpy.command("run {a}").task(1, 2), "2 unnamed values"),
        (lambda: mwpy.command("run", templates=template).task(), "the template of t has the placeholder {beta}"),
        (lambda: mwpy.command("run", templates={"t": tmp_path / "x"}), "is not text in UTF-8"),
        (lambda: mwpy.command("run", templates={"t": tmp_path / "no"}), "cannot be read: No such file"),
        (lambda: mwpy.command("run", inputs=[tmp_path / "no"]), "cannot be read: No such file"),
        (lambda: mwpy.command("run", inputs=two), "two inputs have the name x"),
        (lambda: mwpy.command("run", inputs="x"), "give a list of files"),
        (lambda: mwpy.command("run", inputs=[two[0]], templates={"x": two[0]}), "in inputs and in templates"),
        (lambda: mwpy.command("run", outputs=["a", "a"]), "two outputs have the name a"),
        (lambda: mwpy.command("run", outputs=["../a"]), "not inside the folder"),
        (lambda: mwpy.command("run", optional=["a"]), "not in outputs"),
        (lambda: mwpy.command("run", keep="some"), "give 'failed', 'all' or 'none'"),  # type: ignore[arg-type]
        (lambda: mwpy.command("run {a} {b}").task(*map(mwpy.file, two)), "two files have the name x"),
        (lambda: mwpy.output("a", "x"), "needs the id of a task"),  # type: ignore[arg-type]
    ]
    for call, said in wrong:
        with pytest.raises(UsageError) as refused:
            call()
        assert said in str(refused.value)


def test_a_file_for_each_kind_of_machine(tmp_path: Path) -> None:
    (tmp_path / "right").write_text("right")
    kind, other = os.uname().machine, {"vax": tmp_path / "right"}
    assert mwpy.command("cat f", inputs={"f": {kind: tmp_path / "right", **other}})().stdout == "right"
    with pytest.raises(UsageError, match="there is a file for vax, and none for this machine"):
        mwpy.command("cat f", inputs={"f": other})()
