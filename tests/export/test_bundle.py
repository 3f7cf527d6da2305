"""An archive carries all of our modules, and judging imports nothing that a reader need not have."""

import subprocess
import sys

from pipeconform.campaign.preload import PRELOAD
from pipeconform.export.bundle import sources


def test_modules_and_tables_are_carried_wherever_their_packages_lie():
    found = sources()

    for name in (
        "__init__.py",
        "judge/training.py",
        "spec/levels.toml",
        "suites/training/gradients.py",
        "reference_impl/faults/scale.py",
        *(
            f"{name.partition('.')[2].replace('.', '/')}.py"
            for name in PRELOAD
            if name.startswith("pipeconform.")
        ),
    ):
        assert f"pipeconform/{name}" in found
    assert not any("__pycache__" in name or name.endswith(".html") for name in found)


def test_judging_one_case_imports_nothing_that_a_reader_of_a_program_need_not_have():
    modules = (
        "pipeconform.export.program",
        "pipeconform.export.question",
        "pipeconform.campaign.here",
        "pipeconform.campaign.again",
        "pipeconform.campaign.describing",
    )
    code = f"import sys, {', '.join(modules)}; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert {"hypothesis", "click", "rich", "jinja2", "pytest", "cloudpickle"}.isdisjoint(done.stdout.split())
