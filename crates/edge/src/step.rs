//! One step of the whole network.

use crate::dynamics::{Channels, Vectors};
use crate::image::COUNT;
use crate::streams::Streams;
use crate::{
    ImageView, Kept, Layer, Processor, Real, StepFault, code, dynamics, matrix, norm, padded,
};

/// What goes into one step or several: of all streams one after the other, then the next step.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a, T> {
    /// The numbers of a step.
    Values(&'a [T]),
    /// A row of an embedding for each stream.
    Tokens(&'a [u32]),
}

/// The memory of a step: see [`step_many`].
pub struct Buffers<'s, 'w, T> {
    /// The states of all streams.
    pub state: &'s mut [T],
    /// Room to work in.
    pub work: &'w mut [T],
    /// Steps that the input holds of each stream.
    pub steps: usize,
}

/// One step of one stream: takes its input, moves its state on, and gives its outputs.
///
/// `state` holds [`ImageView::state_len`] numbers, all zero at the start, and `work`
/// [`ImageView::work_len`] of one, of any value. With mean pooling the outputs are those of the mean of
/// all steps so far.
///
/// # Errors
/// [`StepFault::Length`], [`StepFault::Kind`], [`StepFault::Token`]; the state is then as it was.
#[cfg_attr(not(target_os = "none"), inline(always))]
pub fn step<'w, T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    state: &mut [T],
    work: &'w mut [T],
    input: Input<'_, T>,
) -> Result<&'w [T], StepFault> {
    step_many(unit, image, state, work, input)
}

/// One step of several streams side by side: the weights are read once for all. Each stream gives
/// what it gives alone, bit for bit.
///
/// How many streams there are follows from the length of `state`, [`ImageView::state_len`] for each.
/// `work` holds [`ImageView::work_len`] numbers for so many. Inputs and outputs are those of one stream
/// after the other.
///
/// # Errors
/// As [`step`].
#[cfg_attr(not(target_os = "none"), inline(always))]
pub fn step_many<'w, T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    state: &mut [T],
    work: &'w mut [T],
    input: Input<'_, T>,
) -> Result<&'w [T], StepFault> {
    let steps = 1;
    let buffers = Buffers { state, work, steps };
    step_layers(unit, image, |index| plain(image, index), buffers, input)
}

/// Several steps of one stream, or of several, at once: the weights are read once for all of them.
/// Gives the outputs of every step, bit for bit those of [`step`] after [`step`].
///
/// `input` has all streams of the first step, then those of the next; so have the outputs. `work` holds
/// [`ImageView::work_len`] numbers for the product of streams and steps.
///
/// # Errors
/// As [`step`].
#[cfg_attr(not(target_os = "none"), inline(always))]
pub fn run_chunk<'w, T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    state: &mut [T],
    work: &'w mut [T],
    input: Input<'_, T>,
) -> Result<&'w [T], StepFault> {
    let streams = state.len() / image.state_len();
    let steps = match input {
        Input::Tokens(tokens) => tokens.len() / streams.max(1),
        Input::Values(values) => {
            values.len() / (streams.max(1) * image.header().inputs.max(1) as usize)
        }
    };
    let buffers = Buffers { state, work, steps };
    step_layers(unit, image, |index| plain(image, index), buffers, input)
}

/// A layer of which nothing was kept.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn plain<T: Real>(image: &ImageView<'_, T>, index: u32) -> Result<Kept<'static>, StepFault> {
    let layer = image.layer(index)?;
    Ok(Kept { layer, back: None })
}

/// As [`step_many`] and [`run_chunk`], with the layers from elsewhere than the image, for a caller who
/// keeps them.
///
/// # Errors
/// As [`step`].
#[cfg_attr(not(target_os = "none"), inline(always))]
pub fn step_layers<'k, 'w, T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: impl Fn(u32) -> Result<Kept<'k>, StepFault>,
    buffers: Buffers<'_, 'w, T>,
    input: Input<'_, T>,
) -> Result<&'w [T], StepFault> {
    let rows = check(image, &buffers, &input)?;
    let Buffers { state, work, .. } = buffers;
    let (x, rest) = work.split_at_mut(rows * image.width());
    let (channel_inputs, rest) = rest.split_at_mut(rows * image.width());
    let (channel_outputs, rest) = rest.split_at_mut(rows * image.width());
    let (mixed, rest) = rest.split_at_mut(2 * rows * image.width());
    let outputs = rows * padded(image.header().outputs as usize);
    let (outputs, rest) = rest.split_at_mut(outputs);
    let (scratch, room) = rest.split_at_mut(image.shared_len());
    encode(unit, image, input, room, x)?;
    let mut within = Within {
        x,
        channel_inputs,
        channel_outputs,
        mixed,
        scratch,
        room,
        state,
        first: 0,
    };
    for index in 0..image.header().layers {
        residual(unit, image, &layer(index)?, &mut within)?;
    }
    let Within { x, room, state, .. } = within;
    if image.header().pooling == code::MEAN {
        mean(image, state, x);
    }
    decode(unit, image, room, x, outputs)?;
    let count = image.header().outputs as usize;
    for row in 1..rows {
        let from = row * padded(count);
        outputs.copy_within(from..from + count, row * count);
    }
    Ok(&outputs[..rows * count])
}

/// What the layers work on, the vectors of all rows one after the other.
struct Within<'a, T> {
    x: &'a mut [T],
    channel_inputs: &'a mut [T],
    channel_outputs: &'a mut [T],
    mixed: &'a mut [T],
    scratch: &'a mut [T],
    room: &'a mut [T],
    state: &'a mut [T],
    /// Where the states of the next layer start in those of a stream.
    first: usize,
}

/// x ← x + branch(x), with the norm before or after; without a norm the branch alone.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn residual<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    kept: &Kept<'_>,
    within: &mut Within<'_, T>,
) -> Result<(), StepFault> {
    let layer = &kept.layer;
    let before = layer.norm != code::NONE && layer.before != 0;
    if layer.dynamics != code::NONE {
        let channel_inputs: &[T] = if before {
            within.channel_inputs.copy_from_slice(within.x);
            norm::apply(unit, image, layer, within.channel_inputs)?;
            within.channel_inputs
        } else {
            within.x
        };
        let vectors = Vectors {
            channel_inputs,
            channel_outputs: within.channel_outputs,
            state: within.state,
            state_len: image.state_len(),
            scratch: within.scratch,
            room: within.room,
            lanes: within.mixed,
        };
        if layer.dynamics == code::CHANNELS {
            unit.apart(Channels {
                unit,
                image,
                kept,
                first: &mut within.first,
                vectors,
            })?;
        } else {
            dynamics::shared(unit, image, layer, &mut within.first, vectors)?;
        }
        if layer.mixing == code::RESPONSE {
            let (_, kept) = within.mixed.split_at_mut(within.channel_outputs.len());
            kept.copy_from_slice(within.channel_outputs);
        }
        T::activate(unit, image.header().activation, within.channel_outputs);
        let outputs = Mixed {
            channel_outputs: within.channel_outputs,
            mixed: within.mixed,
            room: within.room,
        };
        let branch = mix(unit, image, layer, outputs)?;
        if layer.norm == code::NONE {
            within.x.copy_from_slice(branch);
            return Ok(());
        }
        for (x, more) in within.x.iter_mut().zip(branch) {
            *x += *more;
        }
    }
    match before {
        true => Ok(()),
        false => norm::apply(unit, image, layer, within.x),
    }
}

/// The number of rows: streams times steps.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn check<T: Real>(
    image: &ImageView<'_, T>,
    buffers: &Buffers<'_, '_, T>,
    input: &Input<'_, T>,
) -> Result<usize, StepFault> {
    let header = image.header();
    let (state, work) = (buffers.state.len(), buffers.work.len());
    let streams = state / image.state_len();
    let rows = streams.saturating_mul(buffers.steps);
    let (found, expected) = match (input, header.encoder) {
        (Input::Tokens(tokens), code::EMBEDDING) => (tokens.len(), rows),
        (Input::Values(_), code::EMBEDDING) => {
            let expected = "tokens";
            return Err(StepFault::Kind { expected });
        }
        (Input::Values(values), _) => (values.len(), rows.saturating_mul(header.inputs as usize)),
        (Input::Tokens(_), _) => {
            let expected = "numbers";
            return Err(StepFault::Kind { expected });
        }
    };
    for (what, found, expected) in [
        ("state", state, streams.max(1) * image.state_len()),
        ("input", found, expected),
        ("work", work, image.work_len(rows)),
    ] {
        if found != expected {
            return Err(StepFault::Length {
                what,
                found,
                expected,
            });
        }
    }
    if let Input::Tokens(tokens) = input {
        let vocabulary = header.inputs;
        if let Some(&token) = tokens.iter().find(|&&token| token >= vocabulary) {
            return Err(StepFault::Token { token, vocabulary });
        }
    }
    Ok(rows)
}

#[cfg_attr(not(target_os = "none"), inline(always))]
fn encode<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    input: Input<'_, T>,
    room: &mut [T],
    x: &mut [T],
) -> Result<(), StepFault> {
    let (header, width) = (image.header(), image.width());
    match input {
        Input::Tokens(tokens) => {
            let bytes = width as u32 * T::BYTES;
            for (x, &token) in x.chunks_exact_mut(width).zip(tokens) {
                let row = header.encoder_at + token * bytes;
                x.copy_from_slice(image.numbers(row, width, "embedding")?);
            }
            Ok(())
        }
        Input::Values(inputs) if header.encoder == code::LINEAR => {
            let matrix = image.matrix(header.encoder_at)?;
            let input_step = header.inputs as usize;
            let streams = Streams {
                inputs,
                input_step,
                outputs: x,
            };
            matrix::apply(unit, image, &matrix, room, streams)
        }
        Input::Values(inputs) => {
            let channels = header.channels as usize;
            x.fill(T::default());
            for (x, u) in x.chunks_exact_mut(width).zip(inputs.chunks_exact(channels)) {
                x[..channels].copy_from_slice(u);
            }
            Ok(())
        }
    }
}

/// What the activation gives, room for what the map makes of it (with [`code::RESPONSE`] what the
/// systems gave is in its second half), and for rounding.
struct Mixed<'b, T> {
    channel_outputs: &'b [T],
    mixed: &'b mut [T],
    room: &'b mut [T],
}

/// What the layer adds to its input.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn mix<'b, T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: &Layer,
    outputs: Mixed<'b, T>,
) -> Result<&'b [T], StepFault> {
    let Mixed {
        channel_outputs,
        mixed,
        room,
    } = outputs;
    if layer.mixing == code::NONE {
        return Ok(channel_outputs);
    }
    let width = image.width();
    let matrix = image.matrix(layer.mixing_at)?;
    let streams = channel_outputs.len() / width;
    let rows = matrix.outputs as usize;
    let outputs = &mut mixed[..streams * rows];
    let inputs = Streams {
        inputs: channel_outputs,
        input_step: width,
        outputs,
    };
    matrix::apply(unit, image, &matrix, room, inputs)?;
    match layer.mixing {
        code::GATED => {
            for stream in 0..streams {
                let row = &mut mixed[stream * rows..(stream + 1) * rows];
                let (values, gates) = row.split_at_mut(width);
                T::gate(unit, gates, values);
                mixed.copy_within(stream * rows + width..(stream + 1) * rows, stream * width);
            }
        }
        code::ACTIVATED => T::gate(unit, &mut mixed[..streams * width], channel_outputs),
        code::RESPONSE => {
            let (gates, kept) = mixed.split_at_mut(streams * width);
            T::gate(unit, gates, kept);
        }
        _ => {}
    }
    Ok(&mixed[..streams * width])
}

/// x ← the mean of all steps so far. Sums are kept with what rounding took from them, so that the
/// mean of a long signal loses nothing.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn mean<T: Real>(image: &ImageView<'_, T>, state: &mut [T], x: &mut [T]) {
    let (width, each, states) = (image.width(), image.state_len(), state.len());
    let mut start = 0;
    for x in x.chunks_exact_mut(width) {
        let state = &mut state[start..start + each];
        start += each;
        let (_, pooled) = state.split_at_mut(state.len() - 2 * width - COUNT);
        let (sums, rest) = pooled.split_at_mut(width);
        let (lost, count) = rest.split_at_mut(width);
        let scale = T::from_f64(1.0 / counted(count));
        for ((x, sum), lost) in x.iter_mut().zip(sums).zip(lost) {
            let more = *x - *lost;
            let next = *sum + more;
            *lost = (next - *sum) - more;
            *sum = next;
            *x = next * scale;
        }
        if start >= states {
            start = 0;
        }
    }
}

/// Counts one step more. Two numbers hold the count, as one f32 ends at 2²⁴.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn counted<T: Real>(count: &mut [T]) -> f64 {
    const BLOCK: f64 = 1_048_576.0;
    let low = count[0].to_f64() + 1.0;
    if low < BLOCK {
        count[0] = T::from_f64(low);
    } else {
        count[0] = T::default();
        count[1] += T::from_f64(1.0);
    }
    count[1].to_f64() * BLOCK + count[0].to_f64()
}

#[cfg_attr(not(target_os = "none"), inline(always))]
fn decode<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    room: &mut [T],
    x: &[T],
    outputs: &mut [T],
) -> Result<(), StepFault> {
    if image.header().head_at == 0 {
        outputs.copy_from_slice(x);
        return Ok(());
    }
    let matrix = image.matrix(image.header().head_at)?;
    let streams = Streams {
        inputs: x,
        input_step: image.width(),
        outputs,
    };
    matrix::apply(unit, image, &matrix, room, streams)
}
