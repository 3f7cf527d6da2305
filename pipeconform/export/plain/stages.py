"""The stages of a case as small modules: a class for each kind of forward, and how every stage is built."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case import blocks
from pipeconform.case.build import passages
from pipeconform.case.case import Case, Passage, Stage
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import call

__all__ = ["block_text", "carried_names", "stages_text"]

_MAKE = {
    "scalar": "x.mean()",
    "flat": "x.mean(-1).reshape(-1) * 1.0",
    "single": "x.mean(-1)[..., None, None] * 1.0",
    "deep": "x.reshape(x.shape[0], 1, -1, 1, x.shape[-1]) * 1.0",
    "empty": "x[..., :0] * 1.0",
    "float8": "x.detach().clamp(-4, 4).to(torch.float8_e4m3fn)",
    "learned": "torch.tanh(self.learned) + torch.zeros_like(x)",
}
_USE = {
    "scalar": "x + {0}",
    "flat": "x + {0}.reshape(*x.shape[:-1], 1)",
    "single": "x + {0}.reshape(*x.shape[:-1], 1)",
    "deep": "x + 0.5 * {0}.reshape(x.shape)",
    "empty": "x + {0}.sum()",
    "float8": "x + 0.5 * {0}.to(x.dtype)",
    "summed": "x + {0}.sum() * 0.25",
    "turned": "x + ({0}.transpose(0, -1).reshape(-1) * 0.5).reshape(x.shape)",
    "bypass": "{0} * 1.0",
}
_MIX = {
    "positions": "x + {0}.to(x.dtype).unsqueeze(-1) * 0.125",
    "mask": "torch.where({0}.unsqueeze(-1), x, x * 0.5)",
    "scale": "x * {0}.unsqueeze(-1)",
    "stream": "x + 0.5 * {0}",
}
_GAIN = {"tensor": "{0}.unsqueeze(-1)", "number": "{0}", "whole": "{0}.mean(0)"}
_OUTPUT = {"tensor": "{0}", "tuple1": "({0},)", "tuple": "({0}, {0} * {0})"}


def carried_names(case: Case) -> list[str]:
    """The names of the carried tensors, as arguments of every stage."""
    kinds = case.model.carried
    return [kind if kinds.count(kind) == 1 else f"{kind}_{i}" for i, kind in enumerate(kinds)]


def stages_text(case: Case) -> tuple[str, str]:
    """The classes of the stages, and the tuple `STAGES` of functions that build them.

    Raises:
        NotPlainError: a stage has a part that cannot be written plainly.
    """
    if case.model.tied:
        raise NotPlainError("stages share a parameter")
    if not _hook_what_they_get(case):
        raise NotPlainError("a block hooks what its stage is given and not what it is given itself")
    if _is_sequential(case):
        return "", _tuple(
            [
                call(
                    "lambda: nn.Sequential",
                    [block_text(one, case) for one in stage.blocks],
                    indent=4,
                    after=_frozen(stage),
                ).lstrip()
                for stage in case.model.stages
            ]
        )
    texts: dict[str, int] = {}
    for s in range(case.num_stages):
        texts.setdefault("\n".join(_class(case, s)), s)
    alone = len(texts) == 1
    names = {
        text: "Stage" if alone or not number else f"Stage{s}"
        for number, (text, s) in enumerate(texts.items())
    }
    classes = [text.replace("class Stage", f"class {names[text]}", 1) for text in texts]
    built = []
    for s, stage in enumerate(case.model.stages):
        inner = [block_text(block, case) for block in stage.blocks]
        name = names["\n".join(_class(case, s))]
        built.append(call(f"lambda: {name}", inner, indent=4, after=_frozen(stage)).lstrip())
    return "\n\n\n".join(classes), _tuple(built)


def _frozen(stage: Stage) -> str:
    return ".requires_grad_(False)" if stage.frozen else ""


def _tuple(built: list[str]) -> str:
    if len(built) == 1:
        return f"STAGES = ({built[0]},)"
    rows = "".join(f"    {one},\n" for one in built)
    return f"STAGES = (\n{rows})"


def _hook_what_they_get(case: Case) -> bool:
    """Whether a block that hooks its stage's inputs is given them, and nothing else, itself."""
    later = any(
        isinstance(block, blocks.InputHooked) for stage in case.model.stages for block in stage.blocks[1:]
    )
    changed = bool(case.model.carried or case.model.passages or case.model.kwargs)
    return not case.has(blocks.InputHooked) or not (later or changed)


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


def _is_sequential(case: Case) -> bool:
    """Whether every stage is its blocks in a row, and what it returns is no view."""
    model = case.model
    plain = not model.sequence and model.container == "tensor" and model.output == "tensor"
    others = model.tokens or model.carried or model.passages or model.kwargs or model.merged or model.tied
    return plain and not others and all(isinstance(stage.blocks[-1], _FRESH) for stage in model.stages)


def _class(case: Case, s: int) -> Iterator[str]:
    """A stage's class; equal for stages that compute alike."""
    model = case.model
    arriving, leaving = passages.arriving(model, s), passages.leaving(model, s)
    learned = any(one.kind == "learned" and one.source == s for one in leaving)
    yield "class Stage(nn.Module):"
    yield "    def __init__(self, *blocks):"
    yield "        super().__init__()"
    yield "        self.blocks = nn.ModuleList(blocks)"
    if learned:
        yield f"        self.learned = nn.Parameter(torch.empty({model.width}))"
    yield ""
    carried = carried_names(case)
    names = {
        one: f"{one.kind}_{number}" if len(arriving) > 1 else one.kind for number, one in enumerate(arriving)
    }
    gains = [kwarg for kwarg in model.kwargs if kwarg.stage == s]
    arguments = [
        "self",
        "x",
        *carried,
        *names.values(),
        *(["*"] if gains else []),
        *(f"gain_{s}" for _ in gains),
    ]
    yield f"    def forward({', '.join(arguments)}):"
    embeds = model.tokens and s == 0
    if embeds:
        yield "        x = self.blocks[0](x)"
    for kind, name in zip(model.carried, carried, strict=True):
        yield f"        x = {_MIX[kind].format(name)}"
    for kwarg in gains:
        if kwarg.kind not in _GAIN:
            raise NotPlainError(f"a keyword argument of the kind {kwarg.kind!r}")
        yield f"        x = x * (1.0 + {_GAIN[kwarg.kind].format(f'gain_{s}')})"
    for one, name in names.items():
        if s in one.users:
            yield f"        x = {_USE.get(one.kind, 'x + 0.5 * {0}').format(name)}"
    yield f"        for block in self.blocks{'[1:]' if embeds else ''}:"
    yield "            x = block(x)"
    x = "x" if model.view_outputs else "x * 1.0"
    if s == case.num_stages - 1:
        yield from _output(case, x)
    elif model.container == "tensor":
        yield f"        return {x}"
    else:
        yield from _boundary(case, s, x, names, leaving)


def _output(case: Case, x: str) -> Iterator[str]:
    model = case.model
    if model.merged or model.output not in _OUTPUT:
        raise NotPlainError(
            "several outputs that are merged in different ways" if model.merged else "an output in a dict"
        )
    if model.output == "tuple" and x != "x":
        yield f"        x = {x}"
        x = "x"
    yield f"        return {_OUTPUT[model.output].format(x)}"


def _boundary(
    case: Case, s: int, x: str, held: dict[Passage, str], leaving: tuple[Passage, ...]
) -> Iterator[str]:
    if x != "x":
        yield f"        x = {x}"
    given = ["x"]
    for kind, name in zip(case.model.carried, carried_names(case), strict=True):
        given.append(f"{name} * 0.75 + 0.25 * x" if kind == "stream" else name)
    given += [held[one] if one.source != s else _MAKE.get(one.kind, "x * 0.75") for one in leaving]
    inside = f"{given[0]}," if len(given) == 1 and case.model.container == "tuple" else ", ".join(given)
    opened, closed = ("", "") if case.model.container == "tuple" and len(given) > 1 else ("[", "]")
    if case.model.container == "tuple" and len(given) == 1:
        opened, closed = "(", ")"
    yield f"        return {opened}{inside}{closed}"


def block_text(block: blocks.AnyBlock, case: Case) -> str:
    """The expression that makes a block.

    Raises:
        NotPlainError: there is none for this block.
    """
    text = _made(block, case)
    return f"{text}.requires_grad_(False)" if block.frozen else text


def _made(block: blocks.AnyBlock, case: Case) -> str:
    model, w = case.model, case.model.width
    match block:
        case blocks.Linear(bias=bias):
            return f"nn.Linear({w}, {w})" if bias else f"nn.Linear({w}, {w}, bias=False)"
        case blocks.Norm():
            return f"nn.LayerNorm({w})"
        case blocks.Embedding():
            return f"nn.Embedding(11, {w})"
        case blocks.Head():
            return f"nn.Linear({w}, {model.classes})"
        case blocks.Attention():
            return f"Attention({w}, sequence_dim=0)" if model.batch_dim else f"Attention({w})"
        case blocks.Dropout():
            return "Dropout()"
        case blocks.Layout(kind=kind):
            return f"{kind.capitalize()}()"
        case blocks.Checkpointed(reentrant=reentrant, dropout=dropout):
            inner = f"Mlp({w}), Dropout()" if dropout else f"Mlp({w})"
            return f"Checkpointed({inner}, use_reentrant={reentrant})"
        case blocks.Compiled(how=how):
            if how == "in_place":
                raise NotPlainError("a module that is compiled in place")
            return f'torch.compile(Mlp({w}), backend="aot_eager")'
        case blocks.Activation(kind=kind):
            return f'Activation({w}, "{kind}")'
        case blocks.Tied(what=what):
            return f'Tied({w}, "{what}")'
        case blocks.GradientHooked(on=on):
            return f'GradientHooked({w}, "{on}")'
        case blocks.Pieces(how=how):
            return f'Pieces({w}, "{how}")'
        case blocks.SyncedNorm():
            raise NotPlainError("a batch norm over several replicas")
    return f"{type(block).__name__}({w})"
