"""The order that a named schedule demands, as far as an observer can see it."""

from pipeconform.judge.named import accepted, expected_order, in_pair_order
from pipeconform.judge.timeline import executed
from pipeconform.schedule import Action, generate
from tests.judge.executions import evidence, words


def _actions(text):
    return [Action.parse(word) for word in text.split()]


def test_either_warm_up_is_interleaved_1f1b():
    names = ["interleaved_one_f_one_b", "interleaved_one_f_one_b_megatron"]

    assert [family.name for family in accepted(names[0])] == names
    assert [family.name for family in accepted(names[1])] == names[::-1]
    assert [family.name for family in accepted("gpipe")] == ["gpipe"]


def test_a_stage_without_an_input_part_shows_its_weight_part_as_a_backward():
    table = generate("zb_h1", num_ranks=2, stages_per_rank=1, num_microbatches=2)
    due = expected_order(table, executed(evidence(*words(table), m=2), 0))

    assert [str(action) for action, _ in due[0]] == ["0F0", "0F1", "0B0", "0B1"]
    assert [str(action) for action, _ in due[1]] == ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]


def test_the_parts_of_a_pair_may_change_places_and_nothing_else():
    due = [(action, pairs) for action, pairs in zip(_actions("1F0 1F1 2B0 1F2"), (0, 1, 0, 0), strict=True)]

    assert in_pair_order(_actions("1F0 2B0 1F1 1F2"), due) == _actions("1F0 1F1 2B0 1F2")
    assert in_pair_order(_actions("1F1 1F0 2B0 1F2"), due) == _actions("1F1 1F0 2B0 1F2")
