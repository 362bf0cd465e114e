"""A new folder: whole or not there, and never in the place of anything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mhsh.errors import UserError
from mhsh.interop.new_folder import check_new, new_folder
from tests.conftest import ROOT


@pytest.mark.parametrize("empty_before", [False, True])
def test_it_appears_at_the_end(tmp_path, empty_before):
    out = tmp_path / "deep" / "out"
    if empty_before:
        out.mkdir(parents=True)
    with new_folder(str(out)) as unfinished:
        (unfinished / "file").write_text("text")
        assert not out.exists() or not any(out.iterdir())
    assert (out / "file").read_text() == "text"
    assert list(out.parent.iterdir()) == [out]


def test_nothing_is_left_of_a_failure(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(str(tmp_path / "out")) as unfinished:
        (unfinished / "file").write_text("text")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_exists_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("text")
    for out, message in (("file", "exists and is no folder"), ("link", "exists and is no folder"), ("full", "is not empty")):
        for call in (check_new, lambda name: new_folder(name).__enter__()):
            with pytest.raises(UserError, match=message):
                call(out)
    with pytest.raises(UserError, match="only a local disk can do"):
        check_new("gs://bucket/run")
    assert (tmp_path / "full" / "file").read_text() == (tmp_path / "file").read_text() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the folder"), new_folder(str(tmp_path / "file" / "out")):
        pass


def test_a_killed_process_leaves_no_half_folder(tmp_path):
    code = (
        "import os, signal, sys\nfrom mhsh.interop.new_folder import new_folder\n"
        "with new_folder(sys.argv[1]) as folder:\n    (folder / 'file').write_text('text')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], cwd=ROOT, check=False)
    assert done.returncode < 0 and not os.path.lexists(tmp_path / "out")
    with new_folder(str(tmp_path / "out")) as unfinished:
        (unfinished / "file").write_text("again")
    assert (tmp_path / "out" / "file").read_text() == "again"
