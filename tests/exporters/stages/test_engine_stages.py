"""Engine files of a small split: built, kept, reused, and judged by every gate."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx import numpy_helper  # noqa: E402
from torch import nn  # noqa: E402

from edge_kit.bundle import machine_arch  # noqa: E402
from edge_kit.bundle.manifest import Preprocessing  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.config import QuantizationConfig, TrainingConfig  # noqa: E402
from exporters.data.decoded import DecodedPhotos  # noqa: E402
from exporters.engines.exported import Exported  # noqa: E402
from exporters.engines.files import EngineFiles  # noqa: E402
from exporters.graph.cuts import Candidate  # noqa: E402
from exporters.graph.plan import Classifier, SplitPlan, make_plan  # noqa: E402
from exporters.judge.verify import verify  # noqa: E402
from exporters.progress import SilentProgress  # noqa: E402
from exporters.stages.engines import build_engines  # noqa: E402
from exporters.stages.training import training_recipe  # noqa: E402
from exporters.stages.workspace import Workspace  # noqa: E402
from exporters.train.training import TrainingRecipe  # noqa: E402
from tests.support.export.tiny_halves import CHANNELS, SIZE, photos, trained  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, LABELS = photos(80, seed=31)
PHOTOS = DecodedPhotos(PIXELS, LABELS, np.zeros(80, np.int64))
RULE = Preprocessing(*SIZE, "squash", "RGB", (127.0,) * 3, (128.0,) * 3)
CONFIG = QuantizationConfig(targets=("x86_64", "aarch64"), tflite=False, cloud_weights="fp16")


@pytest.fixture(scope="module")
def plan() -> SplitPlan:
    halves = trained()
    parts = OrderedDict(trunk=halves.end.trunk, tail=halves.cloud.tail)
    return make_plan(Classifier(nn.Sequential(parts).eval(), RULE), "trunk", 1.0, CHANNELS)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def build(plan: SplitPlan, root, config: QuantizationConfig = CONFIG, seed: int = 0):
    """Build in a workspace whose earlier stages are only names; return files and reused ones."""
    progress = SilentProgress()
    work = Workspace(root, progress)
    for name in ("halves", "pixels"):
        work.run(name, {"seed": seed}, lambda folder: None)
    progress.lines.clear()
    files = build_engines(plan, trained(), PIXELS[:40], config, work)
    return files, [line.split(":")[0] for line in progress.lines if "reused" in line]


@pytest.fixture(scope="module")
def files(plan, root) -> EngineFiles:
    made, reused = build(plan, root)
    assert reused == []
    return made


def test_plan_cuts_where_it_is_told(plan):
    assert (plan.cut.name, plan.cut.shape, plan.size) == ("trunk", (16, 8, 8), SIZE)


def test_files_are_the_configured_ones(files):
    ends = [(f.entry.engine, f.entry.arch) for f in files.ends]
    assert ends == [("onnx", "x86_64"), ("onnx", "aarch64")]
    assert files.tflite is None
    assert files.twin not in files.shipped
    assert {f.source.name for f in files.shipped} == {
        "end-x86_64.onnx",
        "end-aarch64.onnx",
        "tail.onnx",
        "full.onnx",
    }
    assert files.features == TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)


def test_primary_is_the_file_of_this_machine(files):
    assert files.primary.entry.arch == machine_arch()


def test_second_build_reuses_every_file(plan, root, files):
    again, reused = build(plan, root)
    assert len(reused) == 5
    assert again == files


def test_changed_storage_rebuilds_cloud_files_only(plan, root, files):
    again, reused = build(plan, root, replace(CONFIG, cloud_weights="int8"))
    assert sorted(reused) == ["end-aarch64.onnx", "end-float.onnx", "end-x86_64.onnx"]
    assert again.tail.entry.sha256 != files.tail.entry.sha256
    build(plan, root)  # for the other tests


def test_left_out_target_reuses_the_other(plan, root, files):
    again, reused = build(plan, root, replace(CONFIG, targets=("aarch64",)))
    assert "end-aarch64.onnx" in reused
    assert [f.entry.arch for f in again.ends] == ["aarch64"]


def test_every_gate_of_good_files_passes(plan, files):
    measured = verify(plan, trained(), files, PHOTOS, storage="fp16", size_ratio=1.5)
    assert [g.sentence for g in measured if g.ok is not True] == []
    names = [g.name for g in measured]
    assert len(names) == len(set(names)) == 5 + 4 * 2
    assert names[0] == "split parity"


def spoiled(file: Exported) -> Exported:
    """The same file with its first weights turned round."""
    model = onnx.load(file.source)
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8)
    weights = [i for i in model.graph.initializer if i.data_type in kinds and len(i.dims) == 4]
    weights[0].CopyFrom(
        numpy_helper.from_array(-numpy_helper.to_array(weights[0]), weights[0].name)
    )
    path = file.source.with_name("spoiled.onnx")
    onnx.save(model, path)
    return Exported(path, file.entry)


@pytest.mark.parametrize(
    ("part", "failed"),
    [
        ("tail", "cloud half, torch against ONNX"),
        ("full", "full model, stored as fp16"),
        ("twin", "end model, torch against ONNX"),
        ("ends", "int8 agreement, ONNX for x86_64"),
    ],
)
def test_spoiled_file_fails_its_gate(plan, files, part, failed):
    ends = (spoiled(files.ends[0]), files.ends[1])
    bad = replace(files, **{part: ends if part == "ends" else spoiled(getattr(files, part))})
    measured = verify(plan, trained(), bad, PHOTOS, storage="fp16", size_ratio=1.5)
    assert failed in [g.name for g in measured if g.ok is False]
    assert next(g for g in measured if g.name == "split parity").ok


def test_size_ratio_out_of_reach_fails_both_size_gates(plan, files):
    measured = verify(plan, trained(), files, PHOTOS, storage="fp16", size_ratio=99.0)
    failed = [g.name for g in measured if g.ok is False]
    assert failed == [f"int8 size ratio, ONNX for {arch}" for arch in ("x86_64", "aarch64")]


def test_accuracy_budget_of_few_photos_allows_two(plan, files):
    measured = verify(plan, trained(), files, PHOTOS, storage="fp16", size_ratio=1.5)
    budgets = [g.budget for g in measured if g.name.startswith("int8 accuracy")]
    assert budgets == pytest.approx([2 / len(PIXELS)] * 2)


CUT = Candidate("block", (), "block", (16, 8, 8), 1000, 0.5)


def test_recipe_takes_given_values_and_trainer_defaults():
    own = TrainingRecipe()
    recipe = training_recipe(TrainingConfig(seed=3, epochs=2, message_bytes=200.0), CUT)
    assert (recipe.seed, recipe.epochs, recipe.message_bytes) == (3, 2, 200.0)
    assert (recipe.tail_epochs, recipe.batch) == (own.tail_epochs, own.batch)


@pytest.mark.parametrize(
    ("given", "message_bytes", "channels"),
    [(5, 650.0, 5), (99, 650.0, 16), (None, 300.0, 8), (None, 9000.0, 16), (None, 10.0, 4)],
)
def test_recipe_fits_channels_to_message_and_cut(given, message_bytes, channels):
    """(300 - 127) * 8 bits over 2.6 bits * 64 positions are 8 channels; the cut has 16."""
    config = TrainingConfig(message_bytes=message_bytes)
    assert training_recipe(config, CUT, given).channels == channels


def test_calibration_of_many_photos_uses_an_even_part(plan, root, monkeypatch):
    seen: list[np.ndarray] = []

    def look(end, pixels, path, *, arch):
        seen.append(pixels)
        raise LookupError

    monkeypatch.setattr("exporters.stages.engines.export_end_onnx", look)
    monkeypatch.setattr("exporters.stages.engines.CALIBRATION_PHOTOS", 10)
    with pytest.raises(LookupError):
        build(plan, root, seed=1)
    assert len(seen[0]) == 10
    np.testing.assert_array_equal(seen[0][[0, -1]], PIXELS[[0, 39]])
