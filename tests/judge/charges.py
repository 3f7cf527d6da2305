"""The charges of each requirement: the recorded fields in which its judgement must notice any fault.

A field is written as ``StepShown.gradients``, with the kinds of the program's steps in which it is judged. Which values
are spoilt, and how, is not listed anywhere: `tests.judge.spoiling` makes it from the annotations of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeconform.judge.evidence import Evidence
from pipeconform.observe.observation import Event
from tests.judge.spoiling import Spoil, at

__all__ = [
    "CHARGES",
    "ELSEWHERE",
    "NO_FAULT",
    "NO_VERDICT",
    "OTHER_STEPS",
    "is_charged",
    "is_no_fault",
    "place_of",
]


def _in(kinds: str, *fields: str) -> frozenset[str]:
    return frozenset(f"{field}@{kind}" for field in fields for kind in kinds.split())


_RUNS = "Train Eval"
OUTPUTS = _in(_RUNS, "StepShown.output")
THERE = frozenset(f"{field} {how}" for field in OUTPUTS for how in ("missing", "shape"))
BOUNDARIES = _in(_RUNS, "Forward.inputs", "StepShown.forwards")
GRADIENTS = _in("Train", "StepShown.gradients")
LOSSES = _in("Train", "StepShown.losses", "StepShown.loss", "StepShown.microbatches")
UPDATES = _in("Train Optimize", "StepShown.parameters")
BUFFERS = _in(_RUNS, "StepShown.buffers")
COUNTED = _in(
    _RUNS, "Event.stage", "Event.call", "Event.kind", "StepShown.events", "Forward.stage", "Forward.call"
)
ORDERED = _in("Train", "Event.stage", "Event.call", "Event.kind", "StepShown.events")
HELD = _in("Train", "StepShown.held", "Held.before")
ACCEPTED = frozenset({"Answered.error@Train missing"})
WORDS = frozenset({"Answered.error@Train other words"})
TRACES = _in("Eval", "StepShown.gradients", "StepShown.buffers", "StepShown.parameters", "Forward.training")
REPLICA = OUTPUTS | LOSSES | GRADIENTS | UPDATES
SHARDS = _in(
    "Train",
    "StepShown.gradient_shards",
    "StepShown.parameter_shards",
    "Sharding.placements",
    "Sharding.mesh",
    "Sharding.dim",
    "Sharding.index",
    "Sharding.shape",
    "Sharding.cuts",
)
REDUCED = _in(
    "Train",
    "StepShown.reductions",
    "Reduction.stage",
    "Reduction.elements",
    "Reduction.events",
)
MATCHED = frozenset(
    {
        "Traffic.operations",
        "Operation.kind",
        "Operation.group",
        "Operation.name",
        "Operation.process",
        "Operation.peer",
        "Operation.tag",
        "Operation.tensors",
        "Layout.dtype",
        "Layout.shape",
    }
)
WAITED = frozenset({"Traffic.overwritten", "Traffic.moments", "Moment.operation", "Moment.kind"})

CHARGES: Mapping[str, frozenset[str]] = {
    "FWD-1": OUTPUTS | _in(_RUNS, "StepShown.microbatches"),
    "FWD-2": THERE,
    "FWD-3": frozenset(f"{field} {how}" for field in OUTPUTS for how in ("missing", "unexpected")),
    "FWD-4": BOUNDARIES | OUTPUTS | GRADIENTS,
    "FWD-5": BOUNDARIES | GRADIENTS | _in("Train", "Forward.requires_grad"),
    "FWD-6": BOUNDARIES | GRADIENTS,
    "FWD-7": BOUNDARIES | GRADIENTS | OUTPUTS,
    "FWD-8": BOUNDARIES | GRADIENTS,
    "FWD-9": OUTPUTS | GRADIENTS,
    "FWD-10": BOUNDARIES | GRADIENTS,
    "FWD-11": BOUNDARIES | OUTPUTS | GRADIENTS,
    "FWD-12": BOUNDARIES | GRADIENTS,
    "FWD-13": OUTPUTS | GRADIENTS,
    "FWD-14": OUTPUTS | GRADIENTS,
    "FWD-15": OUTPUTS | GRADIENTS,
    "FWD-16": OUTPUTS | GRADIENTS,
    "FWD-17": OUTPUTS | GRADIENTS | _in(_RUNS, "StepShown.hook_counts"),
    "FWD-18": BOUNDARIES | OUTPUTS | GRADIENTS,
    "FWD-20": OUTPUTS | LOSSES | GRADIENTS,
    "FWD-21": BOUNDARIES | GRADIENTS,
    "FWD-33": BOUNDARIES | GRADIENTS,
    "FWD-22": OUTPUTS | GRADIENTS,
    "FWD-23": OUTPUTS | GRADIENTS,
    "FWD-26": GRADIENTS | _in(_RUNS, "StepShown.hook_counts"),
    "FWD-27": GRADIENTS | _in(_RUNS, "StepShown.hook_counts"),
    "FWD-28": OUTPUTS | GRADIENTS,
    "FWD-35": BUFFERS,
    "FWD-34": OUTPUTS | LOSSES | GRADIENTS,
    "FWD-29": OUTPUTS | LOSSES | GRADIENTS,
    "FWD-30": OUTPUTS | LOSSES | GRADIENTS,
    "FWD-32": BOUNDARIES | OUTPUTS | LOSSES | GRADIENTS,
    "TRN-1": GRADIENTS,
    "TRN-2": LOSSES,
    "TRN-3": frozenset(f"{field} all twice" for field in GRADIENTS),
    "TRN-4": GRADIENTS,
    "TRN-5": GRADIENTS,
    "TRN-28": GRADIENTS,
    "TRN-29": LOSSES | GRADIENTS,
    "TRN-30": LOSSES | GRADIENTS | _in("Train", "StepShown.begun"),
    "TRN-6": GRADIENTS,
    "TRN-7": _in("Train", "StepShown.input_gradients", "StepShown.kwarg_gradients"),
    "TRN-8": OUTPUTS | GRADIENTS,
    "TRN-9": _in("Train", "StepShown.buffers"),
    "TRN-10": LOSSES | GRADIENTS | _in("Train", "Forward.masks"),
    "TRN-11": LOSSES | GRADIENTS,
    "TRN-12": LOSSES | GRADIENTS,
    "TRN-13": LOSSES | GRADIENTS,
    "TRN-14": UPDATES,
    "TRN-15": GRADIENTS,
    "TRN-16": LOSSES | GRADIENTS,
    "TRN-17": _in("Train", "StepShown.gradient_norm"),
    "TRN-18": OUTPUTS | GRADIENTS,
    "TRN-19": _in("Eval", "StepShown.losses", "StepShown.loss", "StepShown.microbatches"),
    "TRN-20": LOSSES | GRADIENTS,
    "TRN-21": UPDATES,
    "TRN-23": UPDATES,
    "TRN-24": UPDATES | _in("Train Optimize", "StepShown.loss_scale"),
    "TRN-22": LOSSES | GRADIENTS | UPDATES | BUFFERS,
    "TRN-25": OUTPUTS | LOSSES | GRADIENTS,
    "TRN-26": GRADIENTS,
    "TRN-27": UPDATES,
    "SPL-1": GRADIENTS,
    "SPL-2": HELD,
    "SPL-3": GRADIENTS | _in("Train", "StepShown.hook_counts"),
    "SPL-4": GRADIENTS | ACCEPTED,
    "SPL-5": HELD,
    "SPL-6": WORDS,
    "ERR-12": GRADIENTS | ACCEPTED,
    "ERR-17": WORDS,
    "SCH-1": COUNTED,
    "SCH-2": ORDERED,
    "SCH-4": frozenset({"Observation.table"}),
    "SCH-5": frozenset({"Observation.table"}),
    "SCH-6": OUTPUTS | GRADIENTS | COUNTED,
    "SCH-8": ORDERED | {"Observation.table"},
    "SCH-10": OUTPUTS | LOSSES | GRADIENTS | ORDERED,
    "SCH-11": OUTPUTS | LOSSES | GRADIENTS | ORDERED,
    "SCH-12": OUTPUTS | LOSSES | GRADIENTS,
    "SCH-13": OUTPUTS | LOSSES | GRADIENTS | ORDERED,
    "SCH-9": _in("Eval", "StepShown.output", "Event.stage", "Event.call", "StepShown.events"),
    "LIF-1": OUTPUTS | LOSSES | GRADIENTS | TRACES | _in("Eval", "StepShown.rng_moved"),
    "LIF-9": OUTPUTS | LOSSES | GRADIENTS | (TRACES - _in("Eval", "StepShown.buffers")),
    "LIF-2": OUTPUTS | GRADIENTS | _in("Eval", "Forward.grad_enabled", "StepShown.differentiable"),
    "LIF-3": _in(_RUNS, "StepShown.held", "StepShown.kept", "Kept.outputs")
    | {"Observation.lived_on"}
    | {f"Census.{name}" for name in ("tensors", "threads", "descriptors", "groups")},
    "LIF-10": OUTPUTS
    | LOSSES
    | GRADIENTS
    | UPDATES
    | BUFFERS
    | {f"StepShown.loss_scale@{kind} {how}" for kind in ("Train", "Optimize") for how in ("value", "missing")}
    | _in("Restart", "StepShown.parameters", "StepShown.buffers"),
    "LIF-4": OUTPUTS
    | GRADIENTS
    | _in("Load", "StepShown.parameters")
    | {
        f"StepShown.parameters@{kind} {how}"
        for kind in ("Train", "Zero", "Load")
        for how in ("key missing", "one key more")
    },
    "LIF-6": frozenset({"Observation.build_changes"}),
    "LIF-7": _in("Train", "StepShown.kept", "Kept.at_once", "Kept.inputs"),
    "LIF-8": frozenset({"Observation.lived_on", "LivedOn.closing_error", "LivedOn.group_works"}),
    "DPC-1": REPLICA,
    "DPC-2": GRADIENTS | REDUCED,
    "DPC-3": REPLICA | BUFFERS,
    "DPC-4": REPLICA | _in("Train", "StepShown.hooked"),
    "DPC-8": REPLICA | SHARDS,
    "DPC-9": REPLICA | BUFFERS,
    "DPC-10": REPLICA | TRACES,
    "DPC-11": REPLICA,
    "COM-1": MATCHED,
    "COM-2": OUTPUTS | GRADIENTS,
    "COM-4": WAITED | OUTPUTS | GRADIENTS,
    "COM-5": frozenset({"Operation.num_bytes"}),
}
"""The fields that each requirement judges, with the kind of step if a field belongs to one, and sometimes with how."""

ELSEWHERE: Mapping[str, str] = {
    "FWD-25": "hooks that run in a dry run: tests/judge/test_hooks.py",
    "FWD-19": "placements of cut tensors: tests/judge/test_tensor_parallel.py",
    "FWD-31": "batches that are cut: tests/judge/test_tensor_parallel.py",
    "SCH-3": "an order in which too much is in flight: tests/judge/test_schedules.py",
    "SCH-7": "a stage on another rank: tests/judge/test_schedules.py",
    "LIF-5": "two executions are compared: test_what_is_judged_by_value_must_repeat",
    "COM-3": "a circle of waits: tests/judge/traffic/test_communication.py and test_replay.py",
    "COM-6": "judged by the same function as FWD-13, of disturbed ranks",
    "COM-7": "what crosses, by recorded operations: tests/judge/traffic/test_crossing.py",
    "DPC-5": "tied weights: tests/judge/test_data_parallel.py",
    "DPC-6": "judged by the same function as DPC-1, of disturbed ranks",
    "DPC-7": "cut stages: tests/judge/test_tensor_parallel.py",
    "TRC-1": "stages of a front end: tests/judge/test_tracing.py",
    "TRC-2": "stages of a front end: tests/judge/test_tracing.py",
    "TRC-3": "stages of a front end: tests/judge/test_tracing.py",
    "TRC-4": "stages of a front end: tests/judge/test_tracing.py",
    "TRC-5": "stages of a front end: tests/judge/test_tracing.py",
    "TRC-7": "stages of a front end: tests/judge/test_tracing.py",
}
"""Requirements that are not about one value in one place, or whose evidence is not composed here."""

NO_VERDICT: Mapping[str, str] = {
    "Observation.rank": "set by the harness; only names the rank in findings",
    "Observation.pipeline_rank": "set by the harness from the case",
    "Observation.unsupported": "ends the execution before any judgement (judge.outcome.judge_refusal)",
    "Observation.keys": "TRC-2, tests/judge/test_tracing.py",
    "Observation.boundaries": "TRC-5, tests/judge/test_tracing.py",
    "Known.producer": "TRC-5, tests/judge/test_tracing.py",
    "Known.consumer": "a producer has one consumer where front ends cut",
    "Known.tensors": "TRC-5, tests/judge/test_tracing.py",
    "Forward.in_backward": "where forwards were given the same, it says which of them has a microbatch's mask",
    "Observation.traffic": "what was not recorded is not judged; the runner records it where it is asked for",
    "Traffic.arrived": "COM-7, tests/judge/traffic/test_crossing.py",
    "Arrived.stage": "COM-7, tests/judge/traffic/test_crossing.py",
    "Arrived.forward": "COM-7, tests/judge/traffic/test_crossing.py",
    "Arrived.step": "COM-7, tests/judge/traffic/test_crossing.py",
    "Arrived.tensors": "COM-7, tests/judge/traffic/test_crossing.py",
    "Observation.steps": "the harness records one per step of the program",
    "Reduction.alike": "the given group and one of the same ranks are judged alike; tests/judge/test_reductions.py",
    "Observation.failed": "chapter ERR, tests/judge/test_aftermath.py",
    "Failed.type": "chapter ERR, tests/judge/test_aftermath.py",
    "Failed.message": "chapter ERR, tests/judge/test_wording.py",
    "Failed.bases": "chapter ERR, tests/judge/test_aftermath.py",
    "Failed.causes": "chapter ERR, tests/judge/test_wording.py",
    "Failed.step": "chapter ERR, tests/judge/test_misplanned.py",
    "Failed.earlier": "the case is executed again in new processes, tests/campaign/test_kept_errors.py",
    "Failed.frames": "says where an error was raised; no verdict rests on it",
    "Frame.module": "says where an error was raised; no verdict rests on it",
    "Frame.file": "says where an error was raised; no verdict rests on it",
    "Frame.line": "says where an error was raised; no verdict rests on it",
    "Frame.function": "says where an error was raised; no verdict rests on it",
    "Frame.source": "says where an error was raised; no verdict rests on it",
    "Observation.lasting": "tells the runner to renew its processes",
    "StepShown.step": "set by the harness",
    "StepShown.flow": "shows where a wrong value was first; no verdict rests on it",
    "Flow.stage": "shows where a wrong value was first; no verdict rests on it",
    "Flow.call": "shows where a wrong value was first; no verdict rests on it",
    "Flow.kind": "shows where a wrong value was first; no verdict rests on it",
    "Flow.position": "shows where a wrong value was first; no verdict rests on it",
    "Flow.value": "shows where a wrong value was first; no verdict rests on it",
    "Flow.bound": "shows where a wrong value was first; no verdict rests on it",
    "Forward.grad_enabled@Train": "a forward without a graph shows in the gradients",
    "Forward.output": "judged where it arrives, or where it is returned; of engines that return nothing: FWD-1",
    "Event.task": "passages of one graph task are one computation; tests/judge/test_timeline.py",
    "Event.seconds": "a clock; drawn, never judged",
    "Event.parts": "what the graph of a forward can have; tests/judge/test_timeline.py",
    "Held.call": "names the forward",
    "Held.tensors": "how many there are is only reported; that there are any is judged",
    "Kept.holds_input": "words for the finding",
    "Kept.holds_output": "words for the finding",
    "Kept.holds_graph": "words for the finding",
    "StepShown.answers": "one per mistake that was made; a judgement without any compares nothing, which is no pass",
    "Answered.stage": "names the stage",
    "Answered.microbatch": "names the microbatch that the error's words must hold",
    "Answered.call": "words for the finding",
    "Reduction.name": "words for the finding",
    "Sharding.partial": "DPC-7, tests/judge/test_tensor_parallel.py",
    "LivedOn.steps": "the first census is compared with the last, whatever is between them",
    "LivedOn.rounds": "the first census is compared with the last, whatever is between them",
    "Traffic.groups": "COM-2, a group with ranks outside the pipeline: tests/judge/traffic/test_communication.py",
    "Traffic.given": "whether another group is right depends on its members (Traffic.groups)",
    "Traffic.default": "words for the finding",
    "Traffic.cargo": "words for the finding",
    "Cargo.what": "words for the finding",
    "Cargo.stage": "words for the finding",
    "Cargo.forward": "words for the finding",
    "Operation.number": "its place among the operations",
    "Operation.batch": "COM-3, tests/judge/traffic/test_replay.py",
    "Operation.step": "to which step bytes are counted",
    "Layout.stride": "both ends may lay a tensor out otherwise",
}
"""Recorded fields in which a fault is not a finding here, and why."""


def place_of(spoil: Spoil, made: Evidence) -> str:
    """The field, and the kind of the step in which it was changed."""
    in_step = spoil.path[0] == "steps" and len(spoil.path) > 1
    return f"{spoil.field}@{type(made.case.program[int(spoil.path[1])]).__name__}" if in_step else spoil.field


def is_charged(requirement: str, spoil: Spoil, made: Evidence) -> bool:
    """Whether a requirement must notice a change, provided that the change is a fault."""
    place, charges = place_of(spoil, made), CHARGES[requirement]
    return place in charges or f"{place} {spoil.how}" in charges


OTHER_STEPS: Mapping[str, str] = {
    "StepShown.gradients": "what zero_grad, an update or a load makes of gradients shows in the next training step",
    "StepShown.parameters": "zero_grad changes none; what it did would show in the next training step",
    "StepShown.buffers": "zero_grad, an update and a load that has none leave them; the next run shows them",
}
"""Values that exist after every step, and why they are not judged after the steps that the charges leave out."""

NoFault = Callable[[str, Spoil, Evidence, int], bool]


def _is(spoil: Spoil, field: str, *hows: str) -> bool:
    return spoil.field == f"StepShown.{field}" and spoil.how in hows


_WORLDS = ("Observation.lived_on", "LivedOn.", "Census.", "StepShown.output", "StepShown.loss")


def _bystanders(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """Ranks outside the pipeline show only results, which they must not have, and what lives on."""
    return made.shown[rank].pipeline_rank is None and not spoil.field.startswith(_WORLDS)


_BY_STAGE = frozenset(
    {"gradients", "parameters", "buffers", "kwarg_gradients", "hook_counts", "hooked", "begun"}
    | {"gradient_shards", "parameter_shards"}
)


def _stage_more(requirement: str, spoil: Spoil, *_: object) -> bool:
    """Values of a stage that the rank does not own: LIF-4 reports such parameters, and nothing else is checked."""
    if requirement == "LIF-4" and spoil.field == "StepShown.parameters":
        return False
    return spoil.how == "one key more" and spoil.path[-1] in _BY_STAGE


def _name_more(_: str, spoil: Spoil, *__: object) -> bool:
    """An additional counter, or the sharding of a value that does not exist, is not judged."""
    counters = ("hook_counts", "gradient_shards", "parameter_shards")
    return spoil.how == "one key more" and spoil.path[-2] in counters


def _names_at_first(requirement: str, spoil: Spoil, *_: object) -> bool:
    """Before the first step, LIF-1 and LIF-9 compare what exists; LIF-4 judges whether everything exists."""
    names = spoil.how in ("key missing", "one key more")
    return requirement in ("LIF-1", "LIF-9") and names and spoil.path[:2] == ("steps", 0)


def _empty(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """A name without a value is as good as no name, a stage without names or values as good as no stage."""
    if spoil.how != "key missing":
        return False
    was = at(made.shown[rank], spoil.path)
    lost = (own for name, own in was.items() if name not in spoil.value)
    return any(own is None or (isinstance(own, dict) and not any(own.values())) for own in lost)


def _streams(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """Whether a boundary tensor requires its gradient shows in the gradient itself."""
    if spoil.field != "Forward.requires_grad":
        return False
    if spoil.how != "turned round" or not spoil.value:
        return True
    return int(at(made.shown[rank], spoil.path[:-2]).stage) == 0


def _masks(_: str, spoil: Spoil, *__: object) -> bool:
    """A mask is what it keeps, and there is one per microbatch and dropout."""
    return spoil.field == "Forward.masks" and spoil.how not in ("value", "one less")


def _results_elsewhere(requirement: str, spoil: Spoil, *_: object) -> bool:
    """FWD-3 judges outputs on other ranks."""
    return requirement != "FWD-3" and _is(spoil, "output", "unexpected")


def _containers(requirement: str, spoil: Spoil, *_: object) -> bool:
    """FWD-4 and FWD-11 judge containers of outputs; no requirement judges their placements."""
    return _is(spoil, "output", "other placements") or (
        requirement not in ("FWD-4", "FWD-11") and _is(spoil, "output", "another container")
    )


def _dry_runs(_: str, spoil: Spoil, *__: object) -> bool:
    """An additional forward may be a dry run; chapter SCH judges the order of microbatches."""
    return _is(spoil, "forwards", "one more", "another order")


def _equal_losses(_: str, spoil: Spoil, made: Evidence, __: int) -> bool:
    """Losses that are equal within their bounds have no order."""
    return _is(spoil, "losses", "another order") and made.case.model.dtype in ("bfloat16", "float16")


def _one_number(_: str, spoil: Spoil, *__: object) -> bool:
    """A single number may have any shape, and a norm any dtype."""
    return _is(spoil, "loss", "shape") or _is(spoil, "gradient_norm", "shape", "dtype")


def _some_of_the_batch(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """A loss of some microbatches may be any mean: which one is not declared, and a rank may hold all microbatches."""
    if spoil.field == "StepShown.microbatches":
        return spoil.how != "one less" or spoil.path[-1] != "microbatches"
    if spoil.field != "StepShown.loss":
        return False
    return made.shown[rank].steps[int(spoil.path[1])].microbatches is not None


def _inputs(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """There are as many input gradients as inputs, on the ranks of the first stage."""
    first = made.shown[rank].pipeline_rank in made.placement[0]
    return spoil.field == "StepShown.input_gradients" and (spoil.how == "one more" or not first)


def _same_passage(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """All passages of one backward through one call are one computation, and only the first is judged."""
    if spoil.field == "Event.stage":
        events, index = at(made.shown[rank], spoil.path[:-2]), int(spoil.path[-2])
        one = events[index]
        return one.kind != "F" and any((e.call, e.task) == (one.call, one.task) for e in events[:index])
    if _is(spoil, "events", "another order"):
        return _computations(at(made.shown[rank], spoil.path)) == _computations(spoil.value)
    return _is(spoil, "events", "one more")  # what was the last to pass passes again


def _computations(events: Sequence[Event]) -> list[tuple[int, int, bool]]:
    """Forwards, and each backward where it began."""
    return list(dict.fromkeys((one.call, one.task, one.kind == "F") for one in events))


def _another_order(requirement: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """SCH-1, 6 and 9 demand a possible order; SCH-2 leaves the backwards of GPipe free."""
    if not _is(spoil, "events", "another order"):
        return False
    was = at(made.shown[rank], spoil.path)
    backwards = all(a.kind != "F" for a, b in zip(was, spoil.value, strict=True) if a != b)
    return requirement in ("SCH-1", "SCH-6", "SCH-9") or (requirement == "SCH-2" and backwards)


def _other_tables(requirement: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """SCH-4 and 5 look at the first rank's table; SCH-8 judges whether all ranks declare the same one."""
    return (
        requirement in ("SCH-4", "SCH-5")
        and spoil.field == "Observation.table"
        and rank != next(made.members).rank
    )


def _fewer(_: str, spoil: Spoil, *__: object) -> bool:
    """Keeping less is not a leak."""
    return spoil.field.startswith("Kept.") and spoil.how == "one less"


def _census(_: str, spoil: Spoil, *__: object) -> bool:
    """Of what lives on, the last census is compared with the first."""
    if not spoil.field.startswith("Census."):
        return False
    return (spoil.how, spoil.path[2]) not in {("one more", 1), ("one less", 0)}


def _held_with_kept(requirement: str, spoil: Spoil, *_: object) -> bool:
    """`held` is recorded together with `kept`, whose absence is an error."""
    return requirement == "LIF-3" and _is(spoil, "held", "missing")


def _filled_up(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """A later reduction is not too early; shards are padded, and a hook may be given the padding; more may be computed
    again.
    """
    if spoil.how != "one more":
        return False
    shards = bool(made.shown[rank].steps[0].gradient_shards)
    return spoil.field in ("Reduction.events", "StepShown.hooked", "StepShown.begun") or (
        spoil.field == "Reduction.elements" and shards
    )


def _not_waited(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """Of the moments themselves, only the wait for a receive is judged."""
    if spoil.field not in ("Traffic.moments", "Moment.operation", "Moment.kind"):
        return False
    traffic = at(made.shown[rank], ("traffic",))
    receives = {one.number for one in traffic.operations if one.kind == "receive"}
    after = at(spoil.apply(made.shown[rank]), ("traffic",))
    return receives <= {one.operation for one in after.moments if one.kind == "wait"}


def _operations(_: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """Of a send the process tells its end; members of a collective may give other shapes, bytes are counted once.

    A receive from any rank takes what comes, and operations on different channels have no order.
    """
    if (spoil.field, spoil.how) == ("Traffic.operations", "another order"):
        return True
    if not spoil.field.startswith(("Operation.", "Layout.")):
        return False
    kind = at(made.shown[rank], ("traffic", "operations", spoil.path[2])).kind
    match spoil.field:
        case "Operation.num_bytes":
            return bool(kind != "send") or spoil.how == "one less"
        case "Operation.name" | "Operation.peer":
            return bool(kind != "collective")
        case "Operation.process":
            return bool(kind == "collective") or spoil.value == -1
        case "Operation.tag" | "Operation.tensors" | "Layout.dtype" | "Layout.shape":
            return bool(kind == "collective")
    return False


NO_FAULT: tuple[NoFault, ...] = (
    _bystanders,
    _stage_more,
    _name_more,
    _names_at_first,
    _empty,
    _streams,
    _masks,
    _results_elsewhere,
    _containers,
    _dry_runs,
    _equal_losses,
    _one_number,
    _some_of_the_batch,
    _inputs,
    _same_passage,
    _another_order,
    _other_tables,
    _fewer,
    _census,
    _held_with_kept,
    _filled_up,
    _not_waited,
    _operations,
)
"""Changes that are not faults; each docstring says why."""


def is_no_fault(requirement: str, spoil: Spoil, made: Evidence, rank: int) -> bool:
    """Whether a requirement need not notice a change of a field in its charge."""
    return any(test(requirement, spoil, made, rank) for test in NO_FAULT)
