"""An engine that is missing or too old is told in one line, with the remedy."""

from importlib import metadata

import pytest

from pipeconform.adapters.installed import has_file, require_release
from pipeconform.errors import BadAdapterError, Unsupported
from pipeconform.execute.implementation import BUILT_IN, describe

ENGINES = {
    "deepspeed": "deepspeed",
    "megatron": "megatron-core",
    "colossalai": "colossalai",
    "dualpipe": "dualpipe",
    "torchgpipe": "torchgpipe",
}


def test_a_release_that_is_new_enough_is_named():
    assert require_release("pytest", at_least=(1, 0), extra="any") == metadata.version("pytest")


def test_a_file_of_a_release_is_found_without_importing_it():
    assert has_file("pytest", "__init__.py")
    assert not has_file("pytest", "no_such.py")
    assert not has_file("nobodys_engine", "__init__.py")


def test_an_older_one_is_refused_with_what_is_needed():
    with pytest.raises(
        Unsupported, match=r"pytest \S+ is not supported; it needs pytest>=999\.0: pip install"
    ):
        require_release("pytest", at_least=(999, 0), extra="any")


def test_one_that_no_extra_brings_is_refused_with_its_own_remedy():
    with pytest.raises(Unsupported, match=r"needs nobodys-engine>=1\.0: build it$"):
        require_release("nobodys-engine", at_least=(1, 0), remedy="build it")


def test_one_that_is_not_there_is_refused_with_the_extra_to_install():
    with pytest.raises(
        Unsupported, match=r"nobodys-engine is not installed.*pip install 'pipeconform\[any\]'"
    ):
        require_release("nobodys-engine", at_least=(1, 0), extra="any")


@pytest.mark.parametrize("name", ENGINES)
def test_a_built_in_adapter_describes_itself_or_says_in_one_line_what_is_missing(name):
    assert name in BUILT_IN
    try:
        installed = metadata.version(ENGINES[name])
    except metadata.PackageNotFoundError:
        with pytest.raises(BadAdapterError) as error:
            describe(name)
        assert f"{ENGINES[name]} is not installed" in str(error.value)
        assert "\n" not in str(error.value)
    else:
        assert describe(name).version == installed
