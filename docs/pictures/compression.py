"""Accuracy over bytes, of whole models and of what else there is, from the tables of the results.

    python docs/pictures/compression.py > docs/pictures/compression.svg

Reads docs/results/compression.md, so that a figure stands in one place. Needs matplotlib.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

PAGE = Path(__file__).resolve().parents[1] / "results" / "compression.md"
PANELS = {"Sequential MNIST": "## Sequential MNIST", "Sequential CIFAR-10": "## Sequential CIFAR"}
# Works on other models of the same task, as the table of published figures names them.
PUBLISHED = [("Zhao et al.", "Zhao et al., 2025, another S4D, trained", "*"), ("CompreSSM", "CompreSSM, 2026, an LRU, trained", "X")]
# Per panel: the lowest accuracy that is drawn. What lies below is named.
LOWEST = {"Sequential MNIST": 94.6, "Sequential CIFAR-10": 69.4}
KINDS = [
    ("hankelite, states and maps", r"both,", "#0f62ac", "o"),
    ("trained at its bits", r"trained,", "#c2410c", "P"),
    ("states alone", r"states alone", "#2a9d6f", "s"),
    ("maps alone, planned", r"maps alone, planned", "#8a5cc2", "^"),
    ("PyTorch, dynamic int8", r"PyTorch, dynamic", "#d1552b", "D"),
]


def number(text):
    """The first number of a cell: `158,904 (1/5.1)` is 158904."""
    found = re.search(r"[\d,]*\.?\d+", text)
    return float(found.group().replace(",", "")) if found else None


def rows(heading):
    """The cells of the first table below a heading of the page."""
    section = PAGE.read_text().split(heading, 1)[1].split("\n## ", 1)[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE).group()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def times(cells, full):
    """How many times fewer bytes than the full model: as the row has it, or from its weights."""
    share = re.match(r"1/([\d.]+)", cells[3])
    if share:
        return float(share.group(1))
    weights, state = number(cells[1]), number(cells[2])
    if weights is None:
        return None
    return number(full[3]) / (weights + (state if state is not None else number(full[2])))


def points(cells, kind, full):
    """Times, accuracy and standard error of every row of a kind; of one size the last row, which has draws."""
    found = {}
    for row in cells:
        if re.match(kind, row[0]) and times(row, full):
            error = re.search(r"± ([\d.]+)", row[5])
            error = float(error.group(1)) if error else None
            found[round(times(row, full))] = (times(row, full), number(row[5].replace("*", "")), error)
    return sorted(found.values())


def panel(axes, title):
    cells = rows(PANELS[title])
    full = cells[0]
    accuracy, error = number(full[5]), float(re.search(r"± ([\d.]+)", full[5]).group(1))
    axes.axhspan(accuracy - error, accuracy + error, color="#0f62ac", alpha=0.10, linewidth=0)
    axes.axhline(accuracy, color="#5a6572", linewidth=1, label=f"full model, {full[3]} bytes")
    for row in cells:
        if row[0].startswith("full, trained"):
            longer = number(row[5])
            axes.axhline(longer, color="#c2410c", linewidth=1, linestyle="--", label="full model, trained as long")
    for name, kind, colour, mark in KINDS:
        made = points(cells, kind, full)
        if made:
            x, y, spread = zip(*made)
            spread = [own if own is not None else error for own in spread]
            line = "-" if len(made) > 1 else "none"
            axes.errorbar(x, y, spread, color=colour, marker=mark, linestyle=line, markersize=5, linewidth=1.6,
                          elinewidth=1, label=name)
    for work, name, mark in PUBLISHED:
        made = [(times(row, None), number(row[4])) for row in rows("## Published figures")
                if row[0].startswith(work) and row[1] == title and row[3].startswith("1/")]
        # What a more accurate model reaches stands in the table alone.
        made = [own for own in made if LOWEST[title] <= own[1] <= accuracy]
        if made:
            axes.plot(*zip(*made), color="#444444", marker=mark, markersize=7, linestyle=":", linewidth=1, label=name)
    pruned = next(row for row in cells if "magnitude pruning" in row[0])
    name = f"PyTorch, magnitude pruning to 1/2: {number(pruned[5])} %"
    axes.plot([2], [LOWEST[title]], color="#d1552b", marker="v", linestyle="none", label=name, clip_on=False)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 4, 6, 8, 12, 16], ["1", "1/2", "1/4", "1/6", "1/8", "1/12", "1/16"])
    axes.minorticks_off()
    axes.set_ylim(bottom=LOWEST[title])
    axes.set_xlabel("bytes of weights and state")
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="lower left")


def main():
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hankelite", "font.family": "sans-serif"})
    figure, axes = plt.subplots(1, len(PANELS), figsize=(10.4, 4.4), layout="constrained")
    for one, title in zip(axes, PANELS):
        panel(one, title)
    figure.savefig(sys.stdout, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
