"""The subjects of cases: one file for each, or for a few that differ in one point.

To add a subject, add a name to `pipeconform.case.focus.Focus` and a file here with a `Subject` at the top level: which
claims it needs, how it is found in a case, what it changes, the sizes that it needs, and its control. The registry
collects the files, and `tests/case/draw/test_subjects.py` tests every subject.
"""
