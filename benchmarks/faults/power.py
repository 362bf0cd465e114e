"""Runs after a power cut: real runs on ext4, whose disk is copied while they train.

    sudo python -m benchmarks.faults.power FOLDER [--runs=20] [--cuts=10] [--seed=0]

The file system lies on a loop device. Its image is what has reached the disk: what the kernel still
holds is not in it. So a copy of the image at a random moment, mounted anew, is what a power cut
leaves. The images lie on XFS, which clones a file at one instant: of a copy that takes time, the
end would be younger than the start (1 of 100 such copies had a torn run.json). The same command
must then end as the unbroken run, to the bit.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.table import ROOT, curve, use_cache, write_text

IMAGE_BYTES = 48 << 20
HOST_BYTES = 4 << 30  # sparse
STEPS, INTERVAL = 240, 12
CONFIG = [
    "--config=bert:2l8h",
    "--config.model.vocab_size=512",
    "--config.model.embed_dim=32",
    "--config.model.head_dim=4",
    "--config.model.remat_policy=none",
    "--config.data.validation_fraction=0.2",
    f"--config.train.num_steps={STEPS}",
    f"--config.train.checkpoint_interval={INTERVAL}",
    "--config.train.eval_interval=24",
    "--config.train.eval_batches=1",
]


def command(folder: Path, text: Path) -> list[str]:
    return [sys.executable, "-m", "mhsh", "train", *CONFIG, f"--config.data.source=text:{text}", f"--workdir={folder}"]


@contextlib.contextmanager
def mount_image(image: Path, point: Path) -> Iterator[Path]:
    """Mounts the file system of an image; its journal is replayed first, as after any power cut."""
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def clone(image: Path, copy: Path) -> None:
    """Copies the image as it is at one instant."""
    subprocess.run(["cp", "--reflink=always", str(image), str(copy)], check=True)


def cut_run(work: Path, text: Path, number: int, cuts: int, generator: random.Random) -> list[Path]:
    """Trains on a disk of its own, whose image is copied `cuts` times; the last time just after the
    run was told by SIGTERM to save, and has said that it did.
    """
    image = work / f"disk-{number}"
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    copies = []
    with mount_image(image, work / f"mount-{number}") as point:
        process = subprocess.Popen(command(point / "run", text), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        metrics = point / "run" / "metrics.jsonl"
        while not metrics.exists():
            time.sleep(0.01)
        start, moments = time.monotonic(), sorted(generator.uniform(0, 12) for _ in range(cuts - 1))
        for cut, moment in enumerate(moments):
            time.sleep(max(0.0, start + moment - time.monotonic()))
            copies.append(work / f"cut-{number}-{cut}")
            clone(image, copies[-1])
        process.send_signal(signal.SIGTERM)
        process.wait()
        copies.append(work / f"cut-{number}-{cuts - 1}")
        clone(image, copies[-1])
    image.unlink()
    return copies


def judge(copy: Path, text: Path, expected: list[object]) -> tuple[int, str]:
    """The newest checkpoint that a cut has left (0: none), and what is wrong afterwards."""
    with mount_image(copy, copy.with_name(f"mount-{copy.name}")) as point:
        saved = [int(path.name) for path in (point / "run" / "checkpoints").glob("*") if path.name.isdecimal()]
        done = subprocess.run(command(point / "run", text), cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            return max(saved, default=0), f"the same command ends with {done.returncode}: {done.stderr.strip()[-300:]}"
        problem = "" if curve(point / "run", STEPS) == expected else "another curve"
        if (point / "run" / "damaged_checkpoints").exists():
            problem += " a committed checkpoint was damaged"
    copy.unlink()
    return max(saved, default=0), problem


def experiment(work: Path, runs: int, cuts: int, seed: int) -> list[str]:
    """Prints a line a cut; returns those with a problem."""
    work.mkdir(parents=True)
    text, generator, bad = write_text(work), random.Random(seed), []
    subprocess.run(command(work / "unbroken", text), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    expected = curve(work / "unbroken", STEPS)
    with open(work / "host", "wb") as file:
        file.truncate(HOST_BYTES)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(work / "host")], check=True)
    with mount_image(work / "host", work / "disks") as disks:
        for number in range(runs):
            copies = cut_run(disks, text, number, cuts, generator)
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                judged = pool.map(lambda copy: judge(copy, text, expected), copies)
                for copy, (saved, problem) in zip(copies, judged, strict=True):
                    print(f"{copy.name}: checkpoint of step {saved}; {problem or 'the unbroken curve'}", flush=True)
                    bad += [f"{copy.name}: {problem}"] if problem else []
    print(f"{runs * cuts} cuts, {len(bad)} with a problem")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    use_cache(options.folder.absolute())
    return 1 if experiment(options.folder.absolute(), options.runs, options.cuts, options.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
