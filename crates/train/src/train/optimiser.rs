//! AdamW with parameter groups, and clipping of gradients.

use candle_core::backprop::GradStore;
use candle_core::{
    CpuStorage, D, DType, InplaceOp2, InplaceOp3, Layout, Storage, Tensor, WithDType,
};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use crate::nn::gpu::adamw;
use crate::nn::{Group, Parameter, SequenceModel};
use crate::train::TrainError;

/// Elements that one thread takes at a time.
const CHUNK: usize = 1 << 14;

/// What PyTorch adds to the norm before it divides by it (`torch.nn.utils.clip_grad_norm_`).
const CLIP_EPSILON: f64 = 1e-6;

/// Settings of [`AdamW`]; the defaults of the last three are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWSettings {
    /// Learning rate of the groups `Plain` and `NoDecay`.
    pub lr: f64,
    /// Learning rate of the group `Poles`.
    pub lr_dynamics: f64,
    /// Learning rate of the group `Dynamics`, the steps Δ.
    pub lr_steps: f64,
    /// Decay of the group `Plain`.
    pub weight_decay: f64,
    /// Decay of the group `Poles`; the others do not decay.
    pub weight_decay_poles: f64,
    /// Memory of the mean of the gradients, 0.9.
    pub beta1: f64,
    /// Memory of the mean of their squares, 0.999.
    pub beta2: f64,
    /// What is added to the root of the second moment, 1e-8.
    pub epsilon: f64,
}

impl AdamWSettings {
    /// The rate and the decay of a group.
    pub(super) fn of(&self, group: Group) -> (f64, f64) {
        match group {
            Group::Dynamics => (self.lr_steps, 0.0),
            Group::Poles => (self.lr_dynamics, self.weight_decay_poles),
            Group::Plain => (self.lr, self.weight_decay),
            Group::NoDecay => (self.lr, 0.0),
        }
    }
}

/// Adam with decoupled weight decay, as `torch.optim.AdamW` computes it:
///
/// ```text
/// θ ← (1 − η γ) θ,   m ← m + (1 − β₁)(g − m),   v ← β₂ v + (1 − β₂) g²
/// θ ← θ − η/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)
/// ```
///
/// with rate η and decay γ of the parameter's group; where it has a scale s, g is s times the gradient
/// and η of the last line s times the rate. On the CPU tensors are updated in place, on
/// all cores; the result does not depend on their number.
///
/// # References
/// Loshchilov and Hutter 2019, "Decoupled weight decay regularization", Algorithm 2.
#[derive(Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    slots: Vec<Slot>,
    /// On a GPU, once it has taken a step.
    runs: Vec<Run>,
    step: u64,
}

/// A parameter with its moments, all of one shape and type.
#[derive(Debug)]
struct Slot {
    parameter: Parameter,
    first: Tensor,
    second: Tensor,
}

/// Parameters that share rate and decay, whose moments stand in one tensor each: on a GPU the number
/// of operations counts, not their size. The moments of their slots are parts of these.
#[derive(Debug)]
struct Run {
    slots: Vec<usize>,
    first: Tensor,
    second: Tensor,
    scale: Option<Tensor>,
}

impl AdamW {
    /// An optimiser with moments of zero.
    ///
    /// # Errors
    /// candle's, when memory cannot be had.
    pub fn new(parameters: &[Parameter], settings: AdamWSettings) -> candle_core::Result<Self> {
        let slot = |parameter: &Parameter| {
            Ok(Slot {
                parameter: parameter.clone(),
                first: parameter.var.zeros_like()?,
                second: parameter.var.zeros_like()?,
            })
        };
        Ok(Self {
            settings,
            slots: parameters
                .iter()
                .map(slot)
                .collect::<candle_core::Result<_>>()?,
            runs: Vec::new(),
            step: 0,
        })
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// One step. `rate` multiplies the rate of every group, `scale` every gradient.
    ///
    /// # Errors
    /// candle's, when a gradient has another shape or type than its parameter.
    pub fn step(
        &mut self,
        gradients: &Gradients,
        rate: f64,
        scale: f64,
    ) -> candle_core::Result<()> {
        self.step += 1;
        let updates = Updates {
            settings: self.settings,
            step: self.step as i32,
            rate,
            scale,
        };
        #[cfg(feature = "cuda")]
        if self.slots.iter().all(|slot| adamw::holds(&slot.first)) {
            return self.step_at_once(gradients, updates);
        }
        if self.slots.iter().any(|slot| !slot.first.device().is_cpu()) {
            return self.step_by_runs(gradients, updates);
        }
        // Tensors side by side: most are too small to be worth a thread each.
        let pairs = self.slots.par_iter_mut().zip(&gradients.0);
        pairs.try_for_each(|(slot, gradient)| {
            let update = updates.of(slot.parameter.group);
            match slot.parameter.scale {
                None => update.in_place(slot, gradient),
                Some(_) => update.by_tensors(slot, gradient),
            }
        })
    }

    /// By kernels of our own, in place.
    #[cfg(feature = "cuda")]
    fn step_at_once(&self, gradients: &Gradients, updates: Updates) -> candle_core::Result<()> {
        let mut pieces = Vec::new();
        for (slot, gradient) in self.slots.iter().zip(&gradients.0) {
            let update = updates.of(slot.parameter.group);
            pieces.push(adamw::Piece {
                parameter: slot.parameter.var.as_tensor(),
                gradient,
                moments: [&slot.first, &slot.second],
                scale: slot.parameter.scale.as_ref(),
                keep: update.keep,
                step_size: update.step_size,
            });
        }
        let shared = updates.of(Group::Plain);
        adamw::step(
            &pieces,
            adamw::Shared {
                beta1: shared.beta1,
                beta2: shared.beta2,
                root: shared.root,
                epsilon: shared.epsilon,
                factor: shared.scale,
            },
        )
    }

    fn step_by_runs(&mut self, gradients: &Gradients, updates: Updates) -> candle_core::Result<()> {
        if self.runs.is_empty() {
            self.runs = runs(&self.slots)?;
        }
        for run in &mut self.runs {
            let group = self.slots[run.slots[0]].parameter.group;
            let gradients = run.slots.iter().map(|&at| &gradients.0[at]);
            let vars = run
                .slots
                .iter()
                .map(|&at| self.slots[at].parameter.var.as_tensor());
            let found = updates.of(group).next(Operands {
                parameter: &joined(vars)?,
                gradient: &joined(gradients)?,
                moments: [&run.first, &run.second],
                scale: run.scale.as_ref(),
            })?;
            let [parameters, first, second] = found;
            let mut start = 0;
            for &at in &run.slots {
                let slot = &mut self.slots[at];
                let shape = slot.first.shape().clone();
                let part = |all: &Tensor| all.narrow(0, start, shape.elem_count())?.reshape(&shape);
                (slot.first, slot.second) = (part(&first)?, part(&second)?);
                slot.parameter.var.set(&part(&parameters)?)?;
                start += shape.elem_count();
            }
            (run.first, run.second) = (first, second);
        }
        Ok(())
    }

    /// Names with first and second moments, in the order of the parameters.
    pub fn moments(&self) -> impl Iterator<Item = (&str, &Tensor, &Tensor)> {
        let slots = self.slots.iter();
        slots.map(|slot| (slot.parameter.name.as_str(), &slot.first, &slot.second))
    }

    /// Puts back what [`AdamW::steps`] and [`AdamW::moments`] gave, in the same order.
    pub fn restore(&mut self, step: u64, moments: impl IntoIterator<Item = (Tensor, Tensor)>) {
        self.step = step;
        self.runs.clear();
        for (slot, (first, second)) in self.slots.iter_mut().zip(moments) {
            (slot.first, slot.second) = (first, second);
        }
    }
}

/// Slots with the same rate and decay, all scaled or none.
fn runs(slots: &[Slot]) -> candle_core::Result<Vec<Run>> {
    let kind = |slot: &Slot| {
        let parameter = &slot.parameter;
        (
            parameter.group,
            parameter.scale.is_some(),
            slot.first.dtype(),
        )
    };
    let mut kinds: Vec<(_, Vec<usize>)> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        match kinds.iter_mut().find(|(other, _)| *other == kind(slot)) {
            Some((_, same)) => same.push(at),
            None => kinds.push((kind(slot), vec![at])),
        }
    }
    let run = |(_, same): (_, Vec<usize>)| {
        let each = || same.iter().map(|&at| &slots[at]);
        let scales: Option<Vec<&Tensor>> =
            each().map(|slot| slot.parameter.scale.as_ref()).collect();
        Ok(Run {
            first: joined(each().map(|slot| &slot.first))?,
            second: joined(each().map(|slot| &slot.second))?,
            scale: scales
                .map(|scales| joined(scales.into_iter()))
                .transpose()?,
            slots: same,
        })
    };
    kinds.into_iter().map(run).collect()
}

/// The numbers of all in a row.
fn joined<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> candle_core::Result<Tensor> {
    let flat: Vec<Tensor> = tensors.map(Tensor::flatten_all).collect::<Result<_, _>>()?;
    Ok(Tensor::cat(&flat, 0)?.detach())
}

/// The gradients of all parameters, in their order, each contiguous.
#[derive(Debug)]
pub struct Gradients(Vec<Tensor>);

impl Gradients {
    /// Takes those of a network out of what the backward pass left, scaled where the parameter is.
    ///
    /// # Errors
    /// [`TrainError::NoGradient`] for a parameter that got none: some ops drop gradients without
    /// a word, and what lies before them would never be trained.
    pub fn of(network: &dyn SequenceModel, store: &GradStore) -> Result<Self, TrainError> {
        Self::scaled(network.parameters(), network.gradients(store)?)
    }

    /// The same for parameters that are tensors of their own in the graph.
    ///
    /// # Errors
    /// As [`Gradients::of`].
    pub fn collect(parameters: &[Parameter], store: &GradStore) -> Result<Self, TrainError> {
        let found = parameters.iter();
        let found = found.map(|parameter| store.get(parameter.var.as_tensor()).cloned());
        Self::scaled(parameters, found.collect())
    }

    fn scaled(parameters: &[Parameter], found: Vec<Option<Tensor>>) -> Result<Self, TrainError> {
        let one = |(parameter, found): (&Parameter, Option<Tensor>)| match found {
            Some(gradient) => Ok(match &parameter.scale {
                None => gradient.contiguous()?,
                Some(scale) => (gradient * scale)?.contiguous()?,
            }),
            None => Err(TrainError::NoGradient {
                parameter: parameter.name.clone(),
            }),
        };
        let pairs = parameters.iter().zip(found);
        Ok(Self(pairs.map(one).collect::<Result<_, _>>()?))
    }

    /// The Euclidean norm of all of them together, summed in double precision in a fixed order.
    ///
    /// # Errors
    /// candle's.
    pub fn norm(&self) -> candle_core::Result<f64> {
        norm(self.0.iter())
    }

    /// The same of those that an optimiser with these settings moves: a parameter with a rate of zero
    /// is not to be clipped for.
    ///
    /// # Errors
    /// candle's.
    pub fn norm_of_moved(
        &self,
        parameters: &[Parameter],
        settings: &AdamWSettings,
    ) -> candle_core::Result<f64> {
        let pairs = self.0.iter().zip(parameters);
        let moved = pairs.filter(|(_, parameter)| settings.of(parameter.group).0 > 0.0);
        norm(moved.map(|(gradient, _)| gradient))
    }
}

/// The factor that brings gradients of this norm down to `most`; 1 where they are below, or where
/// there is no limit.
pub fn clip_factor(norm: f64, most: Option<f64>) -> f64 {
    most.map_or(1.0, |most| (most / (norm + CLIP_EPSILON)).min(1.0))
}

/// Host memory is summed there; what lies on a device is summed there, and read at once.
fn norm<'a>(gradients: impl Iterator<Item = &'a Tensor>) -> candle_core::Result<f64> {
    let (mut sum, mut elsewhere) = (0.0, Vec::new());
    for gradient in gradients {
        match host_sum_of_squares(gradient) {
            Some(squares) => sum += squares,
            None => elsewhere.push(gradient),
        }
    }
    #[cfg(feature = "cuda")]
    if !elsewhere.is_empty() && elsewhere.iter().all(|gradient| adamw::holds(gradient)) {
        let norm = adamw::norm(&elsewhere)?;
        return Ok((sum + norm * norm).sqrt());
    }
    if !elsewhere.is_empty() {
        sum += sum_of_squares(&elsewhere)?;
    }
    Ok(sum.sqrt())
}

/// In double precision; `None` of what does not lie on the host, in one piece.
fn host_sum_of_squares(tensor: &Tensor) -> Option<f64> {
    let (storage, layout) = tensor.storage_and_layout();
    let (from, to) = layout.contiguous_offsets()?;
    match &*storage {
        Storage::Cpu(CpuStorage::F32(all)) => {
            Some(all[from..to].iter().map(|&x| f64::from(x).powi(2)).sum())
        }
        Storage::Cpu(CpuStorage::F64(all)) => Some(all[from..to].iter().map(|x| x * x).sum()),
        _ => None,
    }
}

/// Of all of them, by candle's operations: the host waits once for the device.
fn sum_of_squares(tensors: &[&Tensor]) -> candle_core::Result<f64> {
    let mut sum = Tensor::zeros((), DType::F64, tensors[0].device())?;
    for same in tensors.chunk_by(|a, b| a.dtype() == b.dtype()) {
        let all = joined(same.iter().copied())?.to_dtype(DType::F64)?;
        sum = (sum + all.sqr()?.sum(D::Minus1)?)?;
    }
    sum.to_scalar()
}

/// What the updates of one step are made from.
#[derive(Debug, Clone, Copy)]
struct Updates {
    settings: AdamWSettings,
    /// From 1.
    step: i32,
    rate: f64,
    scale: f64,
}

impl Updates {
    fn of(&self, group: Group) -> Update {
        let Self {
            settings,
            step,
            rate,
            scale,
        } = *self;
        let (lr, decay) = settings.of(group);
        let AdamWSettings { beta1, beta2, .. } = settings;
        Update {
            beta1,
            beta2,
            scale,
            keep: 1.0 - rate * lr * decay,
            step_size: rate * lr / (1.0 - beta1.powi(step)),
            root: (1.0 - beta2.powi(step)).sqrt(),
            epsilon: settings.epsilon,
        }
    }
}

/// Of one shape and type.
struct Operands<'a> {
    parameter: &'a Tensor,
    gradient: &'a Tensor,
    moments: [&'a Tensor; 2],
    scale: Option<&'a Tensor>,
}

/// The numbers of one update of one tensor.
#[derive(Debug, Clone, Copy)]
struct Update {
    beta1: f64,
    beta2: f64,
    scale: f64,
    keep: f64,
    step_size: f64,
    root: f64,
    epsilon: f64,
}

impl Update {
    fn in_place(&self, slot: &Slot, gradient: &Tensor) -> candle_core::Result<()> {
        slot.first.inplace_op2(gradient, &FirstMoment(*self))?;
        slot.second.inplace_op2(gradient, &SecondMoment(*self))?;
        let var = slot.parameter.var.as_tensor();
        var.inplace_op3(&slot.first, &slot.second, &Step(*self))
    }

    /// The same by candle's ops, for scaled rates.
    fn by_tensors(&self, slot: &mut Slot, gradient: &Tensor) -> candle_core::Result<()> {
        let var = &slot.parameter.var;
        let [parameter, first, second] = self.next(Operands {
            parameter: &var.as_tensor().detach(),
            gradient,
            moments: [&slot.first, &slot.second],
            scale: slot.parameter.scale.as_ref(),
        })?;
        (slot.first, slot.second) = (first, second);
        var.set(&parameter)
    }

    /// Parameter and moments after the step.
    fn next(&self, of: Operands<'_>) -> candle_core::Result<[Tensor; 3]> {
        let gradient = (of.gradient * self.scale)?;
        let [first, second] = of.moments;
        let first = (first + ((&gradient - first)? * (1.0 - self.beta1))?)?;
        let second = ((second * self.beta2)? + (gradient.sqr()? * (1.0 - self.beta2))?)?;
        let root = ((second.sqrt()? / self.root)? + self.epsilon)?;
        let mut move_by = ((&first / root)? * self.step_size)?;
        if let Some(scale) = of.scale {
            move_by = (move_by * scale)?;
        }
        Ok([((of.parameter * self.keep)? - move_by)?, first, second])
    }
}

struct FirstMoment(Update);
struct SecondMoment(Update);
struct Step(Update);

impl InplaceOp2 for FirstMoment {
    fn name(&self) -> &'static str {
        "adamw-first-moment"
    }

    fn cpu_fwd(
        &self,
        m: &mut CpuStorage,
        at: &Layout,
        g: &CpuStorage,
        g_at: &Layout,
    ) -> candle_core::Result<()> {
        fn run<T: Real>(m: &mut [T], g: &[T], update: Update) {
            let (weight, scale) = (T::from_f64(1.0 - update.beta1), T::from_f64(update.scale));
            pairs(m, g, |m, g| m + weight * (g * scale - m));
        }
        match (m, g) {
            (CpuStorage::F32(m), CpuStorage::F32(g)) => {
                run(part_mut(m, at)?, part(g, g_at)?, self.0)
            }
            (CpuStorage::F64(m), CpuStorage::F64(g)) => {
                run(part_mut(m, at)?, part(g, g_at)?, self.0)
            }
            _ => return Err(other_type(self.name())),
        }
        Ok(())
    }
}

impl InplaceOp2 for SecondMoment {
    fn name(&self) -> &'static str {
        "adamw-second-moment"
    }

    fn cpu_fwd(
        &self,
        v: &mut CpuStorage,
        at: &Layout,
        g: &CpuStorage,
        g_at: &Layout,
    ) -> candle_core::Result<()> {
        fn run<T: Real>(v: &mut [T], g: &[T], update: Update) {
            let (keep, weight) = (T::from_f64(update.beta2), T::from_f64(1.0 - update.beta2));
            let scale = T::from_f64(update.scale);
            pairs(v, g, |v, g| v * keep + weight * (g * scale) * (g * scale));
        }
        match (v, g) {
            (CpuStorage::F32(v), CpuStorage::F32(g)) => {
                run(part_mut(v, at)?, part(g, g_at)?, self.0)
            }
            (CpuStorage::F64(v), CpuStorage::F64(g)) => {
                run(part_mut(v, at)?, part(g, g_at)?, self.0)
            }
            _ => return Err(other_type(self.name())),
        }
        Ok(())
    }
}

impl InplaceOp3 for Step {
    fn name(&self) -> &'static str {
        "adamw-step"
    }

    fn cpu_fwd(
        &self,
        p: &mut CpuStorage,
        at: &Layout,
        m: &CpuStorage,
        m_at: &Layout,
        v: &CpuStorage,
        v_at: &Layout,
    ) -> candle_core::Result<()> {
        match (p, m, v) {
            (CpuStorage::F32(p), CpuStorage::F32(m), CpuStorage::F32(v)) => {
                step(part_mut(p, at)?, part(m, m_at)?, part(v, v_at)?, self.0);
            }
            (CpuStorage::F64(p), CpuStorage::F64(m), CpuStorage::F64(v)) => {
                step(part_mut(p, at)?, part(m, m_at)?, part(v, v_at)?, self.0);
            }
            _ => return Err(other_type(self.name())),
        }
        Ok(())
    }
}

fn step<T: Real>(p: &mut [T], m: &[T], v: &[T], update: Update) {
    let (keep, step_size) = (T::from_f64(update.keep), T::from_f64(update.step_size));
    let (root, epsilon) = (T::from_f64(update.root), T::from_f64(update.epsilon));
    let chunks = p.par_chunks_mut(CHUNK).zip(m.par_chunks(CHUNK));
    chunks.zip(v.par_chunks(CHUNK)).for_each(|((p, m), v)| {
        for ((p, m), v) in p.iter_mut().zip(m).zip(v) {
            *p = *p * keep - step_size * *m / (v.root() / root + epsilon);
        }
    });
}

/// x ← f(x, y), element by element.
fn pairs<T: Real>(x: &mut [T], y: &[T], f: impl Fn(T, T) -> T + Sync) {
    let chunks = x.par_chunks_mut(CHUNK).zip(y.par_chunks(CHUNK));
    chunks.for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, &y)| *x = f(*x, y)));
}

/// The number types that are trained in.
trait Real: WithDType {
    fn root(self) -> Self;
}

impl Real for f32 {
    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Real for f64 {
    fn root(self) -> Self {
        self.sqrt()
    }
}

fn part<'a, T>(all: &'a [T], layout: &Layout) -> candle_core::Result<&'a [T]> {
    let (from, to) = contiguous(layout)?;
    Ok(&all[from..to])
}

fn part_mut<'a, T>(all: &'a mut [T], layout: &Layout) -> candle_core::Result<&'a mut [T]> {
    let (from, to) = contiguous(layout)?;
    Ok(&mut all[from..to])
}

fn contiguous(layout: &Layout) -> candle_core::Result<(usize, usize)> {
    layout
        .contiguous_offsets()
        .ok_or_else(|| candle_core::Error::Msg("a parameter is not contiguous".to_string()))
}

fn other_type(op: &str) -> candle_core::Error {
    candle_core::Error::Msg(format!(
        "{op}: parameter, gradient and moments must all be f32 or all f64"
    ))
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    /// Odd, and more than one chunk.
    const COUNT: usize = 2 * CHUNK + 77;

    #[test]
    fn norms_on_a_device_are_those_on_the_host() {
        let tensors = [DType::F32, DType::F64].map(|dtype| slot(dtype).first);
        let on_device: Vec<&Tensor> = tensors.iter().collect();
        let expected = norm(tensors.iter()).unwrap();
        let found = sum_of_squares(&on_device).unwrap().sqrt();
        assert!(
            (found - expected).abs() < 1e-12 * expected,
            "{found} {expected}"
        );
        // What lies on the host in pieces goes the same way.
        let turned = slot(DType::F64).first.narrow(0, 0, 60).unwrap();
        let turned = turned.reshape((20, 3)).unwrap().t().unwrap();
        let whole = turned.contiguous().unwrap();
        let pair = |tensor: &Tensor| norm([tensor].into_iter()).unwrap();
        assert!(host_sum_of_squares(&turned).is_none());
        assert!((pair(&turned) - pair(&whole)).abs() < 1e-15);
    }

    fn slot(dtype: DType) -> Slot {
        let values = |scale: f64| {
            let values: Vec<f64> = (0..COUNT)
                .map(|i| scale * (i as f64 * 0.37).sin())
                .collect();
            let tensor = Tensor::from_vec(values, COUNT, &Device::Cpu).unwrap();
            tensor.to_dtype(dtype).unwrap()
        };
        Slot {
            parameter: Parameter {
                name: "p".to_string(),
                var: Var::from_tensor(&values(1.0)).unwrap(),
                group: Group::Plain,
                scale: None,
            },
            first: values(0.1),
            second: values(0.3).sqr().unwrap(),
        }
    }

    #[test]
    fn the_loops_and_the_tensor_ops_agree() {
        let update = Update {
            beta1: 0.9,
            beta2: 0.999,
            scale: 0.5,
            keep: 0.99,
            step_size: 0.02,
            root: 0.8,
            epsilon: 1e-8,
        };
        for (dtype, tolerance) in [(DType::F64, 1e-15), (DType::F32, 1e-6)] {
            let (one, mut other) = (slot(dtype), slot(dtype));
            let gradient = (one.parameter.var.as_tensor() * 0.7).unwrap();
            update.in_place(&one, &gradient).unwrap();
            update.by_tensors(&mut other, &gradient).unwrap();
            let tensors = |slot: &Slot| {
                let p = slot.parameter.var.as_tensor().clone();
                [p, slot.first.clone(), slot.second.clone()]
            };
            for (found, expected) in tensors(&one).iter().zip(tensors(&other)) {
                let worst = (found - expected)
                    .unwrap()
                    .abs()
                    .unwrap()
                    .max_all()
                    .unwrap();
                let worst: f64 = worst.to_dtype(DType::F64).unwrap().to_scalar().unwrap();
                assert!(worst <= tolerance, "{dtype:?} {worst}");
            }
        }
    }

    /// Of four groups, one of them scaled, with sizes from one number on.
    fn parameters() -> Vec<Parameter> {
        let groups = [Group::Plain, Group::Poles, Group::Dynamics, Group::NoDecay];
        let one = |at: usize| {
            let count = [1, 6, 4][at % 3];
            let values: Vec<f64> = (0..count).map(|i| ((7 * at + i) as f64).sin()).collect();
            let tensor = Tensor::from_vec(values, (count.div_ceil(2), count.min(2)), &Device::Cpu);
            let tensor = tensor.unwrap();
            let group = groups[at % 4];
            Parameter {
                name: at.to_string(),
                scale: (group == Group::Poles).then(|| (&tensor * 0.3).unwrap()),
                var: Var::from_tensor(&tensor).unwrap(),
                group,
            }
        };
        (0..10).map(one).collect()
    }

    #[test]
    fn parameters_in_runs_move_as_single_ones_do() {
        let settings = AdamWSettings {
            lr: 0.01,
            lr_dynamics: 0.02,
            lr_steps: 0.03,
            weight_decay: 0.1,
            weight_decay_poles: 0.2,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        };
        let sets = [parameters(), parameters()];
        let [mut single, mut joined] = [0, 1].map(|at| AdamW::new(&sets[at], settings).unwrap());
        for step in 1..=4 {
            let gradient = |p: &Parameter| (p.var.as_tensor().detach() * f64::from(step)).unwrap();
            let gradients = Gradients(sets[0].iter().map(gradient).collect());
            single.step(&gradients, 0.7, 0.5).unwrap();
            joined.step += 1;
            let updates = Updates {
                settings,
                step,
                rate: 0.7,
                scale: 0.5,
            };
            joined.step_by_runs(&gradients, updates).unwrap();
            if step == 2 {
                let kept: Vec<(Tensor, Tensor)> = joined
                    .moments()
                    .map(|(_, first, second)| (first.clone(), second.clone()))
                    .collect();
                joined.restore(2, kept);
            }
        }
        assert_eq!(joined.runs.len(), 4);
        let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let all = |set: &[Parameter], optimiser: &AdamW| -> Vec<f64> {
            let vars = set.iter().flat_map(|p| flat(p.var.as_tensor()));
            let moments = optimiser.moments();
            vars.chain(moments.flat_map(|(_, m, v)| [flat(m), flat(v)].concat()))
                .collect()
        };
        let pairs = all(&sets[0], &single)
            .into_iter()
            .zip(all(&sets[1], &joined));
        for (expected, found) in pairs {
            assert!((expected - found).abs() < 1e-15, "{expected} {found}");
        }
    }

    #[test]
    fn norms_are_clipped_only_from_above() {
        assert_eq!(clip_factor(3.0, None), 1.0);
        assert_eq!(clip_factor(0.0, Some(1.0)), 1.0);
        assert_eq!(clip_factor(0.5, Some(1.0)), 1.0);
        assert_eq!(clip_factor(4.0, Some(1.0)), 1.0 / (4.0 + CLIP_EPSILON));
        let halves = Tensor::full(0.5f32, (2, 8), &Device::Cpu).unwrap();
        let some = halves.narrow(1, 1, 4).unwrap();
        for tensor in [some.contiguous().unwrap(), some] {
            assert_eq!(Gradients(vec![tensor]).norm().unwrap(), 2f64.sqrt());
        }
    }
}
