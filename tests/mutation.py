"""Mutation testing of the heart: python -m tests.mutation [--sample 200] [--seed 0] [--only loss/mining.py [--lines 12 40]]

Makes one small change at a time (a comparison, an operator, a number, a condition, a call left out) in the modules of `TESTS`,
and runs their tests against it. A mutant is killed when a test fails or hangs; a survivor is a line that the tests do not
check. Each mutant runs in a forked process that has torch loaded already and gets the changed module from an import hook: no
file is changed. Annotations, docstrings and the texts of messages are not mutated.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import io
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LOSS, BASELINES = "tests/loss/test_sdgm.py", "tests/loss/test_baselines.py"
MINING, REGISTRY = "tests/loss/test_mining.py", "tests/loss/test_registry.py"
TESTS: dict[str, tuple[str, ...]] = {  # module -> its tests, the quickest to fail first
    "loss/mining.py": (MINING, BASELINES, LOSS),
    "loss/statistics.py": (MINING, "tests/loss/test_transforms.py", LOSS),
    "loss/weights.py": (MINING, LOSS),
    "loss/sdgm.py": (MINING, LOSS, "tests/loss/test_ranks.py::test_a_group_is_given_once"),
    "loss/checks.py": (MINING, BASELINES, LOSS, REGISTRY),
    "loss/hardnet.py": (BASELINES, REGISTRY),
    "loss/tfeat.py": (BASELINES, REGISTRY),
    "loss/l2net.py": (BASELINES, REGISTRY),
    "loss/cdf.py": (BASELINES, REGISTRY),
    "loss/sosnet.py": (BASELINES, REGISTRY),
    "loss/hynet.py": (BASELINES, REGISTRY),
    "loss/orthogonal.py": (BASELINES, REGISTRY),
    "loss/modulated.py": ("tests/loss/test_modulated.py",),
    "loss/pml.py": ("tests/loss/test_pml.py",),
    "loss/registry.py": (REGISTRY,),
    "sphere.py": ("tests/test_sphere.py",),
    "metrics.py": ("tests/test_metrics.py",),
    "data/sampler.py": ("tests/data/test_sampler.py",),
    "training/config.py": ("tests/training/test_config.py",),
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Mutant(NamedTuple):
    module: str
    number: int  # which of the module's mutants
    line: int
    change: str  # what became what


def mutations(tree: ast.Module) -> Iterator[tuple[ast.Module, int, str]]:
    """Every mutant of a module: its tree, the line, and what changed."""
    places = list(_places(tree))
    for place, before in enumerate(places):
        mutated = copy.deepcopy(tree)
        node = list(_places(mutated))[place]
        change = f"{_short(ast.unparse(before))}  ->  {_short(_change(node))}"
        yield ast.fix_missing_locations(mutated), node.lineno, change


def _places(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Nodes that can be mutated, in a fixed order; without annotations, texts and docstrings."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "bases") or isinstance(
            tree, ast.JoinedStr
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.expr | ast.stmt) and _can_change(child):
                yield child
            yield from _places(child)


def _can_change(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[operator]):
            return type(operator) in COMPARISONS
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            return type(operator) in OPERATORS
        case ast.UnaryOp(op=operator):
            return isinstance(operator, ast.Not | ast.USub | ast.Invert)
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Expr(value=value):
            return isinstance(value, ast.Call)
    return isinstance(node, ast.BoolOp | ast.IfExp | ast.If | ast.Raise)


def _change(node: ast.AST) -> str:
    """Mutate the node in place; the source it has then."""
    match node:
        case ast.Compare(ops=[operator]):
            node.ops = [COMPARISONS[type(operator)]()]
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            node.op = OPERATORS[type(operator)]()
        case ast.BoolOp(op=operator):
            node.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
        case ast.IfExp() | ast.If():
            node.test = ast.UnaryOp(ast.Not(), node.test)
            return f"not ({ast.unparse(node.test.operand)})"
        case ast.UnaryOp(op=operator):
            node.op = ast.UAdd() if isinstance(operator, ast.USub) else operator
            if not isinstance(operator, ast.USub):  # without the `not`
                node.operand = ast.UnaryOp(operator, node.operand)
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.Constant(value=float() as value):
            node.value = value * 1.5 if value else 1.0
        case ast.Expr():
            node.value = ast.Constant(None)
        case ast.Raise():
            node.exc, node.cause = ast.parse("AssertionError('mutant')", mode="eval").body, None
    return ast.unparse(node)


def _short(source: str) -> str:
    return " ".join(source.split())[:70]


class _Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module from a tree instead of its file."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def run_tests(module: str, tree: ast.Module, tests: Sequence[str], timeout: float) -> tuple[str, float]:
    """ "passed", "failed" or "hung" of the tests with this tree as the module, in a process of its own; and the seconds."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(io.StringIO()):
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
                name = "sdgmnet." + module.removesuffix(".py").replace("/", ".")
                sys.meta_path.insert(0, _Hook(name, ROOT / "sdgmnet" / module, tree))
                import pytest

                options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:doctest", "-o", "addopts=", "-m", "not slow"]
                code = int(pytest.main([*options, *(str(ROOT / test) for test in tests)]))
        finally:
            os._exit(code)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        seconds = time.monotonic() - start
        if done:
            return ("passed" if status == 0 else "failed"), seconds
        if seconds > timeout:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hung", seconds
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sample", type=int, default=0, help="so many mutants, drawn at random over all modules; 0: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(TESTS), choices=list(TESTS), help="modules")
    parser.add_argument("--lines", nargs="*", type=int, help="only mutants of these lines")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import pytest  # noqa: F401  # loaded once, before all forks
    import scipy.sparse.csgraph  # noqa: F401
    import torch

    torch.set_num_threads(1)

    trees = {module: ast.parse((ROOT / "sdgmnet" / module).read_text()) for module in arguments.only}
    mutants = [
        Mutant(module, number, line, change)
        for module, tree in trees.items()
        for number, (_, line, change) in enumerate(mutations(tree))
        if arguments.lines is None or line in arguments.lines
    ]
    chosen = mutants
    if arguments.sample and arguments.sample < len(mutants):
        chosen = sorted(random.Random(arguments.seed).sample(mutants, arguments.sample))
    print(f"{len(chosen)} of {len(mutants)} mutants, seed {arguments.seed}", flush=True)

    counts: dict[str, list[int]] = {}
    limits: dict[str, float] = {}
    survivors = []
    for mutant in chosen:
        module, tests = mutant.module, TESTS[mutant.module]
        if module not in limits:
            ended, seconds = run_tests(module, trees[module], tests, 600)
            if ended != "passed":
                print(f"the tests of {module} fail without a mutation: {' '.join(tests)}")
                return 1
            limits[module] = 3 * seconds + 10
        tree = next(tree for number, (tree, *_) in enumerate(mutations(trees[module])) if number == mutant.number)
        ended, seconds = run_tests(module, tree, tests, limits[module])
        made, killed = counts.get(module, [0, 0])
        counts[module] = [made + 1, killed + (ended != "passed")]
        if ended == "passed":
            survivors.append(mutant)
            print(f"survived: {module}:{mutant.line}  {mutant.change}", flush=True)
    print("\nmodule                 mutants  killed")
    for module, (made, killed) in counts.items():
        print(f"{module:22} {made:7} {killed:7}")
    print(f"{'all':22} {len(chosen):7} {len(chosen) - len(survivors):7}   {1 - len(survivors) / len(chosen):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
