//! Learning rate schedules: pure functions of the step.

/// The course of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Course {
    /// It stays.
    Constant,
    /// It falls along half a cosine to the floor.
    Cosine,
    /// It is cut, by default to a half, whenever the validation value has stalled, never below the
    /// floor.
    Plateau,
}

/// What the learning rates are multiplied with, step by step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The course after the warm-up.
    pub course: Course,
    /// Steps over which the factor rises linearly to 1.
    pub warmup: u64,
    /// All steps, warm-up included.
    pub total: u64,
    /// The smallest factor after the warm-up.
    pub floor: f64,
    /// What a plateau cuts the factor to, above 0 and below 1.
    pub plateau_factor: f64,
}

impl Schedule {
    /// The factor of step `step`, counted from 0, with w steps of warm-up of T in all, floor f,
    /// after h cuts to the share p:
    ///
    /// ```text
    /// warm-up, step < w:   (step + 1)/w
    /// constant:            1
    /// cosine:              f + (1 − f)(1 + cos π (step − w)/(T − w))/2
    /// plateau:             max(f, pʰ)
    /// ```
    ///
    /// As in PyTorch, the cosine reaches its floor one step after the last.
    ///
    /// # References
    /// Loshchilov and Hutter 2017, "SGDR", equation (5).
    pub fn factor(&self, step: u64, cuts: u32) -> f64 {
        if step < self.warmup {
            return (step + 1) as f64 / self.warmup as f64;
        }
        match self.course {
            Course::Constant => 1.0,
            Course::Plateau => self.floor.max(libm::pow(self.plateau_factor, cuts.into())),
            Course::Cosine => {
                let span = self.total.saturating_sub(self.warmup).max(1);
                let done = (step - self.warmup).min(span) as f64 / span as f64;
                let cosine = libm::cos(std::f64::consts::PI * done);
                self.floor + (1.0 - self.floor) * 0.5 * (1.0 + cosine)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(course: Course, warmup: u64, total: u64, floor: f64) -> Schedule {
        Schedule {
            course,
            warmup,
            total,
            floor,
            plateau_factor: 0.5,
        }
    }

    #[test]
    fn the_warm_up_ends_at_one_and_never_starts_at_zero() {
        for course in [Course::Constant, Course::Cosine, Course::Plateau] {
            let s = schedule(course, 4, 10, 0.1);
            let rising: Vec<f64> = (0..4).map(|step| s.factor(step, 0)).collect();
            assert_eq!(rising, [0.25, 0.5, 0.75, 1.0], "{course:?}");
            assert_eq!(s.factor(4, 0), 1.0, "{course:?}");
        }
        assert_eq!(schedule(Course::Cosine, 0, 10, 0.0).factor(0, 0), 1.0);
        assert_eq!(schedule(Course::Cosine, 1, 10, 0.0).factor(0, 0), 1.0);
    }

    #[test]
    fn the_cosine_falls_from_one_to_the_floor() {
        let s = schedule(Course::Cosine, 2, 12, 0.2);
        assert!((s.factor(7, 0) - 0.6).abs() < 1e-15);
        assert!((s.factor(12, 0) - 0.2).abs() < 1e-15);
        assert_eq!(s.factor(1000, 0), s.factor(12, 0));
        assert!((2..12).all(|step| s.factor(step + 1, 0) < s.factor(step, 0)));
    }

    #[test]
    fn a_warm_up_over_all_steps_leaves_no_cosine() {
        let s = schedule(Course::Cosine, 5, 5, 0.5);
        assert_eq!(s.factor(4, 0), 1.0);
        assert!(s.factor(5, 0).is_finite());
    }

    #[test]
    fn a_plateau_halves_down_to_the_floor() {
        let s = schedule(Course::Plateau, 0, 10, 0.2);
        let factors: Vec<f64> = (0..4).map(|h| s.factor(3, h)).collect();
        assert_eq!(factors, [1.0, 0.5, 0.25, 0.2]);
        let third = Schedule {
            plateau_factor: 0.3,
            floor: 0.0,
            ..s
        };
        assert!((third.factor(3, 2) - 0.09).abs() < 1e-16);
        assert_eq!(schedule(Course::Constant, 0, 10, 0.2).factor(9, 3), 1.0);
    }
}
