"""A wrapper's case as text: a few aligned lines with everything that is not the default."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields

from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Step, Uneven, WrapperCase
from pipeconform.wrapper import WrapOptions

__all__ = ["describe_wrapper_case", "step_words", "wrapper_rows"]

_TOLD = (
    "module",
    "form",
    "ranks",
    "options",
    "steps",
    "own_values",
    "own_shape",
    "uneven",
    "loaded_by",
    "seed",
)
"""Fields of a case with words of their own."""
_SYNC = {
    "yes": "",
    "no": "in no_sync",
    "nested": "in no_sync twice",
    "forward_inside": "forward in no_sync",
    "backward_inside": "backward in no_sync",
}


def describe_wrapper_case(case: WrapperCase) -> str:
    """A case as a few aligned lines."""
    rows = wrapper_rows(case)
    wide = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{wide}}  {text}" for name, text in rows)


def wrapper_rows(case: WrapperCase) -> tuple[tuple[str, str], ...]:
    """Name and value of everything that is not the default."""
    return tuple(_rows(case))


def _rows(case: WrapperCase) -> Iterator[tuple[str, str]]:
    yield "replicas", f"{case.ranks}, each with other data"
    yield "module", case.module + ("" if case.form == "tensor" else f", returns a {case.form}")
    options = list(_options(case.options))
    if options:
        yield "wrapped with", ", ".join(options)
    if case.own_values:
        yield "begin", "every rank with other values"
    if case.own_shape:
        yield "shapes", "the last rank's first parameter has another one"
    for field in structs.fields(WrapperCase):
        value = getattr(case, field.name)
        if field.name not in _TOLD and value != field.default:
            yield field.name, _told(value)
    yield "program", _program(case.steps)
    if case.loaded_by:
        yield "then", f"saved, loaded by {case.loaded_by} in a world of their own, and the same program again"
    if case.uneven is not None:
        yield "uneven", _uneven(case.uneven)
    yield "seed", str(case.seed)


def _options(options: WrapOptions) -> Iterator[str]:
    for field in fields(WrapOptions):
        value = getattr(options, field.name)
        if value == field.default:
            continue
        if field.name == "bucket_mib":
            yield f"buckets of {value:g} MiB"
        elif value is True:
            yield field.name
        elif value is False:
            yield f"no {field.name}"
        else:
            yield f"{field.name} {_told(value)}"


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if hasattr(value, "__struct_fields__"):
        parts = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return ", ".join(f"{name} {_told(one)}" for name, one in parts)
    return str(value)


def _uneven(uneven: Uneven) -> str:
    counts = ", ".join(map(str, uneven.steps))
    divided = "initial" if uneven.divide_by_initial else "effective"
    early = ", an early end is an error" if uneven.raise_early else ""
    return f"the ranks run {counts} steps inside join, divided by the {divided} world size{early}"


def _program(steps: tuple[Step, ...]) -> str:
    """The steps in order; equal consecutive steps are written once."""
    parts = []
    for step, same in itertools.groupby(steps):
        times = len(list(same))
        parts.append(_step(step) if times == 1 else f"{times} × {_step(step)}")
    return ", ".join(parts)


def _step(step: Step) -> str:
    return f"step({step_words(step)})"


def step_words(step: Step) -> str:
    """What a step does: its passes, and everything that is not the default."""
    words = [_pass(one) for one in step.passes]
    for field in structs.fields(Step):
        value = getattr(step, field.name)
        if field.name != "passes" and value != field.default:
            words.append(f"zero_grad({value})" if field.name == "zero" else f"{field.name} {_told(value)}")
    return "; ".join(words)


def _pass(one: Pass) -> str:
    words = [text for text in (_SYNC[one.sync],) if text]
    if one.uses:
        words.append("towers " + " | ".join(names or "none" for names in one.uses))
    if one.forwards != 1:
        words.append(f"{one.forwards} forwards")
    for field in structs.fields(Pass):
        value = getattr(one, field.name)
        if field.name not in ("sync", "uses", "forwards") and value != field.default:
            words.append(f"{field.name} {_told(value)}")
    return "pass" + (f" ({', '.join(words)})" if words else "")
