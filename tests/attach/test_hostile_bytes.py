"""Whatever bytes come, a peer is refused or lost; nothing else is raised."""

import contextlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pipeconform.attach.greeting import Identity, Refused, admitted, hello, require_welcome
from pipeconform.attach.messages import orders, words

TOKEN = b"a token that both sides know"
ME = Identity(host="one", pid=7, address="10.0.0.1")
SHOWN = b"1" * 32


@st.composite
def spoiled(draw, data):
    """Some bytes with one stretch exchanged for others."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, len(data)))
    return data[:start] + draw(st.binary(max_size=64)) + data[end:]


@given(st.data())
def test_a_spoiled_greeting_never_gets_in_as_another(data):
    sent = data.draw(spoiled(hello(TOKEN, SHOWN, ME)))
    with contextlib.suppress(Refused):
        identity, _ = admitted(sent, token=TOKEN, fingerprint=SHOWN)
        assert identity == ME


@given(st.data())
def test_a_greeting_without_the_token_never_gets_in(data):
    sent = data.draw(spoiled(hello(b"another token than that", SHOWN, ME)))
    try:
        admitted(sent, token=TOKEN, fingerprint=SHOWN)
    except Refused:
        return
    raise AssertionError("it got in")


@given(st.data())
def test_a_spoiled_welcome_is_no_other(data):
    _, welcome = admitted(hello(TOKEN, SHOWN, ME), token=TOKEN, fingerprint=SHOWN)
    sent = data.draw(spoiled(welcome))
    with contextlib.suppress(Refused):
        require_welcome(sent, token=TOKEN, fingerprint=SHOWN, identity=ME)
        mac = msgspec.msgpack.decode(welcome)["mac"]
        assert msgspec.msgpack.decode(sent)["mac"] == mac


@given(st.binary(max_size=256), st.integers(0, 5))
def test_a_message_is_one_of_ours_or_a_validation_error(body, kind):
    tagged = msgspec.msgpack.encode(
        {"type": ["Said", "Told", "Gone", "Pulse", "Hand", "Fork"][kind], "member": 1}
    )
    for text in (body, tagged, tagged + body, tagged[:-1] + body):
        for decoder in (orders, words):
            with contextlib.suppress(msgspec.MsgspecError):
                decoder.decode(text)
