"""The type of a subject: everything about what cases are about, in one value per file of `subjects/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipeconform.case.case import Adam, Case, Eval, FloatType, LossSpec, Model, Sgd, Step, Train, World
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import Capabilities, Feature, ScheduleClaim

__all__ = ["Change", "Draft", "Form", "Size", "Subject"]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An unfinished case, which subjects change."""

    model: Model
    world: World
    train: Train
    evaluate: Eval
    loss: LossSpec
    optimizer: Sgd | Adam | None = None
    program: tuple[Step, ...] = ()
    """The program; empty until it is drawn."""


Change: TypeAlias = Callable[[Drawing, Draft], Draft]
Form = Literal["stages", "whole", "replicas", "tensor parallel"]
Size = tuple[int, int, int]
"""p, v and m."""


def _everywhere(claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One thing that cases can be about; a case drawn for it is a plain case with this and little else."""

    focus: Focus
    form: Form = "stages"
    """Stages given one by one, a whole model for a front end, replicas of the pipeline, or stages cut over ranks."""
    mistaken: bool = False
    """Whether its cases do something wrong on purpose: an error is then expected."""
    inside: bool = False
    """Whether something happens, or is seen, inside of a stage while it computes: no graph of the stage shows it."""

    needs: frozenset[Feature] = frozenset()
    """The features that an implementation must claim."""
    squares: bool = False
    """Whether its models must be trained on squared differences: they have no last block for classes."""
    trains: bool = False
    """Whether it is about training; schedules that only evaluate then have no such cases."""
    claimed: Callable[[ScheduleClaim, Capabilities], bool] = _everywhere
    """Whether everything else that it needs is claimed."""

    found: Callable[[Case], bool] | None = None
    """Whether a case of this form has the subject; None if its cases look like plain ones."""
    rarity: int = 1
    """Among the subjects found in a case, only those with the highest rarity count."""

    least_stages: int = 1
    """The smallest number of stages, p·v, of such a case."""
    least_ranks: int = 1
    least_stages_per_rank: int = 1
    least_replicas: int = 1
    most_replicas: int = 4
    """The largest number of replicas drawn with tensor-parallel stages."""
    size: Callable[[Drawing], Size] | None = None
    """How p, v and m are drawn; None for the default."""
    sizes: Callable[[Limits, ScheduleClaim], frozenset[Size]] | None = None
    """Sizes that its cases may have in addition to those that the schedule accepts."""
    several_microbatches: bool = False
    """Whether its cases have two microbatches or more wherever the schedule accepts them."""
    exact_mean: bool = False
    """Whether m is a power of two wherever the schedule accepts one: dividing by it rounds nothing."""
    rows: tuple[int, ...] = (1, 2, 2, 3)
    """The numbers of samples per microbatch to draw from."""
    widths: tuple[int, ...] = (1, 2, 3, 4, 4, 6, 8, 8)
    sequence: Callable[[Drawing, int], int] | None = None
    """The length of sequences, from the default one."""
    batch_size: Callable[[Drawing, int], int] | None = None
    """The size of the batch, from the default one."""
    dtype: Callable[[Drawing], FloatType] | None = None
    """The dtype of the model; None for the default."""

    contents: Change | None = None
    """Changes made before the world is drawn: to the model, loss, optimizer or steps."""
    world: Callable[[Drawing], World] | None = None
    """How the world is drawn; for tensor-parallel stages, this happens before the sizes of tensors are drawn."""
    program: Change | None = None
    """Changes made after the world is drawn: to the program, or to what depends on the world; None for two runs."""
    finish: Callable[[Drawing, Case], Case] | None = None
    """Changes made to the finished case."""

    without: Callable[[Case], Case] | None = None
    """The control: makes the same case without the subject, and leaves everything else unchanged."""
    control: str = ""
    """The control in words that continue "the same case …", such as "without the delays"."""
    controls: Callable[[Case], Iterator[tuple[str, Case]]] | None = None
    """All controls of a case, with words as above, if they depend on the case; instead of `without` and `further`."""
    further: tuple[tuple[str, Callable[[Case], Case]], ...] = ()
    """Further controls, in words as above, for a subject that adds several things at once."""
    no_control: str = ""
    """Why the subject has no control."""
    members: tuple[Subject, ...] = ()
    """The subjects of which its cases are drawn, in turn; empty if it draws them itself."""
    alters: Literal["", "batch sizes", "dtype"] = ""
    """What the control must change because it is the subject."""

    def __post_init__(self) -> None:
        """Check that the subject has either a control with a description, or the reason for having none."""
        has_control = self.without is not None or self.controls is not None
        assert bool(self.control) == has_control != bool(self.no_control), self.focus

    @property
    def is_parallel(self) -> bool:
        """Whether its cases have several pipelines."""
        return self.form in ("replicas", "tensor parallel")

    @property
    def group(self) -> str:
        """The group of the subject; a case can have only subjects of one group."""
        return "mistaken" if self.mistaken else self.form

    def is_in(self, case: Case) -> bool:
        """Whether a case of this group has the subject."""
        return self.found is not None and self.found(case)

    def control_of(self, case: Case) -> Case | None:
        """The same case without the subject; None if there is none, or if the case does not have the subject."""
        return next((control for _, control in self.controls_of(case)), None)

    def controls_of(self, case: Case) -> Iterator[tuple[str, Case]]:
        """The same case without what the subject adds, with what was changed in words; the first is `control_of`."""
        if self.no_control or self.group != group_of(case) or not self.is_in(case):
            return
        if self.controls is not None:
            yield from self.controls(case)
        if self.without is None:
            return
        yield self.control, self.without(case)
        for words, without in self.further:
            yield words, without(case)


def group_of(case: Case) -> str:
    """The group of subjects that a case can have."""
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
