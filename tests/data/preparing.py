"""Small preparations of both kinds for tests, in this process and killed in one of their own."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, to_dict
from mhsh.data import load
from mhsh.data.corpus import StreamedTask
from mhsh.data.pool import run_chunks
from mhsh.data.prepare import prepare
from tests.conftest import ROOT, load_fields

_BERT, _TINY = load_fields("bert", "2l8h"), load_fields("translation", "tiny")
CONFIG = _BERT | {
    "model": _BERT["model"] | dict(heads_per_layer=0, vocab_size=400, max_positions=128),
    "data": _BERT["data"] | dict(sequence_length=48, max_predictions=8, validation_fraction=0.2),
}
_PAIRS = dict(source="numbers:1500", max_length_ratio=2.0, validation_fraction=0.1, validation_sentences=0)
_TRANSLATION = _TINY | {"model": _TINY["model"] | dict(vocab_size=400, max_positions=64), "data": _TINY["data"] | _PAIRS}
CLM = dict(objective="clm", next_sentence=False, num_token_types=0, tokenizer="bytes")
# The layouts of rows of documents.
LAYOUTS: dict[str, dict[str, Any]] = {"pairs": {}, "segments": dict(next_sentence=False, num_token_types=0), "stream": CLM}


def translation_config(**fields: Any) -> Config:
    """As `pretraining_config`."""
    return _changed(_TRANSLATION, fields)


def pretraining_config(**fields: Any) -> Config:
    """CONFIG, with some fields replaced: pretraining_config(source=..., vocab_size=300)."""
    return _changed(CONFIG, fields)


def _changed(config: dict[str, Any], fields: dict[str, Any]) -> Config:
    assert fields.keys() <= config["model"].keys() | config["data"].keys()
    return from_dict({name: {key: fields.get(key, value) for key, value in section.items()} for name, section in config.items()})


def task_of(config: Config) -> StreamedTask[Any]:
    task = load.task_of(config)
    assert isinstance(task, StreamedTask)
    return task


def run_locally(workers: int, work: Callable[[int], None], chunks: range) -> None:
    run_chunks(work, chunks, workers, lambda chunk: None)


def prepared(config: Config, out: Path, per_shard: int = 10**6, workers: int = 1) -> tuple[dict[str, Any], list[str]]:
    """The summary, and what was said on the way."""
    said: list[str] = []
    return prepare(task_of(config), out, per_shard, functools.partial(run_locally, workers), said.append), said


def with_rows(config: Config, folder: Path) -> Config:
    """The config of a run on prepared rows."""
    emptied = {"source": f"arrayrecord:{folder}", "validation_source": "", "vocab_path": ""}
    names = set(config.data.__struct_fields__)
    data = replace(config.data, **{name: value for name, value in emptied.items() if name in names})
    return replace(config, data=data)


def digest(batch: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256()
    for name in sorted(batch):
        state.update(f"{name} {batch[name].shape} {batch[name].dtype}".encode())
        state.update(np.ascontiguousarray(batch[name]))
    return state.hexdigest()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def invented(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of made-up sentences, some empty, some twice, some of very unlike length, some too
    long.
    """
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghäöüß", k=rng.randint(1, 6))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.choice((0, 1, 4, 6, 8, 12, 40))))

    pairs = [(sentence(), sentence()) for _ in range(count)]
    return pairs + pairs[::10]


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> str:
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return f"text:{folder / name}.en,{folder / name}.de"


def write_documents(folder: Path, name: str, documents: list[str]) -> str:
    (folder / f"{name}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return f"text:{folder / name}.txt"


# Prepares once whole; then again and again, killed by SIGKILL before the n-th change of a file, and
# started anew to its end. A fork has all modules imported: hundreds of starts in seconds. The hook
# hears of a call before it happens.
_KILLED_EVERYWHERE = """
import json, os, shutil, signal, sys
from pathlib import Path
from mhsh.config.resolve import from_dict
from mhsh.data.prepare import prepare
from tests.data.preparing import run_locally, task_of, tree

folder, config, per_shard, stride = Path(sys.argv[1]), from_dict(json.loads(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
task = task_of(config)
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def child(out, moment):
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or writes) and str(out) in str(arguments[0]):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        prepare(task, out, per_shard, lambda *work: run_locally(1, *work), lambda line: None)
    except BaseException as error:
        print("failed", repr(error), flush=True)
        os._exit(1)
    os._exit(0)


assert child(folder / "whole", 0) == 0
whole = tree(folder / "whole")
moment, kills = 1, 0
while True:
    out = folder / str(moment)
    code = child(out, moment)
    if code == 0:
        break
    assert code == -signal.SIGKILL, (moment, code)
    kills += 1
    if kills % 5 == 0:
        # Killed once more on the way, at another moment.
        child(out, 1 + kills % 7)
    assert child(out, 0) == 0, moment
    found = tree(out)
    assert found == whole, (moment, {name for name in {**found, **whole} if found.get(name) != whole.get(name)})
    shutil.rmtree(out)
    moment += stride
print(kills)
"""


def killed_everywhere(config: Config, folder: Path, per_shard: int, stride: int) -> int:
    """The kills that a preparation survived with equal bytes: one before every `stride`-th change
    of a file.
    """
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_EVERYWHERE, str(folder), json.dumps(to_dict(config)), str(per_shard), str(stride)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)
