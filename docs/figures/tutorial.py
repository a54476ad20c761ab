"""Draws tutorial_graph.svg and tutorial_costs.svg by running the first blocks of docs/tutorial.md.

python docs/figures/tutorial.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.style

HERE = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    matplotlib.style.use("decibel_studies.house")
    blocks = BLOCK.findall((HERE.parent / "tutorial.md").read_text())
    until = next(place for place, block in enumerate(blocks) if "result = db.solve" in block)
    names: dict[str, object] = {}
    exec("\n".join(blocks[: until + 1]), names)
    drawn = {
        "graph": names["graph"].draw(),
        "costs": names["result"].plot("upper", "consensus_x", against="bytes"),
    }
    drawn["graph"].set_size_inches(3.3, 3.4)
    drawn["costs"].set_size_inches(7.5, 2.8)
    for name, figure in drawn.items():
        figure.savefig(HERE / f"tutorial_{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
