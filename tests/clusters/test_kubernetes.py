"""The manifests of the documentation, against the schemas of Kubernetes; nothing is run."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.docs.pages import blocks

validator = pytest.importorskip(
    "kubernetes_validate", reason="the package kubernetes-validate is not installed"
)
yaml = pytest.importorskip("yaml", reason="the package PyYAML is not installed")

VERSION = "1.37"
PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"


def documents(title):
    """The manifests in the block of the page with this title, by kind and name."""
    (text,) = [block.text for block in blocks(PAGE) if block.title == title]
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def jobs_of_the_set():
    """The jobs that a JobSet makes; its own schema belongs to none of Kubernetes' releases."""
    ((kind, _), made), *others = documents("jobset.yaml").items()
    assert (kind, others) == ("JobSet", [])
    return {
        one["name"]: {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{made['metadata']['name']}-{one['name']}"},
            **one["template"],
        }
        for one in made["spec"]["replicatedJobs"]
    }


def valid(manifest):
    """Raise unless every field is one that the schema has, with a value of its type."""
    validator.validate(manifest, VERSION, strict=True)
    return True


def test_the_manifests_are_valid():
    found = documents("pipeconform.yaml")

    assert list(found) == [("Service", "pipeconform"), ("Job", "pipeconform"), ("Job", "pipeconform-agents")]
    assert all(map(valid, found.values()))


def test_the_jobs_of_the_set_are_valid_and_the_same_but_for_names():
    made = jobs_of_the_set()
    assert all(map(valid, made.values()))

    for role, name in (("controller", "pipeconform"), ("agents", "pipeconform-agents")):
        alone = documents("pipeconform.yaml")["Job", name]["spec"]
        assert containers(made[role]["spec"]) == containers(alone)
        assert {key: value for key, value in made[role]["spec"].items() if key != "template"} == {
            key: value for key, value in alone.items() if key != "template"
        }


def containers(job):
    """The containers of a job, without the controller's name, which its pod decides."""
    text = yaml.safe_dump(job["template"]["spec"]["containers"])
    return text.replace("pipeconform-controller-0-0.", "").replace("controller.pipeconform:", "pipeconform:")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "completion"), 4),  # a field that is none
        (("spec", "completions"), "four"),
        (("spec", "template", "spec", "containers", 0, "commands"), []),
    ],
)
def test_a_mistake_would_be_noticed(path, value):
    manifest = copy.deepcopy(documents("pipeconform.yaml")["Job", "pipeconform-agents"])
    place = manifest
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    with pytest.raises(validator.ValidationError):
        valid(manifest)


def test_names_that_belong_together_are_the_same():
    found = documents("pipeconform.yaml")
    service, run = found["Service", "pipeconform"], found["Job", "pipeconform"]["spec"]["template"]
    agent = found["Job", "pipeconform-agents"]["spec"]["template"]["spec"]
    labels, pod = run["metadata"]["labels"], run["spec"]
    (port,) = service["spec"]["ports"]

    assert service["spec"]["selector"].items() <= labels.items()
    assert pod["subdomain"] == service["metadata"]["name"]
    where = f"--controller={pod['hostname']}.{pod['subdomain']}:{port['port']}"
    assert where in agent["containers"][0]["command"]
    assert f"--attach=$(ADDRESS):{port['port']}" in pod["containers"][0]["command"]
