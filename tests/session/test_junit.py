"""junit.xml lists the causes of a run, whatever pytest is asked to write."""

import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from _pytest.junitxml import LogXML, xml_key

from pipeconform.report.result import Control
from pipeconform.session.junit import record_causes
from tests.report.conftest import make

__all__ = ["make"]


@pytest.fixture
def written(tmp_path):
    """The properties of the file that pytest writes for a result."""

    def properties(result):
        xml = LogXML(str(tmp_path / "junit.xml"), None)
        xml.pytest_sessionstart()
        record_causes(SimpleNamespace(stash={xml_key: xml}), result)
        xml.pytest_sessionfinish()
        found = ET.parse(tmp_path / "junit.xml").getroot().iter("property")
        return [(one.get("name"), one.get("value")) for one in found]

    return properties


def test_causes_and_what_they_block_are_properties_of_the_suite(make, written):
    control = Control(digest="d", requirement="FWD-1", status="failed", signature="output value")
    result = make.result(
        make.cell(
            "LIF-3", "GPipe", make.violation("LIF-3", "GPipe", signature="outputs\x00 kept", expected="e:1")
        ),
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("DPC-6", "GPipe", make.violation("DPC-6", "GPipe", control=control), status="blocked"),
    )

    assert written(result) == [
        ("cause", "silently wrong: FWD-1 Outputs: output value under GPipe"),
        ("expected cause", r"leaks and costs: LIF-3 What stays behind: outputs\x00 kept under GPipe"),
        ("blocked", "DPC-6 under GPipe (by FWD-1)"),
    ]


def test_a_run_without_such_a_file_records_nothing(make):
    record_causes(SimpleNamespace(stash={}), make.result(make.cell("FWD-1", "GPipe")))
