"""Mutants are changes made by rule and drawn by a hash; each is a whole reference of its own."""

import ast

import pytest
from pipeconform.reference_impl import mutants
from pipeconform.reference_impl.adapter import ReferenceAdapter
from pipeconform.reference_impl.mutants.drawing import source_of
from pipeconform.reference_impl.mutants.operators import OPERATORS, mutated, mutations

from pipeconform.execute.implementation import load

SOURCE = '''
"""Docstring 1."""

LIMIT = 3


@decorated(1)
def count(a: Literal[1], b=2):
    """Docstring 2."""
    if a < b and not b:
        raise ValueError(f"{a + 1} is too few")
    a.kept = 0
    a.call(a, b)
    return a + 1
'''


def changes(source):
    return {(one.operator, one.before.split("\n")[0], one.after.split("\n")[0]) for one in mutations(source)}


def test_every_operator_makes_its_change_and_nothing_else_is_touched():
    assert changes(SOURCE) == {
        ("constant", "2", "3"),
        ("condition", "if a < b and (not b):", "if not (a < b and (not b)):"),
        ("boolean", "a < b and (not b)", "a < b or not b"),
        ("comparison", "a < b", "a <= b"),
        ("boolean", "not b", "b"),
        ("statement", "raise ValueError(f'{a + 1} is too few')", "pass"),
        ("statement", "a.kept = 0", "pass"),
        ("constant", "0", "1"),
        ("statement", "a.call(a, b)", "pass"),
        ("arguments", "a.call(a, b)", "a.call(b, a)"),
        ("result", "return a + 1", "return None"),
        ("arithmetic", "a + 1", "a - 1"),
        ("constant", "1", "2"),
    }
    assert {operator for operator, _, _ in changes(SOURCE)} == set(OPERATORS)


def test_one_change_is_made_at_a_time():
    for one in mutations(SOURCE):
        text = ast.unparse(mutated(SOURCE, one.identity))
        assert text != ast.unparse(ast.parse(SOURCE))
        assert len(set(text.splitlines()) ^ set(ast.unparse(ast.parse(SOURCE)).splitlines())) <= 3


def test_changes_that_read_the_same_are_told_apart_and_lines_do_not_name_them():
    source = "def f(a):\n    return a + 1 + (a + 1)\n"
    same = [one for one in mutations(source) if (one.before, one.after) == ("1", "2")]

    assert [one.ordinal for one in same] == [0, 1]
    assert {one.identity for one in mutations("\n\n" + source)} == {one.identity for one in mutations(source)}


def test_the_draw_is_the_same_every_time_and_reaches_every_module():
    drawn = mutants.drawn(400)

    assert mutants.drawn(80) == drawn[:80]
    assert len({one.name for one in drawn}) == 400
    assert {one.module for one in drawn} == set(mutants.MODULES)
    assert all(mutants.mutant(one.name) == one for one in drawn)


def test_a_mutant_is_a_reference_of_its_own_with_one_change():
    one = next(one for one in mutants.drawn(1000) if one.module == "stage")
    adapter = load(one.reference)
    package = type(adapter).__module__.rpartition(".")[0]
    changed = ast.unparse(mutated(source_of("stage"), one.mutation.identity))

    assert type(adapter).__name__ == ReferenceAdapter.__name__
    assert not isinstance(adapter, ReferenceAdapter)
    assert package == f"_mutated_{one.name}"
    assert changed != ast.unparse(ast.parse(source_of("stage")))
    assert adapter.describe() == ReferenceAdapter().describe()


def test_an_unknown_mutant_is_no_attribute():
    with pytest.raises(KeyError):
        mutants.mutant("stage_00000000")
    assert not hasattr(mutants, "stage_00000000")
