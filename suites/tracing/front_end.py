"""Splitting a whole model into stages."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.blocks import Shared
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import batch_order_is_kept, outputs_are_due
from pipeconform.judge.judgement import of_refusals, requirement
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.refusals import Refusal, texts_of
from pipeconform.judge.tracing import (
    aliases_in,
    boundary_agrees,
    refusal_is_clear,
    shapes_are_told_apart,
    some_of,
    split_mistake,
    stages_equal_the_model,
    tensors_in_words,
)
from pipeconform.spec.catalogue import MUST, SHOULD

from ..promises import FULL_MODEL, MISMATCHES, documented


@requirement(
    "TRC-1",
    title="Splitting a whole model",
    level=MUST,
    about=(Focus.WHOLE,),
    any_schedule=True,
    costly=True,
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining.pipeline documentation: the module is split by a specification or a policy",
            "distributed.pipelining.html#torch.distributed.pipelining.pipeline",
        ),
    ),
)
def stages_together_equal_the_model(evidence: Evidence) -> Iterator[Finding]:
    """A whole model that is split at annotations inside it, by a policy, or at points given as submodule
    names gives stages that together equal it: outputs, losses, gradients and buffers.

    A front end rewrites the user's model; a computation lost or doubled at a cut trains another model under
    the same name.
    """
    yield from stages_equal_the_model(evidence)


@requirement(
    "TRC-2",
    title="Qualified names",
    level=MUST,
    about=(Focus.WHOLE, Focus.WHOLE_CONTENTS),
    any_schedule=True,
    costly=True,
    promise=documented(
        "torch.distributed.pipelining documentation, how the pipeline API splits a model: fully-qualified names of "
        "submodules and parameters are still valid, and services that rely on them can still run",
        "distributed.pipelining.html#how-does-the-pipeline-api-split-a-model",
    ),
)
def qualified_names(evidence: Evidence) -> Iterator[Finding]:
    """The state-dict keys of every stage are keys of the whole model; together the stages have all of them,
    and none twice unless stages share the parameter.

    Checkpoints, optimizer groups and fine-tuning address parameters by name; a parameter whose key was
    renamed is silently not loaded.
    """
    aliases, split = aliases_in(evidence.case), evidence.case.model.split
    holders: dict[str, list[int]] = {}
    for one in evidence.members:
        for s, keys in one.keys.items():
            evidence.compared(len(keys))
            foreign = [key for key in keys if key not in aliases]
            if foreign:
                yield Finding(
                    kind="foreign key",
                    message=f"the state dict of stage {s} has {some_of(foreign)}; the model's keys are like "
                    f"{some_of(sorted(aliases))}",
                    rank=one.rank,
                    stage=s,
                )
                return
            for name in {aliases[key] for key in keys}:
                holders.setdefault(name, []).append(s)
    evidence.compared(len(set(aliases.values())))
    absent = sorted(set(aliases.values()) - holders.keys())
    if absent:
        text = f"no stage has {some_of(absent)} in its state dict"
        yield Finding(kind="key missing", message=text)
    # a parameter that the model uses more than once may be on both sides of a cut
    shared = evidence.case.has(Shared) or (split is not None and (split.tied or split.reused))
    twice = [name for name, stages in sorted(holders.items()) if len(set(stages)) > 1]
    if twice and not shared:
        text = f"stages {sorted(set(holders[twice[0]]))} both have {twice[0]!r}; the model shares nothing"
        yield Finding(kind="key twice", message=text)


@requirement(
    "TRC-3",
    title="What a front end must follow",
    level=MUST,
    about=(Focus.WHOLE_CONTENTS,),
    any_schedule=True,
    costly=True,
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining.pipeline documentation",
            "distributed.pipelining.html#torch.distributed.pipelining.pipeline",
        ),
    ),
)
def what_a_front_end_must_follow(evidence: Evidence) -> Iterator[Finding]:
    """Keyword arguments, shared parameters, skip connections, buffers in training and in evaluation, and
    submodules called more than once survive the split.

    In these ways models differ from a chain of layers, and here captured graphs lose what the model does.
    """
    yield from stages_equal_the_model(evidence)


@requirement(
    "TRC-4",
    title="What cannot be split",
    level=MUST,
    about=(Focus.WHOLE_WRONG,),
    tolerates=(Focus.WHOLE_WRONG,),
    any_schedule=True,
    costly=True,
    promise=(
        documented(
            "torch.distributed.pipelining.pipeline documentation, split_spec: submodule names mark where to split",
            "distributed.pipelining.html#torch.distributed.pipelining.pipeline",
        ),
        documented("torch.export documentation, data-dependent control flow is an error", "export.html"),
    ),
)
def what_cannot_be_split(evidence: Evidence) -> Iterator[Finding]:
    """A split point that names no submodule, is never reached or leaves a stage empty is not silently
    dropped: it is refused with an error on every rank. Control flow that depends on data is followed
    correctly, or refused with an error on every rank.

    A split point that is ignored gives fewer stages than ranks, and some rank waits; a branch that is frozen
    computes the wrong half.
    """
    split = evidence.case.model.split
    if split is not None and split.wrong != "branch":
        evidence.compared()
        text = f"no rank raised an error, although {split_mistake(evidence.case)}"
        yield Finding(kind=f"{split.wrong} split point accepted", message=text)
        return
    yield from stages_equal_the_model(evidence)


@requirement(
    "TRC-7",
    title="Early outputs",
    level=MUST,
    about=(Focus.WHOLE_EARLY,),
    tolerates=(Focus.WHOLE_EARLY,),
    any_schedule=True,
    costly=True,
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining.pipeline documentation: a module is split into stages",
            "distributed.pipelining.html#torch.distributed.pipelining.pipeline",
        ),
    ),
)
def early_outputs_are_returned(evidence: Evidence) -> Iterator[Finding]:
    """A model that also returns what an earlier stage computed, such as an auxiliary loss, returns it from the
    pipeline, too, or is refused with an error on every rank.

    An output that is lost is missed by the loss function; one that gets no gradient can be taken for a loss of its own.
    """
    yield from stages_equal_the_model(evidence)


@of_refusals(
    "TRC-6",
    title="Words about split points",
    level=SHOULD,
    about=(Focus.WHOLE_WRONG,),
    any_schedule=True,
    costly=True,
    nothing="no wrong split point was refused",
    promise=documented(
        "torch.distributed.pipelining.pipeline documentation, split_spec: a dictionary by submodule names",
        "distributed.pipelining.html#torch.distributed.pipelining.pipeline",
    ),
)
def split_points_are_named(refusal: Refusal) -> Iterator[Outcome]:
    """The error about a split point that names no submodule, is never reached or leaves a stage empty
    (TRC-4) names that split point.

    A model has hundreds of submodules, and an error about one of them is mended by its name.
    """
    raised = tuple(refusal.raised.values())
    for finding in refusal_is_clear(refusal.case, texts_of(raised), refusal.gauge):
        yield Outcome(Status.FAILED, finding, verdicts=refusal.verdicts.describe())


@requirement(
    "TRC-5",
    title="Known shapes",
    level=MUST,
    about=(Focus.WHOLE_SHAPES,),
    tolerates=(Focus.WHOLE_SHAPES,),
    refusal=shapes_are_told_apart,
    any_schedule=True,
    costly=True,
    promise=MISMATCHES,
)
def known_shapes(evidence: Evidence) -> Iterator[Finding]:
    """The shape and dtype of what every stage hands on are known before the first step; microbatches of other
    shapes give right values or an error on every rank, which does not mistake the traced shape for the actual
    one.

    Buffers are made from what was traced: otherwise, a microbatch of another shape is cut off, read from
    stale memory, or ends the receiver. An error that swaps the two shapes misleads its reader.
    """
    from pipeconform.case.build import data
    from pipeconform.case.build.whole import as_traced

    said = {known.producer: (one.rank, known) for one in evidence.members for known in one.boundaries or ()}
    for right in data.boundaries_of(as_traced(evidence.case)):
        rank, known = said.get(right.producer, (None, None))
        evidence.compared()
        shape, dtype = right.tensors[0].shape, str(right.tensors[0].dtype).removeprefix("torch.")
        if known is None or not known.tensors:
            text = f"the shape and dtype that stage {right.producer} hands on are not known"
            yield Finding(kind="boundary unknown", message=text, rank=rank, stage=right.producer)
        elif not boundary_agrees(evidence.case, known, shape, dtype):
            yield Finding(
                kind="boundary known wrongly",
                message=f"stage {right.producer} is said to hand on {tensors_in_words(known)}; "
                f"the model hands on {dtype}{list(shape)}",
                rank=rank,
                stage=right.producer,
            )
    if outputs_are_due(evidence):
        yield from batch_order_is_kept(evidence)
    yield from stages_equal_the_model(evidence)
