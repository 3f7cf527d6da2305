"""The judgements of chapter FWD on runs with one fault: what is found, and where."""

import dataclasses

import msgspec
import pytest
import torch
from msgspec import structs

from pipeconform.adapter import Feature
from pipeconform.case import blocks
from pipeconform.case.build import merges
from pipeconform.case.case import Train
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Structure
from tests.case.examples import EVERYTHING
from tests.facts import numbers, tells
from tests.judge.honest import (
    CASES,
    HALVES,
    TWO_DIRECTIONS,
    changed,
    expecting,
    found,
    honest,
    honest_example,
    merged,
    of_blocks,
    plain_case,
    told,
    value_of,
    with_value,
)
from tests.judge.spoiling import nudged

LAST = 1
"""The rank that owns the last stage."""

WITHOUT_OUTPUTS = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.OUTPUTS})
WITHOUT_UNEVEN = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.UNEVEN_BATCHES})


def _outputs(made, step=0):
    return list(made.expected.steps[step].outputs)


def _scaled(structure, factor):
    return Structure.of(structure.array.tensor() * factor)


@pytest.mark.parametrize(
    ("place", "kind"), [(0, "batch"), (1, "turned"), (2, "whole"), (3, "total")], ids=str
)
def test_every_output_is_held_to_its_own_rule(place, kind):
    made = honest_example("merged")
    leaves = [leaf.tensor() for leaf in made.shown[LAST].steps[0].output.leaves()]
    doubled = [leaf * 2 if position == place else leaf for position, leaf in enumerate(leaves)]

    assert [tuple(leaf.shape) for leaf in leaves] == [(6, 3), (2, 6), (3,), ()]
    assert told("FWD-23", made) == []
    assert told("FWD-23", changed(made, rank=LAST, output=Structure.of(tuple(doubled)))) == [
        (f"merge value ({kind})", 0, LAST, None, None)
    ]
    short = Structure.of(tuple(leaves[:place])) if place else None
    assert [finding.kind for finding in found("FWD-23", changed(made, rank=LAST, output=short))] == [
        f"merge missing ({kind})"
    ]


def _with_output(made, parts, *, rank=LAST):
    return changed(made, rank=rank, output=merged(parts))


# ------------------------------------------------------------------------------------------------ outputs


def test_a_wrong_value_is_found_with_its_microbatch_and_place():
    made = honest(plain_case())
    first, second, third = _outputs(made)

    (finding,) = found("FWD-1", _with_output(made, [first, _scaled(second, 2), third]))

    assert (finding.kind, finding.rank, finding.microbatch) == ("output value", LAST, 1)
    assert finding.mismatch.index == (0, 0)
    assert finding.mismatch.differing == 6


@pytest.mark.parametrize(("beyond", "expected"), [(False, []), (True, [("output value", 0, LAST, None, 2)])])
def test_an_output_may_round_otherwise_and_no_more(beyond, expected):
    """Kernels choose by where parameters lie in memory, and round otherwise."""
    made = honest(plain_case())
    value = merged(_outputs(made)).array.tensor()
    bounds = made.bounded("running").steps[0].output_bounds
    bound = Array.of(torch.cat([leaf.tensor() for (leaf,) in bounds]))

    near = nudged(value, bound, beyond=beyond)

    assert not torch.equal(near, value)
    assert told("FWD-1", changed(made, rank=LAST, output=Structure.of(near)))[:1] == expected


def _with_last_stage(made, change, *, order=1):
    """The evidence in which the last stage returned other values, and every output is what it returned.

    Forwards are recorded in the reverse order with ``order=-1``.
    """
    step = made.shown[LAST].steps[0]
    forwards = tuple(
        structs.replace(one, output=change(one.output)) if one.stage == LAST else one for one in step.forwards
    )
    parts = [one.output for one in forwards if one.stage == LAST]
    return changed(made, rank=LAST, forwards=forwards[::order], output=merged(parts))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("by", "expected"), [(1 + 2**-50, []), (1 + 2**-30, ["output value"] * 3)])
def test_outputs_that_are_not_returned_may_round_otherwise_too(by, expected, order):
    made = honest(plain_case(), capabilities=WITHOUT_OUTPUTS)
    wrong = _with_last_stage(made, lambda one: _scaled(one, by), order=order)
    wrong = changed(wrong, rank=LAST, output=None)

    assert [kind for kind, *_ in told("FWD-1", wrong)] == expected


def _handed_over(made, *, returned, given):
    """The evidence in which stage 0 returned, and stage 1 was given, other values of microbatch 1."""
    for rank, stage, field, factor in ((0, 0, "output", returned), (1, 1, "inputs", given)):
        forwards = list(made.shown[rank].steps[0].forwards)
        place = [k for k, one in enumerate(forwards) if one.stage == stage][1]
        value = getattr(forwards[place], field)
        other = _scaled(value, factor) if field == "output" else (_scaled(value[0], factor), *value[1:])
        forwards[place] = structs.replace(forwards[place], **{field: other})
        made = changed(made, rank=rank, forwards=tuple(forwards))
    return made


@pytest.mark.parametrize(
    ("returned", "given", "expected"),
    [
        (1 + 2**-50, 1 + 2**-50, []),
        (1 + 2**-50, 1 + 2**-49, [("boundary value", 0, 1, 1, 1)]),
        (1.0, 1 + 2**-50, [("boundary value", 0, 1, 1, 1)]),
        (3.0, 3.0, [("boundary value", 0, 1, 1, 1)]),
    ],
)
def test_a_stage_is_given_what_the_one_before_returned_for_the_microbatch(returned, given, expected):
    """Which may have rounded otherwise than the oracle's; what it returned of something else is not due."""
    made = honest(plain_case())

    assert told("FWD-8", _handed_over(made, returned=returned, given=given)) == expected


def test_an_output_is_merged_of_what_the_stage_returned():
    made = honest(CASES["merged"])

    def rounded(one):
        return structs.replace(one, items=tuple(_scaled(item, 1 + 2**-50) for item in one.items))

    step = made.shown[LAST].steps[0]
    forwards = tuple(structs.replace(one, output=rounded(one.output)) for one in step.forwards)
    wrong = changed(made, rank=LAST, forwards=forwards)

    assert told("FWD-23", wrong) == []
    parts = [one.output.leaves() for one in forwards if one.stage == LAST]
    values = [
        merges.merged(rule, [part[place].tensor() for part in parts], batch_dim=0)
        for place, rule in enumerate(merges.rules_of(CASES["merged"]))
    ]
    assert told("FWD-23", changed(wrong, rank=LAST, output=Structure.of(tuple(values)))) == []
    assert told("FWD-23", changed(made, rank=LAST, output=Structure.of(tuple(values)))) != []


def test_a_change_of_places_is_found_as_one():
    made = honest(plain_case())
    first, second, third = _outputs(made)

    assert told("FWD-2", _with_output(made, [second, first, third])) == [
        ("output order", 0, LAST, None, 0),
        ("output order", 0, LAST, None, 1),
    ]


def test_wrong_values_in_the_right_order_are_not_a_matter_of_order():
    made = honest(plain_case())
    first, *others = _outputs(made)

    assert told("FWD-2", _with_output(made, [_scaled(first, 2), *others])) == []


def test_samples_of_an_uneven_batch_in_another_order_are_found():
    made = honest(CASES["uneven"], capabilities=WITHOUT_UNEVEN)
    rows = merged(_outputs(made)).array.tensor()

    shifted = changed(made, rank=LAST, output=Structure.of(rows.roll(1, 0)))

    assert told("FWD-2", shifted) == [("output order", 0, LAST, None, None)]


@pytest.mark.parametrize("sample", [0, 7])
def test_one_sample_of_an_uneven_batch_in_the_place_of_another_is_found(sample):
    made = honest(CASES["uneven"], capabilities=WITHOUT_UNEVEN)
    rows = merged(_outputs(made)).array.tensor()
    rows[sample] = rows[3]

    (finding,) = found("FWD-2", changed(made, rank=LAST, output=Structure.of(rows)))

    assert (finding.kind, finding.step, finding.rank) == ("output order", 0, LAST)
    assert tells(finding.message, f"sample {sample}", "output", "nearest", "reference's", "sample 3")


def test_an_uneven_batch_may_be_split_otherwise():
    """Kernels round another number of rows otherwise; unless the split is claimed, the order is what is judged."""
    made = honest(CASES["uneven"], capabilities=WITHOUT_UNEVEN)
    claiming = honest(CASES["uneven"])

    near = _scaled(merged(_outputs(made)), 1 + 2**-30)

    assert told("FWD-2", changed(made, rank=LAST, output=near)) == []
    assert {kind for kind, *_ in told("FWD-2", changed(claiming, rank=LAST, output=near))} == {"output value"}


@pytest.mark.parametrize("fill", [torch.nan, torch.inf])
def test_samples_of_an_uneven_batch_that_are_not_finite_are_found(fill):
    made = honest(CASES["uneven"], capabilities=WITHOUT_UNEVEN)
    rows = merged(_outputs(made)).array.tensor()
    rows[3] = fill

    (finding,) = found("FWD-2", changed(made, rank=LAST, output=Structure.of(rows)))

    assert (finding.kind, finding.step, finding.rank) == ("output order", 0, LAST)
    assert tells(finding.message, "sample 3", "not finite")


def test_a_shorter_output_is_found_by_its_length():
    made = honest(plain_case())

    (finding,) = found("FWD-2", _with_output(made, _outputs(made)[:-1]))

    assert (finding.kind, finding.rank) == ("output length", LAST)
    assert tells(finding.message, "output", "4", "batch", "6")


@pytest.mark.parametrize(
    ("requirement", "kind"), [("FWD-1", "no output"), ("FWD-2", "no output"), ("FWD-3", "output missing")]
)
def test_no_output_is_found(requirement, kind):
    made = changed(honest(plain_case()), rank=LAST, output=None)

    assert told(requirement, made) == [(kind, 0, LAST, None, None)]


def test_an_output_on_another_rank_is_found_there():
    made = honest(plain_case())

    assert told("FWD-3", _with_output(made, _outputs(made), rank=0)) == [
        ("output on the wrong rank", 0, 0, None, None)
    ]


def test_an_output_of_a_bystander_is_found():
    made = honest(CASES["among bystanders"])

    wrong = changed(made, rank=2, step=0, output=merged(_outputs(made)))

    assert told("FWD-3", wrong) == [("output on the wrong rank", 0, 2, None, None)]


@pytest.mark.parametrize("name", ["1-tuple", "two outputs", "dict"])
def test_another_container_is_found(name):
    made = honest(CASES[name])
    whole = made.shown[LAST].steps[0].output

    wrong = changed(made, rank=LAST, output=Structure(kind="list", items=whole.items))

    assert told("FWD-11", wrong) == [("output container", 0, LAST, None, None)]


def test_an_unwrapped_tuple_is_found():
    made = honest(CASES["1-tuple"])

    wrong = changed(made, rank=LAST, output=made.shown[LAST].steps[0].output.items[0])

    assert told("FWD-11", wrong) == [("output container", 0, LAST, None, None)]


def test_a_wrong_value_in_the_second_output_is_found():
    made = honest(CASES["two outputs"])
    whole = made.shown[LAST].steps[0].output
    items = (whole.items[0], _scaled(whole.items[1], 2))

    wrong = changed(made, rank=LAST, output=msgspec.structs.replace(whole, items=items))

    assert told("FWD-11", wrong) == [("output value", 0, LAST, None, k) for k in range(3)]


def test_zeros_are_equal_whatever_their_sign():
    made = honest(plain_case())
    zero = torch.zeros(2, 3, dtype=torch.float64)
    right = expecting(made, outputs=(Structure.of(zero),) * 3)
    negative = Array("float64", (6, 3), (-torch.zeros(6, 3, dtype=torch.float64)).numpy().tobytes())

    for raw in (
        Structure.of(-torch.zeros(6, 3, dtype=torch.float64)),
        Structure(kind="tensor", array=negative),
    ):
        assert told("FWD-1", changed(right, rank=LAST, output=raw)) == []


def test_a_value_of_another_dtype_is_found():
    made = honest(plain_case())

    narrow = Structure.of(merged(_outputs(made)).array.tensor().float())

    assert told("FWD-1", changed(made, rank=LAST, output=narrow))[0] == ("output dtype", 0, LAST, None, 0)


# ---------------------------------------------------------------------------- engines without outputs


def _captured(made):
    capabilities = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.OUTPUTS})
    return dataclasses.replace(made, capabilities=capabilities)


def test_outputs_that_are_not_returned_are_read_off_the_last_stage():
    made = _captured(changed(honest(plain_case()), rank=LAST, output=None))
    first, second, third = made.shown[LAST].steps[0].forwards
    wrong = msgspec.structs.replace(second, output=_scaled(second.output, 2))

    assert told("FWD-1", made) == []
    assert told("FWD-1", changed(made, rank=LAST, forwards=(first, wrong, third))) == [
        ("output value", 0, None, 1, 1)
    ]


# ------------------------------------------------------------------------ stages that graphs compute


def _by_graphs(made, **changes):
    """The same run of an engine whose graphs compute: no forward of a module is seen."""
    capabilities = dataclasses.replace(made.capabilities, computed_by="graphs")
    for rank in range(len(made.shown)):
        made = changed(made, rank=rank, forwards=(), **(changes if rank == LAST else {}))
    return dataclasses.replace(made, capabilities=capabilities)


@pytest.mark.parametrize(("requirement", "name"), [("FWD-4", "tuple"), ("FWD-7", "layout")])
def test_outputs_stand_for_boundaries_that_are_not_seen(requirement, name):
    made = honest(CASES[name])
    first, *others = _outputs(made)
    wrong = merged([_scaled(first, 2), *others])

    assert told(requirement, made) == told(requirement, _by_graphs(made)) == []
    assert ("output value", 0, LAST, None, 0) in told(requirement, _by_graphs(made, output=wrong))


def test_of_graphs_that_return_no_outputs_none_are_judged():
    assert told("FWD-1", _by_graphs(_captured(honest(plain_case())), output=None)) == []


@pytest.mark.parametrize(
    ("requirement", "is_inside"),
    [("FWD-1", False), ("TRN-1", False), ("LIF-3", False), ("SCH-1", True), ("SCH-2", True), ("LIF-7", True)],
)
def test_what_is_seen_of_modules_alone_is_not_claimed_of_graphs(requirement, is_inside):
    claim = EVERYTHING.schedules[0]
    graphs = dataclasses.replace(EVERYTHING, computed_by="graphs")
    judgement = JUDGEMENTS[requirement]

    assert judgement.foci(claim, EVERYTHING)
    assert (judgement.foci(claim, graphs) == ()) is judgement.is_inside is is_inside


# ------------------------------------------------------------------------- two ranks with a part each


def test_two_ranks_may_hold_a_part_of_the_microbatches_each():
    made = honest(plain_case(), capabilities=TWO_DIRECTIONS, shares=HALVES)

    for requirement in ("FWD-1", "FWD-2", "FWD-3", "TRN-1", "TRN-2", "TRN-3"):
        assert told(requirement, made) == []


def test_a_wrong_value_in_a_part_is_found_with_its_own_microbatch():
    made = honest(plain_case(), capabilities=TWO_DIRECTIONS, shares=HALVES)
    first, _, third = _outputs(made)

    wrong = _with_output(made, [first, _scaled(third, 2)], rank=0)

    assert told("FWD-1", wrong) == [("output value", 0, 0, None, 2)]


def test_a_part_in_another_order_is_found():
    made = honest(plain_case(), capabilities=TWO_DIRECTIONS, shares=HALVES)
    first, _, third = _outputs(made)

    wrong = _with_output(made, [third, first], rank=0)

    assert told("FWD-2", wrong) == [("output order", 0, 0, None, 0), ("output order", 0, 0, None, 2)]


def test_samples_of_a_part_of_an_uneven_batch_are_judged_too():
    features = TWO_DIRECTIONS.features - {Feature.UNEVEN_BATCHES}
    capabilities = dataclasses.replace(TWO_DIRECTIONS, features=features)
    made = honest(CASES["uneven"], capabilities=capabilities, shares=HALVES)
    rows = made.shown[0].steps[0].output.array.tensor()

    assert told("FWD-2", made) == []
    assert told("FWD-2", changed(made, rank=0, output=Structure.of(rows.flip(0)))) == [
        ("output order", 0, 0, None, None)
    ]


@pytest.mark.parametrize("requirement", ["FWD-1", "FWD-2", "TRN-2"])
def test_a_microbatch_that_nobody_holds_is_found(requirement):
    made = honest(plain_case(), capabilities=TWO_DIRECTIONS, shares={0: (0,), 1: (1,)})

    (finding,) = found(requirement, made)

    assert (finding.kind, finding.step) == ("microbatches missing", 0)
    assert numbers(finding.message) == [2]


@pytest.mark.parametrize(
    ("requirement", "name"),
    [(one, name) for one in ("FWD-1", "FWD-2", "TRN-2") for name in ("plain", "uneven")]
    + [("FWD-22", "merged")],
)
def test_a_rank_that_holds_nothing_where_it_holds_all_is_found(requirement, name):
    nothing = Structure.of(torch.empty(0, 3, dtype=torch.float64))
    case = plain_case() if name == "plain" else CASES[name]

    made = changed(honest(case), rank=LAST, output=nothing, losses=(), microbatches=())

    assert {kind for kind, *_ in told(requirement, made)} == {"microbatches missing"}


# --------------------------------------------------------------------------------------------- boundaries


def _boundary(made, rank, k, position, value, *, step=0):
    """One input of one forward replaced."""
    forwards = list(made.shown[rank].steps[step].forwards)
    inputs = list(forwards[k].inputs)
    inputs[position] = value
    forwards[k] = msgspec.structs.replace(forwards[k], inputs=tuple(inputs))
    return changed(made, rank=rank, step=step, forwards=tuple(forwards))


def test_a_tensor_that_does_not_arrive_unchanged_is_found_with_stage_and_microbatch():
    made = honest(CASES["no gradient"])
    positions = made.expected.steps[0].inputs[1][2][3]

    wrong = _boundary(made, 1, 2, 3, Structure.of(positions.array.tensor() + 1))

    assert told("FWD-5", wrong) == [("boundary value", 0, 1, 1, 2)]
    assert "input 3 of stage 1 (microbatch 2)" in found("FWD-5", wrong)[0].message


def test_a_rounded_boundary_is_found():
    made = honest(CASES["layout"])
    value = made.expected.steps[0].inputs[1][0][0].array.tensor()

    assert told("FWD-7", _boundary(made, 1, 0, 0, Structure.of(value.float().double()))) == [
        ("boundary value", 0, 1, 1, 0)
    ]


def test_another_dtype_at_a_boundary_is_found():
    made = honest(CASES["bfloat16"])
    value = made.expected.steps[0].inputs[1][1][0].array.tensor()

    assert told("FWD-6", _boundary(made, 1, 1, 0, Structure.of(value.half()))) == [
        ("boundary dtype", 0, 1, 1, 1)
    ]


def test_another_container_at_a_boundary_is_found():
    made = honest(CASES["tuple"])
    value = made.expected.steps[0].inputs[1][0][1]

    wrong = _boundary(made, 1, 0, 1, Structure(kind="tuple", items=(value,)))

    assert told("FWD-4", wrong) == [("boundary container", 0, 1, 1, 0)]


def test_too_few_inputs_are_found():
    made = honest(CASES["tuple"])
    first, *others = made.shown[1].steps[0].forwards
    shorter = msgspec.structs.replace(first, inputs=first.inputs[:2])

    wrong = changed(made, rank=1, forwards=(shorter, *others))

    assert told("FWD-4", wrong) == [("boundary arity", 0, 1, 1, 0)]


def test_a_forward_that_is_missing_is_found():
    made = honest(CASES["tuple"])

    wrong = changed(made, rank=1, forwards=made.shown[1].steps[0].forwards[:2])

    assert told("FWD-4", wrong) == [("forward missing", 0, 1, 1, 2)]


def test_inputs_of_two_microbatches_in_one_forward_are_found():
    """Each tensor arrived somewhere, but not all of a microbatch's together."""
    made = honest(CASES["tuple"])
    first, second = (made.expected.steps[0].inputs[1][k][1] for k in (0, 1))

    wrong = _boundary(_boundary(made, 1, 0, 1, second), 1, 1, 1, first)

    assert told("FWD-4", wrong) == [("boundary value", 0, 1, 1, 0), ("boundary value", 0, 1, 1, 1)]


def test_forwards_may_run_in_any_order_and_more_than_once():
    made = honest(CASES["tuple"])
    forwards = made.shown[1].steps[0].forwards

    assert told("FWD-4", changed(made, rank=1, forwards=(*reversed(forwards), forwards[0]))) == []


def test_tensors_without_gradient_must_not_be_asked_for_one():
    made = honest(CASES["no gradient"])
    forwards = tuple(
        msgspec.structs.replace(call, requires_grad=(True, True, True, False, False))
        for call in made.shown[1].steps[0].forwards
    )

    (finding,) = found("FWD-5", changed(made, rank=1, forwards=forwards))

    assert (finding.kind, finding.rank, finding.stage) == ("boundary requires grad", 1, 1)
    assert "input 1 (scale) of stage 1" in finding.message


def test_tensors_of_which_it_is_not_known_whether_they_require_a_gradient_are_not_accused():
    made = honest(CASES["no gradient"])
    forwards = tuple(
        msgspec.structs.replace(call, requires_grad=call.requires_grad[:1])
        for call in made.shown[1].steps[0].forwards
    )

    assert told("FWD-5", changed(made, rank=1, forwards=forwards)) == []


# ------------------------------------------------------------------------------- hooks and gradients


@pytest.mark.parametrize(("kind", "count"), [("forward", 6), ("pre_forward", 1), ("gradient", 0)])
def test_hooks_that_run_more_or_less_often_are_found(kind, count):
    made = honest(CASES["hooks"])
    counts = {0: {**made.expected.steps[0].hook_counts[0], kind: count}}

    (finding,) = found("FWD-17", changed(made, rank=0, hook_counts=counts))

    often = "more" if count > 3 else "less"
    assert (finding.kind, finding.rank, finding.stage) == (f"hooks ran {often} often", 0, 0)
    times = "1 time" if count == 1 else f"{count} times"
    assert f"ran {times} for 3 microbatches; expected 3" in finding.message


def test_owners_of_a_stage_share_its_hooks():
    case = of_blocks(blocks.Hooked())
    made = honest(case, capabilities=TWO_DIRECTIONS, shares=HALVES)

    for rank, held in ((0, 1), (1, 2)):
        counts = {0: dict.fromkeys(made.expected.steps[0].hook_counts[0], held)}
        made = changed(made, rank=rank, hook_counts=counts)

    assert told("FWD-17", made) == []


_BOTH_DIRECTIONS = {
    "FWD-4": "tuple",
    "FWD-5": "no gradient",
    "FWD-6": "bfloat16",
    "FWD-7": "views",
    "FWD-9": "kwargs",
    "FWD-11": "dict",
    "FWD-13": "shared",
    "FWD-14": "in place",
    "FWD-17": "hooks",
}


@pytest.mark.parametrize(("requirement", "name"), _BOTH_DIRECTIONS.items())
def test_what_a_case_is_about_must_be_right_in_both_directions(requirement, name):
    made = honest_example(name)
    parameter = next(iter(made.expected.steps[0].gradients[0]))
    halved = Array.of(value_of(made, "gradients", 0, parameter) / 2)

    (finding,) = found(requirement, with_value(made, "gradients", 0, parameter, halved, rank=0))

    assert finding.kind in ("gradient value", "gradient with hooks")
    assert (finding.rank, finding.stage) == (0, 0)


def test_a_merged_output_is_cut_where_the_references_is():
    """A mistaken input may have other samples than the program announces, and the result is right all the same."""
    made = honest(plain_case(Train(batch_size=6, num_microbatches=3)))

    announced = dataclasses.replace(made, case=plain_case(Train(batch_size=3, num_microbatches=3)))

    assert told("FWD-1", made) == told("FWD-1", announced) == []
