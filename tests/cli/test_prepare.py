"""mhsh prepare in processes of its own: what it prints, what it imports, and its end by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli import prepare
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, to_dict
from mhsh.errors import UserError
from tests.conftest import ROOT, load_fields
from tests.data.preparing import prepared, pretraining_config, translation_config, tree, write_documents

# The command with a config in JSON, told in one line what it has loaded.
COMMAND = """
import json, sys
from mhsh.cli.prepare import run
from mhsh.config.resolve import from_dict

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    status = run(config=from_dict(arguments.pop("config")), **arguments)
    print("loaded:", *sorted({"jax", "grain", "tensorflow"} & set(sys.modules)))
    sys.exit(status)
"""


def command(config: Config, out: Path, **arguments: Any) -> list[str]:
    defaults = dict(config=to_dict(config), out=str(out), workers=1, per_shard=10**6)
    return [sys.executable, "-c", COMMAND, json.dumps(defaults | arguments)]


def ran(config: Config, out: Path, **arguments: Any) -> list[str]:
    done = subprocess.run(command(config, out, **arguments), cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # A slow machine also prints its progress, every five seconds.
    return [line for line in done.stdout.split("\n")[:-1] if not re.fullmatch(r"\d of \d chunks", line)]


def test_it_says_what_it_did_and_never_loads_jax(tmp_path):
    out = tmp_path / "out"
    lines = ran(translation_config(), out, workers=2, per_shard=700)
    assert lines[:3] == ["reading numbers:1500", "learning a bpe vocabulary", "encoding 4 chunks with 400 tokens"]
    assert lines[3].startswith("source: read 1,500, empty 0, duplicates ") and lines[3].endswith(", in both splits 0")
    assert lines[4].startswith("train: pairs 1,") and lines[5].startswith("validation: pairs 1,000, too long 0, unlike ")
    assert lines[6].endswith(f"train from it with --config.data.source=arrayrecord:{out}")
    assert lines[7:] == ["loaded:"]
    again = ran(translation_config(), out, workers=2, per_shard=700)
    assert again[0] == f"{out} is finished; comparing it with its source and its hashes" and again[1:4] == lines[3:6]


def test_it_prepares_documents_too(tmp_path):
    source = write_documents(tmp_path, "t", [f"Document {number} has a sentence.\nIt has another." for number in range(60)])
    out = tmp_path / "my rows"
    files, documents, *lines = ran(pretraining_config(source=source, vocab_size=100), out, workers=2, per_shard=None)
    assert files == f"{source}: 1 file, text in UTF-8" and documents.startswith("60 documents, ")
    assert lines[:2] == [f"reading {source}", "learning a wordpiece vocabulary"]
    assert re.fullmatch(r"encoding 2 chunks with \d+ tokens", lines[2])
    assert lines[3] == "source: read 60, empty 0, duplicates 0"
    number = r"\d{1,3}(,\d{3})*"
    counts = rf"sentences {number}, cut sentences {number}, rows {number}, tokens {number}, dropped tokens 0"
    shares = r"padding fraction 0\.\d{4}, unknown fraction 0\.0000, unknown character fraction 0\.0000, used vocabulary [01]\.\d{4}"
    for line, split in zip(lines[4:6], ("train", "validation"), strict=True):
        assert re.fullmatch(rf"{split}: documents \d+, empty documents 0, {counts}, {shares}", line)
    assert lines[6].endswith(f"train from it with --config.data.source='arrayrecord:{out}'")
    assert lines[7:] == ["loaded:"]


def test_objectives_without_rows_of_their_own(tmp_path):
    fields = load_fields("bert", "2l8h")
    fields["model"] |= dict(objective="classification", num_classes=2, next_sentence=False)
    fields["train"]["eval_batches"] = 0
    fields["data"] = dict(task="cola", source="tsv:GLUE", vocab_path="v.txt", lowercase=True, sequence_length=32, seed=0)
    with pytest.raises(UserError, match=r"those of model\.objective = 'classification' are made when training starts"):
        prepare.run(config=from_dict(fields), out=str(tmp_path / "out"), workers=1)


def test_ctrl_c_ends_it_at_once_and_nothing_is_lost(tmp_path):
    config = translation_config(source="numbers:1500")
    out = tmp_path / "out"
    started: dict[str, Any] = dict(cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    process = subprocess.Popen(command(config, out, per_shard=50, workers=3), **started)
    while not (out / "train" / "00003.json").exists():
        assert process.poll() is None
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and stderr.count("Traceback") == 1 and stderr.endswith("KeyboardInterrupt\n")
    prepared(config, out, per_shard=50)
    prepared(config, tmp_path / "whole", per_shard=50)
    assert tree(out) == tree(tmp_path / "whole")
