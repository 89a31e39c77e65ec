"""The types of the interface: mypy finds each fault in a script, and reports nothing else."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def mypy(*arguments: str | Path) -> str:
    """Run mypy with the settings of the project. Return its output if it fails, or an empty text."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        ROOT / "pyproject.toml",
        "--no-error-summary",
    ]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    run = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr if run.returncode else ""


def test_mypy_finds_each_wrong_use_and_nothing_else() -> None:
    """A wrong argument of `f.task(...)` and a wrong use of `Result[str].value` are type errors."""
    assert mypy("tests/typing_api.py") == "", "an unused ignore is a fault that mypy did not find"


def test_a_wrong_argument_and_a_wrong_use_of_a_value_are_named(tmp_path: Path) -> None:
    """The message names the expected type, so that the reader can correct the mistake."""
    script = tmp_path / "script.py"
    script.write_text(
        "import mwpy\n"
        "@mwpy.task_algorithm\n"
        "def ping(word: str) -> str: return word\n"
        "def use(result: mwpy.Result[str]) -> int:\n"
        "    ping.task(3)\n"
        "    return result.value\n"
    )
    found = mypy(script)
    assert 'script.py:5: error: Argument 1 to "task"' in found
    assert 'has incompatible type "int"; expected "str"' in found
    assert 'script.py:6: error: Incompatible return value type (got "str", expected "int")' in found
