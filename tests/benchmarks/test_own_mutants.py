"""Mutants of the product are made by rule, drawn by a seed, and told apart from what has run before."""

import ast
import subprocess
import sys

import msgspec
import pytest
from msgspec import structs

from benchmarks.mutants.operators import mutated, mutations
from benchmarks.own_mutants import reach, running
from benchmarks.own_mutants.drawing import drawn, source_of
from benchmarks.own_mutants.operators import of_the_product
from benchmarks.own_mutants.page import page
from benchmarks.own_mutants.planting import living, plant
from benchmarks.own_mutants.reach import Reach, without_processes
from benchmarks.own_mutants.running import Answer, Record, in_child, read, run, statement_at
from pipeconform.judge import exchanged_words

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
        [one.name for one in drawn(seed=seed, number=40, within="judge.norms")] for seed in (1, 1, 2)
    )

    assert first == again
    assert sorted(first) == sorted(other)
    assert first != other


def test_every_module_that_is_mutated_parses_with_each_change_made():
    for mutant in drawn(seed=3, number=40, within="judge"):
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

    assert "Seed 5: 3 mutants were drawn; equivalent are 1. Of the others 50.0% were noticed." in text
    assert "Seed 5, within `judge`: 3" in page(records, seed=5, equivalent={}, within="judge")
    assert "| `judge.norms` | 3 | 1 | 1 | 1 |" in text
    assert "- `b` condition in `f`: `if a:…` became `if not a:…`" in text
    assert "- `c` condition in `f`: `if a:…` became `if not a:…`. Both branches do the same." in text


def test_a_survivor_says_which_tests_did_not_look_at_it():
    alive = _record("a", noticed=False)
    others = [structs.replace(alive, name="b", tests=0), structs.replace(alive, name="c", left=7)]

    text = page([alive, *others], seed=5, equivalent={})

    assert "- `a` condition in `f`: `if a:…` became `if not a:…`\n" in text
    assert "- `b` condition in `f`: `if a:…` became `if not a:…` (only tests with processes reach it)" in text
    assert "- `c` condition in `f`: `if a:…` became `if not a:…` (7 tests that reach it were not run)" in text


def test_what_has_run_is_not_run_again(tmp_path, monkeypatch):
    tried = []

    def main(arguments, plugins):
        (loop,) = plugins
        tried.append([one.name for one in loop.mutants])

    monkeypatch.setattr(running.pytest, "main", main)
    chosen = drawn(seed=1, number=3, within="judge.norms")
    records = tmp_path / "records.jsonl"
    records.write_bytes(msgspec.json.encode(_record(chosen[0].name)) + b"\n")

    run(chosen, records, reach=REACH, limit=1.0)
    run(chosen[:1], records, reach=REACH, limit=1.0)

    assert tried == [[one.name for one in chosen[1:]]]
    assert read(records).keys() == {chosen[0].name}


MODULE = "pipeconform.judge.norms"
REACH = Reach(
    product="p",
    files={"tests/judge/a.py": "1", "tests/judge/b.py": "1"},
    seconds={"tests/judge/a.py::slow": 5.0, "tests/judge/b.py::one": 1.0, "tests/judge/b.py::two": 1.0},
    lines={MODULE: {"3": (0, 1), "4": (2,)}},
)


def test_the_cheapest_file_that_reaches_a_line_is_asked_first_then_what_shares_its_caches():
    assert REACH.tests(MODULE, 3, 3) == ["tests/judge/b.py::one", "tests/judge/a.py::slow"]
    assert REACH.tests(MODULE, 3, 4) == [
        "tests/judge/b.py::one",
        "tests/judge/b.py::two",
        "tests/judge/a.py::slow",
    ]
    assert REACH.tests(MODULE, 5, 9) == []
    assert REACH.beside(["tests/judge/b.py::one"]) == ["tests/judge/b.py::two"]


def test_only_files_of_tests_that_changed_are_mapped_again(tmp_path, monkeypatch):
    asked = []

    def ran(files):
        asked.append(files)
        return {"tests/judge/b.py::new": 2.0}, {
            MODULE: {"4": ["tests/judge/b.py::new"], "7": ["tests/judge/b.py::new", "failed"]}
        }

    monkeypatch.setattr(reach, "_product", lambda: "p")
    monkeypatch.setattr(reach, "_test_files", lambda: {"tests/judge/a.py": "1", "tests/judge/b.py": "2"})
    monkeypatch.setattr(reach, "_run", ran)
    path = tmp_path / "reach.json"
    path.write_bytes(msgspec.json.encode(REACH))

    found = [reach.known(path), reach.known(path)]

    assert asked == [["tests/judge/b.py"]]
    for one in found:
        assert one.seconds == {"tests/judge/a.py::slow": 5.0, "tests/judge/b.py::new": 2.0}
        assert one.tests(MODULE, 3, 3) == ["tests/judge/a.py::slow"]
        assert one.tests(MODULE, 4, 7) == [
            "tests/judge/b.py::new",
        ]


def test_all_is_mapped_again_when_the_product_changed(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(reach, "_product", lambda: "another")
    monkeypatch.setattr(reach, "_test_files", lambda: {"tests/judge/a.py": "1", "tests/judge/b.py": "1"})
    monkeypatch.setattr(reach, "_run", lambda files: (asked.append(files), ({}, {}))[1])
    path = tmp_path / "reach.json"
    path.write_bytes(msgspec.json.encode(REACH))

    assert reach.known(path).seconds == {}
    assert asked == [["tests/judge/a.py", "tests/judge/b.py"]]


HEADS = """
def f(a):
    if (
        a
    ):
        return [
            1,
            2]
    return 3
"""


@pytest.mark.parametrize(("line", "expected"), [(3, (3, 5)), (4, (3, 5)), (8, (6, 8)), (9, (9, 9))])
def test_a_line_belongs_to_its_statement_and_to_the_head_of_a_block(line, expected):
    assert statement_at(HEADS, line) == expected


def test_a_test_that_starts_a_process_is_skipped():
    with without_processes() as tries, pytest.raises(pytest.skip.Exception):
        subprocess.run([sys.executable, "-c", ""], check=False)

    assert tries == ["started a process"]
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_mutant_takes_the_place_of_what_is_imported_in_a_process_of_its_own():
    mutants = drawn(seed=0, number=99, within="judge.exchanged_words")
    mutant = next(one for one in mutants if one.mutation.operator == "boolean")
    inside = exchanged_words.exchanged
    before = inside.__code__

    def ask():
        planted = plant(mutant, living())
        return Answer(by=f"{planted} {inside.__code__ != before}")

    assert in_child(ask, limit=30.0).by == "True True"
    assert inside.__code__ is before


def test_a_mutant_that_never_ends_is_noticed():
    def forever():
        while True:
            pass

    assert in_child(forever, limit=0.2).by == "the process died, or did not end"


@pytest.mark.parametrize(
    "ended", [pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR]
)
def test_tests_that_cannot_be_collected_end_the_run(monkeypatch, ended):
    """One file that cannot be imported would hide what all the others of its folder reach."""
    monkeypatch.setattr(reach.pytest, "main", lambda arguments, plugins: ended)
    with pytest.raises(SystemExit, match="pytest ended with <ExitCode"):
        reach._run(["tests/judge/test_norms.py"])


def test_lines_are_seen_again_after_a_test_that_ended_the_trace(tmp_path):
    """In a process of its own, since the tests may be traced themselves."""
    (tmp_path / "test_traced.py").write_text(
        "import sys\n"
        "from pipeconform.judge.exchanged_words import shape_pattern\n"
        "def test_as_a_debugger(): sys.settrace(None)\n"
        "def test_later(): shape_pattern((2, 3))\n"
    )
    program = (
        "from benchmarks.own_mutants import reach\n"
        "seconds, lines = reach._run([reach.sys.argv[1]])\n"
        "found = lines['pipeconform.judge.exchanged_words']\n"
        "print([name.rpartition('::')[2] for name in sorted(set().union(*found.values()))])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "test_traced.py")]
    done = subprocess.run(command, cwd=reach.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['test_later']"
