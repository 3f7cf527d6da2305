"""The picture of an executed timeline: any order that was observed can be drawn."""

import pytest

from pipeconform.report.timeline_text import timeline_lines


def _lines(*ranks, first_wrong=None, width=80):
    return timeline_lines([rank.split() for rank in ranks], first_wrong=first_wrong, width=width)


def test_what_waits_for_another_rank_stands_behind_it():
    assert _lines("0F0 0B0", "1F0 1I0 1W0") == [
        "the computations that ran, per pipeline rank:",
        "rank 0 0F0|········0B0----|",
        "rank 1 ····1F0|1I0|1W0|····",
    ]


def test_an_order_that_cannot_be_is_drawn_without_its_waits():
    assert _lines("0B0 0F0", "1F0 1B0", first_wrong=(0, 0)) == [
        "the computations that ran, per pipeline rank, every rank without its waits; ^ the first wrong one:",
        "rank 0 0B0----|0F0|",
        "       ^^^",
        "rank 1 1F0|1B0----|",
    ]


def test_what_is_missing_at_the_end_is_pointed_at():
    assert _lines("0F0", "1F0 1B0", first_wrong=(0, 1))[1:] == [
        "rank 0 0F0|············",
        "           ^",
        "rank 1 ····1F0|1B0----|",
    ]


def test_a_stage_that_ran_twice_or_on_two_ranks_is_drawn_there():
    text = "\n".join(_lines("0F0 0F0 1F0 0B0", "1F0 1B0"))

    assert text.count("0F0") == 2
    assert text.count("1F0") == 2


@pytest.mark.parametrize("timeline", [None, [], [[], []]])
def test_nothing_is_drawn_where_nothing_was_observed(timeline):
    assert timeline_lines(timeline, first_wrong=None, width=80) == []
