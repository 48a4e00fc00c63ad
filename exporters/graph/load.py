"""Load the trained classifier that a user names, and its weights."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edge_kit.errors import ExportError, UsageError

__all__ = ["blame", "load_model", "load_weights"]

MAX_NAMED = 3


def load_model(spec: str, weights: Path | None = None) -> nn.Module:
    """Import and build the classifier that `spec` names, in eval mode.

    Args:
        spec: ``package.module:factory``; the attribute is a callable without arguments that
            returns a `torch.nn.Module`, or such a module. The current directory is importable.
        weights: A state dict to load into it.

    Raises:
        UsageError: `spec` is malformed, or names what does not exist or is not a model.
        ExportError: The user's own code fails, or the weights do not fit.
    """
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(
            f"{spec!r} is not package.module:factory",
            "for example mypackage.models:build",
        )
    made = _build(_import(module_name), spec, attribute)
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"{spec} gives a {type(made).__name__}, which is not a torch.nn.Module",
            "the factory must return the model itself",
        )
    if weights is not None:
        load_weights(made, weights)
    return made.eval().requires_grad_(False)


def _import(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise UsageError(
                f"there is no module {missing!r} (looked in {here} and the installed packages)",
                "run from the directory that holds it, or install its package",
            ) from None
        raise ExportError(
            f"{name} needs {missing!r}, which is not installed", "install it in this environment"
        ) from None
    except Exception as error:
        raise ExportError(f"importing {name} fails: {blame(error)}") from error


def _build(module: Any, spec: str, attribute: str) -> Any:
    made: Any = module
    for part in attribute.split("."):
        if not hasattr(made, part):
            public = [n for n, v in vars(module).items() if not n.startswith("_") and callable(v)]
            known = ", ".join(public[:8]) if public else ""
            raise UsageError(
                f"{module.__name__} has no {attribute!r}",
                f"it has: {known}" if known else "check the name after the colon",
            )
        made = getattr(made, part)
    if isinstance(made, nn.Module):
        return made
    if not callable(made):
        raise UsageError(f"{spec} is a {type(made).__name__}, neither a model nor a factory")
    try:
        return made()
    except Exception as error:
        raise ExportError(
            f"calling {spec} without arguments fails: {blame(error)}",
            "write a small factory that takes none",
        ) from error


def blame(error: BaseException) -> str:
    """Return type and message of an error, and the last line of the user's that it passed."""
    not_theirs = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
    theirs = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(not_theirs) and "importlib" not in f.filename
    ]
    where = f" ({theirs[-1].filename}:{theirs[-1].lineno}: {theirs[-1].line})" if theirs else ""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no message'}{where}"


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict into `model`; never runs code from the file.

    A dict that wraps it under ``state_dict`` or ``model`` is accepted, and so is the ``module.``
    prefix of data-parallel training.

    Raises:
        ExportError: The file is missing, damaged or holds other things than tensors, or its
            names or shapes do not fit the model.
    """
    state = _read_state(path)
    own = model.state_dict()
    if state and all(k.startswith("module.") for k in state):
        state = {k.removeprefix("module."): v for k, v in state.items()}
    missing = [k for k in own if k not in state]
    surplus = [k for k in state if k not in own]
    if missing or surplus:
        parts = [f"lacks {_first(missing)}"] if missing else []
        parts += [f"has {_first(surplus)}, unknown to the model"] if surplus else []
        raise ExportError(
            f"{path} does not fit the model: it {' and '.join(parts)}",
            "give the weights of this very architecture",
        )
    wrong = [
        f"{k} is {tuple(v.shape)} in the file, {tuple(own[k].shape)} in the model"
        for k, v in state.items()
        if v.shape != own[k].shape
    ]
    if wrong:
        raise ExportError(
            f"{path} does not fit the model: {_first(wrong)}",
            "check the number of classes and the width that the factory builds",
        )
    model.load_state_dict(state)


def _first(items: list[str]) -> str:
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return ", ".join(items[:MAX_NAMED]) + more


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise ExportError(f"there are no weights at {path}", "check the path after --weights")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds for damaged files
        first = str(error).partition("\n")[0]
        raise ExportError(
            f"{path} cannot be read, or holds more than tensors, which would run code ({first})",
            "save it with torch.save(model.state_dict(), path), or copy it again",
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping):
            data = data[key]
            break
    if not isinstance(data, Mapping) or not all(isinstance(v, torch.Tensor) for v in data.values()):
        raise ExportError(
            f"{path} is not a state dict", "save it with torch.save(model.state_dict(), path)"
        )
    return dict(data)
