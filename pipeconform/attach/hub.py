"""In the controller: the listening socket, connections in their handshake, and the agents that were let in.

One thread, no blocking call: :meth:`Hub.step` moves whatever can move, and every wait is a loop around it.
While the controller judges, messages of agents wait in the kernel's queues.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import time
from collections.abc import Callable

import msgspec

from pipeconform.attach.attached import Attached
from pipeconform.attach.certificate import controllers_context
from pipeconform.attach.connect import SILENCE
from pipeconform.attach.greeting import (
    GREETING_LIMIT,
    Identity,
    Refused,
    Versions,
    admitted,
    printable,
    refusal,
)
from pipeconform.attach.link import Link, descriptor_limit, keep_alive, raise_descriptor_limit
from pipeconform.attach.messages import Bye
from pipeconform.errors import UsageError
from pipeconform.ranks.interrupts import deferred_interrupts

__all__ = ["Hub"]

_GREETING_LIMIT = 10.0  # seconds for a handshake
_MOST_KNOCKING = 256  # handshakes at a time; others wait in the kernel's queue
_TLS = b"\x16\x03"
"""How a handshake of TLS begins."""
_LONGEST_GAP = 0.5  # seconds between two steps that count as silence; the rest of a longer gap does not
_PARTING = 2.0  # seconds for goodbyes to reach the kernel
_SWEEP = 0.1  # seconds between two looks at all agents
_SWEEP_PER_AGENT = 1e-4  # seconds, in addition: with ten thousand agents a look takes a hundredth of a second
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Say = Callable[[str], None]


class _Knock:
    """A connection that has not proved anything."""

    def __init__(self, connection: ssl.SSLSocket, peer: str) -> None:
        self.connection, self.peer = connection, peer
        self.link = Link(connection, greeting=GREETING_LIMIT)
        self.age = 0.0
        """Seconds that it has had while the controller listened."""
        self._spoke = False

    def fileno(self) -> int:
        return self.connection.fileno()

    def hear(self) -> bytes | None:
        """Its message; None until it has come.

        Raises:
            Refused: it has closed the connection, or sends something else.
        """
        if not self._spoke:
            begins = socket.socket.recv(self.connection, 8, socket.MSG_PEEK)  # what TLS has not read yet
            if not begins:
                raise Refused("said nothing")
            if not begins.startswith(_TLS[: len(begins)]):
                raise Refused(f"does not speak the protocol: it began with {begins!r}")
            self._spoke = True
        self.link.pull()
        if self.link.messages:
            return self.link.messages.popleft()
        if self.link.ended:
            why = printable(self.link.ended)
            raise Refused("closed the connection during the handshake" if why == "was closed" else why)
        return None


class Hub:
    """Listens on `host`:`port` for agents that know `token`; `say` gets one line per event.

    `silence` and `greeting_limit` are seconds of `clock`.

    Raises:
        UsageError: the address cannot be listened on.
        HarnessError: no certificate can be made.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: bytes,
        say: Say,
        silence: float = SILENCE,
        greeting_limit: float = _GREETING_LIMIT,
        versions: Versions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self._say, self._versions = token, say, versions
        self._silence, self._greeting_limit = silence, greeting_limit
        self.agents: list[Attached] = []
        """The connected agents, in the order in which they came."""
        self._knocking: set[_Knock] = set()
        self._backlog: set[Attached] = set()
        """Agents that have not read everything sent to them, or may not have."""
        self._clock = clock
        self._stepped, self._unswept = clock(), 0.0
        self._told_full = self.closed = False
        raise_descriptor_limit()
        self._context, self._fingerprint = controllers_context()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise UsageError(
                f"cannot listen for agents on {host}:{port}: {error.strerror or error}"
            ) from error
        self._listener.setblocking(False)
        own, number = self._listener.getsockname()[:2]
        self.address = f"[{own}]:{number}" if ":" in own else f"{own}:{number}"
        """Where agents connect: ``HOST:PORT``."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def step(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for something to happen, and record it."""
        if self.closed:
            return
        self._watch_backlog()
        if self._knocking:
            timeout = min(timeout, self._greeting_limit / 4)
        events = self._selector.select(max(0.0, timeout))
        with deferred_interrupts():
            for key, mask in events:
                match key.data:
                    case Attached() as agent:
                        self._hear(agent, mask)
                    case _Knock() as knock:
                        self._greet(knock)
                    case _:
                        self._accept()
            self._sweep()

    def _watch_backlog(self) -> None:
        """Watch agents in the backlog for room to send; of hundreds, few are behind."""
        for agent in tuple(self._backlog):
            behind = agent.link.queued > 0
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if behind else 0)
            self._selector.modify(agent.link, events, agent)
            if not behind:
                self._backlog.discard(agent)

    def _accept(self) -> None:
        while len(self._knocking) < _MOST_KNOCKING:
            try:
                connection, address = self._listener.accept()
            except OSError as error:  # no descriptor is left, or the connection is gone again
                if error.errno not in _FULL:
                    return
                self._tell_full(error)
                break
            connection.setblocking(False)
            secured = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            knock = _Knock(secured, f"{address[0]}:{address[1]}")
            self._knocking.add(knock)
            self._selector.register(secured, selectors.EVENT_READ, knock)
            self._greet(knock)
        self._selector.unregister(self._listener)  # until a handshake has ended

    def _tell_full(self, error: OSError) -> None:
        """Report once why agents that connect get no answer: they wait and cannot know."""
        if not self._told_full:
            self._told_full = True
            self._say(
                f"takes no more agents for now: {error.strerror}; {len(self.agents)} are attached, this process may "
                f"open {descriptor_limit()} files (ulimit -n)"
            )

    def _listen(self) -> None:
        if self._listener.fileno() not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _greet(self, knock: _Knock) -> None:
        try:
            body = knock.hear()
            if body is None:
                return
            identity, welcome = admitted(
                body, token=self._token, fingerprint=self._fingerprint, versions=self._versions
            )
            if odd := self._unreachable(identity.address):
                raise Refused(odd)
        except BlockingIOError:
            return
        except (Refused, OSError) as error:
            self._turn_away(
                knock, str(error) if isinstance(error, Refused) else f"broke off: {error.strerror}"
            )
            return
        knock.link.send(welcome)
        self._let_in(knock, identity)

    def _let_in(self, knock: _Knock, identity: Identity) -> None:
        self._forget(knock)
        keep_alive(knock.connection, seconds=int(max(4, self._silence)))
        agent = Attached(knock.link, identity, peer=knock.peer, backlog=self._backlog)
        self.agents.append(agent)
        self._selector.register(knock.link, selectors.EVENT_READ, agent)
        self._say(f"{identity} joined from {knock.peer}; agents: {len(self.agents)}")
        knock.link.admit()

    def _unreachable(self, address: str) -> str:
        """Why ranks of this agent and of the others could not reach each other; empty if they can."""
        if self.agents and _loopback(address) != _loopback(self.agents[0].identity.address):
            other = self.agents[0].identity.address
            return (
                f"is an agent whose ranks would be at {printable(address)} while others' are at {printable(other)}: "
                "one of the two is loopback and cannot be reached; start it with --address"
            )
        return ""

    def _turn_away(self, knock: _Knock, why: str) -> None:
        knock.link.send(refusal(why))
        self._forget(knock)
        knock.link.close()
        self._say(f"refused {knock.peer}, which {why}")

    def _forget(self, knock: _Knock) -> None:
        self._knocking.discard(knock)
        self._selector.unregister(knock.connection)
        self._listen()

    def _sweep(self) -> None:
        """Look at all connections, but not at every step: hundreds of agents cause thousands of steps a second."""
        now = self._clock()
        self._unswept += min(now - self._stepped, _LONGEST_GAP)
        self._stepped = now
        if self._unswept < max(_SWEEP, _SWEEP_PER_AGENT * len(self.agents)):
            return
        gap, self._unswept = self._unswept, 0.0
        if len(self._knocking) < _MOST_KNOCKING:
            self._listen()  # it may have been full
        for knock in list(self._knocking):
            knock.age += gap
            if knock.age > self._greeting_limit:
                self._turn_away(knock, f"did not finish the handshake within {self._greeting_limit:g} s")
        for agent in self.agents:
            agent.quiet = agent.quiet + gap if agent.busy else 0.0
            if agent.quiet > self._silence:
                agent.link.end(f"has been silent for {self._silence:g} s")
        self._bury()

    def _hear(self, agent: Attached, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            agent.link.push()
        try:
            agent.hear()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            agent.link.end(f"carried what is not a message: {printable(str(error))}")
        if not agent.alive:
            self._part_with(agent)

    def _bury(self) -> None:
        """Remove agents whose connection has ended."""
        for agent in [one for one in self.agents if not one.alive]:
            self._part_with(agent)

    def _part_with(self, agent: Attached) -> None:
        self._selector.unregister(agent.link)
        self._backlog.discard(agent)
        self.agents.remove(agent)
        self._say(f"lost {agent.lose()}; agents: {len(self.agents)}")

    def close(self) -> None:
        """Send the agents home and stop listening; closing twice is harmless."""
        if self.closed:
            return
        self.closed = True
        with deferred_interrupts():
            for agent in self.agents:
                agent.send(Bye())
            deadline = time.monotonic() + _PARTING
            while any(a.link.queued and a.alive for a in self.agents) and time.monotonic() < deadline:
                for agent in self.agents:
                    agent.link.push()
                time.sleep(0.01)
            for agent in self.agents:
                agent.lose()
            for knock in self._knocking:
                knock.link.close()
            self._selector.close()
            self._listener.close()


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
