"""Only mhsh/storage asks a disk or a bucket what is there."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.conftest import ROOT

# Libraries' questions, most of which take a failure for an absence.
QUESTIONS = {"exists", "is_dir", "is_file", "isdir", "isfile", "iterdir", "listdir", "scandir", "glob", "rglob", "walk", "stat"}

ALLOWED = {
    "mhsh/config/registry.py": {"is_file"},  # beside a user's file, below mhsh.storage
    "mhsh/configs/__init__.py": {"exists", "is_file", "glob"},  # mhsh's own files, and a user's
    "mhsh/training/environment.py": {"rglob"},  # mhsh's own files
    "mhsh/data/stdlib.py": {"rglob"},  # Python's own files
    "mhsh/data/shards.py": {"glob", "stat"},  # what is to be deleted; a file of this process
    "mhsh/data/local_shards.py": {"stat"},  # of pathlib, which asks for no owner
    "mhsh/interop/weights.py": {"stat"},  # a file of this process
    "mhsh/report/files.py": {"stat"},  # a report on a disk
    "mhsh/data/text_files.py": {"glob"},  # a glob of the user's
    "mhsh/training/compiling.py": {"rglob", "stat"},  # compiled programs that are to be deleted
    "mhsh/training/trackers.py": {"glob"},  # wandb's own folder
    "mhsh/training/watching.py": {"rglob"},  # a temporary folder
}


def test_nothing_else_asks() -> None:
    found = defaultdict(set)
    for path in sorted((ROOT / "mhsh").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("mhsh/storage/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in QUESTIONS and ast.unparse(called.value) != "ast":
                found[name].add(called.attr)
            elif isinstance(node, ast.keyword) and node.arg == "exist_ok":
                found[name].add(node.arg)  # asks whether what is there is a folder
    assert found == ALLOWED, "ask by mhsh.storage.questions: there a failure is not an absence"
