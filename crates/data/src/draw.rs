//! Seeded random numbers that never depend on the number of threads or the platform.
//!
//! The generator is ChaCha with 8 rounds. Every use has its own stream, so the numbers of one
//! sequence do not depend on how many came before it. The maps from bits to numbers stand here,
//! not in a crate, so that a seed gives the same data after an update.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of random numbers, the same on every machine and after every update.
///
/// ```
/// use hankelite_data::Draw;
///
/// let mut draw = Draw::new(7, 0);
/// let again = Draw::new(7, 0).unit();
/// assert_eq!(draw.unit(), again);
/// assert!(draw.below(6) < 6);
/// ```
#[derive(Debug, Clone)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// Stream `stream` of the generator with this seed. Streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Self(generator)
    }

    /// A whole number in 0..n, n at least 1, all equally likely: of the 64 random bits those that would favour
    /// small numbers are thrown away.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        let fair = u64::MAX - u64::MAX % n;
        loop {
            let bits = self.0.next_u64();
            if bits < fair {
                return (bits % n) as usize;
            }
        }
    }

    /// A multiple of 2⁻⁵³ in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (-53f64).exp2()
    }

    /// A standard normal number: √(−2 ln u) cos 2πv (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.unit())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// 0..n in random order (Fisher and Yates).
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_laws() {
        let mut draw = Draw::new(5, 0);
        let n = 200_000;
        let (mut unit, mut normal, mut fourth) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            unit += draw.unit();
            let x = draw.normal();
            normal += x * x;
            fourth += x.powi(4);
        }
        let n = f64::from(n);
        // Five standard errors: √(1/12/n), √(2/n), √(96/n).
        assert!((unit / n - 0.5).abs() < 5.0 * (1.0 / 12.0 / n).sqrt());
        assert!((normal / n - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
        assert!((fourth / n - 3.0).abs() < 5.0 * (96.0 / n).sqrt());
    }

    #[test]
    fn an_order_holds_every_index_once_and_streams_differ() {
        let order = Draw::new(1, 2).order(1000);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        assert_ne!(order, Draw::new(1, 3).order(1000));
        assert_ne!(order, Draw::new(2, 2).order(1000));
    }

    #[test]
    fn whole_numbers_are_equally_likely() {
        let mut draw = Draw::new(3, 0);
        let mut counts = [0i32; 6];
        (0..60_000).for_each(|_| counts[draw.below(6)] += 1);
        // Six standard errors of a count: √(60000 · 1/6 · 5/6) = 91.
        assert!(
            counts.iter().all(|count| (count - 10_000).abs() < 550),
            "{counts:?}"
        );
    }
}
