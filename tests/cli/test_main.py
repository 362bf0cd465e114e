"""The command line: every mistake is one line that names it, with exit status 2, and nothing is
damaged.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mhsh.cli.main import main
from mhsh.config.schema import Config
from mhsh.storage.run_folder import RunFolder
from tests.cli.light_process import mhsh_without_jax
from tests.conftest import ROOT

TINY = "--config=configs/bert.py:2l8h"


def test_a_mistake_can_be_mended_in_the_same_folder(fails, tmp_path, make_config):
    workdir = tmp_path / "run"
    fails("train", TINY, "--config.data.source=text:/nowhere/*.txt", f"--workdir={workdir}")
    folder = RunFolder.open_for_training(workdir, make_config("bert", "2l8h"))
    assert folder.read_config() == make_config("bert", "2l8h")


def test_no_file_of_a_command_imports_jax_or_matplotlib() -> None:
    code = (
        "import sys; from mhsh.cli.main import NAMES, main\n"
        "main(['--help'])\n"
        "light = {'rich', 'cyclopts', 'numpy', 'msgspec', 'etils', 'ml_collections', 'mhsh.cli.train'}.isdisjoint(sys.modules)\n"
        "from mhsh.cli.parser import pages\n"
        "for name in NAMES: pages(name)\n"
        "print(light, {'jax', 'flax', 'optax', 'orbax', 'grain', 'torch', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\nTrue set()\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["caf\udce9"], "argument 1"),
        (["train", "--workdir=caf\udce9"], "--workdir"),
        (["train", "--workdir", "caf\udce9"], "argument 3"),
        (["bench", "train", "--config.a=caf\udce9"], "--config.a"),
        (["train", "--caf\udce9=3"], "argument 2"),
    ],
)
def test_a_byte_that_is_not_utf_8_is_refused(arguments: list[str], where: str, fails: Callable[..., str]) -> None:
    """As Python passes it on."""
    assert f"mhsh: {where} is not UTF-8: byte 0xE9 at character " in fails(*arguments)


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


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"JAX_PLATFORMS": "frob"}, "Unable to initialize backend 'frob': "),
        ({"JAX_PLATFORMS": "cuda"}, "jax finds no device of JAX_PLATFORMS=cuda; unset it, or install what finds one: "),
        ({"JAX_ENABLE_X64": "maybe"}, "JAX_ENABLE_X64=maybe: jax does not take that value; correct the variable, or unset it"),
        ({"JAX_NUM_CPU_DEVICES": "two"}, "JAX_NUM_CPU_DEVICES=two: jax does not take that value"),
    ],
)
def test_what_jax_cannot_start_with_is_one_line(variables: dict[str, str], said: str) -> None:
    if variables.get("JAX_PLATFORMS") == "cuda" and importlib.util.find_spec("jax_cuda13_plugin") is not None:
        pytest.skip("here jax looks for a GPU")
    code = "import sys; from mhsh.cli import main\ndef run(_): import jax; jax.devices()\nmain._run = run; sys.exit(main.main())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and done.stderr.startswith(f"mhsh: {said}"), done.stderr


def test_a_command_that_compiles_needs_jit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., str]) -> None:
    """A sweep would call all its cells failed. A help page needs none."""
    monkeypatch.setenv("JAX_DISABLE_JIT", "True")
    said = fails("train", TINY, f"--workdir={tmp_path}/run")
    assert said == "mhsh: JAX_DISABLE_JIT is set, and mhsh train runs compiled programs alone; unset it\n"
    assert not (tmp_path / "run").exists() and main(["train", "--help"]) == 0


def test_a_home_that_a_shell_leaves_to_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    assert f"--workdir={tmp_path}/file is not a folder" in fails("train", TINY, "--workdir=~/file")
    # And Python to both; a name that is no user's is a plain one.
    assert [str(RunFolder(path).path) for path in ("~/run", "~no-user/run")] == [f"{tmp_path}/run", "~no-user/run"]


def test_streams_that_are_closed_are_opened_on_nothing() -> None:
    """A file that is opened then has none of their numbers."""
    closed = '"$0" -m mhsh --version >&- 2>&- <&-'
    assert subprocess.run(["bash", "-c", closed, sys.executable], cwd=ROOT, check=False).returncode == 0
    code = "from mhsh.cli import start; start.open_closed_streams(); import os; os._exit(open(os.devnull).fileno())"
    done = subprocess.run(["bash", "-c", f'"$0" -c "{code}" >&- 2>&- <&-', sys.executable], cwd=ROOT, check=False)
    assert done.returncode > 2


def test_a_file_that_the_process_may_not_write_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{number} of many words in a line.\n" for number in range(3000)))
    prepare = f"prepare {TINY} --config.data.source=lines:{tmp_path}/text --config.data.tokenizer=bytes --out={tmp_path}/out"
    # Without -B Python would leave half of what it compiles.
    command = ["bash", "-c", f'ulimit -f 20; "$0" -B -m mhsh {prepare} --workers=1', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = "mhsh: a file is larger than this process may write (while reading or writing); raise the limit (ulimit -f)"
    assert done.returncode == 2 and done.stderr.startswith(said), done.stderr


def test_the_public_names_are_listed_before_they_are_loaded() -> None:
    """Which is what completion shows; jax is not loaded for it."""
    code = "import sys, mhsh; print(*dir(mhsh)); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert {"Config", "LoadedModel", "UserError", "__version__", "configs", "load", "train"} <= set(done.stdout.split())


def test_a_text_without_a_mask_is_refused_before_the_model_is_loaded(tmp_path: Path, make_config: Callable[..., Config]) -> None:
    folder = RunFolder.open_for_training(tmp_path / "run", make_config("bert", "2l8h"))
    done = mhsh_without_jax("predict", str(folder.path), "--text=The cat sat.")
    assert done.returncode == 2 and "the text has no [MASK]; write [MASK] where" in done.stderr
