"""The agreement of a run's processes: what they run, what process 0 decides, where they stop."""

from __future__ import annotations

import json
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from mhsh.errors import UserError

REPORT_TIMEOUT_SECONDS = 300
BARRIER_TIMEOUT_SECONDS = 3600  # between the first and the last process to arrive
# A process that is asked to stop at step k announces step k + 3. No other process can be past that:
# the host runs at most one step ahead of the device, and no device finishes step k + 1 before the
# asked process has begun it, which is after its announcement.
STEPS_TO_STOP = 3

_runs = 0  # that this process has begun


def begin_run() -> None:
    """Gives the names that follow to another run. Every process calls it before each run."""
    global _runs  # noqa: PLW0603 (the coordination service knows each name once, and lives as long as the process)
    _runs += 1


def _key(name: str) -> str:
    return f"mhsh/{_runs}/{name}"


def check_same_facts(facts: Mapping[str, str]) -> None:
    """Compares the facts of all processes with those of process 0: config, code, data, devices.

    Every process must call it. Raises UserError, on every process, that names each process that
    differs, and in what, or one that has not reported in time.
    """
    if jax.process_count() == 1:
        return
    reports = [json.loads(report) for report in _reports("preflight", json.dumps(dict(facts)))]
    differing = [
        f"process {process} has {name} {report.get(name)}, process 0 has {value}"
        for process, report in enumerate(reports)
        for name, value in reports[0].items()
        if report.get(name) != value
    ]
    if differing:
        raise UserError(f"the processes of this run differ: {'; '.join(differing)}; start all with the same command, code and text")


def is_same_everywhere(name: str, value: str) -> bool:
    """Whether all processes have called this with the same value. Each name is used once. Raises
    UserError where a process has not reported in time.
    """
    return jax.process_count() == 1 or len(set(_reports(name, value))) == 1


def _reports(name: str, value: str) -> list[str]:
    """The reports of all processes under this name; this one reports `value`."""
    client = multihost.get_jax_distributed_client()
    client.key_value_set(f"{_key(name)}/{jax.process_index()}", value)
    reports = []
    for process in range(jax.process_count()):
        try:
            reports.append(client.blocking_key_value_get(f"{_key(name)}/{process}", REPORT_TIMEOUT_SECONDS * 1000))
        except Exception as error:  # jaxlib has no public class for this
            raise UserError(f"process {process} has not reported within {REPORT_TIMEOUT_SECONDS} s; look at its log") from error
    return reports


def broadcast_decision(decided: bool) -> bool:
    """The decision of process 0, on every process; each must call this."""
    return bool(broadcast_number(decided))


def broadcast_number(number: int) -> int:
    """The number of process 0, on every process; each must call this."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def broadcast_message(name: str, message: str = "") -> str:
    """The message of process 0, on every process; the others wait as long as it takes. Each name is
    used once.
    """
    client, key = multihost.get_jax_distributed_client(), _key(name)
    if jax.process_index() == 0:
        client.key_value_set(key, message)
        return message
    while True:
        try:
            return client.blocking_key_value_get(key, REPORT_TIMEOUT_SECONDS * 1000)
        except Exception as error:  # jaxlib has no public class for this
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def wait_for_all(name: str) -> None:
    """Returns when every process of the run has called it with this name. Each name is used once.
    Raises UserError where a process has ended, or has not called it in time.
    """
    if jax.process_count() == 1:
        return
    try:
        multihost.get_jax_distributed_client().wait_at_barrier(_key(name), BARRIER_TIMEOUT_SECONDS * 1000)
    except Exception as error:  # jaxlib has no public class for this
        raise UserError(f"not all processes have reached {name!r}; look at the logs of the others") from error


def agree_on_signal(number: int | None) -> int | None:
    """The signal that some process has heard during the run, this one `number`; None: none has.
    Every process calls it after the run.
    """
    if jax.process_count() == 1:
        return number
    return max(int(heard) for heard in _reports("heard", str(number or 0))) or None


class StopAgreement:
    """Makes all processes of a run stop after the same step when one of them is asked to stop."""

    def __init__(self) -> None:
        self._client = multihost.get_jax_distributed_client() if jax.process_count() > 1 else None
        self._announced = False

    def stops_after(self, step: int, requested: int | None) -> int | None:
        """The number of the signal that ends the run after this step, or None to go on. Called once
        a step, in order.

        `requested` is the signal that this process has received (None: none).
        """
        if self._client is None:
            return requested
        if requested is not None and not self._announced:
            self._announced = True
            announced = f"{step + STEPS_TO_STOP} {requested}"
            try:
                self._client.key_value_set(_key("stop"), announced)
            except Exception as error:  # the first announcement counts; jaxlib has no public class
                if "ALREADY_EXISTS" not in str(error):
                    raise
        try:
            agreed = self._client.key_value_try_get(_key("stop"))
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None
        last, number = (int(part) for part in agreed.split())
        return number if step >= last else None
