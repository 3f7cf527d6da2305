"""Environment variants: what the rank processes see, as data.

A fork server's children inherit the *server's* environment, so a variable set by the caller at test time
never reaches a rank. An :class:`Environment` is therefore applied before the server starts (and so before
torch is imported), the ranks report what they see, and :meth:`Environment.check` compares the two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pipeconform.errors import VariantError

__all__ = ["Environment"]

# One intra-op thread per rank: results are bit-equal to the oracle's, and ranks do not compete for a few cores.
_FORCED: Mapping[str, str | None] = MappingProxyType(
    {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
)


def _defaults() -> dict[str, str | None]:
    """Settings that the user's own take precedence over."""
    # Without it gloo resolves the host name, which fails or is slow on many machines.
    return {} if "GLOO_SOCKET_IFNAME" in os.environ else {"GLOO_SOCKET_IFNAME": _loopback()}


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Environment:
    """A named set of environment variables for rank processes; ``None`` removes a variable."""

    name: str = "default"
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", MappingProxyType(dict(self.variables)))

    def effective(self) -> Mapping[str, str | None]:
        """Return every variable that this environment sets or removes: the base's, then the variant's own."""
        return MappingProxyType({**_FORCED, **_defaults(), **self.variables})

    def process_environment(self) -> dict[str, str]:
        """Return the full environment of the fork server: the caller's with these settings applied."""
        merged: dict[str, str | None] = {**os.environ, **self.effective()}
        return {name: value for name, value in merged.items() if value is not None}

    def check(self, reported: Mapping[str, str | None], *, rank: int) -> None:
        """Compare what ``rank`` reported with what was asked for.

        Raises:
            VariantError: a variable of the variant has another value in the rank.
        """
        for name, wanted in self.variables.items():
            seen = reported.get(name)
            if seen != wanted:
                raise VariantError(
                    f"environment {self.name!r} asks for {_setting(name, wanted)}, but rank {rank} sees "
                    f"{_setting(name, seen)}; a preloaded module may change it"
                )


def _setting(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else f"{name}={value!r}"
