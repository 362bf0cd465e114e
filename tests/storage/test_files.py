"""Files and folders appear whole or not at all; what is wrong with a JSON file is one line."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mhsh.errors import UserError
from mhsh.storage import files
from mhsh.storage.files import (
    MissingFile,
    check_new_file,
    check_new_folder,
    clear_half_files,
    new_folder,
    read_object,
    replace_atomically,
    write_atomically,
    write_new,
)
from tests.conftest import ROOT

KILLED = """
import os, pathlib, signal, sys
from mhsh.storage import files
with files.{function}({type}(sys.argv[1])) as unfinished:
    pathlib.Path(unfinished, {name!r}).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path, function, type, name=""):
    """A process is killed while it writes `path`."""
    code = KILLED.format(function=function, type=type, name=name)
    assert subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=False).returncode == -signal.SIGKILL


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "é\n")
    with pytest.raises(KeyboardInterrupt), replace_atomically(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == "é\n".encode() and list(tmp_path.iterdir()) == [path]
    killed(path, "replace_atomically", "pathlib.Path")
    assert path.read_bytes() == "é\n".encode() and len(list(tmp_path.iterdir())) == 2
    clear_half_files(tmp_path)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_new_file_overwrites_nothing(tmp_path):
    write_new(tmp_path / "file", "text")
    with pytest.raises(UserError, match="file exists; choose another name"):
        write_new(tmp_path / "file", b"other")
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory; choose another name"):
        write_new(tmp_path / "nowhere" / "file", "text")
    assert (tmp_path / "file").read_text() == "text"
    check_new_file("--out", None)  # --out is checked before any work
    check_new_file("--out", str(tmp_path / "other"))
    with pytest.raises(UserError, match="exists, and nothing is overwritten"):
        check_new_file("--out", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"the folder .* does not exist"):
        check_new_file("--out", str(tmp_path / "nowhere" / "file"))


def test_an_object_is_read(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": {"b": 1}, "b": "\xc3\xa9"}')  # a byte order mark does no harm
    assert read_object(path) == {"a": {"b": 1}, "b": "é"}
    with pytest.raises(MissingFile, match=r"missing.json does not exist"):
        read_object(tmp_path / "missing.json")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        read_object(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "maximum recursion depth exceeded"),
        (b'{"a": ' + b"1" * 5000 + b"}", "Exceeds the limit"),
        (b'{"b": {"a": 1, "a": 2}}', "the key 'a' appears twice in one object"),
        (b"[]", "it is not a JSON object"),
    ],
)
def test_damaged_json_is_one_line(tmp_path, content, message):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_object(path)
    assert str(error.value).startswith(f"{path} is damaged") and "\n" not in str(error.value)


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a killed process"])
def test_a_folder_appears_at_the_end(tmp_path, before):
    out = tmp_path / "deep" / "out"
    if before == "an empty folder":
        out.mkdir(parents=True)
    elif before == "a killed process":
        killed(out, "new_folder", "str", "file")
        assert not out.exists()
    with pytest.raises(KeyboardInterrupt), new_folder(str(out)) as unfinished:
        assert not list(unfinished.iterdir())
        (unfinished / "file").write_text("a failure")
        raise KeyboardInterrupt
    assert [*out.parent.iterdir()] == [out] * (before == "an empty folder")
    with new_folder(str(out)) as unfinished:
        (unfinished / "file").write_text("text")
        assert not out.exists() or not any(out.iterdir())
    assert (out / "file").read_text() == "text"
    assert list(out.parent.iterdir()) == [out]


def test_what_exists_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("text")
    with pytest.raises(UserError, match=r"cannot be written: Not a directory"):
        new_folder("file/out").__enter__()
    for out, message in (("file", "exists and is not a folder"), ("link", "exists and is not a folder"), ("full", "is not empty")):
        for call in (check_new_folder, lambda name: new_folder(name).__enter__()):
            with pytest.raises(UserError, match=message):
                call(out)
    with pytest.raises(UserError, match="is in a bucket, and this is written on a local disk alone"):
        check_new_folder("gs://bucket/run")
    assert (tmp_path / "full" / "file").read_text() == (tmp_path / "file").read_text() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]


def test_of_two_that_make_a_folder_at_once_the_first_to_end_makes_it(tmp_path):
    with pytest.raises(UserError, match=r"cannot make the folder .*out: .*not empty"), new_folder(str(tmp_path / "out")) as ours:
        (ours / "file").write_text("ours")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "file").write_text("theirs")
    assert (tmp_path / "out" / "file").read_text() == "theirs" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_file_that_is_read_as_a_whole_has_a_bound(tmp_path, request, monkeypatch, place):
    folder = str(tmp_path)
    if place == "bucket":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("bucket"))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        folder = "gs://runs"
    monkeypatch.setattr(files, "_LARGEST", 100)
    for size in (100, 101):
        write_atomically(f"{folder}/{size}.json", '{"a": 1}'.ljust(size))
    assert read_object(f"{folder}/100.json") == {"a": 1}
    with pytest.raises(UserError, match=r"101\.json has more than 0 MiB, and no such file is as large; fetch or write it again"):
        read_object(f"{folder}/101.json")
