"""A fork server starts once, says why it cannot, and leaves nothing behind however its controller ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks import Crew, ForkServer, Pool, forkserver

HERE = Path(__file__).parent
GUARD = 60.0  # seconds nothing comes near unless it hangs


def test_a_preload_that_fails_is_quoted(start_server):
    server = start_server(preload=("no_such_module",))
    with pytest.raises(PoolError, match="No module named 'no_such_module'"):
        server.wait_until_started()
    assert not server.alive


def test_a_preload_that_starts_threads_is_refused(start_server):
    with pytest.raises(PoolError, match=r"'starts_thread' started 1 thread"):
        start_server(preload=("starts_thread",)).wait_until_started()


def test_a_child_that_dies_while_it_is_set_up_is_a_pool_error_with_its_stderr(start_server):
    server = start_server(preload=("dies_in_fork",))
    with (
        Pool(Crew(server, size=2, backend=None)) as pool,
        pytest.raises(PoolError, match=r"(?s)ended with 3.*not today"),
    ):
        pool.run("rank_tasks:pid", time_limit=GUARD)


def test_an_unwritable_temporary_folder_is_a_pool_error(tmp_path):
    with pytest.raises(PoolError, match="cannot make a temporary folder"):
        ForkServer(folder=tmp_path / "missing")


def test_a_working_folder_that_is_gone_is_a_pool_error(tmp_path, monkeypatch):
    """Torch's library would say that it cannot load itself."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(PoolError, match="run pipeconform in a folder that stays"):
        ForkServer(folder=tmp_path)


def test_a_server_that_takes_too_long_is_a_pool_error(start_server):
    with pytest.raises(PoolError, match="did not start within 0 s"):
        start_server().wait_until_started(limit=0)


def test_an_interpreter_that_cannot_run_is_a_pool_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PoolError, match="cannot start the fork server"):
        ForkServer(folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_server_takes_its_ranks_along(start_server, survivors):
    server = start_server()
    pool = Pool(Crew(server, size=2, backend=None))
    pids = pool.pids
    with pytest.raises(PoolError, match="the fork server ended"):
        pool.run("rank_tasks:kill_server", time_limit=GUARD)
    assert survivors(pids) == []
    with pytest.raises(PoolError, match="the fork server ended"):
        pool.start("rank_tasks:pid", time_limit=GUARD)


def test_a_closed_server_leaves_no_process_no_folder_and_no_descriptor(start_server, survivors, descriptors):
    before = descriptors()
    server = start_server()
    pool = Pool(Crew(server, size=3, backend=None))
    pids = [*pool.pids, server.pid]
    server.close()
    server.close()
    assert survivors(pids) == []
    assert not server.folder.exists()
    assert descriptors() == before
    with pytest.raises(PoolError, match="closed"):
        pool.start("rank_tasks:pid", time_limit=GUARD)


def test_a_forgotten_server_ends(survivors):
    server = ForkServer(preload=())
    server.wait_until_started()
    pid, folder = server.pid, server.folder
    del server
    assert survivors([pid]) == []
    assert not folder.exists()


def test_a_server_that_still_imports_is_not_waited_for(start_server, survivors, tmp_path, monkeypatch):
    """A wrong option ends a run before anybody asked for ranks."""
    (tmp_path / "never_imported.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forkserver, "_END_LIMIT", GUARD)
    server = start_server(preload=("never_imported",))
    begun = time.monotonic()
    server.close()
    assert time.monotonic() - begun < GUARD / 2
    assert survivors([server.pid]) == []
    assert not server.folder.exists()


CONTROLLER = """
import os, sys
sys.path.insert(0, {here!r})
from pipeconform.ranks import Crew, ForkServer, Pool, forkserver

server = ForkServer(preload={preload!r})
pool = Pool(Crew(server, size=2, backend={backend!r}), idle_limit=1000.0)
print(server.pid, *pool.pids, flush=True)
assert "torch" not in sys.modules
{action}
"""


class Controller:
    """A process with a live pool, whose end is the test's business."""

    def __init__(self, action: str, folder: Path, *, torch: bool) -> None:
        code = CONTROLLER.format(
            here=str(HERE),
            action=action,
            preload=("torch", "torch.distributed") if torch else (),
            backend="gloo" if torch else None,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids = [int(pid) for pid in self._process.stdout.readline().split()]
        self._folder = folder

    def end(self, signum: int | None = None) -> str:
        """Signal the controller, wait for its end and return its stderr."""
        if signum is not None:
            self._process.send_signal(signum)
        try:
            return self._process.communicate(timeout=GUARD)[1]
        finally:
            self._process.kill()  # a test that fails leaves nobody busy behind

    def leftovers(self) -> list[str]:
        """Temporary folders that are still there when there was time to remove them."""
        deadline = time.monotonic() + GUARD / 2
        while any(self._folder.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [path.name for path in self._folder.iterdir()]


WAIT = "print('waiting', flush=True); pool.run('rank_tasks:{task}', time_limit=1000)"
ENDINGS = {
    "falls off its end": ("", None),
    "exits while a task runs": ("p = pool.start('rank_tasks:sleep_forever', time_limit=1000)", None),
    "raises": ("raise SystemExit(3)", None),
    "Ctrl-C while waiting": (WAIT.format(task="sleep_forever"), signal.SIGINT),
    "Ctrl-C while ranks compute": (WAIT.format(task="spin_forever"), signal.SIGINT),
    "SIGTERM": (WAIT.format(task="spin_forever"), signal.SIGTERM),
    "SIGKILL": (WAIT.format(task="spin_forever"), signal.SIGKILL),
    "os._exit": ("os._exit(0)", None),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_the_controller_ends_nothing_is_left(tmp_path, survivors, ending):
    action, signum = ENDINGS[ending]
    controller = Controller(action, tmp_path, torch=False)
    assert len(controller.pids) == 3
    if signum is not None:
        assert controller._process.stdout.readline() == "waiting\n"
        time.sleep(0.2)  # into wait(), where exactly does not matter
    stderr = controller.end(signum)
    assert survivors(controller.pids) == []
    assert controller.leftovers() == []
    assert ("KeyboardInterrupt" in stderr) == (signum == signal.SIGINT), stderr


AGAIN = """
import signal, threading
old = pool.pids
for delay in {delays}:
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            pool.run('rank_tasks:{task}', time_limit=1000)
    except KeyboardInterrupt:
        pass
assert pool.run('rank_tasks:total', time_limit=60).values == (b'plain: 3.0',) * 2
assert not set(old) & set(pool.pids)
print('whole', flush=True)
"""


@pytest.mark.parametrize("task", ["empty", "sleep_forever", "raise_everywhere"])
def test_after_ctrl_c_the_pool_is_whole_again(tmp_path, survivors, task):
    delays = [0.05 + 0.0137 * index for index in range(12)]
    controller = Controller(AGAIN.format(delays=delays, task=task), tmp_path, torch=True)
    assert controller.end() == ""
    assert survivors(controller.pids) == []
    assert controller.leftovers() == []
