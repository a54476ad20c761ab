"""What is public in Decibel, and what a module uses of it that is not."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import decibel

# Packages that docs/extending.md names besides what `decibel` itself lists.
EXTENSION = tuple(f"decibel.{name}" for name in ("cli", "core", "engines", "methods", "network", "oracles", "problem"))


def public_modules() -> dict[str, ModuleType]:
    """The modules that `decibel` and its public modules list in `__all__`, by the path that users write."""
    modules = {"decibel": decibel} | {name: importlib.import_module(name) for name in EXTENSION}
    waiting = list(modules.items())
    for path, module in waiting:  # grows while it is read
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing) and f"{path}.{name}" not in modules:
                modules[f"{path}.{name}"] = thing
                waiting.append((f"{path}.{name}", thing))
    return modules


PUBLIC = public_modules()


def private_uses(tree: ast.Module) -> Iterator[str]:
    """What a module uses of Decibel that is not public: in imports, and in attributes of modules and objects."""
    named: dict[str, ModuleType] = {}  # modules of Decibel, by their name in the module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "decibel":
                    if alias.name not in PUBLIC:
                        yield ast.unparse(node)
                    named[alias.asname or "decibel"] = PUBLIC.get(alias.name if alias.asname else "decibel", decibel)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "decibel":
            module = PUBLIC.get(node.module or "")
            for alias in node.names:
                if module is None or alias.name not in (*module.__all__, "__version__"):
                    yield f"from {node.module} import {alias.name}"
                elif inspect.ismodule(thing := getattr(module, alias.name)):
                    named[alias.asname or alias.name] = thing
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = resolved(node.value, named)
            known = (
                node.attr in (*module.__all__, "__file__", "__version__")
                if module
                else node.attr in methods or not hidden(node)
            )
            if not known:
                yield ast.unparse(node)


def resolved(node: ast.expr, named: dict[str, ModuleType]) -> ModuleType | None:
    """The module of Decibel that an expression stands for."""
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if isinstance(node, ast.Attribute) and (outer := resolved(node.value, named)) is not None:
        thing = getattr(outer, node.attr, None)
        return thing if inspect.ismodule(thing) and thing in PUBLIC.values() else None
    return None


def hidden(node: ast.Attribute) -> bool:
    """Whether an attribute is private, and neither of `self` nor a method that named tuples have."""
    mine = ast.unparse(node.value) in ("self", "cls", "super()")
    return bool(re.match("_[^_]", node.attr)) and not mine and node.attr not in ("_replace", "_asdict")
