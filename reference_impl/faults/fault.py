"""The facts about a fault, and the labels with which a class states them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..agreement import Agreement

__all__ = ["LABELLED", "LABELLED_WRAPPERS", "Fault", "Status", "breaks", "breaks_promise"]

Status = Literal["failed", "crashed", "hung", "error"]
Class = TypeVar("Class", bound=type)

LABELLED: dict[str, Fault] = {}
"""The faults of all modules imported so far, by name."""

LABELLED_WRAPPERS: dict[str, Fault] = {}
"""The same for faulty data-parallel wrappers."""

_PARTS = ("stage_type", "link_type", "step_type", "check_type", "operations_type", "saved_type")
"""The parts of a pipeline that a fault can replace."""
_WRAPPERS = f"{__package__}.faulty_wrappers"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong implementation, and how it shows."""

    name: str
    summary: str
    """What is done wrong, in a sentence."""
    requirement: str
    """The requirement that it breaks."""
    also: tuple[str, ...] = ()
    """Requirements that it breaks as plainly: a report that begins with one of them says what is wrong, too."""
    schedule: str = "1F1B"
    """A schedule under which it shows; ``Wrapper`` for data-parallel wrappers."""
    expected_status: Status = "failed"
    reference: str
    """``module:Class``, the value for ``--impl``."""
    tells: str = ""
    """A regular expression that the finding's message matches: it names the right stage and microbatch."""
    source: str = ""
    """A link to the report of this defect in a real engine; empty if it was invented."""
    or_hangs: bool = False
    """Whether a hang shows it, too, on a device: backends such as NCCL wait where gloo goes on or raises."""


def breaks(
    requirement: str,
    *,
    also: tuple[str, ...] = (),
    schedule: str = "1F1B",
    status: Status = "failed",
    tells: str = "",
    source: str = "",
    or_hangs: bool = False,
) -> Callable[[type], type[ReferenceAdapter]]:
    """Label a class as a fault, and make it an adapter: the reference with this class in place of its own.

    The class is the reference's adapter, its pipeline, its agreement, or one of the pipeline's parts, with something
    wrong in it. The first line of its docstring says what; its name names the fault.

    Raises (when a class is labelled):
        TypeError: it derives from a labelled one.
    """

    def label(wrong: type) -> type[ReferenceAdapter]:
        for base in wrong.__mro__[1:]:
            if any(fault.reference == f"{base.__module__}:{base.__name__}" for fault in LABELLED.values()):
                raise TypeError(
                    f"{wrong.__name__} derives from {base.__name__}, which is an adapter since it was labelled: derive "
                    f"both from a class without a label"
                )
        adapter = _adapter_with(wrong)
        name, reference = _name(adapter.__name__), f"{adapter.__module__}:{adapter.__name__}"
        if name in LABELLED and LABELLED[name].reference != reference:
            raise TypeError(
                f"{name} names two faults, {LABELLED[name].reference} and {reference}: rename one of them"
            )
        LABELLED[name] = Fault(
            name=name,
            summary=_summary(adapter),
            requirement=requirement,
            also=also,
            schedule=schedule,
            expected_status=status,
            reference=reference,
            tells=tells,
            source=source,
            or_hangs=or_hangs,
        )
        return adapter

    return label


def breaks_promise(requirement: str, *, status: Status = "failed", tells: str) -> Callable[[Class], Class]:
    """Label a data-parallel wrapper as a fault, once for every requirement that it is tried on."""

    def label(wrapper: Class) -> Class:
        name = f"{_name(wrapper.__name__)}-{requirement.lower()}"
        LABELLED_WRAPPERS[name] = Fault(
            name=name,
            summary=_summary(wrapper),
            requirement=requirement,
            schedule="Wrapper",
            expected_status=status,
            reference=f"{_WRAPPERS}:{wrapper.__name__}",
            tells=tells,
        )
        return wrapper

    return label


def _adapter_with(wrong: type) -> type[ReferenceAdapter]:
    if issubclass(wrong, ReferenceAdapter):
        return wrong
    if issubclass(wrong, ReferencePipeline | Agreement):
        changed = {"pipeline" if issubclass(wrong, ReferencePipeline) else "agreement": wrong}
    else:
        part = next(name for name in _PARTS if issubclass(wrong, getattr(ReferencePipeline, name)))
        changed = {"pipeline": type(wrong.__name__, (ReferencePipeline,), {part: wrong})}
    said = {"__doc__": wrong.__doc__, "__module__": wrong.__module__}
    return type(wrong.__name__, (ReferenceAdapter,), {**changed, **said})


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n")[0]


def _name(cls: str) -> str:
    """A class's name in words: ``NotDivided`` becomes ``not-divided``."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in cls).lstrip("-")
