//! One layer of the network with what stands around it.

use std::sync::Arc;

use hankelite_control::{DiagonalSystem, SystemClass};

use crate::model::parts::{BlockParts, Nonlinearity, Norm, OutputLinear, Placement};
use crate::model::{ModelError, check};

/// One residual layer, checked: shapes fit and all numbers are finite. A clone shares its memory.
///
/// ```text
/// post: x ← norm(x + f(x))        pre: x ← x + f(norm(x))
/// f(x) = output(σ(y)),   y_h = k_h ∗ x_h + D_h x_h   for every channel h
/// ```
///
/// σ is the [`Nonlinearity`](crate::model::Nonlinearity), GELU as a rule, and what the output map does is
/// its [`Gate`](crate::model::Gate). A bidirectional layer adds Σ_{j≥0} k'_h\[j\] x_h\[t+s+j\], s
/// being `backward_from`. In a layer of S5 or LRU one system takes all channels and gives all.
#[derive(Debug, Clone, PartialEq)]
pub struct Block(Arc<BlockParts>);

impl Block {
    /// Checks the parts of a layer.
    ///
    /// # Errors
    /// [`ModelError`]: no systems, systems that are not discrete or of different shapes, an output
    /// map or a normalisation that does not fit their number, a number that is not finite.
    pub fn new(parts: BlockParts) -> Result<Self, ModelError> {
        check::systems(&parts)?;
        check::around(&parts)?;
        Ok(Self(Arc::new(parts)))
    }

    /// The same layer with other systems, e.g. reduced ones, as many and of the same shapes.
    ///
    /// # Errors
    /// As [`Block::new`].
    pub fn with_systems(
        &self,
        systems: Vec<DiagonalSystem>,
        backward: Vec<DiagonalSystem>,
    ) -> Result<Self, ModelError> {
        let stored = &self.0;
        let parts = BlockParts {
            name: stored.name.clone(),
            systems,
            backward,
            backward_from: stored.backward_from,
            holds_feedthrough: stored.holds_feedthrough,
            class: stored.class,
            activation: stored.activation,
            output: stored.output.clone(),
            norm: stored.norm.clone(),
        };
        check::systems(&parts)?;
        check::same_shapes(stored, &parts)?;
        Ok(Self(Arc::new(parts)))
    }

    /// The parts, to be changed and checked again.
    pub fn into_parts(self) -> BlockParts {
        Arc::unwrap_or_clone(self.0)
    }

    /// The layer's name in the file.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The systems that run forwards in time: [`BlockParts::systems`].
    pub fn systems(&self) -> &[DiagonalSystem] {
        &self.0.systems
    }

    /// The systems that run backwards in time; none in a causal layer.
    pub fn backward(&self) -> &[DiagonalSystem] {
        &self.0.backward
    }

    /// The systems of both directions, those backwards in time last.
    pub fn all_systems(&self) -> impl Iterator<Item = &DiagonalSystem> + Clone {
        self.0.systems.iter().chain(&self.0.backward)
    }

    /// The lag at which the kernels backwards in time start, 0 or 1.
    pub fn backward_from(&self) -> usize {
        self.0.backward_from
    }

    /// Whether the file has a place for the feedthrough D: [`BlockParts::holds_feedthrough`].
    pub fn holds_feedthrough(&self) -> bool {
        self.0.holds_feedthrough
    }

    /// The only systems that the file has a place for: [`BlockParts::class`].
    pub fn class(&self) -> Option<SystemClass> {
        self.0.class
    }

    /// What follows the state spaces.
    pub fn activation(&self) -> Nonlinearity {
        self.0.activation
    }

    /// The map that mixes channels.
    pub fn output(&self) -> Option<&OutputLinear> {
        self.0.output.as_ref()
    }

    /// The normalisation and its place.
    pub fn norm(&self) -> Option<&(Norm, Placement)> {
        self.0.norm.as_ref()
    }

    /// The number of channels.
    pub fn channels(&self) -> usize {
        self.0.channels()
    }

    /// The number of channels behind the layer.
    pub fn width(&self) -> usize {
        self.0.width()
    }

    /// The outputs of all systems: the inputs of the map that mixes channels.
    pub fn outputs(&self) -> usize {
        self.0.outputs()
    }

    /// Whether every system has one input and one output, as in S4D and DSS.
    pub fn is_siso(&self) -> bool {
        self.all_systems().all(|system| system.as_siso().is_ok())
    }

    /// The largest number of modes of any channel: what a rectangular layout stores for each.
    pub fn order(&self) -> usize {
        let orders = self.all_systems().map(DiagonalSystem::order);
        orders.max().unwrap_or(0)
    }
}
