"""Who knocks at the controller's door: each costs one connection and one line."""

import os
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass

import msgspec
import pytest

from pipeconform.attach import messages
from pipeconform.attach.certificate import agents_context, fingerprint_of
from pipeconform.attach.greeting import (
    GREETING_LIMIT,
    Identity,
    Refused,
    hello,
    own_versions,
    require_welcome,
)
from pipeconform.attach.hub import Hub
from pipeconform.attach.link import Link
from pipeconform.errors import UsageError
from pipeconform.ranks.wire import Kind
from tests.attach.sites import TOKEN
from tests.facts import tells

ME = Identity(host="here", pid=1, address="127.0.0.1")


_made = []


@pytest.fixture(autouse=True)
def _links_are_closed():
    yield
    while _made:
        _made.pop().close()


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = 0.0

    def __call__(self):
        return self.now


def connect(site):
    host, port = site.hub.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def peer_of(connection):
    return "{}:{}".format(*connection.getsockname())


def greet(site, connection, *, identity=ME, token=TOKEN, versions=None):
    """Be an agent up to the end of the handshake."""
    link, known = proved(connection, step=site.hub.step, identity=identity, token=token, versions=versions)
    while not link.messages and not link.ended:
        site.hub.step(0.01)
        link.pull()
    require_welcome(link.messages.popleft(), token=token.encode(), fingerprint=known, identity=identity)
    link.admit()
    return link


def proved(connection, *, step, identity=ME, token=TOKEN, versions=None):
    """Be an agent that has said all that it says, and the fingerprint that it was shown."""
    connection.settimeout(0.0)
    secured = agents_context().wrap_socket(connection, do_handshake_on_connect=False)
    while True:
        try:
            secured.do_handshake()
            break
        except ssl.SSLWantReadError:
            step(0.01)
    link = Link(secured, greeting=GREETING_LIMIT)
    _made.append(link)
    known = fingerprint_of(secured.getpeercert(binary_form=True))
    link.send(hello(token.encode(), known, identity, versions=versions))
    return link, known


def closed_by_peer(connection):
    """Read until the other side closes."""
    connection.settimeout(10)
    data = b""
    try:
        while part := connection.recv(4096):
            data += part
    except ConnectionResetError:
        pass
    return data


def test_noise_costs_its_connection_and_one_line_that_names_it(site):
    here = site()
    with connect(here) as noisy:
        noisy.sendall(os.urandom(16) + bytes(64 << 10))
        here.step_until(lambda: here.lines)
        assert here.lines[0].startswith(f"refused {peer_of(noisy)}, which does not speak the protocol")
        closed_by_peer(noisy)
    for _ in range(5):
        here.hub.step(0.02)

    assert len(here.lines) == 1
    assert not here.hub.agents


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak the protocol: it began with b'GET / HT'"),
        (b"pcattach", "does not speak the protocol: it began with b'pcattach'"),
        (b"\x16\x03\x01\xff\xff" + bytes(range(64)), "broke: "),
        (b"\x16\x03\x01\x00\x05hello", "broke: "),
    ],
    ids=["HTTP", "the old greeting", "a record that is too long", "a record that is no greeting"],
)
def test_what_is_no_tls_is_refused_at_once(site, sent, said):
    here = site()
    with connect(here) as noisy:
        noisy.sendall(sent)
        here.step_until(lambda: here.lines)

    assert here.lines[0].startswith(f"refused {peer_of_line(here.lines[0])}, which {said}")


def peer_of_line(line):
    return line.split()[1].rstrip(",")


def test_a_peer_that_speaks_tls_without_a_proof_is_refused(site):
    here = site()
    with connect(here) as stranger:
        link, _ = proved(stranger, step=here.hub.step, token="a token of somebody else")
        here.step_until(lambda: here.lines)
        link.pull()

    assert here.lines[0].endswith("which does not know the token")
    assert not here.hub.agents


def test_a_greeting_that_is_too_large_is_refused_before_it_is_read(site):
    here = site()
    with connect(here) as stranger:
        link, _ = proved(stranger, step=here.hub.step, identity=msgspec.structs.replace(ME, host="x" * 5000))
        here.step_until(lambda: here.lines)
        link.pull()

    assert "announced a message of" in here.lines[0]
    assert not here.hub.agents


def test_a_port_scan_costs_one_line(site):
    here = site()
    with connect(here) as scanner:
        peer = peer_of(scanner)
    here.step_until(lambda: here.lines)

    assert here.lines == [f"refused {peer}, which said nothing"]


def test_a_wrong_token_is_refused_and_told_so(site):
    here = site()
    agent = here.start(token="not the token of these tests")
    here.step_until(lambda: agent.poll() is not None)

    assert agent.returncode == 2
    assert b"does not know the token" in agent.stderr.read()
    assert len(here.lines) == 1
    assert "does not know the token" in here.lines[0]


def test_another_version_is_refused_and_told_so(site):
    here = site()
    with connect(here) as old:
        theirs = msgspec.structs.replace(own_versions(), torch="1.0")
        link, _ = proved(old, step=here.hub.step, versions=theirs)
        here.step_until(lambda: here.lines)
        while not link.messages:
            link.pull()

    assert b"torch 1.0 instead of" in link.messages[0]
    assert "has another version: torch 1.0 instead of" in here.lines[0]


def test_a_slow_loris_is_cut_off_and_keeps_nobody_out(site):
    clock = Clock()
    here = site(greeting_limit=10.0, clock=clock)
    loris = connect(here)
    drops = iter(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))  # how TLS begins
    with loris, connect(here) as good:
        loris.sendall(bytes([next(drops)]))
        greet(here, good)
        assert len(here.hub.agents) == 1
        for _ in range(24):  # a drop every 0.4 s
            loris.sendall(bytes([next(drops)]))
            clock.now += 0.4
            here.hub.step(0.0)
        assert len(here.lines) == 1
        for _ in range(2):
            clock.now += 0.4
            here.hub.step(0.0)

        assert tells(here.lines[1], f"refused {peer_of(loris)}", "handshake", "10 s")
        assert len(here.hub.agents) == 1


def test_a_controller_that_was_held_up_does_not_hold_it_against_who_knocked(site):
    """While it judges, it reads nothing: that time is not the agent's."""
    clock = Clock()
    here = site(greeting_limit=1.0, clock=clock)
    with connect(here) as good:
        here.hub.step(0.1)
        clock.now += 1000.0
        greet(here, good)

        assert len(here.hub.agents) == 1


def test_many_who_say_nothing_do_not_keep_an_agent_out(site):
    here = site(greeting_limit=0.3)
    idle = [connect(here) for _ in range(300)]
    try:
        with connect(here) as good:
            greet(here, good)
            assert [agent.identity for agent in here.hub.agents] == [ME]
    finally:
        for one in idle:
            one.close()


FULL = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
from pipeconform.attach.hub import Hub
hub = Hub("127.0.0.1", 0, token=b"a token for these tests only", say=lambda text: print(text, flush=True))
print(hub.address, flush=True)
begun = time.process_time()
end = time.monotonic() + 120.0
while time.monotonic() < end and not hub.agents:
    hub.step(0.2)
print(time.process_time() - begun, len(hub.agents), flush=True)
"""


def test_a_controller_without_descriptors_says_so_once_idles_and_takes_agents_again():
    with subprocess.Popen([sys.executable, "-c", FULL], stdout=subprocess.PIPE, text=True) as controller:
        host, port = controller.stdout.readline().rsplit(":", 1)
        idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(40)]
        said = controller.stdout.readline()
        assert "takes no more agents for now: Too many open files; 0 are attached" in said
        assert "this process may open 24 files (ulimit -n)" in said
        time.sleep(1.0)
        for one in idle:
            one.close()
        with socket.create_connection((host, int(port)), timeout=10) as good:
            link, _ = proved(good, step=time.sleep)
            while not link.messages:
                link.pull()
            *lines, last = controller.stdout.read().splitlines()

    used, agents = last.split()
    assert agents == "1"
    assert float(used) < 1.0  # a listener that cannot accept wakes whoever watches it
    assert not any("takes no more" in line for line in lines)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode({"type": "Bye"}),
        msgspec.msgpack.encode({"type": "Said", "member": "x"}),
    ],
)
def test_an_agent_that_sends_no_message_of_an_agent_is_lost(site, body):
    here = site()
    with connect(here) as connection:
        link = greet(here, connection)
        link.send(body)
        here.step_until(lambda: not here.hub.agents)

    assert "carried what is not a message" in here.lines[-1]
    assert here.lines[-1].startswith("lost agent 0 on host here (127.0.0.1, pid 1)")


def test_an_answer_for_ranks_that_nobody_asked_for_is_ignored(site):
    here = site()
    with connect(here) as connection:
        link = greet(here, connection)
        answer = messages.Said(member=7, pid=1, number=1, kind=Kind.BYTES, body=b"", after=0.0)
        link.send(messages.encode(answer))
        for _ in range(5):
            here.hub.step(0.02)

        assert len(here.hub.agents) == 1


def test_an_announced_size_beyond_the_limit_is_not_waited_for(site):
    here = site()
    with connect(here) as connection:
        link = greet(here, connection)
        link._socket.sendall((1 << 40).to_bytes(8, "big") + bytes(16))
        here.step_until(lambda: not here.hub.agents)

    assert f"announced a message of {1 << 40} bytes" in here.lines[-1]


def test_agents_of_loopback_and_of_a_network_do_not_go_together(site):
    here = site()
    with connect(here) as one, connect(here) as other:
        greet(here, one)
        with pytest.raises(Refused, match="start it with --address"):
            greet(here, other, identity=msgspec.structs.replace(ME, address="10.0.0.9"))
        here.step_until(lambda: len(here.lines) == 2)

    assert "start it with --address" in here.lines[1]


def test_an_address_that_is_taken_or_not_ours_is_a_usage_error(site):
    host, port = site().hub.address.rsplit(":", 1)
    for address in ((host, int(port)), ("192.0.2.1", 0)):
        with pytest.raises(UsageError, match="cannot listen for agents on"):
            Hub(*address, token=b"", say=print)


def test_the_end_of_the_controller_is_the_agents_end_with_code_0(site):
    here = site()
    agent = here.start()
    here.await_agents(1)
    here.hub.close()

    assert agent.wait(10) == 0


def test_a_controller_that_vanishes_is_the_agents_end_with_code_1(site):
    here = site()
    agent = here.start()
    here.await_agents(1)
    here.hub.agents[0].link.end("was cut")

    assert agent.wait(10) == 1
    assert b"the connection to the controller was closed" in agent.stderr.read()


def test_an_agent_without_a_controller_gives_up_with_code_1(site):
    here = site()
    here.hub.close()
    agent = here.start(wait=0.5)

    assert agent.wait(10) == 1
    said = agent.stderr.read().decode()
    assert "waits for the controller at" in said
    assert "within 0.5 s: Connection refused" in said
