"""Records docs/tour.svg: the commands of a short tour, run for real in a store of their own, with
what they print.

    python docs/record.py

The picture loads nothing from another site: rich's link to a font is taken out, and the reader's
own font is used.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]

TOUR = """\
capsule init notes > /dev/null && cd notes
id=$(capsule new "Garden" --type group -m "What grows in the shade?")
capsule append $id "Ferns and hostas." --role assistant --from ada > /dev/null
agent() { yes '{"from": "bob", "content": "..."}' | head -n 50 | capsule append $id --jsonl > /dev/null; }
agent & sed -i 's/hostas/ivy/' conversations/$id.json; wait  # an agent and an editor at the same time
capsule show $id | head -n 8
capsule search ivy | cut -f 4-
capsule delete $id --yes | cut -d ' ' -f 2-
capsule restore $id | cut -d ' ' -f 2-
capsule doctor
capsule store stats | grep ^messages  # appended: 1 with the conversation, 1 by ada, 50 by bob
"""


def record() -> str:
    """Run the tour, and draw it as SVG."""
    console = Console(
        record=True, width=108, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    steps = TOUR.splitlines()
    script = "\n".join(f"{step}\nprintf '%s\\n' '--- done'" for step in steps)
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CAPSULE_", "GIT_"))
        }
        environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": directory,
        }
        done = subprocess.run(
            ["bash", "-c", script], cwd=directory, env=environment, stdin=subprocess.DEVNULL, text=True, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    printed = done.stdout.split("--- done\n")[:-1]
    for step, output in zip(steps, printed, strict=True):
        console.print(Text.assemble(("$ ", "bold green"), (step, "bold")), soft_wrap=False)
        if output:
            console.print(Text(output.rstrip("\n")))
    drawn = console.export_svg(title="capsule", unique_id="tour")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S)
    return re.sub(r"\s*<!-- Generated with Rich .*?-->", "", drawn).replace("Fira Code, ", "")


if __name__ == "__main__":
    (ROOT / "docs" / "tour.svg").write_text(record(), encoding="utf-8")
