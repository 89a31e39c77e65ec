"""Scripts with common mistakes: each ends with a clear message and an exit code, and starts no endless recursion."""

from __future__ import annotations

import signal
import sys

import pytest
from tests.integration.apps.stage import Running, Stage, until

HEAD = """
import os, sys, time
import mwpy

@mwpy.master_algorithm
def master(mw, argv):
    print("master", argv, flush=True)
    return BODY

def task_values(mw, function, items):
    return list(mw.map(function, items))
"""
GUARD = 'if __name__ == "__main__":\n    '


def script(stage: Stage, text: str, body: str = "0") -> list[str]:
    """Write a script with this master algorithm and this end. Return the command that runs it."""
    (stage.folder / "script.py").write_text(HEAD.replace("BODY", body) + text)
    return [sys.executable, "script.py"]


def run(stage: Stage, text: str, body: str = "0") -> Running:
    started = stage.start("", program=script(stage, text, body))
    started.end()
    return started


# ---- the call of main ---------------------------------------------------------------------------------------


def test_two_computations_of_one_script_run_once_each(stage: Stage) -> None:
    """Agents and slaves run only up to the first call of main."""
    calls = 'for name in "ab":\n        print(mwpy.main([name, "--mw-local", "1"]))\n    os.kill(os.getpid(), 2)'
    body = "sum(task_values(mw, abs, range(3)))"
    ended = run(stage, GUARD + calls, body)
    assert ended.out.split("\n") == ["master ['a']", "3", "master ['b']", "3", ""]
    assert "KeyboardInterrupt" in ended.err, "after main, Ctrl-C works as before"
    stage.no_process_left()


@pytest.mark.parametrize(
    ("text", "code", "out"),
    [
        ("mwpy.main(['--mw-local', '1'])\n    print('after')", 7, ""),
        ("code = mwpy.main(['--mw-local', '1'])\n    print('after', code)", 0, "after 7\n"),
        ("sys.exit(mwpy.main(['--mw-local', '1']))", 7, ""),
    ],
    ids=["discarded", "kept", "passed on"],
)
def test_a_failure_is_not_lost_if_nothing_uses_the_exit_code(stage: Stage, text: str, code: int, out: str) -> None:
    ended = run(stage, GUARD + text, body="7")
    assert ended.end() == code
    assert ended.out == f"master []\n{out}"


def test_a_script_without_a_call_of_main_says_so(stage: Stage) -> None:
    ended = run(stage, "")
    assert ended.end() == 2
    assert "declares the master algorithm master, and never calls mwpy.main()" in ended.err


def test_a_script_may_decide_not_to_call_main(stage: Stage) -> None:
    ended = run(stage, "if len(sys.argv) > 1:\n    mwpy.main()")
    assert (ended.end(), ended.err) == (0, "")


def test_a_script_on_standard_input_is_refused(stage: Stage) -> None:
    script(stage, GUARD + "sys.exit(mwpy.main())")
    text = (stage.folder / "script.py").read_text()
    piped = stage.run("", program=[sys.executable, "-"], script=text, code=2)
    assert "mwpy.main() needs a script in a file" in piped.err
    assert "mwpy.open()" in piped.err


def test_main_in_an_interactive_interpreter_is_refused(stage: Stage) -> None:
    script(stage, "")
    typed = "from script import mwpy\nprint('code', mwpy.main([]))\nmwpy.main(['--mw-local', '0'])\n"
    interpreter = stage.start("", program=[sys.executable, "-i", "-q"], script=typed)
    interpreter.end()
    assert interpreter.out.splitlines()[-3:] == ["code 2", "master []", "0"], (
        "without slaves, nothing must be loaded again"
    )
    assert "mwpy.open()" in interpreter.err


@pytest.mark.parametrize("name", ["queue", "hashlib", "ctypes", "zmq"])
def test_a_file_that_hides_a_module_is_named(stage: Stage, name: str) -> None:
    """It makes the import of mwpy fail, or the start of a master, an agent or a slave, or a task.

    Only a master that other machines can reach needs ZeroMQ.
    """
    (stage.folder / f"{name}.py").write_text("x = 1\n")
    body = "sum(task_values(mw, abs, range(3)))"
    start = "sys.exit(mwpy.main(['--mw-local', '1', '--mw-master-host', '127.0.0.1']))"
    started = stage.start("", program=script(stage, start, body))
    hint = f"{name}.py hides the module '{name}' that Python or mwpy needs: rename this file"
    until(lambda: hint in started.err, lambda: f"the hint, not {started.err}")


def test_a_script_that_hides_a_module_is_named(stage: Stage) -> None:
    """The import of the module loads the script once more, and fails there."""
    script(stage, "sys.exit(mwpy.main())")
    (stage.folder / "script.py").rename(stage.folder / "queue.py")
    started = stage.run("", program=[sys.executable, "queue.py"], code=1)
    assert "queue.py hides the module 'queue' that Python or mwpy needs" in started.err


# ---- a computation inside a task ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        "lambda _: mwpy.main([])",
        "lambda _: __import__('unguarded').square(3)",
        "lambda _: mwpy.local_master(slaves=1).__enter__()",
    ],
    ids=["main", "import", "local_master"],
)
def test_a_task_that_starts_a_computation_fails(stage: Stage, function: str) -> None:
    """The error names the guard. The task is not tried again, and nothing else is started."""
    (stage.folder / "unguarded.py").write_text(
        f"{HEAD.replace('BODY', '0')}\ndef square(x): return x * x\nsys.exit(mwpy.main([]))\n"
    )
    body = f"print(next(mw.map_results({function}, [0])).error) or 0"
    ended = run(stage, "sys.exit(mwpy.main(['--mw-local', '1']))", body)
    assert ended.end() == 0, ended.err
    assert "was called in a slave, where it would start another computation" in ended.out
    assert 'call it only under `if __name__ == "__main__":`' in ended.out
    assert ended.out.count("master [") == 1
    stage.no_process_left()


@pytest.mark.parametrize("way", ["main", "local_master"])
def test_a_script_without_guard_is_not_run_by_multiprocessing(stage: Stage, way: str) -> None:
    spawn = "__import__('multiprocessing').get_context('spawn').Process(target=abs).start()"
    here = f"with mwpy.local_master(slaves=1) as mw:\n    print('master [')\n    {spawn}"
    ended = run(stage, "mwpy.main(['--mw-local', '1'])" if way == "main" else here, f"{spawn} or 0")
    assert (
        f"mwpy.{'main' if way == 'main' else 'open'}() was called while multiprocessing imported the script"
        in ended.err
    )
    assert ended.out.count("master [") == 1
    stage.no_process_left()


def test_a_process_of_multiprocessing_can_start_a_master(stage: Stage) -> None:
    use = "def use():\n    with mwpy.local_master(slaves=1) as mw:\n        print(list(mw.map(abs, [-3])))\n"
    spawn = "process = __import__('multiprocessing').get_context('spawn').Process(target=use)"
    ended = run(stage, f"{use}{GUARD}{spawn}\n    process.start()\n    process.join()")
    assert ended.out == "[3]\n", ended.err
    stage.no_process_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("way", ["main", "local_master"])
def test_all_processes_end_with_the_process_that_started_them(stage: Stage, way: str, number: signal.Signals) -> None:
    """They end whether they have connected or not."""
    waits = "print('open', flush=True) or task_values(mw, time.sleep, [999] * 2)"
    starts = {
        "main": "mwpy.main(['--mw-local', '2'])",
        "local_master": "with mwpy.local_master(slaves=2) as mw:\n    master(mw, [])",
    }
    started = stage.start("", program=script(stage, starts[way], waits))
    until(lambda: "open" in started.out, "a master")
    started.send(number)
    started.end()
    stage.no_process_left()


# ---- work that is not done ----------------------------------------------------------------------------------

UNDONE = " had no result when the computation ended, and did not run to the end: wait for results with mw.loop() and"
UNREAD = "mwpy: nobody read the values of {}, so these tasks were cancelled: a map runs while its values are read"


@pytest.mark.parametrize("slaves", ["0", "1"])
@pytest.mark.parametrize(
    ("body", "notices"),
    [
        ("mw.map(abs, range(9)) and 0", [UNREAD.format("1 map")]),
        ("[mw.submit(mwpy.task(time.sleep, 100)) for _ in range(9)] and 0", [f"mwpy: 9 tasks{UNDONE}"]),
        ("sum(next(mw.imap_unordered(abs, iter(int, 1))) for _ in range(2))", []),
        ("mw.cancel([mw.submit(mwpy.task(time.sleep, 100)) for _ in range(9)]) and 0", []),
        ("len(task_values(mw, abs, range(9))) - 9", []),
        ("len(list(mw.map(abs, []))) or mw.map(abs, []) and 0", []),
    ],
    ids=["map that nobody reads", "tasks that nobody waits for", "map that is left", "cancelled", "read", "no items"],
)
def test_work_that_is_not_done_is_named_at_the_end(stage: Stage, body: str, notices: list[str], slaves: str) -> None:
    ended = run(stage, GUARD + f"sys.exit(mwpy.main(['--mw-local', '{slaves}']))", body)
    assert ended.end() == 0
    lines = ended.err.splitlines()
    assert [line[: len(notice)] for line, notice in zip(lines, notices, strict=True)] == notices


def test_a_map_that_nobody_reads_is_named_when_a_plain_script_ends(stage: Stage) -> None:
    """The master is never closed."""
    (stage.folder / "script.py").write_text("import mwpy\nmw = mwpy.local_master(slaves=1)\nmw.map(abs, range(9))\n")
    ended = stage.run("", program=[sys.executable, "script.py"])
    assert ended.err.startswith(UNREAD.format("1 map"))


# ---- nobody reads the output --------------------------------------------------------------------------------

LINES = "[print(value, 'x' * 100) for value in mw.map(abs, range(5000))] and 0"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("script.py --mw-local 1", 255),
        ("script.py --mw-local 0", 255),
        ("script.py --mw-local 1 --mw-audit-file -", 255),
        ("script.py --mw-help", 0),
        ("-m mwpy --help", 0),
        ("-m mwpy runs --help", 0),
        ("-m mwpy version", 0),
    ],
)
def test_a_reader_that_ends_early_leads_to_no_message(stage: Stage, arguments: str, code: int) -> None:
    """A master algorithm that cannot print its values has failed; a command has done what was asked."""
    script(stage, GUARD + "sys.exit(mwpy.main())", LINES)
    pipe = f'{{ "{sys.executable}" {arguments}; echo "code $?" >&2; }} | head -n 1 >head.txt'
    ended = stage.run("", program=["bash", "-c", pipe])
    assert ended.err == f"code {code}\n"


@pytest.mark.parametrize("slaves", ["0", "1"])
def test_a_computation_ends_with_its_code_if_standard_output_is_closed(stage: Stage, slaves: str) -> None:
    script(
        stage,
        GUARD + f"sys.exit(mwpy.main(['--mw-local', '{slaves}']))",
        "print(len(task_values(mw, abs, [1, 2]))) or 7",
    )
    ended = stage.start("", program=["bash", "-c", f'"{sys.executable}" script.py >&-'])
    assert (ended.end(), ended.err) == (7, "")


def test_options_of_the_command_line_are_refused_where_nobody_reads_them(stage: Stage) -> None:
    """A script that opens its master itself has keywords."""
    body = "with mwpy.open(slaves=1) as mw:\n        print(list(mw.map(abs, [-1])))"
    code = f"import mwpy\nif __name__ == '__main__':\n    {body}"
    path = stage.folder / "opens.py"
    path.write_text(code)
    ended = stage.run("", "--mw-local", "2", program=[sys.executable, str(path)], code=1)
    assert "mwpy.UsageError: --mw-local: a script that opens its master itself" in ended.err
    path.write_text(f"{code}\nif 0:\n    mwpy.main()")
    assert stage.run("", "--mw-local", "2", program=[sys.executable, str(path)]).out == "[1]\n"
    stage.no_process_left()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "start some with `{python} -m mwpy slave --mw-slave --mw-resource-file {file}`"),
        (
            {"system": "local", "max_jobs": 1, "overseer_options": ["--command", "false"]},
            ": {file}.overseer says what it does",
        ),
    ],
    ids=["by hand", "overseer"],
)
def test_a_master_without_slaves_says_what_to_do(stage: Stage, arguments: dict[str, object], message: str) -> None:
    opened = f"mwpy.open(resource_file={str(stage.resource)!r}, **{arguments})"
    code = f"import mwpy\nwith {opened} as mw: list(mw.map(abs, [1]))"
    waiting = stage.start("", program=[sys.executable, "-c", code])
    expected = message.format(python=sys.executable, file=stage.resource)
    until(lambda: "no slave is connected" in waiting.err, "the message")
    assert expected in waiting.err.replace(" -B ", " ")


def test_a_map_of_results_says_if_all_items_failed(stage: Stage) -> None:
    code = (
        "import mwpy\nwith mwpy.open(slaves=1) as mw:\n"
        "    print(len([*mw.map_results(lambda a, b: 0, [(1, 2), (3, 4)])]), len([*mw.map_results(int, ['a', '1'])]))"
    )
    ended = stage.run("", program=[sys.executable, "-c", code])
    assert ended.out == "2 2\n"
    [line] = [line for line in ended.err.splitlines() if "items of the map" in line]
    assert line.startswith("mwpy: all 2 items of the map of <lambda> failed, the first one with TypeError: ")
    assert "mw.starmap_results passes its parts" in line


SETTINGS = """
import functools, itertools, logging, os, sys, threading
from pathlib import Path
import mwpy

RATES = {"a": 1}
HERE = Path(__file__).parent
CACHE, count, log = {}, 0, logging.getLogger()
LOCK, NUMBERS, OUT = threading.Lock(), itertools.count(), sys.stdout

@functools.cache
def known(x):
    return x

OPERATIONS = {"known": known, "same": lambda x: x, "partial": functools.partial(max, 0)}

class Options:
    rate = 1

def scale(x):
    global count
    count += 1
    log.debug(HERE)
    with LOCK:
        known(next(NUMBERS) + len(OUT.name))
    OPERATIONS["new"] = known
    return CACHE.setdefault(x, RATES["a"] * Options.rate * x)

def again(x):
    return len(CACHE)

def main():
    RATES["a"] = 10
    Options.rate = 10
    with mwpy.open(slaves=2) as mw:
        print(list(mw.map(scale, [1, 2])), len([*mw.map(again, [1])]))

if __name__ == "__main__":
    main()
"""


def test_settings_that_only_the_master_has_changed_are_named_once(stage: Stage) -> None:
    """What tasks have changed since, what each slave sets by `global`, and places of files are no mistakes."""
    (stage.folder / "script.py").write_text(SETTINGS)
    ended = stage.run("", program=[sys.executable, "script.py"])
    assert ended.out == "[1, 2] 1\n"
    [line] = ended.err.splitlines()
    assert line.startswith("mwpy: scale uses Options, RATES, and slaves have other values of them than the master: ")


OF_SLAVES = """
import mwpy

RATES = {"a": 1}

def scale(x):
    return RATES["a"] * x

def shift(x):
    return RATES["a"] + x

def main():
    RATES["a"] = 10
    with mwpy.open(slaves=1, run_database="run.db") as mw:
        print(list(mw.map(scale, [1, 2])), list(mw.map(shift, [1])))

if __name__ == "__main__":
    main()
"""


def test_results_of_slaves_with_other_values_are_reused_only_while_the_files_are_the_same(stage: Stage) -> None:
    """The notice says nothing of the second function, whose tasks find the same variable changed."""
    script = stage.folder / "script.py"
    script.write_text(OF_SLAVES)
    program = [sys.executable, "script.py"]
    first = stage.run("", program=program)
    assert first.out == "[1, 2] [2]\n"
    assert first.err.startswith("mwpy: scale uses RATES, and slaves have another value of it than the master: ")
    for _ in range(2):
        again = stage.run("", program=program)
        assert again.out == "[1, 2] [2]\n"
        assert "has the results of 3 tasks" in again.err
        assert again.err.count("slaves computed with other values of variables than the master's") == 2
    script.write_text(OF_SLAVES.replace('{"a": 1}', '{"a": 10}').replace('    RATES["a"] = 10\n', ""))
    assert stage.run("", program=program).out == "[10, 20] [11]\n"
    assert "has the results of 6 tasks" in stage.run("", program=program).err


LATER = """
import mwpy

RATES = {"a": 1}
RATE = 1

def scale(x):
    return RATES["a"] * x

def shift(x):
    return RATE + x

def main():
    global RATE
    with mwpy.open(slaves=SLAVES) as mw:
        for rate in 1, 10, 100:
            RATES["a"] = rate
            print(list(mw.map(scale, [1, 2])))
        for rate in 1, 10:
            RATE = rate
            print(*[result.value for result in mw.as_completed([mwpy.task(shift, 1)])])

if __name__ == "__main__":
    main()
"""


def test_a_setting_that_is_changed_between_two_maps_or_submissions_is_named_once(stage: Stage) -> None:
    script = stage.folder / "script.py"
    script.write_text(LATER.replace("SLAVES", "1"))
    ended = stage.run("", program=[sys.executable, "script.py"])
    assert ended.out == "[1, 2]\n[1, 2]\n[1, 2]\n2\n2\n"
    first, second = ended.err.splitlines()
    assert first.startswith("mwpy: scale uses RATES, and slaves have another value of it than the master: ")
    assert second.startswith("mwpy: shift uses RATE, and slaves have another value of it than the master: ")
    script.write_text(LATER.replace("SLAVES", "0"))
    ended = stage.run("", program=[sys.executable, "script.py"])
    assert (ended.out, ended.err) == ("[1, 2]\n[10, 20]\n[100, 200]\n2\n11\n", "")


def test_settings_without_a_change_are_not_named(stage: Stage) -> None:
    same = SETTINGS.replace('RATES["a"] = 10', "").replace("Options.rate = 10", "")
    (stage.folder / "script.py").write_text(same)
    assert stage.run("", program=[sys.executable, "script.py"]).err == ""
