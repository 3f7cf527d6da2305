"""Sealed frames over a socket."""

import socket

import pytest

from pipeconform.attach.link import Link

ONE, OTHER = b"1" * 32, b"2" * 32


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    yield pair
    for one in pair:
        one.close()


def linked(sockets, **how):
    left = Link(sockets[0], sealing=ONE, opening=OTHER, **how)
    return left, Link(sockets[1], sealing=OTHER, opening=ONE, **how)


def test_frames_arrive_in_order_and_both_ways(sockets):
    left, right = linked(sockets)
    for body in (b"first", b"", b"third"):
        left.send(body)
    right.send(b"answer")
    left.pull()
    right.pull()

    assert list(right.messages) == [b"first", b"", b"third"]
    assert list(left.messages) == [b"answer"]


def test_a_frame_larger_than_the_sockets_buffers_arrives_whole(sockets):
    left, right = linked(sockets)
    body = bytes(range(256)) * (32 << 10)
    left.send(body)
    assert left.queued
    while not right.messages:
        left.push()
        right.pull()

    assert right.messages.popleft() == body
    assert left.queued == 0


def wire(sockets, *bodies):
    """The bytes of frames as the left side sends them."""
    left, _ = linked(sockets)
    for body in bodies:
        left.send(body)
    return sockets[1].recv(1 << 16)


HEAD = 24


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1] + b"X",
        lambda data: data[:10] + bytes([data[10] ^ 1]) + data[11:],
        lambda data: data[HEAD + 1 :],
        lambda data: data[: HEAD + 1] * 2,
    ],
    ids=["body", "seal", "left out", "repeated"],
)
def test_what_was_changed_on_the_way_ends_the_link(sockets, spoil):
    data = spoil(wire(sockets, b"1", b"2"))
    near, far = socket.socketpair()
    with near, far:
        link = Link(far, sealing=OTHER, opening=ONE)
        near.sendall(data)
        link.pull()

    assert link.ended == "carried a message with a wrong seal"
    assert b"2" not in link.messages


def test_an_announced_size_beyond_the_limit_ends_the_link_before_any_of_it_is_kept(sockets):
    link = Link(sockets[1], sealing=OTHER, opening=ONE, limit=100)
    sockets[0].sendall((101).to_bytes(8, "big") + bytes(16))
    link.pull()

    assert link.ended == "announced a message of 101 bytes; the limit is 100"


def test_nobody_sends_more_than_the_peer_takes(sockets):
    left, _ = linked(sockets, limit=100)

    with pytest.raises(ValueError, match="101 bytes"):
        left.send(bytes(101))


def test_the_end_of_the_peer_is_told_once_and_frames_before_it_count(sockets):
    left, right = linked(sockets)
    left.send(b"last words")
    left.end("done")
    right.pull()
    right.pull()

    assert list(right.messages) == [b"last words"]
    assert right.ended == "was closed"
    right.send(b"into the void")
