"""An agent: runs on a host, forks ranks there for the controller, and ends when the controller is gone."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

import msgspec

from pipeconform.attach.connect import ControllerGone, connected
from pipeconform.attach.greeting import printable
from pipeconform.attach.launch import forget_launcher, interface_of
from pipeconform.attach.link import Link
from pipeconform.attach.member import Member
from pipeconform.attach.messages import (
    Ask,
    Bye,
    Fork,
    Hand,
    Kill,
    Order,
    Prepare,
    Pulse,
    Said,
    Word,
    encode,
    orders,
)
from pipeconform.errors import PoolError
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.forkserver import ForkServer
from pipeconform.ranks.interrupts import sigterm_raises
from pipeconform.ranks.wire import Kind

__all__ = ["serve"]

_ASKING = 0.005  # seconds between two looks for an answer of a rank
_FLUSH = 1.0  # seconds for the last messages to reach the kernel


def serve(
    host: str,
    port: int,
    *,
    token: bytes,
    say: Callable[[str], None],
    address: str | None = None,
    device_index: int | None = None,
    first_device: int = 0,
    wait: float = 300.0,
) -> None:
    """Connect to the controller at `host`:`port`, serve it, and return when it says goodbye.

    Waits up to `wait` seconds for a controller to be there. Ranks elsewhere reach the ones here at `address`, by
    default the source address of the connection. `device_index` is the index of the host's device that
    ranks here use, by default the launcher's local rank after `first_device`, the device of local rank 0.

    Raises:
        UsageError: the controller refuses this agent, or does not know the token.
        NoController: there is none.
        ControllerGone: it went away.
        SystemExit: the process got SIGTERM.
    """
    link, identity = connected(host, port, token=token, address=address, wait=wait, say=say)
    say(f"{identity} serves the controller at {host}:{port}")
    interface = interface_of(identity.address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    forget_launcher(os.environ)
    index = first_device + identity.local_rank if device_index is None else device_index
    agent = _Agent(link, listen=identity.address, device_index=index)
    try:
        # launchers end their workers with SIGTERM; the ranks must end first
        with sigterm_raises(SystemExit(128 + signal.SIGTERM)):
            agent.run()
    finally:
        agent.close()


class _Agent:
    """The agent's ranks by number, its fork servers by environment, and the loop that obeys the controller."""

    def __init__(self, link: Link, *, listen: str, device_index: int) -> None:
        self._link, self._listen, self._device_index = link, listen, device_index
        self._prepared: dict[int, Prepare] = {}
        self._servers: dict[int, ForkServer] = {}
        self._members: dict[int, Member] = {}
        self._pulse, self._every = 0.0, 0.1
        self._done = False

    def run(self) -> None:
        """Serve until the controller says goodbye.

        Raises:
            ControllerGone: it went away without a goodbye.
        """
        while not self._done:
            self._wait()
            for server in self._servers.values():
                server.step(0.0)
            self._link.push()
            self._link.pull()
            while self._link.messages and not self._done:
                self._obey(self._read(self._link.messages.popleft()))
            for member in list(self._members.values()):
                for word in member.turn():
                    self._say(word)
                if member.over:
                    self._end(member.number)
            self._look()
            if self._link.ended and not self._link.messages and not self._done:
                raise ControllerGone(f"the connection to the controller {self._link.ended}")

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._link, select.POLLIN | (select.POLLOUT if self._link.queued else 0))
        for server in self._servers.values():
            if server.alive:
                server.step(0.0)  # start watching for room to write
                poll.register(server, select.POLLIN)
        members = self._members.values()
        if self._link.messages:
            patience = 0.0
        elif any(member.asked for member in members):
            patience = _ASKING
        elif any(member.busy for member in members):
            patience = max(0.0, self._pulse - time.monotonic())
        else:
            patience = 1.0
        poll.poll(1000 * patience)

    def _read(self, body: bytes) -> Order:
        try:
            return orders.decode(body)
        except msgspec.MsgspecError as error:
            self._link.end("carried a message that is not an order")
            raise ControllerGone(f"the controller sent no valid order: {printable(str(error))}") from error

    def _obey(self, order: Order) -> None:
        match order:
            case Prepare():
                self._prepared[order.environment] = order
                self._server(order.environment)
            case Fork():
                self._fork(order)
            case Bye():
                self._done = True
            case Kill():
                self._end(order.member)
            case Hand() if order.member in self._members:
                self._members[order.member].hand(order)
            case Ask() if order.member in self._members:
                self._members[order.member].ask(order)

    def _server(self, environment: int) -> ForkServer:
        """The fork server of an environment; a new one if the last has ended."""
        server = self._servers.get(environment)
        if server is None or not server.alive:
            if server is not None:
                server.close()
            asked = self._prepared[environment]
            server = ForkServer(Environment(asked.name, asked.variables), preload=asked.preload)
            self._servers[environment] = server
        return server

    def _fork(self, order: Fork) -> None:
        kind, self._every = order.device_type, order.pulse
        device = kind if kind == "cpu" else f"{kind}:{self._device_index}"
        try:
            server = self._server(order.environment)
            self._members[order.member] = Member(server, order, device=device, listen=self._listen)
        except (PoolError, OSError, KeyError) as error:
            why = str(error).encode()
            self._say(Said(order.member, pid=0, number=0, kind=Kind.UNFIT, body=why, after=0.0))

    def _end(self, number: int) -> None:
        member = self._members.pop(number, None)
        if member is not None:
            member.end()

    def _look(self) -> None:
        """Report which ranks progress; while they run tasks, this also shows the controller that the host is there."""
        now = time.monotonic()
        if now >= self._pulse:
            self._pulse = now + self._every
            seen = tuple(member.look() for member in self._members.values() if member.busy)
            if seen:
                self._say(Pulse(ranks=seen))

    def _say(self, word: Word) -> None:
        self._link.send(encode(word))

    def close(self) -> None:
        """End every rank and the connection."""
        deadline = time.monotonic() + _FLUSH
        while self._link.queued and not self._link.ended and time.monotonic() < deadline:
            self._link.push()
            time.sleep(0.01)
        self._link.close()
        for server in self._servers.values():
            server.close()
