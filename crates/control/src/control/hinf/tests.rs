//! Against sweeps, closed forms and the bounds themselves.

use super::*;

fn norm(system: &DiagonalSystem, realisation: Realisation) -> HinfNorm {
    hinf_norm(system.stable().unwrap(), realisation).unwrap()
}

#[test]
fn one_pole_has_its_closed_form() {
    for (re, im, step) in [(-0.3, 0.0, 0.5), (-2.0, 1.0, 0.1), (-1e-12, 700.0, 3.0)] {
        let pole = vec![Complex64::new(re, im)];
        let residue = [Complex64::new(0.6, -0.8)];
        let time = Time::Continuous;
        let system = DiagonalSystem::siso(time, pole.clone(), &residue, 0.0).unwrap();
        let found = norm(&system, Realisation::Complex);
        assert!((found.value * -re - 1.0).abs() < 1e-12, "{found:?}");
        assert_eq!(found.frequency, im);
        let time = Time::Discrete { step };
        let system = DiagonalSystem::siso(time, pole, &residue, 0.0).unwrap();
        let found = norm(&system, Realisation::Complex);
        let expected = 1.0 / -(re * step).exp_m1();
        assert!(
            (found.value / expected - 1.0).abs() < 1e-12,
            "{found:?} {expected}"
        );
        assert!(found.upper >= expected && found.upper / expected < 1.0 + 1e-8);
    }
}

#[test]
fn a_real_pole_and_a_feedthrough_add_at_rest() {
    let pole = vec![Complex64::new(-2.0, 0.0)];
    let one = [Complex64::ONE];
    let system = DiagonalSystem::siso(Time::Continuous, pole.clone(), &one, 3.0).unwrap();
    let found = norm(&system, Realisation::Real);
    assert!((found.value - 3.5).abs() < 1e-14 && found.frequency == 0.0);
    let system = DiagonalSystem::siso(Time::Continuous, pole, &one, -3.0).unwrap();
    let found = norm(&system, Realisation::Real);
    assert!((found.value - 3.0).abs() < 1e-14 && found.frequency == f64::INFINITY);
    assert!(found.upper < 3.0 * (1.0 + 2e-9));
}

#[test]
fn a_zero_system_has_the_gain_of_its_feedthrough() {
    for time in [Time::Continuous, Time::Discrete { step: 1.0 }] {
        let empty = DiagonalSystem::siso(time, Vec::new(), &[], 0.25).unwrap();
        let found = norm(&empty, Realisation::Real);
        assert!(
            found.value == 0.25 && found.upper < 0.25 * (1.0 + 1e-8),
            "{found:?}"
        );
        let zero = DiagonalSystem::siso(time, Vec::new(), &[], 0.0).unwrap();
        assert_eq!(norm(&zero, Realisation::Complex).upper, 0.0);
    }
}

/// The search as [`hinf_norm`] starts it.
fn search_of(system: &DiagonalSystem, realisation: Realisation) -> Search<Single> {
    let siso = system.as_siso().unwrap();
    let (nodes, residues) = match realisation {
        Realisation::Complex => siso.modes().unzip(),
        Realisation::Real => closed_residues(siso),
    };
    let direct = siso.feedthrough();
    Search::new(
        system.time(),
        &nodes,
        Single { residues, direct },
        realisation,
    )
}

/// Three modes on one side, one on the other.
fn four_modes(time: Time) -> DiagonalSystem {
    let exponents = [(-0.2, 1.0), (-0.05, 1.3), (-1.0, 0.0), (-0.4, -2.5)];
    let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
    let residues = [(1.0, 0.3), (-0.4, 0.2), (2.0, 0.0), (0.1, -1.0)];
    let residues = residues.map(|(re, im)| Complex64::new(re, im));
    DiagonalSystem::siso(time, exponents, &residues, 0.1).unwrap()
}

#[test]
fn the_expansion_bounds_a_dense_sweep_inside_its_interval() {
    for time in [Time::Continuous, Time::Discrete { step: 0.7 }] {
        let system = four_modes(time);
        for realisation in [Realisation::Real, Realisation::Complex] {
            for (centre, reach) in [(1.0, 0.5), (0.7, 0.01), (-2.0, 0.9), (3.0, 0.1)] {
                let mut search = search_of(&system, realisation);
                let bound = search.enclose(centre, reach).bound;
                let sweep = (0..=2000).map(|k| f64::from(k - 1000) / 1000.0);
                let largest = sweep.map(|x| search.gain(centre + reach * x));
                let largest = largest.fold(0.0, f64::max);
                assert!(
                    largest <= bound,
                    "{time:?} {centre} {reach}: {largest} {bound}"
                );
                if reach == 0.01 {
                    assert!(bound < largest * (1.0 + 1e-3), "{largest} {bound}");
                }
            }
        }
    }
}

/// One mode with residue 2 and a search over it.
fn one_mode(time: Time, z: Complex64) -> Search<Single> {
    let system = DiagonalSystem::siso(time, vec![z], &[Complex64::from(2.0)], 0.5).unwrap();
    search_of(&system, Realisation::Complex)
}

#[test]
fn what_an_expansion_leaves_out_is_the_rest_of_the_series() {
    // Almost undamped, so that all terms point one way on the side of the pole.
    let z = Complex64::new(-1e-7, 1.0);
    for time in [Time::Continuous, Time::Discrete { step: 1.0 }] {
        let (centre, reach, discrete) = (0.3, 0.25, time != Time::Continuous);
        let span = if discrete {
            (0.5_f64 * reach).tan()
        } else {
            reach
        };
        let search = one_mode(time, z);
        let sums = search.expand(centre, reach, span);
        let mut worst = 0.0_f64;
        for k in -50..=50 {
            let t = span * f64::from(k) / 50.0;
            let there = centre + if discrete { 2.0 * t.atan() } else { t };
            let gap = search.gap(z, there);
            let terms = sums.coefficients.iter().rev();
            let series = terms.fold(Complex64::ZERO, |sum, g| sum * t + g);
            worst = worst.max((2.0 / gap + 0.5 - series).norm());
        }
        assert!(worst <= sums.remainder + sums.rounding, "{worst:e}");
        assert!(
            worst >= 0.999 * sums.remainder,
            "{worst:e} {:e}",
            sums.remainder
        );
        // The sizes of the terms: D, the first one, and the geometric series behind it.
        let gap = search.gap(z, centre);
        let (ratio, next) = match discrete {
            true => (2.0 / gap - 1.0, 2.0 * (2.0 / gap - 2.0) / gap),
            false => (gap.inv(), 2.0 / (gap * gap)),
        };
        let series = next.norm() * span / (1.0 - span * ratio.norm());
        let size = 0.5 + 2.0 / gap.norm() + series;
        let units = sums.rounding / (f64::EPSILON * size);
        assert!((units / 17.0 - 1.0).abs() < 1e-12, "{units}");
        // A point is bounded by its gain and what rounding may have cost it.
        let mut search = one_mode(time, z);
        let point = search.enclose(centre, 0.0);
        assert!(point.rounding > 0.0);
        let above = point.bound - search.gain(centre);
        assert!(above > 0.5 * point.rounding, "{above:e}");
    }
}

#[test]
fn a_near_mode_counts_with_its_least_distance_from_the_interval() {
    let z = Complex64::new(-0.1, 1.0);
    for time in [Time::Continuous, Time::Discrete { step: 1.0 }] {
        for (centre, reach) in [(1.1, 0.2), (1.3, 0.25), (0.7, 0.25), (0.6, 0.3)] {
            let search = one_mode(time, z);
            let sweep = (-1000..=1000).map(|k| centre + reach * f64::from(k) / 1000.0);
            let least = sweep
                .map(|w| search.gap(z, w).norm())
                .fold(f64::MAX, f64::min);
            let found = search.least_gap(z, centre, reach);
            assert!((found / least - 1.0).abs() < 1e-5, "{time:?} {centre}");
            let sums = search.expand(centre, reach, reach);
            assert_eq!(sums.remainder, 2.0 / found, "{time:?} {centre}");
            // (n + 16) ε times the sizes of the terms, D among them.
            let allowed = 17.0 * f64::EPSILON * (0.5 + 2.0 / found);
            assert!((sums.rounding / allowed - 1.0).abs() < 1e-14);
        }
    }
    // Round the circle the other way.
    let search = one_mode(Time::Discrete { step: 1.0 }, Complex64::new(-0.1, 3.1));
    let found = search.least_gap(search.terms[0].z, -3.1, 0.01);
    let direct = search.gap(search.terms[0].z, -3.11).norm();
    assert!((found / direct - 1.0).abs() < 1e-12, "{found} {direct}");
}

/// Two pairs of modes that all but cancel, so that the search goes on far beyond the fastest.
#[test]
fn the_line_is_covered_on_both_sides_up_to_the_edge() {
    let exponents = [(-0.5, 0.2), (-0.5, 0.2001), (-0.4, -0.3), (-0.4, -0.3002)];
    let exponents: Vec<_> = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
    let residues = [1.0, -1.0, 1.0, -1.0].map(Complex64::from);
    let system = DiagonalSystem::siso(Time::Continuous, exponents, &residues, 0.0).unwrap();
    let mut search = search_of(&system, Realisation::Complex);
    let mut heap = BinaryHeap::new();
    search.cover_line(&mut heap);
    let mut intervals: Vec<_> = heap.into_iter().collect();
    intervals.sort_by(|a, b| a.centre.total_cmp(&b.centre));
    let end = |interval: &Interval| interval.centre + interval.reach;
    let edge = end(intervals.last().unwrap());
    assert!(edge > 100.0, "{edge}");
    let mut covered = -edge;
    for interval in &intervals {
        let start = interval.centre - interval.reach;
        assert!((start - covered).abs() < 1e-12 * edge, "{start} {covered}");
        covered = end(interval);
    }
}

#[test]
fn the_gain_found_is_that_at_the_frequency_given() {
    for time in [Time::Continuous, Time::Discrete { step: 0.7 }] {
        for realisation in [Realisation::Real, Realisation::Complex] {
            let system = four_modes(time);
            let found = norm(&system, realisation);
            let search = search_of(&system, realisation);
            assert_eq!(search.gain(found.frequency), found.value, "{time:?}");
        }
    }
}

#[test]
fn an_interval_beside_a_peak_finds_it_by_its_quadratic() {
    for time in [Time::Continuous, Time::Discrete { step: 1.0 }] {
        for centre in [0.96, 1.04] {
            let mut search = one_mode(time, Complex64::new(-0.2, 1.0));
            let _ = search.enclose(centre, 0.05);
            let peak = search.gain(search.frequency);
            assert_eq!(search.lower, peak);
            let sweep = (-100..=100).map(|k| search.gain(1.0 + f64::from(k) / 1000.0));
            let largest = sweep.fold(0.0, f64::max);
            let beside = search.gain(centre);
            assert!(
                largest - peak < 0.1 * (largest - beside),
                "{time:?} {centre}"
            );
        }
    }
}

#[test]
fn no_gain_above_an_edge_exceeds_the_bound_beyond_it() {
    let exponents = vec![Complex64::new(-0.2, 1.0), Complex64::new(-1.0, -2.0)];
    let residues = [Complex64::from(1.0), Complex64::new(0.0, -3.0)];
    let system = DiagonalSystem::siso(Time::Continuous, exponents, &residues, 0.25).unwrap();
    let search = search_of(&system, Realisation::Complex);
    for edge in [3.0, 10.0, 1e4] {
        let bound = search.beyond(edge);
        for k in 0..200 {
            let w = edge * 1.05_f64.powi(k);
            assert!(search.gain(w).max(search.gain(-w)) <= bound);
        }
        let rate = (bound - 0.25) * edge;
        assert!(
            rate >= 4.0 && rate <= 4.0 * edge / (edge - 5.0_f64.sqrt()),
            "{rate}"
        );
    }
}
