"""Runs a program of a sweep at an HTTP client, instead of on this machine: hands it over, and waits for results.

A slave starts this file as the program, in the folder of the run. It imports only the standard library, because it
starts for each run. Its end closes its connection, and then the run is taken from its client.

    python at_client.py JOB PROGRAM [ARGUMENT ...]

`JOB` is a JSON object: the names of the outputs, changes of the environment, and whether the files of this folder are
sent. An environment variable says where the door is, because other users can read a command line.
"""

from __future__ import annotations

import json
import os
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any


def main() -> int:
    """Return the exit code of the program."""
    job = json.loads(sys.argv[1])
    host, port, secret = json.loads(os.environ["MWPY_SWEEP_DOOR"])
    paths = sorted(path for path in Path().rglob("*") if path.is_file()) if job.pop("sends_files") else []
    job["files"] = {str(path): path.read_bytes().decode(errors="surrogateescape") for path in paths}
    job["stdin"] = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode(errors="surrogateescape")
    connection = HTTPConnection(host, port)
    connection.request(
        "POST", "/job", json.dumps({**job, "words": sys.argv[2:]}), {"Authorization": f"Bearer {secret}"}
    )
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    for name, content in answer["results"].items():
        if name == "STDOUT":
            sys.stdout.write(content)
        else:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content, encoding="utf-8")
    sys.stderr.write(answer["errors"])
    return int(answer["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
