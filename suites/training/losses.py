"""Losses and loss functions."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Eval
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import requirement
from pipeconform.judge.training import gradients_are_right, losses_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, contract, documented, in_source, paper


@requirement(
    "TRN-2",
    title="Losses",
    level=MUST,
    about=(Focus.PLAIN, Focus.SUM),
    trains=True,
    promise=documented(
        "torch.distributed.pipelining documentation, PipelineSchedule.step(losses=…)",
        "distributed.pipelining.html#torch.distributed.pipelining.schedules.PipelineScheduleSingle.step",
    ),
)
def losses_are_right_and_in_order(evidence: Evidence) -> Iterator[Finding]:
    """Per-microbatch losses have the right values, order and number, on the declared ranks only.

    Losses are what people look at; in the wrong order they hide which data went wrong.
    """
    yield from losses_are_right(evidence)


@requirement(
    "TRN-19",
    title="Losses of evaluation",
    level=MUST,
    about=(Focus.EVAL, Focus.EVAL_LOSSES),
    needs=(Feature.EVAL_LOSSES,),
    evaluates=True,
    promise=(
        in_source(
            "torch.distributed.pipelining, PipelineSchedule.eval: losses stores the loss of each microbatch",
            "distributed/pipelining/schedules.py",
        ),
        contract("Feature.EVAL_LOSSES: an evaluation returns losses as a training step does"),
    ),
)
def losses_of_evaluation(evidence: Evidence) -> Iterator[Finding]:
    """An evaluation has the losses of its microbatches, as training has: the right values, in the batch's order
    and number, on the declared ranks only; the loss function gets its extra arguments there, too.

    The loss on held-out data decides which model is kept and when training stops, and nothing else depends on
    it: a wrong one stays unnoticed.
    """
    yield from losses_are_right(evidence, of=Eval)


@requirement(
    "TRN-12",
    title="Loss functions and targets",
    level=MUST,
    about=(Focus.TARGETS,),
    trains=True,
    promise=(
        documented(
            "torch.distributed.pipelining documentation, PipelineSchedule.step(target=…, loss_kwargs=…)",
            "distributed.pipelining.html#torch.distributed.pipelining.schedules.PipelineScheduleSingle.step",
        ),
        documented(
            "torch.nn.CrossEntropyLoss documentation, ignore_index",
            "generated/torch.nn.CrossEntropyLoss.html",
        ),
    ),
)
def loss_functions_and_targets(evidence: Evidence) -> Iterator[Finding]:
    """Loss functions with extra arguments, targets with another number of dimensions or another dtype
    (cross-entropy), and a summed loss whose microbatches ignore different numbers of targets give the
    reference's losses and gradients.

    Targets are split too; a loss computed on another microbatch's targets still falls.
    """
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-20",
    title="Means over the targets that count",
    level=MUST,
    about=(Focus.COUNTED,),
    trains=True,
    promise=(
        FULL_MODEL,
        documented(
            "torch.nn.CrossEntropyLoss documentation: with ignore_index, the loss is averaged over other targets",
            "generated/torch.nn.CrossEntropyLoss.html",
        ),
    ),
)
def means_over_targets_that_count(evidence: Evidence) -> Iterator[Finding]:
    """A summed loss that its caller divides by the number of targets of the whole batch that are not ignored
    gives the losses and gradients of the mean over these targets, also where a microbatch has none, and with
    the number that belongs to each step.

    Language models are trained this way. A mean of the microbatches' means weights sparse microbatches too
    much, and a microbatch without targets makes it NaN.
    """
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-13",
    title="Auxiliary losses",
    level=MUST,
    about=(Focus.AUXILIARY,),
    trains=True,
    promise=paper("Switch Transformers (arXiv:2101.03961), section 2.2"),
)
def auxiliary_losses(evidence: Evidence) -> Iterator[Finding]:
    """A loss that a stage in the middle adds in its backward, with a custom autograd function, contributes
    its gradient once per microbatch, with the scale that it was given.

    Routers of mixtures of experts are balanced this way; an engine that scales the loss at the end and
    unscales gradients also unscales this one, which was never scaled.
    """
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
