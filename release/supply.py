#!/usr/bin/env python3
"""What the program is made of, from cargo's own record of it.

    python3 release/supply.py check
    python3 release/supply.py sbom [OPTIONS OF CARGO, e.g. --no-default-features] > compress-model.cdx.json

`check` looks at every package of Cargo.lock: its licence is one of LICENCES, it comes from a registry
with a checksum, and none is there in two versions but those of TWICE. `sbom` prints a bill of materials
of the program for this machine in the form of CycloneDX 1.5: packages with versions, licences,
checksums and what depends on what. The same bytes for the same Cargo.lock.
"""
import json
import re
import subprocess
import sys
import tomllib

PROGRAM = "compress-model"

# What may be passed on with a program under MIT or Apache-2.0, with the notices that they ask for.
LICENCES = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause",
            "Zlib", "Unicode-3.0", "0BSD", "BSL-1.0", "Unlicense"}

# Packages that are there in several versions, and what needs the older ones.
TWICE = {
    "base64": "tokenizers, by spm_precompiled",
    "equator": "nano-gemm 0.2, of faer",
    "equator-macro": "nano-gemm 0.2, of faer",
    "getrandom": "ahash, and rand 0.9 of candle",
    "glam": "conversions of nalgebra, which nobody here builds",
    "hashbrown": "safetensors",
    "miniz_oxide": "png",
    "r-efi": "getrandom",
    "rand": "proptest has 0.10, candle 0.9; in tests alone",
    "rand_core": "the same",
    "roxmltree": "fontconfig-parser",
    "syn": "interpol has 1, of faer; the newest derive macros have 3",
    "thiserror": "sysctl, of gemm",
    "thiserror-impl": "sysctl, of gemm",
}


def metadata(*options):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def checksums():
    with open("Cargo.lock", "rb") as file:
        packages = tomllib.load(file)["package"]
    return {(p["name"], p["version"]): p.get("checksum") for p in packages}


def expression(licence):
    """A licence as SPDX writes it; `/` is an old `OR`."""
    return re.sub(r"\s*/\s*", " OR ", licence or "")


def allowed(licence):
    """Whether one choice of an expression consists of LICENCES alone; of brackets the innermost first."""
    text = expression(licence)
    while inner := re.search(r"\(([^()]*)\)", text):
        text = text[:inner.start()] + ("MIT" if allowed(inner[1]) else "none") + text[inner.end():]
    choices = (choice.split(" AND ") for choice in text.split(" OR "))
    return any(all(part.strip() in LICENCES for part in choice) for choice in choices)


def check():
    packages, sums, wrong = metadata()["packages"], checksums(), []
    versions = {}
    for package in packages:
        name, version = package["name"], package["version"]
        versions.setdefault(name, []).append(version)
        if not allowed(package["license"]):
            wrong.append(f"{name} {version} has the licence {package['license']!r}")
        source = package["source"]
        if source is not None and not (source.startswith("registry+") and sums[name, version]):
            wrong.append(f"{name} {version} comes from {source}, expected a registry and a checksum")
    several = {name for name, found in versions.items() if len(found) > 1}
    wrong += [f"{name} is there as {', '.join(sorted(versions[name]))}: give a reason in TWICE"
              for name in sorted(several - TWICE.keys())]
    wrong += [f"{name} is in TWICE and there once" for name in sorted(TWICE.keys() - several)]
    print("\n".join(wrong) or f"{len(packages)} packages: licences, sources and versions as expected")
    return 1 if wrong else 0


def component(package, sums):
    name, version = package["name"], package["version"]
    found = {"type": "library", "bom-ref": reference(package), "name": name, "version": version}
    if package["license"]:
        found["licenses"] = [{"expression": expression(package["license"])}]
    if package["source"] is not None:
        found["purl"] = f"pkg:cargo/{name}@{version}"
    if sums.get((name, version)):
        found["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    return found


def reference(package):
    return f"{package['name']}@{package['version']}"


def tree(options):
    """What each package of the program needs, as [name@version]; what only tests need is not there."""
    command = ["cargo", "tree", "--locked", "--package", PROGRAM, "--edges", "normal,build",
               "--prefix", "depth", *options]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    edges, above = {}, []
    for line in text.splitlines():
        depth, name, version = re.match(r"(\d+)(\S+) v(\S+)", line).groups()
        own = f"{name}@{version}"
        edges.setdefault(own, set())
        above[int(depth):] = [own]
        if len(above) > 1:
            edges[above[-2]].add(own)
    return edges


def sbom(options):
    packages = {reference(package): package for package in metadata()["packages"]}
    sums, edges = checksums(), tree(options)
    root = next(one for one in edges if one.startswith(f"{PROGRAM}@"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(packages[root], sums) | {"type": "application"}},
        "components": [component(packages[one], sums) for one in sorted(edges) if one != root],
        "dependencies": [{"ref": one, "dependsOn": sorted(edges[one])} for one in sorted(edges)],
    }


def main(arguments):
    if arguments[:1] == ["check"] and len(arguments) == 1:
        return check()
    if arguments[:1] == ["sbom"]:
        print(json.dumps(sbom(arguments[1:]), indent=1))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
