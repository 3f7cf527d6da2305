"""The processes below a process, as the kernel tells them."""

import os
import subprocess
import sys
import threading

from pipeconform.ranks.process_tree import children_of


def test_a_child_of_one_thread_is_seen_while_other_threads_end():
    started, over = threading.Event(), threading.Event()
    child = []

    def parent():
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            child.append(process.pid)
            started.set()
            over.wait()

    others = [threading.Event() for _ in range(200)]
    waiting = [threading.Thread(target=one.wait) for one in others]
    for thread in waiting:
        thread.start()
    owner = threading.Thread(target=parent)  # the kernel lists it behind those that end
    owner.start()
    started.wait()
    release = threading.Thread(target=lambda: [one.set() for one in others])
    release.start()
    seen = [children_of(os.getpid()) for _ in range(100)]
    over.set()
    for thread in (release, owner, *waiting):
        thread.join()

    assert all(child[0] in one for one in seen)


def test_a_process_that_is_gone_has_no_children():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert children_of(process.pid) == set()
