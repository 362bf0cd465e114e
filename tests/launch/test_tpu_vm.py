"""launch/tpu_vm: the commands it prints, and whole runs on a stand-in for the cloud, whose workers
are processes of this machine.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.buckets import bucket_variables
from tests.conftest import ROOT
from tests.launch.gcloud import Cloud, processes, send
from tests.runs import CONFIG, rows_without_timings

TYPE = "--accelerator-type=v4-16"  # two workers
QUEUED = "gcloud compute tpus queued-resources"
ALIVE = "--ssh-flag=-oServerAliveInterval=15 --ssh-flag=-oServerAliveCountMax=4"
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
RUN = ["--", "train", *CONFIG, "--config.data.source=stdlib", "--config.train.batch_size=8"]


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of this tree in which all is committed."""
    folder = tmp_path_factory.mktemp("checkout")
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "configs", "launch", "mhsh", "*.*"]
    for name in subprocess.run(files, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0"):
        if name.split("/")[0] in ("configs", "launch", "mhsh") or name in ("pyproject.toml", "constraints.txt", ".gitignore"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=all"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


class Launcher:
    """Runs launch/tpu_vm of a checkout in a cloud of its own."""

    def __init__(self, checkout: Path, folder: Path, environment: dict[str, str]) -> None:
        self.program = checkout / "launch/tpu_vm"
        self.cloud = Cloud(folder)
        self.environment = environment | {"CLOUD": str(folder), "MHSH_VENV": sys.prefix}

    def check_no_run(self) -> None:
        """From here on no run is checked before: that takes seconds."""
        python = self.cloud.folder / "unchecked/bin/python"
        python.parent.mkdir(parents=True)
        python.symlink_to("/bin/true")
        self.environment["MHSH_VENV"] = str(python.parents[1])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command, *rest = arguments
        cut = rest.index("--") if "--" in rest else len(rest)
        rest[cut:cut] = ["--zone=z", "--delay=0"]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return subprocess.Popen([self.program, command, "mine", *rest], env=self.environment, start_new_session=True, **pipes)

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def start_and_wait(self, *options: str) -> subprocess.Popen[str]:
        """`up`, as soon as the actor on worker 0 waits."""
        process = self.start("up", *options, *UP[1:])
        wait_for(lambda: self.cloud.request("mine") is not None)
        log = self.home() / "mhsh-logs/run.log"
        wait_for(lambda: log.exists() and "ready" in log.read_text())
        return process

    def calls(self, call: str) -> int:
        return sum(json.loads(line)[1] == call for line in (self.cloud.folder / "calls").read_text().splitlines())

    def home(self, worker: int = 0) -> Path:
        request = self.cloud.request("mine")
        assert request is not None
        return Path(request["homes"][worker])


@pytest.fixture
def launcher(checkout: Path, environment: dict[str, str], stand_in: Callable, tmp_path: Path) -> Launcher:
    (tmp_path / "cloud").mkdir()
    stand_in("gcloud", f'exec "{sys.executable}" "{ROOT}/tests/launch/gcloud.py" "$@"')
    stand_in("python3.13", f'exec "{sys.executable}" "$@"')  # what the workers find
    return Launcher(checkout, tmp_path / "cloud", environment)


# The workers' mhsh: notes its arguments, says a line, and ends with the next status of `statuses`.
ACTOR = """printf '%s\\0' "$@" >>"$HOME/told"; printf '\\1' >>"$HOME/told"
exec 9>"$CLOUD/lock$SLURM_PROCID"; flock 9
read -r status rest <"$CLOUD/statuses$SLURM_PROCID"; echo "$rest" >"$CLOUD/statuses$SLURM_PROCID"
exec 9>&-
echo "step 1 of a part that ends with $status"
if [ "$status" = wait ]; then trap "echo saved; exit 75" TERM; echo ready; while :; do sleep 0.05; done; fi
exit "$status"
"""


@pytest.fixture
def acted(launcher: Launcher) -> Callable[..., Launcher]:
    """acted("75 0"): the launcher where mhsh is an actor that ends with these statuses."""

    def make(statuses: str, *, checked: bool = False) -> Launcher:
        for worker in range(2):
            (launcher.cloud.folder / f"statuses{worker}").write_text(statuses + "\n")
        launcher.environment["WORKERS_MHSH"] = ACTOR
        if not checked:
            launcher.check_no_run()
        return launcher

    return make


UP = ("up", TYPE, *RUN, "--workdir=gs://b/run")


@pytest.mark.parametrize(
    ("options", "create"),
    [
        (
            ("--project=MY-PROJECT", "--accelerator-type=v5litepod-16", "--spot"),
            "--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite --node-id=mine --spot "
            "--zone=z --project=MY-PROJECT",
        ),
        (
            ("--accelerator-type=v5p-32", "--slices=4", "--version=v", "--flag=--network=a b"),
            "--accelerator-type=v5p-32 --runtime-version=v --node-count=4 --node-prefix=mine --zone=z '--network=a b'",
        ),
        (
            (TYPE, "--flag=--internal-ip", "--flag=--account=me", "--flag=--scp-flag=-C"),
            "--accelerator-type=v4-16 --runtime-version=tpu-ubuntu2204-base --node-id=mine --zone=z --account=me",
        ),
        (
            ("--accelerator-type=v6e-8", "--flex-start", "--max-hours=12", "--valid-until=6h"),
            "--accelerator-type=v6e-8 --runtime-version=v2-alpha-tpuv6e --node-id=mine "
            "--provisioning-model=flex-start --max-run-duration=12h --valid-until-duration=6h --zone=z",
        ),
    ],
)
def test_a_slice_is_asked_for_as_it_is_meant(acted: Callable, options: tuple[str, ...], create: str) -> None:
    status, output = acted("0").run("up", "--dry-run", *options, "--", "train")
    called = QUEUED.replace("gcloud", "gcloud alpha") if "--flex-start" in options else QUEUED
    assert (status, output.splitlines()[0]) == (0, f"{called} create mine {create}")


@pytest.mark.parametrize("command", ["train", "work", "sweep", "prepare", "eval", "finetune", "bench"])
def test_every_command_runs_on_the_workers_that_it_is_for(acted: Callable, command: str) -> None:
    """What several processes do together on all of them, all else on one."""
    status, output = acted("0").run("up", TYPE, "--dry-run", "--flag=--tunnel-through-iap", "--", command, "x")
    where, more = ("all", " --distributed") if command in ("train", "work") else ("0", "")
    started = f"'--command=bash mhsh/launch/tpu_worker start 0 {command} x{more}' --zone=z {ALIVE} --tunnel-through-iap"
    assert (status, output.splitlines()[-2]) == (0, f"{QUEUED} ssh mine --node={where} --worker={where} {started}")


def test_it_runs_again_after_75_and_a_kill_with_the_same_arguments(acted: Callable, hostile: list[str]) -> None:
    launcher = acted("75 137 0")
    status, output = launcher.run("up", TYPE, "--", "train", *hostile)
    assert (status, output.count("started; its output goes to")) == (0, 2), output
    for worker in range(2):
        home = launcher.home(worker)
        wait_for(lambda home=home: (home / "mhsh-logs/run.status").exists())
        told = (home / "told").read_text().split("\1")[:-1]
        assert [each.split("\0")[:-1] for each in told] == [["train", *hostile, "--distributed"]] * 3
    assert not list(launcher.cloud.folder.rglob("harm"))
    said = [line.rpartition(": ")[2] for line in launcher.run("logs", "--worker=all")[1].splitlines()]
    assert [line for line in said if "ended" in line] == [f"mhsh ended with exit status {n}" for n in (75, 137, 0)] * 2
    again = [re.sub(r"in \d+ s", "in N s", line) for line in said if "again" in line]
    assert again == [f"starting again in N s, {n} of 100 times" for n in (1, 2)] * 2


def test_it_runs_again_100_times(environment: dict[str, str], tmp_path: Path) -> None:
    for name, script in (
        ("launch/tpu_worker", (ROOT / "launch/tpu_worker").read_text()),
        (".venv/bin/mhsh", "#!/bin/sh\nexit 75\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mhsh-logs").mkdir()
    command = ["bash", str(tmp_path / "launch/tpu_worker"), "loop", "0", "train"]
    done = subprocess.run(command, env=environment | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines.count("mhsh ended with exit status 75") == 101 and lines[-2] == "mhsh ended with exit status 75"
    assert lines[-3] == "starting again in 0 s, 100 of 100 times" and "given up" in lines[-1]
    assert (tmp_path / "mhsh-logs/run.status").read_text() == "1\n"


def test_up_goes_from_nothing_to_the_end_and_again(acted: Callable) -> None:
    launcher = acted("0 0", checked=True)
    status, output = launcher.run(*UP)
    lines = output.splitlines()
    assert status == 0, output
    assert "remat_policy none: needs about" in lines[0]
    states = [line.removeprefix("tpu_vm: mine: ") for line in lines if line.startswith("tpu_vm: mine: ")]
    assert states == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert "step 1 of a part that ends with 0" in lines and "mhsh ended with exit status 0" in lines
    assert lines[-1] == "tpu_vm: as long as the slice is there it costs money: launch/tpu_vm delete mine --zone=z --yes"
    launcher.check_no_run()
    status, output = launcher.run("up", "--delete", *UP[1:])
    assert (status, launcher.calls("create"), launcher.cloud.request("mine")) == (0, 1, None), output


def test_up_is_left_and_found_again(acted: Callable) -> None:
    launcher = acted("wait")
    process = launcher.start_and_wait()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the run goes on" in output and "Traceback" not in output
    again = launcher.start(*UP)
    assert again.stdout is not None
    while "ready" not in again.stdout.readline():
        pass
    status, output = launcher.run("up", TYPE, "--", "train", "--config=other")
    # Worker 0 says so at both trials; worker 1 may not have begun yet at the first.
    assert status == 2 and output.count("something else is running here; stop it first") >= 2
    assert ": running; ready" in launcher.run("status")[1]
    assert launcher.run("stop")[0] == 0
    output, _ = again.communicate(timeout=30)
    assert (again.returncode, launcher.calls("scp")) == (75, 3), output
    assert "saved\nmhsh ended with exit status 75\n" in output, output
    assert launcher.run("stop")[1].count("nothing is running") == 2


def test_the_others_wait_for_a_worker_that_is_told_to_end(acted: Callable) -> None:
    """As by a restart of its VM alone: it starts again beside those that run, whichever it is."""
    launcher = acted("wait wait 0")
    process = launcher.start_and_wait()
    homes = [launcher.home(worker) for worker in range(2)]
    logs = [home / "mhsh-logs/run.log" for home in homes]
    wait_for(lambda: logs[1].exists() and "ready" in logs[1].read_text())
    send(homes[1], signal.SIGTERM)
    wait_for((homes[1] / "mhsh-logs/run.status").exists)
    [actor] = [each for each in processes(homes[0]) if b".venv/bin/mhsh\0" in Path(f"/proc/{each}/cmdline").read_bytes()]
    os.kill(actor, signal.SIGTERM)
    wait_for(lambda: all(log.read_text().count("ready") == 2 for log in logs))
    send(homes[0], signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, launcher.calls("create")) == (0, 1), output
    assert logs[1].read_text().count("mhsh ended") == 1 and "something else is running" not in output
    assert launcher.run("stop")[0] == 0


def test_a_lost_connection_is_no_lost_slice(acted: Callable) -> None:
    launcher = acted("7")
    launcher.cloud.knob("cut").write_text("3")
    status, output = launcher.run(*UP)
    assert (status, launcher.calls("create")) == (7, 1), output
    lines = [line for line in output.splitlines() if line.startswith(("step", "mhsh ended"))]
    assert lines == ["step 1 of a part that ends with 7", "mhsh ended with exit status 7"]
    assert "tpu_vm: no connection to worker 0" in output


def test_an_installation_that_fails_on_one_worker_is_tried_twice(acted: Callable) -> None:
    launcher = acted("0")
    launcher.cloud.knob("broken").write_text("1")
    status, output = launcher.run(*UP)
    assert (status, launcher.calls("create"), launcher.calls("scp")) == (1, 1, 2), output
    assert "the run does not start on all its workers; what they say is above" in output
    assert not (launcher.home() / "mhsh-logs").exists()


@pytest.mark.parametrize(("failing", "refusing", "status", "creates"), [(2, 0, 0, 3), (3, 0, 1, 3), (1, 1, 0, 3), (1, 3, 1, 4)])
def test_a_request_that_failed_is_made_again_but_not_for_ever(
    acted: Callable, failing: int, refusing: int, status: int, creates: int
) -> None:
    """Also where gcloud refuses at first, as while the quota of what was lost is not free."""
    launcher = acted("0")
    launcher.cloud.knob("failing").write_text(str(failing))
    launcher.cloud.knob("refusing").write_text(str(refusing))
    ended, output = launcher.run(*UP)
    assert (ended, launcher.calls("create")) == (status, creates), output
    assert output.count("mine is lost (FAILED): deleted and asked for again") == min(2, failing)


def test_gcloud_that_fails_for_a_while_is_waited_for(acted: Callable) -> None:
    launcher = acted("0")
    launcher.cloud.knob("down").write_text("2")
    status, output = launcher.run(*UP)
    assert status == 0 and output.count("tpu_vm: gcloud does not answer: ERROR: (gcloud.compute.tpus) There was a problem") == 2


def test_a_preemption_behind_a_half_open_connection_is_noticed(acted: Callable) -> None:
    """The connection says nothing and does not end: it is given up, and the slice is looked at."""
    launcher = acted("wait")
    launcher.cloud.knob("silent").write_text("1")
    process = launcher.start_and_wait("--patience=5")
    wait_for(lambda: launcher.cloud.knob("silent").read_text() == "0", 60)
    (launcher.cloud.folder / "statuses0").write_text("0\n")
    launcher.cloud.preempt("mine")
    output, _ = process.communicate(timeout=300)
    assert (process.returncode, launcher.calls("create")) == (0, 2), output
    assert "no connection to worker 0" in output and "mine is lost (node mine is PREEMPTED)" in output


def test_a_run_that_says_nothing_has_a_connection_that_does(environment: dict[str, str], tmp_path: Path) -> None:
    """And a line that comes in two parts is one."""
    logs = tmp_path / "mhsh-logs"
    logs.mkdir()
    with subprocess.Popen(["sleep", "60"]) as run, (logs / "run.log").open("w", buffering=1) as log:
        (logs / "run.pid").write_text(str(run.pid))
        log.write("one\nthe first half")
        command = ["bash", str(ROOT / "launch/tpu_worker"), "follow", "1", "1"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as follow:
            assert follow.stdout is not None
            assert [follow.stdout.readline() for _ in range(2)] == ["1\tone\n", "alive\t\n"]
            log.write(" and the second\n")
            assert "2\tthe first half and the second\n" in iter(follow.stdout.readline, "end\tlost\n")
            run.kill()
            run.wait()
            assert follow.stdout.read().splitlines()[-1] == "end\tlost"


def test_ctrl_c_deletes_a_request_that_waits(acted: Callable) -> None:
    launcher = acted("0")
    launcher.cloud.knob("full").write_text("1")
    process = launcher.start(*UP)
    wait_for(lambda: launcher.cloud.request("mine") is not None)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, launcher.cloud.request("mine")) == (130, None), output
    last = "tpu_vm: mine was still WAITING_FOR_RESOURCES, and nothing has run: the request is deleted"
    assert output.splitlines()[-1] == last and "Traceback" not in output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--accelerator-type=v4-32"], "--accelerator-type: v4-16 there, v4-32 asked for"),
        (["--slices=2", "--spot"], "--slices: 1 there, 2 asked for; --spot: False there, True asked for"),
        (["--version=v"], "--version: tpu-ubuntu2204-base there, v asked for"),
    ],
)
def test_another_slice_of_that_name_is_refused(acted: Callable, changes: list[str], said: str) -> None:
    launcher = acted("0")
    assert launcher.run(*UP)[0] == 0
    calls = [launcher.calls(call) for call in ("create", "delete", "ssh")]
    status, output = launcher.run("up", TYPE, *changes, *UP[2:])
    message = f"mine is another slice ({said}); take another NAME, or launch/tpu_vm delete mine --zone=z"
    assert (status, output) == (2, f"tpu_vm: {message}\n")
    assert [launcher.calls(call) for call in ("create", "delete", "ssh")] == calls


def test_after_the_hours_the_run_saves_and_the_slice_goes(acted: Callable, checkout: Path, tmp_path: Path) -> None:
    launcher = acted("wait")
    changed = Path(shutil.copytree(checkout, tmp_path / "checkout"))
    launcher.program = changed / "launch/tpu_vm"
    text = launcher.program.read_text()
    assert text.count("3600 * options.max_hours") == 1
    launcher.program.write_text(text.replace("3600 * options.max_hours", "5"))  # seconds
    subprocess.run([*GIT, "commit", "--quiet", "--all", "--message=hours"], cwd=changed, check=True)
    status, output = launcher.run(*UP[:2], "--max-hours=1", "--patience=4", *UP[2:])
    assert (status, launcher.cloud.request("mine")) == (75, None), output
    assert "--max-hours=1 have passed: the run saves and ends" in output and "\nsaved\n" in output


def test_a_slice_that_someone_deleted_is_not_asked_for_again(acted: Callable) -> None:
    launcher = acted("wait")
    process = launcher.start_and_wait()
    assert launcher.run("delete", "--yes")[0] == 0
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, launcher.calls("create")) == (1, 1)
    assert "mine was deleted, and not from here" in output


def train_on_a_slice(
    launcher: Launcher, address: str, workdir: str, preempt: Callable[[Launcher, int], None], times: int, *changes: str
) -> str:
    """The output of a run of two real processes whose slice is preempted so many times."""
    emulated = bucket_variables(address) | {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}  # asks for nothing that it lacks
    devices = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    launcher.environment |= {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    launcher.environment |= emulated | devices
    creates = launcher.calls("create") if (launcher.cloud.folder / "calls").exists() else 0
    process = launcher.start("up", TYPE, "--spot", "--delete", *RUN, *changes, f"--workdir={workdir}")

    def preempt_all() -> None:
        for number in range(times):
            preempt(launcher, number)

    preempting = threading.Thread(target=preempt_all, daemon=True)
    preempting.start()
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert launcher.calls("create") - creates == times + 1, output
    assert output.count("mine is lost (node mine is PREEMPTED): deleted and asked for again; the run resumes from gs://") == times
    return output


def rows(address: str, run: str, folder: Path) -> list[dict]:
    local = folder / run
    local.mkdir()
    with urllib.request.urlopen(f"{address}/runs/{run}/metrics.jsonl", timeout=30) as answer:
        (local / "metrics.jsonl").write_bytes(answer.read())
    return rows_without_timings(local)


def last_step(launcher: Launcher) -> int:
    """The last step in worker 0's log, or 0."""
    request = launcher.cloud.request("mine")
    log = Path(request["homes"][0]) / "mhsh-logs/run.log" if request else None
    steps = re.findall(r": step (\d+)/", log.read_text()) if log is not None and log.exists() else []
    return int(steps[-1]) if steps else 0


@pytest.mark.slow
def test_a_preempted_run_resumes_on_a_new_slice(launcher: Launcher, bucket: str, tmp_path: Path) -> None:
    def preempt(launcher: Launcher, number: int) -> None:
        wait_for(lambda: last_step(launcher) > 0, 240)
        launcher.cloud.preempt("mine", grace=60)

    output = train_on_a_slice(launcher, bucket, "gs://runs/one", preempt, 1)
    assert "resuming from the checkpoint of step" in output
    # What was trained was saved after the signal of the VM's end: nothing is waited for or lost.
    assert "waiting up to a minute" not in output
    steps = [row["step"] for row in rows(bucket, "one", tmp_path) if row["split"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == 36


@pytest.mark.slow
def test_three_preemptions_at_random_times_leave_no_trace_in_the_curve(launcher: Launcher, bucket: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    times = random.Random(seed)

    def preempt(launcher: Launcher, number: int) -> None:
        """At once and without a warning, in the first, second and third part of the run."""
        step = times.randrange(40 + 160 * number, 200 + 160 * number)
        wait_for(lambda: last_step(launcher) >= step, 400)
        time.sleep(times.uniform(0, 2))
        launcher.cloud.preempt("mine")

    fields = dict(num_steps=600, checkpoint_interval=20, log_interval=10, eval_interval=0)
    longer = [f"--config.train.{name}={value}" for name, value in fields.items()]
    output = train_on_a_slice(launcher, bucket, "gs://runs/broken", preempt, 3, *longer)
    print(f"seed {seed}", output, sep="\n")
    assert output.count("resuming from the checkpoint of step") == 3
    train_on_a_slice(launcher, bucket, "gs://runs/unbroken", preempt, 0, *longer)
    assert rows(bucket, "broken", tmp_path) == rows(bucket, "unbroken", tmp_path)


def test_up_tells_all_problems_before_it_asks_for_anything(launcher: Launcher, checkout: Path) -> None:
    (checkout / "mhsh/new.py").touch()
    status, output = launcher.run(
        "up", "--accelerator-type=v5litepod-16", "--", "train", "--config=bert:24l16h", "--workdir=runs/x"
    )
    (checkout / "mhsh/new.py").unlink()
    messages = [
        "what is not committed is not installed",
        "--workdir=runs/x is lost with the slice",
        "small embedded text of stdlib",
    ]
    assert (status, len(output.splitlines())) == (2, len(messages)), output
    assert all(message in line for message, line in zip(messages, output.splitlines(), strict=True))
    assert not (launcher.cloud.folder / "calls").exists()


def test_up_without_an_environment(launcher: Launcher, tmp_path: Path) -> None:
    launcher.environment["MHSH_VENV"] = str(tmp_path / "none")
    status, output = launcher.run(*UP)
    assert status == 2 and output.count("\n") == 1 and "bash -c '. launch/environment'" in output


def test_gcloud_is_missing(launch: Callable, tools: Path) -> None:
    result = launch("tpu_vm", "delete", "mine", "--zone=z", PATH=str(tools))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "no gcloud on the PATH" in result.stderr
