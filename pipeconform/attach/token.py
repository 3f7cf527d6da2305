"""The token that both sides know: from a file or the environment, never from a command line."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from pipeconform.errors import UsageError

__all__ = ["VARIABLE", "read_token"]

VARIABLE = "PIPECONFORM_TOKEN"
_LEAST = 16  # bytes; an eavesdropper can try tokens on a handshake offline
_MOST = 4096
_ADVICE = "make one with: python -c 'import secrets; print(secrets.token_hex(32))'"


def read_token(file: Path | None, *, environment: MutableMapping[str, str] | None = None) -> bytes:
    """The token in `file`, or in ``PIPECONFORM_TOKEN``, which is removed from the environment.

    Surrounding white space is ignored. It leaves the environment so that no rank process inherits it.

    Raises:
        UsageError: there is none, it cannot be read, or it is too short to be safe.
    """
    known = os.environ if environment is None else environment
    held = known.pop(VARIABLE, None)
    if file is not None:
        try:
            with file.open("rb") as source:
                token, where = source.read(_MOST + 1).strip(), str(file)
        except OSError as error:
            raise UsageError(f"cannot read the token in {file}: {error.strerror or error}") from error
    elif held is not None:
        token, where = held.strip().encode(), VARIABLE
    else:
        raise UsageError(
            f"attached ranks need a token that both sides know: give --token-file FILE or set {VARIABLE}; "
            f"{_ADVICE}"
        )
    if not _LEAST <= len(token) <= _MOST:
        raise UsageError(
            f"the token in {where} has {len(token)} bytes; expected {_LEAST} to {_MOST}; {_ADVICE}"
        )
    return token
