"""The figures of a config by formula: its parameters, FLOPs and memory."""

from __future__ import annotations

import math
from typing import Any

import jax

from mhsh.config.schema import Config
from mhsh.config.shapes import shape_in_words
from mhsh.models.costs import parameter_counts, row_flops, row_tokens, step_flops
from mhsh.planning.compiled import Topology
from mhsh.training.memory import USABLE_SHARE, candidates, device_bytes, footprint, replace_policy
from mhsh.training.plan import Devices, plan_run


def ledger(config: Config, topology: Topology | None, hbm_bytes: int | None) -> dict[str, Any]:
    """The figures of one config, by name. Bytes are per device of the topology, else of the machine
    here; FLOPs are of matrix products. Raises UserError where the model or the batch does not
    divide over the devices.
    """
    model = config.model
    if topology:
        devices = Devices(topology.num_devices, topology.num_slices, topology.platform, hbm_bytes or topology.hbm_bytes)
    else:
        devices = Devices(_num_devices(config), 1, jax.default_backend(), hbm_bytes or device_bytes(jax.devices()[0]))
    plan = plan_run(config, devices)
    shape, policy = plan.mesh_shape, plan.config.model.remat_policy
    policies = candidates(devices.platform, shape)
    memory = {name: footprint(replace_policy(config, name), plan.boxed, shape) for name in dict.fromkeys((policy, *policies))}
    flops = row_flops(config)
    return {
        "shape": shape_in_words(model),
        "residual": model.residual,
        "total_heads": (model.num_layers + model.num_decoder_layers) * model.num_heads,
        "embed_dim": model.embed_dim,
        "head_dim": model.head_dim,
        "mlp_dim": model.mlp_dim,
        "rows_per_step": config.train.batch_size,
        "tokens_per_row": row_tokens(config),
        "flops_per_step": step_flops(config),
        "parameters": parameter_counts(model),
        "flops_forward_per_row": {**flops._asdict(), "total": flops.total, "per_token": flops.total / row_tokens(config)},
        "mesh": shape,
        "mesh_choice": plan.mesh_choice and str(plan.mesh_choice),
        "bytes_per_device": {"available": devices.bytes, **memory[policy]._asdict(), "total": memory[policy].total},
        "remat_policy": policy,
        "cells_that_fit_together": int(USABLE_SHARE * (devices.bytes or 0) // memory[policy].total) if devices.count == 1 else 0,
        "refused": plan.refusal,
        "total_bytes_by_remat_policy": {name: memory[name].total for name in policies},
    }


def _num_devices(config: Config) -> int:
    """The devices of the named axes, which need not be here; those that are here, where an axis is
    left open and can take them.
    """
    sizes, here = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor), jax.device_count()
    named = math.prod(size for size in sizes if size != -1)
    return here if -1 in sizes and here % named == 0 else named
