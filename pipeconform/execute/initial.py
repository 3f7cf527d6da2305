"""What the stages of a case were before an engine had them: names, values, flags and modes.

Hooks are not counted: engines reduce gradients in hooks of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from pipeconform.case.build.modules import build_stage
from pipeconform.case.build.whole import build_whole
from pipeconform.case.case import Case
from pipeconform.observe.array import Array
from pipeconform.observe.observation import named

__all__ = ["InitialStage", "Initials"]


@dataclass(frozen=True)
class InitialStage:
    """One stage as its builder returned it; modules and parameters are known by their names."""

    values: Mapping[str, Array | None]
    """Parameters and buffers."""
    trainable: Mapping[str, bool]
    """`requires_grad` of every parameter."""
    names: frozenset[str]
    """Every name of a parameter; one that modules share has several."""
    module_types: Mapping[str, type[nn.Module]]

    @classmethod
    def of(cls, module: nn.Module) -> InitialStage:
        """Record `module`, which an engine has not seen yet."""
        parameters, modules = dict(module.named_parameters()), dict(module.named_modules())
        return cls(
            values=named({**parameters, **dict(module.named_buffers())}),
            trainable={name: one.requires_grad for name, one in parameters.items()},
            names=frozenset(name for name, _ in module.named_parameters(remove_duplicate=False)),
            module_types={name: type(one) for name, one in modules.items()},
        )

    def changes(self, live: nn.Module) -> list[str]:
        """What differs now; a module that the engine wrapped shares no names, and is skipped."""
        now_parameters, now_modules = dict(live.named_parameters()), dict(live.named_modules())
        found = []
        for name, was in self.trainable.items():
            parameter = now_parameters.get(name)
            if parameter is not None and was != parameter.requires_grad:
                found.append(f"requires_grad of {name} became {parameter.requires_grad}")
        for name, kind_was in self.module_types.items():
            module = now_modules.get(name)
            if module is not None and type(module) is kind_was and not module.training:
                found.append(f"module {name or '(itself)'} is in eval mode")
        return found


class Initials:
    """The initial stages of one execution of `case`: those that its builders returned, others built on demand."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._known: dict[int, InitialStage] = {}

    def note(self, stage: int, module: nn.Module) -> None:
        """Record a stage that was just built; a later one of the same stage is equal."""
        if stage not in self._known:
            self._known[stage] = InitialStage.of(module)

    def of(self, stage: int) -> InitialStage:
        """The initial state of `stage`."""
        if stage not in self._known:
            self.note(stage, build_stage(self._case, stage))
        return self._known[stage]

    def parameter_names(self, stage: int) -> frozenset[str]:
        """The names of the stage's parameters; of the whole model's if a front end makes the stages."""
        if self._case.model.split is not None:
            return self._names_in_whole
        return frozenset(self.of(stage).trainable)

    def given_names(self, stage: int) -> frozenset[str] | None:
        """Every name that the stage's builder gave a parameter; None if a front end makes the stages.

        The names that a front end gives are judged (TRC-2).
        """
        return None if self._case.model.split is not None else self.of(stage).names

    @functools.cached_property
    def _names_in_whole(self) -> frozenset[str]:
        whole = build_whole(self._case).named_parameters(remove_duplicate=False)
        return frozenset(name for name, _ in whole)
