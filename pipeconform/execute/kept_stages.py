"""Stages that outlive the pipeline they were built for, so that the next one is made around the same modules."""

from __future__ import annotations

from torch import nn

from pipeconform.case.build.modules import StageModule

__all__ = ["KeptStages"]


class KeptStages:
    """The modules that one execution of a case built, for the next execution in this process.

    What an engine has left of an aborted step (a loss, a hook, an activation) refers to the modules of that step. In
    other modules it would have no effect that anything shows.
    """

    def __init__(self) -> None:
        self._earlier: dict[int, StageModule] = {}
        self._built: dict[int, StageModule] = {}

    def begin(self) -> None:
        """Begin an execution: what the last one built may be used again, once each."""
        self._earlier, self._built = self._built, {}

    def used_again(self, index: int, built: StageModule) -> StageModule:
        """The module of stage `index` from before with the state of the one just built, and without gradients.

        An engine that has changed names, shapes or dtypes of parameters or buffers gets the one just built.
        """
        kept = self._earlier.pop(index, None)
        if kept is None or _form(kept) != _form(built):
            self._built[index] = built
            return built
        now = {name: value.to("cpu") for name, value in kept.state_dict().items()}
        # what is the same is not written: autograd would refuse what an aborted step has saved
        changed = {name: one for name, one in built.state_dict().items() if not one.equal(now[name])}
        kept.load_state_dict(changed, strict=False)
        for parameter, like in zip(kept.parameters(), built.parameters(), strict=True):
            parameter.requires_grad_(like.requires_grad)
            parameter.grad = None
        self._built[index] = kept.train(built.training)
        return kept


def _form(module: nn.Module) -> list[tuple[str, type, object, object]]:
    named = module.state_dict(keep_vars=True).items()
    return [(name, type(one), one.shape, one.dtype) for name, one in named]
