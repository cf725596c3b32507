//! Both forms of a network against each other and against differences.

use candle_core::Var;
use hankelite::model::Placement;
use hankelite_kernels::{GeluForm, Mixing};

use super::*;
use crate::nn::Penalty;
use crate::nn::plan::{BlockPlan, NormKind, NormPlan, SharedPlan};

const BATCH: usize = 5;
const LENGTH: usize = 37;

/// A smooth number for every index.
fn number(seed: f64, index: usize) -> f64 {
    (12.9898 * index as f64 + seed).sin()
}

fn block(modes: usize, norm: Option<(NormKind, Placement)>, mixing: Mixing) -> BlockPlan {
    BlockPlan {
        modes,
        may_grow: true,
        bidirectional: false,
        shared: None,
        gelu: GeluForm::Exact,
        mixing,
        norm: norm.map(|(kind, placement)| NormPlan {
            kind,
            placement,
            epsilon: 1e-5,
        }),
        inner_mask: Vec::new(),
        outer_mask: Vec::new(),
        running: None,
        penalty: None,
    }
}

/// Every kind of block, each twice in a row, with and without dropout and a way back.
fn cases(channels: usize) -> Vec<Vec<BlockPlan>> {
    let mut cases = vec![vec![block(3, None, Mixing::None)]];
    for modes in [2, 11] {
        for kind in [NormKind::Layer, NormKind::Batch] {
            for placement in [Placement::Pre, Placement::Post] {
                let mixings = [
                    Mixing::Plain,
                    Mixing::Gated,
                    Mixing::Activated,
                    Mixing::Response,
                ];
                for mixing in mixings {
                    let plain = block(modes, Some((kind, placement)), mixing);
                    let mut other = plain.clone();
                    other.gelu = GeluForm::Tanh;
                    other.bidirectional = modes == 11;
                    let mask = |seed: f64| -> Vec<f64> {
                        let all = (0..BATCH * channels).map(|i| number(seed, i));
                        all.map(|x| if x > 0.6 { 0.0 } else { 1.25 }).collect()
                    };
                    other.inner_mask = mask(0.3);
                    other.outer_mask = mask(0.8);
                    cases.push(vec![plain, other]);
                }
            }
        }
    }
    cases
}

struct Inputs {
    x: Var,
    modes: Var,
    parameters: Var,
}

impl Inputs {
    fn tensors(&self) -> NetworkTensors<'_> {
        NetworkTensors {
            steps: &self.x,
            modes: &self.modes,
            parameters: &self.parameters,
        }
    }
}

fn inputs(plans: &[BlockPlan], channels: usize, growing: bool) -> Result<Inputs> {
    let var = |values: Vec<f64>, shape: &[usize]| {
        Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)
    };
    let mut modes = Vec::new();
    for plan in plans {
        let count = channels * plan.modes;
        for direction in 0..plan.mode_numbers(channels) / (4 * count) {
            let seed = direction as f64;
            let decay = |i: usize| -0.3 - 0.29 * number(seed, i);
            // The first mode of a channel may grow.
            let sign = |i: usize| {
                if growing && i.is_multiple_of(plan.modes) {
                    -1.0
                } else {
                    1.0
                }
            };
            modes.extend((0..count).map(|i| sign(i) * decay(i)));
            modes.extend((0..count).map(|i| 1.5 * number(seed + 1.0, i)));
            modes.extend((0..2 * count).map(|i| number(seed + 2.0, i) / plan.modes as f64));
        }
    }
    let parameters: usize = plans.iter().map(|plan| plan.parameters(channels)).sum();
    let parameters: Vec<f64> = (0..parameters)
        .map(|i| 0.3 + 0.7 * number(4.0, i))
        .collect();
    let count = BATCH * LENGTH * channels;
    let (modes_len, parameters_len) = (modes.len(), parameters.len());
    Ok(Inputs {
        x: var(
            (0..count).map(|i| number(5.0, i)).collect(),
            &[BATCH, LENGTH, channels],
        )?,
        modes: var(modes, &[modes_len])?,
        parameters: var(parameters, &[parameters_len])?,
    })
}

type Form = fn(&Inputs, &Arc<NetworkPlan>) -> Result<Tensor>;

/// Pooled where dropout is on, so that both outputs are tried.
fn pooling(plans: &[BlockPlan]) -> Option<Vec<f64>> {
    let pooled = plans.iter().any(|plan| !plan.inner_mask.is_empty());
    pooled.then(|| (0..BATCH * LENGTH).map(|i| number(7.0, i)).collect())
}

fn whole(blocks: Vec<BlockPlan>, channels: usize) -> Arc<NetworkPlan> {
    Arc::new(NetworkPlan {
        channels,
        encoding: Encoding::None,
        pooling: pooling(&blocks),
        layers: false,
        training: true,
        blocks,
    })
}

/// Everything that a network gives, flat.
fn flat(found: &NetworkOutput) -> Result<Tensor> {
    let mut parts = vec![found.out.flatten_all()?];
    for layer in &found.layers {
        parts.push(layer.flatten_all()?);
    }
    parts.extend(found.penalties.clone());
    Tensor::cat(&parts, 0)
}

fn fast(inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Tensor> {
    flat(&network(inputs.tensors(), plan, &Workspaces::new())?)
}

fn slow(inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Tensor> {
    flat(&plain::network(inputs.tensors(), plan)?)
}

/// Plans that give out the outputs of all blocks, a number for the filters, or both.
fn with_extras(cases: Vec<Vec<BlockPlan>>, channels: usize) -> Vec<Arc<NetworkPlan>> {
    let requested = |(index, blocks): (usize, Vec<BlockPlan>)| {
        let mut plan = NetworkPlan {
            layers: index % 3 != 1,
            ..(*whole(blocks, channels)).clone()
        };
        let penalty = match index % 3 {
            0 => None,
            1 => Some(Penalty::Measure),
            _ => Some(Penalty::FilterNorm),
        };
        plan.blocks
            .iter_mut()
            .for_each(|block| block.penalty = penalty);
        Arc::new(plan)
    };
    cases.into_iter().enumerate().map(requested).collect()
}

/// A weighted sum of the outputs.
fn loss(form: Form, inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Tensor> {
    let out = form(inputs, plan)?;
    let weights: Vec<f64> = (0..out.elem_count()).map(|i| number(6.0, i)).collect();
    let weights = Tensor::from_vec(weights, out.shape(), &Device::Cpu)?;
    (out * weights)?.sum_all()
}

fn gradients(form: Form, inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Vec<f64>> {
    let store = loss(form, inputs, plan)?.backward()?;
    let mut all = Vec::new();
    for var in [&inputs.x, &inputs.modes, &inputs.parameters] {
        let gradient = store.get(var).expect("every input has a gradient");
        all.extend(gradient.flatten_all()?.to_vec1::<f64>()?);
    }
    Ok(all)
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let far = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs() / (1.0 + b.abs()));
    far.fold(0.0, f64::max)
}

#[test]
fn both_forms_agree_in_values_and_gradients() -> Result<()> {
    for channels in [3, 16, 21] {
        for (index, plans) in cases(channels).into_iter().enumerate() {
            let mut plan = whole(plans, channels);
            for growing in [false, true] {
                let blocks = &mut Arc::make_mut(&mut plan).blocks;
                blocks.iter_mut().for_each(|block| block.may_grow = growing);
                let inputs = inputs(&plan.blocks, channels, growing)?;
                let flat = |x: Tensor| x.flatten_all()?.to_vec1::<f64>();
                let values = (flat(fast(&inputs, &plan)?)?, flat(slow(&inputs, &plan)?)?);
                let far = worst(&values.0, &values.1);
                assert!(
                    far < 1e-10,
                    "{channels} case {index}: values differ by {far:e}"
                );
                let (a, b) = (
                    gradients(fast, &inputs, &plan)?,
                    gradients(slow, &inputs, &plan)?,
                );
                let far = worst(&a, &b);
                assert!(
                    far < 1e-8,
                    "{channels} case {index}: gradients differ by {far:e}"
                );
            }
        }
    }
    Ok(())
}

/// Two layers whose channels share modes, with D a diagonal or a matrix, in one or both directions.
#[test]
fn both_forms_agree_where_channels_share_modes() -> Result<()> {
    for (channels, dense, bidirectional) in [(3, false, false), (5, true, false), (4, false, true)]
    {
        let norm = Some((NormKind::Layer, Placement::Pre));
        let mut block = block(3, norm, Mixing::Gated);
        block.may_grow = false;
        block.bidirectional = bidirectional;
        block.shared = Some(SharedPlan { dense });
        let plan = whole(vec![block.clone(), block], channels);
        let (modes, parameters) = plan.numbers();
        let var = |values: Vec<f64>, shape: &[usize]| {
            Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)
        };
        // Re z of the three modes of a layer, then Im z.
        let exponent = |i: usize| match i % 6 / 3 {
            0 => -0.3 - 0.29 * number(0.0, i),
            _ => 1.5 * number(1.0, i),
        };
        let numbers = |count: usize, seed: f64| (0..count).map(|i| number(seed, i)).collect();
        let inputs = Inputs {
            x: var(
                numbers(BATCH * LENGTH * channels, 5.0),
                &[BATCH, LENGTH, channels],
            )?,
            modes: var((0..modes).map(exponent).collect(), &[modes])?,
            parameters: var(numbers(parameters, 4.0), &[parameters])?,
        };
        let flat = |x: Tensor| x.flatten_all()?.to_vec1::<f64>();
        let values = (flat(fast(&inputs, &plan)?)?, flat(slow(&inputs, &plan)?)?);
        let far = worst(&values.0, &values.1);
        assert!(far < 1e-10, "{channels}: values differ by {far:e}");
        let [a, b] = [fast, slow].map(|form: Form| gradients(form, &inputs, &plan));
        let far = worst(&a?, &b?);
        assert!(far < 1e-8, "{channels}: gradients differ by {far:e}");
    }
    Ok(())
}

#[test]
fn gradients_agree_with_differences() -> Result<()> {
    let channels = 5;
    let plain = cases(channels).into_iter();
    let plain = plain.map(|plans| whole(plans, channels));
    // The input of a layer counts as a constant in the measure, so differences do not see it.
    let extras = with_extras(cases(channels), channels).into_iter();
    let extras = extras.filter(|plan| plan.blocks[0].penalty != Some(Penalty::Measure));
    for (index, plan) in plain.chain(extras.take(6)).enumerate() {
        let inputs = inputs(&plan.blocks, channels, index % 2 == 0)?;
        let gradient = gradients(fast, &inputs, &plan)?;
        let mut start = 0;
        for var in [&inputs.x, &inputs.modes, &inputs.parameters] {
            let before = var.flatten_all()?.to_vec1::<f64>()?;
            // A few directions of each input; every entry has its part in each.
            for seed in 0..3 {
                let direction = |i: usize| number(f64::from(seed), i);
                let h = 1e-5;
                let at = |steps: f64| -> Result<f64> {
                    let moved = before.iter().enumerate();
                    let moved: Vec<f64> =
                        moved.map(|(i, v)| v + steps * h * direction(i)).collect();
                    var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu)?)?;
                    loss(fast, &inputs, &plan)?.to_scalar::<f64>()
                };
                let central = |m: f64| Ok::<f64, candle_core::Error>(at(m)? - at(-m)?);
                // Fourth order: layer norms of few channels bend strongly.
                let slope = (8.0 * central(1.0)? - central(2.0)?) / (12.0 * h);
                var.set(&Tensor::from_slice(&before, var.shape(), &Device::Cpu)?)?;
                let own = &gradient[start..start + before.len()];
                let along: f64 = own.iter().enumerate().map(|(i, g)| g * direction(i)).sum();
                let scale = own.iter().map(|g| g * g).sum::<f64>().sqrt();
                assert!(
                    (slope - along).abs() < 1e-6 * scale,
                    "case {index} seed {seed}: {slope} {along} {scale}"
                );
            }
            start += before.len();
        }
    }
    Ok(())
}

/// In a single block the dynamics do not change its input.
#[test]
fn the_gradient_of_the_measure_agrees_with_differences() -> Result<()> {
    let channels = 3;
    for modes in [2, 11] {
        let norm = Some((NormKind::Layer, Placement::Pre));
        let mut block = block(modes, norm, Mixing::Plain);
        block.penalty = Some(Penalty::Measure);
        let plan = whole(vec![block], channels);
        let inputs = inputs(&plan.blocks, channels, modes == 11)?;
        let tau = || -> Result<Tensor> {
            let found = network(inputs.tensors(), &plan, &Workspaces::new())?;
            found.penalties.expect("it was requested").sum_all()
        };
        let store = tau()?.backward()?;
        for (var, count) in [(&inputs.modes, usize::MAX), (&inputs.parameters, channels)] {
            let before = var.flatten_all()?.to_vec1::<f64>()?;
            let own = store.get(var).expect("a gradient").to_vec1::<f64>()?;
            for at in 0..before.len().min(count) {
                let h = 1e-6;
                let moved = |by: f64| -> Result<f64> {
                    let mut values = before.clone();
                    values[at] += by;
                    var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
                    tau()?.to_scalar::<f64>()
                };
                let slope = (moved(h)? - moved(-h)?) / (2.0 * h);
                var.set(&Tensor::from_slice(&before, var.shape(), &Device::Cpu)?)?;
                let far = (slope - own[at]).abs();
                assert!(
                    far < 1e-6 * (1.0 + slope.abs()),
                    "{at}: {slope} {}",
                    own[at]
                );
            }
        }
    }
    Ok(())
}

#[test]
fn both_forms_agree_in_what_is_given_beside_the_outputs() -> Result<()> {
    for channels in [3, 21] {
        for (index, plan) in with_extras(cases(channels), channels)
            .into_iter()
            .enumerate()
        {
            let inputs = inputs(&plan.blocks, channels, index % 2 == 0)?;
            let (a, b) = (fast(&inputs, &plan)?, slow(&inputs, &plan)?);
            let far = worst(&a.to_vec1::<f64>()?, &b.to_vec1::<f64>()?);
            assert!(
                far < 1e-10,
                "{channels} case {index}: values differ by {far:e}"
            );
            // The modulus has a corner; both forms take the same side of it.
            let (a, b) = (
                gradients(fast, &inputs, &plan)?,
                gradients(slow, &inputs, &plan)?,
            );
            let far = worst(&a, &b);
            assert!(
                far < 1e-8,
                "{channels} case {index}: gradients differ by {far:e}"
            );
        }
    }
    Ok(())
}

#[test]
fn both_forms_of_the_encoders_agree() -> Result<()> {
    let channels = 18;
    let tokens: Vec<u32> = (0..BATCH * LENGTH).map(|i| (i * i % 5) as u32).collect();
    let tokens = Tensor::from_vec(tokens, (BATCH, LENGTH), &Device::Cpu)?;
    let count = BATCH * LENGTH * 3;
    let values: Vec<f64> = (0..count).map(|i| number(1.0, i)).collect();
    let values = Tensor::from_vec(values, (BATCH, LENGTH, 3), &Device::Cpu)?;
    let embedding = Encoding::Embedding { vocabulary: 5 };
    for (encoding, steps) in [
        (Encoding::Linear { inputs: 3 }, values),
        (embedding, tokens),
    ] {
        let norm = Some((NormKind::Layer, Placement::Pre));
        let plan = Arc::new(NetworkPlan {
            channels,
            encoding,
            blocks: vec![block(2, norm, Mixing::Plain)],
            pooling: None,
            layers: false,
            training: true,
        });
        let Inputs { modes, .. } = inputs(&plan.blocks, channels, false)?;
        let parameters = (0..plan.numbers().1).map(|i| number(2.0, i));
        let parameters = Tensor::from_iter(parameters, &Device::Cpu)?;
        let parameters = Var::from_tensor(&parameters)?;
        let workspaces = Workspaces::new();
        let tensors = NetworkTensors {
            steps: &steps,
            modes: &modes,
            parameters: &parameters,
        };
        let fast = network(tensors, &plan, &workspaces)?.out;
        let slow = plain::network(tensors, &plan)?.out;
        let gradient = |out: &Tensor| {
            let store = (out * out)?.sum_all()?.backward()?;
            let gradient = store.get(&parameters).expect("a gradient");
            gradient.to_vec1::<f64>()
        };
        assert!(worst(&gradient(&fast)?, &gradient(&slow)?) < 1e-10);
        let flat = |x: Tensor| x.flatten_all()?.to_vec1::<f64>();
        assert!(worst(&flat(fast)?, &flat(slow)?) < 1e-12);
    }
    Ok(())
}

#[test]
fn a_second_backward_pass_gives_the_same_gradients() -> Result<()> {
    let plan = whole(cases(3).remove(3), 3);
    let inputs = inputs(&plan.blocks, 3, false)?;
    let loss = loss(fast, &inputs, &plan)?;
    let first = loss.backward()?;
    let second = loss.backward()?;
    for var in [&inputs.x, &inputs.modes, &inputs.parameters] {
        let flat = |store: &candle_core::backprop::GradStore| {
            let gradient = store.get(var).expect("every input has a gradient");
            gradient.flatten_all()?.to_vec1::<f64>()
        };
        assert_eq!(flat(&first)?, flat(&second)?);
    }
    Ok(())
}
