"""Writing a violation of torch's pipelining as one plain script."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pipeconform.case import blocks
from pipeconform.case.case import Case, Load, Restart
from pipeconform.case.perturbations import SlowLink
from pipeconform.export.plain.aspects import Aspect, aspect_of
from pipeconform.export.plain.facts import facts_of
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import docstring, imports_of, pieces_of, rendered, tidy
from pipeconform.export.plain.stages import stages_text
from pipeconform.export.question import Question
from pipeconform.spec.wrappers import any_requirement

__all__ = ["plain_program"]

_WIDTH = 108


def plain_program(question: Question, *, found: str) -> str:
    """The script for the violation that `question` seeks; `found` are its words, signature first.

    Raises:
        NotPlainError: the case, or what was found, cannot be written plainly.
    """
    case, sought = question.case, question.sought
    if sought is None:
        raise NotPlainError("no violation is known that it could show")
    if not isinstance(case, Case):
        raise NotPlainError("the case is of a wrapper, not of a pipeline")
    aspect = aspect_of(case, requirement=sought.requirement, signature=sought.signature, status=sought.status)
    for reason, holds in _reasons(case, question, aspect).items():
        if holds:
            raise NotPlainError(reason)
    facts = facts_of(case, aspect, question.settings)
    classes, built = stages_text(case)
    constants, steps = rendered("constants", facts), rendered("steps", facts)
    if not classes:
        constants, built = f"{constants}\n{built}", ""
    copied = pieces_of("\n".join([constants, classes, built, steps]), facts)
    modules = [one for one in copied if one.startswith("class ")]
    parts = [constants, *modules, classes, built, *copied[len(modules) :], steps]
    body = "\n\n\n".join(filter(None, parts))
    head = docstring("\n".join(_head(question, case, found)))
    text = tidy("\n\n".join([imports_of(body, facts), body]))
    return f"{head}\n\n{text}\n"


def _reasons(case: Case, question: Question, aspect: Aspect) -> dict[str, bool]:
    """What cannot be written plainly, and whether the case has it."""
    model, world, compared = case.model, case.world, "expected" in aspect.found
    delays = all(isinstance(one, SlowLink) or one.what == "delay" for one in world.perturbations)
    how = "" if world.misplan is None else world.misplan.how
    return {
        f"the device is {question.device}": question.device != "cpu",
        "a front end makes the stages": model.split is not None,
        "stages are cut over ranks": world.tensor is not None,
        "stages take keyword arguments or share a parameter": bool(model.kwargs or model.tied),
        "several tensors come in or out": bool(model.carried or model.merged) or model.output != "tensor",
        "the model reads tokens": model.tokens,
        "complex tensors have another precision": model.dtype not in ("float64", "float32")
        and any(one.kind == "complex" for one in model.passages),
        "the loss is more than mean squares": case.loss.kind != "mse" or case.loss.in_place,
        "the loss takes arguments or parameters": case.loss.scaled or case.loss.counted or model.readout,
        "inputs require a gradient": model.input_requires_grad,
        "the batch is in another dimension": bool(model.batch_dim),
        "ranks are stopped or killed": not delays,
        "the schedule is written to a file": world.rewritten,
        "steps use autocast or a source": any(run.autocast or run.from_source for run in case.runs),
        "a step loads a state": any(isinstance(step, Load | Restart) for step in case.program),
        "the number of microbatches changes": len({run.num_microbatches for run in case.runs}) > 1,
        "only some ranks describe their stages": how == "metadata",
        "the plan names a schedule that does not exist": how == "schedule",
        "dropout draws other masks on the full model": compared and case.draws_masks,
        "every replica has its own running statistics": (
            compared and case.has(blocks.BatchNorm) and world.num_replicas > 1
        ),
    }


def _head(question: Question, case: Case, found: str) -> Iterator[str]:
    assert question.sought is not None
    row = any_requirement(question.sought.requirement)
    yield from (f"{case.schedule} of {question.engine}: {row.title} ({row.id}).", "")
    signature, *message = [" ".join(line.split()) for line in found.strip().splitlines()]
    seen = [signature.partition(": ")[2]] if not message else message[:1]
    seen += [line for line in message[1:5] if line.startswith(("expected ", "actual "))]
    yield from _paragraph(f"Seen: {'; '.join(seen)}")
    expected = " ".join(row.statement.split()).partition(". ")[0].rstrip(".")
    yield from _paragraph(f"Expected: {expected}.")
    if case.world.perturbations:
        yield "The delays of the case are left out."
    yield "Exit code: 1 if this is seen again, 0 if the pipeline does as it should, 3 if something else ended it."


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", max_lines=3, placeholder=" …")
