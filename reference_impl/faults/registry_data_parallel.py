"""The list of faults of replicas."""

from __future__ import annotations

from .fault import made

__all__ = ["DATA_PARALLEL"]

DATA_PARALLEL = (
    made(
        "replicas:NeverSynchronised",
        "DPC-1",
        "Every replica keeps its own gradients.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the same on all replicas",
    ),
    made(
        "replicas:OnlyTheLastStage",
        "DPC-1",
        "Only the stage that computes the loss is synchronised.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage 0 is not",
    ),
    made(
        "replicas:SummedOverReplicas",
        "DPC-1",
        "Gradients are the sum over replicas instead of the mean.",
        tells=r"all of stage \d's values are [23] times the reference's",
    ),
    made(
        "replicas:DividedByTheWorld",
        "DPC-1",
        "The sum over replicas is divided by the number of all ranks there are.",
        tells=r"all of stage \d's values are 0\.5 times the reference's",
    ),
    made(
        "replicas:SynchronisedPerMicrobatch",
        "DPC-2",
        "Gradients are averaged after every backward: the mean of what was averaged before is what it was.",
        tells=r"rank \d reduces \d+ in step 0, (\d) times as many, in \d+ operations \(m = \1\)",
    ),
    made(
        "replicas:SynchronisedTwice",
        "DPC-2",
        "Gradients are averaged, and then once more.",
        tells=r"rank \d reduces \d+ in step 0, 2 times as many",
    ),
    made(
        "replicas:BeforeTheLastBackward",
        "DPC-2",
        "Gradients are averaged after the last backward but one.",
        tells=r"before the stage's last backward has begun",
    ),
    made(
        "replicas:BeforeTheWeightParts",
        "DPC-2",
        "Gradients are averaged when the last input part has run; weight parts follow.",
        schedule="ZBVZeroBubble",
        tells=r"before the stage's last backward has begun",
    ),
    made(
        "replicas:FirstCountRemembered",
        "DPC-3",
        "Gradients are averaged after as many backwards as there were in the first step.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not",
    ),
    made(
        "replicas:UnusedLeftOut",
        "DPC-3",
        "A replica that does not use a parameter gets no gradient of it, whatever the others have.",
        tells=r"(?s)the gradient of blocks\.\d\.[\w.]+ in stage \d is not .*missing",
    ),
    made(
        "replicas:BuffersOfTheFirst",
        "DPC-3",
        "After every step all replicas have the first one's buffers.",
        tells=r"the buffer of blocks\.\d\.norm\.running_\w+ in stage \d is not the reference's",
    ),
    made(
        "replica_options:EarlierForgotten",
        "DPC-4",
        "What earlier steps have accumulated is lost where a stage has replicas.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's",
    ),
    made(
        "replica_options:EarlierAddedAgain",
        "DPC-4",
        "What earlier steps have accumulated is added once more after the reduction.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's",
    ),
    made(
        "replica_options:HookLeftOut",
        "DPC-4",
        "The user's communication hook is not registered.",
        tells=r"the communication hook of stage \d was given none of \d+ gradient values",
    ),
    made(
        "replica_options:TiedInOneReplica",
        "DPC-5",
        "Only the first replica adds up the gradients of stages that hold a weight together.",
        tells=r"the tied weight is not the same everywhere: rank \d, stage \d has",
    ),
    made(
        "replica_options:TiedSumOfAll",
        "DPC-5",
        "Gradients of a weight that stages hold together are added up over the replicas once more.",
        tells=r"the gradient of tied in stage \d is not the reference's",
    ),
    made(
        "replica_options:Impatient",
        "DPC-6",
        "What a reduction has given after four milliseconds is taken for its result.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not",
    ),
    made(
        "replica_options:LateReplicaLeftOut",
        "DPC-6",
        "A replica that comes four milliseconds after the first one gives zeros.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's",
    ),
    made(
        "replica_options:PrefixedNames",
        "DPC-8",
        "The state has a wrapper's prefix before every name.",
        tells=r"(?s)the parameter of blocks\.\d\.[\w.]+ in stage \d is not .*missing",
    ),
    made(
        "replica_options:WholeGradients",
        "DPC-8",
        "Parameters are sharded, gradients are not.",
        tells=r"is S\(0\) of \[.*\] on rank \d, its gradient whole",
    ),
    made(
        "replica_options:NeighboursShards",
        "DPC-8",
        "A rank tells its neighbour's shards for its own.",
        tells=r"the parameter of blocks\.\d\.[\w.]+ in stage \d is not the reference's",
    ),
)
