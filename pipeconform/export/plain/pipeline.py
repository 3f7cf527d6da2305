"""The function `on_pipeline`: the steps of a case with torch's pipeline, on one rank."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapters.torch_release import CLASS_NAMES
from pipeconform.case import blocks
from pipeconform.case.case import Case
from pipeconform.case.mistakes import Mistake
from pipeconform.export.plain.aspects import WAIT, Aspect
from pipeconform.export.plain.engines import as_run, autocast, mixed, modes, several_steps
from pipeconform.export.plain.hand import hand_run
from pipeconform.export.plain.layout import is_lone, placed
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import WIDTH, call
from pipeconform.export.plain.values import num_inputs

__all__ = ["mistake_text", "pipeline_text"]


def pipeline_text(case: Case, aspect: Aspect) -> str:
    """The function that does the steps with torch's pipeline, on one rank."""
    return "\n".join(_pipeline(case, aspect))


def _by_hand(case: Case) -> bool:
    return any(step.by_hand is not None for step in case.trains)


def _pipeline(case: Case, aspect: Aspect) -> Iterator[str]:
    world, misplan = case.world, case.world.misplan
    yield "def on_pipeline(rank):"
    group = "group" if world.pipeline_ranks != tuple(range(world.size)) else ""
    limit = f", timeout=timedelta(seconds={WAIT})" if aspect.kind == "waited" else ""
    yield from _groups(case, limit)
    yield "    stages = {s: build(s) for s in PLACED[rank]}"
    if aspect.kind == "alive":
        yield "    inputs, outputs = received(stages)"
    if aspect.kind in ("alive", "by hand"):
        yield "    found = []"
    wrapped = "stages"
    if world.replicas is not None:
        yield from _wrapped(case)
        wrapped = "wrapped"
    count = "len(STAGES)"
    if misplan is not None and misplan.how == "stages":
        count = "STAGES_PLANNED[rank]"
    made = ["stage", "s", count, 'torch.device("cpu")']
    made += [f"group={group}"] if group else []
    made += ["dw_builder=deferred_weights(stage)"] if case.has(blocks.Deferred) else []
    if misplan is not None and misplan.how in ("metadata", "shape", "dtype"):
        if misplan.how == "metadata":
            raise NotPlainError("only some ranks describe their stages")
        made += ["input_args=DECLARED[s][0]", "output_args=DECLARED[s][1]"]
    yield from _made(case, made, wrapped)
    lone = is_lone(case) and all(len(own) == 1 for own in placed(case).values())
    owned = "own.values()" if _by_hand(case) else "own"
    several = "list(own.values())" if _by_hand(case) else "own"
    first = f"next(iter({owned}))" if _by_hand(case) else "own[0]"
    mixed_numbers = is_lone(case) and not lone and len({len(own) for own in placed(case).values()}) > 1
    chosen = f"own if len(own) > 1 else {first}" if mixed_numbers else first if lone else several
    planned = "PLANNED[rank]" if misplan is not None and misplan.how == "microbatches" else "M"
    options = [chosen, planned]
    if case.trains:
        options += ["loss_fn=loss", *(["scale_grads=False"] if case.loss.reduction == "sum" else [])]
    name = CLASS_NAMES[case.schedule]
    if misplan is not None and misplan.how == "schedule":
        raise NotPlainError("the plan names a schedule that does not exist")
    yield call(f"    schedule = {name}", options)
    if aspect.kind == "table":
        order = "schedule._get_pipeline_order()" if lone else "schedule.pipeline_order"
        yield f"    return list(undeclared({order}))"
        return
    if _by_hand(case):
        start = f"schedule._initialize_{'stage' if lone else 'stages'}"
        body: Iterator[str] = (line.replace("START", start) for line in hand_run(case, aspect))
    else:
        body = _run(case, aspect)
    yield from as_run(body, case, aspect)
    if aspect.kind in ("alive", "by hand"):
        yield "    return found"


def _groups(case: Case, limit: str) -> Iterator[str]:
    """The process groups of this rank; without a bystander, as little as there is to say."""
    world = case.world
    bystanders = len(placed(case)) < world.size
    if world.num_replicas > 1:
        yield f"    groups = [dist.new_group(ranks{limit}) for ranks in PIPELINES]"
        yield "    replicas = {s: dist.new_group(ranks) for s, ranks in REPLICAS.items()}"
    elif world.pipeline_ranks != tuple(range(world.size)):
        yield f"    group = dist.new_group({list(world.pipeline_ranks)}{limit})"
    if world.replicas is not None and world.num_replicas == 1:
        yield "    alone = [dist.new_group([one]) for one in range(WORLD)][rank]"
    if bystanders:
        yield "    if rank not in PLACED:"
        yield "        return []"
    if world.num_replicas > 1:
        yield "    replica = [rank in ranks for ranks in PIPELINES].index(True)"
        yield "    group = groups[replica]"


def _wrapped(case: Case) -> Iterator[str]:
    replicas = case.world.replicas
    assert replicas is not None
    group = "replicas[s]" if case.world.num_replicas > 1 else "alone"
    if replicas.wrapper == "fully_shard":
        yield from _dict("wrapped", f"sharded(stage, s, {group}, nested={replicas.nested})")
        return
    if any(stage.frozen for stage in case.model.stages):
        raise NotPlainError("a stage of replicas is frozen")
    options = ["stage", f"process_group={group}", "broadcast_buffers=False"]
    options += ["gradient_as_bucket_view=True"] if replicas.bucket_views else []
    options += ["static_graph=True"] if replicas.static_graph else []
    options += ["find_unused_parameters=True"] if replicas.find_unused else []
    yield from _dict("wrapped", f"DistributedDataParallel({', '.join(options)})")
    if replicas.hook:
        raised = [one.stage for one in case.mistakes if one.where == "reduction"]
        hook = f"raising if s == {raised[0]} else averaged" if raised else "averaged"
        yield "    for s, stage in wrapped.items():"
        yield f"        stage.register_comm_hook({group}, {hook})"


def _made(case: Case, made: list[str], wrapped: str) -> Iterator[str]:
    if _by_hand(case):
        yield from _dict("own", f"PipelineStage({', '.join(made)})", f"{wrapped}.items()")
    else:
        yield from _comprehension(
            "own", f"PipelineStage({', '.join(made)})", f"for s, stage in {wrapped}.items()", "[]"
        )


def _dict(name: str, value: str, items: str = "stages.items()") -> Iterator[str]:
    yield from _comprehension(name, f"s: {value}", f"for s, stage in {items}", "{}")


def _comprehension(name: str, value: str, loop: str, ends: str) -> Iterator[str]:
    """A list or a dict on one line if it fits, else as ruff breaks it."""
    if len(short := f"    {name} = {ends[0]}{value} {loop}{ends[1]}") <= WIDTH:
        yield short
        return
    yield f"    {name} = {ends[0]}"
    if len(inner := f"        {value} {loop}") <= WIDTH:
        yield inner
    else:
        before, _, arguments = value.partition("(")
        yield call(before, arguments[:-1].split(", "), indent=8)
        yield f"        {loop}"
    yield f"    {ends[1]}"


def _run(case: Case, aspect: Aspect) -> Iterator[str]:
    last, lone, replicas = case.num_stages - 1, num_inputs(case) == 1, case.world.num_replicas > 1
    yield f"{'x' if lone else '*x'}, target = batch(step{', replica' if replicas else ''})"
    yield from modes(case)
    yield from _mistaken(case, aspect)
    arguments = ["x" if lone else "*x"]
    everything = case.world.size == 1
    if not everything:
        yield f"args = {'(x,)' if lone else 'x'} if 0 in stages else ()"
        arguments = ["*args"]
    if case.trains and everything:
        arguments.append("target=target")
        if aspect.returns == "loss":
            yield "losses = []"
            arguments.append("losses=losses")
    elif case.trains:
        if aspect.returns == "loss":
            yield "losses = []"
        told = '{"target": target, "losses": losses}' if aspect.returns == "loss" else '{"target": target}'
        yield f"kwargs = {told} if {last} in stages else {{}}"
        arguments.append("**kwargs")
    cast, indent = autocast(case), ""
    if cast:
        yield f"with {cast}:"
        indent = "    "
    kept = "output = " if aspect.returns == "output" else ""
    inside = ", ".join(arguments)
    if mixed(case):
        yield f"{indent}with torch.set_grad_enabled(training):"
        yield f"{indent}    {kept}(schedule.step if training else schedule.eval)({inside})"
    elif case.trains:
        yield f"{indent}{kept}schedule.step({inside})"
    else:
        yield f"{indent}with torch.no_grad():"
        yield f"{indent}    {kept}schedule.eval({inside})"
    of = ' of replica {replica}"' if replicas else '"'
    marked = "f" if replicas else ""
    if aspect.kind == "alive":
        yield f"if (kept := alive({aspect.returns})) > {'BOUND[rank]' if aspect.returns == 'inputs' else 0}:"
        yield f'    found.append(f"{aspect.returns} of {{kept}} forwards are alive when the step has ended")'
    elif aspect.returns == "output":
        yield f'return {{{marked}"the output{of}: output.detach()}} if {last} in stages else {{}}'
    elif aspect.returns == "loss":
        yield f'return {{{marked}"the loss{of}: torch.stack(losses).detach()}} if {last} in stages else {{}}'


def _mistaken(case: Case, aspect: Aspect) -> Iterator[str]:
    """The lines that make the mistakes of the case where they are due."""
    for index, step in enumerate(case.program):
        mistake = getattr(step, "mistake", None)
        if mistake is None or mistake.where == "reduction":
            continue
        if mistake.where not in ("output", "forward", "backward"):
            raise NotPlainError(f"what is wrong on purpose is the {mistake.where}")
        condition = f"{mistake.stage} in stages"
        yield f"if step == {index} and {condition}:" if several_steps(case, aspect) else f"if {condition}:"
        yield f"    stages[{mistake.stage}].register_forward_hook(mistaken)"


_HOW = {
    "inner": "torch.cat([output, output[..., :1]], dim=-1)",
    "ndim": "output.unsqueeze(-2)",
    "batch": "torch.cat([output, output[:1]])",
    "integer": "(output.detach() * 8).to(torch.int64)",
    "more": "(output, output * 1.0)",
    "fewer": "()",
    "none": "(None,)",
    "object": '"no tensor"',
}


def mistake_text(case: Case) -> str:
    """The hook `mistaken` on a stage, which does what is wrong on purpose; empty if there is nothing to do."""
    made = [one for one in case.mistakes if one.where != "reduction"]
    if not made:
        return ""
    if len(made) > 1:
        raise NotPlainError("several things are done wrong on purpose")
    return "\n".join(_hook(made[0], case))


def _hook(mistake: Mistake, case: Case) -> Iterator[str]:
    if case.model.container != "tensor" and mistake.where == "output":
        raise NotPlainError("one of several tensors at a boundary is wrong on purpose")
    if mistake.microbatch is not None:
        yield "CALLS = []"
        yield ""
        yield ""
    yield "def mistaken(module, args, output):"
    yield f'    """What is wrong on purpose: {mistake.in_words()}."""'
    if mistake.microbatch is not None:
        yield "    CALLS.append(None)"
        yield f"    if len(CALLS) != {mistake.microbatch + 1}:"
        yield "        return None"
    if mistake.where == "forward":
        yield '    raise RuntimeError("raised on purpose")'
    elif mistake.where == "backward":
        yield ""
        yield "    def raising(gradient):"
        yield '        raise RuntimeError("raised on purpose")'
        yield ""
        yield "    output.register_hook(raising)"
    elif mistake.how not in _HOW:
        raise NotPlainError(f"what is wrong on purpose is {mistake.in_words()}")
    else:
        yield f"    return {_HOW[mistake.how]}"
