//! Bars on a logarithmic axis, drawn with block characters.

/// The block characters of zero to eight eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What is under the median but above the low end, and above the median.
const INNER: char = '▓';
const OUTER: char = '░';

/// Rows of a picture, at least.
const HEIGHT: usize = 6;
/// Decades that have a row each, at most; more decades share rows.
const DECADES_MAX: usize = 8;
/// Columns for a value, at most.
const WIDE: usize = 2;
/// Columns from one number below the axis to the next, at least.
const APART: usize = 6;

/// One value of many channels: below `low` are a tenth of them, below `median` half, below `high`
/// nine tenths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The lower end.
    pub low: f64,
    /// The middle.
    pub median: f64,
    /// The upper end.
    pub high: f64,
}

/// A drawn picture, without line ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The value at the upper edge of each row (empty for some), and at the axis below the last:
    /// all of one width.
    pub labels: Vec<String>,
    /// The bars of each row, top first.
    pub rows: Vec<String>,
    /// Numbers of the values, to stand below the axis.
    pub numbers: String,
    /// Where the axis ends.
    pub floor: f64,
}

/// Draws falling values between 0 and 1 as bars, at most `width` columns wide, on a logarithmic axis
/// from 1 down to the low ends of nine tenths of them, so that a few tiny ones do not press all
/// others to the top: solid up to the low end, then up to the median in eighths of a row, light up to
/// the high end.
///
/// More values than columns are joined by their maximum. A median of zero is no bar.
pub fn log_bars(values: &[Spread], width: usize) -> Bars {
    let joined = values.len().div_ceil(width.max(1)).max(1);
    let columns: Vec<Spread> = values.chunks(joined).map(largest).collect();
    let each = (width / columns.len().max(1)).clamp(1, WIDE);
    let decades = decades(values);
    let (decades, height) = match decades {
        few if few <= DECADES_MAX => (few, few * HEIGHT.div_ceil(few)),
        many => (many.next_multiple_of(2), many.div_ceil(2)),
    };
    let level = |value: f64| match value > 0.0 {
        true => height as f64 * (1.0 + value.log10() / decades as f64).clamp(0.0, 1.0),
        false => 0.0,
    };
    let rows = (0..height).rev().map(|row| {
        let cells = columns.iter().map(|column| {
            let Spread { low, median, high } = *column;
            cell(row, [level(low), level(median), level(high)])
        });
        cells
            .flat_map(|cell| std::iter::repeat_n(cell, each))
            .collect()
    });
    let label = |row: usize| match (row * decades) % height {
        0 if row == 0 => "1".to_string(),
        0 => format!("1e-{}", row * decades / height),
        _ => String::new(),
    };
    let labels: Vec<String> = (0..=height).map(label).collect();
    let widest = labels.iter().map(String::len).max().unwrap_or(0);
    Bars {
        labels: labels
            .iter()
            .map(|label| format!("{label:>widest$}"))
            .collect(),
        rows: rows.collect(),
        numbers: numbers(values.len(), joined, each),
        floor: 10f64.powi(-(decades as i32)),
    }
}

/// The decades from 1 to the smallest of nine tenths of the low ends that are not zero.
fn decades(values: &[Spread]) -> usize {
    let most = values.iter().take((9 * values.len()).div_ceil(10));
    let positive = most.map(|value| value.low).filter(|&low| low > 0.0);
    let least = positive.fold(1.0, f64::min);
    (-least.max(1e-16).log10()).ceil().clamp(1.0, 16.0) as usize
}

fn largest(values: &[Spread]) -> Spread {
    let most = |get: fn(&Spread) -> f64| values.iter().map(get).fold(0.0, f64::max);
    Spread {
        low: most(|value| value.low),
        median: most(|value| value.median),
        high: most(|value| value.high),
    }
}

/// The character of a row, counted from below, for levels counted in rows.
fn cell(row: usize, [low, median, high]: [f64; 3]) -> char {
    let (bottom, top) = (row as f64, row as f64 + 1.0);
    match () {
        () if top <= low => EIGHTHS[8],
        () if top <= median => INNER,
        () if median > bottom => EIGHTHS[((8.0 * (median - bottom)).ceil() as usize).min(8)],
        () if high > bottom => OUTER,
        () => EIGHTHS[0],
    }
}

/// The number of the first value and of round ones, each ending below its bar.
fn numbers(count: usize, joined: usize, each: usize) -> String {
    let column = |number: usize| number.div_ceil(joined) * each;
    let mut step = 1;
    while step * each < APART * joined {
        step *= 2;
    }
    let mut line = String::new();
    let round = (1..)
        .map(|index| index * step)
        .take_while(|&number| number <= count);
    for number in std::iter::once(1).chain(round) {
        let text = number.to_string();
        let end = column(number).max(text.len());
        let used = line.chars().count();
        if used == 0 || end > used + text.len() {
            line += &format!("{text:>width$}", width = end - used);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(low: f64, median: f64, high: f64) -> Spread {
        Spread { low, median, high }
    }

    fn sharp(value: f64) -> Spread {
        spread(value, value, value)
    }

    #[test]
    fn each_decade_takes_its_share_of_the_height() {
        let bars = log_bars(&[1.0, 1e-1, 1e-2, 0.0].map(sharp), 4);
        assert_eq!(bars.floor, 1e-2);
        assert_eq!(bars.rows, ["█   ", "█   ", "█   ", "██  ", "██  ", "██  "]);
        let labels = ["   1", "    ", "    ", "1e-1", "    ", "    ", "1e-2"];
        assert_eq!(bars.labels, labels);
    }

    #[test]
    fn the_band_is_shaded_on_both_sides_of_the_median() {
        let values = [sharp(1.0), spread(1e-4, 1e-2, 1e-1), sharp(1e-6)];
        let bars = log_bars(&values, 3);
        assert_eq!(bars.labels[6], "1e-6");
        assert_eq!(bars.rows, ["█  ", "█░ ", "█▓ ", "█▓ ", "██ ", "██ "]);
    }

    #[test]
    fn many_values_are_joined_and_few_made_wide() {
        let values = [1e-4, 1.0, 1e-4, 1e-4].map(sharp);
        assert!(log_bars(&values, 2).rows.iter().all(|row| row == "█ "));
        assert!(
            log_bars(&values, 40)
                .rows
                .iter()
                .skip(1)
                .all(|row| row == "  ██    ")
        );
    }

    #[test]
    fn sixteen_decades_share_rows() {
        let bars = log_bars(&[1.0, 1e-15, 1e-16].map(sharp), 10);
        assert_eq!(bars.rows.len(), 8);
        assert_eq!(bars.labels[8], "1e-16");
    }

    #[test]
    fn a_few_tiny_values_do_not_press_the_others_to_the_top() {
        let mut values = vec![sharp(0.02); 30];
        values.extend([1e-30, 1e-40].map(sharp));
        assert_eq!(log_bars(&values, 40).floor, 1e-2);
    }

    #[test]
    fn numbers_end_below_their_bars() {
        let values = vec![sharp(1.0); 64];
        let line = log_bars(&values, 64).numbers;
        assert!(line.starts_with("1      8      16      24"), "{line}");
        assert_eq!(line.len(), 64);
        assert_eq!(log_bars(&values, 200).numbers.len(), 128);
        assert_eq!(log_bars(&values[..1], 10).numbers, " 1");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_picture() {
        assert!(log_bars(&[], 10).rows.iter().all(String::is_empty));
    }
}
