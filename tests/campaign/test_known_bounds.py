"""The oracle's answers with bounds are asked for once, and not all are kept."""

from pipeconform.campaign.known_bounds import KnownBounds


def test_a_question_is_asked_once_while_it_is_among_the_last():
    known, asked = KnownBounds(most=2), []

    def answer(question):
        return known.answer(question, ask=lambda: asked.append(question) or question.upper())

    answers = [answer(one) for one in (b"a", b"b", b"a", b"c", b"a", b"b")]

    assert answers == [b"A", b"B", b"A", b"C", b"A", b"B"]
    assert asked == [b"a", b"b", b"c", b"b"]  # b was used least recently when c came
