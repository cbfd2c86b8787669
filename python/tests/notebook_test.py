"""The notebook runs, and what its cells end in has a picture or a table."""

import ast
import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "python" / "schedules.ipynb"


def _run(source, names):
    """Runs a cell as a notebook does; returns the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307


def test_cells_run_and_show_pictures(capsys):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, object] = {}
    shown = [_run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert "makespan 798102" in capsys.readouterr().out
    pictures = [value._repr_svg_() for value in shown if hasattr(value, "_repr_svg_")]
    assert len(pictures) == 3 and all(picture.lstrip().startswith("<svg") for picture in pictures)
    assert "<table>" in shown[2]._repr_html_()
    assert "needs 1F0" in shown[-1][0]
