"""The page of a master in a real browser: a run with a slow host and tasks that fail, and one that cannot move."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from tests.batch.systems import skip
from tests.integration.apps.stage import PATIENCE_S, SOURCES, Stage
from tests.systems.debian import Unavailable, check_machine, install

from mwpy._values.phrases import duration

SLOW = "slow-host"
"""The name of the slow host: an agent whose process has another host name."""

SCRIPT = f"""
import platform, sys, time
import mwpy

def settle(number, width):
    time.sleep(0.06 if platform.node() == "{SLOW}" else 0.02)
    if width == 13:
        raise ValueError(f"<script>document.title = 'owned'</script> does not converge")
    return number

@mwpy.master_algorithm
def master(mw, argv):
    number = 0
    while True:
        list(mw.map_results(settle, range(number, number + 100), [13 if n % 40 == 7 else 1 for n in range(100)]))
        number += 100

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

STUCK = """
import sys
import mwpy

@mwpy.master_algorithm
def master(mw, argv):
    list(mw.map(abs, [-1], gpus=1))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

CHROME = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Browser:
    """A browser that shows one page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def show(self, url: str) -> None:
        self.driver.get(url)
        self.until("document.querySelectorAll('#totals div').length > 0 || !document.getElementById('stuck').hidden")

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition}:\n{self.run('return document.body.innerText')}"
            time.sleep(0.05)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def column(self, table: str, title: str) -> list[str]:
        """The texts of a column of a table."""
        found = self.run(
            "const table = document.getElementById(arguments[0]);"
            "const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === arguments[1]);"
            "return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent);",
            table, title,
        )  # fmt: skip
        return cast("list[str]", found)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromedriver") is None:
        try:
            check_machine("test-processes")
            install("chromium", "chromium-driver", "fonts-dejavu-core")
        except Unavailable as missing:
            skip(f"there is no browser: {missing}")
    options = webdriver.ChromeOptions()
    for argument in (*CHROME, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def start(stage: Stage, script: str) -> tuple[list[str], str]:
    """Start a master with a page. Return how an agent is started, and the address of the page."""
    path = stage.folder / "script.py"
    path.write_text(script)
    own = [sys.executable, str(path)]
    options = f"--mw-master --mw-page 0 --mw-master-host 127.0.0.1 --mw-resource-file {stage.resource}".split()
    running = stage.start("", *options, program=own, variables={"PYTHONPATH": os.fspath(SOURCES)})
    deadline = time.monotonic() + PATIENCE_S
    while "?token=" not in running.err or not stage.resource.exists():
        assert time.monotonic() < deadline, running.err
        time.sleep(0.05)
    url = next(word for word in running.err.split() if "?token=" in word)
    return [*own, "--mw-slave", "--mw-resource-file", str(stage.resource)], url


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run that goes on, with an agent here and one on a slow host. Return the address of its page."""
    with Stage(tmp_path_factory.mktemp("run")) as stage:
        agent, url = start(stage, SCRIPT)
        variables = {"PYTHONPATH": os.fspath(SOURCES)}
        stage.start("", program=agent, variables=variables)
        renamed = "unshare", "--uts", "sh", "-c", f'hostname {SLOW}; exec "$@"', "sh", *agent
        stage.start("", program=[*renamed], variables=variables)
        yield url


@pytest.fixture
def shown(browser: Browser, run: str) -> Browser:
    """The browser with the page of this run, when both hosts have made tasks."""
    browser.driver.set_window_size(1200, 1000)
    browser.show(run)
    browser.until(f"latest.hosts['{SLOW}']?.finished > 20 && latest.hosts['{platform.node()}']?.finished > 60")
    browser.until("document.querySelectorAll('#hosts tbody tr').length === 2")
    return browser


def test_the_figures_are_those_of_the_status(shown: Browser, run: str) -> None:
    """The page shows what it was sent, and this grows as the status does."""
    with urllib.request.urlopen(run.replace("/?", "/status.json?")) as answer:
        before = json.load(answer)
    shown.until(f"latest.tasks.succeeded >= {before['tasks']['succeeded']}")
    sent, text = shown.run("return [latest, document.getElementById('totals').innerText]")
    assert f"done\n{sent['tasks']['succeeded']:,}\n" in text
    assert f"failed\n{sent['tasks']['failed']:,}\n" in text
    assert shown.column("hosts", "tasks") == [f"{sent['hosts'][host]['finished']:,}" for host in sorted(sent["hosts"])]
    assert len(shown.column("slaves", "slave")) == len(sent["slaves"]) == 2


def test_times_are_those_of_all_other_texts(shown: Browser) -> None:
    """They have hours and minutes."""
    times = [0.0, 2.1e-6, 0.0354, 0.9996, 1.0, 12.34, 119.4, 119.6, 320.0, 598.7, 599.6, 3569.0, 3599.0, 7500.0]
    times += [47.4 * 3600, 47.6 * 3600, 76 * 3600.0, 46.8 * 86400]
    assert shown.run("return arguments[0].map(duration)", times) == [duration(each) for each in times]


def test_a_person_finds_the_slow_host(shown: Browser) -> None:
    paces = dict(zip(shown.column("hosts", "host"), shown.column("hosts", "pace, to others"), strict=True))
    assert paces[SLOW].endswith("times slower")
    assert paces[SLOW] in [cell.text for cell in shown.driver.find_elements(By.CSS_SELECTOR, "#hosts td.bad")]


def test_what_is_noteworthy_is_said_first(shown: Browser) -> None:
    text = shown.find("#findings").text
    assert f"{SLOW} is slow: its tasks take" in text
    assert "tasks failed, all with ValueError" in text


def test_a_person_finds_the_parameter_that_fails(shown: Browser) -> None:
    """The traceback is one click away. Names and texts of tasks are text, and never HTML."""
    shown.until("document.querySelector('#failures details') !== null")
    shown.find("#failures summary").click()
    text = shown.find("#failures pre").text
    assert ", 13" in text.splitlines()[0]
    assert "in settle" in text
    assert "mwpy.replay(" in text
    summary = shown.find("#failures summary").text
    assert "<script>" in summary
    assert "in common: argument 2 is 13" in summary
    assert shown.run("return document.title !== 'owned' && document.scripts.length === 1")


def test_tables_are_sorted_with_the_keyboard_and_keep_their_rows(shown: Browser) -> None:
    """Nothing flickers: the element of a host stays when its figures change."""
    ascending = shown.column("hosts", "host")
    assert ascending == sorted(ascending)
    shown.run("document.querySelector('#hosts tbody tr').dataset.seen = 'before'")
    shown.find("#hosts th button").send_keys(Keys.ENTER)
    assert shown.column("hosts", "host") == ascending[::-1]
    assert shown.find("#hosts th").get_attribute("aria-sort") == "descending"
    done = shown.run("return latest.tasks.succeeded")
    shown.until(f"latest.tasks.succeeded > {done}")
    assert shown.run("return document.querySelectorAll('#hosts tr[data-seen]').length") == 1
    shown.find("#hosts th button").send_keys(Keys.ENTER)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_has_a_light_and_a_dark_theme(shown: Browser, theme: str) -> None:
    chosen = shown.run("return isDark() ? 'dark' : 'light'")
    if chosen != theme:
        shown.find("#theme").click()
    paper, ink = shown.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    brightness = [sum(map(int, each.removeprefix("rgb(").rstrip(")").split(","))) for each in (paper, ink)]
    assert (brightness[0] > brightness[1]) == (theme == "light")
    assert abs(brightness[0] - brightness[1]) > 450, "the text is hard to read"


def test_a_person_reads_it_on_a_phone(shown: Browser) -> None:
    """Nothing is wider than the screen; large tables scroll within their frames."""
    shown.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        shown.until("innerWidth === 360")
        assert shown.run("return document.documentElement.scrollWidth") <= 360
    finally:
        shown.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_each_slave_has_a_row_in_the_timeline(shown: Browser) -> None:
    shown.until("document.querySelectorAll('#timeline rect').length > 1")
    assert shown.run("return [...document.querySelectorAll('#timeline text')].map((each) => each.textContent)") == [
        "SLAVE-0",
        "SLAVE-1",
    ]
    shown.until("document.querySelector('#rate path').getAttribute('d').length > 10")


def test_nothing_comes_from_elsewhere_and_the_console_is_empty(shown: Browser, run: str) -> None:
    origin = run.partition("/?")[0]
    names = shown.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert len(names) >= 3
    assert all(name.startswith((origin, "data:")) for name in names)
    assert cast("list[Any]", shown.driver.get_log("browser")) == []  # type: ignore[no-untyped-call]


def test_a_person_finds_why_nothing_moves(browser: Browser, stage: Stage) -> None:
    """First there is no slave, then one that has no GPU."""
    agent, url = start(stage, STUCK)
    browser.show(url)
    browser.until("document.getElementById('stuck').textContent.includes('no slave is connected')")
    stage.start("", "--mw-offers", "gpus=0", program=agent, variables={"PYTHONPATH": os.fspath(SOURCES)})
    browser.until("document.getElementById('stuck').textContent.includes('gpus')")


def test_the_last_figures_stay_when_the_master_has_ended(browser: Browser, tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        _, url = start(stage, STUCK)
        browser.show(url)
        browser.until("document.getElementById('stuck').textContent.includes('no slave is connected')")
    browser.until("document.getElementById('stuck').textContent.includes('These are its last figures')")
    browser.driver.get_log("browser")  # type: ignore[no-untyped-call]
