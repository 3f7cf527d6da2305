"""Evidence with one fault each, for links of judgements that no spoilt field of an honest run reaches alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from msgspec import structs

from pipeconform.adapter import Feature, Placement
from pipeconform.case import blocks
from pipeconform.case.case import Eval, Load, Restart, Split, Train
from pipeconform.judge import masters, schedules, split_backward, training
from pipeconform.judge.evidence import Evidence, Finding, Judge
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.timeline import executed
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Known, Observation, Structure
from pipeconform.observe.traffic.records import Arrived
from pipeconform.schedule import generate, to_csv
from tests.case.examples import EVERYTHING, small_case, with_model
from tests.judge import executions
from tests.judge.allowed import Within
from tests.judge.grid import evidence_of
from tests.judge.honest import (
    CASES,
    HALVES,
    TWO_DIRECTIONS,
    changed,
    honest,
    masks_for,
    of_blocks,
)
from tests.judge.spoiling import Path, at, nudged, replaced
from tests.judge.test_hooks import with_dry_run
from tests.judge.test_masters import CLIPPED, MADE
from tests.judge.test_reductions import ALIKE
from tests.judge.test_reductions import evidence as reduced
from tests.judge.test_tensor_parallel import batched, crossing, doubled
from tests.judge.test_tensor_parallel import evidence as cut
from tests.judge.test_tracing import honest as traced
from tests.judge.traffic.test_communication import recorded
from tests.judge.traffic.test_crossing import crossed

__all__ = ["FAULTS"]


def _of(requirement: str) -> Judge:
    return JUDGEMENTS[requirement].judge


def _put(made: Evidence, rank: int, path: Path, value: object) -> Evidence:
    shown = tuple(replaced(one, path, value) if one.rank == rank else one for one in made.shown)
    return dataclasses.replace(made, shown=shown)


def _moved(made: Evidence, rank: int, path: Path) -> Evidence:
    """The tensor with one element that is far off."""
    tensor = at(made.shown[rank], path).tensor()
    tensor.reshape(-1)[-1] += 1
    return _put(made, rank, path, Array.of(tensor))


def _rounded(made: Evidence, rank: int, path: Path) -> Evidence:
    """The tensor, as far off as its bound allows."""
    limit = Within(made, rank).bound(path)
    tensor = at(made.shown[rank], path).tensor()
    return _put(made, rank, path, Array.of(nudged(tensor, limit, beyond=False)))


def _table(text: str | None, **others: object) -> Evidence:
    given = {"m": 2, "family": "one_f_one_b", "table": text, **others}
    return executions.evidence("", "", **given)  # type: ignore[arg-type]


def _another_group() -> Evidence:
    made = evidence_of("communicating among bystanders")
    traffic = made.shown[1].traffic
    assert traffic is not None
    return _put(made, 1, ("traffic",), structs.replace(traffic, given="other", groups={"given": (0, 1, 3)}))


def _same_half_twice(name: str) -> Evidence:
    """Both ranks of a pipeline in two directions say that they finished microbatches 0 and 2."""
    made = honest(CASES[name], capabilities=TWO_DIRECTIONS, shares=HALVES)
    first = made.shown[0].steps[0]
    return changed(made, rank=1, output=first.output, losses=first.losses, microbatches=first.microbatches)


def _rows(made: Evidence, order: list[int], *, rank: int = 1) -> Evidence:
    output = made.shown[rank].steps[0].output
    assert output is not None
    return changed(made, rank=rank, output=Structure.of(output.leaves()[0].tensor()[order]))


def _uneven() -> Evidence:
    capabilities = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.UNEVEN_BATCHES})
    return _rows(honest(CASES["uneven"], capabilities=capabilities), [1, 0, 2, 3, 4, 5, 6, 7])


def _tied() -> Evidence:
    """A tied weight whose update its second stage rounds differently from its first."""
    made = honest(with_model(CASES["optimizer"], tied=(0, 1)))
    return _rounded(made, 1, ("steps", 4, "parameters", 1, "tied"))


def _without_weights(name: str = "plain") -> Evidence:
    """The last weight part of the second rank never ran."""
    made = evidence_of(name)
    events = made.shown[1].steps[0].events
    assert events is not None
    return changed(made, rank=1, events=events[:-1])


def _weights_first() -> Evidence:
    """In the second rank's last backward the weight part comes first, in a backward of its own."""
    made = evidence_of("plain")
    events = made.shown[1].steps[0].events
    assert events is not None
    *before, i, w = events
    return changed(made, rank=1, events=(*before, structs.replace(w, task=98), structs.replace(i, task=99)))


def _alike_masks() -> Evidence:
    case = of_blocks(blocks.Linear(), blocks.Dropout(), program=(Train(batch_size=36, num_microbatches=3),))
    return honest(case, masks=masks_for(case, alike=True))


def _replicated_gradient() -> Evidence:
    return _rounded(evidence_of("replicas, three steps"), 2, ("steps", 2, "gradients", 0, "blocks.0.weight"))


def _traced(**split: object) -> Evidence:
    return traced(with_model(small_case(), split=Split(**split)))  # type: ignore[arg-type]


def _of_observation(made: Evidence, rank: int, **fields: object) -> Evidence:
    shown: list[Observation] = list(made.shown)
    shown[rank] = structs.replace(shown[rank], **fields)
    return dataclasses.replace(made, shown=tuple(shown))


def _buffered() -> Evidence:
    stages = (of_blocks(blocks.BatchNorm()).model.stages[0], of_blocks(blocks.Linear()).model.stages[0])
    made = traced(with_model(small_case(), split=Split(), stages=stages))
    name = next(name for name in made.shown[0].steps[0].buffers[0] if name.endswith("running_mean"))
    return _moved(made, 0, ("steps", 2, "buffers", 0, name))


def _longer(made: Evidence) -> Evidence:
    """The last step's output is one sample too long."""
    rank = len(made.shown) - 1
    output = made.shown[rank].steps[0].output
    assert output is not None
    tensor = output.leaves()[0].tensor()
    return changed(made, rank=rank, output=Structure.of(tensor[[*range(len(tensor)), 0]]))


def _restored() -> Evidence:
    """After the restart the second rank has another weight than was saved."""
    made = evidence_of("restarted")
    index = next(i for i, step in enumerate(made.case.program) if isinstance(step, Restart))
    name = next(iter(made.shown[1].steps[index].parameters[1]))
    return _moved(made, 1, ("steps", index, "parameters", 1, name))


def _loaded() -> Evidence:
    """After a state was loaded the first rank has another running mean than that state."""
    train = Train(batch_size=4, num_microbatches=2)
    made = honest(of_blocks(blocks.Linear(), blocks.BatchNorm(), program=(train, Load())))
    return _moved(made, 0, ("steps", 1, "buffers", 0, "blocks.1.norm.running_mean"))


def _with_another_optimizer(made: Evidence, **fields: object) -> Evidence:
    """The run's values are right; by what the case says of its optimizer, copies would be others."""
    case = structs.replace(made.case, optimizer=structs.replace(made.case.optimizer, **fields))
    return dataclasses.replace(made, case=case)


def _computed_again() -> Evidence:
    """A microbatch of a batch of DTensors is computed twice, once from a tensor that is placed otherwise."""
    made, other = batched(), batched(inputs={"placements": ("R",)})
    forwards = tuple(one.shown[1].steps[0].forwards for one in (made, other))
    return _put(made, 1, ("steps", 0, "forwards"), (*forwards[0], forwards[1][0]))


def _copies_of_a_parameter(evidence: Evidence) -> Iterator[Finding]:
    """Everything about one parameter, of which TRN-23 tells the first finding only."""
    name = next(iter(evidence.expected.steps[0].parameters[0]))
    used = dict(masters._used(evidence))
    yield from masters._wrong(evidence, evidence.shown[0], stage=0, name=name, used=used)


def _evaluated_from_a_source() -> Evidence:
    made = evidence_of("from a source")
    index = next(i for i, step in enumerate(made.case.program) if isinstance(step, Eval))
    return _moved(made, 1, ("steps", index, "losses", 0))


def _departures(evidence: Evidence) -> Iterator[Finding]:
    """SCH-2 for one family, whatever others would say."""
    for step, size, families in schedules.named_runs(evidence):
        yield from schedules.departures(step, executed(evidence, step), families[0], size)


WEIGHT = ("gradients", 0, "stages.0.blocks.0.weight")

FAULTS: Mapping[str, tuple[Judge, Callable[[], Evidence]]] = {
    "a circle of waits": (_of("COM-3"), lambda: recorded("s1 r1 w0 w1", "s0 r0 w0 w1")),
    "a send without a receive": (_of("COM-1"), lambda: recorded("s1", "")),
    "a receive without a send": (_of("COM-1"), lambda: recorded("r1", "")),
    "a send to itself": (_of("COM-5"), lambda: recorded("S0 R0", "")),
    "a group with a rank outside the pipeline": (_of("COM-2"), _another_group),
    "a wrong output after a delay": (
        _of("COM-6"),
        lambda: _moved(evidence_of("plain"), 1, ("steps", 2, "output", "array")),
    ),
    "a wrong gradient after a delay": (
        _of("COM-6"),
        lambda: _moved(evidence_of("plain"), 1, ("steps", 2, "gradients", 1, "blocks.0.weight")),
    ),
    "an input that did not come": (
        _of("COM-7"),
        lambda: crossed("S1 R1", "R0 S0", arrived=(Arrived(0, 1, 0, (False,)),)),
    ),
    "a microbatch that stays on one rank": (
        _of("COM-7"),
        lambda: crossed(
            *("", ""),
            ran=("0F0 1F0 1B0 0B0", "0F1 1F1 1B1 0B1"),
            m=2,
            placement=Placement.MIRROR,
            arrived=(),
        ),
    ),
    "replicas that round otherwise": (_of("DPC-1"), _replicated_gradient),
    "late replicas that round otherwise": (_of("DPC-6"), _replicated_gradient),
    "tied weights that round otherwise": (_of("DPC-5"), _tied),
    "replicas of tied stages that round otherwise": (_of("DPC-5"), _replicated_gradient),
    "a wrong output that is not returned, by its loss": (
        _of("FWD-1"),
        lambda: _moved(evidence_of("nothing returned"), 1, ("steps", 2, "losses", 1)),
    ),
    "a wrong output that is not returned, as the last stage gave it": (
        _of("FWD-9"),
        lambda: _moved(evidence_of("nothing returned"), 1, ("steps", 2, "forwards", 1, "output", "array")),
    ),
    "a wrong output of uneven microbatches": (
        _of("FWD-2"),
        lambda: _moved(honest(CASES["uneven"]), 1, ("steps", 0, "output", "array")),
    ),
    "a wrong gradient of uneven microbatches": (
        _of("FWD-2"),
        lambda: _moved(honest(CASES["uneven"]), 1, ("steps", 0, "gradients", 1, "blocks.0.weight")),
    ),
    "hooks in a dry run": (
        _of("FWD-25"),
        lambda: with_dry_run(honest(CASES["hooks"]), step=0, counts={"forward": 4}),
    ),
    "samples in another order": (_of("FWD-2"), _uneven),
    "microbatches in another order": (
        _of("FWD-2"),
        lambda: _rows(evidence_of("plain"), [2, 3, 0, 1, 4, 5]),
    ),
    "an output that nobody has": (_of("FWD-1"), lambda: _same_half_twice("plain")),
    "threads that every pipeline leaves behind": (
        _of("LIF-3"),
        lambda: _put(evidence_of("plain"), 1, ("lived_on", "rounds", 1, "threads"), 14),
    ),
    "two tables": (
        _of("SCH-8"),
        lambda: _of_observation(
            evidence_of("plain"), 1, table=to_csv(generate("one_f_one_b", num_ranks=2, num_microbatches=3))
        ),
    ),
    "a microbatch that nobody has": (_of("FWD-2"), lambda: _same_half_twice("plain")),
    "a loss that nobody has": (_of("TRN-2"), lambda: _same_half_twice("plain")),
    "a merged microbatch that nobody has": (_of("FWD-23"), lambda: _same_half_twice("merged")),
    "a backward of another step": (_of("SCH-1"), lambda: executions.evidence("0F0 0B0 0B1", m=1)),
    "a forward of no microbatch": (_of("SCH-1"), lambda: executions.evidence("0F0 0F99 0B0", m=1)),
    "a stage before the one that it needs": (
        _of("SCH-1"),
        lambda: executions.evidence("1F0 0F0 1B0 0B0", m=1, v=2),
    ),
    "an evaluated stage before the one that it needs": (
        _of("SCH-9"),
        lambda: executions.evidence("1f0 0f0", m=1, v=2, trains=False),
    ),
    "another order than the named one": (
        _of("SCH-2"),
        lambda: executions.evidence("0F0 0B0 0F1 0B1", m=2, family="gpipe"),
    ),
    "another order than the named one, by itself": (
        _departures,
        lambda: executions.evidence("0F0 0B0 0F1 0B1", m=2, family="gpipe"),
    ),
    "too many in flight": (
        _of("SCH-3"),
        lambda: executions.evidence(
            "0F0 0F1 0B0 0B1",
            "1F0 1F1 1B0 1B1",
            m=2,
            family="one_f_one_b",
            table=to_csv(generate("one_f_one_b", num_ranks=2, num_microbatches=2)),
        ),
    ),
    "too many declared to be in flight": (
        _of("SCH-3"),
        lambda: executions.evidence(
            "0F0 0F1 0B0 0B1",
            "1F0 1B0 1F1 1B1",
            m=2,
            family="one_f_one_b",
            table=to_csv(generate("gpipe", num_ranks=2, num_microbatches=2)),
        ),
    ),
    "no readable table": (_of("SCH-8"), lambda: _table("0X0")),
    "a table of more ranks": (_of("SCH-8"), lambda: _table("0F0,0B0\n1F0,1B0\n2F0,2B0")),
    "a stage on another rank": (
        _of("SCH-7"),
        lambda: executions.evidence("0F0 1F0 0B0", "1F0 1B0", m=1),
    ),
    "a weight part that never ran": (_of("SPL-2"), _without_weights),
    "a weight part before the input part": (_of("SPL-2"), _weights_first),
    "a wrong gradient of a step by hand": (
        _of("SPL-2"),
        lambda: _moved(evidence_of("by hand"), 1, ("steps", 0, "gradients", 1, "blocks.0.weight")),
    ),
    "a deferred function that ran twice": (
        split_backward.wrongly_counted,
        lambda: _put(
            evidence_of("deferred"),
            0,
            ("steps", 0, "hook_counts", 0),
            {name: 2 * n for name, n in evidence_of("deferred").shown[0].steps[0].hook_counts[0].items()},
        ),
    ),
    "a table that idles too long": (_of("SCH-4"), lambda: _table("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1")),
    "a table that cannot be run": (_of("SCH-4"), lambda: _table("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")),
    "a table that waits in a circle": (_of("SCH-5"), lambda: _table("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")),
    "a table without a backward": (_of("SCH-5"), lambda: _table("0F0,0B0\n1F0", m=1)),
    "equal masks": (_of("TRN-10"), _alike_masks),
    "a parameter that nothing says the cut of": (
        _of("DPC-7"),
        lambda: _put(
            cut(),
            1,
            ("steps", 3, "parameter_shards", 0),
            {
                name: one
                for name, one in cut().shown[1].steps[3].parameter_shards[0].items()
                if name != "blocks.1.weight"
            },
        ),
    ),
    "a parameter that is placed otherwise": (
        _of("DPC-7"),
        lambda: _put(cut(), 1, ("steps", 3, "parameter_shards", 0, "blocks.2.weight", "placements"), ("R",)),
    ),
    "a gradient that is placed otherwise": (
        _of("DPC-7"),
        lambda: _put(cut(), 1, ("steps", 3, "gradient_shards", 0, "blocks.2.weight", "placements"), ("R",)),
    ),
    "a wrong part": (
        _of("DPC-7"),
        lambda: _moved(cut(), 1, ("steps", 3, "gradients", 0, "blocks.0.up.weight")),
    ),
    "an output that is no tensor of the batch": (
        _of("DPC-7"),
        lambda: _put(
            cut(),
            1,
            ("steps", 3, "output"),
            Structure.of(cut().shown[1].steps[3].output.leaves()[0].tensor().sum()),
        ),  # type: ignore[union-attr]
    ),
    "a wrong gradient where tensors cross in parts": (
        _of("FWD-19"),
        lambda: _moved(crossing(), 1, ("steps", 0, "gradients", 0, "blocks.0.weight")),
    ),
    "a part of a boundary that is wrong": (
        _of("FWD-19"),
        lambda: _moved(crossing(), 1, ("steps", 0, "forwards", 3, "inputs", 0, "array")),
    ),
    "a placement that one further forward lost": (
        _of("FWD-19"),
        lambda: _put(
            crossing(),
            1,
            ("steps", 0, "forwards"),
            (
                structs.replace(
                    crossing().shown[1].steps[0].forwards[-1],
                    inputs=(
                        structs.replace(crossing().shown[1].steps[0].forwards[-1].inputs[0], placements=None),
                    ),
                ),
                *crossing().shown[1].steps[0].forwards,
            ),
        ),
    ),
    "a wrong output of a front end's stages": (
        _of("TRC-1"),
        lambda: _moved(_traced(), 1, ("steps", 2, "output", "array")),
    ),
    "a wrong output of what a front end must follow": (
        _of("TRC-3"),
        lambda: _moved(_traced(), 1, ("steps", 2, "output", "array")),
    ),
    "a wrong loss of a front end's stages": (
        _of("TRC-1"),
        lambda: _moved(_traced(), 1, ("steps", 2, "losses", 1)),
    ),
    "a wrong gradient of a front end's stages": (
        _of("TRC-1"),
        lambda: _moved(_traced(), 0, ("steps", 2, *WEIGHT)),
    ),
    "a gradient that no stage of a front end shows": (
        _of("TRC-1"),
        lambda: _put(_traced(), 0, ("steps", 2, "gradients", 0), {}),
    ),
    "a wrong buffer of a front end's stages": (_of("TRC-1"), _buffered),
    "a key that the model does not have": (
        _of("TRC-2"),
        lambda: _of_observation(_traced(), 1, keys={1: (*_traced().shown[1].keys[1], "x")}),
    ),
    "a key that no stage has": (
        _of("TRC-2"),
        lambda: _of_observation(_traced(), 1, keys={1: _traced().shown[1].keys[1][:-1]}),
    ),
    "a key that two stages have": (
        _of("TRC-2"),
        lambda: _of_observation(
            _traced(), 1, keys={1: (*_traced().shown[1].keys[1], _traced().shown[0].keys[0][0])}
        ),
    ),
    "a wrong split point": (
        _of("TRC-4"),
        lambda: dataclasses.replace(
            _traced(), case=with_model(small_case(), split=Split(by="points", wrong="unknown"))
        ),
    ),
    "a branch that is followed wrongly": (
        _of("TRC-4"),
        lambda: _moved(_traced(wrong="branch"), 0, ("steps", 2, *WEIGHT)),
    ),
    "a boundary that nobody knows": (_of("TRC-5"), lambda: _of_observation(_traced(), 0, boundaries=())),
    "a boundary that is known wrongly": (
        _of("TRC-5"),
        lambda: _of_observation(
            _traced(), 0, boundaries=(Known(producer=0, consumer=1, tensors=(((2, 3), "float32"),)),)
        ),
    ),
    "a wrong gradient of stages whose shapes are known": (
        _of("TRC-5"),
        lambda: _moved(_traced(), 0, ("steps", 2, *WEIGHT)),
    ),
    "an output that is too long, of stages whose shapes are known": (
        _of("TRC-5"),
        lambda: _longer(_traced()),
    ),
    "a batch that arrives once more, placed otherwise": (_of("FWD-31"), _computed_again),
    "a batch that arrives with other values": (
        _of("FWD-31"),
        lambda: _moved(batched(), 1, ("steps", 0, "forwards", 0, "inputs", 0, "array")),
    ),
    "an output that is placed otherwise": (
        _of("FWD-31"),
        lambda: batched(output={"placements": ("S(1)",)}),
    ),
    "an output that names another whole": (_of("FWD-31"), lambda: batched(output={"whole": (2, 2, 4)})),
    "losses of samples that met the targets of others": (
        _of("FWD-31"),
        lambda: batched(losses=lambda right: tuple(map(doubled, right))),
    ),
    "a wrong gradient beside an early output": (
        _of("TRC-7"),
        lambda: _moved(_traced(early="watched"), 0, ("steps", 2, *WEIGHT)),
    ),
    "a buffer that is not loaded": (training.state_is_right, _loaded),
    "a weight that is not restored": (training.restored_is_saved, _restored),
    "copies that are stepped twice as far": (
        masters.masters_are_kept,
        lambda: _with_another_optimizer(MADE, lr=2 * MADE.case.optimizer.lr),
    ),
    "a copy that is stepped twice as far": (
        _copies_of_a_parameter,
        lambda: _with_another_optimizer(MADE, lr=2 * MADE.case.optimizer.lr),
    ),
    "the same, of TRN-23": (
        _of("TRN-23"),
        lambda: _with_another_optimizer(MADE, lr=2 * MADE.case.optimizer.lr),
    ),
    "copies that nothing clips": (_of("TRN-27"), lambda: _with_another_optimizer(CLIPPED, clip=None)),
    "reductions of a group of the engine's own, twice": (_of("DPC-2"), lambda: reduced(ALIKE, ALIKE)),
    "a wrong loss of an evaluation from a source": (_of("TRN-25"), _evaluated_from_a_source),
}
"""The judgement and the evidence of each fault, by what is wrong."""
