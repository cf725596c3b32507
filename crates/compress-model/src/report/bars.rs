//! Bars on a logarithmic axis, drawn with block characters.

/// The block characters of zero to eight eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A drawn picture: its rows, top first, without line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bars {
    /// The axis label of each row (empty for most), all of one width.
    pub labels: Vec<String>,
    /// The bars of each row, one character for each column.
    pub rows: Vec<String>,
    /// How many values one column stands for.
    pub values_per_column: usize,
}

/// Draws values between 0 and 1 as bars, `height` rows high and at most `width` columns wide, on
/// a logarithmic axis from `floor` (a power of ten below 1) to 1.
///
/// More values than columns are joined by their maximum. Values at or below `floor` leave their
/// column empty.
pub fn log_bars(values: &[f64], width: usize, height: usize, floor: f64) -> Bars {
    let per_column = values.len().div_ceil(width.max(1)).max(1);
    let columns: Vec<f64> = values
        .chunks(per_column)
        .map(|chunk| chunk.iter().copied().fold(0.0, f64::max))
        .collect();
    let decades = -floor.log10();
    let eighths: Vec<usize> = columns
        .iter()
        .map(|&value| filled(value, decades, 8 * height))
        .collect();
    let rows = (0..height).rev().map(|row| {
        let cells = eighths
            .iter()
            .map(|&fill| EIGHTHS[fill.saturating_sub(8 * row).min(8)]);
        cells.collect::<String>()
    });
    let labels = (0..height).map(|row| match row {
        0 => "1".to_string(),
        row if row + 1 == height => format!("1e-{decades:.0}"),
        _ => String::new(),
    });
    let labels: Vec<String> = labels.collect();
    let widest = labels.iter().map(String::len).max().unwrap_or(0);
    Bars {
        labels: labels
            .iter()
            .map(|label| format!("{label:>widest$}"))
            .collect(),
        rows: rows.collect(),
        values_per_column: per_column,
    }
}

/// Filled eighths out of `full` for a value on an axis of `decades`.
fn filled(value: f64, decades: f64, full: usize) -> usize {
    if value <= 0.0 || value.is_nan() {
        return 0;
    }
    let share = (1.0 + value.log10() / decades).clamp(0.0, 1.0);
    (share * full as f64).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decade_takes_its_share_of_the_height() {
        let bars = log_bars(&[1.0, 1e-2, 1e-4, 0.0], 10, 2, 1e-4);
        assert_eq!(bars.rows, ["█   ", "██  "]);
        assert_eq!(bars.labels, ["   1", "1e-4"]);
        assert_eq!(bars.values_per_column, 1);
    }

    #[test]
    fn many_values_are_joined_by_their_maximum() {
        let bars = log_bars(&[1e-4, 1.0, 1e-4, 1e-4], 2, 1, 1e-4);
        assert_eq!(bars.rows, ["█ "]);
        assert_eq!(bars.values_per_column, 2);
    }

    #[test]
    fn nothing_to_draw_is_an_empty_picture() {
        assert_eq!(log_bars(&[], 10, 2, 1e-4).rows, ["", ""]);
    }
}
