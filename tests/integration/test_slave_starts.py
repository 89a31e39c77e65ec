"""Slaves that are forked from a template, and slaves that start as fresh interpreters: real processes."""

from __future__ import annotations

import json
import signal
import socket
import sys

import pytest
from tests.integration.apps.stage import Stage, children_of, kill, slaves_of, template_of, until

from mwpy._roles.slave_processes import Launcher
from mwpy._transport.channel import Answer
from mwpy._values import messages


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_slaves_are_the_same_however_they_start(stage: Stage, way: str) -> None:
    """They differ in what they draw, but not with a seed. What the script left in buffers is written once for each
    process that loads it, and its exit handlers run once in each slave that ends by itself."""
    left = stage.folder / "left"
    own = ("--mw-local", 2, "--mw-slave-start", way, "--mw-audit-file", stage.audit)
    run = stage.start("started.py", left, *own)
    assert run.end() == 0, run.err
    drawn = json.loads(left.with_suffix(".json").read_text())
    pids = {each["pid"] for each in drawn}
    assert len(pids) >= 2, "only one slave drew"
    assert all(each["pid"] == each["session"] == each["made"] for each in drawn)
    numbers = [number for each in drawn for number in each["drawn"]]
    assert len({*numbers}) == len(numbers)
    assert [each["seeded"] for each in drawn[:20]] == [each["seeded"] for each in drawn[20:]]
    died = stage.audited("-> gone while it ran")
    assert len(died) == 2
    assert run.err.count("in crash") >= 2
    assert run.out.count("last words") >= 2
    loaded = run.out.count("loaded") - 2  # by the master, and by its agent
    assert loaded == 1 if way == "fork" else 3 <= loaded <= 4, run.out
    ended = left.read_text().split()
    assert len({*ended}) == len(ended) <= 4
    assert str(drawn[-1]["pid"]) in ended
    stage.no_process_left()


def test_a_script_that_must_not_be_copied_starts_fresh_slaves_and_says_why(stage: Stage) -> None:
    """The first of them is the template itself."""
    app = stage.folder / "unsafe.py"
    app.write_text(
        "import os, random, sys, time, mwpy\n"
        "RNG = random.Random()\n"
        "@mwpy.task_algorithm\n"
        "def draw(_):\n    time.sleep(0.1)\n    return os.getpid(), RNG.random()\n"
        "@mwpy.master_algorithm\n"
        "def master(mw, argv):\n"
        "    drawn = []\n"
        "    while len({pid for pid, _ in drawn}) < 2: drawn += mw.map(draw, range(4))\n"
        "    print(len(drawn) - len({number for _, number in drawn}))\n    return 0\n"
        "if __name__ == '__main__': sys.exit(mwpy.main())\n"
    )
    run = stage.start(str(app), "--mw-local", 2)
    assert (run.end(), run.out) == (0, "0\n"), run.err
    [line] = run.err.splitlines()
    assert line.startswith("mwpy: the slaves of this agent start as fresh interpreters, because RNG in __main__ is or")
    assert line.endswith("for example from mwpy.task_seed(), or give --mw-slave-start spawn")
    stage.no_process_left()


TORCH = """
import os
from random import Random
STATE = [0]
def seed(): manual_seed(int.from_bytes(os.urandom(8), "big"))
def manual_seed(number): STATE[0] = Random(number).getstate()
def get_rng_state(): return STATE[0]
def set_rng_state(state): STATE[0] = state
def rand():
    random = Random()
    random.setstate(STATE[0])
    drawn = random.random()
    STATE[0] = random.getstate()
    return drawn
"""
"""A real module that stands for PyTorch, which is too large to install for a test: a generator behind the functions of
PyTorch that mwpy calls. As in PyTorch, no object of the module is a generator of the module `random` or of NumPy."""

DRAWS = """
import os, random, sys, time
from pathlib import Path
import numpy as np
import mwpy, torch
random.seed(1), np.random.seed(1), torch.manual_seed(1)
with open("loaded", "a") as file: file.write("loaded\\n")
@mwpy.task_algorithm
def draw(number):
    Path(f"drawing-{os.getpid()}").touch()
    while len([*Path().glob("drawing-*")]) < 2: time.sleep(0.01)
    return [draw() for draw in (random.random, np.random.random, torch.rand) for _ in range(3)]
@mwpy.master_algorithm
def master(mw, argv):
    print([number for drawn in mw.map(draw, range(2)) for number in drawn])
    return 0
if __name__ == "__main__": sys.exit(mwpy.main())
"""


def test_forked_slaves_seed_the_shared_generators_again(stage: Stage) -> None:
    """The script is loaded by the master and by the template, and seeds the generators there."""
    (stage.folder / "torch.py").write_text(TORCH)
    (stage.folder / "draws.py").write_text(DRAWS)
    run = stage.start(str(stage.folder / "draws.py"), "--mw-local", 2)
    assert run.end() == 0, run.err
    assert len({*run.report}) == 2 * 9
    assert (stage.folder / "loaded").read_text().split() == ["loaded"] * 3  # also in the agent
    stage.no_process_left()


CROWD = 64

MEETS = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import mwpy
with open("loaded", "a") as file: file.write("loaded\\n")
@mwpy.task_algorithm
def meet(most):
    Path(f"here-{os.getpid()}").touch()
    while len([*Path().glob("here-*")]) < most: time.sleep(0.05)
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    kib = {words[0]: int(words[1]) for words in lines}
    return os.getpid(), float(np.ones(most).sum()), kib["Rss:"], kib["Pss:"]
@mwpy.master_algorithm
def master(mw, argv):
    most = int(argv[0])
    print(json.dumps([*mw.map(meet, [most] * most)]))
    return 0
if __name__ == "__main__": sys.exit(mwpy.main())
"""


def test_64_slaves_load_the_script_once_and_share_its_memory(stage: Stage) -> None:
    """All of them run at a time. The master and the template have imported numpy, and no slave has memory of its own
    for it."""
    (stage.folder / "meets.py").write_text(MEETS)
    run = stage.start(str(stage.folder / "meets.py"), CROWD, "--mw-local", CROWD)
    assert run.end() == 0, run.err
    pids, sums, resident, shares = zip(*run.report, strict=True)
    assert len({*pids}) == CROWD
    assert {*sums} == {CROWD}
    assert (stage.folder / "loaded").read_text().split() == ["loaded"] * 3  # also in the agent
    assert all(2 * share < whole for share, whole in zip(shares, resident, strict=True)), (resident, shares)
    stage.no_process_left()


def test_the_template_and_its_slaves_end_with_a_killed_agent(stage: Stage) -> None:
    """The kernel ends them. A template that is stopped ends, too."""
    stage.master("count.py", "--milliseconds", 5)
    agent = stage.agent("count.py", "--mw-slave-processes", 2)
    until(lambda: bool(stage.audited("SLAVE-1 <- ")), "tasks at two slaves")
    template = template_of(agent.pid)
    assert len(slaves_of(agent.pid)) == 2
    kill(template, signal.SIGSTOP)
    mine = children_of(agent.pid)
    assert len(mine) == 3
    agent.send(signal.SIGKILL)
    agent.end()
    until(lambda: not {*mine} & {*stage.processes()}, "the end of all processes of the agent")


def test_an_agent_of_this_machine_lets_a_template_load_the_script_before_it_has_a_master(stage: Stage) -> None:
    """The template ends with the agent."""
    app = stage.folder / "loaded.py"
    app.write_text(
        "import os, sys, mwpy\n"
        "open(f'loaded-{os.getpid()}', 'w').close()\n"
        "@mwpy.master_algorithm\n"
        "def master(mw, argv): return 0\n"
        "if __name__ == '__main__': sys.exit(mwpy.main())\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        directions = ["--mw-slave", "--mw-master-host", "127.0.0.1", "--mw-master-port", str(port)]
        agent = stage.start(str(app), variables={"MWPY_AGENT": json.dumps(directions), "MWPY_KEY": "k"})

        def loaded() -> set[int]:
            return {int(path.name.partition("-")[2]) for path in stage.folder.glob("loaded-*")}

        until(lambda: len(loaded()) == 2, "agent and template")
        [template] = loaded() - {agent.pid}
        assert template in children_of(agent.pid)
        agent.send(signal.SIGKILL)
        agent.end()
        until(lambda: template not in stage.processes(), "the end of the template")


def test_a_first_template_that_has_ended_is_replaced() -> None:
    """The new one says why, in the last words of its slave."""
    launcher = Launcher([sys.executable, "-c", "raise SystemExit(3)"], 1)
    first = launcher.start_template()
    until(lambda: first.poll() == 3, "the end of the template")
    launcher._first = first
    template = launcher.start_template()
    parts = launcher.fork(template, 1, messages.Welcome("AGENT-0", 0, 1000, 30.0))
    assert template.pid != first.pid
    until(lambda: template.poll() == 3, "the end of the second template")
    parts.process.close()
    parts.channel.close()
    template.close()


ANSWERS_TOO_OFTEN = """
import os, stat
[orders] = [fd for fd in range(3, 100) if os.path.exists(f"/dev/fd/{fd}") and stat.S_ISSOCK(os.stat(fd).st_mode)]
os.read(orders, 10_000)
for answer in '{"slave": 99, "pid": 1}', '{"slave": 1, "failure": "first"}', '{"slave": 1, "failure": "second"}':
    os.write(orders, answer.encode())
"""


def test_what_a_script_writes_to_its_agent_is_no_answer_of_the_template() -> None:
    """The template answers once to each order, about the slave that it was ordered to start."""
    launcher = Launcher([sys.executable, "-c", ANSWERS_TOO_OFTEN], 1)
    template = launcher.start_template()
    parts = launcher.fork(template, 1, messages.Welcome("AGENT-0", 0, 1000, 30.0))
    until(lambda: template.poll() == 0, "the end of the template")
    assert template.answers() == [(Answer(1, failure="first"), None)]
    parts.process.close()
    parts.channel.close()
    template.close()
