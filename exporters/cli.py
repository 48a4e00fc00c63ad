"""The commands ``edge-kit export`` and ``edge-kit calibrate``."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edge_kit.errors import MissingExtraError, UsageError
from edge_kit.terminal.progress import ProgressBars
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

if TYPE_CHECKING:
    from exporters.graph.cuts import Candidate

__all__ = ["calibrate", "export"]

_Part = TypeVar("_Part")

LISTED_CLASSES = 2  # any number does to list the cuts of a backbone without photos

EXPORT_HELP = """Make a bundle from a trained classifier and photos.

MODEL is package.module:factory: a callable without arguments that returns a trained
torch.nn.Module, (N, 3, size, size) normalized images to (N, classes) logits; the current directory
is importable. Its classes must be in the order in which the class folders sort. Without a model,
--backbone starts from a network pretrained on ImageNet.

PHOTOS holds train, validation and test folders with a folder per class each, or just a folder per
class, which is split 70/15/15 by a hash of the file names. The validation photos calibrate
quantization, temperature and threshold, and never train; the test photos are only reported.

\b
The work is kept in OUT.work: an interrupted export resumes, and only what changed is redone.

\b
Which cut --cut auto takes: of the cuts with between half of BUDGET and BUDGET
of the multiply-accumulates before them (where there are none: at most BUDGET),
those whose features are smallest behind the bottleneck; of these, those with
the fewest channels of their own; of these, the deepest.

\b
Examples:
  edge-kit export --backbone efficientnet-lite0 --data photos --out bundle
  edge-kit export shop.models:build --weights w.pt --data photos --out bundle
  edge-kit export shop.models:build --weights w.pt --list-cuts
  edge-kit export shop.models:build --data photos --out bundle --cut blocks.7
"""


CALIBRATE_HELP = """Refit temperature and threshold of BUNDLE on new photos.

They pass this board's own engine. The result is written to tuning.json; the manifest
stays as it is, so workers need nothing new.

\b
Example:
  edge-kit calibrate bundle --data new-photos
"""


def _numbers(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    """Read three numbers, or one for all channels."""
    if text is None:
        return None
    try:
        parts = tuple(float(v) for v in text.split(","))
    except ValueError:
        parts = ()
    if len(parts) not in (1, 3):
        raise click.BadParameter(f"{text!r} is not three numbers, such as 123.7,116.3,103.5")
    return parts if len(parts) == 3 else parts * 3


_PATH = click.Path(path_type=Path)
_EXPORT_OPTIONS = [
    click.option("--weights", type=_PATH, help="State dict for MODEL."),
    click.option("--backbone", metavar="NAME", help="Pretrained backbone: efficientnet-lite0."),
    click.option("--data", type=_PATH, metavar="PHOTOS", help="The photos."),
    click.option("--out", type=_PATH, help="Bundle directory to write."),
    click.option("--name", help="Model name for people."),
    click.option("--size", type=int, help="Side of the square input, pixels. Default: 224."),
    click.option("--resize", type=click.Choice(["squash", "crop"]), default=ModelConfig.resize,
                 help="Fit photos into the square by squashing, or by cropping to the centre."),
    click.option("--mean", metavar="R,G,B", callback=_numbers,
                 help="Per channel, 0 to 255. Default: ImageNet's."),
    click.option("--std", metavar="R,G,B", callback=_numbers,
                 help="Per channel, 0 to 255. Default: ImageNet's."),
    click.option("--list-cuts", is_flag=True, help="List the model's cuts and stop."),
    click.option("--cut", default=SplitConfig.cut, help="Name of the cut, or auto."),
    click.option("--tune-from", default=SplitConfig.tune_from, metavar="CUT",
                 help="Where fine-tuning of a backbone starts."),
    click.option("--budget", default=SplitConfig.budget,
                 help="Largest share of the model that auto keeps on the device."),
    click.option("--channels", type=int,
                 help="Width of the bottleneck. Default: fits the message size."),
    click.option("--message-bytes", type=float,
                 help="Mean message to train for, header included."),
    click.option("--targets", default=",".join(TARGETS),
                 help="Architectures that get an int8 ONNX end model."),
    click.option("--no-tflite", is_flag=True, help="Make no TFLite end model."),
    click.option("--cloud-weights", type=click.Choice(CLOUD_WEIGHTS),
                 default=QuantizationConfig.cloud_weights,
                 help="How the bundle stores the weights of cloud half and full model."),
    click.option("--views", default=TrainingConfig.views, help="Augmented views of each photo."),
    click.option("--epochs", type=int, help="Passes that train bottleneck, exit and tail."),
    click.option("--tail-epochs", type=int, help="Passes that train a backbone's tail before."),
    click.option("--accuracy-budget", default=BudgetConfig.accuracy,
                 help="What hybrid accuracy may lose against cloud-only when T is chosen."),
    click.option("--max-device-share", default=BudgetConfig.max_device_share,
                 help="Largest share that the device may answer itself when T is chosen."),
    click.option("--size-ratio", default=BudgetConfig.size_ratio,
                 help="How many times smaller than float an int8 end model must be."),
    click.option("--reference-photos", default=DataConfig.reference_photos,
                 help="Labelled test photos that the bundle carries for edge-kit bench."),
    click.option("--seed", default=TrainingConfig.seed, help="Fixes everything random."),
    click.option("--processes", type=int, help="Worker processes. Default: one a core."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end."),
]  # fmt: skip
_CALIBRATE_OPTIONS = [
    click.option("--data", type=_PATH, metavar="PHOTOS", required=True,
                 help="A folder of photos per class, as this board's camera takes them."),
    click.option("--split", metavar="NAME",
                 help="Split to calibrate, and to run from then on; default: the tuned one."),
    click.option("--engine", type=click.Choice(["auto", "onnx", "tflite"]), default="auto",
                 help="Engine of the end model."),
    click.option("--accuracy-budget", default=BudgetConfig.accuracy,
                 help="What hybrid accuracy may lose against cloud-only."),
    click.option("--max-device-share", default=BudgetConfig.max_device_share,
                 help="Largest share that the device may answer itself when T is chosen."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
]  # fmt: skip
_SHOW_DEFAULTS = {"show_default": True}


def _with(options: list[Any]) -> Callable[[Callable[..., None]], Any]:
    """Add options to a command, in their order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


@click.command(help=EXPORT_HELP, context_settings=_SHOW_DEFAULTS)
@click.argument("model", required=False)
@_with(_EXPORT_OPTIONS)
def export(list_cuts: bool, as_json: bool, **given: Any) -> None:
    """Make a bundle, or list cuts."""
    model = _part(ModelConfig, given, factory=given["model"])
    split = _part(SplitConfig, given)
    if list_cuts:
        _need_torch()
        _list_cuts(model, split, as_json)
        return
    for flag in ("data", "out"):
        if given[flag] is None:
            raise UsageError(f"an export needs --{flag}", "see edge-kit export --help")
    targets = tuple(t.strip() for t in given.pop("targets").split(",") if t.strip())
    config = ExportConfig(
        data=_part(DataConfig, given, folder=given["data"]),
        model=model,
        output=_part(OutputConfig, given, folder=given["out"]),
        split=split,
        training=_part(TrainingConfig, given),
        quantization=_part(
            QuantizationConfig, given, targets=targets, tflite=not given["no_tflite"]
        ),
        budgets=_part(BudgetConfig, given, accuracy=given["accuracy_budget"]),
    )
    _need_torch()
    from exporters.pipeline import export as run

    with ProgressBars() as progress:
        result = run(config, progress)
    figures = dict(result.figures)
    if as_json:
        answer = {"bundle": str(result.bundle.root), "report": str(result.report), **figures}
        click.echo(json.dumps(answer))
        return
    click.echo(_summary(figures["test"]))


@click.command(help=CALIBRATE_HELP, context_settings=_SHOW_DEFAULTS)
@click.argument("bundle", type=_PATH)
@_with(_CALIBRATE_OPTIONS)
def calibrate(
    bundle: Path, accuracy_budget: float, max_device_share: float, as_json: bool, **given: Any
) -> None:
    """Refit a bundle's exit rule."""
    from exporters.recalibrate import recalibrate

    with ProgressBars() as progress:
        result = recalibrate(
            bundle,
            budget=accuracy_budget,
            max_share=max_device_share,
            tick=lambda done, total: progress.step("photos", done, total),
            **given,
        )
    if as_json:
        click.echo(json.dumps(result.to_json()))
        return
    rule, chosen = result.fitted.rule, result.fitted.chosen
    click.echo(
        f"T {result.old_threshold:.4f} -> {rule.threshold:.4f}, temperature "
        f"{result.old_temperature:.3f} -> {rule.temperature:.3f}, fitted on {result.photos} photos "
        f"with {result.engine}\n"
        f"on them: {chosen.device_share:.0%} answered here, hybrid top-1 {chosen.accuracy:.3f}, "
        f"device alone {result.fitted.device_accuracy:.3f}, "
        f"cloud alone {result.fitted.cloud_accuracy:.3f}"
    )


def _part(kind: type[_Part], given: dict[str, Any], **more: Any) -> _Part:
    """Make one part of the configuration from the options that are named like its fields."""
    names = {f.name for f in fields(kind)} - more.keys()  # type: ignore[arg-type]
    return kind(**{name: given[name] for name in names}, **more)


def _need_torch() -> None:
    for module, package in (("torch", "torch"), ("onnx", "onnx")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, "export", "edge-kit export")


def _list_cuts(model: ModelConfig, split: SplitConfig, as_json: bool) -> None:
    from exporters.graph.cuts import choose, find_cuts
    from exporters.graph.plan import SORTING_CHANNELS, load_classifier

    traced = load_classifier(model, LISTED_CLASSES).trace()
    cuts = find_cuts(traced)
    channels = split.channels or SORTING_CHANNELS
    chosen = choose(cuts, split.cut, budget=split.budget, channels=channels)
    if as_json:
        rows = [{**c.to_json(), "chosen": c is chosen} for c in cuts]
        click.echo(json.dumps({"cuts": rows, "macs": traced.macs}))
        return
    click.echo(_table(cuts, chosen, channels))


def _table(cuts: tuple[Candidate, ...], chosen: Candidate, channels: int) -> str:
    width = max(len("cut"), *(len(c.name) for c in cuts))
    behind = f"behind {channels} ch"
    lines = [f"  {'cut':<{width}}  {'shape':>14}  {'int8 bytes':>10}  {behind:>12}  {'MACs':>5}"]
    for c in cuts:
        mark = ">" if c is chosen else " "
        shape = " x ".join(str(s) for s in c.shape)
        lines.append(
            f"{mark} {c.name:<{width}}  {shape:>14}  {c.nbytes:>10,}  "
            f"{c.sent(channels):>12,}  {c.macs_share:>5.1%}"
        )
    return "\n".join(lines)


def _summary(test: dict[str, Any]) -> str:
    lines = [f"test split, {test['photos']} photos, 95 % intervals in brackets:"]
    for name, share in test["accuracy"].items():
        lines.append(f"  {name:<7} top-1 {_share(share)}")
    lines.append(f"  answered on the device {_share(test['device_share'])}")
    if test["bytes_per_offloaded"]:
        lines.append(
            f"  {test['bytes_per_offloaded']:,.0f} bytes a message, JPEG quality 75 "
            f"{test['jpeg_bytes']:,.0f}: {test['jpeg_ratio']:.1f} times smaller"
        )
    return "\n".join(lines)


def _share(share: dict[str, float]) -> str:
    return f"{share['value']:.1%} ({share['low']:.1%} to {share['high']:.1%})"
