"""The functions `program`, `on_full_model` and `on_pipeline`: the same steps without and with torch's pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pipeconform.adapter import Placement, laid_out
from pipeconform.case import blocks
from pipeconform.case.case import Adam, Case, Eval, Load, Optimize, Sgd, Train, Zero
from pipeconform.export.plain.aspects import Aspect
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import WIDTH, call
from pipeconform.export.plain.values import num_inputs

__all__ = ["CLASSES", "SINGLE", "full_model_text", "owners", "pipeline_text", "placed", "program_text", "stages_made"]

CLASSES: Mapping[str, str] = {
    "ForwardOnly": "_ScheduleForwardOnly",
    "GPipe": "ScheduleGPipe",
    "1F1B": "Schedule1F1B",
    "Interleaved1F1B": "ScheduleInterleaved1F1B",
    "LoopedBFS": "ScheduleLoopedBFS",
    "InterleavedZeroBubble": "ScheduleInterleavedZeroBubble",
    "ZBVZeroBubble": "ScheduleZBVZeroBubble",
    "DualPipeV": "ScheduleDualPipeV",
}
SINGLE = ("ForwardOnly", "GPipe", "1F1B")
"""Schedules with one stage on each rank."""
_V = ("ZBVZeroBubble", "DualPipeV")


def owners(case: Case) -> tuple[frozenset[int], ...]:
    """The pipeline ranks that own each stage."""
    natural = Placement.V if case.schedule in _V else Placement.LOOP
    how = Placement(case.world.placement) if case.world.placement else natural
    return tuple(map(frozenset, laid_out(how, num_ranks=case.num_ranks, num_stages=case.num_stages)))


def placed(case: Case) -> dict[int, list[int]]:
    """The stages of every rank of the pipelines."""
    found = {}
    for ranks in case.world.pipelines:
        for position, rank in enumerate(ranks):
            found[rank] = [s for s, several in enumerate(owners(case)) if position in several]
    return dict(sorted(found.items()))


def program_text(case: Case, aspect: Aspect) -> str:
    """The steps of the case, if there are several; else the one step stands in the functions that do it."""
    return "\n".join(_program(case, aspect)) if _several(case, aspect) else ""


def _several(case: Case, aspect: Aspect) -> bool:
    return len(case.program) > 1 or aspect.kind == "around"


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
            ran = f"run({index}, training={isinstance(step, Train)})" if _mixed(case) else f"run({index})"
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


def _mixed(case: Case) -> bool:
    """Whether some steps train and some evaluate."""
    return len({isinstance(run, Train) for run in case.runs}) > 1


def _autocast(case: Case) -> str:
    return 'torch.autocast("cpu", dtype=torch.bfloat16)' if any(run.autocast for run in case.runs) else ""


def full_model_text(case: Case, aspect: Aspect) -> str:
    """The function that does the steps without a pipeline."""
    lines = ["def on_full_model():", '    """The stages one after the other, one microbatch at a time."""']
    lines.append("    stages = {s: build(s) for s in range(len(STAGES))}")
    return "\n".join([*lines, *_wrapped(_full_run(case, aspect), case, aspect)])


def _wrapped(body: Iterator[str], case: Case, aspect: Aspect) -> Iterator[str]:
    """The body of a run, inline for a program of one step, else as a function that `program` calls."""
    if not _several(case, aspect):
        for line in body:
            yield _inlined(f"    {line}".rstrip())
        if aspect.seen:
            yield f"    return [{aspect.seen}]"
        return
    yield ""
    yield f"    def run(step{', training' if _mixed(case) else ''}):"
    for line in body:
        yield f"        {line}".rstrip()
    yield ""
    yield "    return program(stages, run)" if aspect.seen or aspect.after else "    program(stages, run)"


def _inlined(line: str) -> str:
    """A line of a run as it stands where there is only one step, whose result is the only one."""
    line = line.replace("batch(step", "batch(0")
    return re.sub(r"^( *return )(.+)$", r"\1[\2]", line)


def _modes(case: Case) -> Iterator[str]:
    if not any(isinstance(run, Eval) for run in case.runs):
        return
    yield "for stage in stages.values():"
    yield f"    stage.train({'training' if _mixed(case) else 'False'})"


def _full_run(case: Case, aspect: Aspect) -> Iterator[str]:
    replicas, mean = case.world.num_replicas, case.loss.reduction == "mean"
    dim = ", dim=1" if case.model.batch_dim else ""
    yield from _modes(case)
    if aspect.returns == "output":
        yield "outputs = []"
    elif aspect.returns == "loss":
        yield "losses = []"
    indent = ""
    evaluates = any(isinstance(run, Eval) for run in case.runs)
    grad = ("torch.set_grad_enabled(training)" if _mixed(case) else "torch.no_grad()") if evaluates else ""
    if contexts := [*filter(None, [grad, _autocast(case)])]:
        yield f"with {', '.join(contexts)}:"
        indent += "    "
    if replicas > 1:
        yield f"{indent}for replica in range({replicas}):"
        indent += "    "
    several = num_inputs(case) > 1 or case.model.container != "tensor"
    data = "batch(step, replica)" if replicas > 1 else "batch(step)"
    yield f"{indent}for {'*x' if several else 'x'}, target in zip(*(one.tensor_split(M{dim}) for one in {data})):"
    indent += "    "
    yield f"{indent}for stage in stages.values():"
    yield f"{indent}    x = stage({'*x' if several else 'x'})"
    if aspect.returns == "output":
        yield f"{indent}outputs.append(x.detach())"
    if case.trains:
        if _mixed(case):
            yield f"{indent}if training:"
            indent += "    "
        if aspect.returns == "loss":
            yield f"{indent}losses.append(loss(x, target))"
        value = "losses[-1]" if aspect.returns == "loss" else "loss(x, target)"
        divided = f"({value} / M{f' / {replicas}' if replicas > 1 else ''})" if mean else value
        yield f"{indent}{divided}.backward()"
        if case.has(blocks.Deferred):
            yield f"{indent}for stage in stages.values():"
            yield f"{indent}    for layer in filter(lambda part: isinstance(part, Deferred), stage.modules()):"
            yield f"{indent}        layer.build()()"
    if aspect.returns == "output":
        yield f'return {{"the output": torch.cat(outputs{dim})}}'
    elif aspect.returns == "loss":
        yield 'return {f"the loss of microbatch {k}": one.detach() for k, one in enumerate(losses)}'


def pipeline_text(case: Case, aspect: Aspect) -> str:
    """The function that does the steps with torch's pipeline, on one rank."""
    return "\n".join(_pipeline(case, aspect))


def stages_made(case: Case, aspect: Aspect) -> Iterator[str]:
    """The lines that make this rank's `stages` and, of those, its stages in a pipeline, `own`."""
    group = ""
    if case.world.pipeline_ranks != tuple(range(case.world.size)):
        yield f"    group = dist.new_group({list(case.world.pipeline_ranks)})"
        yield "    if rank not in PLACED:"
        yield "        return []"
        group = "group=group"
    yield "    stages = {s: build(s) for s in PLACED[rank]}"
    if aspect.kind == "alive":
        yield "    inputs, outputs = received(stages)"
        yield "    found = []"
    deferred = "dw_builder=deferred_weights(stage)" if case.has(blocks.Deferred) else ""
    made = ["stage", "s", "len(STAGES)", 'torch.device("cpu")', *filter(None, [group, deferred])]
    yield from _comprehension("own", f"PipelineStage({', '.join(made)})", "for s, stage in stages.items()")


def _pipeline(case: Case, aspect: Aspect) -> Iterator[str]:
    yield "def on_pipeline(rank):"
    yield from stages_made(case, aspect)
    options = ["own[0]" if case.schedule in SINGLE else "own", "M"]
    if case.trains:
        options += ["loss_fn=loss", *(["scale_grads=False"] if case.loss.reduction == "sum" else [])]
    yield call(f"    schedule = {CLASSES[case.schedule]}", options)
    yield from _wrapped(_pipeline_run(case, aspect), case, aspect)
    if aspect.kind == "alive":
        yield "    return found"


def _pipeline_run(case: Case, aspect: Aspect) -> Iterator[str]:
    last = case.num_stages - 1
    lone = num_inputs(case) == 1
    yield f"{'x' if lone else '*x'}, target = batch(step)"
    yield from _modes(case)
    arguments = ["*args"]
    yield f"args = {'(x,)' if lone else 'x'} if 0 in stages else ()"
    if case.trains:
        if aspect.returns == "loss":
            yield "losses = []"
        told = '{"target": target, "losses": losses}' if aspect.returns == "loss" else '{"target": target}'
        yield f"kwargs = {told} if {last} in stages else {{}}"
        arguments.append("**kwargs")
    autocast, indent = _autocast(case), ""
    if autocast:
        yield f"with {autocast}:"
        indent = "    "
    kept = "output = " if aspect.returns == "output" else ""
    inside = ", ".join(arguments)
    if _mixed(case):
        yield f"{indent}with torch.set_grad_enabled(training):"
        yield f"{indent}    {kept}(schedule.step if training else schedule.eval)({inside})"
    elif case.trains:
        yield f"{indent}{kept}schedule.step({inside})"
    else:
        yield f"{indent}with torch.no_grad():"
        yield f"{indent}    {kept}schedule.eval({inside})"
    if aspect.kind == "alive":
        yield f"if (kept := alive({aspect.returns})) > {'BOUND[rank]' if aspect.returns == 'inputs' else 0}:"
        yield f'    found.append(f"{aspect.returns} of {{kept}} forwards are alive when the step has ended")'
    elif aspect.returns == "output":
        yield f'return {{"the output": output.detach()}} if {last} in stages else {{}}'
    elif aspect.returns == "loss":
        yield 'return {f"the loss of microbatch {k}": one.detach() for k, one in enumerate(losses)}'


def _comprehension(name: str, value: str, loop: str) -> Iterator[str]:
    """A list on one line if it fits, else as ruff breaks it."""
    if len(short := f"    {name} = [{value} {loop}]") <= WIDTH:
        yield short
        return
    yield f"    {name} = ["
    if len(inner := f"        {value} {loop}") <= WIDTH:
        yield inner
    else:
        yield f"        {value}"
        yield f"        {loop}"
    yield "    ]"
