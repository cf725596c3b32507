//! Fitting all channels of a reduced network together to the logits, by gradients of the full
//! network that another program captured.

use hankelite_control::{gram_matrix, output_slopes};
use nalgebra::{Cholesky, DMatrix, DVector};
use rayon::prelude::*;
use serde::Serialize;

use crate::calibrate::captured::Captured;
use crate::calibrate::parameters::{LogitData, Parameters, Prices};
use crate::calibrate::{CalibrateError, logits};
use crate::model::Model;
use crate::progress::ProgressSink;

/// The prices ρ that are tried.
const PRICES: [f64; 6] = [1e4, 1000.0, 100.0, 10.0, 1.0, 0.1];

/// Every so many sequences one is kept to check the others.
const CHECK_EVERY: usize = 4;

/// Fewer sequences than this are too few to fit and check.
const SEQUENCES_MIN: usize = 8;

/// Sequences read at a time.
const HELD: usize = 8;

/// The fit must bring the checked combinations nearer by this share.
const GAIN_MIN: f64 = 0.02;

/// How all channels together were fitted to first order.
///
/// With gradients g of combinations of the logits by the outputs y of the channels, taken in the
/// full network, the change of a combination is to first order
///
/// ```text
/// Σ_layers Σ_t Σ_h g_th (y_th − ŷ_th(θ))
/// ```
///
/// which is linear in the residues and feedthroughs θ. They take the ridge of [`crate::calibrate::LogitFit`]. A
/// quarter of the sequences is held out: it chooses ρ, and whether the fit is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GradientFit {
    /// Parameters that could move.
    pub parameters: usize,
    /// ρ; absent where no fit was better.
    pub price: Option<f64>,
    /// The root mean square of the predicted change of the combinations before, over the held-out
    /// sequences, in units of the logits.
    pub before: f64,
    /// After.
    pub after: f64,
}

/// Derivatives of the combinations by all parameters, and what is left of the combinations.
struct Rows {
    /// Parameters × combinations of all sequences.
    slopes: DMatrix<f64>,
    left: DVector<f64>,
}

/// The fitted model, where there are sequences enough and the fit is better; and what was done.
pub(super) fn fit_gradients(
    data: &LogitData<'_>,
    captured: &Captured,
    full: &Model,
    start: &Model,
) -> Result<Option<(Model, GradientFit)>, CalibrateError> {
    let (sequences, each) = (captured.sequences(), captured.combinations());
    let checked = sequences / CHECK_EVERY;
    let parameters = Parameters::new(data, start, sequences - checked);
    let count = parameters.count();
    let table = (sequences * each).saturating_mul(count);
    if sequences < SEQUENCES_MIN || each == 0 || count == 0 || table > logits::SLOPES_MAX {
        return Ok(None);
    }
    let rows = rows(&parameters, captured, full, start, data.observer)?;
    let is_checked = |column: usize| (column / each + 1).is_multiple_of(CHECK_EVERY);
    let (check, fit): (Vec<_>, Vec<_>) = (0..sequences * each).partition(|&c| is_checked(c));
    let (check, fit) = (rows.part(&check), rows.part(&fit));
    let problem = Problem::new(fit, parameters.prices(start, std::iter::empty())?);
    let size = |left: &DVector<f64>| (left.norm_squared() / checked as f64).sqrt();
    let before = size(&check.left);
    let mut best: Option<(Model, f64, f64)> = None;
    for price in PRICES {
        let Some(step) = problem.step(price) else {
            continue;
        };
        let after = size(&(&check.left - check.slopes.tr_mul(&step)));
        let known = best.as_ref().map(|(_, _, known)| *known);
        if after < known.unwrap_or(before * (1.0 - GAIN_MIN))
            && let Some(model) = parameters.moved(start, step.as_slice())
        {
            best = Some((model, price, after));
        }
    }
    let fit = |price, after| GradientFit {
        parameters: count,
        price,
        before,
        after,
    };
    Ok(Some(match best {
        Some((model, price, after)) => (model, fit(Some(price), after)),
        None => (start.clone(), fit(None, before)),
    }))
}

impl Rows {
    /// Those of some combinations.
    fn part(&self, columns: &[usize]) -> Self {
        Self {
            slopes: self.slopes.select_columns(columns),
            left: self.left.select_rows(columns),
        }
    }
}

/// The linear least squares problem, in coordinates in which the price is ρ ‖δ‖².
struct Problem {
    rows: Rows,
    /// The smaller of the two products of the slopes with themselves.
    gram: DMatrix<f64>,
    prices: Prices,
}

impl Problem {
    fn new(mut rows: Rows, prices: Prices) -> Self {
        prices.divide(&mut rows.slopes);
        let gram = match rows.slopes.nrows() <= rows.slopes.ncols() {
            true => gram_matrix(&rows.slopes.transpose()),
            false => gram_matrix(&rows.slopes),
        };
        Self { rows, gram, prices }
    }

    /// The step of a price.
    fn step(&self, price: f64) -> Option<DVector<f64>> {
        let Rows { slopes, left } = &self.rows;
        let mut priced = self.gram.clone();
        (0..priced.nrows()).for_each(|i| priced[(i, i)] += price);
        let root = Cholesky::new(priced)?;
        let mut step = match slopes.nrows() <= slopes.ncols() {
            true => root.solve(&(slopes * left)),
            false => slopes * root.solve(left),
        };
        self.prices.restore(&mut step);
        Some(step)
    }
}

/// Cost O((N + K r) L) for each channel and sequence.
fn rows(
    parameters: &Parameters<'_>,
    captured: &Captured,
    full: &Model,
    start: &Model,
    observer: &dyn ProgressSink,
) -> Result<Rows, CalibrateError> {
    let (sequences, each) = (captured.sequences(), captured.combinations());
    // With random signs, the squares of the combinations sum to that of the centred logits in the mean.
    let scale = (each as f64).sqrt().recip();
    let mut slopes = DMatrix::zeros(parameters.count(), sequences * each);
    let mut left = DVector::zeros(sequences * each);
    for (layer, (whole, reduced)) in full.blocks().iter().zip(start.blocks()).enumerate() {
        for first in (0..sequences).step_by(HELD) {
            observer.check()?;
            let last = (first + HELD).min(sequences);
            let inputs = captured.inputs(layer, first, last)?;
            let gradients = captured.gradients(layer, first, last)?;
            let own = inputs.par_iter().zip(&gradients).map(|(input, gradients)| {
                let channels = whole.systems().iter().zip(reduced.systems()).enumerate();
                let channels = channels.map(|(h, (whole, reduced))| {
                    let input = input.column(h);
                    let error = output(whole, input.as_slice()) - output(reduced, input.as_slice());
                    let basis = parameters
                        .place(layer, h)
                        .map(|place| (place, output_slopes(reduced, input.as_slice())));
                    let columns = gradients.iter().map(|gradient| {
                        let gradient = gradient.column(h) * scale;
                        let slopes = basis.as_ref().map(|(_, basis)| basis.tr_mul(&gradient));
                        (slopes, gradient.dot(&error))
                    });
                    (
                        basis.as_ref().map(|(place, _)| *place),
                        columns.collect::<Vec<_>>(),
                    )
                });
                channels.collect::<Vec<_>>()
            });
            for (n, channels) in own.collect::<Vec<_>>().into_iter().enumerate() {
                for (place, columns) in channels {
                    for (k, (own, change)) in columns.into_iter().enumerate() {
                        let column = (first + n) * each + k;
                        left[column] += change;
                        if let Some((first, own)) = place.zip(own) {
                            let mut rows = slopes.column_mut(column);
                            rows.rows_mut(first, own.nrows()).copy_from(&own);
                        }
                    }
                }
            }
        }
    }
    parameters.hold_feedthroughs(start, &mut slopes);
    Ok(Rows { slopes, left })
}

/// y = k ∗ u + D u.
fn output(system: &hankelite_control::DiagonalSystem, input: &[f64]) -> DVector<f64> {
    let slopes = output_slopes(system, input);
    let mut weights = DVector::zeros(slopes.ncols());
    for n in 0..system.order() {
        let residue = system.output()[(0, n)] * system.input()[(n, 0)];
        weights[2 * n] = residue.re;
        weights[2 * n + 1] = residue.im;
    }
    weights[slopes.ncols() - 1] = system.feedthrough()[(0, 0)];
    slopes * weights
}
