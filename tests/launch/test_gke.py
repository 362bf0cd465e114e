"""launch/gke: the manifest, against a schema of what JobSet, Job and Pod document, and as
Kubernetes would read its arguments.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import ROOT

TPU = ("--name=mine", "--image=IMAGE:1", "--accelerator=tpu-v5-lite-podslice", "--topology=4x4")
GPU = ("--name=mine", "--image=IMAGE:1", "--accelerator=nvidia-h100-80gb", "--nodes=2", "--gpus-per-node=8")


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    """A mapping with these fields and no others."""
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


def each(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


TEXT: dict[str, Any] = {"type": "string"}
NAME: dict[str, Any] = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
POSITIVE: dict[str, Any] = {"type": "integer", "minimum": 1}
FLAG: dict[str, Any] = {"type": "boolean"}
MAP: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
MOUNTS = each(fields("name mountPath", name=NAME, mountPath={"type": "string", "pattern": "^/"}))
ENV = each(fields("name value", name=TEXT, value=TEXT))
CONTAINER = fields(
    "name image",
    name=NAME,
    image=TEXT,
    command=each(TEXT),
    args=each(TEXT),
    env=ENV,
    envFrom=each(fields("secretRef", secretRef=fields("name", name=NAME))),
    resources=fields("limits", limits={"type": "object", "additionalProperties": POSITIVE, "minProperties": 1}),
    volumeMounts=MOUNTS,
)
SIDECAR = fields(
    "name image restartPolicy command",
    name=NAME,
    image=TEXT,
    command=each(TEXT),
    restartPolicy={"const": "Always"},  # otherwise mhsh would wait for its end
    env=ENV,
    securityContext=fields("capabilities", capabilities=fields("add", add=each(TEXT))),
    volumeMounts=MOUNTS,
)
POD = fields(
    "restartPolicy containers",
    restartPolicy={"const": "Never"},  # a Job with a podFailurePolicy takes no other
    terminationGracePeriodSeconds=COUNT,
    nodeSelector=MAP,
    tolerations=each(fields("key", key=TEXT, operator={"enum": ["Equal", "Exists"]}, value=TEXT, effect={"const": "NoSchedule"})),
    serviceAccountName=NAME,
    volumes=each(
        fields("name", name=NAME, persistentVolumeClaim=fields("claimName", claimName=TEXT), hostPath=fields("path", path=TEXT))
    ),
    initContainers=each(SIDECAR),
    containers=each(CONTAINER),
)
EXIT_CODES = fields("operator values", containerName=NAME, operator={"enum": ["In", "NotIn"]}, values=each(POSITIVE))
JOB = fields(
    "template",
    parallelism=COUNT,
    completions=POSITIVE,
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    backoffLimit=COUNT,
    backoffLimitPerIndex=COUNT,
    podFailurePolicy=fields(
        "rules", rules=each(fields("action", action={"enum": ["FailJob", "FailIndex", "Ignore", "Count"]}, onExitCodes=EXIT_CODES))
    ),
    template=fields("spec", metadata=fields("", labels=MAP, annotations=MAP), spec=POD),
)
REASONS = ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"]
RULE = fields(
    "name action", name=TEXT, action={"enum": ["FailJobSet", "RestartJobSet"]}, onJobFailureReasons=each({"enum": REASONS})
)
JOBSET = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=fields("name", name=NAME, annotations=MAP, labels=MAP),
    spec=fields(
        "replicatedJobs",
        failurePolicy=fields("", maxRestarts=COUNT, restartStrategy={"const": "BlockingRecreate"}, rules=each(RULE)),
        network=fields("", enableDNSHostnames=FLAG, subdomain=NAME, publishNotReadyAddresses=FLAG),
        replicatedJobs=each(fields("name template", name=NAME, replicas=POSITIVE, template=fields("spec", spec=JOB))),
    ),
)
TRAIN = ("--", "train", "--workdir=gs://BUCKET/RUN")
WORK = ("--volume=disk:/data", "--", "work", "/data/s")


class Manifest:
    """Parts of the manifest that --dry-run prints, valid by the schema."""

    def __init__(self, text: str) -> None:
        self.all = yaml.safe_load(text)
        jsonschema.validate(self.all, JOBSET)
        (self.replicated,) = self.all["spec"]["replicatedJobs"]
        self.job = self.replicated["template"]["spec"]
        self.pod = self.job["template"]["spec"]
        (self.container,) = self.pod["containers"]

    def arguments(self, pod: int = 0) -> list[str]:
        """As Kubernetes hands them to a pod: $(NAME) becomes its value, $$ becomes $."""
        values = {"JOB_COMPLETION_INDEX": str(pod), "HOME": "/root"}

        def replace(match: re.Match[str]) -> str:
            return "$" if match[0] == "$$" else values.get(match[1], match[0])

        return [re.sub(r"\$\$|\$\(([^)]*)\)", replace, argument) for argument in self.container["args"]]


@pytest.fixture
def manifest(launch: Callable) -> Callable[..., Manifest]:
    def make(*arguments: str) -> Manifest:
        result = launch("gke", "--dry-run", *arguments)
        assert (result.returncode, result.stderr) == (0, "")
        return Manifest(result.stdout)

    return make


def test_tpu_slices(manifest: Callable) -> None:
    made = manifest(*TPU, "--num-slices=2", *TRAIN)
    assert made.all["metadata"] == {
        "name": "mine",
        "labels": {"app.kubernetes.io/name": "mhsh"},
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
    }
    assert made.replicated["replicas"] == 2
    assert (made.job["parallelism"], made.job["completions"], made.job["completionMode"]) == (4, 4, "Indexed")
    assert made.pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert made.container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert made.container["command"] + made.arguments() == ["mhsh", "train", "--workdir=gs://BUCKET/RUN", "--distributed"]


def test_gpu_nodes_meet_at_the_first_pod(manifest: Callable) -> None:
    made = manifest(*GPU, "--", "train")
    assert (made.replicated["replicas"], made.job["parallelism"], made.job["completions"]) == (1, 2, 2)
    assert made.pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert made.container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    # A pod's name is JOBSET-JOB-INDEX-POD.SUBDOMAIN.
    assert made.replicated["name"] == "workers"
    assert made.all["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "mine"}
    assert made.arguments(pod=1) == ["train", "--coordinator=mine-workers-0-0.mine:8482", "--num-processes=2", "--process-id=1"]


def test_2_fails_at_once_and_everything_else_restarts(manifest: Callable) -> None:
    made = manifest(*GPU, *TRAIN)
    assert made.job["backoffLimit"] == 0 and "backoffLimitPerIndex" not in made.job
    codes = {"containerName": "mhsh", "operator": "In", "values": [2]}
    assert made.job["podFailurePolicy"] == {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    policy = made.all["spec"]["failurePolicy"]
    assert (policy["maxRestarts"], policy["restartStrategy"]) == (100, "BlockingRecreate")
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet" and "PodFailurePolicy" in rule["onJobFailureReasons"]


@pytest.mark.parametrize("target", [(*GPU[:3], "--nodes=4", "--gpus-per-node=1"), (*TPU[:3], "--topology=2x2", "--num-slices=4")])
def test_each_pod_is_a_worker_and_restarts_alone(manifest: Callable, target: tuple[str, ...]) -> None:
    made = manifest(*target, *WORK)
    assert (made.replicated["replicas"], made.job["parallelism"], made.job["completions"]) == (1, 4, 4)
    assert "annotations" not in made.all["metadata"]  # its pods may lie in any node pool
    assert made.job["backoffLimitPerIndex"] == 100 and "backoffLimit" not in made.job
    assert made.job["podFailurePolicy"]["rules"][0]["action"] == "FailIndex"
    assert "FailedIndexes" in made.all["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"]
    assert made.arguments() == ["work", "/data/s"]


def test_the_hosts_of_a_slice_are_one_worker(manifest: Callable) -> None:
    made = manifest(*TPU, "--", "work", "gs://BUCKET/s")
    assert (made.job["completions"], made.arguments()) == (4, ["work", "gs://BUCKET/s", "--distributed"])
    assert made.job["podFailurePolicy"]["rules"][0]["action"] == "FailJob"


@pytest.mark.parametrize(
    ("accelerator", "networks", "mounts", "command"),
    [
        ("h100-80gb", "vpc1 vpc4", {"/tmp": "/run/tcpx"}, "mhsh"),
        ("h100-mega-80gb", "vpc1 vpc8", {"/dev/aperture_devices": "/dev/aperture_devices"}, "nccl-env-profile.sh"),
        ("h200-141gb", "gvnic-1 rdma-7", {"/usr/local/gib": "/home/kubernetes/bin/gib"}, "set_nccl_env.sh"),
    ],
)
def test_nodes_of_a_machine_family_have_its_network(
    manifest: Callable, tmp_path: Path, accelerator: str, networks: str, mounts: dict[str, str], command: str
) -> None:
    family = [*GPU[:2], f"--accelerator=nvidia-{accelerator}", *GPU[3:]]
    made = manifest(*family, "--volume=disk:/data", *TRAIN)
    annotations = made.job["template"]["metadata"]["annotations"]
    names = [each["network"] for each in json.loads(annotations["networking.gke.io/interfaces"])]
    assert (names[0], f"{names[1]} {names[-1]}") == ("default", networks)
    # Everything that is mounted is there, and NCCL is told where its plugin lies.
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in made.pod["volumes"]}
    given = {each["mountPath"]: paths[each["name"]] for each in made.container["volumeMounts"]}
    assert given == {"/data": None, "/usr/local/nvidia/lib64": "/home/kubernetes/bin/nvidia/lib64"} | mounts
    assert made.container["env"][0]["value"].startswith("/usr/local/nvidia/lib64")
    # The arguments reach mhsh through the shell that prepares NCCL; without its profile the run is
    # a mistake.
    assert command in made.container["command"][-2 if len(made.container["command"]) > 1 else 0]
    if "rdma" in networks:
        assert "initContainers" not in made.pod
    else:
        (daemon,) = made.pod["initContainers"]
        assert {each["name"] for each in daemon["volumeMounts"]} <= set(paths)
        devices = yaml.safe_load(annotations[f"devices.gke.io/container.{daemon['name']}"])
        assert {"/dev/nvidia7", "/dev/nvidiactl", "/dev/nvidia-uvm"} < {each["path"] for each in devices}
    if len(made.container["command"]) > 1:
        (tmp_path / "mhsh").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / "mhsh").chmod(0o755)
        profile = tmp_path / "profile"
        script = [re.sub(r"\S+\.sh", str(profile), word) for word in made.container["command"]]
        run = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        assert run([*script, "a b"], env=environment).returncode == 2
        profile.touch()
        assert run([*script, "a b"], env=environment).stdout == "a b\n"


def test_pods_that_do_not_talk_have_no_fast_network(manifest: Callable) -> None:
    for made in (
        manifest(*GPU, "--network=none", *TRAIN),
        manifest(*GPU, *WORK),
        manifest(*GPU[:3], "--nodes=1", *GPU[4:], *TRAIN),
    ):
        assert "annotations" not in made.job["template"]["metadata"] and "initContainers" not in made.pod
        assert made.container["command"] == ["mhsh"] and "env" not in made.container


def test_common_options(manifest: Callable) -> None:
    made = manifest(*TPU, "--spot", "--volume=disk:/data a", "--queue=my-queue", *TRAIN)
    assert made.all["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "my-queue"
    assert made.pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert made.pod["tolerations"][0]["key"] == "cloud.google.com/gke-spot"
    assert made.pod["terminationGracePeriodSeconds"] == 15
    assert made.container["volumeMounts"] == [{"name": "shared", "mountPath": "/data a"}]
    assert made.pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "disk"}}]
    plain = manifest(*GPU, "--network=none", *TRAIN).pod
    assert plain["terminationGracePeriodSeconds"] == 120 and "volumes" not in plain and "tolerations" not in plain


@pytest.mark.parametrize("target", [(*TPU, *TRAIN), (*GPU, *WORK)])
def test_the_lines_to_uncomment(launch: Callable, target: tuple[str, ...]) -> None:
    """With all of them the manifest is still valid."""
    printed = launch("gke", "--dry-run", *target).stdout
    uncommented, count = re.subn(r"(?m)^( *)# - (\S+:(?: \S+| \[.*?\]))(?:   .*)?$", r"\1\2", printed)
    made = Manifest(uncommented)
    assert count == 3
    assert made.pod["nodeSelector"]["cloud.google.com/reservation-name"] == "my-reservation"
    assert made.pod["serviceAccountName"] == "my-account"
    assert made.container["envFrom"] == [{"secretRef": {"name": "my-secret"}}]


def test_hostile_arguments_arrive_unchanged(manifest: Callable, hostile: list[str]) -> None:
    assert manifest(*TPU, "--", "train", *hostile).arguments() == ["train", *hostile, "--distributed"]


@pytest.mark.parametrize(
    ("accelerator", "topology", "more", "hosts", "chips"),
    [
        ("tpu-v4-podslice", "4x4x8", (), 32, 4),
        ("tpu-v5-lite-podslice", "1x1", (), 1, 1),
        ("tpu-v5-lite-podslice", "2x4", ("--chips-per-host=8",), 1, 8),
        ("tpu7x", "2x2x4", (), 4, 4),
    ],
)
def test_hosts_of_a_slice(
    manifest: Callable, accelerator: str, topology: str, more: tuple[str, ...], hosts: int, chips: int
) -> None:
    made = manifest("--name=mine", "--image=i", f"--accelerator={accelerator}", f"--topology={topology}", *more, "--", "train")
    assert made.job["completions"] == hosts
    assert made.container["resources"]["limits"]["google.com/tpu"] == chips
    # One process alone has nobody to find.
    assert made.arguments() == (["train"] if hosts == 1 else ["train", "--distributed"])


@pytest.mark.parametrize(("target", "extra"), [(TPU, "tpu"), (GPU, "cuda")])
def test_builds_pushes_and_creates_what_it_prints(
    launch: Callable, stand_in: Callable, tmp_path: Path, hostile: list[str], target: tuple[str, ...], extra: str
) -> None:
    stand_in("docker", 'echo "docker $*" >>"$HOME/done"; [ "$1" != "$FAILS" ] || exit 4\n')
    stand_in("kubectl", 'echo "kubectl $*" >>"$HOME/done"; cat >"$HOME/created"; exit 3\n')
    arguments = ["gke", "--build", *target, "--", "train", *hostile]
    build = f"docker build --platform=linux/amd64 --build-arg=EXTRA={extra} --tag=IMAGE:1 {ROOT}"
    commands = [build, "docker push IMAGE:1", "kubectl create --filename=-"]
    printed = launch(arguments[0], "--dry-run", *arguments[1:])
    assert printed.stdout.split("\n", 3)[:3] == [f"# {command}" for command in commands]
    assert not (tmp_path / "done").exists()
    assert launch(*arguments).returncode == 3
    assert (tmp_path / "done").read_text().splitlines() == commands
    assert (tmp_path / "created").read_text(encoding="utf-8") == printed.stdout.split("\n", 3)[3]
    assert launch(*arguments, FAILS="push").returncode == 4
    assert (tmp_path / "done").read_text().splitlines() == commands + commands[:2]


def test_what_the_pods_run_is_what_the_dockerfile_installs(manifest: Callable) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"ENTRYPOINT {json.dumps(manifest(*TPU, *TRAIN).container['command'])}\n" in text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert ".[${EXTRA},gcs]" in text and {"tpu", "cuda", "gcs"} <= set(extras)
    # The build sees nothing but what .dockerignore lets through.
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    copied = {source for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for source in line.split()}
    assert copied == sent and all((ROOT / source).exists() for source in sent)
