"""What is printed of a certificate that is not granted."""

import re

import pytest

from pipeconform.commands.certifying import decision_text, interruption
from tests.certificate.conftest import sound, violated
from tests.report.conftest import make

__all__ = ["make"]


def test_a_refusal_names_the_causes_behind_its_reasons(make):
    contents = violated(make, sound(make))
    (first,) = contents.certificate.reasons
    broken = first.split()[0]

    text = decision_text(contents, granted=False, reasons=contents.certificate.reasons)

    assert f"\n  {first}\n1 cause in 1 requirement, the most harmful first:\n" in text
    assert f"   1. {broken} " in text


def test_a_refusal_without_violations_names_no_cause(make):
    text = decision_text(sound(make), granted=False, reasons=("the run was cut short",))

    assert text.endswith("\n  the run was cut short")


def test_an_interruption_says_what_is_kept_and_how_to_go_on(tmp_path):
    ways = (
        "-n auto judges schedules in parallel; --shard 1/4 certifies a quarter, whose package is kept, "
        "and 'merge' joins them"
    )
    begins = "certify starts over, and begins with the requirements"
    assert interruption(tmp_path) == f"no package: nothing was judged yet; {begins}\n{ways}"

    (tmp_path / "result.json").touch()
    kept = f"what was judged is kept in {tmp_path / 'result.json'}"
    assert interruption(tmp_path) == f"no package: {kept}; {begins}\n{ways}"
    assert interruption(tmp_path, shard="1/2", workers="auto") == f"no package: {kept}; {begins}"
    all_judged = f"all requirements were judged, which is kept in {tmp_path / 'result.json'}"
    assert interruption(tmp_path, all_judged=True) == (
        f"no package: {all_judged}, but not all canaries were tried; {begins}\n{ways}"
    )


ADAPTER = """
import dataclasses

from pipeconform.adapter import Feature
from pipeconform.judge.claiming import PLAINEST
from pipeconform.reference_impl.adapter import ReferenceAdapter

NOT_FORWARD = {
    Feature(name)
    for name in "kwargs shared_in_stage user_hooks compiled autocast objects batch_dim structured_outputs".split()
}


class Few(ReferenceAdapter):
    def describe(self):
        return dataclasses.replace(super().describe(), name="few", capabilities=PLAINEST)


class FewForward(ReferenceAdapter):
    def describe(self):
        all_claims = super().describe().capabilities
        fewer = dataclasses.replace(all_claims, features=all_claims.features - NOT_FORWARD)
        return dataclasses.replace(super().describe(), name="few", capabilities=fewer)
"""


@pytest.fixture
def refused(typed, tmp_path):
    """What is printed when the claims of an adapter refuse a level; nothing was run and no package is there."""

    def lines(adapter, *options):
        (tmp_path / "few.py").write_text(ADAPTER, "utf-8")
        code, out, err = typed("certify", "--impl", f"few.py:{adapter}", "--level", "forward", *options)

        assert (code, err) == (1, "")
        assert not (tmp_path / "pipeconform-results").exists()
        assert not list(tmp_path.glob("*.zip"))
        return out.splitlines()

    return lines


@pytest.mark.parametrize("shard", [(), ("--shard", "1/1")], ids=["whole", "shard"])
def test_too_few_claims_are_refused_before_anything_is_run(refused, shard):
    first, *others, last = refused("Few", *shard)

    assert first.startswith("NOT GRANTED: few ")
    assert first.endswith(" cannot be certified for level Forward with these claims, so nothing was run")
    assert re.fullmatch(
        r"claim \d+ more: 'pipeconform claims few.py:Few --level forward' prints the lines to write", last
    )
    assert not any("a higher level" in one for one in others)


def test_a_refusal_names_a_higher_level_that_the_same_claims_allow(refused):
    """Training includes Forward, and what is unclaimed is a smaller share of all that it demands."""
    *_, instead, last = refused("FewForward")

    assert re.fullmatch(
        r"these claims allow a higher level, 'pipeconform certify --impl few.py:FewForward --level training': level "
        r"Training includes level Forward, but lets \d+ of all its \d+ requirements be unclaimed, where Forward lets "
        r"\d+ of its \d+",
        instead,
    )
    assert last.startswith("claim 2 more: ")
