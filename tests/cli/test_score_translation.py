"""`mhsh score translation` against sacreBLEU's own command line, and what it says of files that do
not fit.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mhsh.cli.score import translation as run
from mhsh.errors import UserError
from tests.conftest import ROOT

WORDS = ["Der", "Haus", "Häuser", ",", ".", ";", "1,5", "3.2", "%", "&amp;", "Straßenbahn-Halt", "„", "U.S.", "😀", "can't", "<br>"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """References with every sort of mark, and hypotheses in which every fifth word is another one;
    some lines are empty.
    """
    generator = np.random.default_rng(0)
    references = [" ".join(generator.choice(WORDS, generator.integers(1, 25))) for _ in range(150)]
    hypotheses = [
        " ".join(generator.choice(WORDS) if generator.random() < 0.2 else word for word in line.split(" ")) for line in references
    ]
    hypotheses[3:6] = ["", "   ", references[5]]
    paths = tmp_path / "hypotheses.de", tmp_path / "references.de"
    for path, lines in zip(paths, (hypotheses, references), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def sacrebleu(hypotheses: Path, references: Path, *flags: str) -> list[dict[str, str]]:
    arguments = [str(references), "-i", str(hypotheses), "-m", "bleu", "chrf", "-w", "4", "--force", *flags]
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("lowercase", [False, True])
def test_as_sacrebleu_itself(files, capsys, lowercase):
    assert run(hypotheses=str(files[0]), references=str(files[1]), lowercase=lowercase, as_json=True) == 0
    ours = json.loads(capsys.readouterr().out)
    bleu, chrf = sacrebleu(*files, *(["-lc", "--chrf-lowercase"] if lowercase else []))
    assert 10 < ours["bleu"] < 90
    assert (round(ours["bleu"], 4), ours["bleu_signature"]) == (bleu["score"], bleu["signature"])
    assert (round(ours["chrf"], 4), ours["chrf_signature"]) == (chrf["score"], chrf["signature"])
    assert f"case:{'lc' if lowercase else 'mixed'}" in ours["bleu_signature"]
    lines = [path.read_text(encoding="utf-8").strip("\n").split("\n") for path in files]
    assert ours["num_lines"] == 150
    assert ours["exact_matches"] == sum(a.strip() == b.strip() for a, b in zip(*lines, strict=True)) > 0


def test_in_words_and_from_packed_files(files, capsys):
    packed = files[0].with_suffix(".de.gz")
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    assert run(hypotheses=str(packed), references=str(files[1]), lowercase=False, as_json=False) == 0
    first = capsys.readouterr().out
    assert run(hypotheses=str(files[0]), references=str(files[1]), lowercase=False, as_json=False) == 0
    assert capsys.readouterr().out == first
    bleu, _ = sacrebleu(*files)
    assert f"BLEU  {float(bleu['score']):.2f}  (" in first
    assert bleu["signature"] in first
    assert "lines 150, exact matches " in first


def test_files_that_do_not_fit(files, tmp_path):
    short, empty, latin = tmp_path / "short", tmp_path / "empty", tmp_path / "latin"
    short.write_text("one\ntwo\n")
    empty.write_text("")
    latin.write_bytes(b"fine\n" * 6 + "Häuser\n".encode("latin-1"))
    for arguments, message in (
        ((short, files[1]), f"{short} has 2 lines, {files[1]} 150; give files in which"),
        ((empty, empty), "are empty; there is nothing to score"),
        ((latin, files[1]), "line 7 is not UTF-8: invalid continuation byte at byte 1 of the line"),
        ((tmp_path / "missing", files[1]), "missing: No such file or directory"),
    ):
        with pytest.raises(UserError, match=message):
            run(**dict(zip(("hypotheses", "references"), map(str, arguments), strict=True)), lowercase=False, as_json=True)


def test_a_form_feed_or_a_line_separator_ends_no_line(tmp_path, capsys):
    path = tmp_path / "odd"
    path.write_bytes("one\x0ctwo\u2028three\x85four\r\nfive".encode())
    assert run(hypotheses=str(path), references=str(path), lowercase=False, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["num_lines"] == 2


def test_it_never_imports_jax():
    heavy = "{'jax', 'flax', 'optax', 'orbax', 'grain'}"
    code = f"import mhsh.cli.score, sys; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
