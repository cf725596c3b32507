//! Reducing channels for what they hear.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hankelite_control::{
    ControlError, DiagonalSystem, InputWeight, Realisation, Refinement, balance, balance_weighted,
    weighted_error, weighted_norm, weighted_refine,
};
use rayon::prelude::*;

use crate::compress::cut::Cutter;
use crate::compress::record::WeightedRecord;
use crate::compress::reduce::{Candidate, measured, whole};
use crate::compress::{ChannelRecord, CompressError, LayerRecord};
use crate::model::Block;

/// Orders at which the error of a channel is tabulated: all up to this one, then a quarter more
/// each time.
const DENSE_ORDERS: usize = 8;

/// One channel balanced for what it hears, to be cut at any order. Every cut is made once.
pub struct CalibratedChannel {
    system: DiagonalSystem,
    weight: Option<InputWeight>,
    plain: Cutter,
    weighted: Option<Cutter>,
    norm: f64,
    cuts: Mutex<BTreeMap<(usize, bool), Arc<Cut>>>,
}

/// A channel cut at one order.
struct Cut {
    candidate: Candidate,
    record: WeightedRecord,
}

/// The squared weighted error of a channel at some orders, never rising with the order.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorCurve {
    /// Orders, rising, from 1 to the full one.
    pub orders: Vec<usize>,
    /// E at each order; 0 at the full one.
    pub errors: Vec<f64>,
}

impl CalibratedChannel {
    /// The channel itself.
    pub fn system(&self) -> &DiagonalSystem {
        &self.system
    }

    /// What it hears; `None` for nothing.
    pub fn weight(&self) -> Option<&InputWeight> {
        self.weight.as_ref()
    }

    /// Balances a channel twice, for what it hears and for white noise. `weight` is `None` for a
    /// channel that hears nothing; only white noise is left for it then.
    ///
    /// # Errors
    /// [`ControlError::System`] when a mode does not decay.
    pub fn new(system: &DiagonalSystem, weight: Option<InputWeight>) -> Result<Self, ControlError> {
        let stable = system.stable()?;
        let weighted = match &weight {
            Some(weight) => Some(Cutter::Weighted(balance_weighted(stable, weight)?)),
            None => None,
        };
        Ok(Self {
            norm: match &weight {
                Some(weight) => weighted_norm(system, weight)?,
                None => 0.0,
            },
            plain: Cutter::Truncate(balance(stable, Realisation::Real)?),
            system: system.clone(),
            weighted,
            weight,
            cuts: Mutex::new(BTreeMap::new()),
        })
    }

    /// √E of the channel's own kernel: the root mean square of what it says; 0 when it hears
    /// nothing.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// The squared weighted error of any system in the place of this channel; 0 when it hears
    /// nothing.
    ///
    /// # Errors
    /// As [`weighted_error`].
    pub fn error_of(&self, reduced: &DiagonalSystem) -> Result<f64, ControlError> {
        match &self.weight {
            Some(weight) => Ok(weighted_error(&self.system, reduced, weight)?.powi(2)),
            None => Ok(0.0),
        }
    }

    /// Squared weighted errors after truncation and refitting of the residues, or after truncation
    /// alone where nothing is to be refined.
    ///
    /// # Errors
    /// [`ControlError`] of a cut.
    pub fn curve(&self, refinement: Refinement) -> Result<ErrorCurve, ControlError> {
        let full = self.system.order().max(1);
        let mut orders = Vec::new();
        let mut order = 1;
        while order < full {
            orders.push(order);
            order += (order / 4)
                .max(1)
                .min(if order < DENSE_ORDERS { 1 } else { full });
        }
        let mut least = f64::INFINITY;
        let mut errors = Vec::with_capacity(orders.len() + 1);
        for &order in &orders {
            if least > 0.0 {
                let error = match refinement {
                    Refinement::None => self.cut(order, Refinement::None)?.record.truncated,
                    _ => self.cut(order, Refinement::Residues)?.record.error,
                };
                least = least.min(error.powi(2));
            }
            errors.push(least);
        }
        orders.push(full);
        errors.push(0.0);
        Ok(ErrorCurve { orders, errors })
    }

    fn cut(&self, order: usize, refinement: Refinement) -> Result<Arc<Cut>, ControlError> {
        let key = (order, refinement == Refinement::Full);
        // A thread that panicked while holding the lock left the map whole.
        let known = |cuts: &Mutex<BTreeMap<_, Arc<Cut>>>| {
            let cuts = cuts
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            cuts.get(&key).cloned()
        };
        if refinement != Refinement::None
            && let Some(cut) = known(&self.cuts)
        {
            return Ok(cut);
        }
        let cut = Arc::new(self.make_cut(order, refinement)?);
        if refinement != Refinement::None {
            let mut cuts = self
                .cuts
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            cuts.insert(key, Arc::clone(&cut));
        }
        Ok(cut)
    }

    fn make_cut(&self, order: usize, refinement: Refinement) -> Result<Cut, ControlError> {
        if order >= self.system.order() {
            let note = (order > self.system.order())
                .then(|| format!("kept whole: it has {} states", self.system.order()));
            return Ok(Cut {
                candidate: whole(&self.system, note),
                record: WeightedRecord::identity(self.norm),
            });
        }
        let white = self.truncated(&self.plain, order)?;
        let Some((weight, weighted)) = self.weight.as_ref().zip(self.weighted.as_ref()) else {
            let mut candidate = white;
            let note = "hears nothing in the calibration data: balanced for white noise";
            candidate.notes.push(note.into());
            return Ok(Cut {
                candidate,
                record: WeightedRecord::identity(0.0),
            });
        };
        let heard = self.truncated(weighted, order)?;
        let refine = |candidate: &Candidate| {
            let start = candidate.system.stable()?;
            weighted_refine(&self.system, start, order, weight, Refinement::None)
        };
        let (for_heard, for_white) = (refine(&heard)?.error, refine(&white)?.error);
        let white_is_better = for_white < for_heard;
        let mut candidate = if white_is_better { white } else { heard };
        if white_is_better {
            let note = "balanced for white noise, which left the smaller weighted error";
            candidate.notes.push(note.into());
        }
        let start = candidate.system.stable()?;
        let refined = weighted_refine(&self.system, start, order, weight, refinement)?;
        candidate.system = refined.system;
        Ok(Cut {
            candidate,
            record: WeightedRecord {
                norm: self.norm,
                unweighted: for_white,
                truncated: refined.truncated,
                refitted: refined.refitted,
                error: refined.error,
                fitted: None,
                steps: refined.steps,
                white: white_is_better,
            },
        })
    }

    /// What is told of a system that was made from a cut.
    fn record_of(
        &self,
        cut: &Cut,
        system: &DiagonalSystem,
        index: usize,
        kernel_length: usize,
    ) -> Result<ChannelRecord, ControlError> {
        let mut candidate = cut.candidate.clone();
        let fitted = candidate.system != *system;
        candidate.system = system.clone();
        let (_, mut record) = measured(&self.system, candidate, index, kernel_length)?;
        let mut weighted = cut.record.clone();
        if fitted {
            weighted.fitted = Some(self.error_of(system)?.sqrt());
        }
        record.weighted = Some(weighted);
        Ok(record)
    }

    fn truncated(&self, cutter: &Cutter, order: usize) -> Result<Candidate, ControlError> {
        let reduced = cutter.fit(2 * order, order)?;
        Ok(Candidate {
            states: Some(reduced.order),
            realisation: Some(Realisation::Real),
            rotations: Some(cutter.hankel().rotations()),
            error_bound: f64::INFINITY,
            condition: reduced.condition,
            ..whole(&reduced.system, None)
        })
    }
}

/// A layer with its channels balanced for what they hear.
pub struct CalibratedLayer {
    /// The channels, in order.
    pub channels: Vec<CalibratedChannel>,
}

impl CalibratedLayer {
    /// Balances all channels of a layer, in parallel; `weight` says what each of them hears.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn new(
        block: &Block,
        weight: impl Fn(usize) -> Option<InputWeight> + Sync,
    ) -> Result<Self, CompressError> {
        let systems = block.systems().par_iter().enumerate();
        let channels = systems.map(|(index, system)| {
            CalibratedChannel::new(system, weight(index)).map_err(|e| fault(block, index, e))
        });
        Ok(Self {
            channels: channels.collect::<Result<_, _>>()?,
        })
    }

    /// (Σ E_h(error), Σ E_h(output)) of any systems in the place of the channels.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn errors_of(&self, block: &Block) -> Result<(f64, f64), CompressError> {
        let channels = self.channels.par_iter().zip(block.systems()).enumerate();
        let errors = channels.map(|(index, (channel, system))| {
            let error = channel.error_of(system);
            error.map_err(|error| fault(block, index, error))
        });
        let errors = errors.collect::<Result<Vec<_>, _>>()?;
        let norms = self.channels.iter().map(|channel| channel.norm.powi(2));
        Ok((errors.iter().sum(), norms.sum()))
    }

    /// The error curves of all channels, in parallel; see [`CalibratedChannel::curve`].
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn curves(
        &self,
        block: &Block,
        refinement: Refinement,
    ) -> Result<Vec<ErrorCurve>, CompressError> {
        let channels = self.channels.par_iter().enumerate();
        let curves = channels.map(|(index, channel)| {
            channel
                .curve(refinement)
                .map_err(|e| fault(block, index, e))
        });
        curves.collect()
    }

    /// The channels cut to `orders[h]` stored states, without records.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn systems(
        &self,
        block: &Block,
        orders: &[usize],
        refinement: Refinement,
    ) -> Result<Vec<DiagonalSystem>, CompressError> {
        let channels = self.channels.par_iter().zip(orders).enumerate();
        let systems = channels.map(|(index, (channel, &order))| {
            let cut = channel.cut(order, refinement);
            let cut = cut.map_err(|error| fault(block, index, error))?;
            Ok(cut.candidate.system.clone())
        });
        systems.collect()
    }

    /// What is told of systems that were made from cuts, each with the order of its cut. The block
    /// must be the one that the layer was made from.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn record_of(
        &self,
        block: &Block,
        fitted: &[(usize, &DiagonalSystem)],
        refinement: Refinement,
        kernel_length: usize,
    ) -> Result<LayerRecord, CompressError> {
        let channels = self.channels.par_iter().zip(fitted).enumerate();
        let records = channels.map(|(index, (channel, &(order, system)))| {
            let cut = channel.cut(order, refinement);
            let record = cut.and_then(|cut| channel.record_of(&cut, system, index, kernel_length));
            record.map_err(|error| fault(block, index, error))
        });
        let records = records.collect::<Result<_, _>>()?;
        Ok(LayerRecord::new(
            block.name().to_string(),
            block.order(),
            records,
        ))
    }

    /// Cuts channel h to `orders[h]` stored states. The block must be the one that the layer was
    /// made from.
    ///
    /// # Errors
    /// [`CompressError::Channel`]; the block is then unchanged.
    pub fn reduce(
        &self,
        block: &mut Block,
        orders: &[usize],
        refinement: Refinement,
        kernel_length: usize,
    ) -> Result<LayerRecord, CompressError> {
        let systems = self.systems(block, orders, refinement)?;
        let cut: Vec<_> = orders.iter().copied().zip(&systems).collect();
        let record = self.record_of(block, &cut, refinement, kernel_length)?;
        *block = block.with_systems(systems, Vec::new())?;
        Ok(record)
    }
}

fn fault(block: &Block, channel: usize, source: ControlError) -> CompressError {
    CompressError::Channel {
        layer: block.name().to_string(),
        channel,
        source,
    }
}
