"""The parts of a configuration: bounds of every flag, defaults, what the bundle records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import UsageError
from exporters.config import (
    CLOUD_WEIGHTS,
    TARGETS,
    BudgetConfig,
    DataConfig,
    ExportConfig,
    ModelConfig,
    OutputConfig,
    QuantizationConfig,
    SplitConfig,
    TrainingConfig,
)

MODEL = ModelConfig("zoo.models:build")


def config(**parts) -> ExportConfig:
    needed = {
        "data": DataConfig(Path("photos")),
        "model": MODEL,
        "output": OutputConfig(Path("out")),
    }
    return ExportConfig(**needed | parts)


@pytest.mark.parametrize(
    ("part", "flag", "good", "bad", "said"),
    [
        (DataConfig, "reference_photos", [0, 100], [-1], "--reference-photos -1 is below 0"),
        (SplitConfig, "budget", [0.01, 1], [0, -0.5, 1.01], "--budget"),
        (SplitConfig, "channels", [None, 1, 500], [0], "--channels 0 is below 1"),
        (TrainingConfig, "views", [0, 9], [-1], "--views -1 is below 0"),
        (TrainingConfig, "epochs", [None, 1], [0], "--epochs 0 is below 1"),
        (TrainingConfig, "tail_epochs", [None, 1], [0], "--tail-epochs 0 is below 1"),
        (TrainingConfig, "message_bytes", [None, 1.0], [0.5], "--message-bytes 0.5 is below 1"),
        (TrainingConfig, "processes", [None, 1], [0], "--processes 0 is below 1"),
        (BudgetConfig, "max_device_share", [0, 1], [-0.1, 1.1], "outside 0 to 1"),
        (QuantizationConfig, "cloud_weights", list(CLOUD_WEIGHTS), ["int4"], "'int4'"),
        (QuantizationConfig, "targets", [TARGETS, ("aarch64",)], [("mips",)], "'mips'"),
    ],
)
def test_flag_is_refused_outside_its_bounds_only(part, flag, good, bad, said):
    arguments = {"folder": Path("photos")} if part is DataConfig else {}
    for value in good:
        assert getattr(part(**arguments, **{flag: value}), flag) == value
    for value in bad:
        with pytest.raises(UsageError, match=said):
            part(**arguments, **{flag: value})


@pytest.mark.parametrize("size", [16, 224, 1024, None])
def test_size_within_bounds_is_accepted(size):
    assert ModelConfig("a:b", size=size).size == size


@pytest.mark.parametrize("size", [15, 1025, -3])
def test_size_outside_bounds_is_refused(size):
    with pytest.raises(UsageError, match=f"--size {size} is outside 16 to 1024"):
        ModelConfig("a:b", size=size)


@pytest.mark.parametrize("both", [{}, {"factory": "a:b", "backbone": "efficientnet-lite0"}])
def test_model_needs_factory_or_backbone_and_not_both(both):
    with pytest.raises(UsageError, match=r"either a MODEL .* or --backbone"):
        ModelConfig(**both)


def test_weights_of_backbone_are_refused():
    with pytest.raises(UsageError, match="--weights belongs to a MODEL"):
        ModelConfig(backbone="efficientnet-lite0", weights=Path("w.pt"))


def test_no_end_model_at_all_is_refused():
    with pytest.raises(UsageError, match="no end model is left"):
        QuantizationConfig(targets=(), tflite=False)
    assert QuantizationConfig(targets=()).tflite


@pytest.mark.parametrize(
    ("model", "title"),
    [
        (ModelConfig("zoo.models:build"), "models.build"),
        (ModelConfig("models:Zoo.build"), "models.Zoo.build"),
        (ModelConfig(backbone="efficientnet-lite0"), "efficientnet-lite0"),
    ],
)
def test_title_follows_model_unless_user_names_one(model, title):
    assert config(model=model).title == title
    assert config(model=model, output=OutputConfig(Path("out"), "Mine")).title == "Mine"


def test_preprocessing_takes_model_values_where_user_gave_none():
    mean, std = (1.0, 2.0, 3.0), (4.0, 5.0, 6.0)
    assert MODEL.preprocessing(64, mean, std) == Preprocessing(64, 64, "squash", "RGB", mean, std)
    own = ModelConfig("a:b", size=32, resize="crop", mean=(0.0,) * 3)
    expected = Preprocessing(32, 32, "crop", "RGB", (0.0,) * 3, std)
    assert own.preprocessing(64, mean, std) == expected


def test_work_folder_lies_beside_the_bundle():
    assert OutputConfig(Path("made/bundle")).work == Path("made/bundle.work")


def test_record_in_bundle_is_json_without_paths():
    made = config(
        data=DataConfig(Path("secret/photos")),
        model=ModelConfig("zoo:build", weights=Path("secret/w.pt")),
        output=OutputConfig(Path("secret/out"), "name"),
        training=TrainingConfig(seed=7, epochs=3),
        budgets=BudgetConfig(accuracy=0.01),
    ).to_json()
    assert "secret" not in json.dumps(made)
    assert (made["model"], made["seed"], made["epochs"]) == ("zoo:build", 7, 3)
    assert made["accuracy_budget"] == 0.01


def test_record_in_bundle_says_where_tuning_started_for_backbones_only():
    split = SplitConfig(tune_from="blocks.5")
    backbone = ModelConfig(backbone="efficientnet-lite0")
    assert config(split=split).to_json()["tune_from"] is None
    assert config(split=split, model=backbone).to_json()["tune_from"] == "blocks.5"
