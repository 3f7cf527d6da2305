"""Stacks show the task and not the harness around it."""

from pipeconform.ranks.stacks import without_harness

DUMP = """Thread 0x01 (most recent call first):
  File "/lib/threading.py", line 1 in wait

Current thread 0x02 (most recent call first):
  File "/impl/stage.py", line 7 in forward
  File "/x/pipeconform/ranks/rank.py", line 86 in _run
  File "/x/pipeconform/ranks/rank.py", line 75 in _serve
  File "<string>", line 1 in <module>
"""


def test_our_frames_are_cut_off():
    assert (
        without_harness(DUMP)
        == """Thread 0x01 (most recent call first):
  File "/lib/threading.py", line 1 in wait

Current thread 0x02 (most recent call first):
  File "/impl/stage.py", line 7 in forward"""
    )


def test_an_empty_dump_stays_empty():
    assert without_harness("") == ""
