//! One kind of chart of a report, as a picture.

use hankelite::model::Model;
use hankelite_control::DiagonalSystem;
use hankelite_report::{Ink, LayerSummary, Plotted, SpectrumPlot, used_poles};
use serde::Deserialize;

use crate::cli::common::{Word, word};
use crate::report::{Mark, Panel, PanelAxis, panels_svg};

/// What a picture shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Shown {
    Spectra,
    Frequency,
    Allocation,
    Poles,
}

pub(super) const SHOWN: [Word; 4] = [
    word(
        "spectra",
        "Hankel singular values of every layer: median, 10 to 90 %, the cut, the error bound",
    ),
    word(
        "frequency",
        "Gain and error over frequency, and the layers' input with --calibrate",
    ),
    word(
        "allocation",
        "Stored states of every channel of every layer",
    ),
    word("poles", "Poles before and after in the unit disc"),
];

/// The picture of all layers, under a title that says what was found.
pub(super) fn picture(shown: Shown, layers: &[LayerSummary], plotted: &Plotted<'_>) -> String {
    let (title, panels) = match shown {
        Shown::Spectra => spectra(layers),
        Shown::Frequency => frequency(layers),
        Shown::Allocation => allocation(layers),
        Shown::Poles => poles(layers, plotted),
    };
    panels_svg(&title, &panels)
}

fn axis(label: &str, range: (f64, f64), log: bool) -> PanelAxis {
    PanelAxis {
        label: label.to_string(),
        range,
        log,
        names: Vec::new(),
    }
}

fn line(ink: Ink, name: &str, points: Vec<(f64, f64)>) -> Mark {
    Mark::Line {
        ink,
        points,
        name: name.to_string(),
        dashed: ink == Ink::Derived,
    }
}

/// The power of ten at or below.
fn decade(value: f64) -> f64 {
    10f64.powf(value.max(1e-16).log10().floor())
}

/// The least positive and the largest number.
fn ends<'a>(values: impl Iterator<Item = &'a f64>) -> (f64, f64) {
    let some = values
        .copied()
        .filter(|value| value.is_finite() && *value > 0.0);
    some.fold((f64::INFINITY, 0.0), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

fn spectra(layers: &[LayerSummary]) -> (String, Vec<Panel>) {
    let plots = layers
        .iter()
        .filter_map(|layer| Some((layer, layer.plots.spectrum.as_ref()?)));
    let panels: Vec<Panel> = plots
        .clone()
        .map(|(layer, plot)| spectrum(layer, plot))
        .collect();
    let all: usize = plots.clone().map(|(_, plot)| plot.median.len()).sum();
    let cuts: Option<f64> = plots.clone().map(|(_, plot)| Some(plot.cut?[1])).sum();
    let title = match cuts {
        Some(kept) if all > 0 => format!(
            "{kept:.0} of {all} real states of the median channels are kept: {:.0} %",
            100.0 * kept / all as f64
        ),
        _ => {
            let needed: f64 = plots.filter_map(|(layer, _)| Some(layer.needed?.1)).sum();
            format!(
                "{needed:.0} of {all} real states of the median channels leave an error bound of 1 %"
            )
        }
    };
    (title, panels)
}

fn spectrum(layer: &LayerSummary, plot: &SpectrumPlot) -> Panel {
    let states = plot.median.len();
    let at = |values: &[f64], from: f64| -> Vec<(f64, f64)> {
        let places = values.iter().enumerate();
        places
            .map(|(index, &value)| (index as f64 + from, value))
            .collect()
    };
    let band = plot.low.iter().zip(&plot.high).enumerate();
    let band = band.map(|(index, (&low, &high))| (index as f64 + 1.0, low, high));
    let mut marks = vec![
        Mark::Band {
            ink: Ink::First,
            points: band.collect(),
        },
        line(Ink::First, "median", at(&plot.median, 1.0)),
        line(Ink::Derived, "bound", at(&plot.bound, 0.0)),
    ];
    if let Some([least, median, most]) = plot.cut {
        let name = match least == most {
            true => format!("cut: {median:.0}"),
            false => format!("cut: {median:.0} ({least:.0}–{most:.0})"),
        };
        let (ink, x) = (Ink::Second, median);
        marks.push(Mark::Vertical { ink, x, name });
    }
    let most = states * 9 / 10;
    let (low, _) = ends(plot.low.iter().take(most.max(1)));
    let (_, high) = ends(plot.bound.iter());
    Panel {
        title: layer.plots.name.clone(),
        x: axis(
            "real state (two a stored pair)",
            (0.0, states as f64),
            false,
        ),
        y: axis(
            "σ / largest σ",
            (decade(low.min(1e-2)), 2.0 * high.max(1.0)),
            true,
        ),
        marks,
    }
}

fn frequency(layers: &[LayerSummary]) -> (String, Vec<Panel>) {
    let mut panels = Vec::new();
    let mut found: Option<(f64, String)> = None;
    for layer in layers {
        let Some(plot) = &layer.plots.frequency else {
            continue;
        };
        // Frequency 0 stands at the left edge, half a band before the first.
        let edge = plot.cycles.get(1).map_or(1e-4, |first| first / 1.3);
        let places = || plot.cycles.iter().map(|&cycles| cycles.max(edge));
        let curve = |values: &[f64]| places().zip(values.iter().copied()).collect::<Vec<_>>();
        let (mut low, high) = ends(plot.full.iter().chain(plot.error.iter().flatten()));
        let mut marks = vec![line(Ink::First, "gain", curve(&plot.full))];
        if let Some(error) = &plot.error {
            marks.push(line(Ink::Second, "error", curve(error)));
            let largest = error
                .iter()
                .zip(&plot.cycles)
                .max_by(|a, b| a.0.total_cmp(b.0));
            if let Some((&error, &cycles)) = largest
                && found.as_ref().is_none_or(|(known, _)| error > *known)
            {
                let period = match cycles > 0.0 {
                    true => format!("a period of {:.0} steps", 1.0 / cycles),
                    false => "frequency 0".to_string(),
                };
                let name = &layer.plots.name;
                found = Some((
                    error,
                    format!("The largest error is at {period}, in {name}"),
                ));
            }
        }
        if let Some(input) = &plot.input {
            let (_, most) = ends(input.iter());
            let scaled: Vec<f64> = input.iter().map(|value| value / most * high).collect();
            low = low.min(ends(scaled.iter()).0);
            marks.push(line(Ink::Input, "input*", curve(&scaled)));
        }
        panels.push(Panel {
            title: layer.plots.name.clone(),
            x: axis("cycles per step", (edge, 0.5), true),
            y: axis(
                "gain (*input: scaled)",
                (decade(low.max(high * 1e-5)), 1.5 * high),
                true,
            ),
            marks,
        });
    }
    let title = found.map_or(
        "Gains of the channels over frequency".to_string(),
        |found| found.1,
    );
    (title, panels)
}

fn allocation(layers: &[LayerSummary]) -> (String, Vec<Panel>) {
    let kept = |layer: &LayerSummary| -> Vec<f64> {
        let measures = layer.plots.measures.iter();
        let mut measures = measures.filter(|m| {
            [
                "stored states kept",
                "real states for an error bound of 1 %",
            ]
            .contains(&m.name.as_str())
        });
        measures
            .next()
            .map_or(Vec::new(), |measure| measure.values.clone())
    };
    let all: Vec<Vec<f64>> = layers.iter().map(kept).collect();
    let (low, high) = ends(all.iter().flatten());
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut marks = Vec::new();
    for (row, values) in all.iter().rev().enumerate() {
        for (column, &value) in values.iter().enumerate() {
            let share = (value - low) / (high - low).max(f64::MIN_POSITIVE);
            let at = (column as f64, row as f64);
            marks.push(Mark::Square { at, share });
        }
    }
    let names = layers.iter().rev().map(|layer| {
        let name: Vec<char> = layer.plots.name.chars().collect();
        // What fits beside the axis: the end, where names differ.
        name[name.len().saturating_sub(8)..].iter().collect()
    });
    let means: Vec<String> = all
        .iter()
        .map(|values| {
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            format!("{mean:.1}")
        })
        .collect();
    let what = match layers.iter().any(|layer| layer.states.1.is_some()) {
        true => "Stored states kept",
        false => "Real states for an error bound of 1 %",
    };
    let title = format!("{what}: {} in the mean of each layer", means.join(", "));
    let panel = Panel {
        title: format!("one square a channel: dark {low:.0}, bright {high:.0}"),
        x: axis("channel", (-0.5, most as f64 - 0.5), false),
        y: PanelAxis {
            names: names.collect(),
            ..axis("", (-0.5, all.len() as f64 - 0.5), false)
        },
        marks,
    };
    (title, vec![panel])
}

fn poles(layers: &[LayerSummary], plotted: &Plotted<'_>) -> (String, Vec<Panel>) {
    let of = |model: &Model, index: usize| -> Vec<(f64, f64)> {
        let block = &model.blocks()[index];
        block.all_systems().flat_map(both).collect()
    };
    let panels = layers.iter().enumerate().map(|(index, layer)| {
        let before = of(plotted.full, index);
        let after = plotted.reduced.map(|model| of(model, index));
        let dots = |ink, points, name: &str, filled| Mark::Dots {
            ink,
            points,
            name: name.to_string(),
            filled,
        };
        let mut marks = vec![Mark::Circle, dots(Ink::First, before, "before", false)];
        marks.extend(after.map(|after| dots(Ink::Second, after, "after", true)));
        Panel {
            title: layer.plots.name.clone(),
            x: axis("real part", (-1.2, 1.2), false),
            y: axis("imaginary part", (-1.1, 1.1), false),
            marks,
        }
    });
    let slowest = layers.iter().map(|layer| layer.slowest).fold(0.0, f64::max);
    let title = format!(
        "Poles of all channels: the slowest keeps {:.2} % of its state a step",
        100.0 * slowest
    );
    (title, panels.collect())
}

/// The poles that have an effect, with their conjugates.
fn both(system: &DiagonalSystem) -> Vec<(f64, f64)> {
    let poles = used_poles(system);
    let pairs = poles.chunks_exact(2).map(|pole| (pole[0], pole[1]));
    pairs.flat_map(|(re, im)| [(re, im), (re, -im)]).collect()
}
