"""Lines of templates with conditions, and long lines as ruff breaks them."""

import jinja2
import pytest

from pipeconform.export.plain import source
from pipeconform.export.plain.source import docstring, imports_of, rendered, tidy


@pytest.mark.parametrize(("copied", "last"), [(True, "        return x * 1.0"), (False, "        return x")])
def test_a_line_with_a_condition_is_there_only_where_it_holds(copied, last):
    text = rendered("stage", {"arguments": "", "used": [], "boundary": "", "copied": copied})

    assert text.splitlines()[-2:] == ["            x = block(x)", last]
    assert "#:" not in text


def test_a_fact_that_is_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'copied' is undefined"):
        rendered("stage", {"arguments": "", "used": [], "boundary": ""})


def test_only_what_is_used_is_imported():
    text = imports_of("gc.collect()\nScheduleGPipe(nn.Linear(1, 1))", {"schedule": "ScheduleGPipe"})

    assert text.splitlines() == [
        "import gc",
        "",
        "from torch import nn",
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe",
    ]


def test_a_long_call_has_a_line_for_each_argument():
    long = "first_argument_" + "a" * 50, "second[1, 2]", '"a, text (with brackets"', "last=" + "b" * 30
    text = tidy(f"    made = call({', '.join(long)}).after()")

    assert text.splitlines() == ["    made = call(", *(f"        {one}," for one in long), "    ).after()"]


def test_a_long_comprehension_is_broken_before_its_loop():
    value, loop = f"call({'a' * 60}, {'b' * 30})", "for s, stage in stages.items()"
    text = tidy(f"    own = [{value} {loop}]")

    assert text.splitlines() == ["    own = [", f"        {value}", f"        {loop}", "    ]"]
    assert tidy(f"    own = [call(a) {loop}]") == f"    own = [call(a) {loop}]"


def test_what_cannot_be_broken_stays_as_it_is():
    line = f'    """{"word " * 30}"""'

    assert tidy(line) == line
    assert max(map(len, line.splitlines())) > source.WIDTH


def test_a_text_with_quotes_is_a_docstring():
    found = {}
    exec(docstring('a \\ and """quotes"""'), found)

    assert found["__doc__"] == "a \\ and '''quotes'''\n"
