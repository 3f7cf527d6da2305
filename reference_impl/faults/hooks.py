"""Faults of hooks on gradients: of a stage's inputs, of parameters, and of a module's backward."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks

_Hook = Callable[[Tensor], Tensor | None]
_ON_INPUTS = r"the input hook in stage \d ran \d+ times? for \d+ microbatch(es)?; expected"


class _SeesInputs(Stage):
    """A stage that hears what its module is given and what it returned, in every forward with a graph."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if not differentiate:
            return super().forward(microbatch, inputs, kwargs, differentiate=False, boundary=boundary)

        def given(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
            for position, value in enumerate(arguments):
                if isinstance(value, Tensor) and value.requires_grad:
                    self.given(microbatch, position, value)

        handle = self.module.register_forward_pre_hook(given)
        try:
            return super().forward(microbatch, inputs, kwargs, differentiate=True, boundary=boundary)
        finally:
            handle.remove()

    def given(self, microbatch: int, position: int, value: Tensor) -> None:
        """The module is about to see one input that needs a gradient."""
        raise NotImplementedError


@breaks("FWD-26", tells=_ON_INPUTS, source="https://github.com/pytorch/pytorch/issues/185331")
class HooksOfEarlierSteps(_SeesInputs):
    """An input keeps the hooks that were registered on the same microbatch's input in earlier steps."""

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        self._hooks: dict[tuple[int, int], list[_Hook]] = {}

    def given(self, microbatch: int, position: int, value: Tensor) -> None:
        kept = self._hooks.setdefault((microbatch, position), [])
        for hook in kept:
            value.register_hook(hook)  # type: ignore[no-untyped-call]
        register = value.register_hook

        def remembered(hook: _Hook) -> Any:
            kept.append(hook)
            return register(hook)  # type: ignore[no-untyped-call]

        value.register_hook = remembered  # type: ignore[method-assign]


@breaks("FWD-26", tells=r"gradient of blocks\.\d\.[\w.]+ is not the reference's")
class GradientTakenBeforeHooks(_SeesInputs):
    """What goes back to the stage before is the gradient as it was before the input's own hooks changed it."""

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        self._taken: dict[tuple[int, int], Tensor] = {}

    def given(self, microbatch: int, position: int, value: Tensor) -> None:
        def take(gradient: Tensor) -> None:
            self._taken[microbatch, position] = gradient

        value.register_hook(take)  # type: ignore[no-untyped-call]  # the first hook runs first

    def _all_the_way(
        self, microbatch: int, what: str, gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        found = super()._all_the_way(microbatch, what, gradients)
        return [None if one is None else self._taken.pop((microbatch, k), one) for k, one in enumerate(found)]


@breaks("FWD-27", tells=r"the parameter hook in stage \d ran 0 times for \d+ microbatch(es)?; expected")
class ParametersMadeAnew(ReferencePipeline):
    """Parameters are made anew at the start: what is called after accumulation comes along, tensor hooks do not."""

    def share_parameters(self) -> None:
        for stage in self.modules.values():
            made: dict[nn.Parameter, nn.Parameter] = {}
            for module in stage.modules():
                for name, old in module._parameters.items():
                    if old is None:
                        continue
                    if old not in made:
                        made[old] = nn.Parameter(old.detach(), requires_grad=old.requires_grad)
                        for hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
                            made[old].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                    module._parameters[name] = made[old]
        super().share_parameters()


@contextmanager
def _without_backward_hooks(module: nn.Module) -> Iterator[None]:
    parts = list(module.modules())
    kept = [(part._backward_hooks, part._backward_pre_hooks) for part in parts]
    try:
        for part in parts:
            part._backward_hooks, part._backward_pre_hooks = OrderedDict(), OrderedDict()
        yield
    finally:
        for part, (hooks, pre_hooks) in zip(parts, kept, strict=True):
            part._backward_hooks, part._backward_pre_hooks = hooks, pre_hooks


@breaks("FWD-27", tells=r"the (pre-)?backward hook in stage \d ran 1 time for \d+ microbatch(es)?; expected")
class BackwardHooksOnce(Stage):
    """Hooks on a module's backward run for the first microbatch only, as if its graph were replayed for the others."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        with _without_backward_hooks(self.module) if microbatch else nullcontext():
            return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
