"""A newcomer's mistakes, in names, claims, files and options: each is answered by one line that leads on."""

import pytest

from pipeconform.commands.init import skeleton
from pipeconform.report.result import write_result
from tests.report.conftest import make

__all__ = ["make"]


@pytest.fixture
def answered(typed, make, tmp_path):
    """Types a command in a folder with an adapter, a result and a table; returns the one line that refuses it."""
    (tmp_path / "my_adapter.py").write_text(skeleton(name="my_adapter.py"), "utf-8")
    (tmp_path / "empty.json").touch()
    (tmp_path / "page.html").write_text("<!DOCTYPE html><title>a report</title>")
    violation = make.violation("TRN-4", "GPipe", id="TRN-4:GPipe:default:58720")
    write_result(make.result(make.cell("TRN-4", "GPipe", violation)), tmp_path / "result.json")

    def line(command):
        code, out, err = typed(*command.split())
        assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
        return err.removeprefix("pipeconform: ").rstrip("\n")

    return line


MISTAKES = {
    # commands and options
    "sho TRN-4": "unknown pipeconform command 'sho'; nearest: show",
    "draw one_f_one_b": "'pipeconform schedule draw' has it",
    "help": "unknown command 'help'; try 'pipeconform --help'",
    "version": "unknown command 'version'; try 'pipeconform --version'",
    "list TRN": "or try 'pipeconform show TRN'",
    "selftest TRN-4": "or try 'pipeconform selftest --requirements TRN-4'",
    "expect udpate": "unknown pipeconform expect command 'udpate'; nearest: update",
    "run --impl torch --profil smoke": "unknown option '--profil' of 'pipeconform run'; nearest: --profile",
    "run --implementation torch": "nearest: --impl, ",
    "run --impl torch --level training": "'pipeconform claims' and 'pipeconform certify' have it",
    "run torch": "or try 'pipeconform run --impl torch --profile smoke'",
    "show": "or try 'pipeconform show TRN-4'",
    # names of the standard
    "show XYZ": "unknown requirement, chapter, level, profile or feature 'XYZ'; 'pipeconform list' prints all",
    "show TRN_4": "nearest: TRN-4",
    "show TRN-4 TRN_5": "unknown requirement, chapter, level, profile or feature 'TRN_5'; nearest: TRN-5",
    "show TRN-4:GPipe:default:5872": "'pipeconform replay TRN-4:GPipe:default:5872 --impl …' executes its case again",
    "show finding": "'finding' needs its number, such as 'pipeconform show finding 1'",
    "show finding 4711": "no cause is known as finding '4711', such as 'pipeconform show finding 1'",
    "show finding E": "docs/findings/README.md lists all, and a file of 'run --known' has its own",
    "show 1F1B": "'pipeconform schedule draw --name one_f_one_b -p 4 -m 8' draws it",
    "run --impl torch --requirements FWD4": "unknown requirement or chapter 'FWD4'; nearest: FWD-4",
    "run --impl torch --profile smoky": "unknown profile 'smoky'; nearest: smoke",
    "certify --impl torch --level trainig": "unknown level 'trainig'; nearest: training",
    # schedules
    "schedule draw one_f_one": "for the table of a family write --name one_f_one_b -p 4 -m 8",
    "schedule draw 1F1B": "--name one_f_one_b needs -p RANKS and -m MICROBATCHES, such as -p 4 -m 8",
    "schedule draw --name 1f2b -p 2 -m 4": "unknown schedule family '1f2b'; nearest: one_f_one_b",
    # implementations
    "run --impl torhc": "cannot read --impl 'torhc' (nearest: torch, ",
    "run --impl my_adapter": "(name the adapter, too: my_adapter.py:MyAdapter)",
    "run --impl my_adapter.py": "(name the adapter, too: my_adapter.py:MyAdapter)",
    "run --impl my_adaptor.py:MyAdapter": "there is no file my_adaptor.py; nearest: my_adapter.py",
    # results and violations
    "report": "or try 'pipeconform report pipeconform-results'",
    "report resalt.json": "cannot read resalt.json: No such file or directory; nearest: result.json",
    "report page.html": "page.html: a page, not JSON; expected a result file, such as the result.json beside it",
    "report empty.json": "empty.json: empty; expected a result file",
    "compare result.json": "or try 'pipeconform compare old/result.json new/result.json'",
    "expect update": "'pipeconform run' writes result files",
    "replay TRN-4 --impl torch --result result.json": "nearest: TRN-4:GPipe:default:58720",
    "replay TRN-4:GPipe:default:5872 --impl torch --result result.json": "nearest: TRN-4:GPipe:default:58720",
    "verify result.json": "'pipeconform certify' writes packages",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_answered_by_one_line_that_leads_on(answered, command):
    assert MISTAKES[command] in answered(command)


CLAIMS = {
    (
        'family="gpipe"',
        'family="1F1B"',
    ): "unknown schedule family '1F1B'; nearest: one_f_one_b (wrong.py, line ",
    ("Feature.OPTIMIZER,", "Feature.OPTIMISER,"): "OPTIMISER; nearest: OPTIMIZER",
    ("Feature.STATE,", '"kwrags",'): "nearest: kwargs",
    ('at="loss"', 'at="losses"'): "nearest: loss",
    ("max_ranks=8", "maximum_ranks=8"): "unexpected keyword argument 'maximum_ranks'; nearest: max_ranks",
    ("    BoundaryClaim,", "    BoundryClaim,"): "nearest: BoundaryClaim",
    ("stages_per_rank=(1,)", "stages_per_rank=1"): "a tuple with one element is written",
    ("class MyAdapter", "class MyEngine"): "it has no 'MyAdapter'; it defines MyEngine, ",
}


@pytest.mark.parametrize("change", CLAIMS, ids=[new.strip() for _, new in CLAIMS])
def test_a_mistake_in_an_adapter_is_answered_by_one_line_that_leads_on(answered, tmp_path, change):
    text = skeleton(name="wrong.py")
    assert change[0] in text
    (tmp_path / "wrong.py").write_text(text.replace(*change), "utf-8")

    assert CLAIMS[change] in answered("claims wrong.py:MyAdapter")
