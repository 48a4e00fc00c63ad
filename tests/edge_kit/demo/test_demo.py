from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from edge_kit.demo.comparison import HalfAnswers, second_pass
from edge_kit.demo.figures import Answer, Figures
from edge_kit.demo.page import page
from edge_kit.errors import SourceError
from edge_kit.host.child_process import ChildError, module_command
from edge_kit.host.json_process import Child
from edge_kit.pixels.jpeg import thumbnail
from edge_kit.sources.labelled import LabelledPhoto, lay_out, list_photos, pick
from edge_kit.sources.photo import read_photo
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
        save(root / name / "doubtful.png", DOUBTFUL[name])
    return root


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("demo-bundle") / "tiny"
    make_bundle(root)
    return root


def test_the_folder_of_a_photo_is_its_class(photos):
    listed = list_photos(photos, CLASSES)
    assert len(listed) == 12
    assert all(p.path.parent.name == CLASSES[p.label] for p in listed)


def test_an_unknown_class_folder_is_named_with_the_classes_there_are(tmp_path):
    save(tmp_path / "violet/a.png", (200, 0, 200))
    with pytest.raises(SourceError, match=r"violet/a\.png lies in 'violet'.*red, green, blue"):
        list_photos(tmp_path, CLASSES)


def test_a_photo_outside_a_class_folder_is_named(tmp_path):
    save(tmp_path / "a.png", (200, 0, 200))
    with pytest.raises(SourceError, match=r"a\.png lies in no class folder"):
        list_photos(tmp_path, CLASSES)


def test_a_few_photos_hold_every_class_and_are_the_same_each_time(photos):
    listed = list_photos(photos, CLASSES)
    chosen = pick(listed, 6)
    assert chosen == pick(list(listed), 6)
    assert sorted(p.label for p in chosen) == [0, 0, 1, 1, 2, 2]
    assert sorted(pick(listed, None), key=str) == sorted(listed, key=str)
    assert pick(listed, None) != listed


def test_photos_are_laid_out_in_their_order(photos, tmp_path):
    chosen = pick(list_photos(photos, CLASSES), None)
    named = lay_out(chosen, tmp_path)
    assert [named[p.name] for p in sorted(tmp_path.iterdir())] == chosen
    assert {n: (tmp_path / n).resolve() for n in named} == {
        n: p.path.resolve() for n, p in named.items()
    }


def test_the_second_pass_answers_for_each_half(photos, bundle_path):
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


def answer(like=None, **changes) -> Answer:
    plain = {
        "name": "red/a.png", "truth": 0, "device_label": 0, "cloud_label": 0, "final_label": 0,
        "tier": "device", "offloaded": False, "entropy": 0.1, "device_ms": 2.0,
        "roundtrip_ms": None, "message_bytes": 100, "jpeg_bytes": 1000,
    }  # fmt: skip
    return Answer(**(plain | (like or {}) | changes))


SENT = {"offloaded": True, "tier": "cloud", "roundtrip_ms": 10.0, "entropy": 0.9}


def figures(*answers: Answer, duplicates: int = 0) -> Figures:
    return Figures(answers, duplicates, "onnx", 0.5, "mosquitto", CLASSES)


def test_figures_count_what_was_answered_where():
    f = figures(
        answer(),
        answer(device_label=1, final_label=1, cloud_label=0, device_ms=4.0),
        answer(SENT, device_label=2, message_bytes=60),
        answer(SENT, cloud_label=1, final_label=1, roundtrip_ms=30.0, message_bytes=80),
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
        Answer.missing("red/a.png", 0, HalfAnswers(0, 0, 100, 1000)),
    ],
)
def test_an_answer_that_never_came_counts_as_lost(lost):
    assert figures(answer(), lost).lost == 1


def test_the_demo_page_lists_the_keys_of_the_object():
    text = (Path(__file__).parents[3] / "docs/demo.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert listed == list(figures(answer()).to_json())


def test_figures_of_a_run_that_sent_nothing_are_json():
    f = figures(answer()).to_json()
    assert f["bytes_per_offloaded"] is None
    assert f["latency_ms"]["roundtrip_p95"] is None
    assert json.loads(json.dumps(f)) == f
    assert "Nothing was sent" in page(figures(answer()), {})


def test_the_page_needs_no_network_and_escapes_names():
    odd = Figures([answer(SENT)], 0, "onnx", 0.5, "mosquitto", ("<b>red</b>", "green", "blue"))
    html = page(odd, {"red/a.png": b"\xff\xd8 a picture"})
    assert "&lt;b&gt;red&lt;/b&gt;" in html
    assert "<b>red</b>" not in html
    assert "data:image/jpeg;base64," in html
    assert re.findall(r"(?:src|href)=\"(?!data:)", html) == []
    assert "http" not in html


def test_a_thumbnail_keeps_its_shape(tmp_path):
    Image.new("RGB", (400, 200)).save(tmp_path / "a.png")
    thumb = tmp_path / "thumb.jpg"
    thumb.write_bytes(thumbnail(read_photo(tmp_path / "a.png"), 100))
    with Image.open(thumb) as image:
        assert image.size == (100, 50)


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_lines_of_a_child_arrive_as_events(tmp_path):
    code = 'print(\'{"event": "ready", "n": 1}\'); print(\'noise\'); print(\'{"n": 2}\')'
    with Child("it", script(code), tmp_path / "log") as child:
        assert child.wait_for("ready", 30)["n"] == 1
        assert list(child.events(30)) == [{"n": 2}]


def test_a_child_that_fails_is_quoted_and_lends_its_exit_code(tmp_path):
    code = "import sys; print('no such port', file=sys.stderr); sys.exit(6)"
    with Child("the broker", script(code), tmp_path / "log") as child:
        with pytest.raises(ChildError, match="the broker did not start: no such port") as caught:
            child.wait_for("ready", 30)
        assert caught.value.exit_code == 6
    with (
        Child("the broker", script(code), tmp_path / "log") as child,
        pytest.raises(ChildError, match="the broker failed: no such port"),
    ):
        list(child.events(30))


def test_a_child_that_hangs_is_given_up_and_ended(tmp_path):
    with Child("it", script("import time; time.sleep(600)"), tmp_path / "log") as child:
        with pytest.raises(ChildError, match="it said nothing for 0 s: it gave no reason"):
            child.wait_for("ready", 0.2)
        assert alive(child.pid)
    assert not alive(child.pid)


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    inner = "import time; time.sleep(600)"
    outer = (
        "import sys, time; from pathlib import Path; from edge_kit.host.json_process import Child;"
        f"c = Child('it', [sys.executable, '-c', {inner!r}], Path({str(tmp_path / 'log')!r}));"
        "print(c.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(script(outer), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def gone(pid: int) -> bool:
    """Wait until a process, no child of ours, has ended."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


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
def test_the_demo_runs_to_its_end_and_loses_nothing(photos, bundle_path, tmp_path):
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
def test_an_interrupted_demo_leaves_nothing_running(photos, bundle_path, tmp_path, number, code):
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
def test_a_demo_of_something_that_is_not_there_is_one_sentence(
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
