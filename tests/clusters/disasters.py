"""Many disasters under a real Slurm: nothing that was judged is lost, and nothing is left running.

    python -m tests.clusters.disasters [--number 100] [--within SECONDS] [--out FILE]

Each disaster meets a run with a violation, at a moment of its own, and the run goes on afterwards. One line of FILE is
written for each that is over, so the command can be interrupted and repeated; it goes on with the next. Needs what
``make clusters`` needs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.clusters.runs import ROOT, TINY, await_cells, found, judged, local, result_in
from tests.clusters.slurm import Cluster, why_not

IMPL = f"{ROOT}/tests/clusters/patient.py:Patient"
CELLS = 2
FILE = ROOT / "docs" / "disasters.jsonl"
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --no-kill --requeue --output=log --open-mode=append
export PYTHONPATH={root} PATIENCE={patience}
exec {command}
"""


class Disaster:
    """One job, what happens to it, and how it goes on."""

    def __init__(self, cluster: Cluster, folder: Path, *, patience: float = 1.0) -> None:
        self.cluster, self.folder, self.out = cluster, folder, folder / "out"
        command = [
            sys.executable,
            "-m",
            "pipeconform",
            "run",
            "--on",
            "slurm",
            "--impl",
            IMPL,
            *TINY,
        ]
        self.script = folder / "job.sbatch"
        text = " ".join([*command, "--agent-wait", "300", "--resume", "out"])
        self.script.write_text(SCRIPT.format(root=ROOT, patience=patience, command=text))
        self.job = self.submit()

    def submit(self, *options: str) -> str:
        """Submit the script."""
        self.job = self.cluster.submit(self.script, *options, cwd=self.folder)
        return self.job

    def control(self, *words: str) -> None:
        """Give an order to Slurm."""
        done = self.cluster.run("scontrol", *words)
        assert done.returncode == 0, done.stderr

    def again(self) -> str:
        """Wait for the end, and submit the same script: `run --resume` goes on; how the job ended."""
        state = self.cluster.await_end(self.job)
        self.submit()
        return state

    # what happens; each returns what Slurm says of it

    def kill(self) -> str:
        """SIGKILL for every process of the job."""
        self.cluster.run("scancel", "--signal=KILL", "--full", self.job)
        return self.again()

    def cancel(self) -> str:
        """``scancel``: SIGTERM, then SIGKILL."""
        self.cluster.run("scancel", self.job)
        return self.again()

    def drain(self) -> str:
        """A node takes no more jobs; the job is requeued, and waits until the node is back."""
        self.control("update", "nodename=n1", "state=drain", "reason=disaster")
        try:
            said = self.requeue()
            time.sleep(2.0)
        finally:
            self.control("update", "nodename=n1", "state=resume")
        return said

    def time_limit(self) -> str:
        """The limit of a minute, the least that Slurm has, is over: SIGTERM, then SIGKILL."""
        self.control("update", f"jobid={self.job}", "timelimit=1")
        return self.again()

    def requeue(self) -> str:
        """The job is ended and put back into the queue; it may have ended by itself before."""
        done = self.cluster.run("scontrol", "requeue", self.job)
        if done.returncode:
            return self.again()
        return "REQUEUED"

    def preempt(self) -> str:
        """A job of a partition with more priority takes the nodes."""
        urgent = self.folder / "urgent.sbatch"
        urgent.write_text(
            "#!/bin/bash\n#SBATCH --partition=urgent --nodes=2 --exclusive --output=urgent\nsleep 2\n"
        )
        self.cluster.await_end(self.cluster.submit(urgent, cwd=self.folder))
        restarts = self.cluster.run("scontrol", "show", "job", self.job).stdout.partition("Restarts=")[2]
        return "PREEMPTED" if restarts[:1] not in ("", "0") else self.cluster.state_of(self.job)

    def node(self) -> str:
        """A node's power fails; Slurm or the run notices it first."""
        self.cluster.kill_node("n1")
        try:
            state = self.cluster.await_end(self.job)
        finally:
            self.cluster.start_node("n1")
            self.cluster.await_idle()
        if state == "NODE_FAIL":
            self.submit()
        return state


HAPPENS: tuple[Callable[[Disaster], str], ...] = (
    Disaster.kill,
    Disaster.cancel,
    Disaster.drain,
    Disaster.time_limit,
    Disaster.requeue,
    Disaster.preempt,
    Disaster.node,
)


def one(cluster: Cluster, folder: Path, number: int, *, known: list[Any]) -> dict[str, Any]:
    """Have the disaster with this number happen; what came of it."""
    chance = random.Random(number)
    happens = HAPPENS[number % len(HAPPENS)]
    begun = time.monotonic()
    cluster.await_idle()
    run = Disaster(cluster, folder, patience=8.0 if happens is Disaster.time_limit else 1.0)
    before, pause = chance.randrange(CELLS), chance.uniform(0.0, 4.0)
    cluster.await_running(run.job)
    await_cells(run.out, before)
    time.sleep(pause)
    had = judged(run.out)
    met = happens(run)
    state = cluster.await_end(run.job)
    left = cluster.await_nothing()
    told = {
        "number": number,
        "disaster": happens.__name__,
        "judged before": had,
        "met": met,
        "state": state,
        "same verdicts": (run.out / "result.json").is_file() and found(result_in(run.out)) == known,
        "judged once": judged(run.out) == CELLS,
        "left running": left,
        "seconds": round(time.monotonic() - begun, 1),
    }
    told["well"] = told["same verdicts"] and told["judged once"] and not left and state == "FAILED"
    return told


def main() -> int:
    """Have disasters happen until there are enough, or the time is over; 1 if one of them went wrong."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--number", type=int, default=100)
    asked.add_argument("--within", type=float, default=float("inf"), help="seconds")
    asked.add_argument("--out", type=Path, default=FILE)
    options = asked.parse_args()
    if reason := why_not():
        sys.exit(f"no Slurm: {reason}")
    lines = options.out.read_text().splitlines() if options.out.is_file() else []
    rows = [json.loads(line) for line in lines]
    end = time.monotonic() + options.within
    folder = Path(tempfile.mkdtemp(prefix="disasters-"))
    (folder / "slurm").mkdir()
    cluster = Cluster(folder / "slurm")
    try:
        if len(rows) < options.number:
            known = local(folder, IMPL, TINY)
            cluster.start()
        while len(rows) < options.number and time.monotonic() < end:
            place = folder / str(len(rows))
            place.mkdir()
            row = one(cluster, place, len(rows), known=known)
            rows.append(row)
            print(json.dumps(row), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            if row["well"]:
                shutil.rmtree(place)
    finally:
        cluster.close()
    if all(row["well"] for row in rows):
        shutil.rmtree(folder)
    else:
        print(f"what went wrong is kept in {folder}")
    print(Counter(f"{row['disaster']}: {'well' if row['well'] else 'WRONG'}" for row in rows))
    return int(not all(row["well"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
