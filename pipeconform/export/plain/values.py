"""The data of a program: the inputs and targets of its steps, and the loss."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.case import Case, Eval, Train
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import WIDTH, call
from pipeconform.export.plain.stages import carried_names

__all__ = ["batch_text", "loss_text", "num_inputs"]

_NORMAL = "torch.randn({shape}, generator={seeded}, dtype=torch.float64)"
_DRAWN = {
    "positions": "torch.randint(0, 8, {shape}, generator={seeded})",
    "mask": "torch.rand({shape}, generator={seeded}) < 0.5",
    "scale": "0.5 + torch.rand({shape}, generator={seeded}, dtype=torch.float64)",
    "stream": _NORMAL,
}


def num_inputs(case: Case) -> int:
    """How many inputs the first stage has."""
    return 1 + len(case.model.carried)


def batch_text(case: Case) -> str:
    """The function that makes the inputs and the target of a step."""
    return "\n".join(_batch(case))


def _batch(case: Case) -> Iterator[str]:
    model, loss = case.model, case.loss
    sizes = {index: run.batch_size for index, run in enumerate(case.program) if isinstance(run, Train | Eval)}
    size = "size" if len(set(sizes.values())) > 1 else str(next(iter(sizes.values())))
    rows = [size] if not model.sequence else [size, str(model.sequence)]
    rows = rows[::-1] if model.batch_dim else rows
    shape = f"({', '.join(rows)}{',' if len(rows) == 1 else ''})"
    whole = ", ".join([*rows, str(model.width)])
    replicas = case.world.num_replicas > 1
    yield f"def batch(step{', replica' if replicas else ''}):"
    if size == "size":
        yield f"    size = {sizes}[step]"

    def drawn(text: str, shape: str, *role: str) -> str:
        seeded = f"seeded(step, {', '.join(role)}{', replica=replica' if replicas else ''})"
        return text.format(shape=shape, seeded=seeded)

    def kept(name: str, text: str, *, cast: bool) -> str:
        line = f"    {name} = {text}"
        if len(line) > WIDTH:
            before, _, arguments = text.partition("(")
            opened = arguments[:-1].partition(", generator=")
            items = [*opened[0].split(", "), *f"generator={opened[2]}".rsplit(", dtype", 1)]
            items[-1] = f"dtype{items[-1]}" if items[-1].startswith("=") else items[-1]
            line = call(f"    {name} = {before}", items)
        return f"{line}\n    {name} = {name}.to(DTYPE)" if cast and model.dtype != "float64" else line

    if model.tokens:
        yield kept(
            "x", drawn("torch.randint(0, 11, {shape}, generator={seeded})", shape, '"input"'), cast=False
        )
    else:
        yield kept("x", drawn(_NORMAL, whole, '"input"'), cast=True)
    for position, (kind, name) in enumerate(zip(model.carried, carried_names(case), strict=True)):
        text = drawn(_DRAWN[kind], whole if kind == "stream" else shape, f'"{kind}"', str(position))
        yield kept(name, text, cast=kind in ("scale", "stream"))
    if loss.kind == "mse":
        yield kept("target", drawn(_NORMAL, whole, '"target"'), cast=True)
    else:
        text = f"torch.randint(0, {model.classes}, {{shape}}, generator={{seeded}})"
        yield kept("target", drawn(text, shape, '"target"'), cast=False)
    if loss.ignore:
        dim = model.batch_dim
        yield f"    for k, part in enumerate(target.tensor_split(M{', dim=1' if dim else ''})):"
        yield f"        part.narrow({dim}, 0, min(k % part.shape[{dim}], part.shape[{dim}] - 1)).fill_(-100)"
    yield f"    return {', '.join(['x', *carried_names(case), 'target'])}"


def loss_text(case: Case) -> str:
    """The loss of one microbatch: a module of torch, or a function.

    Raises:
        NotPlainError: it takes arguments of its own.
    """
    if case.loss.scaled or case.loss.counted:
        raise NotPlainError("the loss takes arguments of its own")
    reduction = case.loss.reduction
    mse, plain = case.loss.kind == "mse", case.model.output == "tensor"
    if plain and (mse or not case.model.sequence):
        name = "nn.MSELoss" if mse else "nn.CrossEntropyLoss"
        how = "" if reduction == "mean" else 'reduction="sum"'
        return f"loss = {name}({how})"
    lines = ["def loss(output, target):"]
    if not plain:
        lines.append(
            "    output, squares = output" if case.model.output == "tuple" else "    (output,) = output"
        )
    value = f"((output - target) ** 2).{reduction}()"
    if not mse:
        how = "" if reduction == "mean" else ', reduction="sum"'
        value = f"functional.cross_entropy(output.flatten(0, -2), target.flatten(){how})"
    if case.model.output == "tuple":
        value += f" + 0.25 * squares.{reduction}()"
    return "\n".join([*lines, f"    return {value}"])
