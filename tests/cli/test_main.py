"""The command line: every mistake is one line that names it, with exit status 2, and nothing is
damaged.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mhsh.cli.main import NAMES, main
from mhsh.cli.parser import HelpPage, pages
from mhsh.config.schema import Config
from mhsh.configs import take_config
from mhsh.storage.run_folder import RunFolder
from tests.cli.light_process import mhsh_without_jax
from tests.conftest import ROOT
from tests.runs import CONFIG

TINY = "--config=configs/bert.py:2l8h"


def test_a_mistake_can_be_mended_in_the_same_folder(fails, tmp_path, make_config):
    workdir = tmp_path / "run"
    fails("train", TINY, "--config.data.source=text:/nowhere/*.txt", f"--workdir={workdir}")
    folder = RunFolder.open_for_training(workdir, make_config("bert", "2l8h"))
    assert folder.read_config() == make_config("bert", "2l8h")


def test_a_folder_of_another_run_is_left_as_it_is(fails, tmp_path, make_config):
    folder = RunFolder.open_for_training(tmp_path / "run", make_config("bert", "2l8h"))
    folder.append_metrics([{"step": 1, "split": "train", "loss": 7.0}])
    before = {path: path.read_bytes() for path in sorted(Path(folder.path).rglob("*")) if path.is_file()}
    line = fails("train", TINY, "--config.train.seed=1", f"--workdir={folder.path}")
    assert "train.seed is 0 there, 1 here" in line
    assert {path: path.read_bytes() for path in sorted(Path(folder.path).rglob("*")) if path.is_file()} == before


@pytest.mark.slow
def test_a_full_disk_is_one_line(fails, tmp_path, corpus, monkeypatch):
    """/dev/full is a disk without room: the first write of run.json fails as it would there."""
    workdir = tmp_path / "run"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    config, _ = take_config("config", CONFIG[0].removeprefix("--config="), [*CONFIG[1:], corpus])
    assert config is not None
    RunFolder.open_for_training(workdir, config)
    (workdir / ".run.json.half.tmp").symlink_to("/dev/full")
    monkeypatch.setattr("mhsh.storage.files.uuid.uuid4", lambda: SimpleNamespace(hex="half"))
    assert "the disk is full" in fails(*arguments)
    assert not (workdir / "run.json").exists()


def test_compare_starts_without_jax():
    assert "/nowhere does not exist" in mhsh_without_jax("compare", "/nowhere").stderr


def test_no_file_of_a_command_imports_jax():
    code = (
        "import sys; from mhsh.cli.main import NAMES, main\n"
        "main(['--help'])\n"
        "light = {'rich', 'cyclopts', 'numpy', 'msgspec', 'etils', 'ml_collections', 'mhsh.cli.train'}.isdisjoint(sys.modules)\n"
        "from mhsh.cli.parser import pages\n"
        "for name in NAMES: pages(name)\n"
        "print(light, {'jax', 'flax', 'optax', 'orbax', 'grain', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\nTrue set()\n"), done.stdout + done.stderr


PAGES = [page for name in NAMES for page in pages(name).values()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.command)
def test_what_is_no_text_is_refused_at_every_flag(page: HelpPage, fails: Callable[..., str]) -> None:
    """A byte that is not UTF-8, as Python passes it on, in every argument of every command."""
    for name, parameter in inspect.signature(page.run).parameters.items():
        flag = f"--{name.replace('_', '-')}"
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert f"mhsh: {flag} is not UTF-8: byte 0xE9 at character 3; " in fails(*page.command.split(), f"{flag}=caf\udce9")
            assert f"mhsh: {flag}.a is not UTF-8" in fails(*page.command.split(), f"{flag}.a=caf\udce9")
        assert "is not UTF-8: byte 0xE9 at character 3; " in fails(*page.command.split(), flag, "caf\udce9")
    assert "argument 1 is not UTF-8" in fails("caf\udce9")
    assert "argument 2 is not UTF-8" in fails(page.command.split()[0], "--caf\udce9=3")


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("latin-1", "v 1.5 -2 \xd7 ~ ?"), ("ascii", "v 1.5 -2 x ~ ?"), ("utf-8", "\u25bc 1.5 \u22122 \xd7 \u2026 ?")],
)
def test_a_terminal_that_lacks_characters_gets_others(encoding: str, said: str) -> None:
    """In a process, which ends with status 0; a name that is not UTF-8 is shown too."""
    code = "import sys; from mhsh.cli import main, start; main.main = lambda: print(TEXT) or 0; sys.exit(start.start())"
    text = "\u25bc 1.5 \u22122 \xd7 \u2026 \udce9"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    command = [sys.executable, "-c", code.replace("TEXT", ascii(text))]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.decode(encoding).strip() == said


def test_the_public_names_are_listed_before_they_are_loaded() -> None:
    """Which is what completion shows; jax is not loaded for it."""
    code = "import sys, mhsh; print(*dir(mhsh)); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert {"Config", "LoadedModel", "UserError", "__version__", "configs", "load", "train"} <= set(done.stdout.split())


def test_a_text_without_a_mask_is_refused_before_the_model_is_loaded(tmp_path: Path, make_config: Callable[..., Config]) -> None:
    folder = RunFolder.open_for_training(tmp_path / "run", make_config("bert", "2l8h"))
    done = mhsh_without_jax("predict", str(folder.path), "--text=The cat sat.")
    assert done.returncode == 2 and "the text has no [MASK]; write [MASK] where" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--config=bert:2l8h", "--workdir"],
        ["sweep", "--config=bert:2l8h", "--axes=seed=0,1", "--workdir"],
        ["finetune", "run", "--config=glue:rte", "--workdir"],
        ["quickstart", "--workdir"],
        ["prepare", "--config=bert:2l8h", "--out"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    flag = arguments[-1]
    for path, said in (
        ("", f"{flag}= is empty; give a name"),
        (tmp_path / "file", "is not a folder; choose another"),
        (tmp_path / "file" / "run", "cannot be written: Not a directory; choose another"),
        ("/proc/run", "cannot be written: No such file or directory; choose another"),
    ):
        assert main([*arguments[:-1], f"{flag}={path}"]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and said in printed.err and printed.err.count("\n") == 1
