//! Maps held at few bits while they are trained: rounded on the way forward, straight through on the
//! way back, with scales that are trained, too.

use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor, Var, bail};
use hankelite::advanced::{Levels, RoundedMatrix};
use hankelite::rounding::{Entries, MapChoice, StorageChoice};
use nalgebra::DMatrix;

#[cfg(feature = "cuda")]
use crate::nn::gpu;
use crate::nn::tensors::{TensorType, host, var};
use crate::nn::{Group, Parameter, tensors};

/// Which maps are held at few bits in training. Each is rounded in every forward pass, and so it is
/// evaluated and written; gradients pass the rounding as if it were not there, into weights of full
/// precision. The scales of integers start as those of [`RoundedMatrix::nearest`] and are trained
/// with the weights.
///
/// # References
/// Bengio, Léonard and Courville 2013 (the straight-through estimator). Esser et al., Learned Step
/// Size Quantization, 2020, equations 1 to 3 and 5; but what lies up to half a scale beyond an end
/// level counts as rounded to it, not as cut off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldMaps {
    /// The encoder, if it is a linear map. An embedding is never held.
    pub encoder: Option<MapChoice>,
    /// The output map of each layer; none at all where no layer's is held.
    pub layers: Vec<Option<MapChoice>>,
    /// B, with its normalisation, and C of each layer with several inputs, with a dense D beside C;
    /// none at all where no layer's are held. Those of layers that run in both directions never are.
    pub systems: Vec<Option<MapChoice>>,
    /// The head.
    pub head: Option<MapChoice>,
}

impl HeldMaps {
    /// The maps of a storage. What is stored in single precision is not held.
    pub fn of(storage: &StorageChoice) -> Self {
        let layers = storage.layers.iter();
        Self {
            encoder: storage.encoder.and_then(rounded),
            layers: layers
                .clone()
                .map(|layer| layer.map.and_then(rounded))
                .collect(),
            systems: layers
                .map(|layer| layer.systems.and_then(rounded))
                .collect(),
            head: storage.head.and_then(rounded),
        }
    }

    /// Those of one layer.
    pub(super) fn layer(&self, layer: usize) -> HeldLayer {
        let of = |all: &[Option<MapChoice>]| all.get(layer).copied().flatten();
        HeldLayer {
            map: of(&self.layers),
            systems: of(&self.systems),
        }
    }

    /// Whether every map has full precision.
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// All that are held.
    pub fn all(&self) -> impl Iterator<Item = MapChoice> {
        let ends = [self.encoder, self.head];
        let layers = self.layers.iter().chain(&self.systems);
        layers.copied().chain(ends).flatten()
    }
}

/// How the maps of one layer are held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeldLayer {
    /// The output map.
    pub(super) map: Option<MapChoice>,
    /// B and C.
    pub(super) systems: Option<MapChoice>,
}

/// A choice that rounds.
fn rounded(choice: MapChoice) -> Option<MapChoice> {
    (choice.entries != Entries::Full).then_some(choice)
}

/// How one map is held.
pub(super) enum Held {
    /// The upper halves of single precision.
    Bf16,
    /// Integers.
    Integers {
        /// How many bits and which groups.
        form: IntegerForm,
        /// The weight that the lowest level stands for, outputs × groups: of the size of weights, so
        /// that their rate of learning suits it.
        range: Var,
    },
}

/// Bits of an entry, and inputs that share a scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntegerForm {
    bits: u32,
    group: usize,
}

impl Held {
    /// For weights (inputs × outputs).
    pub(super) fn new(
        weight: &DMatrix<f64>,
        choice: MapChoice,
        to: TensorType<'_>,
    ) -> Result<Option<Self>> {
        let Some(bits) = choice.entries.bits() else {
            return Ok((choice.entries == Entries::Bf16).then_some(Self::Bf16));
        };
        let group = choice.group;
        let scales = RoundedMatrix::best_scales(weight, bits, group);
        let scales = scales.map_err(candle_core::Error::wrap)?;
        let form = IntegerForm { bits, group };
        let ranges = scales
            .iter()
            .map(|&scale| f64::from(scale) * form.levels().lowest);
        let shape = [scales.ncols(), scales.nrows()];
        let range = var(&ranges.collect::<Vec<_>>(), &shape, to)?;
        Ok(Some(Self::Integers { form, range }))
    }

    /// The ranges, where there are integers.
    pub(super) fn parameter(&self, prefix: &str) -> Option<Parameter> {
        match self {
            Self::Bf16 => None,
            Self::Integers { range, .. } => {
                Some(tensors::parameter(prefix, "range", range, Group::NoDecay))
            }
        }
    }

    /// The weights (outputs × inputs) as they are held, with gradients of the weights themselves and
    /// of the ranges.
    pub(super) fn applied(&self, weight: &Tensor) -> Result<Tensor> {
        match self {
            Self::Bf16 => {
                let near = weight.detach().to_dtype(DType::BF16)?;
                let change = (near.to_dtype(weight.dtype())? - weight.detach())?;
                weight + change
            }
            #[cfg(feature = "cuda")]
            Self::Integers { form, range } if gpu::takes(weight.device(), weight.dtype()) => {
                gpu::rounding::rounded([weight, range], form.group, form.levels())
            }
            Self::Integers { form, range } => {
                let device = weight.device().clone();
                let on_host = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.contiguous();
                let held = on_host(weight)?.apply_op2(&on_host(range)?, StraightThrough(*form))?;
                held.to_device(&device)
            }
        }
    }
}

impl IntegerForm {
    fn levels(self) -> Levels {
        Levels::of(self.bits)
    }

    /// The nearest levels of weights (outputs × inputs) with the scales of these ranges.
    fn rounded(self, weight: &Tensor, range: &Tensor) -> Result<RoundedMatrix> {
        let (outputs, inputs) = weight.dims2()?;
        // Inputs × outputs by columns is outputs × inputs by rows.
        let matrix = DMatrix::from_vec(inputs, outputs, host(weight)?);
        let scales = host(range)?
            .into_iter()
            .map(|range| range / self.levels().lowest);
        let scales = DMatrix::from_iterator(inputs.div_ceil(self.group), outputs, scales);
        match RoundedMatrix::with_scales(&matrix, self.bits, self.group, &scales) {
            Ok(rounded) => Ok(rounded),
            Err(error) => bail!("a map cannot be rounded: {error}"),
        }
    }
}

struct StraightThrough(IntegerForm);

impl CustomOp2 for StraightThrough {
    fn name(&self) -> &'static str {
        "straight-through-rounding"
    }

    fn cpu_fwd(
        &self,
        weight: &CpuStorage,
        layout: &Layout,
        range: &CpuStorage,
        range_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (weight, range) = (tensor(weight, layout)?, tensor(range, range_layout)?);
        let rounded = self.0.rounded(&weight, &range)?.weight();
        let numbers = rounded.as_slice();
        let storage = match weight.dtype() {
            DType::F64 => CpuStorage::F64(numbers.to_vec()),
            _ => CpuStorage::F32(numbers.iter().map(|&x| x as f32).collect()),
        };
        Ok((storage, layout.shape().clone()))
    }

    /// With v = w/s and its level q: ∂ŵ/∂w = 1 and ∂ŵ/∂s = q − v within half a scale of the levels,
    /// 0 and q beyond.
    fn bwd(
        &self,
        weight: &Tensor,
        range: &Tensor,
        _: &Tensor,
        slopes: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (form, levels) = (self.0, self.0.levels());
        let rounded = form.rounded(weight, range)?;
        let inputs = weight.dim(1)?;
        let mut of_weights = host(slopes)?;
        let mut of_ranges = vec![0.0; range.elem_count()];
        let weights = host(weight)?;
        let groups = rounded.scales().nrows();
        for (at, slope) in of_weights.iter_mut().enumerate() {
            let (output, input) = (at / inputs, at % inputs);
            let scale = f64::from(rounded.scales()[(input / form.group, output)]);
            if scale == 0.0 {
                continue;
            }
            let level = f64::from(rounded.levels()[(input, output)]);
            let value = weights[at] / scale;
            let is_within = levels.covers(value);
            let by_scale = if is_within { level - value } else { level };
            of_ranges[output * groups + input / form.group] += *slope * by_scale / levels.lowest;
            if !is_within {
                *slope = 0.0;
            }
        }
        let like = |numbers: Vec<f64>, tensor: &Tensor| {
            Tensor::from_vec(numbers, tensor.shape(), tensor.device())?.to_dtype(tensor.dtype())
        };
        Ok((
            Some(like(of_weights, weight)?),
            Some(like(of_ranges, range)?),
        ))
    }
}

/// The numbers of a contiguous tensor.
fn tensor(storage: &CpuStorage, layout: &Layout) -> Result<Tensor> {
    let Some((from, to)) = layout.contiguous_offsets() else {
        bail!("a map must be contiguous");
    };
    let shape = layout.shape();
    match storage {
        CpuStorage::F32(all) => Tensor::from_slice(&all[from..to], shape, &Device::Cpu),
        CpuStorage::F64(all) => Tensor::from_slice(&all[from..to], shape, &Device::Cpu),
        _ => bail!("a map must be f32 or f64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a scale of 1/8 and 3 bits, levels −4 to 3: for each weight its level, and the slopes of
    /// its rounded value by the weight and by the scale.
    const CASES: [(f64, [f64; 3]); 6] = [
        (0.1, [1.0, 1.0, 0.2]),
        (-0.26, [-2.0, 1.0, 0.08]),
        (0.375, [3.0, 1.0, 0.0]),
        (0.5, [3.0, 0.0, 3.0]),
        (-0.54, [-4.0, 1.0, 0.32]),
        (-0.9, [-4.0, 0.0, -4.0]),
    ];

    #[test]
    fn weights_have_slopes_within_the_levels_and_ranges_beyond_them_too() {
        // Two outputs of 16 inputs; the second with twice the scale, of the other sign.
        let mut weights = vec![0.0; 32];
        for (at, (weight, _)) in CASES.into_iter().enumerate() {
            (weights[at], weights[16 + at]) = (weight, -2.0 * weight);
        }
        let weight = Tensor::from_vec(weights, (2, 16), &Device::Cpu).unwrap();
        let weight = Var::from_tensor(&weight).unwrap();
        // The lowest level −4 stands for −4 s.
        let range = Tensor::new(&[[-0.5], [1.0]], &Device::Cpu).unwrap();
        let range = Var::from_tensor(&range).unwrap();
        let form = IntegerForm { bits: 3, group: 16 };
        let own = range.clone();
        let rounded = Held::Integers { form, range }.applied(&weight).unwrap();
        let found = host(&rounded).unwrap();
        let slope = |at: usize| 1.0 + at as f64;
        let slopes = (0..32).map(slope).collect();
        let slopes = Tensor::from_vec(slopes, (2, 16), &Device::Cpu).unwrap();
        let store = (rounded * slopes).unwrap().sum_all().unwrap();
        let store = store.backward().unwrap();
        let [of_weights, of_range] = [&weight, &own].map(|v| host(store.get(v).unwrap()).unwrap());
        let mut by_scale = [0.0; 2];
        for (at, (_, [level, by_weight, own])) in CASES.into_iter().enumerate() {
            for (output, scale) in [0.125, -0.25].into_iter().enumerate() {
                let place = 16 * output + at;
                assert_eq!(found[place], scale * level);
                assert_eq!(of_weights[place], by_weight * slope(place));
                by_scale[output] += own * slope(place);
            }
        }
        for (found, by_scale) in of_range.into_iter().zip(by_scale) {
            assert!((found + by_scale / 4.0).abs() < 1e-12, "{found} {by_scale}");
        }
    }

    #[test]
    fn upper_halves_pass_every_slope() {
        let numbers = [1.0 + 1.0 / 512.0, -0.3, 1e-3];
        let weight = Var::from_tensor(&Tensor::new(&[numbers], &Device::Cpu).unwrap()).unwrap();
        let rounded = Held::Bf16.applied(&weight).unwrap();
        for (found, number) in host(&rounded).unwrap().into_iter().zip(numbers) {
            assert!((found / number - 1.0).abs() < 1.0 / 256.0);
            assert_eq!((found as f32).to_bits() & 0xFFFF, 0);
        }
        let store = rounded.sum_all().unwrap().backward().unwrap();
        assert_eq!(host(store.get(&weight).unwrap()).unwrap(), [1.0; 3]);
    }
}
