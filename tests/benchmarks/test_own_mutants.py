"""Mutants of the product are made by rule, drawn by a seed, and told apart from what has run before."""

import ast
import subprocess
import sys

import pytest

from benchmarks.mutants.operators import mutated, mutations
from benchmarks.own_mutants import running
from benchmarks.own_mutants.drawing import MODULES, ROOT, drawn, reaching, source_of
from benchmarks.own_mutants.operators import of_the_product
from benchmarks.own_mutants.page import page
from benchmarks.own_mutants.running import Record, read, run

SOURCE = """
def judged(steps, bound):
    for step in steps:
        if step.found <= bound and step.due:
            yield from found(step)
    yield Finding(strict=True)
"""


def test_every_operator_makes_its_change():
    changes = {(one.operator, one.after.splitlines()[0]) for one in mutations(SOURCE, by=of_the_product)}

    assert changes == {
        ("loop", "for step in (*steps,)[1:]:"),
        ("loop", "for step in (*steps,)[:-1]:"),
        ("condition", "if not (step.found <= bound and step.due):"),
        ("boolean", "step.found <= bound or step.due"),
        ("comparison", "step.found < bound"),
        ("bound", "step.found <= bound * 1024"),
        ("link", "yield from ()"),
    }


def test_what_gave_findings_remains_a_generator():
    links = [one for one in mutations(SOURCE, by=of_the_product) if one.operator == "link"]

    assert len(links) == 2
    for one in links:
        tree = mutated(SOURCE, one.identity, by=of_the_product)
        assert sum(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(tree)) == 2


def test_a_seed_draws_the_same_mutants_and_another_seed_others():
    first, again, other = (
        [one.name for one in drawn(seed=seed, number=20, within="judge.norms")] for seed in (1, 1, 2)
    )

    assert first == again
    assert sorted(first) == sorted(other)
    assert first != other


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_tests_that_are_there(module):
    files = reaching(module)

    assert files
    assert all((ROOT / file).exists() for file in files)


def test_every_module_that_is_mutated_parses_with_each_change_made():
    for mutant in drawn(seed=3, number=40):
        tree = mutated(source_of(mutant.module), mutant.mutation.identity, by=of_the_product)
        assert ast.unparse(tree)


def _record(name, *, noticed=True, module="pipeconform.judge.norms"):
    return Record(
        name=name,
        module=module,
        operator="condition",
        where="f",
        line=1,
        before="if a:\n    pass",
        after="if not a:\n    pass",
        noticed=noticed,
        by="tests/x.py::y" if noticed else "",
        tests=3,
        seconds=1.0,
    )


def test_the_page_counts_equivalent_mutants_apart():
    records = [_record("a"), _record("b", noticed=False), _record("c", noticed=False)]
    text = page(records, seed=5, equivalent={"c": "Both branches do the same."})

    assert "Seed 5: 3 mutants were drawn, 1 of them are equivalent. Of the others 50.0% were noticed." in text
    assert "Seed 5, within `judge`: 3" in page(records, seed=5, equivalent={}, within="judge")
    assert "| `judge.norms` | 3 | 1 | 1 | 1 |" in text
    assert "- `b` condition in `f`: `if a:…` became `if not a:…`" in text
    assert "- `c` condition in `f`: `if a:…` became `if not a:…`. Both branches do the same." in text


def test_what_has_run_is_not_run_again(tmp_path, monkeypatch):
    tried, controlled = [], []
    monkeypatch.setattr(running, "tried", lambda one, *, limit: tried.append(one.name) or _record(one.name))

    def control(file, *, limit):
        controlled.append((file, limit))

    monkeypatch.setattr(running, "_control", control)
    chosen = drawn(seed=1, number=3, within="judge.norms")

    run(chosen[:2], tmp_path / "records.jsonl", limit=1.0)
    run(chosen, tmp_path / "records.jsonl", limit=1.0)

    assert tried == [one.name for one in chosen]
    assert read(tmp_path / "records.jsonl").keys() == {one.name for one in chosen}
    assert {file for file, _ in controlled} == set(reaching("pipeconform.judge.norms"))


@pytest.mark.slow
def test_a_mutant_takes_the_place_of_its_module_and_is_noticed():
    """In a process of its own: pytest, which runs here, would find the module before the mutant."""
    program = (
        "from benchmarks.own_mutants.drawing import drawn\n"
        "from benchmarks.own_mutants.running import tried\n"
        "found = drawn(seed=0, number=99, within='judge.exchanged_words')\n"
        "one = next(m for m in found if m.mutation.operator == 'boolean')\n"
        "print(tried(one, limit=300.0).by)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert shown.stdout.startswith("tests/judge/test_exchanged_words.py::")
