"""What a user may type wrong, over all commands: one line that says so, exit status 2, and no
traceback. The rows are in bad_inputs.txt.

Rows that take longer than a moment (a model is built, a network is waited for) are with the tests
of their command.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from mhsh.cli.finetune import fine_tuning_fields
from mhsh.cli.main import NAMES, main
from mhsh.config.resolve import from_dict
from mhsh.storage.run_folder import WORDPIECE_FILE, RunFolder
from tests.conftest import ROOT, load_fields
from tests.sweeps import TRAINED_ALIKE

CONFIG_FILES = {
    "syntax": "def get_config(variant:\n    return\n",
    "import": "import no_such_module\n",
    "import_from": "from mhsh.configs.base import nothing\n",
    "empty": "",
    "raises": "def get_config(variant):\n    return 1 / 0\n",
    "type_error": "def get_config(variant):\n    return len(3)\n",
    "key_error": "def get_config(variant):\n    return {}[variant]\n",
    "no_argument": "def get_config():\n    return {}\n",
    "argument": "def get_config(variant):\n    return {}\n",
    "none": "def get_config(variant):\n    pass\n",
    "number": "def get_config(variant):\n    return 3\n",
    "no_section": "def get_config(variant):\n    return {'model': {}}\n",
    "no_model": "def get_config(variant):\n    return {'data': {}}\n",
    "no_sections": "def get_config(variant):\n    return {'seed': 3}\n",
    "number_for_model": "def get_config(variant):\n    return {'model': 3}\n",
    "placeholder": "from ml_collections import ConfigDict, config_dict\n\ndef get_config(variant):\n"
    "    return ConfigDict({'model': {'num_layers': config_dict.required_placeholder(int)}})\n",
    "built_in": "get_config = dict\n",
    "exit": "import sys\nsys.exit(3)\n",
    "not_callable": "get_config = 3\n",
    "missing": "from mhsh.configs.base import make_config\n\ndef get_config(variant):\n"
    "    fields = make_config().to_dict()\n    del fields['train']['seed']\n    return fields\n",
    "more": "from mhsh.configs.base import make_config\n\ndef get_config(variant):\n"
    "    return make_config(dict(model=dict(hidden_dim=3)))\n",
}
FILES: dict[str, str | bytes] = {
    **{f"{name}.py": text for name, text in CONFIG_FILES.items()},
    "binary.py": b"\xff\x00\xfe",
    "object.json": "{}",
    "list.json": "[1]",
    "file": "mine",
    "page.html": "mine",
    "squad11.json": '{"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "a b", "qas": '
    '[{"id": "1", "question": "q", "answers": [{"text": "a", "answer_start": 0}]}]}]}]}',
    "empty.txt": "\n\n",
    "zero.txt": "",
    "paper.pdf": b"%PDF-1.7\n%\xe2\xe3",
    "saved.arrow": b"\xff\xff\xff\xff\x10\x01\x00\x00",
    "latin1.txt": b"caf\xe9 ole\n",
    "short.txt": "one line.\n",
    "bad_vocab.txt": "[PAD]\nthe\n",
    "broken.txt.gz": b"\x1f\x8b no gzip",
    "corpus.txt": "\n\n".join(f"Number {n} is a number.\nSo is number {n + 1}." for n in range(99)),
    "two.txt": "One sentence.\nAnother one.\n",
    "strangers/thesis.tex": "mine",
    "damaged_config/config.json": '{"model": {}}',
    "damaged_json/config.json": "{",
    "list_json/config.json": "[]",
    "binary_json/config.json": b"\xff\x00",
    "damaged_sweep/plan.json": "{}",
    "hf/config.json": "{}",
}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files and run folders of which most are broken; no run has a checkpoint."""
    room = tmp_path_factory.mktemp("bad") / "room"
    for name, content in FILES.items():
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        (room / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (room / "folder").mkdir()
    parquet.write_table(pyarrow.table({"id": [1, 2], "content": ["one", None]}), room / "rows.parquet", row_group_size=1)
    for name, task, variant in (
        ("run", "bert", "2l8h"),
        ("begun", "bert", "2l8h"),
        ("recorded", "bert", "2l8h"),
        ("damaged_metrics", "bert", "2l8h"),
        ("no_folder", "bert", "2l8h"),
        ("set_aside", "bert", "2l8h"),
        ("translation", "translation", "tiny"),
        ("bytes", "quickstart", "6l4h_post_ln"),
    ):
        config = from_dict(load_fields(task, variant))
        folder = RunFolder.open_for_training(room / name, config)
        if name != "begun":
            step = config.train.num_steps if name == "recorded" else 1  # it is finished
            folder.append_metrics([{"step": step, "split": "train", "tokens": 512, "flops": 1e9, "seconds": 0.1, "loss": 3.0}])
    (room / "run" / WORDPIECE_FILE).write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]) + "\n")
    RunFolder(room / "recorded").write_run(
        {"status": "finished", "data": {"empty": 0}, "parameters": {"total": 1}, **TRAINED_ALIKE}
    )
    (room / "damaged_metrics" / "metrics.jsonl").write_text("{nonsense\n")
    (room / "no_folder" / "checkpoints").write_text("mine")
    (room / "set_aside" / "damaged_checkpoints" / "4").mkdir(parents=True)
    for task, variant, changes in (
        ("glue", "cola", {}),
        ("squad", "v1", {"stride": 16, "max_question_length": 16}),
    ):
        fields = load_fields(task, variant)
        fields["data"] |= {"sequence_length": 64, **changes}
        own = fine_tuning_fields(RunFolder(room / "run"), fields, seed=0, fresh=True)
        RunFolder.open_for_training(room / task, from_dict(own))
    before = contents(room)
    yield room
    assert contents(room) == before, "nothing there was changed"


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file but the bytecode that Python keeps of the config files."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"}


LONG = "x" * 300  # no file may be called so; who is root may read every folder
ROWS = [
    line.split(" -> ")
    for line in (ROOT / "tests" / "cli" / "bad_inputs.txt").read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
]


def null_error() -> str:
    """What this Python raises for a null byte in a source: SyntaxError, in 3.11.2 ValueError."""
    with pytest.raises((SyntaxError, ValueError)) as raised:
        compile("\0", "", "exec")
    return raised.type.__name__


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where configs/ lies, with nothing on standard input."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.mark.parametrize(("typed", "said"), ROWS, ids=[typed for typed, _ in ROWS])
def test_one_line_says_what_is_wrong(typed: str, said: str, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = str(tmp_path / "new")
    assert main(shlex.split(typed.replace("ROOM", str(room)).replace("NEW", new).replace("LONG", LONG))) == 2
    error, said = capsys.readouterr().err, said.replace("NULL_ERROR", null_error())
    assert error.count("\n") == 1 and error.endswith("\n"), error
    assert error.replace(str(room), "ROOM").replace(new, "NEW").replace(LONG, "LONG").removeprefix("mhsh: ").startswith(said), error


def test_no_command_is_left_out() -> None:
    assert len(ROWS) >= 131 and len({typed for typed, _ in ROWS}) == len(ROWS)
    assert {typed.split()[0] for typed, _ in ROWS} >= set(NAMES)
