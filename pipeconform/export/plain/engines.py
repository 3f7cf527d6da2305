"""The functions `program`, `on_full_model` and `on_pipeline`: the same steps without and with torch's pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeconform.case import blocks
from pipeconform.case.case import Adam, Case, Clip, Eval, Load, Optimize, Sgd, Train, Zero
from pipeconform.export.plain.aspects import Aspect
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.values import num_inputs

__all__ = ["as_run", "autocast", "full_model_text", "mixed", "modes", "program_text", "several_steps"]


_SEVERAL = {"output": "outputs", "loss": "losses"}


def program_text(case: Case, aspect: Aspect) -> str:
    """The steps of the case, if there are several; else the one step stands in the functions that do it."""
    return "\n".join(_program(case, aspect)) if several_steps(case, aspect) else ""


def several_steps(case: Case, aspect: Aspect) -> bool:
    """Whether the steps stand in a function of their own, which calls another one for each run."""
    by_hand = any(step.by_hand is not None for step in case.trains)
    return len(case.program) > 1 or aspect.kind == "around" or by_hand


def _program(case: Case, aspect: Aspect) -> Iterator[str]:
    yield "def program(stages, run):"
    yield '    """The steps of the case; `run` does one of them on the pipeline, or on the full model."""'
    if kept := aspect.seen or aspect.after:
        yield "    seen = []"
    if any(isinstance(step, Optimize) for step in case.program):
        yield "    trained = [p for stage in stages.values() for p in stage.parameters() if p.requires_grad]"
        yield f"    optimizer = torch.optim.{_optimizer(case)} if trained else None"
    for index, step in enumerate(case.program):
        for line in _step(index, step, case, aspect):
            yield f"    {line}"
    if kept:
        yield "    return seen"


def _optimizer(case: Case) -> str:
    match case.optimizer:
        case Sgd(clip=Clip()):
            raise NotPlainError("gradients are clipped over all stages")
        case Sgd(lr=lr, momentum=momentum):
            return f"SGD(trained, lr={lr}, momentum={momentum})" if momentum else f"SGD(trained, lr={lr})"
        case Adam(lr=lr):
            return f"Adam(trained, lr={lr})"
    raise AssertionError("an optimizer step needs an optimizer")


def _step(index: int, step: object, case: Case, aspect: Aspect) -> Iterator[str]:
    keeps = bool(aspect.after) and isinstance(step, aspect.after)
    around = aspect.kind == "around" and isinstance(step, Eval)
    match step:
        case Train() | Eval():
            ran = f"run({index}, training={isinstance(step, Train)})" if mixed(case) else f"run({index})"
            if around:
                yield f"before = {aspect.seen}"
            if isinstance(step, Eval) and step.guard:
                yield f"with torch.{step.guard}():"
                ran = f"    {ran}"
            yield f"seen.append({ran})" if aspect.returns and keeps else ran
            if around:
                yield f"seen += changed(before, {aspect.seen})"
        case Zero(set_to_none=none):
            yield "for stage in stages.values():"
            yield f"    stage.zero_grad({'' if none else 'set_to_none=False'})"
        case Optimize():
            yield "if optimizer:"
            yield "    optimizer.step()"
        case Load():
            raise NotPlainError("a step loads a state")
    if aspect.seen and keeps:
        yield f"seen.append({aspect.seen})"


def mixed(case: Case) -> bool:
    """Whether some steps train and some evaluate."""
    return len({isinstance(run, Train) for run in case.runs}) > 1


def autocast(case: Case) -> str:
    """The context of a run under automatic mixed precision; empty without it."""
    return 'torch.autocast("cpu", dtype=torch.bfloat16)' if any(run.autocast for run in case.runs) else ""


def full_model_text(case: Case, aspect: Aspect) -> str:
    """The function that does the steps without a pipeline."""
    lines = ["def on_full_model():", '    """The stages one after the other, one microbatch at a time."""']
    lines.append("    stages = {s: build(s) for s in range(len(STAGES))}")
    return "\n".join([*lines, *as_run(_full_run(case, aspect), case, aspect)])


def as_run(body: Iterator[str], case: Case, aspect: Aspect) -> Iterator[str]:
    """The body of a run, inline for a program of one step, else as a function that `program` calls."""
    if not several_steps(case, aspect):
        for line in body:
            yield _inlined(f"    {line}".rstrip())
        if aspect.seen:
            yield f"    return [{aspect.seen}]"
        return
    yield ""
    yield f"    def run(step{', training' if mixed(case) else ''}):"
    for line in body:
        yield f"        {line}".rstrip()
    yield ""
    yield "    return program(stages, run)" if aspect.seen or aspect.after else "    program(stages, run)"


def _inlined(line: str) -> str:
    """A line of a run as it stands where there is only one step, whose result is the only one."""
    line = line.replace("batch(step", "batch(0")
    return re.sub(r"^( *return )(.+)$", r"\1[\2]", line)


def modes(case: Case) -> Iterator[str]:
    """The lines that set the mode of the stages, if any step evaluates."""
    if not any(isinstance(run, Eval) for run in case.runs):
        return
    yield "for stage in stages.values():"
    yield f"    stage.train({'training' if mixed(case) else 'False'})"


def _full_run(case: Case, aspect: Aspect) -> Iterator[str]:
    replicas, mean = case.world.num_replicas, case.loss.reduction == "mean"
    dim = ", dim=1" if case.model.batch_dim else ""
    yield from modes(case)
    if aspect.returns in ("output", "loss"):
        yield "found = {}" if replicas > 1 else f"{_SEVERAL[aspect.returns]} = []"
    indent = ""
    evaluates = any(isinstance(run, Eval) for run in case.runs)
    grad = ("torch.set_grad_enabled(training)" if mixed(case) else "torch.no_grad()") if evaluates else ""
    if contexts := [*filter(None, [grad, autocast(case)])]:
        yield f"with {', '.join(contexts)}:"
        indent += "    "
    if replicas > 1:
        yield f"{indent}for replica in range({replicas}):"
        indent += "    "
    several = num_inputs(case) > 1 or case.model.container != "tensor"
    data = "batch(step, replica)" if replicas > 1 else "batch(step)"
    if replicas > 1 and aspect.returns in ("output", "loss"):
        yield f"{indent}{_SEVERAL[aspect.returns]} = found[replica] = []"
    yield f"{indent}for {'*x' if several else 'x'}, target in zip(*(one.tensor_split(M{dim}) for one in {data})):"
    indent += "    "
    yield f"{indent}for stage in stages.values():"
    yield f"{indent}    x = stage({'*x' if several else 'x'})"
    if aspect.returns == "output":
        yield f"{indent}outputs.append(x.detach())"
    if case.trains:
        if mixed(case):
            yield f"{indent}if training:"
            indent += "    "
        if aspect.returns == "loss":
            yield f"{indent}losses.append(loss(x, target))"
        value = "losses[-1]" if aspect.returns == "loss" else "loss(x, target)"
        divisors = ["M"] * mean + [str(replicas)] * (replicas > 1)
        divided = f"({' / '.join([value, *divisors])})" if divisors else value
        yield f"{indent}{divided}.backward()"
        if case.has(blocks.Deferred):
            yield f"{indent}for stage in stages.values():"
            yield f"{indent}    for layer in filter(lambda part: isinstance(part, Deferred), stage.modules()):"
            yield f"{indent}        layer.build()()"
    yield from _returned(aspect, dim, replicas)


def _returned(aspect: Aspect, dim: str, replicas: int) -> Iterator[str]:
    if aspect.returns not in ("output", "loss"):
        return
    if replicas > 1:
        value = _joined(aspect, "each", dim)
        yield f'return {{f"the {aspect.returns} of replica {{d}}": {value} for d, each in found.items()}}'
    else:
        yield f'return {{"the {aspect.returns}": {_joined(aspect, _SEVERAL[aspect.returns], dim)}}}'


def _joined(aspect: Aspect, name: str, dim: str) -> str:
    return f"torch.cat({name}{dim})" if aspect.returns == "output" else f"torch.stack({name}).detach()"
