"""The faults of chapter ERR that are about plans, and about what comes after a refusal."""

from __future__ import annotations

from .fault import made

__all__ = ["PLANS"]

PLANS = (
    made(
        "agreements:NeighboursBelieved",
        "ERR-8",
        "What adjacent stages say is not compared.",
        tells="another output (shape|dtype) than stage .*; nobody raised; promised is ValueError",
    ),
    made(
        "agreements:DeclaredDtypesNotCompared",
        "ERR-8",
        "Declared shapes are compared, dtypes are not.",
        tells="another output dtype than stage .*; nobody raised",
    ),
    made(
        "agreements:OneNeighbourNamed",
        "ERR-8",
        "The error names one of the two stages.",
        tells=r"it does not name stage \d",
    ),
    made(
        "agreements:NeighboursComparedLate",
        "ERR-8",
        "What adjacent stages say is compared in the first step.",
        tells="it does not come while the pipeline is built, but in step 0",
    ),
    made(
        "agreements:PlanCheckedAlone",
        "ERR-9",
        "The rank that finds a wrong plan raises alone.",
        status="hung",
        tells=r"waits for ever, when the plan of pipeline rank \d names a schedule .* and rank \d raised",
    ),
    made(
        "agreements:MicrobatchNumbersNotCompared",
        "ERR-9",
        "Ranks run with different numbers of microbatches.",
        status="hung",
        tells=r"waits for ever, when the plan of pipeline rank \d has \d microbatches",
    ),
    made(
        "agreements:PartlyDeclaredAccepted",
        "ERR-9",
        "Boundaries may be declared on some ranks only.",
        tells="says nothing of the boundaries.*; nobody raised; promised is ValueError",
    ),
    made(
        "agreements:PlanErrorsWordless",
        "ERR-9",
        "The error does not say what is wrong.",
        tells="raised ValueError: invalid configuration; it does not name",
    ),
    made(
        "agreements:UnknownIsGpipe",
        "ERR-9",
        "An unknown schedule is taken for GPipe.",
        tells="names a schedule that there is not; (nobody raised|rank .* raised)",
    ),
    made(
        "agreements:SurplusStagesDropped",
        "ERR-9",
        "Surplus stages are dropped.",
        tells="a stage more than a multiple of the ranks; nobody raised",
    ),
    made(
        "agreements:RefusalLocks",
        "ERR-11",
        "After a refused plan nothing is built.",
        status="error",
        tells="a new pipeline fails: RuntimeError: the engine is being initialised",
    ),
    made(
        "agreements:RefusalClosesPipeline",
        "ERR-15",
        "A pipeline that refused a batch is closed.",
        status="error",
        tells="the same pipeline fails: RuntimeError: the pipeline is closed",
    ),
    made(
        "agreements:RefusedBatchRemembered",
        "ERR-15",
        "A refused batch is what the next is compared with.",
        status="error",
        tells="the same pipeline fails: ValueError: argument 0 of stage 0 has another",
    ),
    made(
        "agreements:RefusedBatchDrained",
        "ERR-15",
        "A refused batch is waited for.",
        status="hung",
        tells="and an error, the same pipeline waits for ever",
    ),
    made(
        "agreements:RefusedBatchCounted",
        "ERR-15",
        "A refused batch counts in the mean.",
        tells="the same pipeline is wrong: .*gradient",
    ),
)
