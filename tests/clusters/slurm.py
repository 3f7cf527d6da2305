"""A cluster of Slurm on this machine: munged, slurmctld, and a slurmd per node, all in a folder and on loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo")
_SBIN = "/usr/sbin"
_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=5
SlurmdTimeout=120
ReturnToService=2
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
"""


def why_not() -> str:
    """Why no cluster can be started here; empty if one can."""
    path = os.environ.get("PATH", "") + os.pathsep + _SBIN
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "slurmd must be started by root"


def _free(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in made]


class Cluster:
    """Daemons in `folder`, with so many nodes of `cpus` processors each."""

    def __init__(self, folder: Path, *, nodes: int = 2, cpus: int = 4) -> None:
        self.folder = folder
        self.names = [f"n{number}" for number in range(nodes)]
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        control, *ports = _free(1 + nodes)
        host = socket.gethostname()
        lines = [_CONF.format(host=host, control=control, folder=folder)]
        lines += [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN"
            for name, port in zip(self.names, ports, strict=True)
        ]
        of_all = f"Nodes={','.join(self.names)} MaxTime=INFINITE State=UP"
        lines.append(f"PartitionName=all {of_all} Default=YES PriorityTier=1")
        lines.append(f"PartitionName=urgent {of_all} PriorityTier=10")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (folder / "state").mkdir()
        for name in self.names:
            (folder / f"spool.{name}").mkdir()
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.environ["PATH"] + os.pathsep + _SBIN,
        }

    def start(self) -> None:
        """Start all daemons and wait until every node is idle."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = [f"--{kind}={self.folder}/munge.{end}" for kind, end in _MUNGE.items()]
        self._daemon("munged", "munged", "--foreground", "--force", "--num-threads=2", *files)
        self._until((self.folder / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-c")
        for name in self.names:
            self.start_node(name)
        self.await_idle()

    def await_idle(self) -> None:
        """Wait until every node takes jobs."""
        self._until(lambda: self.states() == dict.fromkeys(self.names, "idle"), "all nodes")

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        self._daemon(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill a node as a failure of its power does: its daemon, and all that runs on it."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for process in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def processes(self, name: str | None = None) -> list[int]:
        """Processes of jobs and steps on a node, or on any: agents, ranks and what supervises them."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if f"SLURM_CONF={self.folder}/slurm.conf".encode() not in variables:
                    continue
                node = next(
                    (v.partition(b"=")[2].decode() for v in variables if v.startswith(b"SLURMD_NODENAME=")),
                    "",
                )
                if node and (name is None or node == name):
                    found.append(int(folder.name))
        return found

    def states(self) -> dict[str, str]:
        """The state of every node."""
        rows = self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
        return dict(row.split() for row in rows if row.strip())

    def run(self, *command: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm."""
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            command, check=False, capture_output=True, text=True, timeout=300, env=self.environment, **more
        )

    def submit(self, script: Path, *options: str, cwd: Path) -> str:
        """Submit a script; its job's number."""
        done = self.run("sbatch", "--parsable", *options, str(script), cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state_of(self, job: str) -> str:
        """The state of a job, such as RUNNING; COMPLETED, FAILED or CANCELLED at its end."""
        said = self.run("scontrol", "show", "job", job).stdout
        return said.partition("JobState=")[2].split()[0] if "JobState=" in said else "UNKNOWN"

    def await_end(self, job: str, *, limit: float = 400.0) -> str:
        """Wait until a job has ended; its state."""
        self._until(lambda: self.state_of(job) not in _UNDER_WAY, f"job {job}", limit=limit)
        return self.state_of(job)

    def await_running(self, job: str, *, limit: float = 120.0) -> None:
        """Wait until a job has begun."""
        self._until(lambda: self.state_of(job) != "PENDING", f"job {job} to begin", limit=limit)

    def await_nothing(self, *, limit: float = 60.0) -> list[int]:
        """Wait until nothing of jobs is left; what is, when the time is over."""
        deadline = time.monotonic() + limit
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def close(self) -> None:
        """End every daemon, and what is left of jobs."""
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def _until(self, done, what: str, *, limit: float = 60.0) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + limit
        while not done():
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            assert not ended, f"{ended} ended; see {self.folder}"
            assert time.monotonic() < deadline, f"{what}: not within {limit:g} s; see {self.folder}"
            time.sleep(0.2)


_MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
_UNDER_WAY = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "STOPPED")
