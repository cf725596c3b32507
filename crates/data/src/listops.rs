//! ListOps: trees of list operations, their tokens, values and a generator.

use std::collections::HashSet;
use std::fmt::Display;

use rayon::prelude::*;

use crate::draw::Draw;
use crate::generate::{CROSS_ENTROPY, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Every token but the padding, which is 0: token k + 1 is `TOKENS[k]`.
pub(super) const TOKENS: [&str; 17] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]", "[FIRST",
    "[LAST",
];
/// Padding, ten digits, four operators and the closing bracket.
pub(super) const VOCABULARY: usize = 16;
/// The same with `[FIRST` and `[LAST` of the older sets.
pub(super) const VOCABULARY_OLD: usize = 18;
const MIN: u16 = 11;
const MAX: u16 = 12;
const MED: u16 = 13;
const SM: u16 = 14;
const END: u16 = 15;
const FIRST: u16 = 16;

/// Values of a digit, and so classes.
pub(super) const CLASSES: usize = 10;
/// Deeper trees than any published set are refused, so that no file can exhaust the stack.
pub(super) const DEPTH_MAX: usize = 1000;
/// A node above the largest depth is an operator in a quarter of the draws.
const OPERATOR_SHARE: f64 = 0.25;
/// Draws for one sequence after which it is given up.
const DRAWS_MAX: usize = 100_000;

/// Generated ListOps: the value of a tree of list operations.
///
/// ```text
/// node at depth d < D    a digit 0 … 9 with probability 3/4, else an operator (root: d = 1)
/// node at depth D        a digit
/// operator               [MIN, [MAX, [MED, [SM, each 1/4, with 2 … A arguments, all uniform
/// length                 1 for each digit, 2 for each operator (`[OP` and `]`)
/// kept                   min_length < length < max_length, no tree twice
/// y                      the value of the root, 10 classes
/// ```
///
/// MED is the median rounded down, for an even number of arguments the mean of the two middle
/// ones; SM is the sum modulo 10. Nangia and Bowman (2018) in the form of Long Range Arena (Tay
/// and others, 2021; `lra_benchmarks/data/listops.py` of google-research/long-range-arena).
///
/// Tokens are those of the flat form without parentheses: 0 padding, 1 … 10 the digits 0 … 9, 11
/// `[MIN`, 12 `[MAX`, 13 `[MED`, 14 `[SM`, 15 `]`. Stored length: max_length.
///
/// A tree belongs to one part by a hash of its tokens (1/2 training, 1/4 validation, 1/4 test), so
/// the parts share no tree, and each can be made without the others.
///
/// Keys: `max_depth` D (10), `max_args` A (10), `min_length` (500), `max_length` (2000), `count`
/// (96000), `held_out` (2000), `seed` (0). Trivial answer: the uniform one, ln 10; a little less
/// is reached by the frequencies of the classes, which are not alike.
#[derive(Debug, Clone, PartialEq)]
pub struct ListOps {
    max_depth: usize,
    max_args: usize,
    min_length: usize,
    max_length: usize,
    sizes: Sizes,
}

impl ListOps {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        let max_length = options.number("max_length", 2000, 2..=1 << 20)?;
        Ok(Self {
            max_depth: options.number("max_depth", 10, 1..=64)?,
            max_args: options.number("max_args", 10, 2..=1000)?,
            min_length: options.number(
                "min_length",
                500.min(max_length - 2),
                0..=max_length - 2,
            )?,
            max_length,
            sizes: Sizes::parse(options, 96_000, 2000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        self.sizes.check(self, split, self.max_length)?;
        let rows = self.distinct(split)?;
        let labels = rows.par_iter().map(|row| {
            value(row)
                .map(usize::from)
                .expect("the trees are well formed")
        });
        let targets = Targets::Classes {
            labels: labels.collect(),
            classes: CLASSES,
        };
        Ok(Dataset::from_rows(&rows, VOCABULARY, self.max_length).with_targets(targets))
    }

    /// As many different trees as the part has, in the order of their streams.
    fn distinct(&self, split: Split) -> Result<Vec<Vec<u16>>, DataError> {
        let requested = self.sizes.of(split);
        let (mut rows, mut seen) = (Vec::new(), HashSet::new());
        let mut draws = 0;
        while rows.len() < requested {
            let block = (requested - rows.len()).clamp(64, 4096).min(64 + draws);
            let trees = (draws..draws + block).into_par_iter();
            let trees: Vec<_> = trees
                .map(|index| self.accepted(split, &mut self.sizes.draw(split, index)))
                .collect();
            draws += block;
            let before = rows.len();
            for tree in trees.into_iter().flatten() {
                if rows.len() < requested && seen.insert(fingerprint(&tree)) {
                    rows.push(tree);
                }
            }
            // A block that brings next to nothing new means that the rules leave too few trees.
            if rows.len() < requested && (rows.len() - before) * 100 < block {
                let (data, found) = (self.to_string(), rows.len());
                return Err(DataError::TooFew {
                    data,
                    found,
                    requested,
                    draws,
                });
            }
        }
        Ok(rows)
    }

    /// The first tree of a stream that keeps the length rule and belongs to the part.
    fn accepted(&self, split: Split, draw: &mut Draw) -> Option<Vec<u16>> {
        let mut tree = Vec::new();
        for _ in 0..DRAWS_MAX {
            tree.clear();
            self.grow(1, draw, &mut tree);
            let fits = tree.len() > self.min_length && tree.len() < self.max_length;
            if fits && part_of(&tree) == split {
                return Some(tree);
            }
        }
        None
    }

    /// Draws one node with everything below it. Stops when the tree is too long already: it will
    /// be thrown away, and without the limit some trees of absurd settings would not end.
    fn grow(&self, depth: usize, draw: &mut Draw, tree: &mut Vec<u16>) {
        if tree.len() >= self.max_length {
            return;
        }
        if depth >= self.max_depth || draw.unit() >= OPERATOR_SHARE {
            tree.push(1 + draw.below(10) as u16);
            return;
        }
        tree.push(MIN + draw.below(4) as u16);
        for _ in 0..2 + draw.below(self.max_args - 1) {
            self.grow(depth + 1, draw, tree);
        }
        tree.push(END);
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        TrivialAnswer {
            measure: CROSS_ENTROPY,
            loss: (CLASSES as f64).ln(),
            answer: "all classes alike: ln 10",
            floor: None,
        }
    }
}

impl Display for ListOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (depth, args) = (self.max_depth, self.max_args);
        let (min, max) = (self.min_length, self.max_length);
        write!(f, "listops:max_length={max},max_depth={depth},")?;
        write!(f, "max_args={args},min_length={min},{}", self.sizes)
    }
}

/// 64 bits of a tree: the finaliser of SplitMix64 (Steele, Lea and Flood 2014) after every token.
/// Of 100,000 trees two share them with probability 3·10⁻¹⁰; then one is left out.
fn fingerprint(tree: &[u16]) -> u64 {
    tree.iter()
        .fold(0x9e37_79b9_7f4a_7c15, |hash: u64, &token| {
            let z = hash ^ u64::from(token);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
}

fn part_of(tree: &[u16]) -> Split {
    match fingerprint(tree) & 3 {
        0 => Split::Validation,
        1 => Split::Test,
        _ => Split::Train,
    }
}

/// The value of a tree in flat form; the error names what is wrong with it.
pub(super) fn value(tokens: &[u16]) -> Result<u8, &'static str> {
    // Open operators with the values of their arguments so far.
    let mut open: Vec<(u16, Vec<u8>)> = Vec::new();
    let mut result = None;
    for &token in tokens {
        if result.is_some() {
            return Err("tokens behind the end of the tree");
        }
        let found = match token {
            1..=10 => (token - 1) as u8,
            END => {
                let (operator, arguments) = open.pop().ok_or("`]` without an operator")?;
                apply(operator, arguments).ok_or("an operator without arguments")?
            }
            MIN..=SM | FIRST.. => {
                if open.len() == DEPTH_MAX {
                    return Err("a tree deeper than 1000");
                }
                open.push((token, Vec::new()));
                continue;
            }
            _ => return Err("padding inside a tree"),
        };
        match open.last_mut() {
            Some((_, arguments)) => arguments.push(found),
            None => result = Some(found),
        }
    }
    result.ok_or("a tree that does not end")
}

fn apply(operator: u16, mut arguments: Vec<u8>) -> Option<u8> {
    let (first, last) = (*arguments.first()?, *arguments.last()?);
    arguments.sort_unstable();
    let n = arguments.len();
    Some(match operator {
        MIN => arguments[0],
        MAX => arguments[n - 1],
        MED => (arguments[(n - 1) / 2] + arguments[n / 2]) / 2,
        SM => (arguments.iter().map(|&x| u64::from(x)).sum::<u64>() % 10) as u8,
        FIRST => first,
        _ => last,
    })
}
