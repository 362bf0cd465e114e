"""A run folder outlives a version: what the first mhsh wrote opens in the next one, and what the
next one wrote is refused by this one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from mhsh.config.schema import SCHEMA_VERSION
from mhsh.storage.run_folder import RunFolder
from tests.conftest import ROOT
from tests.runs import mhsh_here

NEXT = SCHEMA_VERSION + 1

# Several commands in one process, which imports jax once.
COMMANDS = """
import json, sys
from mhsh.cli.main import main
for arguments in json.loads(sys.argv[1]):
    status = main(arguments)
    if status:
        sys.exit(f"{arguments}: {status}")
"""

READ = """
import sys
from mhsh.storage.run_folder import RunFolder
print({RunFolder(path).read_config().model.cap for path in sys.argv[1:]})
"""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an mhsh whose schema has one field more."""
    folder = tmp_path_factory.mktemp("later")
    shutil.copytree(ROOT / "mhsh", folder / "mhsh", ignore=shutil.ignore_patterns("__pycache__"))
    schema = folder / "mhsh" / "config" / "schema.py"
    source, line = schema.read_text(encoding="utf-8"), "class DataConfig("
    field = f'    cap: Annotated[NonNegativeFloat, loss("of logits", "task", since={NEXT}, before=0.0)] = 0.0\n\n\n'
    source = source.replace(f"\n\n{line}", field + line)
    schema.write_text(source.replace(f"SCHEMA_VERSION = {SCHEMA_VERSION}\n", f"SCHEMA_VERSION = {NEXT}\n"), encoding="utf-8")
    return folder


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A finished run of six steps of the first schema, with checkpoints of steps 3 and 6."""
    with tarfile.open(ROOT / "tests" / "fixtures" / "run_of_schema_1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def commands(mhsh: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Runs the commands with the mhsh in a folder."""
    arguments = json.dumps([line.split() for line in lines])
    return subprocess.run([sys.executable, "-c", COMMANDS, arguments], cwd=mhsh, capture_output=True, text=True, check=False)


def test_a_run_of_the_first_schema_is_compared_restored_exported_and_resumed_by_the_next(first, later, tmp_path):
    source = f"text:{tmp_path / 'corpus.txt'}"
    config = json.loads((first / "config.json").read_text())
    assert "schema" not in config and config["data"]["source"] == "text:corpus.txt"
    config["data"]["source"] = source  # the test has no folder of its own to start in
    (first / "config.json").write_text(json.dumps(config))
    stopped = shutil.copytree(first, tmp_path / "stopped")
    shutil.rmtree(stopped / "checkpoints" / "6")
    record = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps(record | {"status": "running"}))
    done = commands(
        later,
        f"eval {first}",
        f"export {first} --out={tmp_path / 'exported'}",
        f"train --workdir={stopped}",
        f"compare {first} {stopped} --out={tmp_path / 'report.html'}",
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("mhsh: ")]
    assert len(said) == 1 and re.match(r"mhsh: .*config.json is of schema 1, before .*model.cap = 0.0", said[0])
    assert "resuming from the checkpoint of step 3" in done.stdout and (tmp_path / "exported" / "model.safetensors").exists()
    assert json.loads((stopped / "run.json").read_text())["schema"] == NEXT
    rows = [RunFolder(folder).read_metrics().series("train", "step", "loss") for folder in (first, stopped)]
    assert rows[0][0] == rows[1][0] and rows[0][1] == pytest.approx(rows[1][1], abs=1e-4)
    ledger = json.loads((tmp_path / "report.json").read_text())
    assert ledger["schema"] == NEXT and "cap" not in json.dumps(ledger["report"])
    # config.json is of the first schema, run.json and the checkpoint of the next.
    for part in ("run.json", "6"):
        refused = mhsh_here("eval", str(stopped))
        assert refused.returncode == 2 and f"{part} was written by mhsh 0.1.0 with schema {NEXT}" in refused.stderr
        record = json.loads((stopped / "run.json").read_text())
        (stopped / "run.json").write_text(json.dumps(record | {"schema": NEXT - 1}))


def test_a_folder_of_the_next_schema_is_refused_by_this_one(first, later):
    for name in ("config.json", "run.json"):
        content = json.loads((first / name).read_text())
        (first / name).write_text(json.dumps(content | {"schema": NEXT, "mhsh": "0.2.0"}))
        for command in (f"train --workdir={first}", f"eval {first}", f"compare {first} --out={first}/report.html"):
            done = mhsh_here(*command.split())
            assert done.returncode == 2 and done.stderr.count("\n") <= 2, done.stderr
            assert f"was written by mhsh 0.2.0 with schema {NEXT}, and this is mhsh" in done.stderr, command
            assert "install that mhsh, or the newest" in done.stderr


ARCHIVES = sorted((ROOT / "docs" / "study" / "runs").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", [*ARCHIVES, None], ids=lambda path: path.name if path else "sample_runs")
def test_every_kept_run_opens_in_the_next(archive, later, tmp_path):
    """Their configs alone: what a new field would strand."""
    folder = tmp_path if archive else ROOT / "website" / "sample_runs"
    if archive:
        with tarfile.open(archive) as kept:
            kept.extractall(tmp_path, [name for name in kept.getmembers() if name.name.endswith("config.json")], filter="data")
    runs = sorted(str(path.parent) for path in folder.rglob("config.json"))
    assert runs
    done = subprocess.run([sys.executable, "-c", READ, *runs], cwd=later, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "{0.0}\n"), done.stderr
    assert done.stderr.count("\n") == 1
