"""A real notebook: nbclient sends the cells to a kernel of IPython, as Jupyter does."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Self

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tests.integration.apps.stage import PATIENCE_S, SOURCES, Stage, until


class Notebook:
    """A notebook and its kernel, which runs in the folder of a stage. The end of the `with` block ends the kernel."""

    def __init__(self, stage: Stage) -> None:
        self.folder = stage.folder
        self._content = nbformat.v4.new_notebook()
        place = {"metadata": {"path": str(stage.folder)}}
        self._client = NotebookClient(self._content, timeout=int(PATIENCE_S), kernel_name="python3", resources=place)
        name, value = stage.mark.split("=")
        own = {
            name: value,
            "PYTHONPATH": str(SOURCES),
            "IPYTHONDIR": str(stage.folder / "ipython"),
            "PYTHONDONTWRITEBYTECODE": "1",  # else Python takes a file with the same size as unchanged
        }
        seen = {key: text for key, text in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        # with this variable, the kernel would not show what its child processes print
        self._kernel = self._client.setup_kernel(env=seen | own)

    def __enter__(self) -> Self:
        self._kernel.__enter__()
        self.pid = int(self.run("import os; os.getpid()"))
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.__exit__(None, None, None)

    def run(self, source: str, shown: str = "") -> str:
        """Run a cell. Return what it prints and the value of its last expression.

        Args:
            shown: create a file of the name `shown` when the output of the cell contains this text.

        Raises:
            CellExecutionError: the cell raised an exception.
        """
        self._content.cells.append(cell := nbformat.v4.new_code_cell(source))
        if shown:

            def wait_and_tell() -> None:
                until(lambda: shown in str(cell.outputs), f"the output {shown}")
                (self.folder / "shown").touch()

            threading.Thread(target=wait_and_tell).start()
        self._client.execute_cell(cell, len(self._content.cells) - 1)
        texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        return "".join(texts).strip()

    def fail(self, source: str) -> tuple[str, str]:
        """Run a cell that must raise an exception. Return the name of its class, and its text."""
        with pytest.raises(CellExecutionError) as caught:
            self.run(source)
        return caught.value.ename, caught.value.evalue

    def traceback(self, source: str) -> list[str]:
        """Run a cell that must raise an exception. Return the lines of the traceback that the notebook shows."""
        with pytest.raises(CellExecutionError) as caught:
            self.run(source)
        return re.sub(r"\x1b\[[0-9;]*m", "", caught.value.traceback).splitlines()

    def send(self, number: signal.Signals, when: Path) -> None:
        """Send a signal to the process group of the kernel, as Jupyter does, as soon as a file exists."""

        def wait_and_send() -> None:
            until(when.exists, f"the file {when}")
            os.killpg(self.pid, number)

        threading.Thread(target=wait_and_send).start()

    def edit(self, module: str, *lines: str) -> None:
        (self.folder / f"{module}.py").write_text("\n".join([*lines, ""]))
