"""Which subjects an implementation claims under a schedule, and for which of them there are cases within the limits."""

from __future__ import annotations

import functools

from pipeconform.case.draw import sizes
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.model import Model
from pipeconform.claims import BoundaryClaim, Capabilities, Feature, Placement, ScheduleClaim

__all__ = ["crosses_as_claimed", "is_claimed", "members_within", "reachable"]


def is_claimed(focus: Focus, claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    """Whether the implementation claims what cases of this focus need under this schedule."""
    return _is_claimed(SUBJECTS[focus], claim, capabilities.under(claim))


def members_within(limits: Limits, claim: ScheduleClaim, subject: Subject) -> tuple[Subject, ...]:
    """The members of a subject that are claimed and fit the limits; the subject itself if it has none."""
    return _members_of(limits, claim, subject.focus) if subject.members else _within(limits, claim, subject)


@functools.lru_cache(maxsize=1024)  # of a hundred members, every case that is drawn asks
def _members_of(limits: Limits, claim: ScheduleClaim, focus: Focus) -> tuple[Subject, ...]:
    return _within(limits, claim, *SUBJECTS[focus].members)


def _within(limits: Limits, claim: ScheduleClaim, *subjects: Subject) -> tuple[Subject, ...]:
    own = limits.capabilities.under(claim)
    return tuple(one for one in subjects if _is_claimed(one, claim, own) and sizes.table(limits, claim, one))


def _is_claimed(subject: Subject, claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    features = capabilities.features
    if not claim.trains and (subject.trains or subject.mistaken or Feature.EVAL not in features):
        return False
    if subject.inside and capabilities.computed_by == "graphs":
        return False
    if "mse" not in capabilities.losses and (subject.squares or subject.form == "whole"):
        return False
    return (
        _form_is_claimed(subject, claim, capabilities)
        and subject.needs <= features
        and subject.claimed(claim, capabilities)
    )


def reachable(limits: Limits, claim: ScheduleClaim, focus: Focus = Focus.PLAIN) -> bool:
    """Whether any p and v within the limits fit the schedule's claim and give enough stages for the focus."""
    subject = SUBJECTS[focus]
    return bool(
        members_within(limits, claim, subject) if subject.members else sizes.table(limits, claim, subject)
    )


def crosses_as_claimed(model: Model, boundary: BoundaryClaim) -> bool:
    """Whether the first stage takes no more tensors than claimed, and boundaries differ only where that is claimed."""
    return model.num_inputs <= boundary.most_inputs and (boundary.differ or not model.boundaries_differ)


def _form_is_claimed(subject: Subject, claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    if subject.form == "stages":
        return True
    if subject.form == "whole":
        return capabilities.tracing is not None
    if not claim.trains or claim.placement not in (Placement.LOOP, Placement.V):
        return False
    if subject.form == "replicas":
        return capabilities.data_parallel is not None
    return capabilities.tensor_parallel is not None and capabilities.sub_groups
