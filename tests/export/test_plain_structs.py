"""The plain classes do what cases need of msgspec's."""

import pytest

from pipeconform.export.plain_structs import Struct, structs


class Point(Struct, frozen=True):
    x: int
    y: int = 2


class Named(Point):
    name: str = ""

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError(self.name)


def test_fields_have_defaults_and_are_inherited():
    one = Named(x=1, name="a")

    assert (one.x, one.y, one.name) == (1, 2, "a")
    assert one == Named(x=1, y=2, name="a")
    assert hash(one) == hash(Named(x=1, name="a"))
    assert one != Named(x=2, name="a")
    assert Point(x=1) != Named(x=1)


def test_one_is_replaced_by_another():
    assert structs.replace(Named(x=1), y=5) == Named(x=1, y=5)


def test_what_is_missing_unknown_or_refused_is_an_error():
    with pytest.raises(TypeError, match="Point needs x"):
        Point()
    with pytest.raises(TypeError, match="Point has no z"):
        Point(x=1, z=2)
    with pytest.raises(ValueError, match="bad"):
        Named(x=1, name="bad")


def test_fields_may_be_given_by_position():
    assert Point(1) == Point(x=1, y=2)
    assert Point(1, 5) == Point(x=1, y=5)
