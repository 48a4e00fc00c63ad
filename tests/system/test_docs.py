"""The pages under docs/ say what the code does, and link to what exists."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest

import cloud_kit.cli
import edge_kit.cli
from edge_kit.bundle.tuning import Tuning
from tests.support.tiny import make_bundle

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def keys(text: str, after: str) -> set[str]:
    """Return the names in the first column of the first table after `after`."""
    table = text.split(after, 1)[1].split("|---", 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_bundle_page_names_the_keys_of_the_code(tmp_path):
    text = (ROOT / "docs/bundle-format.md").read_text(encoding="utf-8")
    manifest = make_bundle(tmp_path / "tiny").manifest.to_json()
    (split,) = manifest["splits"]
    assert keys(text, "## manifest.json") == set(manifest)
    assert keys(text, "### preprocessing") == set(manifest["preprocessing"])
    assert keys(text, "### splits") == set(split)
    assert keys(text, "### a tensor") == set(split["features"])
    assert keys(text, "### model files") == set(split["end"][0])
    assert keys(text, "### exit and curve") == set(split["exit"])
    assert keys(text, "key of a `curve` point") == set(split["curve"][0])
    assert keys(text, "### costs") == set(split["costs"])
    assert keys(text, "## tuning.json") == {f.name for f in fields(Tuning)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    missing = [to for to in links if "://" not in to and not (page.parent / to).exists()]
    assert missing == []


def test_every_dependency_is_justified():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.match(r"[\w-]+", w)[0] for w in wanted} - {"edge-kit"}
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE))))
    assert names - listed == set()


@pytest.mark.parametrize("package", ["edge_kit", "cloud_kit", "exporters", "boards"])
def test_architecture_page_lists_the_layers_that_the_linter_holds(package):
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    contract = next(c for c in contracts if c.get("containers") == [package])
    assert contract["exhaustive"] is True
    held = [set(re.findall(r"\w+", layer)) for layer in reversed(contract["layers"])]
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split(f"## {package}\n", 1)[1].split("\n## ", 1)[0]
    items = re.findall(r"^\d+\. (.+?)(?=^\d+\. |\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert [set(re.findall(r"`(\w+)`", item)) for item in items] == held


def test_readme_commands_have_the_options_shown():
    groups = {"edge-kit": edge_kit.cli.cli, "cloud-kit": cloud_kit.cli.cli}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (?:\S*/)?((?:edge|cloud)-kit) ([^#\n]+)", text, re.MULTILINE)
    assert len(lines) >= 6
    for program, rest in lines:
        command, words = groups[program], rest.split()
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        known = {option for p in command.params for option in p.opts}
        assert {w for w in words if w.startswith("--")} <= known, rest
