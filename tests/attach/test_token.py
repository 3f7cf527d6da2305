"""Where the token comes from."""

import pytest

from pipeconform.attach.token import read_token
from pipeconform.errors import UsageError


def test_the_environment_gives_it_up(tmp_path):
    environment = {"PIPECONFORM_TOKEN": "0123456789abcdef\n"}

    assert read_token(None, environment=environment) == b"0123456789abcdef"
    assert environment == {}


def test_a_file_goes_before_the_environment_which_is_cleared_all_the_same(tmp_path):
    file = tmp_path / "token"
    file.write_text("fedcba9876543210\n")
    environment = {"PIPECONFORM_TOKEN": "0123456789abcdef"}

    assert read_token(file, environment=environment) == b"fedcba9876543210"
    assert environment == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot read the token"), ("short", "has 5 bytes"), ("x" * 5000, "has 4097 bytes")],
)
def test_a_token_that_keeps_nobody_out_is_refused(tmp_path, text, said):
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)

    with pytest.raises(UsageError, match=said):
        read_token(file, environment={})


def test_none_at_all_is_refused_with_a_way_to_make_one():
    with pytest.raises(UsageError, match="token_hex"):
        read_token(None, environment={})
