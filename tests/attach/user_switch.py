"""A switch in user space: Ethernet frames between network namespaces, late, lost, held back or not passed on.

Where the kernel has no netem, this gives hosts of a test bad links all the same, for agents and for what ranks say to
one another. Arguments: one ``NAMESPACE=ADDRESS/PREFIX`` per host. Makes a TAP device ``eth0`` in each, says
``ready``, and obeys lines: ``delay MILLISECONDS``, ``loss PERCENT``, ``hold NAMESPACE``, ``free NAMESPACE``,
``cut NAMESPACE``.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import sys
import time

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME = 65536  # bytes; more than the largest


def enter(path):
    """Put this thread into a network namespace."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(descriptor)


def plug(namespace, address):
    """A TAP device in a namespace, up, with that address; its descriptor works from anywhere."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        enter(f"/run/netns/{namespace}")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP_WITHOUT_HEADER))
    finally:
        enter(f"/proc/self/fd/{home}")
        os.close(home)
    for words in (["addr", "add", address, "dev", "eth0"], ["link", "set", "eth0", "mtu", "9000", "up"]):
        subprocess.run(["ip", "-n", namespace, *words], check=True)
    return tap


class Switch:
    """Learns who is where, as a switch does; `seed` decides which frames are lost."""

    def __init__(self, ports, *, seed):
        self.ports = ports
        self.delay = self.loss = 0.0
        self.held, self.cut = set(), set()
        self._random, self._places = random.Random(seed), {}
        self._late, self._kept, self._number = [], [], 0

    def take(self, port, frame):
        """A frame has come from a host."""
        to, source = frame[:6], frame[6:12]
        self._places[source] = port
        if port in self.cut or self._random.random() < self.loss:
            return
        known = self._places.get(to)
        for other in (known,) if known is not None else self.ports:
            if other != port and other not in self.cut:
                self._number += 1
                heapq.heappush(self._late, (time.monotonic() + self.delay, self._number, port, other, frame))

    def pass_on(self):
        """Deliver what is due; seconds until something else is."""
        while self._late and self._late[0][0] <= time.monotonic():
            _, _, port, other, frame = heapq.heappop(self._late)
            if port in self.held or other in self.held:
                self._kept.append((port, other, frame))
                continue
            with contextlib.suppress(BlockingIOError):  # its queue is full: lost, as on any network
                os.write(self.ports[other], frame)
        return max(0.0, self._late[0][0] - time.monotonic()) if self._late else 1.0

    def obey(self, word, what):
        """An order of the test."""
        match word:
            case "delay":
                self.delay = float(what) / 1000
            case "loss":
                self.loss = float(what) / 100
            case "hold":
                self.held.add(what)
            case "cut":
                self.cut.add(what)
            case "free":
                self.held.discard(what)
                kept, self._kept = self._kept, []
                for port, other, frame in kept:
                    self._number += 1
                    heapq.heappush(self._late, (time.monotonic(), self._number, port, other, frame))
            case _:
                raise ValueError(f"no order of a switch: {word}")


def main(*hosts):
    """Be the switch until standard input ends."""
    addresses = dict(host.split("=") for host in hosts)
    ports = {name: plug(name, address) for name, address in addresses.items()}
    switch, selector = Switch(ports, seed=7), selectors.DefaultSelector()
    for name, tap in ports.items():
        selector.register(tap, selectors.EVENT_READ, name)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select(switch.pass_on()):
            if key.data is None:
                line = sys.stdin.readline()
                if not line:
                    return
                switch.obey(*line.split())
                print("done", flush=True)
                continue
            try:
                while True:
                    switch.take(key.data, os.read(key.fd, _FRAME))
            except BlockingIOError:
                pass


if __name__ == "__main__":
    main(*sys.argv[1:])
