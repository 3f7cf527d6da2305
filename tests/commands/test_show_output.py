"""``--show-output``: what ranks print is shown on standard error, by ``run`` and ``replay``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, encode_case
from pipeconform.cli import main
from tests import tenths

LOUD = f"{Path(__file__).with_name('loud_engine.py')}:Adapter"
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=2, num_microbatches=2),),
)
SAID = ["[rank0]: a step of 2", "[rank0]: a warning", "[rank1]: a step of 2", "[rank1]: a warning"]
RUN = (
    "run",
    "--impl",
    LOUD,
    "--requirements",
    "FWD-1",
    "--schedules",
    "GPipe",
    "--ranks",
    "2",
    "--examples",
    "1",
)


def _said(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("[rank"))


def test_replay_shows_what_ranks_print_apart_from_the_verdict(typed) -> None:
    Path("case.json").write_bytes(encode_case(CASE))
    asked = ("replay", "case.json", "--impl", LOUD, "--requirement", "FWD-1")

    code, out, err = typed(*asked, "--show-output")

    assert code == 0
    assert _said(err)[:1] == SAID[:1]
    assert set(_said(err)) == set(SAID)
    assert _said(out) == []
    assert _said(typed(*asked)[2]) == []


def test_json_stays_alone_on_standard_output(typed) -> None:
    code, out, err = typed(*RUN, "--json", "--show-output")

    assert code == 0
    assert json.loads(out)["implementation"]["name"] == "loud"
    assert any(line.startswith("[rank1]: a step of ") for line in _said(err))


@tenths.long
def test_workers_show_what_their_ranks_print(capfd, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*RUN, "-n", "1", "--show-output"])

    assert any(line.startswith("[rank1]: a step of ") for line in _said(capfd.readouterr().err))


def test_a_program_that_is_only_written_prints_nothing(typed) -> None:
    Path("case.json").write_bytes(encode_case(CASE))

    code, _, err = typed("replay", "case.json", "--impl", LOUD, "--script", "shown.py", "--show-output")

    assert code == 2
    assert "there is no output for --show-output" in err
