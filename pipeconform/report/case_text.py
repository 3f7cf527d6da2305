"""A case as text: a few aligned lines with everything that is not the default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeconform.case.any_case import AnyCase
from pipeconform.case.build.given_table import given_csv
from pipeconform.case.case import (
    Adam,
    ByHand,
    Case,
    Clip,
    Eval,
    Freeze,
    Load,
    LossSpec,
    Model,
    Optimize,
    Restart,
    Sgd,
    Split,
    Step,
    Train,
    World,
    Zero,
)
from pipeconform.case.case import Stage as StageSpec
from pipeconform.case.perturbations import AnyPerturbation, SlowLink
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.report.wrapper_text import describe_wrapper_case

__all__ = [
    "describe_case",
    "describe_cut",
    "describe_perturbation",
    "describe_program",
    "describe_replicas",
    "optimizer_text",
]

_LONGEST_CYCLE = 6  # steps


def describe_case(case: AnyCase) -> str:
    """A case as a few aligned lines."""
    if isinstance(case, WrapperCase):
        return describe_wrapper_case(case)
    rows = [("pipeline", _pipeline(case))]
    if case.world.replicas is not None:
        rows.append(("replicas", describe_replicas(case.world)))
    if case.world.tensor is not None:
        rows.append(("cut", describe_cut(case.world)))
    rows += [(f"stage {s}", _stage(stage)) for s, stage in enumerate(case.model.stages)]
    rows += [("model", "; ".join(_model(case.model))), ("loss", "; ".join(_loss(case.loss)))]
    rows.append(("program", describe_program(case.program)))
    rows += [("order" if n == 0 else "", line) for n, line in enumerate(_order(case))]
    if case.world.rewritten:
        rows.append(("schedule", "written to a file and read again"))
    if case.world.late_receives:
        rows.append(("receives", "posted as late as possible"))
    if case.world.second_schedule:
        rows.append(("evaluation", "by a second schedule around the same stages, without a loss"))
    if case.world.recompute:
        rows.append(("activations", "not kept by the engine, which computes stages again in the backward"))
    if case.world.declared:
        said = (
            "shapes, dtypes and needs of gradients" if case.world.declared == "exact" else "shapes and dtypes"
        )
        rows.append(("declared", f"the boundaries' {said}"))
    rows += [("perturbed", describe_perturbation(one)) for one in case.world.perturbations]
    if case.world.misplan is not None:
        rows.append(("misplanned", case.world.misplan.in_words()))
    if case.optimizer is not None:
        rows.append(("optimizer", optimizer_text(case.optimizer)))
    rows.append(("seed", str(case.seed)))
    wide = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{wide}}  {text}" for name, text in rows)


def _pipeline(case: Case) -> str:
    p, world = case.num_ranks, case.world
    ranks = ", ".join(map(str, world.pipeline_ranks))
    if world.size != p or world.pipeline_ranks != tuple(range(p)):
        where = f" (rank{'s' if p > 1 else ''} {ranks} of a world of {world.size})"
    else:
        where = ""
    placed = f", placed as a {world.placement}" if world.placement else ""
    return f"{case.schedule}, p = {p}{where}, v = {case.stages_per_rank}{placed}"


def _order(case: Case) -> Iterator[str]:
    """The user's own table, a line per rank."""
    for rank, line in enumerate((given_csv(case) or "").splitlines()):
        yield f"pipeline rank {rank}: {line.replace(',', ' ')}"


def describe_replicas(world: World) -> str:
    """The further pipelines and how stages are wrapped: ``2, the other on ranks 2, 3; ddp, find_unused``."""
    replicas = world.replicas
    assert replicas is not None
    others = " and ".join(", ".join(map(str, ranks)) for ranks in replicas.others)
    where = {0: "1", 1: f"2, the other on ranks {others}"}.get(
        len(replicas.others), f"{world.num_replicas}, the others on ranks {others}"
    )
    options = ("bucket_views", "static_graph", "find_unused", "hook", "nested", "mixed_precision")
    return f"{where}; {', '.join([replicas.wrapper, *(n for n in options if getattr(replicas, n))])}"


def describe_cut(world: World) -> str:
    """The ranks that hold the other parts, and what is cut: ``2 parts, the other on ranks 1, 3; maps by columns``."""
    tensor = world.tensor
    assert tensor is not None
    others = " and ".join(", ".join(map(str, ranks)) for ranks in tensor.others)
    which = "other" if len(tensor.others) == 1 else "others"
    where = f"{world.num_tensor_ranks} parts, the {which} on ranks {others}"
    if tensor.boundary:
        how = {"whole": "whole on every rank"}.get(tensor.boundary, f"cut in the {tensor.boundary}")
        return f"{where}; DTensors between stages, {how}"
    if tensor.batch:
        how = {"whole": "whole on every rank"}.get(tensor.batch, f"cut in the {tensor.batch}")
        targets = ", whole targets" if tensor.target == "whole" else ""
        return f"{where}; a batch of DTensors, {how}{targets}"
    stream = ", the sequence in between" if tensor.stream == "sequence" else ""
    return f"{where}; maps by {tensor.maps}s{stream}"


def _stage(stage: StageSpec) -> str:
    names = " → ".join(repr(block).removesuffix("()") for block in stage.blocks)
    return (names or "hands on what it is given") + (" (frozen)" if stage.frozen else "")


def _model(model: Model) -> Iterator[str]:
    sequence = f", sequence {model.sequence}" if model.sequence else ""
    yield f"width {model.width}{sequence}, {model.dtype}"
    if model.batch_dim:
        yield f"batch in dim {model.batch_dim}"
    if model.carried:
        yield f"carries {', '.join(model.carried)} in a {model.container}"
    elif model.container != "tensor":
        yield f"boundary in a {model.container}"
    for one in model.passages:
        users = f", used by {', '.join(map(str, one.users))}" if one.users else ", used by none"
        yield f"passes a {one.kind} tensor from stage {one.source} to {one.last}{users}"
    if model.output != "tensor":
        yield f"output in a {'1-tuple' if model.output == 'tuple1' else model.output}"
    if model.merged:
        yield f"further outputs, each merged in its own way: {', '.join(model.merged)}"
    if model.kwargs:
        yield "keyword arguments " + ", ".join(f"{one.kind} for stage {one.stage}" for one in model.kwargs)
    if model.tokens:
        yield "token inputs"
    if model.classes:
        yield f"{model.classes} classes"
    if model.readout:
        yield "the loss function applies a map of the last stage"
    if model.tied:
        yield f"one square map for stages {', '.join(map(str, model.tied))}"
    if model.input_requires_grad:
        yield "inputs require grad"
    if model.view_outputs:
        yield "stages may hand over views"
    if model.split is not None:
        yield from _split(model.split)


def _split(split: Split) -> Iterator[str]:
    where = f", {'after' if split.after else 'before'} stages" if split.by == "points" else ""
    where = " inside submodules" if split.inside else where
    yield f"given whole, split by {split.by}{where}"
    if split.reused:
        yield "every stage calls its first block twice"
    if split.skip:
        yield "the last stage adds what the first gave"
    if split.tied:
        yield "the first and the last stage share a linear map"
    if split.early:
        added = ", and added to the loss" if split.early == "added" else ""
        yield f"what the last stage but one computed is returned, too{added}"
    if split.wrong:
        yield {
            "unknown": "the last point names no submodule",
            "uncalled": "the last point names a submodule that is never called",
            "empty": "the last point leaves a stage empty",
            "branch": "values decide after the first stage",
        }[split.wrong]
    if split.longer:
        yield "the last run's sequences are longer by one"
    if split.shorter_example:
        yield "sequences are longer by one than the example's"


def optimizer_text(optimizer: Sgd | Adam) -> str:
    """An optimizer, and what it does beside stepping."""
    parts = [f"{type(optimizer).__name__}, lr {optimizer.lr:g}"]
    if isinstance(optimizer, Sgd):
        parts.append(f"momentum {optimizer.momentum:g}")
        if optimizer.clip is not None:
            parts.append(_clip_text(optimizer.clip))
        if optimizer.masters:
            parts.append("on float32 copies of the parameters")
        if (scaling := optimizer.scaling) is not None:
            parts.append(
                f"losses scaled by {scaling.initial:g}, after an overflow by {scaling.backoff:g} of that"
            )
    return ", ".join(parts)


def _clip_text(clip: Clip) -> str:
    """A limit on the gradients' norm, in words."""
    return f"gradients clipped to {clip.limit:g} by the {'2-norm' if clip.norm == 'two' else 'maximum norm'}"


def _loss(loss: LossSpec) -> Iterator[str]:
    yield f"{loss.reduction} {loss.kind}"
    if loss.ignore:
        yield "some targets are ignored"
    if loss.counted:
        yield "divided by the number of targets of the batch that are not ignored; some microbatches ignore all"
    if loss.scaled:
        yield "with a keyword argument"
    if loss.in_place:
        yield "halves its target in place"
    if loss.fixed:
        yield "the implementation's only one"


def describe_program(program: Sequence[Step]) -> str:
    """The steps in order; steps that repeat three times or more are written once, as ``20 × (…)``."""
    parts: list[str] = []
    at = 0
    while at < len(program):
        cycle, times = _cycle(program[at:])
        steps = ", ".join(_step(step) for step in program[at : at + cycle])
        parts.append(steps if times == 1 else f"{times} × ({steps})")
        at += cycle * times
    return ", ".join(parts)


def _cycle(steps: Sequence[Step]) -> tuple[int, int]:
    """How many steps to write next, and how often they repeat."""
    for length in range(1, min(_LONGEST_CYCLE, len(steps)) + 1):
        times = 1
        while steps[times * length : (times + 1) * length] == steps[:length]:
            times += 1
        if times >= 3:
            return length, times
    return 1, 1


def _step(step: Step) -> str:
    match step:
        case Train() | Eval():
            kind = "train" if isinstance(step, Train) else "eval"
            how = ", autocast" if step.autocast else ""
            how += ", from a source" if step.from_source else ""
            how += f", by hand{_by_hand(step.by_hand)}" if isinstance(step, Train) and step.by_hand else ""
            how += f", {step.guard}" if isinstance(step, Eval) and step.guard else ""
            how += f", {step.mistake.in_words()}" if isinstance(step, Train) and step.mistake else ""
            return f"{kind}(B = {step.batch_size}, m = {step.num_microbatches}{how})"
        case Freeze():
            return f"{'freeze' if step.frozen else 'unfreeze'} stage {step.stage}"
        case Load():
            return "load state"
        case Restart():
            return "save, build anew, restore"
        case Zero():
            return "zero_grad" if step.set_to_none else "zero_grad(set_to_none=False)"
        case Optimize():
            return "optimizer step"


def describe_perturbation(one: AnyPerturbation) -> str:
    """A perturbation in a line: ``5 ms delay before the forward of stage 1, every microbatch``."""
    of = "" if one.replica is None else f", replica {one.replica}"
    if isinstance(one, SlowLink):
        return f"{one.milliseconds} ms delay {one.when} every {one.side} of pipeline rank {one.rank}{of}"
    lasting = f"{one.milliseconds} ms " if one.milliseconds else ""
    what = {"stop": "stop of the process", "error": "exception", "kill": "SIGKILL"}.get(one.what, one.what)
    which = "every microbatch" if one.microbatch is None else f"microbatch {one.microbatch}"
    run = "" if one.run is None else f", run {one.run}"
    return f"{lasting}{what} {one.when} the {one.part} of stage {one.stage}, {which}{run}{of}"


def _by_hand(hand: ByHand) -> str:
    if hand.mistake:
        what = {"weight_first": "weight part first", "weight_twice": "weight part twice"}
        what["weight_unknown"] = "weight part of no microbatch"
        told = what.get(hand.mistake) or hand.mistake.replace("_", " ").replace("unknown", "of no microbatch")
        return f" ({told}: stage {hand.stage}, microbatch {hand.microbatch})"
    return (
        " ("
        + ("whole backwards" if hand.whole else "every second backward whole" if hand.mixed else "split")
        + (", weights late)" if hand.late else ")")
    )
