"""What each focus adds to the model, the loss and the optimizer of a plain case."""

from __future__ import annotations

from pipeconform.adapter import Feature, placement_of
from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Adam, Carried, Kwarg, LossSpec, Model, Passage, PassageKind, Sgd, Stage
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.focus import Focus, merged_kinds, ruled_kinds, shape_kinds

__all__ = ["focused"]


def focused(d: Drawing, model: Model, loss: LossSpec) -> tuple[Model, LossSpec, Sgd | Adam | None]:
    """Add to the model, the loss and the optimizer what the focus is about."""
    last, boundary = len(model.stages) - 1, d.limits.capabilities.boundary
    some_stage = range(last + 1)
    optimizer: Sgd | Adam | None = None
    match d.focus:
        case Focus.STRUCTURED:
            kinds = ["tuple1", "tuple"] if Feature.STRUCTURED_OUTPUTS in d.features else []
            kinds += ["dict"] if Feature.MAPPING_OUTPUTS in d.features else []
            model = _replace(model, output=d.pick(kinds))
        case Focus.BOUNDARY | Focus.NO_GRAD:
            model = _replace(model, **_crossing(d))
        case Focus.WRONG_BATCH if boundary.max_tensors > 1 and d.pick([True, False]):
            containers = [c for c in ("tuple", "list") if c in boundary.containers]
            model = (
                _replace(model, carried=("stream",), container=d.pick(containers)) if containers else model
            )
        case Focus.SHAPES | Focus.SKIP | Focus.IGNORED | Focus.GRADIENT_LAYOUT | Focus.FLOAT8:
            model = _replace(model, **_passing(d, last))
        case Focus.DTYPE if boundary.max_tensors > 2 and boundary.non_float_tensors:
            model = _replace(model, **d.pick([{}, {"carried": ("positions",), "container": "tuple"}]))
        case Focus.KWARGS:
            kwargs = tuple(Kwarg(stage=s, kind=d.pick(["tensor", "number"])) for s in some_stage)
            if d.limits.capabilities.kwargs_scope != "pipeline":
                kwargs = d.pick([kwargs[:1], kwargs[-1:], kwargs])
            model = _replace(model, kwargs=kwargs)
        case Focus.OBJECTS:
            objects = tuple(Kwarg(stage=s, kind="objects") for s in some_stage)
            if d.limits.capabilities.kwargs_scope != "pipeline":
                objects = d.pick([objects[:1], objects[-1:], objects])
            model = _replace(model, kwargs=objects)
        case Focus.RULES:
            ruled = tuple(Kwarg(stage=s, kind=d.pick(ruled_kinds(d.features))) for s in some_stage)
            if d.limits.capabilities.kwargs_scope != "pipeline":
                ruled = d.pick([ruled[:1], ruled[-1:], ruled])
            model = _replace(model, kwargs=ruled)
        case Focus.MERGES:
            kinds_of = merged_kinds(d.features)
            model = _replace(model, merged=d.pick([(kind,) for kind in kinds_of] + [kinds_of]))
        case Focus.AUXILIARY:
            model = _insert(model, d.pick(range(1, last) if last > 1 else some_stage), blocks.Auxiliary())
        case Focus.CHECKPOINT:
            dropout = Feature.DROPOUT in d.features and d.pick([False, True])
            model = _insert(model, d.pick(some_stage), blocks.Checkpointed(dropout=dropout))
        case Focus.REENTRANT:
            model = _insert(model, d.pick(some_stage), blocks.Checkpointed(reentrant=True))
        case Focus.COMPILED:
            compiled: list[AnyBlock] = [blocks.Compiled(), blocks.Compiled(how="in_place")]
            model = _insert(model, d.pick(some_stage), d.pick(compiled))
        case Focus.STATEFUL:
            model = _insert(model, d.pick(some_stage), blocks.Stateful())
        case Focus.TIED:
            ties: list[AnyBlock] = [blocks.Tied(), blocks.Tied(what="bias")]
            model = _insert(model, d.pick(some_stage), d.pick(ties))
        case Focus.TIED_STAGES:
            tables = _tied_stages(d, last + 1)
            model = _replace(model, tied=d.pick(tables) if tables else ())
        case Focus.HOOKS:
            hooks: list[AnyBlock] = [blocks.Hooked(), blocks.Hooked(), blocks.Accumulating()]
            model = _insert(model, d.pick(some_stage), d.pick(hooks))
        case Focus.GRAPHS:
            model = _graph(d, model)
        case Focus.DEFERRED:
            # the first stage's input mostly needs no gradient: less can go wrong there
            model = _insert(model, d.pick([last, *some_stage]), blocks.Deferred())
        case Focus.SUM:
            loss = LossSpec(reduction="sum")
        case Focus.FROZEN:
            model = _frozen(d, model)
        case Focus.UNUSED:
            unused: list[AnyBlock] = [blocks.Unused(), blocks.Branch()]
            model = _insert(model, d.pick(some_stage), d.pick(unused))
        case Focus.INPUTS:
            model = _replace(model, input_requires_grad=True)
            if {Feature.KWARGS, Feature.KWARG_GRADIENTS} <= d.features and _told_apart(d, last + 1):
                model = _replace(model, kwargs=d.pick([(), *((Kwarg(stage=s),) for s in some_stage)]))
        case Focus.SHARED:
            model = _insert(model, d.pick(some_stage), blocks.Shared())
        case Focus.INPLACE:
            # what is handed over is the very tensor that was modified, not a copy
            model = _replace(_insert(model, d.pick(some_stage), blocks.Inplace()), view_outputs=True)
        case Focus.BUFFERS:
            model = _insert(model, d.pick(some_stage), blocks.BatchNorm())
        case Focus.LAYOUT if last > 0:
            # the last boundary: kernels round other strides otherwise, and nothing computed comes after it
            layouts: list[AnyBlock] = [blocks.Layout(), blocks.Layout(kind="expanded")]
            model = _replace(_insert(model, last - 1, d.pick(layouts)), view_outputs=True)
        case Focus.EVAL if Feature.DROPOUT in d.features and d.pick([False, True]):
            # evaluation in training mode shows
            model = _insert(model, d.pick(some_stage), blocks.Dropout())
        case Focus.VIEWS | Focus.LAYOUT:
            model = _replace(model, view_outputs=True)
        case Focus.DROPOUT:
            model = _insert(model, d.pick(some_stage), blocks.Dropout())
        case Focus.TARGETS:
            model, loss = _targets(d, model, loss)
        case Focus.OPTIMIZER:
            optimizers: list[Sgd | Adam] = [Sgd(lr=0.0), Sgd(lr=0.125), Sgd(lr=0.0625, momentum=0.5)]
            if "adam" in d.limits.capabilities.optimizers:
                optimizers += [Adam(lr=0.015625), Adam(lr=0.0)]
            optimizer = d.pick(optimizers)
    return model, loss, optimizer


def _told_apart(d: Drawing, num_stages: int) -> bool:
    """Whether a keyword argument can be given to one stage alone."""
    scope = d.limits.capabilities.kwargs_scope
    return scope == "stage" or (scope == "rank" and d.num_ranks == num_stages)


def _tied_stages(d: Drawing, num_stages: int) -> list[tuple[int, ...]]:
    """Stages that may be tied under the claim: two of one rank, two of different ranks, or more."""
    owners = placement_of(d.claim.placement, num_ranks=d.num_ranks, num_stages=num_stages)
    pairs = [(a, b) for a in range(num_stages) for b in range(a + 1, num_stages)]
    inside = [pair for pair in pairs if owners[pair[0]] == owners[pair[1]]]
    across = [pair for pair in pairs if owners[pair[0]] != owners[pair[1]]]
    found: list[tuple[int, ...]] = []
    found += inside if Feature.SHARED_ACROSS_STAGES in d.features else []
    found += across if Feature.SHARED_ACROSS_RANKS in d.features else []
    if {Feature.SHARED_ACROSS_STAGES, Feature.SHARED_ACROSS_RANKS} <= d.features and num_stages > 2:
        found.append(tuple(range(num_stages)))
    return found


def _graph(d: Drawing, model: Model) -> Model:
    """A block whose graph is hard to take apart, or a tensor beside the main stream that no input reaches."""
    last, boundary = len(model.stages) - 1, d.limits.capabilities.boundary
    table: list[AnyBlock | None] = [
        blocks.Offsets(),
        blocks.Common(),
        blocks.Pieces(),
        blocks.Pieces(how="split"),
        blocks.Pieces(how="unbind"),
        blocks.Joined(),
    ]
    containers = [c for c in ("tuple", "list") if c in boundary.containers]
    if last > 1 and boundary.max_tensors > 1 and containers:
        table += [None, None]
    block = d.pick(table)
    if block is not None:
        return _insert(model, d.pick(range(last + 1)), block)
    source = d.pick(range(1, last))
    learned = Passage(kind="learned", source=source, last=source + 1, users=(source + 1,))
    return _replace(model, passages=(learned,), container=d.pick(containers))


def _crossing(d: Drawing) -> dict[str, object]:
    """Containers and carried tensors for the boundary foci."""
    boundary = d.limits.capabilities.boundary
    containers = [c for c in ("tuple", "list") if c in boundary.containers]
    floats: list[Carried] = ["stream"]
    others: list[Carried] = [*(["scale"] if boundary.no_grad_tensors else [])]  # type: ignore[list-item]
    others += ["positions", "mask"] if boundary.non_float_tensors else []
    if d.focus is Focus.NO_GRAD:
        first = d.pick(others)
        table: list[tuple[Carried, ...]] = [(first,), (first, d.pick(others))]
        if boundary.max_tensors > 3:
            table.append((first, "stream", d.pick(others)))
        chosen = d.pick(table)
        if len(chosen) == 2 and chosen[0] == chosen[1]:
            chosen = chosen[:1]
    else:
        chosen = d.pick([(), tuple(floats), ("stream", "stream")]) if boundary.max_tensors > 1 else ()
    return {"carried": chosen[: boundary.max_tensors - 1], "container": d.pick(containers)}


def _passing(d: Drawing, last: int) -> dict[str, object]:
    """A passage or two, one that the focus is about."""
    boundary = d.limits.capabilities.boundary
    containers = [c for c in ("tuple", "list") if c in boundary.containers]
    source = d.pick(range(last - 1 if d.focus is Focus.SKIP else last))
    next_one = source + 1
    found: tuple[Passage, ...]
    match d.focus:
        case Focus.SKIP:
            end = d.pick(range(source + 2, last + 1))
            users = d.pick([(end,), tuple(range(next_one, end + 1))])
            found = (Passage(kind="stream", source=source, last=end, users=users),)
        case Focus.IGNORED:
            found = d.pick(
                [
                    (Passage(kind="stream", source=source, last=next_one),),
                    (Passage(kind="bypass", source=source, last=next_one, users=(next_one,)),),
                ]
            )
        case Focus.GRADIENT_LAYOUT:
            layouts: list[PassageKind] = ["summed", "turned"]
            found = (Passage(kind=d.pick(layouts), source=source, last=next_one, users=(next_one,)),)
        case Focus.FLOAT8:
            found = (Passage(kind="float8", source=source, last=next_one, users=(next_one,)),)
        case _:
            kinds = [d.pick(shape_kinds(boundary))]
            if boundary.max_tensors > 2:
                kinds.append(d.pick(shape_kinds(boundary)))
            found = tuple(
                Passage(kind=kind, source=source, last=next_one, users=(next_one,))
                for kind in dict.fromkeys(kinds)
            )
    return {"passages": found, "container": d.pick(containers)}


def _frozen(d: Drawing, model: Model) -> Model:
    """Freeze a block or a whole stage, but leave something to train."""
    s = d.pick(range(len(model.stages)))
    whole = d.pick([True, False]) if len(model.stages) > 1 else False
    stages = list(model.stages)
    if whole:
        stages[s] = Stage(blocks=stages[s].blocks, frozen=True)
    else:
        stages[s] = Stage(blocks=(blocks.Linear(frozen=True), *stages[s].blocks))
    trainable = any(not stage.frozen and any(not block.frozen for block in stage.blocks) for stage in stages)
    assert trainable
    return _replace(model, stages=tuple(stages))


def _targets(d: Drawing, model: Model, loss: LossSpec) -> tuple[Model, LossSpec]:
    """Cross-entropy over classes (with ignored targets under a sum), or a loss with a keyword argument."""
    kinds = ["classes"]
    if "sum" in d.limits.capabilities.reductions:
        kinds.append("ignored")
    if Feature.LOSS_KWARGS in d.features:
        kinds.append("scaled")
    if Feature.TOKENS in d.features:
        kinds.append("tokens")
    kind = d.pick(kinds)
    if kind == "scaled":
        return model, LossSpec(reduction=loss.reduction, scaled=True)
    last = len(model.stages) - 1
    model = _replace(_insert(model, last, blocks.Head()), classes=3)
    if kind == "tokens":
        first = model.stages[0]
        stages = (Stage(blocks=(blocks.Embedding(), *first.blocks)), *model.stages[1:])
        model = _replace(model, stages=stages, tokens=True)
    if kind == "ignored":
        return model, LossSpec(kind="cross_entropy", reduction="sum", ignore=True)
    return model, LossSpec(kind="cross_entropy", reduction=loss.reduction)


def _insert(model: Model, stage: int, block: AnyBlock) -> Model:
    """`model` with `block` appended to one stage."""
    stages = [
        Stage(blocks=(*old.blocks, block), frozen=old.frozen) if s == stage else old
        for s, old in enumerate(model.stages)
    ]
    return _replace(model, stages=tuple(stages))


def _replace(model: Model, **changes: object) -> Model:
    return Model(**{**{name: getattr(model, name) for name in Model.__struct_fields__}, **changes})
