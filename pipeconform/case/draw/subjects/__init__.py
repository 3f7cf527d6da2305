"""What cases can be about: one file for every subject, or for a few that differ in one point.

A new subject is a name in `pipeconform.case.focus.Focus` and a file here that holds its `Subject` at the top level:
who claims it, how it is found in a case, what it changes, the sizes that it needs, and its control. The registry
collects the files, and `tests/case/draw/test_subjects.py` tests every one of them.
"""
