"""Values of an exported program: their names, and their comparison.

A part of `program`, which says what it may import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

SLACK = 1e4  # times the unit of rounding: far beyond it, far below any defect


def of(case: Any, stage: int) -> str:
    """The stage of a name; a model that a front end splits has names of its own."""
    return "" if case.model.split is not None else f"stage {stage}, "


def copied(value: Any) -> Any:
    """A tensor as it is now."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def flat(name: str, value: Any) -> dict[str, Any]:
    """The leaves of a value, each by its place; nothing of None."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return {k: leaf for i, item in enumerate(value) for k, leaf in flat(f"{name}[{i}]", item).items()}
    return {name: copied(value)}


def merged(outputs: list[Any], dim: int) -> Any:
    """Microbatches' outputs as one batch's."""
    first = outputs[0]
    if isinstance(first, Mapping):
        return {key: merged([one[key] for one in outputs], dim) for key in first}
    if isinstance(first, tuple | list):
        return [merged([one[i] for one in outputs], dim) for i in range(len(first))]
    return torch.cat(outputs, dim=dim)


def merged_by(case: Any, outputs: list[Any], dim: int) -> Any:
    """Likewise, by the outputs' own rules where the case has any."""
    from pipeconform.case import merges

    rules = merges.rules_of(case)
    if not rules:
        return merged(outputs, dim)
    columns = zip(*outputs, strict=True)
    return tuple(merges.merged(rule, own, batch_dim=dim) for rule, own in zip(rules, columns, strict=True))


def whole(value: Any) -> Any:
    """What ranks hold parts of, put together; every one of them asks."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def fired(case: Any, index: int, modules: Mapping[int, nn.Module]) -> dict[str, int]:
    """How often the model's own hooks ran in a step."""
    counts: dict[str, int] = {}
    for s, module in modules.items():
        for part in module.modules():
            fires: Any = getattr(part, "fires", {})
            for kind, count in fires.items():
                name = f"step {index}, {of(case, s)}{kind} hooks"
                counts[name] = counts.get(name, 0) + count
            fires.clear()
    return counts


def guard_of(step: Any) -> Any:
    """What the caller has switched off around an evaluation."""
    import contextlib

    guards = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    return guards.get(getattr(step, "guard", ""), contextlib.nullcontext)()


def differences(right: list[dict[str, Any]], shown: list[dict[str, Any]]) -> Iterator[str]:
    """Every value that some rank shows and that is not the unpipelined model's; `right` has an entry per rank."""
    for rank, values in enumerate(shown):
        for name, mine in values.items():
            expected = right[rank].get(name)
            told = difference(expected, mine)
            if told:
                yield f"rank {rank}, {name}: {told}"


def difference(expected: Any, mine: Any) -> str:
    """What is wrong with one value; empty if nothing is."""
    if not isinstance(expected, Tensor) or not isinstance(mine, Tensor):
        same = mine is None if expected is None else isinstance(mine, type(expected)) and mine == expected
        return "" if same else f"{summary(mine)}; expected {summary(expected)}"
    if expected.shape != mine.shape or expected.dtype != mine.dtype:
        return f"{summary(mine)}; expected {summary(expected)}"
    if not expected.numel() or not expected.is_floating_point():
        return "" if torch.equal(expected, mine) else f"{summary(mine)}; expected {summary(expected)}"
    wide_expected, wide = expected.double(), mine.double()
    largest = float(wide_expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
    near = torch.isclose(
        wide, wide_expected, rtol=0.0, atol=SLACK * torch.finfo(expected.dtype).eps * largest, equal_nan=True
    )
    if bool(near.all()):
        return ""
    where = tuple((~near).nonzero()[0].tolist())
    return f"element {list(where)} is {wide[where].item():.9g}; expected {wide_expected[where].item():.9g}"


def summary(value: Any) -> str:
    """A value in a word: what tensors look like, not what is in them."""
    if not isinstance(value, Tensor):
        return "nothing" if value is None else repr(value)[:80]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
