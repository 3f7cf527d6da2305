"""Causes: what is behind the violations of a result.

One mistake of an implementation may violate many requirements, under many schedules. `causes_of` groups the violations
of a result by what is behind them; reports, comparisons and exit codes count causes.
"""

from pipeconform.report.causes.cause import Cause, Member
from pipeconform.report.causes.grouping import causes_of, grouped
from pipeconform.report.causes.harm import Harm, harm_of
from pipeconform.report.causes.known import Known, read_known, shipped

__all__ = ["Cause", "Harm", "Known", "Member", "causes_of", "grouped", "harm_of", "read_known", "shipped"]
