"""The standard comes from the suites, and reading it is cheap."""

import subprocess
import sys

import pytest

from pipeconform.spec import chapters
from pipeconform.spec.catalogue import MUST, Promise, stated, statements
from pipeconform.spec.wrappers import all_chapters, all_requirements


def test_chapters_are_in_order_and_their_requirements_too():
    assert [chapter.id for chapter in all_chapters()] == [
        *("FWD", "TRN", "SPL", "SCH", "ERR", "COM", "LIF", "DPC", "TRC"),
        "DPW",
    ]
    assert "DPW" not in [chapter.id for chapter in chapters()]
    for chapter in all_chapters():
        numbers = [int(row.id.partition("-")[2]) for row in chapter.requirements]
        assert numbers == sorted(set(numbers))
        assert all(row.id.startswith(f"{chapter.id}-") for row in chapter.requirements)


def test_every_requirement_is_stated_once():
    ids = [one.requirement.id for found in statements().values() for one in found.values()]

    assert sorted(ids) == sorted(row.id for row in all_requirements())
    assert len(set(ids)) == len(ids)


def test_every_requirement_says_what_why_and_what_it_rests_on():
    for row in all_requirements():
        assert row.statement.endswith(".")
        assert row.rationale.endswith(".")
        assert row.promise
        assert "catalogue" not in row.source, f"{row.id}: the catalogue is no promise"
        assert all(link.startswith("https://") for link in row.links)


def test_requirements_without_a_promise_are_known():
    """When a promise is found, remove its requirement here; a new entry needs a reason in its review."""
    without = [row.id for row in all_requirements() if row.source == "no promise known"]

    assert without == ["ERR-11", "ERR-13", "ERR-14", "ERR-15", "LIF-6"]


def test_a_docstring_has_the_sentence_and_then_the_reason():
    def right():
        """Every output is
        the model's.

        Anything else is another model.
        """

    def wrong():
        """Every output is the model's."""

    promise = Promise("a paper", "https://example.org")
    row = stated(right, "XYZ-1", title="Outputs", level=MUST, promise=promise)

    assert (row.statement, row.rationale) == (
        "Every output is the model's.",
        "Anything else is another model.",
    )
    assert (row.source, row.links) == ("a paper", ("https://example.org",))
    with pytest.raises(ValueError, match="XYZ-1: expected two paragraphs"):
        stated(wrong, "XYZ-1", title="Outputs", level=MUST, promise=promise)


def test_reading_the_standard_and_its_judgements_loads_neither_torch_nor_hypothesis():
    code = (
        "import sys\n"
        "from pipeconform.judge.registry import JUDGEMENTS\n"
        "from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS\n"
        "from pipeconform.spec.wrappers import all_requirements\n"
        "assert len(all_requirements()) == len(JUDGEMENTS) + len(WRAPPER_JUDGEMENTS)\n"
        "print(*{'torch', 'hypothesis', 'pytest'} & set(sys.modules))"
    )

    assert _last_line(code) == ""


@pytest.mark.parametrize("arguments", [["list"], ["show", "TRN-4"]])
def test_nor_do_the_commands_that_print_it(arguments):
    code = (
        "import sys\n"
        "from pipeconform.cli import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "print()\n"
        "print(*{'torch', 'hypothesis', 'pytest'} & set(sys.modules))"
    )

    assert _last_line(code) == ""


def _last_line(code):
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.removesuffix("\n").rpartition("\n")[2]
