//! The model of a plan.

use hankelite_control::Refinement;
use nalgebra::DMatrix;
use rayon::prelude::*;
use serde::Serialize;

use crate::calibrate::{CalibratedReduction, FittedNumbers, LogitFit};
use crate::compress::LayerRecord;
use crate::infer::{InferError, Network, Path as InferPath, Waiting};
use crate::model::Model;
use crate::progress::stage;
use crate::rounding::{
    Entries, LayerChoice, LayerStorage, MapChoice, MapMoments, MapStorage, Numbers, Storage,
};
use crate::target::compared::{MapPlace, alone};
use crate::target::ends::{rounded_encoder, rounded_head};
use crate::target::menu::with_map;
use crate::target::rows::{checked, rounded_for_logits};
use crate::target::{Size, SizePlan, TargetError, TargetReduction};

/// Sequences that maps are rounded on.
pub(super) const ROUNDED_ON: usize = 64;

/// What a residue in half precision may cost by itself, as a share of its mode's norm: 1 to 16
/// times what the format rounds it by.
const RIDGES: [f64; 3] = [4e-3, 1e-3, 2.5e-4];

/// Sequences whose moments are summed on one thread, in order: sums do not depend on the threads.
const GROUP: usize = 4;

/// A model brought to a target.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct Targeted {
    /// The model, whose numbers are those that `storage` stores.
    pub model: Model,
    /// How its tensors are stored: for [`crate::stream::Image::packed`].
    pub storage: Storage,
    /// The plan it was made by.
    pub plan: SizePlan,
    /// Bytes of image and state.
    pub size: Size,
    /// One record for each layer.
    pub records: Vec<LayerRecord>,
    /// What it did to the logits.
    pub changes: LogitChanges,
    /// The change of the logits of the held-out sequences; absent where there are none.
    pub held_out_change: Option<f64>,
    /// The fit of all channels, biases and norms. Absent without pooled logits.
    pub fit: Option<LogitFit>,
}

/// The relative change of the logits of the calibration sequences.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LogitChanges {
    /// After cutting the channels and rounding the maps.
    pub(crate) before_fit: f64,
    /// After the fit.
    pub after: f64,
}

impl TargetReduction<'_> {
    /// The full model with its channels cut.
    pub(super) fn cut(
        &self,
        orders: &[Vec<usize>],
        refinement: Refinement,
    ) -> Result<Model, TargetError> {
        let blocks = self.model().blocks().iter().zip(orders).enumerate();
        let blocks = blocks.map(|(layer, (block, orders))| {
            let systems = self.reduction.cut(layer, orders, refinement)?;
            Ok(block.with_systems(systems, Vec::new())?)
        });
        Ok(self
            .model()
            .with_blocks(blocks.collect::<Result<_, TargetError>>()?)?)
    }

    /// Makes the model of a plan: channels cut and refined, poles in the precision of the plan and
    /// residues fitted again to them, everything fitted to the logits; then the maps rounded one
    /// after the other, and everything that is no integer fitted once more. Cost about a calibrated
    /// reduction.
    ///
    /// # Errors
    /// [`TargetError::Calibrate`]; [`TargetError::Rounding`].
    pub(crate) fn build(&self, plan: &SizePlan) -> Result<Targeted, TargetError> {
        let mut storage = Storage {
            layers: plan.layers.iter().map(numbers_only).collect(),
            numbers: plan.numbers,
            ..Storage::default()
        };
        let cut = storage.applied(&self.cut(&plan.orders, Refinement::Full)?)?;
        let cut = self.refitted(&cut, &storage)?;
        let cut = self
            .reduction
            .fit_numbers(&cut, FittedNumbers::BeforeRounding)?
            .map_or(cut, |(model, _)| model);
        let rounded = self.rounded(cut, plan, &mut storage)?;
        let before_fit = self.reduction.change(&rounded)?;
        let (fitted, fit) = match self.reduction.fit_numbers(&rounded, FittedNumbers::All)? {
            Some((model, fit)) => (storage.applied(&model)?, Some(fit)),
            None => (storage.applied(&rounded)?, None),
        };
        let after = self.reduction.change(&fitted)?;
        // Rounding what was fitted costs little, but not always less than the fit brought.
        let (model, after) = match after <= before_fit {
            true => (fitted, after),
            false => (storage.applied(&rounded)?, before_fit),
        };
        let orders = &plan.orders;
        Ok(Targeted {
            size: Size::of(&model, &storage)?,
            records: self
                .reduction
                .records_of(&model, orders, Refinement::Full)?,
            changes: LogitChanges { before_fit, after },
            held_out_change: None,
            plan: plan.clone(),
            model,
            storage,
            fit,
        })
    }

    /// The model with the best residues for its poles, where they are in half precision. Of some
    /// ridges the one is taken that changes the logits least once the residues are rounded.
    fn refitted(&self, model: &Model, storage: &Storage) -> Result<Model, TargetError> {
        let compared = checked(self.reduction, model)?;
        let mut best: Option<(f64, Model)> = None;
        for ridge in RIDGES {
            let blocks = model.blocks().iter().zip(&storage.layers).enumerate();
            let blocks = blocks.map(|(layer, (block, stored))| {
                if stored.numbers == Numbers::F32 {
                    return Ok(block.clone());
                }
                let systems = self.reduction.refitted(layer, block.systems(), ridge)?;
                Ok(block.with_systems(systems, Vec::new())?)
            });
            let refitted = model.with_blocks(blocks.collect::<Result<_, TargetError>>()?)?;
            let change = compared.change(&storage.applied(&refitted)?)?;
            if best.as_ref().is_none_or(|(least, _)| change < *least) {
                best = Some((change, refitted));
            }
        }
        Ok(best.map_or_else(|| model.clone(), |(_, model)| model))
    }

    /// The model with its maps rounded, first to last; how they are stored goes into `storage`.
    fn rounded(
        &self,
        cut: Model,
        plan: &SizePlan,
        storage: &mut Storage,
    ) -> Result<Model, TargetError> {
        let length = self.reduction.length();
        let mut model = cut;
        let rounded = |choice: Option<MapChoice>| choice.filter(|own| own.entries != Entries::Full);
        if let Some(choice) = rounded(plan.encoder) {
            (model, storage.encoder) = rounded_encoder(self.reduction, &model, choice)?;
        }
        if let Some(choice) = rounded(plan.head) {
            (model, storage.head) = rounded_head(self.reduction, &model, choice)?;
        }
        let mut compared = checked(self.reduction, &model)?;
        let mut waiting = [self.few(&model)?, self.few(self.model())?];
        let observer = self.reduction.observer();
        observer.begin(stage::ROUNDING, plan.layers.len());
        for (layer, choice) in plan.layers.iter().enumerate() {
            observer.step()?;
            let full = alone(self.model(), layer)?;
            let full = Network::new(&full, length, InferPath::Auto)?;
            if let Some(choice) = rounded(choice.map) {
                let own = alone(&model, layer)?;
                let own = Network::new(&own, length, InferPath::Auto)?;
                let taken = (waiting[0].taken(&own), waiting[1].taken(&full));
                let outputs = model.blocks()[layer].outputs();
                let moments = moments(waiting[0].count(), outputs, |index| {
                    Ok([taken.0.of(index)?, taken.1.of(index)?])
                })?;
                let place = MapPlace {
                    model: &model,
                    layer,
                    compared: &compared,
                };
                let (rounded, map) = rounded_map(self.reduction, place, choice, &moments)?;
                storage.layers[layer].map = map;
                model = rounded;
            }
            let own = alone(&model, layer)?;
            waiting[0].pass(&Network::new(&own, length, InferPath::Auto)?)?;
            waiting[1].pass(&full)?;
            compared.pass(&model)?;
        }
        Ok(model)
    }

    /// The sequences that maps are rounded on, before the first layer of a model.
    fn few(&self, model: &Model) -> Result<Waiting, TargetError> {
        let network = Network::new(model, self.reduction.length(), InferPath::Auto)?;
        let sequences = self.reduction.sequences();
        let few = &sequences[..sequences.len().min(ROUNDED_ON)];
        Ok(Waiting::new(&network, few)?)
    }
}

/// The model with one map rounded: for the moments of its inputs, or for the logits, whichever
/// changes the logits less.
pub(super) fn rounded_map(
    reduction: &CalibratedReduction<'_>,
    place: MapPlace<'_>,
    choice: MapChoice,
    moments: &MapMoments,
) -> Result<(Model, MapStorage), TargetError> {
    let by_moments = by_moments(place.model, place.layer, choice, moments)?;
    let Some(by_logits) = rounded_for_logits(reduction, place, choice)? else {
        return Ok(by_moments);
    };
    match place.compared.change(&by_moments.0)? < by_logits.change {
        true => Ok(by_moments),
        false => Ok((by_logits.model, by_logits.storage)),
    }
}

/// The model with one map rounded for the moments of its inputs.
pub(super) fn by_moments(
    model: &Model,
    layer: usize,
    choice: MapChoice,
    moments: &MapMoments,
) -> Result<(Model, MapStorage), TargetError> {
    let block = &model.blocks()[layer];
    let Some(output) = block.output() else {
        return Ok((model.clone(), MapStorage::Full));
    };
    let map = moments.compensated(&output.linear, choice.entries, choice.group)?;
    let model = model.with_block(layer, with_map(block, map.linear)?)?;
    Ok((model, map.storage))
}

/// A layer whose map is left as it is.
fn numbers_only(choice: &LayerChoice) -> LayerStorage {
    LayerStorage {
        numbers: choice.numbers,
        ..LayerStorage::default()
    }
}

/// Moments of what a map takes in both networks, each steps × inputs, over so many sequences.
pub(super) fn moments(
    sequences: usize,
    inputs: usize,
    taken: impl Fn(usize) -> Result<[DMatrix<f64>; 2], InferError> + Sync,
) -> Result<MapMoments, TargetError> {
    let all: Vec<usize> = (0..sequences).collect();
    let groups = all.par_chunks(GROUP).map(|members| {
        let mut sums = MapMoments::new(inputs);
        for &index in members {
            let [own, of_full] = taken(index)?;
            sums.add(&own, &of_full)?;
        }
        Ok(sums)
    });
    let mut total = MapMoments::new(inputs);
    for sums in groups.collect::<Result<Vec<_>, TargetError>>()? {
        total.merge(&sums);
    }
    Ok(total)
}
