"""What is printed of a certificate that is not granted."""

from msgspec import structs

from pipeconform.commands.certifying import decision_text
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
