"""Charts: where things are drawn, and that names cannot break the drawing."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from edge_kit.pages.charts import (
    WIDE,
    Axis,
    Bar,
    Drawing,
    Line,
    Row,
    Span,
    matrix,
    plot,
    row_chart,
    stack,
)


def elements(drawing: Drawing, tag: str, look: str = ""):
    """Parse a drawing, which has to be well-formed XML, and return its elements of one kind."""
    root = ElementTree.fromstring(drawing.svg)
    return [e for e in root.iter(tag) if look in e.get("class", "").split() or not look]


def texts(drawing: Drawing):
    return [e.text for e in elements(drawing, "text")]


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis("x"), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis("x", 0.86, 0.95), [0.86, 0.88, 0.9, 0.92, 0.94]),
        (Axis("x", 1, 60), [20, 40, 60]),
        (Axis.over("x", [3.0, 39.0]), [0, 10, 20, 30, 40]),
        (Axis.over("x", [61.5, 62.0], from_zero=False), [61.5, 61.6, 61.7, 61.8, 61.9, 62]),
        (Axis.over("x", [5.0, 5.0], from_zero=False), [5, 5.2, 5.4, 5.6, 5.8, 6]),
    ],
)
def test_axis_ticks_are_round_and_within_its_ends(axis, ticks):
    assert axis.ticks == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0]])
def test_axis_over_nothing_has_a_length(values):
    axis = Axis.over("x", values)
    assert axis.low == 0 < axis.high


def test_plot_maps_corners_and_keeps_values_inside():
    line = Line("a", [(0, 0), (1, 1), (2, -1)])
    drawing = plot(Axis("x"), Axis("y"), lines=[line], marker=0.5)
    (drawn,) = elements(drawing, "polyline")
    assert drawn.get("points") == "56.0,236.0 444.0,14.0 444.0,236.0"
    assert len(elements(drawing, "path", "marker")) == 1
    assert "a" not in texts(drawing)  # one line needs no legend


def test_plot_with_steps_holds_each_value():
    drawing = plot(Axis("x"), Axis("y"), lines=[Line("a", [(0, 0), (1, 1)], steps=True)])
    assert elements(drawing, "polyline")[0].get("points") == "56.0,236.0 444.0,236.0 444.0,14.0"


def test_plot_of_several_lines_has_a_legend():
    lines = [Line(f"line {i}", [(0, 0), (1, i)]) for i in range(10)]
    drawing = plot(Axis("x"), Axis("y"), lines=lines, width=WIDE)
    assert [t for t in texts(drawing) if t.startswith("line")] == [f"line {i}" for i in range(10)]
    assert len(elements(drawing, "polyline", "c1")) == 2  # colours start again


def test_plot_bars_stand_on_the_axis():
    drawing = plot(Axis("x"), Axis("y"), bars=[Bar(0, 0.5, 1.0, "all", "7")], diagonal=True)
    (bar,) = elements(drawing, "rect")
    assert (float(bar.get("y")), float(bar.get("height"))) == (14.0, 222.0)
    assert "7" in texts(drawing)


def test_plot_marker_outside_the_axis_is_left_out():
    assert elements(plot(Axis("x"), Axis("y"), marker=-1.0), "path", "marker") == []


def test_row_chart_draws_spans_dots_and_legend():
    spans = stack({"a": 1.0, "b": 3.0}, ["a", "b"], ".1f")
    assert [(s.start, s.end, s.colour, s.title) for s in spans] == [
        (0, 1, 0, "a 1.0"), (1, 4, 1, "b 3.0"),
    ]  # fmt: skip
    row = Row("one", [*spans, Span(4, 4.5, "thin")], "4.00", dot=2.0)
    drawing = row_chart([row], Axis("ms", 0, 5), ["a", "b"])
    assert texts(drawing) == ["one", "4.00", "a", "b"]
    assert len(elements(drawing, "circle")) == 1 and len(elements(drawing, "path", "thin")) == 1


def test_row_chart_that_starts_above_zero_has_ticks():
    drawing = row_chart([Row("one", [], "")], Axis("share", 0.5))
    assert texts(drawing) == ["0.5", "0.6", "0.7", "0.8", "0.9", "1", "one"]


def test_matrix_counts_and_escapes():
    drawing = matrix([[1, 1], [0, 1]], ("<cat>", "dog"))
    assert "&lt;cat&gt; taken for dog: 1 of 2" in drawing.svg
    assert len(elements(drawing, "rect", "right")) == 2


def test_names_cannot_break_a_drawing():
    odd = '"><script>&'
    drawn = (
        plot(Axis(odd), Axis(odd), lines=[Line(odd, [(0, 0)])] * 2, bars=[Bar(0, 1, 1, odd, odd)]),
        row_chart([Row(odd, [Span(0, 1, title=odd)], odd)], Axis(odd), [odd]),
        matrix([[1]], [odd]),
    )
    for drawing in drawn:
        assert elements(drawing, "script") == []
