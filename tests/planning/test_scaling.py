"""Predicted steps against cases worked by hand, against the ring shares of the HLO reader, and
against bigger compiled programs.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.errors import UserError
from mhsh.models.costs import PEAK_FLOPS, row_flops
from mhsh.planning.aot import Topology, compile_report
from mhsh.planning.chips import CHIPS
from mhsh.planning.hlo import Collective
from mhsh.planning.scaling import Axis, Exchange, Family, Traffic, exchange_seconds, memory_bytes, place, slice_layout, split_axes
from mhsh.planning.traffic import PHASES

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
H200, V5P, V6E = CHIPS["h200"], CHIPS["v5p"], CHIPS["v6e"]
# Nothing but the link takes time: 1 GB/s, eight devices at a switch.
PLAIN = dataclasses.replace(H200, link_bandwidth=1e9, hop_seconds=0.0, start_seconds=0.0, network_hop_seconds=0.0)


def sizes(axes):
    return [axis.size for axis in axes]


def test_every_chip_is_in_the_ledger_too():
    assert {chip.device_kind for chip in CHIPS.values()} <= PEAK_FLOPS.keys()
    assert V6E.peak_flops == 918e12


@pytest.mark.parametrize(
    ("kind", "devices", "layout", "rings"),
    [
        ("v5p", 8, [2, 2, 2], [False] * 3),
        ("v5p", 16, [2, 2, 4], [False] * 3),
        ("v5p", 64, [4, 4, 4], [True] * 3),
        ("v5p", 1024, [8, 8, 16], [True] * 3),
        ("v6e", 8, [2, 4], [False] * 2),
        ("v6e", 128, [8, 16], [False, True]),
        ("v6e", 256, [16, 16], [True] * 2),
    ],
)
def test_slices_are_those_of_googles_tables(kind, devices, layout, rings):
    axes = slice_layout(CHIPS[kind], devices)
    assert sizes(axes) == layout
    assert [axis.wrapped for axis in axes] == rings


def test_a_slice_of_twelve_is_refused():
    with pytest.raises(UserError, match="12 chips"):
        slice_layout(V5P, 12)


def test_fsdp_lies_on_whole_axes_where_it_can():
    near, across = split_axes(slice_layout(V5P, 1024), 64)  # 8 x 8 x 16
    assert (sizes(near), sizes(across)) == ([8, 8], [16])
    near, across = split_axes(slice_layout(V6E, 256), 8)  # half of a ring is a line, and the other half of it is shared by eight
    assert near[0] == Axis(8, False, 1)
    assert across == [Axis(2, False, 8), Axis(16, True, 1)]


@settings(deadline=None)
@given(st.sampled_from(list(CHIPS)), st.integers(0, 10), st.integers(0, 10))
def test_groups_multiply_to_the_mesh(kind, data, fsdp):
    chip, mesh = CHIPS[kind], (2**data, 2 ** min(fsdp, 10 - data))
    groups = place(chip, *mesh)
    assert (groups["data"].size, groups["fsdp"].size, groups["all"].size) == (*mesh, mesh[0] * mesh[1])
    for group in groups.values():
        assert group.inside <= chip.domain
        assert (group.lanes > 0) == (group.inside > 1) or not chip.dimensions


@pytest.mark.parametrize("kind", KINDS)
def test_a_ring_sends_what_the_hlo_reader_says(kind):
    told = Collective(kind, 3, 8, 8_000_000, ("f32",), "").sent_bytes
    share = {"collective-broadcast": 8 / 7}.get(kind, 1.0)  # the reader lets the whole array pass each device, here it is cut up
    found = exchange_seconds(Traffic(kind, "data", 3, 3 * 8_000_000), place(PLAIN, 8, 1)["data"], PLAIN)
    assert found == Exchange(0.0, pytest.approx(told / 1e9 / share))


def test_an_all_reduce_over_a_torus_by_hand():
    """4 x 4 x 4: six links of 100 GB/s, two hops along each axis, there and back."""
    found = exchange_seconds(Traffic("all-reduce", "data", 10, 6e9), place(V5P, 64, 1)["data"], V5P)
    assert found.transfer == pytest.approx(2 * 63 / 64 * 6e9 / 600e9)
    assert found.latency == pytest.approx(10 * 2 * 6 * 1e-6)


def test_an_all_reduce_over_lines_by_hand():
    """2 x 2 x 2 closes to no ring: three links, one hop along each axis."""
    found = exchange_seconds(Traffic("all-reduce", "data", 1, 6e9), place(V5P, 8, 1)["data"], V5P)
    assert found == Exchange(pytest.approx(6e-6), pytest.approx(2 * 7 / 8 * 6e9 / 300e9))


def test_an_all_reduce_between_nodes_by_hand():
    """32 GPUs in four nodes: scattered within a node, an eighth of it summed between nodes,
    gathered again.
    """
    found = exchange_seconds(Traffic("all-reduce", "data", 1, 8e9), place(H200, 32, 1)["data"], H200)
    assert found.transfer == pytest.approx(2 * (7 / 8 * 8e9 / 450e9 + 3 / 4 * 1e9 / 50e9))
    assert found.latency == pytest.approx(14e-6 + 2 * (7 * 1.9e-6 + 2 * 8.5e-6))


def test_pieces_cost_hops_and_no_bytes():
    group = place(V5P, 64, 1)["data"]
    whole, pieces = (exchange_seconds(Traffic("all-reduce", "data", count, 1e9), group, V5P) for count in (24, 384))
    assert pieces.transfer == whole.transfer
    assert pieces.latency == pytest.approx(16 * whole.latency)


figures = st.floats(1e-3, 1e3)


@settings(deadline=None)
@given(st.sampled_from(list(CHIPS)), st.sampled_from(KINDS), st.integers(1, 10), st.integers(0, 4), figures, figures)
def test_a_better_network_is_never_slower(kind, collective, devices, fsdp, faster, count):
    chip = CHIPS[kind]
    better = dataclasses.replace(
        chip,
        link_bandwidth=chip.link_bandwidth * (1 + faster),
        network_bandwidth=chip.network_bandwidth * (1 + faster),
        hop_seconds=chip.hop_seconds / (1 + faster),
    )
    fsdp = 2 ** min(fsdp, devices)
    for axis in ("data", "fsdp", "all"):
        traffic = Traffic(collective, axis, count, 1e6 * count)
        before, after = (exchange_seconds(traffic, place(each, 2**devices // fsdp, fsdp)[axis], each) for each in (chip, better))
        assert 0 <= after.latency <= before.latency
        assert 0 <= after.transfer <= before.transfer


def counted(rows, **phases):
    by_phase = {phase: {"moved": phases.get(phase, 0), "cycles": 0} for phase in PHASES}
    return {"batch_size": 4 * rows, "num_devices": 4, "traffic": {"by_phase": by_phase}}


def test_memory_traffic_grows_with_the_rows():
    alone = counted(8, forward=100, backward=300, optimizer=50, other=7)
    assert memory_bytes([alone], 8) == 457
    assert memory_bytes([alone], 16) == 2 * 400 + 57, "the update does not grow"
    assert memory_bytes([alone], 1) == 400 / 8 + 57
    three = [alone, counted(16, forward=557, optimizer=100), counted(64, forward=1000, optimizer=617)]
    assert [memory_bytes(three, rows) for rows in (4, 8, 12, 16, 40, 64, 88)] == [257, 457, 557, 657, 1137, 1617, 1992]


@pytest.fixture(scope="module")
def config(make_config):
    return make_config("bert", "2l8h", **{"model.remat_policy": "full"})


@pytest.fixture(scope="module")
def report_of(make_config):
    """report_of(data, fsdp): the step compiled for a mesh, two rows a simulated device."""

    @functools.cache
    def make(data, fsdp):
        mesh = {"mesh.data": data, "mesh.fsdp": fsdp, "train.batch_size": 2 * data * fsdp, "model.remat_policy": "full"}
        return compile_report(make_config("bert", "2l8h", **mesh), Topology(f"local:{data * fsdp}"))

    return make


@pytest.fixture(scope="module")
def family(config, report_of):
    return Family(config, [report_of(2, 1), report_of(4, 1)])


def with_mesh(report, data, fsdp):
    """The report as if of another mesh, on which nothing is sent."""
    return report | {"mesh": {"data": data, "fsdp": fsdp, "tensor": 1}, "collectives": []}


def in_bytes(family, batch):
    return {(one.kind, one.axis): one.bytes for one in family.traffic(batch)}


@pytest.mark.slow
def test_two_and_four_devices_foretell_eight(config, report_of, family):
    assert in_bytes(family, 16) == pytest.approx(in_bytes(Family(config, [report_of(8, 1)]), 16), rel=1e-3)


@pytest.mark.slow
def test_two_axes_are_separated(config, report_of):
    report = report_of(2, 4)
    family = Family(config, [report])
    assert {one.axis for one in family.traffic(16)} == {"data", "fsdp", "all"}
    assert sum(one.bytes for one in family.traffic(16)) == sum(one["bytes"] for one in report["collectives"])
    shares = sum(one.bytes for one in family.traffic(16) if one.axis == "data")
    kernels = 4 * config.model.num_layers * 64 * (4 * 64 + 2 * 256)  # fp32: attention and feed-forward
    assert shares >= kernels / 4, "each device sums its quarter of the gradients over data"


def test_one_device_computes_and_sends_nothing(config, family):
    alone = family.predict(config, H200, 1, 2, 0.5)
    assert alone.exchange == Exchange(0.0, 0.0)
    assert alone.hidden == alone.exposed == alone.work.total
    # Full rematerialisation: more than three forward passes, at most four.
    assert 3 < alone.work.compute / (2 * row_flops(config).total / (0.5 * H200.peak_flops)) <= 4


def test_an_infinite_network_leaves_the_work(config, family):
    free = dataclasses.replace(H200, link_bandwidth=math.inf, network_bandwidth=math.inf, hop_seconds=0.0)
    free = dataclasses.replace(free, network_hop_seconds=0.0, start_seconds=0.0)
    far, alone = (family.predict(config, free, devices, 2, 0.5) for devices in (512, 1))
    assert far.exposed == far.hidden == alone.hidden
    assert far.limit in ("compute", "HBM")


@settings(deadline=None)
@given(st.sampled_from(list(CHIPS)), st.integers(1, 10), st.integers(1, 4096), st.floats(0.01, 1))
def test_the_bounds_hold_the_parts(config, family, kind, doublings, rows, efficiency):
    found = family.predict(config, CHIPS[kind], 2**doublings, rows, efficiency)
    assert max(found.work.compute, found.work.hbm, found.exchange.total) == found.hidden <= found.exposed
    assert found.exposed <= 2 * found.hidden
    assert family.predict(config, CHIPS[kind], 2**doublings, rows, efficiency / 2).hidden >= found.hidden


def test_which_meshes_a_family_speaks_for(config, report_of, family):
    assert [family.knows(devices) for devices in (1, 2, 3, 1024)] == [False, True, True, True]
    mixed, alone = Family(config, [report_of(2, 4)]), Family(config, [with_mesh(report_of(2, 1), 1, 4)])
    assert [mixed.knows(devices) for devices in (4, 6, 8, 1024)] == [False, False, True, True]
    assert [alone.knows(devices) for devices in (4, 8)] == [True, False]


def test_reports_that_cannot_be_used(config, make_config, report_of):
    good = report_of(2, 1)
    with pytest.raises(UserError, match="of another config"):
        Family(make_config("bert", "4l4h", **{"data.sequence_length": 32}), [good])
    with pytest.raises(UserError, match="same batch"):
        Family(config, [good, good])
    with pytest.raises(UserError, match="cannot be separated"):
        Family(config, [with_mesh(good, 2, 2)])
    with pytest.raises(UserError, match="one slice"):
        Family(config, [good | {"num_slices": 2}])
    with pytest.raises(UserError, match="run mhsh aot --json again"):
        Family(config, [{name: value for name, value in good.items() if name != "traffic"}])
    with pytest.raises(UserError, match="did not fit"):
        Family(config, [{name: value for name, value in good.items() if name != "collectives"}])
    with pytest.raises(UserError, match="steps without accumulation"):
        Family(replace(config, train=replace(config.train, accumulation_steps=2)), [good])
    odd = good | {"collectives": [{**good["collectives"][0], "group": 5}]}
    with pytest.raises(UserError, match="groups of 5 devices"):
        Family(config, [odd])


def test_a_domain_that_does_not_divide():
    with pytest.raises(UserError, match="does not lie evenly"):
        place(H200, 12, 1)
