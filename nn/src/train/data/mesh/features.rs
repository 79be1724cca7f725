//! Features of the edges of a mesh.

use super::read::MeshFile;

/// Features of an edge.
pub(super) const FEATURES: usize = 5;

/// The largest height of a face by the length of its edge, which may be next to nothing.
const STEEPEST: f64 = 1e4;

fn minus(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] - b[0], a[1] - b[1], a[2] - b[2]]
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn length(a: [f64; 3]) -> f64 {
    dot(a, a).sqrt()
}

/// Between two vectors; a right angle where one of them has no direction.
fn angle(a: [f64; 3], b: [f64; 3]) -> f64 {
    let lengths = length(a) * length(b);
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0).acos() } else { std::f64::consts::FRAC_PI_2 }
}

/// A face seen from an edge of it: where the opposite corner lies, the angle there, the height over the edge by the edge's length.
struct Seen {
    upright: [f64; 3],
    angle: f64,
    ratio: f64,
}

fn seen(edge: [[f64; 3]; 2], opposite: [f64; 3]) -> Seen {
    let [p, q] = edge;
    let (along, to) = (minus(q, p), minus(opposite, p));
    let base = length(along);
    let direction = if base > 0.0 { along.map(|x| x / base) } else { [0.0; 3] };
    let upright = minus(to, direction.map(|x| dot(direction, to) * x));
    let angle = angle(minus(p, opposite), minus(q, opposite));
    let ratio = if base > 0.0 { (length(upright) / base).min(STEEPEST) } else { STEEPEST };
    Seen { upright, angle, ratio }
}

/// The features of each edge by MeshCNN (Hanocka et al., 2019), which no motion and no change of size alters: the angle between its two faces (pi
/// where they lie in a plane), the smaller and the larger one of the angles opposite to it, the smaller and the larger one of the heights of its
/// faces by its length (1e4 at most). `ends` has two vertices for each edge, `neighbors` four edges. An edge of one face has that face on both
/// sides, in a plane.
pub(super) fn of_edges(mesh: &MeshFile, ends: &[i64], neighbors: &[i64]) -> Vec<[f32; FEATURES]> {
    let at = |v: i64| mesh.positions[v as usize];
    // The corner that the other two edges of a face share.
    let corner = |a: i64, b: i64| {
        let [p, q] = [a, b].map(|e| [ends[2 * e as usize], ends[2 * e as usize + 1]]);
        if q.contains(&p[0]) { p[0] } else { p[1] }
    };
    let of_edge = |(ends, around): (&[i64], &[i64])| {
        let edge = [at(ends[0]), at(ends[1])];
        let a = seen(edge, at(corner(around[0], around[1])));
        let b = (around[2] >= 0).then(|| seen(edge, at(corner(around[2], around[3]))));
        let between = b.as_ref().map_or(std::f64::consts::PI, |b| angle(a.upright, b.upright));
        let b = b.as_ref().unwrap_or(&a);
        let all =
            [between, a.angle.min(b.angle), a.angle.max(b.angle), a.ratio.min(b.ratio), a.ratio.max(b.ratio)];
        all.map(|x| x as f32)
    };
    ends.chunks_exact(2).zip(neighbors.chunks_exact(4)).map(of_edge).collect()
}
