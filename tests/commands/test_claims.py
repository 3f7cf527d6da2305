"""What 'claims' lists and what 'show' says about claims, chapters and features."""

import dataclasses
import re

import pytest

from pipeconform.claims import Description, Feature
from pipeconform.commands.claimed_for import claimed_text
from pipeconform.commands.claims import describe_missing, missing_claims
from pipeconform.commands.init import skeleton
from pipeconform.judge.claiming import PLAINEST
from pipeconform.spec import certification_level, mandatory
from pipeconform.wrapper import WrapperClaims, WrapperDescription, WrapperFeature

PLAIN = Description(name="mine", version="1", capabilities=PLAINEST)


def listed(description):
    return describe_missing(missing_claims(description), title="mine 1", total=105)


def test_an_adapter_s_missing_claims_are_listed_with_the_line_to_write(typed, tmp_path):
    (tmp_path / "mine.py").write_text(skeleton(name="mine.py"), "utf-8")
    code, out, err = typed("claims", "mine.py:MyAdapter")
    lines = out.splitlines()

    assert (code, err) == (0, "")
    assert lines[0].startswith("toy GPipe 1.0 claims ")
    at = lines.index("in Capabilities: features=frozenset({…, Feature.KWARGS})")
    assert lines[at + 1 : at + 3] == [
        "  Feature.KWARGS: keyword arguments beside the positional ones",
        "    FWD-9  Keyword arguments",
    ]
    assert "TRN-1 " not in out


def test_a_claim_that_is_made_disappears_from_the_list():
    more = dataclasses.replace(PLAINEST, features=frozenset({Feature.KWARGS}))

    assert "FWD-9 " in listed(PLAIN)
    assert "FWD-9 " not in listed(dataclasses.replace(PLAIN, capabilities=more))


def test_what_takes_one_line_comes_before_what_takes_more():
    parts = listed(PLAIN).split("\n\n")[1:-1]
    counts = [sum(line.startswith("in ") for line in part.splitlines()) for part in parts]

    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[-1]


def test_a_wrapper_s_features_are_listed_until_all_are_claimed():
    some = WrapperDescription(name="w", version="1", claims=WrapperClaims())
    every = WrapperDescription(
        name="w", version="1", claims=WrapperClaims(features=frozenset(WrapperFeature))
    )

    assert "in WrapperClaims: features=frozenset({…, WrapperFeature.JOIN})" in listed(some)
    assert listed(every) == "mine 1 claims 105 of 105 requirements; there is nothing to add"


def test_a_level_s_missing_claims_are_counted_and_listed_alone(typed, tmp_path):
    (tmp_path / "mine.py").write_text(skeleton(name="mine.py"), "utf-8")
    code, out, _ = typed("claims", "mine.py:MyAdapter", "--level", "forward")
    first, *lines = out.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("    ")}

    assert code == 0
    assert re.match(
        r"toy GPipe 1.0 claims \d+ of the 32 requirements of level Forward, which needs \d+ more\. ", first
    )
    assert listed
    assert listed <= {row.id for row in mandatory(certification_level("forward"))}


def test_what_cannot_be_left_out_is_said():
    level = certification_level("training")
    text = claimed_text(level, ("TRN-1", "TRN-3", "TRN-4"), more=2)

    assert text.endswith("of level Training, which needs 2 more, TRN-1 and TRN-3 among them")
    assert claimed_text(level, (), more=0).endswith("which needs no more of them")


def test_claims_of_a_level_for_another_kind_are_refused(typed):
    code, _, err = typed("claims", "reference-wrapper", "--level", "forward")

    assert (code, err.count("\n")) == (2, 1)
    assert "is granted to a pipeline, and this is a wrapper" in err


@pytest.mark.parametrize("arguments", [(), ("torch", "--impl", "torch")])
def test_one_implementation_is_named(typed, arguments):
    assert typed("claims", *arguments) == (
        2,
        "",
        "pipeconform: name one implementation: pipeconform claims my_adapter.py:MyAdapter\n",
    )


@pytest.mark.parametrize(
    ("requirement", "line"),
    [
        ("FWD-4", 'Claim      in Capabilities: boundary=BoundaryClaim(…, containers=("tensor", "tuple"))'),
        ("DPW-7", "Claim      in WrapperClaims: features=frozenset({…, WrapperFeature.NO_SYNC})"),
    ],
)
def test_show_prints_the_line_that_claims_a_requirement(typed, requirement, line):
    assert line in typed("show", requirement)[1].splitlines()


def test_show_prints_no_claim_for_what_everybody_is_judged_by(typed):
    assert "\nClaim " not in typed("show", "TRN-1")[1]


def test_show_prints_a_chapter(typed):
    code, out, _ = typed("show", "trn")

    assert code == 0
    assert out.startswith("chapter TRN  Losses, gradients and updates  (of pipelines)\n\n  TRN-1   MUST")
    assert "--requirements TRN' judges by this chapter only" in out


@pytest.mark.parametrize(
    ("feature", "lines"),
    [
        (
            "kwargs",
            ["  keyword arguments beside the positional ones", "Needed by  FWD-9   Keyword arguments"],
        ),
        ("no_sync", ["  forwards and backwards that only add up", "Needed by  DPW-7  Accumulation"]),
    ],
)
def test_show_prints_a_feature_and_what_needs_it(typed, feature, lines):
    code, out, _ = typed("show", feature)

    assert code == 0
    assert set(lines) <= set(out.splitlines())


def test_every_feature_has_a_meaning():
    assert [one for one in (*Feature, *WrapperFeature) if not one.meaning] == []
