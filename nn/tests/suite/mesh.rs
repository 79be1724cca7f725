//! Convolution on meshes and heat diffusion against gathered features and matrix products, on every device.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::mesh::MeshConv;
use trefoil_nn::layers::Surface;
use trefoil_nn::{Device, HeatOperator, LaplacianWeights, Mesh, NnError, Result, Tensor, TriangleMesh};

use crate::common::everywhere::{everywhere_with, values};
use crate::common::{close, cpu, devices, id, tensor};

fn same(x: f64) -> f64 {
    x
}

/// Two triangles with a common edge.
const FACES: [[usize; 3]; 2] = [[0, 1, 2], [2, 1, 3]];

/// 5 elements with four neighbours, some of which are missing; element 3 occurs twice in a row.
const NEIGHBORS: [i32; 20] = [1, 2, 3, 4, 0, 2, -1, -1, 3, 3, 0, 1, 2, 0, 4, -1, 3, 1, -1, 0];

fn mesh(kind: MeshConv) -> impl Fn(&Device) -> Mesh {
    move |d| Mesh::new(kind, &Tensor::from_slice(d, &NEIGHBORS, &[5, 4]).unwrap()).unwrap()
}

/// Features of the neighbours in one column of the list, zeros for none: [B, N, C].
fn column(x: &Tensor, at: usize) -> Tensor {
    let rows: Vec<Tensor> = (0..5)
        .map(|e| match NEIGHBORS[4 * e + at] {
            -1 => x.select(1, 0).unwrap().zeros_like().unwrap(),
            n => x.select(1, n as usize).unwrap(),
        })
        .collect();
    Tensor::stack(1, &rows.iter().collect::<Vec<_>>()).unwrap()
}

fn gathered(kind: MeshConv, x: &Tensor) -> Tensor {
    let n: Vec<Tensor> = (0..4).map(|at| column(x, at)).collect();
    let apart = |a: usize, b: usize| n[a].sub(&n[b]).unwrap().abs().unwrap();
    let sum = |a: usize, b: usize| n[a].add(&n[b]).unwrap();
    let blocks = match kind {
        MeshConv::Spiral => n.clone(),
        MeshConv::Symmetric => vec![x.clone(), apart(0, 2), sum(0, 2), apart(1, 3), sum(1, 3)],
        _ => [std::slice::from_ref(x), n.as_slice()].concat(),
    };
    Tensor::concat(-1, &blocks.iter().collect::<Vec<_>>()).unwrap()
}

#[test]
fn convolutions() {
    for (kind, blocks) in [(MeshConv::Concat, 5), (MeshConv::Symmetric, 5), (MeshConv::Spiral, 4)] {
        let m = mesh(kind)(&cpu());
        assert_eq!((m.blocks(), m.num_elements(), m.kind()), (blocks, 5, kind));
        let (x, w, b) =
            (tensor(&cpu(), &[2, 5, 3], 1), tensor(&cpu(), &[2, 3 * blocks], 2), tensor(&cpu(), &[2], 3));
        let want = gathered(kind, &x).matmul(&w.t().unwrap()).unwrap().add(&b).unwrap();
        let y = m.conv(&x, &w, Some(&b)).unwrap();
        close(&values(&y), &values(&want), 1e-12, &format!("{kind:?}"));
        let shapes: [&[usize]; 3] = [&[2, 5, 3], &[2, 3 * blocks], &[2]];
        everywhere_with(&format!("{kind:?}"), &shapes, mesh(kind), same, |t, m| {
            m.conv(&t[0], &t[1], Some(&t[2]))
        });
        everywhere_with("without batch and bias", &[&[5, 3], shapes[1]], mesh(kind), same, |t, m| {
            m.conv(&t[0], &t[1], None)
        });
        let e = m.conv(&x, &w.narrow(1, 0, 3).unwrap(), None).unwrap_err().to_string();
        assert!(e.contains("`w`") && e.contains(&format!("[O, {}]", 3 * blocks)), "{e}");
    }
}

#[test]
fn pooling_by_scores() {
    for (keep, temperature) in [(3, 1.0), (6, 2.5), (0, 1.0)] {
        let what = format!("{keep} of 6");
        everywhere_with(
            &what,
            &[&[6, 4], &[4]],
            |_| (),
            same,
            |t, ()| {
                // All that depends on the inputs, so that nothing is empty.
                let y = t[0].mesh_pool(&t[1], keep, temperature)?.0.sum()?;
                y.add(&t[0].matmul(&t[1].unsqueeze(1)?)?.sum()?)
            },
        );
    }
    for d in devices() {
        let x = Tensor::from_slice(&d, &[1.0f32, 0.0, 3.0, 1.0, 0.0, 5.0, 3.0, 2.0], &[4, 2]).unwrap();
        let w = Tensor::from_slice(&d, &[2.0f32, 0.0], &[2]).unwrap();
        // Scores 2, 6, 0, 6: of the equal ones the first.
        let (y, kept) = x.mesh_pool(&w, 3, 2.0).unwrap();
        assert_eq!(kept.to_vec::<i64>().unwrap(), [1, 3, 0], "on {}", id(&d));
        let (e1, e3) = (f64::exp(1.0), f64::exp(3.0));
        let sum = 1.0 + e1 + 2.0 * e3;
        let want = [3.0 * e3, e3, 3.0 * e3, 2.0 * e3, e1, 0.0].map(|v| v / sum);
        close(&values(&y), &want, 1e-6, "features");
        let e = x.mesh_pool(&w, 5, 1.0).unwrap_err().to_string();
        assert!(e.contains("at most 4"), "{e}");
        assert!(x.mesh_pool(&w, 2, 0.0).is_err());
        assert!(x.mesh_pool(&x, 2, 1.0).is_err());
    }
}

#[test]
fn edges_of_faces() {
    for d in devices() {
        let m = Mesh::from_faces(&d, 4, &FACES).unwrap();
        assert_eq!(
            m.edges().unwrap().to_vec::<i64>().unwrap(),
            [0, 1, 1, 2, 0, 2, 1, 3, 2, 3],
            "on {}",
            id(&d)
        );
        // Edge 1 has the other edges of the first face, then those of the second from itself on.
        let want = [1, 2, -1, -1, 2, 0, 3, 4, 0, 1, -1, -1, 4, 1, -1, -1, 1, 3, -1, -1];
        assert_eq!(m.neighbors().to_vec::<i64>().unwrap(), want);
        assert_eq!(m.kind(), MeshConv::Symmetric);
        // The order of the faces changes nothing that a convolution sees.
        let turned = Mesh::from_faces(&d, 4, &[[1, 2, 0], FACES[1]]).unwrap();
        assert_eq!(turned.num_elements(), 5);
        let none = Mesh::from_faces(&d, 4, &[]).unwrap();
        let x = Tensor::zeros(&d, DType::F32, &[0, 3]).unwrap();
        let w = Tensor::zeros(&d, DType::F32, &[2, 15]).unwrap();
        assert_eq!(none.conv(&x, &w, None).unwrap().shape(), [0, 2]);
    }
    let refused = |faces: &[[usize; 3]], parts: &[&str]| {
        let e = Mesh::from_faces(&cpu(), 5, faces).unwrap_err().to_string();
        assert!(parts.iter().all(|p| e.contains(p)), "{e}");
    };
    refused(&[[0, 1, 2], [0, 3, 3]], &["face 1", "[0, 3, 3]"]);
    refused(&[[0, 1, 2], [2, 1, 3], [1, 2, 4]], &["face 2", "vertices 1 and 2"]);
    refused(&[[0, 1, 5]], &["index 5 in face 0, corner 2", "0..5"]);
}

#[test]
fn what_a_mesh_refuses() {
    for d in devices() {
        let make =
            |list: &[i32]| Mesh::new(MeshConv::Spiral, &Tensor::from_slice(&d, list, &[2, 2]).unwrap());
        for (list, bad) in [([0, 1, 1, 2], 2), ([0, -1, 1, -2], -2)] {
            match make(&list).unwrap_err() {
                NnError::OutOfRange { op: "Mesh", place, index, limit: 2 } => {
                    assert_eq!((place.as_str(), index), ("row 1, position 1", bad), "on {}", id(&d));
                }
                e => panic!("{e:?}"),
            }
        }
        assert!(make(&[0, -1, 1, 0]).is_ok());
        let flat = Tensor::from_slice(&d, &[0i32, 1], &[2]).unwrap();
        assert!(Mesh::new(MeshConv::Spiral, &flat).unwrap_err().to_string().contains("[N, n]"));
        let three = Tensor::from_slice(&d, &[0i32, 0, 0], &[1, 3]).unwrap();
        assert!(Mesh::new(MeshConv::Symmetric, &three).unwrap_err().to_string().contains("four neighbours"));
    }
}

const VERTICES: usize = 6;

/// Eigenvectors (columns) and eigenvalues of the Laplacian of a path, and that Laplacian.
fn path(d: &Device) -> [Tensor; 3] {
    let n = VERTICES as f64;
    let at = |i: usize| (i / VERTICES, i % VERTICES);
    let phi = (0..VERTICES * VERTICES).map(at).map(|(v, k)| {
        let scale = if k == 0 { 1.0 / n } else { 2.0 / n };
        (scale.sqrt() * (std::f64::consts::PI * k as f64 * (v as f64 + 0.5) / n).cos()) as f32
    });
    let lam = (0..VERTICES).map(|k| (2.0 - 2.0 * (std::f64::consts::PI * k as f64 / n).cos()) as f32);
    let lap = (0..VERTICES * VERTICES).map(at).map(|(i, j)| match i.abs_diff(j) {
        0 if i == 0 || i == VERTICES - 1 => 1.0f32,
        0 => 2.0,
        1 => -1.0,
        _ => 0.0,
    });
    let put = |v: Vec<f32>, shape: &[usize]| Tensor::from_slice(d, &v, shape).unwrap();
    let square = [VERTICES, VERTICES];
    [put(phi.collect(), &square), put(lam.collect(), &[VERTICES]), put(lap.collect(), &square)]
}

fn spectral(path: &[Tensor; 3], like: &Tensor, mass: Option<&Tensor>) -> Result<HeatOperator> {
    Ok(HeatOperator::Spectral {
        eigenvectors: path[0].to_dtype(like.dtype())?,
        eigenvalues: path[1].to_dtype(like.dtype())?,
        mass: mass.map(|m| m.to_dtype(like.dtype())).transpose()?,
    })
}

#[test]
fn heat_diffusion() {
    let d = cpu();
    let (p, x) = (path(&d), tensor(&d, &[2, VERTICES, 3], 1));
    let t = Tensor::from_slice(&d, &[0.1, 0.7], &[2]).unwrap();
    let (w, b) = (tensor(&d, &[4, 6], 2), tensor(&d, &[4], 3));
    let mass = Tensor::from_slice(&d, &[1.0, 0.5, 2.0, 1.5, 0.7, 1.1], &[VERTICES]).unwrap();
    // By products of matrices.
    let (phi, lam) = (p[0].to_dtype(DType::F64).unwrap(), p[1].to_dtype(DType::F64).unwrap());
    let spread = |time: f64| {
        let s = phi.t().unwrap().matmul(&x.mul(&mass.unsqueeze(1).unwrap()).unwrap()).unwrap();
        let decay = lam.mul_scalar(-time).unwrap().exp().unwrap().unsqueeze(1).unwrap();
        phi.matmul(&s.mul(&decay).unwrap()).unwrap()
    };
    let both = Tensor::concat(-1, &[&spread(0.1), &spread(0.7)]).unwrap();
    let want = both.matmul(&w.t().unwrap()).unwrap().add(&b).unwrap();
    let y = x.diffusion_conv(&spectral(&p, &x, Some(&mass)).unwrap(), &t, &w, Some(&b)).unwrap();
    close(&values(&y), &values(&want), 1e-12, "by eigenvectors");
    // All eigenvectors are the operator itself; they are rounded to f32 here.
    let by_vectors = x.diffusion_conv(&spectral(&p, &x, None).unwrap(), &t, &w, None).unwrap();
    let laplacian = HeatOperator::Laplacian(p[2].to_dtype(DType::F64).unwrap());
    close(
        &values(&x.diffusion_conv(&laplacian, &t, &w, None).unwrap()),
        &values(&by_vectors),
        1e-6,
        "by series",
    );

    let positive = |x: f64| x.abs() + 0.05;
    let shapes: [&[usize]; 4] = [&[2, VERTICES, 3], &[2], &[4, 6], &[4]];
    everywhere_with("diffusion by eigenvectors", &shapes, path, positive, |t, p| {
        t[0].diffusion_conv(&spectral(p, &t[0], Some(&p[1].add_scalar(1.0)?))?, &t[1], &t[2], Some(&t[3]))
    });
    everywhere_with("a time per channel", &[&[VERTICES, 3], &[2, 3], &[4, 6]], path, positive, |t, p| {
        t[0].diffusion_conv(&spectral(p, &t[0], None)?, &t[1], &t[2], None)
    });
    everywhere_with("diffusion by a series", &[&[VERTICES, 3], &[2], &[4, 6]], path, positive, |t, p| {
        t[0].diffusion_conv(&HeatOperator::Laplacian(p[2].to_dtype(t[0].dtype())?), &t[1], &t[2], None)
    });
    let e = x.diffusion_conv(&laplacian, &t, &w.narrow(1, 0, 5).unwrap(), None).unwrap_err().to_string();
    assert!(e.contains("`w`") && e.contains("[4, 6]"), "{e}");
}

/// Side by side squares cut into two triangles each, 4 x 4 vertices.
fn squares() -> Vec<[usize; 3]> {
    (0..9)
        .flat_map(|i| {
            let v = i / 3 * 4 + i % 3;
            [[v, v + 1, v + 5], [v, v + 5, v + 4]]
        })
        .collect()
}

/// Positions of those vertices in a plane, each moved a little.
fn plane() -> Vec<f64> {
    let shift = [0.1, -0.05, 0.2, 0.0, -0.15, 0.07, 0.12];
    let at = |v: usize| [(v % 4) as f64 + shift[v % 7], (v / 4) as f64 + shift[(3 * v + 1) % 7], 0.5];
    (0..16).flat_map(at).collect()
}

#[test]
fn laplacians_and_masses_of_triangles() {
    let (d, root) = (cpu(), 3f64.sqrt());
    // A regular tetrahedron of side 2 sqrt 2: every angle has 60 degrees.
    let corners = [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 1.0, -1.0, -1.0, -1.0, 1.0];
    let corners = Tensor::from_slice(&d, &corners, &[4, 3]).unwrap();
    let solid = TriangleMesh::new(&d, 4, &[[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]]).unwrap();
    let want = [vec![-1.0 / root; 12], vec![3.0 / root; 4]].concat();
    close(
        &values(&solid.laplacian(&corners, LaplacianWeights::Cotangent).unwrap()),
        &want,
        1e-12,
        "cotangents",
    );
    let ones = [vec![-1.0; 12], vec![3.0; 4]].concat();
    close(&values(&solid.laplacian(&corners, LaplacianWeights::Uniform).unwrap()), &ones, 0.0, "ones");
    close(&values(&solid.mass(&corners).unwrap()), &[2.0 * root; 4], 1e-12, "masses");

    // In a plane, linear functions are harmonic inside, whatever the triangles; the masses are the area.
    let (flat, at) =
        (TriangleMesh::new(&d, 16, &squares()).unwrap(), Tensor::from_slice(&d, &plane(), &[16, 3]).unwrap());
    let l = flat.laplacian(&at, LaplacianWeights::Cotangent).unwrap();
    let f = Tensor::concat(1, &[&at, &at.ones_like().unwrap().narrow(1, 0, 1).unwrap()]).unwrap();
    let lf = values(&flat.graph().spmm(&f, Some(&l), None, Activation::Identity).unwrap());
    for v in [5usize, 6, 9, 10] {
        close(&lf[4 * v..4 * v + 4], &[0.0; 4], 1e-12, "harmonic");
    }
    close(&lf.iter().skip(3).step_by(4).copied().collect::<Vec<_>>(), &[0.0; 16], 1e-12, "sums of rows");
    assert!(lf[0].abs() > 0.1);
    let p = plane();
    let area: f64 = squares()
        .iter()
        .map(|f| {
            let [a, b, c] = f.map(|v| (p[3 * v], p[3 * v + 1]));
            ((b.0 - a.0) * (c.1 - a.1) - (c.0 - a.0) * (b.1 - a.1)) / 2.0
        })
        .sum();
    close(&[values(&flat.mass(&at).unwrap()).iter().sum()], &[area], 1e-12, "area");
    assert_eq!(Surface::from_triangles(&flat, &at, LaplacianWeights::Cotangent).unwrap().num_vertices(), 16);

    let make = |d: &Device| TriangleMesh::new(d, 5, &[[0, 1, 2], [2, 1, 3], [0, 2, 4]]).unwrap();
    everywhere_with("cotangents", &[&[5, 3]], make, same, |t, m| {
        m.laplacian(&t[0], LaplacianWeights::Cotangent)
    });
    everywhere_with("masses", &[&[5, 3]], make, same, |t, m| m.mass(&t[0]));
    let e = flat.mass(&corners).unwrap_err().to_string();
    assert!(e.contains("positions") && e.contains("[16, 3]"), "{e}");
}

#[test]
fn spirals_around_vertices() {
    for d in devices() {
        // An octahedron: all vertices but the one at the other end are neighbours.
        let faces = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1], [5, 2, 1], [5, 3, 2], [5, 4, 3], [5, 1, 4]];
        let m = TriangleMesh::new(&d, 6, &faces).unwrap();
        let spirals = m.spirals(7).unwrap();
        assert_eq!((spirals.kind(), spirals.neighbors().shape()), (MeshConv::Spiral, &[6, 7][..]));
        let list = spirals.neighbors().to_vec::<i64>().unwrap();
        assert_eq!(&list[..7], [0, 1, 2, 3, 4, 5, -1], "on {}", id(&d));
        assert_eq!(&list[7..14], [1, 0, 4, 5, 2, 3, -1]);
        assert_eq!(m.spirals(3).unwrap().neighbors().to_vec::<i64>().unwrap()[..3], [0, 1, 2]);
        // At a border the neighbours begin where it does: behind 3 comes 1, then 4, then 0, round vertex 2.
        let open = TriangleMesh::new(&d, 5, &[[0, 1, 2], [2, 1, 3], [0, 2, 4]]).unwrap().spirals(6).unwrap();
        assert_eq!(open.neighbors().to_vec::<i64>().unwrap()[12..18], [2, 4, 0, 1, 3, -1]);
        let e =
            TriangleMesh::new(&d, 4, &[[0, 1, 2], [1, 2, 3]]).unwrap().spirals(2).unwrap_err().to_string();
        assert!(e.contains("same way") && e.contains("face, 1"), "{e}");
        assert!(m.spirals(0).is_err());
    }
}
