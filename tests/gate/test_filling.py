"""Fields of an expectations file are filled in where they stand."""

import datetime

from pipeconform.gate.filling import filled

TEXT = """\
format = 1
# ours
[[expect]]
requirement = "TRN-4"
reason = ""  # who knows
owner = "us"

[[expect]]
requirement = "LIF-1"
reason = "known"
expires = 2030-01-01
"""


def test_an_empty_field_is_filled_and_nothing_else_changes():
    assert filled(TEXT, [3], {"reason": 'a "b"'}) == TEXT.replace(
        'reason = ""  # who', 'reason = "a \\"b\\""  # who'
    )


def test_a_field_with_a_value_is_filled_only_again():
    date = datetime.date(2031, 2, 3)

    assert filled(TEXT, [3, 8], {"owner": "them"}) == TEXT.replace(
        '[[expect]]\nrequirement = "LIF-1"', '[[expect]]\nowner = "them"\nrequirement = "LIF-1"'
    )
    assert filled(TEXT, [8], {"expires": date}) == TEXT
    assert filled(TEXT, [8], {"expires": date}, again=True) == TEXT.replace("2030-01-01", "2031-02-03")


def test_a_field_that_is_not_there_is_added_to_its_own_entry():
    assert (
        filled(TEXT, [3, 8], {"issue": "https://x.org"}).count('[[expect]]\nissue = "https://x.org"\n') == 2
    )


def test_the_first_field_of_an_entry_is_filled_where_it_stands():
    text = '[[expect]]\nreason = ""\nrequirement = "TRN-4"\n'

    assert filled(text, [1], {"reason": "known"}) == text.replace('""', '"known"')
