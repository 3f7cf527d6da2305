"""What a subject of cases is: everything about it in one value, which a file of `subjects/` holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipeconform.case.case import Adam, Case, Eval, FloatType, LossSpec, Model, Sgd, Step, Train, World
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import Capabilities, Feature, ScheduleClaim

__all__ = ["Change", "Draft", "Form", "Size", "Subject"]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A case before its last choices: what subjects change."""

    model: Model
    world: World
    train: Train
    evaluate: Eval
    loss: LossSpec
    optimizer: Sgd | Adam | None = None
    program: tuple[Step, ...] = ()
    """Empty until it is drawn."""


Change: TypeAlias = Callable[[Drawing, Draft], Draft]
Form = Literal["stages", "whole", "replicas", "tensor parallel"]
Size = tuple[int, int, int]
"""p, v and m."""


def _everywhere(claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One thing that cases are about; a case drawn for it is a plain one with this and little else."""

    focus: Focus
    form: Form = "stages"
    """Stages given one by one, a whole model for a front end, replicas of the pipeline, or stages cut over ranks."""
    mistaken: bool = False
    """Whether its cases do something wrong on purpose: an error is then expected."""

    needs: frozenset[Feature] = frozenset()
    """The features without which it is not claimed."""
    trains: bool = False
    """Whether it is about training, so that schedules that only evaluate have no such cases."""
    claimed: Callable[[ScheduleClaim, Capabilities], bool] = _everywhere
    """Whatever else must be claimed."""

    found: Callable[[Case], bool] | None = None
    """Whether a case of this form has the subject; None: its cases cannot be told from plain ones."""
    rarity: int = 1
    """Of the subjects found in a case, those with the highest number count."""

    least_stages: int = 1
    """The smallest number of stages, p·v, with which there is such a case."""
    least_ranks: int = 1
    least_stages_per_rank: int = 1
    least_replicas: int = 1
    most_replicas: int = 4
    """With tensor-parallel stages, the largest number that is drawn."""
    size: Callable[[Drawing], Size] | None = None
    """How p, v and m are drawn, if not as usual."""
    sizes: Callable[[Limits, ScheduleClaim], frozenset[Size]] | None = None
    """Sizes that its cases may have besides those that the schedule takes."""
    rows: tuple[int, ...] = (1, 2, 2, 3)
    """Samples in a microbatch to draw from."""
    widths: tuple[int, ...] = (1, 2, 3, 4, 4, 6, 8, 8)
    sequence: Callable[[Drawing, int], int] | None = None
    """The length of sequences, if it is not the given one."""
    batch_size: Callable[[Drawing, int], int] | None = None
    """The size of the batch, if it is not the given one."""
    dtype: Callable[[Drawing], FloatType] | None = None
    """The dtype of the model, if it is not a usual one."""

    contents: Change | None = None
    """What it changes before the world is drawn: model, loss, optimizer, steps."""
    world: Callable[[Drawing], World] | None = None
    """How the world is drawn, if not as usual; of tensor-parallel stages before the sizes of tensors."""
    program: Change | None = None
    """What it changes once the world is drawn: the program, and what depends on the world; None: two runs."""
    finish: Callable[[Drawing, Case], Case] | None = None
    """What it changes in the finished case."""

    without: Callable[[Case], Case] | None = None
    """The control: a case that has the subject without it, and everything else as it was."""
    control: str = ""
    """The control in words that follow on "the same case", such as "without the delays"."""
    no_control: str = ""
    """Why there is no control."""
    alters: Literal["", "batch sizes", "dtype"] = ""
    """What cannot stay as it was in the control, because it is the subject."""

    def __post_init__(self) -> None:
        """Refuse a subject that says nothing about its control."""
        assert bool(self.control) == (self.without is not None) != bool(self.no_control), self.focus

    @property
    def is_parallel(self) -> bool:
        """Whether its cases have several pipelines."""
        return self.form in ("replicas", "tensor parallel")

    @property
    def group(self) -> str:
        """Subjects of one group can be found in one case."""
        return "mistaken" if self.mistaken else self.form

    def is_in(self, case: Case) -> bool:
        """Whether the case, which must be of this group, has the subject."""
        return self.found is not None and self.found(case)

    def control_of(self, case: Case) -> Case | None:
        """The same case without the subject; None if there is no such case, or the case does not have the subject."""
        if self.without is None or self.group != group_of(case) or not self.is_in(case):
            return None
        return self.without(case)


def group_of(case: Case) -> str:
    """The group of the subjects that a case can have."""
    if case.is_mistaken:
        return "mistaken"
    form: Form = "stages"
    if case.world.tensor is not None:
        form = "tensor parallel"
    elif case.world.replicas is not None:
        form = "replicas"
    elif case.model.split is not None:
        form = "whole"
    return form
