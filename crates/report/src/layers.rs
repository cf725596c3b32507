//! The curves of every layer, from one model or two.

use hankelite::ProgressSink;
use hankelite::advanced::kernel_distance;
use hankelite::calibrate::{Calibration, LayerCalibration};
use hankelite::compress::{
    ChannelSpectrum, CompressError, LayerRecord, LayerSpectrum, TimeBase, inspect,
};
use hankelite::model::{Block, Model};
use hankelite_control::{
    ControlError, DiagonalSystem, InputWeight, Realisation, weighted_error, weighted_norm,
};
use rayon::prelude::*;

use crate::packed::{Levels, Packed};
use crate::page::{ChannelPlots, FrequencyPlot, LayerPlots, Measure, SpectrumPlot};
use crate::response::{Bands, Response, Sampled, sampled};

/// From so many channels on curves are stored coarser, so that the file stays below 3 MB.
const CHANNELS_MANY: usize = 1000;

/// How much of every channel is stored.
#[derive(Clone, Copy)]
struct Detail {
    bands: usize,
    kernel: usize,
    spectrum_bytes: usize,
}

const FINE: Detail = Detail {
    bands: 64,
    kernel: 192,
    spectrum_bytes: 2,
};

const COARSE: Detail = Detail {
    bands: 40,
    kernel: 64,
    spectrum_bytes: 1,
};

/// Why no report is made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// Models that cannot be laid over one another.
    #[error(
        "the second model has layers of {found:?} (channels, inputs, outputs), expected {expected:?} \
         as in the first"
    )]
    Unlike {
        /// Channels, inputs and outputs of each layer of the first.
        expected: Vec<(usize, usize, usize)>,
        /// The same of the second.
        found: Vec<(usize, usize, usize)>,
    },
    /// A layer whose values cannot be found, or the caller cancelled.
    #[error(transparent)]
    Inspect(#[from] CompressError),
    /// Kernels that cannot be compared.
    #[error(transparent)]
    Kernel(#[from] ControlError),
}

/// Models whose layers are drawn.
pub struct Plotted<'a> {
    /// The first.
    pub full: &'a Model,
    /// A second model of the same layers and channels.
    pub reduced: Option<&'a Model>,
    /// What the layers of the first get.
    pub calibration: Option<&'a Calibration>,
    /// What a reduction recorded.
    pub records: Option<&'a [LayerRecord]>,
    /// Steps over which kernels are compared.
    pub steps: usize,
}

/// What is known of a layer: its curves, and what its row in a table shows.
pub struct LayerSummary {
    /// For the page.
    pub plots: LayerPlots,
    /// Stored states of all channels before, and used after.
    pub states: (usize, Option<usize>),
    /// Stored states of a channel before, and after.
    pub order: (usize, Option<usize>),
    /// The largest |a| of any channel.
    pub slowest: f64,
    /// Median number of real states, and of those that leave an error bound of 1 % of σ₁.
    pub needed: Option<(usize, f64)>,
    /// (Σ ‖k − k_r‖²/Σ ‖k‖²)^{1/2} over the steps.
    pub kernel_error: Option<f64>,
    /// (Σ E(error)/Σ E(output))^{1/2} for the layer's own input.
    pub weighted_error: Option<f64>,
}

impl Plotted<'_> {
    /// The curves of all layers.
    ///
    /// # Errors
    /// Models of other layers or channels, and as [`inspect`].
    pub fn layers(&self, sink: &dyn ProgressSink) -> Result<Vec<LayerSummary>, ReportError> {
        let blocks = self.full.blocks();
        if let Some(reduced) = self.reduced {
            require_alike(self.full, reduced)?;
        }
        let spectra = inspect(self.full, TimeBase::Discrete, Realisation::Real, sink)?;
        let channels: usize = blocks.iter().map(|b| b.all_systems().count()).sum();
        let detail = match channels >= CHANNELS_MANY {
            true => COARSE,
            false => FINE,
        };
        let layers = blocks.iter().zip(&spectra).enumerate();
        let layers = layers.map(|(index, (block, spectrum))| {
            let layer = LayerParts {
                block,
                reduced: self.reduced.map(|model| &model.blocks()[index]),
                spectrum,
                input: self.calibration.and_then(|c| c.layers().get(index)),
                record: self.records.and_then(|records| records.get(index)),
                bands: &Bands::new(self.steps, detail.bands),
                steps: self.steps,
                detail,
            };
            layer.summary()
        });
        layers.collect()
    }
}

/// Refuses models that cannot be laid over one another.
fn require_alike(full: &Model, reduced: &Model) -> Result<(), ReportError> {
    let shape = |model: &Model| -> Vec<(usize, usize, usize)> {
        let blocks = model.blocks().iter();
        blocks
            .map(|block| {
                let first = block.all_systems().next();
                let size = first.map_or((0, 0), |s| (s.input().ncols(), s.output().nrows()));
                (block.all_systems().count(), size.0, size.1)
            })
            .collect()
    };
    let (one, other) = (shape(full), shape(reduced));
    if one != other {
        return Err(ReportError::Unlike {
            expected: one,
            found: other,
        });
    }
    Ok(())
}

struct LayerParts<'a> {
    block: &'a Block,
    reduced: Option<&'a Block>,
    spectrum: &'a LayerSpectrum,
    input: Option<&'a LayerCalibration>,
    record: Option<&'a LayerRecord>,
    bands: &'a Bands,
    steps: usize,
    detail: Detail,
}

/// The curves of one channel.
struct Channel {
    full: Vec<f64>,
    error: Vec<f64>,
    input: Vec<f64>,
    /// The impulse responses at step 0.
    first: Vec<f64>,
    kernels: Sampled,
    /// Of the error and of the kernel itself.
    kernel_error: (f64, f64),
    weighted_error: Option<(f64, f64)>,
    /// Stored and real states that are used.
    kept: Option<(usize, usize)>,
    feedthrough_change: f64,
}

impl LayerParts<'_> {
    fn summary(&self) -> Result<LayerSummary, ReportError> {
        let systems: Vec<&DiagonalSystem> = self.block.all_systems().collect();
        let after: Option<Vec<&DiagonalSystem>> =
            self.reduced.map(|block| block.all_systems().collect());
        let channels = systems.par_iter().enumerate().map(|(index, system)| {
            let after = after.as_ref().map(|systems| systems[index]);
            self.channel(index, system, after)
        });
        let channels = channels.collect::<Result<Vec<Channel>, ReportError>>()?;
        let kept: Option<usize> = channels.iter().map(|c| Some(c.kept?.0)).sum();
        let order = kept.and(channels.iter().filter_map(|c| Some(c.kept?.0)).max());
        let spectrum = self.spectrum_plot(&channels);
        let needed = spectrum.as_ref().map(|plot| {
            let needed = plot.bound.iter().position(|&bound| bound < 0.01);
            let most = plot.median.len();
            (most, needed.map_or(f64::NAN, |needed| needed as f64))
        });
        let slowest = self.spectrum.channels.iter().map(|c| c.slowest_pole);
        Ok(LayerSummary {
            states: (systems.iter().map(|system| system.order()).sum(), kept),
            order: (self.block.order(), order),
            slowest: slowest.fold(0.0, f64::max),
            needed,
            kernel_error: kept.and(relative(channels.iter().map(|c| Some(c.kernel_error)))),
            weighted_error: kept.and(relative(channels.iter().map(|c| c.weighted_error))),
            plots: LayerPlots {
                name: self.block.name().to_string(),
                compared: self.reduced.is_some(),
                spectrum,
                frequency: self.frequency_plot(&channels),
                measures: self.measures(&channels),
                channels: self.channel_plots(&systems, after.as_deref(), &channels),
            },
        })
    }

    fn channel(
        &self,
        index: usize,
        system: &DiagonalSystem,
        after: Option<&DiagonalSystem>,
    ) -> Result<Channel, ReportError> {
        let response = Response::of(system);
        let mut responses = vec![response.impulse(self.steps + 1)];
        responses.extend(after.map(|after| Response::of(after).impulse(self.steps + 1)));
        let kernels: Vec<&[f64]> = responses.iter().map(|response| &response[1..]).collect();
        let stable = system.is_stable();
        let bands = |response: &Response| match stable {
            true => response.gains(self.bands),
            false => Vec::new(),
        };
        let statistics = self.input.map(|input| &input.statistics);
        let input = statistics.filter(|statistics| index < statistics.channels());
        let weight = input.and_then(|statistics| statistics.weight(index));
        let error = after.filter(|after| after.is_stable());
        Ok(Channel {
            full: bands(&response),
            error: error.map_or(Vec::new(), |after| {
                bands(&Response::of_difference(system, after))
            }),
            input: input.map_or(Vec::new(), |statistics| {
                let lags = statistics.autocorrelation().column(index);
                self.bands.density(lags.as_slice())
            }),
            first: responses
                .iter()
                .map(|response| four_digits(response[0]))
                .collect(),
            kernels: sampled(&kernels, self.detail.kernel),
            kernel_error: match after {
                Some(after) => {
                    let apart = kernel_distance(system, after, self.steps)?;
                    (apart.error, apart.norm)
                }
                None => (0.0, 0.0),
            },
            weighted_error: match self.record {
                Some(record) => recorded(record, index),
                None => after.and_then(|after| weighted(system, after, weight.as_ref())),
            },
            kept: after.map(used),
            feedthrough_change: after.map_or(0.0, |after| {
                (after.feedthrough() - system.feedthrough()).norm()
            }),
        })
    }

    fn spectrum_plot(&self, channels: &[Channel]) -> Option<SpectrumPlot> {
        let scaled: Vec<Vec<f64>> = self
            .spectrum
            .channels
            .iter()
            .filter_map(relative_values)
            .collect();
        let states = scaled.iter().map(Vec::len).max()?;
        let at = |share: f64| -> Vec<f64> {
            let column = |j| {
                quantile(
                    scaled.iter().map(|v| v.get(j).copied().unwrap_or(0.0)),
                    share,
                )
            };
            (0..states).map(column).collect()
        };
        let bounds: Vec<Vec<f64>> = scaled.iter().map(|values| tails(values)).collect();
        let bound = |j| quantile(bounds.iter().map(|b| b.get(j).copied().unwrap_or(0.0)), 0.5);
        let kept = || channels.iter().filter_map(|c| Some(c.kept?.1 as f64));
        let cut = |share| quantile(kept(), share);
        Some(SpectrumPlot {
            median: at(0.5),
            low: at(0.1),
            high: at(0.9),
            bound: (0..=states).map(bound).collect(),
            cut: kept().next().map(|_| [cut(0.0), cut(0.5), cut(1.0)]),
        })
    }

    fn frequency_plot(&self, channels: &[Channel]) -> Option<FrequencyPlot> {
        let over = |get: fn(&Channel) -> &Vec<f64>| {
            let curves: Vec<&Vec<f64>> =
                channels.iter().map(get).filter(|c| !c.is_empty()).collect();
            let mean = |j: usize| {
                let sum: f64 = curves.iter().map(|curve| curve[j].powi(2)).sum();
                (sum / curves.len() as f64).sqrt()
            };
            let made: Vec<f64> = match curves.is_empty() {
                true => Vec::new(),
                false => (0..self.bands.cycles.len()).map(mean).collect(),
            };
            (!made.is_empty()).then_some(made)
        };
        Some(FrequencyPlot {
            cycles: self.bands.cycles.clone(),
            full: over(|channel| &channel.full)?,
            error: over(|channel| &channel.error),
            input: over(|channel| &channel.input),
        })
    }

    /// One number for each channel, of several kinds; those of two models come first.
    fn measures(&self, channels: &[Channel]) -> Vec<Measure> {
        let mut measures = match self.reduced {
            Some(_) => self.compared(channels),
            None => Vec::new(),
        };
        measures.extend(self.own());
        measures.retain(|measure| measure.values.iter().any(|value| value.is_finite()));
        for value in measures.iter_mut().flat_map(|measure| &mut measure.values) {
            *value = four_digits(*value);
        }
        measures
    }

    /// Of the second model beside the first.
    fn compared(&self, channels: &[Channel]) -> Vec<Measure> {
        let of = |get: &dyn Fn(&Channel) -> f64| channels.iter().map(get).collect();
        let kept = |get: fn((usize, usize)) -> usize| {
            of(&|channel| channel.kept.map_or(f64::NAN, |kept| get(kept) as f64))
        };
        let weighted = of(&|channel| channel.weighted_error.map_or(f64::NAN, percentage));
        let kernel = format!("kernel error over {} steps", self.steps);
        let mut measures = vec![
            measure("stored states kept", "", kept(|kept| kept.0)),
            measure("real states kept", "", kept(|kept| kept.1)),
            measure("output error for its own input", "%", weighted),
            measure(
                &kernel,
                "%",
                of(&|channel| percentage(channel.kernel_error)),
            ),
        ];
        if channels.iter().any(|c| c.feedthrough_change > 0.0) {
            let moved = of(&|channel| channel.feedthrough_change);
            measures.push(measure("change of D", "", moved));
        }
        measures
    }

    /// Of the first model, its input and its record.
    fn own(&self) -> Vec<Measure> {
        let of = |get: &dyn Fn(&ChannelSpectrum) -> f64| {
            let channels = self.spectrum.channels.iter();
            channels.map(get).collect()
        };
        let largest = of(&|channel| {
            let first = channel.hankel_singular_values.first();
            first.copied().unwrap_or(f64::NAN)
        });
        let mut measures = Vec::new();
        if let Some(record) = self.record {
            let errors = record.channels.iter();
            let errors = errors.map(|channel| percentage((channel.h2_error, channel.h2_norm)));
            measures.push(measure("H2 error", "%", errors.collect()));
        }
        measures.extend([
            measure("real states for an error bound of 1 %", "", of(&needed)),
            measure("largest Hankel singular value", "", largest),
            measure("slowest |a|", "", of(&|channel| channel.slowest_pole)),
            measure("step Δ", "", of(&|channel| channel.step)),
        ]);
        if let Some(input) = self.input {
            let lags = input.statistics.autocorrelation().column_iter();
            let roots = lags.map(|lags| lags[0].max(0.0).sqrt());
            measures.extend([
                measure("input, root mean square", "", roots.collect()),
                measure("importance", "", input.importance.clone()),
            ]);
        }
        measures
    }

    fn channel_plots(
        &self,
        systems: &[&DiagonalSystem],
        after: Option<&[&DiagonalSystem]>,
        channels: &[Channel],
    ) -> ChannelPlots {
        use Levels::{Linear, Logarithmic};
        let curves = |get: fn(&Channel) -> Vec<f64>, levels, bytes| {
            let all: Vec<Vec<f64>> = channels.iter().map(get).collect();
            Packed::new(&all, levels, bytes)
        };
        let poles = |systems: &[&DiagonalSystem]| {
            let all: Vec<Vec<f64>> = systems.iter().map(|system| used_poles(system)).collect();
            Packed::new(&all, Linear, 2)
        };
        let some = |get: fn(&Channel) -> Vec<f64>| {
            let there = channels.iter().any(|channel| !get(channel).is_empty());
            there.then(|| curves(get, Logarithmic, 1))
        };
        let sigma = self.spectrum.channels.iter();
        let sigma: Vec<Vec<f64>> = sigma.map(|c| c.hankel_singular_values.clone()).collect();
        ChannelPlots {
            count: channels.len(),
            sigma: Packed::new(&sigma, Logarithmic, self.detail.spectrum_bytes),
            poles: poles(systems),
            poles_after: after.map(poles),
            first: channels.iter().map(|c| c.first.clone()).collect(),
            kernel: curves(|c| c.kernels.curves[0].clone(), Linear, 1),
            kernel_after: after.map(|_| curves(|c| c.kernels.curves[1].clone(), Linear, 1)),
            peaks: channels
                .iter()
                .map(|c| four_digits(c.kernels.peak))
                .collect(),
            stride: channels.iter().map(|c| c.kernels.stride).collect(),
            full: curves(|c| c.full.clone(), Logarithmic, 1),
            error: some(|c| c.error.clone()),
            input: some(|c| c.input.clone()),
        }
    }
}

fn measure(name: &str, unit: &str, values: Vec<f64>) -> Measure {
    Measure {
        name: name.to_string(),
        unit: unit.to_string(),
        values,
    }
}

/// error / norm in per cent; 0 where both are.
fn percentage((error, norm): (f64, f64)) -> f64 {
    match error == 0.0 {
        true => 0.0,
        false => 100.0 * error / norm,
    }
}

/// Root mean squares of a channel's output error and of its output, as the reduction recorded them.
fn recorded(record: &LayerRecord, channel: usize) -> Option<(f64, f64)> {
    let weighted = record.channels.get(channel)?.weighted.as_ref()?;
    Some((weighted.last(), weighted.norm))
}

/// The same by the spectrum of the channel's input, where nothing was recorded.
fn weighted(
    full: &DiagonalSystem,
    reduced: &DiagonalSystem,
    weight: Option<&InputWeight>,
) -> Option<(f64, f64)> {
    let weight = weight?;
    let error = weighted_error(full, reduced, weight).ok()?;
    Some((error, weighted_norm(full, weight).ok()?))
}

/// Whether a mode has any effect.
fn in_use(system: &DiagonalSystem, mode: usize) -> bool {
    let output = system.output().column(mode).iter().any(|z| z.norm() > 0.0);
    output && system.input().row(mode).iter().any(|z| z.norm() > 0.0)
}

/// Stored and real states with an effect: a real pole is one real state, a pair is two.
fn used(system: &DiagonalSystem) -> (usize, usize) {
    let poles = system.exponents().iter().enumerate();
    let used = poles.filter(|(mode, _)| in_use(system, *mode));
    used.fold((0, 0), |(stored, real), (_, pole)| {
        (stored + 1, real + if pole.im == 0.0 { 1 } else { 2 })
    })
}

/// Real and imaginary parts in turn, of modes with an effect.
pub fn used_poles(system: &DiagonalSystem) -> Vec<f64> {
    let poles = system.poles().into_iter().enumerate();
    let used = poles.filter(|(mode, _)| in_use(system, *mode));
    used.flat_map(|(_, pole)| [pole.re, pole.im]).collect()
}

/// σ_j/σ₁; none for an unstable channel, or one without effect.
fn relative_values(channel: &ChannelSpectrum) -> Option<Vec<f64>> {
    let values = &channel.hankel_singular_values;
    let first = values.first().copied().filter(|&first| first > 0.0)?;
    Some(values.iter().map(|value| value / first).collect())
}

/// 2 Σ_{j>r} σ_j for r = 0, 1, …
fn tails(values: &[f64]) -> Vec<f64> {
    let mut tails = vec![0.0; values.len() + 1];
    for j in (0..values.len()).rev() {
        tails[j] = tails[j + 1] + 2.0 * values[j];
    }
    tails
}

/// Real states that leave an error bound of 1 % of σ₁.
fn needed(channel: &ChannelSpectrum) -> f64 {
    let tails = relative_values(channel).map(|values| tails(&values));
    let first = tails.and_then(|tails| tails.iter().position(|&tail| tail <= 0.01));
    first.map_or(f64::NAN, |first| first as f64)
}

/// (Σ error²/Σ norm²)^{1/2}; absent where a channel has none.
fn relative(parts: impl Iterator<Item = Option<(f64, f64)>>) -> Option<f64> {
    let squares = parts.map(|part| part.map(|(error, norm)| (error * error, norm * norm)));
    let sum = |sum: (f64, f64), part: Option<(f64, f64)>| {
        part.map(|part| (sum.0 + part.0, sum.1 + part.1))
    };
    let (error, norm) = squares.into_iter().try_fold((0.0, 0.0), sum)?;
    Some(if error == 0.0 {
        0.0
    } else {
        f64::sqrt(error / norm)
    })
}

/// The value below which a share of the values lies.
fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let at = (share * last as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

fn four_digits(value: f64) -> f64 {
    match value.is_finite() && value != 0.0 {
        true => format!("{value:.3e}").parse().unwrap_or(value),
        false => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_tails_are_those_of_small_lists() {
        let list = || [3.0, 1.0, 2.0].into_iter();
        assert_eq!(
            [0.0, 0.5, 1.0].map(|share| quantile(list(), share)),
            [1.0, 2.0, 3.0]
        );
        assert_eq!(tails(&[1.0, 0.5, 0.25]), [3.5, 1.5, 0.5, 0.0]);
        assert!(quantile(std::iter::empty(), 0.5).is_nan());
    }

    #[test]
    fn errors_add_as_squares() {
        let parts = [Some((3.0, 4.0)), Some((4.0, 3.0))];
        assert_eq!(relative(parts.into_iter()), Some(1.0));
        assert_eq!(relative([Some((0.0, 0.0))].into_iter()), Some(0.0));
        assert_eq!(relative([None].into_iter()), None);
    }
}
