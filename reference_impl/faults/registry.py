"""The list of all faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Status = Literal["failed", "crashed", "hung", "error"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong implementation, and how it shows."""

    name: str
    summary: str
    """What is done wrong, in a sentence."""
    requirement: str
    """The requirement that it breaks."""
    schedule: str = "1F1B"
    """A schedule under which it shows."""
    expected_status: Status = "failed"
    reference: str
    """``module:Class``, as ``--impl`` takes it."""
    tells: str = ""
    """A regular expression that the finding's message matches: it names the right stage and microbatch."""


_HERE = "pipeconform.reference_impl.faults"


def _fault(
    where: str,
    requirement: str,
    summary: str,
    *,
    schedule: str = "1F1B",
    status: Status = "failed",
    tells: str = "",
) -> Fault:
    """A fault in ``file:Class``; its name is the class's, in words."""
    words = "".join(
        f"-{letter.lower()}" if letter.isupper() else letter for letter in where.partition(":")[2]
    )
    return Fault(
        name=words.lstrip("-"),
        summary=summary,
        requirement=requirement,
        schedule=schedule,
        expected_status=status,
        reference=f"{_HERE}.{where}",
        tells=tells,
    )


_GENERATORS = (
    _fault(
        "generators:EagerBackward",
        "SCH-2",
        "GPipe's last rank begins its backwards one forward too early.",
        schedule="GPipe",
        tells=r"(\d)B\d+ where \1F\d+ is due",
    ),
    _fault(
        "generators:ShortWarmUp",
        "SCH-2",
        "1F1B warms up with one forward too few.",
        tells=r"rank 0 .*: 0B0 where 0F[12] is due",
    ),
    _fault(
        "generators:LongWarmUp",
        "SCH-3",
        "1F1B warms up with one forward too many.",
        tells=r"rank (\d) holds \d microbatches .* after \1F\d; the bound of 1F1B is",
    ),
    _fault(
        "generators:ChunkByChunk",
        "SCH-2",
        "Interleaved 1F1B runs stage by stage.",
        schedule="Interleaved1F1B",
        tells=r"\dF\d+ where \d[FB]\d+ is due",
    ),
    _fault(
        "generators:MegatronChunkByChunk",
        "SCH-2",
        "Interleaved 1F1B with Megatron's warm-up runs stage by stage.",
        schedule="Interleaved1F1B-Megatron",
        tells=r"\dF\d+ where \d[FB]\d+ is due",
    ),
    _fault(
        "generators:DepthFirst",
        "SCH-2",
        "Looped BFS runs microbatch by microbatch.",
        schedule="LoopedBFS",
        tells=r"computation 1: \dF0 where 0F1 is due",
    ),
    _fault(
        "generators:WeightsAtOnce",
        "SCH-2",
        "ZB-H1 computes weight gradients right after input gradients.",
        schedule="ZB-H1",
        tells=r"\dW\d where \d[FI]\d is due",
    ),
    _fault(
        "generators:TimidWarmUp",
        "SCH-2",
        "ZB-H2 warms up as shortly as ZB-H1.",
        schedule="ZB-H2",
        tells=r"\d[BI]0 where \dF\d is due",
    ),
    _fault(
        "generators:NothingSplit",
        "SCH-2",
        "Interleaved zero bubble runs whole backwards.",
        schedule="InterleavedZeroBubble",
        tells=r"(\d)B\d where \1I\d is due",
    ),
    _fault(
        "generators:WeightsReversed",
        "SCH-2",
        "ZB-V takes the newest waiting weight part instead of the oldest.",
        schedule="ZBVZeroBubble",
        tells=r"\dW\d where \dW\d is due",
    ),
    _fault(
        "generators:HalfIsWhole",
        "SCH-3",
        "V-Half holds as many activations as ZB-V.",
        schedule="V-Half",
        tells=r"holds \d+ microbatches .* after \dF\d; the bound of V-Half is",
    ),
    _fault(
        "generators:MinIsWhole",
        "SCH-3",
        "V-Min holds as many activations as ZB-V.",
        schedule="V-Min",
        tells=r"holds \d+ microbatches .* after \dF\d; the bound of V-Min is",
    ),
    _fault(
        "generators:WeightsAtTheEnd",
        "SCH-2",
        "DualPipeV keeps all weight parts for the end.",
        schedule="DualPipeV",
        tells=r"computation \d+: .* where \dW\d is due",
    ),
    _fault(
        "generators:LateBackward",
        "SCH-2",
        "Hanayo's first rank runs one forward more before its first backward.",
        schedule="Hanayo",
        tells=r"rank 0 .*: (\d)F1 where \1B0 is due",
    ),
    _fault(
        "generators:LastFirst",
        "SCH-2",
        "Forward-only takes the microbatches from the last to the first.",
        schedule="ForwardOnly",
        tells=r"computation 0: (\d)F[1-9] where \1F0 is due",
    ),
    _fault(
        "generators:BackwardForgotten",
        "SCH-1",
        "The last microbatch has no backward in the table.",
        status="error",
        tells=r"stage \d, microbatch \d, end of the step: .*the table holds no backward",
    ),
    _fault(
        "generators:ForwardDoubled",
        "SCH-1",
        "The first forward stands in the table twice.",
        schedule="GPipe",
        status="error",
        tells=r"stage 0, microbatch 0, forward",
    ),
    _fault(
        "generators:WeightBeforeInput",
        "SCH-1",
        "The first weight part stands before its input part.",
        schedule="ZB-H1",
        status="error",
        tells=r"stage \d, microbatch 0, weight part",
    ),
)

_LIST = (
    _fault("scale:NotDivided", "TRN-3", "A mean loss is not divided by the number of microbatches."),
    _fault("scale:SumDivided", "TRN-3", "A sum-reduced loss is divided by the number of microbatches."),
    _fault("scale:FirstCountKept", "LIF-1", "Every step's loss is divided by the first step's m."),
    _fault("scale:OneStageScaled", "TRN-3", "Stage 0 scales its gradients by 1/4, all others are right."),
    _fault("scale:LossesDivided", "TRN-2", "The losses are returned divided by the number of microbatches."),
    _fault("scale:EarlierRescaled", "TRN-4", "The division rescales gradients accumulated before."),
    _fault("gradients:AccumulationLost", "TRN-4", "A step overwrites the gradients accumulated before."),
    _fault(
        "gradients:BoundaryDetached", "TRN-1", "Outputs are detached: stages before the last get nothing."
    ),
    _fault("gradients:FirstStageMissing", "TRN-1", "Stage 0 gets no gradient."),
    _fault("gradients:OneParameterMissing", "TRN-1", "The last parameter of each stage gets no gradient."),
    _fault("gradients:FrozenTrained", "TRN-5", "Frozen parameters are trained."),
    _fault("gradients:UnusedZeroed", "TRN-6", "Parameters that nothing uses get zeros instead of nothing."),
    _fault("gradients:InputsForgotten", "TRN-7", "Inputs that require a gradient get none."),
    _fault("gradients:InputsUnscaled", "TRN-7", "The gradients of inputs are not divided by m."),
    _fault(
        "gradients:LastWeightPartSkipped",
        "SPL-1",
        "The weight part of the last microbatch never runs.",
        schedule="ZB-H1",
    ),
    _fault("gradients:WeightPartTwice", "SPL-1", "Every weight part runs twice.", schedule="ZB-H1"),
    _fault(
        "gradients:SecondUseForgotten",
        "FWD-13",
        "The weight part visits each parameter once, however often it was used.",
        schedule="ZB-H1",
    ),
    _fault("microbatches:OutputsSwapped", "FWD-2", "The first two microbatches change places in the output."),
    _fault("microbatches:LastOutputDropped", "FWD-2", "The last microbatch is missing from the output."),
    _fault("microbatches:LossesReversed", "TRN-2", "The losses come in the order of the backwards."),
    _fault("microbatches:LossKwargsDropped", "TRN-12", "The loss function's extra arguments are not passed."),
    _fault(
        "microbatches:TargetsShifted", "TRN-1", "Every microbatch is compared with the next one's target."
    ),
    _fault("microbatches:KwargsShifted", "FWD-9", "Every microbatch gets the next one's keyword arguments."),
    _fault("microbatches:OutputEverywhere", "FWD-3", "Every rank returns an output."),
    _fault(
        "microbatches:OutputOnFirstRank", "FWD-3", "The first rank returns the output, the last does not."
    ),
    _fault("microbatches:OneTupleUnwrapped", "FWD-11", "A 1-tuple is returned as its element."),
    _fault(
        "wire:StaleActivation", "FWD-1", "Every second message delivers the activation of the one before."
    ),
    _fault(
        "wire:BufferReused",
        "TRN-1",
        "One buffer receives all microbatches, also while earlier ones need it.",
        schedule="GPipe",
    ),
    _fault("wire:RoundedToBfloat16", "FWD-1", "Activations travel in bfloat16."),
    _fault("wire:Scrambled", "FWD-7", "A transposed tensor's memory is sent as if it were in order."),
    _fault("wire:OutputsFreed", "FWD-14", "A stage's output is freed as soon as it is sent."),
    _fault("wire:MasksLost", "FWD-5", "Tensors that are not floating arrive as zeros."),
    _fault("wire:OnlyFirstRefreshed", "FWD-4", "Further tensors of a boundary stay those of microbatch 0."),
    _fault("wire:WrongHalf", "FWD-6", "Every 16-bit type of float travels as the other one."),
    _fault("boundaries:ScalarsLifted", "FWD-8", "A 0-d tensor arrives as a vector of one element."),
    _fault("boundaries:HighDimensionsFolded", "FWD-8", "Tensors of more than three dimensions are folded."),
    _fault("boundaries:PassedOnForgotten", "FWD-10", "The gradient of what a stage passes on is lost."),
    _fault(
        "boundaries:GradientDemanded", "FWD-12", "An output without a gradient is an error.", status="error"
    ),
    _fault("boundaries:FirstDecides", "FWD-12", "Without a gradient for the first output there is none."),
    _fault("boundaries:Float8Confused", "FWD-21", "One type of float8 is taken for the other."),
    _fault(
        "boundaries:GradientStridesForgotten",
        "TRN-15",
        "A transposed gradient is sent as it lies.",
        schedule="ZB-H1",
    ),
    _fault(
        "boundaries:ExpandedGradientCut",
        "TRN-15",
        "Of an expanded gradient one number is sent.",
        schedule="ZB-H1",
    ),
    _fault(
        "contents:EvalBetweenForwards",
        "TRN-11",
        "Modules are in training mode during forwards only.",
        status="error",
    ),
    _fault("contents:LossScaled", "TRN-13", "Gradients of auxiliary losses are unscaled, but never scaled."),
    _fault("contents:StateRestored", "TRN-18", "A module's attributes are restored after each forward."),
    _fault("contents:TiesBroken", "TRN-8", "Tied parameters are cloned."),
    _fault("contents:Overflows", "TRN-16", "The loss is scaled by more than float16 can hold."),
    _fault("callers:AutocastLost", "FWD-18", "Stages after the first run without autocast."),
    _fault("callers:ObjectsKept", "FWD-15", "Objects among the keyword arguments are those of step one."),
    _fault("callers:ListsSplit", "FWD-15", "Lists among the keyword arguments are split."),
    _fault("callers:MergedInFirst", "FWD-16", "Outputs are merged in dimension 0, wherever the batch is."),
    _fault("callers:EvaluationRecords", "LIF-2", "Evaluation records a graph."),
    _fault(
        "callers:BuffersOfInference",
        "LIF-2",
        "Buffers made in inference mode are used for training.",
        status="error",
    ),
    _fault("callers:NamedByPosition", "LIF-4", "Names in the state begin with the stage's position."),
    _fault("callers:FirstStageNotLoaded", "LIF-4", "A state is loaded into all stages but the first."),
    _fault("wire:PositionTakenForProcess", "FWD-1", "A position is taken for a process.", status="error"),
    _fault("wire:Unmatched", "TRN-1", "The first rank waits for a message that nobody sends.", status="hung"),
    _fault("lifecycle:RandomAtBuild", "LIF-6", "Building draws a random number."),
    _fault("lifecycle:WeightsTouchedAtBuild", "LIF-6", "Building rounds the parameters."),
    _fault("lifecycle:DryRun", "TRN-9", "A dry run before the first step leaves its trace in batch norm."),
    _fault("lifecycle:ForwardTwice", "FWD-17", "Every forward runs twice, and so do the model's hooks."),
    _fault("lifecycle:EvaluationClearsGradients", "LIF-1", "Evaluation clears the gradients."),
    _fault("lifecycle:EvaluationDraws", "LIF-1", "Evaluation draws a random number."),
    _fault("lifecycle:FirstStageNotUpdated", "TRN-14", "The optimizer skips stage 0."),
    _fault("lifecycle:LearningRateIgnored", "TRN-14", "The optimizer has a learning rate of its own."),
    _fault("lifecycle:MasksRepeated", "TRN-10", "All microbatches are given the same dropout masks."),
    _fault("lifecycle:Unrepeatable", "LIF-5", "The last bit of the gradients depends on the clock."),
    _fault("schedules:ForwardRepeated", "SCH-1", "Every forward of a training step runs twice."),
    _fault("schedules:InputPartWasted", "SCH-1", "Input gradients are computed twice.", schedule="GPipe"),
    _fault("schedules:GPipeInDisguise", "SCH-2", "What is called 1F1B runs as GPipe."),
    _fault("schedules:GreedyWarmUp", "SCH-3", "ZB-H1 warms up as long as ZB-H2.", schedule="ZB-H1"),
    _fault(
        "schedules:WeightsLast",
        "SCH-3",
        "All weight parts wait until the end of the step.",
        schedule="ZBVZeroBubble",
    ),
    _fault(
        "schedules:FewRefusedAlone",
        "SCH-6",
        "The first rank alone refuses fewer microbatches than ranks.",
        status="error",
    ),
    _fault("schedules:SingleDropped", "SCH-6", "A single microbatch leaves no gradients."),
    _fault("schedules:LoopForV", "SCH-7", "A V schedule's stages run as a loop.", schedule="ZBVZeroBubble"),
    _fault("schedules:Misnumbered", "SCH-8", "The declared table has the last rank's order wrong."),
    _fault("schedules:EvaluationRepeats", "SCH-9", "Evaluation runs forwards twice."),
    _fault("schedules:OneAtATime", "SCH-4", "The declared table runs one microbatch after the other."),
    _fault("schedules:OppositeOrders", "SCH-5", "The declared orders of neighbours wait for each other."),
    _fault(
        "schedules:PlacementIgnored",
        "SCH-7",
        "Another placement than the schedule's is ignored.",
        schedule="LoopedBFS",
    ),
    _fault(
        "stages:IndependentDropped",
        "SPL-1",
        "Outputs that no input reaches are forgotten when the backward is split.",
        schedule="InterleavedZeroBubble",
    ),
    _fault(
        "stages:WholeAmongParts",
        "SPL-2",
        "A whole backward among split ones loses its weight part.",
        schedule="ZB-H1",
    ),
    _fault("stages:GraphsHoarded", "SPL-2", "Graphs are kept for ever.", schedule="ZB-H1"),
    _fault("stages:DeferredForgotten", "SPL-3", "Whole backwards forget deferred-weight functions."),
    _fault("stages:DeferredTwice", "SPL-3", "Deferred-weight functions run twice.", schedule="ZB-H1"),
    _fault("stages:NothingToDo", "SPL-4", "Weight parts that are not due are ignored.", schedule="ZB-H1"),
    _fault("stages:BareKeys", "SPL-4", "The error is a bare key.", schedule="ZB-H1"),
    _fault("stages:WeightPartsKept", "SPL-5", "Graphs are kept until the end of the step.", schedule="ZB-H1"),
    *_GENERATORS,
    _fault("quiet:SecondGradientHalved", "FWD-4", "The second tensor of a boundary gets half its gradient."),
    _fault("quiet:KwargsGradientHalved", "FWD-9", "Stages with keyword arguments halve their gradients."),
    _fault("quiet:KwargsCutOff", "TRN-7", "Keyword arguments that require a gradient get none."),
    _fault("quiet:EvaluationInTrainingMode", "LIF-1", "Evaluation leaves the modules in training mode."),
    _fault("quiet:NothingHeld", "TRN-2", "The last rank says that it holds no microbatch's results."),
    _fault("quiet:LossesEmpty", "TRN-2", "The losses are an empty list."),
    _fault(
        "quiet:UnevenRefusedAlone", "FWD-2", "The first rank alone refuses an uneven batch.", status="error"
    ),
    _fault("quiet:GradientAskedForAll", "FWD-5", "Tensors without gradient are asked for one."),
    _fault("tracing:CutsDetached", "TRC-1", "What crosses the first cut is traced without its graph."),
    _fault("tracing:NamesPrefixed", "TRC-2", "The keys of a stage's state dict have a prefix."),
    _fault("tracing:SkipsDetached", "TRC-3", "A skip connection carries no gradient."),
    _fault("tracing:TiesNotAdded", "TRC-3", "Ranks that share a parameter keep their own gradients."),
    _fault("tracing:ModeFrozen", "TRC-3", "Stages stay in the mode they were traced in."),
    _fault("tracing:NearestPointTaken", "TRC-4", "A split point nobody knows is taken for the nearest."),
    _fault("tracing:PointNotNamed", "TRC-4", "The error about a wrong split point does not name it."),
    _fault("tracing:BeyondTracedLost", "TRC-5", "Of microbatches larger than traced the rest is lost."),
    _fault("tracing:DtypeGuessed", "TRC-5", "The dtype known before the first step is another one."),
    _fault("residue:OutputsKept", "LIF-3", "Outputs are kept until the next step."),
    _fault("residue:ThreadsLeft", "LIF-3", "Every pipeline starts a thread that nobody ends."),
    _fault("residue:GroupsLeft", "LIF-3", "Every pipeline makes a process group of its own."),
    _fault("residue:StepsCollected", "LIF-3", "Something of every step is kept."),
    _fault("residue:GraphsKeptInStep", "LIF-7", "Graphs are kept until the step ends."),
    _fault("residue:ClosedOnce", "LIF-8", "The second close() raises."),
    _fault("residue:GroupDestroyed", "LIF-8", "close() destroys the caller's group.", status="error"),
    _fault("norms:OwnNorm", "TRN-17", "Every rank says the norm of its own stages."),
    _fault("norms:NormsAdded", "TRN-17", "The ranks' norms are added instead of their squares."),
    _fault("norms:TiedTwice", "TRN-17", "A tied parameter counts once for each of its names."),
    _fault("disasters:Raises", "FWD-1", "The last rank raises in the middle of a step.", status="error"),
    _fault("disasters:Exits", "FWD-1", "The last rank leaves by os._exit.", status="crashed"),
    _fault("disasters:Sleeps", "FWD-1", "The first rank never comes back.", status="hung"),
)

FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _LIST})
"""By name."""
