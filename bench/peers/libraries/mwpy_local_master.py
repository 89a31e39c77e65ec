"""mwpy, through `mwpy.local_master`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.peer import Peer
from bench.peers.processes import LOOK_S, descendants

import mwpy

if TYPE_CHECKING:
    import numpy as np

WINDOW = 10_000

OTHERS = 2
"""The processes of a local master beside the slaves: the agent, and the template from which slaves are forked."""

PEERS = Path(__file__).parent.parent
SUCCESSOR = str(PEERS / "successor.py")
SCALE = str(PEERS.parent / "scale.py")


class MwpyLocalMaster(Peer):
    chunks = (None,)
    each = None
    sends_each_time = not hasattr(mwpy.Master, "share")
    keeps_handles = False

    def start(self, workers: int) -> None:
        self.workers = workers
        self.mw = mwpy.local_master(workers)

    def stop(self) -> None:
        self.mw.close()

    def processes(self) -> Sequence[int]:
        while len(found := descendants(os.getpid())) != self.workers + OTHERS:
            time.sleep(LOOK_S)
        return sorted(found)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.mw.submit(mwpy.task(function, *arguments))

    def result(self, handle: Any) -> Any:
        while True:
            self.mw.loop()
            for result in self.mw.results():
                if result.task_id == handle:
                    return result.value

    def submit_each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        mw, waiting, unread = self.mw, iter(items), 0
        mw.set_target_number(WINDOW)
        while True:
            for _, item in zip(range(mw.upto_target_number()), waiting, strict=False):
                mw.submit(mwpy.task(function, item))
                unread += 1
            if not unread:
                return
            mw.loop()
            for result in mw.results():
                unread -= 1
                yield result.value

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], chunk: int | None) -> Iterable[Any]:  # noqa: ARG002
        return self.mw.map(function, items)

    def map_shared(self, function: Callable[..., Any], array: np.ndarray, parts: int) -> Iterable[Any]:
        shared = array if self.sends_each_time else self.mw.share(array)
        return self.mw.starmap(function, ((shared, part, parts) for part in range(parts)))

    def result_after_death(self, die: Callable[..., Any], path: str, function: Callable[[], Any]) -> Any:  # noqa: ARG002
        """Use a script that imports the packages, as users write it: the agent forks its slaves from a template."""
        command = [sys.executable, SUCCESSOR, path, "--mw-local", "1"]
        script = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert script.stdout is not None
        return int(script.stdout.readline())  # the end of the script would count, too

    def scale(self, agents: int) -> Sequence[float]:
        with tempfile.TemporaryDirectory() as folder:
            options = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-audit-file", os.devnull)
            command = [sys.executable, SCALE, str(agents), *options, "--mw-resource-file", f"{folder}/rsc"]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return json.loads(run.stdout)
