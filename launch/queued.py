"""A TPU slice as a queued resource: the commands of gcloud, and its answers.

Google recommends it, there is no other way to several slices, and it waits for spot capacity:
https://docs.cloud.google.com/tpu/docs/managing-tpus-tpu-vm, /spot, /request-using-flex-start.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from typing import Any

from common import fail

# ssh and scp end where the other side has not answered for a minute. A connection that is half open
# would never end.
ALIVE = ("-oServerAliveInterval=15", "-oServerAliveCountMax=4")
MOST_SECONDS = 120  # of a call that says one thing

# https://docs.cloud.google.com/tpu/docs/runtimes
VERSIONS = {
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}

# States on the way to a slice, or back to it, of a request (docs.cloud.google.com/tpu/docs/
# queued-resources) and of a node (/tpu/docs/reference/rest/v2/projects.locations.nodes). Then a
# request is ACTIVE and its nodes READY. All others lead to none: FAILED, SUSPENDING, SUSPENDED of a
# request; PREEMPTED, TERMINATED, STOPPED, ... of a node.
COMING = (
    *("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"),
    *("STARTING", "RESTARTING", "REIMAGING", "REPAIRING"),
)

# The calls that know a flag of the user. One that is not here goes to create.
# https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources: create, ssh, scp
BOTH = "internal-ip tunnel-through-iap batch-size force-key-file-overwrite plain ssh-key-file"
BOTH += " ssh-key-expiration ssh-key-expire-after strict-host-key-checking"
CALLS = dict.fromkeys(BOTH.split(), ("ssh", "scp")) | {"ssh-flag": ("ssh",), "scp-flag": ("scp",), "compress": ("scp",)}
# https://cloud.google.com/sdk/gcloud/reference
EVERYWHERE = ["account", "billing-project", "configuration", "impersonate-service-account", "verbosity"]


def tell(message: str) -> None:
    print(f"tpu_vm: {message}", file=sys.stderr, flush=True)


def zone_flags(options: argparse.Namespace) -> list[str]:
    return [f"--zone={options.zone}"] + ([f"--project={options.project}"] if options.project else [])


def slice_words(options: argparse.Namespace) -> str:
    return f"{options.name} {shlex.join(zone_flags(options))}"


def gcloud(options: argparse.Namespace, call: str, *arguments: str, of: str = "queued-resources") -> list[str]:
    """The command of a call (create, list, ssh, ...), with the user's flags that it knows."""
    names = [(flag[2:].split("=")[0], flag) for flag in options.flag]
    flags = [flag for name, flag in names if name in EVERYWHERE or call in CALLS.get(name, ("create",))]
    alive = [f"--{call}-flag={option}" for option in ALIVE] if call in ("ssh", "scp") else []
    alpha = ["alpha"] if call == "create" and options.flex_start else []
    return ["gcloud", *alpha, "compute", "tpus", of, call, *arguments, *zone_flags(options), *alive, *flags]


def perform(options: argparse.Namespace, command: list[str]) -> int:
    """Runs it, or prints it; returns its exit status."""
    if options.dry_run:
        print(shlex.join(command))
        return 0
    return subprocess.run(command, check=False).returncode


def query(command: list[str]) -> tuple[int, str]:
    """The exit status of a short command, and its output, or where it fails its errors."""
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return 124, f"no end within {MOST_SECONDS} seconds"
    return done.returncode, done.stderr if done.returncode else done.stdout


def ssh(options: argparse.Namespace, *words: str, node: str = "all", worker: str = "all") -> list[str]:
    """The command that runs a command there. Nothing in its words is expanded on the way.

    Its exit status is that of the worker, or one that is not 0 of several. gcloud tries ten times
    to connect. https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/ssh
    """
    return gcloud(options, "ssh", options.name, f"--node={node}", f"--worker={worker}", f"--command={shlex.join(words)}")


def worker_command(options: argparse.Namespace, what: str, *arguments: str, node: str = "all", worker: str = "all") -> list[str]:
    """The command that does `what` of launch/tpu_worker."""
    return ssh(options, "bash", "mhsh/launch/tpu_worker", what, *arguments, node=node, worker=worker)


def create(options: argparse.Namespace) -> int:
    """https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/create"""
    several = [f"--node-count={options.slices}", f"--node-prefix={options.name}"]
    nodes = [f"--node-id={options.name}"] if options.slices == "1" else several
    version = options.version or VERSIONS[options.accelerator_type.split("-")[0]]
    chosen = [f"--accelerator-type={options.accelerator_type}", f"--runtime-version={version}", *nodes]
    if options.flex_start:
        chosen += ["--provisioning-model=flex-start", f"--max-run-duration={options.max_hours}h"]
    chosen += ["--spot"] * options.spot + [f"--valid-until-duration={options.valid_until}"] * bool(options.valid_until)
    return perform(options, gcloud(options, "create", options.name, *chosen))


def delete(options: argparse.Namespace, quiet: bool) -> int:
    """--force deletes the nodes, too:
    docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources/delete
    """
    return perform(options, gcloud(options, "delete", options.name, "--force", *(["--quiet"] if quiet else [])))


def list_resources(options: argparse.Namespace, of: str) -> dict[str, dict[str, Any]] | None:
    """The resources that there are, by name; None where gcloud fails or does not end."""
    status, output = query(gcloud(options, "list", "--format=json", of=of))
    if status:
        tell(f"gcloud does not answer: {(output.strip().splitlines() or ['it says nothing'])[-1]}")
        return None
    return {each["name"].rpartition("/")[2]: each for each in json.loads(output)}


def slice_state(options: argparse.Namespace) -> tuple[str, str]:
    """The slice's condition (absent, deleted, queued, restarting, ready, lost or unknown) and the
    state that says so.

    A spot node is PREEMPTED before its request is SUSPENDING.
    """
    requests = list_resources(options, "queued-resources")
    if requests is None:
        return "unknown", ""
    state = requests.get(options.name, {}).get("state", {}).get("state")
    if state in (None, "DELETING"):
        return ("absent" if state is None else "deleted"), state or "it is not there"
    if options.command == "up":
        refuse_another(options, requests[options.name])
    if state != "ACTIVE":
        return ("queued" if state in COMING else "lost"), state
    nodes = list_resources(options, "tpu-vm")
    if nodes is None:
        return "unknown", ""
    # How several nodes are called: docs.cloud.google.com/python/docs/reference/tpu/latest/
    # google.cloud.tpu_v2.types.QueuedResource.Tpu.NodeSpec.MultisliceParams
    several = [f"{options.name}-{index}" for index in range(int(options.slices))]
    for node in [options.name] if options.slices == "1" else several:
        state = nodes.get(node, {}).get("state", "MISSING")
        if state != "READY":
            return ("restarting" if state in COMING else "lost"), f"node {node} is {state}"
    return "ready", "ACTIVE"


def refuse_another(options: argparse.Namespace, request: dict[str, Any]) -> None:
    """Ends with status 2 where the request is not the one that is asked for: what was checked says
    nothing of it. https://docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources
    """
    spec = (request.get("tpu", {}).get("nodeSpec") or [{}])[0]
    node, several = spec.get("node", {}), spec.get("multisliceParams") or spec.get("multiNodeParams") or {"nodeCount": 1}
    pairs = {
        "--accelerator-type": (node.get("acceleratorType"), options.accelerator_type),
        "--slices": (str(several["nodeCount"]), options.slices),
        "--spot": ("spot" in request, options.spot),
        "--version": (node.get("runtimeVersion"), options.version or node.get("runtimeVersion")),
    }
    other = [f"{flag}: {there} there, {wanted} asked for" for flag, (there, wanted) in pairs.items() if there != wanted]
    if other:
        advice = f"take another NAME, or launch/tpu_vm delete {slice_words(options)}"
        fail(f"{options.name} is another slice ({'; '.join(other)}); {advice}")


def is_running(options: argparse.Namespace, arguments: list[str]) -> bool:
    """Whether this very command is running there."""
    return query(worker_command(options, "running", *arguments, node="0", worker="0"))[0] == 0
