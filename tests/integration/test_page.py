"""The page of a master: who may read it, what it answers to clients of any kind, and that it harms nobody."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.apps.stage import SOURCES, Running, Stage, until

import mwpy
from mwpy.page import Page, serve
from mwpy.page.server import CLIENTS


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


OPENER = urllib.request.build_opener(_NoRedirect)


def get(page: Page, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return code, headers and content of an answer."""
    request = urllib.request.Request(f"http://{page.host}:{page.port}{path}", headers=headers)
    try:
        answer = cast("HTTPResponse", OPENER.open(request, timeout=30))
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()
    with answer:
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def figures(page: Page, since: str = "") -> dict[str, Any]:
    """The figures that the page shows."""
    code, _, content = get(page, f"/status.json?token={page.token}{since}")
    assert code == 200
    return cast("dict[str, Any]", json.loads(content))


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError(f"no root for <script>{number}</script>")
    return number


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.LocalMaster]:
    """A master that has made ten tasks, one of which failed."""
    with mwpy.local_master(slaves=2) as master:
        list(master.map_results(fail_at_three, range(10)))
        until(lambda: [row["idle"] for row in master.status()["hosts"].values()] == [2], "two slaves without work")
        yield master


@pytest.fixture(scope="module")
def page(mw: mwpy.LocalMaster) -> Page:
    return cast("Page", mw.page())


# ---- who may read it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/?token=", "/status.json?token=wrong"])
def test_without_its_token_a_page_shows_nothing(page: Page, path: str) -> None:
    code, _, content = get(page, path)
    assert code == 403
    assert b"open the address that the master has printed" in content


def test_the_first_request_gets_a_cookie_and_an_address_without_the_token(page: Page) -> None:
    code, headers, _ = get(page, page.url[page.url.index("/?") :])
    assert (code, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    code, headers, content = get(page, "/", Cookie=cookie.partition(";")[0])
    assert (code, b"<html" in content) == (200, True)
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_a_program_gives_the_token_in_a_header(page: Page) -> None:
    assert get(page, "/status.json", Authorization=f"Bearer {page.token}")[0] == 200


def test_the_line_that_is_printed_has_the_address_and_a_command_for_other_machines(page: Page) -> None:
    assert page.url in str(page)
    assert f"ssh -L {page.port}:127.0.0.1:{page.port} " in str(page)


# ---- what it answers -----------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_status(mw: mwpy.LocalMaster, page: Page) -> None:
    page.refresh()
    found, status = figures(page), mw.status(detailed=True)
    for name in ("tasks", "algorithms", "hosts", "failures", "lost", "rows"):
        assert found[name] == status[name]
    assert found["tasks"]["succeeded"] == 9
    [example] = found["examples"]
    assert (example["kind"], example["count"], example["arguments"]) == ("ValueError", 1, "3")
    assert "in fail_at_three" in example["traceback"]
    assert [row["finished"] for row in found["slaves"]] == [row["finished"] for row in status["slaves"]]
    assert sum(row["finished"] for row in found["slaves"]) == 10


def test_only_what_is_new_of_the_history_is_sent(page: Page) -> None:
    page.refresh()
    history = figures(page, "&since=0")["history"]
    assert len(history) >= 2
    assert {*history[-1]["lanes"].values()} == {""}, "both slaves wait"
    assert figures(page, f"&since={history[-1]['at']}")["history"] == []
    assert get(page, f"/status.json?token={page.token}&since=yesterday")[0] == 400


def test_prometheus_reads_the_same_figures(mw: mwpy.LocalMaster, page: Page) -> None:
    page.refresh()
    _, headers, content = get(page, f"/metrics?token={page.token}")
    assert headers["content-type"].startswith("text/plain")
    families = {family.name: family.samples for family in text_string_to_metric_families(content.decode())}
    assert {sample.labels["state"]: sample.value for sample in families["mwpy_tasks"]} == mw.status()["tasks"]
    assert [(sample.labels, sample.value) for sample in families["mwpy_failures"]] == [({"kind": "ValueError"}, 1.0)]


def test_there_is_one_page_of_a_master(mw: mwpy.LocalMaster, page: Page) -> None:
    assert mw.page() is page
    assert page.url in mw._repr_html_()


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/page.html", "/nothing"])
def test_other_paths_are_not_found(page: Page, path: str) -> None:
    assert get(page, path)[0] == 404


def connect(page: Page) -> socket.socket:
    return socket.create_connection((page.host, page.port), timeout=30)


def test_clients_that_send_garbage_or_never_read_or_come_in_crowds_harm_nobody(
    mw: mwpy.LocalMaster, page: Page
) -> None:
    """Too many at a time get the code 503. The master computes meanwhile."""
    silent = [connect(page) for _ in range(20)]
    greedy = [connect(page) for _ in range(5)]
    for client in greedy:
        client.sendall(f"GET /status.json?token={page.token} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 20)
    with connect(page) as client:
        client.sendall(os.urandom(2000) + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")
    with ThreadPoolExecutor(50) as many:
        codes = [*many.map(lambda _: get(page, f"/status.json?token={page.token}")[0], range(2 * CLIENTS))]
    assert {*codes} <= {200, 503}
    assert 200 in codes
    assert sum(mw.map(fail_at_three, range(10, 20))) == sum(range(10, 20))
    for client in (*silent, *greedy):
        client.close()
    until(lambda: get(page, f"/status.json?token={page.token}")[0] == 200, "an answer")


def test_a_port_in_use_is_an_error_that_names_it(mw: mwpy.LocalMaster, page: Page) -> None:
    with pytest.raises(mwpy.UsageError, match=rf"cannot listen at 127.0.0.1:{page.port}.*: give another port"):
        Page(dict, port=page.port)
    with pytest.raises(mwpy.UsageError, match="no-such-host"):
        Page(dict, host="no-such-host.invalid")


def test_a_master_that_does_not_answer_is_named_and_its_last_figures_stay(mw: mwpy.LocalMaster) -> None:
    answers = [mw.status(detailed=True)]

    def ask() -> dict[str, Any]:
        if not answers:
            raise mwpy.MasterUnreachable("no answer for 10 s")
        return answers.pop()

    with Page(ask) as page:
        until(lambda: figures(page)["problem"] == "no answer for 10 s", "the problem")
        assert figures(page)["tasks"]["succeeded"] >= 9


# ---- how a page starts and ends ------------------------------------------------------------------------------------


def test_a_page_ends_with_its_master_and_leaves_no_thread() -> None:
    before = {*threading.enumerate()}
    with mwpy.local_master(slaves=1) as master:
        page = master.page()
        list(master.map(abs, [-1]))
    with pytest.raises(OSError, match="refused"):
        connect(page)
    assert not [thread.name for thread in {*threading.enumerate()} - before if thread.name.startswith("mwpy-page")]


def test_without_slaves_the_page_is_served_between_tasks() -> None:
    with mwpy.local_master(slaves=0) as master:
        page = master.page()
        for _ in range(3):
            list(master.map(time.sleep, [0.3] * 3))
        until(lambda: "tasks" in figures(page), "figures")


SCRIPT = """
import sys, time
from pathlib import Path
import mwpy

def wait(number):
    while not Path("go").exists(): time.sleep(0.01)
    return number

@mwpy.master_algorithm
def master(mw, argv):
    print(sum(mw.map(wait, range(10))))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


def start(stage: Stage, *arguments: str) -> Running:
    path = stage.folder / "script.py"
    path.write_text(SCRIPT)
    variables = {"PYTHONPATH": os.fspath(SOURCES)}
    return stage.start("", *arguments, program=[sys.executable, str(path)], variables=variables)


def address(running: Running, output: str = "err") -> str:
    """The address of the figures of a page that a process has printed."""
    until(lambda: "?token=" in getattr(running, output), "the address of the page")
    written = str(getattr(running, output))
    return next(word for word in written.split() if "?token=" in word).replace("/?", "/status.json?")


def test_a_script_shows_its_page(stage: Stage) -> None:
    running = start(stage, "--mw-local", "1", "--mw-page", "0")
    with urllib.request.urlopen(address(running)) as answer:
        assert json.load(answer)["member_id"]
    (stage.folder / "go").touch()
    assert running.end() == 0, running.err
    assert running.out == "45\n"


def test_a_script_goes_on_without_a_page_if_its_port_is_in_use(stage: Stage) -> None:
    (stage.folder / "go").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = start(stage, "--mw-local", "1", "--mw-page", str(taken.getsockname()[1]))
        assert running.end() == 0, running.err
    assert "give another port, or 0 for any. The computation goes on without a page" in running.err
    assert running.out == "45\n"


def test_the_command_shows_a_master_that_runs_elsewhere_until_its_end(stage: Stage) -> None:
    options = "--mw-master-host", "127.0.0.1", "--mw-resource-file", str(stage.resource)
    running = start(stage, "--mw-master", "--mw-local", "1", *options)
    until(stage.resource.exists, "a resource file")
    shown = stage.start("", "-m", "mwpy", "page", str(stage.resource), program=[sys.executable])
    with urllib.request.urlopen(address(shown, "out")) as answer:
        found = json.load(answer)
    assert found["state"] in ("running", "starting")
    (stage.folder / "go").touch()
    assert running.end() == 0, running.err
    assert shown.end() == 0, shown.err


def test_a_page_of_no_resource_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(mwpy.ResourceFileError):
        serve(tmp_path / "nothing.rsc")


def test_a_sweep_shows_its_page(stage: Stage) -> None:
    words = "sweep", "--page", "0", "--slaves", "1", "echo {}", ":::", "a", "b"
    running = stage.start("", "-m", "mwpy", *words, program=[sys.executable])
    assert running.end() == 0, running.err
    assert "?token=" in running.err
    assert running.out.split() == ["a", "b"]


def test_the_page_shows_what_an_overseer_says_about_its_jobs(stage: Stage) -> None:
    """The overseer writes it beside the resource file. It says how old it is."""
    options = "--mw-master-host", "127.0.0.1", "--mw-resource-file", str(stage.resource)
    running = start(stage, "--mw-master", "--mw-page", "0", *options)
    url = address(running)
    until(stage.resource.exists, "a resource file")

    def jobs() -> dict[str, Any] | None:
        with urllib.request.urlopen(url) as answer:
            return cast("dict[str, Any] | None", json.load(answer).get("jobs"))

    assert jobs() is None
    words = "oversee", str(stage.resource), "--with", "local", "--max", "2", "--interval", "0.5"
    overseer = stage.start("", "-m", "mwpy", *words, program=[sys.executable])
    until(lambda: (jobs() or {}).get("connected_jobs") == 2, "two jobs that are connected")
    found = jobs()
    assert found is not None
    assert found["jobs"]["running"] == 2
    assert any("submits" in line for line in found["messages"])
    assert 0 <= found["age_s"] < 100
    (stage.folder / "go").touch()
    assert running.end() == 0, running.err
    assert overseer.end() == 0, overseer.err
