"""Every violation of torch: its plain program ends as `replay` does; the programs are as short as they should be.

It takes a run of a profile and a replay of every violation: minutes. ``PIPECONFORM_PROGRAMS`` names a folder with a
result that is there already, of any profile, so that the run can be left out.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from pipeconform.campaign.again import judge_again, verdict
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.case.any_case import world_sizes
from pipeconform.commands.stored import Stored
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.script import plain_program
from pipeconform.export.question import Question
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import read_result
from tests.export.plain.conftest import DETAIL

AT_THE_MEDIAN, NINE_TENTHS = 150, 250
CHANCES = 20
PLAIN = 0.8
"""The share of violations that plain programs show, at least."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    given = os.environ.get("PIPECONFORM_PROGRAMS")
    folder = Path(given) if given else tmp_path_factory.mktemp("torch")
    if not given:
        command = [sys.executable, "-m", "pipeconform", "run", "--impl", "torch", "--profile", "smoke"]
        subprocess.run([*command, "--out", str(folder)], check=False, capture_output=True)
    return [
        Stored(name=one.id, case=one.case, requirement=cell.requirement, variant=cell.variant, violation=one)
        for cell in read_result(folder / RESULT_NAME).cells
        for one in cell.violations
    ]


def program_of(one):
    question = Question(
        engine="torch.distributed.pipelining",
        case=one.case,
        requirements=(one.requirement,),
        sought=one.sought,
        variant=one.variant,
        settings=DETAIL if one.variant == "validated" else {},
    )
    try:
        return plain_program(question, found=one.words)
    except NotPlainError:
        return None


def replayed(one, campaign):
    """The kind of verdict of `pipeconform replay`; what chance decides has several chances, as in its program."""
    chosen = campaign.judged_by(one.case, name=one.name, asked=None, stored=one.requirement)
    for _ in range(CHANCES):
        outcomes = judge_again(one.case, chosen, campaign.runner(one.variant), hung=one.hung)
        kind = verdict(outcomes, one.sought).kind
        if kind != "met":
            break
    return kind


@pytest.mark.slow
def test_programs_end_as_replay_does(stored, programs, tmp_path):
    texts = [(one, text) for one in stored if (text := program_of(one)) is not None]
    most, wrong = max(max(world_sizes(one.case)) for one, _ in texts), []
    with campaign_of(Options(implementation="torch", ranks=(1, most))) as campaign:
        for one, text in texts:
            (tmp_path / "shown.py").write_text(text)
            code, output = programs.run(tmp_path / "shown.py")
            kind = replayed(one, campaign)
            print(one.name, kind, code, flush=True)
            if code != {"reproduced": 1, "met": 0, "another": 3}[kind]:
                wrong.append(f"{one.name}: replay {kind}, program {code}\n{output[-500:]}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_programs_are_short(stored):
    texts = [program_of(one) for one in stored]
    lengths = sorted(len(text.splitlines()) for text in texts if text is not None)

    assert statistics.median(lengths) <= AT_THE_MEDIAN
    assert lengths[int(0.9 * len(lengths))] <= NINE_TENTHS
    assert len(lengths) >= PLAIN * len(texts)
