#!/usr/bin/env bash
# Makes docs/cli.md from the program's own help: bash docs/cli.sh > docs/cli.md
# PROGRAM may name the program.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${PROGRAM:-${CARGO_TARGET_DIR:-target}/release/compress-model}
[ -n "${PROGRAM:-}" ] || cargo build --release --quiet -p compress-model
printf '# Commands\n\nThe text of `--help`, made by `docs/cli.sh`; `crates/compress-model/tests/cli.rs` holds this page to the program.\n'
for command in "" inspect reduce calibrate sweep compare evaluate report pretrain retrain pipeline convert stream bench check pack export \
    bounds "bounds model" "bounds rademacher" "bounds network" "bounds finite-time" data completions man; do
    title="compress-model${command:+ $command}"
    # shellcheck disable=SC2086
    printf '\n## %s\n\n```text\n%s\n```\n' "$title" "$($program $command --help)"
done
cat <<'END'

## Results and exit codes

Data go to stdout, everything else to stderr, so `--format json` can be piped. Exit code 0: done. 1: the input or the run failed, with the file, the tensor and what was expected on stderr; nothing was written. 2: wrong usage. 130: a training was interrupted; `--resume` goes on.
END
