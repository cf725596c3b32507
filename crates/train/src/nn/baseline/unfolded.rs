//! Networks unfolded from sparse solvers: reweighted ℓ1-ℓ1, ℓ1-ℓ1 and Sista.
//!
//! With J = S Q_D and a step constant c_s, layer l of a step computes, from x_t and h_{t−1},
//!
//! ```text
//! reweighted  Z_l(h − Jᵀ(J h − x)/c_s)                          thresholds ω g_l/c_s, side G_c h_{t−1}
//! ℓ1-ℓ1       h − Jᵀ(J h − x)/c_s                               thresholds ω/c_s, side G_c h_{t−1}
//! Sista       h − (Jᵀ(J h − x) + ω2 Q_Dᵀ(Q_D h − F Q_D h_{t−1}))/c_s    threshold ω1/c_s, side 0
//! ```
//!
//! and then prox2; the first layer starts from G_c h_{t−1}, or Q_Dᵀ F Q_D h_{t−1} for Sista. That is
//! equations (9) to (12) and (36) with W_l and U_l never formed: J has few rows. Only for Sista with
//! few codes they are, as Q_D has many.
//!
//! c_s, ω1, ω2 and g are trained as their logarithms, which keeps them positive.
//!
//! # References
//! Le, Luong and Deligiannis, *A deep recurrent neural network via unfolding reweighted ℓ1-ℓ1
//! minimization*.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use hankelite_kernels::Workspaces;
use nalgebra::DMatrix;

use crate::nn::baseline::body::{Body, Formed, FormedLayer, Frame, matrix};
use crate::nn::baseline::dictionary::squared_norm;
use crate::nn::baseline::unroll::{Form, Sizes, Tensors};
use crate::nn::baseline::unroll_op;
use crate::nn::tensors::parameter;
use crate::nn::{Group, Mode, Parameter};

/// The solver that a network is unfolded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Solver {
    Reweighted,
    L1L1,
    Sista,
}

/// Where training starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Start {
    pub(super) layers: usize,
    /// ω1 > 0.
    pub(super) omega1: f64,
    /// ω2 > 0.
    pub(super) omega2: f64,
}

/// A body unfolded from a solver.
pub(super) struct Unfolded {
    solver: Solver,
    layers: usize,
    /// G_c, codes × codes; F of Sista, signal × signal.
    correlation: Var,
    /// h_0.
    initial: Var,
    /// Z, layers × codes × codes, and log g, layers × codes.
    reweighting: Option<(Var, Var)>,
    /// log c_s, log ω1, log ω2, one number each.
    constants: [Var; 3],
    parameters: Vec<Parameter>,
    workspaces: Arc<Workspaces>,
}

/// J = S Q_D, with Q_D.
fn maps<'a>(frame: &Frame<'a>) -> Result<(Tensor, &'a Tensor)> {
    let Some(dictionary) = frame.dictionary else {
        bail!("an unfolded network needs a dictionary");
    };
    let map = match frame.sensing {
        Some(sensing) => sensing.matmul(dictionary)?,
        None => dictionary.clone(),
    };
    Ok((map, dictionary))
}

impl Unfolded {
    /// Z_l = I, g_l = 1, G_c = I, h_0 = 0, c_s = ‖S Q_D‖₂².
    ///
    /// Sista: F = I/‖Q_D‖₂², so that P = Q_Dᵀ F Q_D with norm 1 carries a code on without growth,
    /// and c_s = ‖S Q_D‖₂² + ω2 ‖Q_D‖₂², which bounds the curvature of its problem.
    ///
    /// # Errors
    /// No layers, ω that are not positive, a frame without a dictionary or with J = 0.
    pub(super) fn new(solver: Solver, start: Start, frame: &Frame<'_>) -> Result<Self> {
        let (map, dictionary) = maps(frame)?;
        let (signal, codes) = dictionary.dims2()?;
        let (mut step, mut carried) = (squared_norm(&matrix(&map)?), 1.0);
        if solver == Solver::Sista {
            let spread = squared_norm(&matrix(dictionary)?);
            step += start.omega2 * spread;
            carried = 1.0 / spread;
        }
        for (name, value) in [
            ("omega1", start.omega1),
            ("omega2", start.omega2),
            ("the squared norm of S Q_D", step),
        ] {
            if !(value.is_finite() && value > 0.0) {
                bail!("{name} is {value}, expected a finite number above 0");
            }
        }
        if start.layers == 0 {
            bail!("an unfolded network has 0 layers, expected at least 1");
        }
        let (dtype, device) = (dictionary.dtype(), dictionary.device());
        let number = |value: f64| Var::from_tensor(&number(value.ln(), dtype, device)?);
        let size = match solver {
            Solver::Sista => signal,
            Solver::Reweighted | Solver::L1L1 => codes,
        };
        let unit = Tensor::eye(codes, dtype, device)?;
        let reweighting = match solver {
            Solver::Reweighted => {
                let units = vec![unit; start.layers];
                let logs = Var::zeros((start.layers, codes), dtype, device)?;
                Some((Var::from_tensor(&Tensor::stack(&units, 0)?)?, logs))
            }
            Solver::L1L1 | Solver::Sista => None,
        };
        let mut body = Self {
            solver,
            layers: start.layers,
            correlation: Var::from_tensor(&(Tensor::eye(size, dtype, device)? * carried)?)?,
            initial: Var::zeros(codes, dtype, device)?,
            reweighting,
            constants: [number(step)?, number(start.omega1)?, number(start.omega2)?],
            parameters: Vec::new(),
            workspaces: Workspaces::new(),
        };
        body.list();
        Ok(body)
    }

    fn list(&mut self) {
        let correlation = match self.solver {
            Solver::Sista => "signal_correlation",
            Solver::Reweighted | Solver::L1L1 => "code_correlation",
        };
        let [step, omega1, omega2] = &self.constants;
        let mut all = vec![
            (correlation, &self.correlation, Group::Plain),
            ("initial_code", &self.initial, Group::NoDecay),
        ];
        if let Some((matrices, logs)) = &self.reweighting {
            all.push(("reweighting", matrices, Group::Plain));
            all.push(("log_weights", logs, Group::NoDecay));
        }
        all.push(("log_step_constant", step, Group::NoDecay));
        all.push(("log_omega1", omega1, Group::NoDecay));
        all.push(("log_omega2", omega2, Group::NoDecay));
        let named = all.into_iter();
        let named = named.map(|(name, var, group)| parameter("body.", name, var, group));
        self.parameters = named.collect();
    }

    /// 1/c_s, ω1/c_s, ω2/c_s, one number each.
    fn rates(&self) -> Result<[Tensor; 3]> {
        let [step, omega1, omega2] = &self.constants;
        let inverse = step.neg()?.exp()?;
        let (omega1, omega2) = (omega1.exp()?, omega2.exp()?);
        Ok([inverse.clone(), (omega1 * &inverse)?, (omega2 * inverse)?])
    }

    /// A threshold for each layer and code: the rate, times g.
    fn thresholds(&self, rate: &Tensor) -> Result<Tensor> {
        match &self.reweighting {
            Some((_, logs)) => logs.exp()?.broadcast_mul(rate),
            None => {
                let shape = (self.layers, self.initial.elem_count());
                rate.broadcast_as(shape)?.contiguous()
            }
        }
    }

    /// Whether a run of so many columns takes fewer multiplications with W_2 and P of Sista formed.
    /// Those of the ℓ1 networks never are: Z_l and G_c are square anyhow, and J has few rows.
    fn form(&self, frame: &Frame<'_>, input: &Tensor) -> Result<Form> {
        match self.solver {
            Solver::Reweighted => return Ok(Form::Reweighted),
            Solver::L1L1 => return Ok(Form::Plain),
            Solver::Sista => {}
        }
        let (map, dictionary) = maps(frame)?;
        let (inputs, (signal, codes)) = (map.dim(0)?, dictionary.dims2()?);
        let (batch, length, _) = input.dims3()?;
        let columns = (batch * length).max(1);
        let factored = 2 * signal + 2 * self.layers * (signal + inputs);
        let forming = codes * (2 * signal + inputs) / columns;
        let formed = (1 + self.layers) * codes + inputs + forming;
        Ok(match formed < factored && input.device().is_cpu() {
            true => Form::Formed,
            false => Form::Factored { signal },
        })
    }

    fn tensors(&self, input: &Tensor, frame: &Frame<'_>, form: Form) -> Result<Tensors> {
        let (map, dictionary) = maps(frame)?;
        let (signal, codes) = dictionary.dims2()?;
        let expected = self.initial.elem_count();
        let sista = self.solver == Solver::Sista;
        if codes != expected || (sista && signal != self.correlation.dim(0)?) {
            bail!("a dictionary of {signal} x {codes}, expected {expected} codes");
        }
        let [inverse, rate1, rate2] = self.rates()?;
        let a = self.thresholds(&rate1)?;
        let b = match sista {
            true => a.zeros_like()?,
            false => self.thresholds(&rate2)?,
        };
        let matrices = self.reweighting.as_ref().map(|(matrices, _)| matrices);
        let plain = Tensors {
            weights: matrices.map(|matrices| matrices.as_tensor().clone()),
            transition: self.correlation.as_tensor().clone(),
            x: input.clone(),
            scale: repeated(&inverse, map.dim(0)?)?,
            map,
            a,
            b,
            initial: self.initial.as_tensor().clone(),
            pull: rate2.clone(),
        };
        if !sista {
            return Ok(plain);
        }
        let foretold = self.correlation.matmul(dictionary)?;
        let scale = Tensor::cat(&[&plain.scale, &repeated(&rate2, signal)?], 0)?;
        let map = Tensor::cat(&[&plain.map, dictionary], 0)?;
        if form != Form::Formed {
            return Ok(Tensors {
                transition: foretold,
                scale,
                map,
                ..plain
            });
        }
        let unit = Tensor::eye(codes, map.dtype(), map.device())?;
        let scaled = map.broadcast_mul(&scale.unsqueeze(1)?)?;
        let turned = |matrix: &Tensor| matrix.t()?.contiguous();
        Ok(Tensors {
            weights: Some((unit - turned(&map)?.matmul(&scaled)?)?),
            transition: turned(dictionary)?.matmul(&foretold)?,
            ..plain
        })
    }

    fn sizes(&self, tensors: &Tensors, form: Form) -> Result<Sizes> {
        let (batch, length, inputs) = tensors.x.dims3()?;
        let (rows, codes) = tensors.map.dims2()?;
        let sizes = Sizes {
            batch,
            length,
            inputs,
            codes,
            layers: self.layers,
            form,
        };
        if sizes.rows() != rows {
            bail!(
                "steps of {inputs} numbers, expected {}",
                rows - sizes.signal()
            );
        }
        Ok(sizes)
    }

    fn run(&self, input: &Tensor, frame: &Frame<'_>, form: Form) -> Result<Tensor> {
        let tensors = self.tensors(input, frame, form)?;
        unroll_op::codes(&tensors, self.sizes(&tensors, form)?, &self.workspaces)
    }
}

fn repeated(rate: &Tensor, rows: usize) -> Result<Tensor> {
    rate.broadcast_as(rows)?.contiguous()
}

fn number(value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::new(&[value], device)?.to_dtype(dtype)
}

impl Body for Unfolded {
    fn codes(&self, input: &Tensor, frame: &Frame<'_>, _mode: Mode<'_>) -> Result<Tensor> {
        self.run(input, frame, self.form(frame, input)?)
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// # References
    /// Le, Luong and Deligiannis, equations (9) to (12) and (36).
    fn formed(&self, frame: &Frame<'_>) -> Result<Option<Formed>> {
        let (map, dictionary) = maps(frame)?;
        let (map, dictionary) = (matrix(&map)?, matrix(dictionary)?);
        let [inverse, rate1, rate2] = self.rates()?;
        let scalar = |rate: &Tensor| rate.to_dtype(DType::F64)?.squeeze(0)?.to_scalar::<f64>();
        let (inverse, omega) = (scalar(&inverse)?, scalar(&rate2)?);
        let rows = |rate: &Tensor| {
            self.thresholds(rate)?
                .to_dtype(DType::F64)?
                .to_vec2::<f64>()
        };
        let correlation = matrix(self.correlation.as_tensor())?;
        let input = map.transpose() * inverse;
        let codes = map.ncols();
        let mut descent = DMatrix::identity(codes, codes) - &input * &map;
        let sista = self.solver == Solver::Sista;
        let mut transition = correlation;
        let mut from_last = None;
        let thresholds1 = rows(&rate1)?;
        let mut thresholds2 = rows(&rate2)?;
        if sista {
            descent -= dictionary.tr_mul(&dictionary) * omega;
            transition = dictionary.tr_mul(&(transition * &dictionary));
            from_last = Some(&transition * omega);
            thresholds2.iter_mut().for_each(|row| row.fill(0.0));
        }
        let mut layers = Vec::with_capacity(self.layers);
        for layer in 0..self.layers {
            let mut recurrent = descent.clone();
            let mut input = input.clone();
            if let Some((matrices, _)) = &self.reweighting {
                let reweighting = matrix(&matrices.get(layer)?)?;
                recurrent = &reweighting * recurrent;
                input = reweighting * input;
            }
            if layer == 0 {
                recurrent *= &transition;
                if let Some(from_last) = &from_last {
                    recurrent += from_last;
                }
            }
            layers.push(FormedLayer { recurrent, input });
        }
        Ok(Some(Formed {
            layers,
            transition,
            from_last,
            thresholds1,
            thresholds2,
            initial: self.initial.to_dtype(DType::F64)?.to_vec1()?,
        }))
    }
}

#[cfg(test)]
mod tests;
