"""The wheel is the product too: built, installed elsewhere, and used from there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from mhsh import configs
from tests.buckets import bucket_variables
from tests.conftest import ROOT
from tests.evaluation import small_translation
from tests.interop import small_bert
from tests.runs import saved_run
from tests.test_versions import COMMANDS


def run(*command: str, cwd: Path, **variables: str) -> str:
    """What the command prints."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (path,) = folder.iterdir()
    return path


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the wheel and its command installed; its packages are those of the tests."""
    folder = str(tmp_path_factory.mktemp("site"))
    pip = ("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", folder, str(wheel))
    run(sys.executable, *pip, cwd=ROOT)
    return folder


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    found = {name: content for name, content in contents(wheel).items() if ".dist-info/" not in name}
    wanted = {}
    for place, folder in (("", "mhsh"), ("mhsh/", "configs")):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        there = {f"{place}{path.relative_to(ROOT)}": path.read_bytes() for path in files}
        assert not wanted.keys() & there.keys()  # nothing stands twice
        wanted |= there
    assert found == wanted
    assert {"mhsh/py.typed", "mhsh/configs/bert.py", "mhsh/report/page/page.html"} <= set(found)


def test_a_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (packed,) = tmp_path.iterdir()
    assert packed.stat().st_size < 1e6
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian's Python 3.11.2 has none
        archive.extractall(tmp_path)
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=unpacked)
    (rebuilt,) = (tmp_path / "dist").iterdir()
    assert rebuilt.name == wheel.name and contents(rebuilt) == contents(wheel)


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with an editable install."""
    folder = tmp_path_factory.mktemp("editable")
    code = "import sys; from hatchling.build import build_editable; print(build_editable(sys.argv[1]))"
    built = run(sys.executable, "-c", code, str(folder), cwd=ROOT).split()[-1]
    with zipfile.ZipFile(folder / built) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".py")]  # what is edited has no copy
        archive.extractall(folder)
    return str(folder)


# The configs of the arguments, and which file of mhsh was loaded.
CONFIGS = """
import json, site, sys
others, sys.path[:] = sys.path[:], []
if sys.argv[1]:
    site.addsitedir(sys.argv[1])
sys.path += others
import mhsh.configs.bert
fields = [mhsh.configs.load_fields(name) for name in sys.argv[2:]]
print(json.dumps([mhsh.configs.bert.__file__, mhsh.__file__, fields]))
"""


def test_a_config_by_its_name_and_its_file_everywhere(site: str, editable: str, tmp_path: Path) -> None:
    """From a checkout and another folder, with the checkout, an editable install and the wheel."""
    (tmp_path / "mine.py").write_text("from mhsh.configs.bert import get_config\n")
    named, own = ["bert:24l16h", "configs/bert.py:24l16h"], ["mine.py:24l16h"]
    places = [(ROOT, "", named), (ROOT, site, named), (tmp_path, editable, named + own), (tmp_path, site, named + own)]
    wanted = configs.load_fields(named[0])
    for cwd, installed, names in places:
        # -I: the working folder is not on the path, as for the command mhsh.
        flags = ["-I"] if installed else []
        printed = run(sys.executable, *flags, "-c", CONFIGS, installed, *names, cwd=cwd)
        bert, package, fields = json.loads(printed)
        assert fields == [wanted] * len(names)
        top = Path(site, "mhsh") if installed == site else ROOT
        assert (Path(bert), Path(package).is_relative_to(top)) == (top / "configs" / "bert.py", True)


def test_a_file_in_the_users_own_configs_folder_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "bert.py").write_text("def get_config():\n    return dict(mine={})\n")
    assert configs.load_fields("configs/bert.py") == {"mine": {}}


def test_no_pip_overlooks_an_extra() -> None:
    """pip 23.2, of Python 3.11, finds an extra by its normalised name alone, and says nothing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert [*extras] == [canonicalize_name(extra) for extra in extras]


def test_an_extra_is_installed_by_the_names_of_its_packages(site: str, tmp_path: Path) -> None:
    code = "from mhsh.errors import install_command as f; print(f('gcs'), f('tpu'), f('gpu-compile'), sep='\\n')"
    gcs, tpu, gpu = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=site).splitlines()
    assert gcs.endswith("pip install 'gcsfs<2027,>=2025.9'")
    version = "0.0.45" if sys.version_info < (3, 12) else "0.0.50"
    assert tpu.endswith(f"pip install 'libtpu=={version}.*' 'requests>=2.32'")
    assert gpu.endswith("pip install 'jax[cuda12-local]<0.13,>=0.10.1' 'nvidia-cuda-nvcc-cu12>=12.9'")


IN_HAND = """
import sys
import threading
import mhsh
assert "jax" not in sys.modules and mhsh.__file__.startswith(sys.argv[1]), mhsh.__file__
config = mhsh.configs.get(
    "quickstart:6l4h_post_ln",
    model=dict(num_layers=1, embed_dim=16, head_dim=4, mlp_dim=16, remat_policy="none"),
    data=dict(source="text:text.txt", sequence_length=32, validation_fraction=0.2),
    optimizer=dict(warmup_steps=1),
    train=dict(num_steps=4, batch_size=4, eval_interval=0, eval_batches=1),
)
ended = []
thread = threading.Thread(target=lambda: ended.append(mhsh.train(config, sys.argv[2])))
thread.start()
thread.join()
assert ended == [None]
others = {"sacrebleu", "num2words", "lxml", "matplotlib", "pyarrow", "tensorflow_datasets", "uplot_python", "IPython"}
assert not others & set(sys.modules), others & set(sys.modules)
causal, masked, translating = map(mhsh.load, sys.argv[2:])
assert causal.generate("Number ", max_tokens=5, temperature=0).startswith("Number ")
assert causal.logits(["Number", "a"]).logits.shape == (2, 6, 264) and 0 < causal.loss("Number 7 is") < 10
assert [len(found) for found in masked.fill("the [MASK] [MASK]", top=3)] == [3, 3]
assert len(translating.translate(["the in", "of"], beam=2)) == 2
"""


NUMBERS = "\n\n".join(f"Number {n} is a number.\nSo is {n + 1}." for n in range(200))


@pytest.mark.parametrize("place", ["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def test_runs_in_hand(site: str, tmp_path: Path, place: str, request: pytest.FixtureRequest) -> None:
    """IN_HAND with the wheel alone, from a folder of its own; the causal run is on disk or in a
    bucket. It is trained in a thread, which loads only what it needs.
    """
    folder, variables = "runs/causal", {}
    if place == "bucket":
        folder, variables = "gs://runs/here/causal", bucket_variables(request.getfixturevalue("bucket"))
    work = tmp_path / "work"
    work.mkdir()
    (work / "text.txt").write_text(NUMBERS)
    config = small_bert.small_config(num_heads=2, vocab_size=32, embed_dim=16)
    masked = saved_run(tmp_path / "masked", config, small_bert.small_tokenizer(), small_bert.trained_params(config.model))
    translation = (small_translation.small_config(), small_translation.small_tokenizer(), small_translation.random_params(4))
    runs = (folder, masked, saved_run(tmp_path / "translating", *translation))
    printed = run(sys.executable, "-c", IN_HAND, site, *runs, cwd=work, PYTHONPATH=site, **variables)
    assert "causal: finished 4 steps" in printed  # the script has asserts of its own


@pytest.mark.slow  # the default tests above read the wheel and use its configs
def test_a_tiny_quickstart_where_it_is_installed(site: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    run("git", "init", "--quiet", cwd=tmp_path)  # of something else than mhsh
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "theirs", cwd=tmp_path)
    tiny = ("--config.train.num_steps=4", "--config.train.eval_interval=2", "--config.optimizer.warmup_steps=1")
    small = ("--config.train.eval_batches=1", "--config.train.checkpoint_interval=0", "--config.data.sequence_length=32")
    printed = run(f"{site}/bin/mhsh", "quickstart", "--workdir=runs", *tiny, *small, cwd=work, PYTHONPATH=site)
    assert printed.rstrip().split("\n")[-4].startswith('  6l4h_post_ln   "The function ')
    assert "24l1h_admin" in (work / "runs" / "report.html").read_text(encoding="utf-8")
    record = json.loads((work / "runs" / "24l1h_admin" / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "finished" and record["git_revision"] is None
    where = run(sys.executable, "-c", "import mhsh; print(mhsh.__file__)", cwd=work, PYTHONPATH=site)
    assert Path(where.strip()).is_relative_to(site)


def readme_commands() -> list[str]:
    """The commands of the README's recipes, in order."""
    recipes = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Recipes\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\n(.*?)^```", recipes, flags=re.MULTILINE | re.DOTALL)


# What the recipes say of a text of one's own, and fewer steps.
OWN_TEXT = " --config.data.source='text:corpus/*.txt' --config.data.validation_fraction=0.2"
FEWER = ("model.remat_policy=none", "train.num_steps=2", "train.eval_batches=1", "optimizer.warmup_steps=1")
FEWER_STEPS = OWN_TEXT + "".join(f" --config.{each}" for each in FEWER)


@pytest.mark.parametrize("change", [FEWER_STEPS, pytest.param("", marks=pytest.mark.slow)], ids=["two-steps", "as-they-stand"])
def test_the_commands_of_the_readme(site: str, tmp_path: Path, change: str) -> None:
    """In an empty folder, in order: both runs train, and their losses are compared. The sweep's
    24 runs are planned only.
    """
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "numbers.txt").write_text(NUMBERS)
    changes = {"train": change, "compare": "", "sweep": " --dry-run"}
    commands = [shlex.split(command.replace("\\\n", " ") + changes[command.split()[1]]) for command in readme_commands()]
    assert {command[0] for command in commands} == {"mhsh"}
    printed = run(sys.executable, "-c", COMMANDS, json.dumps([command[1:] for command in commands]), cwd=tmp_path, PYTHONPATH=site)
    assert "18 of them choose lr" in printed and "at least 24 runs" in printed
    table = json.loads((tmp_path / "report.json").read_bytes())["report"]["tables"][0]
    found = [dict(zip([column["name"] for column in table["columns"]], row["cells"], strict=True)) for row in table["rows"]]
    if change:  # no run learns anything in two steps
        assert [row["trained"]["text"] for row in found] == ["0 of 1"] * 2
        return
    assert [row["trained"]["text"] for row in found] == ["1 of 1"] * 2
    for name, row in zip(("3l4h", "12l1h"), found, strict=True):
        entropy = json.loads((tmp_path / "runs" / name / "run.json").read_bytes())["data"]["unigram_entropy"]
        assert row["validation loss"]["value"] < entropy - 0.3
    assert abs(found[1]["difference"]["value"]) > 0 and "A fair comparison: " in printed
