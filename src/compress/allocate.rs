//! Sharing states among channels.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::compress::ErrorCurve;

/// How states are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
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
        Allocation::Channel => flat().map(|member| sum(&[member])).collect(),
        Allocation::Layer => {
            let layers = curves.iter().zip(importance);
            let members = layers.map(|(c, i)| c.iter().zip(i).collect::<Vec<_>>());
            members.map(|members| sum(&members)).collect()
        }
        Allocation::Uniform => vec![sum(&flat().collect::<Vec<_>>())],
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

/// Σ I E over members, at every order that any of them lists.
fn sum(members: &[(&ErrorCurve, &f64)]) -> Group {
    let lists = members.iter().flat_map(|(curve, _)| &curve.orders);
    let mut orders: Vec<usize> = lists.copied().collect();
    orders.sort_unstable();
    orders.dedup();
    let at = |curve: &ErrorCurve, order: usize| {
        let place = curve.orders.partition_point(|&known| known <= order);
        match place {
            0 => curve.errors.first().copied().unwrap_or(0.0),
            place => curve.errors[place - 1],
        }
    };
    let error = |&order: &usize| {
        let shares = members.iter().map(|(curve, i)| *i * at(curve, order));
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
