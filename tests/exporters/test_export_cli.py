"""The whole export on a tiny model: command line, bundle, resumption, gates, refit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")

from edge_kit.bundle import Bundle  # noqa: E402
from edge_kit.bundle.labelled_photos import INDEX, read_reference  # noqa: E402
from edge_kit.errors import (  # noqa: E402
    BundleError,
    EdgeKitError,
    ExportError,
    GateError,
    UsageError,
)
from edge_kit.pixels.preprocess import Preprocessor  # noqa: E402
from edge_kit.sources.photo import read_photo  # noqa: E402
from exporters.cli import calibrate, export  # noqa: E402
from exporters.config import (  # noqa: E402
    BudgetConfig,
    DataConfig,
    ExportConfig,
    ModelConfig,
    OutputConfig,
    QuantizationConfig,
    SplitConfig,
    TrainingConfig,
)
from exporters.pipeline import export as run_export  # noqa: E402
from exporters.progress import SilentProgress  # noqa: E402
from tests.support.export import shapes  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.slow]

STAGES = {
    "photos",
    "features-trunk",
    "features",
    "halves",
    "pixels",
    "end-float.onnx",
    "end-x86_64.onnx",
    "end.tflite",
    "tail.onnx",
    "full.onnx",
    "outcome-validation",
    "outcome-test",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("shapes")
    shapes.write_photos(root / "data")
    torch.save(shapes.trained(root / "data").state_dict(), root / "w.pt")
    return root


@pytest.fixture(scope="module")
def arguments(folder):
    return [
        *(
            "tests.support.export.shapes:build",
            "--weights",
            str(folder / "w.pt"),
            "--size",
            str(shapes.SIZE),
        ),
        *("--data", str(folder / "data"), "--out", str(folder / "bundle")),
        *("--mean", "128", "--std", "128", "--cut", "down", "--channels", "8"),
        *("--views", "2", "--epochs", "8", "--processes", "1", "--message-bytes", "200"),
        *("--targets", "x86_64", "--size-ratio", "1.5"),
    ]


@pytest.fixture(scope="module")
def answer(arguments):
    """One whole export; the JSON object that it printed."""
    done = CliRunner().invoke(export, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def failure(arguments) -> EdgeKitError:
    done = CliRunner().invoke(export, arguments)
    assert isinstance(done.exception, EdgeKitError), done.output
    return done.exception


def test_export_writes_bundle_that_opens(answer, folder):
    bundle = Bundle.open(folder / "bundle")
    manifest = bundle.manifest
    assert manifest.classes == shapes.CLASSES
    assert bundle.split.name == "down"
    assert bundle.split.features.shape == (8, 8, 8)
    roles = sorted((f.role, f.engine) for f in manifest.engines)
    assert roles == [("end", "onnx"), ("end", "tflite"), ("full", "onnx"), ("tail", "onnx")]
    assert manifest.preprocessing.mean == shapes.MEAN
    assert len(bundle.split.curve) > 3
    costs = bundle.split.costs
    assert costs.photos == manifest.figures["test"]["photos"]
    assert costs.hybrid_accuracy == manifest.figures["test"]["accuracy"]["hybrid"]["value"]
    assert 0 < costs.message_bytes_mean <= costs.message_bytes_p99
    assert costs.device_macs / (costs.device_macs + costs.cloud_macs) == pytest.approx(
        bundle.split.macs_share
    )
    assert "report.html" in manifest.files


def test_bundle_carries_photos_of_test_split_only(answer, folder):
    bundle = Bundle.open(folder / "bundle")
    named = json.loads((bundle.root / INDEX).read_text(encoding="utf-8"))["photos"]
    assert len(named) == 72 and all(row["name"].startswith("test/") for row in named)
    labelled = read_reference(bundle)
    for photo, row in zip(labelled.photos, named, strict=True):
        assert row["name"].split("/")[1] == bundle.manifest.classes[photo.label]
        assert read_photo(photo.path).shape == (shapes.SIZE, shapes.SIZE, 3)


def test_accuracy_after_split_stays(answer):
    accuracy = answer["test"]["accuracy"]
    assert accuracy["full"]["value"] > 0.9
    assert accuracy["hybrid"]["value"] > 0.8
    assert accuracy["hybrid"]["low"] < accuracy["hybrid"]["value"] <= accuracy["hybrid"]["high"]
    assert 0 < answer["test"]["bytes_per_message"] < answer["test"]["jpeg_bytes"]


def test_manifest_lists_every_gate_and_none_failed(answer):
    names = [g["name"] for g in answer["gates"]]
    assert "split parity" in names
    assert any("tflite" in n.lower() for n in names)
    assert all(g["ok"] in (True, None) for g in answer["gates"])


def config_of(folder, out="bundle", weights="w.pt", **changes) -> ExportConfig:
    parts = {
        "data": DataConfig(folder / "data"),
        "model": ModelConfig(
            "tests.support.export.shapes:build",
            folder / weights,
            size=shapes.SIZE,
            mean=shapes.MEAN,
            std=shapes.STD,
        ),
        "output": OutputConfig(folder / out),
        "split": SplitConfig(cut="down", channels=8),
        "training": TrainingConfig(views=2, epochs=8, processes=1, message_bytes=200.0),
        "quantization": QuantizationConfig(("x86_64",)),
        "budgets": BudgetConfig(size_ratio=1.5),
    }
    return ExportConfig(**(parts | changes))


def reused(progress: SilentProgress) -> set[str]:
    return {line.split(":")[0] for line in progress.lines if line.endswith("reused")}


def test_second_run_reuses_every_stage(answer, folder):
    before = Bundle.open(folder / "bundle").manifest
    progress = SilentProgress()
    result = run_export(config_of(folder, data=DataConfig(folder / "data", 6)), progress)
    assert reused(progress) == STAGES  # the photos that come along are no stage's input
    labelled = read_reference(result.bundle)
    assert [p.label for p in labelled.photos] == [0, 0, 1, 1, 2, 2]
    assert result.bundle.manifest.engines == before.engines
    assert result.bundle.manifest.model_hash == before.model_hash
    assert result.bundle.manifest.splits == before.splits
    photos = sorted((folder / "data" / "test" / "circle").iterdir())
    preprocess = Preprocessor(result.bundle.manifest.preprocessing)
    pixels = np.stack([preprocess(read_photo(p)) for p in photos])
    answers = result(pixels)
    assert answers.labels.shape == answers.exits.shape == (len(photos),)
    assert (answers.labels == 0).mean() > 0.6


def test_changed_weight_storage_redoes_cloud_files_only(answer, folder):
    shutil.copytree(folder / "bundle.work", folder / "other.work")
    progress = SilentProgress()
    storage = QuantizationConfig(("x86_64",), cloud_weights="fp32")
    run_export(config_of(folder, out="other", quantization=storage), progress)
    redone = STAGES - reused(progress)
    assert redone == {"tail.onnx", "full.onnx", "outcome-validation", "outcome-test"}


def test_changed_tail_weights_retrain_halves(answer, folder):
    shutil.copytree(folder / "bundle.work", folder / "tuned.work")
    state = torch.load(folder / "w.pt", weights_only=True)
    state["fc.bias"] = state["fc.bias"] + 0.5
    torch.save(state, folder / "tuned.pt")
    progress = SilentProgress()
    run_export(config_of(folder, weights="tuned.pt", out="tuned"), progress)
    assert reused(progress) == {"photos", "features-trunk", "features", "pixels"}


def test_failed_gate_names_figure_and_leaves_report(answer, folder):
    shutil.copytree(folder / "bundle.work", folder / "strict.work")
    config = config_of(folder, out="strict", budgets=BudgetConfig(size_ratio=50.0))
    with pytest.raises(GateError, match=r"int8 size ratio, ONNX for x86_64 is .* budget is 50"):
        run_export(config, SilentProgress())
    assert not (folder / "strict").exists()
    assert "failed" in (folder / "strict.work" / "report.html").read_text()


def test_list_cuts_runs_without_data_and_out(arguments):
    names = ["tests.support.export.shapes:build", "--size", "32", "--list-cuts"]
    table = CliRunner().invoke(export, names, catch_exceptions=False).stdout
    assert [line.split()[-5] for line in table.splitlines()[1:]]
    assert any(line.startswith(">") for line in table.splitlines())
    cuts = json.loads(CliRunner().invoke(export, [*names, "--json"]).stdout)["cuts"]
    assert [c["name"] for c in cuts][:3] == ["stem", "mix", "down"]
    assert sum(c["chosen"] for c in cuts) == 1


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (["--weights", "missing.pt"], ExportError, "no weights at missing.pt"),
        (["--cut", "nowhere"], UsageError, "no cut named 'nowhere'"),
        (["--targets", "sparc"], UsageError, "'sparc' is not one of"),
        (["--targets", "", "--no-tflite"], UsageError, "no end model is left"),
        (["--backbone", "efficientnet-lite0"], UsageError, "either a MODEL"),
        (["--size", "3"], UsageError, "outside 16 to 1024"),
        (["--data", "missing"], ExportError, "no folder of photos at missing"),
    ],
)
def test_bad_flag_says_why(arguments, change, kind, said, tmp_path):
    error = failure([*arguments, *change, "--out", str(tmp_path / "b")])
    assert isinstance(error, kind)
    assert said in str(error)
    assert error.exit_code == kind.exit_code
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("out", [".", "/", ".."])
def test_out_without_folder_name_is_refused(arguments, out):
    error = failure([*arguments, "--out", out])
    assert isinstance(error, UsageError)
    assert "names no directory of its own" in str(error)


def test_occupied_out_is_refused_before_work(arguments, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not a bundle" in str(failure([*arguments, "--out", str(tmp_path)]))
    assert not tmp_path.with_name(tmp_path.name + ".work").exists()


def test_missing_flag_or_bad_number_says_why():
    assert "needs --data" in str(failure(["tests.support.export.shapes:build", "--out", "x"]))
    done = CliRunner().invoke(export, ["m:f", "--list-cuts", "--mean", "1,2"])
    assert done.exit_code == 2
    assert "not three numbers" in done.output


def test_class_count_that_differs_from_model_is_refused(arguments, folder, tmp_path):
    shutil.copytree(folder / "data", tmp_path / "data")
    for split in ("train", "validation", "test"):
        shutil.rmtree(tmp_path / "data" / split / "cross")
    error = failure([*arguments, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "b")])
    assert "the model has 3 classes, the photos have 2" in str(error)


def test_help_shows_examples():
    text = CliRunner().invoke(export, ["--help"]).stdout
    assert "edge-kit export --backbone efficientnet-lite0" in text
    assert "deepest" in text


def test_calibrate_refits_rule_and_keeps_engine_files(answer, folder, tmp_path):
    shutil.copytree(folder / "bundle", tmp_path / "bundle")
    shapes.write_photos(tmp_path / "new", train=1, held=12, seed=9)
    manifest = (tmp_path / "bundle" / "manifest.json").read_bytes()
    done = CliRunner().invoke(
        calibrate,
        [
            *(str(tmp_path / "bundle"), "--data", str(tmp_path / "new" / "test")),
            *("--engine", "onnx", "--json"),
        ],
        catch_exceptions=False,
    )
    told = json.loads(done.stdout)
    after = Bundle.open(tmp_path / "bundle")
    assert told["photos"] == 36
    assert (after.root / "manifest.json").read_bytes() == manifest
    assert after.rule.threshold == told["threshold"]["new"]
    assert after.rule.temperature == told["temperature"]["new"]
    assert after.curve != after.split.curve
    assert not list((tmp_path / "bundle").glob("*.part"))


def test_calibrate_with_unusable_input_says_why(answer, folder, tmp_path):
    def refused(*arguments) -> BaseException | None:
        return CliRunner().invoke(calibrate, [str(a) for a in arguments]).exception

    bundle = folder / "bundle"
    manifest = (bundle / "manifest.json").read_bytes()
    (tmp_path / "few" / "circle").mkdir(parents=True)
    assert isinstance(refused(bundle, "--data", tmp_path / "few"), ExportError)
    (tmp_path / "few" / "star").mkdir()
    (tmp_path / "few" / "star" / "a.png").write_bytes(b"photo")
    assert "lies in no class folder" in str(refused(bundle, "--data", tmp_path / "few"))
    (tmp_path / "packed.ekb").write_bytes(b"zip")
    packed = refused(tmp_path / "packed.ekb", "--data", tmp_path / "few")
    assert isinstance(packed, BundleError)
    assert (bundle / "manifest.json").read_bytes() == manifest
