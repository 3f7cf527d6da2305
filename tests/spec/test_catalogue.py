"""The standard comes from the suites, and reading it is cheap."""

import re
import subprocess
import sys

import pytest

import pipeconform.adapter
from pipeconform.schedule import families
from pipeconform.spec import Level, chapters, requirement
from pipeconform.spec.catalogue import CONTRACT, MUST, Promise, stated, statements
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


def test_every_promise_can_be_read_or_is_the_contracts():
    """A promise has a link, or is one that adapters make by implementing the contract, and names a part of it."""
    unlinked = [(row.id, one) for row in all_requirements() for one in row.promise if not one.link]

    assert all(row.promise for row in all_requirements())
    assert [row for row, one in unlinked if not one.text.startswith(CONTRACT)] == []
    for row, one in unlinked:
        names = one.text.removeprefix(CONTRACT).partition(":")[0].split(".")
        assert _in_contract(names), f"{row}: the contract has no {'.'.join(names)}"


def _in_contract(names):
    value, *inner = (getattr(pipeconform.adapter, names[0], None), *names[1:])
    return value is not None and all(hasattr(value, one) or one in value.__annotations__ for one in inner)


@pytest.mark.parametrize("identifier", ["ERR-11", "ERR-14", "ERR-15", "ERR-16", "FWD-24", "FWD-25", "LIF-3"])
def test_what_no_promise_covers_is_no_must(identifier):
    assert requirement(identifier).level is Level.SHOULD


def test_the_schedules_rest_on_the_publication_of_every_family():
    """SCH-2 and SCH-4 name the sources of all families; only that of forward-only is every pipeline's."""
    texts = requirement("SCH-2").source

    assert requirement("SCH-4").source == texts
    assert [one.name for one in families() if not _named(one, texts)] == ["forward_only"]


def _named(family, texts):
    numbers = re.findall(r"\d{4}\.\d{4,5}", family.source)
    return any(number in texts for number in numbers) or "DualPipe" in family.source


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
