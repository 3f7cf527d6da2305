"""What workers say they are doing."""

from pipeconform.report import bulletins
from pipeconform.report.bulletins import Bulletins
from pipeconform.report.progress import Progress

DOING = Progress(requirement="FWD-1", schedule="GPipe", doing="judging", judged=3, violations=0)


def test_what_one_posts_others_read(tmp_path):
    Bulletins(tmp_path).post("gw1", DOING)
    Bulletins(tmp_path).post("gw0", DOING)

    assert list(Bulletins(tmp_path).read()) == ["gw0", "gw1"]
    assert Bulletins(tmp_path).read()["gw1"] == DOING


def test_it_is_not_posted_more_often_than_anybody_looks(tmp_path, monkeypatch):
    monkeypatch.setattr(bulletins, "_EVERY", 3600.0)
    mine = Bulletins(tmp_path)
    mine.post("gw0", DOING)
    (tmp_path / "gw0.doing").unlink()
    mine.post("gw0", DOING)

    assert mine.read() == {}


def test_what_cannot_be_written_or_read_costs_the_view_only(tmp_path):
    Bulletins(tmp_path / "gone").post("gw0", DOING)
    (tmp_path / "gw0.doing").write_bytes(b"{")

    assert Bulletins(tmp_path).read() == {}
    Bulletins(tmp_path / "gone").remove("gw0")
