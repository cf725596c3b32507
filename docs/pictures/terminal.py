"""The program at work, as a picture of a terminal.

    python docs/pictures/terminal.py target/release/compress-model > docs/pictures/terminal.svg

Runs the commands below in the top folder of the repository and draws what they print, line by line;
of a long output only the lines that are named. Needs nothing but Python.
"""

import html
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
MODEL = "models/waves/model.safetensors"
COLUMNS = 88
# Each with the lines that are shown, from the first to before the last.
COMMANDS = [
    (f"inspect {MODEL}", slice(0, 17)),
    (f"reduce {MODEL} --calibrate waves --times 6 --data waves --image small.edge", slice(0, None)),
]
WIDE, HIGH, MARGIN = 8.4, 17, 16
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee6; white-space: pre; }
.typed { fill: #ffffff; font-weight: 600; }
.sign { fill: #3fc79c; }
.bars { fill: #62b4ee; }
"""


def shown(program, command, folder):
    """What a command prints. The files that it writes go into a folder of their own."""
    words = command.replace("small.edge", str(folder / "small.edge")).split()
    environment = {**os.environ, "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        [program, *words], cwd=TOP, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.replace(f"{folder}/", "").splitlines()


def line(row, parts):
    """One line of text: pieces of a class each, every character as wide as any other."""
    y = MARGIN + HIGH * (row + 0.8)
    out, column = [], 0
    for kind, text in parts:
        if text.strip():
            x, wide = MARGIN + WIDE * column, WIDE * len(text)
            out.append(
                f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" textLength="{wide:.1f}" '
                f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{html.escape(text)}</text>'
            )
        column += len(text)
    return out


def typed(command):
    """A command as it is typed, over several lines where it is long."""
    lines = textwrap.wrap(f"compress-model {command}", COLUMNS - 4, break_on_hyphens=False)
    for index, text in enumerate(lines):
        end = " \\" if index + 1 < len(lines) else ""
        yield [("sign", "  " if index else "$ "), ("typed", "  " * (index > 0) + text + end)]


def drawn(text):
    """The bars of a spectrum have a colour of their own."""
    head, bar, rest = text.partition("│")
    return [("plain", head + bar), ("bars", rest)] if bar else [("plain", text)]


def main():
    program = Path(sys.argv[1]).resolve()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for command, part in COMMANDS:
            rows += typed(command)
            rows += [drawn(text) for text in shown(program, command, Path(folder))[part]]
            rows.append([("plain", "")])
    rows.pop()
    longest = max(sum(len(text) for _, text in row) for row in rows)
    width = 2 * MARGIN + WIDE * max(COLUMNS, longest)
    height = 2 * MARGIN + HIGH * len(rows)
    body = [part for row, parts in enumerate(rows) for part in line(row, parts)]
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img">\n'
        f"<title>compress-model in a terminal: the spectrum of a layer, and the model in a sixth of "
        f"its bytes</title>\n<style>{STYLE}</style>\n"
        f'<rect width="100%" height="100%" rx="10" fill="#14171b"/>'
    )
    print("\n".join(body))
    print("</svg>")


main()
