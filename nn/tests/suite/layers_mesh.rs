//! Layers of meshes: gradients, refusals, kept meshes, and what they do not depend on.

use trefoil::ops::mesh::MeshConv;
use trefoil_nn::layers::{MeshEdgeConv, SpiralConv};
use trefoil_nn::{Device, Layer, Mesh, Result, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, tensor};

/// Two triangles with a common edge, and one more.
const FACES: [[usize; 3]; 3] = [[0, 1, 2], [2, 1, 3], [3, 1, 4]];

fn gemm(d: &Device, faces: &[[usize; 3]]) -> Tensor {
    Mesh::from_faces(d, 5, faces).unwrap().neighbors().clone()
}

fn run(l: &dyn Layer, x: &Tensor, list: &Tensor) -> Result<Tensor> {
    Ok(l.forward_all(&[x.clone(), list.clone()])?.remove(0))
}

fn integers(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(&cpu(), values, shape).unwrap()
}

#[test]
fn gradients_and_samples_on_one_mesh() {
    let (d, cx) = (cpu(), f64s());
    let spirals = integers(&[7, 3], &[0, 1, 2, 1, 0, -1, 2, 2, 0, 3, -1, -1, 4, 6, 5, 5, 4, 3, 6, 5, 0]);
    let list = gemm(&d, &FACES);
    let all: [(Box<dyn Layer>, &Tensor, &str); 4] = [
        (Box::new(SpiralConv::new(&cx, 3, 2, 3).unwrap()), &spirals, "indices"),
        (Box::new(SpiralConv::new(&cx, 3, 2, 3).unwrap().no_bias()), &spirals, "indices"),
        (Box::new(MeshEdgeConv::new(&cx, 3, 2).unwrap()), &list, "gemm"),
        (Box::new(MeshEdgeConv::new(&cx, 3, 2).unwrap().symmetric(false).no_bias()), &list, "gemm"),
    ];
    for (l, list, name) in &all {
        for shape in [&[7usize, 3][..], &[2, 7, 3]] {
            gradcheck_layer(l.kind(), &**l, &[tensor(&d, shape, 2)], |t| run(&**l, &t[0], list));
        }
        let x = tensor(&d, &[2, 7, 3], 1);
        let both = run(&**l, &x, list).unwrap().to_vec::<f64>().unwrap();
        let sample = |b| run(&**l, &x.select(0, b).unwrap(), list).unwrap().to_vec::<f64>().unwrap();
        close(&both, &(0..2).flat_map(sample).collect::<Vec<_>>(), 1e-12, l.kind());
        let x = x.select(0, 0).unwrap().with_grad();
        let step = || run(&**l, &x, list).unwrap().sum().unwrap().backward().unwrap();
        step();
        resident(l.kind(), &d, step);
        refused(l.forward(&x), &[l.kind(), name, "forward_on"]);
        refused(l.forward_all(std::slice::from_ref(&x)), &[l.kind(), "inputs", "1 tensors"]);
        refused(run(&**l, &x.narrow(1, 0, 2).unwrap(), list), &[l.kind(), "`x`", "[7, 3]"]);
        refused(run(&**l, &x.narrow(0, 0, 6).unwrap(), list), &[l.kind(), "`x`", "[7, 3]", "[6, 3]"]);
        refused(run(&**l, &x, &list.narrow(1, 0, 2).unwrap()), &[l.kind(), name, "[7, 2]"]);
        // Other numbers in the same memory are another mesh.
        let (copy, values) =
            (list.copy().unwrap(), |list| run(&**l, &x, list).unwrap().to_vec::<f64>().unwrap());
        let before = values(&copy);
        copy.fill(-1.0).unwrap();
        assert_ne!(values(&copy), before);
    }
    assert_eq!(state_names(&*all[0].0), ["weight", "bias"]);
    assert_eq!(state_names(&*all[3].0), ["weight"]);
}

#[test]
fn the_order_of_the_triangles_of_an_edge_does_not_matter() {
    let (d, cx) = (cpu(), f64s());
    let list = gemm(&d, &FACES);
    let swapped = list.roll(&[2], &[1]).unwrap();
    let x = tensor(&d, &[7, 3], 1);
    let l = MeshEdgeConv::new(&cx, 3, 4).unwrap();
    let values = |l: &MeshEdgeConv, list: &Tensor| run(l, &x, list).unwrap().to_vec::<f64>().unwrap();
    close(&values(&l, &list), &values(&l, &swapped), 1e-12, "symmetric");
    let l = l.symmetric(false);
    assert_ne!(values(&l, &list), values(&l, &swapped));
    // One mesh for each sample.
    let both = Tensor::stack(0, &[&list, &swapped]).unwrap();
    let all = run(&l, &Tensor::stack(0, &[&x, &x]).unwrap(), &both).unwrap().to_vec::<f64>().unwrap();
    close(&all, &[values(&l, &list), values(&l, &swapped)].concat(), 1e-12, "a mesh each");
    let mesh = Mesh::from_faces(&d, 5, &FACES).unwrap();
    refused(l.forward_on(&mesh, &x), &["MeshEdgeConv", "`mesh`", "Concat", "Symmetric"]);
    let same = MeshEdgeConv::new(&cx, 3, 4).unwrap();
    assert_eq!(same.forward_on(&mesh, &x).unwrap().shape(), [7, 4]);
}

#[test]
fn meshes_that_are_none() {
    let (d, cx) = (cpu(), f64s());
    let l = MeshEdgeConv::new(&cx, 3, 2).unwrap();
    let (x, list) = (tensor(&d, &[7, 3], 1), gemm(&d, &FACES));
    let mut other = list.to_vec::<i64>().unwrap();
    other[0] = 6;
    refused(run(&l, &x, &integers(&[7, 4], &other)), &["gemm", "has edge 0 among", "6 (sample 0, edge 0)"]);
    for wrong in [7, -2] {
        other[0] = wrong;
        refused(run(&l, &x, &integers(&[7, 4], &other)), &["MeshEdgeConv", "gemm", &wrong.to_string()]);
    }
    refused(run(&l, &x, &list.to_dtype(trefoil::DType::F64).unwrap()), &["gemm", "i32 or i64", "f64"]);
    refused(run(&l, &x, &list.unsqueeze(0).unwrap()), &["MeshEdgeConv", "`x`", "[1, 7, C]"]);
    refused(MeshEdgeConv::new(&cx, 0, 2), &["MeshEdgeConv", "in_channels"]);
    refused(MeshEdgeConv::new(&cx, usize::MAX / 2, 2), &["MeshEdgeConv", "in_channels"]);

    let l = SpiralConv::new(&cx, 3, 2, 2).unwrap();
    refused(
        run(&l, &x, &integers(&[7, 2], &[0, 1, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0])),
        &["7", "row 2, position 1"],
    );
    let longer =
        Mesh::new(MeshConv::Spiral, &Tensor::zeros(&d, trefoil::DType::I64, &[7, 3]).unwrap()).unwrap();
    refused(l.forward_on(&longer, &x), &["SpiralConv", "indices", "[V, 2]", "[7, 3]"]);
    refused(SpiralConv::new(&cx, 3, 2, 0), &["SpiralConv", "spiral_length"]);
}
