"""Entries of reference pages: what they show of a class, a function and an alias."""

import pytest

from tests.docs.api import entry


def test_an_entry_has_head_docstring_and_public_members_without_bodies():
    text = entry("pipeconform.adapter.Bystander")

    assert text.startswith(
        "<!-- ::: pipeconform.adapter.Bystander -->\n### Bystander\n\n```python\nclass Bystander:"
    )
    assert text.endswith("```\n\n<!-- end -->")
    assert '    def owned(self) -> dict[int, nn.Module]:\n        """Return no stage."""\n\n' in text
    assert "return" not in text


def test_fields_keep_their_comments_and_strings():
    text = entry("pipeconform.adapter.ScheduleClaim")

    assert "    min_microbatches_per_rank: int = 0  # m ≥ this × p\n" in text
    assert '    family: str | None = None\n    """pipeconform\'s name of the schedule' in text


def test_what_is_private_is_left_out_with_its_words():
    for path in ("pipeconform.schedule.Table", "pipeconform.Case", "pipeconform.adapter.Capabilities"):
        assert " _" not in entry(path).replace("_Data", "")


def test_an_alias_is_shown_as_it_is_written():
    assert "MergeRule = Along | Whole | CustomMerge\n" in entry("pipeconform.adapter.MergeRule")


def test_remarks_for_the_linter_are_no_documentation():
    assert "noqa" not in entry("pipeconform.schedule.Kind") + entry("pipeconform.adapter.Unsupported")


def test_a_function_of_the_same_name_as_its_module_is_found():
    assert "def family(" in entry("pipeconform.schedule.family")


def test_a_name_that_is_nowhere_is_an_error():
    with pytest.raises((LookupError, AttributeError)):
        entry("pipeconform.adapter.Nothing")
