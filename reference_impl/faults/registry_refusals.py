"""The faults of chapter ERR: how mistakes are refused."""

from __future__ import annotations

from .fault import made

__all__ = ["REFUSALS"]

REFUSALS = (
    made("refusals:InputsUnchecked", "ERR-1", "Inputs are not checked.", tells="promised is ValueError"),
    made(
        "refusals:InputsNotDescribed",
        "ERR-1",
        "The error about an input says nothing about it.",
        tells=r"raised ValueError: .*; it does not (say whether|name the expected shape)",
    ),
    made(
        "refusals:InputsAsserted",
        "ERR-1",
        "A wrong input is an AssertionError.",
        tells="raised AssertionError: .*promised is ValueError",
    ),
    made(
        "refusals:InputsCast", "ERR-2", "Inputs are converted.", tells="nobody raised; promised is ValueError"
    ),
    made(
        "refusals:InputsAbort",
        "ERR-2",
        "Integer inputs end the process.",
        status="crashed",
        tells=r"rank \d died \(SIGABRT\), when in step \d the first stage is given",
    ),
    made(
        "refusals:OutputsUnchecked",
        "ERR-3",
        "Outputs are not checked.",
        tells="in step 2 stage .*promised is StageError",
    ),
    made(
        "refusals:CheckedAfterSending",
        "ERR-3",
        "Outputs are checked when they have been sent.",
        tells="nevertheless given|the cause is not among its words",
    ),
    made(
        "refusals:CheckedByReceiver",
        "ERR-3",
        "Outputs are checked where they arrive.",
        tells="promised is StageError",
    ),
    made(
        "refusals:BytesReinterpreted",
        "ERR-3",
        "Bytes are read as another dtype.",
        tells=r"values that stage \d never made|promised is StageError",
    ),
    made("refusals:ErrorsSwallowed", "ERR-3", "Errors are swallowed.", tells="raised KeyError"),
    made(
        "refusals:OutputsCheckedWithinSteps",
        "ERR-4",
        "Outputs are compared within a step only.",
        tells=r"for microbatch \d.*(nevertheless given|promised is StageError)",
    ),
    made(
        "refusals:FirstMicrobatchChecked",
        "ERR-4",
        "The first microbatch of a step is checked.",
        tells=r"for microbatch [1-9].*promised is StageError",
    ),
    made(
        "refusals:FirstStageChecked",
        "ERR-4",
        "The first stage is checked.",
        tells=r"stage [1-9] hands on .*promised is StageError",
    ),
)
