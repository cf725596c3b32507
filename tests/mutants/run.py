"""The share of planted mistakes that the tests of hankelite-control catch, from one build.

    python3 tests/mutants/run.py COUNT SEED FOLDER

Draws COUNT of the mistakes that `cargo mutants --list` finds, plants them all in a copy of the project
in FOLDER, each behind a switch, takes out those that do not compile, and runs the tests with one
switch on at a time, the quick programs first. FOLDER/outcome.txt takes a line for each as it is found.
Needs `cargo install --locked cargo-mutants`. A count of 300 took half an hour on two busy cores.

Where cargo-mutants rewrites the text, an operand stays whole here: of `4.0 * n * e`, `+` for the first
operator makes (4 + n) e and not 4 + n e.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRATE = Path("crates/control")
SWITCH = """//! Which mistake is on, by the variable MISTAKE of the environment.
use std::sync::OnceLock;
static ON: OnceLock<u32> = OnceLock::new();
#[inline]
pub fn is_on(id: u32) -> bool {
    let chosen = || std::env::var("MISTAKE").ok().and_then(|id| id.parse().ok());
    *ON.get_or_init(|| chosen().unwrap_or(u32::MAX)) == id
}
"""
# Only a feature compiles these.
LEFT_OUT = "src/linalg/lapack"
# Seconds that a program may take: a mistake that makes it endless is caught.
LONGEST = 90


def main():
    count, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).resolve()
    copy = folder / "project"
    (folder / "outcome.txt").unlink(missing_ok=True)
    sample = drawn(count, seed)
    prepare(copy)
    planter = build_planter(folder)
    planted = plant(planter, sample, copy, folder)
    programs = build_tests(copy, folder)
    print(f"{len(sample)} drawn, {len(planted)} planted and compiled; {len(programs)} programs", flush=True)
    results = [outcome(mistake, programs, copy, folder) for mistake in planted]
    caught = sum(result != "missed" for result in results)
    share = caught / len(results)
    error = (share * (1 - share) / len(results)) ** 0.5
    print(f"{caught} of {len(results)} caught: {100 * share:.1f} ± {100 * error:.1f} %")


def drawn(count, seed):
    listed = subprocess.run(
        ["cargo", "mutants", "--list", "--json", "-p", "hankelite-control"],
        cwd=ROOT, check=True, capture_output=True, text=True)
    mistakes = [m for m in json.loads(listed.stdout) if LEFT_OUT not in m["file"]]
    for number, mistake in enumerate(mistakes):
        mistake["id"] = number
    print(f"{len(mistakes)} places", flush=True)
    return random.Random(seed).sample(mistakes, count)


def prepare(copy):
    shutil.rmtree(copy, ignore_errors=True)
    away = shutil.ignore_patterns("target", ".git", "fuzz", "mutants")
    shutil.copytree(ROOT, copy, ignore=away)
    switch = copy / "crates/switch"
    (switch / "src").mkdir(parents=True)
    (switch / "src/lib.rs").write_text(SWITCH)
    (switch / "Cargo.toml").write_text(
        '[package]\nname = "hankelite-switch"\nversion = "0.0.0"\nedition = "2024"\n')
    manifest = copy / CRATE / "Cargo.toml"
    needed = '[dependencies]\nhankelite-switch = { path = "../switch" }\n'
    manifest.write_text(manifest.read_text().replace("[dependencies]\n", needed, 1))


def build_planter(folder):
    target = folder / "planter"
    subprocess.run(["cargo", "build", "--release", "--target-dir", target],
                   cwd=Path(__file__).parent, check=True)
    return target / "release/hankelite-mutants"


def plant(planter, sample, copy, folder):
    """The mistakes that compile, planted."""
    sources, left = copy / CRATE / "src", list(sample)
    while True:
        shutil.rmtree(sources)
        shutil.copytree(ROOT / CRATE / "src", sources)
        (folder / "list.json").write_text(json.dumps(left))
        placed = subprocess.run([planter, folder / "list.json", copy], check=True,
                                capture_output=True, text=True)
        out = {int(number) for number in placed.stdout.split()}
        out |= faulty(cargo(["check", "--message-format=json"], copy, folder).stdout, copy)
        if not out:
            return left
        left = [mistake for mistake in left if mistake["id"] not in out]


def faulty(messages, copy):
    """The mistakes that a compiler's errors lie in, or are next to."""
    out = set()
    errors = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    errors = [e["message"] for e in errors if e.get("reason") == "compiler-message"]
    for error in (e for e in errors if e["level"] == "error"):
        spans = error["spans"]
        found = {number for span in spans for number in nearest(span, copy, range(0, -14, -1))}
        if not found:
            # Of a body that gives another type than its function the first line is named.
            found = {number for span in spans for number in nearest(span, copy, range(1, 14))}
        if spans and not found:
            sys.exit(f"an error away from every mistake: {error['rendered']}")
        out |= found
    return out


def nearest(span, copy, shifts):
    """The mistakes between a span and so many lines before or behind it, the nearest ones."""
    lines = (copy / span["file_name"]).read_text().splitlines()
    for shift in shifts:
        first = max(span["line_start"] - 1 + min(shift, 0), 0)
        text = "\n".join(lines[first:span["line_end"] + max(shift, 0)])
        ids = re.findall(r"hankelite_switch::is_on\((\d+)u32\)", text)
        if ids:
            return set(map(int, ids))
    return set()


def cargo(words, copy, folder):
    return subprocess.run(
        ["cargo", *words, "-p", "hankelite-control", "--target-dir", folder / "target"],
        cwd=copy, capture_output=True, text=True)


def build_tests(copy, folder):
    """The test programs, by the time that they take without a mistake."""
    built = cargo(["test", "--lib", "--tests", "--no-run", "--message-format=json"], copy, folder)
    if built.returncode:
        sys.exit(built.stderr)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    programs = [m["executable"] for m in messages if m.get("executable")]

    def seconds(program):
        start = os.times()
        if run(program, None, copy) != 0:
            sys.exit(f"{program} fails without a mistake")
        end = os.times()
        return end.elapsed - start.elapsed

    return sorted(programs, key=seconds)


def run(program, mistake, copy):
    surroundings = dict(os.environ)
    if mistake is not None:
        surroundings["MISTAKE"] = str(mistake)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run([program, "-q"], cwd=copy / CRATE, env=surroundings, timeout=LONGEST,
                              **quiet).returncode
    except subprocess.TimeoutExpired:
        return "endless"


def outcome(mistake, programs, copy, folder):
    found = "missed"
    for program in programs:
        code = run(program, mistake["id"], copy)
        if code:
            found = f"{Path(program).name.rsplit('-', 1)[0]}: {'endless' if code == 'endless' else 'failed'}"
            break
    with open(folder / "outcome.txt", "a") as file:
        file.write(f"{found}\t{mistake['name']}\n")
    return found


if __name__ == "__main__":
    main()
