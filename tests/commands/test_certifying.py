"""What is printed of a certificate that is not granted."""

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
