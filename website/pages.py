"""Writes the pages of the site: those of docs/, and what is generated.

python -m website.pages DIR
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from website import api, reference
from website.sample_report import write_sample_report
from website.tutorial import read_tutorial

DOCS = Path(__file__).resolve().parents[1] / "docs"


def write_pages(to: Path) -> None:
    """Writes all pages into the folder `to`, in place of what an earlier call wrote there."""
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(DOCS, to, ignore=shutil.ignore_patterns("runs"))  # which the tutorial makes
    for name in ("site.css", "site.js"):
        shutil.copy(Path(__file__).parent / name, to)
    _write(to / "config.md", (DOCS / "config.md").read_text(encoding="utf-8") + reference.fields())
    _write(to / "commands.md", reference.commands())
    for name, page in api.PAGES.items():
        _write(to / "api" / f"{name}.md", api.page_markdown(page))
    tutorial = read_tutorial(DOCS / "tutorial.ipynb")
    _write(to / "tutorial.md", tutorial.markdown)
    _write(to / "index.md", (DOCS / "index.md").read_text(encoding="utf-8").replace("tutorial.ipynb", "tutorial.md"))
    for name, picture in tutorial.pictures.items():
        (to / name).write_bytes(picture)
    _write(to / "sample.md", write_sample_report(to / "sample"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
