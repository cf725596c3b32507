//! Sharing states among channels.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::compress::ErrorCurve;

/// How states are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Allocation {
    /// The same order in every channel.
    Uniform,
    /// One order per layer, none below half the mean.
    Layer,
    /// One order per channel.
    Channel,
}

/// A step from one order of a group to a higher one.
struct Step {
    /// Fall of the error for each state.
    gain: f64,
    group: usize,
    /// Place in the curve that it leads to.
    to: usize,
    cost: usize,
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Step {}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Step {
    /// The largest gain first; of equal ones the first group.
    fn cmp(&self, other: &Self) -> Ordering {
        let gains = self.gain.total_cmp(&other.gain);
        gains.then_with(|| other.group.cmp(&self.group))
    }
}

/// Groups of channels that share an order, with their summed curve.
struct Group {
    curve: ErrorCurve,
    size: usize,
}

impl Group {
    /// The step of steepest descent from a place: the next vertex of the curve's lower hull.
    fn step(&self, group: usize, from: usize) -> Option<Step> {
        let ErrorCurve { orders, errors } = &self.curve;
        let steps = (from + 1..orders.len()).map(|to| {
            let cost = self.size * (orders[to] - orders[from]);
            let gain = (errors[from] - errors[to]) / cost as f64;
            Step {
                gain,
                group,
                to,
                cost,
            }
        });
        // Of equal slopes the shorter step, which leaves more for others.
        steps.fold(None, |best: Option<Step>, step| match best {
            Some(best) if best.gain >= step.gain => Some(best),
            _ => Some(step),
        })
    }
}

/// Orders for `channels` curves, of which consecutive `layers` belong together, with at most
/// `budget` states in all (one for each channel at least) and, if given, no more than it takes
/// to bring Σ I_h E_h to `target`.
///
/// Every group starts at its least order; then the step with the largest fall of Σ I_h E_h for
/// each state is taken until none fits. On convex curves this is optimal, up to the last step.
/// With [`Allocation::Layer`] no layer starts below half the mean order: the sum of errors alone
/// can starve a whole layer.
pub fn allocate(
    curves: &[Vec<ErrorCurve>],
    importance: &[Vec<f64>],
    allocation: Allocation,
    budget: usize,
    target: Option<f64>,
) -> Vec<Vec<usize>> {
    let channels: usize = curves.iter().map(Vec::len).sum();
    let mean = budget as f64 / channels.max(1) as f64;
    let flat = || {
        let layers = curves.iter().zip(importance);
        layers.flat_map(|(curves, importance)| curves.iter().zip(importance))
    };
    let groups: Vec<Group> = match allocation {
        Allocation::Channel => flat()
            .map(|member| sum(&[member], member.0.orders.clone()))
            .collect(),
        Allocation::Layer => {
            let layers = curves.iter().zip(importance);
            let members = layers.map(|(c, i)| c.iter().zip(i).collect::<Vec<_>>());
            members
                .map(|members| sum(&members, every_order(&members)))
                .collect()
        }
        Allocation::Uniform => {
            let members = flat().collect::<Vec<_>>();
            vec![sum(&members, every_order(&members))]
        }
    };
    let least = match allocation {
        Allocation::Layer => (0.5 * mean).floor() as usize,
        _ => 1,
    };
    let orders = descend(&groups, least.max(1), budget, target);
    spread(curves, allocation, &orders)
}

/// The orders of the groups, per channel of every layer, none above what a channel has.
fn spread(curves: &[Vec<ErrorCurve>], allocation: Allocation, orders: &[usize]) -> Vec<Vec<usize>> {
    let mut index = 0;
    let mut out = Vec::with_capacity(curves.len());
    for (layer, curves) in curves.iter().enumerate() {
        let of = |curve: &ErrorCurve| {
            let order = match allocation {
                Allocation::Uniform => orders[0],
                Allocation::Layer => orders[layer],
                Allocation::Channel => orders[index],
            };
            index += 1;
            order.min(curve.orders.last().copied().unwrap_or(order))
        };
        out.push(curves.iter().map(of).collect());
    }
    out
}

/// Every order up to the largest that a member lists. Curves list some only; what channels share
/// must not fall between them.
fn every_order(members: &[(&ErrorCurve, &f64)]) -> Vec<usize> {
    let lists = members.iter().flat_map(|(curve, _)| &curve.orders);
    (1..=lists.copied().max().unwrap_or(1)).collect()
}

/// Σ I E over members at some orders; between those that a curve lists its error stays.
fn sum(members: &[(&ErrorCurve, &f64)], mut orders: Vec<usize>) -> Group {
    if orders.is_empty() {
        orders.push(1);
    }
    let error = |&order: &usize| {
        let shares = members.iter().map(|(curve, i)| *i * curve.at(order));
        shares.sum::<f64>()
    };
    Group {
        size: members.len(),
        curve: ErrorCurve {
            errors: orders.iter().map(error).collect(),
            orders,
        },
    }
}

fn descend(groups: &[Group], least: usize, budget: usize, target: Option<f64>) -> Vec<usize> {
    let start = |group: &Group| {
        let place = group.curve.orders.partition_point(|&order| order < least);
        place.min(group.curve.orders.len().saturating_sub(1))
    };
    let mut places: Vec<usize> = groups.iter().map(start).collect();
    let order = |places: &[usize], g: usize| groups[g].curve.orders[places[g]];
    let mut left = budget;
    for (g, group) in groups.iter().enumerate() {
        left = left.saturating_sub(group.size * order(&places, g));
    }
    let errors = places.iter().zip(groups);
    let mut error: f64 = errors
        .map(|(&place, group)| group.curve.errors[place])
        .sum();
    let first = (0..groups.len()).filter_map(|g| groups[g].step(g, places[g]));
    let mut steps: BinaryHeap<Step> = first.collect();
    while let Some(step) = steps.pop() {
        if target.is_some_and(|target| error <= target) {
            break;
        }
        let group = &groups[step.group];
        if step.cost > left {
            // The whole step is too much: the largest part of it that fits, as the group's last.
            let from = places[step.group];
            let fits = |&to: &usize| {
                group.size * (group.curve.orders[to] - group.curve.orders[from]) <= left
            };
            if let Some(to) = (from + 1..step.to).rev().find(fits) {
                left -= group.size * (group.curve.orders[to] - group.curve.orders[from]);
                places[step.group] = to;
            }
            continue;
        }
        left -= step.cost;
        error -= group.curve.errors[places[step.group]] - group.curve.errors[step.to];
        places[step.group] = step.to;
        steps.extend(group.step(step.group, step.to));
    }
    (0..groups.len()).map(|g| order(&places, g)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(orders: &[usize], errors: &[f64]) -> ErrorCurve {
        let (orders, errors) = (orders.to_vec(), errors.to_vec());
        ErrorCurve { orders, errors }
    }

    /// Falling and convex, at the orders 1, 2, ....
    fn convex(falls: Vec<f64>) -> ErrorCurve {
        let mut falls = falls;
        falls.sort_by(f64::total_cmp);
        let mut errors = vec![0.0];
        for fall in falls {
            errors.push(errors[errors.len() - 1] + fall);
        }
        errors.reverse();
        ErrorCurve {
            orders: (1..=errors.len()).collect(),
            errors,
        }
    }

    fn error(curves: &[Vec<ErrorCurve>], importance: &[Vec<f64>], orders: &[Vec<usize>]) -> f64 {
        let parts = curves.iter().flatten().zip(importance.iter().flatten());
        let parts = parts.zip(orders.iter().flatten());
        parts.map(|((c, i), order)| i * c.errors[order - 1]).sum()
    }

    /// The least error of all sharings within the budget.
    fn exhaustive(curves: &[(&ErrorCurve, f64)], budget: usize) -> f64 {
        let Some(((curve, importance), rest)) = curves.split_first() else {
            return 0.0;
        };
        let most = budget.saturating_sub(rest.len()).min(curve.orders.len());
        let tries = (1..=most)
            .map(|order| importance * curve.errors[order - 1] + exhaustive(rest, budget - order));
        tries.fold(f64::INFINITY, f64::min)
    }

    fn layers() -> impl Strategy<Value = (Vec<Vec<ErrorCurve>>, Vec<Vec<f64>>)> {
        let channel = prop::collection::vec(0.0..1.0_f64, 0..4).prop_map(convex);
        let member = (channel, 0.01..10.0_f64);
        let layer = prop::collection::vec(member, 1..3);
        prop::collection::vec(layer, 1..3).prop_map(|layers| {
            let layers = layers.into_iter().map(|layer| layer.into_iter().unzip());
            layers.unzip()
        })
    }

    proptest! {
        #[test]
        fn on_convex_curves_no_sharing_is_better(
            (curves, importance) in layers(),
            more in 0..12_usize,
        ) {
            let flat: Vec<_> = curves.iter().flatten().zip(importance.iter().flatten().copied())
                .collect();
            let budget = flat.len() + more;
            let orders = allocate(&curves, &importance, Allocation::Channel, budget, None);
            let (found, best) = (error(&curves, &importance, &orders), exhaustive(&flat, budget));
            prop_assert!(found <= best + 1e-12, "{found} {best}");
        }

        #[test]
        fn a_budget_is_kept_and_more_of_it_is_never_worse(
            (curves, importance) in layers(),
            more in 0..12_usize,
        ) {
            let channels = curves.iter().flatten().count();
            for allocation in [Allocation::Uniform, Allocation::Layer, Allocation::Channel] {
                let share = |budget| allocate(&curves, &importance, allocation, budget, None);
                let orders = share(channels + more);
                prop_assert!(orders.iter().flatten().sum::<usize>() <= channels + more);
                prop_assert!(orders.iter().flatten().all(|&order| order >= 1));
                if allocation != Allocation::Layer {
                    let richer = share(channels + more + 1);
                    let errors = [&orders, &richer].map(|o| error(&curves, &importance, o));
                    prop_assert!(errors[1] <= errors[0] + 1e-12);
                }
                let mean = (channels + more) as f64 / channels as f64;
                if allocation == Allocation::Layer {
                    for (curves, orders) in curves.iter().zip(&orders) {
                        for (curve, &order) in curves.iter().zip(orders) {
                            let least = ((0.5 * mean) as usize).min(curve.orders.len());
                            prop_assert!(order >= least);
                        }
                    }
                }
            }
        }

        #[test]
        fn a_target_is_met_and_no_sharing_of_fewer_states_meets_it(
            (curves, importance) in layers(),
            share in 0.0..1.0_f64,
        ) {
            let flat: Vec<_> = curves.iter().flatten().zip(importance.iter().flatten().copied())
                .collect();
            let whole: f64 = flat.iter().map(|(curve, i)| i * curve.errors[0]).sum();
            let all: usize = flat.iter().map(|(curve, _)| curve.orders.len()).sum();
            let target = share * whole;
            let orders =
                allocate(&curves, &importance, Allocation::Channel, all, Some(target));
            let used = orders.iter().flatten().sum::<usize>();
            prop_assert!(error(&curves, &importance, &orders) <= target + 1e-12);
            if used > flat.len() {
                prop_assert!(exhaustive(&flat, used - 1) > target - 1e-12);
            }
        }
    }

    #[test]
    fn a_uniform_order_between_the_listed_ones_is_given() {
        let sparse = curve(&[1, 2, 8, 10, 12, 16], &[9.0, 8.0, 2.0, 1.5, 1.0, 0.0]);
        let curves = vec![vec![sparse.clone(); 3], vec![sparse; 2]];
        let importance = vec![vec![1.0; 3], vec![1.0; 2]];
        for order in 1..=16 {
            let orders = allocate(&curves, &importance, Allocation::Uniform, 5 * order, None);
            assert_eq!(orders, [vec![order; 3], vec![order; 2]]);
        }
        let orders = allocate(&curves, &importance, Allocation::Uniform, 80, Some(10.0));
        assert_eq!(
            orders[0][0], 8,
            "the first order that brings 5 channels to 10"
        );
        // Half the mean of 9 stands between listed orders too.
        let importance = vec![vec![1.0; 3], vec![1e-6; 2]];
        let orders = allocate(&curves, &importance, Allocation::Layer, 5 * 9, None);
        assert!(
            orders[1].iter().all(|&order| order >= 4) && orders[0][0] >= 10,
            "{orders:?}"
        );
    }

    #[test]
    fn nothing_and_odd_curves_are_shared_without_a_panic() {
        let odd = [
            vec![],
            vec![vec![]],
            vec![vec![], vec![convex(vec![1.0])]],
            vec![vec![curve(&[], &[])]],
            vec![vec![
                curve(&[3, 4], &[f64::NAN, 0.0]),
                curve(&[1], &[f64::INFINITY]),
            ]],
        ];
        for curves in odd {
            let ones = |layer: &Vec<ErrorCurve>| vec![1.0; layer.len()];
            let importance: Vec<Vec<f64>> = curves.iter().map(ones).collect();
            for allocation in [Allocation::Uniform, Allocation::Layer, Allocation::Channel] {
                for (budget, target) in [(0, None), (9, None), (9, Some(0.5)), (9, Some(f64::NAN))]
                {
                    let orders = allocate(&curves, &importance, allocation, budget, target);
                    let shape = |x: &Vec<usize>| x.len();
                    let expected: Vec<usize> = curves.iter().map(Vec::len).collect();
                    assert_eq!(orders.iter().map(shape).collect::<Vec<_>>(), expected);
                    assert!(orders.iter().flatten().all(|&order| order >= 1));
                }
            }
        }
    }
}
