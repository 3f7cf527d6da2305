"""What is printed of a certificate that is not granted."""

import re

import pytest
from msgspec import structs

from pipeconform.commands.certifying import decision_text, interruption
from tests.certificate.conftest import sound
from tests.report.conftest import Make


def test_a_refusal_names_the_causes_behind_its_reasons():
    contents = sound(Make())
    cells = list(contents.result.cells)
    place = next(index for index, cell in enumerate(cells) if cell.is_judged)
    make, broken = Make(), cells[place]
    violation = make.violation(broken.requirement, broken.schedule)
    cells[place] = structs.replace(broken, status="failed", violations=(violation,))
    contents = structs.replace(contents, result=structs.replace(contents.result, cells=tuple(cells)))

    text = decision_text(contents, granted=False, reasons=(f"{broken.requirement} failed",))

    assert f"\n  {broken.requirement} failed\n1 cause in 1 requirement, the most harmful first:\n" in text
    assert f"   1. {broken.requirement} " in text


def test_a_refusal_without_violations_names_no_cause():
    text = decision_text(sound(Make()), granted=False, reasons=("the run was cut short",))

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


ADAPTER = """
import dataclasses

from pipeconform.judge.claiming import PLAINEST
from pipeconform.reference_impl.adapter import ReferenceAdapter


class Few(ReferenceAdapter):
    def describe(self):
        return dataclasses.replace(super().describe(), name="few", capabilities=PLAINEST)
"""


@pytest.mark.parametrize("shard", [(), ("--shard", "1/1")], ids=["whole", "shard"])
def test_too_few_claims_are_refused_before_anything_is_run(typed, tmp_path, shard):
    (tmp_path / "few.py").write_text(ADAPTER, "utf-8")

    code, out, err = typed("certify", "--impl", "few.py:Few", "--level", "forward", *shard)
    first, *_, last = out.splitlines()

    assert (code, err) == (1, "")
    assert first.startswith("NOT GRANTED: few ")
    assert first.endswith(" cannot be certified for level Forward with these claims, so nothing was run")
    assert re.fullmatch(
        r"claim \d+ more: 'pipeconform claims few.py:Few --level forward' prints the lines to write", last
    )
    assert not (tmp_path / "pipeconform-results").exists()
    assert not list(tmp_path.glob("*.zip"))
