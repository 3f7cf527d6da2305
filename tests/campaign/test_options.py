"""How many cases options ask for."""

import pytest

from pipeconform.campaign.options import Options
from pipeconform.spec import profile


@pytest.mark.parametrize("name", ["smoke", "core", "full"])
def test_a_profile_is_as_it_is_unless_a_number_of_examples_is_asked_for(name):
    assert Options(implementation="torch", profile=name).sized() == profile(name)


@pytest.mark.parametrize("number", [1, 7, 1000])
def test_so_many_examples_are_drawn_whatever_they_cost_and_no_more_are_searched(number):
    full, sized = profile("full"), Options(implementation="torch", profile="full", examples=number).sized()

    assert (sized.corpus, sized.costly, sized.every_member) == (number, number, False)
    assert (sized.search, sized.wrapper_search) == (
        min(number, full.search),
        min(number, full.wrapper_search),
    )
    assert (sized.shrink_cost, sized.varied) == (full.shrink_cost, full.varied)
