"""The demo: its figures, its page, and whole runs."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from edge_kit.demo.comparison import HalfAnswers, second_pass
from edge_kit.demo.figures import Answer, Figures
from edge_kit.demo.page import page
from edge_kit.host.child_process import module_command
from edge_kit.sources.labelled import LabelledPhoto, list_photos
from tests.support.html import assert_standalone
from tests.support.processes import gone
from tests.support.tiny import CLASSES, SIZE, make_bundle

SURE = {"red": (250, 5, 5), "green": (5, 250, 5), "blue": (5, 5, 250)}


DOUBTFUL = {"red": (130, 120, 120), "green": (120, 130, 120), "blue": (120, 120, 130)}


def save(path: Path, colour: tuple[int, int, int], size: int = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Four photos a class: three that the device is sure of, one that it is not."""
    root = tmp_path_factory.mktemp("photos")
    for name in CLASSES:
        for i in range(3):
            save(root / name / f"sure{i}.png", SURE[name], SIZE * (1 + i))
        save(root / name / "low_confidence.png", DOUBTFUL[name])
    return root


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("demo-bundle") / "tiny"
    make_bundle(root)
    return root


def test_second_pass_answers_for_each_half(photos, bundle_path):
    from edge_kit.bundle import Bundle

    listed = list_photos(photos, CLASSES)
    unreadable = LabelledPhoto(photos / "broken.png", 0)
    unreadable.path.write_bytes(b"no photo")
    done: list[int] = []
    try:
        second = second_pass(Bundle.open(bundle_path), [*listed, unreadable], "auto", done.append)
    finally:
        unreadable.path.unlink()
    found = second.photos
    assert second.engine == "onnx"
    assert found[-1] is None
    assert [r.cloud_label for r in found[:-1]] == [p.label for p in listed]
    assert [r.device_label for r in found[:-1]] == [p.label for p in listed]
    assert all(r.message_bytes > 57 and r.jpeg_bytes > 200 for r in found[:-1])
    assert done[-1] == len(found)


def answer(like=None, device=0, cloud=0, size=100, **changes) -> Answer:
    plain = {"final_label": 0, "entropy": 0.1, "device_ms": 2.0} | (like or {}) | changes
    return Answer("red/a.png", 0, HalfAnswers(device, cloud, size, 1000), **plain)


SENT = {"offloaded": True, "tier": "cloud", "roundtrip_ms": 10.0, "entropy": 0.9}


def figures(*answers: Answer, duplicates: int = 0) -> Figures:
    return Figures(answers, duplicates, "onnx", 0.5, "mosquitto", CLASSES)


def test_figures_count_answers_by_half():
    f = figures(
        answer(),
        answer(device=1, final_label=1, device_ms=4.0),
        answer(SENT, device=2, size=60),
        answer(SENT, cloud=1, size=80, final_label=1, roundtrip_ms=30.0),
    ).to_json()
    assert f["photos"] == 4
    assert f["device_share"] == 0.5
    assert f["accuracy"] == {"device": 0.5, "cloud": 0.75, "hybrid": 0.5}
    assert f["bytes_per_offloaded"] == 70
    assert f["jpeg_bytes"] == 1000
    assert f["latency_ms"]["device_p50"] == 2
    assert f["latency_ms"]["roundtrip_p50"] == 20
    assert f["lost"] == 0


@pytest.mark.parametrize(
    "lost",
    [
        answer(final_label=None),
        answer(SENT, tier="device"),
        Answer("red/a.png", 0, HalfAnswers(0, 0, 100, 1000)),
    ],
)
def test_missing_answer_counts_as_lost(lost):
    assert figures(answer(), lost).lost == 1


def test_docs_list_the_keys_of_the_json_object():
    text = (Path(__file__).parents[3] / "docs/demo.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert listed == list(figures(answer()).to_json())


def test_figures_without_messages_are_json():
    f = figures(answer()).to_json()
    assert f["bytes_per_offloaded"] is None
    assert f["latency_ms"]["roundtrip_p95"] is None
    assert json.loads(json.dumps(f)) == f
    assert "Nothing was sent" in page(figures(answer()), {})


def test_page_is_standalone_and_escapes_names():
    odd = Figures([answer(SENT)], 0, "onnx", 0.5, "mosquitto", ("<b>red</b>", "green", "blue"))
    html = page(odd, {"red/a.png": b"\xff\xd8 a picture"})
    assert "&lt;b&gt;red&lt;/b&gt;" in html
    assert "<b>red</b>" not in html
    assert "data:image/jpeg;base64," in html
    assert_standalone(html)


def demo(*arguments: str) -> list[str]:
    return module_command("edge_kit.cli", "demo", *arguments)


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, whatever session they are in."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found, todo = [], [pid]
    while todo:
        above = todo.pop()
        below = [child for child, parent in parents.items() if parent == above]
        found += below
        todo += below
    return found


KEYS = {
    "photos", "device_share", "accuracy", "bytes_per_offloaded", "jpeg_bytes", "latency_ms",
    "lost", "duplicates", "engine", "threshold",
}  # fmt: skip


@pytest.mark.broker
def test_demo_runs_to_its_end_and_loses_nothing(photos, bundle_path, tmp_path):
    report = tmp_path / "report/index.html"
    done = subprocess.run(
        demo(
            "--bundle", str(bundle_path), "--photos", str(photos), "--fps", "50", "--json",
            "--report", str(report),
        ),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    assert result["photos"] == 12
    assert result["lost"] == 0
    assert result["device_share"] == 0.75
    assert result["accuracy"] == {"device": 1.0, "cloud": 1.0, "hybrid": 1.0}
    assert result["engine"] == "onnx"
    assert result["latency_ms"]["roundtrip_p50"] > 0
    assert result["bytes_per_offloaded"] > 57
    assert report.read_text(encoding="utf-8").count("data:image/jpeg") == 12


@pytest.mark.broker
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_interrupted_demo_leaves_nothing_running(photos, bundle_path, tmp_path, number, code):
    # In the background of a shell SIGINT is ignored, and children inherit that.
    plainly = ["env", "--default-signal=INT"]
    process = subprocess.Popen(
        [
            *plainly,
            *demo(
                "--bundle", str(bundle_path), "--photos", str(photos), "--fps", "0.5",
                "--report", str(tmp_path / "index.html"),
            ),
        ],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("classifying"):
            break
    running = descendants(process.pid)
    assert len(running) >= 4  # broker, mosquitto, worker, device
    process.send_signal(number)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert [pid for pid in running if not gone(pid)] == []


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--bundle", "{tmp}/none", "--photos", "{photos}"], "no bundle at", 3),
        (["--bundle", "{bundle}", "--photos", "{tmp}"], "holds no photo", 5),
        (["--bundle", "{bundle}", "--photos", "{photos}", "--fps", "0"], "--fps", 2),
    ],
)
def test_demo_without_bundle_or_photos_is_refused_in_one_sentence(
    photos, bundle_path, tmp_path, arguments, words, code
):
    names = {"tmp": tmp_path, "photos": photos, "bundle": bundle_path}
    done = subprocess.run(
        demo(*(a.format(**names) for a in arguments)),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code
