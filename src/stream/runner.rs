//! A model and its state.

use hankelite_edge::{Header, ImagePlan, ImageView, Input, Real, StepFault};

use crate::model::{InputKind, Model};
use crate::rounding::Entries;
use crate::stream::aligned::Aligned;
use crate::stream::unit::{Arithmetic, KeptLayer, Number, Step};
use crate::stream::{Image, StreamError};

/// Runs a model one sample at a time, in single precision (`f64` is there to check it by).
///
/// It owns the model's image, the state and the room that a step works in; a step allocates
/// nothing and starts no thread. Several streams can run side by side: they share the weights, which
/// then come through the cache once for all.
#[derive(Debug, Clone)]
pub struct Runner<T: Number = f32> {
    image: Image,
    plan: ImagePlan,
    header: Header,
    layers: Vec<KeptLayer>,
    streams: usize,
    /// The most steps at once.
    steps: usize,
    state: Aligned<T>,
    work: Aligned<T>,
    arithmetic: Arithmetic,
}

/// The state of a runner at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot<T = f32> {
    state: Vec<T>,
}

/// Whether so many streams, or steps of them, run at once.
fn check_rows(rows: usize) -> Result<(), StreamError> {
    match (1..=usize::from(u16::MAX)).contains(&rows) {
        true => Ok(()),
        false => Err(StreamError::Model(format!(
            "{rows} streams at once, expected 1 to {}",
            u16::MAX
        ))),
    }
}

impl Runner {
    /// Prepares a model, its state at zero. Cost O(weights).
    ///
    /// # Errors
    /// [`StreamError::Model`] and others that state why the model cannot be streamed.
    pub fn new(model: &Model) -> Result<Self, StreamError> {
        Self::from_image(Image::new(model, Entries::Full)?)
    }
}

impl Runner<f64> {
    /// The same code in double precision.
    ///
    /// # Errors
    /// As [`Runner::new`].
    pub fn double(model: &Model) -> Result<Self, StreamError> {
        Self::from_image(Image::double(model, Entries::Full)?)
    }
}

impl<T: Number> Runner<T> {
    /// Prepares an image, its state at zero.
    ///
    /// # Errors
    /// [`StreamError::Step`] where the bytes are no image for this number type.
    pub fn from_image(image: Image) -> Result<Self, StreamError> {
        let view = ImageView::<T>::new(image.as_bytes())?;
        let header = *view.header();
        let layers = (0..header.layers).map(|index| KeptLayer::new(&view, index));
        let layers: Result<Vec<KeptLayer>, StepFault> = layers.collect();
        let (state, work) = (view.state_len(), view.work_len(1));
        Ok(Self {
            plan: view.plan(),
            header,
            layers: layers?,
            streams: 1,
            steps: 1,
            state: Aligned::zero(state),
            work: Aligned::zero(work),
            arithmetic: Arithmetic::default(),
            image,
        })
    }

    /// Runs several streams side by side, all states at zero.
    ///
    /// # Errors
    /// [`StreamError::Model`] for none, and for more than 65,535.
    pub fn with_streams(mut self, streams: usize) -> Result<Self, StreamError> {
        check_rows(streams)?;
        self.streams = streams;
        self.state = Aligned::zero(streams * self.view().state_len());
        self.work = Aligned::zero(self.view().work_len(streams * self.steps));
        Ok(self)
    }

    /// Makes room for [`Runner::run_chunk`] of up to so many steps.
    ///
    /// # Errors
    /// [`StreamError::Model`] where streams and steps are together more than 65,535.
    pub fn with_steps(mut self, steps: usize) -> Result<Self, StreamError> {
        let rows = self.streams.saturating_mul(steps);
        check_rows(rows)?;
        self.steps = steps;
        self.work = Aligned::zero(self.view().work_len(rows));
        Ok(self)
    }

    fn view(&self) -> ImageView<'_, T> {
        ImageView::checked(self.image.as_bytes(), self.plan)
    }

    /// Takes other arithmetic than the best of this machine.
    #[must_use]
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = arithmetic;
        self
    }

    /// Takes the inputs of one step (of each stream in turn) and gives the outputs: those of the
    /// step, or with mean pooling those of the mean of all steps so far. Cost O(H N) + O(H²).
    ///
    /// # Errors
    /// [`StepFault::Length`], [`StepFault::Kind`]; the state is then as it was.
    pub fn step(&mut self, inputs: &[T]) -> Result<&[T], StreamError> {
        self.advance(Input::Values(inputs), 1)
    }

    /// Takes the inputs of several steps, at most those of [`Runner::with_steps`], and gives the outputs
    /// of each: those of [`Runner::step`], bit for bit, in less time, as the weights are read once for
    /// all steps. Inputs and outputs are those of all streams of the first step, then of the next.
    ///
    /// # Errors
    /// As [`Runner::step`].
    pub fn run_chunk(&mut self, inputs: &[T]) -> Result<&[T], StreamError> {
        let steps = inputs.len() / (self.streams * self.inputs());
        self.advance(Input::Values(inputs), steps.min(self.steps))
    }

    /// As [`Runner::step`] for a model whose encoder is an embedding: one token for each stream.
    ///
    /// # Errors
    /// [`StepFault::Length`], [`StepFault::Kind`], [`StepFault::Token`]; the state is then as it was.
    pub fn step_tokens(&mut self, tokens: &[u32]) -> Result<&[T], StreamError> {
        self.advance(Input::Tokens(tokens), 1)
    }

    fn advance(&mut self, input: Input<'_, T>, steps: usize) -> Result<&[T], StreamError> {
        let image = ImageView::checked(self.image.as_bytes(), self.plan);
        let work = image.work_len(self.streams * steps);
        let step = Step {
            image,
            layers: &self.layers,
            state: self.state.as_mut_slice(),
            work: &mut self.work.as_mut_slice()[..work],
            input,
            steps,
        };
        Ok(step.run(self.arithmetic)?)
    }

    /// Sets all states to zero: a new signal begins.
    pub fn reset(&mut self) {
        self.state.as_mut_slice().fill(T::default());
    }

    /// The state, to be restored later.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<T> {
        let state = self.state.as_slice().to_vec();
        Snapshot { state }
    }

    /// Goes back to a state that a runner of the same model had. Allocates nothing.
    ///
    /// # Errors
    /// [`StepFault::Length`] for a state of another size.
    pub fn restore(&mut self, snapshot: &Snapshot<T>) -> Result<(), StreamError> {
        let (found, expected) = (snapshot.state.len(), self.state.as_slice().len());
        if found != expected {
            return Err(StreamError::Step(StepFault::Length {
                what: "state",
                found,
                expected,
            }));
        }
        self.state.as_mut_slice().copy_from_slice(&snapshot.state);
        Ok(())
    }

    /// Numbers that a step takes for each stream; for an embedding the size of the vocabulary.
    pub fn inputs(&self) -> usize {
        self.header.inputs as usize
    }

    /// What a step takes for each stream.
    pub fn takes(&self) -> InputKind {
        let size = self.inputs();
        match self.header.encoder == hankelite_edge::code::EMBEDDING {
            true => InputKind::Tokens { vocabulary: size },
            false => InputKind::Numbers { width: size },
        }
    }

    /// Whether the outputs are those of all steps so far, or of the last one of many. Else every
    /// step has outputs of its own.
    pub fn pools(&self) -> bool {
        self.header.pooling != hankelite_edge::code::NONE
    }

    /// Numbers that a step gives for each stream.
    pub fn outputs(&self) -> usize {
        self.header.outputs as usize
    }

    /// Streams side by side.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Bytes of the image: what a step reads of the model.
    pub fn weight_bytes(&self) -> usize {
        self.image.as_bytes().len()
    }

    /// Bytes of the state of all streams.
    pub fn state_bytes(&self) -> usize {
        size_of_val(self.state.as_slice())
    }

    /// Bytes that a step works in, whatever was there before.
    pub fn work_bytes(&self) -> usize {
        size_of_val(self.work.as_slice())
    }

    /// The bytes that are run.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

/// The numbers of a state, in the order of the image: for who wants to look at them.
impl<T: Real> Snapshot<T> {
    /// The numbers.
    pub fn numbers(&self) -> &[T] {
        &self.state
    }
}
