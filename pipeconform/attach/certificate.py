"""TLS between controller and agents: a key and a certificate that the controller makes for one run.

The agent does not look for an authority that vouches for the certificate. It accepts any, and the proofs of the
greeting cover the fingerprint of the one that it was shown: only a controller that knows the token and has the
certificate's key can complete them.
"""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import tempfile
from pathlib import Path

from pipeconform.errors import HarnessError

__all__ = ["agents_context", "controllers_context", "fingerprint_of"]

_DAYS = "3650"  # neither side compares the date: clocks of hosts need not agree
_LIMIT = 60  # seconds
_COMMAND = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def controllers_context() -> tuple[ssl.SSLContext, bytes]:
    """A context with a new key and certificate, and the certificate's fingerprint; the key is kept in memory only.

    Raises:
        HarnessError: the command ``openssl``, which makes them, is missing or fails.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # an agent connects once
    with tempfile.TemporaryDirectory(prefix="pipeconform-tls-") as folder:  # readable for its user alone
        key, certificate = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        files = ("-keyout", str(key), "-out", str(certificate))
        command = [*_COMMAND, "-subj", "/CN=pipeconform", "-days", _DAYS, *files]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT)  # noqa: S603 - all of it is ours
        except FileNotFoundError as error:
            raise HarnessError(
                "attached ranks need the command openssl on the controller's machine, which makes the run's "
                "certificate; install the package openssl"
            ) from error
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or b""
            raise HarnessError(
                f"openssl could not make the run's certificate: {said.decode(errors='replace').strip() or error}"
            ) from error
        context.load_cert_chain(certificate, key)
        return context, fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate.read_text()))


def agents_context() -> ssl.SSLContext:
    """A context that accepts any certificate; the greeting decides about it."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint_of(certificate: bytes) -> bytes:
    """The SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
