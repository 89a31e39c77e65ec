"""Pictures that are made with the site: a real run on a terminal and in a browser, and a chart of the speed.

The drawings in docs/pictures are text, and are edited by hand. `make` makes the others.
"""

from __future__ import annotations

import fcntl
import importlib.util
import math
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MADE = ("speed.svg", "progress.svg", "status.svg", "page.png", "report.png")

SCRIPT = """\
import sys, time
import mwpy

@mwpy.task_algorithm
def orbit(mass, angle):
    time.sleep(0.01 + 0.005 * mass)
    if angle == 25 and mass > 6:
        raise ValueError("the orbit is not stable")
    return mass * angle

@mwpy.master_algorithm
def master(mw, argv):
    points = [(mass, angle) for angle in range(180) for mass in range(10)]
    return 0 * len(list(mw.map_results(orbit, *zip(*points))))

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""
RUN = "--mw-master --mw-local 4 --mw-resource-file orbits.rsc --mw-run-database orbits.db --mw-page 0 --mw-progress"
LONG_ENOUGH = 900
"""How many tasks have ended when the pictures are taken: the first failed tasks are among them then."""
PATIENCE_S = 120.0

WIDTH, FONT, LINE = 480, 8.43, 20
"""The width of the chart; the width of a letter of a terminal, and the height of its line."""

STYLE = """\
<style>
:root.picture { color-scheme: light dark }
.picture { --ink: light-dark(#1c1e26, #e6e8ee);
  --bar: light-dark(#b9c0e8, #4a5288); --own: light-dark(#3f51b5, #8c9eff) }
.chart { font: 14px system-ui, sans-serif; background: light-dark(#fff, #1e2129) }
.chart text { fill: var(--ink) }
.chart .tick { text-anchor: middle; font-size: 12px }
.chart .right { text-anchor: end }
.chart .title { font-weight: 700 }
.chart .bar { fill: var(--bar) }
.chart .own { fill: var(--own) }
.chart line { stroke: var(--ink); opacity: .15 }
.terminal rect { fill: #1e2129; stroke: #5a5f6e }
.terminal text { fill: #e6e8ee; font: 14px ui-monospace, monospace; white-space: pre }
.terminal .typed { fill: #9ccc65 }
</style>
"""


def make(root: Path) -> dict[str, bytes]:
    """Return the pictures by their names. Without a browser, its pictures are missing."""
    made = {"speed.svg": speed((root / "docs" / "performance.md").read_text(encoding="utf-8")).encode()}
    with TemporaryDirectory() as folder:
        return made | pictures_of_a_run(Path(folder))


def pictures_of_a_run(folder: Path) -> dict[str, bytes]:
    """Run a script on a terminal of 80 columns. Take pictures while it runs, and one of its report."""
    (folder / "orbits.py").write_text(SCRIPT)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    master = subprocess.Popen([sys.executable, "orbits.py", *RUN.split()], cwd=folder, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output: list[str] = []
    threading.Thread(target=_read, args=(ours, output), daemon=True).start()
    try:
        until(lambda: _ended("".join(output)) >= LONG_ENOUGH)
        line = re.findall(r"mwpy: tasks:[^\r\x1b]*", "".join(output))[-1]
        status = _mwpy(folder, "status", "orbits.rsc")
        url = re.findall(r"http://\S+token=[\w-]+", "".join(output))[0]
        made = {
            "progress.svg": terminal("python orbits.py --mw-progress", line).encode(),
            "status.svg": terminal("mwpy status orbits.rsc", status).encode(),
        }
        pictured = {"page.png": screenshot(url, "document.querySelector('#failures details') !== null")}
        assert master.wait(PATIENCE_S) == 0, "".join(output)
    finally:
        master.kill()
        master.wait()
    _mwpy(folder, "runs", "orbits.db", "--html", "report.html")
    pictured["report.png"] = screenshot((folder / "report.html").as_uri(), "document.readyState === 'complete'")
    return made | {name: content for name, content in pictured.items() if content}


def _read(terminal: int, output: list[str]) -> None:
    try:
        while read := os.read(terminal, 1 << 16):
            output.append(read.decode())
    except OSError:  # Linux says so that the other end is closed
        os.close(terminal)


def _ended(output: str) -> int:
    """Return how many tasks have ended, by the last line about the progress."""
    return int(([0, *re.findall(r"\| (\d+) of \d+", output)])[-1])


def _mwpy(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "mwpy", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the run of the pictures does not go on"
        time.sleep(0.05)


def screenshot(url: str, ready: str) -> bytes:
    """Return a picture of a page, when an expression of JavaScript is true; nothing without Chromium."""
    if shutil.which("chromedriver") is None or importlib.util.find_spec("selenium") is None:
        return b""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=760,860"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get(url)
        until(lambda: driver.execute_script(f"return {ready}"))
        return driver.get_screenshot_as_png()
    finally:
        driver.quit()


def terminal(command: str, output: str) -> str:
    """Draw a terminal with a command and its output."""
    lines = [f"$ {command}", *output.rstrip().splitlines()]
    width, height = round(FONT * max(80, *map(len, lines))) + 24, LINE * len(lines) + 22
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" class="picture terminal" viewBox="0 0 {width} {height}">']
    drawn += [STYLE, f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>']
    for number, line in enumerate(lines):
        kind = ' class="typed"' if number == 0 else ""
        y, length = LINE * number + 25, len(line) * FONT
        drawn.append(f'<text{kind} x="12" y="{y}" textLength="{length:.1f}">{escape(line)}</text>')
    return "\n".join([*drawn, "</svg>"])


def speed(text: str) -> str:
    """Draw the rates in the table of docs/performance.md as bars."""
    table = {cells[0][:3]: cells[1:] for line in text.splitlines() if len(cells := line.strip("|").split("|")) > 2}
    assert {"wor", "W1a", "W1b"} <= {*table}, "docs/performance.md has no table of workloads with W1a and W1b"
    singly, bulk = (
        {library: float(rate.replace(",", "")) for library, rate in zip(table["wor"], table[row], strict=True)}
        for row in ("W1a", "W1b")
    )
    left, right, low = 150, WIDTH - 84, 2
    scale = (right - left) / (6.6 - low)
    drawn, y = [], 24
    for title, group in (("One call for each task: tasks a second", singly), ("With a map: tasks a second", bulk)):
        drawn.append(f'<text class="title" x="8" y="{y}">{title}</text>')
        for library, rate in sorted(group.items(), key=lambda each: -each[1]):
            y += 24
            length = max(2.0, (math.log10(rate) - low) * scale)
            kind = "bar own" if library == "mwpy" else "bar"
            drawn += [
                f'<text class="right" x="{left - 8}" y="{y}">{library.removesuffix(".Pool")}</text>',
                f'<rect class="{kind}" x="{left}" y="{y - 13}" width="{length:.1f}" height="17" rx="3"/>',
                f'<text x="{left + length + 6:.1f}" y="{y}">{rate:,.0f}</text>',
            ]
        y += 44
    lines = []
    for power, tick in enumerate(("100", "1 k", "10 k", "100 k", "1 M")):
        x = left + power * scale
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="34" y2="{y - 34}"/>')
        lines.append(f'<text class="tick" x="{x:.1f}" y="{y - 18}">{tick}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="picture chart" viewBox="0 0 {WIDTH} {y}">'
    return "\n".join([head, STYLE, *lines, *drawn, "</svg>"])
