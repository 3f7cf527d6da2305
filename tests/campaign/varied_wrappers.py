"""Wrappers that are judged under an environment variant, each the reference with settings of its own."""

from __future__ import annotations

import os
from dataclasses import replace

from pipeconform.reference_impl.wrapper_adapter import ReferenceWrapper

from pipeconform.wrapper import WrapperDescription

_STRICT = {"strict": {"PIPECONFORM_TEST_STRICT": "1"}}


def is_strict() -> bool:
    return os.environ.get("PIPECONFORM_TEST_STRICT") == "1"


class Varied(ReferenceWrapper):
    """Has a variant."""

    def describe(self) -> WrapperDescription:
        return replace(super().describe(), variants=_STRICT)


class WrongWhenStrict(Varied):
    """Shows doubled gradients under its variant."""

    def wrap(self, module, options):
        found = super().wrap(module, options)
        if is_strict():
            right = found.gradients
            found.gradients = lambda: {name: None if g is None else 2 * g for name, g in right().items()}
        return found


class ClaimsWhenStrict(Varied):
    """Claims less under its variant."""

    def describe(self) -> WrapperDescription:
        found = super().describe()
        claims = replace(found.claims, features=frozenset()) if is_strict() else found.claims
        return replace(found, claims=claims)
