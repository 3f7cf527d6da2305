"""What an adapter's author meant by a wrong name or value."""

import pytest

from pipeconform import adapter
from pipeconform.adapter import Description, Feature, ScheduleClaim
from pipeconform.execute.meant import meant_by, meant_in_value
from pipeconform.wrapper import WrapperDescription


def raised(function):
    with pytest.raises((AttributeError, ImportError, TypeError)) as caught:
        function()
    return meant_by(caught.value)


def test_an_attribute_an_import_and_an_argument_have_nearest_names():
    def imports():
        from pipeconform.adapter import BoundryClaim  # noqa: F401

    assert raised(lambda: Feature.KWARG).startswith("; nearest: KWARGS")
    assert raised(imports).startswith("; nearest: BoundaryClaim")
    assert raised(lambda: ScheduleClaim(name="A", familly="gpipe")) == "; nearest: family"


def test_nothing_is_added_where_nothing_is_near_or_python_has_said_it():
    assert raised(lambda: Feature.ZZZZZZ) == ""
    assert raised(lambda: adapter.module_state(1, 2, 3)) == ""
    assert meant_by(AttributeError("no attribute 'x'. Did you mean: 'y'?")) == ""
    assert meant_by(ValueError("no")) == ""


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "Invalid enum value 'los' - at `Description.capabilities.scale.at`",
            Description,
            "; nearest: loss",
        ),
        (
            "Invalid enum value 'kwrags' - at `Description.capabilities.features[...]`",
            Description,
            "; nearest: kwargs, loss_kwargs",
        ),
        (
            "Invalid enum value 'q' - at `Description.capabilities.schedules[0].placement`",
            Description,
            "; known: loop, v, mirror, single_process",
        ),
        (
            "Invalid enum value 'whole' - at `Description.capabilities.tracing.splits[0]`",
            Description,
            "; known: annotations, policy, points",
        ),
        (
            "Invalid enum value 'join_' - at `WrapperDescription.claims.features[...]`",
            WrapperDescription,
            "; nearest: join",
        ),
        (
            "Expected `array`, got `int` - at `D.x`",
            Description,
            '; a tuple with one element is written ("x",)',
        ),
        ("Expected `int`, got `str` - at `Description.x`", Description, ""),
    ],
)
def test_a_wrong_value_has_the_nearest_that_the_field_takes(text, kind, words):
    assert meant_in_value(text, kind) == words
