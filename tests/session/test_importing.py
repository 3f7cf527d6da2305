"""While modules are imported, nothing looks for garbage; afterwards it is as before."""

import gc

import pytest

from pipeconform.session.importing import without_collecting


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_collection_is_off_inside_and_as_before_afterwards(enabled):
    with without_collecting():
        assert not gc.isenabled()

    assert gc.isenabled() is enabled


def test_an_import_that_fails_leaves_it_as_before(enabled):
    with pytest.raises(ImportError, match="nothing"), without_collecting():
        raise ImportError("nothing")

    assert gc.isenabled() is enabled
