"""A signature is of one file, by one key, in minisign's format."""

import shutil
import subprocess

import pytest

from pipeconform.certificate.signature import public_key_of, sign, verify_signature
from pipeconform.errors import BadPackageError

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
    assert verify_signature(file, public_key=public) == public.read_text().splitlines()[0].split()[-1]
    assert beside.read_text().splitlines()[2] == "trusted comment: mine, level forward"


def test_a_changed_file_is_not_what_was_signed(signed):
    file, _, public = signed
    file.write_bytes(b"contents!")

    with pytest.raises(BadPackageError, match="not the signature of"):
        verify_signature(file, public_key=public)


def test_a_changed_comment_is_not_what_was_signed(signed):
    file, beside, public = signed
    beside.write_text(beside.read_text().replace("level forward", "level full"))

    with pytest.raises(BadPackageError, match="not the signature of"):
        verify_signature(file, public_key=public)


def test_another_key_is_told(signed, key):
    file, _, _ = signed

    with pytest.raises(BadPackageError, match="made with another key"):
        verify_signature(file, public_key=key("other")[1])


@pytest.mark.parametrize(
    "text", ["", "hello\n", "a\nb\nc\nd\n", "untrusted comment: x\n!!!\ntrusted comment: y\n!!!\n"]
)
def test_a_damaged_signature_is_refused(signed, text):
    file, beside, public = signed
    beside.write_text(text)

    with pytest.raises(BadPackageError, match=r"not a minisign signature|damaged"):
        verify_signature(file, public_key=public)


def test_a_missing_signature_is_told(signed):
    file, beside, public = signed
    beside.unlink()

    with pytest.raises(BadPackageError, match=r"cannot read .*minisig"):
        verify_signature(file, public_key=public)


def test_what_is_no_key_is_refused(signed, tmp_path):
    file, _, _ = signed
    (tmp_path / "x.pem").write_text("no key")
    (tmp_path / "x.pub").write_text("no key\n")

    with pytest.raises(BadPackageError, match="not a private key"):
        sign(file, key=tmp_path / "x.pem", comment="")
    with pytest.raises(BadPackageError, match=r"damaged|not a minisign public key"):
        verify_signature(file, public_key=tmp_path / "x.pub")


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
