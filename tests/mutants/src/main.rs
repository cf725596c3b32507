//! Plants mistakes that cargo-mutants lists, each behind a switch, so that one build has them all:
//!
//!     plant LIST.json ROOT
//!
//! LIST.json is a part of `cargo mutants --list --json`, with a number `id` for each mistake. The files
//! below ROOT are written over. Mistakes that were not placed (those in constants and in macros) are
//! printed by their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;

use serde::Deserialize;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, ExprMatch, parse_quote, parse_str};

/// Line and column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Extent {
    start: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Debug, Clone, Deserialize)]
struct Mistake {
    id: u32,
    file: String,
    genre: Genre,
    span: Extent,
    replacement: String,
}

/// The mistakes of one file.
struct Planter {
    mistakes: Vec<Mistake>,
    placed: BTreeSet<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, root] = &arguments[..] else {
        return Err("usage: plant LIST.json ROOT".into());
    };
    let mistakes: Vec<Mistake> = serde_json::from_str(&std::fs::read_to_string(list)?)?;
    let mut files: BTreeMap<String, Vec<Mistake>> = BTreeMap::new();
    for mistake in mistakes {
        files.entry(mistake.file.clone()).or_default().push(mistake);
    }
    for (file, mistakes) in files {
        let path = Path::new(root).join(file);
        let mut tree = syn::parse_file(&std::fs::read_to_string(&path)?)?;
        let placed = BTreeSet::new();
        let mut planter = Planter { mistakes, placed };
        planter.visit_file_mut(&mut tree);
        std::fs::write(&path, prettyplease::unparse(&tree))?;
        let all = planter.mistakes.iter().map(|mistake| mistake.id);
        all.filter(|id| !planter.placed.contains(id))
            .for_each(|id| println!("{id}"));
    }
    Ok(())
}

fn start(spanned: &impl Spanned) -> Place {
    let start = spanned.span().start();
    Place {
        line: start.line,
        column: start.column + 1,
    }
}

impl Planter {
    /// The mistakes of a kind at a place; they count as placed.
    fn take(&mut self, genre: Genre, at: Place) -> Vec<(u32, String)> {
        let here = |mistake: &&Mistake| mistake.genre == genre && mistake.span.start == at;
        let found = self.mistakes.iter().filter(here);
        let found: Vec<_> = found.map(|m| (m.id, m.replacement.clone())).collect();
        self.placed.extend(found.iter().map(|(id, _)| id));
        found
    }

    /// A function that returns something else at once.
    fn values(&mut self, body: &mut Block, at: Option<Place>) {
        for (id, text) in at.map_or(Vec::new(), |at| self.take(Genre::FnValue, at)) {
            let Ok(value) = parse_str::<Expr>(&text) else {
                self.placed.remove(&id);
                continue;
            };
            let early = parse_quote!(if hankelite_switch::is_on(#id) { return #value; });
            body.stmts.insert(0, early);
        }
    }

    fn operator(&mut self, whole: &mut Expr, genre: Genre, at: Place) {
        for (id, text) in self.take(genre, at) {
            let original = whole.clone();
            let mistaken = match original.clone() {
                Expr::Unary(unary) => *unary.expr,
                Expr::Binary(mut binary) => {
                    binary.op = parse_str(&text).expect("an operator");
                    Expr::Binary(binary)
                }
                // Planted there already: one of a place and kind is enough.
                _ => {
                    self.placed.remove(&id);
                    continue;
                }
            };
            *whole =
                parse_quote!((if hankelite_switch::is_on(#id) { #mistaken } else { #original }));
        }
    }

    /// Arms that are left out, and guards that always or never hold.
    fn arms(&mut self, whole: &mut ExprMatch) {
        let places = |arm: &syn::Arm| {
            (
                start(arm),
                arm.guard.as_ref().map(|(_, guard)| start(guard)),
            )
        };
        let places: Vec<_> = whole.arms.iter().map(places).collect();
        visit_mut::visit_expr_match_mut(self, whole);
        for (arm, (own, guard)) in whole.arms.iter_mut().zip(places) {
            let guards = guard.map_or(Vec::new(), |at| self.take(Genre::MatchArmGuard, at));
            for (id, text) in guards {
                let (_, guard) = arm.guard.as_mut().expect("it has a place");
                let value: Expr = parse_str(&text).expect("true or false");
                **guard = parse_quote!(if hankelite_switch::is_on(#id) { #value } else { #guard });
            }
            for (id, _) in self.take(Genre::MatchArm, own) {
                let stays: Expr = parse_quote!(!hankelite_switch::is_on(#id));
                let guard = match arm.guard.take() {
                    Some((_, guard)) => parse_quote!(#stays && (#guard)),
                    None => stays,
                };
                arm.guard = Some((Default::default(), Box::new(guard)));
            }
        }
    }
}

fn first(body: &Block) -> Option<Place> {
    body.stmts.first().map(start)
}

impl VisitMut for Planter {
    fn visit_item_fn_mut(&mut self, function: &mut syn::ItemFn) {
        let at = first(&function.block);
        visit_mut::visit_item_fn_mut(self, function);
        self.values(&mut function.block, at);
    }

    fn visit_impl_item_fn_mut(&mut self, function: &mut syn::ImplItemFn) {
        let at = first(&function.block);
        visit_mut::visit_impl_item_fn_mut(self, function);
        self.values(&mut function.block, at);
    }

    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}

    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}

    fn visit_expr_mut(&mut self, whole: &mut Expr) {
        let (genre, at) = match whole {
            Expr::Binary(binary) => (Genre::BinaryOperator, start(&binary.op)),
            Expr::Unary(unary) => (Genre::UnaryOperator, start(&unary.op)),
            Expr::Match(arms) => return self.arms(arms),
            _ => return visit_mut::visit_expr_mut(self, whole),
        };
        visit_mut::visit_expr_mut(self, whole);
        self.operator(whole, genre, at);
    }
}
