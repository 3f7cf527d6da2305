"""The documentation's commands are run as they stand, and the site builds without a warning."""

import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeconform.commands.init import skeleton
from pipeconform.gate.expectations import read_expectations
from tests.docs.pages import blocks, shell
from tests.report.html.chromium import IN_CHROMIUM, LOOKS

WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")


@pytest.fixture(scope="module")
def docs(pytestconfig):
    return pytestconfig.rootpath / "docs"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the tutorial makes a key with openssl")
@pytest.mark.slow
def test_the_tutorial_certifies_a_pipeline(docs, tmp_path):
    """Every command of the page, in order; and a wrong implementation is told from the certified one."""
    pytest.importorskip("cryptography")
    outputs = {}
    for block in blocks(docs / "certify.md"):
        if block.title:
            (tmp_path / block.title).write_text(block.text, "utf-8")
        if block.language != "console":
            continue
        for line in block.text.splitlines():
            assert line.startswith("$ ")
            command = line.removeprefix("$ ")
            done = shell(command, tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            outputs[command] = done.stdout

    certify = next(text for command, text in outputs.items() if " certify " in command)
    shown = next(block.text for block in blocks(docs / "certify.md") if "GRANTED: 'my" in block.text)
    assert certify.splitlines()[-2:] == shown.splitlines()
    again = next(text for command, text in outputs.items() if "--rerun" in command)
    assert "executed again: 5 judgements" in again

    source = (tmp_path / "mine.py").read_text()
    fault = source.replace("import ReferenceAdapter", "import ReferenceAdapter as _").replace(
        "from pipeconform.reference_impl.adapter import ReferenceAdapter as _",
        "from pipeconform.reference_impl.faults.wire import RoundedToBfloat16 as ReferenceAdapter",
    )
    (tmp_path / "wrong.py").write_text(fault)
    other = shell("pipeconform verify mine.pipeconform.zip --rerun 40 --impl wrong.py:MyAdapter", tmp_path)
    assert other.returncode == 1
    assert "doubt: result.json: implementation.source_digest: " in other.stdout
    assert "passed, now shows failed: " in other.stdout


@pytest.fixture
def project(tmp_path):
    """A repository with an adapter that is right, one that is not, and a baseline of the right one."""
    (tmp_path / "adapter.py").write_text(skeleton(name="adapter.py"), "utf-8")
    return tmp_path


def lines_of(block):
    """The commands of a pipeline's steps: what stands behind ``run:`` or in a list of scripts."""
    for line in block.text.splitlines():
        command = line.strip().removeprefix("- ").removeprefix("run: ")
        if command.startswith("pipeconform "):
            yield command


@pytest.mark.slow
def test_the_gates_of_github_and_gitlab_pass_what_is_known_and_stop_what_is_new(docs, project):
    snippets = {block.title: block for block in blocks(docs / "gating.md") if block.title}
    judge, gate = lines_of(snippets[".github/workflows/pipeline.yml"])
    (strict,) = lines_of(snippets[".gitlab-ci.yml"])

    assert shell(judge, project).returncode == 0
    (project / "baseline").mkdir()
    shutil.copy(project / "results/result.json", project / "baseline/result.json")
    assert shell(gate, project).returncode == 0

    broken = (project / "adapter.py").read_text().replace(*WRONG)
    (project / "adapter.py").write_text(broken)
    assert shell(judge, project).returncode == 0
    stopped = shell(gate, project)
    assert stopped.returncode == 1
    assert re.search(
        r"^::error file=adapter.py,line=\d+,title=TRN-\d.*::regressed: TRN-", stopped.stdout, re.MULTILINE
    )

    fill = "--reason known --issue https://example.org/7 --owner us --expires 2031-01-01"
    assert shell(f"pipeconform expect update --write results {fill}", project).returncode == 0
    assert shell(strict, project).returncode == 0
    (project / "adapter.py").write_text(skeleton(name="adapter.py"), "utf-8")
    outlived = shell(strict, project)
    assert outlived.returncode == 1
    assert "unexpected pass" in outlived.stdout


def test_the_expectations_shown_are_read_as_they_stand(docs, tmp_path):
    (text,) = [block.text for block in blocks(docs / "gating.md") if block.language == "toml"]
    (tmp_path / "known.toml").write_text(text)

    assert tomllib.loads(text)["format"] == 1
    (entry,) = read_expectations(tmp_path / "known.toml").entries
    assert (entry.requirement, entry.p) == ("TRN-4", (2, 4))


@pytest.mark.slow
def test_the_slurm_scripts_certify_in_shards(docs, tmp_path):
    snippets = {block.title: block for block in blocks(docs / "gating.md") if block.title}
    for name in ("certify.sbatch", "merge.sh"):
        (tmp_path / name).write_text(snippets[name].text)
    (source,) = [block.text for block in blocks(docs / "certify.md") if block.title == "mine.py"]
    (tmp_path / "adapter.py").write_text(source)
    for task in ("1", "2"):
        done = shell("bash certify.sbatch", tmp_path, SLURM_ARRAY_TASK_ID=task)
        assert done.returncode == 0, done.stdout + done.stderr

    merged = shell("bash merge.sh", tmp_path)
    assert merged.returncode == 0, merged.stdout + merged.stderr
    assert "VERIFIED (merged here, unsigned): my pipeline" in merged.stdout


@pytest.fixture(scope="module")
def site(docs, tmp_path_factory):
    """The site, built as strictly as ``make docs`` builds it."""
    for needed in ("material", "mkdocstrings"):
        pytest.importorskip(needed, reason="needs the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        check=False,
        cwd=docs.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_builds_without_a_warning_and_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(https?:[^\"]+)", page.read_text("utf-8")
        )
        assert (page.name, fetched) == (page.name, [])
    assert (site / "standard.html").exists()
    assert not list(site.rglob("release.py"))


@pytest.mark.slow
@pytest.mark.xdist_group("site")
@pytest.mark.parametrize(
    ("page", "module", "names"),
    [
        ("adapter", "pipeconform.adapter", None),
        ("wrapper", "pipeconform.wrapper", None),
        ("schedule", "pipeconform.schedule", None),
        (
            "python",
            "pipeconform",
            {"certify", "compare", "judge_implementation", "merge", "verify", "Result"},
        ),
    ],
)
def test_every_public_name_and_field_has_its_place_on_the_site(site, page, module, names):
    text = (site / f"reference/{page}.html").read_text("utf-8")
    public = importlib.import_module(module)

    for name in names or public.__all__:
        assert f'id="{module}.{name}"' in text
        found = getattr(public, name)
        for field in dataclasses.fields(found) if dataclasses.is_dataclass(found) else ():
            assert field.name.startswith("_") or f'id="{module}.{name}.{field.name}"' in text


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_search_works_in_pages_that_are_opened_as_files(site, tmp_path):
    chromium = shutil.which("chromium") or pytest.skip("needs Chromium on the path")
    quiet = ("first-run", "default-browser-check", "sandbox")
    disabled = ("gpu", "background-networking", "component-update", "sync")
    done = subprocess.run(
        [
            *(
                chromium,
                "--headless",
                "--virtual-time-budget=20000",
                f"--user-data-dir={tmp_path}",
                "--dump-dom",
            ),
            *(f"--no-{one}" for one in quiet),
            *(f"--disable-{one}" for one in disabled),
            f"{(site / 'index.html').as_uri()}?q=bubble",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert re.search(r">\s*[1-9]\d* matching documents", done.stdout)
    assert "learn/schedules.html" in done.stdout


@pytest.mark.xdist_group("site")
@pytest.mark.parametrize("look", [pytest.param(*one.values, id=one.id, marks=IN_CHROMIUM) for one in LOOKS])
def test_the_site_has_sections_and_a_dark_mode_that_follows_the_system(site, browser, look):
    page = browser.new_page(**look)
    page.goto((site / "learn/schedules.html").as_uri())
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    width = page.evaluate("document.documentElement.scrollWidth")
    sections = page.locator(".md-nav--primary > .md-nav__list > .md-nav__item")
    titles = [
        " ".join(one.locator(":scope > :is(a, label, div) .md-ellipsis").first.text_content().split())
        for one in sections.all()
    ]
    page.close()
    brightness = sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3

    assert titles == ["Home", "Learn", "Use", "Reference", "Findings", "Project"]
    assert width <= look["viewport"]["width"]
    assert brightness < 80 if look["color_scheme"] == "dark" else brightness > 220


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_a_version_of_the_site_is_kept_beside_earlier_ones(docs, tmp_path):
    """In a repository of its own, as ``make docs-version`` does it."""
    pytest.importorskip("mike", reason="needs the extra 'docs'")
    root = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", docs.parent.as_uri(), root], check=True)
    name = {"GIT_AUTHOR_NAME": "n", "GIT_COMMITTER_NAME": "n"}
    mail = {"GIT_AUTHOR_EMAIL": "n@example.org", "GIT_COMMITTER_EMAIL": "n@example.org"}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    if shutil.which("mkdocs", path=path) is None:
        pytest.skip("mike runs mkdocs, which is not on the path")
    told = {"DOCS_VERSIONS_BY": "mike", "NO_MKDOCS_2_WARNING": "1", "PATH": path}
    for command in (
        "deploy --update-aliases 0.1.0 latest",
        "deploy --update-aliases 0.2.0 latest",
        "set-default latest",
    ):
        subprocess.run(
            [sys.executable, "-c", "from mike.driver import main; main()", *command.split()],
            cwd=root,
            check=True,
            capture_output=True,
            env={**os.environ, **name, **mail, **told},
        )
    kept = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "gh-pages"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    assert {"versions.json", "index.html", "0.1.0/learn/schedules.html", "0.2.0/learn/schedules.html"} <= set(
        kept
    )


@pytest.mark.slow
def test_the_gate_in_python_stops_a_regression(docs, project):
    (code,) = [block.text for block in blocks(docs / "python-api.md") if block.language == "python"]
    (project / "gate.py").write_text(code)
    (project / "mine.py").write_text(skeleton(name="mine.py"))
    judge = "pipeconform run --impl mine.py:MyAdapter --profile smoke --out first"
    assert shell(judge, project).returncode == 0
    shutil.copy(project / "first/result.json", project / "baseline.json")
    assert shell("python gate.py", project).returncode == 0

    (project / "mine.py").write_text(skeleton(name="mine.py").replace(*WRONG))
    stopped = shell("python gate.py", project)
    assert stopped.returncode == 1
    assert stopped.stdout.startswith("### pipeconform: blocked: ")


def test_the_page_on_installing_names_every_extra(docs):
    text = (docs / "install.md").read_text("utf-8").partition("## Extras")[2].partition("\n## ")[0]
    shown = [
        name
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    project = tomllib.loads((docs.parent / "pyproject.toml").read_text("utf-8"))["project"]

    assert sorted(shown) == sorted(project["optional-dependencies"])


def test_a_python_that_was_not_tried_has_no_classifier(docs):
    project = tomllib.loads((docs.parent / "pyproject.toml").read_text("utf-8"))["project"]
    tried = re.findall(r"^\| (3\.\d+) \| everything", (docs / "install.md").read_text("utf-8"), re.MULTILINE)
    named = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]

    assert named == tried
