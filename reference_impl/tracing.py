"""From a whole model to stages: the model is traced once, and its graph is cut.

There are three ways to say where to cut: the model's code calls `stage_boundary` (annotations), a `Policy`
looks at the graph and chooses, or `Point` names submodules. The graph of stage s then holds the
computations between two cuts. What it needs of an earlier stage travels through *every* boundary in
between, so a stage still talks to its two neighbours only: a skip connection from stage k to stage k + 3 is
an output of k, an input and an unchanged output of k + 1 and k + 2, and an input of k + 3. Positional
inputs of the model enter at stage 0 and travel the same way; keyword arguments go to the stages that use
them.

The tracer is ``torch.fx``, not ``torch.export``, and it looks into a module only if a cut lies inside it:
every other module stays unchanged, one call in the graph. So stages keep the model's own modules: names
(state-dict keys are the whole model's), buffers, hooks, shared parameters, and the switch between training and
evaluation. An exported graph has none of these modules left: dropout and batch norm are frozen in the mode
they were traced in, and `Module.eval` silently changes nothing. An opened module has the
same weakness if its own code reads ``self.training``; both modes are therefore traced and compared.

Nothing is computed for this. A skeleton, the model's copy without values (device ``meta``), is traced and run,
so buffers, random numbers and counters of the model are left alone, and the shape and dtype of everything
that crosses a boundary are known before the first step. `TracedStage` checks every microbatch against them.
"""

from __future__ import annotations

import difflib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, fx, nn

from .capture import (
    Point,
    annotated_modules,
    attempt,
    cut,
    graph_of,
    skeleton_of,
    stage_boundary,
    without_values,
)
from .containers import leaves_of, map_leaves
from .errors import SplitError
from .metadata import BoundaryMeta, TensorMeta
from .stage import Stage

__all__ = [
    "PipeInfo",
    "Point",
    "Policy",
    "TracedPipe",
    "TracedStage",
    "balanced",
    "build_stage",
    "split_model",
    "stage_boundary",
]

Policy = Callable[[fx.GraphModule], Sequence[fx.Node]]
"""From the model's graph, the computations before which a new stage begins, in any order."""


@dataclass(frozen=True, kw_only=True)
class PipeInfo:
    """What is known of a split model before it runs."""

    inputs: BoundaryMeta
    """The positional arguments of stage 0, for one microbatch."""
    outputs: tuple[BoundaryMeta, ...]
    """Per stage, what it hands to the next one; for the last stage, the model's output."""
    kwargs: tuple[tuple[str, ...], ...]
    """Per stage, the keyword arguments of the model that it uses."""
    shared: tuple[Mapping[int, str], ...]
    """Per parameter that several stages hold: stage to name. Each of them has a part of the gradient."""

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.outputs)


@dataclass(frozen=True, kw_only=True)
class TracedPipe:
    """A split model: one module per stage, made of the model's own submodules, and what is known of them."""

    modules: tuple[fx.GraphModule, ...]
    info: PipeInfo


def balanced(num_stages: int) -> Policy:
    """The policy that gives every stage about the same number of parameters, counted by calls of modules.

    Raises (when used):
        SplitError: Fewer calls of modules with parameters than stages.
    """

    def policy(traced: fx.GraphModule) -> list[fx.Node]:
        calls = [(n, _size(traced, n)) for n in traced.graph.nodes if n.op == "call_module"]
        calls = [(node, size) for node, size in calls if size]
        if len(calls) < num_stages:
            names = ", ".join(str(node.target) for node, _ in calls)
            raise SplitError(f"{num_stages} stages need as many modules with parameters; there are: {names}")
        share = sum(size for _, size in calls) / num_stages
        cuts: list[fx.Node] = []
        before = calls[0][1]
        for position, (node, size) in enumerate(calls[1:], 1):
            wanted = num_stages - 1 - len(cuts)
            if wanted and (before + size / 2 > share * (len(cuts) + 1) or len(calls) - position == wanted):
                cuts.append(node)
            before += size
        return cuts

    return policy


def split_model(
    model: nn.Module,
    *,
    num_stages: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    points: Sequence[Point] = (),
    policy: Policy | None = None,
) -> TracedPipe:
    """Split `model` into `num_stages` stages: at `points`, where `policy` says, or else at its annotations.

    `args` and `kwargs` are those of one microbatch; of tensors only shape and dtype matter. The stages hold
    the model's own submodules, so parameters are not copied.

    Raises:
        SplitError: A point names no submodule, is not reached exactly once or leaves a stage empty; the
            number of cuts is not ``num_stages - 1``; the code that would be cut decides by values or by
            training mode, or something that is no tensor would cross a boundary.
    """
    skeleton, example = (
        skeleton_of(model),
        (map_leaves(without_values, args), map_leaves(without_values, dict(kwargs))),
    )
    marks = _marks(skeleton, points)
    if points:
        opened = {parent for point in points for parent in _parents(point.module)}
    elif policy is not None:
        opened = {name for name, part in skeleton.named_modules() if _is_foreign(part)}
    else:
        opened = annotated_modules(skeleton, *example)
    _require_no_hooks(skeleton, opened)
    graph = graph_of(skeleton, opened | {""}, marks, example, optional=policy is not None)
    if policy is not None:
        for node in policy(fx.GraphModule(skeleton, graph)):
            with graph.inserting_before(node):
                graph.call_function(cut, (f"before {node.name}",))
    stage_of = _stages(graph, num_stages, points)
    graphs = list(_graphs(graph, stage_of, num_stages, frozenset(example[1])))
    info = _examined([fx.GraphModule(skeleton, part) for part in graphs], *example)
    return TracedPipe(modules=tuple(fx.GraphModule(model, part) for part in graphs), info=info)


class TracedStage(Stage):
    """A stage that refuses a microbatch which differs from what was traced, outside the batch dimension."""

    def __init__(self, module: nn.Module, *, index: int, info: PipeInfo, batch_dim: int = 0) -> None:
        super().__init__(module, index=index, batch_dim=batch_dim)
        self._arriving = info.outputs[index - 1] if index else info.inputs
        self._leaving = info.outputs[index]

    def forward(self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], **how: Any) -> Any:
        """Run `Stage.forward`, and check inputs and outputs.

        Raises:
            ValueError: An input or output has another dtype, number of dimensions or size than was traced; the
                text names stage, tensor, what was traced and what is there.
        """
        self._hold("input", inputs, self._arriving)
        output = super().forward(microbatch, inputs, kwargs, **how)
        self._hold("output", output, self._leaving)
        return output

    def _hold(self, what: str, value: Any, traced: BoundaryMeta) -> None:
        leaves = leaves_of(value)
        if len(leaves) != len(traced.tensors):
            raise ValueError(
                f"stage {self.index} has {len(leaves)} {what}s, but {len(traced.tensors)} were traced"
            )
        for position, (leaf, was) in enumerate(zip(leaves, traced.tensors, strict=True)):
            now = TensorMeta(dtype=leaf.dtype, shape=tuple(leaf.shape), requires_grad=leaf.requires_grad)
            same = now.dtype == was.dtype and len(now.shape) == len(was.shape)
            for dim, (a, b) in enumerate(zip(now.shape, was.shape, strict=False)):
                same = same and (dim == self._batch_dim or a == b)
            if not same:
                raise ValueError(
                    f"{what} {position} of stage {self.index} is {now}, but {was} was traced (only the batch "
                    f"dimension {self._batch_dim} may differ): split the model anew with inputs of this kind"
                )


def build_stage(module: nn.Module, info: PipeInfo, *, index: int, batch_dim: int = 0) -> TracedStage:
    """The stage that the runtime works with.

    Raises:
        SplitError: There is no stage `index`.
    """
    if not 0 <= index < info.num_stages:
        raise SplitError(f"there is no stage {index}: the model was split into {info.num_stages}")
    return TracedStage(module, index=index, info=info, batch_dim=batch_dim)


# ------------------------------------------------------------------------------------------ tracing


def _marks(skeleton: nn.Module, points: Sequence[Point]) -> dict[int, list[Point]]:
    """The points by the identity of the submodule that they name.

    Raises:
        SplitError: A name is no submodule's; the text gives the nearest ones.
    """
    known = {name: module for name, module in skeleton.named_modules(remove_duplicate=False) if name}
    marks: dict[int, list[Point]] = {}
    for point in points:
        if point.module not in known:
            near = difflib.get_close_matches(point.module, known, n=3, cutoff=0.0)
            raise SplitError(
                f"split point {point}: the model has no submodule {point.module!r}; nearest are "
                f"{', '.join(map(repr, near)) or 'none'}. Name one of model.named_modules()"
            )
        marks.setdefault(id(known[point.module]), []).append(point)
    return marks


def _require_no_hooks(skeleton: nn.Module, opened: set[str]) -> None:
    """Refuse hooks of an opened module: they would run once, while it is traced, and never again."""
    for name in sorted(opened | {""}):
        module = skeleton.get_submodule(name)
        if module._forward_hooks or module._forward_pre_hooks:
            raise SplitError(
                f"a cut falls inside {repr(name) if name else 'the model itself'}, which has forward hooks: they "
                f"would be lost; cut before or after it, or register the hooks on a submodule that is not cut"
            )


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _is_foreign(module: nn.Module) -> bool:
    """Whether a policy may look into a module: it is not torch's own, and no hook would be lost."""
    own = type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)
    return not (own or module._forward_hooks or module._forward_pre_hooks)


def _stages(graph: fx.Graph, num_stages: int, points: Sequence[Point]) -> dict[fx.Node, int]:
    """The stage of every node except the cuts; parameters belong to the stages that use them."""
    cuts = [node for node in graph.nodes if node.target is cut]
    reached = Counter(str(cut.args[0]) for cut in cuts)
    for point in points:
        if reached[str(point)] != 1:
            times = reached[str(point)]
            what = "is called in no forward" if not times else f"is called {times} times"
            raise SplitError(
                f"split point {point}: the submodule {what}; a point must be reached exactly once, "
                f"so name a submodule around it or annotate the model with stage_boundary()"
            )
    if len(cuts) != num_stages - 1:
        raise SplitError(
            f"{num_stages} stages need {num_stages - 1} cuts, but there are {len(cuts)}: "
            f"{', '.join(str(cut.args[0]) for cut in cuts) or 'none'}"
        )
    stage_of: dict[fx.Node, int] = {}
    stage, busy = 0, set[int]()
    for node in graph.nodes:
        if node.target is cut:
            stage += 1
            continue
        stage_of[node] = stage
        if node.op.startswith("call_") and node.target is not operator.getitem:
            busy.add(stage)
    for empty in sorted(set(range(num_stages)) - busy):
        around = [f"{cuts[c].args[0]}" for c in (empty - 1, empty) if 0 <= c < len(cuts)]
        raise SplitError(
            f"stage {empty} would be empty: nothing is computed "
            f"{'between the cuts ' + ' and '.join(around) if len(around) > 1 else 'beyond the cut ' + around[0]}"
        )
    return stage_of


def _graphs(
    graph: fx.Graph, stage_of: Mapping[fx.Node, int], num_stages: int, kwargs: frozenset[str]
) -> Iterator[fx.Graph]:
    """One graph per stage; what a later stage uses is handed on from boundary to boundary."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    named = [node for node in inputs if node.target in kwargs]
    movable = [n for n in stage_of if n.op not in ("get_attr", "output") and n not in named]
    last_use = {n: max((stage_of[user] for user in n.users), default=-1) for n in movable}
    arriving = [node for node in inputs if node not in named]
    for s in range(num_stages):
        part, env = fx.Graph(), dict[fx.Node, fx.Node]()
        own = [node for node, stage in stage_of.items() if stage == s and node.op != "placeholder"]
        used = {source for node in own for source in node.all_input_nodes}
        for node in (*arriving, *(node for node in named if node in used)):
            env[node] = part.placeholder(str(node.target if node.op == "placeholder" else node.name))

        def take(node: fx.Node, part: fx.Graph = part, env: dict[fx.Node, fx.Node] = env) -> fx.Node:
            if node not in env:
                assert node.op == "get_attr", f"{node} of an earlier stage did not arrive"
                env[node] = part.node_copy(node)
            return env[node]

        for node in own:
            if node.op not in ("get_attr", "output"):
                env[node] = part.node_copy(node, take)
        if s == num_stages - 1:
            part.node_copy(graph.output_node(), take)
        else:
            arriving = [n for n in movable if stage_of[n] <= s < last_use[n]]
            part.output(tuple(env[node] for node in arriving))
        part.lint()
        yield part


def _examined(stages: Sequence[fx.GraphModule], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PipeInfo:
    """Run the stages of the skeleton after one another and write down what crosses.

    Raises:
        SplitError: A value that is no tensor crosses a boundary, or a module decides by values.
    """
    outputs: list[BoundaryMeta] = []
    named = [
        tuple(n.target for n in part.graph.nodes if n.op == "placeholder" and n.target in kwargs)
        for part in stages
    ]
    values: Any = args
    for s, part in enumerate(stages):
        interpreter = _Interpreter(part)
        inputs = (*values, *(kwargs[name] for name in named[s]))
        values = attempt(partial(interpreter.run, *inputs), interpreter.where)
        try:
            outputs.append(BoundaryMeta.of(values))
        except TypeError as error:
            names = [str(node) for node in part.graph.output_node().all_input_nodes]
            raise SplitError(
                f"between stage {s} and {s + 1}, or as the model's output, of {names}: {error}; "
                f"compute it in the stage that uses it"
            ) from error
    holders: dict[int, dict[int, str]] = {}
    for s, part in enumerate(stages):
        for name, parameter in part.named_parameters():
            holders.setdefault(id(parameter), {})[s] = name
    return PipeInfo(
        inputs=BoundaryMeta.of(args),
        outputs=tuple(outputs),
        kwargs=tuple(named),
        shared=tuple(where for where in holders.values() if len(where) > 1),
    )


class _Interpreter(fx.Interpreter):
    """Runs a stage's graph and knows which module it is in."""

    within = ""

    def where(self) -> str:
        """The module that is running."""
        return self.within

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call the module, and remember which one runs."""
        self.within = str(target)
        result = super().call_module(target, args, kwargs)
        self.within = ""
        return result


def _size(traced: fx.GraphModule, node: fx.Node) -> int:
    own: Iterable[Tensor] = traced.get_submodule(str(node.target)).parameters()
    return sum(parameter.numel() for parameter in own)
