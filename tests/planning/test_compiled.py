"""The step compiled ahead: collectives and memory by mesh on simulated devices, and every
refusal in one line.
"""

from __future__ import annotations

import json
import signal

import jax
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh.cli.main import main
from mhsh.errors import UserError
from mhsh.models.build import boxed_parameters
from mhsh.models.costs import parameter_counts, step_flops
from mhsh.planning import compiled
from mhsh.planning.compiled import compile_report, measure, overflow, parse_topology
from mhsh.planning.roofline import CHIPS
from mhsh.training.memory import footprint
from mhsh.training.sharding import matrix_mask
from mhsh.training.state import example_batch
from tests.conftest import ROOT
from tests.training.states import boxed_of

GIB = 2**30
LOCAL = parse_topology("local:8")
MOST_A_LAYER = {"xla": 64, "fused": 31}  # operations of an H100, forward and backward
MESHES = {"data": (8, 1, 1), "fsdp": (1, 8, 1), "tensor": (1, 2, 4)}
NO_COMPILER = {platform: compiled.compiler_of(platform) is None for platform in ("tpu", "gpu")}


@pytest.fixture(scope="module")
def config_of(make_config):
    def make(mesh, **overrides):
        sizes = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), MESHES[mesh], strict=True))
        return make_config("bert", "2l8h", **sizes | {"train.batch_size": 16, "model.remat_policy": "full"} | overrides)

    return make


@pytest.fixture(scope="module")
def reports(config_of):
    return {mesh: compile_report(config_of(mesh), LOCAL) for mesh in MESHES}


def payload(report, kind):
    return sum(one["bytes"] for one in report["collectives"] if one["kind"] == kind)


def test_data_parallelism_exchanges_the_gradients_and_no_more(config_of, reports):
    """Each once, the tied token table's too."""
    report = reports["data"]
    gradients = 4 * parameter_counts(config_of("data").model)["total"]
    assert gradients <= payload(report, "all-reduce") <= 1.01 * gradients
    assert {one["kind"] for one in report["collectives"]} == {"all-reduce"}


def test_fsdp_gathers_the_weights_once_and_reduces_their_gradients_once(config_of, reports):
    report, model = reports["fsdp"], config_of("fsdp").model
    boxed = boxed_parameters(model)
    leaves = zip(jax.tree.leaves(nn.unbox(boxed)), jax.tree.leaves(matrix_mask(boxed)), strict=True)
    weights = sum(4 * leaf.size for leaf, is_matrix in leaves if is_matrix)
    assert payload(report, "all-gather") == payload(report, "reduce-scatter") == weights
    assert payload(report, "all-reduce") == pytest.approx(4 * parameter_counts(model)["total"] - weights, rel=0.01)
    assert all(one["count"] == 1 for one in report["collectives"])


def test_tensor_parallelism_sums_activations(config_of, reports):
    sums = [one for one in reports["tensor"]["collectives"] if one["kind"] == "all-reduce" and one["group"] == 4]
    rows = 16 // 2 * 64 * 64 * 4  # B T D on one row of the mesh, fp32
    forward = [one["payload"] for one in sums if "feed_forward" in one["source"] and "transpose(" not in one["source"]]
    assert forward.count(rows) >= 1


def test_memory_falls_where_the_state_is_divided(config_of, reports):
    for mesh, report in reports.items():
        memory, told = report["memory"], footprint(config_of(mesh), boxed_of(config_of(mesh)), report["mesh"])
        shards = report["mesh"]["data"] * report["mesh"]["fsdp"]
        batch = sum(array.nbytes for array in example_batch(config_of(mesh), 16).values()) / shards
        assert memory["arguments"] == pytest.approx(told.parameters + told.optimizer + batch, rel=0.01)
        assert 0 < memory["arguments"] + memory["temporaries"] <= memory["total"] == report["needed_bytes"]
        assert report["fits"] is None, "nobody said what a simulated device holds"
    assert reports["fsdp"]["needed_bytes"] < reports["data"]["needed_bytes"]


def test_flops_are_the_ledgers_and_one_more_forward_pass_of_the_layers(config_of, reports):
    """With full rematerialisation a layer runs forward twice: between one and 4/3 times the
    ledger's three passes.
    """
    for mesh in ("data", "fsdp"):
        flops = reports[mesh]["flops"]
        assert flops["ledger"] == step_flops(config_of(mesh)) / 8
        assert 1 < flops["matrix_products"] / flops["ledger"] < 4 / 3
    plain = compile_report(config_of("data", **{"model.remat_policy": "none"}), LOCAL)["flops"]
    assert plain["matrix_products"] == pytest.approx(plain["ledger"], rel=0.01)


def test_a_given_limit_decides_what_fits(config_of, reports):
    needed = reports["data"]["needed_bytes"]
    assert not compile_report(config_of("data"), LOCAL, hbm_bytes=needed - 1)["fits"]


def test_kernels_that_the_device_does_not_run_are_said(config_of, reports):
    assert reports["data"]["fallbacks"] == ""
    report = compile_report(config_of("data", **{"model.kernels": "fused"}), LOCAL)  # the same program
    assert report["fallbacks"] == "model.kernels = fused: XLA computes everything, as the device is a CPU and no NVIDIA GPU"


def test_running_out_of_memory_is_a_result():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 23.50G of 15.75G hbm. Exceeded hbm capacity by 7.75G.\n\nTotal hbm usage >= 23.75G:"
    )
    found = overflow(message)
    assert found["fits"] is False
    assert found["needed_bytes"] == round(23.5 * GIB)
    assert "\n" not in found["compiler"]
    newer = "RESOURCE_EXHAUSTED: E1000: the total memory required for HLO temporaries (120.93G) exceeds available HBM (15.75G). HLO"
    assert overflow(newer)["needed_bytes"] == round(120.93 * GIB)
    assert overflow("RESOURCE_EXHAUSTED: out of memory while allocating")["needed_bytes"] is None
    assert overflow("INTERNAL: Mosaic failed") is None
    on_chip = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. CompileTimeScopedVmemOom: 18.86M > 16M"
    assert overflow(on_chip) is None, "the chip's, not the device's"


def test_devices_of_a_slice():
    assert parse_topology("v5p:2x2x4", 2).num_devices == 32
    assert parse_topology("v5e:4x4").hbm_bytes == 16 * GIB
    assert parse_topology("tpu7x:2x2x1", 2)[2:] == (16, CHIPS["tpu7x"]), "two devices a chip"
    assert parse_topology("h100:16").num_devices == 16
    assert parse_topology("local:8").hbm_bytes is None
    for name, slices in (("h100:2x4", 1), ("p100:8", 1), ("h100", 1), ("h100:8", 2)):
        with pytest.raises(UserError, match=r"tpu7x:2x2x1, a100:8|leave out --num-slices"):
            parse_topology(name, slices)


TINY = ["plan", f"--config={ROOT}/configs/bert.py:2l8h"]


def test_no_compiler_and_slices_that_share_no_batch(capsys, monkeypatch):
    assert main([*TINY, "--topology=v5e:4x4", "--num-slices=2"]) == 2
    assert "make it a multiple of 32" in capsys.readouterr().err
    monkeypatch.setattr(compiled, "_version", lambda name: None)
    assert main([*TINY, "--topology=v5e:2x2"]) == 2
    assert "'requests>=2.32', in an environment of its own" in capsys.readouterr().err
    assert main([*TINY, "--topology=h100:2"]) == 2
    assert "compiling for a GPU needs its compiler" in capsys.readouterr().err


def test_a_compiler_that_dies_is_named(config_of, monkeypatch):
    class Dead:
        returncode = -signal.SIGSEGV
        stderr = "noise\n*** SIGSEGV STACK OVERFLOW received by PID 1\n@ 0x7f\n"

    monkeypatch.setattr(compiled.subprocess, "run", lambda *_, **__: Dead)
    with pytest.raises(UserError, match=r"ended by SIGSEGV \(\*\*\* SIGSEGV STACK OVERFLOW.*another release of libtpu"):
        measure(config_of("data"), LOCAL)
    Dead.returncode, Dead.stderr = 1, "Traceback\nValueError: odd"
    with pytest.raises(UserError, match=r"failed \(libtpu .*: ValueError: odd"):
        measure(config_of("data"), LOCAL)


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_same_report(config_of, reports):
    """Four simulated devices, which this process does not have."""
    config = config_of("fsdp", **{"mesh.fsdp": 4})
    report = measure(config, parse_topology("local:4"))
    assert report["num_devices"] == 4
    assert report["warnings"] == []
    assert report["memory"]["arguments"] > reports["fsdp"]["memory"]["arguments"]
    with pytest.raises(UserError, match="does not make the 8 devices"):
        measure(config, LOCAL)


def test_text_and_json(capsys, monkeypatch, reports):
    report = reports["fsdp"] | {"warnings": ["spmd_partitioner: Involuntary full rematerialization"]}
    monkeypatch.setattr(compiled, "measure", lambda *_: json.loads(json.dumps(report)))
    assert main([*TINY, "--topology=local:8"]) == 0
    text = capsys.readouterr().out
    for part in (
        "COMPILED MEMORY BYTES",
        "all-gather",
        "matrix products",
        "warning: spmd_partitioner: Involuntary",
    ):
        assert part in text
    assert main([*TINY, "--topology=local:8", "--json"]) == 0
    assert [plan["compiled"] for plan in json.loads(capsys.readouterr().out)["configs"].values()] == [report]


@pytest.mark.tpu_compile
@pytest.mark.skipif(NO_COMPILER["tpu"], reason="libtpu is not installed (pip install -e '.[tpu]')")
class TestLibtpu:
    """The real TPU compiler, without a TPU."""

    def test_a_slice(self, make_config):
        overrides = {"mesh.data": 1, "mesh.fsdp": 4, "model.compute_dtype": "bfloat16"}
        config = make_config("bert", "16l1h", **overrides)
        report = measure(config, parse_topology("v5e:2x2"))
        assert report["fits"]
        assert report["device_kind"] == "TPU v5 lite"
        assert report["unknown_loops"] == []
        assert report["remat_policy"] == "projections"
        assert 1 < report["flops"]["matrix_products"] / report["flops"]["ledger"] < 4 / 3
        assert report["collectives"]

    def test_two_slices(self, make_config):
        config = make_config("bert", "2l8h", **{"mesh.data": 2, "mesh.fsdp": 4})
        report = measure(config, parse_topology("v5e:2x2", 2))
        assert report["num_devices"] == 8
        gradients = 4 * parameter_counts(config.model)["total"] / 4  # each device's share
        assert gradients * 0.9 < payload(report, "between-slices") < gradients * 4
        with pytest.raises(UserError, match="2 slices"):
            measure(replace(config, mesh=replace(config.mesh, data=1, fsdp=1, tensor=8)), parse_topology("v5e:2x2", 2))

    def test_what_the_compiler_calls_impossible(self, make_config):
        with pytest.raises(UserError, match=r"--topology=v5e:3x3: INVALID_ARGUMENT"):
            measure(make_config("bert", "2l8h", **{"train.batch_size": 9}), parse_topology("v5e:3x3"))

    def test_a_step_that_does_not_fit(self, make_config):
        overrides = {"model.num_layers": 48, "train.batch_size": 16384, "mesh.data": 4, "model.remat_policy": "none"}
        report = measure(make_config("bert", "2l8h", **overrides), parse_topology("v5e:2x2"))
        assert report["fits"] is False
        assert report["needed_bytes"] > report["hbm_bytes"]


@pytest.mark.gpu_compile
@pytest.mark.skipif(NO_COMPILER["gpu"], reason="XLA's CUDA plugin is not installed (pip install -e '.[gpu-compile]')")
class TestCudaPlugin:
    """The real compiler for NVIDIA GPUs, without a GPU."""

    @pytest.fixture(autouse=True)
    def optimised(self, monkeypatch):
        monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")

    def test_a_machine(self, make_config):
        overrides = {"mesh.data": 2, "mesh.fsdp": 4, "model.compute_dtype": "bfloat16"}
        report = measure(make_config("bert", "16l1h", **overrides), parse_topology("h100:8"))
        assert report["fits"]
        assert report["device_kind"] == "NVIDIA H100 80GB HBM3"
        assert report["unknown_loops"] == []
        assert report["remat_policy"] == "projections"
        kinds = {one["kind"]: one["count"] for one in report["collectives"]}
        assert kinds.keys() == {"all-gather", "all-reduce", "reduce-scatter"}

    @pytest.mark.parametrize("kernels", MOST_A_LAYER)
    def test_the_launches_of_a_layer_do_not_grow(self, make_config, kernels):
        """A layer of 384l1h has as many operations as one of 16, and no more than is written in
        docs/development/speed.md.
        """
        overrides = {"train.batch_size": 16, "mesh.data": 1, "model.compute_dtype": "bfloat16", "model.kernels": kernels}
        config = make_config("bert", "384l1h", **overrides)
        few, more = (replace(config, model=replace(config.model, num_layers=count)) for count in (16, 32))
        launches = [measure(one, parse_topology("h100:1"))["launches"] for one in (few, more)]
        a_layer = (launches[1] - launches[0]) / 16
        assert a_layer <= MOST_A_LAYER[kernels]
        assert launches[0] - 16 * a_layer < 200
