//! Which elementwise calls become one kernel.
//!
//! The members of a group have one number of elements, or few, and share nothing with those of another number. They run where the last of them stood: a
//! call in between that one of them must not cross closes the group. What members share lies at the same position in each, or is only read.

use super::access::{Access, Uses};
use super::member::{Index, Member, Operand, Scalar};
use crate::dtype::DType;

/// Members of a group at most.
const MOST_MEMBERS: usize = 24;
/// Places in memory that a group uses at most: their arguments fit into the smallest space for parameters that OpenCL promises.
const MOST_PLACES: usize = 14;
/// Operands with coordinates of their own.
const MOST_STRIDED: usize = 3;
/// Different numbers by value.
const MOST_SCALARS: usize = 18;
/// Groups that are being filled.
const MOST_OPEN: usize = 8;
/// Elements up to which calls that share nothing are one launch.
const SMALL: usize = 1 << 16;
/// Different numbers of elements.
const MOST_SIZES: usize = 4;

/// A place of a group's members.
#[derive(Debug)]
struct Touched {
    access: Access,
    flat: bool,
    dtype: Option<DType>,
    /// Elements of the call.
    n: usize,
}

/// Calls that may become one kernel.
#[derive(Debug)]
pub(super) struct Group {
    /// Numbers of elements.
    sizes: Vec<usize>,
    /// Storage types in which all of them compute the same bits.
    pub(super) units: Vec<DType>,
    /// Numbers of the calls, in order.
    pub(super) members: Vec<usize>,
    touched: Vec<Touched>,
    scalars: Vec<Scalar>,
}

/// What a group says to a call.
enum Answer {
    Joins(Vec<DType>),
    /// It stays apart, and their order does not matter.
    Apart,
    /// It stays apart, and the group runs before it.
    Conflict,
}

/// The places of a call. That from which the device's part of a random position is read is no operand.
fn places(m: &Member, uses: &Uses) -> Vec<Touched> {
    let operands = m.inputs.iter().chain(m.outputs.iter().flatten());
    let mut list: Vec<_> = operands.zip(&uses.list).map(|(o, a)| Touched::of(m.n, o, a)).collect();
    let more = uses.list[list.len()..].iter();
    list.extend(more.map(|a| Touched { access: a.clone(), flat: false, dtype: None, n: m.n }));
    list
}

/// The different ones.
fn distinct(scalars: impl Iterator<Item = Scalar>) -> Vec<Scalar> {
    let mut list = vec![];
    scalars.for_each(|s| {
        if !list.contains(&s) {
            list.push(s);
        }
    });
    list
}

impl Touched {
    fn of(n: usize, o: &Operand, access: &Access) -> Self {
        Touched { access: access.clone(), flat: o.index == Index::Flat, dtype: o.dtype, n }
    }

    /// Whether the two are the same elements, at the same positions.
    fn same(&self, other: &Touched) -> bool {
        let (a, b) = (&self.access, &other.access);
        let one_type = self.dtype.is_none() || other.dtype.is_none() || self.dtype == other.dtype;
        let one_place = a.spot == b.spot && a.bytes == b.bytes && self.n == other.n;
        self.flat && other.flat && one_place && one_type
    }
}

impl Group {
    fn new(at: usize, m: &Member, uses: &Uses) -> Self {
        let scalars = distinct(m.scalars.iter().copied());
        let sizes = vec![m.n];
        Group { sizes, units: m.units.clone(), members: vec![at], touched: places(m, uses), scalars }
    }

    fn accesses(&self) -> impl Iterator<Item = &Access> {
        self.touched.iter().map(|t| &t.access)
    }

    fn asks(&self, uses: &Uses) -> Answer {
        let conflict = uses.everything || self.accesses().any(|a| uses.list.iter().any(|b| a.conflicts(b)));
        let apart = if conflict { Answer::Conflict } else { Answer::Apart };
        let Some(m) = &uses.member else { return apart };
        let units: Vec<DType> = self.units.iter().copied().filter(|d| m.units.contains(d)).collect();
        let (known, small) = (self.sizes.contains(&m.n), self.sizes.iter().all(|&n| n.max(m.n) <= SMALL));
        let one_launch = known || (small && self.sizes.len() < MOST_SIZES);
        if !one_launch || units.is_empty() || self.members.len() == MOST_MEMBERS {
            return apart;
        }
        let own = places(m, uses);
        let fits = |a: &Touched, b: &Touched| !a.access.conflicts(&b.access) || a.same(b);
        let shares = own.iter().any(|a| self.touched.iter().any(|b| a.same(b)));
        let fit = own.iter().all(|a| self.touched.iter().all(|b| fits(a, b)));
        let all = || self.touched.iter().chain(&own);
        let mut places: Vec<_> = all().map(|t| (t.access.spot, t.access.bytes.start, t.flat)).collect();
        places.sort_unstable();
        places.dedup();
        let scalars = distinct(self.scalars.iter().chain(&m.scalars).copied());
        let room = places.len() <= MOST_PLACES
            && all().filter(|t| !t.flat).count() <= MOST_STRIDED
            && scalars.len() <= MOST_SCALARS;
        if fit && room && (shares || small) { Answer::Joins(units) } else { apart }
    }

    fn join(&mut self, at: usize, units: Vec<DType>, m: &Member, uses: &Uses) {
        self.units = units;
        self.members.push(at);
        if !self.sizes.contains(&m.n) {
            self.sizes.push(m.n);
        }
        self.scalars = distinct(self.scalars.iter().chain(&m.scalars).copied());
        self.touched.extend(places(m, uses));
    }
}

/// The groups of two or more among calls; `None` stands for one that is not made any more.
pub(super) fn groups(calls: &[Option<Uses>]) -> Vec<Group> {
    let (mut open, mut done) = (Vec::<Group>::new(), vec![]);
    let close = |g: Group, done: &mut Vec<Group>| {
        if g.members.len() > 1 {
            done.push(g);
        }
    };
    for (at, uses) in calls.iter().enumerate() {
        let Some(uses) = uses else { continue };
        // The youngest that takes it; it may not cross any other.
        let mut answers: Vec<Answer> = open.iter().map(|g| g.asks(uses)).collect();
        let taker = answers.iter().rposition(|a| matches!(a, Answer::Joins(_)));
        let joined = taker.map(|t| std::mem::replace(&mut answers[t], Answer::Apart));
        for i in (0..open.len()).rev() {
            let crossed = match &answers[i] {
                Answer::Conflict => true,
                Answer::Joins(_) => open[i].accesses().any(|a| uses.list.iter().any(|b| a.conflicts(b))),
                Answer::Apart => false,
            };
            match (&joined, taker) {
                (Some(Answer::Joins(units)), Some(t)) if t == i => {
                    if let Some(m) = &uses.member {
                        open[i].join(at, units.clone(), m, uses);
                    }
                }
                _ if crossed => close(open.remove(i), &mut done),
                _ => {}
            }
        }
        if let (None, Some(m)) = (taker, &uses.member) {
            if open.len() == MOST_OPEN {
                close(open.remove(0), &mut done);
            }
            open.push(Group::new(at, m, uses));
        }
    }
    open.into_iter().for_each(|g| close(g, &mut done));
    done.sort_by_key(|g| g.members.last().copied());
    done
}
