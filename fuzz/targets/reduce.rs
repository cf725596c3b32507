//! Reduction of layers whose modes are valid and unusual: poles next to the circle, clusters, steps
//! from 1e-9 to 1e3, weights that are zero, tiny or huge.
//!
//! Besides ending in time without a panic: a reduced layer is stable, has finite numbers and no more
//! states than it had, and no sum of squares of the difference of the kernels is above the H2 error
//! that the record states.
#![no_main]

use std::collections::BTreeMap;
use std::f64::consts::PI;

use hankelite::archive::{Dtype, RawTensor};
use hankelite::checkpoint::from_tensors;
use hankelite::compress::{ChannelRecord, Method, RealisationChoice, TimeBase};
use hankelite::model::Model;
use hankelite::{Declared, Plan, Rule, reduce};
use hankelite_fuzz::within;
use libfuzzer_sys::fuzz_target;

/// Modes of a channel, and channels.
const MODES: usize = 12;
const CHANNELS: usize = 2;
/// Steps of the kernels that are compared.
const LENGTH: usize = 64;

/// Bytes as settings; zeros where they end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn one(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// 0 to 1.
    fn share(&mut self) -> f64 {
        f64::from(u16::from_le_bytes([self.one(), self.one()])) / 65535.0
    }

    /// From 10^low to 10^high.
    fn power(&mut self, low: f64, high: f64) -> f64 {
        10f64.powf(low + (high - low) * self.share())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let plan = plan(&mut bytes);
    let Some(model) = layer(&mut bytes) else {
        return;
    };
    within(1 << 12, || {
        if let Ok(plan) = &plan
            && let Ok(reduced) = reduce(&model, plan)
        {
            check(&model, &reduced.model, &reduced.records[0].channels);
        }
    });
});

fn plan(bytes: &mut Bytes<'_>) -> Result<Plan, hankelite::compress::PlanError> {
    let rule = match bytes.one() % 4 {
        0 => Rule::Energy(bytes.share()),
        1 => Rule::Tolerance(bytes.power(-14.0, 0.0)),
        _ => Rule::Order(1 + usize::from(bytes.one()) % MODES),
    };
    let method = match bytes.one() % 8 {
        0 => Method::Residualised,
        1 => Method::ModalHinf,
        2 => Method::ModalH2,
        3 => Method::H2Optimal,
        4 => Method::Horizon,
        5 => Method::HankelNorm,
        _ => Method::Balanced,
    };
    let realisation = match bytes.one() % 3 {
        0 => RealisationChoice::Complex,
        1 => RealisationChoice::Auto,
        _ => RealisationChoice::Real,
    };
    let time = match bytes.one() % 2 {
        0 => TimeBase::Discrete,
        _ => TimeBase::Continuous,
    };
    let plan = Plan::new(rule)?.with_kernel_length(LENGTH);
    plan.with_realisation(realisation)
        .with_method(method)?
        .with_time(time)
}

/// A layer in the layout of S4D, in double precision.
fn layer(bytes: &mut Bytes<'_>) -> Option<Model> {
    let modes = 1 + usize::from(bytes.one()) % MODES;
    let steps: Vec<f64> = (0..CHANNELS).map(|_| bytes.power(-9.0, 3.0).ln()).collect();
    let (mut decay, mut frequency, mut weight) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..CHANNELS * modes {
        let kind = bytes.one();
        if kind.is_multiple_of(4) && index % modes > 0 {
            // Next to the mode before.
            let near = bytes.power(-16.0, -1.0);
            decay.push(decay[index - 1] + near);
            frequency.push(frequency[index - 1] * (1.0 + near));
        } else {
            decay.push(bytes.power(-14.0, 4.0).ln());
            frequency.push(if kind % 4 == 1 {
                0.0
            } else {
                bytes.share() * 200.0 * PI
            });
        }
        let size = match kind / 4 % 4 {
            0 => 0.0,
            1 => bytes.power(-200.0, 30.0),
            _ => bytes.power(-3.0, 3.0),
        };
        let angle = bytes.share() * 2.0 * PI;
        weight.extend([size * angle.cos(), size * angle.sin()]);
    }
    let tensor = |shape: &[usize], values: &[f64]| {
        RawTensor::from_f64(Dtype::F64, shape.to_vec(), values).expect("as many as the shape has")
    };
    let kernel = |name: &str| format!("layer.kernel.{name}");
    let tensors = BTreeMap::from([
        ("layer.D".to_string(), tensor(&[CHANNELS], &[1.0; CHANNELS])),
        (kernel("log_dt"), tensor(&[CHANNELS], &steps)),
        (kernel("log_A_real"), tensor(&[CHANNELS, modes], &decay)),
        (kernel("A_imag"), tensor(&[CHANNELS, modes], &frequency)),
        (kernel("C"), tensor(&[CHANNELS, modes, 2], &weight)),
    ]);
    let checkpoint = from_tensors("the layer", tensors, &Declared::default()).ok()?;
    Some(checkpoint.model)
}

fn check(full: &Model, reduced: &Model, records: &[ChannelRecord]) {
    let (full, reduced) = (&full.blocks()[0], &reduced.blocks()[0]);
    assert!(reduced.order() <= full.order(), "more states than before");
    let systems = full.systems().iter().zip(reduced.systems());
    for ((whole, smaller), record) in systems.zip(records) {
        assert!(record.order <= whole.order(), "more states than before");
        assert!(
            !record.h2_error.is_nan() && !record.error_bound.is_nan(),
            "{record:?}"
        );
        assert!(smaller.is_stable() || !whole.is_stable(), "not stable");
        let kernels = (whole.kernel(LENGTH), smaller.kernel(LENGTH));
        let (Ok(before), Ok(after)) = kernels else {
            panic!("a kernel of the layers cannot be formed");
        };
        assert!(
            after.iter().all(|value| value.is_finite()),
            "a kernel that is not finite"
        );
        if record.feedthrough_change.is_none() && record.h2_error.is_finite() {
            let largest = before.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
            let difference = before.iter().zip(&after).map(|(a, b)| (a - b) / largest);
            let sum = largest * difference.map(|x| x * x).sum::<f64>().sqrt();
            let rounding = 1e-6 * (record.h2_norm + sum);
            assert!(
                sum <= record.h2_error + rounding,
                "{sum:e} above {record:?}"
            );
        }
    }
}
