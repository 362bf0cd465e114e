"""One name for each thing: no two classes share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.conftest import ROOT

FOLDERS = ("mhsh", "benchmarks", "website", "launch", "configs")


def is_python(path: Path) -> bool:
    """By its name, or as a script by its first line."""
    return path.suffix == ".py" or (not path.suffix and path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env python"))


def test_no_two_classes_have_one_name() -> None:
    found = defaultdict(list)
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if is_python(path)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(found) > 300
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
