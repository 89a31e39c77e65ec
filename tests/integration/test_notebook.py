"""Masters in a real notebook."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.integration.apps.notebook import Notebook
from tests.integration.apps.stage import Stage


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with a master. Nothing closes the master, and no process is left when the kernel has ended."""
    with Stage(tmp_path_factory.mktemp("notebook")) as stage:
        with Notebook(stage) as notebook:
            notebook.run("import itertools, pathlib, time, mwpy\nmw = mwpy.local_master(slaves=2)")
            yield notebook
            assert len(stage.processes()) == 5  # kernel, agent, template, two slaves
        stage.no_process_left()


def test_a_task_sees_what_the_cells_have_defined_by_then(notebook: Notebook) -> None:
    """Variables, functions and classes may be defined again. Values of a class of the notebook are of that class."""
    notebook.run("K = 5\ndef scale(x): return K * x\ndef task(x): return scale(x) + 1")
    assert notebook.run("list(mw.map(task, range(3)))") == "[1, 6, 11]"
    notebook.run("K = 7")
    assert notebook.run("list(mw.map(task, range(3)))") == "[1, 8, 15]"
    notebook.run("def scale(x): return -K * x")
    assert notebook.run("list(mw.map(task, range(3)))") == "[1, -6, -13]"
    for text in ("1 m", "3 ft"):
        notebook.run(f"class Length:\n    def text(self): return {text!r}\ndef make(_): return Length()")
        assert notebook.run("[(type(x) is Length, x.text()) for x in mw.map(make, [0])]") == f"[(True, {text!r})]"


def test_a_variable_of_a_module_that_only_the_notebook_has_changed_is_named(notebook: Notebook) -> None:
    """Slaves import the module themselves: it does not matter whether the function itself travels by value."""
    notebook.edit("settings_a", "K = 5", "def f(x): return K * x")
    notebook.run("import settings_a\nsettings_a.K = 7")
    named = "and slaves have another value of it than the master"
    assert f"<lambda> uses K of settings_a, {named}" in notebook.run("list(mw.map(lambda x: settings_a.f(x), [1]))")
    notebook.edit("settings_b", "K = 5", "def f(x): return K * x")
    assert notebook.run("import settings_b\nlist(mw.map(settings_b.f, [1]))") == "[5]"
    changed = notebook.run("settings_b.K = 7\nlist(mw.map(settings_b.f, [1]))")
    assert f"f uses K of settings_b, {named}" in changed


def test_autoreload_is_enough_to_use_edited_modules(notebook: Notebook) -> None:
    """IPython replaces single functions and methods of a module in place, and then their line numbers are wrong."""
    notebook.edit("auto", "K = 5", "class A:", "    def f(self): return 1", "class B:", "    def f(self): return K")
    notebook.run("%load_ext autoreload\n%autoreload 2\nimport auto\nfrom auto import B")
    values = "[*mw.map(B.f, [B()]), *mw.map(lambda x: auto.B().f() + x, [0])]"
    assert notebook.run(values) == "[5, 5]"
    for edit, expected in [("K", "[7, 7]"), ("K + 1", "[8, 8]"), ("-K", "[-7, -7]")]:
        notebook.edit(
            "auto", "K = 7", "class A:", "    def f(self): return 1", "class B:", f"    def f(self): return {edit}"
        )
        assert notebook.run(values) == expected
    notebook.run("%autoreload 0")


def test_a_task_that_fails_raises_at_its_item(notebook: Notebook) -> None:
    """The values before it were given out, and the next cell works. The traceback shows the line of the cell."""
    notebook.run("def invert(x):\n    return 1 / x\ngiven = []")
    name, text = notebook.fail("for value in mw.map(invert, [1, 2, 0, 4]): given.append(value)")
    assert (name, "item 0: ZeroDivisionError" in text) == ("TaskFailed", True)
    assert "line 2, in invert\n    return 1 / x\n" in text
    assert notebook.run("given") == "[1.0, 0.5]"
    assert notebook.run("list(mw.map(invert, [4])), mw.results()") == "([0.25], [])"


@pytest.mark.parametrize("cell", ["list(mw.map(invert, [0]))", "next(mw.map_results(invert, [0])).value", "mw.map(5)"])
def test_a_traceback_shows_only_the_frames_of_the_user(notebook: Notebook, cell: str) -> None:
    notebook.run("def invert(x):\n    return 1 / x")
    lines = notebook.traceback(cell)
    assert not [line for line in lines if "mwpy/_" in line or "mwpy/master" in line]
    assert [line for line in lines if line.startswith("----> 1 ")] == [f"----> 1 {cell}"]
    assert len(lines) < 25, "some are those of the library that runs the cell"


def test_an_interrupted_cell_leaves_nothing_of_its_map(notebook: Notebook) -> None:
    """The slaves sleep in long tasks, or the cell submits items without end. The same cell can be run again."""
    for number in range(2):
        notebook.run(f"started = pathlib.Path('started{number}')")
        notebook.send(signal.SIGINT, when=notebook.folder / f"started{number}")
        name, _ = notebook.fail("def sleep(x): started.touch(); time.sleep(1000)\nlist(mw.map(sleep, range(9)))")
        assert name == "KeyboardInterrupt"
    notebook.send(signal.SIGINT, when=notebook.folder / "endless")
    name, _ = notebook.fail(
        "def items():\n"
        "    for number in itertools.count():\n"
        "        if number == 5000: pathlib.Path('endless').touch()\n"
        "        yield number\n"
        "for value in mw.map(abs, items()): pass"
    )
    assert name == "KeyboardInterrupt"
    assert notebook.run("while mw.num_runnable_tasks(): mw.loop_iterate()\nmw.results()") == "[]"
    assert notebook.run("list(mw.map(abs, [-1, 2]))") == "[1, 2]"


def test_what_tasks_print_appears_in_the_cell_that_runs(notebook: Notebook) -> None:
    """The cell waits until it is there."""
    notebook.run("import sys\nshown = pathlib.Path('shown')\ndef say(x, file): print('said', x, file=file)")
    for number, stream in enumerate(("sys.stdout", "sys.stderr")):
        source = f"shown.unlink(missing_ok=True)\nlist(mw.map(lambda x: say(x, {stream}), [{number}]))\n"
        wait = "while not shown.exists(): time.sleep(0.01)"
        assert notebook.run(source + wait, shown=f"said {number}") == f"said {number}"


def test_a_master_shows_its_tasks_in_a_line(notebook: Notebook) -> None:
    assert notebook.run("mw").startswith("<mwpy: 2 slaves; tasks: 0 waiting, 0 running, ")


def test_an_interrupted_cell_leaves_no_task_of_an_executor(notebook: Notebook) -> None:
    """Neither a running task nor one in the queue. The future of an earlier cell goes on."""
    notebook.run(
        "def wait(path):\n"
        "    pathlib.Path(f'{path}.runs').touch()\n"
        "    while not pathlib.Path(path).exists(): time.sleep(0.01)\n"
        "    return path"
    )
    notebook.run("executor = mw.executor()\nearlier = executor.submit(wait, 'earlier')")
    notebook.send(signal.SIGINT, when=notebook.folder / "waits")
    name, _ = notebook.fail(
        "later = [executor.submit(wait, 'later') for _ in range(99)]\n"
        "while not pathlib.Path('later.runs').exists(): time.sleep(0.01)\n"
        "task = mw.submit(mwpy.task(wait, 'task'))\n"
        "pathlib.Path('waits').touch()\n"
        "later[0].result()"
    )
    assert name == "KeyboardInterrupt"
    notebook.run("import concurrent.futures\nconcurrent.futures.wait(later)")
    assert notebook.run("all(each.cancelled() for each in later), mw.num_runnable_tasks(), earlier.done()") == (
        "(True, 0, False)"
    )
    assert notebook.run("pathlib.Path('earlier').touch()\nearlier.result()") == "'earlier'"
    assert notebook.run("executor.submit(abs, -3).result()") == "3"


def test_a_cell_may_await(notebook: Notebook) -> None:
    """The event loop of the kernel runs while a map waits."""
    assert notebook.run("import asyncio\nawait asyncio.sleep(0)\nlist(mw.map(abs, [-3]))") == "[3]"
