"""Values, gradients and batches that are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.aftermath import Aftermath, answers_are_right
from pipeconform.judge.judgement import after_mistakes
from pipeconform.judge.outcome import Outcome
from pipeconform.spec.catalogue import MUST, SHOULD, Promise

from ..promises import DECLARED, FULL_MODEL, contract, documented, in_source


@after_mistakes(
    "ERR-5",
    title="Missing, surplus and foreign values",
    level=MUST,
    about=(Focus.WRONG_VALUES,),
    promise=(
        DECLARED,
        FULL_MODEL,
        in_source(
            "torch.distributed.pipelining, validate_and_normalize_to_tuple",
            "distributed/pipelining/_utils.py",
        ),
    ),
)
def missing_surplus_and_foreign_values(aftermath: Aftermath) -> Iterator[Outcome]:
    """One tensor too many or too few, None, or another value that is not a tensor, among the inputs or in
    what a stage hands on, raises the declared error on the rank where it is; the error names the stage and
    says what there was instead. Where no error is declared, the same holds as in ERR-3.

    A None that is dropped shifts every tensor behind it; a value that is not a tensor cannot be sent, and the
    receiver waits for it.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-6",
    title="Gradients that a hook changes",
    level=MUST,
    about=(Focus.WRONG_GRADIENT,),
    promise=(
        DECLARED,
        FULL_MODEL,
        documented("torch.Tensor.register_hook documentation", "generated/torch.Tensor.register_hook.html"),
    ),
)
def gradients_that_a_hook_changes(aftermath: Aftermath) -> Iterator[Outcome]:
    """When a hook gives a stage's gradient another shape or dtype, for every microbatch or for one, the
    stage's rank raises the declared error, which names the stage, the microbatch and the direction. Where no
    error is declared, the same holds as in ERR-3.

    Autograd's own error names neither stage nor microbatch, and the neighbour waits for a gradient that never
    comes.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-7",
    title="Batches that cannot be split",
    level=MUST,
    about=(Focus.WRONG_BATCH,),
    promise=(
        DECLARED,
        FULL_MODEL,
        in_source("torch.distributed.pipelining.microbatch", "distributed/pipelining/microbatch.py"),
    ),
)
def batches_that_cannot_be_split(aftermath: Aftermath) -> Iterator[Outcome]:
    """A batch with fewer samples than microbatches, targets for another number of samples, and arguments that
    differ in their number of samples raise the declared error before anything wrong is sent. Where no error
    is declared, the same holds as in ERR-1.

    A rank that finds no microbatch to run returns early, and all others wait for it; samples beyond those of
    the other arguments are quietly dropped.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-20",
    title="Training steps without gradients",
    level=SHOULD,
    about=(Focus.NO_GRADIENTS,),
    promise=(
        DECLARED,
        FULL_MODEL,
        documented("torch.no_grad documentation", "generated/torch.no_grad.html"),
        in_source(
            "torch.distributed.pipelining, step(): it should not be used under torch.no_grad()",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def training_steps_without_gradients(aftermath: Aftermath) -> Iterator[Outcome]:
    """A training step that is run under ``torch.no_grad`` or ``torch.inference_mode``, on every rank, raises the
    declared error on every rank; the error says that it is about gradients. Where no error is declared, there is an
    error, or the step trains as it does without; no rank hangs or dies.

    A decorator or a loop that was written for evaluation switches gradients off; a step that then trains nothing
    returns a loss that looks right.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-18",
    title="Sources that end in the middle of a step",
    level=MUST,
    about=(Focus.SOURCE_ENDS,),
    promise=(
        DECLARED,
        FULL_MODEL,
        contract("Batch.source: a step's microbatches are the next ones of an iterator that all steps share"),
        Promise(
            "Python documentation, iterator types: an iterator raises StopIteration when there are no further items",
            "https://docs.python.org/3/library/stdtypes.html#iterator.__next__",
        ),
    ),
)
def sources_that_end(aftermath: Aftermath) -> Iterator[Outcome]:
    """When the iterator of a step's microbatches ends before the step has all of them, on every rank, an error is
    raised and no rank is left waiting; nothing is repeated or left out in silence. Where no error is declared, the
    same holds as in ERR-1.

    Ranks in the middle of a pipeline take nothing from an iterator: they wait for microbatches that the first rank
    does not have.
    """
    yield from answers_are_right(aftermath)
