"""A trace of some steps by jax.profiler, for xprof (`xprof --logdir=RUN/profile`) and Perfetto (the
.trace.json.gz).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
from etils import epath

from mhsh.config.resolve import profiled_steps
from mhsh.config.schema import TrainConfig
from mhsh.run_folder import PROFILE_FOLDER


class Profiler:
    """Traces the steps that train.profile_steps names, on every process."""

    def __init__(self, train: TrainConfig, folder: epath.Path) -> None:
        self.first, self.last = profiled_steps(train.profile_steps, train.num_steps) or (None, None)
        self._folder = folder / PROFILE_FOLDER
        self._trace: Path | None = None

    def start(self, state: Any) -> None:
        """Begins when the device has made the steps before."""
        jax.block_until_ready(state)
        self._trace = Path(tempfile.mkdtemp(prefix="mhsh-profile-"))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would slow down what is measured
        jax.profiler.start_trace(str(self._trace), profiler_options=options)

    def finish(self, state: Any) -> str:
        """Writes the trace, in the place of an earlier one of the same steps.

        Returns one line that says where they are.
        """
        if self._trace is None:
            return f"no profile: the run was resumed after step {self.first}"
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        name = f"steps_{self.first}_to_{self.last}"
        # As xprof expects it: a folder a session, and in it the files of each host.
        session = self._folder / "plugins" / "profile" / name
        session.mkdir(parents=True, exist_ok=True)
        for file in self._trace.rglob("*.*"):
            if file.is_file():
                (session / f"process_{jax.process_index()}.{file.name.split('.', 1)[1]}").write_bytes(file.read_bytes())
        shutil.rmtree(self._trace)
        self._trace = None
        return f"profile of steps {self.first} to {self.last}: {self._folder} (xprof --logdir, or the .trace.json.gz in Perfetto)"
