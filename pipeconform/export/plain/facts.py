"""What the templates of a program ask of a case, and of what is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeconform.adapters.torch_release import CLASS_NAMES
from pipeconform.case import blocks
from pipeconform.case.build.decoder import EARLIER
from pipeconform.case.by_hand import has_neighbour
from pipeconform.case.case import ByHand, Case, Eval, Optimize, Sgd, Train
from pipeconform.execute.by_hand import CALLS, DUE, TOLD
from pipeconform.export.plain.aspects import Aspect
from pipeconform.export.plain.layout import bounds_on_inputs, layout_facts, owners
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.schedule import Kind

__all__ = ["facts_of", "pattern_of"]

WAIT = 20
"""Seconds after which a rank that waits for another is said to wait for ever."""
_LONE = ("ForwardOnly", "GPipe", "1F1B")
"""Schedules that take one stage, and not a list."""
_OPERATIONS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input",
    Kind.W: "weight",
    Kind.RECV_F: "recv_fwd",
    Kind.SEND_F: "send_fwd",
}
_OUTPUTS = {
    "inner": "torch.cat([output, output[..., :1]], dim=-1)",
    "ndim": "output.unsqueeze(-2)",
    "batch": "torch.cat([output, output[:1]])",
    "integer": "(output.detach() * 8).to(torch.int64)",
    "more": "(output, output * 1.0)",
    "fewer": "()",
    "none": "(None,)",
    "object": '"no tensor"',
}
"""What a stage returns instead of its output."""


def facts_of(case: Case, aspect: Aspect, settings: Mapping[str, str]) -> dict[str, object]:
    """The names that templates know.

    Raises:
        NotPlainError: something about the case has no plain words.
    """
    world, layout = case.world, layout_facts(case)
    evaluates, hands = any(isinstance(run, Eval) for run in case.runs), _hands(case)
    lone = case.schedule in _LONE and all(len(own) == 1 for own in layout["placed"].values())
    several = len(case.program) > 1 or aspect.kind == "around" or bool(hands)
    sizes = {i: step.batch_size for i, step in enumerate(case.program) if isinstance(step, Train | Eval)}
    rows = ["size" if len(set(sizes.values())) > 1 else next(iter(sizes.values())), case.model.sequence]
    facts = {
        **layout,
        **_of_wrappers(case),
        "case": case,
        "aspect": aspect,
        "settings": settings,
        "world": world,
        "replicas": world.num_replicas,
        "grouped": world.pipeline_ranks != tuple(range(world.size)),
        "several": several,
        "evaluates": evaluates,
        "mixed": evaluates and bool(case.trains),
        "mean": case.loss.reduction == "mean",
        "last": case.num_stages - 1,
        "lone": lone,
        "schedule": "_PipelineScheduleRuntime" if layout["table"] else CLASS_NAMES[case.schedule],
        "sizes": sizes if "size" in rows else None,
        "shape": ", ".join(str(row) for row in (*rows, case.model.width) if row),
        "x": "x" if case.model.container == "tensor" else "*x",
        "returned": {"output": "outputs", "loss": "losses"}.get(aspect.returns, ""),
        "joined": "torch.cat" if aspect.returns == "output" else "torch.stack",
        "has_norms": case.has(blocks.Norm, blocks.BatchNorm, blocks.Unused, blocks.Decoder),
        "longest": EARLIER + case.model.sequence,
        "deferred": case.has(blocks.Deferred),
        "bounds": bounds_on_inputs(case) if aspect.kind == "alive" else {},
        "limit": f", timeout=timedelta(seconds={WAIT})" if aspect.kind == "waited" else "",
        "wait": WAIT,
        "named": "{name}" if aspect.returns else f"{aspect.what} of {{name}}",
        "error": pattern_of(aspect.ended) if aspect.kind == "raised" else "",
        "optimizes": any(isinstance(step, Optimize) for step in case.program),
        "optimizer": _optimizer(case),
    }
    facts |= _of_hands(hands, case, aspect) | _of_mistake(case, several=several)
    return facts | _of_calls(case, facts)


def pattern_of(ended: str) -> str:
    """An expression for the normalised message of an exception, in which # stands for a number or several."""
    text = re.escape(ended).replace("\\ ", " ").replace("\\#", "#").replace("#", r"[-+.\w, ]+")
    quote = "'" if '"' in text and "'" not in text else '"'
    return f"{quote}^{text if quote not in text else text.replace(quote, '.')}{quote}"


def _optimizer(case: Case) -> str:
    match case.optimizer:
        case Sgd(clip=None, masters=False, momentum=momentum, lr=lr):
            return f"lr={lr}, momentum={momentum}" if momentum else f"lr={lr}"
        case None:
            return ""
    raise NotPlainError("the optimizer is another one than plain SGD")


def _of_wrappers(case: Case) -> dict[str, object]:
    """How stages with replicas are wrapped."""
    world, how = case.world, case.world.replicas
    group = "replicas[s]" if world.num_replicas > 1 else "alone"
    if how is None:
        return {"wrapper": "", "hook": "", "group_of_stage": "", "sharded": False}
    sharded = how.wrapper == "fully_shard"
    if not sharded and any(stage.frozen for stage in case.model.stages):
        raise NotPlainError("a stage of replicas is frozen")
    options = ["stage", f"process_group={group}", "broadcast_buffers=False"]
    options += ["gradient_as_bucket_view=True"] * how.bucket_views
    options += ["static_graph=True"] * how.static_graph + ["find_unused_parameters=True"] * how.find_unused
    ddp = f"DistributedDataParallel({', '.join(options)})"
    raised = [one.stage for one in case.mistakes if one.where == "reduction"]
    hook = f"raising if s == {raised[0]} else averaged" if raised else "averaged"
    return {
        "wrapper": f"sharded(stage, s, {group}, {how.nested}, {how.mixed_precision})" if sharded else ddp,
        "hook": hook if how.hook and not sharded else "",
        "group_of_stage": group,
        "sharded": sharded,
    }


def _hands(case: Case) -> dict[int, ByHand]:
    """The steps that are driven by hand, in one way."""
    hands = {i: one.by_hand for i, one in enumerate(case.program) if isinstance(one, Train) and one.by_hand}
    if hands and len(hands) < len(case.runs):
        raise NotPlainError("only some steps are driven by hand")
    if any(one.mixed or one.late for one in hands.values()) or len({one.whole for one in hands.values()}) > 1:
        raise NotPlainError("backwards are split in different ways")
    return hands


def _of_hands(hands: Mapping[int, ByHand], case: Case, aspect: Aspect) -> dict[str, object]:
    """By step: what is due, whether the mistake is made before it, the mistaken call; and what is sought."""
    ranks, calls = [min(several) for several in owners(case)], []
    for index, hand in hands.items():
        if not hand.mistake or not has_neighbour(hand.mistake, stage=hand.stage, placed=ranks):
            calls.append(f"{index}: (None, True, None)")
            continue
        if hand.mistake not in DUE:
            raise NotPlainError("a forward before everything else")
        due, before = DUE[hand.mistake]
        weight = "weight" if hand.mistake.startswith("weight") else "finish"
        called = _OPERATIONS[CALLS[hand.mistake]] if hand.mistake in CALLS else weight
        k = "M" if hand.mistake.endswith("unknown") else hand.microbatch
        at = f'("{_OPERATIONS[due]}", {hand.stage}, {hand.microbatch})'
        calls.append(f'{index}: ({at}, {before}, ("{called}", {hand.stage}, {k}))')
    told, _, kind = aspect.ended.rpartition(": ")
    steps = [index for index, hand in hands.items() if TOLD.get(hand.mistake) == told]
    return {
        "hand": bool(hands),
        "whole": any(hand.whole for hand in hands.values()),
        "mistaken_calls": calls,
        "sought_kind": kind if aspect.kind == "by hand" else "",
        "sought_step": f"step == {steps[0]} and " if len(steps) not in (0, len(hands)) else "",
    }


def _of_mistake(case: Case, *, several: bool) -> dict[str, object]:
    """What is wrong on purpose in a stage, apart from its reduction."""
    made = [(i, one) for i, step in enumerate(case.program) if (one := getattr(step, "mistake", None))]
    made = [(index, one) for index, one in made if one.where != "reduction"]
    if not made:
        return {"mistake": None}
    (index, one), *others = made
    unknown = case.model.container != "tensor" or one.how not in _OUTPUTS
    if others or one.where not in ("output", "forward", "backward") or (one.where == "output" and unknown):
        raise NotPlainError(f"what is wrong on purpose is {one.in_words()}")
    step = f"step == {index} and " if several else ""
    return {"mistake": one, "mistaken_output": _OUTPUTS.get(one.how), "mistaken_step": step}


def _of_calls(case: Case, facts: Mapping[str, Any]) -> dict[str, object]:
    """How the stages, the schedule and its step are called, and how losses are scaled."""
    world, hand, returned = case.world, any(step.by_hand for step in case.trains), facts["returned"]
    how = "" if world.misplan is None else world.misplan.how
    made = ["stage", "s", "STAGES_PLANNED[rank]" if how == "stages" else "len(STAGES)", 'torch.device("cpu")']
    made += ["group=group"] * facts["grouped"] + ["dw_builder=deferred_weights(stage)"] * facts["deferred"]
    made += ["input_args=DECLARED[s][0]", "output_args=DECLARED[s][1]"] * bool(facts["declared"])
    first, own = ("next(iter(own.values()))", "list(own.values())") if hand else ("own[0]", "own")
    numbers = {len(several) for several in facts["placed"].values()}
    if case.schedule in _LONE and len(numbers) > 1:
        own = f"{own} if len(own) > 1 else {first}"
    options = [first if facts["lone"] else own, "PLANNED[rank]" if how == "microbatches" else "M"]
    options += ["loss_fn=loss"] * bool(case.trains) + ["defer_pp_recv=True"] * world.late_receives
    options += ["scale_grads=False"] * (bool(case.trains) and not facts["mean"])
    by_rank = world.size > 1 or world.second_schedule
    losses = ["losses=losses"] * (returned == "losses")
    inputs = ["*args", "**kwargs"] if by_rank else ["x", "target=target", *losses]
    divisors = ["M"] * facts["mean"] + [str(world.num_replicas)] * (world.num_replicas > 1)
    value = " / ".join(["losses[-1]" if returned == "losses" else "loss(x, target)", *divisors])
    evaluates = "second.step" if world.second_schedule else "schedule.eval"
    call = f"(schedule.step if training else {evaluates})" if facts["mixed"] else "schedule.step"
    of = " of replica {replica}" if world.num_replicas > 1 else ""
    return {
        "made": ", ".join(made),
        "options": ", ".join(options),
        "inputs": ", ".join(inputs if case.trains else inputs[:1]),
        "scaled": f"({value})" if divisors else value,
        "call": call if case.trains else "schedule.eval",
        "the_result": f'{"f" if of else ""}"the {facts["aspect"].returns}{of}"',
    }
