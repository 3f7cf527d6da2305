"""The handshake: who is let in, who is not, and what is said to whom."""

import msgspec
import pytest

from pipeconform.attach.greeting import (
    Greeter,
    Guest,
    Hello,
    Identity,
    Proof,
    Refused,
    Versions,
    own_versions,
)

TOKEN = b"a token that both sides know"
ME = Identity(host="one", pid=7, address="10.0.0.1", rank=3)


def exchange(guest, greeter, *, piece=1 << 16):
    """Carry bytes both ways, in pieces, until nobody has more to say."""
    to_greeter, to_guest = guest.begin(), b""
    while to_greeter or to_guest:
        for start in range(0, len(to_greeter), piece):
            to_guest += greeter.feed(to_greeter[start : start + piece])
        to_greeter = b""
        for start in range(0, len(to_guest), piece):
            to_greeter += guest.feed(to_guest[start : start + piece])
        to_guest = b""


@pytest.mark.parametrize("piece", [1 << 16, 7, 1])
def test_equal_tokens_give_equal_keys_and_the_identity(piece):
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)

    exchange(guest, greeter, piece=piece)

    assert guest.keys == greeter.keys
    assert guest.keys is not None
    assert guest.keys.to_agent != guest.keys.to_controller
    assert greeter.identity == ME


def test_every_session_has_keys_of_its_own():
    sides = [(Guest(TOKEN, ME), Greeter(TOKEN)) for _ in range(2)]
    for guest, greeter in sides:
        exchange(guest, greeter)

    assert sides[0][0].keys != sides[1][0].keys


def test_the_controller_refuses_another_token():
    with pytest.raises(Refused, match="does not know the token"):
        exchange(Guest(b"another token than that", ME), Greeter(TOKEN))


def test_the_agent_refuses_a_controller_that_only_repeats_its_own_proof():
    """A mirror answers every message with what it got; the proofs of the two sides differ."""
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)
    proof = guest.feed(greeter.feed(guest.begin()))
    mac = msgspec.msgpack.decode(proof[2:], type=Proof).mac
    body = msgspec.msgpack.encode({"type": "Welcome", "mac": mac})

    with pytest.raises(Refused, match="does not know the token"):
        guest.feed(len(body).to_bytes(2, "big") + body)


def test_a_welcome_before_the_proof_is_out_of_turn():
    guest = Guest(TOKEN, ME)
    guest.begin()
    body = msgspec.msgpack.encode({"type": "Welcome", "mac": b"x" * 32})

    with pytest.raises(Refused, match="out of turn"):
        guest.feed(b"pcattach" + len(body).to_bytes(2, "big") + body)


def test_an_identity_cannot_be_exchanged_on_the_way():
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)
    proof = msgspec.msgpack.decode(guest.feed(greeter.feed(guest.begin()))[2:], type=Proof)
    other = msgspec.msgpack.encode(msgspec.structs.replace(ME, address="10.6.6.6"))
    forged = msgspec.msgpack.encode(msgspec.structs.replace(proof, identity=other))

    with pytest.raises(Refused, match="does not know the token"):
        greeter.feed(len(forged).to_bytes(2, "big") + forged)


def test_a_recorded_handshake_cannot_be_played_again():
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)
    hello = guest.begin()
    proof = guest.feed(greeter.feed(hello))
    later = Greeter(TOKEN)
    later.feed(hello)

    with pytest.raises(Refused, match="does not know the token"):
        later.feed(proof)


@pytest.mark.parametrize("field", Versions.__struct_fields__)
def test_another_version_of_anything_is_refused_by_name(field):
    ours = own_versions()
    theirs = msgspec.structs.replace(ours, **{field: 99 if field == "protocol" else "99"})

    with pytest.raises(Refused, match=f"has another version: {field} 99 instead of "):
        exchange(Guest(TOKEN, ME, versions=theirs), Greeter(TOKEN))


def test_an_agent_tells_why_it_was_refused():
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)
    greeter.feed(guest.begin())

    with pytest.raises(Refused, match="refuses the connection: the peer does not know the token"):
        guest.feed(b"pcattach" + greeter.refusal("does not know the token"))


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak the protocol"),
        (b"pcattacX", "does not speak the protocol"),
        (b"\x00" * (64 << 10), "does not speak the protocol"),
        (b"pcattach\xff\xff", "announced a greeting of 65535 bytes"),
        (b"pcattach\x00\x03abc", "cannot be read"),
        (b"pcattach\x0f\x00" + b"\x91" * 0xF00, "cannot be read"),
    ],
)
def test_noise_is_refused_at_once(noise, said):
    with pytest.raises(Refused, match=said):
        Greeter(TOKEN).feed(noise)


def test_a_nonce_of_another_length_is_refused():
    body = msgspec.msgpack.encode(Hello(versions=own_versions(), nonce=b""))

    with pytest.raises(Refused, match="nonce"):
        Greeter(TOKEN).feed(b"pcattach" + len(body).to_bytes(2, "big") + body)


def test_words_of_a_peer_cannot_move_the_cursor():
    shown = str(msgspec.structs.replace(ME, host="one\x1b[2J\n"))

    assert shown.isprintable()
    assert "one?" in shown


def test_what_comes_after_the_handshake_is_kept():
    guest, greeter = Guest(TOKEN, ME), Greeter(TOKEN)
    proof = guest.feed(greeter.feed(guest.begin()))
    greeter.feed(proof + b"first frame")

    assert greeter.rest() == b"first frame"
