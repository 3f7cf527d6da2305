"""The stages of a case as small modules: a class for each kind of forward, and how every stage is built."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.build import passages
from pipeconform.case.case import Case, Stage
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import rendered

__all__ = ["stages_text"]

_MAKE = {"complex": "torch.complex(x * 0.75, x * x)"}
"""The tensor that a stage makes for later ones, if it is not ``x * 0.75``."""
_USE = {"summed": "{0}.sum() * 0.25", "turned": "({0}.transpose(0, -1).reshape(-1) * 0.5).reshape(x.shape)"}
_USE |= {"complex": "torch.view_as_real({0}) @ x.new_tensor([0.5, 0.25])"}
"""What later stages add of it."""
_FRESH = (
    blocks.Linear,
    blocks.Norm,
    blocks.Mlp,
    blocks.Hooked,
    blocks.Shared,
    blocks.Activation,
    blocks.Accumulating,
    blocks.InputHooked,
    blocks.GradientHooked,
    blocks.Deferred,
)
"""Blocks whose result is no view, where there is no sequence."""


def stages_text(case: Case) -> tuple[str, str]:
    """The classes of the stages, and the tuple `STAGES` of functions that build them.

    Raises:
        NotPlainError: a stage has a part that cannot be written plainly.
    """
    model = case.model
    hooked = [
        block for stage in model.stages for block in stage.blocks[1:] if isinstance(block, blocks.InputHooked)
    ]
    if hooked or (model.passages and case.has(blocks.InputHooked)):
        raise NotPlainError("a block hooks what its stage is given and not what it is given itself")
    fresh = all(stage.blocks and isinstance(stage.blocks[-1], _FRESH) for stage in model.stages)
    if fresh and not model.sequence and model.container == "tensor":
        return "", _tuple([_built("nn.Sequential", stage, case) for stage in model.stages])
    texts = [_class(case, s) for s in range(case.num_stages)]
    kinds = list(dict.fromkeys(texts))
    names = {text: f"Stage{texts.index(text)}" if number else "Stage" for number, text in enumerate(kinds)}
    classes = [text.replace("class Stage", f"class {name}", 1) for text, name in names.items()]
    built = [_built(names[text], stage, case) for text, stage in zip(texts, model.stages, strict=True)]
    return "\n\n\n".join(classes), _tuple(built)


def _built(name: str, stage: Stage, case: Case) -> str:
    inner = ", ".join(block_text(block, case.model.width) for block in stage.blocks)
    return f"lambda: {name}({inner}){'.requires_grad_(False)' if stage.frozen else ''}"


def _tuple(built: list[str]) -> str:
    if len(built) == 1:
        return f"STAGES = ({built[0]},)"
    return "STAGES = (\n{})".format("".join(f"    {one},\n" for one in built))


def _class(case: Case, s: int) -> str:
    """A stage's class; equal for stages that compute alike."""
    model = case.model
    arriving, leaving = passages.arriving(model, s), passages.leaving(model, s)
    names = {one: f"{one.kind}_{i}" if len(arriving) > 1 else one.kind for i, one in enumerate(arriving)}
    if any(one.kind not in _USE for one in (*arriving, *leaving)):
        raise NotPlainError("a stage makes an unusual tensor for later ones")
    given = ["x", *(names.get(one, _MAKE.get(one.kind, "x * 0.75")) for one in leaving)]
    boundary = f"[{', '.join(given)}]"
    if model.container == "tuple":
        boundary = ", ".join(given) if leaving else "(x,)"
    facts = {
        "arguments": "".join(f", {name}" for name in names.values()),
        "used": [_USE[one.kind].format(name) for one, name in names.items() if s in one.users],
        "boundary": boundary if model.container != "tensor" and s < case.num_stages - 1 else "",
        "copied": not model.view_outputs,
    }
    return rendered("stage", facts)


def block_text(block: blocks.AnyBlock, width: int) -> str:
    """The expression that makes a block: a module of torch, or a class of ours with the block's own fields.

    Raises:
        NotPlainError: there is none for this block.
    """
    match block:
        case blocks.Linear(bias=bias):
            text = f"nn.Linear({width}, {width}{'' if bias else ', bias=False'})"
        case blocks.Norm():
            text = f"nn.LayerNorm({width})"
        case blocks.SyncedNorm() | blocks.Compiled() | blocks.Embedding() | blocks.Head():
            raise NotPlainError(f"a stage has the block {type(block).__name__}")
        case _:
            names = [name for name in block.__struct_fields__ if name != "frozen"]
            given = (f", {name}={_quoted(getattr(block, name))}" for name in names)
            text = f"{type(block).__name__}({width}{''.join(given)})"
    return f"{text}.requires_grad_(False)" if block.frozen else text


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
