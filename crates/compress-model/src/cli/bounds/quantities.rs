//! Tables of quantities and bounds.

use hankelite_research::bounds::Bound;
use serde::Serialize;

use crate::cli::common::short;
use crate::cli::printer::Printer;

/// A number with its symbol and what it is.
#[derive(Clone, Serialize)]
pub(super) struct Quantity {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) value: f64,
}

/// A row of a table for each.
pub(super) fn rows(quantities: &[Quantity]) -> impl Iterator<Item = Vec<String>> + '_ {
    quantities.iter().map(|quantity| {
        let (name, meaning) = (quantity.name, quantity.meaning);
        vec![format!("{name}, {meaning}"), short(quantity.value)]
    })
}

/// A table of quantities and bounds, and below it what is to be known of them.
pub(super) fn show(
    quantities: &[Quantity],
    bounds: &[Bound],
    printer: &Printer,
) -> anyhow::Result<()> {
    let found = bounds.iter();
    let found = found.map(|bound| vec![format!("bound {}", bound.equation), short(bound.value)]);
    printer.table(
        &["quantity", "value"],
        rows(quantities).chain(found).collect(),
    )?;
    for bound in bounds {
        for caveat in &bound.caveats {
            printer.line(&format!("note: {}: {caveat}", bound.equation))?;
        }
    }
    Ok(())
}
