"""Griffe extensions: fields of Equinox modules are parameters, and methods document common arguments once."""

from __future__ import annotations

from typing import Any

import griffe

from decibel.methods._entry import documented


class EquinoxSignatures(griffe.Extension):
    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        fields = [member for member in cls.members.values() if isinstance(member, griffe.Attribute)]
        fields = [field for field in fields if field.annotation is not None and "property" not in field.labels]
        if "__init__" in cls.members or not any(str(field.value).startswith("eqx.field(") for field in fields):
            return
        parameters = [_parameter(field) for field in fields]
        own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        init = griffe.Function("__init__", parameters=griffe.Parameters(own, *parameters), returns="None")
        cls.set_member("__init__", init)


def _parameter(field: griffe.Attribute) -> griffe.Parameter:
    default = field.value
    if isinstance(default, griffe.ExprCall):
        given = [each for each in default.arguments if isinstance(each, griffe.ExprKeyword) and each.name == "default"]
        default = given[0].value if given else None
    kind = griffe.ParameterKind.positional_or_keyword
    return griffe.Parameter(field.name, annotation=field.annotation, kind=kind, default=default)


class MethodArguments(griffe.Extension):
    """Constructors of methods have docstrings that leave out common arguments."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None and func.path.startswith("decibel.methods._") and not func.name.startswith("_"):
            func.docstring.value = documented(func.docstring.value, [parameter.name for parameter in func.parameters])
