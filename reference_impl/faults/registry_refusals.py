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
        "refusals:SidesExchanged",
        "ERR-1",
        "The error about an input takes what was expected for what there is.",
        tells="it does not take .* for what was expected",
    ),
    made(
        "refusals:RaggedAccepted",
        "ERR-7",
        "Of arguments with more samples than the first one the rest is left out.",
        tells="nobody raised; promised is ValueError",
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
    made("mishaps:NothingPatched", "ERR-5", "Zeros stand in for nothing.", tells="None|a text"),
    made(
        "mishaps:MissingRefilled", "ERR-5", "The input is handed on.", tells="a tensor too few.*nobody raised"
    ),
    made(
        "mishaps:BackwardsSkipped",
        "ERR-6",
        "Backwards are skipped.",
        tells="nobody raised; promised is StageError",
    ),
    made(
        "mishaps:MicrobatchUnnamed",
        "ERR-6",
        "Errors do not name the microbatch.",
        tells=r"for microbatch (\d).*it does not name microbatch \1",
    ),
    made("mishaps:BatchOutOfRange", "ERR-7", "An IndexError is raised.", tells="raised IndexError"),
    made(
        "mishaps:BatchSkipped",
        "ERR-7",
        "The batch is skipped.",
        tells="nobody raised; promised is ValueError",
    ),
    made(
        "mishaps:ExceptionsNotWrapped",
        "ERR-10",
        "Exceptions pass without their place.",
        tells="raised .*DeliberateError: .*promised is StageError",
    ),
    made(
        "mishaps:CauseLost",
        "ERR-10",
        "The original is not the cause.",
        tells="it does not have the model's own exception as its cause",
    ),
    made(
        "mishaps:StageUnnamed", "ERR-10", "Errors do not name the stage.", tells=r"it does not name stage \d"
    ),
    made(
        "exceptions:HookUnplaced",
        "ERR-10",
        "Exceptions of a communication hook pass without their place.",
        tells="communication hook.*promised is StageError",
    ),
    made(
        "exceptions:HookSwallowed",
        "ERR-10",
        "A communication hook that raises is forgotten.",
        tells="communication hook.*nobody raised; promised is StageError",
    ),
    made(
        "exceptions:NoticeOmitted",
        "ERR-14",
        "A rank that fails sends no notice.",
        status="hung",
        tells=r"rank \d waits for ever, when in step \d .* raises.* and rank \d raised",
    ),
    made(
        "mishaps:OthersNotTold",
        "ERR-10",
        "Other ranks do not learn who failed.",
        tells="another rank failed; the cause is not among its words",
    ),
    made(
        "mishaps:OthersWait",
        "ERR-10",
        "Other ranks wait for ever.",
        status="hung",
        tells=r"rank \d waits for ever, when in step \d .* raises.* and rank \d raised",
    ),
    made(
        "mishaps:LossSwallowed",
        "ERR-10",
        "A loss that fails is zero.",
        tells="the loss function raises.*nobody raised",
    ),
    made(
        "mishaps:NothingWorksAgain",
        "ERR-11",
        "The process must be restarted.",
        status="error",
        tells="a new pipeline fails: RuntimeError: the engine is in an unknown state",
    ),
    made(
        "mishaps:ErrorLeavesTrace",
        "ERR-11",
        "The error leaves a trace.",
        tells="a new pipeline is wrong: .*gradient",
    ),
    made(
        "operations:OrderIgnored",
        "ERR-12",
        "A backward that is not due is passed over.",
        tells="was asked for the backward .* and did it; expected: an error",
    ),
    made(
        "operations:ForwardsRedone",
        "ERR-12",
        "A forward runs as often as it is asked for.",
        tells="was asked for the forward a second time .* and did it",
    ),
    made(
        "operations:BufferReadTooEarly",
        "ERR-12",
        "A gradient is read before it is there.",
        schedule="GPipe",
        tells="the backward before the gradient of its output is there .* and did it",
    ),
    made(
        "operations:EndsUnfinished",
        "ERR-12",
        "A step ends before it is through.",
        status="error",
        tells="the end of the step before the backward .* and did it; expected: an error",
    ),
    made(
        "operations:RangeUnchecked",
        "ERR-12",
        "Microbatches that there are not are waited for.",
        status="hung",
    ),
    made(
        "operations:NumberOnly",
        "ERR-12",
        "The error is a bare number.",
        tells=r"the forward .* and said only '\d'; expected: words",
    ),
    made(
        "operations:RefusalDropsGradients",
        "ERR-12",
        "A refused backward drops gradients.",
        tells="gradient",
    ),
    made(
        "mishaps:DiesOfErrors",
        "ERR-13",
        "The process ends.",
        status="crashed",
        tells=r"rank \d died \(exit code 7\), when",
    ),
)
