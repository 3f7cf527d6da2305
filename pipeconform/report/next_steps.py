"""What somebody who reads an accusation can do next, where a kind of violation has a usual remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeconform.observe.localisation import Direction, Localisation
from pipeconform.report.result import Violation

__all__ = ["STEPS", "Step", "next_step"]

_WEIGHTS: Direction = "weight gradient"
_POSTED_TOGETHER = "post what two ranks send each other and receive from each other in one batch_isend_irecv"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A remedy, and the violations that it is for."""

    signature: str
    """A pattern that matches the beginning of the signature."""
    advice: str
    said: str = ""
    """A pattern that the message or the hint about the first wrong value must also contain."""
    only_weights: bool = False
    """Whether all that passes between stages, and the loss, must be right: only weight gradients are wrong."""

    def suits(self, violation: Violation) -> bool:
        """Whether the remedy is for this violation."""
        first = None if violation.localisation is None else violation.localisation.first
        text = violation.message + ("" if first is None else f"\n{first.likeness}")
        return (
            bool(re.match(self.signature, violation.signature))
            and bool(re.search(self.said, text))
            and (not self.only_weights or _only_weights(violation.localisation))
        )


def _only_weights(found: Localisation | None) -> bool:
    """Whether a step of a single pipeline is right but for its weight gradients.

    Gradients of replicas are also combined, which may be what is wrong.
    """
    first = None if found is None else found.first
    if found is None or first is None or first.replica is not None or first.direction != _WEIGHTS:
        return False
    return all(set(lane.marks) <= {"="} for lane in found.lanes if lane.direction != _WEIGHTS)


STEPS: tuple[Step, ...] = (
    Step(
        signature="hang",
        said=r"inside (save|restore)\(\)",
        advice="every rank calls save() and restore(), at the same time: run the same collectives there on all of "
        "them, also where a rank has nothing to write or to read",
    ),
    Step(
        signature="hang",
        said=r"waits for (?!receive)[\s\S]*a circle: ",
        advice=_POSTED_TOGETHER,
    ),
    Step(
        signature="hang",
        said=r"waits for receive[\s\S]*a circle: ",
        advice="all wait to receive, so a send is missing or comes too late: send what a computation gave before "
        "waiting for the next input; what each rank computed last says which",
    ),
    Step(
        signature="hang",
        said=r"which (has returned|raised|died)",
        advice="make every rank check the plan and the batch before anything is sent, and raise on all of them or none",
    ),
    Step(
        signature="circle$",
        advice=f"{_POSTED_TOGETHER}; gloo and small NCCL messages only hide that a send waits for its receive",
    ),
    Step(
        signature="circle in order",
        advice="issue sends and receives between two ranks in the same order on both, or together in one "
        "batch_isend_irecv: NCCL carries out those of one communicator one after the other",
    ),
    Step(
        signature="no W",
        advice="compute the weight gradients of every microbatch that had an input gradient (I) before the step ends: "
        "drain what is left over, also where warm-up or cool-down is short",
    ),
    Step(
        signature="several (F|B or I|W)",
        advice="compute everything once per stage and microbatch, but for dry runs and recomputation",
    ),
    Step(
        signature="raised",
        said="has to be contiguous",
        advice="send tensor.contiguous(): gradients may come in any layout",
    ),
    Step(
        signature="raised",
        said="the last stage returns .*; the loss function is given",
        advice="call the loss function with what the last stage returned, and in a dry run with the same structure",
    ),
    Step(
        signature="refused: ",
        advice="claim less, or support it: the claims are in describe(), and build() refused what they cover",
    ),
    Step(
        signature="refused on some ranks only",
        advice="check the size of the batch on every rank, before anything is sent",
    ),
    Step(
        signature="scale$",
        said="mean-reduced",
        advice="on every stage, add each microbatch's gradients once and divide by m once: its loss before its "
        "backward, or what the step adds to .grad; see Capabilities.scale",
    ),
    Step(
        signature="scale$",
        said="sum-reduced",
        advice="divide nothing by m: the gradients of a sum-reduced loss add up as they are; see Capabilities.scale",
    ),
    Step(
        signature="gradient value",
        said="times the reference's",
        advice="scale each microbatch's contribution once, and nothing that was there before; see Capabilities.scale",
    ),
    Step(
        signature="gradient of earlier steps (divided|multiplied)",
        advice="scale what a step contributes before it is added to .grad, which holds earlier steps' gradients, too",
    ),
    Step(
        signature="gradient of earlier steps lost",
        advice="add to .grad; to clear it is for the caller, with zero_grad",
    ),
    Step(
        signature="gradient (missing|value)",
        said="the gradient of returned in stage",
        advice="what the last stage returns may be a parameter of its own: do not detach it in place, and free only "
        "what a node made",
    ),
    Step(
        signature=r"(gradient|output|input gradient|boundary) value",
        said="it is microbatch",
        advice="keep a buffer for each microbatch in flight; one was used again before it had been read",
    ),
    Step(
        signature="gradient value",
        only_weights=True,
        advice="what passes between stages is right; look for what the stage keeps for its backward and was "
        "overwritten (keep a buffer for each microbatch in flight), and for gradients that were cleared, "
        "rescaled or not added up",
    ),
    Step(
        signature="gradient missing",
        advice="run the backward of every stage, also where its input needs no gradient",
    ),
    Step(
        signature="buffer value",
        advice="run the forward of a stage once for each microbatch; after a dry run, put the buffers back",
    ),
    Step(
        signature="kept input changed",
        advice="receive into new memory in every step, and leave what a stage was given as it is",
    ),
    Step(
        signature="hooks ran in a dry run",
        advice="learn shapes on the meta device, or from a copy of the stage without hooks",
    ),
    Step(
        signature="not the given order",
        advice="carry out the lines of Plan.table as they are, each by its rank; sends and receives are to be added",
    ),
    Step(
        signature="declared and executed differ",
        advice="compare table() with the order above; run() must execute what is declared",
    ),
    Step(
        signature="(output order|output length)",
        advice="merge outputs in the order of microbatches, and refuse batches that cannot be divided",
    ),
    Step(
        signature="output unexpected",
        advice="give the output of the whole batch as the unpipelined model would return it: join what the "
        "microbatches gave, as torch.cat along batch.batch_dim does; a list of theirs is another structure",
    ),
    Step(
        signature="(no output|no loss|loss on the wrong rank)",
        advice="return it in StepResult on the ranks that outputs_on and loss_on claim",
    ),
    Step(
        signature="boundary tensors beyond the bound",
        advice="free the received input of a microbatch when its backward has run",
    ),
    Step(
        signature="evaluation (result requires grad|records a graph)",
        advice="run Mode.EVAL under torch.no_grad()",
    ),
    Step(
        signature="evaluation in training mode", advice="call module.eval() on every stage before evaluating"
    ),
    Step(signature="outputs kept", advice="drop references to outputs when the step has returned them"),
    Step(
        signature="more bytes than needed",
        said="is no neighbour",
        advice="send a stage's output to the rank that owns the next stage, and its input's gradient to the one that "
        "owns the stage before",
    ),
    Step(signature="another group", advice="give every operation the group of plan.ranks.pipeline_group"),
    Step(
        signature="synchronised (too early|more than once)",
        advice="run all but the last backward of a step inside no_sync()",
    ),
    Step(signature="second close raises", advice="let close() do nothing when it is called again"),
    Step(
        signature=".*: (accepted|silent wrong result)",
        advice="check it before computing, and raise an error that names stage, tensor, expected and actual",
    ),
    Step(
        signature="parameter not rounded from a copy",
        advice="let the optimizer step float32 copies and round them into the parameters, and set the copies, "
        "too, where a state is loaded",
    ),
    Step(
        signature="(parameter|buffer) not restored",
        advice="save every parameter and buffer of every owned stage, frozen and tied ones too, and read what this "
        "rank has saved",
    ),
    Step(
        signature="parameter value",
        said="until this first update after the restart",
        advice="save and restore the optimizer's state too: momentum, Adam's means and its number of updates",
    ),
    Step(
        signature="not computed again",
        advice="let the adapter turn the engine's recomputation on where Plan.recompute says so",
    ),
    Step(
        signature="loss scale",
        advice="take the maximum over all ranks of whether a gradient is not finite before any of them steps, and let "
        "all lower their scale by it",
    ),
)
"""All remedies; the first that suits is shown."""


def next_step(violation: Violation) -> str:
    """What to do next about a violation; empty where there is no usual remedy."""
    return next((step.advice for step in STEPS if step.suits(violation)), "")
