"""What must not be copied by a fork: scripts that a template may not load before it forks slaves."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="slaves are forked only on Linux")

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
import json, os, sys, numpy, scipy.stats
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
    command = [sys.executable, "-c", EXAMINING, json.dumps([*UNSAFE, *SAFE])]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={"OPENBLAS_NUM_THREADS": "4"}, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) == len(UNSAFE) + len(SAFE)
    for (script, reason), line in zip(UNSAFE.items(), lines, strict=False):
        assert reason in line, f"{script}: {line}"
        assert line.endswith("or give --mw-slave-start spawn")
    assert dict(zip(SAFE, lines[len(UNSAFE) :], strict=True)) == dict.fromkeys(SAFE, "")
