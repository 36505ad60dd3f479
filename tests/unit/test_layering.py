"""Importing is cheap and touches no device; every module is seen, and imports point one way."""

from __future__ import annotations

import ast
import graphlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT


PACKAGES = ("envs_jax", "llmrl_jax")
SYSTEMS = {"glam", "props", "ellm", "bkrl", "kalm", "balrog"}

IMPORT_ALL = """
import importlib, json, pkgutil, sys, time
started = time.monotonic()
import llmrl_jax
seconds = time.monotonic() - started
import envs_jax
names = [m.name for p in (llmrl_jax, envs_jax) for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".")]
optional = []
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("llmrl_jax", "envs_jax"):
            raise
        optional.append([name, error.name])
from jax._src import xla_bridge
import grimp
print(json.dumps({"seconds": seconds, "names": names, "optional": optional, "backends": list(xla_bridge._backends),
                  "graph": sorted(grimp.build_graph("envs_jax", "llmrl_jax", cache_dir=None).modules),
                  "heavy": [m for m in ("torch", "wandb", "tensorboardX", "matplotlib.pyplot") if m in sys.modules]}))
"""


def modules_on_disk(root: Path = ROOT) -> set[str]:
    """The dotted names of all modules of the two packages, from their files."""
    paths = (path.relative_to(root).with_suffix("") for package in PACKAGES for path in (root / package).rglob("*.py"))
    return {".".join(path.parts).removesuffix(".__init__") for path in paths}


@pytest.fixture(scope="module")
def imported() -> dict:
    env = {n: v for n, v in os.environ.items() if n != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Output of import-linter for the packages below `root`, on lines that do not wrap."""
    tool = Path(sys.executable).parent / "lint-imports"
    if not tool.exists():
        found = shutil.which("lint-imports")
        assert found, "import-linter is not installed: pip install -e '.[dev]'"
        tool = Path(found)
    env = {**os.environ, "COLUMNS": "400", "PYTHONPATH": str(root)}
    return subprocess.run([tool, "--no-cache"], capture_output=True, text=True, cwd=root, env=env)


def test_import_takes_less_than_two_seconds(imported):
    assert imported["seconds"] < 2.0


def test_importing_everything_starts_no_backend(imported):
    assert imported["backends"] == []
    assert imported["heavy"] == []


def test_only_bridges_need_packages_outside_the_core(imported):
    assert all(".bridges." in name for name, _ in imported["optional"]), imported["optional"]


def test_every_module_on_disk_is_seen(imported):
    """A folder without `__init__.py` is a namespace, which pkgutil and import-linter pass over without a word."""
    on_disk = modules_on_disk()
    assert {*imported["names"], *PACKAGES} == on_disk
    assert set(imported["graph"]) == on_disk


# ----------------------------------------------------------------------------------------------- the contracts

LEVELS = (
    ("cli",),
    ("systems",),
    ("workflows",),
    ("options", "report"),
    ("run",),
    ("serve",),
    ("agents", "tuning", "advice", "multiturn"),
    ("rl", "lm", "chat"),
    ("data",),
    ("kernels",),
    ("parallel",),
    ("core",),
)
"""llmrl_jax from top to bottom: docs/architecture.md."""
SHARED_BY_WORLDS = {"bridges", "physics", "text"}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def folders(package: str) -> list[str]:
    """The packages directly below one, from the disk."""
    return sorted(path.parent.name for path in (ROOT / package).glob("*/__init__.py"))


def upward() -> list[tuple[str, str]]:
    """Each import that goes up, or sideways, in llmrl_jax: who imports, and what."""
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    here = folders("llmrl_jax")
    return [
        (f"llmrl_jax.{low}", f"llmrl_jax.{high}")
        for low in here
        for high in here
        if low != high and level[low] >= level[high]
    ]


def plants() -> dict[str, list[tuple[str, str]]]:
    """For each contract the imports that it must refuse: the package that imports, and what it imports."""
    worlds = [f"envs_jax.{name}" for name in folders("envs_jax") if name not in SHARED_BY_WORLDS]
    systems = [f"llmrl_jax.systems.{name}" for name in folders("llmrl_jax/systems")]
    return {
        "imports point one way": upward(),
        "worlds know nothing of learning": [("envs_jax", "llmrl_jax.core"), (worlds[0], "llmrl_jax.rl")],
        "systems do not import one another": [(a, b) for a in systems for b in systems if a != b],
        "worlds do not import one another": [(a, b) for a in worlds for b in worlds if a != b],
        "what worlds share knows no world": [("envs_jax.text", world) for world in worlds]
        + [("envs_jax.physics", world) for world in worlds],
        "the outer loop knows the learner's contract alone": [
            ("llmrl_jax.run", f"llmrl_jax.{name}") for name in ("agents", "chat", "lm", "rl", "serve", "tuning")
        ],
    }


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> dict[str, str]:
    """Output of import-linter under each contract's name, for a copy of the packages with every plant in it."""
    root = tmp_path_factory.mktemp("planted")
    ignore = shutil.ignore_patterns("__pycache__", "*.npz", "*.json")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", root)
    for number, (importer, target) in enumerate(pair for pairs in plants().values() for pair in pairs):
        (root / importer.replace(".", "/") / f"plant_{number}.py").write_text(f"import {target}\n")
    done = lint_imports(root)
    assert done.returncode == 1, done.stderr
    sections = re.split(r"^(.+)\n-+\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2]))


@pytest.mark.slow
def test_imports_point_one_way():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_contracts_are_those_that_are_tested():
    assert {contract["name"] for contract in CONTRACTS} == set(plants())
    assert all(plants().values())


@pytest.mark.slow
@pytest.mark.parametrize("contract", plants())
def test_contract_forbids_what_its_name_says(refused, contract):
    for importer, target in plants()[contract]:
        line = rf"{re.escape(importer)}\.plant_\d+ -> {re.escape(target)} "
        assert re.search(line, refused[contract]), f"{importer} may import {target}"


def test_every_world_stands_in_the_contracts_on_worlds():
    named = {contract["name"]: contract for contract in CONTRACTS}
    worlds = {name for name in folders("envs_jax") if name not in SHARED_BY_WORLDS}
    assert {m.removeprefix("envs_jax.") for m in named["worlds do not import one another"]["modules"]} == worlds
    layers = [set(re.split(r" [|:] ", layer)) for layer in named["what worlds share knows no world"]["layers"]]
    assert worlds in layers


def test_no_module_of_run_names_a_system():
    for path in (p for name in ("options", "report", "run") for p in (ROOT / "llmrl_jax" / name).rglob("*.py")):
        words = set(re.findall(r"[a-z]+", path.read_text().lower()))
        # "agent" is also what results are named after
        assert not words & (SYSTEMS | set(folders("llmrl_jax/systems")) - {"agent"}), path.name


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports, at its top or inside a function; not for types alone, and not inside
    `experiment`, by which the settings of a command name the module that trains with them."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.expr) or isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef) and node.name == "experiment":
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return names


def circle(files: dict[str, Path]) -> list[str]:
    """Modules that import one another in a circle, the first that is found; empty if there is none."""
    graph = {name: imports(path) & set(files) for name, path in files.items()}
    for name, others in graph.items():  # `import package.module` names the package too
        others -= {x for x in others if any(y.startswith(f"{x}.") for y in {*others, name})}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_one_another():
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert circle(files) == []


def test_a_circle_is_found(tmp_path):
    for name, source in (
        ("a", "import b"),
        ("b", "def f():\n    from c import x"),
        ("c", "import a"),
        ("d", "import a"),
    ):
        (tmp_path / f"{name}.py").write_text(source)
    files = {path.stem: path for path in tmp_path.glob("*.py")}
    assert set(circle(files)) == {"a", "b", "c"}
    (tmp_path / "b.py").write_text("class Run:\n    def experiment(self):\n        from c import x")
    assert circle(files) == []


# -------------------------------------------------------------------------------------------------- the sources


PRIVATE = re.compile(
    rf"\b(?:{'|'.join(PACKAGES)})\b[\w.]*(?:\._| +import\b(?:[^(\n\\]|\\\n)*\b_| +import +\((?:[^)#]|#[^\n]*)*\b_)"
)
"""An import of a private name in a source: most files have none and need no parsing."""


def private_imports(source: str) -> list[str]:
    """The underscore names that a file takes out of our packages."""
    names: list[str] = []
    if not PRIVATE.search(source):
        return names
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [n for n in names if n.startswith(PACKAGES) and any(re.match(r"_[^_]", part) for part in n.split("."))]


def test_private_imports_are_found():
    source = "from llmrl_jax.rl.ppo import make_ppo, _loss\nimport envs_jax._old.env\nfrom jax._src import core\n"
    assert private_imports(source) == ["llmrl_jax.rl.ppo._loss", "envs_jax._old.env"]
    assert private_imports("from llmrl_jax import __version__\n") == []


@pytest.mark.parametrize("folder", ("tests", "experiments", "benchmarks"))
def test_no_private_name_is_imported(folder):
    taken = {p.name: private_imports(p.read_text()) for p in (ROOT / folder).rglob("*.py")}
    assert not {name: names for name, names in taken.items() if names}


def test_no_private_name_crosses_a_package():
    """Inside the packages a private name may be imported by the modules beside it alone."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            home = ".".join(path.parent.relative_to(ROOT).parts)
            away = [name for name in private_imports(path.read_text()) if name.rsplit(".", 2)[0] != home]
            assert not away, f"{path}: {away}"


def test_nothing_names_a_registry_or_a_machine():
    """No tracked file holds an address of a package registry or a path of the machine that it was written on."""
    hosts = ("pypi" + ".org", "python" + "hosted.org", "/ro" + "ot/", "/work" + "/")
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".txt", ".yml", ".json", "") and path.is_file():
            text = path.read_text(errors="ignore")
            assert not [host for host in hosts if host in text], name
