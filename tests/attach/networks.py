"""Several hosts on one machine, for tests: network namespaces, and what joins them.

Namespaces and links are made and removed here; nothing outside of them is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from tests.attach.sites import HERE, TOKEN

__all__ = [
    "SWITCH",
    "Network",
    "Switched",
    "ranks_in",
    "reason_against",
    "reason_against_netem",
    "reason_against_taps",
]

ROOT = HERE.parents[1]
SWITCH = "10.77.0.1"


def reason_against():
    """Why there can be no hosts here; empty if there can."""
    lacking = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if lacking:
        return f"needs {', '.join(lacking)}"
    name = f"pctry{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces are not permitted: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Network:
    """A switch with the controller's address, and hosts at it."""

    def __init__(self, number):
        self.prefix = f"pc{os.getpid()}"
        self.hosts = [f"{self.prefix}h{i}" for i in range(1, number + 1)]
        self.switch = f"{self.prefix}sw"
        self.processes = []
        self.said = {}

    def __enter__(self):
        try:
            for name in (self.switch, *self.hosts):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            self.join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def join(self):
        """Connect the hosts by a bridge."""
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "addr", "add", f"{SWITCH}/24", "dev", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for index, host in enumerate(self.hosts, start=1):
            ip(
                "-n",
                self.switch,
                "link",
                "add",
                f"port{index}",
                "type",
                "veth",
                "peer",
                "eth0",
                "netns",
                host,
            )
            ip("-n", self.switch, "link", "set", f"port{index}", "master", "bridge", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{10 + index}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")

    def __exit__(self, *ended):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def spoil(self, *, delay=0, loss=0):
        """Make all links slow, in ms one way, and have them lose so many percent of the packets, by netem."""
        for index in range(1, len(self.hosts) + 1):
            for where, device in ((self.switch, f"port{index}"), (self.hosts[index - 1], "eth0")):
                words = ["qdisc", "add", "dev", device, "root", "netem"]
                half = ["delay", f"{delay / 2}ms", "loss", f"{loss / 2}%"]
                subprocess.run(["ip", "netns", "exec", where, "tc", *words, *half], check=True)

    def cable(self, index, state):
        """Plug a host in (``up``) or pull its cable (``down``)."""
        ip("-n", self.switch, "link", "set", f"port{index}", state)

    def inside(self, host):
        """The processes in a host's namespace."""
        found = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=True)
        return found.stdout.split()

    def start(self, where, name, *command):
        """Run a command in a namespace, on a host of that name; its output is gathered by lines."""
        environment = {
            **os.environ,
            "PIPECONFORM_TOKEN": TOKEN,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]),
        }
        shell = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *command]
        process = subprocess.Popen(
            ["ip", "netns", "exec", where, *shell],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = self.said[name] = []
        threading.Thread(target=lambda: gather(process.stdout, lines), daemon=True).start()
        self.processes.append(process)
        return process


def gather(stream, lines):
    with stream:
        lines.extend(iter(stream.readline, ""))


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Switched(Network):
    """The same hosts at a switch in user space, whose links can be made bad on every kernel."""

    def join(self):
        """Start the switch; it makes the devices."""
        places = {self.switch: f"{SWITCH}/24"}
        places |= {host: f"10.77.0.{10 + i}/24" for i, host in enumerate(self.hosts, start=1)}
        self.switching = subprocess.Popen(
            [sys.executable, str(HERE / "user_switch.py"), *(f"{name}={at}" for name, at in places.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.switching.stdout.readline() == "ready\n"

    def order(self, *words):
        """Tell the switch something, and wait until it is so."""
        print(*words, file=self.switching.stdin, flush=True)
        assert self.switching.stdout.readline() == "done\n"

    def spoil(self, *, delay=0, loss=0):
        """As by netem."""
        self.order("delay", delay)
        self.order("loss", loss)

    def __exit__(self, *ended):
        super().__exit__(*ended)
        with contextlib.suppress(AttributeError):  # it was never started
            self.switching.stdin.close()
            self.switching.wait(10)
            self.switching.stdout.close()


def reason_against_netem():
    """Why the kernel cannot spoil links; empty if it can."""
    reason = reason_against() or ("" if shutil.which("tc") else "needs tc")
    if reason:
        return reason
    name = f"pctry{os.getpid()}"
    ip("netns", "add", name)
    try:
        words = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        tried = subprocess.run(
            ["ip", "netns", "exec", name, *words], check=False, capture_output=True, text=True
        )
    finally:
        ip("netns", "del", name)
    return f"this kernel has no netem: {tried.stderr.strip()}" if tried.returncode else ""


def reason_against_taps():
    """Why a switch in user space cannot be had; empty if it can."""
    reason = reason_against()
    if not reason and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened"
    return reason


def ranks_in(pids):
    """Those of some processes that are ranks or fork servers."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if b"pipeconform.ranks.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
