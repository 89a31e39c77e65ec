"""The documentation site in a real browser: each page in a wide window and on a phone, and what the search finds."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import pytest
from selenium.webdriver.common.keys import Keys
from tests.integration import test_page_browser
from tests.integration.test_page_browser import Browser

ROOT = Path(__file__).parent.parent.parent
BUILD_S = 240.0

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

FAULTS = """
const faults = [], all = (selector) => [...document.querySelectorAll(selector)];
const check = (isWrong, words) => { if (isWrong) faults.push(words); };
check(document.documentElement.scrollWidth > innerWidth, "the page scrolls sideways");
for (const label of all(".md-tabs__link, .md-nav--primary .md-nav__link")) {
  const inner = label.querySelector(".md-ellipsis") || label, text = label.innerText.trim();
  if (!text || !label.offsetParent || label.closest(".md-nav--secondary")) continue;
  const lines = inner.getBoundingClientRect().height / parseFloat(getComputedStyle(inner).lineHeight);
  check(lines > 1.6 || inner.scrollWidth > inner.clientWidth + 1, `the label '${text}' has two lines, or is cut`);
}
for (const code of all("pre > code")) {
  const lines = code.innerText.split("\\n");
  check(innerWidth >= 1280 && code.scrollWidth > code.clientWidth && lines.every((line) => line.length <= 80),
    `code of 80 characters is cut: ${code.innerText}`);
  check(code.closest(".language-sh") && lines.some((line) => line.startsWith("$ ")),
    `a prompt would be copied: ${code.innerText}`);
}
for (const picture of all("article img, article svg.picture")) {
  check(!picture.alt && !picture.getAttribute("aria-label"), `a picture has no text: ${picture.outerHTML}`);
  check(picture.naturalWidth === 0, `a picture is missing: ${picture.src}`);
}
for (const { name } of performance.getEntriesByType("resource"))
  check(!name.startsWith(location.origin) && !name.startsWith("data:"), `${name} comes from another server`);
return faults;
"""
"""What is wrong with a page, in sentences."""

ANSWERS = {
    "retry after an exception": ("manual/retry",),
    "limit memory": ("manual/limits",),
    "time limit": ("manual/limits",),
    "resume tomorrow": ("manual/restart", "guides/restart"),
    "use a GPU": ("manual/resources", "guides/cores-gpus-memory"),
    "follow the log of a task": ("manual/monitor",),
    "why is nothing running": ("manual/monitor",),
    "progress bar": ("manual/monitor",),
    "share a large array": ("manual/data", "guides/large-arrays"),
    "several parameters table": ("guides/parameter-scan", "start"),
    "run on slurm": ("clusters/slurm",),
    "cache results": ("manual/restart", "guides/restart"),
}
"""What people search for, and the pages that answer. One of them must be the first or the second hit."""

browser = test_page_browser.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, stderr=PIPE, text=True, timeout=BUILD_S)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def resize(browser: Browser, screen: dict[str, int]) -> None:
    metrics = screen | {"deviceScaleFactor": 1, "mobile": screen is PHONE}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.until(f"innerWidth === {screen['width']}")


def test_every_page_fits_and_is_complete(browser: Browser, site: Path, address: str) -> None:
    """No page scrolls sideways, no label wraps, no picture is missing, and nothing comes from elsewhere."""
    found: list[str] = []
    pages = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    assert len(pages) > 40
    for page in pages:
        for screen in (WIDE, PHONE):
            resize(browser, screen)
            browser.driver.get(f"{address}{page}/")
            browser.until("document.readyState === 'complete'")
            found += [f"{page} at {screen['width']} pixels: {fault}" for fault in browser.run(FAULTS)]
        log = cast("list[Any]", browser.driver.get_log("browser"))  # type: ignore[no-untyped-call]
        found += [f"{page}: {entry}" for entry in log]
    assert not found, "\n".join(found)


def test_commands_are_copied_without_prompts_and_outputs(browser: Browser, address: str) -> None:
    resize(browser, WIDE)
    browser.driver.get(f"{address}start/")
    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": address}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", grant)
    browser.until("document.querySelector('.language-sh button') !== null")
    browser.find(".language-sh button").click()
    copied = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")
    [shown] = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.DOTALL)[:1]
    assert copied.strip() == shown.strip()


@pytest.mark.parametrize("question", ANSWERS)
def test_one_of_the_first_two_hits_answers(browser: Browser, address: str, question: str) -> None:
    assert {*hits(browser, address, question)[:2]} & {*ANSWERS[question]}, hits(browser, address, question)


def hits(browser: Browser, address: str, question: str) -> list[str]:
    """Return the pages that the search of the site shows, best first."""
    resize(browser, WIDE)
    browser.driver.get(address)
    box = browser.find("[data-md-component=search-query]")
    browser.until("document.readyState === 'complete'")
    box.click()
    box.send_keys(question, Keys.SPACE)
    browser.until("document.querySelector('.md-search-result__item') !== null")
    found = browser.run(
        "return [...document.querySelectorAll('.md-search-result__item > a')].map((each) => each.pathname)"
    )
    return [path.strip("/") for path in found]
