//! Tables of text that fit into a number of columns of a terminal.
//!
//! What is too wide gives way in this order: headings go over several lines, then the names in the
//! first column; then the table is parted into several, each with the names.

/// Between two columns.
const GAP: usize = 2;
/// Names are not made narrower than this.
const NAME_LEAST: usize = 14;

/// Lines of a table: names to the left, all else to the right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    header: Vec<String>,
    widths: Vec<usize>,
    /// The columns of each part, the names among them.
    parts: Vec<Vec<usize>>,
}

impl Layout {
    /// A layout for cells of these widths under a header, `limit` columns wide at most where that
    /// can be.
    pub(super) fn new(header: &[&str], cells: &[usize], limit: Option<usize>) -> Self {
        let header: Vec<String> = header.iter().map(|name| (*name).to_string()).collect();
        let all: Vec<usize> = (0..header.len()).collect();
        let mut layout = Self {
            widths: header.iter().map(|name| length(name)).collect(),
            header,
            parts: vec![all],
        };
        for (width, &cell) in layout.widths.iter_mut().zip(cells) {
            *width = (*width).max(cell);
        }
        if let Some(limit) = limit {
            layout.narrow(cells, limit);
        }
        layout
    }

    /// Gives way to the limit.
    fn narrow(&mut self, cells: &[usize], limit: usize) {
        let least = |column: usize| {
            let word = self.header[column].split(' ').map(length).max();
            cells[column].max(word.unwrap_or(0))
        };
        let least: Vec<usize> = (0..self.header.len()).map(least).collect();
        while self.total() > limit {
            let spare = |&column: &usize| self.widths[column] - least[column];
            let Some(widest) = (0..least.len()).max_by_key(spare) else {
                return;
            };
            if spare(&widest) == 0 {
                break;
            }
            self.widths[widest] -= 1;
        }
        let over = self.total().saturating_sub(limit);
        if over == 0 {
            return;
        }
        let Some(&name) = self.widths.first() else {
            return;
        };
        if name >= over + NAME_LEAST {
            self.widths[0] = name - over;
        } else {
            self.widths[0] = name.min(limit / 2);
            self.part(limit);
        }
    }

    /// As many columns in each part as fit beside the names.
    fn part(&mut self, limit: usize) {
        let name = 1 + self.widths.first().copied().unwrap_or(0);
        let mut parts = vec![vec![0]];
        let mut used = name;
        for column in 1..self.widths.len() {
            let wide = GAP + self.widths[column];
            let part = parts
                .last_mut()
                .filter(|part| part.len() == 1 || used + wide <= limit);
            match part {
                Some(part) => {
                    part.push(column);
                    used += wide;
                }
                None => {
                    parts.push(vec![0, column]);
                    used = name + wide;
                }
            }
        }
        self.parts = parts;
    }

    fn total(&self) -> usize {
        let gaps = GAP * self.widths.len().saturating_sub(1);
        1 + gaps + self.widths.iter().sum::<usize>()
    }

    /// Whether a row is one table's, not several's.
    pub(super) fn is_whole(&self) -> bool {
        self.parts.len() == 1
    }

    /// All lines: the header and the rows of each part.
    pub(super) fn lines(&self, rows: &[Vec<String>]) -> Vec<String> {
        let mut lines = Vec::new();
        for part in &self.parts {
            lines.extend(self.part_of_row(part, &self.header, true));
            for row in rows {
                lines.extend(self.part_of_row(part, row, false));
            }
        }
        lines
    }

    /// The header of a whole table.
    pub(super) fn head(&self) -> Vec<String> {
        self.row(&self.header)
    }

    /// A row of a whole table.
    pub(super) fn row(&self, cells: &[String]) -> Vec<String> {
        let head = cells == self.header;
        let parts = self.parts.iter();
        parts
            .flat_map(|part| self.part_of_row(part, cells, head))
            .collect()
    }

    /// Names over several lines stand at the top, headings at the bottom.
    fn part_of_row(&self, part: &[usize], cells: &[String], bottom: bool) -> Vec<String> {
        let wrapped = part.iter().map(|&column| {
            let empty = String::new();
            let cell = cells.get(column).unwrap_or(&empty);
            (column, wrapped(cell, self.widths[column]))
        });
        let wrapped: Vec<(usize, Vec<String>)> = wrapped.collect();
        let height = wrapped.iter().map(|(_, lines)| lines.len()).max();
        let height = height.unwrap_or(0);
        let line = |index: usize| {
            let mut text = String::new();
            for (column, lines) in &wrapped {
                let above = if bottom { height - lines.len() } else { 0 };
                let cell = index.checked_sub(above).and_then(|index| lines.get(index));
                let cell = cell.map_or("", String::as_str);
                let space = " ".repeat(self.widths[*column].saturating_sub(length(cell)));
                text += match column {
                    0 => " ",
                    _ => "  ",
                };
                text += &match column {
                    0 => format!("{cell}{space}"),
                    _ => format!("{space}{cell}"),
                };
            }
            text.trim_end().to_string()
        };
        (0..height).map(line).collect()
    }
}

/// Columns that a text takes.
pub(super) fn length(text: &str) -> usize {
    text.chars().count()
}

/// A text over lines of at most `width`, parted at blanks, else behind the marks of paths and
/// names, else anywhere.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        for (index, piece) in pieces(word, width).into_iter().enumerate() {
            let last = lines.last_mut().filter(|last| {
                let blank = usize::from(index == 0 && !last.is_empty());
                length(last) + blank + length(&piece) <= width || last.is_empty()
            });
            match last {
                Some(last) => {
                    if index == 0 && !last.is_empty() {
                        last.push(' ');
                    }
                    last.push_str(&piece);
                }
                None => lines.push(piece),
            }
        }
    }
    lines
}

/// A word whole where it fits, else its parts behind `/`, `_`, `-` and `.`, none of them longer
/// than a line.
fn pieces(word: &str, width: usize) -> Vec<String> {
    if length(word) <= width {
        return vec![word.to_string()];
    }
    let mut pieces = vec![String::new()];
    for letter in word.chars() {
        let full = pieces.last().is_some_and(|piece| {
            piece.ends_with(['/', '_', '-', '.']) || length(piece) >= width.max(1)
        });
        match pieces.last_mut().filter(|_| !full) {
            Some(piece) => piece.push(letter),
            None => pieces.push(letter.to_string()),
        }
    }
    pieces
}

/// A line for a person, over several lines where it is too long. What follows stands below the text
/// behind the first word, where two blanks or more are between them. Commands stay whole, to be
/// copied.
pub(super) fn hanging(line: &str, width: usize) -> Vec<String> {
    let text = line.trim_start();
    if length(line) <= width || text.starts_with("compress-model ") {
        return vec![line.to_string()];
    }
    let margin = length(line) - length(text);
    let (head, rest) = match text.split_once("  ") {
        Some((word, rest)) if length(word) <= NAME_LEAST => (word, rest.trim_start()),
        _ => ("", text),
    };
    let indent = match head {
        "" => margin + GAP,
        _ => length(line) - length(rest),
    };
    let lines = wrapped(rest, width.saturating_sub(indent));
    let lines = lines.into_iter().enumerate();
    let lines = lines.map(|(index, part)| match (index, head) {
        (0, "") => format!("{}{part}", " ".repeat(margin)),
        (0, _) => format!("{:indent$}{part}", format!("{}{head}", " ".repeat(margin))),
        _ => format!("{}{part}", " ".repeat(indent)),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(texts: &[&[&str]]) -> Vec<Vec<String>> {
        let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_string()).collect();
        texts.iter().map(row).collect()
    }

    fn made(header: &[&str], texts: &[&[&str]], limit: Option<usize>) -> Vec<String> {
        let rows = rows(texts);
        let width = |column: usize| rows.iter().map(|row| length(&row[column])).max();
        let cells: Vec<usize> = (0..header.len())
            .map(|column| width(column).unwrap_or(0))
            .collect();
        Layout::new(header, &cells, limit).lines(&rows)
    }

    const HEADER: [&str; 3] = ["layer", "kernel error, L = 256", "cond(V)"];
    const ROWS: [&[&str]; 1] = [&["s4_layers.0", "49.52 %", "12.06"]];

    #[test]
    fn without_a_limit_every_column_is_as_wide_as_its_widest_cell() {
        let lines = made(&HEADER, &ROWS, None);
        let expected = [
            " layer        kernel error, L = 256  cond(V)",
            " s4_layers.0                49.52 %    12.06",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn headings_then_names_then_the_table_itself_give_way() {
        let lines = made(&HEADER, &ROWS, Some(36));
        let expected = [
            "              kernel error,",
            " layer              L = 256  cond(V)",
            " s4_layers.0        49.52 %    12.06",
        ];
        assert_eq!(lines, expected);
        let long: [&[&str]; 1] = [&["folder/of/a/model.pth", "1", "2"]];
        let lines = made(&["file", "one", "two"], &long, Some(28));
        assert_eq!(lines[1..], [" folder/of/a/         1    2", " model.pth"]);
        let parted = made(&HEADER, &ROWS, Some(22));
        assert_eq!(parted.len(), 3 + 1 + 1 + 1, "{parted:?}");
        assert!(parted.iter().all(|line| length(line) <= 22), "{parted:?}");
        assert_eq!(
            parted.last().map(String::as_str),
            Some(" s4_layers.0    12.06")
        );
    }

    #[test]
    fn long_lines_hang_below_their_text() {
        let line = "longer     logits change by 40.23 % over 512 steps";
        let expected = [
            "longer     logits change by",
            "           40.23 % over 512",
            "           steps",
        ];
        assert_eq!(hanging(line, 28), expected);
        assert_eq!(hanging(line, 60), [line]);
        let plain = "it is shown in words only";
        assert_eq!(hanging(plain, 14), ["it is shown", "  in words", "  only"]);
        let command = "  compress-model reduce model.pth --order 8";
        assert_eq!(hanging(command, 20), [command]);
    }
}
