"""Where a traced classifier can be split: the points that a single tensor crosses."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from edge_kit.errors import ExportError, UsageError
from exporters.graph.passes import BATCH
from exporters.graph.trace import Traced

__all__ = ["Candidate", "choose", "find_cuts", "split"]

FLOOR = 0.5  # of the budget, what `auto` puts on the device at least where a cut allows it


@dataclass(frozen=True)
class Candidate:
    """One possible cut.

    Attributes:
        name: The outermost module that ends there, such as ``blocks.7``, or the operation.
        aliases: The other modules that end there.
        node: Name of the graph node whose output crosses.
        shape: (channels, height, width) of that output.
        macs_before: Multiply-accumulates of one sample up to and including it.
        macs_share: The same as a share of the whole model, 0 to 1.
    """

    name: str
    aliases: tuple[str, ...]
    node: str
    shape: tuple[int, int, int]
    macs_before: int
    macs_share: float

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's features as int8, without a bottleneck."""
        return math.prod(self.shape)

    def sent(self, channels: int) -> int:
        """Bytes of one sample's features as int8 behind a bottleneck of `channels`."""
        return min(channels, self.shape[0]) * self.shape[1] * self.shape[2]

    def __str__(self) -> str:
        shape = " x ".join(str(s) for s in self.shape)
        return f"{self.name}: {shape}, {self.macs_share:.0%} of the model"

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``--list-cuts --json`` prints."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "bytes": self.nbytes,
            "macs_before": self.macs_before,
            "macs_share": self.macs_share,
        }


def find_cuts(traced: Traced) -> tuple[Candidate, ...]:
    """Return the usable cuts, shallow to deep.

    A cut is a node whose output, a map of more than one pixel, is all that later nodes need of
    earlier ones. Of cuts with no multiply-accumulate between them (a convolution, its norm, its
    activation) only the one with the fewest bytes is kept, the last of equals.

    Raises:
        ExportError: There is none.
    """
    graph = traced.module.graph
    nodes = _on_path(graph)
    recording = traced.recording
    total = max(1, traced.macs)
    place = {n: i for i, n in enumerate(nodes)}
    last_use = {n: max((place.get(u, -1) for u in n.users), default=-1) for n in nodes}
    found: list[Candidate] = []
    alive: set[fx.Node] = set()
    before = 0
    names: dict[str, int] = {}
    for i, node in enumerate(nodes[:-1]):
        alive = {n for n in alive if last_use[n] > i}
        if last_use[node] > i:
            alive.add(node)
        before += recording.macs.get(node.name, 0)
        if alive != {node} or not _is_map(traced, node):
            continue
        _, *shape = recording.values[node.name]
        first, *rest = _names(node, nodes[i + 1])
        name = _unique(first, names)
        triple, share = _triple(shape), before / total
        candidate = Candidate(name, tuple(rest), node.name, triple, before, share)
        if found and found[-1].macs_before == before:
            if candidate.nbytes > found[-1].nbytes:
                continue
            found.pop()
        found.append(candidate)
    found = [c for c in found if 0 < c.macs_before < traced.macs]
    if not found:
        raise ExportError(
            "the model has no usable cut: at no point does a single feature map cross",
            "long skip connections or parallel branches span it from end to end, or it has dense "
            "layers alone; export a convolutional model made of blocks",
        )
    return tuple(found)


def choose(
    candidates: Sequence[Candidate], wanted: str, *, budget: float = 0.5, channels: int = 12
) -> Candidate:
    """Pick a cut by name, or by rule when `wanted` is ``auto``.

    The rule: of the cuts with between half of `budget` and `budget` of the model's
    multiply-accumulates before them (where there are none: with at most `budget`), those whose
    features are smallest once a bottleneck has narrowed them to `channels`; of these, those with
    the fewest channels of their own (wider ones lie inside an expanded block); of these, the
    deepest. Without the lower bound a network that keeps widening would be cut behind its first
    layer. On EfficientNet-Lite0 the rule takes the eighth block.

    Args:
        candidates: From `find_cuts`.
        wanted: ``auto`` or a name; leading underscores may be left out.
        budget: Share of multiply-accumulates, 0 to 1.
        channels: Bottleneck width.

    Raises:
        UsageError: No cut has that name.
        ExportError: Every cut is over the budget.
    """
    if wanted != "auto":
        return _named(candidates, wanted)
    fit = [c for c in candidates if c.macs_share <= budget]
    if not fit:
        least = min(candidates, key=lambda c: c.macs_share)
        raise ExportError(
            f"no cut has at most {budget:.0%} of the model before it; the shallowest, "
            f"{least.name}, has {least.macs_share:.0%}",
            "raise --budget or name a cut with --cut",
        )
    fit = [c for c in fit if c.macs_share >= FLOOR * budget] or fit
    fewest = min(c.sent(channels) for c in fit)
    fit = [c for c in fit if c.sent(channels) == fewest]
    narrowest = min(c.shape[0] for c in fit)
    return [c for c in fit if c.shape[0] == narrowest][-1]


def split(traced: Traced, cut: Candidate) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut the graph in two.

    Returns:
        The trunk (images to features), which shares its weights with the model, and the tail
        (features to logits), which has its own copy so that training it leaves the model alone.

    Raises:
        ExportError: The halves in a row do not give exactly what the whole gives.
    """
    trunk = _part(traced.module, None, cut.node)
    tail = copy.deepcopy(_part(traced.module, cut.node, None))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        batch = torch.randn(2, *traced.input_shape)
        same = torch.equal(tail(trunk(batch)), traced(batch))
    if not same:
        raise ExportError(
            f"split at {cut.name}, the two halves do not give what the whole model gives",
            "a layer behind the cut changes a tensor in place; choose another cut",
        )
    return trunk.eval(), tail.eval()


def _on_path(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that depend on the image and lead to the output, in order.

    Parameters, and what is computed from parameters alone, can be had on both sides; the batch
    size can be read from any tensor.
    """
    depends: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        inputs = [n for n in node.all_input_nodes if BATCH not in n.meta]
        depends[node] = node.op == "placeholder" or any(depends[n] for n in inputs)
    wanted: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or any(u in wanted for u in node.users):
            wanted.add(node)
    return [n for n in graph.nodes if depends[n] and n in wanted and BATCH not in n.meta]


def _is_map(traced: Traced, node: fx.Node) -> bool:
    if node.op == "placeholder" or node.name not in traced.recording.tensors:
        return False
    shape = traced.recording.values[node.name]
    return len(shape) == 4 and shape[0] == 1 and shape[2] * shape[3] > 1


def _triple(shape: Sequence[int]) -> tuple[int, int, int]:
    channels, height, width = shape
    return channels, height, width


def _modules(node: fx.Node) -> list[str]:
    """Return the paths of the modules that a node lies in, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(v[0] if isinstance(v, tuple) else v) for v in stack.values()]
    return [p for p in paths if p and p != "L['self']"]


def _names(node: fx.Node, following: fx.Node) -> list[str]:
    """Return the modules that end with a node, outermost first, or its own name."""
    after = set(_modules(following))
    return [path for path in _modules(node) if path not in after] or [node.name]


def _unique(name: str, seen: dict[str, int]) -> str:
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def _named(candidates: Sequence[Candidate], wanted: str) -> Candidate:
    def bare(name: str) -> str:
        return ".".join(part.lstrip("_") for part in name.split("."))

    for match in (str, bare):
        hits = [c for c in candidates if match(wanted) in map(match, (c.name, *c.aliases))]
        if len(hits) == 1:
            return hits[0]
    near = ", ".join(c.name for c in candidates[:12])
    more = f" and {len(candidates) - 12} more" if len(candidates) > 12 else ""
    raise UsageError(f"there is no cut named {wanted!r}", f"--list-cuts shows them: {near}{more}")


def _part(module: fx.GraphModule, start: str | None, stop: str | None) -> fx.GraphModule:
    """Copy what lies behind node `start` (None: all), up to node `stop` (None: the output)."""
    by_name = {n.name: n for n in module.graph.nodes}
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    if start is None:
        image = next(n for n in module.graph.nodes if n.op == "placeholder")
        source = copied[image] = graph.placeholder("image")
    else:
        source = copied[by_name[start]] = graph.placeholder("features")
    goal = by_name[stop] if stop else module.graph.output_node().args[0]
    assert isinstance(goal, fx.Node)
    for node in _ancestors(goal, set(copied)):
        if BATCH in node.meta:
            copied[node] = graph.call_method("size", (source, 0))
        else:
            copied[node] = graph.node_copy(node, lambda n: copied[n])
    graph.output(copied[goal])
    graph.lint()
    return fx.GraphModule(module, graph)


def _ancestors(goal: fx.Node, known: set[fx.Node]) -> list[fx.Node]:
    """Return what `goal` needs beyond `known`, in graph order; the batch size needs nothing."""
    needed: set[fx.Node] = set()
    pending = [goal]
    while pending:
        node = pending.pop()
        if node in needed or node in known:
            continue
        needed.add(node)
        if BATCH not in node.meta:
            pending.extend(node.all_input_nodes)
    return [n for n in goal.graph.nodes if n in needed]
