"""The judgements of chapter SPL: silent on runs without a fault (see test_lifecycle), precise on one change."""

import pytest

from pipeconform.observe.observation import Answered, Held
from tests.judge.honest import CASES, changed, found, honest, honest_example, told

SECOND = 3 * 2 - 1
"""The last call of a rank with one stage and three microbatches, in the second of its steps."""


def _shown(name, *, rank, step, **fields):
    """The honest evidence of a case with fields of one rank's step replaced."""
    return changed(honest_example(name), rank=rank, step=step, **fields)


def test_a_graph_that_is_left_over_is_named():
    wrong = _shown("plain", rank=1, step=0, held=(Held(2, -1, 4),))

    assert told("SPL-2", wrong) == [("left over", 0, 1, 1, 2)]
    assert told("SPL-5", wrong) == [("kept after the weight part", 0, 1, 1, 2)]


def test_what_is_kept_in_between_is_no_leftover():
    wrong = _shown("plain", rank=1, step=2, held=(Held(3, SECOND, 1), Held(3, -1, 1)))

    assert told("SPL-5", wrong) == [("kept after the weight part", 2, 1, 1, 0)]
    for before in (0, SECOND):
        assert told("SPL-2", _shown("plain", rank=1, step=2, held=(Held(3, before, 1),))) == []


def test_what_a_dry_run_keeps_is_not_a_microbatchs():
    assert told("SPL-2", _shown("plain", rank=1, step=0, held=(Held(77, -1, 4),))) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, "accepted"),
        ("2", "unclear error"),
        ("chunk", "unclear error"),
        ("chunk 12 is not due", "unclear error"),
        ("chunk 2.5", "unclear error"),
        ("microbatch -2", "unclear error"),
        ("the weight part of micro-batch 2 ran already", None),
        ("[Stage 1] Chunk id 2 is out of range", None),
    ],
)
def test_an_answer_names_the_microbatch_in_words(error, kind):
    answer = Answered(stage=1, microbatch=2, call="the weight part a second time", error=error)

    wrong = _shown("disorder", rank=1, step=0, answers=(answer,))

    expected = [] if kind is None else [(f"the weight part a second time: {kind}", 0, 1, 1, 2)]
    accepted = kind == "accepted"
    assert told("SPL-4", wrong) == (expected if accepted else [])
    assert told("SPL-6", wrong) == ([] if accepted else expected)


def test_a_deferred_function_that_is_forgotten_is_counted():
    right = honest(CASES["deferred"])
    s, counts = next(iter(right.expected.steps[0].hook_counts.items()))
    fewer = {s: counts | {"deferred_weight_function": 2}}

    wrong = changed(right, rank=s, hook_counts=fewer)

    assert counts == {
        "deferred_weight_builder": 3,
        "deferred_weight_entry": 3,
        "deferred_weight_function": 3,
    }
    assert told("SPL-3", wrong) == [("deferred weight function: too few", 0, s, s, None)]


@pytest.mark.parametrize(
    ("before", "when"),
    [(SECOND, "when 1F2 begins"), (77, "when another forward begins"), (-1, "when the step has ended")],
)
def test_it_is_said_until_when_memory_was_kept(before, when):
    """The second step's calls are 3, 4 and 5; call 77 is none of a microbatch."""
    for number, words in (
        (1, f"1 tensor that {{}} is still alive {when}, "),
        (4, f"4 tensors that {{}} are still alive {when}, "),
    ):
        (finding,) = found("SPL-5", _shown("plain", rank=1, step=2, held=(Held(3, before, number),)))

        saved = "stage 1 saved for the backward of microbatch 0"
        assert finding.message.startswith(words.format(saved))


def test_of_each_forward_the_first_that_is_kept_is_told_and_every_forward_counts():
    several = (Held(3, -1, 1), Held(4, 5, 2), Held(4, -1, 9), Held(5, -1, 1))
    made = _shown("plain", rank=1, step=2, held=several)

    assert [one[-1] for one in told("SPL-5", made)] == [0, 1, 2]
    assert [one[-1] for one in told("SPL-2", made)] == [0, 1, 2]
    assert "2 tensors" in found("SPL-5", made)[1].message


@pytest.mark.parametrize(("count", "word"), [(2, "too few"), (4, "too many")])
@pytest.mark.parametrize(
    "what", ["deferred_weight_builder", "deferred_weight_entry", "deferred_weight_function"]
)
def test_each_weight_function_runs_once_for_every_microbatch(count, word, what):
    made = honest(CASES["deferred"])
    s, counts = next(iter(made.expected.steps[0].hook_counts.items()))
    (finding,) = found("SPL-3", changed(made, rank=s, hook_counts={s: counts | {what: count}}))

    assert finding.kind == f"{what.replace('_', ' ')}: {word}"
    assert finding.message.endswith(f"{count} times; expected 3 for 3 microbatches")
