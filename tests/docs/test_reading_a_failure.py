"""What docs/reading-a-failure.md shows is what its commands print."""

import re

import pytest

from tests.docs.pages import blocks, shell

pytestmark = pytest.mark.slow

# Values, digests and counts may change with the strategies; the places and words that are explained may not.
_VALUES = re.compile(r"(expected|actual|distance|smallest case|seed|shown by)(\s.*)?$", re.MULTILINE)


def steady(text):
    """The lines of a text, without what may change."""
    return [" ".join(line.split()) for line in _VALUES.sub(r"\1", text).splitlines() if line.strip()]


@pytest.fixture(scope="module")
def page(pytestconfig):
    return blocks(pytestconfig.rootpath / "docs/reading-a-failure.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reading")


@pytest.fixture(scope="module")
def done(page, folder):
    """Every command, in order, in one folder: exit code and what was printed."""
    found = []
    for block in page:
        if block.language == "console":
            for line in block.text.splitlines():
                ended = shell(line.removeprefix("$ "), folder)
                found.append((ended.returncode, ended.stdout, ended.stderr))
    return found


def test_every_block_is_part_of_what_the_run_prints(page, done):
    code, out, err = done[0]
    *shown, scaled, hang = [steady(block.text) for block in page if block.language == "text"]

    assert (code, err, len(shown)) == (1, "", 2)
    assert [line for lines in shown for line in lines if line not in steady(out)] == []
    assert [line for line in scaled if line not in ["…", *steady(done[3][1])]] == []
    assert "waits for receive" in hang[0]  # of another implementation


def test_the_other_commands_end_as_the_text_says(done):
    _, init, edit, scaled, report, again, mended = done

    assert [ended[0] for ended in (init, edit, scaled)] == [0, 0, 1]
    assert report == (0, "report: page.html\n", "")
    assert (again[0], "REPRODUCED:" in again[1]) == (1, True)
    assert (mended[0], "FIXED: SCH-2 met" in mended[1]) == (0, True)


@pytest.mark.usefixtures("done")
def test_the_page_says_where(folder):
    text = (folder / "page.html").read_text("utf-8")
    article = text.partition('<article id="v-SCH-2-1F1B-default-52f4"')[2].partition("</article>")[0]

    assert re.findall(r'class="place">([^<]*)<', article) == [
        "step 0 (train)",
        "rank 1",
        "stage 1",
        "microbatch 0",
    ]
    assert "✗ first wrong" in article
    assert "What 1F1B asks for" in article
