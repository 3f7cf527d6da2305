"""Agents that only speak the protocol, hundreds in one process; see controller_scale.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import socket
import ssl
import sys
import time

import msgspec

from pipeconform.attach import messages as say
from pipeconform.attach.certificate import agents_context, fingerprint_of
from pipeconform.attach.greeting import GREETING_LIMIT, Identity, hello, require_welcome
from pipeconform.attach.link import Link, raise_descriptor_limit
from pipeconform.ranks.wire import HEADER, Address, Kind

CASE = "pipeconform.execute.worker:execute"  # the task whose answers are known; any other is never answered
PER_HOST = 8  # agents that say they are on the same host
_PATIENCE = 300.0  # seconds for the controller to take a connection


def bodies(frames):
    """The bodies of the frames that a rank gets."""
    found = []
    while frames:
        length = HEADER.unpack_from(frames)[3]
        found.append(frames[HEADER.size : HEADER.size + length])
        frames = frames[HEADER.size + length :]
    return found


class Simulated:
    """One agent: greets, pretends to fork, answers from the table."""

    def __init__(self, index, address, token, answers, selector):
        host = f"simulated-{index // PER_HOST}"
        numbers = {"rank": index, "local_rank": index % PER_HOST, "node": index // PER_HOST}
        identity = Identity(host=host, pid=index + 1, address="127.0.0.1", **numbers)
        self.index, self.address, self.token, self.answers = index, address, token, answers
        self.selector, self.identity = selector, identity
        self.link, self.ranks, self.running, self.prepared = None, {}, {}, {}
        self.answered, self.pulse = 0, 0.1

    def connect(self):
        """Begin the handshake."""
        self.ranks, self.running, self.welcome = {}, {}, False
        plain = socket.create_connection(self.address, timeout=_PATIENCE)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        self.socket = agents_context().wrap_socket(plain, do_handshake_on_connect=False)
        self.link = Link(self.socket, greeting=GREETING_LIMIT)
        self.fingerprint = None
        self.selector.register(self.socket, selectors.EVENT_READ, self)
        self.greet()

    def greet(self):
        """Go on with the handshake of TLS; after it, send the proof."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.socket.do_handshake()
            self.fingerprint = fingerprint_of(self.socket.getpeercert(binary_form=True))
            self.link.send(hello(self.token, self.fingerprint, self.identity))

    def drop(self):
        """Be gone as a killed process is."""
        self.selector.unregister(self.socket)
        self.socket.close()

    def turn(self):
        """Take what came; False when the controller has ended the connection."""
        if self.fingerprint is None:
            self.greet()
        else:
            self.link.pull()
        if not self.welcome and self.link.messages:
            answer, known = self.link.messages.popleft(), self.fingerprint
            require_welcome(answer, token=self.token, fingerprint=known, identity=self.identity)
            self.welcome = True
            self.link.admit()
        while self.link.messages:
            self.obey(say.orders.decode(self.link.messages.popleft()))
        return not self.link.ended

    def obey(self, order):
        """Do as a real agent would, as far as the controller can tell."""
        match order:
            case say.Prepare():
                self.prepared[order.environment] = order.variables
            case say.Fork(member=member, rank=rank):
                self.ranks[member], self.pulse = rank, order.pulse
                if rank == 0 and order.world_size > 1 and order.backend is not None:
                    self.said(member, Kind.STORE, msgspec.msgpack.encode(Address(host="127.0.0.1", port=1)))
                seen = self.prepared[order.environment]
                self.said(member, Kind.READY, msgspec.msgpack.encode(seen))
            case say.Hand(member=member, task=task, frames=frames) if task:
                name, payload = bodies(frames)
                if name.decode() == CASE:
                    real = self.answers[hashlib.sha256(payload).hexdigest()]
                    body = real[self.ranks[member] % len(real)]
                    self.said(member, Kind.BYTES, body, number=task)
                    self.answered += 1
                else:
                    self.running[member] = 0
            case say.Kill(member=member):
                self.ranks.pop(member, None)
                self.running.pop(member, None)
            case say.Ask(member=member, ticket=ticket):
                self.tell(say.Told(member=member, ticket=ticket, body=b""))

    def said(self, member, kind, body, *, number=0):
        """Say what a rank says."""
        words = {"member": member, "pid": self.index + 1, "number": number, "kind": kind, "body": body}
        self.tell(say.Said(**words, after=0.001))

    def beat(self):
        """Tell of ranks that run what is never answered: they compute."""
        if self.running and self.welcome:
            self.running = {member: count + 1 for member, count in self.running.items()}
            seen = tuple(say.Seen(member, count, False) for member, count in self.running.items())
            self.tell(say.Pulse(ranks=seen))

    def tell(self, word):
        """Send a word."""
        self.link.send(say.encode(word))


def simulate(address, number, answers):
    """Be `number` agents; orders come by standard input: join, drop I, back I, counts, end."""
    raise_descriptor_limit()
    host, port = address.rsplit(":", 1)
    selector, token = selectors.DefaultSelector(), os.environ["PIPECONFORM_TOKEN"].encode()
    agents = [Simulated(i, (host, int(port)), token, answers, selector) for i in range(number)]
    beaten = time.monotonic()
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("here", flush=True)
    while True:
        for key, _ in selector.select(0.05):
            if key.data is not None:
                if not key.data.turn():
                    key.data.drop()
                continue
            word, *which = sys.stdin.readline().split() or ["end"]
            match word:
                case "join":
                    for agent in agents:
                        agent.connect()
                case "drop":
                    agents[int(which[0])].drop()
                case "back":
                    agents[int(which[0])].connect()
                case "counts":
                    print(json.dumps([agent.answered for agent in agents]), flush=True)
                case _:
                    return
        if time.monotonic() - beaten > max(agent.pulse for agent in agents):
            beaten = time.monotonic()
            for agent in agents:
                agent.beat()
