"""Hooks that run in microbatches (FWD-17), and in dry runs before them (FWD-25)."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.observe.observation import Event
from tests.case.examples import EVERYTHING
from tests.judge.honest import CASES, changed, found, honest, told

FIRST = 1000
"""A number of a call that no other has."""


def with_dry_run(made, *, step, counts):
    """The first rank runs its stage once more before the first microbatch, on inputs that belong to none."""
    shown = made.shown[0].steps[step]
    first = shown.forwards[0]
    (stale,) = [structs.replace(first.inputs[0], array=_other(first.inputs[0].array))]
    probe = structs.replace(first, call=FIRST, inputs=(stale,), grad_enabled=False)
    events = (Event("F", 0, FIRST, -1, 0.0, ""), *shown.events)
    right = made.expected.steps[step].hook_counts[0]
    return changed(
        made,
        rank=0,
        step=step,
        forwards=(probe, *shown.forwards),
        events=events,
        hook_counts={0: {**right, **counts}},
    )


def _other(array):
    return type(array).of(array.tensor() + 1e6)


def test_hooks_that_run_in_a_dry_run_are_told_apart_from_those_that_run_too_often():
    made = with_dry_run(honest(CASES["hooks"]), step=0, counts={"pre_forward": 4, "forward": 4})

    assert told("FWD-17", made) == []
    assert told("FWD-25", made) == [("hooks ran in a dry run", 0, 0, 0, None)] * 2


@pytest.mark.parametrize("count", [2, 5])
def test_a_dry_run_excuses_one_more_call_and_none_less(count):
    made = with_dry_run(honest(CASES["hooks"]), step=0, counts={"forward": count})

    (finding,) = found("FWD-17", made)

    assert finding.kind == f"hooks ran {'more' if count == 5 else 'less'} often"
    assert "(a dry run may add 1)" in finding.message
    assert told("FWD-25", made) == []


def test_without_a_dry_run_nothing_is_excused():
    made = honest(CASES["hooks"])
    counts = {0: {**made.expected.steps[0].hook_counts[0], "forward": 4}}
    made = changed(made, rank=0, hook_counts=counts)

    assert told("FWD-17", made) == [("hooks ran more often", 0, 0, 0, None)]
    assert told("FWD-25", made) == []
    (finding,) = found("FWD-17", made)
    assert finding.message == "the forward hook in stage 0 ran 4 times for 3 microbatches; expected 3"


def test_a_hook_that_ran_in_a_dry_run_is_not_said_to_have_been_allowed_to():
    made = with_dry_run(honest(CASES["hooks"]), step=0, counts={"pre_forward": 4})
    (finding,) = found("FWD-25", made)

    assert finding.message == "the pre-forward hook in stage 0 ran 4 times for 3 microbatches; expected 3"


@pytest.mark.parametrize(
    ("name", "requirement", "stage", "kind", "right"),
    [
        ("hooks on inputs", "FWD-26", 1, "input", 3),
        ("hooks on parameters", "FWD-27", 0, "parameter", 6),
        ("hooks on a module", "FWD-27", 0, "backward", 3),
    ],
)
def test_hooks_on_gradients_that_run_too_often_in_a_later_step_are_told(
    name, requirement, stage, kind, right
):
    made = honest(CASES[name])
    assert made.expected.steps[2].hook_counts[stage][kind] == right
    counts = {stage: {**made.expected.steps[2].hook_counts[stage], kind: 2 * right}}

    wrong = changed(made, rank=stage, step=2, hook_counts=counts)

    assert told(requirement, wrong) == [("hooks ran more often", 2, stage, stage, None)]


def test_a_backward_over_the_whole_batch_calls_a_parameters_hook_once():
    made = honest(
        CASES["hooks on parameters"], capabilities=dataclasses.replace(EVERYTHING, loss_over="batch")
    )
    for step in (0, 2):
        assert told("FWD-27", made)[0][0] == "hooks ran more often"
        made = changed(made, rank=0, step=step, hook_counts={0: {"parameter": 2}})

    assert told("FWD-27", made) == []
