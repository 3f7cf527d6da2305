"""The control of a wrapper's violation: what the case is like without all that its requirement is about."""

from __future__ import annotations

from collections.abc import Iterable

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.wrappers.drawing import is_about

__all__ = ["plain_control"]


def plain_control(case: WrapperCase, listed: Iterable[WrapperCase]) -> WrapperCase | None:
    """Plain training for as many steps, on as many of the case's replicas as possible.

    A requirement's listed cases do not say which of their options is the one that it is about, so all are taken away.
    `listed` are the cases of the requirement about plain training; None if the control is not like any of them, or
    is the case itself.
    """
    plain = tuple(listed)
    ranks = max((one.ranks for one in plain if one.ranks <= case.ranks), default=0)
    if not ranks:
        return None
    control = WrapperCase(ranks=ranks, steps=(Step(),) * len(case.steps), seed=case.seed)
    return control if control != case and is_about(control, plain) else None
