"""The line that says why a process died is found, however long the dump after it is."""

from pipeconform.ranks.output_tail import crashed_in, last_line, shortened

MAIN = """\
Thread 0x9 (most recent call first):
  File "/x/run.py", line 9 in main"""

NATIVE = f"""\
terminate called
  what():  8 vs 4
Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  <no Python frame>

{MAIN}

Extension modules: {", ".join(f"module{n}" for n in range(2000))}
"""

PYTHON = NATIVE.replace(
    MAIN, 'Current thread 0x2 (most recent call first):\n  File "/x/model.py", line 1 in f'
)


def test_without_a_dump_the_end_is_kept():
    assert shortened("a" * 10 + "b" * 5 + "\n", limit=7) == "aabbbbb"
    assert shortened("", limit=7) == last_line("") == crashed_in("no dump") == ""
    assert last_line("one\ntwo\n\n") == "two"


def test_of_a_dump_the_title_and_the_stack_of_the_thread_that_crashed_are_kept():
    kept = shortened(PYTHON, limit=400)

    assert kept.splitlines() == [
        "terminate called",
        "  what():  8 vs 4",
        "Fatal Python error: Aborted",
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "/x/model.py", line 1 in f',
    ]
    assert last_line(kept).strip() == "what():  8 vs 4"
    assert "model.py" in crashed_in(kept)


def test_where_a_native_thread_crashed_the_main_thread_s_stack_is_kept():
    kept = shortened(NATIVE, limit=400)

    assert kept.endswith(MAIN)
    assert "<no Python frame>" not in kept
    assert crashed_in(kept) == ""


def test_a_limit_holds_and_what_was_printed_last_stays():
    told = "".join(f"line {n}\n" for n in range(1000))
    kept = shortened(told + PYTHON, limit=300)

    assert len(kept) <= 300
    assert last_line(kept).strip() == "what():  8 vs 4"
    assert "model.py" in kept


def test_the_last_of_several_dumps_counts():
    assert last_line(f"{PYTHON}and then\n{NATIVE}").strip() == "what():  8 vs 4"
    assert crashed_in(f"{PYTHON}and then\n{NATIVE}") == ""
