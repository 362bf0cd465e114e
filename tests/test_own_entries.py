"""A user's own scheme, optimizer and source: docs/add_your_own.md as it is, and a run of theirs
where the file is gone or another.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mhsh.cli.main import NAMES, main
from mhsh.configs import get
from mhsh.storage.run_folder import RunFolder
from tests.conftest import ROOT
from tests.forks import Fork
from tests.interop.small_bert import GOLDEN
from tests.runs import ANSWERS

PAGE = (ROOT / "docs" / "add_your_own.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The blocks of code of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def page_commands() -> list[str]:
    """Those of the page, each in a line."""
    return "".join(blocks("bash")).replace("\\\n", "").strip().splitlines()


def python(folder: Path, program: str, *arguments: str) -> str:
    """What a program prints that a fork runs in a folder."""
    begin = f"import os, sys\nos.chdir({str(folder)!r})\nsys.path.insert(0, '')\nsys.argv[1:] = {arguments!r}\n"
    process = Fork(["-c", begin + program])
    out, err = process.communicate()
    assert process.returncode == 0, out[-2000:] + err[-3000:]
    return out


def commands(folder: Path, *lines: str) -> list[tuple[int, str]]:
    """The exit status of each mhsh command, and what it says; all in one process."""
    return json.loads(python(folder, ANSWERS, json.dumps([line.removeprefix("mhsh ") for line in lines])))


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after all that the page says was done in it."""
    folder = tmp_path_factory.mktemp("room")
    file, script = blocks("python")
    (folder / "mine.py").write_text(file, encoding="utf-8")
    answers = commands(folder, *page_commands())
    assert not any(status for status, _ in answers), answers
    (folder / "script.py").write_text(script, encoding="utf-8")
    (folder / "log").write_text("".join(said for _, said in answers), encoding="utf-8")
    return folder


def test_the_page_trains_resumes_compares_and_probes(room: Path) -> None:
    record, config = (json.loads((room / "runs" / "gated" / name).read_text()) for name in ("run.json", "config.json"))
    digest = hashlib.sha256((room / "mine.py").read_bytes()).hexdigest()
    used = {entry["field"]: (entry["name"], entry["file"], entry["sha256"]) for entry in record["entries"]}
    assert used == {
        "model.residual": ("gated", "mine.py", digest),
        "optimizer.name": ("lion", "mine.py", digest),
        "data.source": ("counting", "mine.py", digest),
    }
    assert config["train"]["num_steps"] == 12 and "resuming from the checkpoint of step 8" in (room / "log").read_text()
    assert "next: mhsh compare sweep --with=mine.py --baseline=GROUP" in (room / "log").read_text()
    kernels = record["weight_decayed_parameters"]
    assert 0 < kernels < record["parameters"]["total"] - 2 * 2 * 32  # no gate decays
    report = json.loads((room / "sweep" / "report.json").read_text())["report"]
    assert "gated" in json.dumps(report)
    growth = json.loads((room / "growth.json").read_text())["schemes"]
    assert [(scheme["label"], scheme["theory"]) for scheme in growth] == [("Gated Pre-LN", "O(log n)"), ("Pre-LN", "O(log n)")]


def test_the_page_restores_in_python(room: Path) -> None:
    assert 0 < float(python(room, (room / "script.py").read_text())) < 20


def test_a_run_whose_file_is_gone_is_compared_and_else_refused_by_name(room, tmp_path, monkeypatch, capsys):
    digest = hashlib.sha256((room / "mine.py").read_bytes()).hexdigest()[:12]
    shutil.copytree(room / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "runs/gated", "runs/pre_ln", "--out=report.html"]) == 0
    assert (
        "files of your own" in (tmp_path / "report.html").read_text()
        and f"gated: mine.py {digest}" in (tmp_path / "report.html").read_text()
    )
    capsys.readouterr()
    for command in ("train --workdir=runs/gated", "eval runs/gated", "probe dependency runs/gated", "predict runs/gated --text=a"):
        assert main(command.split()) == 2
        said = rf"mhsh: runs/gated has the \w.* of mine.py \(sha256 {digest}\), which is not loaded; add --with=mine.py, that file"
        assert re.search(said, capsys.readouterr().err), command
    assert main(["export", "runs/gated", "--out=exported"]) == 2
    assert "cannot be exported" in capsys.readouterr().err


def test_a_changed_file_reads_with_a_word_and_does_not_train_on(room, tmp_path):
    shutil.copytree(room / "runs", tmp_path / "runs")
    (tmp_path / "mine.py").write_text((room / "mine.py").read_text() + "\n# changed\n")
    other = "another; put that file back"
    walk = [
        (0, "eval runs/gated --with=mine.py", "runs/gated has the residual scheme 'gated' of mine.py .* and mine.py .* is another"),
        (2, "train --workdir=runs/gated --with=mine.py", "put that file back, or train in another --workdir"),
        (
            2,
            "train --config=mine.py:gated --config.train.start_from=runs/gated@8 --config.train.num_steps=12 --workdir=runs/on",
            f"start_from = 'runs/gated@8': .* is {other}",
        ),
        (0, "train --config=mine.py:gated --config.train.seed=1 --workdir=runs/other", "finished"),
        (0, "compare runs/gated runs/other --out=report.html", r"Not comparable: different [^.]*files\s+of\s+your\s+own"),
    ]
    check(tmp_path, walk)
    assert RunFolder(tmp_path / "runs" / "other").read_run()["entries"] != RunFolder(room / "runs" / "gated").read_run()["entries"]


def check(folder: Path, walk: Sequence[tuple[int, str, str]]) -> None:
    """The exit status and what is said of each command of a walk."""
    answers = commands(folder, *(command for _, command, _ in walk))
    for (status, command, expected), (ended, said) in zip(walk, answers, strict=True):
        assert ended == status and re.search(expected, said, re.DOTALL), (command, said)


# What the page does not run: the exit status, the command, and what it says.
SHORT = "--config.train.num_steps=1 --config.optimizer.warmup_steps=0 --config.train.batch_size=8"
OTHERS = [
    (0, "inspect counting:300", "300 documents.*--workdir=runs/mine --with=mine.py"),
    (0, "inspect runs/gated", "to go on: mhsh eval runs/gated --with=mine.py"),
    (0, "configs mine.py:gated", '"residual": "gated"'),
    (0, "prepare --config=mine.py:gated --out=rows --workers=2", "rows is finished"),
    (
        0,
        f"train --config=mine.py:gated --config.data.source=arrayrecord:rows --workdir=runs/rows {SHORT}",
        "predict .*--with=mine",
    ),
    (0, "bench train --config=mine.py:gated --rounds=1 --repetitions=1", "ms"),
    (
        0,
        f"import {GOLDEN / 'pretraining'} --config=bert:2l8h --config.model.remat_policy=none --config.optimizer.name=lion "
        "--config.data.source=counting:300 --config.data.sequence_length=12 --config.data.max_predictions=4 --out=runs/imported",
        "to train it further: mhsh train --workdir=runs/imported --with=mine.py",
    ),
    (
        0,
        f"finetune runs/imported --config=glue:rte --config.data.source=tsv:. --config.data.sequence_length=12 "
        f"--config.optimizer.name=lion --workdir=rte {SHORT}",
        "accuracy",
    ),
    (0, "work sweep", "All cells have ended: 2 finished.*next: mhsh compare sweep --with=mine.py"),
    (2, "export runs/gated --out=exported", "model.residual = 'gated' cannot be exported"),
    (0, "score --help", "mhsh score"),
    (0, "quickstart --help", "mhsh quickstart"),
]


def test_every_command_takes_the_file(room, tmp_path):
    """A command without a row, here or on the page, fails."""
    on_the_page = {line.split()[1] for line in page_commands()}
    assert on_the_page | {command.split()[0] for _, command, _ in OTHERS} == set(NAMES)
    shutil.copytree(room / "runs" / "gated", tmp_path / "runs" / "gated")
    shutil.copytree(room / "sweep", tmp_path / "sweep")
    shutil.copy(room / "mine.py", tmp_path)
    (tmp_path / "RTE").mkdir()
    rows = ["index\tsentence1\tsentence2\tlabel", *(f"{row}\tGo.\tThe number\tentailment" for row in range(8))]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "RTE" / name).write_text("\n".join(rows) + "\n")
    check(tmp_path, [(status, f"{command} --with=mine.py", said) for status, command, said in OTHERS])
    digest = hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
    assert json.loads((tmp_path / "rows/prepare.json").read_text())["data.source.sha256"] == digest


def test_what_is_not_loaded_is_named_in_the_advice(room, monkeypatch, capsys):
    monkeypatch.chdir(room)
    assert main(["inspect", "runs/gated"]) == 0
    assert "mhsh eval runs/gated --with=mine.py" in capsys.readouterr().out
    child = "--config.model.residual=gated --config.train.start_from=runs/gated --workdir=runs/child"
    assert main(["train", "--config=quickstart:6l4h_post_ln", *child.split()]) == 2
    assert "runs/gated has the residual scheme 'gated' of mine.py" in capsys.readouterr().err
    assert main(["work", "sweep"]) == 2
    assert "unknown residual scheme 'gated'" in capsys.readouterr().err
    assert main(["inspect", "counting:300"]) == 2
    assert "or add your own (--with=FILE.py)" in capsys.readouterr().err


NO_DECAY = """
import mhsh
from flax import linen as nn
from mhsh.models.schemes import PreLN

@mhsh.add_residual("undecided")
class Undecided(PreLN):
    @nn.compact
    def __call__(self, stream, sublayer):
        self.param("gate", nn.initializers.zeros, ())
        return super().__call__(stream, sublayer)
"""


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import mhsh\n\n@mhsh.add_residual('keel')\nclass A:\n    layer_scales = None\n",
            "'keel' of mine.py \\(sha256 .* already exists, of mhsh itself",
        ),
        ("import mhsh\n\n@mhsh.add_optimizer('Ab c')\ndef a(o):\n    pass\n", "'Ab c' is not a name: that of your optimizer"),
        ("import mhsh\n\n@mhsh.add_residual('a')\ndef a(x):\n    pass\n", "'a' is no class of mhsh.models.residual.Residual"),
        ("1 / 0\n", r"mine.py, line 1: ZeroDivisionError: division by zero; correct the file"),
        (NO_DECAY, r"nothing says whether the parameter encoder/layers/attention_residual/gate has weight decay"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, monkeypatch, capsys, text, said):
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--config=quickstart:6l4h_post_ln", "--config.model.residual=undecided", "--with=mine.py"]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_file_imports_what_lies_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_mine.py").write_text("SEED = 7\n")
    text = "import beside_mine\nfrom mhsh.configs.base import make_config\n\ndef get_config():\n"
    (tmp_path / "mine.py").write_text(f"{text}    return make_config(dict(train=dict(seed=beside_mine.SEED)))\n")
    assert main(["configs", str(tmp_path / "mine.py")]) == 0
    assert '"seed": 7' in capsys.readouterr().out


def test_files_of_two_folders_import_each_its_own_neighbour(tmp_path, monkeypatch):
    """Also where a function imports it, one is a package, and the first file comes again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = "from near.seeds import SEED\nfrom mhsh.configs.base import make_config\n\ndef get_config():\n    import near_too\n"
    for folder, seed in (("a", 3), ("b", 7)):
        (tmp_path / folder / "near").mkdir(parents=True)
        (tmp_path / folder / "near/__init__.py").touch()
        (tmp_path / folder / "near/seeds.py").write_text(f"SEED = {seed}\n")
        (tmp_path / folder / "near_too.py").write_text(f"STEPS = {seed}\n")
        made = "    return make_config(dict(train=dict(seed=SEED, log_interval=near_too.STEPS)))\n"
        (tmp_path / folder / "mine.py").write_text(text + made)
    for folder, seed in (("a", 3), ("b", 7), ("a", 3)):
        train = get(f"{tmp_path / folder}/mine.py").train
        assert (train.seed, train.log_interval) == (seed, seed)


def test_a_file_of_a_package_imports_its_modules_with_a_dot(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "lab" / "own"
    package.mkdir(parents=True)
    for name, text in {
        "lab/__init__": "",
        "lab/seeds": "SEED = 7\n",
        "lab/own/__init__": "",
        "lab/own/beside_own": "STEPS = 3\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    text = "import beside_own\nfrom ..seeds import SEED\nfrom mhsh.configs.base import make_config\n\ndef get_config():\n"
    (package / "mine.py").write_text(f"{text}    return make_config(dict(train=dict(seed=SEED, log_interval=beside_own.STEPS)))\n")
    assert main(["configs", str(package / "mine.py")]) == 0
    assert re.search(r'"seed": 7,.*"log_interval": 3,', capsys.readouterr().out, re.DOTALL)


FAILING = """
import mhsh
import optax
from mhsh.models.schemes import PreLN
from mhsh.text import count

@mhsh.add_source("raising", argument="N", reads="numbers", document="a number")
def raising(number):
    yield str(int(number))

@mhsh.add_optimizer("scaled")
def scaled(optimizer):
    return optax.scale(optimizer.factor)

@mhsh.add_residual("adding")
class Adding(PreLN):
    def __call__(self, stream, sublayer):
        return super().__call__(stream._replace(x=stream.x + [1]), sublayer)

@mhsh.add_residual("promoting")
class Promoting(PreLN):
    def __call__(self, stream, sublayer):
        return stream._replace(x=stream.x.astype("bfloat16"))

@mhsh.add_residual("lacking")
class Lacking(PreLN):
    def __call__(self, stream):
        return stream

@mhsh.add_optimizer("unasked")
def unasked():
    return optax.identity()

@mhsh.add_source("calling", argument="N", reads="numbers", document="a number")
def calling(number):
    yield count(number)
"""


@pytest.mark.usefixtures("forgotten")
def test_an_entry_that_fails_is_named_by_its_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    for command, said in (
        ("inspect raising:x", "line 9: ValueError: invalid literal"),
        ("plan --config.optimizer.name=scaled", "line 13: AttributeError: "),
        ("plan --config.model.residual=adding", "line 18: TypeError: "),
        ("plan --config.model.residual=lacking", "line 25: TypeError: Lacking.__call__() takes 2 positional arguments but 3"),
        ("plan --config.optimizer.name=unasked", "line 30: TypeError: unasked() takes 0 positional arguments but 1"),
    ):
        config = ["--config=quickstart:6l4h_post_ln"] if "--config." in command else []
        assert main([*command.split(), *config, "--with=mine.py"]) == 2
        assert f"mhsh: mine.py, {said}" in capsys.readouterr().err
    assert main(["plan", "--config=quickstart:6l4h_post_ln", "--config.model.residual=promoting", "--with=mine.py"]) == 2
    assert re.search(r"'promoting' makes Stream\(x='bfloat16\[.*; return a Stream of the same shapes", capsys.readouterr().err)
    with pytest.raises(TypeError, match="must be real number"):  # in a line of mhsh, which may be wrong itself
        main(["inspect", "calling:x", "--with=mine.py"])


def test_completep_takes_the_optimizers_that_say_so(capsys, tmp_path):
    arguments = ["train", "--config=bert:2l8h", "--config.model.residual=completep", "--config.optimizer.name=muon"]
    assert main([*arguments, f"--workdir={tmp_path / 'run'}"]) == 2
    assert "optimizer.name = 'muon'; allowed with model.residual = 'completep': adamw, lamb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
