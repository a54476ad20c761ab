"""Where nodes run: the compiled chunk, and engines that run it on one device or on a cluster.

From `solve` to one iteration:

    solver/_session.py    `Session` asks the run for one chunk of steps after another
    _run.py               `Run.advance` compiles a chunk, runs it, and restores the state if it diverges
    _program.py           `Program.chunk` scans `Program.step`, which gives the method an `Oracle` and a `Communicator`
    methods/_method.py    `Method.step` makes the iteration

Engines in other packages use the names in `__init__.pyi` (docs/extending.md). Each is imported when first used, so that
`decibel launch` starts a script before JAX has loaded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
