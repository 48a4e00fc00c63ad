from __future__ import annotations

from edge_kit.telemetry.problems import Problems


def test_problem_is_said_once_when_it_begins_and_once_when_it_is_over():
    said: list[str] = []
    problems = Problems(said.append)
    for sentence in ("", "full", "full", "", ""):
        problems.update("spool", sentence, "it works again", prospect="; nothing is sent")
    assert said == ["full; nothing is sent", "it works again"]


def test_sentence_that_changes_to_and_fro_is_said_once_each_while_the_problem_lasts():
    said: list[str] = []
    problems = Problems(said.append)
    for sentence in ("cannot write", "cannot read", "cannot write", "cannot read"):
        problems.update("spool", sentence, "over")
    assert said == ["cannot write", "cannot read"]
    problems.update("spool", "", "over")
    problems.update("spool", "cannot write", "over")
    assert said[2:] == ["over", "cannot write"]


def test_sentences_are_all_that_is_wrong_now():
    problems = Problems(lambda _text: None)
    problems.update("spool", "full", "over")
    problems.update("link", "lost", "over")
    assert problems.sentences() == ["full", "lost"]
    problems.update("spool", "", "over")
    assert problems.sentences() == ["lost"]
