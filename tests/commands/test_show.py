"""``show``: several names one after the other, and findings that causes are known as."""

import pytest

from pipeconform.commands.findings import describe_finding, finding_named
from pipeconform.report.causes import shipped


def test_several_names_are_shown_in_their_order_and_nothing_if_one_is_wrong(typed):
    code, out, _ = typed("show", "TRN-1", "outputs", "finding", "3", "forward")
    starts = [
        out.index(one) for one in ("TRN-1  Gradients", "feature outputs", "finding 3: ", "level Forward")
    ]

    assert code == 0
    assert starts == sorted(starts)
    assert out.startswith(typed("show", "TRN-1")[1])
    assert typed("show", "TRN-1", "TRN_2")[:2] == (2, "")


def test_a_finding_says_what_is_wrong_in_what_and_where_it_is_written_up(typed):
    code, out, _ = typed("show", "finding", "4")

    assert code == 0
    assert out.splitlines()[:5] == [
        "finding 4: eval() divides the gradients that are there by m",
        "",
        "In         torch.distributed.pipelining",
        "Shown by   LIF-1 Order of training and evaluation; TRN-22 Two things at once",
        "Under      GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble",
    ]
    assert "\nCause      the same as that of finding 3\n" in out
    assert "\nWritten up docs/findings/torch-2.13-eval-rescales-gradients.py\n" in out
    assert out.endswith("'pipeconform show LIF-1' prints the requirement that it violates\n")


@pytest.mark.parametrize("one", shipped(), ids=lambda one: one.id)
def test_every_finding_can_be_shown_by_its_id_in_any_case_of_letters(one):
    assert finding_named(one.id.lower()) == finding_named(one.id.upper()) == one
    text = describe_finding(one)

    assert text.startswith(f"finding {one.id}: {one.title}\n")
    assert one.link in text
    assert one.thread in text
