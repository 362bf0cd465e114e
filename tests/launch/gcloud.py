"""A stand-in for gcloud: queued resources whose workers are folders of this machine.

It does what Google's pages say of the calls that launch/tpu_vm makes: states, flags, exit
statuses. A request moves to its next state with each look. A worker's commands run with its folder
as HOME, and with Slurm's variables, by which jax finds the other processes.

    https://docs.cloud.google.com/tpu/docs/queued-resources
    https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

COMING = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
FLAGS = {
    "list": ["--format"],
    "create": ["--accelerator-type", "--runtime-version", "--node-id", "--node-count", "--node-prefix", "--network"]
    + ["--provisioning-model", "--max-run-duration", "--valid-until-duration"],
    "delete": [],
    "describe": [],
    "ssh": ["--node", "--worker", "--command", "--ssh-flag"],
    "scp": ["--node", "--worker", "--scp-flag"],
}
SWITCHES = {"create": ["--spot"], "delete": ["--force"], "ssh": ["--internal-ip", "--tunnel-through-iap"]}
SWITCHES["scp"] = SWITCHES["ssh"]


class Cloud:
    """All requests of a project and what is wrong with it, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def knob(self, name: str) -> Path:
        """A file that says how often: down, failing, refusing, broken, cut, silent, full."""
        return self.folder / f"{name}.knob"

    def takes(self, name: str) -> bool:
        """Whether that goes wrong once more; the file says how often."""
        path = self.knob(name)
        left = int(path.read_text()) if path.exists() else 0
        path.write_text(str(max(0, left - 1)))
        return left > 0

    def request(self, name: str) -> dict[str, Any] | None:
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, name: str, request: dict[str, Any] | None) -> None:
        path = self.folder / f"{name}.json"
        if request is None:
            path.unlink()
        else:
            path.with_suffix(".new").write_text(json.dumps(request))
            path.with_suffix(".new").replace(path)

    def preempt(self, name: str, grace: float = 0) -> None:
        """The nodes are shut down: nobody gets in, processes have `grace` seconds. Then they are
        PREEMPTED, and after that the request is suspended.
        """
        request = self.request(name)
        assert request is not None and request["states"] == ["ACTIVE"]
        self.write(name, request | {"shutting_down": True})
        power_off(list(map(Path, request["homes"])), grace)
        self.write(name, request | {"states": ["ACTIVE", "SUSPENDING", "SUSPENDED"], "node_state": "PREEMPTED"})


def power_off(homes: list[Path], grace: float = 0) -> None:
    """Ends all processes of workers and takes their disks away."""
    deadline = time.monotonic() + grace
    for home in homes if grace else ():
        send(home, signal.SIGTERM)
    while time.monotonic() < deadline and any(list(processes(home)) for home in homes):
        time.sleep(0.1)
    for home in filter(Path.exists, homes):
        send(home, signal.SIGKILL)
        home.rename(home.with_name(home.name + ".gone"))


def send(home: Path, number: int) -> None:
    for process in processes(home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def processes(home: Path) -> Iterator[int]:
    """What runs there: it has the folder as its HOME."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and f"HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


def error(message: str) -> NoReturn:
    print(f"ERROR: (gcloud.compute.tpus) {message}", file=sys.stderr)
    sys.exit(1)


def create(cloud: Cloud, name: str, options: argparse.Namespace) -> None:
    if cloud.request(name):
        error(f"ALREADY_EXISTS: {name}")
    nodes = [options.node_id] if options.node_id else [f"{options.node_prefix}-{i}" for i in range(int(options.node_count))]
    kind, cores = options.accelerator_type.split("-")
    hosts = max(1, int(cores) // (4 if kind.startswith(("v5l", "v6")) else 8))
    generation = sum(1 for _ in cloud.folder.glob("machine*"))
    if generation and cloud.takes("refusing"):
        error("RESOURCE_EXHAUSTED: quota limit has been reached")
    homes = [cloud.folder / f"machine{generation + index}" for index in range(hosts * len(nodes))]
    for index, home in enumerate(homes):
        home.mkdir()
        if index == 1 and cloud.takes("broken"):
            (home / "mhsh").write_text("no folder can be made here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    states = ["FAILED"] if cloud.takes("failing") else COMING[: 1 if cloud.takes("full") else 3]
    node = {"acceleratorType": options.accelerator_type, "runtimeVersion": options.runtime_version}
    several = {"multisliceParams": {"nodeCount": len(nodes)}} if options.node_count else {}
    shown = {"tpu": {"nodeSpec": [{"node": node} | several]}} | ({"spot": {}} if options.spot else {})
    request = dict(states=states, node_state="READY", nodes=nodes, hosts=hosts, homes=list(map(str, homes)), port=port)
    cloud.write(name, request | {"shown": shown})


def delete(cloud: Cloud, name: str, options: argparse.Namespace) -> None:
    request = cloud.request(name) or error(f"NOT_FOUND: {name}")
    if request["states"][0] in ("ACTIVE", "SUSPENDING") and not options.force:
        error(f"FAILED_PRECONDITION: DeleteQueuedResource is not supported when state is {request['states'][0]}")
    power_off(list(map(Path, request["homes"])))
    cloud.write(name, None)


def show(cloud: Cloud, of: str) -> None:
    """A list, as JSON; a look at the requests moves them on."""
    rows: list[dict[str, Any]] = []
    for path in sorted(cloud.folder.glob("*.json")):
        request = cloud.request(path.stem)
        assert request is not None
        if of == "tpu-vm":
            there = request["nodes"] if request["states"][0] in ("ACTIVE", "SUSPENDING") else ()
            rows += [{"name": f"projects/p/locations/z/nodes/{node}", "state": request["node_state"]} for node in there]
        else:
            name = f"projects/p/locations/z/queuedResources/{path.stem}"
            rows.append(request["shown"] | {"name": name, "state": {"state": request["states"][0]}})
            request["states"] = request["states"][1:] or request["states"]
            cloud.write(path.stem, request)
    print(json.dumps(rows))


def workers(cloud: Cloud, name: str, options: argparse.Namespace) -> list[tuple[Path, dict[str, str]]]:
    """The folder and the environment of those that are meant."""
    shared = {name: value for name, value in os.environ.items() if name != "MHSH_VENV"}
    request = cloud.request(name) or error(f"NOT_FOUND: {name}")
    if request["states"][0] != "ACTIVE" or request["node_state"] != "READY":
        error(f"{name} is not ACTIVE: {request['states'][0]}")
    if request.get("shutting_down"):
        sys.exit(255)
    chosen = []
    for index, home in enumerate(map(Path, request["homes"])):
        node, worker = divmod(index, request["hosts"])
        if options.node in (str(node), "all") and options.worker in (str(worker), "all"):
            slurm = {"JOB_ID": 1, "STEP_NODELIST": "localhost", "NTASKS": len(request["homes"]), "PROCID": index, "LOCALID": 0}
            variables = {f"SLURM_{key}": str(value) for key, value in slurm.items()}
            chosen.append((home, shared | variables | {"HOME": str(home), "JAX_COORDINATOR_PORT": str(request["port"])}))
    return chosen


def ssh(cloud: Cloud, name: str, options: argparse.Namespace) -> int:
    """The command's exit status; of several, the first that is not 0; 255 of a lost worker."""

    def run(worker: tuple[Path, dict[str, str]]) -> int:
        home, variables = worker
        with subprocess.Popen(["sh", "-c", options.command], cwd=home, env=variables) as process:
            status = process.wait()
        return status if home.exists() else 255

    chosen = workers(cloud, name, options)
    if " follow " in options.command and cloud.takes("cut"):
        return cut_short(chosen[0], options.command)
    if " follow " in options.command and cloud.takes("silent"):
        time.sleep(600)  # a connection that is half open
    with ThreadPoolExecutor() as pool:
        statuses = list(pool.map(run, chosen))
    return next((status for status in statuses if status), 0)


def cut_short(worker: tuple[Path, dict[str, str]], command: str) -> int:
    """A connection that breaks after a line and in the middle of the next."""
    home, variables = worker
    with subprocess.Popen(["sh", "-c", command], cwd=home, env=variables, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for cut in (None, 3):
            sys.stdout.buffer.write(process.stdout.readline()[:cut])
        sys.stdout.buffer.flush()
        process.stdout.close()
    return 255


def scp(cloud: Cloud, source: str, target: str, options: argparse.Namespace) -> None:
    name, _, file = target.partition(":")
    for home, _ in workers(cloud, name, options):
        shutil.copy(source, home / file)
        if not (home / "mhsh").is_file():
            make_environment(home, Path(source))


def make_environment(home: Path, archive: Path) -> None:
    """What launch/environment would make, and take as made: mhsh runs with this Python."""
    with tarfile.open(archive) as tar:
        files = [tar.extractfile(name) for name in ("pyproject.toml", "constraints.txt")]
        text = b"".join(file.read() for file in files if file)
    sums = subprocess.run(["cksum"], input=text, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    binaries = home / "mhsh/.venv/bin"
    binaries.mkdir(parents=True, exist_ok=True)
    command = os.environ.get("WORKERS_MHSH", f'exec "{sys.executable}" -m mhsh "$@"')
    (binaries / "mhsh").write_text(f"#!/usr/bin/env bash\n{command}\n")
    (binaries / "mhsh").chmod(0o755)
    (home / "mhsh/.venv/.installed").write_text(f"{sums} Python {sys.version.split()[0]} tpu,gcs\n")


def main() -> int:
    cloud = Cloud(Path(os.environ["CLOUD"]))
    alpha, of, call, *given = [sys.argv[1] == "alpha", *sys.argv[sys.argv.index("tpus") + 1 :]]
    with open(cloud.folder / "calls", "a", encoding="utf-8") as calls:
        calls.write(json.dumps([of, call, *given]) + "\n")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    for flag in ["--zone", "--project", "--account", *FLAGS[call]]:
        parser.add_argument(flag)
    for flag in ["--quiet", *SWITCHES.get(call, [])]:
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args(given)  # unknown flags: exit status 2, as of gcloud
    if call == "create" and options.provisioning_model and not alpha:
        error("unrecognized arguments: --provisioning-model")
    if cloud.takes("down"):
        error("There was a problem refreshing your current auth tokens")
    if call == "list":
        show(cloud, of)
    elif call == "create":
        create(cloud, options.names[0], options)
    elif call == "delete":
        delete(cloud, options.names[0], options)
    elif call == "scp":
        scp(cloud, *options.names, options)
    elif call == "ssh":
        return ssh(cloud, options.names[0], options)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C ends it without a word, at its very end too
    sys.exit(main())
