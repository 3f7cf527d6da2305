"""The judgements of chapter LIF on runs without a fault, and with one; every chapter on runs without."""

import dataclasses
import re

import msgspec
import pytest
import torch

from pipeconform.bounds.gauge import Gauge
from pipeconform.case import blocks
from pipeconform.case.case import Load, Restart, Zero
from pipeconform.judge.lifecycle import repeats_exactly
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.array import Array
from pipeconform.observe.observation import StepShown
from tests.facts import tells
from tests.judge.honest import (
    CASES,
    EVAL,
    TRAIN,
    changed,
    found,
    honest,
    honest_example,
    judged,
    of_blocks,
    plain_case,
    told,
    value_of,
    with_value,
)

WEIGHT = "blocks.0.weight"


def test_every_requirement_judges_one_of_the_runs_without_a_fault():
    # tests of their own have the runs of these; COM-6 is asked of disturbed runs, of real ranks only; FWD-24 and
    # TRC-6 are about refusals
    elsewhere = {
        name
        for name in JUDGEMENTS
        if name.startswith(("TRC-", "ERR-", "DPC-", "COM-6", "FWD-19", "FWD-24", "FWD-31"))
    } - {"ERR-12", "ERR-17"}

    assert {requirement for requirement, _ in judged("")} == set(JUDGEMENTS) - elsewhere


def test_evaluation_that_changes_a_gradient_leaves_a_trace():
    made = honest(plain_case(TRAIN, EVAL))
    doubled = Array.of(2 * value_of(made, "gradients", 1, WEIGHT))

    wrong = with_value(made, "gradients", 1, WEIGHT, doubled, rank=1, step=1)

    assert told("LIF-1", wrong) == [("evaluation changed a gradient", 1, 1, 1, None)]


def test_evaluation_that_clears_a_gradient_leaves_a_trace():
    made = honest(plain_case(TRAIN, EVAL))

    wrong = with_value(made, "gradients", 0, WEIGHT, None, rank=0, step=1)

    assert told("LIF-1", wrong) == [("evaluation removed a gradient", 1, 0, 0, None)]


def test_evaluation_before_any_training_leaves_no_gradient_or_zeros():
    made = honest(plain_case(EVAL, TRAIN))
    zeros = Array.of(torch.zeros(3, 3, dtype=torch.float64))
    ones = Array.of(torch.ones(3, 3, dtype=torch.float64))

    assert told("LIF-1", with_value(made, "gradients", 0, WEIGHT, zeros, rank=0)) == []
    assert told("LIF-1", with_value(made, "gradients", 0, WEIGHT, ones, rank=0)) == [
        ("evaluation changed a gradient", 0, 0, 0, None)
    ]


def test_evaluation_is_compared_with_what_the_rank_had_and_training_with_the_reference():
    """A gradient that is a rounding off after training is as far off after evaluation: no second finding."""
    made = honest(plain_case(TRAIN, EVAL))
    near = Array.of(value_of(made, "gradients", 1, WEIGHT) * (1 + 2**-52))

    for step in (0, 1):
        made = with_value(made, "gradients", 1, WEIGHT, near, rank=1, step=step)

    assert told("LIF-1", made) == []


def test_evaluation_that_moves_a_running_statistic_leaves_a_trace():
    case = of_blocks(blocks.Linear(), blocks.BatchNorm(), program=(TRAIN, EVAL))
    made, name = honest(case), "blocks.1.norm.running_mean"
    moved = Array.of(value_of(made, "buffers", 0, name) + 1)

    wrong = with_value(made, "buffers", 0, name, moved, rank=0, step=1)

    assert told("LIF-1", wrong) == [("evaluation changed a buffer", 1, 0, 0, None)]
    assert told("TRN-9", wrong) == [("buffer value", 1, 0, 0, None)]


def test_evaluation_that_draws_random_numbers_is_found():
    made = changed(honest(plain_case(TRAIN, EVAL)), rank=0, step=1, rng_moved=True)

    assert told("LIF-1", made) == [("evaluation consumed random numbers", 1, 0, None, None)]


def test_training_may_draw_random_numbers():
    made = changed(honest(plain_case(TRAIN, EVAL)), rank=0, step=0, rng_moved=True)

    assert told("LIF-1", made) == []


def test_evaluation_in_training_mode_is_found_once_per_rank():
    made = honest(plain_case(TRAIN, EVAL))
    calls = made.shown[1].steps[1].forwards

    wrong = tuple(msgspec.structs.replace(call, training=True) for call in calls)

    assert told("LIF-1", changed(made, rank=1, step=1, forwards=wrong)) == [
        ("evaluation in training mode", 1, 1, 1, None)
    ]


def test_training_after_evaluation_is_judged_too():
    made = honest(plain_case(TRAIN, EVAL, Zero(), TRAIN))
    doubled = Array.of(2 * value_of(made, "gradients", 0, WEIGHT, step=3))

    wrong = with_value(made, "gradients", 0, WEIGHT, doubled, rank=0, step=3)

    assert told("LIF-1", wrong) == [("gradient value", 3, 0, 0, None)]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("the process's random state moved", "build moved the random state"),
        ("stage 1: blocks.0.weight differs from its initial value", "build changed a module"),
    ],
)
def test_what_building_changed_is_a_finding_of_its_rank(change, kind):
    made = honest(plain_case())
    one = msgspec.structs.replace(made.shown[1], build_changes=(change,))

    (finding,) = found("LIF-6", dataclasses.replace(made, shown=(made.shown[0], one)))

    assert (finding.kind, finding.rank) == (kind, 1)
    assert change in finding.message


def test_equal_executions_repeat():
    made = honest_example("plain")

    assert list(repeats_exactly(made.shown, made.shown, "in new processes", gauge=Gauge())) == []


def test_executions_that_differ_in_one_bit_do_not_repeat_and_say_in_what_and_when():
    made = honest_example("plain")
    right = value_of(made, "gradients", 1, WEIGHT, step=2)
    near = torch.nextafter(right, torch.full_like(right, torch.inf))
    other = with_value(made, "gradients", 1, WEIGHT, Array.of(near), rank=1, step=2)

    (finding,) = repeats_exactly(made.shown, other.shown, "in new processes", gauge=Gauge())

    assert (finding.kind, finding.step, finding.rank) == ("not repeated in new processes", 2, 1)
    assert set(StepShown.__struct_fields__) & set(re.findall(r"\w+", finding.message)) == {"gradients"}


def test_of_each_rank_the_first_step_that_does_not_repeat_is_told_and_every_step_counts():
    made, gauge = honest_example("plain"), Gauge()
    other = made
    for rank in (0, 1):
        for step in (0, 2):
            other = with_value(other, "gradients", rank, WEIGHT, None, rank=rank, step=step)
    other = changed(other, rank=1, step=2, loss=Array.of(torch.ones(())))

    found = list(repeats_exactly(made.shown, other.shown, "when alone", gauge=gauge))

    assert [(one.step, one.rank) for one in found] == [(0, 0), (0, 1)]
    assert list(repeats_exactly(made.shown, made.shown, "when alone", gauge=(whole := Gauge()))) == []
    assert (gauge.compared, whole.compared) == (2, 6)


def test_a_changed_value_is_shown_beside_what_it_was_and_one_that_is_gone_is_not():
    made = honest(plain_case(TRAIN, EVAL))
    doubled = Array.of(2 * value_of(made, "gradients", 1, WEIGHT))
    (moved,) = found("LIF-1", with_value(made, "gradients", 1, WEIGHT, doubled, rank=1, step=1))
    (gone,) = found("LIF-1", with_value(made, "gradients", 1, WEIGHT, None, rank=1, step=1))
    (came,) = found("LIF-1", with_value(made, "gradients", 1, "strange", doubled, rank=1, step=1))

    assert moved.mismatch is not None
    assert (moved.kind, moved.step, moved.rank, moved.stage) == ("evaluation changed a gradient", 1, 1, 1)
    assert tells(moved.message, "gradient", WEIGHT)
    assert moved.message.endswith(f"\n{moved.mismatch.describe()}")
    assert [(one.kind, one.mismatch) for one in (gone, came)] == [
        ("evaluation removed a gradient", None),
        ("evaluation changed a gradient", None),
    ]
    assert tells(gone.message, "gradient", WEIGHT, "gone")


def test_of_each_stage_the_first_name_that_evaluation_changed_is_told():
    case = of_blocks(blocks.Linear(), blocks.BatchNorm(), program=(TRAIN, EVAL))
    made = honest(case)
    for stage, rank in ((0, 0), (1, 1)):
        for name in made.shown[rank].steps[1].gradients[stage]:
            made = with_value(made, "gradients", stage, name, None, rank=rank, step=1)

    assert [one[:4] for one in told("LIF-1", made)] == [
        ("evaluation removed a gradient", 1, 0, 0),
        ("evaluation removed a gradient", 1, 1, 1),
    ]


def test_forwards_need_not_repeat():
    made = honest_example("plain")
    other = changed(made, rank=0, forwards=made.shown[0].steps[0].forwards[:1])

    assert list(repeats_exactly(made.shown, other.shown, "in new processes", gauge=Gauge())) == []


def test_evaluation_that_records_a_graph_is_told_with_its_stage():
    made = honest_example("guarded")
    forwards = made.shown[1].steps[0].forwards
    recording = tuple(msgspec.structs.replace(call, grad_enabled=True) for call in forwards)

    assert told("LIF-2", changed(made, rank=1, forwards=recording)) == [
        ("evaluation records a graph", 0, 1, 1, None)
    ]
    assert told("LIF-2", changed(made, rank=1, differentiable=True)) == [
        ("evaluation result requires grad", 0, 1, None, None)
    ]


def test_a_state_with_a_strange_name_and_without_a_right_one_is_told_for_its_stage():
    made = honest_example("loaded")
    values = dict(made.shown[0].steps[0].parameters[0])
    values["0.weight"] = values.pop(WEIGHT)

    wrong = changed(made, rank=0, parameters={0: values})

    assert [kind for kind, *_ in told("LIF-4", wrong)][:2] == [
        "state lacks a name",
        "state has a strange name",
    ]


def test_a_state_on_a_rank_that_does_not_own_it_is_told():
    made = honest_example("loaded")
    both = {**made.shown[0].steps[0].parameters, 1: made.shown[1].steps[0].parameters[1]}

    assert told("LIF-4", changed(made, rank=0, parameters=both))[0] == (
        "state has a strange name",
        0,
        0,
        1,
        None,
    )


def test_parameters_that_are_not_those_that_were_loaded_are_told():
    made = honest_example("loaded")
    old = Array.of(2 * value_of(made, "parameters", 0, WEIGHT))

    assert told("LIF-4", with_value(made, "parameters", 0, WEIGHT, old, rank=0)) == [
        ("parameter value", 0, 0, 0, None)
    ]


def test_buffers_that_are_not_those_that_were_loaded_are_told():
    made = honest(of_blocks(blocks.Linear(), blocks.BatchNorm(), program=(TRAIN, Load(), Zero(), TRAIN)))
    name = "blocks.1.norm.running_mean"
    kept = Array.of(value_of(made, "buffers", 0, name, step=0))

    assert told("LIF-4", made) == []
    assert told("LIF-4", with_value(made, "buffers", 0, name, kept, rank=0, step=1)) == [
        ("buffer value", 1, 0, 0, None)
    ]


RESTART = CASES["restarted"].program.index(Restart())


@pytest.mark.parametrize(("kind", "name"), [("parameter", WEIGHT), ("buffer", "blocks.1.norm.running_mean")])
def test_what_is_not_restored_is_told_with_what_was_saved(kind, name):
    made = honest_example("restarted")
    old = Array.of(2 + value_of(made, f"{kind}s", 0, name, step=RESTART))

    found = told("LIF-10", with_value(made, f"{kind}s", 0, name, old, rank=0, step=RESTART))

    assert found == [(f"{kind} not restored", RESTART, 0, 0, None)]


def test_what_is_lost_is_not_restored():
    made = honest_example("restarted")

    assert told("LIF-10", changed(made, rank=1, step=RESTART, parameters={}))[0] == (
        "parameter not restored",
        RESTART,
        1,
        1,
        None,
    )


def test_what_is_restored_is_compared_with_what_the_rank_had_not_with_the_reference():
    made = honest_example("restarted")
    for step in (RESTART - 1, RESTART):
        other = Array.of(1.5 * value_of(made, "parameters", 0, WEIGHT, step=step))
        made = with_value(made, "parameters", 0, WEIGHT, other, rank=0, step=step)

    assert "parameter not restored" not in [kind for kind, *_ in told("LIF-10", made)]
