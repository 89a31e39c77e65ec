"""Forks that another process adopts, and what must not be copied by a fork. Each test runs in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

HAS_SCIPY = find_spec("scipy") is not None
"""The oldest packages are tested without SciPy."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted only on Linux")

ADOPTING = """
import os, sys
from mwpy._system import forks

forks.adopt_orphans()
template = os.fork()
if not template:
    pid = forks.fork_orphan()
    if not pid:
        os.write(1, f"{os.getppid()} {os.getsid(0) == os.getpid()}\\n".encode())
        os._exit(7)
    os.write(1, f"forked\\n".encode())
    os._exit(0)
os.waitpid(template, 0)
"""


def run(script: str, *arguments: str, **variables: str) -> list[str]:
    """Run a script. Return the lines of its output."""
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env={**variables}, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_an_orphan_has_its_own_session_and_the_adopting_process_learns_how_it_ended() -> None:
    lines = run(f"{ADOPTING}\npid, status = os.waitpid(-1, 0)\nprint(os.getpid(), os.waitstatus_to_exitcode(status))")
    own, code = lines[-1].split()
    assert code == "7"
    assert sorted(lines[:-1]) == [f"{own} True", "forked"]


def test_the_end_of_a_known_child_is_left_to_the_process_that_watches_it() -> None:
    """All others are forgotten."""
    forked = "\n".join(
        (
            "children = [os.fork() or os._exit(3) for _ in range(2)]",
            "for pid in children: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)",
            "forks.reap_orphans(children)",
            "print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))",
            "forks.reap_orphans([])",
            "forks.reap_orphans([])",
            "print(forks.count_children())",
        )
    )
    assert run(f"import os\nfrom mwpy._system import forks\n{forked}") == ["3", "0"]


def test_a_fork_that_is_not_possible_says_why() -> None:
    """Only root may fork beyond the limit of processes, and only the second fork fails here."""
    failing = "\n".join(
        (
            "own, fork = os.getpid(), os.fork",
            "def no_second():",
            "    if os.getpid() != own: raise BlockingIOError(11, 'no')",
            "    return fork()",
            "os.fork = no_second",
            "try: forks.fork_orphan()",
            "except OSError as error: print(error)",
        )
    )
    assert run(f"import os\nfrom mwpy._system import forks\n{failing}") == [
        "[Errno 11] Resource temporarily unavailable"
    ]


def test_what_waits_in_buffers_is_written_once() -> None:
    script = "\n".join(
        (
            "import ctypes, os, sys",
            "from mwpy._system import forks",
            "print('from Python', end='')",
            "ctypes.CDLL(None).printf(b'from C ')",
            "forks.flush()",
            "if not os.fork(): sys.exit()",
            "os.wait()",
        )
    )
    [line] = run(script)
    assert sorted(line.replace("from Python", "P").replace("from C ", "C")) == ["C", "P"]


UNSAFE = {
    "import random; rng = random.Random(1)": "rng in __main__ is or contains a random number generator",
    "import random; rngs = [random.Random(1)]": "rngs in __main__",
    "import random; rngs = {'a': random.Random(1)}": "rngs in __main__",
    "import random\nclass A:\n    rng = random.Random(1)": "A in __main__",
    "import random\nclass A:\n    def __init__(self): self.rng = random.Random(1)\na = A()": "a in __main__",
    "import random\ndef f(rng=random.Random(1)): pass": "f in __main__",
    "import random; draw = random.Random(1).random": "draw in __main__",
    "import random, functools; draw = functools.partial(random.Random(1).gauss, 1.0)": "draw in __main__",
    "import numpy; rng = numpy.random.default_rng(1)": "rng in __main__",
    "import numpy; draw = numpy.random.default_rng(1).normal": "draw in __main__",
    "import numpy; rng = numpy.random.RandomState(1)": "rng in __main__",
    "import random\ndef make():\n    rng = random.Random(1)\n    return lambda: rng.random()\ndraw = make()": "draw in",
    "import random\nclass A:\n    __slots__ = ('rng',)\na = A(); a.rng = random.Random(1)": "a in __main__",
    "import random\nclass A:\n    rng = property(lambda self, rng=random.Random(1): rng)": "A in __main__",
    "import random, functools\n@functools.cache\ndef rng(): return random.Random(1)\nrng()": "rng in __main__",
    "import random, functools\n@functools.lru_cache(1)\ndef rng(i): return random.Random(1)\nrng(5)": "rng in __main__",
    "import random, functools\n@functools.cache\ndef f(rng=random.Random(1)): pass": "f in __main__",
    "import random, contextvars; v = contextvars.ContextVar('v'); v.set(random.Random(1))": "v in __main__",
    "import random, threading; local = threading.local(); local.rng = random.Random(1)": "local in __main__",
    "import random\ndef draw(): pass\ndraw.rng = random.Random(1)": "draw in __main__",
    "import random\ndef stream():\n    rng = random.Random(1)\n    while True: yield rng.random()\n"
    "numbers = stream(); next(numbers)": "numbers in __main__",
    "import random, types; space = types.SimpleNamespace(a=types.SimpleNamespace(rng=random.Random(1)))": "space in",
    "from scipy.stats import norm; d = norm(); d.random_state = numpy.random.default_rng()": "d in __main__",
    "from scipy.stats import qmc; sobol = qmc.Sobol(1)": "sobol in __main__",
    "import random; data = [[[]] for _ in range(20000)]; rng = random.Random(1)": "rng in __main__",
    "import tempfile; folder = tempfile.TemporaryDirectory(); folder.cleanup()": "contains a temporary directory",
    "import multiprocessing; lock = multiprocessing.Lock()": "lock in __main__ is or contains a lock",
    "import threading; threading.Timer(99, print).start()": "the script starts a thread (Thread-1)",
    "import subprocess; p = subprocess.Popen(['/bin/sleep', '1'])": "the script starts a process",
    "import os; file = open(os.__file__)": "os.py open while it is loaded",
    "import socket; a, b = socket.socketpair()": "the script leaves socket:",
    "import asyncio; loop = asyncio.new_event_loop()": "open while it is loaded",
    "forks.GPU_DEVICES = ('/dev/full',); gpu = open('/dev/full', 'w')": "the script uses a GPU (/dev/full)",
    "import ctypes\nlibc, thread = ctypes.CDLL(None), ctypes.c_void_p()\n"
    "wait = ctypes.cast(libc.pause, ctypes.c_void_p)\n"
    "assert not libc.pthread_create(ctypes.byref(thread), None, wait, None)": "native code that the script loads has",
}
"""What a script does while it is loaded, and the reason not to fork."""

SAFE = (
    "from random import gauss; import random; rng = random._inst; safe = random.SystemRandom()",
    "from numpy.random import normal; import numpy.random.mtrand as m; rng = m._rand",
    "import os; log = os.open('/tmp', os.O_TMPFILE | os.O_RDWR | os.O_APPEND)",
    "import tempfile, mmap; f = tempfile.TemporaryFile(); f.truncate(9); m = mmap.mmap(f.fileno(), 9)",
    "class Lazy:\n    __class__ = property(lambda self: 1 / 0)\n    def __getattr__(self, name): 1 / 0\nlazy = Lazy()",
    "assert len(os.listdir('/proc/self/task')) > 1, 'OpenBLAS has no threads'",
    "from numpy.random import default_rng, seed\nfrom random import SystemRandom, choice\n"
    "from scipy.stats import norm, qmc\n"
    "import argparse, contextvars, decimal, logging, mwpy, scipy.optimize, tempfile\n"
    "modules, space, d, context = sys.modules, globals(), norm(), decimal.getcontext()\n"
    "log, parser, v = logging.getLogger('x'), argparse.ArgumentParser(), contextvars.ContextVar('v')\n"
    "next(tempfile._get_candidate_names()); names = vars(tempfile)",
    "import random\nclass A:\n    rng = random.Random(1)\ndef f(rng=A.rng): pass\n"
    "A.__module__ = f.__module__ = 'library'",
    "import dataclasses, enum, functools, mwpy, typing\nrandom = numpy.random\n"
    "@dataclasses.dataclass\nclass A:\n    rng: object = dataclasses.field(default_factory=random.default_rng)\n"
    "class B(enum.Enum):\n    A = 1\n"
    "class C(typing.NamedTuple):\n    a: A\n    draw: object = random.normal\nc = C(1)\n"
    "@functools.cache\ndef f(x): return random.rand(x)\nf(2)\n"
    "@mwpy.task_algorithm\ndef task(): return f(1)\n"
    "def deco(g):\n    @functools.wraps(g)\n    def inner(): return g(random.rand())\n    return inner\nh = deco(f)",
)
"""What is no reason: the shared generators and their methods, files that can be shared, proxies, OpenBLAS, what
libraries have, and what a script defines with them."""

EXAMINING = """
import json, os, sys, numpy
try:
    import scipy.stats
except ImportError:
    pass
from mwpy._system import forks

numpy.ones((300, 300)) @ numpy.ones((300, 300))  # starts threads again that an earlier fork has ended
for script in json.loads(sys.argv[1]):
    answer, answering = os.pipe()
    if not os.fork():
        os.close(answer)
        numpy.ones((300, 300)) @ numpy.ones((300, 300))
        exec(script)
        os.write(answering, forks.why_unsafe([answering]).encode())
        os._exit(0)
    os.close(answering)
    print(open(answer).read(), flush=True)
    os.wait()
"""


def test_what_must_not_be_copied_is_named_and_nothing_else() -> None:
    unsafe = {script: reason for script, reason in UNSAFE.items() if HAS_SCIPY or "scipy" not in script}
    safe = [script for script in SAFE if HAS_SCIPY or "scipy" not in script]
    lines = run(EXAMINING, json.dumps([*unsafe, *safe]), OPENBLAS_NUM_THREADS="4")
    assert len(lines) == len(unsafe) + len(safe)
    for (script, reason), line in zip(unsafe.items(), lines, strict=False):
        assert reason in line, f"{script}: {line}"
        assert line.endswith("or give --mw-slave-start spawn")
    assert dict(zip(safe, lines[len(unsafe) :], strict=True)) == dict.fromkeys(safe, "")
