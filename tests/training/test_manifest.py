"""The list of a checkpoint's files: any change of a listed file is found, and nothing else is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from etils import epath

from mhsh.run_folder import Counters
from mhsh.training.checkpoints.manifest import FILE_MANIFEST, find_damage, write_file_manifest

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params" / "d").mkdir(parents=True)
    (tmp_path / "params" / "d" / "values").write_bytes(CONTENT)
    (tmp_path / "params" / "empty").write_bytes(b"")
    (tmp_path / "record").write_text("written last")
    write_file_manifest(epath.Path(tmp_path), Counters(tokens=3))
    return tmp_path


def test_an_untouched_folder_is_whole(folder):
    assert find_damage(epath.Path(folder)) is None


def test_files_that_are_not_listed_do_no_harm(folder):
    (folder / "record").write_text("changed")
    (folder / "params" / "more").write_text("new")
    assert find_damage(epath.Path(folder)) is None


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def rename_in_list(folder: Path, name: str) -> None:
    listed = json.loads((folder / FILE_MANIFEST).read_text())
    listed[name] = listed.pop("params/empty")
    (folder / FILE_MANIFEST).write_text(json.dumps(listed))


def put_in_place(folder: Path, make: Callable[[Path], None]) -> None:
    (folder / "params/empty").unlink()
    make(folder / "params/empty")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit flipped": (lambda folder: flip(folder / "params/d/values", 77_777), "params/d/values is not what was saved"),
    "truncated": (lambda folder: (folder / "params/d/values").write_bytes(CONTENT[:-1]), "10239 bytes instead of 10240"),
    "longer": (lambda folder: (folder / "params/empty").write_bytes(b"x"), "params/empty has 1 bytes instead of 0"),
    "deleted": (lambda folder: (folder / "params/empty").unlink(), "params/empty is missing"),
    "no list": (lambda folder: (folder / FILE_MANIFEST).unlink(), "files.json, is missing or unreadable"),
    "half a list": (lambda folder: (folder / FILE_MANIFEST).write_text('{"params/d'), "files.json, is missing or unreadable"),
    "counters changed": (lambda folder: (folder / "counters.json").write_text("{}"), "counters.json has 2 bytes instead of"),
    "no names": (lambda folder: (folder / FILE_MANIFEST).write_text('{"a": 3}'), "files.json, is missing or unreadable"),
    "leads out": (lambda folder: rename_in_list(folder, "../../dev/zero"), "files.json, is missing or unreadable"),
    "from the root": (lambda folder: rename_in_list(folder, "/dev/zero"), "files.json, is missing or unreadable"),
    "a pipe": (lambda folder: put_in_place(folder, os.mkfifo), "params/empty, which files.json lists, is no file of it"),
    "a link out": (
        lambda folder: put_in_place(folder, lambda path: path.symlink_to("/dev/zero")),
        "params/empty, which files.json lists, is no file of it",
    ),
    "a list that is a pipe": (
        lambda folder: ((folder / FILE_MANIFEST).unlink(), os.mkfifo(folder / FILE_MANIFEST)),
        "files.json, is missing or unreadable",
    ),
    "a list nested deep": (lambda folder: (folder / FILE_MANIFEST).write_text("[" * 100_000), "files.json, is missing or"),
    "another list": (lambda folder: (folder / FILE_MANIFEST).write_text("[3]"), "files.json, is missing or unreadable"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(folder, name):
    do, expected = DAMAGES[name]
    do(folder)
    found = find_damage(epath.Path(folder))
    assert found is not None and expected in found
