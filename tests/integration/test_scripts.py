"""What scripts do with their command line and their process, and what the user then expects: real processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.integration.apps.stage import OTHER_VERSION, Stage, until

from mwpy._values.messages import PROTOCOL_VERSION


def said(err: str) -> list[str]:
    """The lines of standard error, without the notice that a slow machine may cause."""
    return [line for line in err.splitlines() if "nothing has progressed for " not in line]


def run(stage: Stage, text: str, *arguments: object, program: list[str] | None = None, **variables: str) -> str:
    """Run a script, and return what it prints. It writes nothing to standard error but that it waits for slaves."""
    path = stage.folder / "script.py"
    path.write_text(dedent(text))
    line = [*(program or [sys.executable]), str(path), *map(str, arguments)]
    ended = stage.start("", program=line, variables=variables)
    assert (ended.end(), said(ended.err)) == (0, [])
    stage.no_process_left()
    return ended.out


def test_programs_of_tasks_get_the_module_path_of_the_user(stage: Stage) -> None:
    """A master without a script gives its own path to its slaves. Another Python could not even start with it."""
    folder = stage.folder / "modules"
    folder.mkdir()
    (folder / "helper.py").write_text("import os\ndef path(_): return os.environ.get('PYTHONPATH')\n")
    text = """
        import os, sys, mwpy
        sys.path.append("modules")
        import helper
        if __name__ == "__main__":
            with mwpy.local_master(slaves=1) as mw:
                print(os.environ.get("PYTHONPATH") == list(mw.map(helper.path, [0]))[0])
    """
    assert run(stage, text) == "True\n"


def test_slaves_find_modules_in_a_folder_with_a_colon_in_its_name(stage: Stage) -> None:
    """Such a path cannot be in PYTHONPATH. What is no text in `sys.path` is passed over, as Python does."""
    folder = stage.folder / "run 12:30"
    folder.mkdir()
    (folder / "helper.py").write_text("def double(x): return 2 * x\n")
    text = """
        import sys, mwpy, pathlib
        sys.path += [pathlib.Path("nowhere"), "run 12:30"]
        import helper
        mw = mwpy.local_master(slaves=1)
        print(list(mw.map(helper.double, [4])), next(mw.map(lambda x: helper.double(x), [5])))
        mw.close()
    """
    assert run(stage, text) == "[8] 10\n"


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_what_tasks_leave_in_open_files_is_written_at_the_end(stage: Stage, way: str) -> None:
    text = """
        import sys, mwpy
        LOG = None
        def note(number):
            global LOG
            LOG = LOG or open("log", "w")
            LOG.write(f"{number}\\n")
        @mwpy.master_algorithm
        def master(mw, argv):
            return len([*mw.map(note, range(100))]) - 100
        if __name__ == "__main__": sys.exit(mwpy.main())
    """
    run(stage, text, "--mw-local", 1, "--mw-slave-start", way)
    assert (stage.folder / "log").read_text().split() == [*map(str, range(100))]


@pytest.mark.parametrize("place", ["start", "script"])
def test_a_process_that_ignores_the_ends_of_its_children_forks_slaves(stage: Stage, place: str) -> None:
    """Some parents ignore SIGCHLD, and programs inherit this. A script may ignore it, too."""
    text = f"""
        import os, signal, sys, mwpy
        if {place == "script"}: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        def end(number):
            os._exit(3)
        @mwpy.master_algorithm
        def master(mw, argv):
            [result] = mw.map_results(end, [0], attempts_max=2)
            print("exit code 3" in str(result.error), sum(mw.map(abs, range(5))))
            return 0
        if __name__ == "__main__": sys.exit(mwpy.main())
    """
    (stage.folder / "script.py").write_text(dedent(text))
    shell = ["sh", "-c", "trap '' CHLD; exec \"$@\"" if place == "start" else 'exec "$@"', "sh"]
    line = [*shell, sys.executable, "script.py", "--mw-local", "2", "--mw-audit-file", str(stage.audit)]
    ended = stage.start("", program=line)
    assert (ended.end(), ended.out) == (0, "True 10\n"), ended.err
    assert "fresh interpreter" not in ended.err
    assert "Traceback" not in ended.err
    stage.no_process_left()


def test_a_script_may_change_to_another_folder(stage: Stage) -> None:
    """The command line names the script relative to the folder in which it was started."""
    (stage.folder / "sub" / "data").mkdir(parents=True)
    text = """
        import os, sys, mwpy
        os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
        @mwpy.task_algorithm
        def name(_): return os.path.basename(os.getcwd())
        @mwpy.master_algorithm
        def master(mw, argv):
            print(*mw.map(name, [0]), *argv)
            return 0
        if __name__ == "__main__": sys.exit(mwpy.main())
    """
    (stage.folder / "sub" / "script.py").write_text(dedent(text))
    (stage.folder / "sub" / "data" / "sub").mkdir()
    (stage.folder / "sub" / "data" / "sub" / "script.py").write_text("raise SystemExit('another script')")
    ended = stage.start("", program=[sys.executable, "sub/script.py", "--mw-local", "1", "sub/script.py"])
    assert (ended.end(), ended.out, said(ended.err)) == (0, "data sub/script.py\n", [])


def test_a_computation_that_is_not_closed_ends_with_the_interpreter(stage: Stage) -> None:
    """What uses it later gets an error, and does not wait. An open map says nothing."""
    text = """
        import atexit

        def use():
            try:
                list(mw.map(abs, [1]))
            except mwpy.UsageError as error:
                print("refused:", error)

        atexit.register(use)
        import mwpy
        mw = mwpy.local_master(slaves=1)
        values = mw.map(abs, range(100_000_000))
        print(next(values))
    """
    assert run(stage, text).startswith("0\nrefused: the computation is over")


def test_shared_arrays_are_read_only_whatever_their_size_and_layout(stage: Stage) -> None:
    text = """
        import numpy as np
        import mwpy

        def write(number, table):
            try:
                table += 1
            except ValueError:
                return "read-only"

        if __name__ == "__main__":
            large = np.ones((400, 400))
            with mwpy.local_master(slaves=1) as mw:
                for array in (np.ones(5), np.ones(10_000), large[:, :300], large[::2], large.T, np.ones(5)[:, None]):
                    shared = mw.share(array)
                    print(*mw.starmap(write, [(number, shared) for number in range(2)]))
    """
    assert run(stage, text) == "read-only read-only\n" * 6


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "cProfile", "-o", "profile"],
        ["-m", "pdb", "-c", "continue", "-c", "quit"],
        ["-X", "utf8", "-m", "coverage", "run"],
        ["-W", "default"],
    ],
    ids=["profiler", "debugger", "coverage", "none"],
)
def test_a_debugger_or_profiler_around_a_script_belongs_to_the_master(stage: Stage, words: list[str]) -> None:
    text = """
        import sys, mwpy
        TOOLS = {"cProfile", "pdb", "coverage"}
        def tools(_):
            return sorted(TOOLS.intersection(sys.modules)), sys.argv[-1]
        @mwpy.master_algorithm
        def master(mw, argv):
            print(list(mw.map(tools, [0])), file=open("seen", "w"))
            return 0
        if __name__ == "__main__": mwpy.main()
    """
    (stage.folder / "script.py").write_text(dedent(text))
    line = [sys.executable, *words, "script.py", "--mw-local", "1", "script.py"]
    assert stage.start("", program=line).end() == 0
    assert (stage.folder / "seen").read_text() == "[([], 'script.py')]\n"


@pytest.mark.parametrize("slaves", ["0", "1"])
def test_argparse_sees_only_the_arguments_of_the_script(stage: Stage, slaves: str) -> None:
    """In the master algorithm and in tasks. After `mwpy.main`, the command line is what it was."""
    text = """
        import argparse, sys, mwpy
        def scale():
            parser = argparse.ArgumentParser()
            parser.add_argument("--scale", type=int)
            return parser.parse_args().scale
        @mwpy.master_algorithm
        def master(mw, argv):
            print(scale(), *mw.map(lambda _: scale(), [0]))
            return 0
        if __name__ == "__main__":
            mwpy.main()
            print(sys.argv[1:])
    """
    expected = f"3 3\n{['--mw-local', slaves, '--scale', '3']}\n"
    assert run(stage, text, "--mw-local", slaves, "--scale", 3) == expected


@pytest.mark.parametrize(
    ("line", "own", "variables"),
    [
        (["a", "--mw-local", "1", "b", "--", "--mw-x", "-n"], ["a", "b", "--", "--mw-x", "-n"], {}),
        (["ignored"], ["a", "b"], {"TEST_ARGV": "a --mw-local 1 b"}),
        (["--level", "3", "--mw-local", "1", "a"], ["a"], {"TEST_OWN_OPTION": "1"}),
    ],
    ids=["options end at --", "an argv of its own", "an option parser of its own before"],
)
def test_local_slaves_get_the_scripts_own_arguments(
    stage: Stage, line: list[str], own: list[str], variables: dict[str, str]
) -> None:
    """No agent becomes another master, whatever the script does with its command line."""
    run = stage.run("argued.py", *line, variables=variables)
    assert run.report == {"argv": own, "came": [[10, own]]}
    assert run.err == ""
    stage.no_process_left()


def test_an_agent_takes_a_task_of_any_size_that_its_master_allows(stage: Stage) -> None:
    """An agent whose own limit is smaller keeps its connection."""
    size = 3 << 20
    master = stage.start(
        "argued.py",
        *("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", stage.resource),
        *("--mw-audit-file", stage.audit),
        variables={"TEST_BYTES": str(size)},
    )
    until(stage.resource.exists, "a resource file")
    agent = stage.agent("argued.py", "--mw-max-read-buffer-size", 100_000, "own")
    assert master.end() == 0, master.err
    assert master.report["came"] == [[size, ["own"]]]
    assert agent.end() == 0, agent.err


def test_an_agent_of_another_version_is_refused_on_both_sides(stage: Stage) -> None:
    """The agent exits with 3. Both sides show both versions and the remedy."""
    master = stage.master("count.py", "--tasks", 10)
    program = [sys.executable, "-c", OTHER_VERSION, "slave"]
    agent = stage.run("", "--mw-resource-file", stage.resource, program=program, code=3)
    assert f"protocol version {PROTOCOL_VERSION} there, 77 here: install the same version" in agent.err
    until(lambda: f"77 there, {PROTOCOL_VERSION} here" in master.err, lambda: f"a message, not {master.err!r}")
    stage.until_audited("REFUSED")


def test_a_master_algorithm_can_exit_with_a_text(tmp_path: Path) -> None:
    """As everywhere in Python, `sys.exit("text")` writes the text to standard error, and gives 1."""
    script = "import sys, mwpy\nmwpy.master_algorithm(lambda mw, argv: sys.exit('no data'))\nsys.exit(mwpy.main())"
    program = [sys.executable, "-c", script, "--mw-local", "0"]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "no data\n")


def test_algorithms_that_return_nothing_have_succeeded(stage: Stage) -> None:
    """That of the master, and that of each slave."""
    text = """
        import sys, mwpy
        @mwpy.slave_algorithm
        def slave(mw, argv):
            mw.loop_simple()
        @mwpy.master_algorithm
        def master(mw, argv):
            print(sum(mw.map(abs, [-1, 2, -3])))
        sys.exit(mwpy.main())
    """
    assert run(stage, text, "--mw-local", 1, "--mw-audit-file", stage.audit) == "6\n"
    codes = re.findall(r"exit code (\d+)", stage.audit.read_text())
    assert codes == ["0"]


@pytest.mark.parametrize("value", ["True", "'done'", "256", "-1", "0.0"])
def test_a_master_algorithm_that_returns_no_exit_code_gets_a_message(tmp_path: Path, value: str) -> None:
    """The exit code 255 comes with a message."""
    script = f"import sys, mwpy\nmwpy.master_algorithm(lambda mw, argv: {value})\nsys.exit(mwpy.main())"
    program = [sys.executable, "-c", script, "--mw-local", "0"]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    expected = (
        f"the master algorithm returned {value}, which is no exit code: it must return 0 to 255, and 0 for success"
    )
    assert (ended.returncode, ended.stderr) == (255, f"mwpy: {expected}\n")
