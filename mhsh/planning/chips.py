"""Public figures of accelerators (compute, memory and network of a chip), each with its source."""

from __future__ import annotations

import dataclasses

from mhsh.models.costs import PEAK_FLOPS


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device as jax sees it (both cores of a v4 or v5p chip taken together). Bytes per second
    are of one direction.

    A domain is a group of devices on one fast network: a TPU slice, whose chips are linked to their
    neighbours along each axis of a mesh or torus, or the GPUs at one NVLink switch. A slower
    network connects several domains.
    """

    device_kind: str  # jax's name for it, the key of PEAK_FLOPS
    hbm_bytes: int
    hbm_bandwidth: float
    dimensions: int  # of a TPU slice; 0: a switch, every device one hop from every other
    wraps: int  # an axis whose size is a multiple of this closes to a ring; in three dimensions only if all are
    domain: int  # the most devices of one domain
    link_bandwidth: float  # of the link to one neighbour, or of all links to the switch together
    hop_seconds: float  # from a device to the next one of the domain
    network_bandwidth: float  # of one device's share of the network between domains
    network_hop_seconds: float
    start_seconds: float  # of every collective, before its first hop

    @property
    def peak_flops(self) -> float:
        """Dense bf16, FLOP/s."""
        return PEAK_FLOPS[self.device_kind]


# The latencies are not from the chips' makers:
# TPU, a hop: "typically around 1us" (Austin et al., How to Scale Your Model,
# jax-ml.github.io/scaling-book/sharding).
# TPU, between slices: no public figure was found; 20 us a hop is this project's assumption.
# NVIDIA: the constants with which NCCL chooses its own algorithm (github.com/NVIDIA/nccl,
# src/graph/tuning.cc, 2026), protocol
# LL128: base 14.0, a ring's hop over NVLink 1.9, a tree's hop over the network 8.5 us.
_TPU_LATENCIES = {"hop_seconds": 1e-6, "network_hop_seconds": 20e-6, "start_seconds": 0.0}

CHIPS = {
    # docs.cloud.google.com/tpu/docs/v4: HBM 32 GiB at 1,200 GB/s, pods of 4,096. Links of 45 GB/s
    # one way, a network of 25 GB/s a host of four chips: jax-ml.github.io/scaling-book/tpus.
    "v4": Chip("TPU v4", 32 * 2**30, 1200e9, 3, 4, 4096, 45e9, network_bandwidth=6.25e9, **_TPU_LATENCIES),
    # docs.cloud.google.com/tpu/docs/v5e: HBM 16 GB at 800 GB/s; 400 GB/s both ways over 4 ports;
    # 6.4 Tbit/s a pod of 256.
    "v5e": Chip("TPU v5 lite", 16 * 2**30, 800e9, 2, 16, 256, 50e9, network_bandwidth=3.125e9, **_TPU_LATENCIES),
    # docs.cloud.google.com/tpu/docs/v5p: HBM 95 GiB at 2,765 GB/s; 1,200 GB/s both ways over 6
    # links; 50 Gbit/s a chip; slices of at most 6,144 of a pod's 8,960.
    "v5p": Chip("TPU v5p", 95 * 2**30, 2765e9, 3, 4, 6144, 100e9, network_bandwidth=6.25e9, **_TPU_LATENCIES),
    # docs.cloud.google.com/tpu/docs/v6e: HBM 32 GB at 1,600 GB/s; 800 GB/s both ways over 4 ports;
    # 25.6 Tbit/s a pod of 256.
    "v6e": Chip("TPU v6 lite", 32 * 2**30, 1600e9, 2, 16, 256, 100e9, network_bandwidth=12.5e9, **_TPU_LATENCIES),
    # HBM 141 GB, NVLink 900 GB/s both ways, 8 GPUs and ten 400 Gbit/s ports (eight of them for the
    # GPUs, one each: DGX H100 user guide, table of network modules): NVIDIA's own description of
    # its machine in github.com/mlcommons/inference_results_v4.1
    # (closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json). 4.8 TB/s: NVIDIA's announcement of
    # November 2023.
    "h200": Chip(
        "NVIDIA H200",
        hbm_bytes=141 * 10**9,
        hbm_bandwidth=4800e9,
        dimensions=0,
        wraps=0,
        domain=8,
        link_bandwidth=450e9,
        hop_seconds=1.9e-6,
        network_bandwidth=50e9,
        network_hop_seconds=8.5e-6,
        start_seconds=14e-6,
    ),
}
