"""Packages that a run does not need: what needs one says so in a sentence, with the extra that installs it."""

from __future__ import annotations

from types import TracebackType


class optional:
    """Surrounds the imports of a package that only `caller` uses.

    An ImportError inside becomes one sentence that names the caller, the package and how to install it: by `extra` of
    this library, or by itself where no extra has it.
    """

    def __init__(self, package: str, *, caller: str, extra: str | None = None) -> None:
        self.package, self.caller, self.extra = package, caller, extra

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, ImportError):
            install = self.package if self.extra is None else f'"decibel-opt[{self.extra}]"'
            raise ImportError(f"{self.caller} needs {self.package}: pip install {install}.") from error
