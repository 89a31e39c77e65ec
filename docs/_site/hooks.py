"""Hooks of MkDocs: the version, pages that are made from the repository, ranks in the search, and pictures.

MkDocs calls the functions by their names. `pictures.py` makes the pictures that show a real run.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from html import escape
from pathlib import Path

import pictures
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from mwpy._values.options import HELP, OPTIONS
from mwpy.app import VERSION

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name[0] not in "._")
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".awk": "awk"}
SHOWN = re.compile(r"^!\[[^]]*\]\((?:\.\./)*(pictures/[^)]+)\)\n", re.MULTILINE)
"""A picture in a page: a line of its own."""
INLINE = re.compile(r'<img alt="([^"]*)" src="[^"]*(pictures/[^"]+\.svg)" />')

BOOSTS = {"contributing/": 0.2, "changelog.md": 0.1, "examples/": 0.5, "performance.md": 0.4, "reference.md": 0.4}
"""How much a hit counts in the search, by the beginning of the path of its page; 1 for other pages."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version, and list the examples."""
    config.site_name = f"mwpy {VERSION}"
    [guides] = [tab["Guides"] for tab in config.nav or [] if "Guides" in tab]
    guides.append({"Examples": [{title(name): f"examples/{name}.md"} for name in EXAMPLES]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are made from the repository."""
    pages = {f"examples/{name}.md": example(ROOT / "examples" / name) for name in EXAMPLES}
    pages["options.md"] = options()
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path, content in (pages | made_pictures()).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set the rank of a page, and leave out pictures that cannot be made here."""
    for beginning, boost in BOOSTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta["search"] = {"boost": boost}

    def kept(shown: re.Match[str]) -> str:
        left_out = shown[1].removeprefix("pictures/") in pictures.MADE and shown[1] not in files.src_uris
        return "" if left_out else shown[0]

    return SHOWN.sub(kept, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put drawings into the page, so that they have the colours of its theme."""

    def drawing(shown: re.Match[str]) -> str:
        file = files.get_file_from_path(shown[2])
        assert file is not None, f"{page.file.src_uri} shows {shown[2]}, which is not there"
        return file.content_string.replace("<svg", f'<svg role="img" aria-label="{shown[1]}"', 1).strip()

    return INLINE.sub(drawing, html)


@cache
def made_pictures() -> dict[str, bytes]:
    """Return the pictures of a run by their paths. `mkdocs serve` makes them once."""
    made = {f"pictures/{name}": content for name, content in pictures.make(ROOT).items()}
    for name in sorted({f"pictures/{name}" for name in pictures.MADE} - {*made}):
        print(f"docs: {name} is left out: it needs Chromium and the packages of the tests", file=sys.stderr)
    return made


def title(name: str) -> str:
    """Return the name of an example as a title."""
    return name.replace("_", " ").capitalize()


def example(folder: Path) -> str:
    """Return the page of an example: what it shows, how it is run, and its source."""
    files = sorted(path for path in folder.iterdir() if path.suffix in LANGUAGES)
    sources = {path: path.read_text(encoding="utf-8") for path in files}
    readme = folder / "README.md"
    if readme.exists():
        about = readme.read_text(encoding="utf-8").partition("\n")[2].replace("](../../docs/", "](../")
    else:
        [path] = files
        docstring = ast.parse(sources[path]).body[0]
        about = ast.get_docstring(ast.parse(sources[path])) or ""
        sources[path] = "".join(sources[path].splitlines(keepends=True)[docstring.end_lineno :]).lstrip()
    shown = [f'``` {LANGUAGES[path.suffix]} title="{path.name}"\n{source}```' for path, source in sources.items()]
    return "\n\n".join([f"# {title(folder.name)}", about, "## Source", *shown])


def options() -> str:
    """Return the page of all options, in the groups of the help."""
    known = {option.name: option for option in OPTIONS}
    where = "They can stand anywhere on the command line of a script that calls `mwpy.main()`, before `--`."
    lines = ["# Options of the command line\n", where]
    for heading, name in re.findall(r"^(?:(\S.*):|  --mw-([a-z-]+).*)$", HELP, re.MULTILINE):
        if heading:
            lines.append(f"\n## {heading}\n")
        else:
            option = known[name]
            default = f" Default: {option.default}." if option.default else ""
            lines.append(f"- `{f'--mw-{name} {option.metavar}'.strip()}`: {escape(option.sentence + default)}")
    return "\n".join(lines)
