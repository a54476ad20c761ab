"""Optional packages: an error names what needs a missing package and the extra that installs it."""

from __future__ import annotations

from types import TracebackType


class optional:
    """Surrounds the imports of a package that only `caller` uses.

    An ImportError inside becomes one sentence that names the caller, the package and how to install it: by an `extra`
    of this library, or by its own name where no extra has it.
    """

    def __init__(self, package: str, *, caller: str, extra: str | None = None) -> None:
        self.package = package
        self.caller = caller
        self.extra = extra

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, ImportError):
            install = self.package if self.extra is None else f'"decibel-opt[{self.extra}]"'
            raise ImportError(f"{self.caller} needs {self.package}: pip install {install}.") from error
