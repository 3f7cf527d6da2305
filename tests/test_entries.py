"""Files of entries are read strictly: what is wrong is refused with the line on which to change it."""

import re

import msgspec
import pytest

from pipeconform.entries import read_entries
from pipeconform.errors import BadKnownError

FILE = """\
format = 1

# those of the first floor
[[room]]
name = "kitchen"
doors = [1, 2]

  [[ room ]] # with a view
doors = [3]
name = "study"
"""


class Room(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    doors: tuple[int, ...]
    window: str = ""


def read(text):
    data = text if isinstance(text, bytes) else text.encode()
    found = read_entries(data, name="room", source="rooms.toml", error=BadKnownError)
    return [(entry.line, entry.decoded(Room, required=("name", "doors"))) for entry in found]


def test_entries_are_read_in_order_with_their_lines():
    assert read(FILE) == [(4, Room("kitchen", (1, 2))), (8, Room("study", (3,)))]
    assert read("format = 1\n") == []


def test_a_refusal_names_the_line_of_the_field_in_its_own_entry():
    first, second = read_entries(FILE.encode(), name="room", source="rooms.toml", error=BadKnownError)

    assert [first.line_of("name"), second.line_of("name")] == [5, 10]
    assert [first.line_of("window"), first.line_of("")] == [4, 4]
    assert isinstance(second.refusal("doors", "too small"), BadKnownError)
    assert str(second.refusal("doors", "too small")) == "rooms.toml:9: too small"


@pytest.mark.parametrize(
    ("was", "becomes", "error"),
    [
        ("format = 1", "format = ", "rooms.toml: not TOML: "),
        ("format = 1", "format = 2", "rooms.toml:1: format 2; this version reads 'format = 1'"),
        ("format = 1", "", "rooms.toml:1: format None; this version reads 'format = 1'"),
        ("[[room]]", "[[hall]]", "rooms.toml:4: 'hall' is unknown; write entries as [[room]]"),
        ("# those", "floor = 1 # those", "rooms.toml:3: 'floor' is unknown; write entries as [[room]]"),
        (FILE, "format = 1\n[room]\n", "rooms.toml:2: 'room' is unknown; write entries as [[room]]"),
        (FILE, "format = 1\nroom = [1]\n", "rooms.toml:2: 'room' is unknown; write entries as [[room]]"),
        (
            FILE,
            'format = 1\nroom = [{name = "kitchen"}]\n',
            "rooms.toml: write every entry under a line [[room]] of its own",
        ),
        ('"kitchen"\n', '"kitchen"\nflat = 1\n', "rooms.toml:6: Object contains unknown field `flat`"),
        ("[1, 2]", '[1, "2"]', "rooms.toml:6: Expected `int`, got `str`"),
        ('"kitchen"', "7", "rooms.toml:5: Expected `str`, got `int`"),
        ('name = "study"', "", "rooms.toml:8: the entry lacks name; every entry needs name, doors"),
        ('"study"', '""', "rooms.toml:10: the entry lacks name; every entry needs name, doors"),
        ("[3]", "[]", "rooms.toml:9: the entry lacks doors; every entry needs name, doors"),
        (
            'doors = [3]\nname = "study"\n',
            "",
            "rooms.toml:8: the entry lacks name, doors; every entry needs name, doors",
        ),
    ],
)
def test_what_is_wrong_is_refused(was, becomes, error):
    assert was in FILE

    with pytest.raises(BadKnownError, match=re.escape(error)):
        read(FILE.replace(was, becomes, 1))


def test_what_is_not_text_is_refused():
    with pytest.raises(BadKnownError, match=r"rooms\.toml: not TOML: "):
        read(b"\xff")
