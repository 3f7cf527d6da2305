"""As many cases are drawn as it takes to meet every size that a level demands, and the same for everybody."""

import msgspec
import pytest

from pipeconform.adapter import Capabilities, MicrobatchRule, ScheduleClaim
from pipeconform.certificate.drawing import num_draws
from pipeconform.errors import TooLargeError
from pipeconform.spec import certification_level
from pipeconform.spec.levels import certification_levels
from pipeconform.wrapper import WrapperClaims
from tests.case.examples import EVERYTHING

GPIPE = Capabilities(schedules=(ScheduleClaim(name="GPipe"),))


def level(**fields):
    return msgspec.structs.replace(certification_level("forward"), **fields)


def test_the_number_grows_until_no_size_is_missing():
    many, few = num_draws(level(draws=1), GPIPE), num_draws(level(draws=60), GPIPE)

    assert many > 1
    assert few == 60


@pytest.mark.parametrize(
    "asked", [one for one in certification_levels() if one.title != "Wrapper"], ids=lambda one: one.title
)
def test_whoever_claims_everything_is_judged_on_as_many_cases_as_each_level_asks_for(asked):
    """Otherwise more cases would be drawn; where these do not suffice either, the level cannot be had."""
    assert num_draws(asked, EVERYTHING) == asked.draws


def test_sizes_that_are_not_claimed_need_no_cases():
    narrow = Capabilities(schedules=(ScheduleClaim(name="GPipe", min_ranks=2, max_ranks=2),))
    sizes = {"microbatches": ("more",), "draws": 6}

    assert num_draws(level(**sizes), narrow) == 6


def test_a_size_that_cannot_be_drawn_does_not_run_for_ever():
    """The decision names it then."""
    rare = Capabilities(
        schedules=(ScheduleClaim(name="GPipe", microbatches=MicrobatchRule.MULTIPLE_OF_RANKS),)
    )

    assert num_draws(level(draws=2, examples=2000), rare) == 8


def test_as_many_cases_are_drawn_as_are_allowed_and_not_one_more(monkeypatch):
    """The number is in the message; claims that are drawn from once need no more than it."""
    most = "pipeconform.certificate.drawing.MOST_DRAWN"
    asked = level(draws=60)
    monkeypatch.setattr(most, 0)
    with pytest.raises(TooLargeError) as caught:
        num_draws(asked, GPIPE)
    number = int(str(caught.value).partition(" ")[0])

    monkeypatch.setattr(most, number)
    assert num_draws(asked, GPIPE) == 60
    monkeypatch.setattr(most, number - 1)
    with pytest.raises(
        TooLargeError, match=f"^{number} cases would have to be drawn .* the limit is {number - 1}"
    ):
        num_draws(asked, GPIPE)


def test_claims_of_a_wrapper_have_their_cases_in_the_standard():
    assert num_draws(level(), WrapperClaims()) is None
