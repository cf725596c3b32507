//! The trust region of projected descent.

use crate::bounds::Radii;
use crate::shallow::Parameters;

/// Ω_ρ: every group of every unit stays in its ball around the start,
///
/// ```text
/// |c_i − c_i⁰| ≤ ρ_c/√m,  ‖U_i − U_i⁰‖₂ ≤ ρ_u/√m,  ‖W_i − W_i⁰‖_F ≤ ρ_w/√m     (|w_i − w_i⁰|)
/// ```
///
/// # References
/// Arda, Cayci and Eryilmaz, section 3.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitTrustRegion {
    start: Parameters,
    radii: Radii,
}

impl UnitTrustRegion {
    /// Around a start, with radii ρ (of a unit: ρ/√m).
    pub fn new(start: &Parameters, radii: Radii) -> Self {
        let start = start.clone();
        Self { start, radii }
    }

    /// The start φ⁰.
    pub fn start(&self) -> &Parameters {
        &self.start
    }

    /// ρ/√m of each group.
    pub fn unit_radii(&self) -> [f64; 3] {
        let root = (self.start.units() as f64).sqrt();
        [self.radii.c, self.radii.u, self.radii.w].map(|radius| radius / root)
    }

    /// The nearest point of the region. Every group of every unit is projected on its own: what lies
    /// outside its ball moves towards the centre, what lies inside keeps its bits.
    ///
    /// Parameters must have the shape of the start. Returns how many groups were moved.
    pub fn project(&self, parameters: &mut Parameters) -> usize {
        let difference = parameters.minus(&self.start);
        let mut moved = 0;
        for (group, radius) in self.unit_radii().into_iter().enumerate() {
            let norms = difference.group_norms(group);
            let outside: Vec<usize> = (0..norms.len()).filter(|&i| norms[i] > radius).collect();
            moved += outside.len();
            let units = norms.len();
            let (start, step) = (self.start.group(group), difference.group(group));
            let values = parameters.group_mut(group);
            for row in (0..values.len()).step_by(units) {
                for &i in &outside {
                    values[row + i] = start[row + i] + step[row + i] * (radius / norms[i]);
                }
            }
        }
        moved
    }

    /// How far the worst group lies outside its ball; 0 inside.
    pub fn excess(&self, parameters: &Parameters) -> f64 {
        let difference = parameters.minus(&self.start);
        let groups = self.unit_radii().into_iter().enumerate();
        let excess = groups.flat_map(|(group, radius)| {
            let norms = difference.group_norms(group);
            norms.into_iter().map(move |norm| norm - radius)
        });
        excess.fold(0.0, f64::max)
    }
}
