"""A run folder outlives a version: what the first mhsh wrote opens in the next one, and what the
next one wrote is refused by this one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from mhsh.config.schema import SCHEMA_VERSION, to_dict
from mhsh.storage.run_folder import RunFolder
from tests.conftest import ROOT
from tests.interop.small_bert import GOLDEN
from tests.runs import ANSWERS, mhsh_here

NEXT = SCHEMA_VERSION + 1
FIXTURES = ROOT / "tests" / "fixtures"

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


SCHEME = """
@add_residual("halved")
class Halved(PreLN):
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        return super().__call__(stream, lambda x: 0.5 * sublayer(x))
"""

OPTIMIZER = """
@add_optimizer("sign")
def sign(optimizer: OptimizerConfig) -> optax.GradientTransformation:
    return optax.scale_by_sign()
"""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the next mhsh: it has one field, one scheme and one optimizer more."""
    folder = tmp_path_factory.mktemp("later")
    for name in ("mhsh", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, entry in {"models/schemes.py": SCHEME, "training/optimizer.py": OPTIMIZER}.items():
        with open(folder / "mhsh" / name, "a", encoding="utf-8") as file:
            file.write(entry)
    schema = folder / "mhsh" / "config" / "schema.py"
    source, line = schema.read_text(encoding="utf-8"), "class DataConfig("
    field = f'    cap: Annotated[NonNegativeFloat, loss("of logits", "task", since={NEXT}, before=0.0)] = 0.0\n\n\n'
    source = source.replace(f"\n\n{line}", field + line)
    schema.write_text(source.replace(f"SCHEMA_VERSION = {SCHEMA_VERSION}\n", f"SCHEMA_VERSION = {NEXT}\n"), encoding="utf-8")
    return folder


@pytest.fixture
def first(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A finished run of six steps of the first schema, or of that which a test names, with
    checkpoints of steps 3 and 6.
    """
    with tarfile.open(FIXTURES / f"run_of_schema_{getattr(request, 'param', 1)}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def commands(mhsh: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Runs the commands with the mhsh in a folder."""
    arguments = json.dumps([line.split() for line in lines])
    return subprocess.run([sys.executable, "-c", COMMANDS, arguments], cwd=mhsh, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", [1, pytest.param(4, marks=pytest.mark.slow)], indirect=True)
def test_a_run_of_an_earlier_schema_is_compared_restored_exported_and_resumed_by_the_next(first, later, tmp_path):
    source = f"text:{tmp_path / 'corpus.txt'}"
    config = json.loads((first / "config.json").read_text())
    version = config.get("schema", 1)
    assert version < SCHEMA_VERSION and config["data"]["source"] == "text:corpus.txt"
    config["data"]["source"] = source  # the test has no folder of its own to start in
    (first / "config.json").write_text(json.dumps(config))
    stopped = shutil.copytree(first, tmp_path / "stopped")
    shutil.rmtree(stopped / "checkpoints" / "6")
    record = json.loads((stopped / "run.json").read_text())
    cut = {"status": "running"} | ({"checkpoint": 3} if "checkpoint" in record else {})  # the first schema had none
    (stopped / "run.json").write_text(json.dumps(record | cut))
    done = commands(
        later,
        f"eval {first}",
        f"export {first} --out={tmp_path / 'exported'}",
        f"train --workdir={stopped}",
        f"compare {first} {stopped} --out={tmp_path / 'report.html'}",
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("mhsh: ")]
    assert len(said) == 1 and re.match(rf"mhsh: .*config.json is of schema {version}, before .*model.cap = 0.0", said[0])
    assert "resuming from the checkpoint of step 3" in done.stdout and (tmp_path / "exported" / "model.safetensors").exists()
    assert json.loads((stopped / "run.json").read_text())["schema"] == NEXT
    rows = [RunFolder(folder).read_metrics().series("train", "step", "loss") for folder in (first, stopped)]
    assert rows[0][0].tolist() == rows[1][0].tolist() and rows[0][1] == pytest.approx(rows[1][1], abs=1e-4)
    ledger = json.loads((tmp_path / "report.json").read_text())
    assert ledger["schema"] == NEXT and not re.search(r"\bcap\b", json.dumps(ledger["report"]))
    # config.json is of the first schema, run.json and the checkpoint of the next.
    for part in ("run.json", "6"):
        refused = mhsh_here("eval", str(stopped))
        assert refused.returncode == 2 and f"{part} was written by mhsh 0.1.0 with schema {NEXT}" in refused.stderr
        record = json.loads((stopped / "run.json").read_text())
        (stopped / "run.json").write_text(json.dumps(record | {"schema": NEXT - 1}))


def test_a_folder_of_the_next_schema_is_refused_by_this_one(first):
    for name in ("config.json", "run.json"):
        content = json.loads((first / name).read_text())
        (first / name).write_text(json.dumps(content | {"schema": NEXT, "mhsh": "0.2.0"}))
        for command in (f"train --workdir={first}", f"eval {first}", f"compare {first} --out={first}/report.html"):
            done = mhsh_here(*command.split())
            assert done.returncode == 2 and done.stderr.count("\n") <= 2, done.stderr
            assert f"was written by mhsh 0.2.0 with schema {NEXT}, and this is mhsh" in done.stderr, command
            assert "install that mhsh, or the newest" in done.stderr


# What the next mhsh does with its own field, scheme and optimizer: exit status, command and what is
# said. `run` is of the first schema; `held` has a scheme that is exported, and the new field.
NEW = "--config.model.cap=2 --config.model.residual=halved --config.optimizer.name=sign"
TINY = (
    "--config=evidence:stability --config.train.num_steps={} --config.optimizer.warmup_steps=0 --config.model.embed_dim=16 "
    "--config.data.source=text:corpus.txt --config.data.sequence_length=16"
)
WALK = [
    (0, f"plan {TINY.format(2)} {NEW}", "halved"),
    (0, f"train {TINY.format(2)} {NEW} --workdir=new", "finished 2 steps"),
    (0, f"train {TINY.format(3)} {NEW} --workdir=new", "resuming from the checkpoint of step 2"),
    (0, "eval new", "loss"),
    (0, "predict new --text=a --max-tokens=1", "a"),
    (0, "inspect new", "checkpoints of the steps 2 and 3"),
    (0, "probe similarity new --rows=2 --out=probe.json", "CKA"),
    (0, f"sweep {TINY.format(2)} --axes cap=0,2 scheme=halved,pre_ln --workdir=sweep --dry-run", "halved"),
    (0, "compare new run --out=sweep.html", "halved"),
    (2, "export new --out=out", "model.residual = 'halved' cannot be exported: no Llama or Qwen3 .*; exportable: pre_ln"),
    (2, "export held --out=out", "model.cap = 2.0 cannot be exported: no BERT .*; exportable: 0.0"),
    (2, f"import {GOLDEN / 'pretraining'} --config=bert:2l8h --config.model.cap=2 --out=out", "model.cap = 2.0 cannot be imported"),
    (
        2,
        f"train {TINY.format(2)} --config.model.residual=completep --config.optimizer.name=sign --workdir=out",
        "optimizer.name = 'sign'; allowed with model.residual = 'completep': adamw, lamb",
    ),
]
LOSS = 'import mhsh; print(mhsh.load("new").loss("a text"))'


def test_every_command_takes_a_new_field_scheme_and_optimizer_or_refuses_them_by_name(first, later, tmp_path):
    held = shutil.copytree(first, tmp_path / "held")
    config = to_dict(RunFolder(first).read_config())
    config["model"]["cap"] = 2.0
    (held / "config.json").write_text(json.dumps(config | {"schema": NEXT}))
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS + LOSS, json.dumps([command for _, command, _ in WALK])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(later)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results, loss = map(json.loads, done.stdout.splitlines())
    for (status, command, expected), (ended, said) in zip(WALK, results, strict=True):
        assert ended == status and re.search(expected, said), (command, said)
        assert status == 0 or (said.count("mhsh: ") == 1 and said.splitlines()[-1].startswith("mhsh: ")), (command, said)
    assert 0 < loss < 20 and not (tmp_path / "out").exists()
    for name in ("config.json", "run.json", "checkpoints/3/manifest/metadata"):
        assert re.search(rf'"schema": ?{NEXT}', (tmp_path / "new" / name).read_text()), name
    for command in ("train --workdir=", "eval ", "compare "):
        refused = mhsh_here(*f"{command}{tmp_path / 'new'}".split())
        assert refused.returncode == 2 and "install that mhsh, or the newest" in refused.stderr, refused.stderr


ARCHIVES = sorted([*(ROOT / "docs" / "study" / "runs").glob("*.tar.xz"), *FIXTURES.glob("*.tar.xz")])


def test_every_kept_run_opens_in_the_next(later, tmp_path):
    """Their configs alone: what a new field would strand."""
    folders = [ROOT / "website" / "sample_runs", *(tmp_path / archive.stem for archive in ARCHIVES)]
    for archive, folder in zip(ARCHIVES, folders[1:], strict=True):
        with tarfile.open(archive) as kept:
            kept.extractall(folder, [name for name in kept.getmembers() if name.name.endswith("config.json")], filter="data")
    found = [sorted(str(path.parent) for path in folder.rglob("config.json")) for folder in folders]
    assert all(found)
    runs = [run for each in found for run in each]
    done = subprocess.run([sys.executable, "-c", READ, *runs], cwd=later, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "{0.0}\n"), done.stderr
    schemas = {json.loads((Path(run) / "config.json").read_text()).get("schema", 1) for run in runs}
    assert done.stderr.count("\n") == len(schemas)  # a line for each
