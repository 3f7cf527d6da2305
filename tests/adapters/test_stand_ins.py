"""Packages that an engine imports without use."""

import sys

import pytest

from pipeconform.adapters.stand_ins import stand_in_for, standing_in_for

NAME = "not_installed_anywhere"


def test_any_name_of_a_stand_in_can_be_imported_and_derived_from():
    with standing_in_for(NAME, f"{NAME}.inner"):
        from not_installed_anywhere.inner import Something

        class Derived(Something):
            pass

    assert isinstance(Derived(), Something)


def test_it_is_gone_afterwards_also_after_an_error():
    def fails():
        with standing_in_for(NAME):
            raise ImportError(NAME)

    with pytest.raises(ImportError):
        fails()

    assert NAME not in sys.modules


def test_what_is_installed_or_has_a_stand_in_is_left_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, NAME, raising=False)

    assert stand_in_for("json", "pytest") == ()
    assert stand_in_for(NAME) == (NAME,)
    assert stand_in_for(NAME) == ()
    del sys.modules[NAME]
