"""The checks of a run before a slice is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.preflight import check, chips_of
from mhsh.errors import UserError
from mhsh.sweep.axes import cells_of, parse_axes
from mhsh.sweep.folder import Plan, SweepFolder
from tests.conftest import load_fields

TINY = ("train", "--config=bert:2l8h", "--workdir=gs://b/run", "--config.data.source=stdlib")


@pytest.mark.parametrize(
    ("accelerator_type", "kind", "chips"),
    [("v4-16", "TPU v4", 8), ("v5litepod-16", "TPU v5 lite", 16), ("v5p-32", "TPU v5p", 16), ("v6e-64", "TPU v6 lite", 64)],
)
def test_chips_of_a_type(accelerator_type: str, kind: str, chips: int) -> None:
    chip, number = chips_of(accelerator_type)
    assert (chip.device_kind, number) == (kind, chips)


@pytest.mark.parametrize("accelerator_type", ["v99-8", "v4", "v4-7", "v6e-0", "v5litepod-x"])
def test_other_types_are_refused(accelerator_type: str) -> None:
    with pytest.raises(UserError, match="is not known; known are v4-N"):
        chips_of(accelerator_type)


@pytest.mark.parametrize("source", ["stdlib", "recall:2", "copying:8"])  # no files
def test_what_works_says_how_it_fits(source: str) -> None:
    given = [f"--config.data.source={source}", "--config.model.remat_policy=none", "--config.train.batch_size=32"]
    problems, fits = check("v6e-8", 2, [*TINY[:3], *given])
    assert (problems, fits[:37]) == ([], "16 x TPU v6 lite, remat_policy none: ")


def test_every_flag_of_train_is_known(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from mhsh.configs import bert\n\n\ndef get_config():\n    return bert.get_config('2l8h')\n")
    flags = ("--fresh", "--accept-gap", f"--with={mine}", "--config.model.remat_policy=none")
    assert check("v6e-8", 1, ["train", f"--config={mine}", *TINY[2:], *flags])[0] == []


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["work", "runs/s"], ["mhsh work runs/s: no worker has it; plan the sweep in a bucket"]),
        (["work", "gs://b/s", "--epochs=3"], ["--epochs=3 is not an argument of mhsh work"]),
        (["train", "--config=bert:2l8h"], ["mhsh train needs --workdir"]),
        (["train", "--workdir=gs://b/r"], ["mhsh train: the following arguments are required: --config"]),
        (["train", "--config=bert:none", "--workdir=gs://b/r"], ["bert has no variant 'none'"]),
        ([*TINY, "--epochs=3"], ["--epochs=3 is not an argument of mhsh train"]),
        ([*TINY[:2], "--workdir=r", TINY[3]], ["--workdir=r is lost with the slice"]),
        (TINY[:3], ["--config=bert:2l8h would train on the small embedded text of stdlib; give --config.data.source"]),
        ([*TINY[:3], "--config.data.source=text:gs://b/a.txt,b.txt"], ["data.source: no worker has gs://b/a.txt,b.txt"]),
        ([*TINY, "--config.data.vocab_path=v.txt"], ["data.vocab_path: no worker has v.txt"]),
        ([*TINY, "--config.train.start_from=runs/a"], ["train.start_from: no worker has runs/a"]),
        ([*TINY[:3], "--config.data.source=tfds:wikipedia"], ["data.source = tfds:wikipedia: no worker has it"]),
        ([*TINY, "--config.train.batch_size=12"], ["gives 12 rows, which mesh.data x mesh.fsdp = 8 x 1 does not divide"]),
        (
            [*TINY, "--config.model.remat_policy=none", "--config.train.batch_size=1048576"],
            ["8 chips: out of memory: 246,274 parameters need 162.6 GiB of the 32.0 GiB of a device"],
        ),
        (
            ["train", "--config=translation:tiny", "--workdir=r", "--config.data.vocab_path=v"],
            ["--workdir=r is lost", "small embedded text of numbers", "data.vocab_path: no worker has v"],
        ),
    ],
)
def test_problems(arguments: list[str], messages: list[str]) -> None:
    problems, _ = check("v6e-8", 1, arguments)
    assert len(problems) == len(messages), problems
    for problem, message in zip(problems, messages, strict=True):
        assert message in problem


def test_other_commands_are_not_checked() -> None:
    assert check("v6e-8", 1, ["prepare", "--out=x"]) == ([], "mhsh prepare is not checked before")


def test_the_cells_of_a_sweep_are_checked(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    fields = load_fields("evidence", "heads")
    for name, sources, said in (("s", "stdlib", ""), ("t", "stdlib,text:a.txt", "data.source: no worker has a.txt")):
        axes = parse_axes(["batch_size=8,16", f"source={sources}"], fields)
        SweepFolder(f"gs://runs/{name}").open_for(Plan(axes, cells_of(axes, fields, lambda config: {})))
        problems, fits = check("v6e-8", 1, ["work", f"gs://runs/{name}", "--together", "2"])
        assert (said in problems[0]) if said else (not problems and fits.startswith("8 x TPU v6 lite, remat_policy "))
