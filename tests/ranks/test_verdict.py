"""Verdicts name the root cause and print as one aligned line per rank."""

import msgspec
import pytest

from pipeconform.ranks import Died, Raised, Returned, Stuck, Verdict, VerdictVector
from pipeconform.ranks.rank import raised_from
from pipeconform.ranks.verdict import Cause, one_of

STACK = """Thread 0x1 (most recent call first):
  File "/a/other.py", line 1 in loop

Current thread 0x2 (most recent call first):
  File "/b/c10d.py", line 12 in recv
  File "/b/stage.py", line 3 in forward"""


def test_a_vector_is_ok_only_if_every_rank_returned():
    assert VerdictVector((Returned(1), Returned(2))).ok
    assert not VerdictVector((Returned(1), Died(exit_code=0))).ok
    assert not VerdictVector(()).ok


def test_values_are_there_only_if_every_rank_returned():
    assert VerdictVector((Returned(1), Returned(2))).values == (1, 2)
    with pytest.raises(ValueError, match="rank 1  died      exit code 0"):
        _ = VerdictVector((Returned(1), Died(exit_code=0))).values


def test_nobody_failed_first_when_all_returned():
    assert VerdictVector((Returned(1),)).first_failure is None


def test_the_earliest_to_raise_or_die_failed_first():
    vector = VerdictVector(
        (Stuck(0.1, why="idle"), Raised("ValueError", "b", after=0.3), Died(signal="SIGKILL", after=0.2))
    )
    assert vector.first_failure == 2


def test_a_lost_connection_is_an_echo_of_the_failure_and_not_its_cause():
    echo = Raised("RuntimeError", "gloo: Connection closed by peer [127.0.0.1]:1", after=0.1)
    wrapped = Raised("PipeError", "x", causes=(Cause("RuntimeError", "Connection reset by peer"),), after=0.1)
    assert VerdictVector((echo, Died(signal="SIGKILL", after=0.2))).first_failure == 1
    assert VerdictVector((wrapped, Raised("ValueError", "b", after=0.2))).first_failure == 1
    assert VerdictVector((Returned(0), echo)).first_failure == 1


def test_a_rank_that_gave_up_waiting_is_not_the_one_that_it_waited_for():
    late = Raised("RuntimeError", "gloo: Timed out waiting 1000ms for recv operation to complete", after=0.1)
    guilty = Raised("ValueError", "b", after=0.2)

    assert VerdictVector((late, guilty)).first_failure == 1
    assert VerdictVector((late, Returned(0))).first_failure == 0


def passed_on(message, *, after=0.1):
    return Raised("PeerError", message, after=after)


@pytest.mark.parametrize(
    ("message", "first"),
    [
        ("rank 1, stage 1, forward: KeyError: no such key", 1),
        ("Rank 1 failed: no such key", 1),
        ("rank 0, stage 1, forward: KeyError: no such key", 0),  # names itself
        ("rank 10 failed: no such key", 0),
        ("rank 1 failed", 0),  # says another thing
        ("rank 2 failed: no such key", 0),  # rank 2 returned
    ],
)
def test_a_rank_that_passes_on_what_another_raised_gives_way_to_it(message, first):
    origin = Raised("StageError", "forward failed", causes=(Cause("KeyError", "no such key"),), after=0.2)

    assert VerdictVector((passed_on(message), origin, Returned(0))).first_failure == first


def test_an_exception_without_a_message_is_passed_on_by_no_other():
    assert VerdictVector((passed_on("rank 1 failed: "), Raised("E", "", after=0.2))).first_failure == 0


def test_stuck_ranks_are_the_root_only_if_nobody_raised_or_died():
    assert VerdictVector((Returned(0), Stuck(1.0, why="idle"))).first_failure == 1


def test_a_vector_prints_one_aligned_line_per_rank():
    vector = VerdictVector(
        (
            Returned(b"x"),
            Raised("ValueError", "two\nlines", after=0.1),
            Died(signal="SIGSEGV", output="first\nlast words\n", after=0.2),
            Stuck(0.5, why="waited 0.20 s after rank 1 raised", stack=STACK),
            Raised("StopIteration", "", after=0.3),
        )
    )
    assert (
        vector.describe()
        == """\
rank 0  returned
rank 1  raised    ValueError: two lines  <- first failure
rank 2  died      SIGSEGV; last output: last words
rank 3  stuck     waited 0.20 s after rank 1 raised; in c10d.py:12 recv
rank 4  raised    StopIteration"""
    )


CRASH = """\
{printed}Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  File "/x/other.py", line 3 in wait

Current thread 0x2 (most recent call first):
  File "/x/model.py", line 12 in forward
  File "/x/run.py", line 9 in main

Extension modules: numpy, torch._C (total: 2)
"""


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("", "SIGABRT in model.py:12 forward"),
        ("step 1\nwhat(): 8 vs 4\n", "SIGABRT in model.py:12 forward; last output: what(): 8 vs 4"),
    ],
)
def test_a_crash_tells_the_frame_and_what_was_printed_before_the_dump(printed, told):
    vector = VerdictVector((Died(signal="SIGABRT", output=CRASH.format(printed=printed)),))

    assert vector.describe() == f"rank 0  died      {told}  <- first failure"


def test_nobody_is_marked_where_all_returned_or_wait_for_others():
    assert VerdictVector((Returned(1), Returned(2))).describe() == "rank 0  returned\nrank 1  returned"
    waits = Stuck(1.0, why="idle", waits="barrier", waits_for=(1,))
    alone = Stuck(1.0, why="idle")

    assert "first failure" not in VerdictVector((waits, Returned(1))).describe()
    assert VerdictVector((waits, alone)).describe().splitlines()[1].endswith("idle  <- first failure")


def test_what_hosts_are_lost_is_told_once_each():
    lost = [Died(lost="host a is out of reach"), Died(lost="host b is out of reach")]
    vector = VerdictVector((lost[0], Returned(1), lost[1], Raised("E", "x"), lost[0], Died(exit_code=1)))

    assert vector.lost == "host a is out of reach; host b is out of reach"
    assert VerdictVector((Raised("E", "x"), Died(exit_code=1))).lost == ""


def test_what_failed_ranks_printed_is_told_once_for_all_that_printed_it():
    vector = VerdictVector(
        (
            Died(exit_code=1, output="\nout of memory\n"),
            Returned(1),
            Raised("E", "x", output=" \n"),
            Stuck(1.0, why="idle", output="step 1\nstep 2"),
            Died(exit_code=1, output="out of memory"),
        )
    )

    assert vector.printed == "ranks 0, 4 printed\n  out of memory\nrank 3 printed\n  step 1\n  step 2"
    assert VerdictVector((Returned(1), Died(exit_code=1))).printed == ""


@pytest.mark.parametrize(
    ("verdict", "left"),
    [
        (Stuck(1.0, why="idle", stack=STACK, output="printed"), STACK),
        (Stuck(1.0, why="idle", output="printed\n"), "printed"),
        (Died(exit_code=1, output="printed"), "printed"),
        (Raised("E", "x", traceback="Traceback: x\n", output="printed"), "Traceback: x"),
    ],
)
def test_an_explanation_ends_with_the_stack_the_traceback_or_else_the_output(verdict, left):
    text = VerdictVector((Returned(1), verdict)).explain()

    assert text.startswith("rank 1 ")
    assert text.endswith(f"\n\n{left}")
    assert VerdictVector((Returned(1),)).explain() == "rank 0  returned"


def test_a_message_of_160_characters_fits_into_the_line():
    def line(length):
        return VerdictVector((Raised("E", "x" * length),)).describe()

    assert line(160) == f"rank 0  raised    E: {'x' * 160}  <- first failure"
    assert line(161) == f"rank 0  raised    E: {'x' * 159}…  <- first failure"


def test_long_messages_are_cut_in_the_line_only():
    raised = Raised("ValueError", "x" * 1000)
    assert len(VerdictVector((raised,)).describe()) < 250
    assert len(raised.message) == 1000


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-40, "signal 40"), (0, "exit code 0"), (3, "exit code 3")],
)
def test_a_death_is_named_by_its_signal_or_exit_code(code, how):
    assert Died.of(code, output="", after=0.0).how == how


@pytest.mark.parametrize(
    "verdict", [Returned(1), Raised("A", "b"), Died(exit_code=1), Stuck(1.0, why="idle")], ids=type
)
def test_a_verdict_survives_json(verdict):
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_a_vector_counts_and_indexes_its_ranks():
    vector = VerdictVector((Returned(1), Returned(2)))
    assert (len(vector), vector[1], list(vector)) == (2, Returned(2), [Returned(1), Returned(2)])


def test_an_exception_is_one_of_the_types_that_it_is_derived_from():
    class ShapeError(NotImplementedError):
        pass

    raised = raised_from(ShapeError("bad"))
    assert raised.bases == ("NotImplementedError", "RuntimeError", "Exception")
    assert one_of(raised.type, *raised.bases, names=["errors.RuntimeError"])
    assert one_of(raised.type, *raised.bases, names=["ValueError", "ShapeError"])
    assert not one_of(raised.type, *raised.bases, names=["ValueError", "TypeError"])
    assert raised_from(SystemExit(1)).bases == ()
