"""Where an exception came from: from the first call outside the harness to the line that raised."""

import json

from pipeconform.ranks.frames import Frame, chain_lines, frames_of


def caught(function):
    try:
        function()
    except Exception as error:
        return error


def frame(module, function="f", line=1, source="x = 1"):
    return Frame(
        module=module, file=f"/here/site-packages/{module}.py", line=line, function=function, source=source
    )


def test_the_chain_ends_at_the_line_that_raised_with_its_source():
    *_, last = frames_of(caught(lambda: json.loads("{nonsense")))

    assert (last.module, last.function) == ("json.decoder", "raw_decode")
    assert last.source.startswith("obj, end = self.scan_once")


def test_the_chain_of_a_cause_leads_through_where_it_was_caught():
    def reads():
        return json.loads("{nonsense")

    def engine():
        try:
            reads()
        except ValueError as error:
            raise RuntimeError("no") from error

    error = caught(engine)
    names = [one.function for one in frames_of(error, error.__cause__)]

    assert names[:4] == ["caught", "engine", "reads", "loads"]


def test_what_the_harness_does_before_is_left_out_and_in_between_folded():
    chain = (
        frame("mine"),
        frame("pipeconform.case.modules"),
        frame("pipeconform.case.layers"),
        frame("torch.nn"),
    )

    assert chain_lines(chain) == [
        "mine.py, line 1, in f",
        "  x = 1",
        "… 2 frames of pipeconform",
        "torch.nn.py, line 1, in f",
        "  x = 1",
    ]


def test_a_long_chain_keeps_both_ends():
    lines = chain_lines([frame("deep", f"f{i}", source="") for i in range(40)])

    assert len(lines) == 13
    assert lines[0].endswith("in f0")
    assert lines[4] == "… 28 frames left out"
    assert lines[-1].endswith("in f39")
