"""What claims in a package may be as large as."""

import pytest

from pipeconform.certificate.bounds import require_bounded
from pipeconform.errors import TooLargeError
from pipeconform.wrapper import WrapperClaims
from tests.case.examples import EVERYTHING


def test_claims_that_an_engine_makes_are_bounded():
    require_bounded(EVERYTHING)
    require_bounded(WrapperClaims())


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"a": "x" * 2001}, r"^capabilities\.a: 2001 characters; at most 2000 are allowed$"),
        ({"a": [["x"] * 65]}, r"^capabilities\.a\.0: 65 entries; at most 64 are allowed$"),
        ({"a": {str(n): n for n in range(65)}}, r"^capabilities\.a: 65 entries; at most 64 are allowed$"),
    ],
)
def test_what_is_too_large_is_named_with_its_place(claims, words):
    """Whatever the claims of a later version have."""
    with pytest.raises(TooLargeError, match=words):
        require_bounded(claims)


def test_what_is_as_large_as_allowed_is_no_doubt():
    require_bounded({"a": "x" * 2000, "b": ["x"] * 64})
