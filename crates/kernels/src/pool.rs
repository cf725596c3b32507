//! Buffers that outlive a training step.
//!
//! A step takes and frees tens of megabytes. The allocator gives such pieces back to the system,
//! and a third of the time of a step went into pages that were mapped and cleared again.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::fourier::{LaneTransform, Point};
use crate::real::LaneReal;

/// Buffers that nobody uses at the moment.
pub(crate) struct Pool<E> {
    free: Mutex<Vec<Vec<E>>>,
}

impl<E: Copy> Pool<E> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(Vec::new()),
        })
    }

    /// A buffer of `count` entries that hold anything; `filler` is for those never used before.
    fn lease(self: &Arc<Self>, count: usize, filler: E) -> Lease<E> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().enumerate();
        let fits = fits.filter(|(_, buffer)| buffer.capacity() >= count);
        let best = fits.min_by_key(|(_, buffer)| buffer.capacity());
        let best = best.map(|(index, _)| index);
        // A buffer that is too small makes room for the new one, so that the pool never holds more
        // buffers than were in use at once.
        let smallest = free.iter().enumerate().min_by_key(|(_, b)| b.capacity());
        let place = best.or(smallest.map(|(index, _)| index));
        let mut entries = place
            .map(|index| free.swap_remove(index))
            .unwrap_or_default();
        drop(free);
        if entries.capacity() < count {
            entries = Vec::with_capacity(count);
        }
        // What an earlier use left behind the count stays: filling it again would take time.
        if entries.len() < count {
            entries.resize(count, filler);
        }
        Lease {
            entries,
            count,
            pool: Arc::clone(self),
        }
    }
}

/// A buffer in use; it goes back to its pool when it is dropped.
pub struct Lease<E> {
    entries: Vec<E>,
    /// Entries that were requested; there may be more.
    count: usize,
    pool: Arc<Pool<E>>,
}

impl<E> Deref for Lease<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.entries[..self.count]
    }
}

impl<E> DerefMut for Lease<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut self.entries[..self.count]
    }
}

impl<E> Drop for Lease<E> {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        let mut free = self
            .pool
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        free.push(entries);
    }
}

/// The pools of one number type.
pub struct Workspace<T> {
    numbers: Arc<Pool<T>>,
    points: Arc<Pool<Point<T>>>,
    /// The transform that was last requested.
    plan: Mutex<Option<(usize, Arc<LaneTransform<T>>)>>,
}

impl<T: LaneReal> Default for Workspace<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: LaneReal> Workspace<T> {
    /// Empty pools.
    pub fn new() -> Self {
        Self {
            numbers: Pool::new(),
            points: Pool::new(),
            plan: Mutex::new(None),
        }
    }

    /// `count` numbers that hold anything.
    pub fn numbers(&self, count: usize) -> Lease<T> {
        self.numbers.lease(count, T::zero())
    }

    /// `count` points that hold anything.
    pub fn points(&self, count: usize) -> Lease<Point<T>> {
        self.points.lease(count, Point::zero())
    }

    /// The transform for at least `least` points.
    pub fn plan(&self, least: usize) -> Arc<LaneTransform<T>> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match &*plan {
            Some((size, plan)) if *size == least => Arc::clone(plan),
            _ => {
                let made = Arc::new(LaneTransform::new(least));
                *plan = Some((least, Arc::clone(&made)));
                made
            }
        }
    }

    /// Points of a buffer in which sequences of so many steps are convolved.
    pub fn convolution_points(&self, length: usize) -> usize {
        self.plan(2 * length).size()
    }

    /// `count` points that are 0.
    pub fn zero_points(&self, count: usize) -> Lease<Point<T>> {
        let mut points = self.points(count);
        points.fill(Point::zero());
        points
    }
}

/// The pools of a network; one of them stays empty.
pub struct Workspaces {
    single: Workspace<f32>,
    double: Workspace<f64>,
}

impl Workspaces {
    /// Empty pools.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            single: Workspace::new(),
            double: Workspace::new(),
        })
    }

    /// The pools of T.
    pub fn of<T: LaneReal>(&self) -> &Workspace<T> {
        let both: [&dyn Any; 2] = [&self.single, &self.double];
        let own = both.iter().find_map(|one| one.downcast_ref());
        own.expect("T is f32 or f64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_the_pool_stays_small() {
        let workspace = Workspace::<f32>::new();
        let first = workspace.numbers(100);
        let place = first.as_ptr();
        drop(first);
        let again = workspace.numbers(50);
        assert_eq!((again.len(), again.as_ptr()), (50, place));
        drop(again);
        drop(workspace.numbers(1000));
        let held = workspace
            .numbers
            .free
            .lock()
            .expect("nobody holds it")
            .len();
        assert_eq!(held, 1, "the small buffer made room");
    }
}
