"""What a function consists of, and when it is the same as in an earlier run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = '''
import threading
import numpy as np

LOCK = threading.Lock()
TABLE = {"x": {3, 1, 2, "a", "b"}}

def scale(x):
    """Scale."""
    with LOCK:
        return np.sin(x) * len(TABLE["x"])

def unused():
    return 3
'''

APP = """
import dataclasses, enum, functools, logging, random
from pathlib import Path

import helpers
import mwpy

HERE = Path(__file__).parent / "x"
SCALE = 3
LOG = logging.getLogger(__name__)

def plus(x):
    return x + 1

def make(k):
    def inner(x):
        return k * x
    return inner

HANDLERS = {make(1), plus, make(2)}

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int = 3
    y: list = dataclasses.field(default_factory=list)

    def norm(self):
        return self.x * SCALE + len([Point])

@functools.cache
def cached(x):
    return recursive(x)

def recursive(x):
    return cached(x - 1) if x else 0

@mwpy.task_algorithm
def simulate(x, y=2):
    import json
    LOG.info("x %s", HERE)
    handled = sum(each(1) for each in HANDLERS) + random.random() + Color.RED.value
    return helpers.scale(x) * SCALE + Point(3).norm() + cached(3) + handled

def digests():
    from mwpy._values.sameness import call_digest, code_of
    codes = [simulate, functools.partial(simulate, y={1, "a"}), lambda x: simulate(x), Point(3).norm, Point]
    values = [Point(3), {"a", "b"}, simulate, Color.RED]
    return [*[code_of(each).digest.hex() for each in codes], *[call_digest((each,), {"k": 1}).hex() for each in values]]

if __name__ == "__main__":
    print(digests())
"""


def files(folder: Path, app: str = APP, helpers: str = HELPERS) -> Path:
    folder.mkdir()
    (folder / "app.py").write_text(app)
    (folder / "helpers.py").write_text(helpers)
    return folder


def output(cwd: Path, *command: str, seed: int = 0) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


def test_processes_folders_and_the_name_of_the_module_do_not_count(tmp_path: Path) -> None:
    one, other = files(tmp_path / "one"), files(tmp_path / "other")
    expected = output(one, "app.py", seed=1)
    assert output(tmp_path, "other/app.py", seed=2) == expected
    assert output(other, "-c", "import app; print(app.digests())", seed=3) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 3", "SCALE = 4"),
        ("x + 1", "x + 2"),
        ("make(2)", "make(3)"),
        ("RED = 1", "RED = 2"),
        ("x: int = 3", "x: int = 4"),
        ("len([Point])", "len([Point, Point])"),
        ("if x else 0", "if x else 1"),
        ("y=2", "y=3"),
    ],
)
def test_a_change_of_what_a_function_reaches_counts(tmp_path: Path, old: str, new: str) -> None:
    one, other = files(tmp_path / "one"), files(tmp_path / "other", APP.replace(old, new))
    command = ("-c", "import app; print(app.digests()[0])")
    assert output(one, *command) != output(other, *command)
