"""A signature is of one file, by one key, in minisign's format."""

import base64
import hashlib
import shutil
import subprocess

import pytest

from pipeconform.certificate.signature import public_key_of, sign, verify_signature
from pipeconform.errors import BadPackageError, UsageError

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


@pytest.fixture
def key(tmp_path):
    def write(name="key"):
        private = ed25519.Ed25519PrivateKey.generate()
        path = tmp_path / f"{name}.pem"
        path.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        public = tmp_path / f"{name}.pub"
        public.write_text(public_key_of(path))
        return path, public

    return write


def signer(file, *, public_key):
    """The key that signed a file as it is now."""
    return verify_signature(file, blake2b=hashlib.blake2b(file.read_bytes()).digest(), public_key=public_key)


@pytest.fixture
def signed(key, tmp_path):
    file = tmp_path / "package.zip"
    file.write_bytes(b"contents")
    private, public = key()
    beside = sign(file, key=private, comment="mine, level forward")
    return file, beside, public


def test_a_signature_verifies_with_its_key(signed):
    file, beside, public = signed

    assert beside.name == "package.zip.minisig"
    assert signer(file, public_key=public) == public.read_text().splitlines()[0].split()[-1]
    assert beside.read_text().splitlines()[2] == "trusted comment: mine, level forward"


def test_a_changed_file_is_not_what_was_signed(signed):
    file, _, public = signed
    file.write_bytes(b"contents!")

    with pytest.raises(BadPackageError, match="not the signature of"):
        signer(file, public_key=public)


def test_a_changed_comment_is_not_what_was_signed(signed):
    file, beside, public = signed
    beside.write_text(beside.read_text().replace("level forward", "level full"))

    with pytest.raises(BadPackageError, match="not the signature of"):
        signer(file, public_key=public)


def test_another_key_is_told(signed, key):
    file, _, _ = signed

    with pytest.raises(BadPackageError, match="made with another key"):
        signer(file, public_key=key("other")[1])


@pytest.mark.parametrize(
    "text", ["", "hello\n", "a\nb\nc\nd\n", "untrusted comment: x\n!!!\ntrusted comment: y\n!!!\n"]
)
def test_a_damaged_signature_is_refused(signed, text):
    file, beside, public = signed
    beside.write_text(text)

    with pytest.raises(BadPackageError, match=r"not a minisign signature|damaged"):
        signer(file, public_key=public)


def test_a_missing_signature_is_told(signed):
    file, beside, public = signed
    beside.unlink()

    with pytest.raises(BadPackageError, match=r"cannot read .*minisig"):
        signer(file, public_key=public)


def test_what_is_no_key_is_refused(signed, tmp_path):
    file, _, _ = signed
    (tmp_path / "x.pem").write_text("no key")
    (tmp_path / "x.pub").write_text("no key\n")

    with pytest.raises(BadPackageError, match="not a private key"):
        sign(file, key=tmp_path / "x.pem", comment="")
    with pytest.raises(BadPackageError, match=r"damaged|not a minisign public key"):
        signer(file, public_key=tmp_path / "x.pub")


def test_a_key_of_another_kind_is_refused(signed, tmp_path):
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "rsa.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )

    with pytest.raises(BadPackageError, match="not an Ed25519 key"):
        sign(signed[0], key=tmp_path / "rsa.pem", comment="")


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_minisign_itself_accepts_the_signature(signed):
    file, _, public = signed

    assert subprocess.run(["minisign", "-V", "-q", "-p", public, "-m", file], check=False).returncode == 0


def _reencoded(line, change):
    return base64.b64encode(change(base64.b64decode(line))).decode()


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1, lambda data: b"Ed" + data[2:]),
        (1, lambda data: data[:-1]),
        (1, lambda data: data + b"x"),
        (3, lambda data: data[:-1]),
        (3, lambda data: data + b"x"),
    ],
    ids=["of the file itself", "shorter", "longer", "the whole's shorter", "the whole's longer"],
)
def test_a_signature_is_of_a_hashed_file_and_as_long_as_one(signed, number, change):
    file, beside, public = signed
    lines = beside.read_text().splitlines()
    lines[number] = _reencoded(lines[number], change)
    beside.write_text("\n".join(lines) + "\n")

    with pytest.raises(BadPackageError, match="not a minisign signature of a hashed file"):
        signer(file, public_key=public)


@pytest.mark.parametrize(
    "change", [lambda data: b"ED" + data[2:], lambda data: data[:-1], lambda data: data + b"x"]
)
def test_a_public_key_has_its_mark_and_length(signed, change):
    file, _, public = signed
    comment, key = public.read_text().splitlines()
    public.write_text(f"{comment}\n{_reencoded(key, change)}\n")

    with pytest.raises(BadPackageError, match="not a minisign public key"):
        signer(file, public_key=public)


def test_comments_and_blank_lines_around_a_public_key_and_after_a_signature_are_nothing(signed):
    file, beside, public = signed
    comment, key = public.read_text().splitlines()
    public.write_text(f"\n{comment}\n\n{key}\nuntrusted comment: more\n")
    beside.write_text(beside.read_text() + "\n")

    assert signer(file, public_key=public)
    public.write_text(f"{comment}\n")
    with pytest.raises(BadPackageError, match="not a minisign public key"):
        signer(file, public_key=public)


def test_a_signature_without_a_trusted_comment_is_none(signed):
    file, beside, public = signed
    beside.write_text(beside.read_text().replace("\ntrusted comment: ", "\nuntrusted comment: "))

    with pytest.raises(BadPackageError, match="not a minisign signature"):
        signer(file, public_key=public)


def test_what_is_not_text_is_damaged(signed):
    file, beside, public = signed
    beside.write_bytes(b"\xff\xfe\n")

    with pytest.raises(BadPackageError, match="damaged: not text"):
        signer(file, public_key=public)


def test_a_comment_of_several_lines_is_written_in_one(signed, key):
    file, _, _ = signed
    private, public = key("another")
    beside = sign(file, key=private, comment="one\ntwo")

    assert beside.read_text().splitlines()[2] == "trusted comment: one two"
    assert signer(file, public_key=public)


def test_a_signature_that_cannot_be_written_is_told(key, tmp_path):
    file = tmp_path / "package.zip"
    file.write_bytes(b"contents")
    (tmp_path / "package.zip.minisig").mkdir()

    with pytest.raises(BadPackageError, match=r"cannot write .*package.zip.minisig"):
        sign(file, key=key()[0], comment="")


def test_without_the_extra_it_is_named(signed, key, monkeypatch):
    file, _, public = signed
    private, _ = key("another")
    monkeypatch.setattr("pipeconform.certificate.signature._INSTALLED", False)

    for ask in (
        lambda: sign(file, key=private, comment=""),
        lambda: signer(file, public_key=public),
        lambda: public_key_of(private),
    ):
        with pytest.raises(UsageError, match=r"signatures need the extra 'sign'"):
            ask()
