"""All subjects, collected from the files of `subjects/`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping

from pipeconform.case.draw.subject import Form, Subject
from pipeconform.case.focus import Focus

__all__ = ["MISTAKEN", "SUBJECTS", "by_focus", "collected", "of_form"]


def collected(package: str) -> Iterator[Subject]:
    """Every `Subject` at the top level of a module of the package."""
    path = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(path):
        held = vars(importlib.import_module(f"{package}.{module.name}")).values()
        yield from (value for value in held if isinstance(value, Subject))


def by_focus(subjects: Iterable[Subject]) -> dict[Focus, Subject]:
    """The subjects by what they are about; one may be listed twice.

    Raises:
        ValueError: two subjects are about the same.
    """
    known: dict[Focus, Subject] = {}
    for one in subjects:
        if known.setdefault(one.focus, one) is not one:
            raise ValueError(f"two subjects at the top level of their modules are about {one.focus.name}")
    return known


_BY_FOCUS = by_focus(collected("pipeconform.case.draw.subjects"))
SUBJECTS: Mapping[Focus, Subject] = {focus: _BY_FOCUS[focus] for focus in Focus}
"""All subjects, in the order of `Focus`."""
MISTAKEN = frozenset(one.focus for one in SUBJECTS.values() if one.mistaken)
"""The subjects whose cases do something wrong on purpose."""


def of_form(*forms: Form) -> frozenset[Focus]:
    """The subjects whose cases have one of these forms."""
    return frozenset(one.focus for one in SUBJECTS.values() if one.form in forms)
