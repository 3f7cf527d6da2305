"""An expectations file is read strictly: what cannot be explained is refused with its line."""

import datetime

import msgspec
import pytest

from pipeconform.errors import BadExpectationsError
from pipeconform.gate.expectations import read_expectations, require_sane_clock
from pipeconform.spec import standard_versions

ENTRY = """\
[[expect]]
requirement = "trn-4"
status = "failed"
signature = "gradient value"
reason = "gradients of earlier steps are divided again"
issue = "https://example.org/issues/7"
owner = "training team"
expires = 2031-01-01
"""


@pytest.fixture
def read(tmp_path):
    def from_text(text):
        path = tmp_path / "pipeconform-expectations.toml"
        path.write_text(text, "utf-8")
        return read_expectations(path)

    return from_text


def test_an_entry_knows_its_line_and_its_requirement(read):
    (entry,) = read(f"format = 1\n\n# known\n{ENTRY}").entries

    assert (entry.label, entry.requirement) == ("pipeconform-expectations.toml:4", "TRN-4")
    assert entry.expires == datetime.date(2031, 1, 1)


def test_filters_that_are_left_out_mean_everywhere(read):
    (entry,) = read(f"format = 1\n{ENTRY}").entries

    assert entry.is_about(requirement="TRN-4", schedule="GPipe", device="cuda", torch="2.13.0")
    assert not entry.is_about(requirement="TRN-3", schedule="GPipe", device="cuda", torch="2.13.0")
    assert entry.covers_size(num_ranks=3, stages_per_rank=2)


def test_an_entry_may_be_about_a_range_of_releases_of_torch(read):
    (entry,) = read(f'format = 1\n{ENTRY}torch = ">=2.12,<2.14"\n').entries
    versions = ("2.11.0", "2.12.0+cpu", "2.13.1", "2.14.0.dev20260601", "2.14.0")

    about = {"requirement": "TRN-4", "schedule": "GPipe", "device": "cpu"}
    assert [entry.is_about(**about, torch=one) for one in versions] == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("lacking", "helps"),
    [
        (("reason", "issue", "owner", "expires"), True),
        (("owner",), True),
        (("owner", "signature"), False),
        (("signature",), False),
    ],
)
def test_filling_in_is_advised_where_only_people_can_say_what_is_lacking(read, lacking, helps):
    text = "".join(line for line in ENTRY.splitlines(True) if not line.startswith(lacking))

    with pytest.raises(BadExpectationsError, match="the entry lacks") as caught:
        read(f"format = 1\n{text}")
    assert ("'pipeconform expect fill' fills them in" in str(caught.value)) is helps


def test_texts_are_as_many_as_cases(read, make, tmp_path):
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(make.case()))
    text = f'format = 1\n{ENTRY}cases = ["one.json"]\n'

    (entry,) = read(f'{text}texts = ["rank 1 differs"]\n').entries
    assert [one.text for one in entry.stored] == ["rank 1 differs"]
    with pytest.raises(BadExpectationsError, match=r"toml:11: 2 texts for 1 cases; expected one each"):
        read(f'{text}texts = ["a", "b"]\n')


def test_a_range_of_releases_that_is_none_is_refused(read):
    with pytest.raises(BadExpectationsError, match=r"toml:10: torch 'nightly' is no range of releases"):
        read(f'format = 1\n{ENTRY}torch = "nightly"\n')


def test_filters_narrow_an_entry(read):
    text = f'format = 1\n{ENTRY}schedules = ["GPipe"]\np = [2, 4]\nv = [1]\ndevice = "cpu"\n'
    (entry,) = read(text).entries

    assert entry.is_about(requirement="TRN-4", schedule="GPipe", device="cpu", torch="2.13.0")
    assert not entry.is_about(requirement="TRN-4", schedule="1F1B", device="cpu", torch="2.13.0")
    assert not entry.is_about(requirement="TRN-4", schedule="GPipe", device="cuda", torch="2.13.0")
    assert entry.covers_size(num_ranks=4, stages_per_rank=1)
    assert not entry.covers_size(num_ranks=3, stages_per_rank=1)
    assert not entry.covers_size(num_ranks=2, stages_per_rank=2)


@pytest.mark.parametrize(
    ("cell", "violation", "place", "covered"),
    [
        ({}, {}, {}, True),
        ({"requirement": "TRN-3"}, {}, {}, False),
        ({"schedule": "1F1B"}, {}, {}, False),
        ({}, {"status": "hung"}, {}, False),
        ({}, {"signature": "gradient missing"}, {}, False),
        ({}, {"p": 3}, {}, False),
        ({}, {}, {"device": "cuda"}, False),
        ({}, {}, {"torch": "2.11.0"}, False),
    ],
)
def test_an_entry_covers_a_violation_that_all_of_it_is_about(read, make, cell, violation, place, covered):
    text = f'format = 1\n{ENTRY}schedules = ["GPipe"]\np = [2]\ndevice = "cpu"\ntorch = ">=2.12"\n'
    (entry,) = read(text).entries
    where = {"requirement": "TRN-4", "schedule": "GPipe"} | cell
    shown = {"status": "failed", "signature": "gradient value", "p": 2} | violation
    found = make.violation(**where, case=make.case(p=shown.pop("p")), **shown)

    place = {"device": "cpu", "torch": "2.13.0"} | place
    assert entry.covers(make.cell(**where), found, **place) is covered


def test_a_stored_case_is_read_with_its_entry(read, make, tmp_path):
    case = make.case()
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(case))
    (entry,) = read(f'format = 1\n{ENTRY}cases = ["one.json"]\n').entries

    assert [(stored.path, stored.case) for stored in entry.stored] == [("one.json", case)]


@pytest.mark.parametrize(
    "field", ["requirement", "status", "signature", "reason", "issue", "owner", "expires"]
)
def test_an_incomplete_entry_is_refused_with_what_it_lacks(read, field):
    without = "".join(line for line in ENTRY.splitlines(True) if not line.startswith(field))

    with pytest.raises(BadExpectationsError, match=rf"expectations.toml:2: the entry lacks {field}; every"):
        read(f"format = 1\n{without}")


@pytest.mark.parametrize(
    ("was", "becomes", "expected"),
    [
        ('"trn-4"', '"TRN-44"', r":3: unknown requirement 'TRN-44'; nearest: TRN-4"),
        ('"failed"', '"passed"', r":4: status \['passed'\] names no violation"),
        ("https://example.org/issues/7", "PROJ-7", r":7: issue 'PROJ-7' is not a link; expected https://"),
        ("2031-01-01", '"soon"', ":9: Invalid RFC3339"),
        ("[[expect]]", "[[known]]", r":2: 'known' is unknown; write entries as \[\[expect\]\]"),
        ("owner =", "ranks = [2]\nowner =", ":8: Object contains unknown field `ranks`"),
        ("owner =", 'p = ["2"]\nowner =', ":8: Expected `int`, got `str`"),
        ("owner =", 'cases = ["no.json"]\nowner =', ":8: cannot read the case no.json: No such file"),
        ("format = 1", "format = 2", ":1: format 2; this version reads 'format = 1'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(read, was, becomes, expected):
    text = f"format = 1\n{ENTRY}"
    assert was in text

    with pytest.raises(BadExpectationsError, match=rf"expectations.toml{expected}"):
        read(text.replace(was, becomes, 1))


def test_a_damaged_case_is_named(read, tmp_path):
    (tmp_path / "one.json").write_text("{")

    with pytest.raises(BadExpectationsError, match=r"expectations.toml:10: one.json: damaged, not JSON"):
        read(f'format = 1\n{ENTRY}cases = ["one.json"]\n')


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadExpectationsError, match=r"cannot read .*nothing.toml: No such file"):
        read_expectations(tmp_path / "nothing.toml")


def test_a_clock_that_stands_before_the_standard_is_refused():
    newest = standard_versions()[0].date

    with pytest.raises(BadExpectationsError, match="the clock of this machine says 1970-01-01, but standard"):
        require_sane_clock(datetime.date(1970, 1, 1))
    require_sane_clock(newest)
    require_sane_clock(newest - datetime.timedelta(days=1))  # it is yesterday elsewhere
    with pytest.raises(BadExpectationsError, match="set the clock"):
        require_sane_clock(newest - datetime.timedelta(days=2))
