//! Panels side by side as SVG: lines, bands, dots and squares, labelled where they stand.

use std::fmt::Write as _;

use hankelite_report::Ink;

/// Something that is drawn.
#[derive(Debug, Clone)]
pub enum Mark {
    /// A line through points, with its name at its end.
    Line {
        /// What it belongs to.
        ink: Ink,
        /// Its points; those that are not finite, or not positive on a logarithmic axis, part it.
        points: Vec<(f64, f64)>,
        /// May be empty.
        name: String,
        /// Whether it is dashed.
        dashed: bool,
    },
    /// The area between two lines over the same places.
    Band {
        /// What it belongs to.
        ink: Ink,
        /// x, lower and upper y.
        points: Vec<(f64, f64, f64)>,
    },
    /// Dots, filled or not, with their name in the corner.
    Dots {
        /// What they belong to.
        ink: Ink,
        /// Where they stand.
        points: Vec<(f64, f64)>,
        /// May be empty.
        name: String,
        /// Whether they are filled.
        filled: bool,
    },
    /// A vertical line with its name.
    Vertical {
        /// What it belongs to.
        ink: Ink,
        /// Its place.
        x: f64,
        /// Beside its upper end.
        name: String,
    },
    /// The unit circle.
    Circle,
    /// A square of one unit around a place, shaded from 0 (dark) to 1 (bright).
    Square {
        /// Its middle.
        at: (f64, f64),
        /// Its shade.
        share: f64,
    },
}

/// An axis.
#[derive(Debug, Clone)]
pub struct PanelAxis {
    /// Its words.
    pub label: String,
    /// Its ends; positive on a logarithmic axis.
    pub range: (f64, f64),
    /// Whether it is logarithmic.
    pub log: bool,
    /// Names of the places 0, 1, …; without any, round numbers stand along the axis.
    pub names: Vec<String>,
}

/// One panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Along.
    pub x: PanelAxis,
    /// Up.
    pub y: PanelAxis,
    /// First the lowest.
    pub marks: Vec<Mark>,
}

/// Of a panel beside others, and of one alone.
const WIDTH: f64 = 330.0;
const ALONE: f64 = 760.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 62.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 42.0;
/// Panels in a row, at most.
const ACROSS: usize = 4;

/// Draws panels in rows of four under a title that says what was found.
pub fn panels_svg(title: &str, panels: &[Panel]) -> String {
    let across = panels.len().clamp(1, ACROSS);
    let down = panels.len().div_ceil(across).max(1);
    let wide = if panels.len() == 1 { ALONE } else { WIDTH };
    let lines = wrapped(title, (across as f64 * wide / 9.0) as usize);
    let head = 16.0 + 20.0 * lines.len() as f64;
    let (width, height) = (wide * across as f64, head + HEIGHT * down as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" font-family=\"system-ui, 'Helvetica Neue', Arial, sans-serif\" font-size=\"11.5\" fill=\"#444\" role=\"img\"><title>{}</title><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        escaped(title)
    );
    for (index, line) in lines.iter().enumerate() {
        let y = 22.0 + 20.0 * index as f64;
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{y}\" font-size=\"15\" font-weight=\"600\" fill=\"#1b1f24\">{}</text>",
            escaped(line)
        );
    }
    for (index, panel) in panels.iter().enumerate() {
        let x = wide * (index % across) as f64;
        let y = head + HEIGHT * (index / across) as f64;
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        // Pictures inside one page must not share names.
        let seed = title.bytes().fold(index as u32, |seed, byte| {
            seed.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        Drawing {
            panel,
            wide,
            svg: &mut svg,
        }
        .draw(seed);
        svg.push_str("</g>\n");
    }
    svg + "</svg>\n"
}

struct Drawing<'a> {
    panel: &'a Panel,
    wide: f64,
    svg: &'a mut String,
}

impl Drawing<'_> {
    fn x(&self, value: f64) -> f64 {
        LEFT + share(&self.panel.x, value) * (self.wide - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        (bottom - share(&self.panel.y, value) * (bottom - top)).clamp(top, bottom)
    }

    fn draw(&mut self, index: u32) {
        let (right, bottom) = (self.wide - RIGHT, HEIGHT - BOTTOM);
        let (across, down) = (right - LEFT, bottom - TOP);
        let panel = self.panel;
        let _ = writeln!(
            self.svg,
            "<clipPath id=\"c{index}\"><rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{across}\" height=\"{down}\"/></clipPath>\
             <text x=\"{LEFT}\" y=\"22\" font-weight=\"600\" fill=\"#1b1f24\">{}</text>",
            escaped(&panel.title)
        );
        self.ticks();
        let _ = writeln!(
            self.svg,
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{across}\" height=\"{down}\" fill=\"none\" stroke=\"#bbb\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text text-anchor=\"middle\" transform=\"translate(13 {}) rotate(-90)\">{}</text>",
            0.5 * (LEFT + right),
            bottom + 32.0,
            escaped(&panel.x.label),
            0.5 * (TOP + bottom),
            escaped(&panel.y.label)
        );
        let _ = writeln!(self.svg, "<g clip-path=\"url(#c{index})\">");
        for mark in &panel.marks {
            self.mark(mark);
        }
        self.svg.push_str("</g>\n");
        self.names();
    }

    fn ticks(&mut self) {
        let bottom = HEIGHT - BOTTOM;
        for (value, text) in ticks(&self.panel.x) {
            let x = self.x(value);
            let _ = writeln!(
                self.svg,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#e4e4e4\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                bottom + 16.0
            );
        }
        for (value, text) in ticks(&self.panel.y) {
            let y = self.y(value);
            let _ = writeln!(
                self.svg,
                "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#e4e4e4\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                self.wide - RIGHT,
                LEFT - 5.0,
                y + 4.0
            );
        }
    }

    fn mark(&mut self, mark: &Mark) {
        let drawn = match mark {
            Mark::Line {
                ink,
                points,
                dashed,
                ..
            } => {
                let (path, colour) = (self.path(points), ink.colour());
                let dashes = if *dashed { "5 4" } else { "none" };
                format!(
                    "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\"/>"
                )
            }
            Mark::Band { ink, points } => self.band(*ink, points),
            Mark::Dots {
                ink,
                points,
                filled,
                ..
            } => self.dots(*ink, points, *filled),
            Mark::Vertical { ink, x, .. } => {
                let (x, colour) = (self.x(*x), ink.colour());
                let bottom = HEIGHT - BOTTOM;
                format!(
                    "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"{colour}\" stroke-width=\"1.4\"/>"
                )
            }
            Mark::Circle => self.disc(),
            Mark::Square { at, share } => {
                let (x, y) = (self.x(at.0 - 0.5), self.y(at.1 + 0.5));
                let (across, down) = (self.x(at.0 + 0.5) - x, self.y(at.1 - 0.5) - y);
                format!(
                    "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{across:.2}\" height=\"{down:.2}\" fill=\"{}\"/>",
                    shade(*share)
                )
            }
        };
        self.svg.push_str(&drawn);
        self.svg.push('\n');
    }

    fn band(&self, ink: Ink, points: &[(f64, f64, f64)]) -> String {
        let floor = match self.panel.y.log {
            true => self.panel.y.range.0,
            false => f64::NEG_INFINITY,
        };
        let over = points.iter().map(|&(x, _, high)| (x, high));
        let under = points.iter().rev().map(|&(x, low, _)| (x, low.max(floor)));
        let path = self.path(&over.chain(under).collect::<Vec<_>>());
        let colour = ink.colour();
        format!("<path d=\"{path}Z\" fill=\"{colour}\" opacity=\"0.2\"/>")
    }

    fn dots(&self, ink: Ink, points: &[(f64, f64)], filled: bool) -> String {
        let colour = ink.colour();
        let mut drawn = match filled {
            true => format!("<g fill=\"{colour}\">"),
            false => format!("<g fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\">"),
        };
        let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
        for &(x, y) in points.iter().filter(finite) {
            let (x, y) = (self.x(x), self.y(y));
            let _ = write!(drawn, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>");
        }
        drawn + "</g>"
    }

    /// The unit circle, which is an ellipse where the axes differ.
    fn disc(&self) -> String {
        let rest = HEIGHT - BOTTOM - TOP;
        let up = rest / (self.panel.y.range.1 - self.panel.y.range.0);
        let (x, along) = (self.x(0.0), self.x(1.0) - self.x(0.0));
        let y = HEIGHT - BOTTOM - share(&self.panel.y, 0.0) * rest;
        format!(
            "<ellipse cx=\"{x:.1}\" cy=\"{y:.1}\" rx=\"{along:.1}\" ry=\"{up:.1}\" fill=\"none\" stroke=\"#777\"/>"
        )
    }

    /// A path through points, parted where one cannot be drawn.
    fn path(&self, points: &[(f64, f64)]) -> String {
        let (mut path, mut down) = (String::new(), false);
        for &(x, y) in points {
            let drawable = x.is_finite() && !y.is_nan() && !(self.panel.y.log && y <= 0.0);
            if !drawable {
                down = false;
                continue;
            }
            let step = if down { 'L' } else { 'M' };
            let _ = write!(path, "{step}{:.1} {:.1}", self.x(x), self.y(y));
            down = true;
        }
        path
    }

    /// Names at the ends of lines, pushed apart, and those of dots and verticals.
    fn names(&mut self) {
        let panel = self.panel;
        let mut ends: Vec<(f64, &str, Ink)> = Vec::new();
        // In the middle of a disc, in the corner else.
        let disc = panel.marks.iter().any(|mark| matches!(mark, Mark::Circle));
        let (left, mut corner) = match disc {
            true => (self.x(0.0) - 28.0, self.y(0.0) - 4.0),
            false => (LEFT + 6.0, TOP + 14.0),
        };
        for mark in &panel.marks {
            match mark {
                Mark::Line {
                    ink, points, name, ..
                } if !name.is_empty() => {
                    let drawable = |y: f64| y.is_finite() && !(panel.y.log && y <= 0.0);
                    let last = points.iter().rev().find(|point| drawable(point.1));
                    ends.extend(last.map(|&(_, y)| (self.y(y), name.as_str(), *ink)));
                }
                Mark::Vertical { ink, x, name } => {
                    self.label((self.x(*x) + 4.0, TOP + 12.0), *ink, name);
                }
                Mark::Dots {
                    ink, name, filled, ..
                } => {
                    let sign = if *filled { '●' } else { '○' };
                    self.label((left, corner), *ink, &format!("{sign} {name}"));
                    corner += 15.0;
                }
                _ => {}
            }
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        for index in 1..ends.len() {
            ends[index].0 = ends[index].0.max(ends[index - 1].0 + 13.0);
        }
        let below = ends.last().map_or(0.0, |last| last.0 - (HEIGHT - BOTTOM));
        for (y, name, ink) in ends {
            let place = (self.wide - RIGHT + 5.0, y - below.max(0.0) + 4.0);
            self.label(place, ink, name);
        }
    }

    fn label(&mut self, (x, y): (f64, f64), ink: Ink, text: &str) {
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{}\" paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"3\" font-weight=\"600\">{}</text>",
            ink.colour(),
            escaped(text)
        );
    }
}

/// Where a value stands on an axis, 0 to 1 inside its ends.
fn share(axis: &PanelAxis, value: f64) -> f64 {
    let scaled = |value: f64| match axis.log {
        true => value.max(f64::MIN_POSITIVE).log10(),
        false => value,
    };
    let (low, high) = (scaled(axis.range.0), scaled(axis.range.1));
    (scaled(value) - low) / (high - low)
}

fn ticks(axis: &PanelAxis) -> Vec<(f64, String)> {
    if !axis.names.is_empty() {
        let names = axis.names.iter().enumerate();
        return names
            .map(|(place, name)| (place as f64, escaped(name)))
            .collect();
    }
    let (low, high) = axis.range;
    if axis.log {
        let (first, last) = (low.log10().ceil() as i32, high.log10().floor() as i32);
        let every = usize::try_from((last - first) / 6 + 1).unwrap_or(1);
        let exponents = (first..=last).rev().step_by(every);
        return exponents
            .map(|e| (10f64.powi(e), power_of_ten(e)))
            .collect();
    }
    let rough = (high - low) / 5.0;
    let unit = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * unit);
    let step = step.into_iter().find(|&step| step >= rough).unwrap_or(unit);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    let text = |value: f64| {
        let digits = (-step.log10().floor()).max(0.0) as usize;
        format!("{value:.digits$}").replace('-', "−")
    };
    (first..=last)
        .map(|n| (n as f64 * step, text(n as f64 * step)))
        .collect()
}

fn power_of_ten(exponent: i32) -> String {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    match exponent {
        0 => "1".to_string(),
        1 => "10".to_string(),
        _ => {
            let digits = exponent.to_string();
            let raised = digits
                .chars()
                .map(|c| c.to_digit(10).map_or('⁻', |d| RAISED[d as usize]));
            format!("10{}", raised.collect::<String>())
        }
    }
}

/// Viridis, by a few of its colours.
fn shade(share: f64) -> String {
    const COLOURS: [[f64; 3]; 5] = [
        [68.0, 1.0, 84.0],
        [59.0, 82.0, 139.0],
        [33.0, 145.0, 140.0],
        [94.0, 201.0, 98.0],
        [253.0, 231.0, 37.0],
    ];
    if !share.is_finite() {
        return "#999".to_string();
    }
    let at = share.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let index = (at as usize).min(COLOURS.len() - 2);
    let mixed = |k: usize| {
        let (a, b) = (COLOURS[index][k], COLOURS[index + 1][k]);
        (a + (b - a) * (at - index as f64)).round()
    };
    format!("rgb({},{},{})", mixed(0), mixed(1), mixed(2))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

/// Lines of at most so many characters, parted at blanks.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| {
            line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width
        });
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(marks: Vec<Mark>) -> Panel {
        let axis = |label: &str, range, log| PanelAxis {
            label: label.to_string(),
            range,
            log,
            names: Vec::new(),
        };
        Panel {
            title: "one <layer>".to_string(),
            x: axis("states", (0.0, 10.0), false),
            y: axis("σ", (1e-3, 1.0), true),
            marks,
        }
    }

    #[test]
    fn a_line_is_named_and_parted_where_it_has_no_number() {
        let line = Mark::Line {
            ink: Ink::First,
            points: vec![
                (0.0, 1.0),
                (5.0, f64::NAN),
                (6.0, 0.1),
                (7.0, 0.0),
                (8.0, 1e-3),
            ],
            name: "median".to_string(),
            dashed: false,
        };
        let svg = panels_svg("what was found", &[panel(vec![line])]);
        let path = svg.split("<path d=\"").last().unwrap_or("");
        assert_eq!(
            path.split('"').next().map(|d| d.matches('M').count()),
            Some(3),
            "{path}"
        );
        for word in [
            "what was found",
            "one &lt;layer>",
            ">median<",
            "10⁻³",
            "</svg>",
        ] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_axis() {
        let axis = |range, log| PanelAxis {
            label: String::new(),
            range,
            log,
            names: Vec::new(),
        };
        let texts = |range, log| -> Vec<String> {
            ticks(&axis(range, log))
                .into_iter()
                .map(|tick| tick.1)
                .collect()
        };
        assert_eq!(texts((0.0, 64.0), false), ["0", "20", "40", "60"]);
        assert_eq!(texts((-0.3, 0.3), false), ["−0.2", "0.0", "0.2"]);
        assert_eq!(
            texts((0.5e-3, 20.0), true),
            ["10", "1", "10⁻¹", "10⁻²", "10⁻³"]
        );
    }

    #[test]
    fn long_titles_are_wrapped() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
