//! One set of poles for all channels of a layer.

use hankelite_control::{
    ControlError, DiagonalSystem, InputWeight, Realisation, Refinement, Time, WeightedChannel,
    zoh_gain,
};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rayon::prelude::*;

use crate::compress::candidate::Candidate;
use crate::compress::cut::Cutter;
use crate::compress::{CompressError, LayerRecord, Method, Plan, Rule};
use crate::model::Block;
use crate::progress::in_order;

/// Relative difference up to which poles of two channels are the same.
const SAME: f64 = 1e-6;

/// A layer whose channels have the same poles λ in continuous time, but for their steps Δ_h and,
/// as in DSS with two steps, a factor ρ_h on the imaginary parts.
struct Shared {
    lambdas: Vec<Complex64>,
    /// Δ_h and ρ_h.
    channels: Vec<(f64, f64)>,
}

impl Shared {
    fn new(block: &Block) -> Option<Self> {
        let lambdas = block.systems().first()?.exponents().to_vec();
        let widest = lambdas
            .iter()
            .max_by(|a, b| a.im.abs().total_cmp(&b.im.abs()))?;
        let at = lambdas.iter().position(|lambda| lambda == widest)?;
        let channels = block.systems().iter().map(|system| {
            let Time::Discrete { step } = system.time() else {
                return None;
            };
            let own = system.exponents();
            let ratio = if widest.im == 0.0 {
                1.0
            } else {
                own.get(at)?.im / widest.im
            };
            let mut pairs = lambdas.iter().zip(own);
            let same = pairs.all(|(lambda, own)| {
                let expected = Complex64::new(lambda.re, lambda.im * ratio);
                (own - expected).norm() <= SAME * expected.norm()
            });
            (same && own.len() == lambdas.len()).then_some((step, ratio))
        });
        let channels = channels.collect::<Option<_>>()?;
        Some(Self { lambdas, channels })
    }

    /// The poles of channel h.
    fn exponents(&self, lambdas: &[Complex64], h: usize) -> Vec<Complex64> {
        let ratio = self.channels[h].1;
        let own = lambdas.iter();
        own.map(|lambda| Complex64::new(lambda.re, lambda.im * ratio))
            .collect()
    }

    /// One input, all kernels of all channels as outputs, each scaled by √Δ_h: the ℓ2 norm of a
    /// sampled kernel is then about the L2 norm of the continuous one.
    fn joint(&self, block: &Block) -> Result<DiagonalSystem, ControlError> {
        let order = self.lambdas.len();
        let mut rows: Vec<Vec<Complex64>> = Vec::new();
        for (h, (step, _)) in self.channels.iter().enumerate() {
            let system = &block.systems()[h];
            let gains = self.exponents(&self.lambdas, h);
            let gains: Vec<_> = gains.iter().map(|&z| zoh_gain(z, *step)).collect();
            let input = system.input().column(0);
            for output in system.output().row_iter() {
                let weights = output.iter().zip(input.iter()).zip(&gains);
                let row = weights.map(|((c, b), gain)| step.sqrt() * c * b / gain);
                rows.push(row.collect());
            }
        }
        Ok(DiagonalSystem::new(
            Time::Continuous,
            self.lambdas.clone(),
            DMatrix::from_element(order, 1, Complex64::ONE),
            DMatrix::from_fn(rows.len(), order, |i, n| rows[i][n]),
            DMatrix::zeros(rows.len(), 1),
        )?)
    }

    /// Channel h with the poles and weights of the reduced joint system.
    fn channel(
        &self,
        full: &DiagonalSystem,
        joint: &DiagonalSystem,
        h: usize,
    ) -> Result<DiagonalSystem, ControlError> {
        let step = self.channels[h].0;
        let exponents = self.exponents(joint.exponents(), h);
        let outputs = full.output().nrows();
        let input = joint.input().column(0);
        let output = DMatrix::from_fn(outputs, exponents.len(), |c, n| {
            let weight = joint.output()[(h * outputs + c, n)] * input[n];
            weight * zoh_gain(exponents[n], step) / step.sqrt()
        });
        Ok(DiagonalSystem::new(
            Time::Discrete { step },
            exponents.clone(),
            DMatrix::from_element(exponents.len(), 1, Complex64::ONE),
            output,
            full.feedthrough().clone(),
        )?)
    }
}

/// Reduces a layer to one set of poles for all channels, as the public DSS stores them: balanced
/// truncation in continuous time of the system with one input and the kernels of all channels as
/// outputs. Of channels with one kernel the residues and D are then fitted to their own kernel with
/// the poles as they are.
///
/// # Errors
/// [`CompressError`] for a layer whose channels have different poles, or that runs
/// backwards in time; [`CompressError::Channel`].
pub(super) fn reduce_shared(block: &mut Block, plan: &Plan) -> Result<LayerRecord, CompressError> {
    let order_before = block.order();
    let single = block
        .systems()
        .iter()
        .all(|system| system.input().ncols() == 1);
    let shared = Some(&*block).filter(|block| single && block.backward().is_empty());
    let Some(shared) = shared.and_then(Shared::new) else {
        return Err(CompressError::Other(format!(
            "layer `{}`: its channels do not have the same poles (or run backwards in time), expected a \
             layer that shares them, as DSS does",
            block.name()
        )));
    };
    let joint = shared
        .joint(block)
        .map_err(|e| CompressError::channel(block, 0, e))?;
    let reduced = truncated(&joint, plan).map_err(|e| CompressError::channel(block, 0, e))?;
    let systems = block.systems().par_iter().enumerate();
    let reduced = in_order(systems.map(|(h, full)| {
        let system = shared.channel(full, &reduced.system, h);
        let fitted =
            system.and_then(|system| fitted(full, system, plan, block.holds_feedthrough()));
        let measured = fitted.and_then(|system| {
            let candidate = Candidate {
                system,
                ..reduced.clone()
            };
            candidate.measured(full, h, plan.kernel_length())
        });
        measured.map_err(|source| CompressError::channel(block, h, source))
    }))?;
    let (systems, records) = reduced.into_iter().unzip();
    *block = block.with_systems(systems, Vec::new())?;
    Ok(LayerRecord::new(
        block.name().to_string(),
        order_before,
        records,
    ))
}

/// The joint system cut by the rule of the plan.
fn truncated(joint: &DiagonalSystem, plan: &Plan) -> Result<Candidate, ControlError> {
    let cutter = Cutter::new(
        joint,
        Method::Balanced,
        Realisation::Real,
        plan.kernel_length(),
    )?;
    let hankel = cutter.hankel();
    let (requested, slots) = match plan.rule() {
        Rule::Order(order) if order >= joint.order() => return Ok(Candidate::whole(joint, None)),
        Rule::Order(order) => (2 * order, order),
        Rule::Energy(share) => (hankel.order_for_energy(share), joint.order()),
        Rule::Tolerance(tolerance) => (hankel.order_for_tolerance(tolerance), joint.order()),
    };
    let reduced = cutter.fit(requested, slots)?;
    Ok(Candidate {
        states: Some(reduced.order),
        realisation: Some(Realisation::Real),
        rotations: Some(hankel.rotations()),
        error_bound: f64::INFINITY,
        condition: reduced.condition,
        ..Candidate::whole(
            &reduced.system,
            Some("poles shared with the other channels".to_string()),
        )
    })
}

/// The best residues, and D where the file has a place for it, for these poles, of a channel with one
/// kernel.
fn fitted(
    full: &DiagonalSystem,
    start: DiagonalSystem,
    plan: &Plan,
    holds_feedthrough: bool,
) -> Result<DiagonalSystem, ControlError> {
    if full.as_siso().is_err() || start.order() >= full.order() {
        return Ok(start);
    }
    let white = InputWeight::white(plan.kernel_length());
    let order = start.order();
    let mut channel = WeightedChannel::new(full, &white)?;
    if !holds_feedthrough {
        channel = channel.with_feedthrough_held();
    }
    let refined = channel.refine(start.stable()?, order, Refinement::Residues)?;
    Ok(refined.system)
}
