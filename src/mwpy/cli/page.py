"""mwpy page RESOURCE_FILE [--port N] [--host HOST]: show a live page of a running master in a browser.

Serve a page until the computation is finished: progress, rate, failures with their tracebacks, hosts, slaves, what each
of them does, and why nothing moves. The address that is printed has a token, which everybody needs who reads the page.
The master may run on another machine. It needs `pip install 'mwpy-cluster[page]'`.

examples:
  mwpy page app.rsc
  mwpy page app.rsc --port 8787

exit codes:
  0    the computation is finished
  2    a bad option, no resource file, the port is in use, or what the page needs is not installed
  130  it was stopped
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mwpy._roles.join import status
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.options import LOOPBACK
from mwpy.cli._arguments import Parser, number

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str]) -> int:
    """Show the page; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    try:
        from mwpy.page import serve
    except ImportError as error:
        raise UsageError(f"the page needs `pip install 'mwpy-cluster[page]'` ({error})") from None
    if status(parsed.path)["state"] == "finished":
        print("the computation is finished")
        return ExitCode.OK
    with serve(parsed.path, host=parsed.host, port=parsed.port) as page:
        print(page, flush=True)
        page.wait()
    return ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("page", __doc__)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="the file that the master writes")
    parser.add_argument("--port", type=number(0, int), default=0, metavar="N", help="default: any that is free")
    host = "the interface on which it listens; default: only this machine can reach it"
    parser.add_argument("--host", default=LOOPBACK, metavar="HOST", help=host)
    return parser
