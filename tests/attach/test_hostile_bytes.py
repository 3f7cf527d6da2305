"""Whatever bytes come, a peer is refused or lost; nothing else is raised."""

import contextlib
import socket

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pipeconform.attach.greeting import Greeter, Guest, Identity, Refused
from pipeconform.attach.link import Link
from pipeconform.attach.messages import read_order, read_word

TOKEN = b"a token that both sides know"
ME = Identity(host="one", pid=7, address="10.0.0.1")


@st.composite
def spoiled(draw, data):
    """Some bytes with one stretch exchanged for others."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, len(data)))
    return data[:start] + draw(st.binary(max_size=64)) + data[end:]


@given(st.data())
def test_a_spoiled_greeting_never_gets_in(data):
    hello = Guest(TOKEN, ME).begin()
    sent = data.draw(spoiled(hello))
    greeter = Greeter(TOKEN)
    with contextlib.suppress(Refused):
        greeter.feed(sent + data.draw(st.binary(max_size=64)))

    assert greeter.keys is None
    assert greeter.identity is None


@given(st.data())
def test_a_spoiled_proof_never_gets_in(data):
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)
    proof = guest.feed(greeter.feed(guest.begin()))
    sent = data.draw(spoiled(proof))
    with contextlib.suppress(Refused):
        greeter.feed(sent)

    assert (greeter.keys is None) == (not sent.startswith(proof))


@given(st.binary(max_size=256), st.integers(0, 5))
def test_a_message_is_one_of_ours_or_a_validation_error(body, kind):
    tagged = msgspec.msgpack.encode(
        {"type": ["Ready", "Answer", "Gone", "Pulse", "Task", "Fork"][kind], "member": 1}
    )
    for text in (body, tagged, tagged + body, tagged[:-1] + body):
        for read in (read_order, read_word):
            with contextlib.suppress(msgspec.MsgspecError):
                read(text)


@given(st.binary(min_size=1, max_size=512))
def test_an_unsealed_frame_never_comes_through(data):
    near, far = socket.socketpair()
    with near, far:
        link = Link(far, sealing=b"1" * 32, opening=b"2" * 32)
        near.sendall(data)
        link.pull()

        assert not link.messages
