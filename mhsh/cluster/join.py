"""A run of several processes: how they find each other."""

from __future__ import annotations

import threading

import jax
from orbax.checkpoint import multihost

from mhsh.cluster.coordination import connect
from mhsh.cluster.peers import Peers
from mhsh.errors import UserError

JOIN_SECONDS = 300


def join(*, coordinator: str | None, num_processes: int | None, process_id: int | None) -> Peers:
    """Joins the processes of a run. Must be called before anything asks jax for devices. Inside the
    `with` of what it returns, the loss of one process ends the others. Where one does not come
    within JOIN_SECONDS, this process ends with status 75.

    If all three are None, JAX finds them itself (TPU VMs, GKE, Slurm, Open MPI). Raises UserError
    where the other processes cannot be found or reached.
    """
    peers = Peers()
    # jax would wait as long, and then abort with its stack.
    missing = f"not all processes of this run have joined within {JOIN_SECONDS} s"
    timer = threading.Timer(
        JOIN_SECONDS, peers.end_process, [f"{missing}; look at their logs, and run the same command again on all"]
    )
    timer.daemon = True
    timer.start()
    try:
        # jax's own service would take SIGTERM away from Python; processes agree by StopAgreement.
        jax.config.update("jax_enable_preemption_service", False)
        place = connect(coordinator, num_processes, process_id, 2 * JOIN_SECONDS)
        host = place.coordinator.rpartition(":")[0].strip("[]")
        peers.connect(place.process, place.count, multihost.get_jax_distributed_client(), host)
    except (ValueError, RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"cannot join the other processes ({reason}); give --coordinator=HOST:PORT --num-processes=N --process-id=I"
        ) from error
    finally:
        timer.cancel()
    return peers
