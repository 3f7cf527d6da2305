"""The oracle's answers are asked for once, and not all are kept."""

from pipeconform.campaign.known_answers import KnownAnswers


def test_a_question_is_asked_once_while_it_is_among_the_last():
    known, asked = KnownAnswers(most=2), []

    def answer(question):
        return known.answer(question, ask=lambda: asked.append(question) or question.upper())

    answers = [answer(one) for one in (b"a", b"b", b"a", b"c", b"a", b"b")]

    assert answers == [b"A", b"B", b"A", b"C", b"A", b"B"]
    assert asked == [b"a", b"b", b"c", b"b"]  # b was used least recently when c came


def test_an_answer_that_is_not_known_is_none():
    known = KnownAnswers()

    assert known.known(b"a") is None
    known.answer(b"a", ask=lambda: b"A")
    assert known.known(b"a") == b"A"
