"""Ten runs with numbers one after the other have every long test that is many of a kind, each once."""

from collections import Counter

from pipeconform.reference_impl.faults import FAULTS

from tests.tenths import mark, take, tenth_of


class Item:
    def __init__(self, name, *markers):
        self.nodeid, self.own_markers = name, list(markers)

    def get_closest_marker(self, name):
        return next((one for one in self.own_markers if one.name == name), None)


def _quick(number, names):
    marks = [one.mark for one in mark]
    items = [Item(name, *marks) for name in names]
    take(items, number=number)
    return [item.nodeid for item in items if not item.get_closest_marker("slow")]


def test_ten_runs_have_each_once():
    taken = Counter(name for number in range(327, 337) for name in _quick(number, FAULTS))

    assert taken == Counter(list(FAULTS))


def test_tenths_are_about_alike():
    sizes = Counter(map(tenth_of, FAULTS))

    assert len(sizes) == 10
    assert max(sizes.values()) < len(FAULTS) / 5


def test_other_long_tests_stay_long():
    slow, _ = (one.mark for one in mark)
    items = [Item(str(number), slow) for number in range(50)]

    for number in range(10):
        take(items, number=number)

    assert all(item.get_closest_marker("slow") for item in items)
