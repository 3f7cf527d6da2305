from pathlib import Path

import pytest

from pipeconform.campaign.told import Told, Weight
from pipeconform.report.result import Environment, Implementation
from pipeconform.session.share import Refusal, Share, Started

TOLD = Told(
    environment=Environment(
        python="3.11", torch="2.13.0", os="Linux", machine="x86_64", cpus=2, device="cpu", backend="gloo"
    ),
    implementation=Implementation(reference="reference", name="pipeconform reference", version="0.1.0"),
    schedules=("GPipe",),
    executed={},
    num_ranks={},
    reached=(),
    reachable=(("GPipe", "2", "1", "m = p", "views"),),
)


@pytest.fixture
def share():
    made = Share.made(out=None)
    yield made
    made.remove()


@pytest.mark.parametrize(
    "said", [Started(TOLD, {"GPipe": Weight(4, 70)}), Refusal("no such schedule", is_usage=True)]
)
def test_what_a_worker_says_is_what_the_controller_hears(share, said):
    share.say("gw0", said)

    assert share.said("gw0") == said
    assert share.said("gw1") is None


def test_workers_that_have_ended_are_counted_once(share):
    for worker in ("gw0", "gw1", "gw0"):
        share.end(worker)

    assert share.num_ended() == 2


def test_the_result_of_the_run_before_is_kept_where_this_run_does_not_write(tmp_path):
    (tmp_path / "result.json").write_text("before")
    share = Share.made(out=tmp_path)
    (tmp_path / "result.json").write_text("now")

    assert share.earlier.read_text() == "before"
    share.remove()
    assert not share.folder.exists()


def test_a_folder_of_no_earlier_run_has_no_earlier_result():
    share = Share.made(out=Path("nowhere"))

    assert not share.earlier.exists()
    share.remove()


def test_a_worker_gets_the_number_of_the_one_that_it_replaces(share):
    first, second = share.part(workers=2), share.part(workers=2)
    assert (first.indices, second.indices) == ((0,), (1,))

    first.release()  # as the kernel does when a process ends
    assert share.part(workers=2).indices == (0,)
