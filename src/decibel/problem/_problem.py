"""A bilevel problem: two losses, every node's data, and a start."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias, TypedDict, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float

from ..core._arrays import on_device
from ..core._names import suggests_names
from ..core._numbers import validate_count
from ..core._types import Loss, PyTree
from . import _exact as exact
from ._batch import Batch
from ._check import CheckReport, check
from ._keyed import keyed_like, takes_key
from ._notebook import describe
from ._samples import NodeData
from ._streams import Samples, StreamData, samples_of, validate_in_memory
from .prox import Prox

# Arrays (nodes, samples, ...), a list with one pytree or source per node, or a function of the node.
DataSource: TypeAlias = PyTree | list[PyTree] | Callable[[int], PyTree] | Samples
Data: TypeAlias = Samples | Callable[[int], PyTree]  # what a problem holds: functions until `bind`


class Options(TypedDict, total=False):
    """What every kind of problem takes."""

    personal: bool
    nodes: int | None
    prox_x: Prox | None
    prox_y: Prox | None


class Problem(eqx.Module):
    """A bilevel problem over N nodes, each with its own private data.

        min_x  Φ(x) = 1/N Σ_i f_i(x, y*(x))    subject to    y*(x) = argmin_y 1/N Σ_i g_i(x, y)

    f_i and g_i are the upper and the lower loss on node i's data. With `personal=True` node i has its own lower
    level, y_i*(x) = argmin_y g_i(x, y), and only x is shared. Without `lower` there is a single level: min_x 1/N Σ_i
    f_i(x).

    Args:
        upper: f, called as `upper(x, y, batch)`, or as `upper(x, batch)` if there is no lower level. Returns a scalar,
            the mean over the batch. A loss may have an argument `key`. In training it receives a random key, which
            differs for each node, step, level and part of a batch. In evaluation it receives None.
        lower: g, called as `lower(x, y, batch)`; returns a scalar, the mean over the batch. Give `lower`, `lower_data`
            and `y0` together, or none of them.
        upper_data: the data of f: a pytree with leaves (nodes, samples, ...); or a list of one pytree per node, if
            nodes have different numbers of samples; or a list of one source per node, from which batches are read as
            they are needed (see `decibel.sources`); or a function from a node's index to its pytree or source.
        lower_data: the data of g, in the same forms. Arrays passed to both levels are stored once, and what both losses
            compute on a full batch of them is computed once.
        x0: the initial x of every node, any pytree of floating-point arrays; the run has its dtype.
        y0: the initial y of every node.
        personal: whether every node has its own lower-level solution.
        nodes: the number of nodes; needed only if the data are functions and the problem is used without a graph.
        prox_x: a constraint on x or a non-smooth term of Φ, such as `db.prox.nonnegative()`; the same at every node, or
            `db.prox.per_node([...])`.
        prox_y: a constraint on y or a non-smooth term of g, the same at every node; for the penalty form of the
            hypergradient.

    Raises:
        ValueError: if the arguments contradict each other, the start or the data are empty or not finite, or a loss
            fails on a batch of one sample.
        TypeError: if a loss is not callable, has the wrong arguments, or uses Python control flow on a traced value.
    """

    upper: Loss
    lower: Loss | None
    upper_data: Any  # Samples, or a function of the node until `bind`
    own_lower_data: Any  # None where the lower level is on the upper one's data, so that what both compute is shared
    x0: PyTree
    y0: PyTree | None
    prox_x: Prox | None
    prox_y: Prox | None
    personal: bool = eqx.field(static=True)

    @suggests_names
    def __init__(
        self,
        upper: Loss,
        lower: Loss | None = None,
        *,
        upper_data: DataSource,
        lower_data: DataSource = None,
        x0: PyTree,
        y0: PyTree | None = None,
        personal: bool = False,
        nodes: int | None = None,
        prox_x: Prox | None = None,
        prox_y: Prox | None = None,
    ) -> None:
        given = {"lower": lower, "lower_data": lower_data, "y0": y0}
        missing = [name for name, value in given.items() if value is None]
        if missing and len(missing) < 3:
            raise ValueError(
                f"Problem lacks {' and '.join(missing)}: give lower, lower_data and y0 together, or none of them for "
                "a single level."
            )
        if personal and lower is None:
            raise ValueError("personal=True needs a lower level: give lower, lower_data and y0, or drop personal.")
        if nodes is not None:
            validate_count("nodes", nodes)
        for name, loss in (("upper", upper), ("lower", lower)):
            if loss is not None and not callable(loss):
                raise TypeError(f"{name} is a {type(loss).__name__}: give a function of x, y and a batch.")
        for name, prox in (("prox_x", prox_x), ("prox_y", prox_y)):
            if prox is not None and not isinstance(prox, Prox):
                raise TypeError(
                    f"{name} is a {type(prox).__name__}: give one of db.prox, such as db.prox.nonnegative()."
                )
        if prox_y is not None and lower is None:
            raise ValueError("prox_y needs a lower level: give lower, lower_data and y0, or use prox_x.")
        if prox_y is not None and prox_y.nodes is not None:
            raise ValueError("prox_y cannot differ from node to node: give one term for all nodes.")
        self.upper = upper
        self.lower = lower
        self.personal = personal
        self.prox_x = prox_x
        self.prox_y = prox_y
        self.x0 = _start(x0, "x0")
        self.y0 = None if y0 is None else _start(y0, "y0")
        self.upper_data = _data(upper_data, "upper_data", self.dtype, nodes)
        shared = lower is None or _same(upper_data, lower_data)
        self.own_lower_data = None if shared else _data(lower_data, "lower_data", self.dtype, nodes)
        self._validate_data(nodes)

    @classmethod
    def minimax(
        cls, objective: Loss, *, data: DataSource, x0: PyTree, y0: PyTree, **options: Unpack[Options]
    ) -> Problem:
        """The minimax problem min_x max_y 1/N Σ_i f_i(x, y), as a bilevel problem with g = −f.

        Args:
            objective: f, called as `objective(x, y, batch)`; returns the mean over the batch.
            data: the data of f, in the forms of `Problem`.
            x0: the initial x of every node.
            y0: the initial y of every node.
            **options: `personal`, `nodes` and `prox_x` of `Problem`.
        """

        def descend(x: PyTree, y: PyTree, batch: PyTree, **key: PyTree) -> Array:
            return -objective(x, y, batch, **key)

        descend = keyed_like(objective, descend)
        return cls(objective, descend, upper_data=data, lower_data=data, x0=x0, y0=y0, **options)

    @classmethod
    def compositional(
        cls,
        outer: Loss,
        inner: Callable[..., PyTree],
        *,
        upper_data: DataSource,
        lower_data: DataSource,
        x0: PyTree,
        y0: PyTree,
        **options: Unpack[Options],
    ) -> Problem:
        """The compositional problem min_x 1/N Σ_i f_i(x, h(x)) with h = 1/N Σ_i h_i, by g_i(x, y) = ‖y − h_i(x)‖².

        Args:
            outer: f, called as `outer(x, y, batch)`; returns the mean over the batch.
            inner: h_i, called as `inner(x, batch)`; returns the mean over the batch, a pytree shaped like `y0`.
            upper_data: the data of f, in the forms of `Problem`.
            lower_data: the data of h.
            x0: the initial x of every node.
            y0: the initial y of every node.
            **options: `personal`, `nodes` and `prox_x` of `Problem`; with `personal=True` node i composes f_i with its
                own h_i.
        """

        def track(x: PyTree, y: PyTree, batch: PyTree, **key: PyTree) -> Array:
            gaps = jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)), y, inner(x, batch, **key))
            return jax.tree.reduce(jnp.add, gaps)

        return cls(
            outer, keyed_like(inner, track), upper_data=upper_data, lower_data=lower_data, x0=x0, y0=y0, **options
        )

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the run, and of floating-point data."""
        return jnp.result_type(*jax.tree.leaves(self.x0))

    @property
    def lower_data(self) -> Any:
        """The data of g; None if there is no lower level."""
        if self.own_lower_data is None and not self.single_level:
            return self.upper_data
        return self.own_lower_data

    @property
    def single_level(self) -> bool:
        """Whether there is no lower level."""
        return self.lower is None

    @property
    def takes_keys(self) -> tuple[bool, bool]:
        """Whether the upper and the lower loss use random numbers."""
        return takes_key(self.upper), self.lower is not None and takes_key(self.lower)

    @property
    def form(self) -> str:
        """`"shared"`, `"personal"` or `"single"`: the kind of lower level."""
        return "single" if self.single_level else "personal" if self.personal else "shared"

    @property
    def nodes(self) -> int | None:
        """The number of nodes; None while the data are functions and no graph is known."""
        return next((data.nodes for data in self._bound_data()), None)

    def bind(self, nodes: int) -> Problem:
        """The same problem, with data given as functions built for `nodes` nodes."""
        if len(self._bound_data()) == (1 if self.single_level else 2):
            return self
        bound = self.map_data(lambda source, name: _data(source, name, self.dtype, nodes))
        bound._validate_data(None)
        return bound

    def replace_data(self, upper_data: Data | None, lower_data: Data | None) -> Problem:
        """The same losses and start on other data."""
        given_lower = None if lower_data is upper_data else lower_data

        def data_of(problem: Problem) -> tuple[Data | None, Data | None]:
            return problem.upper_data, problem.own_lower_data

        def is_data(leaf: object) -> bool:
            return leaf is None or callable(leaf) or isinstance(leaf, NodeData | StreamData)

        return eqx.tree_at(data_of, self, (upper_data, given_lower), is_leaf=is_data)

    def map_data(self, change: Callable[[Data, str], Data]) -> Problem:
        """The same problem with `change(data, name)` applied to its data, once if both levels share them."""
        upper = change(self.upper_data, "upper_data")
        if self.own_lower_data is None:
            return self.replace_data(upper, None if self.single_level else upper)
        return self.replace_data(upper, change(self.own_lower_data, "lower_data"))

    def upper_loss(self, x: PyTree, y: PyTree, batch: Batch) -> Float[Array, ""]:
        """f of one node on its `batch`."""
        point = (x,) if self.single_level else (x, y)
        return batch.mean(self.upper, *point)

    def lower_loss(self, x: PyTree, y: PyTree, batch: Batch) -> Float[Array, ""]:
        """g of one node on its `batch`."""
        assert self.lower is not None
        return batch.mean(self.lower, x, y)

    def solve_lower(self, x: PyTree, *, tolerance: float | None = None) -> PyTree:
        """The exact lower-level solution at x, from all data.

        Args:
            x: a pytree shaped like `x0`.
            tolerance: an upper bound on ‖∇_y g‖, relative to max(1, ‖∇_y g(x, y0)‖); the default is 1e-10 in float64
                and 1e-5 in float32.

        Returns:
            y*(x); with `personal=True` every node's y_i*(x), with leaves (nodes, ...).

        Raises:
            ValueError: if there is no lower level, or the tolerance is not reached.
        """
        return exact.solve_lower(self._ready("solve_lower"), self._point(x), tolerance=tolerance)

    def hypergradient(self, x: PyTree, *, tolerance: float | None = None) -> PyTree:
        """The exact hypergradient ∇Φ(x) = ∇_x f − J H⁻¹ ∇_y f at y*(x), with H = ∇²_yy g and J = ∇²_xy g.

        Args:
            x: a pytree shaped like `x0`.
            tolerance: of `solve_lower`, and relative tolerance of the linear system with H.

        Returns:
            A pytree shaped like `x0`.
        """
        return exact.hypergradient(self._ready("hypergradient"), self._point(x), tolerance=tolerance)

    def check(self, *, seed: int = 0) -> CheckReport:
        """Compares every derivative with finite differences and estimates the curvature of g in y.

        Args:
            seed: of the points and directions at which derivatives are compared.

        Returns:
            A report that prints one line per check; its `ok` is False if any check failed.
        """
        return check(self._ready("check"), seed=seed)

    def _repr_html_(self) -> str:
        data = {"upper_data": self.upper_data, "lower_data": self.own_lower_data}
        return describe(self.form, self.nodes, {"x": self.x0, "y": self.y0}, data)

    def _ready(self, use: str) -> Problem:
        if self.prox_y is not None and use != "check":
            raise ValueError(f"{use} does not take prox_y: measure the losses of a run instead.")
        if self.nodes is None:
            raise ValueError(f"{use} needs the number of nodes: give Problem(nodes=...), since the data are functions.")
        bound = self.bind(self.nodes)
        validate_in_memory(bound._bound_data(), use)
        return bound

    def _point(self, x: PyTree) -> PyTree:
        def shapes(tree: PyTree) -> PyTree:
            return jax.tree.map(jnp.shape, tree)

        if jax.tree.structure(x) != jax.tree.structure(self.x0) or shapes(x) != shapes(self.x0):
            raise ValueError("x is not shaped like x0: give a pytree of the same structure and shapes.")
        return x

    def _bound_data(self) -> list[Samples]:
        return [data for data in (self.upper_data, self.lower_data) if isinstance(data, NodeData | StreamData)]

    def _validate_data(self, nodes: int | None) -> None:
        """Levels of different nodes, and losses that fail on a sample."""
        counts = {data.nodes for data in self._bound_data()}
        if len(counts) > 1:
            raise ValueError(
                f"upper_data has {self.upper_data.nodes} nodes but lower_data has {self.lower_data.nodes}: give both "
                "the same nodes."
            )
        if counts and nodes is not None and counts != {nodes}:
            raise ValueError(f"nodes={nodes}, but the data have {counts.pop()} nodes: drop nodes or fix the data.")
        for name, loss, data in (
            ("upper", self.upper, self.upper_data),
            ("lower", self.lower, self.lower_data),
        ):
            if loss is None or not isinstance(data, NodeData | StreamData):
                continue
            point = (self.x0,) if self.single_level else (self.x0, self.y0)
            _validate_scalar(name, _try(name, loss, *point, data.sample))
        if self.lower is not None:
            _validate_same_order(self.upper, self.lower)


def _validate_scalar(name: str, out: PyTree) -> None:
    """Raises unless a loss returned one real number."""
    if out is None:
        raise TypeError(f"{name} returns nothing: end it with `return` and the mean over its batch.")
    if isinstance(out, tuple):
        raise TypeError(
            f"{name} returns a tuple: return the scalar alone, and measure the rest by metrics=... of db.solve."
        )
    if not hasattr(out, "shape"):
        raise TypeError(f"{name} returns a {type(out).__name__}: return a scalar, the mean over its batch.")
    if out.shape != ():
        raise ValueError(
            f"{name} must return a real scalar, the mean over its batch, but returned an array of shape {out.shape}: "
            "end it with .mean()."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name} returns {out.dtype}: return a real floating-point scalar, the mean over its batch.")


def _try(name: str, loss: Loss, *arguments: PyTree) -> PyTree:
    """The abstract result of a loss on a batch of one sample; raises TypeError or ValueError with a fix if it fails."""
    names = ("x", "batch") if len(arguments) == 2 else ("x", "y", "batch")
    # Also without a key, as in evaluation.
    keys = ({"key": jax.random.key(0)}, {"key": None}) if takes_key(loss) else ({},)
    called = ", ".join(names) + (", key=key" if len(keys) == 2 else "")
    try:
        inspect.signature(loss).bind(*arguments, **keys[0])
    except TypeError:
        raise TypeError(f"{name} is called as {name}({called}): give it these arguments.") from None
    except ValueError:  # has no signature to be read
        pass
    _validate_order(name, loss, names)
    try:
        shapes = [jax.eval_shape(partial(loss, **key), *arguments) for key in keys]
        return shapes[0]
    except (jax.errors.JAXTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
        raise TypeError(f"{name} {_needs_a_value(error)}") from error
    except (TypeError, ValueError) as error:
        if _runs_with_exchanged(loss, arguments, keys[0]):
            raise TypeError(
                f"{name} runs only with x and y exchanged: it is called as {name}({called}), so write x before y."
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0][:90].rstrip(".")
        fix = "fix it, or the shapes of the data and the start"
        if len(keys) == 2 and "key" in str(error).lower():
            fix += "; with key=None, evaluation, it must use no random numbers"
        raise ValueError(f"{name}({called}) fails on a batch of one sample ({reason}): {fix}.") from error


def _needs_a_value(error: Exception) -> str:
    """What in a loss asks for the value of an array that is traced, and has none."""
    match error:
        case jax.errors.TracerBoolConversionError():
            return "branches on a traced value: write jnp.where instead of if, and jnp.maximum instead of max."
        case jax.errors.TracerArrayConversionError():
            return (
                "calls a function of NumPy on a traced array: use that of jax.numpy, such as jnp.exp instead of np.exp."
            )
        case jax.errors.TracerIntegerConversionError():
            return "uses a traced value as a Python integer: index an array of jax.numpy with it, not a list."
        case jax.errors.NonConcreteBooleanIndexError():
            return "selects entries by a mask, so that their number is not known: write jnp.where(mask, values, 0.0)."
        case _:
            return (
                "asks for the number in a traced array, by float(), int(), .item() or a function of math, or by if on "
                "a tensor: leave the conversion out, and use jax.numpy, or torch.where instead of if."
            )


def _runs_with_exchanged(loss: Loss, arguments: tuple[PyTree, ...], key: Mapping[str, Array | None]) -> bool:
    """Whether a loss that fails on x, y and a batch is right on y, x and a batch."""
    if len(arguments) != 3:
        return False
    x, y, batch = arguments
    try:
        jax.eval_shape(partial(loss, **key), y, x, batch)
    except Exception:  # whatever a loss raises
        return False
    return True


def _argument_names(loss: Loss) -> list[str]:
    try:
        return list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # has no signature to be read
        return []


def _validate_same_order(upper: Loss, lower: Loss) -> None:
    """Raises where the two losses name their first two arguments alike, and in the opposite order."""
    first, second = _argument_names(upper)[:2], _argument_names(lower)[:2]
    if len(first) == 2 and first[0] != first[1] and first == second[::-1]:
        raise TypeError(
            f"upper takes ({', '.join(first)}, ...) and lower ({', '.join(second)}, ...): both are called with x "
            "first, so write the arguments of both in the order x, y, batch."
        )


def _validate_order(name: str, loss: Loss, names: tuple[str, ...]) -> None:
    """Raises where the loss names its arguments x, y and batch in another order."""
    written = _argument_names(loss)[: len(names)]
    if any(word in names and names[place] != word for place, word in enumerate(written)):
        raise TypeError(
            f"{name} is written as {name}({', '.join(written)}) and called as {name}({', '.join(names)}): put its "
            "arguments in this order."
        )


def _start(tree: PyTree, argument: str) -> PyTree:
    """Floating leaves of at least float32: what a run carries is never in lower precision."""
    leaves = jax.tree.leaves(tree)
    if isinstance(tree, list | tuple) and leaves and all(isinstance(leaf, float | int) for leaf in leaves):
        raise TypeError(
            f"{argument} is a {type(tree).__name__} of numbers: give an array, such as jnp.array({argument})."
        )
    if not leaves:
        raise ValueError(f"{argument} holds no arrays: give at least one.")
    for leaf in leaves:
        if type(leaf).__module__.partition(".")[0] == "torch":
            raise TypeError(
                f"{argument} holds a tensor of PyTorch: give tensor.detach().numpy(), or make the problem by "
                "db.torch.problem."
            )
        if isinstance(leaf, str) or not (jnp.isscalar(leaf) or hasattr(leaf, "dtype")):
            raise TypeError(f"{argument} holds a {type(leaf).__name__}: give floating-point arrays.")
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"{argument} has a leaf of type {jnp.result_type(leaf)}: give floating-point arrays.")
        if not (np.isfinite(leaf) if isinstance(leaf, np.ndarray) else jnp.isfinite(leaf)).all():
            raise ValueError(f"{argument} holds a NaN or infinity: start from finite numbers.")
        if getattr(leaf, "dtype", None) == np.float64 and jnp.result_type(leaf) != np.float64:
            _mention_float32()

    def widened(leaf: ArrayLike) -> Array:
        dtype = jnp.result_type(leaf)
        return on_device(leaf, jnp.float32 if dtype.itemsize < 4 else dtype)

    return jax.tree.map(widened, tree)


@cache
def _mention_float32() -> None:
    """Once in a process."""
    warnings.warn(
        "x0 or y0 is float64 and becomes float32, and so does the run: for float64 call "
        "jax.config.update('jax_enable_x64', True) first.",
        stacklevel=7,
    )


def _same(upper: DataSource, lower: DataSource) -> bool:
    """Whether these are the same arrays, or the same functions."""
    (leaves, structure), (others, other_structure) = jax.tree.flatten(upper), jax.tree.flatten(lower)
    return structure == other_structure and all(a is b for a, b in zip(leaves, others, strict=True))


def _data(source: DataSource, argument: str, dtype: DTypeLike, nodes: int | None) -> Data:
    if isinstance(source, NodeData | StreamData):
        return source
    if callable(source):
        if nodes is None:
            return source
        source = [source(i) for i in range(nodes)]
    return samples_of(source, argument, dtype)
