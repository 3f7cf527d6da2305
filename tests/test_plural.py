import pytest

from pipeconform.plural import plural


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (0, "time", "0 times"),
        (1, "time", "1 time"),
        (1200, "case", "1,200 cases"),
        (1, "microbatch", "1 microbatch"),
        (2, "microbatch", "2 microbatches"),
        (1, "loss", "1 loss"),
        (0, "loss", "0 losses"),
    ],
)
def test_a_number_has_its_noun_in_the_singular_or_the_plural(number, noun, words):
    assert plural(number, noun) == words
