"""Engines that are judged under an environment variant, each the reference with settings of its own."""

from __future__ import annotations

import os
from dataclasses import replace

from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Description, ErrorContract

_STRICT = {"strict": {"PIPECONFORM_TEST_STRICT": "1"}}


class PromisesWhenStrict(ReferenceAdapter):
    """Promises errors under its variant only."""

    def describe(self) -> Description:
        description = replace(super().describe(), variants=_STRICT)
        if os.environ.get("PIPECONFORM_TEST_STRICT") == "1":
            return description
        return replace(description, errors=ErrorContract())


class ClaimsWhenStrict(ReferenceAdapter):
    """Claims less under its variant."""

    def describe(self) -> Description:
        description = replace(super().describe(), variants=_STRICT)
        if os.environ.get("PIPECONFORM_TEST_STRICT") != "1":
            return description
        claims = replace(description.capabilities, features=frozenset())
        return replace(description, capabilities=claims)
