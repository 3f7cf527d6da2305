import msgspec

from pipeconform.campaign.executor import Execution
from pipeconform.campaign.store import Store
from pipeconform.ranks.verdict import Died, Returned, VerdictVector
from tests.case.examples import small_case


def _execution(seed: int) -> Execution:
    verdicts = VerdictVector((Returned(None), Died(signal="SIGKILL")))
    return Execution(case=small_case(seed=seed), verdicts=verdicts)


def test_what_is_put_is_found_again() -> None:
    store = Store()
    store.put("a", _execution(1))

    assert store.get("a", Execution) == _execution(1)
    assert store.get("b", Execution) is None


def test_another_worker_finds_it_in_the_folder(tmp_path) -> None:
    Store(folder=tmp_path).put("a", _execution(1))

    assert Store(folder=tmp_path).get("a", Execution) == _execution(1)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_least_recently_used_gives_way() -> None:
    store = Store(max_bytes=1)
    store.put("a", _execution(1))
    store.put("b", _execution(2))

    assert (store.get("a", Execution), store.get("b", Execution)) == (None, _execution(2))


def _full_at(executions: int) -> Store:
    """A store that holds so many executions, and not one more."""
    size = len(msgspec.msgpack.encode(_execution(1)))
    return Store(max_bytes=executions * size)


def _held(store: Store, *keys: str) -> list[str]:
    return [key for key in keys if store.get(key, Execution) is not None]


def test_a_full_store_holds_the_latest() -> None:
    store = _full_at(2)
    for key in "abcde":
        store.put(key, _execution(1))

    assert _held(store, *"abcde") == ["d", "e"]


def test_what_was_used_again_is_held_longer_than_what_was_not() -> None:
    store = _full_at(2)
    store.put("a", _execution(1))
    store.put("b", _execution(2))
    store.get("a", Execution)
    store.put("c", _execution(3))

    assert _held(store, *"abc") == ["a", "c"]


def test_what_is_put_again_takes_no_more_room() -> None:
    store = _full_at(2)
    for _ in range(3):
        store.put("a", _execution(1))
        store.put("b", _execution(2))

    assert _held(store, *"ab") == ["a", "b"]


def test_a_folder_that_cannot_be_written_costs_only_the_sharing(tmp_path) -> None:
    store = Store(folder=tmp_path / "missing")
    store.put("a", _execution(1))

    assert store.get("a", Execution) == _execution(1)


def test_what_was_found_in_the_folder_is_kept(tmp_path) -> None:
    Store(folder=tmp_path).put("a", _execution(1))
    other = Store(folder=tmp_path)
    assert other.get("a", Execution) == _execution(1)
    (tmp_path / "a").unlink()

    assert other.get("a", Execution) == _execution(1)
