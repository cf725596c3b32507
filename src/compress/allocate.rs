//! Sharing states among channels.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

use crate::compress::ErrorCurve;

/// Channels that an image gathers at least: they are stored and run side by side, with as many
/// states as the largest of them.
const LANES_LEAST: usize = 4;

/// How states are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Allocation {
    /// One order for the whole model.
    #[serde(alias = "uniform")]
    Model,
    /// One order per layer, none below half the mean.
    Layer,
    /// One order for every four channels of a layer, gathered by how many states they need:
    /// what an image stores. In a checkpoint they are padded to the largest order of the layer.
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

/// Channels that share an order, with their summed curve.
struct Group {
    curve: ErrorCurve,
    /// Orders of the curve at which the errors of all members are known; at the others what is not
    /// known counts as 0.
    known: usize,
    /// Layer and channel.
    members: Vec<(usize, usize)>,
}

impl Group {
    /// The step of steepest descent from a place: the next vertex of the curve's lower hull.
    fn step(&self, group: usize, from: usize) -> Option<Step> {
        let ErrorCurve { orders, errors } = &self.curve;
        let steps = (from + 1..orders.len()).map(|to| {
            let cost = self.members.len() * (orders[to] - orders[from]);
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

/// Orders of all channels of every layer.
pub(crate) struct Shared {
    pub(crate) orders: Vec<Vec<usize>>,
    /// Channels, by layer and channel, whose unknown errors may matter to the orders.
    pub(crate) unknown: Vec<(usize, usize)>,
}

/// Orders for the channels of every layer, with at most `budget` states in all (one for each
/// channel at least) and, if given, no more than it takes to bring Σ I_h E_h to `target`.
///
/// Every group starts at its least order; then the step with the largest fall of Σ I_h E_h for
/// each state is taken until none fits. On convex curves this is optimal, up to the last step.
/// With [`Allocation::Layer`] no layer starts below half the mean order: the sum of errors alone
/// can starve a whole layer. With [`Allocation::Channel`] states are shared among single channels
/// first, which shows what each needs, then among the groups of those that need alike.
///
/// The errors of high orders need not be known. They count as 0, so that no step seems to gain less than it
/// does: where `unknown` is empty, the orders are those of the whole curves.
pub(crate) fn share(
    curves: &[Vec<ErrorCurve>],
    importance: &[Vec<f64>],
    allocation: Allocation,
    budget: usize,
    target: Option<f64>,
) -> Shared {
    let errors = Errors { curves, importance };
    let channels = errors.layers().flatten().count();
    let mean = budget as f64 / channels.max(1) as f64;
    let (groups, floor) = match allocation {
        Allocation::Channel => {
            let alone = errors.layers().flatten().map(|member| vec![member]);
            let alone: Vec<Group> = alone.map(|member| errors.group(member)).collect();
            let shared = errors.spread(&alone, &descend(&alone, 1, budget, target));
            if !shared.unknown.is_empty() {
                return shared;
            }
            (errors.gathered(&shared.orders), Floor::at(1))
        }
        Allocation::Layer => {
            let layers = errors.layers().map(|members| errors.group(members));
            let groups: Vec<Group> = layers.collect();
            let floor = match target {
                None => Floor::at((0.5 * mean).floor() as usize),
                Some(_) => Floor::of_layers(&groups, budget, target),
            };
            (groups, floor)
        }
        Allocation::Model => {
            let all = errors.layers().flatten().collect();
            (vec![errors.group(all)], Floor::at(1))
        }
    };
    let mut descent = descend(&groups, floor.least, budget, target);
    descent.unknown.extend(floor.unknown);
    errors.spread(&groups, &descent)
}

/// The order that every group starts at.
struct Floor {
    least: usize,
    /// Groups whose unknown errors may matter to it.
    unknown: BTreeSet<usize>,
}

impl Floor {
    /// One that is given, 1 at least.
    fn at(least: usize) -> Self {
        Self {
            least: least.max(1),
            unknown: BTreeSet::new(),
        }
    }

    /// That of layers where a target, and no budget, ends the steps: half the mean of the orders that
    /// come out. From 1 up, as a higher floor raises the mean.
    fn of_layers(groups: &[Group], budget: usize, target: Option<f64>) -> Self {
        let mut floor = Self::at(1);
        loop {
            let descent = descend(groups, floor.least, budget, target);
            floor.unknown.extend(descent.unknown);
            let members = || groups.iter().map(|group| group.members.len());
            let states = descent.orders.iter().zip(members());
            let states: usize = states.map(|(order, count)| order * count).sum();
            let half = states / (2 * members().sum::<usize>().max(1));
            if half <= floor.least {
                return floor;
            }
            floor.least = half;
        }
    }
}

/// What the states of every channel of every layer matter.
struct Errors<'a> {
    curves: &'a [Vec<ErrorCurve>],
    importance: &'a [Vec<f64>],
}

impl Errors<'_> {
    /// The places of the channels, layer by layer.
    fn layers(&self) -> impl Iterator<Item = Vec<(usize, usize)>> {
        let layers = self.curves.iter().enumerate();
        layers.map(|(layer, curves)| (0..curves.len()).map(|h| (layer, h)).collect())
    }

    /// Channels with Σ I E over them. What a channel alone can take are the orders of its curve;
    /// channels together can take every order up to the largest, lest it fall between those that a
    /// curve lists, and between them an error stays.
    fn group(&self, members: Vec<(usize, usize)>) -> Group {
        let lists = members
            .iter()
            .map(|&(layer, h)| &self.curves[layer][h].orders);
        let most = lists.clone().flatten().copied().max().unwrap_or(1);
        let orders = match lists.clone().next() {
            Some(orders) if members.len() == 1 && !orders.is_empty() => orders.clone(),
            _ => (1..=most).collect(),
        };
        let error = |&order: &usize| {
            let shares = members
                .iter()
                .map(|&(layer, h)| self.importance[layer][h] * self.curves[layer][h].at(order));
            shares.sum::<f64>()
        };
        let unknown = members
            .iter()
            .filter_map(|&(layer, h)| self.curves[layer][h].unknown())
            .min();
        let known = |unknown| orders.partition_point(|&order| order < unknown);
        Group {
            known: unknown.map_or(orders.len(), known),
            curve: ErrorCurve {
                errors: orders.iter().map(error).collect(),
                orders,
            },
            members,
        }
    }

    /// Groups of [`LANES_LEAST`] channels of a layer with orders next to each other.
    fn gathered(&self, orders: &[Vec<usize>]) -> Vec<Group> {
        let layers = orders.iter().enumerate();
        let groups = layers.flat_map(|(layer, orders)| {
            let groups = by_order(orders);
            groups.into_iter().map(move |group| {
                let members = group.into_iter().map(|h| (layer, h));
                members.collect()
            })
        });
        groups.map(|members| self.group(members)).collect()
    }

    /// The orders of the groups, per channel of every layer, none above what a channel has.
    fn spread(&self, groups: &[Group], descent: &Descent) -> Shared {
        let empty = self.curves.iter().map(|curves| vec![0; curves.len()]);
        let mut orders: Vec<Vec<usize>> = empty.collect();
        for (group, &order) in groups.iter().zip(&descent.orders) {
            for &(layer, h) in &group.members {
                let most = self.curves[layer][h].orders.last();
                orders[layer][h] = order.min(most.copied().unwrap_or(order));
            }
        }
        let members = descent.unknown.iter().flat_map(|&g| &groups[g].members);
        let open = |&&(layer, h): &&(usize, usize)| self.curves[layer][h].unknown().is_some();
        Shared {
            orders,
            unknown: members.filter(open).copied().collect(),
        }
    }
}

/// The channels of a layer in groups of [`LANES_LEAST`], those of the highest order first.
pub(crate) fn by_order(orders: &[usize]) -> Vec<Vec<usize>> {
    let mut channels: Vec<usize> = (0..orders.len()).collect();
    channels.sort_by_key(|&channel| std::cmp::Reverse(orders[channel]));
    channels
        .chunks(LANES_LEAST)
        .map(<[usize]>::to_vec)
        .collect()
}

/// Where all groups ended.
struct Descent {
    orders: Vec<usize>,
    /// Groups that started at an unknown error, or would have stepped to one.
    unknown: BTreeSet<usize>,
}

fn descend(groups: &[Group], least: usize, budget: usize, target: Option<f64>) -> Descent {
    let start = |group: &Group| {
        let place = group.curve.orders.partition_point(|&order| order < least);
        place.min(group.curve.orders.len().saturating_sub(1))
    };
    let mut places: Vec<usize> = groups.iter().map(start).collect();
    let order = |places: &[usize], g: usize| groups[g].curve.orders[places[g]];
    let mut left = budget;
    for (g, group) in groups.iter().enumerate() {
        left = left.saturating_sub(group.members.len() * order(&places, g));
    }
    let errors = places.iter().zip(groups);
    let mut error: f64 = errors
        .map(|(&place, group)| group.curve.errors[place])
        .sum();
    let first = (0..groups.len()).filter_map(|g| groups[g].step(g, places[g]));
    let mut steps: BinaryHeap<Step> = first.collect();
    let open = |g: &usize| places[*g] >= groups[*g].known;
    let mut unknown: BTreeSet<usize> = (0..groups.len()).filter(open).collect();
    while let Some(step) = steps.pop() {
        if target.is_some_and(|target| error <= target) {
            break;
        }
        let group = &groups[step.group];
        if left > 0 && step.to >= group.known {
            unknown.insert(step.group);
        }
        if step.cost > left {
            // The whole step is too much: the largest part of it that fits, as the group's last.
            let (from, members) = (places[step.group], group.members.len());
            let fits =
                |&to: &usize| members * (group.curve.orders[to] - group.curve.orders[from]) <= left;
            if let Some(to) = (from + 1..step.to).rev().find(fits) {
                left -= members * (group.curve.orders[to] - group.curve.orders[from]);
                places[step.group] = to;
            }
            continue;
        }
        left -= step.cost;
        error -= group.curve.errors[places[step.group]] - group.curve.errors[step.to];
        places[step.group] = step.to;
        steps.extend(group.step(step.group, step.to));
    }
    Descent {
        orders: (0..groups.len()).map(|g| order(&places, g)).collect(),
        unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn allocate(
        curves: &[Vec<ErrorCurve>],
        importance: &[Vec<f64>],
        allocation: Allocation,
        budget: usize,
        target: Option<f64>,
    ) -> Vec<Vec<usize>> {
        share(curves, importance, allocation, budget, target).orders
    }

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

    /// Shared among single channels.
    fn alone(
        curves: &[Vec<ErrorCurve>],
        importance: &[Vec<f64>],
        budget: usize,
        target: Option<f64>,
    ) -> Vec<Vec<usize>> {
        let errors = Errors { curves, importance };
        let places = errors.layers().flatten();
        let groups: Vec<Group> = places.map(|place| errors.group(vec![place])).collect();
        errors
            .spread(&groups, &descend(&groups, 1, budget, target))
            .orders
    }

    /// Falling, at some orders.
    fn any_curve() -> impl Strategy<Value = ErrorCurve> {
        prop::collection::vec((1..4_usize, 0..4_u8), 0..9).prop_map(|steps| {
            let (mut order, mut error) = (1, 0.0);
            let mut curve = curve(&[1], &[0.0]);
            for (wider, fall) in steps {
                order += wider;
                error -= f64::from(fall);
                curve.orders.push(order);
                curve.errors.push(error);
            }
            curve.errors.iter_mut().for_each(|own| *own -= error);
            curve
        })
    }

    #[test]
    fn errors_behind_the_floor_of_layers_are_asked_for() {
        // The steepest way down leads to the last order, so that the floor is 6, where the error of
        // order 5 would do.
        let whole = curve(
            &[1, 3, 5, 6, 8, 9, 12],
            &[3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 0.0],
        );
        let mut known = whole.clone();
        known.errors.truncate(3);
        let share = |own: &ErrorCurve| {
            let (curves, importance) = ([vec![own.clone()]], [vec![1.0]]);
            share(&curves, &importance, Allocation::Layer, 12, Some(2.6))
        };
        assert_eq!(share(&whole).orders, [[6]]);
        assert_eq!(share(&known).unknown, [(0, 0)]);
    }

    proptest! {
        #[test]
        fn errors_that_were_not_needed_change_no_order(
            layers in prop::collection::vec(prop::collection::vec((any_curve(), 0..9_u8), 1..7), 1..4),
            budget in 0..120_usize,
            share_left in prop::option::of(0.0..1.0_f64),
            known in 0..6_usize,
        ) {
            let layers = layers.into_iter().map(|layer| layer.into_iter().unzip());
            let (whole, importance): (Vec<Vec<ErrorCurve>>, Vec<Vec<u8>>) = layers.unzip();
            let importance: Vec<Vec<f64>> =
                importance.iter().map(|own| own.iter().copied().map(f64::from).collect()).collect();
            let most: f64 = whole.iter().flatten().map(|curve| curve.errors[0]).sum();
            let target = share_left.map(|left| left * most);
            for allocation in [Allocation::Model, Allocation::Layer, Allocation::Channel] {
                let mut curves = whole.clone();
                curves.iter_mut().flatten().for_each(|curve| curve.errors.truncate(known));
                let share = |curves: &_| share(curves, &importance, allocation, budget, target);
                let mut shared = share(&curves);
                while !shared.unknown.is_empty() {
                    for &(layer, h) in &shared.unknown {
                        let errors = &mut curves[layer][h].errors;
                        errors.push(whole[layer][h].errors[errors.len()]);
                    }
                    shared = share(&curves);
                }
                prop_assert_eq!(shared.orders, share(&whole).orders, "{:?}", allocation);
            }
        }

        #[test]
        fn on_convex_curves_no_sharing_is_better(
            (curves, importance) in layers(),
            more in 0..12_usize,
        ) {
            let flat: Vec<_> = curves.iter().flatten().zip(importance.iter().flatten().copied())
                .collect();
            let budget = flat.len() + more;
            let orders = alone(&curves, &importance, budget, None);
            let (found, best) = (error(&curves, &importance, &orders), exhaustive(&flat, budget));
            prop_assert!(found <= best + 1e-12, "{found} {best}");
        }

        #[test]
        fn a_budget_is_kept_and_more_of_it_is_never_worse(
            (curves, importance) in layers(),
            more in 0..12_usize,
        ) {
            let channels = curves.iter().flatten().count();
            for allocation in [Allocation::Model, Allocation::Layer, Allocation::Channel] {
                let share = |budget| allocate(&curves, &importance, allocation, budget, None);
                let orders = share(channels + more);
                prop_assert!(orders.iter().flatten().sum::<usize>() <= channels + more);
                prop_assert!(orders.iter().flatten().all(|&order| order >= 1));
                if allocation == Allocation::Model {
                    let richer = share(channels + more + 1);
                    let errors = [&orders, &richer].map(|o| error(&curves, &importance, o));
                    prop_assert!(errors[1] <= errors[0] + 1e-12);
                }
                if allocation == Allocation::Channel {
                    for (curves, orders) in curves.iter().zip(&orders) {
                        for group in by_order(orders) {
                            let most = group.iter().map(|&h| orders[h]).max().unwrap_or(0);
                            for h in group {
                                prop_assert_eq!(orders[h], most.min(curves[h].orders.len()));
                            }
                        }
                    }
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
            let orders = alone(&curves, &importance, all, Some(target));
            let used = orders.iter().flatten().sum::<usize>();
            prop_assert!(error(&curves, &importance, &orders) <= target + 1e-12);
            if used > flat.len() {
                prop_assert!(exhaustive(&flat, used - 1) > target - 1e-12);
            }
        }
    }

    #[test]
    fn channels_are_gathered_by_what_they_need() {
        // Eight channels, every other one of which needs many states.
        let needs: Vec<_> = (0..8)
            .map(|h| match h % 2 {
                0 => convex((3..11).map(|n| 0.1 * f64::from(n)).collect()),
                _ => convex([vec![2.0], vec![1e-3; 7]].concat()),
            })
            .collect();
        let importance = vec![vec![1.0; 8]];
        let orders = allocate(
            &[needs],
            &importance,
            Allocation::Channel,
            4 * 7 + 4 * 2,
            None,
        );
        assert_eq!(orders, [[7, 2, 7, 2, 7, 2, 7, 2]]);
    }

    #[test]
    fn a_target_takes_few_states_for_layers_too() {
        // A layer that halves its error with every state, and one that matters a millionth of that.
        let halves = convex((0..32).map(|n| 0.5f64.powi(n)).collect());
        let curves = vec![vec![halves.clone(); 4], vec![halves; 4]];
        let importance = vec![vec![1.0; 4], vec![1e-6; 4]];
        let mut before = usize::MAX;
        // The first alone would take 23, 13, 7 and 3 states; what the others leave of the target costs two.
        for (target, first) in [(1e-6, 25), (1e-3, 15), (1e-1, 9), (1.1, 5)] {
            let orders = allocate(
                &curves,
                &importance,
                Allocation::Layer,
                8 * 32,
                Some(target),
            );
            let (most, least) = (orders[0][0], orders[1][0]);
            assert!(most <= first, "{target}: {orders:?}");
            assert!(error(&curves, &importance, &orders) <= target);
            // None below half the mean of what came out.
            assert!(4 * least + 3 >= most + least, "{target}: {orders:?}");
            let states = orders.iter().flatten().sum();
            assert!(states < before, "{target}: {states}");
            before = states;
        }
    }

    #[test]
    fn a_uniform_order_between_the_listed_ones_is_given() {
        let sparse = curve(&[1, 2, 8, 10, 12, 16], &[9.0, 8.0, 2.0, 1.5, 1.0, 0.0]);
        let curves = vec![vec![sparse.clone(); 3], vec![sparse; 2]];
        let importance = vec![vec![1.0; 3], vec![1.0; 2]];
        for order in 1..=16 {
            let orders = allocate(&curves, &importance, Allocation::Model, 5 * order, None);
            assert_eq!(orders, [vec![order; 3], vec![order; 2]]);
        }
        let orders = allocate(&curves, &importance, Allocation::Model, 80, Some(10.0));
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
            for allocation in [Allocation::Model, Allocation::Layer, Allocation::Channel] {
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
