"""mhsh scaling from files of mhsh aot: a table, JSON with the same figures, and every mistake in
one line.
"""

from __future__ import annotations

import json

import pytest

from mhsh.cli.main import main
from mhsh.planning.aot import Topology, compile_report
from tests.conftest import ROOT

TINY = f"--config={ROOT}/mhsh/configs/bert.py:2l8h"


@pytest.fixture(scope="module")
def reports(make_config, tmp_path_factory):
    """Files of data 8, and of data 2 x fsdp 4; four rows a device."""
    folder = tmp_path_factory.mktemp("reports")
    names = []
    for data, fsdp in ((8, 1), (2, 4)):
        mesh = {"mesh.data": data, "mesh.fsdp": fsdp, "train.batch_size": 32, "model.remat_policy": "none"}
        path = folder / f"{data}x{fsdp}.json"
        path.write_text(json.dumps(compile_report(make_config("bert", "2l8h", **mesh), Topology("local:8"))))
        names.append(f"--report={path}")
    return names


def predicted(capsys, *arguments):
    assert main(["scaling", TINY, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_weak_scaling(capsys, reports):
    told = predicted(capsys, *reports, "--chip=h200", "--devices=8,64,512")
    assert told["assumed"]["chip"]["device_kind"] == "NVIDIA H200"
    data, mixed = told["meshes"]
    assert (data["fsdp"], mixed["fsdp"]) == (1, 4)
    assert [line["devices"] for line in data["lines"]] == [8, 64, 512]
    for mesh in (data, mixed):
        assert {line["rows_per_device"] for line in mesh["lines"]} == {4}, "that of the reports"
        assert len({line["seconds"]["compute"] for line in mesh["lines"]}) == 1
        exchanged = [line["seconds"]["latency"] + line["seconds"]["transfer"] for line in mesh["lines"]]
        assert exchanged == sorted(exchanged), "more nodes, more hops"
    for line in data["lines"] + mixed["lines"]:
        seconds = line["seconds"]
        assert seconds["hidden"] == max(seconds["compute"], seconds["hbm"], seconds["latency"] + seconds["transfer"])
        assert line["tokens_per_second"]["hidden"] == pytest.approx(4 * 64 * line["devices"] / seconds["hidden"])
        assert 0 < line["efficiency"]["exposed"] <= line["efficiency"]["hidden"] <= 1
        assert line["mfu"]["hidden"] < 0.75
        assert line["fits"]
    assert mixed["lines"][0]["needed_bytes"] < data["lines"][0]["needed_bytes"]


def test_strong_scaling_halves_the_rows(capsys, reports):
    told = predicted(capsys, *reports, "--chip=v6e", "--devices=8,16,32,64", "--batch=96")
    for mesh in told["meshes"]:
        assert [(line["devices"], line["rows_per_device"]) for line in mesh["lines"]] == [(8, 12), (16, 6), (32, 3)], (
            "96 / 64 is none"
        )
        compute = [line["seconds"]["compute"] for line in mesh["lines"]]
        assert compute == pytest.approx([compute[0], compute[0] / 2, compute[0] / 4])
        worth = [line["efficiency"]["exposed"] for line in mesh["lines"]]
        assert worth == sorted(worth, reverse=True)


def test_assumptions_change_the_work_and_not_the_exchange(capsys, reports):
    one, other = (
        predicted(capsys, *reports, "--chip=v5p", "--devices=64", f"--efficiency={share}")["meshes"][0] for share in (0.8, 0.4)
    )
    before, after = one["lines"][0], other["lines"][0]
    assert after["seconds"]["compute"] == pytest.approx(2 * before["seconds"]["compute"])
    assert after["seconds"]["hbm"] == before["seconds"]["hbm"]
    assert after["exchanges"] == before["exchanges"]


def test_what_does_not_fit_is_said(capsys, reports):
    assert main(["scaling", TINY, *reports, "--chip=v5e", "--devices=8", "--rows-per-device=4000000"]) == 0
    out = capsys.readouterr().out
    assert "PREDICTED, not measured" in out and "too much" in out
    assert "memory traffic and collectives are those of programs for local" in out
    assert "fsdp 4 x data, remat none; collectives as compiled for local:8 data 2 batch 32" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chip=v9"], "--chip=v9 is not known; allowed: v4, v5e, v5p, v6e, h200"),
        (["--devices=8,many"], "--devices=8,many: give numbers"),
        (["--devices=0"], "--devices=0: give numbers"),
        (["--devices=24"], "24 chips are no slice"),
        (["--efficiency=1.5"], "--efficiency=1.5: give a share of peak, above 0 and at most 1"),
        (["--report=/nowhere.json"], "--report=/nowhere.json: "),
        (["--config.data.sequence_length=32"], "is of another config"),
    ],
)
def test_mistakes_are_one_line(capsys, reports, arguments, message):
    chip = [] if arguments[0].startswith("--chip") else ["--chip=v5p"]
    assert main(["scaling", TINY, *reports, *chip, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and "Traceback" not in err


def test_a_file_that_is_no_report(capsys, tmp_path):
    (tmp_path / "other.json").write_text("[1]")
    assert main(["scaling", TINY, f"--report={tmp_path / 'other.json'}", "--chip=v5p"]) == 2
    assert "it is not a JSON object; fetch or write it again; give what mhsh aot --json prints" in capsys.readouterr().err
