"""Who is let in, who is not, and what is said to whom."""

import msgspec
import pytest

from pipeconform.attach.certificate import controllers_context
from pipeconform.attach.greeting import (
    Hello,
    Identity,
    Refused,
    Versions,
    Welcome,
    admitted,
    hello,
    own_versions,
    refusal,
    require_welcome,
)
from tests.attach.secured import contexts, secured_pair, shown

TOKEN = b"a token that both sides know"
ME = Identity(host="one", pid=7, address="10.0.0.1", rank=3)
SHOWN, OTHERS = b"1" * 32, b"2" * 32


def test_equal_tokens_give_the_identity_and_a_welcome():
    identity, answer = admitted(hello(TOKEN, SHOWN, ME), token=TOKEN, fingerprint=SHOWN)

    assert identity == ME
    require_welcome(answer, token=TOKEN, fingerprint=SHOWN, identity=ME)


def test_the_controller_refuses_another_token():
    with pytest.raises(Refused, match="does not know the token"):
        admitted(hello(b"another token than that", SHOWN, ME), token=TOKEN, fingerprint=SHOWN)


def test_someone_in_between_shows_another_certificate_and_is_refused_by_both():
    """They pass on what they hear; their certificate is not the controller's, whose key they do not have."""
    with pytest.raises(Refused, match="does not know the token"):
        admitted(hello(TOKEN, OTHERS, ME), token=TOKEN, fingerprint=SHOWN)
    _, answer = admitted(hello(TOKEN, SHOWN, ME), token=TOKEN, fingerprint=SHOWN)
    with pytest.raises(Refused, match="does not know the token"):
        require_welcome(answer, token=TOKEN, fingerprint=OTHERS, identity=ME)


def test_the_agent_refuses_a_controller_that_only_repeats_its_own_proof():
    """A mirror answers with what it got; the proofs of the two sides differ."""
    mac = msgspec.msgpack.decode(hello(TOKEN, SHOWN, ME), type=Hello).mac

    with pytest.raises(Refused, match="does not know the token"):
        require_welcome(msgspec.msgpack.encode(Welcome(mac=mac)), token=TOKEN, fingerprint=SHOWN, identity=ME)


def test_the_welcome_of_another_agent_is_none():
    other = msgspec.structs.replace(ME, rank=4)
    _, answer = admitted(hello(TOKEN, SHOWN, other), token=TOKEN, fingerprint=SHOWN)

    with pytest.raises(Refused, match="does not know the token"):
        require_welcome(answer, token=TOKEN, fingerprint=SHOWN, identity=ME)


def test_an_identity_cannot_be_exchanged():
    said = msgspec.msgpack.decode(hello(TOKEN, SHOWN, ME), type=Hello)
    other = msgspec.structs.replace(ME, address="10.6.6.6")
    forged = msgspec.msgpack.encode(msgspec.structs.replace(said, identity=other))

    with pytest.raises(Refused, match="does not know the token"):
        admitted(forged, token=TOKEN, fingerprint=SHOWN)


@pytest.mark.parametrize("field", Versions.__struct_fields__)
def test_another_version_of_anything_is_refused_by_name(field):
    theirs = msgspec.structs.replace(own_versions(), **{field: 99 if field == "protocol" else "99"})

    with pytest.raises(Refused, match=f"has another version: {field} 99 instead of "):
        admitted(hello(TOKEN, SHOWN, ME, versions=theirs), token=TOKEN, fingerprint=SHOWN)


def test_an_agent_tells_why_it_was_refused():
    with pytest.raises(Refused, match="refuses the connection: the peer does not know the token"):
        require_welcome(refusal("does not know the token"), token=TOKEN, fingerprint=SHOWN, identity=ME)


@pytest.mark.parametrize("body", [b"", b"abc", b"\x91" * 0xF00, msgspec.msgpack.encode({"type": "Hello"})])
def test_what_is_no_greeting_is_refused(body):
    with pytest.raises(Refused, match="cannot be read"):
        admitted(body, token=TOKEN, fingerprint=SHOWN)
    with pytest.raises(Refused, match="cannot be read"):
        require_welcome(body, token=TOKEN, fingerprint=SHOWN, identity=ME)


def test_words_of_a_peer_cannot_move_the_cursor():
    said = str(msgspec.structs.replace(ME, host="one\x1b[2J\n"))

    assert said.isprintable()
    assert "one?" in said


def test_the_agent_sees_the_fingerprint_that_the_controller_binds_and_each_run_has_its_own():
    agent, controller = secured_pair()
    with agent, controller:
        assert shown(agent) == contexts()[1]
        assert agent.version() == "TLSv1.3"
    assert controllers_context()[1] != contexts()[1]
