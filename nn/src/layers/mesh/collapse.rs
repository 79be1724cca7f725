//! Collapse of the edges of a mesh of triangles, on the host.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use crate::core::error::{Result, invalid};

const OP: &str = "MeshPool";

/// No edge.
const NONE: usize = usize::MAX;

/// The edges of a mesh, their neighbours and ends.
#[derive(Debug, Clone)]
pub(super) struct Topology {
    /// Of each edge the two other edges of its first triangle, then those of its second.
    gemm: Vec<[usize; 4]>,
    /// `sides[e][k]` is where e stands among the neighbours of its neighbour k.
    sides: Vec<[usize; 4]>,
    /// Vertices.
    ends: Vec<[usize; 2]>,
}

/// What is left of a mesh.
#[derive(Debug)]
pub(super) struct Collapsed {
    /// The edges that survived, in their old order.
    pub(super) kept: Vec<usize>,
    /// The old edges that each of them stands for.
    pub(super) groups: Vec<Vec<usize>>,
    /// Their neighbours and ends by the new numbers, -1 for none.
    pub(super) gemm: Vec<i64>,
    pub(super) ends: Vec<i64>,
}

impl Topology {
    /// From neighbours, -1 for none, and ends, row by row. Errors: an edge that is none of the mesh, or that does not have those as
    /// neighbours which have it; a negative vertex.
    pub(super) fn new(gemm: &[i64], ends: &[i64]) -> Result<Topology> {
        let count = gemm.len() / 4;
        let edge = |(at, &n): (usize, &i64)| match usize::try_from(n) {
            Ok(n) if n < count && n != at / 4 => Ok(n),
            _ if n == -1 => Ok(NONE),
            _ => {
                let expected = format!("-1 or another edge of {count}");
                Err(invalid(OP, "gemm", expected, format!("{n} (edge {})", at / 4)))
            }
        };
        let flat = gemm.iter().enumerate().map(edge).collect::<Result<Vec<usize>>>()?;
        let gemm: Vec<[usize; 4]> = flat.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]).collect();
        let vertex = |&v: &i64| {
            usize::try_from(v).map_err(|_| invalid(OP, "edges", "vertices of at least 0", format!("{v}")))
        };
        let flat = ends.iter().map(vertex).collect::<Result<Vec<usize>>>()?;
        let ends = flat.chunks_exact(2).map(|c| [c[0], c[1]]).collect();
        Ok(Topology { sides: sides_of(&gemm)?, gemm, ends })
    }

    /// Collapses edges from the one of the smallest `norms` (not negative) on until at most `target` are left: at least target - 2. Errors:
    /// no edge is left that can collapse.
    pub(super) fn collapse(&self, norms: &[f64], target: usize) -> Result<Collapsed> {
        let mut c = Collapse::new(self.clone(), target);
        // Bits of numbers that are not negative have their order.
        let numbered = norms.iter().enumerate().map(|(e, n)| Reverse((n.to_bits(), e)));
        let mut heap: BinaryHeap<_> = numbered.collect();
        while c.count > target {
            let Some(Reverse((_, e))) = heap.pop() else {
                let expected = format!("at least {}, as no further edge can collapse", c.count);
                return Err(invalid(OP, "target_edges", expected, format!("{target}")));
            };
            if c.alive[e] {
                c.edge(e);
            }
        }
        Ok(c.finish())
    }
}

/// Where each edge stands among the neighbours of its neighbours.
fn sides_of(gemm: &[[usize; 4]]) -> Result<Vec<[usize; 4]>> {
    let mut sides = vec![[0; 4]; gemm.len()];
    for (e, row) in gemm.iter().enumerate() {
        for (k, &n) in row.iter().enumerate().filter(|(_, n)| **n != NONE) {
            // Two edges that are in both of their triangles together are told apart by the third one.
            let places = || (0..4).filter(|&s| gemm[n][s] == e);
            let Some(side) = places().find(|s| gemm[n][s ^ 1] == row[k ^ 1]).or(places().next()) else {
                let expected = format!("edge {e} among the neighbours of edge {n}");
                return Err(invalid(OP, "gemm", expected, format!("{:?}", listed(&gemm[n]))));
            };
            sides[e][k] = side;
        }
    }
    for (e, row) in gemm.iter().enumerate() {
        for (k, &n) in row.iter().enumerate().filter(|(_, n)| **n != NONE) {
            if sides[n][sides[e][k]] != k {
                let got = format!("edges {e} and {n}, which share their triangles");
                return Err(invalid(OP, "gemm", "two edges of a triangle in one triangle alone", got));
            }
        }
    }
    Ok(sides)
}

/// Edges as they stand in tensors.
fn listed(row: &[usize]) -> Vec<i64> {
    row.iter().map(|&n| if n == NONE { -1 } else { n as i64 }).collect()
}

/// The first place of the half of four that a place is in.
fn base(place: usize) -> usize {
    place - place % 2
}

/// The first place of the other half.
fn other(place: usize) -> usize {
    (base(place) + 2) % 4
}

/// A mesh whose edges collapse.
struct Collapse {
    mesh: Topology,
    target: usize,
    count: usize,
    alive: Vec<bool>,
    /// The old edges that each edge stands for.
    groups: Vec<BTreeSet<usize>>,
    /// The edges at each vertex.
    at_vertex: HashMap<usize, Vec<usize>>,
}

impl Collapse {
    fn new(mesh: Topology, target: usize) -> Self {
        let count = mesh.gemm.len();
        let mut at_vertex: HashMap<usize, Vec<usize>> = HashMap::new();
        for (e, ends) in mesh.ends.iter().enumerate() {
            ends.iter().for_each(|&v| at_vertex.entry(v).or_default().push(e));
        }
        let groups = (0..count).map(|e| BTreeSet::from([e])).collect();
        Collapse { mesh, target, count, alive: vec![true; count], groups, at_vertex }
    }

    /// Makes b the neighbour of a in its place i, and a that of b in its place k.
    fn link(&mut self, a: usize, i: usize, b: usize, k: usize) {
        (self.mesh.gemm[a][i], self.mesh.gemm[b][k]) = (b, a);
        (self.mesh.sides[a][i], self.mesh.sides[b][k]) = (k, i);
    }

    /// Lets `to` stand for what `from` stands for.
    fn join(&mut self, from: usize, to: usize) {
        let more = self.groups[from].clone();
        self.groups[to].extend(more);
    }

    fn kill(&mut self, e: usize) {
        if std::mem::replace(&mut self.alive[e], false) {
            self.count -= 1;
        }
    }

    fn leave_vertices(&mut self, e: usize) {
        for v in self.mesh.ends[e] {
            self.at_vertex.entry(v).or_default().retain(|&other| other != e);
        }
    }

    /// Whether the edge or one of its neighbours has no second triangle.
    fn at_border(&self, e: usize) -> bool {
        let open = |e: usize| self.mesh.gemm[e].contains(&NONE);
        open(e) || self.mesh.gemm[e].iter().any(|&n| open(n))
    }

    /// Collapses an edge, if that leaves a mesh.
    fn edge(&mut self, e: usize) {
        let collapses = !self.at_border(e) && self.clean(e, 0) && self.clean(e, 2) && self.has_simple_ring(e);
        if !collapses {
            return;
        }
        self.merge_side(e, 0);
        self.merge_side(e, 2);
        let [stays, goes] = self.mesh.ends[e];
        self.leave_vertices(e);
        let moved = self.at_vertex.remove(&goes).unwrap_or_default();
        for &m in &moved {
            self.mesh.ends[m].iter_mut().filter(|v| **v == goes).for_each(|v| *v = stays);
        }
        self.at_vertex.entry(stays).or_default().extend(moved);
        self.kill(e);
    }

    /// Removes vertices of three edges from the triangle on one side of an edge: as long as the outer triangles of its two other edges have
    /// an edge in common, those three go and the outer edges take their place. Whether the edge can still collapse.
    fn clean(&mut self, e: usize, half: usize) -> bool {
        if self.count <= self.target {
            return false;
        }
        loop {
            let [a, b] = [self.mesh.gemm[e][half], self.mesh.gemm[e][half + 1]];
            let [fa, fb] = [other(self.mesh.sides[e][half]), other(self.mesh.sides[e][half + 1])];
            let shared = (0..2)
                .flat_map(|i| (0..2).map(move |k| (i, k)))
                .find(|(i, k)| self.mesh.gemm[a][fa + i] == self.mesh.gemm[b][fb + k]);
            let Some((i, k)) = shared else { return true };
            let (at_a, at_b) = (fa + 1 - i, fb + 1 - k);
            let (m, ua, ub) = (self.mesh.gemm[a][fa + i], self.mesh.gemm[a][at_a], self.mesh.gemm[b][at_b]);
            // Lists that are those of no surface.
            if [a, b, m].iter().any(|&gone| gone == e || !self.alive[gone]) {
                return false;
            }
            let (sa, sb) = (self.mesh.sides[a][at_a], self.mesh.sides[b][at_b]);
            self.link(e, half, ua, sa);
            self.link(e, half + 1, ub, sb);
            self.link(ua, sa ^ 1, ub, sb ^ 1);
            for (from, to) in [(a, e), (b, e), (a, ua), (m, ua), (b, ub), (m, ub)] {
                self.join(from, to);
            }
            // They stay in the lists of their vertices, as in MeshCNN, which makes the test of the rings stricter.
            [a, b, m].into_iter().for_each(|gone| self.kill(gone));
            if self.count <= self.target || self.at_border(e) {
                return false;
            }
        }
    }

    /// Whether exactly two vertices are neighbours of both ends.
    fn has_simple_ring(&self, e: usize) -> bool {
        let ring = |v: usize| -> BTreeSet<usize> {
            self.at_vertex.get(&v).into_iter().flatten().flat_map(|&n| self.mesh.ends[n]).collect()
        };
        let [a, b] = self.mesh.ends[e];
        ring(a).intersection(&ring(b)).filter(|v| ![a, b].contains(v)).count() == 2
    }

    /// Makes one edge of the two other edges of the triangle on one side of an edge.
    fn merge_side(&mut self, e: usize, half: usize) {
        let [a, b] = [self.mesh.gemm[e][half], self.mesh.gemm[e][half + 1]];
        let (near, far) = (base(self.mesh.sides[e][half]), other(self.mesh.sides[e][half + 1]));
        for i in 0..2 {
            let (outer, side) = (self.mesh.gemm[b][far + i], self.mesh.sides[b][far + i]);
            self.link(a, near + i, outer, side);
        }
        self.join(b, a);
        self.join(e, a);
        self.leave_vertices(b);
        self.kill(b);
    }

    fn finish(self) -> Collapsed {
        let kept: Vec<usize> = (0..self.alive.len()).filter(|&e| self.alive[e]).collect();
        let mut numbers = vec![-1; self.alive.len()];
        kept.iter().enumerate().for_each(|(new, &old)| numbers[old] = new as i64);
        let number = |&n: &usize| numbers.get(n).copied().unwrap_or(-1);
        Collapsed {
            groups: kept.iter().map(|&e| self.groups[e].iter().copied().collect()).collect(),
            gemm: kept.iter().flat_map(|&e| self.mesh.gemm[e].iter().map(number)).collect(),
            ends: kept.iter().flat_map(|&e| self.mesh.ends[e].map(|v| v as i64)).collect(),
            kept,
        }
    }
}
