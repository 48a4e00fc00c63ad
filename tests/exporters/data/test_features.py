"""Trunk features of all views: equal to numpy's, resumable, the same however they are divided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from edge_kit.bundle.manifest import Preprocessing  # noqa: E402
from edge_kit.errors import ExportError, SourceError  # noqa: E402
from edge_kit.pixels.preprocess import Preprocessor  # noqa: E402
from edge_kit.sources.photo import read_photo  # noqa: E402
from exporters.data.features import FeatureTask, compute_features  # noqa: E402
from exporters.data.photos import find_photos  # noqa: E402
from tests.exporters.data.test_photos import paint, split_tree  # noqa: E402

pytestmark = pytest.mark.export


def write_trunk(path: Path) -> None:
    """Average 4 x 4 blocks."""
    node = onnx.helper.make_node(
        "AveragePool", ["image"], ["f"], kernel_shape=[4, 4], strides=[4, 4]
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "trunk",
        [value("image", onnx.TensorProto.FLOAT, ["n", 3, 16, 16])],
        [value("f", onnx.TensorProto.FLOAT, ["n", 3, 4, 4])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.fixture
def task(tmp_path):
    found = find_photos(split_tree(tmp_path / "data", 5))
    write_trunk(tmp_path / "trunk.onnx")
    photos = tuple(found.path(p) for p in found.splits["train"])
    rule = Preprocessing(16, 16)
    return FeatureTask(tmp_path / "trunk.onnx", photos, rule, (3, 4, 4), tmp_path / "f", 2, 7)


def test_plain_view_features_equal_numpy(task):
    plain, *views = compute_features(task)
    preprocessor = Preprocessor(task.rule)
    for row, path in zip(plain, task.photos, strict=True):
        blocks = preprocessor(read_photo(path)).astype(np.float32).reshape(4, 4, 4, 4, 3)
        assert np.allclose(row, blocks.mean((1, 3)).transpose(2, 0, 1), atol=0.1)
    assert len(views) == 2
    assert not np.array_equal(views[0], views[1])


def test_features_resumed_equal_uninterrupted_run(task):
    whole = [np.array(v) for v in compute_features(task)]
    done = np.load(task.progress(1), mmap_mode="r+")
    done[[2, 7]] = 0
    done.flush()
    broken = np.load(task.features(1), mmap_mode="r+")
    broken[[2, 7]] = 0
    broken.flush()
    ticks = []
    again = compute_features(task, tick=lambda d, t: ticks.append((d, t)))
    assert ticks == [(28, 30), (30, 30)]
    for a, b in zip(whole, again, strict=True):
        assert np.array_equal(a, b)


def test_features_of_two_processes_equal_one(task, tmp_path):
    alone = compute_features(task)
    shared = compute_features(replace(task, folder=tmp_path / "g"), processes=2)
    for a, b in zip(alone, shared, strict=True):
        assert np.array_equal(a, b)


def test_vanished_photo_is_named(task):
    task.photos[3].unlink()
    with pytest.raises(SourceError, match="no photo at"):
        compute_features(task)


def test_dead_feature_process_suggests_fewer_processes(task, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match="fewer --processes"):
        compute_features(replace(task, trunk=tmp_path / "broken.onnx"), processes=2)


def test_features_are_float16_maps_a_view(task):
    views = compute_features(task)
    assert len(views) == 3
    for view in views:
        assert (view.shape, view.dtype) == ((10, 3, 4, 4), np.float16)


def test_features_with_other_seed_change_augmented_views_only(task, tmp_path):
    plain, *views = compute_features(task)
    again, *others = compute_features(replace(task, folder=tmp_path / "other", seed=8))
    np.testing.assert_array_equal(plain, again)
    for one, other in zip(views, others, strict=True):
        assert not np.array_equal(one, other)


def test_features_of_one_photo_do_not_depend_on_other_photos(task, tmp_path):
    whole = compute_features(task)
    first = compute_features(replace(task, folder=tmp_path / "one", photos=task.photos[:1]))
    for one, view in zip(first, whole, strict=True):
        np.testing.assert_array_equal(one[0], view[0])


def test_features_of_more_views_keep_earlier_ones(task, tmp_path):
    fewer = [np.array(v) for v in compute_features(task)]
    ticks = []
    more = compute_features(replace(task, views=4), tick=lambda d, w: ticks.append((d, w)))
    assert ticks[0] == (30, 50)  # three views were there
    for one, view in zip(fewer, more, strict=False):
        np.testing.assert_array_equal(one, view)


def test_finished_features_are_read_without_photos(task):
    before = [np.array(v) for v in compute_features(task)]
    for path in task.photos:
        path.unlink()
    for one, view in zip(before, compute_features(task), strict=True):
        np.testing.assert_array_equal(one, view)


def test_rows_interrupted_before_they_were_marked_are_computed_again(task):
    """Features that were written but not yet marked as done count as missing."""
    compute_features(task)
    done = np.load(task.progress(2), mmap_mode="r+")
    done[:] = 0
    done.flush()
    values = np.load(task.features(2), mmap_mode="r+")
    expected = np.array(values)
    values[:] = np.float16(-1)
    values.flush()
    np.testing.assert_array_equal(compute_features(task)[2], expected)
    assert np.load(task.progress(2)).all()


def test_photo_rewritten_in_another_colour_changes_its_row_only(task, tmp_path):
    before = compute_features(task)[0]
    paint(task.photos[4], colour=(10, 200, 10))
    after = compute_features(replace(task, folder=tmp_path / "again"))[0]
    changed = [k for k in range(10) if not np.array_equal(before[k], after[k])]
    assert changed == [4]
