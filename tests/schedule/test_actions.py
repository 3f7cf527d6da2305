"""Actions are written and read as the field does."""

import pytest

from pipeconform.errors import BadTableError
from pipeconform.schedule import Action, Kind, batch, overlap
from pipeconform.schedule.actions import composite


@pytest.mark.parametrize(
    "text",
    [
        "2F0",
        "0B1",
        "0I1",
        "7W12",
        "1SEND_F0",
        "2RECV_F0",
        "1SEND_B3",
        "0RECV_B3",
        "3UNSHARD",
        "3RESHARD",
        "0REDUCE_GRAD",
        "0WAIT_REDUCE_GRAD",
        "1WAIT_SEND_F0",
        "1WAIT_SEND_B3",
        "(3F2;4B0)OVERLAP_F_B",
        "(3F2;4I0)OVERLAP_F_B",
        "(1SEND_F0;1RECV_B0)BATCH",
    ],
)
def test_parse_reverses_str(text):
    assert text == str(Action.parse(text))


def test_parse_ignores_surrounding_blanks():
    assert Action(2, Kind.F, 0) == Action.parse("  2F0 ")


def test_overlap_is_spelled_as_torch_spells_it():
    from torch.distributed.pipelining.schedules import _Action

    text = str(overlap(Action(3, Kind.F, 2), Action(4, Kind.B, 0)))

    assert text == str(_Action.from_str(text)) == "(3F2;4B0)OVERLAP_F_B"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an action"),
        ("F0", "expected <stage><kind><microbatch>"),
        ("2X0", "expected <stage>"),
        ("2F", "needs a microbatch"),
        ("2F0x", "expected <stage>"),
        ("-1F0", "expected <stage>"),
        ("2UNSHARD1", "takes no microbatch"),
        ("2WAIT_REDUCE_GRAD1", "takes no microbatch"),
        ("2WAIT_SEND_F", "needs a microbatch"),
        ("2WAIT_RECV_F0", "expected <stage>"),
        ("99999999999F0", "numbers end at"),
        ("(1F0)OVERLAP_F_B", "takes one F, then one B or I"),
        ("(1B0;1F1)OVERLAP_F_B", "takes one F, then one B or I"),
        ("(1F0;2B0)SEND_F", "parts can form"),
        ("(1F0;2B0)BATCH", "two or more sends and receives"),
        ("()BATCH", "is not an action"),
        ("(1F0;(1F0;2B0)OVERLAP_F_B)BATCH", "is not an action"),
    ],
)
def test_parse_says_why_a_text_is_no_action(text, reason):
    with pytest.raises(BadTableError, match="is no") as caught:
        Action.parse(text)

    assert reason in str(caught.value)


def test_batches_take_transfers_only():
    with pytest.raises(BadTableError, match="not a batch"):
        batch(Action(0, Kind.F, 0), Action(0, Kind.SEND_F, 0))


def test_leaves_of_a_pair_are_its_parts():
    forward, backward = Action(3, Kind.F, 2), Action(4, Kind.B, 0)

    assert (forward, backward) == overlap(forward, backward).leaves


LARGEST = 2**31 - 2


@pytest.mark.parametrize(
    "text", [f"{LARGEST}F{LARGEST}", f"{LARGEST}UNSHARD", f"{'0' * 39}1F0", f"0F{'0' * 39}1"]
)
def test_the_largest_numbers_and_many_zeros_can_be_read(text):
    assert Action.parse(text).leaves


@pytest.mark.parametrize(
    "text",
    [f"{LARGEST + 1}F0", f"0F{LARGEST + 1}", f"{LARGEST + 1}UNSHARD", f"{'0' * 40}1F0", f"0F{'0' * 40}1"],
)
def test_larger_numbers_are_refused(text):
    with pytest.raises(BadTableError, match=f"numbers end at {LARGEST}"):
        Action.parse(text)


@pytest.mark.parametrize("text", ["(1F0;2W0)OVERLAP_F_B", "(1F0;2B0;3B0)OVERLAP_F_B", "(1F0;2F0)OVERLAP_F_B"])
def test_a_pair_is_one_forward_and_one_backward_with_input_gradients(text):
    with pytest.raises(BadTableError, match="it takes one F, then one B or I"):
        Action.parse(text)


@pytest.mark.parametrize("text", ["(1SEND_F0)BATCH", "(1SEND_F0;1W0)BATCH", "(1UNSHARD;1SEND_F0)BATCH"])
def test_a_batch_is_two_transfers_or_more(text):
    with pytest.raises(BadTableError, match="two or more sends and receives"):
        Action.parse(text)


def test_a_batch_may_have_any_number_of_transfers():
    assert len(Action.parse("(1SEND_F0;1RECV_B0;1SEND_F1)BATCH").leaves) == 3


def test_simple_actions_are_made_of_themselves_and_no_other_kind_of_parts():
    assert Action(2, Kind.F, 0).leaves == (Action(2, Kind.F, 0),)
    with pytest.raises(BadTableError, match="F is not made of parts"):
        composite(Kind.F, Action(2, Kind.F, 0))
