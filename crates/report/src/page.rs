//! A report as one HTML file that needs nothing beside itself.
//!
//! Text and tables are made here, so that they are there without scripts; `page/page.js` draws the
//! charts from the numbers that the file holds. The page's security policy forbids every
//! connection.

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::ink::Ink;
use crate::packed::Packed;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Objects of the same keys in a row from which a record keeps columns instead.
const COLUMNS_FROM: usize = 16;

/// Significant digits of the numbers in a record and in the curves.
const DIGITS: i32 = 6;

/// What a report shows.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Page {
    /// The heading, also the title of the window.
    pub title: String,
    /// What was found, in a sentence.
    pub verdict: String,
    /// The figures of the verdict.
    pub facts: Vec<Fact>,
    /// Tables, the first of them that of the layers.
    pub tables: Vec<PageTable>,
    /// Curves of every layer.
    #[serde(skip)]
    pub layers: Vec<LayerPlots>,
    /// Sizes to choose from.
    pub sizes: Option<SizeCurve>,
    /// Line charts, behind the sizes and before the tables.
    pub sections: Vec<ChartSection>,
    /// What was assumed of the files.
    pub assumptions: Vec<String>,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// Where everything came from, name by name.
    pub provenance: Vec<(String, String)>,
    /// What the command gives as JSON.
    #[serde(skip)]
    pub record: Value,
}

/// One figure, before and after.
#[derive(Debug, Clone, Serialize)]
pub struct Fact {
    /// What is counted.
    pub name: String,
    /// Of the first model.
    pub before: String,
    /// Of the second; absent where there is one model.
    pub after: Option<String>,
    /// The change, in words; may be empty.
    pub note: String,
}

/// A table that sorts by any column.
#[derive(Debug, Clone, Serialize)]
pub struct PageTable {
    /// Its heading.
    pub title: String,
    /// What its columns mean.
    pub caption: String,
    /// One for each column.
    pub header: Vec<String>,
    /// Row by row.
    pub rows: Vec<Vec<Cell>>,
    /// Whether it opens with a click.
    pub folded: bool,
}

/// A cell of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// As it is read.
    pub text: String,
    /// As it is sorted; absent for text, which is sorted by itself.
    pub value: Option<f64>,
}

impl Cell {
    /// A word.
    pub fn text(text: &str) -> Self {
        Self {
            text: text.to_string(),
            value: None,
        }
    }

    /// A number and how it is read. What is not finite is a dash.
    pub fn number(value: f64, show: impl Fn(f64) -> String) -> Self {
        match value.is_finite() {
            true => Self {
                text: show(value),
                value: Some(value),
            },
            false => Self::text("–"),
        }
    }
}

/// The curves of one layer.
#[derive(Debug, Clone, Serialize)]
pub struct LayerPlots {
    /// The layer's name.
    pub name: String,
    /// Whether there is a second model.
    pub compared: bool,
    /// Absent where no channel is stable.
    pub spectrum: Option<SpectrumPlot>,
    /// Absent where no channel is stable.
    pub frequency: Option<FrequencyPlot>,
    /// One number for each channel, of several kinds.
    pub measures: Vec<Measure>,
    /// The curves of every channel.
    pub channels: ChannelPlots,
}

/// Hankel singular values of the channels of a layer, relative to the largest of each, and what
/// lies behind each.
#[derive(Debug, Clone, Serialize)]
pub struct SpectrumPlot {
    /// The median over channels of every value.
    pub median: Vec<f64>,
    /// Below it are 10 % of the channels.
    pub low: Vec<f64>,
    /// Below it are 90 %.
    pub high: Vec<f64>,
    /// The median of twice the sum of all values behind the first j, for j = 0, 1, …: the error
    /// bound of a cut there.
    pub bound: Vec<f64>,
    /// Values that were kept: least, median, largest of the channels. Absent with one model.
    pub cut: Option<[f64; 3]>,
}

/// Gains over frequency, root mean squares over the channels of a layer.
#[derive(Debug, Clone, Serialize)]
pub struct FrequencyPlot {
    /// Cycles per step, in the middle of each band; the first is 0.
    pub cycles: Vec<f64>,
    /// Of the first model.
    pub full: Vec<f64>,
    /// Of the difference of the models. Absent with one.
    pub error: Option<Vec<f64>>,
    /// Amplitude density of the layer's input. Absent without calibration.
    pub input: Option<Vec<f64>>,
}

/// One number for each channel.
#[derive(Debug, Clone, Serialize)]
pub struct Measure {
    /// What it is.
    pub name: String,
    /// Its unit, or nothing.
    pub unit: String,
    /// Channel by channel; what is not finite is absent.
    pub values: Vec<f64>,
}

/// The curves of every channel of a layer.
#[derive(Debug, Clone, Serialize)]
pub struct ChannelPlots {
    /// How many.
    pub count: usize,
    /// Hankel singular values.
    pub sigma: Packed,
    /// Real and imaginary part of every pole in turn.
    pub poles: Packed,
    /// The same of the second model.
    pub poles_after: Option<Packed>,
    /// Impulse responses at step 0, which D is part of, before and after.
    pub first: Vec<Vec<f64>>,
    /// Impulse responses from step 1 on over the peak of each channel; see
    /// [`ChannelPlots::stride`].
    pub kernel: Packed,
    /// The same of the second model, over the same peaks.
    pub kernel_after: Option<Packed>,
    /// The peak of each channel.
    pub peaks: Vec<f64>,
    /// Steps behind each pair of kernel values, the least and the largest of these steps in the
    /// order in which they come; 1 where the values are those of single steps.
    pub stride: Vec<usize>,
    /// Gain over the frequencies of [`FrequencyPlot`].
    pub full: Packed,
    /// The same of the difference of the models.
    pub error: Option<Packed>,
    /// Amplitude density of the channel's input.
    pub input: Option<Packed>,
}

/// Sizes to choose from, and what each gives.
#[derive(Debug, Clone, Serialize)]
pub struct SizeCurve {
    /// What the sizes count.
    pub x: String,
    /// What is reached.
    pub y: String,
    /// The sizes, the smallest first.
    pub points: Vec<SizePoint>,
    /// The full model.
    pub full: Option<SizePoint>,
    /// Index of the size to take, and why.
    pub recommended: Option<(usize, String)>,
}

/// Line charts under one heading.
#[derive(Debug, Clone, Serialize)]
pub struct ChartSection {
    /// Its entry in the list of contents.
    pub title: String,
    /// Above it.
    pub heading: String,
    /// What its charts show.
    pub caption: String,
    /// One beside the other.
    #[serde(skip)]
    pub charts: Vec<LineChart>,
}

/// Lines over the same places.
#[derive(Debug, Clone, Serialize)]
pub struct LineChart {
    /// What was found.
    pub title: String,
    /// Along.
    pub x: ChartAxis,
    /// Up.
    pub y: ChartAxis,
    /// The places along, rising.
    pub places: Vec<f64>,
    /// One value for each place.
    pub lines: Vec<ChartLine>,
}

/// An axis of a line chart, which reaches over what is drawn.
#[derive(Debug, Clone, Serialize)]
pub struct ChartAxis {
    /// Its words.
    pub label: String,
    /// What one value of it is called.
    pub short: String,
    /// Whether it is logarithmic.
    pub log: bool,
    /// Whether there is a tick at each of the places, and none elsewhere.
    pub at_places: bool,
}

/// One line of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct ChartLine {
    /// At its end.
    pub name: String,
    /// Its colour.
    pub ink: Ink,
    /// Whether it is dashed.
    pub dashed: bool,
    /// What is not finite is left out.
    pub values: Vec<f64>,
    /// Standard errors; nothing for a line without marked points.
    pub errors: Vec<f64>,
}

/// One size.
#[derive(Debug, Clone, Serialize)]
pub struct SizePoint {
    /// The size.
    pub x: f64,
    /// What it reaches.
    pub y: f64,
    /// The standard error of that.
    pub error: Option<f64>,
    /// In words, name by name.
    pub details: Vec<(String, String)>,
    /// The command that makes it.
    pub command: Option<String>,
}

/// The report as HTML.
///
/// Every text is escaped, numbers are rounded to six digits, and lists of many objects of the same
/// keys become one object of columns: `{"columns": {key: [values]}}`.
pub fn page_html(page: &Page) -> String {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let drawn = serde_json::json!({
        "layers": page.layers,
        "sizes": page.sizes,
        "charts": page.sections.iter().map(|section| &section.charts).collect::<Vec<_>>(),
    });
    let [data, record] = [drawn, page.record.clone()].map(|value| in_script(compact(value)));
    let words = context! {
        page => Serde(page),
        curves => !page.layers.is_empty(),
        style => STYLE,
        script => SCRIPT,
        data,
        record,
    };
    let made = environment.render_str(TEMPLATE, words);
    made.expect("the template is a constant, and tests render it")
}

/// JSON that cannot end the script element that it stands in.
fn in_script(value: Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

/// Rounded numbers, and columns for long lists of objects of the same keys.
fn compact(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().map(rounded);
            rounded.map_or(Value::Null, Value::from)
        }
        Value::Array(list) => match as_columns(&list) {
            Some(columns) => columns,
            None => list.into_iter().map(compact).collect(),
        },
        Value::Object(map) => {
            let entries = map.into_iter().map(|(key, value)| (key, compact(value)));
            Value::Object(entries.collect())
        }
        other => other,
    }
}

fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = usize::try_from(DIGITS - 1).unwrap_or(0);
    format!("{value:.digits$e}").parse().unwrap_or(value)
}

fn as_columns(list: &[Value]) -> Option<Value> {
    let first = list.first()?.as_object()?;
    let same = |value: &Value| {
        value
            .as_object()
            .is_some_and(|map| map.keys().eq(first.keys()))
    };
    if list.len() < COLUMNS_FROM || !list.iter().all(same) {
        return None;
    }
    let column = |key: &String| {
        let values = list.iter().map(|map| map[key].clone());
        (key.clone(), compact(values.collect()))
    };
    let columns: Map<String, Value> = first.keys().map(column).collect();
    Some(serde_json::json!({ "columns": columns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_escapes_what_it_shows_and_asks_nothing_of_a_network() {
        let hostile = "</script><b>&\"'";
        let page = Page {
            title: hostile.to_string(),
            verdict: hostile.to_string(),
            warnings: vec![hostile.to_string()],
            record: serde_json::json!({ "name": hostile, "list": [1.23456789, null] }),
            ..Page::default()
        };
        let html = page_html(&page);
        assert!(!html.contains("</script><b>"), "a text ended its element");
        assert!(html.contains("&lt;&#x2f;script&gt;"));
        assert!(html.contains(r#"\u003c/script>"#));
        assert!(html.contains("[1.23457,null]"));
        assert!(html.contains("default-src 'none'"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let found = html
                .replace("http://www.w3.org/2000/svg", "")
                .replace("url(#", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }

    #[test]
    fn long_lists_of_objects_become_columns() {
        let list: Vec<Value> = (0..20)
            .map(|i| serde_json::json!({ "index": i, "inside": { "a": 0.5 } }))
            .collect();
        let made = compact(Value::from(list));
        assert_eq!(made["columns"]["index"][19], 19);
        assert_eq!(made["columns"]["inside"]["columns"]["a"][3], 0.5);
        let short = serde_json::json!([{ "a": 1 }, { "a": 2 }]);
        assert_eq!(compact(short.clone()), short);
    }
}
