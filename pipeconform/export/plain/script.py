"""Writing a violation of torch's pipelining as one plain script."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping

from pipeconform.adapters.torch_release import CLASS_NAMES
from pipeconform.case import blocks
from pipeconform.case.case import Case
from pipeconform.case.perturbations import SlowLink
from pipeconform.export.plain.aspects import Aspect, aspect_of
from pipeconform.export.plain.ends import ends_text
from pipeconform.export.plain.engines import full_model_text, program_text
from pipeconform.export.plain.hand import hand_changes, mistakes_text
from pipeconform.export.plain.layout import bounds_on_inputs, layout_text, owners
from pipeconform.export.plain.pipeline import mistake_text, pipeline_text
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import imports_of, pieces_of
from pipeconform.export.plain.stages import stages_text
from pipeconform.export.plain.values import batch_text, loss_text
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
    _refuse(case, question)
    aspect = aspect_of(case, requirement=sought.requirement, signature=sought.signature, status=sought.status)
    if "expected" in aspect.found and case.draws_masks:
        raise NotPlainError("dropout draws other masks on the full model")
    if "expected" in aspect.found and case.has(blocks.BatchNorm) and case.world.num_replicas > 1:
        raise NotPlainError("every replica has its own running statistics")
    classes, built = stages_text(case)
    functions = [
        batch_text(case),
        mistake_text(case),
        program_text(case, aspect),
        full_model_text(case, aspect),
        pipeline_text(case, aspect),
        *ends_text(aspect, question.settings, alone=case.world.size == 1),
        'if __name__ == "__main__":\n    main()',
    ]
    loss = loss_text(case)
    constants = [*_constants(case, aspect)]
    if loss.startswith("loss = "):
        constants.append(loss)
    else:
        functions.insert(1, loss)
    functions = [one for one in functions if one]
    if not classes:
        constants, built = [*constants, built], ""
    copied = pieces_of("\n".join([*constants, classes, built, *functions]), _changes(case, aspect))
    modules = [one for one in copied if one.startswith("class ")]
    helpers = [one for one in copied if not one.startswith("class ")]
    body = "\n\n\n".join(filter(None, ["\n".join(constants), *modules, classes, built, *helpers, *functions]))
    head = "\n".join(_head(question, case, found)).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{head}\n"""\n\n{imports_of(body, _torchs(case))}\n\n{body}\n'


def _refuse(case: Case, question: Question) -> None:
    delays = all(isinstance(one, SlowLink) or one.what == "delay" for one in case.world.perturbations)
    reasons = {
        f"the device is {question.device}": question.device != "cpu",
        "a front end makes the stages": case.model.split is not None,
        "stages are cut over ranks": case.world.tensor is not None,
        "stages take keyword arguments": bool(case.model.kwargs),
        "inputs require a gradient": case.model.input_requires_grad,
        "the batch is in another dimension": bool(case.model.batch_dim),
        "ranks are stopped or killed": not delays,
        "only some steps are under autocast": len({run.autocast for run in case.runs}) > 1,
        "the number of microbatches changes": len({run.num_microbatches for run in case.runs}) > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotPlainError(reason)


def _changes(case: Case, aspect: Aspect) -> dict[str, Mapping[str, str]]:
    """Changes of copied pieces."""
    found = dict(aspect.changes)
    replicas = case.world.replicas
    if case.world.num_replicas > 1:
        seed = 'SEED if not replica else zlib.crc32(f"{SEED}/replica/{replica}".encode())'
        found["seeded"] = {
            "(*role)": "(*role, replica=0)",
            "    return": f"    seed = {seed}\n    return",
            "(SEED, *role)": "(seed, *role)",
        }
    if replicas is not None and replicas.wrapper == "fully_shard":
        found["gradients"] = {"parameter.grad.clone()": "whole(parameter.grad).clone()"}
        found["parameters"] = {"parameter.detach().clone()": "whole(parameter.detach()).clone()"}
    if any(step.by_hand is not None for step in case.trains):
        found |= hand_changes(case)
    if not case.has(blocks.Norm, blocks.BatchNorm, blocks.Unused):
        added = '            if name.endswith("weight") and parameter.ndim == 1:\n                parameter.add_(1.0)\n'
        found["build"] = {
            "for name, parameter in stage.named_parameters()": "for parameter in stage.parameters()",
            added: "",
        }
    return found


def _torchs(case: Case) -> dict[str, str]:
    """The import statements of the schedule and the stage."""
    name = CLASS_NAMES[case.schedule]
    where = "torch.distributed.pipelining" + (".schedules" if name.startswith("_") else "")
    stage = "from torch.distributed.pipelining import PipelineStage"
    return {name: f"from {where} import {name}", "PipelineStage": stage}


def _constants(case: Case, aspect: Aspect) -> Iterator[str]:
    yield from layout_text(case)
    if any(step.by_hand is not None for step in case.trains):
        yield f"LAST = {case.num_stages - 1}  # the last stage"
        yield "MISTAKES = {  # by step: what is due, whether the mistake is made before it, the mistake"
        yield f"{mistakes_text(case, owners(case))}}}"
    yield f"SEED, DTYPE = {case.seed}, torch.{case.model.dtype}"
    if aspect.kind == "raised":
        pattern = re.escape(aspect.ended).replace("\\ ", " ").replace("\\#", "#").replace("#", r"[-+.\w]+")
        yield f"ERROR = r{_raw('^' + pattern)}"
    if aspect.returns == "inputs":
        yield f"BOUND = {bounds_on_inputs(case)}  # how many inputs a rank may keep"


def _raw(text: str) -> str:
    """A text as a raw string, as ruff quotes it."""
    if '"' not in text:
        return f'"{text}"'
    return f"'{text}'" if "'" not in text else f'"{text.replace(chr(34), ".")}"'


def _head(question: Question, case: Case, found: str) -> Iterator[str]:
    assert question.sought is not None
    row = any_requirement(question.sought.requirement)
    yield f"{case.schedule} of {question.engine}: {row.title} ({row.id})."
    yield ""
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
