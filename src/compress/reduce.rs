//! Reducing every channel of every layer.

use hankelite_control::{
    ControlError, DiagonalSystem, HorizonMethod, ModalScore, Realisation, Reduced, SystemClass,
    h2_refine, hinf_error, modal_scores, modal_truncation, reduce_over_horizon,
};
use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::compress::candidate::Candidate;
use crate::compress::class::within_class;
use crate::compress::cut::{Cutter, horizon_values};
use crate::compress::distance::{feedthrough_change, response_error};
use crate::compress::share::reduce_shared;
use crate::compress::{ChannelRecord, CompressError, LayerRecord, Method, Plan, Rule};
use crate::model::{Block, Model};
use crate::progress::{ProgressSink, in_order, stage};

/// A smaller model and what was done to make it.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct Compressed {
    /// The reduced model, of the same type as the full one.
    pub model: Model,
    /// One record for each layer.
    pub records: Vec<LayerRecord>,
}

/// Reduces every channel of a model. Nothing but poles and residues changes, and with
/// [`Method::Residualised`] the feedthrough D; a channel whose order is already met stays as it
/// is, so the full order is the identity.
///
/// A channel with modes that do not decay is refused, unless the plan allows it: then its first
/// `kernel_length` samples are kept by [`reduce_over_horizon`], whatever the method.
///
/// Channels run in parallel. Cost about 60 (2N)³ flops for each channel.
///
/// # Errors
/// [`CompressError::Plan`] when the plan does not suit the model; [`CompressError::Channel`] with
/// layer, channel and poles when a Gramian does not exist.
///
/// # References
/// Ezoe and Sato, section IV (reduction and parameter extraction).
pub fn reduce(model: &Model, plan: &Plan) -> Result<Compressed, CompressError> {
    reduce_observed(model, plan, &())
}

/// As [`reduce`], with an observer of its progress.
///
/// # Errors
/// As [`reduce`]; [`CompressError::Cancelled`].
pub fn reduce_observed(
    model: &Model,
    plan: &Plan,
    observer: &dyn ProgressSink,
) -> Result<Compressed, CompressError> {
    plan.check(model)?;
    observer.begin(stage::REDUCTION, model.blocks().len());
    let mut blocks = model.blocks().to_vec();
    let mut records = Vec::with_capacity(blocks.len());
    for block in &mut blocks {
        observer.check()?;
        records.push(reduce_layer(block, plan)?);
        observer.advance(1);
    }
    Ok(Compressed {
        model: model.with_blocks(blocks)?,
        records,
    })
}

impl Plan {
    /// The same plan with the one order for all channels that is the most any of them needs by its rule,
    /// for networks with one number of states.
    ///
    /// # Errors
    /// As [`reduce`].
    pub fn with_one_order(
        self,
        model: &Model,
        observer: &dyn ProgressSink,
    ) -> Result<Self, CompressError> {
        if let Rule::Order(_) = self.rule() {
            return Ok(self);
        }
        let records = reduce_observed(model, &self, observer)?.records;
        let most = records.iter().map(|record| record.order).max();
        Ok(self.with_rule(Rule::Order(most.unwrap_or(1).max(1))))
    }
}

/// Reduces the channels of one layer in place: the step of [`reduce`], for callers that hold one
/// layer at a time. Where both directions of a bidirectional layer have the same poles, they are
/// reduced together, as one system with the outputs of both, so that they have the same poles
/// afterwards; else those that run backwards in time follow the others in the record.
///
/// # Errors
/// [`CompressError::Channel`]; the block is then unchanged.
pub fn reduce_layer(block: &mut Block, plan: &Plan) -> Result<LayerRecord, CompressError> {
    if plan.share_poles() {
        return reduce_shared(block, plan);
    }
    require_place_for_feedthrough(block, plan)?;
    require_decay_of_shared(block, plan)?;
    let order_before = block.order();
    let joint = !block.backward().is_empty() && directions_share_poles(block);
    let whole: Vec<DiagonalSystem> = match joint {
        true => stacked(block)?,
        false => [block.systems(), block.backward()].concat(),
    };
    let channels = whole.par_iter().enumerate();
    let reduced = in_order(channels.map(|(channel, system)| {
        reduce_channel(system, plan, channel, block)
            .map_err(|source| CompressError::channel(block, channel, source))
    }))?;
    let (mut systems, records): (Vec<_>, _) = reduced.into_iter().unzip();
    let (systems, backward) = match joint {
        true => unstack(block, &systems)?,
        false => {
            let backward = systems.split_off(block.systems().len());
            require_no_feedthrough(block, &backward)?;
            (systems, backward)
        }
    };
    *block = block.with_systems(systems, backward)?;
    Ok(LayerRecord::new(
        block.name().to_string(),
        order_before,
        records,
    ))
}

/// Residualisation is nothing without the change of D.
fn require_place_for_feedthrough(block: &Block, plan: &Plan) -> Result<(), CompressError> {
    match plan.method() {
        Method::Residualised if !block.holds_feedthrough() => Err(CompressError::Other(format!(
            "layer `{}`: no tensor `D` was found beside its kernel, and the method residualised \
             changes D; expected a method that keeps it (--method balanced), or a file that holds D",
            block.name()
        ))),
        _ => Ok(()),
    }
}

/// Growing modes are kept over a horizon where each channel has its own system, and in a class of systems,
/// which says itself what decays.
fn require_decay_of_shared(block: &Block, plan: &Plan) -> Result<(), CompressError> {
    if plan.method() == Method::InLayout {
        return Ok(());
    }
    let growing = |system: &DiagonalSystem| system.unstable_modes().first().copied();
    match block.all_systems().find_map(growing) {
        Some((mode, exponent)) if !block.is_siso() => Err(CompressError::SharedGrowing(format!(
            "layer `{}`: mode {mode}, lambda = {:.3e}{:+.3e}i, does not decay; expected modes that decay in \
             a system of several inputs or outputs (S5, LRU): those that grow are reduced with one of each \
             only",
            block.name(),
            exponent.re,
            exponent.im
        ))),
        _ => Ok(()),
    }
}

/// Whether both directions of every channel have the same poles and input weights, as layouts
/// store them.
fn directions_share_poles(block: &Block) -> bool {
    let mut pairs = block.systems().iter().zip(block.backward());
    pairs.all(|(a, b)| a.exponents() == b.exponents() && a.input() == b.input())
}

/// Both directions of every channel as one system with the outputs of both.
fn stacked(block: &Block) -> Result<Vec<DiagonalSystem>, CompressError> {
    let pairs = block.systems().iter().zip(block.backward()).enumerate();
    let stacked = pairs.map(|(channel, (a, b))| {
        let rows = a.output().nrows();
        let below = |i: usize| i.checked_sub(rows);
        let output = DMatrix::from_fn(2 * rows, a.order(), |i, j| match below(i) {
            None => a.output()[(i, j)],
            Some(i) => b.output()[(i, j)],
        });
        let inputs = a.input().ncols();
        let through = DMatrix::from_fn(2 * rows, inputs, |i, j| match below(i) {
            None => a.feedthrough()[(i, j)],
            Some(_) => 0.0,
        });
        let (exponents, input) = (a.exponents().to_vec(), a.input().clone());
        let system = DiagonalSystem::new(a.time(), exponents, input, output, through);
        system.map_err(|source| CompressError::channel(block, channel, ControlError::from(source)))
    });
    stacked.collect()
}

/// The systems of a layer, and those backwards in time.
type Directions = (Vec<DiagonalSystem>, Vec<DiagonalSystem>);

/// A feedthrough that changed backwards in time has no place, so methods that change it are refused.
fn require_no_feedthrough(block: &Block, backward: &[DiagonalSystem]) -> Result<(), CompressError> {
    let direct = |system: &DiagonalSystem| system.feedthrough().iter().any(|d| *d != 0.0);
    match backward.iter().position(direct) {
        None => Ok(()),
        Some(channel) => Err(CompressError::Other(format!(
            "layer `{}`, channel {channel}: the method changes the feedthrough of the direction backwards \
             in time, which has none; expected a method that keeps D, e.g. balanced",
            block.name()
        ))),
    }
}

/// The two directions apart again; each keeps the poles of both.
fn unstack(block: &Block, systems: &[DiagonalSystem]) -> Result<Directions, CompressError> {
    let mut split = (Vec::new(), Vec::new());
    for (channel, whole) in systems.iter().enumerate() {
        let rows = whole.output().nrows() / 2;
        let part = |first: usize| {
            let output = whole.output().rows(first, rows).into_owned();
            let through = whole.feedthrough().rows(first, rows).into_owned();
            let (exponents, input) = (whole.exponents().to_vec(), whole.input().clone());
            DiagonalSystem::new(whole.time(), exponents, input, output, through).map_err(|source| {
                CompressError::channel(block, channel, ControlError::from(source))
            })
        };
        split.0.push(part(0)?);
        split.1.push(part(rows)?);
    }
    require_no_feedthrough(block, &split.1)?;
    Ok(split)
}

fn reduce_channel(
    system: &DiagonalSystem,
    plan: &Plan,
    channel: usize,
    block: &Block,
) -> Result<(DiagonalSystem, ChannelRecord), ControlError> {
    let class = match plan.method() {
        Method::InLayout => block.class(),
        Method::RealPoles => Some(SystemClass::RealPoles),
        _ => None,
    };
    if let Some(class) = class {
        return within_class(system, plan, class, channel);
    }
    if plan.unstable() && !system.is_stable() {
        return over_horizon(system, plan, channel);
    }
    let full = system.stable()?;
    let mut candidates = candidates(system, plan, block.holds_feedthrough())?.into_iter();
    let mut best = candidates.next().expect("every method offers a candidate");
    for candidate in candidates {
        let error = |candidate: &Candidate| response_error(full, candidate.system.stable()?);
        if error(&candidate)? < error(&best)? {
            best = candidate;
        }
    }
    best.measured(system, channel, plan.kernel_length())
}

/// A channel with modes that do not decay, kept over the first L steps.
fn over_horizon(
    system: &DiagonalSystem,
    plan: &Plan,
    channel: usize,
) -> Result<(DiagonalSystem, ChannelRecord), ControlError> {
    let length = plan.kernel_length();
    let order = match plan.rule() {
        Rule::Order(order) => order,
        Rule::Energy(share) => half(horizon_values(system, length)?.order_for_energy(share)),
        Rule::Tolerance(t) => half(horizon_values(system, length)?.order_for_tolerance(t)),
    };
    let reduced = reduce_over_horizon(system, order.max(1), length)?;
    let growing = system.unstable_modes().len();
    let way = match reduced.method {
        HorizonMethod::Whole => "kept whole",
        HorizonMethod::FiniteHorizon => "reduced by balancing over L steps",
        HorizonMethod::Split => "stable and growing modes reduced apart over L steps",
    };
    let (before, after) = (growing, reduced.unstable);
    let record = ChannelRecord {
        kernel_error: reduced.kernel_error,
        kernel_norm: reduced.kernel_norm,
        condition: reduced.condition,
        notes: vec![
            format!("modes that do not decay: {way}"),
            format!("{before} modes did not decay before, {after} do not now"),
        ],
        ..ChannelRecord::over_horizon(channel, system.order(), reduced.system.order())
    };
    Ok((reduced.system, record))
}

/// Stored modes for real states, when all are pairs.
fn half(states: usize) -> usize {
    states.div_ceil(2)
}

fn candidates(
    system: &DiagonalSystem,
    plan: &Plan,
    holds_feedthrough: bool,
) -> Result<Vec<Candidate>, ControlError> {
    if let Rule::Order(order) = plan.rule()
        && let Some(whole) = Candidate::within(system, order)
    {
        return Ok(vec![whole]);
    }
    match plan.method() {
        Method::ModalHinf => return Ok(vec![modal(system, plan, ModalScore::Hinf)?]),
        Method::ModalH2 => return Ok(vec![modal(system, plan, ModalScore::H2)?]),
        _ => {}
    }
    let realisations = plan.realisation().candidates().iter();
    realisations
        .map(|&realisation| balanced(system, plan, realisation, holds_feedthrough))
        .collect()
}

fn modal(
    system: &DiagonalSystem,
    plan: &Plan,
    score: ModalScore,
) -> Result<Candidate, ControlError> {
    let Rule::Order(order) = plan.rule() else {
        unreachable!("a plan has no other rule with modal truncation");
    };
    let base = plan.time().of(system)?;
    let kept = modal_truncation(base.stable()?, order, score)?;
    // Those that go are summed: beside a mode that hardly decays a difference has no digits.
    let ranks = modal_scores(base.stable()?, score)?;
    let peaks = modal_scores(base.stable()?, ModalScore::Hinf)?;
    let mut ranking: Vec<usize> = (0..ranks.len()).collect();
    ranking.sort_by(|&i, &j| ranks[j].total_cmp(&ranks[i]));
    Ok(Candidate {
        error_bound: ranking[order..].iter().fold(0.0, |sum, &i| sum + peaks[i]),
        ..Candidate::whole(&plan.time().sampled(kept, system)?, None)
    })
}

fn balanced(
    system: &DiagonalSystem,
    plan: &Plan,
    realisation: Realisation,
    holds_feedthrough: bool,
) -> Result<Candidate, ControlError> {
    let base = plan.time().of(system)?;
    let cutter = Cutter::new(&base, plan.method(), realisation, plan.kernel_length())?;
    let hankel = cutter.hankel();
    let (requested, slots) = match plan.rule() {
        Rule::Order(order) if realisation == Realisation::Real => (2 * order, order),
        Rule::Order(order) => (order, order),
        Rule::Energy(share) => (hankel.order_for_energy(share), system.order()),
        Rule::Tolerance(tolerance) => (hankel.order_for_tolerance(tolerance), system.order()),
    };
    let reduced = cutter.fit(requested, slots)?;
    if plan.rule() != Rule::Order(slots) && reduced.system.order() >= system.order() {
        let note = "kept whole: the rule requires every state";
        return Ok(Candidate::whole(system, Some(note.into())));
    }
    let mut candidate = Candidate {
        notes: notes(&cutter, &reduced, requested, slots),
        states: Some(reduced.order),
        realisation: Some(realisation),
        discarded: Some(hankel.discarded(reduced.order)),
        rotations: Some(hankel.rotations()),
        error_bound: reduced.error_bound,
        condition: reduced.condition,
        free_h2_error: None,
        system: reduced.system,
    };
    if plan.method() == Method::H2Optimal {
        refine(&mut candidate, &cutter, &base)?;
    }
    if !holds_feedthrough && feedthrough_change(&base, &candidate.system).is_some() {
        candidate.keep_feedthrough(&base)?;
    }
    if matches!(
        plan.method(),
        Method::H2Optimal | Method::Horizon | Method::HankelNorm
    ) {
        // No bound is known in advance, or a poor one, so the norm itself is enclosed.
        let (full, small) = cutter.apart(&base, &candidate.system);
        let error = hinf_error(full.stable()?, small.stable()?, Realisation::Real)?;
        candidate.error_bound = error.upper;
    }
    if feedthrough_change(&base, &candidate.system).is_some() {
        let note = "the feedthrough D changes with the poles; it is written with them";
        candidate.notes.push(note.into());
    }
    candidate.system = plan.time().sampled(candidate.system, system)?;
    Ok(candidate)
}

/// Moves poles and residues to a minimum of the H2 error; slow modes stay.
fn refine(
    candidate: &mut Candidate,
    cutter: &Cutter,
    base: &DiagonalSystem,
) -> Result<(), ControlError> {
    let (full, small) = cutter.apart(base, &candidate.system);
    if small.order() == 0 {
        return Ok(());
    }
    let refined = h2_refine(full.stable()?, small.stable()?)?;
    candidate.system = match small.order() < candidate.system.order() {
        true => cutter.whole(refined.system)?,
        false => refined.system,
    };
    if !refined.converged {
        let note = "the refinement stopped short of a stationary point";
        candidate.notes.push(note.into());
    }
    Ok(())
}

fn notes(cutter: &Cutter, reduced: &Reduced, requested: usize, slots: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let rank = cutter.rank();
    let possible = requested.min(cutter.hankel().values().len());
    if rank < possible {
        notes.push(format!(
            "only {rank} of {possible} states stand above rounding"
        ));
    }
    if reduced.lowered {
        notes.push(format!(
            "a higher order than {} has a pole on the stability boundary in double precision",
            reduced.order
        ));
    }
    let short = reduced.system.order() < slots && !reduced.lowered;
    if short && rank >= possible && reduced.order < requested {
        notes.push(format!(
            "{} of {slots} stored states are used: of the next larger truncation too many poles are \
             real, and each takes a stored state of its own",
            reduced.system.order()
        ));
    }
    if reduced.tie {
        notes.push(format!(
            "Hankel values {} and {} are equal: this cut is not unique",
            reduced.order,
            reduced.order + 1
        ));
    }
    notes
}
