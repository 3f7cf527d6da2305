"""Frames inside of TLS."""

import socket

import pytest

from pipeconform.attach import link as links
from pipeconform.attach.link import Link
from tests.attach.secured import linked, secured_pair
from tests.facts import tells


@pytest.fixture
def pair():
    made = linked()
    yield made
    for one in made:
        one.close()


def until(done, *links):
    for _ in range(100_000):
        if done():
            return
        for one in links:
            one.push()
            one.pull()
    raise AssertionError("it never came")


def test_frames_arrive_in_order_and_both_ways(pair):
    left, right = pair
    for body in (b"first", b"", b"third"):
        left.send(body)
    right.send(b"answer")
    until(lambda: len(right.messages) == 3 and left.messages, left, right)

    assert list(right.messages) == [b"first", b"", b"third"]
    assert list(left.messages) == [b"answer"]


def test_a_frame_larger_than_the_sockets_buffers_arrives_whole(pair):
    left, right = pair
    body = bytes(range(256)) * (32 << 10)
    left.send(body)
    assert left.queued
    until(lambda: right.messages, left, right)

    assert right.messages.popleft() == body
    assert left.queued == 0


def test_a_turn_leaves_nothing_that_would_wake_no_wait(pair, monkeypatch):
    """TLS reads whole records: what is left of one is not in the kernel any more."""
    left, right = pair
    monkeypatch.setattr(links, "_TURN", 1)
    monkeypatch.setattr(links, "_GULP", 10)
    left.send(bytes(10_000))
    right.pull()

    assert [len(body) for body in right.messages] == [10_000]


def test_bodies_are_not_readable_on_the_way():
    secret = b"the weights of stage 3 " * 20
    near, far = socket.socketpair()
    between, controller = socket.socketpair()
    seen = bytearray()

    import threading

    from pipeconform.attach.certificate import agents_context
    from tests.attach.secured import contexts

    def carry(source, sink):
        while data := source.recv(1 << 16):
            seen.extend(data)
            sink.sendall(data)

    ways = [threading.Thread(target=carry, args=way, daemon=True) for way in ((far, between), (between, far))]
    for way in ways:
        way.start()
    accepted = []
    server = threading.Thread(
        target=lambda: accepted.append(contexts()[0].wrap_socket(controller, server_side=True))
    )
    server.start()
    agent = Link(agents_context().wrap_socket(near), greeting=4096)
    server.join()
    other = Link(accepted[0], greeting=4096)
    agent.send(secret)
    until(lambda: other.messages, agent, other)

    assert other.messages.popleft() == secret
    assert len(seen) > len(secret)
    assert secret[:16] not in bytes(seen)
    for one in (agent, other):
        one.close()
    for way in ways:
        way.join(5)
    for one in (far, between):
        one.close()


@pytest.mark.parametrize("spoil", ["changed", "left out", "repeated"])
def test_what_was_changed_on_the_way_ends_the_link(spoil):
    agent, controller = secured_pair()
    near, far = socket.socketpair()
    sender, receiver = Link(agent, greeting=4096), Link(controller, greeting=4096)
    receiver.admit()
    with near, far:
        sender.send(b"1")
        receiver.pull()
        assert receiver.messages.popleft() == b"1"
        taken = []
        for body in (b"2", b"3"):  # what TLS sends is taken off the wire
            sender.send(body)
            taken.append(socket.socket.recv(controller, 1 << 16))
        data = {
            "changed": taken[0][:-1] + bytes([taken[0][-1] ^ 1]),
            "left out": taken[1],
            "repeated": taken[0] + taken[0],
        }[spoil]
        socket.socket.send(agent, data)
        receiver.pull()

    assert receiver.ended.startswith("broke: ")
    assert b"3" not in receiver.messages
    assert len(receiver.messages) == (1 if spoil == "repeated" else 0)
    for one in (sender, receiver):
        one.close()


@pytest.fixture
def stranger():
    """Make a pair of links that are not admitted."""
    made = []

    def make():
        made.extend(linked(admitted=False, greeting=100))
        return made[-2:]

    yield make
    for one in made:
        one.close()


def test_before_it_is_admitted_a_peer_sends_one_small_frame(stranger):
    left, right = stranger()
    left.send(bytes(101))
    until(lambda: right.ended, right)
    assert tells(right.ended, "101 bytes", "limit", "100")

    left, right = stranger()
    for body in (bytes(100), bytes(1 << 20)):
        left.send(body)
    until(lambda: right.messages, left, right)
    for _ in range(50):
        left.push()
        right.pull()
    assert [len(body) for body in right.messages] == [100]
    assert right.partial < 1 << 19  # the rest waits in the kernel
    right.messages.clear()
    right.admit()
    until(lambda: right.messages, left, right)
    assert [len(body) for body in right.messages] == [1 << 20]


def test_nobody_sends_more_than_the_peer_takes(pair, monkeypatch):
    monkeypatch.setattr(links, "MESSAGE_LIMIT", 100)

    with pytest.raises(ValueError, match="101 bytes"):
        pair[0].send(bytes(101))


def test_who_sends_when_the_peer_has_closed_still_reads_what_it_said(pair):
    """The controller says goodbye and closes while an agent reports: the goodbye counts, not the broken send."""
    agent, controller = pair
    agent.send(b"never read by the controller")
    controller.send(b"goodbye")
    controller.close()
    for _ in range(3):
        agent.send(b"a report")

    assert list(agent.messages) == [b"goodbye"]
    assert agent.ended
    assert agent.queued == 0


def test_the_end_of_the_peer_is_told_once_and_frames_before_it_count(pair):
    left, right = pair
    left.send(b"last words")
    left.end("done")
    until(lambda: right.ended, right)
    right.pull()

    assert list(right.messages) == [b"last words"]
    assert right.ended == "was closed"
    right.send(b"into the void")
